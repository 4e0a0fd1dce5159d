-- Where each batch was read, so that a person sees it and can have it read again. Additive: batches that are stored
-- already have no position.
-- depends: 0009.controls

ALTER TABLE scm.sync_batches
    ADD COLUMN position  text CHECK (length(position) <= 200),
    ADD COLUMN first_key text CHECK (length(first_key) <= 200),
    ADD COLUMN last_key  text CHECK (length(last_key) <= 200),
    ADD COLUMN read_time tstzmultirange,
    ADD COLUMN owed      bigint,
    ADD COLUMN calls     bigint,
    ADD COLUMN seconds   double precision;
COMMENT ON COLUMN scm.sync_batches.position IS 'Where in the source it was read, in a few words, such as a page; NULL where it read no rows, and for batches of 0.6.0 and earlier.';
COMMENT ON COLUMN scm.sync_batches.first_key IS 'Key of the first row that arrived: revision, commit, or number of the merge request. At most 200 characters.';
COMMENT ON COLUMN scm.sync_batches.last_key IS 'Key of the last row that arrived.';
COMMENT ON COLUMN scm.sync_batches.read_time IS 'Times that a replay reads again: of merge requests and reviews when they were last updated, of commits when they were committed. NULL for revisions, whose revs say it.';
COMMENT ON COLUMN scm.sync_batches.owed IS 'Details of its rows that could not be read and are read later (scm.obligations).';
COMMENT ON COLUMN scm.sync_batches.calls IS 'Requests to the source, or svn commands, since the batch before.';
COMMENT ON COLUMN scm.sync_batches.seconds IS 'Seconds since the batch before, or since the start of the run.';
