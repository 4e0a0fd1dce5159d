-- Statements of sync_pipeline/ledger/status.py. They read what the status report shows besides the facts of
-- health.

-- name: units
-- Reads one row per asset with its covered range, the facts that decide whether it is due, and the latest
-- attempt. Comparisons have results of their own.
SELECT w.repo_id, w.job_type, r.kind, r.url, r.project_id, r.project_path, r.instance, r.tenant, r.slug,
       r.instance_slug, r.lifecycle, r.created_at AS registered_at, w.origin_rev, w.origin_time,
       w.activity_at, h.head_rev AS hint_head, h.activity_at AS hint_activity_at,
       h.observed_at AS hint_at, h.error_code IS NOT NULL AS hint_failed, d.listed_at, d.listed_down_to,
       (SELECT lower(covered) FROM unnest(w.covered_revs) AS covered
         WHERE covered @> w.origin_rev) AS covered_from_rev,
       (SELECT lower(covered) FROM unnest(w.covered_time) AS covered
         WHERE covered @> w.origin_time) AS covered_from_time,
       coalesce((SELECT range_agg(covered) FROM unnest(w.covered_revs) AS covered
                  WHERE NOT covered @> w.origin_rev), '{}') AS apart_revs,
       coalesce((SELECT range_agg(covered) FROM unnest(w.covered_time) AS covered
                  WHERE NOT covered @> w.origin_time), '{}') AS apart_time,
       run.mode AS run_mode, run.status AS run_status, run.started_at AS run_started_at,
       run.finished_at AS run_finished_at, run.rows_read AS run_read, run.inserted AS run_inserted,
       run.updated AS run_updated, run.unchanged AS run_unchanged, run.regressed AS run_poorer,
       run.quarantined AS run_quarantined, run.calls AS run_calls, run.error_code AS run_error_code,
       run.error AS run_error, run.dagster_run_id AS run_dagster_run_id
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.change_hints AS h USING (repo_id)
  LEFT JOIN scm.discovery_roots AS d ON d.root_id = r.root_id AND d.lifecycle = 'active'
  LEFT JOIN LATERAL (
       SELECT s.mode, s.status, s.started_at, s.finished_at, s.rows_read, s.inserted, s.updated, s.unchanged,
              s.regressed, s.quarantined, s.calls, s.error_code, s.error, s.dagster_run_id
         FROM scm.sync_runs AS s
        WHERE s.repo_id = w.repo_id AND s.job_type = w.job_type AND s.mode <> 'probe'
        ORDER BY s.started_at DESC
        LIMIT 1) AS run ON TRUE
 WHERE %(repo_ids)s::bigint[] IS NULL OR w.repo_id = ANY (%(repo_ids)s)

-- name: running
-- Lists claimed jobs with their owner. ``claimed`` is False once the claim has expired.
SELECT repo_id, job_type, job_id, mode, attempts, claimed_by, claimed_at, claim_expires_at,
       claim_expires_at > now() AS claimed
  FROM scm.sync_jobs
 WHERE status = 'running' AND (%(repo_ids)s::bigint[] IS NULL OR repo_id = ANY (%(repo_ids)s))
 ORDER BY claimed_at, job_id
