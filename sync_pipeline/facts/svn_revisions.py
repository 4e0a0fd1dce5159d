"""SVN facts: storing a batch of revisions.

Belongs here: staging by COPY, the upsert, and the counts, which come from the database. The more detailed
copy wins, then the newer one. An unchanged revision (same content hash) causes no write. Runs inside the
caller's fenced transaction.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from psycopg import Copy
from psycopg.types.json import Jsonb

from sync_pipeline.core.model import Counts, PathChange, RevisionRow, RevisionWindow, Visibility
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row, only_value
from sync_pipeline.database.values import recordset, storable
from sync_pipeline.facts.tables import Column, Table

_SQL = queries("svn_revisions")


# Characters that COPY's text format, or PostgreSQL text itself, cannot store unchanged.
_SPECIAL = re.compile("[\\\\\t\n\r\x00\ud800-\udfff]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NULL = "\\N"
_BOOLEANS = {True: "t", False: "f", None: _NULL}


_VISIBILITY_RANK = {Visibility.HIDDEN: 0, Visibility.PARTIAL: 1, Visibility.FULL: 2}
_RANKS = [str(one) for one in sorted(_VISIBILITY_RANK, key=_VISIBILITY_RANK.__getitem__)]

Check = Callable[[Sequence[dict[str, Any]]], None]
"""Is given the stored revisions that differ, as :func:`changes` returns them, and raises to refuse them."""


def detail_level(row: RevisionRow) -> int:
    """How much of the revision was read. Visibility counts first, then details that could not be read
    (flags ending in ``_unread``), or not for sure (``_unsure``). A copy with less than what is stored
    changes nothing."""
    return detail_level_of(row.visibility, row.flags)


def detail_level_of(visibility: Visibility, flags: Collection[str]) -> int:
    """As :func:`detail_level`."""
    unread = sum(flag.endswith(("_unread", "_unsure")) for flag in flags) if flags else 0
    return _VISIBILITY_RANK[visibility] * 4 + 3 - min(unread, 3)


REVISIONS = Table(
    "scm.svn_revisions",
    (
        Column("rev_num", "bigint", attrgetter("rev_num")),
        Column("author_raw", "text", lambda row: storable(row.author_raw)),
        Column("ts", "timestamptz", attrgetter("ts")),
        Column("message", "text", lambda row: storable(row.message)),
        Column("visibility", "text", lambda row: str(row.visibility)),
        Column("detail_level", "smallint", detail_level),
    ),
    key=("rev_num",),
    raw="meta_json",
    given=(("path_count", "integer"),),
    hashes=("content_hash", "paths_hash"),
)
# In the order of the copied columns.
_VALUES = tuple(column.value for column in REVISIONS.columns)

_STAGE = REVISIONS.sql("""
CREATE TEMP TABLE IF NOT EXISTS stage_revisions ({types}, sure_richness smallint) ON COMMIT DELETE ROWS
""")
_COPY = REVISIONS.sql("COPY stage_revisions ({columns}, sure_richness) FROM STDIN")

# More detail wins, then the later observation. Equal content changes nothing.
_UPSERT = REVISIONS.sql("""
WITH written AS (
    INSERT INTO {table} AS r (repo_id, {columns}, batch_id)
    SELECT %(repo_id)s, {columns}, %(batch_id)s
      FROM stage_revisions
    ON CONFLICT (repo_id, {key_columns}) DO UPDATE
       SET {excluded}, path_count = EXCLUDED.path_count, meta_json = EXCLUDED.meta_json,
           content_hash = EXCLUDED.content_hash, paths_hash = EXCLUDED.paths_hash,
           batch_id = EXCLUDED.batch_id, version = r.version + 1, deleted_at = NULL, updated_at = now()
     WHERE (r.content_hash <> EXCLUDED.content_hash OR r.deleted_at IS NOT NULL)
       AND EXCLUDED.detail_level >= r.detail_level AND r.batch_id < EXCLUDED.batch_id
    RETURNING rev_num, (xmax = 0) AS inserted
)
INSERT INTO stage_written SELECT rev_num, inserted FROM written
""")


def _field(text: str | None) -> str:
    """A text as a field of COPY's text format, with a visible mark for what PostgreSQL text cannot hold."""
    if text is None:
        return _NULL
    if _SPECIAL.search(text) is None:
        return text
    clean = storable(text) or ""
    return clean.translate(_ESCAPES)


