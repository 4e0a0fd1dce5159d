-- Statements of sync_pipeline/facts/reviews.py: reviews of GitLab: how everything that happened in a merge
-- request gets into the tables.

-- name: replaced
-- Reviews of merge requests whose numbers other ones have now, with the gitlab_id of the earlier one.
UPDATE scm.mr_reviews AS r SET replaced_id = r.gitlab_id
  FROM json_to_recordset(%(sets)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0 AND r.gitlab_id <> s.gitlab_id
RETURNING r.mr_iid, r.replaced_id

-- name: replace_events
-- All that belongs to the earlier merge request stays with it and is gone with it.
UPDATE scm.review_events AS e
   SET replaced_id = s.replaced_id, deleted_at = coalesce(e.deleted_at, now()),
       missing_since = coalesce(e.missing_since, now()), batch_id = %(batch_id)s, version = e.version + 1,
       stored_at = now()
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.mr_iid AND e.replaced_id = 0

-- name: replace_approvals
UPDATE scm.mr_approvals AS a
   SET replaced_id = s.replaced_id, closed_at = coalesce(a.closed_at, now()), batch_id = %(batch_id)s
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE a.repo_id = %(repo_id)s AND a.mr_iid = s.mr_iid AND a.replaced_id = 0

-- name: replace_reviewers
UPDATE scm.mr_reviewers AS r
   SET replaced_id = s.replaced_id, closed_at = coalesce(r.closed_at, now()), batch_id = %(batch_id)s
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0

-- name: restore
-- One that was replaced is there again; its events lose their tombstones as they come.
UPDATE scm.mr_reviews AS r SET replaced_id = 0, mr_updated_at = '-infinity', batch_id = 0
  FROM json_to_recordset(%(sets)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = s.gitlab_id
RETURNING r.mr_iid, r.gitlab_id

-- name: reading
-- How completely each review was read. Returns those for which this is the latest reading. Pages are read
-- ahead: an older state of the merge request may be written after a newer one. A state that the
-- server's clock has not reached is no newer one.
INSERT INTO scm.mr_reviews AS r (repo_id, mr_iid, gitlab_id, mr_updated_at, whole, saw_internal, batch_id)
SELECT %(repo_id)s, mr_iid, gitlab_id, mr_updated_at, whole, %(sees_internal)s, %(batch_id)s
  FROM json_to_recordset(%(sets)s)
    AS s (mr_iid bigint, gitlab_id bigint, mr_updated_at timestamptz, whole text[])
ON CONFLICT (repo_id, mr_iid, replaced_id) DO UPDATE
   SET gitlab_id = coalesce(EXCLUDED.gitlab_id, r.gitlab_id), mr_updated_at = EXCLUDED.mr_updated_at,
       whole = EXCLUDED.whole, saw_internal = EXCLUDED.saw_internal, batch_id = EXCLUDED.batch_id,
       read_at = now()
 WHERE r.batch_id <= EXCLUDED.batch_id
   AND (r.mr_updated_at <= EXCLUDED.mr_updated_at
        OR (r.mr_updated_at > %(server_now)s AND r.read_at < %(begun)s))
RETURNING mr_iid, (xmax = 0) AS first

-- name: discussions
-- Where notes are in their discussions, for copies that do not say it.
SELECT mr_iid, source_event_id, discussion_id, is_reply
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND discussion_id IS NOT NULL

-- name: stored
-- What is stored of the reviews of a page; compared with what came, so that no plan of a join can go wrong.
SELECT id, mr_iid || ':' || source_event_id AS key, mr_iid, origin,
       missing_since IS NOT NULL OR deleted_at IS NOT NULL AS gone,
       is_internal, deleted_at IS NULL AND NOT is_system AND NOT is_internal AS shown
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(current)s) AND replaced_id = 0

-- name: hidden
-- How many comments the token may not see. Where a comment that it saw before did not come, it may be hidden
-- or deleted; then the number stays.
UPDATE scm.mr_reviews AS r SET hidden_notes = s.hidden
  FROM json_to_recordset(%(hidden)s) AS s (mr_iid bigint, hidden bigint, is_whole boolean)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0
   AND r.hidden_notes IS DISTINCT FROM s.hidden AND (s.is_whole OR r.hidden_notes IS NULL)

-- name: restore_events
-- An older copy changes no content, but it shows that an event which was missing is there.
UPDATE scm.review_events
   SET missing_since = NULL, deleted_at = NULL, version = version + 1, batch_id = %(batch_id)s,
       stored_at = now()
 WHERE id = ANY (%(ids)s)

-- name: missing
-- Stored events of an origin that was read to its end, and that were not in it.
UPDATE scm.review_events
   SET missing_since = now(), version = version + 1, batch_id = %(batch_id)s, stored_at = now()
 WHERE id = ANY (%(ids)s)

-- name: close_approvals
UPDATE scm.mr_approvals SET closed_at = now(), batch_id = %(batch_id)s
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND closed_at IS NULL
   AND mr_iid || ':' || person <> ALL (%(present)s)

-- name: put_approvals
-- Approvals in force: new ones, and what is known better now. A time that was known is never blanked.
INSERT INTO scm.mr_approvals AS a (repo_id, mr_iid, person, user_id, username, name, approved_at, time_source,
                                   batch_id)
SELECT %(repo_id)s, mr_iid, person, user_id, username, name, approved_at, time_source, %(batch_id)s
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, person text, user_id bigint, username text, name text, approved_at timestamptz,
          time_source text)
