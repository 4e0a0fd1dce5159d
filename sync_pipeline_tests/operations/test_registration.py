"""Registering and retiring: all or nothing, once, and harmless when repeated."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.catalog import RepositorySpec, parse_spec, read_snapshot
from sync_pipeline.errors import AccessDenied, ConfigurationError, SourceGone, SyncError, Transient
from sync_pipeline.model import JobType, Lifecycle, RevisionWindow, Visit
from sync_pipeline.operations import registration
from sync_pipeline.operations.registration import Registered
from sync_pipeline.settings import Settings
from sync_pipeline.store import jobs, proofs, watermarks
from sync_pipeline.store.database import Database

ROOT = "svn://h/paint"
SPEC = parse_spec(f"svn:{ROOT}")


class Door:
    """A front door with a known HEAD, where a real repository of that many revisions would be slow."""

    def __init__(self, head: int = 0, *, root: str = ROOT, error: SyncError | None = None) -> None:
        self.answer = Visit("a-uuid", root, head)
        self.error = error

    def visit(self) -> Visit:
        if self.error:
            raise self.error
        return self.answer


def add(database: Database, head: int = 0, spec: RepositorySpec = SPEC, **options: Any) -> Registered:
    root = options.pop("root", spec.address)
    error = options.pop("error", None)
    return registration.add_repository(
        database,
        Settings(),
        spec,
        actor="me@host",
        reader_factory=lambda url: Door(head, root=root, error=error),
        **options,
    )


def count(database: Database, table: str) -> int:
    queries = {
        "repos": "SELECT count(*) AS n FROM scm.repos",
        "watermarks": "SELECT count(*) AS n FROM scm.sync_watermarks",
        "events": "SELECT count(*) AS n FROM scm.sync_watermark_events",
        "jobs": "SELECT count(*) AS n FROM scm.sync_jobs",
    }
    with database.connection() as conn:
        row = conn.execute(queries[table]).fetchone()
        assert row is not None
        return int(row["n"])


def counts(database: Database) -> list[int]:
    return [count(database, table) for table in ("repos", "watermarks", "events", "jobs")]


@pytest.mark.parametrize(
    ("head", "origin", "history"),
    [(0, 1, []), (1000, 1, []), (1001, 1001, [(1, 1001)]), (2500, 2001, [(1, 1001), (1001, 2001)])],
)
def test_live_syncing_begins_with_the_block_of_head_and_older_blocks_are_queued(
    database: Database, head: int, origin: int, history: list[tuple[int, int]]
) -> None:
    done = add(database, head)
    assert done.created
    assert done.repository is not None
    assert (done.head, done.origin) == (head, origin)
    assert done.history == tuple(RevisionWindow(*block) for block in history)
    with database.connection() as conn:
        row = watermarks.get(conn, done.repository.repo_id, JobType.REVISIONS)
        queued = conn.execute(
            "SELECT lower(revs) AS first, upper(revs) AS end, mode, trigger, priority, status, actor"
            "  FROM scm.sync_jobs ORDER BY revs"
        ).fetchall()
        assert proofs.failures(conn) == {}
    assert (row.origin, row.head_rev, row.covered) == (origin, head, ())
    assert [(job["first"], job["end"]) for job in queued] == history
    for job in queued:
        assert (job["mode"], job["trigger"], job["status"]) == ("backfill", "registration", "pending")
        assert (job["priority"], job["actor"]) == (jobs.HISTORY_PRIORITY, "me@host")
    assert count(database, "events") == 1


def test_what_the_catalog_knows_follows_from_address_and_visit(database: Database) -> None:
    spec = parse_spec("svn:svn://H:3691/paint/Trunk%20A")
    repository = add(database, spec=spec, root="svn://h:3691/paint").repository
    assert repository is not None
    assert (repository.instance, repository.instance_slug) == ("h:3691", "h_3691")
    assert (repository.tenant, repository.slug) == ("paint", f"paint_trunk_a_{repository.repo_id}")
    assert (repository.svn_root, repository.svn_prefix) == ("svn://h:3691/paint", "Trunk A")
    assert repository.svn_uuid == "a-uuid"
    assert add(database, spec=parse_spec("svn:svn://h/x"), tenant="owner").repository.tenant == "owner"  # type: ignore[union-attr]


def test_registering_again_changes_nothing_and_needs_no_source(database: Database) -> None:
    first = add(database, 2500)
    before = counts(database)
    again = add(database, error=Transient("the server is down"))
    assert not again.created
    assert again.repository == first.repository
    assert counts(database) == before


def test_of_many_at_once_one_registers(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: add(database, 1500), range(4)))
    assert sum(result.created for result in done) == 1
    assert len({result.repository.repo_id for result in done if result.repository}) == 1
    assert counts(database) == [1, 1, 1, 1]


def test_a_dry_run_writes_nothing(database: Database) -> None:
    plan = add(database, 2500, dry_run=True)
    assert (plan.created, plan.repository, plan.origin, len(plan.history)) == (True, None, 2001, 2)
    assert counts(database) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (AccessDenied("wrong password for svn://h"), ConfigurationError),
        (SourceGone("there is no repository at svn://h"), ConfigurationError),
        (Transient("svn://h does not answer"), Transient),
    ],
)
def test_a_source_that_refuses_leaves_no_trace(
    database: Database, error: SyncError, seen: type[SyncError]
) -> None:
    with pytest.raises(seen, match=str(error)) as caught:
        add(database, error=error)
    assert caught.value.code == error.code
    assert counts(database) == [0, 0, 0, 0]


def test_a_failure_after_the_row_takes_the_row_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(jobs, "enqueue", broken)
    with pytest.raises(RuntimeError):
        add(database, 1500)
    assert counts(database) == [0, 0, 0, 0]


def test_gitlab_is_refused_by_name(database: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"gitlab:12: .*GitLab"):
        add(database, spec=parse_spec("gitlab:12"))


def test_a_retired_repository_keeps_its_row_and_loses_its_waiting_jobs(database: Database) -> None:
    repository = add(database, 2500).repository
    assert repository is not None
    retire: Callable[[], bool] = lambda: registration.retire_repository(  # noqa: E731
        database, repository.repo_id, reason=" moved ", actor="me@host"
    )
    assert retire()
    assert not retire()
    found = registration.find_repository(database, repository.spec)
    assert found.lifecycle is Lifecycle.RETIRED
    with database.connection() as conn:
        states = conn.execute("SELECT DISTINCT status, last_error FROM scm.sync_jobs").fetchall()
        row = conn.execute("SELECT retired_reason FROM scm.repos").fetchone()
    assert row == {"retired_reason": "moved (me@host)"}
    assert [state["status"] for state in states] == ["dead"]
    assert "moved" in states[0]["last_error"]
    assert counts(database) == [1, 1, 1, 2]
    again = add(database, 2500)
    assert again.again
    assert again.repository == repository
    assert [len(block) for block in again.history] == [1000, 1000]


def test_another_repository_at_the_place_of_a_retired_one_is_a_new_one(database: Database) -> None:
    repository = add(database).repository
    assert repository is not None
    with database.connection() as conn:
        conn.execute("UPDATE scm.repos SET svn_uuid = 'of the one before'")
    registration.retire_repository(database, repository.repo_id, reason="replaced", actor="me@host")
    successor = add(database)
    assert successor.repository is not None
    assert not successor.again
    assert successor.repository.repo_id != repository.repo_id


def test_retiring_needs_a_reason(database: Database) -> None:
    repository = add(database).repository
    assert repository is not None
    with pytest.raises(ConfigurationError, match="--reason"):
        registration.retire_repository(database, repository.repo_id, reason=" ", actor="me@host")


def test_a_repository_is_found_by_specification_number_and_slug(database: Database) -> None:
    repository = add(database).repository
    assert repository is not None
    for text in (repository.spec, str(repository.repo_id), repository.slug):
        assert registration.find_repository(database, text) == repository
    for text, part in [("svn:svn://h/pain", f"did you mean {repository.spec}"), ("99", "99"), ("x", "'x'")]:
        with pytest.raises(ConfigurationError, match=part):
            registration.find_repository(database, text)


def test_the_snapshot_holds_the_catalog_with_the_retired_ones(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    repository = add(database, 1500).repository
    assert repository is not None
    assert registration.snapshot_lacks(path, [repository])
    written = registration.export_catalog(database, path)
    assert not registration.snapshot_lacks(path, [repository])
    assert written == read_snapshot(path)
    assert written.repositories == (repository,)
    assert (written.head_rev, written.block_count) == (1500, 2)
    registration.retire_repository(database, repository.repo_id, reason="x", actor="y")
    registration.export_catalog(database, path)
    assert [entry.lifecycle for entry in read_snapshot(path).repositories] == [Lifecycle.RETIRED]
    path.write_text("torn")
    assert registration.snapshot_lacks(path, [])


def test_a_list_registers_the_good_ones_and_names_the_bad(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "repos.toml"
    path.write_text(
        """
        [[repository]]
        spec = "svn:svn://h/a"
        tenant = "t"
        [[repository]]
        spec = "nonsense"
        [[repository]]
        spec = "svn:svn://h/b"
        branch = "x"
        [[repository]]
        tenant = "t"
        [[repository]]
        spec = 5
        [[repository]]
        spec = "svn:svn://h/a"
        """
    )
    results = [
        result
        for _, result in registration.add_listed(
            database,
            Settings(),
            registration.read_list(path),
            actor="me@host",
            reader_factory=lambda url: Door(root=url),
        )
    ]
    first, last = results[0], results[-1]
    assert isinstance(first, Registered)
    assert first.created
    assert first.repository is not None
    assert first.repository.tenant == "t"
    assert isinstance(last, Registered)
    assert not last.created
    for result, part in zip(results[1:-1], ["nonsense", "branch", "no spec", "spec has to be"], strict=True):
        assert isinstance(result, ConfigurationError)
        assert part in str(result)
    assert count(database, "repos") == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "lists nothing"),
        ("repository = 5", "lists nothing"),
        ("[[repo]]\nspec = 'x'", "unknown key repo"),
        ("[[repository]\n", "line 1, column 13"),
    ],
)
def test_a_list_that_is_none_is_refused_as_a_whole(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "repos.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        registration.read_list(path)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_example_list_is_valid() -> None:
    example = Path(registration.__file__).parent.parent.parent / "repos.example.toml"
    assert [entry.problem for entry in registration.read_list(example)] == [None, None]
