-- Statements of sync_pipeline/ledger/planning.py. They read what the plan needs, store hints, and lock out
-- a second planner.

-- name: units
-- Reads every asset with its coverage, its hint, and since when its latest incremental job is dead. A job
-- that ended because of a refused token is not counted, because the token's record already holds it back.
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
-- Reads the jobs that a plan considers. These are all incremental and running jobs, and the most urgent
-- others of each asset with a backlog. Jobs of one person's command are left out, because a plan would read
-- their window at the source. Each part uses an index, because the backlog of a large fleet is long.
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
-- Reads the latest finished runs, to evaluate errors and limits of the sources. It returns the newest of
-- each server and tenant, and all of assets with trouble. Comparisons are left out.
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

-- name: served
-- Reads when live syncing of each tenant last started.
SELECT tenant, served_at FROM scm.tenant_fairness

-- name: record_served
-- Records that live syncing of some tenants started.
INSERT INTO scm.tenant_fairness AS t (tenant, served_at)
SELECT tenant, now() FROM unnest(%(tenants)s::text[]) AS served (tenant)
ON CONFLICT (tenant) DO UPDATE SET served_at = EXCLUDED.served_at

-- name: buckets
-- Reads how much of each server's burst is left, from 0 to 1, and whether the server is paused. An SVN
-- server has another burst, so only its pause counts.
SELECT b.instance, max(b.paused_until) AS paused_until,
       coalesce(min(left_over.share) FILTER (WHERE b.endpoint_class = 'all'), 1)::float8 AS level
  FROM scm.sync_rate_limits AS b
 CROSS JOIN LATERAL (
       SELECT greatest(0, least(1, (b.tokens + b.rate * extract(epoch FROM clock_timestamp() - b.refilled_at))
                                   / %(burst)s)) AS share) AS left_over
 WHERE b.endpoint_class IN ('all', 'svn')
 GROUP BY b.instance

-- name: decided
-- Stores with each job why it was started. ``dispatched`` also offers it to the workers that poll the
-- ledger.
UPDATE scm.sync_jobs AS j
   SET decision = d.decision,
       dispatched_at = CASE WHEN %(dispatched)s THEN clock_timestamp() ELSE j.dispatched_at END
  FROM unnest(%(job_ids)s::uuid[], %(decisions)s::jsonb[]) AS d (job_id, decision)
 WHERE j.job_id = d.job_id

-- name: now
-- Reads the database's clock, in which leases, claims and visits are written. It also reads the day of the
-- oldest fact, NULL without facts.
SELECT now() AS now, (SELECT history_start FROM scm.deployment) AS history_start

-- name: waiting
-- Lists the jobs of a planned run that wait or are abandoned, inside its window. A run with a dispatch gets
-- only the jobs of that dispatch.
SELECT job_id, repo_id, job_type, mode, revs, period, reread, only_differences, only_deferred, priority, trigger,
       actor, reason
  FROM scm.sync_jobs
 WHERE repo_id = ANY (%(repo_ids)s) AND mode = %(mode)s AND NOT from_raw AND quarantine_ids IS NULL
   AND (%(dispatch)s = '' OR decision ->> 'dispatch' = %(dispatch)s)
   AND (mode = 'incremental' OR only_deferred OR revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange)
   AND (status = 'pending'
        OR (status = 'failed' AND (not_before IS NULL OR not_before <= now()))
        OR (status = 'running' AND claim_expires_at < now()))
 ORDER BY priority, created_at, lower(revs), lower(period)

-- name: dispatched
-- Lists the dispatched jobs that a worker pool accepts, in the order of the plan.
SELECT j.job_id, j.repo_id, j.job_type, j.mode, j.revs, j.period, j.reread, j.only_differences, j.only_deferred,
       j.priority, j.trigger, j.actor, j.reason
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
-- Returns jobs to the plan that a worker could not run now.
UPDATE scm.sync_jobs
   SET dispatched_at = NULL
 WHERE job_id = ANY (%(job_ids)s) AND status IN ('pending', 'failed') AND dispatched_at IS NOT NULL

-- name: undispatch_blocked
-- Returns unclaimed jobs to the plan, because their scope is blocked now.
UPDATE scm.sync_jobs AS j
   SET dispatched_at = NULL
  FROM scm.repos AS r
 WHERE r.repo_id = j.repo_id AND j.dispatched_at IS NOT NULL AND j.status IN ('pending', 'failed')
   AND (%(scope)s = 'global' OR (%(scope)s = 'instance' AND r.instance = %(key)s)
        OR (%(scope)s = 'tenant' AND r.tenant = %(key)s)
        OR (%(scope)s = 'pool' AND j.decision ->> 'pool' = %(key)s))

-- name: unregister_pool
-- Returns the unclaimed jobs of a pool to the plan, when its last worker stops.
UPDATE scm.sync_jobs
   SET dispatched_at = NULL
 WHERE dispatched_at IS NOT NULL AND status IN ('pending', 'failed') AND decision ->> 'pool' = %(pool)s

-- name: hint
-- Stores what the changes sensor saw of a repository. A failed check keeps the last HEAD.
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
-- Stores the activity of a page of GitLab projects. Retired and unknown projects are ignored.
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
-- Records how far back the sensor's listing of a root went. Unlisted projects had no activity since then.
UPDATE scm.discovery_roots
   SET listed_at = clock_timestamp(), listed_down_to = %(down_to)s
 WHERE root_id = %(root_id)s

-- name: try_lock
-- Tries the scheduler's lock. It ends with the transaction, so it also works behind a transaction pooler.
SELECT pg_try_advisory_xact_lock(%(lock)s) AS locked

-- name: lock
-- Waits for the scheduler's lock.
SELECT pg_advisory_xact_lock(%(lock)s)

-- name: resync_units
-- What may be read again: active and readable. ``reason`` tells the jobs of one kind of rereading from others.
SELECT w.repo_id, w.job_type, r.kind, r.url, r.project_id, r.instance, r.tenant, w.watermark_rev,
       w.watermark_time, mine.queued_at, coalesce(mine.open, FALSE) AS open, ran.failed_at, ran.succeeded_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
 CROSS JOIN LATERAL (
       SELECT max(j.created_at) AS queued_at,
              bool_or(j.status IN ('pending', 'running', 'failed')) AS open
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'backfill' AND j.reread
          AND j.reason = %(reason)s) AS mine
 CROSS JOIN LATERAL (
       SELECT max(s.finished_at) FILTER (WHERE s.status = 'failed') AS failed_at,
              max(s.finished_at) FILTER (WHERE s.status IN ('completed', 'no_data')) AS succeeded_at
         FROM scm.sync_runs AS s
        WHERE s.repo_id = w.repo_id AND s.job_type = w.job_type AND s.mode = 'incremental'
          AND s.started_at > now() - make_interval(hours => 24) - make_interval(secs => %(look_back)s)) AS ran
 WHERE r.lifecycle = 'active' AND w.access IN ('ok', 'archived', 'pending_deletion', 'moved')
 ORDER BY w.repo_id, w.job_type

-- name: lock_resync
-- One decides after the other, so that the second sees what the first has queued.
SELECT pg_advisory_xact_lock(%(lock)s)