ON CONFLICT (repo_id, mr_iid, person) WHERE closed_at IS NULL DO UPDATE
   SET user_id = EXCLUDED.user_id, username = coalesce(EXCLUDED.username, a.username),
       name = coalesce(EXCLUDED.name, a.name),
       approved_at = coalesce(EXCLUDED.approved_at, a.approved_at),
       time_source = CASE WHEN EXCLUDED.approved_at IS NULL THEN a.time_source ELSE EXCLUDED.time_source END,
       batch_id = EXCLUDED.batch_id
 WHERE EXCLUDED.user_id IS DISTINCT FROM a.user_id
    OR coalesce(EXCLUDED.username, a.username) IS DISTINCT FROM a.username
    OR coalesce(EXCLUDED.name, a.name) IS DISTINCT FROM a.name
    OR (EXCLUDED.approved_at IS NOT NULL
        AND (EXCLUDED.approved_at, EXCLUDED.time_source) IS DISTINCT FROM (a.approved_at, a.time_source))
RETURNING mr_iid, (xmax = 0) AS inserted

-- name: close_reviewers
UPDATE scm.mr_reviewers SET closed_at = now(), batch_id = %(batch_id)s
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND closed_at IS NULL
   AND mr_iid || ':' || person <> ALL (%(present)s)

-- name: put_reviewers
-- Who is asked for a review: new ones, and what is known better now.
INSERT INTO scm.mr_reviewers AS r (repo_id, mr_iid, person, user_id, username, name, state, requested_at,
                                   batch_id)
SELECT %(repo_id)s, mr_iid, person, user_id, username, name, state, requested_at, %(batch_id)s
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, person text, user_id bigint, username text, name text, state text,
          requested_at timestamptz)
ON CONFLICT (repo_id, mr_iid, person) WHERE closed_at IS NULL DO UPDATE
   SET user_id = EXCLUDED.user_id, username = coalesce(EXCLUDED.username, r.username),
       name = coalesce(EXCLUDED.name, r.name),
       state = coalesce(EXCLUDED.state, r.state),
       requested_at = coalesce(EXCLUDED.requested_at, r.requested_at), batch_id = EXCLUDED.batch_id
 WHERE EXCLUDED.user_id IS DISTINCT FROM r.user_id
    OR coalesce(EXCLUDED.username, r.username) IS DISTINCT FROM r.username
    OR coalesce(EXCLUDED.name, r.name) IS DISTINCT FROM r.name
    OR coalesce(EXCLUDED.state, r.state) IS DISTINCT FROM r.state
    OR coalesce(EXCLUDED.requested_at, r.requested_at) IS DISTINCT FROM r.requested_at
