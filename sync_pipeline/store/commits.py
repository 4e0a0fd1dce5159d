"""Commits of GitLab: how a page of a walk gets into the tables, and which walks are complete.

Belongs here: ``scm.git_commits`` and ``scm.ref_walks``. A commit never changes at its source, so all that a
second copy can bring is what the first one lacked: the numbers of lines, or the parents. Runs inside the
caller's transaction, after the lease and the claim were checked. Where refs lead is
:mod:`sync_pipeline.store.refs`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sync_pipeline.gitlab_rows import CommitRow
from sync_pipeline.model import Counts
from sync_pipeline.store import refs
from sync_pipeline.store.database import Connection
from sync_pipeline.store.raw import ESCAPED, flags, payload, recordset, restored
from sync_pipeline.store.tables import COMMITS

STATS_UNREAD = "stats_unread"
"""Flag of a commit whose numbers of lines are a deferred fetch."""

# Makes a walk, or finds the one that was interrupted. One that is asked for again after its end begins anew.
_BEGIN = """
INSERT INTO scm.ref_walks AS w (repo_id, tip, covered, generation)
VALUES (%(repo_id)s, %(tip)s, %(covered)s, %(generation)s)
ON CONFLICT (repo_id, tip, covered, generation) DO UPDATE
   SET next_page = CASE WHEN w.completed_at IS NULL THEN w.next_page ELSE 1 END,
       tip_read = w.completed_at IS NULL AND w.tip_read,
       completed_at = NULL
RETURNING walk_id, tip, covered, next_page, tip_read
"""

_TURN = """
UPDATE scm.ref_walks SET next_page = %(next_page)s, tip_read = %(tip_read)s WHERE walk_id = %(walk_id)s
"""

_COMPLETE = """
UPDATE scm.ref_walks SET tip_read = TRUE, completed_at = now() WHERE walk_id = %(walk_id)s
"""

# Tips that need no walk: a complete one of this generation went through them.
_COVERED = """
SELECT c.commit_sha
  FROM scm.git_commits AS c
  JOIN scm.ref_walks AS w USING (walk_id)
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(tips)s) AND c.deleted_at IS NULL
   AND w.completed_at IS NOT NULL AND w.generation = %(generation)s
"""

# The upsert. A copy without numbers of lines, or without parents, changes nothing where they are stored,
# except that it proves that a commit thought gone exists; the same content changes nothing.
_UPSERT = COMMITS.sql("""
INSERT INTO scm.git_commits AS t (repo_id, {columns}, batch_id, walk_id)
SELECT %(repo_id)s, {columns}, %(batch_id)s, %(walk_id)s
  FROM json_to_recordset(%(rows)s) AS s ({types})
 ORDER BY commit_sha
ON CONFLICT (repo_id, commit_sha) DO UPDATE
   SET {excluded},
       parents = coalesce(EXCLUDED.parents, t.parents), parents_asked_at = NULL,
       additions = coalesce(EXCLUDED.additions, t.additions),
       deletions = coalesce(EXCLUDED.deletions, t.deletions),
       raw = CASE WHEN t.content_hash = EXCLUDED.content_hash THEN t.raw ELSE EXCLUDED.raw END,
       content_hash = EXCLUDED.content_hash, batch_id = EXCLUDED.batch_id, version = t.version + 1,
       deleted_at = NULL, stored_at = now()
 WHERE t.batch_id <= EXCLUDED.batch_id
   AND (t.deleted_at IS NOT NULL
        OR (t.parents IS NULL AND EXCLUDED.parents IS NOT NULL)
        OR (t.content_hash <> EXCLUDED.content_hash
            AND (EXCLUDED.parents IS NOT NULL OR t.parents IS NULL)
            AND (EXCLUDED.additions IS NOT NULL OR t.additions IS NULL)
            AND (EXCLUDED.deletions IS NOT NULL OR t.deletions IS NULL)))
RETURNING commit_sha, (xmax = 0) AS inserted
""")

# Copies that would have lost the numbers of lines or the parents: stored, not written, and without them.
_COUNT_POORER = """
SELECT count(*) AS poorer
  FROM scm.git_commits
 WHERE repo_id = %(repo_id)s
   AND ((commit_sha = ANY (%(without_stats)s) AND (additions IS NOT NULL OR deletions IS NOT NULL))
        OR (commit_sha = ANY (%(without_parents)s) AND parents IS NOT NULL))
"""

# Commits that came without a walk prove nothing about refs: those that no branch and no tag reaches are
# flagged.
_FLAG_UNREACHED = """
UPDATE scm.git_commits SET unreachable_since = now()
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(unreached)s)
"""

# Which of some commits have a row, be it a tombstone.
_STORED = """
SELECT commit_sha FROM scm.git_commits WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)
"""

# A walk takes over what only walks have stored that prove nothing (any more): by date, interrupted, of an
# older generation. This is bookkeeping and no new version.
_TAKE_OVER = """
UPDATE scm.git_commits AS c SET walk_id = w.walk_id
  FROM scm.ref_walks AS w
 WHERE w.walk_id = %(walk_id)s AND c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s)
   AND c.walk_id IS DISTINCT FROM w.walk_id
   AND NOT EXISTS (SELECT FROM scm.ref_walks AS o
                    WHERE o.walk_id = c.walk_id AND o.completed_at IS NOT NULL
                      AND o.generation >= w.generation)
