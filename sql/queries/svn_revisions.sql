-- Statements of sync_pipeline/facts/svn_revisions.py. They write a batch of SVN revisions.

-- name: stage
-- Creates the temporary tables of the paths of a batch, and of what it writes. They are private to the
-- connection and emptied at commit.
CREATE TEMP TABLE IF NOT EXISTS stage_paths (
    rev_num bigint, path_no integer, path text, action text, kind text, copyfrom_path text,
    copyfrom_rev bigint, text_mods boolean, prop_mods boolean
) ON COMMIT DELETE ROWS;
CREATE TEMP TABLE IF NOT EXISTS stage_written (rev_num bigint, inserted boolean) ON COMMIT DELETE ROWS;

-- name: copy_paths
-- Copies the changed paths of a batch into the temporary table.
COPY stage_paths (rev_num, path_no, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods)
FROM STDIN

-- name: copy_new_paths
-- Copies changed paths directly, for a window of which nothing is stored yet.
COPY scm.svn_changed_paths (repo_id, rev_num, path_no, path, action, kind, copyfrom_path, copyfrom_rev,
                            text_mods, prop_mods)
FROM STDIN

-- name: any_in_window
-- Returns whether a window has stored rows. The caller's lease keeps the result true until the transaction
-- ends.
SELECT EXISTS (SELECT 1 FROM scm.svn_revisions
                WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s)
    OR EXISTS (SELECT 1 FROM scm.svn_changed_paths
                WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s) AS any

-- name: changes
-- Lists stored revisions that differ from the batch, if both were fully visible. Old servers do not send
-- the kind of a path or its modifications, so these do not count. Neither does a space for a TAB in a path,
-- which http may cause. The hash is of the paths as they were read, so damaged rows in this database are no
-- difference.
SELECT r.rev_num, s.ts, r.ts AS stored_ts, r.first_seen_at, now() AS seen_at,
       r.message IS DISTINCT FROM s.message AS message_differs,
       s.paths_hash <> r.paths_hash AND EXISTS (
           SELECT FROM (
               SELECT path, action, copyfrom_path, copyfrom_rev, 1 AS side
                 FROM stage_paths WHERE rev_num = s.rev_num
               UNION ALL
               SELECT path, action, copyfrom_path, copyfrom_rev, -1
                 FROM scm.svn_changed_paths WHERE repo_id = r.repo_id AND rev_num = r.rev_num) AS p
            GROUP BY regexp_replace(path, E'\r\n|[\t\r\n]', ' ', 'g'), action,
                     regexp_replace(copyfrom_path, E'\r\n|[\t\r\n]', ' ', 'g'), copyfrom_rev
           HAVING sum(side) <> 0) AS paths_differ
  FROM stage_revisions AS s
  JOIN scm.svn_revisions AS r ON r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num
 WHERE r.content_hash <> s.content_hash AND r.deleted_at IS NULL
   AND r.visibility = 'full' AND array_to_string(r.flags, ' ') NOT LIKE '%%unread%%'
   AND s.visibility = 'full' AND array_to_string(s.flags, ' ') NOT LIKE '%%unread%%'
 ORDER BY r.rev_num

-- name: archive
-- Stores versions of revisions that are about to be overwritten, because their properties were edited at
-- the source.
INSERT INTO scm.svn_revision_versions (repo_id, rev_num, version, author_raw, ts, message, visibility,
                                       path_count, flags, meta_json, content_hash, batch_id, seen_from,
                                       seen_until)
SELECT r.repo_id, r.rev_num, r.version, r.author_raw, r.ts, r.message, r.visibility, r.path_count, r.flags,
       r.meta_json, r.content_hash, r.batch_id, r.updated_at, now()
  FROM stage_revisions AS s
  JOIN scm.svn_revisions AS r ON r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num
 WHERE r.content_hash <> s.content_hash AND s.detail_level >= r.detail_level AND r.batch_id < %(batch_id)s

-- name: archive_paths
-- Stores the paths of these versions, so that each version is complete.
INSERT INTO scm.svn_path_versions (repo_id, rev_num, version, path_no, path, action, kind, copyfrom_path,
                                   copyfrom_rev, text_mods, prop_mods)
SELECT r.repo_id, r.rev_num, r.version, p.path_no, p.path, p.action, p.kind, p.copyfrom_path, p.copyfrom_rev,
       p.text_mods, p.prop_mods
  FROM stage_revisions AS s
  JOIN scm.svn_revisions AS r ON r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num
  JOIN scm.svn_changed_paths AS p ON p.repo_id = r.repo_id AND p.rev_num = r.rev_num
 WHERE r.content_hash <> s.content_hash AND s.detail_level >= r.detail_level AND r.batch_id < %(batch_id)s

-- name: drop_paths
-- Deletes the paths of the written revisions, which are replaced as a set. Some may exist although their
-- revision is missing.
DELETE FROM scm.svn_changed_paths AS p
 USING stage_written AS w
 WHERE p.repo_id = %(repo_id)s AND p.rev_num = w.rev_num

-- name: insert_paths
-- Inserts the paths of the written revisions.
INSERT INTO scm.svn_changed_paths (repo_id, rev_num, path_no, path, action, kind, copyfrom_path,
                                   copyfrom_rev, text_mods, prop_mods)
