"""A project that waits to be deleted, and one that moves to another owner."""

from __future__ import annotations

from typing import Any

import pytest

from sync_pipeline.core import catalog
from sync_pipeline.core.model import Access, JobType
from sync_pipeline.ledger import repos, watermarks
from sync_pipeline.registry import registration
from sync_pipeline_sandbox.gitlab import DEVELOPER
from sync_pipeline_tests import builders
from sync_pipeline_tests.sync.conftest import Forge

_EVENTS = "SELECT event, old_value, new_value FROM scm.repo_events WHERE repo_id = %(repo)s ORDER BY event_id"


@pytest.fixture(autouse=True)
def registered(forge: Forge) -> None:
    """Registered by its path, as `repo add` does it without a tenant."""
    forge.conn.execute("UPDATE scm.repos SET tenant = 'team1'")


def visited(forge: Forge) -> None:
    forge.tick()
    for report in (forge.commits(), *forge.both()):
        assert report.succeeded, report.error


def events(forge: Forge, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in forge.rows(_EVENTS) if row["event"] in names]


def repository(forge: Forge) -> dict[str, Any]:
    (row,) = forge.rows("SELECT * FROM scm.repos WHERE repo_id = %(repo)s")
    return row


def transferred(forge: Forge, name: str) -> None:
    group = forge.gitlab.group(name)
    forge.gitlab.add_member(group, forge.user, DEVELOPER)
    forge.gitlab.move_project(forge.project, group)


def test_a_project_that_waits_to_be_deleted_is_a_state_and_is_read_on(forge: Forge) -> None:
    forge.gitlab.push(forge.project, "main", "Work", author=forge.user)
    visited(forge)
    before = forge.state()
    forge.gitlab.mark_for_deletion(forge.project)
    day = forge.project.marked_for_deletion_on
    visited(forge)
    for job_type in (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS):
        row = watermarks.get(forge.conn, forge.repo_id, job_type)
        assert row.access is Access.PENDING_DELETION
        assert row.access_detail is not None
        assert f"was marked for deletion on {day}" in row.access_detail
        assert row.verified_at is not None
    assert repository(forge)["marked_for_deletion_on"] == day
    assert forge.state() == before
    visited(forge)
    forge.gitlab.restore(forge.project)
    visited(forge)
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).access is Access.OK
    assert repository(forge)["marked_for_deletion_on"] is None
    assert events(forge, "pending_deletion", "restored") == [
        ("pending_deletion", None, str(day)),
        ("restored", str(day), None),
    ]


def test_the_tenant_follows_a_project_to_another_group(forge: Forge) -> None:
    visited(forge)
    assert repository(forge)["tenant"] == "team1"
    transferred(forge, "team2")
    visited(forge)
    assert repository(forge)["tenant"] == "team2"
    assert events(forge, "moved", "tenant") == [
        ("moved", "team1/app1", "team2/app1"),
        ("tenant", "team1", "team2"),
    ]


def test_a_look_of_another_visit_takes_back_nothing_that_was_seen_since(forge: Forge) -> None:
    visited(forge)
    forge.tick()
    assert forge.commits().succeeded
    transferred(forge, "team2")
    # A discovery lists the project meanwhile.
    repos.record_project(forge.conn, forge.repo_id, builders.project_info("team2/app1", "main"), actor="me")
    before = forge.rows(_EVENTS)
    forge.tick()
    forge.asked()
    assert all(report.succeeded for report in forge.both())
    # They used the look of the commits.
    assert not any(path.endswith(f"/projects/{forge.project.id}") for path in forge.asked())
    assert forge.rows(_EVENTS) == before
    assert (repository(forge)["project_path"], repository(forge)["tenant"]) == ("team2/app1", "team2")


def test_a_look_of_another_visit_shows_another_project_with_the_number(forge: Forge) -> None:
    assert forge.commits().succeeded
    forge.conn.execute("UPDATE scm.repos SET source_created_at = source_created_at - interval '1 day'")
    for report in forge.both():
        assert (report.succeeded, report.error_code) == (False, "replaced")


def test_a_token_that_was_refused_since_the_look_of_another_visit_is_tried_anew(forge: Forge) -> None:
    assert forge.commits().succeeded
    forge.conn.execute(
        "INSERT INTO scm.revoked_credentials (instance, fingerprint, reason)"
        " SELECT instance, fingerprint, 'revoked' FROM scm.project_snapshots JOIN scm.repos USING (repo_id)"
    )
    forge.asked()
    assert all(report.succeeded for report in forge.both())
    assert len([path for path in forge.asked() if path.endswith(f"/projects/{forge.project.id}")]) == 1
    assert forge.rows("SELECT FROM scm.revoked_credentials") == []


@pytest.mark.parametrize("by_number", [True, False])
def test_a_tenant_that_a_person_gives_counts_for_a_registered_project_and_stays(
    forge: Forge, by_number: bool
) -> None:
    visited(forge)
    name = str(forge.project.id) if by_number else "team1/app1"

    def add(tenant: str | None, **other: Any) -> registration.Registered:
        return registration.add_repository(
            forge.database,
            forge.settings,
            catalog.parse_spec(f"gitlab:{name}"),
            tenant=tenant,
            actor="me",
            reader_factory=lambda url: pytest.fail("no SVN here"),
            **other,
        )

    assert add("office", dry_run=True).tenant_before == "team1"
    assert repository(forge)["tenant"] == "team1"
    found = add("office")
    assert (found.created, found.tenant_before) == (False, "team1")
    assert found.repository is not None
    assert found.repository.tenant == repository(forge)["tenant"] == "office"
    assert add("office").tenant_before is None
    assert add(None).tenant_before is None
    transferred(forge, "team2")
    visited(forge)
    assert repository(forge)["tenant"] == "office"
    assert events(forge, "tenant") == [("tenant", "team1", "office")]
