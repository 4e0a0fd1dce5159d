"""Refs of GitLab: where every branch and tag leads, what became of them, and what they reach.

Belongs here: ``scm.refs``, ``scm.ref_events`` and the queries that follow parents through
``scm.git_commits``. Runs inside the caller's transaction, after the lease and the claim were checked. Commits
themselves and the walks that read them are in :mod:`sync_pipeline.facts.commits`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from sync_pipeline.core.gitlab_rows import RefKind, RefRow
from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.values import flags, payload, recordset, storable
from sync_pipeline.facts import quarantine

_SQL = queries("refs")


_ROWS_AT_ONCE = 500

NO_HISTORY = "no_history"
"""Reason in quarantine of a ref whose tip the server names and does not give the history of."""


@dataclass(frozen=True, slots=True)
class StoredRef:
    """A row of ``scm.refs``. ``covered_tip`` is the latest tip of it whose whole history is stored."""

    kind: RefKind
    name: str
    tip: str
    target: str
    covered_tip: str | None
    is_default: bool

    @property
    def full_name(self) -> str:
        """The full name in git, which means nothing else."""
        return f"refs/{'heads' if self.kind is RefKind.BRANCH else 'tags'}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """A ref whose columns ``fields`` a listing shows otherwise than they are stored."""

    old_tip: str
    new_tip: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences of a listing from the stored refs, by kind and name. ``new`` refs, refs that exist again
    (``lost``), refs that are ``gone`` from the listing, and ``changed`` ones.
    """

    new: tuple[tuple[RefKind, str], ...]
    lost: tuple[tuple[RefKind, str], ...]
    gone: tuple[tuple[RefKind, str], ...]
    changed: dict[tuple[RefKind, str], Change]

    @property
    def none(self) -> bool:
        """True if the listing is what is stored."""
        return not (self.new or self.lost or self.gone or self.changed)


def changes(conn: Connection, repo_id: int, rows: Sequence[RefRow]) -> Changes:
    """A complete listing beside the stored refs."""
    known = {
        (row["kind"], row["name"]): row
        for row in conn.execute(_SQL["known"], {"repo_id": repo_id})
        if not row["deleted"]
    }
    listed = {(column["kind"], column["name"]): column for column in map(_columns, rows)}
    changed: dict[tuple[RefKind, str], Change] = {}
    for (kind, name), column in listed.items():
        before = known.get((kind, name))
        if before is None:
            continue
        fields = sorted(key for key in before.keys() & column.keys() if before[key] != column[key])
        if fields:
            changed[RefKind(kind), name] = Change(before["tip"], column["tip"], tuple(fields))
    unknown = sorted(listed.keys() - known.keys())
    existing_names = (
        {(row["kind"], row["name"]) for row in conn.execute(_SQL["existing_names"], {"repo_id": repo_id})}
        if unknown
        else ()
    )
    return Changes(
        tuple((RefKind(kind), name) for kind, name in unknown if (kind, name) not in existing_names),
        tuple((RefKind(kind), name) for kind, name in unknown if (kind, name) in existing_names),
        tuple((RefKind(kind), name) for kind, name in sorted(known.keys() - listed.keys())),
        changed,
    )


def not_stored(conn: Connection, repo_id: int, shas: Sequence[str]) -> set[str]:
    """Those of ``shas`` that are not stored, or only as tombstones."""
    rows = conn.execute(_SQL["not_stored"], {"repo_id": repo_id, "shas": list(shas)})
    return {row["sha"] for row in rows}


def stored_refs(conn: Connection, repo_id: int) -> list[StoredRef]:
    """The branches and tags of the latest listing by kind and name."""
    rows = conn.execute(_SQL["stored"], {"repo_id": repo_id})
    return [StoredRef(**(row | {"kind": RefKind(row["kind"])})) for row in rows]


def record_listing(
    conn: Connection,
    *,
    repo_id: int,
    batch_id: int,
    rows: Sequence[RefRow],
    observed_at: datetime | None,
    partial: Collection[RefKind] = (),
    kept: Collection[tuple[RefKind, str]] = (),
) -> list[str]:
    """Write a complete listing: the refs that changed, and events of those that were created or deleted. Of
    the kinds in ``partial`` none is deleted, nor are those that are ``kept``. Moves
    wait for :func:`record_move`.
    ``observed_at`` is the server's clock at the listing. Returns the last tips of those that are gone."""
    known = {(row["kind"], row["name"]): row for row in conn.execute(_SQL["known"], {"repo_id": repo_id})}
    listed = {(column["kind"], column["name"]): column for column in map(_columns, rows)}
    live = {key: before for key, before in known.items() if not before["deleted"]}
    changed = [
        column
        for key, column in listed.items()
        if (before := live.get(key)) is None
        or any(before[name] != column[name] for name in before.keys() & column.keys())
    ]
    created = [_event(*key, None, column["tip"]) for key, column in listed.items() if key not in live]
    deleted = [
        _event(*key, before["tip"], None)
        for key, before in live.items()
        if key not in listed and key[0] not in partial and key not in kept
    ]
    params: dict[str, Any] = {"repo_id": repo_id, "batch_id": batch_id, "observed_at": observed_at}
    _send(conn, _SQL["write"], params, changed)
    _send(conn, _SQL["delete"], params, deleted)
    _send(conn, _SQL["events"], params, [*created, *deleted])
    return [event["old_tip"] for event in deleted]


