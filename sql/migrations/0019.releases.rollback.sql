SELECT scm.remove_job_type('releases');
DROP TABLE scm.releases;
ALTER TABLE scm.job_types DROP COLUMN optional;
DELETE FROM scm.repo_events WHERE event = 'job_types';
ALTER TABLE scm.repo_events
    DROP CONSTRAINT repo_events_event_check,
    ADD CONSTRAINT repo_events_event_check
        CHECK (event IN ('registered', 'moved', 'tenant', 'default_branch', 'archived', 'unarchived', 'pending_deletion',
                         'restored', 'vanished', 'returned', 'retired', 'reactivated'));
ALTER TABLE scm.repos DROP COLUMN optional_job_types;
