-- Statements of sync_pipeline/ledger/credentials.py. They record tokens that a server refused
-- (``scm.revoked_credentials``).

-- name: stop
-- Records that a server refused a token. A repeated refusal keeps the time of the first one.
INSERT INTO scm.revoked_credentials AS s (instance, fingerprint, reason)
VALUES (%(instance)s, %(fingerprint)s, left(%(reason)s, 2000))
ON CONFLICT (instance, fingerprint) DO UPDATE
   SET reason = EXCLUDED.reason, last_seen_at = clock_timestamp()

-- name: clear
-- Deletes the record of a token that the server accepted.
DELETE FROM scm.revoked_credentials WHERE instance = %(instance)s AND fingerprint = %(fingerprint)s

-- name: stops
-- Lists every refused token, for the plan and for the health of the assets that depend on it.
SELECT instance, fingerprint, reason, stopped_at, last_seen_at
  FROM scm.revoked_credentials
 ORDER BY instance, fingerprint

-- name: unresolved_stops
-- Returns the latest refusal of each server that no later visit or run has disproved. It is for processes
-- that do not hold the tokens.
SELECT DISTINCT ON (s.instance) s.instance, s.fingerprint, s.reason, s.stopped_at, s.last_seen_at
  FROM scm.revoked_credentials AS s
 WHERE NOT EXISTS (
       SELECT 1 FROM scm.sync_watermarks AS w JOIN scm.repos AS r USING (repo_id)
        WHERE r.kind = 'gitlab' AND r.instance = s.instance AND w.verified_at > s.last_seen_at)
   AND NOT EXISTS (
       SELECT 1 FROM scm.sync_runs AS n JOIN scm.repos AS r USING (repo_id)
        WHERE r.kind = 'gitlab' AND r.instance = s.instance AND n.started_at > s.last_seen_at
          AND n.status IN ('completed', 'no_data') AND n.calls > 0)
 ORDER BY s.instance, s.last_seen_at DESC
