-- Statements of sync_pipeline/ledger/breakers.py. They read and write the stored state of the circuit
-- breakers.

-- name: all
-- Reads the state of every breaker, for each plan and for the status report.
SELECT scope, key, state, since, opened_at, failure_rate, rate_limit_rate, timeout_rate, samples, judged_upto,
       half_open_successes, reason, updated_at
  FROM scm.breakers
 ORDER BY scope, key

-- name: save
-- Stores the state of a breaker. A change of state is also added to its history.
WITH before AS (
    SELECT coalesce((SELECT state FROM scm.breakers WHERE scope = %(scope)s AND key = %(key)s),
                    'closed') AS state
), saved AS (
    INSERT INTO scm.breakers AS b (scope, key, state, since, opened_at, failure_rate, rate_limit_rate,
                                   timeout_rate, samples, judged_upto, half_open_successes, reason)
    VALUES (%(scope)s, %(key)s, %(state)s, %(since)s, %(opened_at)s, %(failure_rate)s, %(rate_limit_rate)s,
            %(timeout_rate)s, %(samples)s, %(judged_upto)s, %(half_open_successes)s, left(%(reason)s, 2000))
    ON CONFLICT (scope, key) DO UPDATE
       SET state = EXCLUDED.state, since = EXCLUDED.since, opened_at = EXCLUDED.opened_at,
           failure_rate = EXCLUDED.failure_rate, rate_limit_rate = EXCLUDED.rate_limit_rate,
           timeout_rate = EXCLUDED.timeout_rate, samples = EXCLUDED.samples,
           judged_upto = EXCLUDED.judged_upto, half_open_successes = EXCLUDED.half_open_successes,
           reason = EXCLUDED.reason, updated_at = clock_timestamp()
)
INSERT INTO scm.breaker_events (scope, key, old_state, new_state, reason, actor)
SELECT %(scope)s, %(key)s, before.state, %(state)s, left(coalesce(%(reason)s, 'no reason given'), 2000),
       %(actor)s
  FROM before
 WHERE before.state <> %(state)s

-- name: reset
-- Closes a breaker on a person's request. Earlier failures no longer count. A closed breaker stays as it
-- is.
WITH before AS MATERIALIZED (
    SELECT state FROM scm.breakers WHERE scope = %(scope)s AND key = %(key)s FOR UPDATE
), closed AS (
    UPDATE scm.breakers AS b
       SET state = 'closed', since = clock_timestamp(), failure_rate = 0, rate_limit_rate = 0,
           timeout_rate = 0, samples = 0, judged_upto = NULL, half_open_successes = 0,
           reason = left(%(reason)s, 2000), updated_at = clock_timestamp()
      FROM before
     WHERE b.scope = %(scope)s AND b.key = %(key)s AND before.state <> 'closed'
), told AS (
    INSERT INTO scm.breaker_events (scope, key, old_state, new_state, reason, actor)
    SELECT %(scope)s, %(key)s, before.state, 'closed', left(%(reason)s, 2000), %(actor)s
      FROM before
     WHERE before.state <> 'closed'
)
SELECT state AS old_state FROM before

-- name: errors
-- Returns the three most frequent errors of the failed runs that opened a breaker.
SELECT s.error_code AS code, count(*) AS runs
  FROM scm.sync_runs AS s
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE s.status = 'failed' AND s.mode <> 'probe' AND s.error_code = ANY (%(codes)s)
   AND s.finished_at > %(opened_at)s - make_interval(secs => %(seconds)s) AND s.finished_at <= %(opened_at)s
   AND CASE %(scope)s WHEN 'instance' THEN r.instance = %(key)s WHEN 'tenant' THEN r.tenant = %(key)s
                      WHEN 'pool' THEN j.decision ->> 'pool' = %(key)s ELSE TRUE END
 GROUP BY s.error_code
 ORDER BY runs DESC, code
 LIMIT 3

-- name: events
-- Lists the latest changes of state, newest first.
SELECT scope, key, old_state, new_state, reason, actor, created_at
  FROM scm.breaker_events
 ORDER BY event_id DESC
 LIMIT %(limit)s