"""

# A row that could be stored after all leaves quarantine; numbers of lines and parents that are stored are no
# longer owed.
_RESOLVE = """
WITH settled AS (
    UPDATE scm.obligations AS o SET resolved_at = now()
      FROM scm.git_commits AS c
     WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s)
       AND o.repo_id = c.repo_id AND o.job_type = 'commits' AND o.resolved_at IS NULL
       AND o.natural_key = c.commit_sha
       AND ((o.detail = 'stats' AND c.additions IS NOT NULL)
            OR (o.detail = 'parents' AND c.parents IS NOT NULL))
)
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL
   AND natural_key = ANY (%(shas)s)
"""

# Before copies are stored that win over what is there: nothing that is kept about these is relied on.
_INVALIDATE = """
UPDATE scm.git_commits SET content_hash = '', batch_id = 0
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)
"""

# Commits that merge requests list and that have no row: squashed, or of a branch that was deleted before the
# first visit. Commits in quarantine were tried already.
_OF_MERGE_REQUESTS = """
SELECT DISTINCT ON (m.commit_sha) m.commit_sha, m.flags, m.raw
  FROM scm.mr_commits AS m
 WHERE m.repo_id = %(repo_id)s
   AND NOT EXISTS (SELECT FROM scm.git_commits AS c
                    WHERE c.repo_id = m.repo_id AND c.commit_sha = m.commit_sha)
   AND NOT EXISTS (SELECT FROM scm.quarantine AS q
                    WHERE q.repo_id = m.repo_id AND q.job_type = 'commits' AND q.resolved_at IS NULL
                      AND q.natural_key = m.commit_sha)
 ORDER BY m.commit_sha, m.mr_iid DESC
 LIMIT %(limit)s
"""

# Commits whose parents are to be read: not asked for yet, or a while ago. Commits with a deferred fetch are
# retried through it.
_WITHOUT_PARENTS = """
SELECT c.commit_sha FROM scm.git_commits AS c
 WHERE c.repo_id = %(repo_id)s AND c.parents IS NULL AND c.deleted_at IS NULL
   AND (c.parents_asked_at IS NULL OR c.parents_asked_at < now() - %(again)s)
   AND NOT EXISTS (SELECT FROM scm.obligations AS o
                    WHERE o.repo_id = c.repo_id AND o.job_type = 'commits' AND o.resolved_at IS NULL
                      AND o.natural_key = c.commit_sha AND o.detail = 'parents')
 ORDER BY c.parents_asked_at NULLS FIRST, c.commit_sha
 LIMIT %(limit)s
"""

# The server does not have these commits: their parents are no deferred fetch, and are requested later.
_PARENTS_ASKED = """
WITH settled AS (
    UPDATE scm.obligations SET resolved_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL
       AND natural_key = ANY (%(shas)s) AND detail = 'parents'
)
UPDATE scm.git_commits SET parents_asked_at = now()
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s) AND parents IS NULL
"""

# What is compared with the source's own number.
_COUNT_COMMITS = """
SELECT count(*) AS commits FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND unreachable_since IS NULL
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """A reading of all that ``tip`` reaches and ``covered`` does not (None: to the root), and where it goes
    on: at ``next_page``; ``tip_read`` once a page has held the tip."""

    walk_id: int
    tip: str
    covered: str | None
    next_page: int
    tip_read: bool


def begin_walk(conn: Connection, *, repo_id: int, tip: str, covered: str | None, generation: int) -> Walk:
    """The walk with these ends: the one that was interrupted, or a new one. One that is complete begins
    again at its first page, and proves nothing until it is complete again."""
    params = {"repo_id": repo_id, "tip": tip, "covered": covered, "generation": generation}
    row = conn.execute(_BEGIN, params).fetchone()
    assert row is not None
    return Walk(**row)


def turn_page(conn: Connection, walk_id: int, *, next_page: int, tip_read: bool) -> None:
    """The pages before ``next_page`` are stored."""
    conn.execute(_TURN, {"walk_id": walk_id, "next_page": next_page, "tip_read": tip_read})


def complete_walk(conn: Connection, walk_id: int) -> None:
    """The last page is stored: the whole history of every commit of the walk is."""
    conn.execute(_COMPLETE, {"walk_id": walk_id})


def covered_tips(conn: Connection, repo_id: int, generation: int, tips: Sequence[str]) -> set[str]:
    """Those of ``tips`` whose whole history is stored, as a complete walk of this generation says."""
    params = {"repo_id": repo_id, "generation": generation, "tips": list(tips)}
    return {row["commit_sha"] for row in conn.execute(_COVERED, params)}


