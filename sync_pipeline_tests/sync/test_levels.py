"""Usable and complete: each way of reading ends in the same rows, and none asks for more than it needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.model import JobType, Mode, Trigger
from sync_pipeline.ledger import watermarks
from sync_pipeline.policy import levels
from sync_pipeline.sync import details
from sync_pipeline.sync import merge_requests as work
from sync_pipeline_sandbox.gitlab import data_sets, faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.records import MergeRequest
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
_OF_ORIGIN = "SELECT 1 FROM scm.review_events WHERE origin = %(origin)s"
_NOTICES = "SELECT DISTINCT notice FROM scm.sync_runs WHERE notice IS NOT NULL"


def read_anew(
    forge: Forge, trigger: Trigger = Trigger.RUNNER, **settings: Any
) -> dict[str, list[dict[str, Any]]]:
    """Everything that a job stores of the project, from nothing. That of a person goes on until all is
    complete."""
    forge.conn.execute(_FORGET)
    for job_type in (MR, REVIEWS):
        watermarks.replace(
            forge.conn, repo_id=forge.repo_id, job_type=job_type, covered=(), actor="ann", reason="test"
        )
    forge.other_settings(**settings)
    forge.asked()
    for report in forge.both(Mode.BACKFILL, **WINDOW, trigger=trigger):
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
    assert kinds(world) == {"merge_requests": 1, "graphql": 1, "discussions": 1}


# --- What is skipped, and what that would lose if it were skipped too often --------------------------------


@pytest.fixture
def opened(forge: Forge) -> MergeRequest:
    """An open merge request from a branch with a commit, read completely."""
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    request = forge.gitlab.open_merge_request(forge.project, title="Topic", source="topic", author=forge.user)
    forge.gitlab.approve(request, forge.other)
    forge.tick()
    live(forge)
    return request


def live(forge: Forge, **settings: Any) -> Counter[str]:
    """The requests of a visit that the scheduler started."""
    if settings:
        forge.other_settings(**settings)
    forge.tick()
    forge.asked()
    for report in forge.both():
        assert report.succeeded, report.error
    return kinds(forge)


def pushed(forge: Forge, request: MergeRequest) -> None:
    """A push that takes the approvals away, without a note for each person."""
    forge.gitlab.push(forge.project, "topic", "More\n", files={"b": "2\n"})
    forge.gitlab.reset_approvals(request)


@pytest.mark.parametrize("graphql", [True, False])
def test_approvals_that_a_push_took_away_without_a_note_are_closed(
    forge: Forge, opened: MergeRequest, graphql: bool
) -> None:
    pushed(forge, opened)
    live(forge, gitlab_graphql=graphql)
    assert forge.rows("SELECT 1 FROM scm.mr_approvals WHERE closed_at IS NULL") == []


def test_approvals_by_the_notes_alone_would_miss_that_a_push_took_them_away(
    forge: Forge, opened: MergeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "needs_approvals", lambda row, stored, notes: False)
    pushed(forge, opened)
    live(forge, gitlab_graphql=False)
    assert len(forge.rows("SELECT 1 FROM scm.mr_approvals WHERE closed_at IS NULL")) == 1


@pytest.mark.parametrize("graphql", [True, False])
def test_unchanged_approvals_are_not_asked_for(forge: Forge, opened: MergeRequest, graphql: bool) -> None:
    forge.gitlab.comment(opened, forge.other, "One more")
    assert live(forge, gitlab_graphql=graphql)["approvals"] == 0
    forge.gitlab.approve(opened, forge.user)
    assert live(forge)["approvals"] == 1
    assert len(forge.rows("SELECT 1 FROM scm.mr_approvals WHERE closed_at IS NULL")) == 2


def compared_anew(forge: Forge, request: MergeRequest) -> None:
    """The target branch received the head: the server compares the same head with a later commit."""
    forge.git.commit("main", "Later\n", files={"c": "1\n"})
    later = forge.git.resolve("refs/heads/main")
    newest = request.versions[-1]
    number = newest["id"] + 1
    request.versions.append(newest | {"id": number, "base_commit_sha": later, "start_commit_sha": later})
    request.detail["diff_refs"] = request.detail["diff_refs"] | {"base_sha": later, "start_sha": later}
    forge.gitlab.touch(request)


@pytest.mark.parametrize("graphql", [True, False])
def test_a_new_comparison_of_the_same_head_is_read(forge: Forge, opened: MergeRequest, graphql: bool) -> None:
    compared_anew(forge, opened)
    assert live(forge, gitlab_graphql=graphql)["versions"] == 1
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 2


def test_versions_by_head_and_target_alone_would_miss_a_new_comparison(
    forge: Forge, opened: MergeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_head(row: Any, stored: Any, *_: Any) -> bool:
        return stored is None or stored.children != (row.head_sha, row.target_branch)

    monkeypatch.setattr(details, "_needs_children", by_head)
    compared_anew(forge, opened)
    assert live(forge)["versions"] == 0
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 1


@pytest.mark.parametrize("graphql", [True, False])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("deed", ["push", "retarget"])
def test_versions_between_two_equal_comparisons_are_read(
    forge: Forge, opened: MergeRequest, deed: str, together: bool, graphql: bool
) -> None:
    """A push, or another target, and back: head, target and comparison are as before."""
    assert forge.commits().succeeded
    before = forge.git.resolve("refs/heads/topic")
    base = forge.git.resolve("refs/heads/main")
    assert base is not None
    forge.git.set_ref("refs/heads/dev", base)
    forge.tick()
    live(forge)
    forge.tick()
    if deed == "push":
        after = forge.gitlab.push(forge.project, "topic", "Oops\n", files={"b": "2\n"})
        forge.git.set_ref("refs/heads/topic", before)
        forge.gitlab.pushed(forge.project, "topic", after, before)
    else:
        forge.gitlab.retarget(forge.project, opened, forge.user, "dev")
        forge.gitlab.retarget(forge.project, opened, forge.user, "main")
    forge.tick()
    forge.other_settings(gitlab_graphql=graphql)
    # Where the reviews were read before, the notes are stored already.
    for report in forge.both() if together else map(forge.syncer.run, map(forge.request, (REVIEWS, MR))):
        assert report.succeeded, report.error
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 3
    # A comment afterwards costs no list of versions.
    forge.gitlab.comment(opened, forge.other, "One more")
    assert live(forge, gitlab_graphql=True)["versions"] == 0


def test_a_comparison_without_a_common_commit_has_no_base(forge: Forge, opened: MergeRequest) -> None:
    sha = forge.git.commit("unrelated", "Another beginning\n", files={"z": "1\n"})
    forge.git.set_ref("refs/heads/dev", sha)
    forge.gitlab.retarget(forge.project, opened, forge.user, "dev")
    live(forge)
    (row,) = forge.rows("SELECT base_sha, start_sha FROM scm.mrs")
    assert (row["base_sha"], row["start_sha"]) == (None, sha)


@pytest.mark.parametrize("graphql", [True, False])
def test_approvals_that_a_push_took_away_are_closed_after_a_job_without_reviews(
    forge: Forge, opened: MergeRequest, graphql: bool
) -> None:
    pushed(forge, opened)
    forge.tick()
    forge.other_settings(gitlab_graphql=graphql)
    # This one stores the new head.
    assert forge.syncer.run(forge.request(MR)).succeeded
    assert forge.syncer.run(forge.request(REVIEWS)).succeeded
    assert forge.rows("SELECT 1 FROM scm.mr_approvals WHERE closed_at IS NULL") == []


@pytest.mark.parametrize("graphql", [True, False])
def test_a_reviewer_who_is_removed_and_asked_again_has_the_new_time(
    forge: Forge, opened: MergeRequest, graphql: bool
) -> None:
    query = "SELECT requested_at FROM scm.mr_reviewers WHERE closed_at IS NULL"
    forge.gitlab.request_review(opened, forge.user, forge.other)
    live(forge)
    (before,) = forge.rows(query)
    forge.tick(seconds=0.25)
    forge.gitlab.remove_reviewer(opened, forge.user, forge.other)
    forge.gitlab.request_review(opened, forge.user, forge.other)
    live(forge, gitlab_graphql=graphql)
    (now,) = forge.rows(query)
    assert now["requested_at"] > before["requested_at"]


@pytest.mark.parametrize("place", ["project", "group"])
def test_milestones_of_the_project_and_of_its_groups_are_found(forge: Forge, place: str) -> None:
    for number in range(4):
        forge.gitlab.open_merge_request(forge.project, title=str(number), source="x", author=forge.user)
    owner = forge.project if place == "project" else forge.group
    milestone = forge.gitlab.milestone(owner, "1.0")
    request = forge.project.merge_requests[2]
    forge.gitlab.set_milestone(request, forge.user, milestone)
    # The row shows none any more.
    forge.gitlab.set_milestone(request, forge.user, None)
    forge.tick()
    live(forge, gitlab_graphql=False)
    assert len(forge.rows("SELECT 1 FROM scm.review_events WHERE origin = 'milestone'")) == 2


def test_milestone_events_are_not_asked_for_where_there_is_no_milestone(forge: Forge) -> None:
    for number in range(4):
        forge.gitlab.open_merge_request(forge.project, title=str(number), source="x", author=forge.user)
    forge.tick()
    asked = live(forge, gitlab_graphql=False)
    assert (asked["milestones"], asked["resource_milestone_events"]) == (2, 0)


@pytest.mark.parametrize("detail", ["label", "state"])
def test_an_event_that_the_row_does_not_show_is_planned_and_found(
    forge: Forge, opened: MergeRequest, detail: str
) -> None:
    if detail == "label":
        forge.gitlab.add_label(forge.project, opened, forge.user, "bug")
        forge.gitlab.remove_label(forge.project, opened, forge.user, "bug")
    else:
        forge.gitlab.close(opened, forge.user)
        forge.gitlab.reopen(opened, forge.user)
    assert live(forge)[f"resource_{detail}_events"] == 0
    assert forge.rows(_OF_ORIGIN, origin=detail) == []
    left = {(row["detail"], row["is_planned"]) for row in forge.rows(_OPEN)}
    assert (f"{detail}_events", True) in left
    # An hour later every visit reads it; several updates within the hour cost one reading.
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
    assert live(forge)[f"resource_{detail}_events"] == 1
    assert len(forge.rows(_OF_ORIGIN, origin=detail)) == 2
    assert forge.rows(_OPEN) == []


@pytest.mark.parametrize("detail", ["label", "state"])
def test_an_event_that_the_row_shows_is_read_at_once(forge: Forge, opened: MergeRequest, detail: str) -> None:
    if detail == "label":
        forge.gitlab.add_label(forge.project, opened, forge.user, "bug")
    else:
        forge.gitlab.close(opened, forge.user)
    asked = live(forge)
    assert asked[f"resource_{detail}_events"] == 1
    assert asked["discussions"] == 0
    assert len(forge.rows(_OF_ORIGIN, origin=detail)) == 1


# --- Planned fetches --------------------------------------------------------------------------------------


def test_open_and_recent_merge_requests_are_completed_first(
    world: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_MAX_PLANNED", 0)
    world.both(Mode.BACKFILL, **WINDOW)
    query = (
        "SELECT DISTINCT priority, row_updated_at, natural_key FROM scm.deferred_fetches"
        " WHERE is_planned AND resolved_at IS NULL ORDER BY priority, row_updated_at DESC LIMIT 10"
    )
    first = [row["natural_key"] for row in world.rows(query)]
    monkeypatch.setattr(work, "_MAX_PLANNED", 10)
    world.tick()
    world.both()
    left = {row["natural_key"] for row in world.rows(_OPEN)}
    assert not left & set(first)
    assert len(left) > 150


def test_a_planned_fetch_that_fails_is_an_ordinary_one_and_the_others_go_on(
    world: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "AT_ONCE", 0)
    world.gitlab.faults.add(r"merge_requests/7/(versions|discussions)", faults.server_error(), times=None)
    read_anew(world)
    failed = world.rows(
        "SELECT natural_key, detail, is_planned, attempts FROM scm.deferred_fetches"
        " WHERE resolved_at IS NULL ORDER BY detail"
    )
    assert [tuple(row.values()) for row in failed] == [
        ("7", "notes", False, 1),
        ("7", "versions", False, 1),
    ]


def test_a_merge_request_that_is_gone_leaves_no_planned_fetch(
    world: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_MAX_PLANNED", 0)
    world.both(Mode.BACKFILL, **WINDOW)
    project = next(one for one in world.gitlab.projects.values() if len(one.merge_requests) == 200)
    world.gitlab.delete_merge_request(project, project.merge_requests[3])
    for report in world.both(trigger=Trigger.RUNNER):
        assert report.succeeded, report.error
    left = world.rows(_OPEN)
    assert {(row["natural_key"], row["is_planned"]) for row in left} == {("3", False)}


def test_a_completion_job_reads_what_is_planned_and_covers_nothing(
    world: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_MAX_PLANNED", 0)
    world.both(Mode.BACKFILL, **WINDOW)
    verified = world.rows("SELECT verified_at, covered_time FROM scm.sync_watermarks ORDER BY job_type")
    for report in world.both(Mode.REPAIR, only_deferred=True):
        assert report.succeeded, report.error
        assert report.covered == ()
    assert world.rows(_OPEN) == []
    assert (
        world.rows("SELECT verified_at, covered_time FROM scm.sync_watermarks ORDER BY job_type") == verified
    )
    assert world.rows("SELECT 1 FROM scm.review_events WHERE time_precision = 'second'") == []


# --- GraphQL that does not answer ---------------------------------------------------------------------------


def test_a_server_without_graphql_is_read_by_rest_with_the_reason_on_the_run(
    forge: Forge, opened: MergeRequest
) -> None:
    forge.gitlab.behaviour.graphql.enabled = False
    forge.gitlab.comment(opened, forge.other, "Hello")
    live(forge)
    assert len(forge.rows("SELECT 1 FROM scm.review_events WHERE event_type = 'comment'")) == 1
    (found,) = forge.rows(_NOTICES)
    assert found["notice"].startswith("GraphQL is not used: ")
