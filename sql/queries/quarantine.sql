-- Statements of sync_pipeline/facts/quarantine.py. They store rows that could not be written, and details
-- that could not be read yet.

-- name: quarantine
-- Stores a row in quarantine, or counts it once more.
INSERT INTO scm.quarantine AS q (repo_id, job_type, natural_key, reason, detail, payload, batch_id)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(reason)s, left(%(detail)s, 2000), %(payload)s,
        %(batch_id)s)
ON CONFLICT (repo_id, job_type, natural_key) WHERE resolved_at IS NULL DO UPDATE
   SET reason = EXCLUDED.reason, detail = EXCLUDED.detail, payload = EXCLUDED.payload,
       batch_id = EXCLUDED.batch_id, seen = q.seen + 1, last_seen_at = now()

-- name: defer
-- Records details that were not read. Each further failure waits longer, at most a day. A plan never hides a
-- failure.
INSERT INTO scm.deferred_fetches AS o (repo_id, job_type, natural_key, detail, last_error, is_planned, priority,
                                       row_updated_at, not_before)
SELECT %(repo_id)s, %(job_type)s, natural_key, detail, left(error, 2000), is_planned, priority, row_updated_at,
       now() + make_interval(secs => wait)
  FROM json_to_recordset(%(fetches)s)
    AS s (natural_key text, detail text, error text, is_planned boolean, priority integer,
          row_updated_at timestamptz, wait double precision)
ON CONFLICT (repo_id, job_type, natural_key, detail) WHERE resolved_at IS NULL DO UPDATE
   SET is_planned = o.is_planned AND EXCLUDED.is_planned,
       priority = CASE WHEN o.is_planned AND EXCLUDED.is_planned THEN EXCLUDED.priority ELSE 100 END,
       row_updated_at = CASE WHEN o.is_planned THEN EXCLUDED.row_updated_at END,
       attempts = o.attempts + (NOT EXCLUDED.is_planned)::integer,
       last_error = CASE WHEN EXCLUDED.is_planned THEN o.last_error ELSE EXCLUDED.last_error END,
       not_before = CASE WHEN EXCLUDED.is_planned THEN least(o.not_before, EXCLUDED.not_before)
                         ELSE now() + least(interval '1 day',
                                            interval '1 minute' * power(2, least(o.attempts, 12))) END

-- name: due
-- Lists the failed fetches of an asset that may be tried now.
SELECT natural_key, detail, last_error AS error FROM scm.deferred_fetches
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND NOT is_planned
   AND not_before <= now()
 ORDER BY not_before
 LIMIT %(limit)s

-- name: planned
-- Lists planned fetches of a repository in the order in which they are read, for each job type. The details of
-- a row are neighbours there.
SELECT t.job_type, o.natural_key, o.detail
  FROM unnest(%(job_types)s::text[]) AS t (job_type)
 CROSS JOIN LATERAL (SELECT natural_key, detail, priority, row_updated_at FROM scm.deferred_fetches
                      WHERE repo_id = %(repo_id)s AND job_type = t.job_type AND resolved_at IS NULL AND is_planned
                        AND (%(waiting)s OR not_before <= now()) AND natural_key <> ALL (%(except_for)s)
                        AND (row_updated_at >= %(since)s OR %(since)s::timestamptz IS NULL)
                        AND (row_updated_at < %(until)s OR %(until)s::timestamptz IS NULL)
                      ORDER BY priority, row_updated_at DESC, natural_key
                      LIMIT %(limit)s) AS o
 ORDER BY o.priority, o.row_updated_at DESC, o.natural_key

-- name: entries
-- Lists entries of quarantine, latest first, each with the number of all that match. The payload may be
-- large and is left out.
SELECT q.quarantine_id, q.repo_id, q.job_type, q.natural_key, q.reason, q.detail,
       length(q.payload) AS payload_bytes, q.batch_id, q.seen, q.created_at, q.last_seen_at, q.resolved_at,
       b.revs, b.period, b.run_id, count(*) OVER () AS total
  FROM scm.quarantine AS q
  LEFT JOIN scm.sync_batches AS b USING (batch_id)
 WHERE (%(ids)s::bigint[] IS NULL OR q.quarantine_id = ANY (%(ids)s))
   AND (%(repo_id)s::bigint IS NULL OR q.repo_id = %(repo_id)s)
   AND (%(job_type)s::text IS NULL OR q.job_type = %(job_type)s)
   AND (%(reason)s::text IS NULL OR q.reason = %(reason)s)
   AND (%(resolved)s OR q.resolved_at IS NULL)
 ORDER BY q.last_seen_at DESC, q.quarantine_id DESC
 LIMIT %(limit)s

-- name: payload
-- Reads the payload of one entry.
SELECT payload FROM scm.quarantine WHERE quarantine_id = %(id)s

-- name: resolve
-- Ends entries whose row is no longer at the source, after all of its candidates were requested.
UPDATE scm.quarantine SET resolved_at = now(), detail = %(gone)s || left(detail, 1900)
 WHERE quarantine_id = ANY (%(ids)s) AND resolved_at IS NULL

-- name: open_keys
-- Lists the keys of all quarantined rows of an asset.
SELECT natural_key FROM scm.quarantine
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL

-- name: settle
-- Ends the quarantine of rows that are stored now, and the deferred fetches of details that were read.
WITH settled AS (
    UPDATE scm.deferred_fetches AS o SET resolved_at = now()
      FROM json_to_recordset(%(fetched)s) AS s (natural_key text, detail text)
     WHERE o.repo_id = %(repo_id)s AND o.job_type = %(job_type)s AND o.resolved_at IS NULL
       AND o.natural_key = s.natural_key AND o.detail = s.detail
)
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND natural_key = ANY (%(keys)s)

-- name: settle_deferred
-- Ends the deferred fetches of rows that no longer exist at their source.
UPDATE scm.deferred_fetches SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = ANY (%(job_types)s) AND natural_key = ANY (%(keys)s)
   AND resolved_at IS NULL

-- name: settle_quarantine
-- Ends the quarantine of rows that no longer exist at their source. The keys of everything in a merge
-- request begin with its number.
UPDATE scm.quarantine SET resolved_at = now(), detail = %(gone)s || left(detail, 1900)
 WHERE repo_id = %(repo_id)s AND job_type = ANY (%(job_types)s) AND resolved_at IS NULL
   AND (natural_key = ANY (%(keys)s)
        OR (job_type IN ('merge_requests', 'reviews') AND split_part(natural_key, ':', 1) = ANY (%(keys)s)))

-- name: unstored
-- Lists the deferred fetches of a merge request that is not stored and was requested often enough. No
-- comparison finds that such a merge request was deleted.
SELECT natural_key FROM scm.deferred_fetches AS o
 WHERE o.repo_id = %(repo_id)s AND o.job_type = %(job_type)s AND o.natural_key = %(iid)s::text
   AND o.resolved_at IS NULL AND o.attempts >= %(confirmations)s AND o.created_at <= now() - %(time)s
   AND NOT EXISTS (SELECT FROM scm.mrs AS m
                    WHERE m.repo_id = o.repo_id AND m.iid = %(iid)s AND m.replaced_id = 0
                      AND m.deleted_at IS NULL)
