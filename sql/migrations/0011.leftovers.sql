-- Which readings of a review could show internal notes: a token that sees them reads again what others could not
-- see. Revisions that the source no longer shows as a whole. Additive, without a rewrite of a table.
-- depends: 0007.faults

ALTER TABLE scm.mr_reviews ADD COLUMN saw_internal boolean;
COMMENT ON COLUMN scm.mr_reviews.saw_internal IS 'The token of the last reading sees internal notes; NULL: not known.';

ALTER TABLE scm.svn_revisions ADD COLUMN hidden_since timestamptz;
COMMENT ON COLUMN scm.svn_revisions.hidden_since IS 'Since when the source shows our account less of the revision than is stored; what is stored stays. NULL: it shows as much.';
