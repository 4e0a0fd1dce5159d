-- Statements of sync_pipeline/facts/job_types.py. They make an asset read its rows again from the source.

-- name: reset_tips
-- Removes the covered tips of refs, so that every ref is walked again.
UPDATE scm.refs SET covered_tip = NULL WHERE repo_id = %(repo_id)s AND covered_tip IS NOT NULL

-- name: reset_children
-- Removes the read heads of merge requests, so that versions and commits are read again.
UPDATE scm.mrs SET children_head = NULL, children_target = NULL
 WHERE repo_id = %(repo_id)s AND children_head IS NOT NULL

-- name: reset_reviews
-- Makes every review unread. The rows stay, because they link stored events to the right merge request.
UPDATE scm.mr_reviews SET mr_updated_at = '-infinity', whole = '{}', batch_id = 0
 WHERE repo_id = %(repo_id)s AND replaced_id = 0
