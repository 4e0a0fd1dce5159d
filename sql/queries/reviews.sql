-- Statements of sync_pipeline/facts/reviews.py. They write the events, approvals and reviewers of merge
-- requests.

-- name: replaced
-- Marks reviews whose number another merge request has now, and returns the gitlab_id of the earlier one.
UPDATE scm.mr_reviews AS r SET replaced_id = r.gitlab_id
  FROM json_to_recordset(%(sets)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0 AND r.gitlab_id <> s.gitlab_id
RETURNING r.mr_iid, r.replaced_id

-- name: replace_events
-- Marks the events of replaced merge requests as deleted. They stay with the earlier one.
UPDATE scm.review_events AS e
   SET replaced_id = s.replaced_id, deleted_at = coalesce(e.deleted_at, now()),
       missing_since = coalesce(e.missing_since, now()), batch_id = %(batch_id)s, version = e.version + 1,
       stored_at = now()
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.mr_iid AND e.replaced_id = 0

-- name: replace_approvals
-- Closes the approvals of replaced merge requests.
UPDATE scm.mr_approvals AS a
   SET replaced_id = s.replaced_id, closed_at = coalesce(a.closed_at, now()), batch_id = %(batch_id)s
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE a.repo_id = %(repo_id)s AND a.mr_iid = s.mr_iid AND a.replaced_id = 0

-- name: replace_reviewers
-- Closes the review requests of replaced merge requests.
UPDATE scm.mr_reviewers AS r
   SET replaced_id = s.replaced_id, closed_at = coalesce(r.closed_at, now()), batch_id = %(batch_id)s
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0

-- name: restore
-- Restores the review of a merge request that the server shows again. Its events lose their tombstones as
-- they are read.
UPDATE scm.mr_reviews AS r SET replaced_id = 0, mr_updated_at = '-infinity', batch_id = 0
  FROM json_to_recordset(%(sets)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = s.gitlab_id
RETURNING r.mr_iid, r.gitlab_id

-- name: reading
-- Records how completely each review was read and returns those for which this reading is the latest. Pages
-- are read ahead, so an older state may be written after a newer one. A state in the server's future does
-- not count as newer. A partial reading adds to the reading of the same update.
INSERT INTO scm.mr_reviews AS r (repo_id, mr_iid, gitlab_id, mr_updated_at, whole, saw_internal, batch_id)
SELECT %(repo_id)s, s.mr_iid, s.gitlab_id, s.mr_updated_at,
       CASE WHEN s.is_partial AND o.mr_updated_at = s.mr_updated_at
            THEN ARRAY(SELECT DISTINCT part FROM unnest(o.whole || s.whole) AS part ORDER BY part)
            ELSE s.whole END,
       CASE WHEN s.has_notes OR o.mr_iid IS NULL THEN %(sees_internal)s ELSE o.saw_internal END, %(batch_id)s
  FROM json_to_recordset(%(sets)s)
    AS s (mr_iid bigint, gitlab_id bigint, mr_updated_at timestamptz, whole text[], is_partial boolean,
          has_notes boolean)
  LEFT JOIN scm.mr_reviews AS o ON o.repo_id = %(repo_id)s AND o.mr_iid = s.mr_iid AND o.replaced_id = 0
ON CONFLICT (repo_id, mr_iid, replaced_id) DO UPDATE
   SET gitlab_id = coalesce(EXCLUDED.gitlab_id, r.gitlab_id), mr_updated_at = EXCLUDED.mr_updated_at,
       whole = EXCLUDED.whole, saw_internal = EXCLUDED.saw_internal, batch_id = EXCLUDED.batch_id,
       read_at = now()
 WHERE r.batch_id <= EXCLUDED.batch_id
   AND (r.mr_updated_at <= EXCLUDED.mr_updated_at
        OR (r.mr_updated_at > %(server_now)s AND r.read_at < %(begun)s))
RETURNING mr_iid, (xmax = 0) AS first

-- name: discussions
-- Reads the discussion of each stored note, for copies that do not have it.
SELECT mr_iid, source_event_id, discussion_id, is_reply
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND discussion_id IS NOT NULL

-- name: stored
-- Reads the stored events of the reviews of a page. The program compares them, so that no join plan can be
-- slow.
SELECT id, mr_iid || ':' || source_event_id AS key, mr_iid, origin,
       missing_since IS NOT NULL OR deleted_at IS NOT NULL AS gone,
       is_internal, deleted_at IS NULL AND NOT is_system AND NOT is_internal AS shown
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(current)s) AND replaced_id = 0

-- name: hidden
-- Stores how many comments the token cannot see. The number stays if a comment that was visible before did
-- not come, because it may be hidden or deleted.
UPDATE scm.mr_reviews AS r SET hidden_notes = s.hidden
  FROM json_to_recordset(%(hidden)s) AS s (mr_iid bigint, hidden bigint, is_whole boolean)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0
   AND r.hidden_notes IS DISTINCT FROM s.hidden AND (s.is_whole OR r.hidden_notes IS NULL)

-- name: restore_events
-- Restores missing events that an older copy shows. Their content does not change.
UPDATE scm.review_events
   SET missing_since = NULL, deleted_at = NULL, version = version + 1, batch_id = %(batch_id)s,
       stored_at = now()
 WHERE id = ANY (%(ids)s)

-- name: missing
-- Marks stored events as missing whose origin was read to its end without them.
UPDATE scm.review_events
   SET missing_since = now(), version = version + 1, batch_id = %(batch_id)s, stored_at = now()
 WHERE id = ANY (%(ids)s)

-- name: close_approvals
-- Closes approvals that are no longer in force.
UPDATE scm.mr_approvals SET closed_at = now(), batch_id = %(batch_id)s
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND closed_at IS NULL
   AND mr_iid || ':' || person <> ALL (%(present)s)

-- name: put_approvals
-- Stores approvals in force, new ones and better details. A known time is never removed.
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

-- name: put_seen_approvals
-- Stores approvals that GraphQL showed. A stored one has a better time.
INSERT INTO scm.mr_approvals AS a (repo_id, mr_iid, person, user_id, username, name, approved_at, time_source,
                                   batch_id)
SELECT %(repo_id)s, mr_iid, person, user_id, username, name, approved_at, time_source, %(batch_id)s
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, person text, user_id bigint, username text, name text, approved_at timestamptz,
          time_source text)
