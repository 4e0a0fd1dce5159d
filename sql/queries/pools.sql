-- Statements of sync_pipeline/ledger/pools.py. They record the running worker pools and find assets that
-- none of them accepts.

-- name: seen
-- Records the heartbeat of a pool and what it accepts.
INSERT INTO scm.worker_pools AS p (name, instances, tenants, job_types, seen_at)
VALUES (%(name)s, %(instances)s, %(tenants)s, %(job_types)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE
   SET instances = EXCLUDED.instances, tenants = EXCLUDED.tenants, job_types = EXCLUDED.job_types,
       seen_at = EXCLUDED.seen_at

-- name: alive
-- Lists the running pools, for the status report.
SELECT name, instances, tenants, job_types, seen_at
  FROM scm.worker_pools
 WHERE seen_at > clock_timestamp() - make_interval(secs => %(alive)s)
 ORDER BY name

-- name: unserved
-- Lists assets that no running pool accepts, for a report. Without any pool there is nothing to report.
WITH alive AS (
    SELECT * FROM scm.worker_pools
     WHERE seen_at > clock_timestamp() - make_interval(secs => %(alive)s)
)
SELECT r.repo_id, r.kind, r.url, r.project_id, w.job_type, r.instance, r.tenant
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
 WHERE r.lifecycle = 'active'
   AND EXISTS (SELECT FROM alive)
   AND NOT EXISTS (SELECT FROM alive AS p
                    WHERE (p.instances = '{}' OR r.instance = ANY (p.instances))
                      AND (p.tenants = '{}' OR r.tenant = ANY (p.tenants))
                      AND (p.job_types = '{}' OR w.job_type = ANY (p.job_types)))
 ORDER BY r.repo_id, w.job_type
 LIMIT %(limit)s
