-- Statements of sync_pipeline/ledger/pauses.py. They read and write the pauses of people.

-- name: add
-- Creates a pause. A scope has one active pause, so a person ends it to change it.
INSERT INTO scm.pauses (scope, instance, tenant, repo_id, job_type, reason, actor, until)
VALUES (%(scope)s, %(instance)s, %(tenant)s, %(repo_id)s, %(job_type)s, left(%(reason)s, 2000), %(actor)s,
        clock_timestamp() + make_interval(secs => %(seconds)s))
RETURNING pause_id

-- name: close_over
-- Ends pauses whose time is over, before a new one is created.
UPDATE scm.pauses
   SET ended_at = until, ended_by = 'time'
 WHERE ended_at IS NULL AND until <= clock_timestamp()

-- name: end
-- Ends a pause on a person's request.
UPDATE scm.pauses
   SET ended_at = clock_timestamp(), ended_by = %(actor)s
 WHERE pause_id = %(pause_id)s AND ended_at IS NULL
RETURNING pause_id

-- name: active
-- Lists the active pauses, for the plan and for people.
SELECT p.pause_id, p.scope, p.instance, p.tenant, p.repo_id, p.job_type, p.reason, p.actor, p.created_at,
       p.until
  FROM scm.pauses AS p
 WHERE p.ended_at IS NULL AND (p.until IS NULL OR p.until > clock_timestamp())
 ORDER BY p.pause_id

-- name: of_job
-- Reads the pause that keeps a job from being claimed, the longest one first.
SELECT p.pause_id, p.scope, p.instance, p.tenant, p.repo_id, p.job_type, p.reason, p.actor, p.created_at,
       p.until
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.pauses AS p
    ON p.ended_at IS NULL
   AND (p.until IS NULL OR p.until > clock_timestamp())
   AND (p.scope = 'global' OR p.instance = r.instance OR p.tenant = r.tenant OR p.repo_id = r.repo_id)
   AND (p.job_type IS NULL OR p.job_type = j.job_type)
 WHERE j.job_id = %(job_id)s
 ORDER BY coalesce(p.until, 'infinity') DESC
 LIMIT 1
