"""Usable and complete: each way of reading ends in the same rows, and none asks for more than it needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.model import JobType, Mode, Trigger
from sync_pipeline.ledger import watermarks
from sync_pipeline.policy import levels
from sync_pipeline.sync import merge_requests as work
from sync_pipeline_sandbox.gitlab import data_sets, faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.world import build_world
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.sync.conftest import START, Forge

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
WINDOW = {"window": ("1990-01-01", "2024-05-06")}
_NO_ROUTE = faults.json_answer(404, {"error": "404 Not Found"})
_FORGET = """
TRUNCATE scm.mrs, scm.mr_versions, scm.mr_commits, scm.mr_reviews, scm.review_events, scm.mr_approvals,
         scm.mr_reviewers, scm.deferred_fetches, scm.quarantine, scm.unreadable_details
"""
_OPEN = "SELECT natural_key, detail, is_planned FROM scm.deferred_fetches WHERE resolved_at IS NULL"
_NOTICES = "SELECT DISTINCT notice FROM scm.sync_runs WHERE notice IS NOT NULL"


def read_anew(forge: Forge, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """Everything that a person's job stores of the project, from nothing."""
    forge.conn.execute(_FORGET)
    for job_type in (MR, REVIEWS):
        watermarks.replace(
            forge.conn, repo_id=forge.repo_id, job_type=job_type, covered=(), actor="ann", reason="test"
        )
    forge.other_settings(**settings)
    forge.asked()
    for report in forge.both(Mode.BACKFILL, **WINDOW, trigger=Trigger.RUNNER):
        assert report.succeeded, report.error
    return forge.state()


def kinds(forge: Forge) -> Counter[str]:
    """How often each kind of request was sent since the last call."""
    return Counter(path.rpartition("/")[2] for path in forge.asked())


@pytest.fixture(params=[*data_sets.DATA_SETS, "generated"])
def odd(request: pytest.FixtureRequest, forge: Forge, tmp_path: Path) -> Forge:
    """A forge whose project is one of the data sets."""
    if request.param == "generated":
        project = generate(forge.gitlab, forge.group, merge_requests=60, notes=4, tie=5)
    else:
        project = data_sets.build(request.param, forge.gitlab, forge.group, tmp_path)
    forge.repo_id = register_project(
        forge.conn, forge.server.url, project.id, project.full_path, origin=START
    )
    return forge


def test_each_way_of_reading_ends_in_the_same_rows(odd: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    by_rest = read_anew(odd, gitlab_graphql=False)
    assert by_rest["review_events"] or by_rest["mrs"]
    assert odd.rows(_NOTICES) == []
    at_once = read_anew(odd, gitlab_graphql=True)
    assert "graphql" in kinds(odd)
    assert at_once == by_rest
    # Usable first, and the rest as planned.
    monkeypatch.setattr(levels, "AT_ONCE", 0)
    planned = read_anew(odd)
    assert planned == by_rest
    # The server stops answering queries after the first one.
    odd.gitlab.faults.add(
        "/api/graphql", faults.json_answer(404, {"error": "404 Not Found"}), times=None, skip=1
    )
    assert read_anew(odd) == by_rest
    odd.gitlab.faults.clear()
    # With the commits of the repository stored, fewer lists are read, and the rows are equal.
    if odd.commits().succeeded:
        now = read_anew(odd, gitlab_graphql=False)
        assert now | {"git_commits": [], "refs": []} == by_rest
    assert odd.rows(f"{_OPEN} AND is_planned") == []


# --- Requests ---------------------------------------------------------------------------------------------


@pytest.fixture
def world(forge: Forge, tmp_path: Path) -> Forge:
    """A forge whose project is a smaller world of the budgets: 200 merge requests and 1,000 notes."""
    made = build_world(forge.gitlab, forge.group, tmp_path / "world", merge_requests=200)
    forge.repo_id = register_project(
        forge.conn, forge.server.url, made.project.id, made.project.full_path, origin=START
    )
    return forge


def counted(forge: Forge, **settings: Any) -> Counter[str]:
    """The requests of reading the whole project as a person."""
    read_anew(forge, **settings)
    return kinds(forge)


def test_a_first_read_to_usable_takes_a_tenth_of_a_request_each(
    world: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_MAX_PLANNED", 0)
    for report in world.both(Mode.BACKFILL, **WINDOW):
        assert report.succeeded, report.error
    assert kinds(world).total() <= 20
    assert len(world.rows("SELECT 1 FROM scm.mrs")) == 200
    assert len(world.rows("SELECT 1 FROM scm.mr_approvals WHERE closed_at IS NULL")) == 145
    assert len(world.rows("SELECT 1 FROM scm.review_events WHERE origin = 'note'")) == 1_000
    # What is left is planned, and not called complete. The last page had few rows.
    left = world.rows(_OPEN)
    assert {row["is_planned"] for row in left} == {True}
    notes = [int(row["natural_key"]) for row in left if row["detail"] == "notes"]
    assert len(notes) > 170
    query = "SELECT 1 FROM scm.mr_reviews WHERE 'note' = ANY (whole) AND mr_iid = ANY (%(iids)s)"
    assert world.rows(query, iids=notes) == []


def test_a_first_read_to_complete_skips_lists_that_are_known_to_be_empty(world: Forge) -> None:
    asked = counted(world)
    assert world.rows(_OPEN) == []
    assert asked.total() <= 5.5 * 200
    assert (asked["commits"], asked["resource_milestone_events"]) == (0, 0)
    assert asked["approvals"] == 110, "those that somebody approves"
    assert asked["reviewers"] == 133, "those with a reviewer"
    assert {asked[name] for name in ("versions", "discussions", "resource_state_events")} == {200}


def test_rest_alone_asks_for_no_more_approvals_and_commits_than_there_are(world: Forge) -> None:
    assert world.commits().succeeded
    asked = counted(world, gitlab_graphql=False)
    assert "graphql" not in asked
    assert world.rows(_OPEN) == []
    assert asked.total() <= 6.2 * 200
    assert asked["approvals"] == 110
    assert asked["commits"] <= 10, "branches with a merge of their own"


def test_a_comment_costs_a_visit_one_query_and_the_notes(world: Forge) -> None:
    read_anew(world)
    project = next(one for one in world.gitlab.projects.values() if len(one.merge_requests) == 200)
    request = next(one for one in project.merge_requests.values() if one.row["state"] == "opened")
    world.tick(hours=1)
    world.both()
    world.tick(minutes=10)
    world.gitlab.comment(request, world.user, "One more")
    world.tick(minutes=2)
    world.asked()
    assert all(report.succeeded for report in world.both())
    assert kinds(world) == {
        str(project.id): 1,
        "merge_requests": 1,
        "graphql": 1,
        "discussions": 1,
    }
