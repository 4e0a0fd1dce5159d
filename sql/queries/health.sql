-- Statements of sync_pipeline/ledger/health.py. They read the facts behind the health of each asset and
-- record the result last shown.

-- name: facts
-- Reads all facts about the health of each asset, in one row each. A gap lies before the watermark or
-- origin, is not covered, and has no job. A failed window belongs to a dead job and was not covered since.
-- Abandoned jobs do not count. Commits have no gap, because the next incremental reads everything missing.
-- Only one incremental is active at a time, so the newest also ended last. Columns ``retry_...`` hold the
-- error of live syncing that will be retried. Hints of the changes sensor count until the next visit. Planned
-- fetches are stalled if none was read for a day although a visit succeeded. The last one in their order tells for
-- how long they wait.
SELECT w.repo_id, w.job_type, r.kind, r.instance, r.instance_slug, r.slug, r.lifecycle,
       w.access, w.access_detail, w.access_since, w.visited_at, w.verified_at, w.watermark_rev,
       w.watermark_time, w.head_rev,
       missing.revs - coalesce(gap.revs, '{}') AS queued_revs,
       missing.period - coalesce(gap.period, '{}') AS queued_time,
       hint.error_code AS hint_code, hint.error AS hint_error, hint.observed_at AS hint_at,
       server.error_code AS server_code, server.error AS server_error, server.failed_at AS server_since,
       retried.code AS retry_code, retried.error AS retry_error,
       coalesce(gap.revs, '{}') AS gap_revs, coalesce(gap.period, '{}') AS gap_time,
       coalesce(dead.revs * int8multirange(int8range(1, w.head_rev + 1)) - w.covered_revs, '{}')
           AS failed_revs,
       coalesce(dead.period - w.covered_time, '{}') AS failed_time,
       coalesce(latest.dead, FALSE) AS incremental_dead,
       coalesce(dead.error, latest.error) AS last_error,
       coalesce(latest.regressed, 0) AS regressed,
       (SELECT count(*) FROM scm.quarantine AS q
         WHERE q.repo_id = w.repo_id AND q.job_type = w.job_type AND q.resolved_at IS NULL) AS quarantined,
       (SELECT count(*) FROM scm.deferred_fetches AS o
         WHERE o.repo_id = w.repo_id AND o.job_type = w.job_type AND o.resolved_at IS NULL
           AND NOT o.is_planned) AS deferred_fetches,
       planned.wait AS has_planned,
       planned.wait AND w.visited_at > now() - interval '1 day'
       AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                        WHERE o.repo_id = w.repo_id AND o.job_type = w.job_type AND o.is_planned
                          AND o.resolved_at > now() - interval '1 day')
       AND (SELECT greatest(o.created_at, o.not_before) < now() - interval '1 day'
              FROM scm.deferred_fetches AS o
             WHERE o.repo_id = w.repo_id AND o.job_type = w.job_type AND o.is_planned AND o.resolved_at IS NULL
             ORDER BY o.priority DESC, o.row_updated_at, o.natural_key DESC
             LIMIT 1) AS planned_stalled,
       (SELECT json_agg(json_build_object('detail', u.detail, 'code', u.error_code, 'error', u.error,
                                          'since', u.since, 'readable_at', u.readable_at) ORDER BY u.detail)
          FROM scm.unreadable_details AS u
         WHERE u.repo_id = w.repo_id AND u.job_type = w.job_type) AS unreadable,
       differ.missing, differ.extra, differ.changed, differ.unrepaired,
       shown.passed AS shown_passed, shown.reasons AS shown_reasons, shown.evaluated_at AS shown_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.health AS shown USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT EXISTS (SELECT FROM scm.deferred_fetches AS o
                       WHERE o.repo_id = w.repo_id AND o.job_type = w.job_type AND o.is_planned
                         AND o.resolved_at IS NULL) AS wait) AS planned
  LEFT JOIN scm.change_hints AS hint
    ON hint.repo_id = w.repo_id AND hint.error_code IS NOT NULL
   AND hint.observed_at > coalesce(w.visited_at, '-infinity')
  LEFT JOIN scm.server_failures AS server
    ON server.instance = r.instance AND server.kind = r.kind
   AND server.observed_at > coalesce(w.visited_at, '-infinity')
  CROSS JOIN LATERAL (
       SELECT CASE WHEN w.origin_rev IS NULL THEN '{}' ELSE
                int8multirange(int8range(1, greatest(w.watermark_rev, w.origin_rev, 1)))
                END - w.covered_revs AS revs,
              CASE WHEN w.origin_time IS NULL THEN '{}' ELSE
                tstzmultirange(tstzrange(%(beginning)s, greatest(w.watermark_time, w.origin_time)))
                END - w.covered_time AS period) AS missing
  LEFT JOIN LATERAL (
       SELECT missing.revs - coalesce(range_agg(j.revs), '{}') AS revs,
              missing.period - coalesce(range_agg(j.period), '{}') AS period
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type
          AND (j.revs IS NOT NULL OR j.period IS NOT NULL) AND NOT j.from_raw
          AND j.quarantine_ids IS NULL AND NOT j.only_differences AND j.mode <> 'probe'
          AND j.status IN ('pending', 'running', 'failed')) AS gap ON w.job_type <> 'commits'
  CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE d.kind = 'missing') AS missing,
              count(*) FILTER (WHERE d.kind = 'extra') AS extra,
              count(*) FILTER (WHERE d.kind = 'changed') AS changed,
              count(*) FILTER (WHERE d.repairs >= %(repairs)s) AS unrepaired
         FROM scm.discrepancies AS d
        WHERE d.repo_id = w.repo_id AND d.job_type = w.job_type AND d.resolved_at IS NULL) AS differ
  LEFT JOIN (
       SELECT j.repo_id, j.job_type, range_agg(j.revs) AS revs, range_agg(j.period) AS period,
              max(j.last_error) AS error
         FROM scm.sync_jobs AS j
        WHERE j.status = 'dead' AND coalesce(j.last_error_code, '') <> ALL (%(given_up)s)
          AND (j.revs IS NOT NULL OR j.period IS NOT NULL) AND NOT j.from_raw
          AND j.quarantine_ids IS NULL AND NOT j.only_differences AND j.mode <> 'probe'
          AND (%(repo_ids)s::bigint[] IS NULL OR j.repo_id = ANY (%(repo_ids)s))
        GROUP BY j.repo_id, j.job_type) AS dead ON dead.repo_id = w.repo_id AND dead.job_type = w.job_type
  LEFT JOIN LATERAL (
       SELECT j.status = 'dead' AND coalesce(j.last_error_code, '') <> ALL (%(given_up)s) AS dead,
              j.last_error AS error,
              (SELECT s.regressed FROM scm.sync_runs AS s WHERE s.job_id = j.job_id
                ORDER BY s.attempt DESC LIMIT 1) AS regressed
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'incremental'
          AND j.status IN ('completed', 'dead')
        ORDER BY j.created_at DESC
        LIMIT 1) AS latest ON TRUE
  LEFT JOIN LATERAL (
       SELECT j.last_error_code AS code, j.last_error AS error
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'incremental'
          AND j.status IN ('failed', 'running') AND j.last_error_code IS NOT NULL
        LIMIT 1) AS retried ON TRUE
 WHERE %(repo_ids)s::bigint[] IS NULL OR w.repo_id = ANY (%(repo_ids)s)
 ORDER BY w.repo_id, w.job_type

-- name: shown
-- Records the result that Dagster shows now, so that only changes are reported.
INSERT INTO scm.health (repo_id, job_type, passed, reasons, evaluated_at)
VALUES (%(repo_id)s, %(job_type)s, %(passed)s, %(reasons)s, now())
ON CONFLICT (repo_id, job_type) DO UPDATE
   SET passed = EXCLUDED.passed, reasons = EXCLUDED.reasons, evaluated_at = EXCLUDED.evaluated_at

-- name: hidden
-- Forgets the result that was shown, so that the next tick reports it again.
DELETE FROM scm.health WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: now
-- Reads the database's clock, by which the facts were written.
SELECT now() AS now
