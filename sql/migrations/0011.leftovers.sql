-- Which readings of a review could show internal notes: a token that sees them reads again what others could not
-- see. Additive, without a rewrite of the table.

-- depends: 0007.faults
ALTER TABLE scm.mr_reviews ADD COLUMN saw_internal boolean;
COMMENT ON COLUMN scm.mr_reviews.saw_internal IS 'The token of the last reading sees internal notes; NULL: not known.';
