DROP TABLE scm.project_looks;
DROP TABLE scm.dagster_requests;
DELETE FROM scm.job_events WHERE action = 'join';
ALTER TABLE scm.job_events DROP CONSTRAINT job_events_action_check;
ALTER TABLE scm.job_events ADD CONSTRAINT job_events_action_check CHECK (action IN ('reset', 'drop', 'release'));
COMMENT ON COLUMN scm.job_events.action IS 'reset: tried again at once; drop: given up; release: taken from whoever worked on it.';
COMMENT ON COLUMN scm.sync_jobs.generation IS 'Generation of the watermark when the job was made.';
ALTER TABLE scm.sync_jobs DROP COLUMN reread_requested;
