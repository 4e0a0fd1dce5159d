"""How a page of merge requests changes the tables, what it counts, and which have to be looked at again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest

from sync_pipeline.core.gitlab_rows import MergeRequestRow, Person
from sync_pipeline.core.model import Counts, DeferredFetch, JobType, QuarantinedRow
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import merge_requests, quarantine, refs
from sync_pipeline_tests.facts.gitlab_facts import (
    BIG,
    JO,
    KIM,
    START,
    commit,
    later,
    merge_request,
    project,
    ref,
    sha,
    version,
    whole,
)

MR = JobType.MERGE_REQUESTS
_batches = count(1)


def store(
    conn: Connection,
    repo: int,
    *rows: MergeRequestRow,
    batch: int | None = None,
    deferred: Sequence[DeferredFetch] = (),
) -> Counts:
    with conn.transaction():
        return merge_requests.store_merge_requests(
            conn, repo_id=repo, batch_id=batch or next(_batches), rows=rows, deferred=deferred
        )


def everything(conn: Connection) -> list[dict[str, Any]]:
    rows = conn.execute("SELECT * FROM scm.mrs ORDER BY repo_id, iid").fetchall()
    for row in rows:
        del row["read_at"], row["versions_read_at"]
    for query in (
        "SELECT *, xmin::text FROM scm.mr_versions ORDER BY repo_id, mr_iid, version_id",
        "SELECT *, xmin::text FROM scm.mr_commits ORDER BY repo_id, mr_iid, position",
    ):
        rows += conn.execute(query).fetchall()
    return rows


def one(conn: Connection, iid: int = 1) -> dict[str, Any]:
    row = conn.execute("SELECT * FROM scm.mrs WHERE iid = %s", (iid,)).fetchone()
    assert row is not None
    return row


def age(conn: Connection, hours: int, *iids: int) -> None:
    """Let it be so long ago that these were read."""
    conn.execute(
        "UPDATE scm.mrs SET read_at = now() - make_interval(hours => %s) WHERE iid = ANY (%s)",
        (hours, list(iids)),
    )


def known_heads(conn: Connection, repo: int) -> dict[int, tuple[str | None, str | None]]:
    """Head and target of the merge requests whose versions and commits need not be read again."""
    rows = conn.execute("SELECT iid, gitlab_id FROM scm.mrs WHERE replaced_id = 0").fetchall()
    stored = merge_requests.stored_heads(conn, repo, {row["iid"]: row["gitlab_id"] for row in rows})
    return {
        iid: one.children
        for iid, one in stored.items()
        if one.children[0] is not None and not (one.has_failed or one.is_planned)
    }


def test_the_same_merge_requests_again_change_nothing_but_when_they_were_read(database: Database) -> None:
    rows = [whole(1), whole(2, state="merged"), merge_request(3, state="locked")]
    with database.connection() as conn:
        repo = project(conn)
        assert store(conn, repo, *rows) == Counts(read=3, inserted=3)
        age(conn, 5, 1, 2, 3)
        before, read_at = everything(conn), one(conn)["read_at"]
        mixed = replace(rows[0], assignees=(), raw={"iid": 1, "merge_status": "checking"})
        assert store(conn, repo, mixed, *rows[1:], rows[2]) == Counts(read=3, unchanged=3)
        assert everything(conn) == before
        assert one(conn)["read_at"] > read_at
        assert [one(conn, n)["status"] for n in (1, 2, 3)] == ["open", "merged", "locked"]
        assert merge_requests.count_merge_requests(conn, repo) == 3


def test_every_field_is_stored_with_64_bit_numbers_and_nasty_texts(database: Database) -> None:
    row = whole(
        BIG,
        mr_id=BIG,
        project_id=BIG,
        source_project_id=BIG,
        title="a\0b",
        description="\ud800",
        author=Person(BIG, "jo", "J\0"),
        assignees=(Person(None, "x\0", None), KIM),
        reviewers=(),
        merged_by=None,
        closed_by=KIM,
        merged_at=later(-5),
        labels=("b", "a\0", 'c,d {"}'),
        source_branch="y" * 100_000,
        changes_count="1000+",
        user_notes_count=BIG,
        raw={"title": "a\0b", "runners_token": "GR1348941secret"},
        versions=(version(BIG, "head", raw={"k\0": 1}),),
        commits=(commit("head", "b", title="\0", flags=("control_characters",)),),
    )
    with database.connection() as conn:
        repo = project(conn)
        assert store(conn, repo, row) == Counts(read=1, inserted=1)
        assert store(conn, repo, row) == Counts(read=1, unchanged=1)
        stored = one(conn, BIG)
        mark = "\N{SYMBOL FOR NULL}"
        expected = {
            "mr_id": f"{repo}:{BIG}",
            "gitlab_id": BIG,
            "title": f"a{mark}b",
            "description": "\N{REPLACEMENT CHARACTER}",
            "author_id": BIG,
            "author_name": f"J{mark}",
            "merged_by_id": None,
            "closed_by_username": "kim",
            "assignees": [
                {"id": None, "username": f"x{mark}", "name": None},
                {"id": 8, "username": "kim", "name": "Kim"},
            ],
            "reviewers": [],
            "labels": ["b", f"a{mark}", 'c,d {"}'],
            "merged_at": later(-5),
            "changes_count": "1000+",
            "user_notes_count": BIG,
            "flags": ["escaped"],
            "raw": {"title": "a\\u0000b", "runners_token": "[redacted]"},
            "children_head": sha("head"),
            "children_target": "main",
        }
        assert {name: stored[name] for name in expected} == expected
        children = conn.execute(
            "SELECT v.version_id, v.raw, v.flags, c.commit_sha, c.position, c.title, c.flags AS mended"
            " FROM scm.mr_versions AS v JOIN scm.mr_commits AS c USING (repo_id, mr_iid)"
        ).fetchall()
        assert [tuple(c.values()) for c in children] == [
            (BIG, {"k\\u0000": 1}, ["escaped"], sha("head"), 1, mark, ["control_characters"])
        ]


def test_the_newer_version_of_the_source_wins_then_the_later_look(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        late = next(_batches)
        newer = whole(1, title="newer", updated_at=later(2), raw={"n": 2})
        store(conn, repo, newer)
        older = whole(1, "old head", title="older", updated_at=later(1))
        age(conn, 5, 1)
        before, read_at = everything(conn), one(conn)["read_at"]
        assert store(conn, repo, older) == Counts(read=1, unchanged=1)
        assert store(conn, repo, replace(newer, title="late"), batch=late) == Counts(read=1, unchanged=1)
        assert (everything(conn), one(conn)["read_at"]) == (before, read_at)
        same_time = replace(newer, title="same time", raw={"n": 3})
        assert store(conn, repo, older, same_time, older) == Counts(read=1, updated=1)
        stored = one(conn)
        assert [stored[c] for c in ("title", "raw", "version")] == ["same time", {"n": 3}, 2]
        assert known_heads(conn, repo) == {1: (sha("head"), "main")}


def test_a_copy_without_children_keeps_them_and_what_only_they_say(database: Database) -> None:
    keys = ("base_sha", "start_sha", "changes_count", "children_head")
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, whole(1))
        before = everything(conn)
        assert store(conn, repo, merge_request(1)) == Counts(read=1, unchanged=1)
        assert everything(conn) == before
        assert store(conn, repo, merge_request(1, title="other")) == Counts(read=1, updated=1)
        assert everything(conn)[1:] == before[1:]
        assert [one(conn)[k] for k in keys] == [sha("base"), sha("start"), "3", sha("head")]
        # With another head the old values would be false.
        assert store(conn, repo, merge_request(1, "pushed")) == Counts(read=1, updated=1)
        assert [one(conn)[k] for k in keys] == [None, None, None, sha("head")]
        assert known_heads(conn, repo) == {1: (sha("head"), "main")}


def test_a_changed_set_of_children_is_an_update_and_replaces_the_whole_set(database: Database) -> None:
    first = whole(1, versions=(version(2, "b"), version(1, "a")), commits=(commit("b"), commit("a")))
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, first, whole(2))
        others = "SELECT *, xmin::text FROM scm.mr_commits WHERE mr_iid = 2"
        untouched = conn.execute(others).fetchall()
        reordered = replace(first, versions=(version(1, "a"), version(2, "b")))
        assert store(conn, repo, reordered, whole(2)) == Counts(read=2, unchanged=2)
        retitled = whole(2, title="other")
        assert store(conn, repo, retitled) == Counts(read=1, updated=1)
        fewer = replace(first, commits=(commit("b"),), raw={"merge_status": "checking"})
        assert store(conn, repo, fewer, retitled) == Counts(read=2, updated=1, unchanged=1)
        assert (one(conn)["version"], one(conn)["raw"]) == (2, {"iid": 1})
        # One that has a head has a version: an answer without any takes none away while there is a head.
        versions = "SELECT count(*) AS n FROM scm.mr_versions WHERE mr_iid = 1"
        assert store(conn, repo, replace(fewer, versions=())) == Counts(read=1, unchanged=1)
        assert conn.execute(versions).fetchall() == [{"n": 2}]
        assert store(conn, repo, replace(fewer, versions=(), head_sha=None)) == Counts(read=1, updated=1)
        assert conn.execute(versions).fetchall() == [{"n": 0}]
        assert conn.execute("SELECT commit_sha FROM scm.mr_commits WHERE mr_iid = 1").fetchall() == [
            {"commit_sha": sha("b")}
        ]
        assert conn.execute(others).fetchall() == untouched


def test_heads_are_known_once_both_sets_are_stored_and_nothing_is_deferred(database: Database) -> None:
    missing = DeferredFetch("1", "commits", "timed out")
    with database.connection() as conn:
        repo = project(conn)
        for key in ("1", "2"):
            bad = QuarantinedRow(key, "unstorable", "refused", b"x")
            quarantine.quarantine(conn, repo_id=repo, job_type=MR, batch_id=1, rows=[bad])
        deferred = [missing, DeferredFetch("1", "detail", "x"), DeferredFetch("2", "versions", "x")]
        quarantine.defer(conn, repo_id=repo, job_type=MR, fetches=deferred)
        half = replace(whole(1), commits=None)
        store(conn, repo, half, deferred=[missing])
        assert known_heads(conn, repo) == {}
        assert one(conn)["children_head"] is None
        assert quarantine.due(conn, repo, MR, 9) == [
            missing,
            DeferredFetch("2", "versions", "x"),
        ]
        open_keys = conn.execute(
            "SELECT natural_key FROM scm.quarantine WHERE resolved_at IS NULL"
        ).fetchall()
        assert open_keys == [{"natural_key": "2"}]
        store(conn, repo, whole(1), merge_request(3))
        assert known_heads(conn, repo) == {1: (sha("head"), "main")}
        quarantine.defer(conn, repo_id=repo, job_type=MR, fetches=[missing])
        assert known_heads(conn, repo) == {}
        # The target changed, the children did not: no new version, but the next look knows.
        store(conn, repo, merge_request(1, target_branch="next"), deferred=[missing])
        store(conn, repo, whole(1, target_branch="next"))
        assert known_heads(conn, repo) == {1: (sha("head"), "next")}


def test_an_older_copy_settles_nothing_that_is_deferred(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, merge_request(1, updated_at=later(5)))
        quarantine.defer(conn, repo_id=repo, job_type=MR, fetches=[DeferredFetch("1", "versions", "x")])
        store(conn, repo, whole(1))
        assert len(quarantine.due(conn, repo, MR, 9)) == 1


def test_a_state_that_nobody_knows_is_stored_as_it_comes(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        assert store(conn, repo, whole(1, state="archived")) == Counts(read=1, inserted=1)
        assert one(conn)["status"] == "archived"


def test_a_row_that_the_database_refuses_leaves_nothing_behind(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'draft')")
        with pytest.raises(psycopg.errors.CheckViolation):
            store(conn, repo, whole(1), whole(2, state="draft"))
        assert everything(conn) == []


def test_a_tombstone_is_lifted_when_the_merge_request_comes_back(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, whole(1))
        conn.execute("UPDATE scm.mrs SET deleted_at = now()")
        assert merge_requests.count_merge_requests(conn, repo) == 0
        assert store(conn, repo, whole(1)) == Counts(read=1, updated=1)
        assert merge_requests.count_merge_requests(conn, repo) == 1


def test_a_push_is_found_by_its_branch_also_in_a_fork(database: Database) -> None:
    def unread() -> list[int]:
        return merge_requests.unread_heads(conn, repo, 42, "gitlab.example")

    def listing(repo_id: int, *rows: Any) -> None:
        refs.record_listing(conn, repo_id=repo_id, batch_id=next(_batches), rows=rows, observed_at=START)

    with database.connection() as conn:
        repo, fork = project(conn), project(conn, 43)
        listing(repo, ref("topic", "head"), ref("pushed", "new"), ref("gone", "new"))
        listing(repo, ref("topic", "head"), ref("pushed", "new"))
        listing(fork, ref("topic", "new"))
        rows = [
            merge_request(1),
            merge_request(2, source_branch="pushed"),
            merge_request(3, source_branch="pushed", state="closed"),
            merge_request(4, source_branch="gone"),
            merge_request(5, source_project_id=43),
            merge_request(6, source_project_id=None),
            merge_request(7, source_project_id=44),
            merge_request(8, source_branch="pushed", head_sha=None),
        ]
        store(conn, repo, *rows)
        assert unread() == [2, 5, 8]
        conn.execute("UPDATE scm.repos SET lifecycle = 'retired'")
        assert unread() == [2, 8]
        conn.execute("UPDATE scm.refs SET moved_at = now() - interval '1 hour'")
        assert unread() == []


def test_the_sweep_takes_the_open_ones_that_were_not_read_for_longest(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        store(
            conn, repo, *(merge_request(n, author=JO) for n in range(1, 6)), merge_request(6, state="closed")
        )
        for hours, iid in ((30, 1), (50, 2), (2, 3), (40, 4), (40, 6)):
            age(conn, hours, iid)
        day = timedelta(days=1)
        assert merge_requests.oldest_read_open(conn, repo, day, 10) == [2, 4, 1]
        assert merge_requests.oldest_read_open(conn, repo, day, 2) == [2, 4]
