"""How a batch of revisions changes the tables, and what it counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from sync_pipeline.core.model import (
    Counts,
    DeferredFetch,
    JobType,
    QuarantinedRow,
    RevisionRow,
    RevisionWindow,
    Visibility,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import quarantine, svn_revisions
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_tests.builders import change, register, revision

_batches = count(1)


def store(conn: Connection, repo: int, *rows: RevisionRow) -> Counts:
    with conn.transaction():
        return svn_revisions.store_revisions(conn, repo_id=repo, batch_id=next(_batches), rows=iter(rows))


def everything(conn: Connection) -> list[dict[str, Any]]:
    """What is stored of the revisions, without since when the source shows less of them."""
    revisions = conn.execute("SELECT * FROM scm.svn_revisions ORDER BY repo_id, rev_num").fetchall()
    return [
        *({name: row[name] for name in row if name != "hidden_since"} for row in revisions),
        *conn.execute("SELECT * FROM scm.svn_changed_paths ORDER BY repo_id, rev_num, path_no").fetchall(),
        *conn.execute("SELECT * FROM scm.svn_revision_versions ORDER BY repo_id, rev_num").fetchall(),
    ]


def one(conn: Connection, rev: int) -> dict[str, Any]:
    row = conn.execute("SELECT * FROM scm.svn_revisions WHERE rev_num = %s", (rev,)).fetchone()
    assert row is not None
    return row


def test_the_same_rows_again_change_nothing_at_all(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        rows = [revision(n) for n in range(1, 6)]
        assert store(conn, repo, *rows) == Counts(read=5, inserted=5)
        before = everything(conn)
        xmin = conn.execute("SELECT xmin::text FROM scm.svn_revisions ORDER BY rev_num").fetchall()
        assert store(conn, repo, *rows) == Counts(read=5, unchanged=5)
        assert everything(conn) == before
        assert conn.execute("SELECT xmin::text FROM scm.svn_revisions ORDER BY rev_num").fetchall() == xmin


def test_an_edited_message_replaces_the_row_and_keeps_the_old_version(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1, "first words"))
        assert store(conn, repo, revision(1, "second words")) == Counts(read=1, updated=1)
        assert (one(conn, 1)["message"], one(conn, 1)["version"]) == ("second words", 2)
        old = conn.execute("SELECT version, message FROM scm.svn_revision_versions").fetchall()
        assert old == [{"version": 1, "message": "first words"}]


def test_changed_paths_are_replaced_as_a_set(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1, paths=(change("/a"), change("/b"), change("/c"))))
        store(conn, repo, revision(1, paths=(change("/b"),)))
        rows = conn.execute("SELECT path FROM scm.svn_changed_paths").fetchall()
        assert rows == [{"path": "/b"}]
        assert one(conn, 1)["path_count"] == 1


@pytest.mark.parametrize(
    "regressed",
    [
        revision(1, None, visibility=Visibility.PARTIAL, paths=(change("/a"),)),
        revision(1, None, author_raw=None, ts=None, visibility=Visibility.HIDDEN, paths=()),
        revision(1, flags=("changed_paths_unread",), paths=()),
        revision(1, "lossy", flags=("message_unread",)),
    ],
)
def test_a_read_with_less_detail_never_blanks_one_with_more_and_is_counted(
    database: Database, regressed: RevisionRow
) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1))
        before = everything(conn)
        assert store(conn, repo, regressed) == Counts(read=1, regressed=1)
        assert everything(conn) == before


DOUBT = ("line_ends_unsure", "paths_unsure")


@pytest.mark.parametrize("shown", [Visibility.PARTIAL, Visibility.HIDDEN])
def test_a_revision_that_is_hidden_later_keeps_its_content_and_says_since_when(
    database: Database, shown: Visibility
) -> None:
    with database.connection() as conn:
        repo = register(conn)
        rows = [revision(1, "words"), revision(2)]
        store(conn, repo, *rows)
        content = {name: value for name, value in one(conn, 1).items() if name != "hidden_since"}
        hidden = replace(rows[0], message=None, paths=(), visibility=shown)
        assert store(conn, repo, hidden, rows[1]).regressed == 1
        since = one(conn, 1)["hidden_since"]
        assert since is not None
        assert one(conn, 2)["hidden_since"] is None
        assert {name: value for name, value in one(conn, 1).items() if name != "hidden_since"} == content
        # The first look that shows less counts.
        store(conn, repo, hidden)
        assert one(conn, 1)["hidden_since"] == since
        assert store(conn, repo, rows[0]) == Counts(read=1, unchanged=1)
        assert one(conn, 1)["hidden_since"] is None


def test_a_copy_in_doubt_that_shows_what_is_stored_is_not_regressed(database: Database) -> None:
    exact = revision(
        1,
        "a\r\nb\rc",
        author_raw="d\rev",
        revprops={"build": "a\rb\r\nc \\r"},
        paths=(change("/cr\r\nname"), change("/copied", "A", copyfrom_path="/tab\tname", copyfrom_rev=1)),
    )
    shown = revision(
        1,
        "a\nb\nc",
        author_raw="d\nev",
        revprops={"build": "a\nb\nc \\r"},
        paths=(change("/cr\nname"), change("/copied", "A", copyfrom_path="/tab name", copyfrom_rev=1)),
        flags=DOUBT,
    )
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, exact, revision(2, "two\nlines"), revision(3, None, visibility=Visibility.PARTIAL))
        before = everything(conn)
        others = (
            revision(2, "two\nlines", flags=DOUBT),
            revision(3, None, visibility=Visibility.PARTIAL, flags=DOUBT),
        )
        assert svn_revisions.changes(conn, repo, [shown])[0]["paths_differ"] is False
        assert store(conn, repo, shown, *others) == Counts(read=3, unchanged=3)
        assert everything(conn) == before


@pytest.mark.parametrize(
    "other",
    [
        {"message": "other\nlines"},
        {"author_raw": "ann"},
        {"revprops": {"k": "v"}},
        {"paths": (change("/a"), change("/b"))},
        {"paths": (change("/trunk/1", "A"),)},
        {"flags": (*DOUBT, "message_unread")},
        {"visibility": Visibility.PARTIAL, "message": None},
    ],
)
def test_a_copy_in_doubt_that_shows_something_else_is_regressed(
    database: Database, other: dict[str, Any]
) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1, "two\nlines"))
        before = everything(conn)
        copy = replace(revision(1, "two\nlines", flags=DOUBT), **other)
        assert store(conn, repo, copy) == Counts(read=1, regressed=1)
        assert everything(conn) == before


def test_a_read_with_more_detail_replaces_one_with_less(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1, None, author_raw=None, ts=None, visibility=Visibility.HIDDEN, paths=()))
        assert store(conn, repo, revision(1)) == Counts(read=1, updated=1)
        assert one(conn, 1)["visibility"] == "full"


def test_an_older_batch_cannot_overwrite_a_newer_one(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        late = next(_batches)
        store(conn, repo, revision(1, "newer"))
        with conn.transaction():
            counts = svn_revisions.store_revisions(
                conn, repo_id=repo, batch_id=late, rows=[revision(1, "older")]
            )
        assert counts == Counts(read=1, unchanged=1)
        assert one(conn, 1)["message"] == "newer"


def test_a_tombstone_is_lifted_when_the_row_comes_back(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1))
        conn.execute("UPDATE scm.svn_revisions SET deleted_at = now()")
        assert store(conn, repo, revision(1)) == Counts(read=1, updated=1)
        assert one(conn, 1)["deleted_at"] is None


def test_nul_and_lone_surrogates_are_marked_and_stored(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1, "a\0b", revprops={"k\0ey": "v\ud800"}), revision(2, "plain"))
        assert one(conn, 1)["message"] == "a\N{SYMBOL FOR NULL}b"
        assert one(conn, 1)["flags"] == ["nul"]
        assert one(conn, 1)["meta_json"] == {
            "revprops": {"k\N{SYMBOL FOR NULL}ey": "v\N{REPLACEMENT CHARACTER}"}
        }
        assert one(conn, 2)["flags"] == []


def test_missing_properties_are_null_and_dates_of_any_year_are_kept(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        far = datetime(2120, 1, 1, tzinfo=UTC)
        old = datetime(1969, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)
        store(
            conn,
            repo,
            revision(1, None, author_raw=None, ts=None, paths=()),
            revision(2, "", ts=far),
            revision(3, ts=old),
        )
        assert [one(conn, 1)[c] for c in ("author_raw", "ts", "message")] == [None, None, None]
        assert (one(conn, 2)["message"], one(conn, 2)["ts"], one(conn, 3)["ts"]) == ("", far, old)


def test_an_error_in_the_rows_leaves_nothing_behind(database: Database) -> None:
    def broken() -> Any:
        yield revision(1)
        raise ValueError("the answer ended early")

    with database.connection() as conn:
        repo = register(conn)
        with pytest.raises(ValueError, match="ended early"), conn.transaction():
            svn_revisions.store_revisions(conn, repo_id=repo, batch_id=next(_batches), rows=broken())
        assert everything(conn) == []
        assert store(conn, repo, revision(1)) == Counts(read=1, inserted=1)


def test_two_repositories_keep_their_equal_numbers_apart(database: Database) -> None:
    with database.connection() as conn:
        one_repo, other = register(conn, "one"), register(conn, "other")
        store(conn, one_repo, revision(1, "one"))
        store(conn, other, revision(1, "other"))
        rows = conn.execute("SELECT source_id FROM scm.v_facts ORDER BY source_id").fetchall()
        assert [r["source_id"] for r in rows] == [f"svn:{one_repo}:1", f"svn:{other}:1"]


def test_quarantine_and_deferred_fetches_end_when_the_row_is_stored(database: Database) -> None:
    bad = QuarantinedRow("7", "corrupt", "checksum mismatch", b"\x00raw")
    with database.connection() as conn:
        repo = register(conn)
        for _ in range(2):
            quarantine.quarantine(conn, repo_id=repo, job_type=JobType.REVISIONS, batch_id=1, rows=[bad])
        quarantine.defer(
            conn,
            repo_id=repo,
            job_type=JobType.REVISIONS,
            fetches=[DeferredFetch("8", "message", "timed out")],
        )
        assert conn.execute("SELECT seen, payload FROM scm.quarantine").fetchall() == [
            {"seen": 2, "payload": b"\x00raw"}
        ]
        assert quarantine.due(conn, repo, JobType.REVISIONS, 10) == [
            DeferredFetch("8", "message", "timed out")
        ]
        still_deferred = replace(revision(8), flags=("message_unread",))
        store(conn, repo, revision(7), still_deferred)
        open_rows = "SELECT count(*) AS n FROM scm.quarantine WHERE resolved_at IS NULL"
        assert conn.execute(open_rows).fetchone() == {"n": 0}
        assert len(quarantine.due(conn, repo, JobType.REVISIONS, 10)) == 1
        store(conn, repo, revision(8))
        assert quarantine.due(conn, repo, JobType.REVISIONS, 10) == []


def test_a_deferred_fetch_met_again_waits_longer(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        for _ in range(3):
            quarantine.defer(
                conn,
                repo_id=repo,
                job_type=JobType.REVISIONS,
                fetches=[DeferredFetch("8", "message", "timed out")],
            )
        row = conn.execute(
            "SELECT attempts, not_before > now() + interval '90 seconds' AS later FROM scm.deferred_fetches"
        ).fetchone()
        assert row == {"attempts": 2, "later": True}


def test_bulk_is_told_from_the_number_of_paths(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        many = tuple(change(f"/f{n}") for n in range(101))
        store(conn, repo, revision(1, paths=many), revision(2, paths=many[:100]))
        rows = conn.execute("SELECT is_bulk, bulk_reason FROM scm.v_facts ORDER BY source_id").fetchall()
        assert [tuple(r.values()) for r in rows] == [(True, "over_100_paths"), (False, None)]


def test_words_of_the_source_that_nobody_heard_of_are_stored_as_they_come(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        odd = revision(1, paths=(change("/a", "V", kind="symlink"), change("/b", "A", kind="dir")))
        assert store(conn, repo, odd) == Counts(read=1, inserted=1)
        rows = conn.execute("SELECT action, kind FROM scm.svn_changed_paths ORDER BY path").fetchall()
        assert rows == [{"action": "V", "kind": "symlink"}, {"action": "A", "kind": "dir"}]
        assert store(conn, repo, odd) == Counts(read=1, unchanged=1)


def test_every_character_of_a_path_comes_back(database: Database) -> None:
    odd = "/tab\there\\N back\\slash\nnew\rline \x01 'quote' \"double\" \N{SNOWMAN} {a,b} \\t end"
    paths = (
        change(odd, "A", kind="dir", copyfrom_path=odd + "2", copyfrom_rev=7, text_mods=None, prop_mods=True),
        change("/plain", "D", kind=None),
    )
    with database.connection() as conn:
        repo = register(conn)
        store(conn, repo, revision(1, paths=paths))
        rows = conn.execute(
            "SELECT path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods"
            " FROM scm.svn_changed_paths ORDER BY path_no"
        ).fetchall()
        assert [tuple(r.values()) for r in rows] == [
            (odd, "A", "dir", odd + "2", 7, None, True),
            ("/plain", "D", None, None, None, True, False),
        ]
        assert one(conn, 1)["paths_hash"] == svn_revisions.paths_hash(paths)


def test_the_direct_way_for_a_new_window_stores_the_same(database: Database) -> None:
    rows = [revision(n, paths=(change(f"/a\t{n}", "A", kind=None), change("/b"))) for n in range(1, 4)]
    query = (
        "SELECT rev_num, path_no, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods"
        " FROM scm.svn_changed_paths WHERE repo_id = %s ORDER BY 1, 2"
    )
    window = RevisionWindow(1, 4)
    with database.connection() as conn:
        staged, direct = register(conn, "staged"), register(conn, "direct")
        store(conn, staged, *rows)
        for expected in (Counts(read=3, inserted=3), Counts(read=3, unchanged=3)):
            with conn.transaction():
                counts = svn_revisions.store_revisions(
                    conn, repo_id=direct, batch_id=next(_batches), rows=rows, window=window
                )
            assert counts == expected
        both = [conn.execute(query, (repo,)).fetchall() for repo in (staged, direct)]
        assert both[0] == both[1]
        assert integrity_checks.failures(conn) == {}
