-- Branches and tags that differ from their events. Empty if the records agree.
WITH latest AS (
    SELECT DISTINCT ON (repo_id, kind, name) repo_id, kind, name, event, new_tip
      FROM scm.ref_events
     ORDER BY repo_id, kind, name, event_id DESC
)
SELECT repo_id, kind, name, r.judged_tip, r.deleted_at, l.event, l.new_tip
  FROM scm.refs AS r
  FULL JOIN latest AS l USING (repo_id, kind, name)
 WHERE (CASE WHEN r.deleted_at IS NULL THEN r.judged_tip END) IS DISTINCT FROM l.new_tip
    OR r.repo_id IS NULL OR l.repo_id IS NULL
 ORDER BY repo_id, kind, name;
