-- Windows that count as complete although their batch does not say so. Also batches that say so of windows
-- that do not count. Empty if the records agree. An event whose batch was deleted is not checked.
WITH base AS (
    SELECT repo_id, job_type, max(created_at) FILTER (WHERE direction IN ('register', 'set', 'reset')) AS since
      FROM scm.sync_watermark_events
     GROUP BY repo_id, job_type
)
SELECT e.repo_id, e.job_type, e.batch_id, 'the batch does not say so' AS problem,
       coalesce(e.added_revs::text, e.added_time::text) AS counts,
       CASE WHEN b.covers THEN coalesce(b.revs::text, b.period::text) END AS said
  FROM scm.sync_watermark_events AS e
  JOIN scm.sync_batches AS b USING (batch_id)
 WHERE e.direction IN ('forward', 'backfill')
   AND (NOT b.covers
        OR (b.run_id, b.repo_id, b.job_type) IS DISTINCT FROM (e.run_id, e.repo_id, e.job_type)
        OR NOT coalesce(b.revs @> e.added_revs, b.period @> e.added_time, FALSE))
UNION ALL
-- A batch of a list by time says it of a part of its window.
SELECT b.repo_id, b.job_type, b.batch_id, 'what the batch says does not count',
       coalesce((w.covered_revs * b.revs::int8multirange)::text,
                (w.covered_time * b.period::tstzmultirange)::text),
       coalesce(b.revs::text, b.period::text)
  FROM scm.sync_batches AS b
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
  JOIN base AS s USING (repo_id, job_type)
  JOIN scm.job_types AS t USING (job_type)
 WHERE b.covers AND b.committed_at > s.since
   AND NOT CASE WHEN t.by_time
                THEN isempty(b.period) OR w.covered_time && b.period
                ELSE coalesce(w.covered_revs @> b.revs, w.covered_time @> b.period) END
 ORDER BY repo_id, job_type, batch_id;
