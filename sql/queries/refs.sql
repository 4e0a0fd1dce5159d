-- Statements of sync_pipeline/facts/refs.py. They store branches and tags and follow parents from them.

-- name: stored
-- Lists the live refs of a repository.
SELECT kind, name, tip, target, covered_tip, is_default
  FROM scm.refs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
 ORDER BY kind, name

-- name: known
-- Reads all refs to compare them with a listing. The columns are typed, so that an equal ref causes no
-- write.
SELECT kind, name, tip, target, is_default, is_protected, tagged_at, message, flags,
       deleted_at IS NOT NULL AS deleted
  FROM scm.refs
 WHERE repo_id = %(repo_id)s

-- name: write
-- Writes new, changed and returned refs. judged_tip stays until the program knows whether the move was
-- forced. A new or returned ref has not moved.
INSERT INTO scm.refs AS r (repo_id, kind, name, tip, target, judged_tip, is_default, is_protected, tagged_at,
                           message, flags, raw, batch_id)
SELECT %(repo_id)s, kind, name, tip, target, tip, is_default, is_protected, tagged_at, message, flags, raw,
       %(batch_id)s
  FROM json_to_recordset(%(rows)s)
    AS s (kind text, name text, tip text, target text, is_default boolean, is_protected boolean,
          tagged_at timestamptz, message text, flags text[], raw jsonb)
ON CONFLICT (repo_id, kind, name) DO UPDATE
   SET tip = EXCLUDED.tip, target = EXCLUDED.target,
       judged_tip = CASE WHEN r.deleted_at IS NULL THEN r.judged_tip ELSE EXCLUDED.tip END,
       moved_at = CASE WHEN r.deleted_at IS NULL AND r.tip = EXCLUDED.tip THEN r.moved_at ELSE now() END,
       is_default = EXCLUDED.is_default, is_protected = EXCLUDED.is_protected,
       tagged_at = EXCLUDED.tagged_at, message = EXCLUDED.message, flags = EXCLUDED.flags,
       raw = EXCLUDED.raw, batch_id = EXCLUDED.batch_id, deleted_at = NULL

-- name: delete
-- Marks refs as deleted that a listing no longer has.
UPDATE scm.refs AS r SET deleted_at = now(), is_default = FALSE, batch_id = %(batch_id)s
  FROM json_to_recordset(%(rows)s) AS s (kind text, name text)
 WHERE r.repo_id = %(repo_id)s AND r.kind = s.kind AND r.name = s.name

-- name: events
-- Records that refs were created or deleted.
INSERT INTO scm.ref_events (repo_id, kind, name, event, old_tip, new_tip, observed_at, batch_id)
SELECT %(repo_id)s, kind, name, event, old_tip, new_tip, %(observed_at)s, %(batch_id)s
  FROM json_to_recordset(%(rows)s) AS s (kind text, name text, event text, old_tip text, new_tip text)

-- name: unrecorded_moves
-- Lists moved refs for which it is unknown whether the move was forced.
SELECT kind, name, judged_tip, tip FROM scm.refs
 WHERE repo_id = %(repo_id)s AND judged_tip <> tip AND deleted_at IS NULL
 ORDER BY kind, name

-- name: record_move
-- Records the event of a move, unless another process has recorded it.
WITH moved AS (
    UPDATE scm.refs SET judged_tip = %(new_tip)s
     WHERE repo_id = %(repo_id)s AND kind = %(kind)s AND name = %(name)s AND judged_tip = %(old_tip)s
       AND deleted_at IS NULL
    RETURNING kind, name
)
INSERT INTO scm.ref_events (repo_id, kind, name, event, old_tip, new_tip, observed_at, batch_id)
SELECT %(repo_id)s, kind, name, %(event)s, %(old_tip)s, %(new_tip)s, %(observed_at)s, %(batch_id)s
  FROM moved

-- name: cover
-- Marks the refs at these tips as covered.
UPDATE scm.refs SET covered_tip = tip
 WHERE repo_id = %(repo_id)s AND tip = ANY (%(tips)s) AND deleted_at IS NULL
   AND covered_tip IS DISTINCT FROM tip

-- name: quarantined_keys
-- Lists quarantined refs that could not be stored, or whose history could not be read.
SELECT natural_key FROM scm.quarantine
 WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL
   AND (natural_key LIKE 'branch:%%' OR natural_key LIKE 'tag:%%') AND (reason = %(no_history)s) = %(walked)s

