"""What a listing of branches and tags changes, how moves are judged, and what refs reach."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from sync_pipeline.core.gitlab_rows import RefKind, RefRow
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import commits, refs
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_tests.facts.gitlab_facts import START, commit, later, project, ref, sha

B, T = RefKind.BRANCH, RefKind.TAG
_batches = count(1)


def record(conn: Connection, repo: int, *rows: RefRow) -> list[str]:
    with conn.transaction():
        return refs.record_listing(conn, repo_id=repo, batch_id=next(_batches), rows=rows, observed_at=START)


def record_move(conn: Connection, repo: int, name: str, old: str, new: str, *, forced: bool) -> None:
    refs.record_move(
        conn,
        repo_id=repo,
        batch_id=next(_batches),
        kind=B,
        name=name,
        old_tip=sha(old),
        new_tip=sha(new),
        forced=forced,
        observed_at=START,
    )


def events(conn: Connection) -> list[tuple[Any, ...]]:
    query = "SELECT event, name, old_tip, new_tip FROM scm.ref_events ORDER BY event_id"
    return [tuple(row.values()) for row in conn.execute(query)]


def tips(conn: Connection, repo: int) -> dict[str, str]:
    return {one.name: one.tip for one in refs.stored_refs(conn, repo)}


def test_a_listing_creates_moves_and_deletes_and_an_equal_one_writes_nothing(database: Database) -> None:
    tag = ref("v1", "a", T, target=sha("tag"), created_at=later(5), message="One\0", raw={"message": "One\0"})
    with database.connection() as conn:
        repo, other = project(conn), project(conn, 43)
        record(conn, other, ref("main", "z"))
        assert record(conn, repo, ref("main", "a"), ref("v1", "a"), tag) == []
        assert sorted(events(conn)[1:]) == [
            ("created", "main", None, sha("a")),
            ("created", "v1", None, sha("a")),
            ("created", "v1", None, sha("a")),
        ]
        query = "SELECT *, xmin::text FROM scm.refs ORDER BY repo_id, kind, name"
        before = conn.execute(query).fetchall()
        assert before[2]["flags"] == ["escaped"]
        assert record(conn, repo, ref("main", "a", raw={"merged": True}), ref("v1", "a"), tag) == []
        assert conn.execute(query).fetchall() == before
        assert len(events(conn)) == 4

        assert record(conn, repo, ref("main", "b"), replace(tag, message="Two")) == [sha("a")]
        assert refs.unrecorded_moves(conn, repo) == [(B, "main", sha("a"), sha("b"))]
        written = [row["name"] for row in conn.execute(query) if row not in before]
        assert written == ["main", "v1", "v1"]
        assert tips(conn, repo) == {"main": sha("b"), "v1": sha("a")}
        assert tips(conn, other) == {"main": sha("z")}
        assert [row["kind"] for row in conn.execute(query) if row["deleted_at"] is not None] == ["branch"]
        assert events(conn)[4:] == [("deleted", "v1", sha("a"), None)]


def test_only_a_new_tip_is_a_move(database: Database) -> None:
    moved_at = "SELECT moved_at FROM scm.refs"
    with database.connection() as conn:
        repo = project(conn)
        record(conn, repo, ref("main", "a"))
        before = conn.execute(moved_at).fetchall()
        record(conn, repo, ref("main", "a", is_protected=True))
        assert conn.execute("SELECT is_protected FROM scm.refs").fetchall() == [{"is_protected": True}]
        assert conn.execute(moved_at).fetchall() == before
        record(conn, repo, ref("main", "b"))
        assert conn.execute(moved_at).fetchall() != before


def test_a_move_waits_for_its_judgement_and_is_written_once(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        record(conn, repo, ref("main", "a"), ref("topic", "a"))
        record(conn, repo, ref("main", "b"), ref("topic", "x"))
        record(conn, repo, ref("main", "c"), ref("topic", "x"))
        assert refs.unrecorded_moves(conn, repo) == [
            (B, "main", sha("a"), sha("c")),
            (B, "topic", sha("a"), sha("x")),
        ]
        for _ in range(2):
            record_move(conn, repo, "main", "a", "c", forced=False)
            record_move(conn, repo, "topic", "a", "x", forced=True)
        assert refs.unrecorded_moves(conn, repo) == []
        assert events(conn)[2:] == [
            ("moved", "main", sha("a"), sha("c")),
            ("forced", "topic", sha("a"), sha("x")),
        ]
        record(conn, repo, ref("main", "d"))
        record(conn, repo, ref("main", "c"))  # there and back again between two judgements
        assert refs.unrecorded_moves(conn, repo) == []
        assert integrity_checks.failures(conn) == {}


def test_a_ref_that_is_gone_unjudged_and_comes_back_is_deleted_and_created(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        record(conn, repo, ref("main", "a"), ref("topic", "a"))
        record(conn, repo, ref("main", "a"), ref("topic", "b"))
        record(conn, repo, ref("main", "a"))
        assert refs.unrecorded_moves(conn, repo) == []
        record_move(conn, repo, "topic", "a", "b", forced=False)
        record(conn, repo, ref("main", "a"), ref("topic", "c"))
        assert refs.unrecorded_moves(conn, repo) == []
        assert [e[0] for e in events(conn)] == ["created", "created", "deleted", "created"]
        assert events(conn)[-1] == ("created", "topic", None, sha("c"))
        assert integrity_checks.failures(conn) == {}


def test_every_live_ref_with_a_covered_tip_is_covered(database: Database) -> None:
    def covered() -> dict[str, str | None]:
        return {row["name"]: row["covered_tip"] for row in conn.execute("SELECT * FROM scm.refs")}

    with database.connection() as conn:
        repo = project(conn)
        record(conn, repo, ref("main", "a"), ref("same", "a"), ref("gone", "a"), ref("other", "b"))
        record(conn, repo, ref("main", "a"), ref("same", "a"), ref("other", "b"))
        refs.cover(conn, repo, [sha("a")])
        assert covered() == {"main": sha("a"), "same": sha("a"), "gone": None, "other": None}
        record(conn, repo, ref("main", "c"), ref("same", "a"), ref("other", "b"))
        assert covered()["main"] == sha("a")


def graph(conn: Connection, repo: int) -> None:
    """a - b - m - d (main), with x (from a) merged into m; y alone on top of x."""
    rows = [
        commit("a"),
        commit("b", "a"),
        commit("x", "a"),
        commit("m", "b", "x"),
        commit("d", "m"),
        commit("y", "x"),
    ]
    walk = commits.begin_walk(conn, repo_id=repo, tip=sha("d"), covered=None, generation=1)
    commits.store_commits(conn, repo_id=repo, batch_id=next(_batches), rows=rows, walk_id=walk.walk_id)


def test_a_commit_without_parents_verifies_nothing_about_what_is_behind_it(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        graph(conn, repo)
        record(conn, repo, ref("main", "d"))
        refs.cover(conn, repo, [sha("d")])
        assert refs.missing(conn, repo, 9) == []
        conn.execute("UPDATE scm.git_commits SET parents = NULL WHERE commit_sha = %s", [sha("m")])
        # Nothing is to be judged while this is so.
        assert refs.missing(conn, repo, 9) == [sha("m")]
        # What no ref reaches may have unknown parents, or such as are not stored.
        conn.execute("UPDATE scm.git_commits SET unreachable_since = now() WHERE commit_sha = %s", [sha("m")])
        assert refs.missing(conn, repo, 9) == []


def test_ancestors_are_found_through_every_parent(database: Database) -> None:
    with database.connection() as conn:
        repo, other = project(conn), project(conn, 43)
        graph(conn, repo)
        pairs = {("a", "d"): True, ("x", "d"): True, ("b", "m"): True, ("d", "d"): True, ("d", "a"): False,
                 ("y", "d"): False, ("b", "y"): False, ("unknown", "d"): False}  # fmt: skip
        assert {pair: refs.is_ancestor(conn, repo, sha(pair[0]), sha(pair[1])) for pair in pairs} == pairs
        assert not refs.is_ancestor(conn, other, sha("a"), sha("d"))


def test_what_no_ref_reaches_is_flagged_until_one_does_again(database: Database) -> None:
    def lost() -> set[str]:
        query = "SELECT title, version FROM scm.git_commits WHERE unreachable_since IS NOT NULL"
        rows = conn.execute(query).fetchall()
        assert all(row["version"] == 1 for row in rows)
        return {row["title"].removeprefix("Commit ") for row in rows}

    with database.connection() as conn:
        repo, other = project(conn), project(conn, 43)
        graph(conn, repo)
        graph(conn, other)
        record(conn, other, ref("main", "d"), ref("topic", "y"))
        record(conn, repo, ref("main", "d"), ref("topic", "y", T))
        assert refs.mark_unreachable(conn, repo) == 0
        record(conn, repo, ref("main", "b"), ref("topic", "y", T))
        assert (refs.mark_unreachable(conn, repo), lost()) == (2, {"m", "d"})
        record(conn, repo, ref("main", "b"))
        assert (refs.mark_unreachable(conn, repo), lost()) == (2, {"m", "d", "x", "y"})
        assert refs.mark_unreachable(conn, repo) == 0
        record(conn, repo, ref("main", "d"))
        assert (refs.mark_unreachable(conn, repo), lost()) == (3, {"y"})