def _path_lines(changes: Iterable[PathChange]) -> Iterator[str]:
    # Written by hand because it is the hottest loop: psycopg's row writer takes four times as long, and the
    # same line serves the hash.
    for change in changes:
        yield (
            f"{_field(change.path)}\t{change.action}\t{change.kind or _NULL}\t"
            f"{_field(change.copyfrom_path)}\t"
            f"{_NULL if change.copyfrom_rev is None else change.copyfrom_rev}\t"
            f"{_BOOLEANS[change.text_mods]}\t{_BOOLEANS[change.prop_mods]}\n"
        )


def paths_hash(changes: Iterable[PathChange]) -> bytes:
    """SHA-256 over the changed paths of a revision in the order of the answer (svn sorts them)."""
    return counted_paths(changes)[1]


def counted_paths(changes: Iterable[PathChange]) -> tuple[int, bytes]:
    """How many there are, and the hash over them as :func:`paths_hash`; ``changes`` is consumed once."""
    digest = hashlib.sha256()
    number = 0
    for number, line in enumerate(_path_lines(changes), 1):  # noqa: B007
        digest.update(line.encode())
    return number, digest.digest()


def revision_digest(row: RevisionRow, paths_hash: bytes) -> bytes:
    """SHA-256 over everything that is stored of a revision. Hashes values, never the answer's bytes: svn
    changes the order of attributes from call to call."""
    digest = hashlib.sha256(paths_hash)
    moment = row.ts.isoformat() if row.ts else None
    for part in (row.author_raw, moment, row.message, str(row.visibility)):
        digest.update(b"\0-" if part is None else b"\0+" + part.encode("utf-8", "surrogatepass"))
    for flag in sorted(row.flags):
        digest.update(b"\0f" + flag.encode())
    for name in sorted(row.revprops):
        digest.update(b"\0p" + f"{name}\0{row.revprops[name]}".encode("utf-8", "surrogatepass"))
    for name in sorted(row.raw):
        digest.update(b"\0r" + name.encode() + b"\0" + row.raw[name])
    return digest.digest()


def store_revisions(
    conn: Connection,
    *,
    repo_id: int,
    batch_id: int,
    rows: Iterable[RevisionRow],
    window: RevisionWindow | None = None,
    check: Check = lambda changed: None,
) -> Counts:
    """Write revisions and their changed paths; returns the changes, counted by the database.

    ``rows`` is consumed while it is copied, so memory does not grow with the number of paths. ``check`` is
    called before a stored revision is overwritten. An exception of either ends the transaction, and nothing
    is written.

    All ``rows`` are in ``window``. If nothing of it is stored yet, the paths are copied to their table
    directly. Measured: 5.1 s for 20,000 revisions, else 6.6 s.
    """
    params = {"repo_id": repo_id, "batch_id": batch_id}
    fresh = False
    _create_stages(conn)
    if window is not None:
        found = conn.execute(
            _SQL["any_in_window"], params | {"first": window.first, "end": window.end}
        ).fetchone()
        fresh = found is not None and not found["any"]
    staged = _stage(conn, rows, repo_id if fresh else None)
    if fresh:
        inserted = conn.execute(_UPSERT, params).rowcount
        if inserted != staged:
            raise RuntimeError(f"{staged} new revisions were sent, {inserted} were stored")
        conn.execute(_SQL["resolve"], params)
        return Counts(read=staged, inserted=inserted)
    check(_changes(conn, repo_id))
    if conn.execute(_SQL["archive"], params).rowcount:
        conn.execute(_SQL["archive_paths"], params)
    changed = conn.execute(_UPSERT, params).rowcount
    counts: dict[str, int] = only_row(conn.execute(_SQL["count"], params))
    if changed:
        conn.execute(_SQL["drop_paths"], params)
        conn.execute(_SQL["insert_paths"], params)
    conn.execute(_SQL["hidden_since"], params | {"ranks": _RANKS})
    conn.execute(_SQL["resolve"], params)
    if counts["regressed"]:
        counts["regressed"] -= only_value(conn.execute(_SQL["only_in_doubt"], params))
    return Counts(
        **counts,
        unchanged=counts["read"] - counts["inserted"] - counts["updated"] - counts["regressed"],
    )


def changes(conn: Connection, repo_id: int, rows: Iterable[RevisionRow]) -> list[dict[str, Any]]:
    """The stored revisions that differ from ``rows`` although all of both can be seen: rev_num, paths_differ,
    message_differs, ts, stored_ts, first_seen_at, seen_at. Stores nothing."""
    with conn.transaction():
        _create_stages(conn)
        _stage(conn, rows, None)
        return _changes(conn, repo_id)