SELECT %(repo_id)s, s.rev_num, s.path_no, s.path, s.action, s.kind, s.copyfrom_path, s.copyfrom_rev,
       s.text_mods, s.prop_mods
  FROM stage_paths AS s
  JOIN stage_written AS w USING (rev_num)

-- name: count
-- Counts the read, inserted, updated and refused revisions of the batch.
SELECT count(*) AS read,
       count(*) FILTER (WHERE w.inserted) AS inserted,
       count(*) FILTER (WHERE NOT w.inserted) AS updated,
       count(*) FILTER (WHERE w.rev_num IS NULL AND s.detail_level < r.detail_level
                              AND s.content_hash <> r.content_hash) AS regressed
  FROM stage_revisions AS s
  LEFT JOIN stage_written AS w USING (rev_num)
  LEFT JOIN scm.svn_revisions AS r ON r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num

-- name: only_in_doubt
-- Counts refused copies that lack detail only because http may have changed a CR or TAB. In texts all line
-- ends count as equal, in paths also TAB and space.
SELECT count(*) AS number
  FROM stage_revisions AS s
  JOIN scm.svn_revisions AS r ON r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num
 WHERE s.content_hash <> r.content_hash AND s.detail_level < r.detail_level AND s.sure_richness >= r.detail_level
   AND s.ts IS NOT DISTINCT FROM r.ts AND s.visibility = r.visibility AND s.path_count = r.path_count
   AND regexp_replace(s.author_raw, E'\r\n?', E'\n', 'g')
       IS NOT DISTINCT FROM regexp_replace(r.author_raw, E'\r\n?', E'\n', 'g')
   AND regexp_replace(s.message, E'\r\n?', E'\n', 'g')
       IS NOT DISTINCT FROM regexp_replace(r.message, E'\r\n?', E'\n', 'g')
   AND regexp_replace((s.meta_json -> 'revprops')::text, '\\r(\\n)?', '\\n', 'g')
       IS NOT DISTINCT FROM regexp_replace((r.meta_json -> 'revprops')::text, '\\r(\\n)?', '\\n', 'g')
   AND (s.paths_hash = r.paths_hash OR NOT EXISTS (
       SELECT regexp_replace(path, E'\r\n|[\t\r\n]', ' ', 'g'), action,
              regexp_replace(copyfrom_path, E'\r\n|[\t\r\n]', ' ', 'g'), copyfrom_rev
         FROM stage_paths WHERE rev_num = s.rev_num
       EXCEPT ALL
       SELECT regexp_replace(path, E'\r\n|[\t\r\n]', ' ', 'g'), action,
              regexp_replace(copyfrom_path, E'\r\n|[\t\r\n]', ' ', 'g'), copyfrom_rev
         FROM scm.svn_changed_paths WHERE repo_id = r.repo_id AND rev_num = r.rev_num))

-- name: hidden_since
-- Records since when the source shows less of a revision than is stored. Content and updated_at, the time
-- of reading, stay.
UPDATE scm.svn_revisions AS r
   SET hidden_since = CASE WHEN r.hidden_since IS NULL THEN now() END
  FROM stage_revisions AS s
 WHERE r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num
   AND (r.hidden_since IS NOT NULL)
       <> (array_position(%(ranks)s, s.visibility) < array_position(%(ranks)s, r.visibility))

-- name: resolve
-- Ends the quarantine of revisions that are stored now, and the deferred fetches of details that were read.
WITH stored AS (SELECT rev_num::text AS natural_key, flags FROM stage_revisions),
settled AS (
    UPDATE scm.deferred_fetches AS o SET resolved_at = now()
      FROM stored AS s
     WHERE o.repo_id = %(repo_id)s AND o.job_type = 'revisions' AND o.resolved_at IS NULL
       AND o.natural_key = s.natural_key AND NOT (o.detail || '_unread') = ANY (s.flags)
)
UPDATE scm.quarantine AS q SET resolved_at = now()
  FROM stored AS s
 WHERE q.repo_id = %(repo_id)s AND q.job_type = 'revisions' AND q.resolved_at IS NULL
   AND q.natural_key = s.natural_key

-- name: fingerprints
-- Reads the newest stored revisions, to compare them with a new reading.
SELECT rev_num, ts, paths_hash, visibility FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num <= %(head)s AND deleted_at IS NULL
 ORDER BY rev_num DESC
 LIMIT %(limit)s

-- name: invalidate
-- Makes the next copy of each given revision overwrite the stored one.
UPDATE scm.svn_revisions AS r SET content_hash = '', batch_id = 0, detail_level = s.detail_level
  FROM json_to_recordset(%(rows)s) AS s (rev_num bigint, detail_level smallint)
 WHERE r.repo_id = %(repo_id)s AND r.rev_num = s.rev_num

-- name: detail_levels
-- Reads the facts that decide how much detail of a revision was read.
SELECT rev_num, visibility, flags FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num = ANY (%(rev_nums)s)

-- name: whole
-- Reads the hash of the paths of a revision that was fully visible.
SELECT paths_hash FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num = %(rev_num)s AND deleted_at IS NULL AND detail_level = %(whole)s

-- name: paths
-- Reads the changed paths of a revision.
SELECT path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods FROM scm.svn_changed_paths
 WHERE repo_id = %(repo_id)s AND rev_num = %(rev_num)s
 ORDER BY path_no

-- name: count_revisions
-- Counts the stored revisions, for the comparison with the source's own number.
SELECT count(*) AS revisions FROM scm.svn_revisions WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
