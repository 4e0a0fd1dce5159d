"""Reviews of GitLab: how everything that happened in a merge request gets into the tables.

Belongs here: ``scm.review_events``, the sets ``scm.mr_approvals`` and ``scm.mr_reviewers``, and in
``scm.mr_reviews`` how completely a review was read. Runs inside the caller's transaction, after the lease and
the claim were checked. An event that a whole reading no longer shows is marked; whether it is gone for good
is for a confirmation to say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from sync_pipeline.gitlab_rows import MergeRequestRow, Origin, Person, ReviewEventRow, ReviewSet
from sync_pipeline.model import Counts, JobType
from sync_pipeline.store import quarantine
from sync_pipeline.store.database import Connection
from sync_pipeline.store.raw import ESCAPED, flags, payload, recordset, storable
from sync_pipeline.store.tables import REVIEW_EVENTS

# Reviews of merge requests whose numbers other ones have now, with the gitlab_id of the earlier one.
_REPLACED = """
UPDATE scm.mr_reviews AS r SET replaced_id = r.gitlab_id
  FROM json_to_recordset(%(sets)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0 AND r.gitlab_id <> s.gitlab_id
RETURNING r.mr_iid, r.replaced_id
"""

# All that belongs to the earlier merge request stays with it and is gone with it.
_REPLACE_EVENTS = """
UPDATE scm.review_events AS e
   SET replaced_id = s.replaced_id, deleted_at = coalesce(e.deleted_at, now()),
       missing_since = coalesce(e.missing_since, now()), batch_id = %(batch_id)s, version = e.version + 1,
       stored_at = now()
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.mr_iid AND e.replaced_id = 0
"""
_REPLACE_APPROVALS = """
UPDATE scm.mr_approvals AS a
   SET replaced_id = s.replaced_id, closed_at = coalesce(a.closed_at, now()), batch_id = %(batch_id)s
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE a.repo_id = %(repo_id)s AND a.mr_iid = s.mr_iid AND a.replaced_id = 0
"""
_REPLACE_REVIEWERS = """
UPDATE scm.mr_reviewers AS r
   SET replaced_id = s.replaced_id, closed_at = coalesce(r.closed_at, now()), batch_id = %(batch_id)s
  FROM json_to_recordset(%(replaced)s) AS s (mr_iid bigint, replaced_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0
"""

# One that was replaced is there again; its events lose their tombstones as they come.
_TAKE_BACK = """
UPDATE scm.mr_reviews AS r SET replaced_id = 0, mr_updated_at = '-infinity', batch_id = 0
  FROM json_to_recordset(%(sets)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = s.gitlab_id
RETURNING r.mr_iid, r.gitlab_id
"""
_TAKE_BACK_PARTS = (
    """
UPDATE scm.review_events AS e SET replaced_id = 0
  FROM json_to_recordset(%(back)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.mr_iid AND e.replaced_id = s.gitlab_id
""",
    """
UPDATE scm.mr_approvals AS a SET replaced_id = 0
  FROM json_to_recordset(%(back)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE a.repo_id = %(repo_id)s AND a.mr_iid = s.mr_iid AND a.replaced_id = s.gitlab_id
""",
    """
UPDATE scm.mr_reviewers AS r SET replaced_id = 0
  FROM json_to_recordset(%(back)s) AS s (mr_iid bigint, gitlab_id bigint)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = s.gitlab_id
""",
)

# How completely each review was read. Returns those for which this is the latest reading. Pages are read
# ahead: an older state of the merge request may be written after a newer one. A state that the
# server's clock has not reached is no newer one.
_READING = """
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
"""

# Where notes are in their discussions, for copies that do not say it.
_DISCUSSIONS = """
SELECT mr_iid, source_event_id, discussion_id, is_reply
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND discussion_id IS NOT NULL
"""

# The upsert of events. The newer version of the source wins, then the later observation, unless the server's
# clock has not reached what is stored; the same content changes nothing, unless it was missing meanwhile.
_UPSERT = REVIEW_EVENTS.sql("""
INSERT INTO scm.review_events AS t (repo_id, {columns}, batch_id)
SELECT %(repo_id)s, {columns}, %(batch_id)s
  FROM json_to_recordset(%(events)s) AS s ({types})
ON CONFLICT (repo_id, mr_iid, replaced_id, source_event_id) DO UPDATE
   SET {excluded},
       raw = CASE WHEN t.content_hash = EXCLUDED.content_hash THEN t.raw ELSE EXCLUDED.raw END,
       content_hash = EXCLUDED.content_hash, batch_id = EXCLUDED.batch_id, version = t.version + 1,
       missing_since = NULL, deleted_at = NULL, stored_at = now()
 WHERE (coalesce(t.updated_at < EXCLUDED.updated_at, FALSE)
        OR (NOT coalesce(t.updated_at > EXCLUDED.updated_at, FALSE) AND t.batch_id <= EXCLUDED.batch_id)
        OR (t.updated_at > %(server_now)s AND t.stored_at < %(begun)s))
   AND (t.content_hash <> EXCLUDED.content_hash OR t.missing_since IS NOT NULL OR t.deleted_at IS NOT NULL)
RETURNING (xmax = 0) AS inserted
""")

# What is stored of the reviews of a page; compared with what came, so that no plan of a join can go wrong.
_STORED = """
SELECT id, mr_iid || ':' || source_event_id AS key, mr_iid, origin,
       missing_since IS NOT NULL OR deleted_at IS NOT NULL AS gone,
       is_internal, deleted_at IS NULL AND NOT is_system AND NOT is_internal AS shown
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(current)s) AND replaced_id = 0
"""

# How many comments the token may not see. Where a comment that it saw before did not come, it may be hidden
# or deleted; then the number stays.
_HIDDEN = """
UPDATE scm.mr_reviews AS r SET hidden_notes = s.hidden
  FROM json_to_recordset(%(hidden)s) AS s (mr_iid bigint, hidden bigint, is_whole boolean)
 WHERE r.repo_id = %(repo_id)s AND r.mr_iid = s.mr_iid AND r.replaced_id = 0
   AND r.hidden_notes IS DISTINCT FROM s.hidden AND (s.is_whole OR r.hidden_notes IS NULL)
"""

# An older copy changes no content, but it shows that an event which was missing is there.
_RETURNED = """
UPDATE scm.review_events
   SET missing_since = NULL, deleted_at = NULL, version = version + 1, batch_id = %(batch_id)s,
       stored_at = now()
 WHERE id = ANY (%(ids)s)
"""

# Stored events of an origin that was read to its end, and that were not in it.
_MISSING = """
UPDATE scm.review_events
   SET missing_since = now(), version = version + 1, batch_id = %(batch_id)s, stored_at = now()
 WHERE id = ANY (%(ids)s)
"""

_CLOSE_APPROVALS = """
UPDATE scm.mr_approvals SET closed_at = now(), batch_id = %(batch_id)s
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND closed_at IS NULL
   AND mr_iid || ':' || person <> ALL (%(present)s)
"""

# Approvals in force: new ones, and what is known better now. A time that was known is never blanked.
_PUT_APPROVALS = """
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
"""

_CLOSE_REVIEWERS = """
UPDATE scm.mr_reviewers SET closed_at = now(), batch_id = %(batch_id)s
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND closed_at IS NULL
   AND mr_iid || ':' || person <> ALL (%(present)s)
"""

# Who is asked for a review: new ones, and what is known better now.
_PUT_REVIEWERS = """
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
"""

# Spares reading a review again that is complete as of this update and this head of its merge request. A push
# that resets approvals need not be an update: not where the merge request was written since, or moved on.
_AS_OF = """
SELECT r.mr_iid, r.mr_updated_at
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, head_sha text, gitlab_id bigint)
  JOIN scm.mr_reviews AS r ON r.repo_id = %(repo_id)s AND r.mr_iid = s.iid AND r.replaced_id = 0
  LEFT JOIN scm.mrs AS m ON m.repo_id = r.repo_id AND m.iid = r.mr_iid AND m.replaced_id = 0
 WHERE r.whole @> %(needed)s AND coalesce(r.gitlab_id = s.gitlab_id, TRUE)
   AND (m.iid IS NULL OR (m.batch_id <= r.batch_id AND m.head_sha IS NOT DISTINCT FROM s.head_sha
                          AND m.deleted_at IS NULL))
   AND NOT EXISTS (SELECT FROM scm.obligations AS o
                    WHERE o.repo_id = r.repo_id AND o.job_type = 'reviews'
                      AND o.natural_key = r.mr_iid::text AND o.resolved_at IS NULL)
"""

# The rolling scan of open merge requests; one whose review was never read counts from when it was found.
_STALE = """
SELECT m.iid
  FROM scm.mrs AS m
  LEFT JOIN scm.mr_reviews AS r ON r.repo_id = m.repo_id AND r.mr_iid = m.iid AND r.replaced_id = 0
 WHERE m.repo_id = %(repo_id)s AND m.status = 'open' AND m.deleted_at IS NULL
   AND coalesce(r.read_at, m.first_seen_at) < now() - %(older_than)s
 ORDER BY coalesce(r.read_at, m.first_seen_at), m.iid
 LIMIT %(limit)s
"""

# Reviews with internal notes that the last token could not see: those that the server counts, and stored ones
# that count as missing. Each is read once by a token that sees them.
_HIDDEN_BEFORE = """
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
"""

# Reviews that a scan requested and did not get wait for its next round; nothing is known of them by that.
_ASKED = """
INSERT INTO scm.mr_reviews AS r (repo_id, mr_iid, gitlab_id, mr_updated_at, whole, batch_id)
SELECT m.repo_id, m.iid, m.gitlab_id, m.updated_at, '{}', %(batch_id)s
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.iid = ANY (%(iids)s) AND m.replaced_id = 0
ON CONFLICT (repo_id, mr_iid, replaced_id) DO UPDATE
   SET read_at = now(), saw_internal = %(sees_internal)s OR r.saw_internal
"""

# Before copies are stored that win over whatever is there: nothing that is kept about these is relied on.
_INVALIDATE_READINGS = """
UPDATE scm.mr_reviews SET mr_updated_at = '-infinity', batch_id = 0
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
"""
_INVALIDATE_EVENTS = """
UPDATE scm.review_events SET content_hash = '', updated_at = NULL, batch_id = 0
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
   AND mr_iid || ':' || source_event_id = ANY (%(keys)s)
"""

# What is compared with the source's own number.
_COUNT_EVENTS = """
SELECT count(*) AS events FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND missing_since IS NULL
"""

# Characters: an index takes no more than 2,700 bytes. No server has longer names of people.
_LONGEST_PERSON = 500
_APPROVALS = "approvals"
_REVIEWERS = "reviewers"
_DETAILS = {
    Origin.NOTE: "notes",
    Origin.STATE: "state_events",
    Origin.LABEL: "label_events",
    Origin.MILESTONE: "milestone_events",
}


def store_reviews(
    conn: Connection,
    *,
    repo_id: int,
    batch_id: int,
    sets: Sequence[ReviewSet],
    server_now: datetime | None = None,
    begun: datetime | None = None,
    overriding: Collection[str] = (),
    sees_internal: bool = True,
) -> Counts:
    """Write reviews; returns what that changed, counted by the database.

    ``server_now`` is the server's clock at its answer, and ``begun`` the database's before the request. With
    ``overriding`` these reviews replace the stored ones, whatever their age, and so do their events with one
    of these keys, whatever hash is stored. The stored review of another merge request with the same number is
    gone: it keeps its rows. Internal notes that do not come are missing only to a token that
    ``sees_internal`` ones.

    Counts are events. Each event that went missing also counts once as read and updated. So does each
    approval and reviewer that is new, changed or gone, except new ones at the first reading of a review. A
    review that comes twice is one, the later. Raises psycopg.Error where the database refuses a row.
    """
    once = {one.mr_iid: one for one in sets}
    if not once:
        return Counts()
    found = with_discussions(conn, repo_id, list(once.values()))
    events = {_key(one.mr_iid, row.event_id): columns(row) for one in found for row in one.events}
    params: dict[str, Any] = {
        "repo_id": repo_id,
        "batch_id": batch_id,
        "server_now": server_now,
        "begun": begun,
        "sees_internal": sees_internal,
        "sets": recordset(map(_reading, found)),
        "events": recordset(events.values()),
    }
    beside = _replace(conn, params)
    if overriding:
        keys = [key for key in events if key in overriding]
        again = {"repo_id": repo_id, "iids": list(once), "keys": keys}
        conn.execute(_INVALIDATE_READINGS, again)
        conn.execute(_INVALIDATE_EVENTS, again)
    first = {row["mr_iid"]: row["first"] for row in conn.execute(_READING, params)}
    written = [row["inserted"] for row in conn.execute(_UPSERT, params)]
    # An earlier reading that comes late says nothing about the present.
    current = [one for one in found if one.mr_iid in first]
    returned, missing = _compare(conn, params, current, events, sees_internal)
    beside += missing
    beside += _store_set(conn, _CLOSE_APPROVALS, _PUT_APPROVALS, params, first, approvals_of(current))
    beside += _store_set(conn, _CLOSE_REVIEWERS, _PUT_REVIEWERS, params, first, reviewers_of(current))
    read = {(str(one.mr_iid), detail) for one in current for detail in _read(one)}
    quarantine.settle(conn, repo_id, JobType.REVIEWS, [*events, *map(str, once)], read)
    inserted = sum(written)
    updated = len(written) - inserted + returned
    return Counts(
        read=len(events) + beside,
        inserted=inserted,
        updated=updated + beside,
        unchanged=len(events) - inserted - updated,
    )


def _replace(conn: Connection, params: dict[str, Any]) -> int:
    """Leave the rows of merge requests whose numbers other ones have now to these, and take back those of one
    that is there again; returns how many events and people are gone with them."""
    replaced = conn.execute(_REPLACED, params).fetchall()
    if not replaced:
        return 0
    rows = recordset(replaced)
    gone = 0
    for query in (_REPLACE_EVENTS, _REPLACE_APPROVALS, _REPLACE_REVIEWERS):
        gone += conn.execute(query, params | {"replaced": rows}).rowcount
    quarantine.settle_gone(conn, params["repo_id"], [JobType.REVIEWS], [row["mr_iid"] for row in replaced])
    if back := conn.execute(_TAKE_BACK, params).fetchall():
        for query in _TAKE_BACK_PARTS:
            conn.execute(query, params | {"back": recordset(back)})
    return gone


def with_discussions(conn: Connection, repo_id: int, sets: Sequence[ReviewSet]) -> list[ReviewSet]:
    """``sets`` with what is known better of notes: the list of notes does not tell where in a discussion one
    is, and such a copy takes back nothing."""
    poor = [
        one.mr_iid
        for one in sets
        if any(row.origin is Origin.NOTE and row.discussion_id is None for row in one.events)
    ]
    if not poor:
        return list(sets)
    rows = conn.execute(_DISCUSSIONS, {"repo_id": repo_id, "iids": poor})
    known = {(r["mr_iid"], r["source_event_id"]): (r["discussion_id"], r["is_reply"]) for r in rows}

    def placed(iid: int, row: ReviewEventRow) -> ReviewEventRow:
        if row.discussion_id is not None or (iid, row.event_id) not in known:
            return row
        discussion_id, is_reply = known[iid, row.event_id]
        return replace(row, discussion_id=discussion_id, is_reply=is_reply)

    return [replace(one, events=tuple(placed(one.mr_iid, row) for row in one.events)) for one in sets]


def _compare(
    conn: Connection,
    params: dict[str, Any],
    current: Sequence[ReviewSet],
    events: Collection[str],
    sees_internal: bool,
) -> tuple[int, int]:
    """Mark what is missing and lift the mark of what is not; returns how many returned and went missing."""
    unreadable = {row.natural_key for one in current for row in one.quarantined}
    whole = {(one.mr_iid, origin) for one in current for origin in complete_origins(one)}
    returned: list[int] = []
    missing: list[int] = []
    lacking: set[int] = set()
    for row in conn.execute(_STORED, params | {"current": [one.mr_iid for one in current]}):
        if row["key"] in events:
            if row["gone"]:
                returned.append(row["id"])
        elif row["is_internal"] and not sees_internal:
            continue
        elif not row["gone"] and (row["mr_iid"], row["origin"]) in whole and row["key"] not in unreadable:
            missing.append(row["id"])
        if row["shown"] and row["key"] not in events and row["origin"] == Origin.NOTE:
            lacking.add(row["mr_iid"])
    hidden = [
        {"mr_iid": one.mr_iid, "hidden": one.notes_hidden, "is_whole": one.mr_iid not in lacking}
        for one in current
        if one.notes_hidden is not None
    ]
    if hidden:
        conn.execute(_HIDDEN, params | {"hidden": recordset(hidden)})
    if returned:
        conn.execute(_RETURNED, params | {"ids": returned})
    if missing:
        conn.execute(_MISSING, params | {"ids": missing})
    return len(returned), len(missing)


def _key(iid: int, event_id: str) -> str:
    """What quarantine calls an event."""
    return f"{iid}:{event_id}"


def _reading(one: ReviewSet) -> dict[str, Any]:
    whole = [str(origin) for origin in one.whole]
    whole += [_APPROVALS] if one.approvals is not None else []
    whole += [_REVIEWERS] if one.reviewers is not None else []
    return {
        "mr_iid": one.mr_iid,
        "gitlab_id": one.mr_id,
        "mr_updated_at": one.mr_updated_at,
        "whole": sorted(whole),
    }


def columns(row: ReviewEventRow) -> dict[str, Any]:
    """The columns of ``scm.review_events`` that ``row`` says, with the hash over them."""
    # Together, so that one flag is true of all three.
    objects, escaped = payload(
        {"raw": row.raw, "position": row.position, "details": row.details}, escaped=ESCAPED in row.flags
    )
    raw, position, details = (Jsonb(objects.obj[name]) for name in ("raw", "position", "details"))
    values = REVIEW_EVENTS.values(row) | {
        "position": position,
        "details": details,
        "flags": flags(row.flags, escaped=escaped),
    }
    return values | {"raw": raw, "content_hash": REVIEW_EVENTS.hash(values)}


def complete_origins(one: ReviewSet) -> Iterator[Origin]:
    """The origins of which a stored event that did not come is missing: those read to their end, without
    those that hold a row of which not even the number could be read."""
    nameless = {row.natural_key for row in one.quarantined}
    for origin in one.whole:
        if _key(one.mr_iid, f"{origin}:None") not in nameless:
            yield origin


PeopleOf = list[tuple[int, list[dict[str, Any]]]]
"""By merge request the rows of a set of people."""


def approvals_of(found: Sequence[ReviewSet]) -> PeopleOf:
    """The approvals in force, as columns, of each merge request of which they were read."""
    return [
        (
            one.mr_iid,
            [
                _person(one.mr_iid, row.person)
                | {"approved_at": row.approved_at, "time_source": row.time_source}
                for row in one.approvals
            ],
        )
        for one in found
        if one.approvals is not None
    ]


def reviewers_of(found: Sequence[ReviewSet]) -> PeopleOf:
    """Who is asked for a review, as columns, of each merge request of which that was read."""
    return [
        (
            one.mr_iid,
            [
                _person(one.mr_iid, row.person) | {"state": row.state, "requested_at": row.requested_at}
                for row in one.reviewers
            ],
        )
        for one in found
        if one.reviewers is not None
    ]


def _person(iid: int, one: Person) -> dict[str, Any]:
    person = str(one.user_id) if one.user_id is not None else storable(one.username)
    if person is not None and len(person) > _LONGEST_PERSON:
        person = f"sha256:{hashlib.sha256(person.encode()).hexdigest()}"
    return {
        "mr_iid": iid,
        "person": person,
        "user_id": one.user_id,
        "username": one.username,
        "name": one.name,
    }


def _store_set(
    conn: Connection, close: str, put: str, params: dict[str, Any], first: dict[int, bool], read: PeopleOf
) -> int:
    """Make the open rows those that were read; returns how many changed."""
    if not read:
        return 0
    rows = {_key(iid, row["person"]): row for iid, people in read for row in people}
    closed = conn.execute(close, params | {"iids": [iid for iid, _ in read], "present": list(rows)}).rowcount
    put_rows = conn.execute(put, params | {"rows": recordset(rows.values())}) if rows else ()
    return closed + sum(not (row["inserted"] and first[row["mr_iid"]]) for row in put_rows)


def part_of(detail: str) -> str:
    """The name of a detail in ``scm.mr_reviews.whole``: an origin of events, or a set of people."""
    return next((str(origin) for origin, name in _DETAILS.items() if name == detail), detail)


def _read(one: ReviewSet) -> Iterator[str]:
    """The details that this reading brought."""
    deferred = {row.detail for row in one.deferred}
    came = [_DETAILS[origin] for origin in one.whole]
    came += [_APPROVALS] if one.approvals is not None else []
    came += [_REVIEWERS] if one.reviewers is not None else []
    yield from (detail for detail in came if detail not in deferred)


def reviews_as_of(
    conn: Connection, repo_id: int, rows: Sequence[MergeRequestRow], refused: Collection[str] = ()
) -> dict[int, datetime]:
    """By merge request, the ``updated_at`` as of which its review is complete: all kinds of events and the
    approvals were read to their end, nothing is deferred, and its head was that of the row already. Details
    that the server refuses for every merge request are not needed."""
    missing = {part_of(detail) for detail in refused}
    needed = [part for part in (*map(str, Origin), _APPROVALS) if part not in missing]
    asked = recordset({"iid": r.iid, "head_sha": r.head_sha, "gitlab_id": r.mr_id} for r in rows)
    found = conn.execute(_AS_OF, {"repo_id": repo_id, "rows": asked, "needed": needed})
    return {row["mr_iid"]: row["mr_updated_at"] for row in found}


def stale_reviews(conn: Connection, repo_id: int, older_than: timedelta, limit: int) -> list[int]:
    """At most ``limit`` open merge requests whose review was not read for ``older_than``, the longest
    first."""
    params = {"repo_id": repo_id, "older_than": older_than, "limit": limit}
    return [row["iid"] for row in conn.execute(_STALE, params)]


def hidden_before(conn: Connection, repo_id: int, limit: int) -> list[int]:
    """At most ``limit`` merge requests with internal notes that the token of the last reading could not
    see."""
    return [row["iid"] for row in conn.execute(_HIDDEN_BEFORE, {"repo_id": repo_id, "limit": limit})]


def postpone(
    conn: Connection, repo_id: int, batch_id: int, iids: Sequence[int], *, sees_internal: bool = False
) -> None:
    """These were asked for and did not come: the scan comes back to them after all others. A token that
    ``sees_internal`` notes does not ask for them again because of these."""
    conn.execute(
        _ASKED,
        {"repo_id": repo_id, "batch_id": batch_id, "iids": list(iids), "sees_internal": sees_internal},
    )


def count_events(conn: Connection, repo_id: int) -> int:
    """How many review events of the repository are stored that the source showed at the latest reading."""
    row = conn.execute(_COUNT_EVENTS, {"repo_id": repo_id}).fetchone()
    assert row is not None
    return int(row["events"])
