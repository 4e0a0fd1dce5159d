"""The examples of the contract, which judge the readers: what each answer becomes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sync_pipeline.core.gitlab_rows import Origin, Person, RefKind
from sync_pipeline.sources.gitlab.fields import commit
from sync_pipeline.sources.gitlab.merge_requests import (
    MergeRequestReader,
    merge_request,
    merge_request_version,
)
from sync_pipeline.sources.gitlab.refs import _ref
from sync_pipeline.sources.gitlab.reviews import (
    ReviewReader,
    approvals,
    note,
    resource_event,
    without_duplicates,
)
from sync_pipeline.sources.gitlab.transport import Instance
from sync_pipeline_tests.sources.gitlab.servers import answer, scripted

Example = Callable[[str], Any]
A, B, C, D = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
USER1, USER2, USER3 = (Person(10 + n, f"user{n}", f"User {n}") for n in (1, 2, 3))


def at(*numbers: int) -> datetime:
    return datetime(*numbers, tzinfo=UTC)  # type: ignore[misc,arg-type]


def test_a_branch_and_a_tag(example: Example) -> None:
    branch = _ref(RefKind.BRANCH, example("branch"))
    assert (branch.name, branch.tip, branch.target, branch.is_default) == ("feature/parser", A, A, False)
    tag = _ref(RefKind.TAG, example("tag"))
    assert (tag.name, tag.tip, tag.target, tag.message) == ("v1.0.0", B, D, "first")
    assert tag.created_at == at(2024, 5, 4, 8)


@pytest.mark.parametrize("name", ["commit_list_item", "commit_list_item_with_stats", "commit_detail"])
def test_a_commit(example: Example, name: str) -> None:
    row = commit(example(name))
    assert (row.sha, row.parents, row.title, row.message) == (A, (B,), "Add parser", "Add parser\n")
    assert row.committed_at == at(2024, 5, 6, 12, 2, 11)
    assert row.committed_raw == "2024-05-06T14:02:11.000+02:00"
    assert row.authored_at == at(2024, 5, 5, 7, 30)
    assert (row.author_name, row.author_email) == ("User 1", "user1@example.test")
    assert (row.additions, row.deletions) == ((None, None) if name == "commit_list_item" else (12, 3))
    assert row.flags == ()


@pytest.mark.parametrize(
    "name", ["merge_request_list_item", "merge_request_list_item_premium", "merge_request_detail"]
)
def test_a_merge_request(example: Example, name: str) -> None:
    row = merge_request(example(name))
    assert (row.mr_id, row.iid, row.project_id, row.state, row.title) == (
        5001,
        7,
        101,
        "merged",
        "Add parser",
    )
    assert (row.author, row.assignees, row.reviewers, row.merged_by) == (USER1, (USER1,), (USER2,), USER3)
    assert row.updated_at == at(2024, 5, 7, 10, 0, 0, 456000)
    assert row.merged_at == at(2024, 5, 7, 10, 0, 0, 222000)
    assert (row.head_sha, row.merge_commit_sha, row.squash_commit_sha) == (A, "e" * 40, None)
    assert (row.labels, row.milestone, row.user_notes_count) == (("kind::feature",), "m1", 2)
    assert (row.source_branch, row.target_branch, row.is_draft) == ("feature/parser", "main", False)
    detailed = name == "merge_request_detail"
    assert (row.base_sha, row.changes_count) == ((C, "1") if detailed else (None, None))
    assert row.flags == ()


def test_a_fresh_merge_request_and_one_whose_people_and_fork_are_gone(example: Example) -> None:
    fresh = merge_request(example("merge_request_detail_fresh"))
    assert (fresh.base_sha, fresh.changes_count) == (None, None)
    assert fresh.flags == ()
    gone = merge_request(example("merge_request_deleted_author_and_fork"))
    assert gone.source_project_id is None
    assert gone.author is None or gone.author.username == "ghost"
    assert gone.flags == ()


def test_a_version_replaces_the_detail(example: Example) -> None:
    item, version, one = (
        example("merge_request_list_item"),
        example("mr_version"),
        example("commit_list_item"),
    )
    with scripted(answer([item]), answer([version]), answer([one])) as server:
        (batch,) = MergeRequestReader(Instance(server.url, "t").client(), 101).read_some([7])
        assert [asked.target.partition("?")[0] for asked in server.asked] == [
            f"/api/v4/projects/101/merge_requests{tail}" for tail in ("", "/7/versions", "/7/commits")
        ]
    (row,) = batch.rows
    detail = merge_request(example("merge_request_detail"))
    assert (row.base_sha, row.start_sha, row.changes_count) == (detail.base_sha, detail.start_sha, "1")
    assert row.versions == (merge_request_version(version),)
    assert (row.versions[0].version_id, row.versions[0].patch_id) == (8002, "f" * 40)
    assert row.commits == (commit(one),)


def test_a_discussion_on_a_line_with_its_resolution(example: Example) -> None:
    data = example("discussion")
    first, reply = (note(one, 7, data["id"], bool(index)) for index, one in enumerate(data["notes"]))
    assert (first.event_id, first.kind, first.actor, first.is_reply) == (
        "note:9002",
        "code_comment",
        USER2,
        False,
    )
    assert first.position is not None
    assert (first.position["new_path"], first.position["new_line"]) == ("src/p.py", 2)
    assert (first.resolvable, first.resolved, first.resolved_by) == (True, True, USER1)
    assert first.resolved_at == at(2024, 5, 6, 12, 50)
    assert (reply.event_id, reply.is_reply, reply.discussion_id) == ("note:9003", True, data["id"])


@pytest.mark.parametrize(
    ("name", "kind", "details"),
    [
        ("note_comment", "comment", {}),
        ("note_diff", "code_comment", {}),
        ("note_reply", "code_comment", {}),
        ("note_internal", "comment", {}),
        ("note_deleted_author", "comment", {}),
        ("note_system_approved", "approve", {}),
        ("note_system_unapproved", "unapprove", {}),
        ("note_system_assign", "assign", None),
        ("note_system_review_request", "reviewer_assign", None),
        ("note_system_commits", "push", None),
    ],
)
def test_each_note_has_its_kind(
    example: Example, name: str, kind: str, details: dict[str, Any] | None
) -> None:
    data = example(name)
    row = note(data, 7, None, False)
    assert (row.event_id, row.kind) == (f"note:{data['id']}", kind)
    assert row.is_system == name.startswith("note_system")
    assert row.is_internal == (name == "note_internal")
    if details is None:
        assert row.details.get("added") or row.details.get("removed") or row.details["commits"] >= 1
    else:
        assert row.details == details
    assert row.flags == ()


def test_state_label_and_milestone_events(example: Example) -> None:
    state = resource_event(example("resource_state_event"), 7, Origin.STATE)
    assert (state.event_id, state.kind, state.actor) == ("state:401", "merge", USER3)
    label = resource_event(example("resource_label_event"), 7, Origin.LABEL)
    assert (label.event_id, label.kind, label.actor) == ("label:402", "label", USER1)
    assert label.details == {"action": "add", "id": 71, "name": "kind::feature"}
    gone = resource_event(example("resource_label_event_label_deleted"), 7, Origin.LABEL)
    assert (gone.details["id"], gone.details["name"]) == (None, None)
    milestone = resource_event(example("resource_milestone_event"), 7, Origin.MILESTONE)
    assert (milestone.kind, milestone.details["action"]) == ("milestone", "add")
    assert milestone.details["name"]


@pytest.mark.parametrize("name", ["approvals_ce", "approvals_premium"])
def test_approvals_with_a_time(example: Example, name: str) -> None:
    (one,) = approvals(example(name), ())
    assert (one.person, one.approved_at, one.time_source) == (USER2, at(2024, 5, 6, 13), "approval")


def test_approvals_of_an_old_server_take_the_time_of_the_note_or_none(example: Example) -> None:
    old = example("approvals_ce_old")
    (one,) = approvals(old, ())
    assert (one.approved_at, one.time_source) == (None, None)
    given = note(example("note_system_approved"), 7, None, False)
    (one,) = approvals(old, (given,))
    assert (one.approved_at, one.time_source) == (given.occurred_at, "note")
    taken = note(
        {**example("note_system_unapproved"), "author": example("note_system_approved")["author"]},
        7,
        None,
        False,
    )
    (one,) = approvals(old, (given, taken))
    assert one.approved_at is None


def test_a_merge_told_by_a_note_and_an_event_is_one_merge(example: Example) -> None:
    event = resource_event(example("resource_state_event"), 7, Origin.STATE)
    system_note = {
        **example("note_system_approved"),
        "id": 9100,
        "body": "merged",
        "author": example("resource_state_event")["user"],
    }
    system_note["created_at"] = "2024-05-07T10:00:00.100Z"
    rows = without_duplicates([note(system_note, 7, None, False), event])
    assert [(row.event_id, row.kind, row.duplicate_of) for row in rows] == [
        ("note:9100", "system", "state:401"),
        ("state:401", "merge", None),
    ]
    alone = without_duplicates([note(system_note, 7, None, False)])
    assert [(row.event_id, row.kind) for row in alone] == [("note:9100", "merge")]


@pytest.mark.parametrize(
    ("text", "action", "label", "is_same"),
    [
        ("added ~12 label", "add", 12, True),
        ("added ~12 and ~14 labels and removed ~9 label", "add", 14, True),
        ("added ~12 and ~14 labels and removed ~9 label", "remove", 9, True),
        ('added ~"in review" label', "add", 3, True),
        ("Added ~12 label", "add", None, True),  # the label was deleted since
        ("added ~12 label", "add", 14, False),
        ("added ~12 label", "remove", 12, False),
        ("added ~12 label", "remove", None, False),
        ("added ~12 and ~14 labels and removed ~9 label", "add", 9, False),
    ],
)
def test_a_note_about_labels_and_an_event_of_another_label_are_two_facts(
    example: Example, text: str, action: str, label: int | None, is_same: bool
) -> None:
    system_note = {**example("note_system_approved"), "id": 9100, "body": text}
    subject = None if label is None else {"id": label, "name": "in review"}
    event = {
        "id": 5,
        "user": system_note["author"],
        "created_at": system_note["created_at"],
        "action": action,
    }
    rows = without_duplicates(
        [note(system_note, 7, None, False), resource_event({**event, "label": subject}, 7, Origin.LABEL)]
    )
    assert {row.event_id: row.duplicate_of for row in rows} == {
        "note:9100": "label:5" if is_same else None,
        "label:5": None,
    }


@pytest.mark.parametrize(
    ("text", "action", "is_same"),
    [
        ("changed milestone to %5", "add", True),
        ("removed milestone", "remove", True),
        ("removed milestone", "add", False),
        ("changed milestone to %5", "remove", False),
    ],
)
def test_a_note_about_a_milestone_and_the_opposite_event_are_two_facts(
    example: Example, text: str, action: str, is_same: bool
) -> None:
    system_note = {**example("note_system_approved"), "id": 9100, "body": text}
    event = {
        "id": 5,
        "user": system_note["author"],
        "created_at": system_note["created_at"],
        "action": action,
    }
    milestone = resource_event({**event, "milestone": {"id": 8, "title": "1.0"}}, 7, Origin.MILESTONE)
    rows = without_duplicates([note(system_note, 7, None, False), milestone])
    assert [row.duplicate_of for row in rows if row.origin is Origin.NOTE] == [
        "milestone:5" if is_same else None
    ]


def test_a_whole_review_costs_six_requests(example: Example) -> None:
    responses = [
        [example("discussion"), example("discussion_individual")],
        [example("resource_state_event")],
        [example("resource_label_event")],
        [example("resource_milestone_event")],
        example("approvals_ce"),
        example("mr_reviewers"),
    ]
    row = merge_request(example("merge_request_list_item"))
    with scripted(*map(answer, responses)) as server:
        (found,) = ReviewReader(Instance(server.url, "t").client(), 101).read([row])
        assert len(server.asked) == 6
    assert {event.event_id for event in found.events} >= {"note:9002", "note:9003", "state:401", "label:402"}
    assert found.whole == frozenset(Origin)
    assert found.reviewers is not None
    assert [(one.person, one.state) for one in found.reviewers] == [
        (USER2, "approved"),
        (USER3, "unreviewed"),
    ]
    assert found.reviewers[0].requested_at == at(2024, 5, 5, 8, 10)
    assert (found.deferred, found.quarantined) == ((), ())
