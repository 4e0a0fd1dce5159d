"""Releases: a flat list that is read whole at each visit, and synced only where somebody asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from sync_pipeline.core.model import (
    BEGINNING,
    Access,
    Depth,
    JobReport,
    JobType,
    Mode,
    TimeWindow,
)
from sync_pipeline.ledger import repos, watermarks
from sync_pipeline.registry import projects
from sync_pipeline.sync.remap import estimate, request
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.records import GUEST
from sync_pipeline_sandbox.gitlab.routes_releases import blank_release
from sync_pipeline_tests.sync.conftest import START, Forge

_STORED = "SELECT * FROM scm.releases WHERE repo_id = %(repo)s ORDER BY tag"
_OPEN = """
SELECT natural_key, kind FROM scm.discrepancies WHERE resolved_at IS NULL AND job_type = 'releases'
"""


@pytest.fixture
def forge(forge: Forge) -> Forge:
    """The project of every test, which syncs releases as well."""
    assert projects.add_job_types(forge.conn, [forge.repo_id], [JobType.RELEASES], actor="test")
    return forge


def release(forge: Forge, tag: str, **fields: Any) -> dict[str, Any]:
    """Make or replace the release of a tag."""
    forge.project.releases[tag] = blank_release(tag, START, forge.user, **fields)
    return forge.project.releases[tag]


def sync(forge: Forge, mode: Mode = Mode.INCREMENTAL, **other: Any) -> JobReport:
    """Sync the releases."""
    report = forge.syncer.run(forge.request(JobType.RELEASES, mode, **other))
    assert report.succeeded, report.error
    return report


def covered(forge: Forge) -> TimeWindow:
    """The one window of releases that is complete."""
    (window,) = watermarks.get(forge.conn, forge.repo_id, JobType.RELEASES).covered
    assert isinstance(window, TimeWindow)
    return window


def test_every_field_of_a_release_is_stored(forge: Forge) -> None:
    link = {"id": 7, "name": "wheel", "url": "https://files.example.com/w", "link_type": "package"}
    release(
        forge,
        "v1/β",
        name="First",
        description="# First\n",
        commit={"id": "a" * 40},
        milestones=[{"id": 2, "title": "1.0"}],
        assets={"count": 5, "sources": [], "links": [link]},
    )
    forge.tick()
    assert sync(forge).counts.inserted == 1
    [row] = forge.rows(_STORED)
    at = START.replace(microsecond=123000)
    expected = {
        "tag": "v1/β",
        "name": "First",
        "description": "# First\n",
        "commit_sha": "a" * 40,
        "created_at": at,
        "released_at": at,
        "author_id": forge.user["id"],
        "author_username": "user1",
        "author_name": forge.user["name"],
        "milestones": ["1.0"],
        "assets_count": 5,
        "asset_links": [{"id": 7, "name": "wheel", "url": "https://files.example.com/w", "type": "package"}],
        "deleted_at": None,
        "version": 1,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["raw"]["assets"]["links"] == [link]
    assert covered(forge).since == BEGINNING


def test_a_visit_takes_one_request_a_page_and_writes_only_new_and_edited_releases(forge: Forge) -> None:
    release(forge, "v1")
    forge.tick()
    sync(forge)
    forge.asked()
    first = covered(forge)
    forge.tick(hours=2)
    assert sync(forge).counts.changed == 0
    assert len(forge.asked("/releases")) == 1
    assert covered(forge).until > first.until
    release(forge, "v1", name="Edited", assets={"count": 4, "links": [{"id": 1, "name": "log"}]})
    release(forge, "v2")
    forge.tick()
    counts = sync(forge).counts
    assert (counts.inserted, counts.updated) == (1, 1)
    assert [(row["tag"], row["name"], row["version"]) for row in forge.rows(_STORED)] == [
        ("v1", "Edited", 2),
        ("v2", "v2", 1),
    ]


@pytest.mark.parametrize(("count", "requests"), [(100, 1), (101, 4), (250, 6)])
def test_a_list_of_several_pages_is_read_until_two_passes_agree(
    forge: Forge, count: int, requests: int
) -> None:
    for number in range(count):
        release(forge, f"v{number:03}")
    forge.tick()
    assert sync(forge).counts.inserted == count
    assert len(forge.asked("/releases")) == requests


def test_a_release_that_slips_over_a_page_edge_is_found_by_the_second_pass(forge: Forge) -> None:
    for number in range(150):
        release(forge, f"v{number:03}")
    forge.tick()
    # With the first row gone, number 100 moves to the page that was read before.
    forge.gitlab.faults.add(
        r"/releases\?.*page=2", faults.Do(lambda *_: forge.project.releases.pop("v000", None)), times=1
    )
    sync(forge)
    assert {row["tag"] for row in forge.rows(_STORED)} >= set(forge.project.releases)


def test_a_release_without_a_tag_is_in_quarantine_until_it_can_be_read(forge: Forge) -> None:
    release(forge, "v1")["tag_name"] = None
    release(forge, "v2")
    forge.tick()
    counts = sync(forge).counts
    assert (counts.inserted, counts.quarantined) == (1, 1)
    release(forge, "v1")
    [entry] = forge.rows("SELECT quarantine_id FROM scm.quarantine WHERE job_type = 'releases'")
    window = ("2024-01-01", "2024-05-01")
    sync(forge, Mode.REPAIR, window=window, quarantine=(entry["quarantine_id"],))
    assert forge.rows("SELECT FROM scm.quarantine WHERE resolved_at IS NULL") == []
    assert [row["tag"] for row in forge.rows(_STORED)] == ["v1", "v2"]


def test_a_reader_that_sees_no_tags_stores_nothing_and_says_which_role_it_needs(forge: Forge) -> None:
    release(forge, "v1")
    forge.tick()
    forge.gitlab.add_member(forge.group, forge.user, GUEST)
    assert sync(forge).counts.quarantined == 1
    [entry] = forge.rows("SELECT detail FROM scm.quarantine WHERE job_type = 'releases'")
    assert "Reporter" in entry["detail"]
    assert forge.rows(_STORED) == []


def test_a_comparison_finds_edited_and_deleted_releases_and_a_repair_stores_them(forge: Forge) -> None:
    for tag in ("gone", "other", "same"):
        release(forge, tag)
    forge.tick()
    sync(forge)
    del forge.project.releases["gone"]
    forge.conn.execute("UPDATE scm.releases SET name = 'wrong' WHERE tag = 'other'")
    window = covered(forge)
    forge.other_settings(deletion_confirmations=1, deletion_after_seconds=0)

    def differences() -> set[tuple[str, str]]:
        sync(forge, Mode.PROBE, depth=Depth.LISTING, window=window)
        return {(row["natural_key"], row["kind"]) for row in forge.rows(_OPEN)}

    assert differences() == {("gone", "extra"), ("other", "changed")}
    sync(forge, Mode.REPAIR, window=window, only_differences=True)
    assert differences() == set()
    gone, other, _ = forge.rows(_STORED)
    assert gone["deleted_at"] is not None
    assert other["name"] == "other"
    release(forge, "gone")
    forge.tick()
    assert sync(forge).counts.updated == 1
    assert forge.rows(_STORED)[0]["deleted_at"] is None


def test_columns_are_filled_from_the_stored_json(forge: Forge) -> None:
    release(forge, "v1")
    forge.tick()
    sync(forge)
    forge.asked()
    forge.conn.execute("UPDATE scm.releases SET name = NULL")
    repository = repos.get(forge.conn, forge.repo_id)
    assert estimate(forge.database, repository, JobType.RELEASES, None).updated == 1
    forge.syncer.run(request(repository, JobType.RELEASES, None, actor="test", reason="test"))
    assert forge.rows(_STORED)[0]["name"] == "v1"
    assert forge.asked() == []


@pytest.mark.parametrize("refusal", ["disabled", "denied"])
def test_without_access_nothing_is_covered_and_the_state_says_why(forge: Forge, refusal: str) -> None:
    release(forge, "v1")
    if refusal == "disabled":
        forge.project.releases_access_level = "disabled"
    else:
        answer = faults.json_answer(403, {"message": "403 Forbidden"})
        forge.gitlab.faults.add(r"/releases", answer, times=None)
    forge.syncer.run(forge.request(JobType.RELEASES))
    row = watermarks.get(forge.conn, forge.repo_id, JobType.RELEASES)
    assert row.access == Access(refusal)
    assert (row.covered == ()) or refusal == "disabled"
    assert forge.rows(_STORED) == []
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).access == Access.OK


def test_a_repository_syncs_releases_only_after_somebody_asked_for_them(forge: Forge) -> None:
    repository = repos.get(forge.conn, forge.repo_id)
    assert repository.optional_job_types == (JobType.RELEASES,)
    again = projects.add_job_types(forge.conn, [forge.repo_id], [JobType.RELEASES], actor="test")
    assert again == []
    events = forge.rows("SELECT new_value FROM scm.repo_events WHERE event = 'job_types'")
    assert [row["new_value"] for row in events] == ["releases"]
