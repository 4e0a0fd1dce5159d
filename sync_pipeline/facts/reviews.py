"""Reviews of GitLab: how everything that happened in a merge request gets into the tables.

Belongs here: ``scm.review_events``, the sets ``scm.mr_approvals`` and ``scm.mr_reviewers``, and in
``scm.mr_reviews`` how completely a review was read. Runs inside the caller's transaction, after the lease and
the claim were checked. An event that a whole reading no longer shows is marked; whether it is gone for good
is for a confirmation to say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from sync_pipeline.core.gitlab_rows import (
    MergeRequestRow,
    Origin,
    Person,
    ReviewEventRow,
    ReviewSet,
    StoredReview,
)
from sync_pipeline.core.model import Counts, JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_value
from sync_pipeline.database.values import ESCAPED, flags, payload, recordset, storable
from sync_pipeline.facts import quarantine
from sync_pipeline.facts.tables import REVIEW_EVENTS, comparable

_SQL = queries("reviews")


_RESTORE_PARTS = (
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


# The upsert of events. The newer version of the source wins, then the later observation, unless the stored
# time is in the server's future. Equal content changes nothing, unless the event was missing meanwhile. Times
# in seconds never replace milliseconds of the same second.
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
   AND (t.content_hash <> EXCLUDED.content_hash OR t.missing_since IS NOT NULL OR t.deleted_at IS NOT NULL
        OR (t.time_precision = 'second' AND EXCLUDED.time_precision = 'millisecond'))
   AND (t.time_precision = 'second' OR EXCLUDED.time_precision = 'millisecond'
        OR coalesce(t.updated_at < EXCLUDED.updated_at, TRUE))
RETURNING (xmax = 0) AS inserted
""")


