"""Which details of a review are read: nothing that may have changed is skipped."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sync_pipeline.core.gitlab_rows import StoredReview
from sync_pipeline.policy import levels
from sync_pipeline.policy.levels import SeenReview
from sync_pipeline_tests.facts.gitlab_facts import JO, merge_request

ALL = frozenset(levels.REVIEW_DETAILS)
ROW = merge_request(1)
NOTES = {"note:1": {"event_type": "approve"}, "note:2": {"event_type": "comment"}}
STORED = StoredReview(
    complete=ALL,
    status="open",
    head_sha=ROW.head_sha,
    approvers=frozenset({"1"}),
    notes=NOTES,
)
SEEN = SeenReview(
    same_notes=True,
    approval_notes=frozenset({"note:1"}),
    reviewer_notes=frozenset(),
    approvers=frozenset({"1"}),
    reviewers={},
    is_entangled=False,
)


def by_graphql(row: Any = ROW, stored: Any = STORED, seen: Any = SEEN, has_milestones: bool = True) -> Any:
    return levels.plan_by_graphql(row, stored, seen, has_milestones=has_milestones)


def test_an_unchanged_review_costs_no_request_now_and_its_events_are_confirmed_later() -> None:
    plan = by_graphql()
    assert plan.changed == frozenset()
    assert plan.unsure == frozenset(levels.EVENTS)
    assert plan.kept == {levels.NOTES, levels.APPROVALS}


def test_a_review_that_was_never_read_is_read_whole() -> None:
    plan = by_graphql(row=replace(ROW, reviewers=(JO,)), stored=StoredReview())
    assert (plan.changed, plan.unsure) == (ALL, frozenset())


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"state": "closed"}, levels.STATE_EVENTS),
        ({"labels": ("bug",)}, levels.LABEL_EVENTS),
        ({"milestone": "1.0"}, levels.MILESTONE_EVENTS),
        ({"reviewers": (JO,)}, levels.REVIEWERS),
    ],
)
def test_a_row_that_shows_a_change_has_the_list_of_it_read(change: dict[str, Any], detail: str) -> None:
    assert by_graphql(row=replace(ROW, **change)).changed == {detail}


@pytest.mark.parametrize(
    ("change", "details"),
    [
        ({"same_notes": False}, {levels.NOTES}),
        ({"approvers": frozenset()}, {levels.APPROVALS}),
        ({"approvers": None}, {levels.APPROVALS}),
        ({"approval_notes": frozenset({"note:1", "note:3"})}, {levels.APPROVALS}),
        ({"same_notes": False, "is_entangled": True}, {levels.NOTES, *levels.EVENTS}),
    ],
)
def test_a_change_that_graphql_shows_is_read(change: dict[str, Any], details: set[str]) -> None:
    assert by_graphql(seen=replace(SEEN, **change)).changed == details


def test_a_detail_with_an_open_fetch_is_never_kept() -> None:
    plan = by_graphql(stored=replace(STORED, complete=frozenset()))
    assert plan.changed == {levels.NOTES, *levels.EVENTS, levels.APPROVALS}
    assert plan.kept == frozenset()


def test_without_milestones_only_stored_events_of_them_are_read() -> None:
    assert levels.MILESTONE_EVENTS in by_graphql(has_milestones=False).kept
    stored = replace(STORED, has_milestone_events=True)
    assert levels.MILESTONE_EVENTS not in by_graphql(stored=stored, has_milestones=False).kept
    assert levels.MILESTONE_EVENTS in levels.plan_by_rest(ROW, STORED, has_milestones=False).kept


def test_by_rest_approvals_are_read_for_a_new_note_or_a_new_head() -> None:
    kinds = {"note:1": "approve", "note:2": "comment"}
    assert not levels.needs_approvals(ROW, STORED, kinds)
    assert levels.needs_approvals(ROW, STORED, kinds | {"note:3": "unapprove"})
    assert levels.needs_approvals(replace(ROW, head_sha="f" * 40), STORED, kinds)
    # A first reading.
    assert levels.needs_approvals(ROW, StoredReview(), kinds)
    assert not levels.needs_approvals(ROW, StoredReview(), {"note:2": "comment"})


def test_open_and_recent_merge_requests_come_first() -> None:
    now = datetime(2024, 6, 1, tzinfo=UTC)
    old = now - timedelta(days=91)
    found = [
        levels.priority(replace(ROW, state=state, updated_at=at), now)
        for state, at in (("opened", now), ("opened", old), ("merged", now), ("closed", old))
    ]
    assert found == [10, 20, 30, 50]
