-- Statements of sync_pipeline/ledger/project_snapshots.py. They keep the latest response about each GitLab
-- project (``scm.project_snapshots``).

-- name: recent
-- Reads a recent response to the same token that none of these job types has used. After a refusal of the
-- token there is none.
SELECT raw, escaped, server_date, looked_at FROM scm.project_snapshots
 WHERE repo_id = %(repo_id)s AND fingerprint = %(fingerprint)s AND NOT job_types && %(job_types)s::text[]
   AND looked_at > clock_timestamp() - make_interval(secs => %(seconds)s)
   AND NOT EXISTS (SELECT FROM scm.revoked_credentials WHERE fingerprint = %(fingerprint)s)

-- name: latest
-- Reads the latest response to the same token, whichever job types have used it. After a refusal of the token
-- there is none.
SELECT raw, escaped, server_date, looked_at FROM scm.project_snapshots
 WHERE repo_id = %(repo_id)s AND fingerprint = %(fingerprint)s
   AND looked_at > clock_timestamp() - make_interval(secs => %(seconds)s)
   AND NOT EXISTS (SELECT FROM scm.revoked_credentials WHERE fingerprint = %(fingerprint)s)

-- name: put
-- Stores the response about a project.
INSERT INTO scm.project_snapshots (repo_id, fingerprint, job_types, raw, escaped, server_date, looked_at)
VALUES (%(repo_id)s, %(fingerprint)s, %(job_types)s, %(raw)s, %(escaped)s, %(server_date)s, %(looked_at)s)
ON CONFLICT (repo_id) DO UPDATE
   SET fingerprint = EXCLUDED.fingerprint, job_types = EXCLUDED.job_types, raw = EXCLUDED.raw,
       escaped = EXCLUDED.escaped, server_date = EXCLUDED.server_date, looked_at = EXCLUDED.looked_at

-- name: used
-- Records that these job types have used the response.
UPDATE scm.project_snapshots SET job_types = job_types || %(job_types)s::text[]
 WHERE repo_id = %(repo_id)s AND looked_at = %(looked_at)s