ON CONFLICT (repo_id, mr_iid, person) WHERE closed_at IS NULL DO NOTHING
RETURNING mr_iid, TRUE AS inserted

-- name: close_reviewers
-- Closes review requests that were withdrawn.
UPDATE scm.mr_reviewers SET closed_at = now(), batch_id = %(batch_id)s
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND closed_at IS NULL
   AND mr_iid || ':' || person <> ALL (%(present)s)

-- name: put_reviewers
-- Stores requested reviewers, new ones and better details.
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
-- Lists reviews that need not be read again for this update and head: complete ones, and those whose missing
-- details are planned. A push may reset approvals without an update. So a merge request that was written
-- since, or has moved, is left out.
SELECT r.mr_iid, r.mr_updated_at
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, head_sha text, gitlab_id bigint)
  JOIN scm.mr_reviews AS r ON r.repo_id = %(repo_id)s AND r.mr_iid = s.iid AND r.replaced_id = 0
  LEFT JOIN scm.mrs AS m ON m.repo_id = r.repo_id AND m.iid = r.mr_iid AND m.replaced_id = 0
 WHERE r.whole || ARRAY(SELECT CASE o.detail WHEN 'notes' THEN 'note' ELSE replace(o.detail, '_events', '') END
                          FROM scm.deferred_fetches AS o
                         WHERE o.repo_id = r.repo_id AND o.job_type = 'reviews' AND o.is_planned
                           AND o.natural_key = r.mr_iid::text AND o.resolved_at IS NULL) @> %(needed)s
   AND coalesce(r.gitlab_id = s.gitlab_id, TRUE)
   AND (m.iid IS NULL OR (m.batch_id <= r.batch_id AND m.head_sha IS NOT DISTINCT FROM s.head_sha
                          AND m.deleted_at IS NULL))
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                    WHERE o.repo_id = r.repo_id AND o.job_type = 'reviews' AND NOT o.is_planned
                      AND o.natural_key = r.mr_iid::text AND o.resolved_at IS NULL)

