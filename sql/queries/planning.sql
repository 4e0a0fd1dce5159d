-- Statements of sync_pipeline/ledger/planning.py: what the plan is made from, the hints that feed it, and
-- the locks that make two planners harmless.

-- name: units
-- Every (repository, job type) with its coverage, its hint, and whether its latest incremental job is dead,
-- and since when. A job that ended because of a refused token is not counted: the stop of the token holds it
-- back.
SELECT w.repo_id, w.job_type, r.kind, r.instance, r.instance_slug, r.tenant, r.lifecycle, w.access,
       w.visited_at, w.watermark_rev, w.watermark_time, w.head_rev AS head, w.activity_at,
       h.head_rev AS hint_head, h.activity_at AS hint_activity_at, h.observed_at AS hint_at,
       h.error_code IS NOT NULL AS hint_failed, d.listed_at, d.listed_down_to,
       w.access_since,
       CASE WHEN latest.is_dead THEN latest.finished_at END AS dead_at,
       CASE WHEN latest.is_dead THEN (
            SELECT min(j.finished_at)
              FROM scm.sync_jobs AS j
             WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'incremental'
               AND j.status = 'dead' AND (w.visited_at IS NULL OR j.finished_at > w.visited_at)
       ) END AS dead_since
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.change_hints AS h USING (repo_id)
  LEFT JOIN scm.discovery_roots AS d ON d.root_id = r.root_id AND d.lifecycle = 'active'
  LEFT JOIN LATERAL (
       SELECT j.finished_at,
              j.status = 'dead'
              AND coalesce(j.last_error_code, '') NOT IN ('cancelled', 'credential', 'scope', 'superseded',
                                                          'expired') AS is_dead
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'incremental'
        ORDER BY j.created_at DESC
        LIMIT 1) AS latest ON TRUE
 ORDER BY w.repo_id, w.job_type

-- name: jobs
-- Active jobs of the plan: every incremental and every running one, and of each (repository, job type) with a
-- backlog the most urgent of the others that need not wait for their next attempt. Not those of one person's
-- command: started from here, they would read their window at the source. Each part asks an index, because the
-- backlog of a large fleet is long.
WITH backlog AS (
    SELECT w.repo_id, w.job_type
      FROM scm.sync_watermarks AS w
     CROSS JOIN LATERAL (
           SELECT 1
             FROM scm.sync_jobs AS j
            WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.status IN ('pending', 'failed')
              AND j.mode NOT IN ('incremental', 'probe') AND NOT j.from_raw AND j.quarantine_ids IS NULL
            LIMIT 1) AS any_job
), share AS (
    SELECT greatest(1, %(jobs_looked_at)s / greatest(count(*), 1)) AS jobs FROM backlog
), found AS (
    SELECT j.*
      FROM scm.sync_jobs AS j
     WHERE j.status = 'running' AND j.mode <> 'probe' AND NOT j.from_raw AND j.quarantine_ids IS NULL
    UNION ALL
    SELECT j.*
      FROM scm.sync_watermarks AS w
      JOIN scm.sync_jobs AS j USING (repo_id, job_type)
     WHERE j.status IN ('pending', 'failed') AND j.mode = 'incremental'
    UNION ALL
    SELECT j.*
      FROM backlog AS b
     CROSS JOIN LATERAL (
           SELECT j.*
             FROM scm.sync_jobs AS j
            WHERE j.repo_id = b.repo_id AND j.job_type = b.job_type AND j.status IN ('pending', 'failed')
              AND j.mode NOT IN ('incremental', 'probe') AND NOT j.from_raw AND j.quarantine_ids IS NULL
              AND (j.not_before IS NULL OR j.not_before <= now())
            ORDER BY j.priority, j.created_at
            LIMIT (SELECT jobs FROM share)) AS j
)
SELECT job_id, repo_id, job_type, mode, revs, period, status, priority, attempts, not_before,
       claim_expires_at, created_at, dispatched_at AS dispatched_at, decision ->> 'pool' AS pool
  FROM found

