-- Statements of sync_pipeline/ledger/project_snapshots.py: the latest look at each GitLab project:
-- ``scm.project_snapshots``.

-- name: recent
-- A look that is recent enough, with the same token, and that none of these job types has used. A token that
-- was refused since then is tried anew.
SELECT raw, escaped, server_date, looked_at FROM scm.project_snapshots
 WHERE repo_id = %(repo_id)s AND fingerprint = %(fingerprint)s AND NOT job_types && %(job_types)s::text[]
   AND looked_at > clock_timestamp() - make_interval(secs => %(seconds)s)
   AND NOT EXISTS (SELECT FROM scm.revoked_credentials WHERE fingerprint = %(fingerprint)s)

-- name: put
INSERT INTO scm.project_snapshots (repo_id, fingerprint, job_types, raw, escaped, server_date, looked_at)
VALUES (%(repo_id)s, %(fingerprint)s, %(job_types)s, %(raw)s, %(escaped)s, %(server_date)s, %(looked_at)s)
ON CONFLICT (repo_id) DO UPDATE
   SET fingerprint = EXCLUDED.fingerprint, job_types = EXCLUDED.job_types, raw = EXCLUDED.raw,
       escaped = EXCLUDED.escaped, server_date = EXCLUDED.server_date, looked_at = EXCLUDED.looked_at

-- name: used
UPDATE scm.project_snapshots SET job_types = job_types || %(job_types)s::text[]
 WHERE repo_id = %(repo_id)s AND looked_at = %(looked_at)s
