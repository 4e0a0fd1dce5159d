"""How a page of commits changes the tables, what it counts, and which histories count as complete."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from sync_pipeline.core.gitlab_rows import CommitRow
from sync_pipeline.core.model import Counts, DeferredFetch, JobType, QuarantinedRow
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import commits, quarantine
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_tests.facts.gitlab_facts import commit, project, sha

_batches = count(1)


def store(conn: Connection, repo: int, *rows: CommitRow, batch: int | None = None, **other: Any) -> Counts:
    with conn.transaction():
        return commits.store_commits(conn, repo_id=repo, batch_id=batch or next(_batches), rows=rows, **other)


def walk(conn: Connection, repo: int, tip: str, covered: str | None = None, generation: int = 1) -> int:
    found = commits.begin_walk(
        conn,
        repo_id=repo,
        tip=sha(tip),
        covered=None if covered is None else sha(covered),
        generation=generation,
    )
    return found.walk_id


def complete(conn: Connection, walk_id: int) -> None:
    """Claim that all ancestors of the commits of a walk are stored."""
    conn.execute("UPDATE scm.ref_walks SET completed_at = now() WHERE walk_id = %s", [walk_id])


def everything(conn: Connection) -> list[dict[str, Any]]:
    return conn.execute("SELECT *, xmin::text FROM scm.git_commits ORDER BY git_commit_id").fetchall()


def one(conn: Connection, name: str) -> dict[str, Any]:
    row = conn.execute("SELECT * FROM scm.git_commits WHERE commit_sha = %s", (sha(name),)).fetchone()
    assert row is not None
    return row


def test_the_same_commits_again_change_nothing_at_all(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        rows = [commit("b", "a"), commit("a"), commit("m", "b", "a", stats=None), commit("b", "a")]
        number = walk(conn, repo, "m")
        assert store(conn, repo, *rows, walk_id=number) == Counts(read=3, inserted=3)
        before = everything(conn)
        assert store(conn, repo, *rows, walk_id=number) == Counts(read=3, unchanged=3)
        assert everything(conn) == before
        assert one(conn, "m")["parents"] == [sha("b"), sha("a")]
        assert one(conn, "m")["is_merge"]
        assert store(conn, repo) == Counts()
        assert commits.count_commits(conn, repo) == 3


def test_a_copy_without_numbers_of_lines_never_blanks_them(database: Database) -> None:
    poor, rich = commit("a", stats=None), commit("a", stats=(1500, 3), raw={"rich": True})
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, poor)
        assert store(conn, repo, poor, rich, poor) == Counts(read=1, updated=1)
        before = everything(conn)
        assert store(conn, repo, poor) == Counts(read=1, regressed=1)
        assert store(conn, repo, replace(poor, title="other"), deferred={sha("a")}) == Counts(
            read=1, regressed=1
        )
        assert everything(conn) == before
        stored = one(conn, "a")
        assert [stored[c] for c in ("additions", "is_bulk", "version", "raw")] == [
            1500,
            True,
            2,
            {"rich": True},
        ]


def test_a_copy_without_parents_never_blanks_them_and_brings_none(database: Database) -> None:
    poor = replace(commit("b", stats=None), parents=None)
    with database.connection() as conn:
        repo = project(conn)
        assert store(conn, repo, poor) == Counts(read=1, inserted=1)
        row = one(conn, "b")
        assert (row["parents"], row["is_merge"], row["unreachable_since"] is None) == (None, None, False)
        assert store(conn, repo, poor, commit("b", "a")) == Counts(read=1, updated=1)
        before = everything(conn)
        assert store(conn, repo, poor) == Counts(read=1, regressed=1)
        assert store(conn, repo, replace(poor, title="other")) == Counts(read=1, regressed=1)
        assert everything(conn) == before
        assert one(conn, "b")["parents"] == [sha("a")]
        # Also where somebody took them away behind our back.
        conn.execute("UPDATE scm.git_commits SET parents = NULL")
        assert store(conn, repo, commit("b", "a")) == Counts(read=1, updated=1)
        assert one(conn, "b")["parents"] == [sha("a")]


def test_an_older_look_that_comes_late_changes_nothing(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        late = next(_batches)
        store(conn, repo, commit("a", title="newer"))
        assert store(conn, repo, commit("a", title="older"), batch=late) == Counts(read=1, unchanged=1)
        assert one(conn, "a")["title"] == "newer"


def test_a_tombstone_is_lifted_even_by_a_copy_with_less_detail(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, commit("a"))
        conn.execute("UPDATE scm.git_commits SET deleted_at = now()")
        assert commits.count_commits(conn, repo) == 0
        assert store(conn, repo, commit("a", stats=None)) == Counts(read=1, updated=1)
        assert (one(conn, "a")["deleted_at"], one(conn, "a")["additions"]) == (None, 2)


def test_nasty_texts_and_dates_are_stored_and_flagged(database: Database) -> None:
    old, far = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    nasty = commit(
        "a",
        title="a\0b",
        message='half \ud83d "quoted" \\back\t\n\x7f',
        author_name="\udfff",
        author_email=None,
        authored_at=old,
        committed_at=far,
        additions=2**63 - 1,
        deletions=0,
        flags=("control_characters",),
        raw={"message": "a\0b", "k\ud800": 1},
    )
    with database.connection() as conn:
        repo = project(conn)
        assert store(conn, repo, nasty) == Counts(read=1, inserted=1)
        assert store(conn, repo, nasty) == Counts(read=1, unchanged=1)
        row = one(conn, "a")
        assert row["title"] == "a\N{SYMBOL FOR NULL}b"
        assert row["message"] == 'half \N{REPLACEMENT CHARACTER} "quoted" \\back\t\n\x7f'
        assert (row["author_raw"], row["authored_at"], row["ts"], row["additions"]) == (
            "\N{REPLACEMENT CHARACTER}",
            old,
            far,
            2**63 - 1,
        )
        assert row["flags"] == ["control_characters", "escaped"]
        assert row["raw"] == {"message": "a\\u0000b", "k\\ud800": 1}


def test_deferred_numbers_are_flagged_and_quarantine_and_deferred_fetches_end(database: Database) -> None:
    key, job = sha("a"), JobType.COMMITS
    with database.connection() as conn:
        repo = project(conn)
        bad = QuarantinedRow(key, "unstorable", "refused", b"x")
        quarantine.quarantine(conn, repo_id=repo, job_type=job, batch_id=1, rows=[bad])
        quarantine.defer(conn, repo_id=repo, job_type=job, fetches=[DeferredFetch(key, "stats", "timed out")])
        store(conn, repo, commit("a", stats=None), deferred={key})
        assert one(conn, "a")["flags"] == ["stats_unread"]
        assert conn.execute("SELECT 1 FROM scm.quarantine WHERE resolved_at IS NULL").fetchall() == []
        assert quarantine.due(conn, repo, job, 9) == [DeferredFetch(key, "stats", "timed out")]
        assert store(conn, repo, commit("a"), deferred={key}) == Counts(read=1, updated=1)
        assert one(conn, "a")["flags"] == []
        assert quarantine.due(conn, repo, job, 9) == []


def test_a_walk_goes_on_where_it_was_and_begins_again_after_its_end(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        values: dict[str, Any] = {"repo_id": repo, "tip": sha("b"), "covered": sha("a"), "generation": 1}
        first = commits.begin_walk(conn, **values)
        assert (first.next_page, first.tip_read) == (1, False)
        commits.record_page(conn, first.walk_id, next_page=4, tip_read=True)
        again = commits.begin_walk(conn, **values)
        assert again == replace(first, next_page=4, tip_read=True)
        others = [values | {"covered": None}, values | {"generation": 2}, values | {"tip": sha("c")}]
        assert len({first.walk_id, *(commits.begin_walk(conn, **v).walk_id for v in others)}) == 4
        commits.end_walk(conn, first.walk_id)
        # Reading to the end proves nothing.
        assert conn.execute("SELECT FROM scm.ref_walks WHERE completed_at IS NOT NULL").fetchall() == []
        assert commits.begin_walk(conn, **values) == first
        complete(conn, first.walk_id)
        # A complete walk stays one, and the same reading once more is another.
        assert commits.begin_walk(conn, **values).walk_id != first.walk_id
        done = conn.execute("SELECT walk_id FROM scm.ref_walks WHERE completed_at IS NOT NULL").fetchall()
        assert done == [{"walk_id": first.walk_id}]


def test_a_tip_is_covered_once_the_walk_that_stored_it_is_complete(database: Database) -> None:
    names = ["c", "b", "a", "by date"]
    tips = [sha(name) for name in names]
    with database.connection() as conn:
        repo, other = project(conn), project(conn, 43)
        store(conn, repo, commit("by date"))
        first = walk(conn, repo, "c")
        store(conn, repo, commit("c", "b"), commit("b", "a"), commit("a"), walk_id=first)
        assert commits.covered_tips(conn, repo, 1, tips) == set()
        complete(conn, first)
        assert commits.covered_tips(conn, repo, 1, tips) == set(tips[:3])
        assert commits.covered_tips(conn, repo, 2, tips) == set()
        assert commits.covered_tips(conn, other, 1, tips) == set()
        conn.execute("UPDATE scm.git_commits SET deleted_at = now() WHERE commit_sha = %s", (sha("a"),))
        assert commits.covered_tips(conn, repo, 1, tips) == set(tips[:2])


def test_a_walk_takes_over_what_verifies_nothing_and_only_that(database: Database) -> None:
    def walk_of(name: str) -> int | None:
        row: int | None = one(conn, name)["walk_id"]
        return row

    with database.connection() as conn:
        repo = project(conn)
        rows = [commit("b", "a"), commit("a")]
        store(conn, repo, *rows)
        broken = walk(conn, repo, "b")
        assert store(conn, repo, *rows, walk_id=broken) == Counts(read=2, unchanged=2)
        assert one(conn, "a")["version"] == 1
        assert walk_of("a") == broken
        store(conn, repo, *rows)  # a look by date takes nothing away
        assert walk_of("a") == broken
        good = walk(conn, repo, "c")
        store(conn, repo, *rows, walk_id=good)
        assert walk_of("a") == good
        complete(conn, good)
        store(conn, repo, *rows, walk_id=broken)
        assert walk_of("a") == good
        store(conn, repo, *rows, walk_id=walk(conn, repo, "b", generation=2))
        assert walk_of("a") not in (good, broken)


def test_a_hole_in_a_complete_history_is_found(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        first = walk(conn, repo, "c")
        store(conn, repo, commit("c", "b"), commit("b", "a"), walk_id=first)
        assert integrity_checks.failures(conn) == {}  # nothing is claimed yet
        complete(conn, first)
        assert [row["missing"] for row in integrity_checks.failures(conn)["history"]] == [sha("a")]
        bad = QuarantinedRow(sha("a"), "unstorable", "refused", b"x")
        quarantine.quarantine(conn, repo_id=repo, job_type=JobType.COMMITS, batch_id=1, rows=[bad])
        assert integrity_checks.failures(conn) == {}
        store(conn, repo, commit("a"), walk_id=first)
        assert integrity_checks.failures(conn) == {}


def test_a_parent_that_was_not_read_in_this_generation_is_a_hole(database: Database) -> None:
    with database.connection() as conn:
        repo, other = project(conn), project(conn, 43)
        store(conn, other, commit("a"), walk_id=walk(conn, other, "a"))
        # Read by name, or in an older generation: it is stored and proves nothing.
        store(conn, repo, commit("a"))
        store(conn, repo, commit("x"), walk_id=walk(conn, repo, "x", generation=1))
        first = walk(conn, repo, "c", generation=2)
        store(conn, repo, commit("c", "b", "x"), commit("b", "a"), walk_id=first)

        def holes(*tips: str) -> set[str]:
            found = commits.holes(conn, repo, 2, [sha(tip) for tip in tips])
            assert found >= commits.holes_behind(conn, repo, 2, [sha(tip) for tip in tips])
            return found

        assert holes("c") == {sha("a"), sha("x")}
        assert holes("c", "d") == {sha("a"), sha("x"), sha("d")}
        assert not commits.complete_history(conn, repo, 2, [sha("c")])
        # The same copy again, this time by the walk.
        store(conn, repo, commit("a"), commit("x"), walk_id=first)
        assert holes("c") == set()
        conn.execute("UPDATE scm.git_commits SET deleted_at = now() WHERE commit_sha = %s", [sha("x")])
        assert holes("c") == {sha("x")}
        store(conn, repo, commit("x"), walk_id=first)
        # Unknown parents are not none.
        store(conn, repo, replace(commit("d"), parents=None), walk_id=first)
        assert holes("d") == {sha("d")}
        store(conn, repo, commit("d", "c"), walk_id=first)
        assert commits.complete_history(conn, repo, 2, [sha("d")])
        assert commits.covered_tips(conn, repo, 2, [sha(name) for name in "abcdx"]) == {
            sha(name) for name in "abcdx"
        }


def test_a_hole_in_another_history_holds_up_no_ref_and_is_kept_for_later(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        rows = [commit("c", "b"), commit("b", "a"), commit("a"), commit("y", "x", "b")]
        store(conn, repo, *rows, walk_id=walk(conn, repo, "y"))
        assert not commits.complete_history(conn, repo, 1, [sha("y")])
        assert commits.complete_history(conn, repo, 1, [sha("c")])
        every = [sha(name) for name in "abcxy"]
        assert commits.covered_tips(conn, repo, 1, every) == {sha("a"), sha("b"), sha("c")}
        assert commits.seen(conn, repo, 1, every) == {sha("a"), sha("b"), sha("c"), sha("y")}
        assert integrity_checks.failures(conn) == {}
        assert commits.holes(conn, repo, 1, [sha("y")]) == {sha("x")}
        store(conn, repo, commit("x"), walk_id=walk(conn, repo, "y"))
        assert commits.complete_history(conn, repo, 1, [sha("y")])
        assert commits.covered_tips(conn, repo, 1, every) == set(every)


def test_a_commit_in_quarantine_is_a_known_hole_once_a_walk_has_passed_it(database: Database) -> None:
    bad = QuarantinedRow(sha("b"), "unstorable", "refused", b"x")
    with database.connection() as conn:
        repo = project(conn)
        first = walk(conn, repo, "c")
        store(conn, repo, commit("c", "b"), commit("a"), walk_id=first)
        quarantine.quarantine(conn, repo_id=repo, job_type=JobType.COMMITS, batch_id=1, rows=[bad])
        # Its ancestors may be anywhere.
        assert commits.holes(conn, repo, 1, [sha("c")]) == {sha("b")}
        commits.end_walk(conn, first)
        assert commits.holes(conn, repo, 1, [sha("c")]) == set()
        assert commits.holes_behind(conn, repo, 1, [sha("c")]) == set()
        assert commits.complete_history(conn, repo, 1, [sha("c")])
        # As a tip it is one after a walk of its own.
        assert commits.holes(conn, repo, 1, [sha("b")]) == {sha("b")}
        commits.end_walk(conn, walk(conn, repo, "b"))
        assert commits.complete_history(conn, repo, 1, [sha("b")])
        assert integrity_checks.failures(conn) == {}
