-- Coverage, origin and generation that differ from their events. Empty if the records agree.
WITH base AS (
    SELECT DISTINCT ON (repo_id, job_type) repo_id, job_type, event_id, covered_revs, covered_time
      FROM scm.sync_watermark_events
     WHERE direction IN ('register', 'set', 'reset')
     ORDER BY repo_id, job_type, event_id DESC
), added AS (
    SELECT b.repo_id, b.job_type,
           coalesce(range_agg(e.added_revs) FILTER (WHERE e.added_revs IS NOT NULL), '{}') AS revs,
           coalesce(range_agg(e.added_time) FILTER (WHERE e.added_time IS NOT NULL), '{}') AS period
      FROM base AS b
      LEFT JOIN scm.sync_watermark_events AS e
        ON e.repo_id = b.repo_id AND e.job_type = b.job_type AND e.event_id > b.event_id
     GROUP BY b.repo_id, b.job_type
), latest AS (
    SELECT DISTINCT ON (repo_id, job_type) repo_id, job_type, origin_rev, origin_time, generation
      FROM scm.sync_watermark_events
     ORDER BY repo_id, job_type, event_id DESC
)
SELECT w.repo_id, w.job_type,
       w.covered_revs::text AS covered_revs, (b.covered_revs + a.revs)::text AS replayed_revs,
       w.covered_time::text AS covered_time, (b.covered_time + a.period)::text AS replayed_time
  FROM scm.sync_watermarks AS w
  LEFT JOIN base AS b USING (repo_id, job_type)
  LEFT JOIN added AS a USING (repo_id, job_type)
  LEFT JOIN latest AS l USING (repo_id, job_type)
 WHERE w.covered_revs IS DISTINCT FROM b.covered_revs + a.revs
    OR w.covered_time IS DISTINCT FROM b.covered_time + a.period
    OR w.origin_rev IS DISTINCT FROM l.origin_rev
    OR w.origin_time IS DISTINCT FROM l.origin_time
    OR w.generation IS DISTINCT FROM l.generation
 ORDER BY w.repo_id, w.job_type;
