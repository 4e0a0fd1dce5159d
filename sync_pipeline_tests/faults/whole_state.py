"""Everything that a database knows about the source, in a form that two databases can be compared by.

Belongs here: which tables and columns count. Numbers that the database gave away and moments of its own clock
do not: two runs never agree on them.
"""

from __future__ import annotations

from typing import Any

from psycopg import sql

from sync_pipeline.database.pool import Connection

# By table: the columns that do not count. Every table of facts, and what is claimed of them.
TABLES: dict[str, tuple[str, ...]] = {
    "svn_revisions": ("svn_rev_id", "batch_id", "first_seen_at", "updated_at"),
    "svn_changed_paths": (),
    "svn_revision_versions": ("batch_id", "seen_from", "seen_until"),
    "svn_path_versions": (),
    "git_commits": ("git_commit_id", "batch_id", "walk_id", "parents_asked_at", "first_seen_at", "stored_at"),
    "refs": ("batch_id", "first_seen_at", "moved_at"),
    "ref_events": ("event_id", "batch_id", "created_at", "observed_at"),
    "mrs": ("mr_id", "batch_id", "first_seen_at", "stored_at", "read_at", "versions_read_at"),
    # GraphQL, REST and the stored commits have the same commit in other shapes.
    "mr_commits": ("raw",),
    "mr_versions": (),
    "mr_reviews": ("batch_id", "read_at"),
    "mr_approvals": ("approval_id", "batch_id", "seen_from"),
    "mr_reviewers": ("reviewer_id", "batch_id", "seen_from"),
    "review_events": ("id", "mr_id", "batch_id", "first_seen_at", "stored_at"),
    "quarantine": ("quarantine_id", "batch_id", "created_at", "last_seen_at"),
    "obligations": ("deferred_fetch_id", "not_before", "created_at"),
    # A visit that did not ask for the project says of its own time that activity was read up to it.
    "sync_watermarks": (
        "verified_at",
        "swept_at",
        "access_since",
        "visited_at",
        "updated_at",
        "activity_at",
    ),
}

# Moments of the database's clock that say by being there that something happened.
_WHETHER = ("unreachable_since", "deleted_at", "missing_since", "resolved_at", "closed_at")

_ROWS = """
SELECT to_jsonb(t) - %(ignored)s::text[] AS row FROM {} AS t
 ORDER BY (to_jsonb(t) - %(ignored)s::text[])::text
"""


def whole_state(conn: Connection) -> dict[str, list[Any]]:
    """The rows of every table in :data:`TABLES`, in an order of their own."""
    state: dict[str, list[Any]] = {}
    for table, ignored in TABLES.items():
        query = sql.SQL(_ROWS).format(sql.Identifier("scm", table))
        rows = conn.execute(query, {"ignored": list(ignored)}).fetchall()
        state[table] = [_without_moments(row["row"], table) for row in rows]
    return state


def _without_moments(row: dict[str, Any], table: str) -> dict[str, Any]:
    if table == "mrs":  # its moments are those of the source
        return row | {"deleted_at": row["deleted_at"] is not None}
    return row | {name: row[name] is not None for name in _WHETHER if name in row}


def differences(expected: dict[str, list[Any]], found: dict[str, list[Any]]) -> list[str]:
    """What is in one of two states only, a line per row; empty when they are equal."""
    lines = []
    for table, rows in expected.items():
        if rows == found[table]:
            continue
        missing = [row for row in rows if row not in found[table]]
        extra = [row for row in found[table] if row not in rows]
        lines += [f"{table}: {len(rows)} rows expected, {len(found[table])} found"]
        lines += [f"{table}: missing {row}" for row in missing] + [f"{table}: extra {row}" for row in extra]
    return lines
