"""Merge requests and reviews over HTTP: whole while they move, owed where they fail, cheap where they
rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.errors import AccessDenied, SourceGone, SyncError, Transient
from sync_pipeline.core.gitlab_rows import MergeRequestPage, MergeRequestRow, Origin, ReviewSet
from sync_pipeline.core.model import TimeWindow
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader
from sync_pipeline.sources.gitlab.reviews import ReviewReader, note, read_note
from sync_pipeline_sandbox.gitlab import DEVELOPER, faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.recorded import load_recorded
from sync_pipeline_sandbox.gitlab.records import MergeRequest, Project
from sync_pipeline_tests.sources.gitlab.conftest import Site

BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
ALL = TimeWindow(BEGINNING, datetime(2100, 1, 1, tzinfo=UTC))


def reader(site: Site, project: Project | None = None) -> MergeRequestReader:
    return MergeRequestReader(site.client, (project or site.project).id)


def read(site: Site, window: TimeWindow = ALL, project: Project | None = None) -> dict[int, MergeRequestRow]:
    return {row.iid: row for batch in reader(site, project).read(window) for row in batch.rows}


def review(site: Site, project: Project | None = None) -> ReviewSet:
    (found,) = ReviewReader(site.client, (project or site.project).id).read(
        list(read(site, ALL, project).values())
    )
    return found


@pytest.fixture
def opened(site: Site) -> MergeRequest:
    """A merge request of ``feature`` with one commit."""
    site.git.commit("main", "One\n", files={"a": "1\n"})
    main = site.git.resolve("main")
    assert main is not None
    site.git.commit("feature", "Two\n", files={"b": "2\n"}, parents=[main])
    site.tick()
    return site.gitlab.open_merge_request(site.project, author=site.user, title="Add b")


# --- Merge requests ---------------------------------------------------------------------------------------


def test_every_merge_request_of_a_large_project_is_read_once(site: Site) -> None:
    project = generate(site.gitlab, site.group, merge_requests=700, notes=0, tie=250)
    path = f"/projects/{project.id}/merge_requests"
    batches: list[MergeRequestPage] = []
    known = {
        request.row["iid"]: (request.row["sha"], request.row["target_branch"])
        for request in project.merge_requests.values()
    }
    batches = list(reader(site, project).read(ALL, lambda iids: {iid: known[iid] for iid in iids}))
    iids = [row.iid for batch in batches for row in batch.rows]
    assert sorted(iids) == sorted(project.merge_requests)
    assert all(row.mr_id >= 2**40 for batch in batches for row in batch.rows)
    assert site.gitlab.journal.count(path) <= 20, "seven pages, and two passes over each long tie"
    covered = [batch.covered for batch in batches if isinstance(batch.covered, TimeWindow)]
    assert (covered[0].since, covered[-1].until) == (ALL.since, ALL.until)
    assert all(one.until == other.since for one, other in pairwise(covered))


def test_what_a_page_says_is_covered_was_handed_out_before(site: Site) -> None:
    project = generate(site.gitlab, site.group, merge_requests=300, notes=0, tie=120)
    seen: set[int] = set()
    for batch in reader(site, project).read(ALL):
        seen |= {row.iid for row in batch.rows}
        if isinstance(batch.covered, TimeWindow):
            before = {
                iid
                for iid, request in project.merge_requests.items()
                if request.updated_at < batch.covered.until
            }
            assert before <= seen


def test_rows_edited_while_the_list_is_read_are_not_lost_and_hide_none(site: Site) -> None:
    project = generate(site.gitlab, site.group, merge_requests=250, notes=0, tie=1)
    first = sorted(project.merge_requests.values(), key=lambda one: one.updated_at)[:3]

    def edit() -> None:
        site.tick()
        for request in first:
            site.gitlab.edit(request, title="edited meanwhile")

    site.gitlab.faults.add(f"/projects/{project.id}/merge_requests\\?", faults.Do(edit, after=True))
    found = read(site, ALL, project)
    assert sorted(found) == sorted(project.merge_requests)
    assert [found[request.row["iid"]].title for request in first] == ["edited meanwhile"] * 3


def test_versions_and_commits_come_with_the_merge_request(site: Site, opened: MergeRequest) -> None:
    site.tick()
    site.gitlab.push(site.project, "feature", "Three\n", author=site.user, files={"c": "3\n"})
    row = read(site)[opened.row["iid"]]
    assert row.versions is not None
    assert row.commits is not None
    assert len(row.versions) == 2
    assert row.versions[0].version_id > row.versions[1].version_id
    assert [one.title for one in row.commits] == ["Three", "Two"]
    assert (row.head_sha, row.base_sha) == (site.git.resolve("feature"), site.git.resolve("main"))
    assert row.changes_count == "2"


def test_a_force_push_replaces_the_commits_and_keeps_the_versions(site: Site, opened: MergeRequest) -> None:
    main, before = site.git.resolve("main"), site.git.resolve("feature")
    assert main is not None
    site.tick()
    site.gitlab.push(
        site.project, "feature", "Rewritten\n", author=site.user, parents=[main], files={"b": "3\n"}
    )
    row = read(site)[opened.row["iid"]]
    assert row.versions is not None
    assert row.commits is not None
    assert [one.title for one in row.commits] == ["Rewritten"]
    assert [one.head_sha for one in row.versions] == [site.git.resolve("feature"), before]


def test_children_of_a_known_head_are_not_asked_for_again(site: Site, opened: MergeRequest) -> None:
    first = read(site)[opened.row["iid"]]
    site.gitlab.journal.clear()
    site.gitlab.edit(opened, title="Only the title")
    ((batch),) = reader(site).read(ALL, lambda _: {first.iid: (first.head_sha, first.target_branch)})
    (row,) = batch.rows
    assert (row.title, row.versions, row.commits) == ("Only the title", None, None)
    assert site.gitlab.journal.count() == 1


def test_merge_requests_are_read_by_number_for_a_sweep(site: Site, opened: MergeRequest) -> None:
    numbers = [opened.row["iid"], 4711]
    found = [row.iid for batch in reader(site).read_some(numbers) for row in batch.rows]
    assert found == [opened.row["iid"]]
    assert reader(site).settle(opened.row["iid"])[0].commits
    with pytest.raises(SourceGone) as caught:
        reader(site).settle(4711)
    assert caught.value.code == "no_object"


def test_a_child_that_fails_is_deferred_and_the_merge_request_stored(
    site: Site, opened: MergeRequest
) -> None:
    site.gitlab.faults.add("/versions", faults.server_error(500), times=None)
    (batch,) = reader(site).read(ALL)
    (row,) = batch.rows
    assert row.versions is None
    assert row.commits
    assert row.base_sha, "the detail fills in"
    assert [(one.natural_key, one.detail) for one in batch.deferred] == [(str(row.iid), "versions")]
    assert "server_error" in batch.deferred[0].error


def test_a_server_that_fails_everything_fails_the_page(site: Site) -> None:
    project = generate(site.gitlab, site.group, merge_requests=40, notes=0)
    site.gitlab.faults.add("/(versions|commits)", faults.server_error(500), times=None)
    with pytest.raises(Transient):
        read(site, ALL, project)


def test_a_dead_token_ends_the_job_not_the_details(site: Site, opened: MergeRequest) -> None:
    def kill() -> None:
        for token in site.gitlab.tokens.values():
            site.gitlab.revoke(token)

    site.gitlab.faults.add("/versions", faults.Do(kill))
    with pytest.raises(AccessDenied) as caught:
        read(site)
    assert caught.value.code == "credential"


@pytest.mark.parametrize(
    ("what", "code"), [("disabled", "denied"), ("deleted", "not_found"), ("moved", None), ("archived", None)]
)
def test_each_state_of_a_project_has_its_own_answer(
    site: Site, opened: MergeRequest, what: str, code: str | None
) -> None:
    if what == "disabled":
        site.gitlab.switch_feature(site.project, "merge_requests", "disabled")
    elif what == "deleted":
        site.gitlab.delete_project(site.project)
    elif what == "moved":
        site.gitlab.rename_project(site.project, "renamed")
    else:
        site.gitlab.archive(site.project)
    if code is None:
        assert list(read(site)) == [opened.row["iid"]]
        return
    with pytest.raises(SyncError) as caught:
        read(site)
    assert caught.value.code == code


def test_a_row_that_is_none_is_quarantined_and_the_others_stored(site: Site, opened: MergeRequest) -> None:
    good = dict(read(site)[opened.row["iid"]].raw)
    body = [
        {"iid": 3, "title": "no id"},
        good | {"labels": [{"name": "a,b"}], "author": None, "assignee": 5},
        17,
    ]
    site.gitlab.faults.add("/merge_requests\\?", faults.json_answer(200, body))
    (batch,) = reader(site).read(ALL)
    assert [row.natural_key for row in batch.quarantined] == ["3", "?"]
    (row,) = batch.rows
    assert (row.author, row.labels, row.flags) == (None, ("a,b",), ("bad_type",))


def test_an_old_server_without_the_later_fields_is_read(site: Site, opened: MergeRequest) -> None:
    site.gitlab.behaviour.old = True
    site.gitlab.merge(opened, site.other)
    row = read(site)[opened.row["iid"]]
    assert (row.state, row.merged_by and row.merged_by.username) == ("merged", "user2")
    found = review(site)
    assert found.reviewers is None


def test_recorded_merge_requests_and_notes_arrive_whole(site: Site, recorded: Path) -> None:
    group = site.gitlab.group("recorded")
    site.gitlab.add_member(group, site.user, DEVELOPER)
    project = load_recorded(site.gitlab, recorded, group=group)
    rows = json.loads((recorded / "merge_requests.json").read_text(encoding="utf-8"))
    notes = json.loads((recorded / "merge_request_notes.json").read_text(encoding="utf-8"))
    found = read(site, ALL, project)
    assert sorted(found) == sorted(row["iid"] for row in rows)
    for row in rows:
        got = found[row["iid"]]
        assert (got.mr_id, got.title, got.state, got.head_sha) == (
            row["id"],
            row["title"],
            row["state"],
            row["sha"],
        )
        assert got.merged_at == (datetime.fromisoformat(row["merged_at"]) if row["merged_at"] else None)
        assert got.flags == ()
    assert any(row.merged_at and row.merged_at > row.updated_at for row in found.values())
    sets = ReviewReader(site.client, project.id).read(list(found.values()))
    events = {event.event_id: event for one in sets for event in one.events if event.origin is Origin.NOTE}
    sent = {
        f"note:{one['id']}": one for number, some in notes.items() if int(number) in found for one in some
    }
    assert set(events) == set(sent)
    kinds = {name: events[name].kind for name, one in sent.items() if one["system"]}
    assert "system" not in kinds.values()
    assert list(kinds.values()).count("approve") == sum(
        one["body"] == "approved this merge request" for one in sent.values()
    )


# --- Reviews ----------------------------------------------------------------------------------------------


def test_a_whole_review_arrives_with_ids_that_stay(site: Site, opened: MergeRequest) -> None:
    gitlab, user, other = site.gitlab, site.user, site.other
    steps: list[Callable[[], object]] = [
        lambda: gitlab.request_review(opened, user, other),
        lambda: gitlab.assign(opened, user, other),
        lambda: gitlab.add_label(site.project, opened, user, "bug"),
        lambda: gitlab.approve(opened, other),
        lambda: gitlab.unapprove(opened, other),
        lambda: gitlab.approve(opened, other),
        lambda: gitlab.close(opened, user),
        lambda: gitlab.reopen(opened, user),
        lambda: gitlab.merge(opened, user),
    ]
    for step in steps:
        site.tick(seconds=30)
        step()
    site.tick()
    thread = gitlab.comment(opened, other, "approved this merge request", thread=True)
    gitlab.comment(opened, user, "reply", reply_to=thread)
    hidden = gitlab.comment(opened, user, "only for us", internal=True)
    gitlab.resolve(opened, thread, user)
    first = review(site)
    kinds = [event.kind for event in first.events]
    assert kinds[:9] == [
        "reviewer_assign",
        "assign",
        "label",
        "approve",
        "unapprove",
        "approve",
        "close",
        "reopen",
        "merge",
    ]
    assert first.events[0].details == {"added": ["user2"], "removed": []}
    talk = {event.body: event for event in first.events if not event.is_system}
    assert talk["approved this merge request"].kind == "comment", "typed by hand"
    assert talk["approved this merge request"].resolved_by is not None
    assert talk["reply"].is_reply
    assert talk["reply"].discussion_id == talk["approved this merge request"].discussion_id
    assert talk["only for us"].is_internal
    assert first.approvals is not None
    assert [(one.person.username, one.time_source) for one in first.approvals] == [("user2", "approval")]
    assert first.reviewers is not None
    assert [(one.person.username, one.state) for one in first.reviewers] == [("user2", "approved")]
    assert first.whole == frozenset(Origin)

    gitlab.edit_note(opened, thread, "edited")
    gitlab.delete_note(opened, hidden)
    gitlab.delete_label(site.project, "bug")
    gitlab.reset_approvals(opened)
    second = review(site)
    assert second.approvals == ()
    gone = {event.event_id for event in first.events} - {event.event_id for event in second.events}
    assert gone == {f"note:{hidden.row['id']}"}
    assert {event.body for event in second.events} >= {"edited"}
    assert next(event for event in second.events if event.kind == "label").details["name"] is None


def test_a_long_review_is_read_to_its_end(site: Site, opened: MergeRequest) -> None:
    for number in range(230):
        site.gitlab.comment(opened, site.other, f"comment {number}", internal=number < 150)
    rows = list(read(site).values())
    reviews = ReviewReader(site.client, site.project.id)
    (found,) = reviews.read(rows)
    assert sum(not event.is_system for event in found.events) == 230
    # To a reader who may not see internal notes the first page is empty and the second one short.
    site.project.visibility = "public"
    site.group.members.clear()
    (found,) = reviews.read(rows)
    assert sum(not event.is_system for event in found.events) == 80


def test_notes_are_read_where_there_are_no_discussions(site: Site, opened: MergeRequest) -> None:
    site.gitlab.comment(opened, site.other, "hello")
    whole = review(site)
    missing = faults.json_answer(404, {"error": "404 Not Found"})
    site.gitlab.faults.add("/discussions", missing, times=None)
    found = review(site)
    assert [event.event_id for event in found.events] == [event.event_id for event in whole.events]
    assert Origin.NOTE in found.whole
    assert found.deferred == ()


def test_notes_are_read_too_where_the_discussions_hold_too_few(site: Site, opened: MergeRequest) -> None:
    site.gitlab.comment(opened, site.other, "hello")
    site.gitlab.faults.add("/discussions", faults.json_answer(200, []), times=None)
    assert [event.body for event in review(site).events if not event.is_system] == ["hello"]


def test_what_cannot_be_read_is_deferred_and_not_called_whole(site: Site, opened: MergeRequest) -> None:
    site.gitlab.comment(opened, site.other, "hello")
    site.gitlab.faults.add("/approvals", faults.server_error(500), times=None)
    site.gitlab.faults.add("/resource_label_events", faults.proxy_error(502), times=None)
    found = review(site)
    assert found.approvals is None
    assert found.whole == {Origin.NOTE, Origin.STATE, Origin.MILESTONE}
    assert [one.detail for one in found.deferred] == ["approvals", "label_events"]
    assert [event.body for event in found.events if not event.is_system] == ["hello"]


def test_a_feature_that_the_server_does_not_have_is_not_deferred(site: Site, opened: MergeRequest) -> None:
    site.gitlab.faults.add("/approvals", faults.json_answer(404, {"error": "404 Not Found"}), times=None)
    found = review(site)
    assert (found.approvals, found.deferred) == (None, ())


def test_a_changed_merge_request_costs_seven_requests(site: Site, opened: MergeRequest) -> None:
    site.gitlab.comment(opened, site.other, "hello")
    rows = read(site)
    ReviewReader(site.client, site.project.id).read(list(rows.values()))
    assert site.gitlab.journal.count() == 1 + 7


@pytest.mark.parametrize(
    ("body", "kind", "details"),
    [
        ("approved this merge request", "approve", {}),
        ("Approved this merge request", "approve", {}),
        ("unapproved this merge request", "unapprove", {}),
        ("requested changes", "request_changes", {}),
        ("assigned to @user1 and unassigned @user4", "assign", {"added": ["user1"], "removed": ["user4"]}),
        ("assigned to @a, @b, and @c.d", "assign", {"added": ["a", "b", "c.d"], "removed": []}),
        (
            "requested review from @a and removed review request for @b and @c",
            "reviewer_assign",
            {"added": ["a"], "removed": ["b", "c"]},
        ),
        ("added 12 commits\n\n<ul></ul>", "push", {"commits": 12}),
        ("marked this merge request as **draft**", "draft", {}),
        ("unmarked as a **Work In Progress**", "ready", {}),
        ("changed target branch from `a` to `b`", "retarget", {}),
        ("restored source branch `x`", "branch", {}),
        ("mentioned in commit abc", "mention", {}),
        ("merged", "merge", {}),
        ("mergedly", "system", {}),
        ("did something new", "system", {}),
        ("", "system", {}),
    ],
)
def test_system_notes_are_read_by_their_beginning(body: str, kind: str, details: dict[str, Any]) -> None:
    assert read_note(body) == (kind, details)


def test_a_note_without_people_or_text_is_stored() -> None:
    row = note(
        {"id": 2**60, "author": None, "body": None, "created_at": "yesterday", "confidential": True},
        1,
        None,
        False,
    )
    assert (row.event_id, row.actor, row.body, row.occurred_at) == (f"note:{2**60}", None, None, None)
    assert (row.is_internal, row.flags) == (True, ("bad_date",))
