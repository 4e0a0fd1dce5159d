-- Two levels of a merge request: usable and complete. Details that only the second has are planned. No table is rewritten.
-- depends: 0014.comments

ALTER TABLE scm.deferred_fetches
    ADD COLUMN is_planned     boolean     NOT NULL DEFAULT FALSE,
    ADD COLUMN priority       integer     NOT NULL DEFAULT 100,
    ADD COLUMN row_updated_at timestamptz;
COMMENT ON TABLE scm.deferred_fetches IS
    'Details of stored rows that were not read yet: planned ones, and those that could not be read. They count as missing and are read later.';
COMMENT ON COLUMN scm.deferred_fetches.is_planned IS
    'True: the detail was left for later by plan, and no attempt failed yet.';
COMMENT ON COLUMN scm.deferred_fetches.priority IS
    'Order of planned fetches, smallest first. 10: open and updated in the last 90 days; 20: open; 30: updated in the last 90 days; 50: others; 100: not planned.';
COMMENT ON COLUMN scm.deferred_fetches.row_updated_at IS
    'updated_at of the merge request, for the order inside a priority; NULL for fetches that were not planned.';
CREATE INDEX deferred_fetches_planned
    ON scm.deferred_fetches (repo_id, job_type, priority, row_updated_at DESC, natural_key)
    WHERE is_planned AND resolved_at IS NULL;

ALTER TABLE scm.review_events
    ADD COLUMN time_precision text NOT NULL DEFAULT 'millisecond'
        CONSTRAINT review_events_time_precision_check CHECK (time_precision IN ('second', 'millisecond'));
COMMENT ON COLUMN scm.review_events.time_precision IS
    'Precision of the times of the row. second: it was read by GraphQL, whose times are whole seconds; raw has the shape of GraphQL then.';

-- A database that was rolled back has plans, and rows read by GraphQL, of before. No other database has such.
UPDATE scm.deferred_fetches AS d
   SET is_planned = TRUE, priority = CASE WHEN m.status = 'open' THEN 20 ELSE 50 END, row_updated_at = m.updated_at
  FROM scm.mrs AS m
 WHERE d.resolved_at IS NULL AND d.attempts = 0 AND d.last_error = 'not read yet: planned'
   AND m.repo_id = d.repo_id AND m.iid::text = d.natural_key AND m.replaced_id = 0;
UPDATE scm.review_events AS e SET time_precision = 'second'
  FROM scm.deferred_fetches AS d
 WHERE d.resolved_at IS NULL AND d.is_planned AND d.job_type = 'reviews' AND d.detail = 'notes'
   AND e.repo_id = d.repo_id AND e.mr_iid = d.natural_key::bigint
   AND e.origin = 'note' AND e.raw ->> 'id' LIKE 'gid://%';

ALTER TABLE scm.mrs ADD COLUMN versions_read_at timestamptz;
COMMENT ON COLUMN scm.mrs.versions_read_at IS
    'When its versions and commits were last read; NULL: before 0.9.0, or never.';

ALTER TABLE scm.sync_runs ADD COLUMN notice text CHECK (length(notice) <= 2000);
COMMENT ON COLUMN scm.sync_runs.notice IS
    'Why the run read in another way than usual, such as by REST instead of GraphQL; NULL: it did not.';
