-- Statements of sync_pipeline/ledger/servers.py. They record servers that gave no usable response to the
-- latest check (``scm.server_failures``).

-- name: failed
-- Records one more failed check.
INSERT INTO scm.server_failures AS s (instance, kind, error_code, error, confirmed_at)
VALUES (%(instance)s, %(kind)s, %(error_code)s, left(%(error)s, 2000),
        CASE WHEN %(was_patient)s THEN now() END)
ON CONFLICT (instance, kind) DO UPDATE
   SET error_code = EXCLUDED.error_code, error = EXCLUDED.error, failures = s.failures + 1,
       observed_at = EXCLUDED.observed_at, confirmed_at = coalesce(EXCLUDED.confirmed_at, s.confirmed_at)

-- name: is_doubted
-- Returns whether only short checks of the server have timed out so far.
SELECT EXISTS (SELECT FROM scm.server_failures
                WHERE instance = %(instance)s AND kind = %(kind)s AND error_code = 'timeout'
                  AND confirmed_at IS NULL) AS is_doubted

-- name: answered
-- Deletes the record of a server that responds again.
DELETE FROM scm.server_failures WHERE instance = %(instance)s AND kind = %(kind)s

-- name: failing
-- Lists servers that do not respond, with their number of active repositories. Short checks also time out
-- at a slow but healthy server. Their time-outs count after a longer check, or live syncing, got no
-- response either. They count until live syncing gets one.
SELECT s.instance, s.kind, s.error_code, s.error, s.failures, s.failed_at, s.observed_at,
       count(*) AS repositories,
       s.error_code <> 'timeout'
       OR (s.confirmed_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM scm.sync_runs AS run
              JOIN scm.repos AS live USING (repo_id)
             WHERE live.instance = s.instance AND live.kind = s.kind AND run.mode = 'incremental'
               AND run.status IN ('completed', 'no_data') AND run.finished_at >= s.confirmed_at))
       OR coalesce((
            SELECT run.status = 'failed'
              FROM scm.sync_runs AS run
              JOIN scm.repos AS live USING (repo_id)
             WHERE live.instance = s.instance AND live.kind = s.kind AND run.mode = 'incremental'
               AND run.status <> 'running' AND run.finished_at >= s.failed_at
               AND (run.status IN ('completed', 'no_data')
                    OR (run.status = 'failed' AND run.error_code IN ('timeout', 'connection')))
             ORDER BY run.finished_at DESC
             LIMIT 1), FALSE) AS is_confirmed
  FROM scm.server_failures AS s
  JOIN scm.repos AS r ON r.instance = s.instance AND r.kind = s.kind AND r.lifecycle = 'active'
 GROUP BY s.instance, s.kind
 ORDER BY s.instance, s.kind
