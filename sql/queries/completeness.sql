-- Statements of sync_pipeline/ledger/completeness.py. They count the rows that differ, are in quarantine or
-- were never read.

-- name: differences
-- Counts open differences from the source per asset. A member of a set, such as a branch or an approval,
-- counts as a change of its owner.
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
-- Counts details of stored rows that were not read. ``failed`` ones could not be, ``planned`` ones wait.
-- ``incomplete_from`` is the earliest update of a merge request that lacks one; ``undated``: one has no time.
SELECT repo_id, job_type, sum(failed)::bigint AS failed, sum(planned)::bigint AS planned,
       min(incomplete_from) AS incomplete_from, bool_or(undated) AS undated
  FROM (SELECT repo_id, job_type, 0 AS failed, count(*) AS planned, min(row_updated_at) AS incomplete_from,
               bool_or(row_updated_at IS NULL) AS undated
          FROM scm.deferred_fetches
         WHERE is_planned AND resolved_at IS NULL
           AND (%(repo_ids)s::bigint[] IS NULL OR repo_id = ANY (%(repo_ids)s))
         GROUP BY repo_id, job_type
        UNION ALL
        SELECT f.repo_id, f.job_type, count(*), 0, min(m.updated_at), bool_or(m.updated_at IS NULL)
          FROM scm.deferred_fetches AS f
          LEFT JOIN scm.mrs AS m
            ON f.job_type IN ('merge_requests', 'reviews') AND m.repo_id = f.repo_id AND m.replaced_id = 0
           AND m.iid = CASE WHEN f.natural_key ~ '^[0-9]{1,18}$' THEN f.natural_key::bigint END
         WHERE NOT f.is_planned AND f.resolved_at IS NULL
           AND (%(repo_ids)s::bigint[] IS NULL OR f.repo_id = ANY (%(repo_ids)s))
         GROUP BY f.repo_id, f.job_type) AS parts
 GROUP BY repo_id, job_type

-- name: merge_requests
-- Counts the merge requests of some repositories that were not read: those that their largest number suggests,
-- without the stored ones. A repository without merge requests is left out.
SELECT m.repo_id, greatest(0, max(m.iid) - count(*))::bigint AS merge_requests,
       greatest(0, max(m.iid) - (SELECT count(*) FROM scm.mr_reviews AS v
                                  WHERE v.repo_id = m.repo_id AND v.replaced_id = 0))::bigint AS reviews
  FROM scm.mrs AS m
 WHERE m.repo_id = ANY (%(repo_ids)s) AND m.replaced_id = 0
 GROUP BY m.repo_id

-- name: paces
-- Reads the rate of the shared limit of some servers, and the requests of a planned fetch. The latter are those
-- of the latest completion jobs of a week. Both are NULL where nothing is known.
SELECT s.instance, b.rate, lately.calls_per_fetch
  FROM unnest(%(instances)s::text[]) AS s (instance)
  LEFT JOIN scm.sync_rate_limits AS b ON b.instance = s.instance AND b.endpoint_class = 'all'
  LEFT JOIN LATERAL (
       SELECT sum(calls)::float8 / nullif(sum(fetches), 0) AS calls_per_fetch
         FROM (SELECT r.calls,
                      (SELECT count(*) FROM scm.deferred_fetches AS f
                        WHERE f.repo_id = r.repo_id AND f.job_type = r.job_type AND f.is_planned
                          AND f.resolved_at BETWEEN r.started_at AND r.finished_at) AS fetches
                 FROM scm.sync_jobs AS j
                 JOIN scm.repos AS o ON o.repo_id = j.repo_id AND o.instance = s.instance
                 JOIN scm.sync_runs AS r USING (job_id)
                WHERE j.only_deferred AND j.created_at > now() - interval '7 days' AND r.status = 'completed'
                ORDER BY r.started_at DESC
                LIMIT 20) AS latest) AS lately ON TRUE

-- name: assets
-- Counts the windows that were never complete, up to HEAD or the watermark. It also returns when all rows
-- were last compared with the source.
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
-- Makes all queries of the transaction see the same moment.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