-- name: known
-- Reads what is stored of some merge requests and their reviews, for the decision which details are read. The
-- head is that of the latest reading of the review: none if the merge request was written since.
SELECT s.iid, r.mr_updated_at, coalesce(r.whole, '{}') AS whole,
       m.status, m.labels, m.milestone, CASE WHEN m.batch_id <= r.batch_id THEN m.head_sha END AS head_sha,
       ARRAY(SELECT o.detail FROM scm.deferred_fetches AS o
              WHERE o.repo_id = %(repo_id)s AND o.job_type = 'reviews' AND o.natural_key = s.iid::text
                AND o.resolved_at IS NULL) AS deferred,
       ARRAY(SELECT coalesce(a.user_id::text, '@' || a.username) FROM scm.mr_approvals AS a
              WHERE a.repo_id = %(repo_id)s AND a.mr_iid = s.iid AND a.closed_at IS NULL
                AND a.replaced_id = 0) AS approvers,
       (SELECT jsonb_object_agg(coalesce(w.user_id::text, '@' || w.username), w.state) FROM scm.mr_reviewers AS w
         WHERE w.repo_id = %(repo_id)s AND w.mr_iid = s.iid AND w.closed_at IS NULL
           AND w.replaced_id = 0) AS reviewers
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, gitlab_id bigint)
  LEFT JOIN scm.mr_reviews AS r
    ON r.repo_id = %(repo_id)s AND r.mr_iid = s.iid AND r.replaced_id = 0
   AND coalesce(r.gitlab_id = s.gitlab_id, TRUE)
  LEFT JOIN scm.mrs AS m
    ON m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0 AND m.gitlab_id = s.gitlab_id
   AND m.deleted_at IS NULL

-- name: events_of
-- Reads the present events of some reviews, as far as the decision which details are read needs them.
SELECT mr_iid, source_event_id, origin, event_type, reviewer_id, reviewer_username, reviewer_name, ts,
       updated_at, body, is_system, is_internal, discussion_id, is_reply, resolvable, resolved, resolved_by_id,
       resolved_at, position, duplicate_of, time_precision
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND deleted_at IS NULL
   AND missing_since IS NULL AND origin IN ('note', 'milestone')

-- name: stale
-- Lists open merge requests for the rolling scan of reviews. A review that was never read counts from its
-- discovery.
SELECT m.iid
  FROM scm.mrs AS m
  LEFT JOIN scm.mr_reviews AS r ON r.repo_id = m.repo_id AND r.mr_iid = m.iid AND r.replaced_id = 0
 WHERE m.repo_id = %(repo_id)s AND m.status = 'open' AND m.deleted_at IS NULL
   AND coalesce(r.read_at, m.first_seen_at) < now() - %(older_than)s
 ORDER BY coalesce(r.read_at, m.first_seen_at), m.iid
 LIMIT %(limit)s

-- name: hidden_before
-- Lists reviews with internal notes that the last token could not see. Each is read once by a token that
-- sees them.
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

-- name: any_internal
-- Returns whether one of the given merge requests has a stored internal note.
SELECT 1 FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND is_internal
 LIMIT 1

-- name: asked
-- Makes reviews that a scan requested without success wait for its next round. It adds no other knowledge.
INSERT INTO scm.mr_reviews AS r (repo_id, mr_iid, gitlab_id, mr_updated_at, whole, batch_id)
SELECT m.repo_id, m.iid, m.gitlab_id, m.updated_at, '{}', %(batch_id)s
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.iid = ANY (%(iids)s) AND m.replaced_id = 0
ON CONFLICT (repo_id, mr_iid, replaced_id) DO UPDATE
   SET read_at = now(), saw_internal = %(sees_internal)s OR r.saw_internal

-- name: invalidate_readings
-- Makes the next reading of each given review count as newer.
UPDATE scm.mr_reviews SET mr_updated_at = '-infinity', batch_id = 0
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: invalidate_events
-- Makes the next copy of each given event overwrite the stored one.
UPDATE scm.review_events SET content_hash = '', updated_at = NULL, batch_id = 0
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
   AND mr_iid || ':' || source_event_id = ANY (%(keys)s)

-- name: count_events
-- Counts the stored events, for the comparison with the source's own number.
SELECT count(*) AS events FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND missing_since IS NULL
