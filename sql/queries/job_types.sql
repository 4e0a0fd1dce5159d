-- Statements of sync_pipeline/facts/job_types.py: the job types as tables: where the rows of each are, and
-- the statements that are made from that.

-- name: reset_tips
UPDATE scm.refs SET covered_tip = NULL WHERE repo_id = %(repo_id)s AND covered_tip IS NOT NULL

-- name: reset_children
UPDATE scm.mrs SET children_head = NULL, children_target = NULL
 WHERE repo_id = %(repo_id)s AND children_head IS NOT NULL

-- name: reset_reviews
-- The rows stay: they tell to which merge request of a number the stored events belong.
UPDATE scm.mr_reviews SET mr_updated_at = '-infinity', whole = '{}', batch_id = 0
 WHERE repo_id = %(repo_id)s AND replaced_id = 0