def _create_stages(conn: Connection) -> None:
    conn.execute(_SQL["stage"])
    conn.execute(_STAGE)


def _changes(conn: Connection, repo_id: int) -> list[dict[str, Any]]:
    return conn.execute(_SQL["changes"], {"repo_id": repo_id}).fetchall()


def _stage(conn: Connection, rows: Iterable[RevisionRow], fresh_repo_id: int | None) -> int:
    """Copy ``rows`` to the staging tables; returns their number. Paths go to their own table if nothing of
    the repository is stored in the window.
    """
    lead = "" if fresh_repo_id is None else f"{fresh_repo_id}\t"
    staged: list[tuple[Any, ...]] = []
    with conn.cursor() as cursor:
        with cursor.copy(_SQL["copy_paths"] if fresh_repo_id is None else _SQL["copy_new_paths"]) as copy:
            for row in rows:
                staged.append(_stage_paths(copy, row, lead))
        with cursor.copy(_COPY) as copy:
            for record in staged:
                copy.write_row(record)
    return len(staged)


def _stage_paths(copy: Copy, row: RevisionRow, lead: str) -> tuple[Any, ...]:
    """Write the paths of a revision, each line after ``lead``; returns the record of the revision itself."""
    digest = hashlib.sha256()
    number = 0
    lead = f"{lead}{row.rev_num}\t"
    lines = _path_lines(row.paths)
    while block := list(islice(lines, 1000)):
        digest.update("".join(block).encode())
        copy.write("".join([f"{lead}{n}\t{line}" for n, line in enumerate(block, number + 1)]))
        number += len(block)
    paths_hash = digest.digest()
    sure = detail_level_of(row.visibility, [flag for flag in row.flags if not flag.endswith("_unsure")])
    return (
        number,
        *[value(row) for value in _VALUES],
        _flags(row),
        Jsonb(_meta(row)),
        revision_digest(row, paths_hash),
        paths_hash,
        sure,
    )


def columns(row: RevisionRow, path_count: int) -> dict[str, Any]:
    """The columns of ``scm.svn_revisions`` that ``row``, with so many changed paths, says."""
    return REVISIONS.values(row) | {"path_count": path_count, "flags": _flags(row), "meta_json": _meta(row)}


def _flags(row: RevisionRow) -> list[str]:
    texts = (row.author_raw, row.message, *row.revprops, *row.revprops.values())
    has_nul = any(text is not None and "\0" in text for text in texts)
    return sorted({*row.flags, *(("nul",) if has_nul else ())})


def _meta(row: RevisionRow) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if row.revprops:
        meta["revprops"] = {storable(name): storable(value) for name, value in row.revprops.items()}
    if row.raw:
        meta["raw"] = {name: b64encode(value).decode() for name, value in row.raw.items()}
    return meta


def invalidate(conn: Connection, repo_id: int, rev_nums: Iterable[int]) -> None:
    """Let the next copies of these revisions, in this transaction, replace the stored ones, whatever their
    hash. A copy that shows less than is stored still does not.
    """
    params = {"repo_id": repo_id, "rev_nums": list(rev_nums)}
    rows = [
        {
            "rev_num": row["rev_num"],
            "detail_level": detail_level_of(Visibility(row["visibility"]), row["flags"]),
        }
        for row in conn.execute(_SQL["detail_levels"], params)
    ]
    conn.execute(_SQL["invalidate"], params | {"rows": recordset(rows)})


def fingerprints(conn: Connection, repo_id: int, head: int, limit: int) -> list[dict[str, Any]]:
    """The newest ``limit`` stored revisions up to ``head``: rev_num, ts, paths_hash, visibility."""
    return conn.execute(_SQL["fingerprints"], {"repo_id": repo_id, "head": head, "limit": limit}).fetchall()


def is_whole(conn: Connection, repo_id: int, rev_num: int) -> bool:
    """True if all of the revision was seen when it was stored, and its stored paths are those of then."""
    params = {"repo_id": repo_id, "rev_num": rev_num, "whole": detail_level_of(Visibility.FULL, ())}
    row = conn.execute(_SQL["whole"], params).fetchone()
    if row is None:
        return False
    return paths_hash(PathChange(**path) for path in conn.execute(_SQL["paths"], params)) == bytes(
        row["paths_hash"]
    )


def count_revisions(conn: Connection, repo_id: int) -> int:
    """How many revisions of the repository are stored, without tombstones."""
    return int(only_value(conn.execute(_SQL["count_revisions"], {"repo_id": repo_id})))
