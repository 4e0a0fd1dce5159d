-- Changed paths without their revision, and revisions with a wrong number of paths, except tombstones. Empty if the
-- records agree.
SELECT repo_id, rev_num, count(p.path_no) AS stored_paths, r.path_count
  FROM scm.svn_changed_paths AS p
  FULL JOIN scm.svn_revisions AS r USING (repo_id, rev_num)
 WHERE r.deleted_at IS NULL
 GROUP BY repo_id, rev_num, r.path_count
HAVING r.path_count IS DISTINCT FROM count(p.path_no);