-- name: samples
-- Runs that finished lately: what sources did to us. The newest of each server and tenant, and all of what had
-- trouble; the rest of a healthy fleet says nothing more. Comparisons are no syncing.
WITH lately AS (
    SELECT s.job_id, s.repo_id, s.job_type, r.instance, r.tenant, s.mode, s.started_at, s.finished_at,
           s.status, s.error_code AS code, s.calls AS requests, s.rate_limited, s.timeouts,
           row_number() OVER (PARTITION BY r.instance ORDER BY s.finished_at DESC) AS of_instance,
           row_number() OVER (PARTITION BY r.tenant ORDER BY s.finished_at DESC) AS of_tenant,
           bool_or(s.status = 'failed' OR s.rate_limited > 0 OR s.timeouts > 0)
               OVER (PARTITION BY s.repo_id, s.job_type) AS had_trouble
      FROM scm.sync_runs AS s
      JOIN scm.repos AS r USING (repo_id)
     WHERE s.status <> 'running' AND s.mode <> 'probe'
       AND s.finished_at > now() - make_interval(secs => %(seconds)s)
)
SELECT l.repo_id, l.job_type, l.instance, l.tenant, l.mode, l.started_at, l.finished_at, l.status, l.code,
       l.requests, l.rate_limited, l.timeouts, coalesce(j.decision ->> 'pool', '') AS pool
  FROM lately AS l
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE of_instance <= %(newest)s OR of_tenant <= %(newest)s OR had_trouble
 ORDER BY l.finished_at DESC
 LIMIT %(samples_looked_at)s

-- name: tenant_fairness
-- When live syncing of each tenant was last started, and that some was.
SELECT tenant, served_at FROM scm.tenant_fairness

-- name: record_served
INSERT INTO scm.tenant_fairness AS t (tenant, served_at)
SELECT tenant, now() FROM unnest(%(tenants)s::text[]) AS served (tenant)
ON CONFLICT (tenant) DO UPDATE SET served_at = EXCLUDED.served_at

-- name: buckets
-- What is left of the burst of each server's shared rate limit, from 0 to 1, and whether it is paused. The
-- burst of an SVN server is another one, so only its pause counts.
SELECT b.instance, max(b.paused_until) AS paused_until,
       coalesce(min(left_over.share) FILTER (WHERE b.endpoint_class = 'all'), 1)::float8 AS level
  FROM scm.sync_rate_limits AS b
 CROSS JOIN LATERAL (
       SELECT greatest(0, least(1, (b.tokens + b.rate * extract(epoch FROM clock_timestamp() - b.refilled_at))
                                   / %(burst)s)) AS share) AS left_over
 WHERE b.endpoint_class IN ('all', 'svn')
 GROUP BY b.instance

-- name: decided
-- Why each job was started, kept with it. ``dispatched``: to the workers that ask the ledger.
UPDATE scm.sync_jobs AS j
   SET decision = d.decision,
       dispatched_at = CASE WHEN %(dispatched)s THEN clock_timestamp() ELSE j.dispatched_at END
  FROM unnest(%(job_ids)s::uuid[], %(decisions)s::jsonb[]) AS d (job_id, decision)
 WHERE j.job_id = d.job_id

-- name: now
-- The clock of the plan: leases, claims and visits are all written in the database's time. And the day of the
-- oldest fact, NULL while there is none.
SELECT now() AS now, (SELECT history_start FROM scm.deployment) AS history_start

-- name: waiting
-- The jobs of a planned run: waiting or abandoned, inside the window of the run. Where the run names its
-- dispatch, only those that the plan dispatched with it.
SELECT job_id, repo_id, job_type, mode, revs, period, reread, only_differences, priority, trigger, actor, reason
  FROM scm.sync_jobs
 WHERE repo_id = ANY (%(repo_ids)s) AND mode = %(mode)s AND NOT from_raw AND quarantine_ids IS NULL
   AND (%(dispatch)s = '' OR decision ->> 'dispatch' = %(dispatch)s)
   AND (mode = 'incremental' OR revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange)
   AND (status = 'pending'
        OR (status = 'failed' AND (not_before IS NULL OR not_before <= now()))
        OR (status = 'running' AND claim_expires_at < now()))
 ORDER BY priority, created_at, lower(revs), lower(period)