# Characters: an index takes no more than 2,700 bytes. No server has longer names of people.
_LONGEST_PERSON = 500
_APPROVALS = "approvals"
_REVIEWERS = "reviewers"
_DETAILS: dict[str, str] = {
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
        conn.execute(_SQL["invalidate_readings"], again)
        conn.execute(_SQL["invalidate_events"], again)
    first = {row["mr_iid"]: row["first"] for row in conn.execute(_SQL["reading"], params)}
    written = [row["inserted"] for row in conn.execute(_UPSERT, params)]
    # An earlier reading that comes late says nothing about the present.
    current = [one for one in found if one.mr_iid in first]
    returned, missing = _compare(conn, params, current, events, sees_internal)
    beside += missing
    beside += _store_seen(conn, params, current)
    beside += _store_set(
        conn, _SQL["close_approvals"], _SQL["put_approvals"], params, first, approvals_of(current)
    )
    beside += _store_set(
        conn, _SQL["close_reviewers"], _SQL["put_reviewers"], params, first, reviewers_of(current)
    )
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
    """Detach the rows of merge requests whose numbers other ones have now, and attach those of a merge
    request that exists again. Returns how many events and people are removed with them.
    """
    replaced = conn.execute(_SQL["replaced"], params).fetchall()
    if not replaced:
        return 0
    rows = recordset(replaced)
    gone = 0
    for query in (_SQL["replace_events"], _SQL["replace_approvals"], _SQL["replace_reviewers"]):
        gone += conn.execute(query, params | {"replaced": rows}).rowcount
    quarantine.settle_gone(conn, params["repo_id"], [JobType.REVIEWS], [row["mr_iid"] for row in replaced])
    if back := conn.execute(_SQL["restore"], params).fetchall():
        for query in _RESTORE_PARTS:
            conn.execute(query, params | {"back": recordset(back)})
    return gone


def with_discussions(conn: Connection, repo_id: int, sets: Sequence[ReviewSet]) -> list[ReviewSet]:
    """``sets`` with the stored positions of notes. The list of notes lacks the position in a discussion, so
    such a copy must not remove it.
    """
    poor = [
        one.mr_iid
        for one in sets
        if any(row.origin is Origin.NOTE and row.discussion_id is None for row in one.events)
    ]
    if not poor:
        return list(sets)
    rows = conn.execute(_SQL["discussions"], {"repo_id": repo_id, "iids": poor})
    known = {(r["mr_iid"], r["source_event_id"]): (r["discussion_id"], r["is_reply"]) for r in rows}

    def with_discussion(iid: int, row: ReviewEventRow) -> ReviewEventRow:
        if row.discussion_id is not None or (iid, row.event_id) not in known:
            return row
        discussion_id, is_reply = known[iid, row.event_id]
        return replace(row, discussion_id=discussion_id, is_reply=is_reply)

    return [
        replace(one, events=tuple(with_discussion(one.mr_iid, row) for row in one.events)) for one in sets
    ]


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
    for row in conn.execute(_SQL["stored"], params | {"current": [one.mr_iid for one in current]}):
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
        conn.execute(_SQL["hidden"], params | {"hidden": recordset(hidden)})
    if returned:
        conn.execute(_SQL["restore_events"], params | {"ids": returned})
    if missing:
        conn.execute(_SQL["missing"], params | {"ids": missing})
    return len(returned), len(missing)


def _key(iid: int, event_id: str) -> str:
    """The key of an event in quarantine."""
    return f"{iid}:{event_id}"


def _reading(one: ReviewSet) -> dict[str, Any]:
    return {
        "mr_iid": one.mr_iid,
        "gitlab_id": one.mr_id,
        "mr_updated_at": one.mr_updated_at,
        "whole": sorted({part_of(detail) for detail in (*_came(one), *one.kept)}),
        "is_partial": one.partial,
        "has_notes": Origin.NOTE in one.whole,
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
    """The origins of which a stored event counts as missing if it did not come. They were read to their end,
    and have no row without a readable number.
    """
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
        if one.approvals is not None and _APPROVALS not in one.seen
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
        if one.reviewers is not None and _REVIEWERS not in one.seen
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


def _store_seen(conn: Connection, params: dict[str, Any], current: Sequence[ReviewSet]) -> int:
    """Add the people that GraphQL showed, and close nothing; returns how many are new or changed."""
    number = 0
    for name, query, people_of in (
        (_APPROVALS, _SQL["put_seen_approvals"], approvals_of),
        (_REVIEWERS, _SQL["put_reviewers"], reviewers_of),
    ):
        sets = [replace(one, seen=frozenset()) for one in current if name in one.seen]
        rows = {_key(iid, row["person"]): row for iid, people in people_of(sets) for row in people}
        if rows:
            found = conn.execute(query, params | {"rows": recordset(rows.values())})
            number += sum(not row["inserted"] for row in found)
    return number


def part_of(detail: str) -> str:
    """The name of a detail in ``scm.mr_reviews.whole``: an origin of events, or a set of people."""
    return next((str(origin) for origin, name in _DETAILS.items() if name == detail), detail)


def _came(one: ReviewSet) -> Iterator[str]:
    """The details that came to their end at full precision."""
    yield from (_DETAILS[origin] for origin in one.whole)
    if one.approvals is not None and _APPROVALS not in one.seen:
        yield _APPROVALS
    if one.reviewers is not None and _REVIEWERS not in one.seen:
        yield _REVIEWERS


def _read(one: ReviewSet) -> set[str]:
    """The details that need no deferred fetch after this reading."""
    return {*_came(one), *one.kept} - {row.detail for row in one.deferred}


def stored_reviews(
    conn: Connection, repo_id: int, rows: Sequence[MergeRequestRow]
) -> dict[int, StoredReview]:
    """The stored state of each of these merge requests and its review, by number."""
    found: dict[int, StoredReview] = {}
    notes: dict[int, dict[str, dict[str, Any]]] = {row.iid: {} for row in rows}
    with_milestones: set[int] = set()
    for event in conn.execute(_SQL["events_of"], {"repo_id": repo_id, "iids": list(notes)}):
        if event["origin"] == Origin.NOTE:
            notes[event["mr_iid"]][event["source_event_id"]] = event
        else:
            with_milestones.add(event["mr_iid"])
    asked = recordset({"iid": row.iid, "gitlab_id": row.mr_id} for row in rows)
    for one in conn.execute(_SQL["known"], {"repo_id": repo_id, "rows": asked}):
        parts = {part: _DETAILS.get(part, part) for part in one["whole"]}
        found[one["iid"]] = StoredReview(
            read_as_of=one["mr_updated_at"],
            complete=frozenset(parts.values()) - frozenset(one["deferred"]),
            status=one["status"],
            labels=frozenset(one["labels"] or ()),
            milestone=one["milestone"],
            head_sha=one["head_sha"],
            approvers=frozenset(one["approvers"]),
            reviewers=one["reviewers"] or {},
            notes=notes[one["iid"]],
            has_milestone_events=one["iid"] in with_milestones,
        )
    return found


# Columns of a note that GraphQL gives as REST does, and its times, which GraphQL gives in whole seconds.
_SAME = (
    "reviewer_id",
    "reviewer_username",
    "reviewer_name",
    "body",
    "is_system",
    "is_internal",
    "discussion_id",
    "resolvable",
    "resolved",
    "resolved_by_id",
)
_TIMES = ("ts", "updated_at", "resolved_at")


def changed_notes(
    events: Iterable[ReviewEventRow], stored: Mapping[str, Mapping[str, Any]]
) -> tuple[ReviewEventRow, ...]:
    """The notes of GraphQL that are new, or differ from the ``stored`` ones at the precision of a second.
    They keep stored times of the same second, and a stored position with the lines that GraphQL lacks.
    """
    found: list[ReviewEventRow] = []
    for row in events:
        old = stored.get(row.event_id)
        if old is None:
            found.append(row)
            continue
        new = REVIEW_EVENTS.values(row)
        is_same = all(comparable(new[name]) == old[name] for name in _SAME)
        is_same = is_same and all(_second(new[name]) == _second(old[name]) for name in _TIMES)
        if is_same and (old["duplicate_of"] is not None or row.kind == old["event_type"]):
            continue
        changes: dict[str, Any] = {}
        if _second(row.occurred_at) == _second(old["ts"]):
            changes["occurred_at"] = old["ts"]
        if _second(row.resolved_at) == _second(old["resolved_at"]):
            changes["resolved_at"] = old["resolved_at"]
        if row.position is not None and old["position"] is not None:
            changes["position"] = old["position"]
        found.append(replace(row, **changes))
    return tuple(found)


def _second(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(microsecond=0)


def reviews_as_of(
    conn: Connection, repo_id: int, rows: Sequence[MergeRequestRow], refused: Collection[str] = ()
) -> dict[int, datetime]:
    """By merge request, the ``updated_at`` as of which its review need not be read. All kinds of events and
    the approvals were read to their end or are planned. No fetch failed, and its head was that of the row
    already. Details that the server refuses for every merge request are not needed.
    """
    missing = {part_of(detail) for detail in refused}
    needed = [part for part in (*map(str, Origin), _APPROVALS) if part not in missing]
    asked = recordset({"iid": r.iid, "head_sha": r.head_sha, "gitlab_id": r.mr_id} for r in rows)
    found = conn.execute(_SQL["as_of"], {"repo_id": repo_id, "rows": asked, "needed": needed})
    return {row["mr_iid"]: row["mr_updated_at"] for row in found}


def stale_reviews(conn: Connection, repo_id: int, older_than: timedelta, limit: int) -> list[int]:
    """At most ``limit`` open merge requests whose review was not read for ``older_than``, the longest
    first."""
    params = {"repo_id": repo_id, "older_than": older_than, "limit": limit}
    return [row["iid"] for row in conn.execute(_SQL["stale"], params)]


def any_internal(conn: Connection, repo_id: int, iids: Collection[int]) -> bool:
    """True if one of these merge requests has a stored internal note, which not every token sees."""
    params = {"repo_id": repo_id, "iids": list(iids)}
    return conn.execute(_SQL["any_internal"], params).fetchone() is not None


def hidden_before(conn: Connection, repo_id: int, limit: int) -> list[int]:
    """At most ``limit`` merge requests with internal notes that the token of the last reading could not
    see."""
    return [row["iid"] for row in conn.execute(_SQL["hidden_before"], {"repo_id": repo_id, "limit": limit})]


def postpone(
    conn: Connection, repo_id: int, batch_id: int, iids: Sequence[int], *, sees_internal: bool = False
) -> None:
    """These were asked for and did not come: the scan comes back to them after all others. A token that
    ``sees_internal`` notes does not ask for them again because of these."""
    conn.execute(
        _SQL["asked"],
        {"repo_id": repo_id, "batch_id": batch_id, "iids": list(iids), "sees_internal": sees_internal},
    )


def count_events(conn: Connection, repo_id: int) -> int:
    """How many review events of the repository are stored that the source showed at the latest reading."""
    return int(only_value(conn.execute(_SQL["count_events"], {"repo_id": repo_id})))