RETURNING mr_iid, (xmax = 0) AS inserted

-- name: as_of
-- Spares reading a review again that is complete as of this update and this head of its merge request. A push
-- that resets approvals need not be an update: not where the merge request was written since, or moved on.
SELECT r.mr_iid, r.mr_updated_at
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, head_sha text, gitlab_id bigint)
  JOIN scm.mr_reviews AS r ON r.repo_id = %(repo_id)s AND r.mr_iid = s.iid AND r.replaced_id = 0
  LEFT JOIN scm.mrs AS m ON m.repo_id = r.repo_id AND m.iid = r.mr_iid AND m.replaced_id = 0
 WHERE r.whole @> %(needed)s AND coalesce(r.gitlab_id = s.gitlab_id, TRUE)
   AND (m.iid IS NULL OR (m.batch_id <= r.batch_id AND m.head_sha IS NOT DISTINCT FROM s.head_sha
                          AND m.deleted_at IS NULL))
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                    WHERE o.repo_id = r.repo_id AND o.job_type = 'reviews'
                      AND o.natural_key = r.mr_iid::text AND o.resolved_at IS NULL)

-- name: stale
-- The rolling scan of open merge requests; one whose review was never read counts from when it was found.
SELECT m.iid
  FROM scm.mrs AS m
  LEFT JOIN scm.mr_reviews AS r ON r.repo_id = m.repo_id AND r.mr_iid = m.iid AND r.replaced_id = 0
 WHERE m.repo_id = %(repo_id)s AND m.status = 'open' AND m.deleted_at IS NULL
   AND coalesce(r.read_at, m.first_seen_at) < now() - %(older_than)s
 ORDER BY coalesce(r.read_at, m.first_seen_at), m.iid
 LIMIT %(limit)s

-- name: hidden_before
-- Reviews with internal notes that the last token could not see: those that the server counts, and stored ones
-- that count as missing. Each is read once by a token that sees them.
SELECT r.mr_iid AS iid
  FROM scm.mr_reviews AS r
  JOIN scm.mrs AS m ON m.repo_id = r.repo_id AND m.iid = r.mr_iid AND m.replaced_id = 0
 WHERE r.repo_id = %(repo_id)s AND r.replaced_id = 0 AND r.saw_internal IS NOT TRUE AND m.deleted_at IS NULL
   AND (r.hidden_notes > 0
        OR EXISTS (SELECT FROM scm.review_events AS e
                    WHERE e.repo_id = r.repo_id AND e.mr_iid = r.mr_iid AND e.replaced_id = 0
                      AND e.is_internal AND e.missing_since IS NOT NULL))
 ORDER BY r.mr_iid
 LIMIT %(limit)s

-- name: asked
-- Reviews that a scan requested and did not get wait for its next round; nothing is known of them by that.
INSERT INTO scm.mr_reviews AS r (repo_id, mr_iid, gitlab_id, mr_updated_at, whole, batch_id)
SELECT m.repo_id, m.iid, m.gitlab_id, m.updated_at, '{}', %(batch_id)s
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.iid = ANY (%(iids)s) AND m.replaced_id = 0
ON CONFLICT (repo_id, mr_iid, replaced_id) DO UPDATE
   SET read_at = now(), saw_internal = %(sees_internal)s OR r.saw_internal

-- name: invalidate_readings
-- Before copies are stored that win over whatever is there: nothing that is kept about these is relied on.
UPDATE scm.mr_reviews SET mr_updated_at = '-infinity', batch_id = 0
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: invalidate_events
UPDATE scm.review_events SET content_hash = '', updated_at = NULL, batch_id = 0
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
   AND mr_iid || ':' || source_event_id = ANY (%(keys)s)

-- name: count_events
-- What is compared with the source's own number.
SELECT count(*) AS events FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND missing_since IS NULL