-- name: is_ancestor
-- Follows parents until the ancestor is found. Rows come one by one, so LIMIT 1 ends it. The inner LIMIT
-- forces a look-up by key, whatever the planner knows of a new table.
WITH RECURSIVE reached (sha) AS (
    SELECT %(descendant)s::text
    UNION
    SELECT p.sha
      FROM reached AS r
     CROSS JOIN LATERAL (SELECT c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = r.sha LIMIT 1) AS c
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
)
SELECT TRUE AS found FROM reached WHERE sha = %(ancestor)s LIMIT 1

-- name: any_unreachable
-- Returns whether one of the tips is flagged as unreachable, so that flags must be removed.
SELECT 1 FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(tips)s) AND unreachable_since IS NOT NULL
 LIMIT 1

-- name: reached
-- Lists those of the given commits that any ref reaches.
WITH RECURSIVE reached (sha) AS (
    SELECT tip FROM scm.refs WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
    UNION
    SELECT p.sha
      FROM reached AS r
     CROSS JOIN LATERAL (SELECT c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = r.sha LIMIT 1) AS c
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
)
SELECT sha FROM reached WHERE sha = ANY (%(shas)s)

-- name: mark
-- Corrects the flags of all commits after following every ref.
WITH RECURSIVE reached (sha) AS (
    SELECT tip FROM scm.refs WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
    UNION
    SELECT p.sha
      FROM reached AS r
     CROSS JOIN LATERAL (SELECT c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = r.sha LIMIT 1) AS c
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
), wrong AS (
    SELECT c.git_commit_id, r.sha IS NULL AS lost
      FROM scm.git_commits AS c
      LEFT JOIN reached AS r ON r.sha = c.commit_sha
     WHERE c.repo_id = %(repo_id)s AND (r.sha IS NULL) <> (c.unreachable_since IS NOT NULL)
)
UPDATE scm.git_commits AS c SET unreachable_since = CASE WHEN w.lost THEN now() END
  FROM wrong AS w
 WHERE c.git_commit_id = w.git_commit_id

-- name: missing_parents
-- Lists parents that are not stored. If every ref is covered, the server could not return them, or they are
-- in quarantine. Commits that no ref reaches are left out.
SELECT DISTINCT p.sha
  FROM scm.git_commits AS c
 CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
 WHERE c.repo_id = %(repo_id)s AND c.unreachable_since IS NULL
   AND NOT EXISTS (SELECT FROM scm.git_commits AS o WHERE o.repo_id = c.repo_id AND o.commit_sha = p.sha)
 LIMIT %(limit)s

-- name: unknown_parents
-- Lists reachable commits whose parents are unknown, where the history ends as if they were roots.
SELECT commit_sha AS sha FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND parents IS NULL AND unreachable_since IS NULL AND deleted_at IS NULL
 LIMIT %(limit)s

-- name: missing_tips
-- Lists tips of covered refs that are not stored.
SELECT DISTINCT r.tip AS sha
  FROM scm.refs AS r
 WHERE r.repo_id = %(repo_id)s AND r.deleted_at IS NULL AND r.covered_tip = r.tip
   AND NOT EXISTS (SELECT FROM scm.git_commits AS o WHERE o.repo_id = r.repo_id AND o.commit_sha = r.tip)
 LIMIT %(limit)s

-- name: unnamed
-- Lists the keys of commits in a walk that the server could not return. Their hashes are unknown.
SELECT natural_key FROM scm.quarantine
 WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL AND reason = %(reason)s
   AND natural_key LIKE '%%:%%' AND natural_key NOT LIKE 'branch:%%' AND natural_key NOT LIKE 'tag:%%'

-- name: existing_names
-- Lists the refs that exist according to their events.
SELECT kind, name FROM (
    SELECT DISTINCT ON (kind, name) kind, name, event FROM scm.ref_events
     WHERE repo_id = %(repo_id)s
     ORDER BY kind, name, event_id DESC) AS latest
 WHERE event <> 'deleted'

-- name: not_stored
-- Lists those of the given commits that have no live row.
SELECT s.sha FROM unnest(%(shas)s::text[]) AS s (sha)
 WHERE NOT EXISTS (SELECT FROM scm.git_commits AS c
                    WHERE c.repo_id = %(repo_id)s AND c.commit_sha = s.sha AND c.deleted_at IS NULL)
