-- Removes what the GitLab migration made; facts of GitLab are gone with it, those of SVN stay.
CREATE OR REPLACE VIEW scm.v_facts AS
SELECT 'svn'::text AS source_type,
       r.source_id,
       r.repo_id,
       r.ts,
       r.author_raw,
       a.user_id AS author_user_id,
       r.is_bulk,
       r.bulk_reason,
       r.meta_json
         || jsonb_build_object('rev_num', r.rev_num, 'path_count', r.path_count, 'visibility', r.visibility)
         AS meta_json
  FROM scm.svn_revisions AS r
  LEFT JOIN identity.accounts AS a ON a.account_type = 'svn' AND a.account_name = r.author_raw
 WHERE r.deleted_at IS NULL;
COMMENT ON VIEW scm.v_facts IS 'Every fact of every source in one shape, without tombstones.';
COMMENT ON COLUMN scm.v_facts.source_type IS 'Which kind of fact: svn.';
COMMENT ON COLUMN scm.v_facts.author_raw IS 'Author as the source writes it.';
DROP TABLE scm.mr_reviewers, scm.mr_approvals, scm.review_events, scm.mr_reviews, scm.mr_commits,
           scm.mr_versions, scm.mrs, scm.git_commits, scm.ref_events, scm.refs, scm.ref_walks,
           scm.credential_stops, scm.repo_events;
ALTER TABLE scm.deployment DROP COLUMN history_start;
ALTER TABLE scm.sync_jobs DROP COLUMN from_raw;
ALTER TABLE scm.sync_watermarks DROP COLUMN activity_at;
ALTER TABLE scm.sync_hints DROP COLUMN activity_at;
DROP INDEX scm.repos_one_active_project;
ALTER TABLE scm.repos DROP COLUMN root_id, DROP COLUMN vanished_since, DROP COLUMN vanished_looks;
DROP TABLE scm.discovery_roots;
