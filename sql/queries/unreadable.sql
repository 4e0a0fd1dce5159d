-- Statements of sync_pipeline/facts/unreadable.py. They record details that a server refuses for every
-- merge request of a repository.

-- name: known
-- Reads the refused details of an asset, each with whether it is due to be tried again.
SELECT detail, since, readable_at, error,
       probe_at <= now() OR fingerprint IS DISTINCT FROM %(fingerprint)s AS is_due
  FROM scm.unreadable_details
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
 ORDER BY detail

-- name: refused
-- Records a refused detail. A repeated refusal keeps ``since``.
INSERT INTO scm.unreadable_details AS u
       (repo_id, job_type, detail, error_code, error, fingerprint, probe_at)
VALUES (%(repo_id)s, %(job_type)s, %(detail)s, %(code)s, left(%(error)s, 2000), %(fingerprint)s,
        now() + %(pause)s)
ON CONFLICT (repo_id, job_type, detail) DO UPDATE
   SET error_code = EXCLUDED.error_code, error = EXCLUDED.error, fingerprint = EXCLUDED.fingerprint,
       probe_at = EXCLUDED.probe_at, readable_at = NULL

-- name: settle
-- Ends the deferred fetches of the detail, because one record replaces those of each merge request.
UPDATE scm.deferred_fetches SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s AND resolved_at IS NULL

-- name: postpone
-- Delays the next try of a detail, after an unclear response.
UPDATE scm.unreadable_details SET probe_at = now() + %(pause)s, fingerprint = %(fingerprint)s
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s

-- name: readable
-- Records that the detail can be read again.
UPDATE scm.unreadable_details SET readable_at = coalesce(readable_at, now())
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s

-- name: delete
-- Deletes the record of a detail that no merge request lacks any more.
DELETE FROM scm.unreadable_details
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s

-- name: reviews_without
-- Lists merge requests whose latest review lacks the detail. Deferred ones are read separately. Those that
-- were read since the detail became readable come last, or are left out.
SELECT r.mr_iid AS iid
  FROM scm.mr_reviews AS r
  LEFT JOIN scm.mrs AS m ON m.repo_id = r.repo_id AND m.iid = r.mr_iid AND m.replaced_id = 0
 WHERE r.repo_id = %(repo_id)s AND r.replaced_id = 0
   AND NOT r.whole @> ARRAY[%(part)s] AND m.deleted_at IS NULL
   AND (%(again)s OR r.read_at < %(since)s)
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                    WHERE o.repo_id = r.repo_id AND o.job_type = 'reviews' AND o.detail = %(detail)s
                      AND o.natural_key = r.mr_iid::text AND o.resolved_at IS NULL)
 ORDER BY r.read_at >= %(since)s, r.mr_iid DESC
 LIMIT %(limit)s

-- name: merge_requests_without
-- Lists merge requests that lack the detail, without the deferred ones.
SELECT m.iid
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.deleted_at IS NULL AND m.head_sha IS NOT NULL
   AND (m.children_head, m.children_target) IS DISTINCT FROM (m.head_sha, m.target_branch)
   AND (%(again)s OR m.read_at < %(since)s)
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                    WHERE o.repo_id = m.repo_id AND o.job_type = 'merge_requests' AND o.detail = %(detail)s
                      AND o.natural_key = m.iid::text AND o.resolved_at IS NULL)
 ORDER BY m.read_at >= %(since)s, m.iid DESC
 LIMIT %(limit)s

-- name: asked_reviews
-- Marks requested reviews as read, so that failed ones do not keep others from being read.
UPDATE scm.mr_reviews SET read_at = now()
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: asked_merge_requests
-- Marks requested merge requests as read, for the same reason.
UPDATE scm.mrs SET read_at = now() WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0
