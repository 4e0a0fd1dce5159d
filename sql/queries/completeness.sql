-- Statements of sync_pipeline/ledger/completeness.py: the counts in the completeness statement: rows that
-- differ, are set aside or were never read.

-- name: differences
-- Open differences from the source. What is a member of a set, such as a branch or an approval, is no row of
-- its own: what it belongs to is changed.
SELECT repo_id, job_type,
       count(*) FILTER (WHERE kind = 'missing' AND NOT of_a_set) AS missing,
       count(*) FILTER (WHERE kind = 'extra' AND NOT of_a_set) AS extra,
       count(*) FILTER (WHERE kind = 'changed' OR of_a_set) AS changed
  FROM (SELECT repo_id, job_type, kind,
               natural_key ~ '^((branch|tag):|[0-9]+:(approval|reviewer):)' AS of_a_set
          FROM scm.discrepancies
         WHERE resolved_at IS NULL) AS d
 GROUP BY repo_id, job_type

-- name: deferred
-- Details of stored rows that could not be read.
SELECT repo_id, job_type, count(*) AS owed FROM scm.deferred_fetches WHERE resolved_at IS NULL
 GROUP BY repo_id, job_type

-- name: assets
-- The windows of revisions up to HEAD, or of time up to the watermark, that were never complete, and when all
-- stored rows were last compared with the source.
SELECT w.repo_id, w.job_type, missing.windows, missing.revisions, s.round_ended_at AS verified_at
  FROM scm.sync_watermarks AS w
  LEFT JOIN scm.reconcile_progress AS s USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) AS windows, coalesce(sum(revisions), 0)::bigint AS revisions
         FROM (SELECT upper(revs) - lower(revs) AS revisions
                 FROM unnest(int8multirange(int8range(1, greatest(w.head_rev + 1, w.watermark_rev,
                                                                  w.origin_rev)))
                             - w.covered_revs) AS revs
                WHERE w.origin_rev IS NOT NULL
               UNION ALL
               SELECT 0
                 FROM unnest(tstzmultirange(tstzrange(%(beginning)s,
                                                      greatest(w.watermark_time, w.origin_time)))
                             - w.covered_time) AS period
                WHERE w.origin_time IS NOT NULL) AS pieces) AS missing

-- name: one_moment
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