def invalidate(conn: Connection, repo_id: int, shas: Sequence[str]) -> None:
    """The copies of these commits that are stored next, in this transaction, win over what is stored,
    whatever was noted of its content."""
    conn.execute(_INVALIDATE, {"repo_id": repo_id, "shas": list(shas)})


def store_commits(
    conn: Connection,
    *,
    repo_id: int,
    batch_id: int,
    rows: Sequence[CommitRow],
    walk_id: int | None = None,
    deferred: Collection[str] = (),
) -> Counts:
    """Write commits; returns what that changed, counted by the database.

    ``walk_id`` is the walk that read them; None where they were read by date or one by one: then new ones
    that no branch and no tag reaches are flagged as unreachable. ``deferred`` are the names of those
    whose numbers of lines are fetched later. A commit that comes twice is one row, the richer copy.
    """
    once: dict[str, CommitRow] = {}
    for row in rows:
        if row.sha not in once or _richness(row) >= _richness(once[row.sha]):
            once[row.sha] = row
    if not once:
        return Counts()
    params: dict[str, Any] = {
        "repo_id": repo_id,
        "batch_id": batch_id,
        "walk_id": walk_id,
        "shas": list(once),
        "rows": recordset(columns(row, deferred) for row in once.values()),
    }
    written = {row["commit_sha"]: row["inserted"] for row in conn.execute(_UPSERT, params)}
    unwritten = [row for sha, row in once.items() if sha not in written]
    without = {
        "without_stats": [row.sha for row in unwritten if not _has_stats(row)],
        "without_parents": [row.sha for row in unwritten if row.parents is None],
    }
    poorer = 0
    if any(without.values()):
        counted = conn.execute(_COUNT_POORER, params | without).fetchone()
        assert counted is not None
        poorer = counted["poorer"]
    if walk_id is not None:
        conn.execute(_TAKE_OVER, params)
    elif inserted_now := [sha for sha, is_new in written.items() if is_new]:
        unreached = set(inserted_now) - refs.reached(conn, repo_id, inserted_now)
        conn.execute(_FLAG_UNREACHED, params | {"unreached": list(unreached)})
    conn.execute(_RESOLVE, params)
    inserted = sum(written.values())
    return Counts(
        read=len(once),
        inserted=inserted,
        updated=len(written) - inserted,
        unchanged=len(once) - len(written) - poorer,
        poorer=poorer,
    )


def _has_stats(row: CommitRow) -> bool:
    return row.additions is not None and row.deletions is not None


def _richness(row: CommitRow) -> tuple[bool, bool]:
    return row.parents is not None, _has_stats(row)


def columns(row: CommitRow, deferred: Collection[str] = ()) -> dict[str, Any]:
    """The columns of ``scm.git_commits`` that ``row`` says, with the hash over them; ``deferred`` as in
    :func:`store_commits`."""
    raw, escaped = payload(row.raw)
    unread = [STATS_UNREAD] if row.sha in deferred and not _has_stats(row) else []
    values = COMMITS.values(row) | {"flags": flags(row.flags, unread, escaped=escaped)}
    return values | {"raw": raw, "content_hash": COMMITS.hash(values)}


def stored(conn: Connection, repo_id: int, shas: Sequence[str]) -> set[str]:
    """Those of ``shas`` that have a row, tombstones among them."""
    rows = conn.execute(_STORED, {"repo_id": repo_id, "shas": list(shas)})
    return {row["commit_sha"] for row in rows}


def of_merge_requests(conn: Connection, repo_id: int, limit: int) -> dict[str, Any]:
    """At most ``limit`` commits that merge requests list and that have no row here: their names with the
    source's objects. While the whole history of every ref is stored, no branch and no tag reaches them."""
    rows = conn.execute(_OF_MERGE_REQUESTS, {"repo_id": repo_id, "limit": limit})
    return {row["commit_sha"]: restored(row["raw"], ESCAPED in row["flags"]) for row in rows}


def without_parents(conn: Connection, repo_id: int, again: timedelta, limit: int) -> list[str]:
    """At most ``limit`` commits whose parents are unknown and were not asked for, or longer than ``again``
    ago."""
    params = {"repo_id": repo_id, "again": again, "limit": limit}
    return [row["commit_sha"] for row in conn.execute(_WITHOUT_PARENTS, params)]


def note_parents_asked(conn: Connection, repo_id: int, shas: Sequence[str]) -> None:
    """The server was asked for these commits and does not have them, so their parents stay unknown."""
    conn.execute(_PARENTS_ASKED, {"repo_id": repo_id, "shas": list(shas)})


def count_commits(conn: Connection, repo_id: int) -> int:
    """How many stored commits a branch or tag of the repository reaches, without tombstones."""
    row = conn.execute(_COUNT_COMMITS, {"repo_id": repo_id}).fetchone()
    assert row is not None
    return int(row["commits"])
