-- A reread that is asked for while an attempt runs is kept with the job. Additive.
-- depends: 0006.operators

ALTER TABLE scm.sync_jobs ADD COLUMN reread_requested boolean NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN scm.sync_jobs.reread_requested IS 'A reread was requested while an attempt was running without it: the job runs once more, with reread.';
COMMENT ON COLUMN scm.sync_jobs.generation IS 'Generation of the watermark when the job was made or last claimed.';

ALTER TABLE scm.job_events DROP CONSTRAINT job_events_action_check;
ALTER TABLE scm.job_events ADD CONSTRAINT job_events_action_check
    CHECK (action IN ('reset', 'drop', 'release', 'join'));
COMMENT ON COLUMN scm.job_events.action IS 'reset: tried again at once; drop: given up; release: taken from whoever worked on it; join: a person asked for the same work.';
