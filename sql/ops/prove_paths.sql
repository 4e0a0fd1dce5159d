-- Changed paths whose revision is not stored, and revisions whose number of paths is not what they say, but for
-- tombstones. Empty when all is well.
SELECT repo_id, rev_num, count(p.path_no) AS stored_paths, r.path_count
  FROM scm.svn_changed_paths AS p
  FULL JOIN scm.svn_revisions AS r USING (repo_id, rev_num)
 WHERE r.deleted_at IS NULL
 GROUP BY repo_id, rev_num, r.path_count
HAVING r.path_count IS DISTINCT FROM count(p.path_no);
