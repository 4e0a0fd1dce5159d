"""Whole repositories in the tables: what ``svnadmin dump`` says, and a second time nothing changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sync_pipeline.core.model import Counts, Mode, PathChange, RevisionRow, RevisionWindow, Visibility
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.sources.truth import assert_equal
from sync_pipeline_tests.svn_fixtures import SAMPLE_DUMPS, SvnRepository, SvnServers


def stored(conn: Connection, repo_id: int) -> list[RevisionRow]:
    """The facts of a repository as the rows that a reader would yield."""
    paths: dict[int, list[PathChange]] = {}
    for row in conn.execute(
        "SELECT rev_num, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods"
        " FROM scm.svn_changed_paths WHERE repo_id = %s ORDER BY rev_num, path_no",
        (repo_id,),
    ):
        rev_num, *change = row.values()
        paths.setdefault(rev_num, []).append(PathChange(*change))
    return [
        RevisionRow(
            rev_num=row["rev_num"],
            author_raw=row["author_raw"],
            ts=row["ts"],
            message=row["message"],
            visibility=Visibility(row["visibility"]),
            paths=paths.get(row["rev_num"], []),
        )
        for row in conn.execute(
            "SELECT * FROM scm.svn_revisions WHERE repo_id = %s ORDER BY rev_num", (repo_id,)
        )
    ]


def check_twice(database: Database, address: str, repository: SvnRepository) -> None:
    """Sync it all, compare it with the dump, and read it all again."""
    head = repository.youngest
    with database.connection() as conn:
        repo = register_source(conn, address)
        first = Syncer(database, Settings(chunk_revisions=25)).run(request(repo))
        assert first.error is None
        assert first.counts == Counts(read=head, inserted=head)
        assert_equal(stored(conn, repo), repository)
        again = Syncer(database, Settings()).run(
            request(repo, Mode.BACKFILL, window=(1, max(head + 1, 2)), reread=True)
        )
        assert again.counts == Counts(read=head, unchanged=head)
        assert integrity_checks.failures(conn) == {}


@pytest.mark.parametrize("dump", SAMPLE_DUMPS)
def test_a_sample_is_stored_as_it_is(
    database: Database, dump: Path, svn_repository: Callable[..., SvnRepository], svnserve: SvnServers
) -> None:
    repository = svn_repository(dump=dump)
    check_twice(database, repository.url, repository)
    check_twice(database, svnserve(repository).url(repository), repository)


def random_history(seed: int, revisions: int) -> bytes:
    """A dump with every kind of change at random places of a growing tree."""
    dice = random.Random(seed)
    writer = DumpWriter()
    trees: list[dict[str, str]] = [{"": "dir"}]
    names = ["a", "b c", "d@2", "e%20", "f'\"", "ü", "日本", "tab\\t", "x" * 80, "{g}", "-h"]
    for number in range(1, revisions + 1):
        tree = dict(trees[-1])
        message = dice.choice([None, "", "line\nline", "-" * 72 + "\nr1 | x", "<&>\u2028]]>", "é" * 500])
        writer.revision(message, dice.choice([None, "ann", "b o b", "ö"]), "2021-03-04T05:06:07.000008Z")
        touched: set[str] = set()
        for _ in range(dice.choice([0, 1, 2, 5])):
            inside = [p for p in tree if p and not any(_related(p, t) for t in touched)]
            folders = [
                p for p, k in tree.items() if k == "dir" and not any(_related(p, t) for t in touched if p)
            ]
            kind = dice.choice(["file", "file", "dir", "copy", "change", "props", "delete", "replace"])
            parent = dice.choice(folders or [""])
            path = f"{parent}/{dice.choice(names)}{number}".lstrip("/")
            if kind in ("file", "dir"):
                props = {b"k": b"v"} if dice.random() < 0.3 else None
                writer.node(path, kind=kind, text="x" if kind == "file" else None, props=props)
                tree[path] = kind
            elif kind == "copy" and number > 1:
                source_rev = dice.randrange(1, number)
                source = dice.choice([p for p in trees[source_rev] if p] or [""])
                if not source:
                    continue
                writer.node(path, kind=trees[source_rev][source], copyfrom=(source_rev, source))
                _graft(tree, path, trees[source_rev], source)
            elif kind in ("change", "props") and inside:
                path = dice.choice(inside)
                if kind == "props" or tree[path] == "dir":
                    writer.node(path, "change", kind=tree[path], props={b"k": b"%d" % number})
                else:
                    writer.node(path, "change", text=f"{number}")
            elif kind in ("delete", "replace") and inside:
                path = dice.choice(inside)
                for gone in [p for p in tree if p == path or p.startswith(path + "/")]:
                    del tree[gone]
                writer.node(path, "delete") if kind == "delete" else writer.node(path, "replace", text="new")
                if kind == "replace":
                    tree[path] = "file"
            else:
                continue
            touched.add(path)
        trees.append(tree)
    return writer.dump()


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _graft(tree: dict[str, str], path: str, origin: dict[str, str], source: str) -> None:
    for name, kind in origin.items():
        if name == source or name.startswith(source + "/"):
            tree[path + name[len(source) :]] = kind


@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_is_stored_as_it_is(
    database: Database, seed: int, svn_repository: Callable[..., SvnRepository]
) -> None:
    repository = svn_repository().load(random_history(seed, 60))
    check_twice(database, repository.url, repository)


def test_thousands_of_revisions_and_a_huge_one_are_stored_whole_and_once(
    database: Database, tmp_path: Path
) -> None:
    # A few chunks; memory is measured where the reader is tested, time by the benchmarks.
    revisions, huge = 3_200, 20_000
    url = svn_samples.large(tmp_path / "large", revisions, huge=huge)
    with database.connection() as conn:
        repo = register_source(conn, url)
        first = Syncer(database, Settings()).run(request(repo))
        assert first.counts == Counts(read=revisions, inserted=revisions)
        row = conn.execute(
            "SELECT count(*) AS paths, count(*) FILTER (WHERE rev_num = %s) AS of_the_huge_one"
            " FROM scm.svn_changed_paths",
            (revisions,),
        ).fetchone()
        # The first revision adds the folder too; the last one a folder for every thousand files.
        last = huge + huge // 1000
        assert row == {"paths": 9 + 8 * (revisions - 2) + last, "of_the_huge_one": last}
        again = Syncer(database, Settings()).run(
            request(repo, Mode.BACKFILL, window=RevisionWindow(1, revisions + 1), reread=True)
        )
        assert again.counts == Counts(read=revisions, unchanged=revisions)
