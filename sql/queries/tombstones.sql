-- Statements of sync_pipeline/facts/tombstones.py. They mark rows that are confirmed deleted at their
-- source.

-- name: internal
-- Lists those of the given notes that only members of the project see.
SELECT mr_iid || ':' || source_event_id AS key FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid || ':' || source_event_id = ANY (%(keys)s) AND is_internal
   AND replaced_id = 0