def quarantined_keys(conn: Connection, repo_id: int, *, without_history: bool = False) -> set[str]:
    """The names in quarantine, ``<kind>:<name>``, of refs that earlier listings could not store; or of those
    that are stored ``without_history``."""
    params = {"repo_id": repo_id, "no_history": NO_HISTORY, "walked": without_history}
    return {row["natural_key"] for row in conn.execute(_SQL["quarantined_keys"], params)}


def resolve(conn: Connection, repo_id: int, keys: Iterable[str]) -> None:
    """Refs that were set aside and are no longer listed, or could be stored, leave quarantine."""
    quarantine.settle(conn, repo_id, JobType.COMMITS, keys)


def _columns(row: RefRow) -> dict[str, Any]:
    raw, escaped = payload(row.raw)
    return {
        "kind": str(row.kind),
        "name": storable(row.name),
        "tip": row.tip,
        "target": row.target,
        "is_default": row.is_default,
        "is_protected": row.is_protected,
        "tagged_at": row.created_at,
        "message": storable(row.message),
        "flags": flags(row.flags, escaped=escaped),
        "raw": raw,
    }


def _event(kind: str, name: str, old_tip: str | None, new_tip: str | None) -> dict[str, Any]:
    event = "created" if old_tip is None else "deleted"
    return {"kind": kind, "name": name, "event": event, "old_tip": old_tip, "new_tip": new_tip}


def _send(conn: Connection, query: str, params: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    waiting = iter(rows)
    while some := list(islice(waiting, _ROWS_AT_ONCE)):
        conn.execute(query, params | {"rows": recordset(some)})


def unrecorded_moves(conn: Connection, repo_id: int) -> list[tuple[RefKind, str, str, str]]:
    """Kind, name, old and new tip of every move of which it is not known whether it was forced. Where a ref
    moved more than once since it was last judged, that is one move."""
    rows = conn.execute(_SQL["unrecorded_moves"], {"repo_id": repo_id})
    return [(RefKind(row["kind"]), row["name"], row["judged_tip"], row["tip"]) for row in rows]


def record_move(
    conn: Connection,
    *,
    repo_id: int,
    batch_id: int,
    kind: RefKind,
    name: str,
    old_tip: str,
    new_tip: str,
    forced: bool,
    observed_at: datetime | None,
) -> None:
    """Write the event of a move, now that it is known whether the old tip is reachable from the new one
    (``forced``: it is not). A move that was judged already is not written again."""
    params = {
        "repo_id": repo_id,
        "batch_id": batch_id,
        "kind": str(kind),
        "name": storable(name),
        "old_tip": old_tip,
        "new_tip": new_tip,
        "event": "forced" if forced else "moved",
        "observed_at": observed_at,
    }
    conn.execute(_SQL["record_move"], params)


def cover(conn: Connection, repo_id: int, tips: Iterable[str]) -> None:
    """The whole history of each of ``tips`` is stored: every ref that leads there is covered."""
    conn.execute(_SQL["cover"], {"repo_id": repo_id, "tips": list(tips)})


def is_ancestor(conn: Connection, repo_id: int, ancestor: str, descendant: str) -> bool:
    """Whether ``ancestor`` is reachable from ``descendant``, or is it, as far as commits are stored."""
    params = {"repo_id": repo_id, "ancestor": ancestor, "descendant": descendant}
    return conn.execute(_SQL["is_ancestor"], params).fetchone() is not None


def any_unreachable(conn: Connection, repo_id: int, tips: Collection[str]) -> bool:
    """True if one of these commits is flagged as reached by no ref."""
    params = {"repo_id": repo_id, "tips": list(tips)}
    return conn.execute(_SQL["any_unreachable"], params).fetchone() is not None


def reached(conn: Connection, repo_id: int, shas: Iterable[str]) -> set[str]:
    """Those of ``shas`` that some branch or tag reaches, as far as commits are stored."""
    rows = conn.execute(_SQL["reached"], {"repo_id": repo_id, "shas": list(shas)})
    return {row["sha"] for row in rows}


def mark_unreachable(conn: Connection, repo_id: int) -> int:
    """Flag the commits that no branch or tag reaches any more, and clear the flag of those that one reaches
    again. Returns the number of changes. Only correct while the whole history of every ref is stored.

    Measured with 200,000 commits in one line: 3 s, and 1.2 s more for each 10,000 flags that change.
    """
    return conn.execute(_SQL["mark"], {"repo_id": repo_id}).rowcount


def missing(conn: Connection, repo_id: int, limit: int) -> list[str]:
    """At most ``limit`` commits that a child or a covered ref names, but that are missing or without parents.
    Behind such a commit it is unknown which commits are reachable. Only correct while the whole history of
    every ref is stored.
    """
    params = {"repo_id": repo_id, "limit": limit}
    queries = (_SQL["missing_tips"], _SQL["missing_parents"], _SQL["unknown_parents"])
    found = {row["sha"] for query in queries for row in conn.execute(query, params)}
    return sorted(found)[:limit]


def nameless(conn: Connection, repo_id: int, reason: str) -> list[str]:
    """The keys in quarantine of commits without a name that were set aside for ``reason``."""
    params = {"repo_id": repo_id, "reason": reason}
    return [row["natural_key"] for row in conn.execute(_SQL["unnamed"], params)]
