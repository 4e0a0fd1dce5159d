-- Statements of sync_pipeline/ledger/pauses.py: what people have paused.

-- name: add
-- One active pause per place: to change it, end it and make another.
INSERT INTO scm.pauses (scope, instance, tenant, repo_id, job_type, reason, actor, until)
VALUES (%(scope)s, %(instance)s, %(tenant)s, %(repo_id)s, %(job_type)s, left(%(reason)s, 2000), %(actor)s,
        clock_timestamp() + make_interval(secs => %(seconds)s))
RETURNING pause_id

-- name: close_over
-- Before a new one is made: those whose time is over give way.
UPDATE scm.pauses
   SET ended_at = until, ended_by = 'time'
 WHERE ended_at IS NULL AND until <= clock_timestamp()

-- name: end
UPDATE scm.pauses
   SET ended_at = clock_timestamp(), ended_by = %(actor)s
 WHERE pause_id = %(pause_id)s AND ended_at IS NULL
RETURNING pause_id

-- name: active
-- What is paused now, for the plan and for people.
SELECT p.pause_id, p.scope, p.instance, p.tenant, p.repo_id, p.job_type, p.reason, p.actor, p.created_at,
       p.until
  FROM scm.pauses AS p
 WHERE p.ended_at IS NULL AND (p.until IS NULL OR p.until > clock_timestamp())
 ORDER BY p.pause_id

-- name: of_job
-- Why a job may not be claimed: the pause that ends last.
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
