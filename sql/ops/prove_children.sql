-- Merge requests whose versions and commits differ from the sets that they count. Empty if the records agree.
WITH versions AS (
    SELECT repo_id, mr_iid AS iid, count(*) AS number FROM scm.mr_versions
     WHERE replaced_id = 0 GROUP BY repo_id, mr_iid
), commits AS (
    SELECT repo_id, mr_iid AS iid, count(*) AS number, max(position) AS last
      FROM scm.mr_commits
     WHERE replaced_id = 0
     GROUP BY repo_id, mr_iid
)
SELECT m.repo_id, m.iid, p.problem
  FROM scm.mrs AS m
  LEFT JOIN versions AS v USING (repo_id, iid)
  LEFT JOIN commits AS c USING (repo_id, iid)
 CROSS JOIN LATERAL (VALUES
       -- The hash of a set without rows is that of an empty list of one.
       ('versions are missing', v.number IS NULL AND m.versions_hash <> sha256('[[]]')),
       ('commits are missing', c.number IS NULL AND m.commits_hash <> sha256('[[]]')),
       ((c.last - c.number) || ' of ' || c.last || ' commits are missing', c.last <> c.number),
       ('versions that were never read', v.number > 0 AND coalesce(m.versions_hash = sha256('[[]]'), TRUE)),
       ('commits that were never read', c.number > 0 AND coalesce(m.commits_hash = sha256('[[]]'), TRUE)),
       ('children of a head that were never read',
        m.children_head IS NOT NULL AND (m.versions_hash IS NULL OR m.commits_hash IS NULL))
       ) AS p (problem, holds)
   -- The children of a tombstone cannot be read again.
 WHERE p.holds AND m.deleted_at IS NULL
 ORDER BY m.repo_id, m.iid;