-- name: dispatched
-- What a plan dispatched to the workers, for a pool that takes some of it, in the order of the plan.
SELECT j.job_id, j.repo_id, j.job_type, j.mode, j.revs, j.period, j.reread, j.only_differences, j.priority, j.trigger,
       j.actor, j.reason
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
 WHERE j.dispatched_at IS NOT NULL AND NOT j.from_raw AND j.quarantine_ids IS NULL AND j.mode <> 'probe'
   AND (j.status = 'pending'
        OR (j.status = 'failed' AND (j.not_before IS NULL OR j.not_before <= now()))
        OR (j.status = 'running' AND j.claim_expires_at < now()))
   AND (%(instances)s::text[] = '{}' OR r.instance = ANY (%(instances)s))
   AND (%(tenants)s::text[] = '{}' OR r.tenant = ANY (%(tenants)s))
   AND (%(job_types)s::text[] = '{}' OR j.job_type = ANY (%(job_types)s))
   AND (r.kind <> 'gitlab' OR r.instance = ANY (%(gitlabs)s))
 ORDER BY j.dispatched_at, (j.decision ->> 'rank')::int, j.created_at
 LIMIT %(limit)s

-- name: undispatch
-- What a worker could not do now.
UPDATE scm.sync_jobs
   SET dispatched_at = NULL
 WHERE job_id = ANY (%(job_ids)s) AND status IN ('pending', 'failed') AND dispatched_at IS NOT NULL

-- name: undispatch_blocked
-- Dispatched jobs of a place that is stopped now, which no worker has claimed yet.
UPDATE scm.sync_jobs AS j
   SET dispatched_at = NULL
  FROM scm.repos AS r
 WHERE r.repo_id = j.repo_id AND j.dispatched_at IS NOT NULL AND j.status IN ('pending', 'failed')
   AND (%(scope)s = 'global' OR (%(scope)s = 'instance' AND r.instance = %(key)s)
        OR (%(scope)s = 'tenant' AND r.tenant = %(key)s)
        OR (%(scope)s = 'pool' AND j.decision ->> 'pool' = %(key)s))

-- name: unregister_pool
-- What the workers of a pool leave when the last one goes.
UPDATE scm.sync_jobs
   SET dispatched_at = NULL
 WHERE dispatched_at IS NOT NULL AND status IN ('pending', 'failed') AND decision ->> 'pool' = %(pool)s

-- name: hint
-- What the changes sensor saw. A failed look keeps the last HEAD that was seen.
INSERT INTO scm.change_hints AS h (repo_id, head_rev, error_code, error, failures, observed_at)
VALUES (%(repo_id)s, %(head_rev)s, %(error_code)s, left(%(error)s, 2000),
        (%(error_code)s::text IS NOT NULL)::int, clock_timestamp())
ON CONFLICT (repo_id) DO UPDATE
   SET head_rev = coalesce(EXCLUDED.head_rev, h.head_rev),
       error_code = EXCLUDED.error_code,
       error = EXCLUDED.error,
       failures = CASE WHEN EXCLUDED.error_code IS NULL THEN 0 ELSE h.failures + 1 END,
       observed_at = EXCLUDED.observed_at

-- name: activity
-- The same for a page of GitLab projects; those that are not in the catalog, or retired, are passed over.
INSERT INTO scm.change_hints AS h (repo_id, activity_at, observed_at)
SELECT r.repo_id, seen.activity_at, clock_timestamp()
  FROM unnest(%(project_ids)s::bigint[], %(activity)s::timestamptz[]) AS seen (project_id, activity_at)
  JOIN scm.repos AS r
    ON r.kind = 'gitlab' AND r.instance = %(instance)s AND r.project_id = seen.project_id
   AND r.lifecycle = 'active'
ON CONFLICT (repo_id) DO UPDATE
   SET activity_at = EXCLUDED.activity_at, error_code = NULL, error = NULL, failures = 0,
       observed_at = EXCLUDED.observed_at

-- name: listed
-- How far back in time the sensor's listing of a root went: what is not in it was not active since.
UPDATE scm.discovery_roots
   SET listed_at = clock_timestamp(), listed_down_to = %(down_to)s
 WHERE root_id = %(root_id)s

-- name: try_lock
-- The scheduler's lock ends with its transaction, so it also works behind a transaction pooler.
SELECT pg_try_advisory_xact_lock(%(lock)s) AS locked

-- name: lock
SELECT pg_advisory_xact_lock(%(lock)s)
