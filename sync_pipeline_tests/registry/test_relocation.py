"""An SVN server under a new address: the repository keeps its number, rows, assets and coverage."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.catalog import parse_spec
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Access, JobType, Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import integrity_checks, repos, watermarks
from sync_pipeline.registry import registration, relocation
from sync_pipeline.registry.relocation import Relocated
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import svn_reader
from sync_pipeline_sandbox.svn_samples import growing
from sync_pipeline_tests.builders import request
from sync_pipeline_tests.svn_fixtures import SvnRepository, create_repository

SETTINGS = Settings()


def add(database: Database, url: str, **options: Any) -> Repository:
    registered = registration.add_repository(
        database,
        SETTINGS,
        parse_spec(f"svn:{url}"),
        actor="me@host",
        reader_factory=lambda address: svn_reader(SETTINGS, address),
        **options,
    )
    assert registered.repository is not None
    return registered.repository


def relocate(database: Database, repository: Repository, url: str, **options: Any) -> Relocated:
    values: dict[str, Any] = {"reason": "new host", "actor": "me@host"}
    return relocation.relocate_repository(
        database,
        SETTINGS,
        repository,
        url,
        source_of=lambda address, prefix: svn_reader(SETTINGS, address, prefix),
        **(values | options),
    )


@pytest.fixture
def old(tmp_path: Path, database: Database) -> Repository:
    """A repository of 30 revisions that is registered and synced."""
    repository = add(database, create_repository(tmp_path / "old").load(growing(30)).url)
    assert Syncer(database, SETTINGS).run(request(repository.repo_id)).counts.inserted == 30
    return repository


def moved(tmp_path: Path) -> SvnRepository:
    """Takes the repository to another place."""
    shutil.move(tmp_path / "old", tmp_path / "new")
    return SvnRepository(tmp_path / "new")


def commit(place: Path) -> None:
    subprocess.run(
        ["svn", "mkdir", "-q", "-m", "more", f"{place.as_uri()}/more"], check=True, capture_output=True
    )


def test_a_known_repository_at_a_new_address_is_no_new_one(
    database: Database, tmp_path: Path, old: Repository
) -> None:
    new = moved(tmp_path).url
    for dry_run in (True, False):
        with pytest.raises(ConfigurationError) as caught:
            add(database, new, dry_run=dry_run)
        assert caught.value.code == "known_uuid"
        assert f"scm-sync repo relocate {old.repo_id} {new} --reason TEXT" in str(caught.value)
        assert "--second-copy" in str(caught.value)
    copy = add(database, new, second_copy=True)
    assert copy.repo_id != old.repo_id


def test_a_relocated_repository_goes_on_where_it_was(
    database: Database, tmp_path: Path, old: Repository
) -> None:
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_watermarks SET access = 'moved', access_detail = 'it is elsewhere'")
        before = watermarks.get(conn, old.repo_id, JobType.REVISIONS)
    place = moved(tmp_path)
    tried = relocate(database, old, place.url, dry_run=True)
    assert (tried.compared, tried.changed, tried.dry_run) == (20, True, True)
    with database.connection() as conn:
        assert repos.get(conn, old.repo_id) == old
    done = relocate(database, old, f"svn:{place.url}")
    assert (done.url, done.head, done.changed) == (place.url, 30, True)
    with database.connection() as conn:
        now = repos.get(conn, old.repo_id)
        assert (now.url, now.svn_root, now.svn_uuid) == (place.url, place.url, old.svn_uuid)
        assert (now.slug, now.instance_slug, now.tenant) == (old.slug, old.instance_slug, old.tenant)
        after = watermarks.get(conn, old.repo_id, JobType.REVISIONS)
        assert (after.covered, after.watermark, after.access) == (before.covered, before.watermark, Access.OK)
        event = repos.events(conn, old.repo_id)[-1]
        expected = {"event": "moved", "old_value": old.url, "new_value": place.url, "actor": "me@host"}
        assert event | expected | {"reason": "new host"} == event
    commit(tmp_path / "new")
    report = Syncer(database, SETTINGS).run(request(old.repo_id))
    assert (report.succeeded, report.counts.inserted, report.counts.updated) == (True, 1, 0)
    with database.connection() as conn:
        assert integrity_checks.failures(conn) == {}
    assert not relocate(database, now, place.url).changed


def test_a_replaced_repository_that_is_relocated_has_to_verify_its_whole_history(
    database: Database, tmp_path: Path, old: Repository
) -> None:
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_watermarks SET access = 'replaced', access_detail = 'another one'")
        # Another history, older than what relocating compares.
        conn.execute("UPDATE scm.svn_changed_paths SET path = '/other' WHERE rev_num = 3")
        conn.execute("UPDATE scm.svn_revisions SET paths_hash = '', content_hash = '' WHERE rev_num = 3")
    done = relocate(database, old, moved(tmp_path).url)
    assert (done.changed, done.stays_replaced) == (True, True)
    with database.connection() as conn:
        assert watermarks.get(conn, old.repo_id, JobType.REVISIONS).access is Access.REPLACED
        assert Syncer(database, SETTINGS).run(request(old.repo_id)).error_code == "replaced"
        assert watermarks.get(conn, old.repo_id, JobType.REVISIONS).access is Access.REPLACED


def _other(tmp_path: Path) -> str:
    return create_repository(tmp_path / "other").load(growing(30)).url


def _rewritten(tmp_path: Path) -> str:
    """The same UUID, another history."""
    place = create_repository(tmp_path / "rewritten").load(growing(30, paths=3))
    uuid = (tmp_path / "old" / "db" / "uuid").read_text().splitlines()[0]
    subprocess.run(["svnadmin", "setuuid", str(place.path), uuid], check=True)
    return place.url


def _older(tmp_path: Path) -> str:
    shutil.copytree(tmp_path / "old", tmp_path / "older")
    (tmp_path / "older" / "db" / "current").write_text("20\n")
    return (tmp_path / "older").as_uri()


def _part(tmp_path: Path) -> str:
    shutil.copytree(tmp_path / "old", tmp_path / "part")
    return f"{(tmp_path / 'part').as_uri()}/trunk"


def _absent(tmp_path: Path) -> str:
    return (tmp_path / "absent").as_uri()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (_other, "is another repository: its UUID is"),
        (_rewritten, "has other content under r30 than what is stored"),
        (_older, "is older: its HEAD is r20, and r30 was seen"),
        (_part, "is the part 'trunk' of its repository"),
        (_absent, "there is no repository at"),
    ],
    ids=["other", "rewritten", "older", "part", "absent"],
)
def test_what_is_not_the_known_repository_is_refused(
    database: Database, tmp_path: Path, old: Repository, make: Callable[[Path], str], line: str
) -> None:
    with pytest.raises(ConfigurationError, match=line):
        relocate(database, old, make(tmp_path))
    with database.connection() as conn:
        assert repos.get(conn, old.repo_id) == old
        assert [event["event"] for event in repos.events(conn, old.repo_id)] == ["registered"]


def test_relocating_needs_a_reason_an_active_repository_and_a_free_address(
    database: Database, tmp_path: Path, old: Repository
) -> None:
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    url = (tmp_path / "copy").as_uri()
    with pytest.raises(ConfigurationError, match="--reason"):
        relocate(database, old, url, reason=" ")
    copy = add(database, url, second_copy=True)
    with pytest.raises(ConfigurationError, match=f"scm-sync repo retire {copy.repo_id}"):
        relocate(database, old, url)
    registration.retire_repository(database, copy.repo_id, reason="merged", actor="me")
    assert relocate(database, old, url).changed
    with database.connection() as conn:
        retired = repos.get(conn, copy.repo_id)
    with pytest.raises(ConfigurationError, match="no active SVN repository"):
        relocate(database, retired, old.url)
