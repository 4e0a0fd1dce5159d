"""Merge requests and reviews as servers really tell them: twice, poorly, out of order, by clocks that differ.
Each fact is there once, as it is at the source, and what did not change is not written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sync_pipeline.core.model import JobType, Mode, TimeWindow
from sync_pipeline.ledger import watermarks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_merge_request_trouble import make, unread_for_days

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_MRS = "SELECT *, xmin::text FROM scm.mrs WHERE repo_id = %(repo)s ORDER BY iid"
_EVENTS = "SELECT * FROM scm.review_events WHERE repo_id = %(repo)s ORDER BY source_event_id"
_IN_FORCE = "SELECT username FROM scm.mr_approvals WHERE closed_at IS NULL ORDER BY 1"
_REREAD = {"window": ("1990-01-01", "2024-05-07"), "reread": True}


def visit(forge: Forge) -> None:
    for report in forge.both():
        assert report.succeeded, report.error


def push(forge: Forge, request: MergeRequest, *, bump: bool) -> None:
    forge.gitlab.push(forge.project, "topic", "More\n", files={"c": "1\n"}, bump=bump)


# --- Heads and approvals ---------------------------------------------------------------------------------


def test_a_head_that_moved_without_an_update_is_seen_in_the_list_with_the_reset_approvals(
    forge: Forge,
) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.approve(request, forge.other)
    forge.tick()
    visit(forge)
    before = forge.rows(_MRS)[0]
    assert [r["username"] for r in forge.rows(_IN_FORCE)] == ["user2"]
    unmoved = request.updated_at
    push(forge, request, bump=False)
    forge.gitlab.reset_approvals(request)
    request.updated_at = unmoved
    # No branch is read here, only the list, in which the row is for as long as the overlap lasts.
    forge.other_settings(overlap_seconds=3600)
    visit(forge)
    (after,) = forge.rows(_MRS)
    assert after["updated_at"] == before["updated_at"]
    assert after["head_sha"] == forge.git.resolve("refs/heads/topic") != before["head_sha"]
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 2
    assert len(forge.rows("SELECT 1 FROM scm.mr_commits")) == 2
    assert forge.rows(_IN_FORCE) == []
    (closed,) = forge.rows("SELECT username FROM scm.mr_approvals WHERE closed_at IS NOT NULL")
    assert closed["username"] == "user2"
    forge.asked()
    visit(forge)
    assert forge.asked("/approvals") == []


def test_reviews_that_are_synced_later_than_the_head_moved_are_read_again(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.approve(request, forge.other)
    forge.tick()
    visit(forge)
    unmoved = request.updated_at
    push(forge, request, bump=False)
    forge.gitlab.reset_approvals(request)
    request.updated_at = unmoved
    forge.other_settings(overlap_seconds=3600)
    assert forge.syncer.run(forge.request(MR)).succeeded
    assert forge.syncer.run(forge.request(REVIEWS)).succeeded
    assert forge.rows(_IN_FORCE) == []


def test_an_approval_that_is_given_again_after_a_reset_is_a_second_one(forge: Forge) -> None:
    (request,) = make(forge, 1)
    for _ in range(2):
        forge.gitlab.approve(request, forge.other)
        forge.tick()
        visit(forge)
        push(forge, request, bump=True)
        forge.gitlab.reset_approvals(request)
        forge.gitlab.touch(request)
        forge.tick()
        visit(forge)
    rows = forge.rows("SELECT username, closed_at IS NULL AS holds FROM scm.mr_approvals ORDER BY 1, 2")
    assert [tuple(r.values()) for r in rows] == [("user2", False)] * 2
    events = [e["event_type"] for e in forge.rows(_EVENTS) if e["event_type"] == "approve"]
    assert len(events) == 2


# --- What must not count as a change ---------------------------------------------------------------------

_VOLATILE = {
    "merge_status": "cannot_be_merged_recheck",
    "detailed_merge_status": "checking",
    "has_conflicts": True,
    "user": {"can_merge": True},
    "merge_after": "2024-06-01T00:00:00Z",
    "blocking_discussions_resolved": False,
    "upvotes": 7,
    "downvotes": 2,
    "task_completion_status": {"count": 3, "completed_count": 1},
    "time_stats": {"time_estimate": 60, "total_time_spent": 0},
    "allow_collaboration": True,
    "should_remove_source_branch": True,
    "field_of_tomorrow": [1, {"a": None}],
}


def facts(forge: Forge) -> list[object]:
    """Everything stored of merge requests and reviews, but for when it was last looked at."""
    read = ("read_at", "versions_read_at", "xmin")
    mrs = [{name: row[name] for name in row if name not in read} for row in forge.rows(_MRS)]
    return [mrs, forge.rows(_EVENTS), forge.rows("SELECT * FROM scm.mr_approvals ORDER BY approval_id")]


def reread(forge: Forge) -> tuple[int, int]:
    """Read everything again; returns how many rows that changed, for each of the two job types."""
    first, second = forge.both(Mode.BACKFILL, window=("1990-01-01", "2024-05-07"), reread=True)
    assert first.succeeded, first.error
    assert second.succeeded, second.error
    return first.counts.changed, second.counts.changed


def test_volatile_fields_write_nothing(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.comment(request, forge.other, "Hello")
    forge.tick()
    visit(forge)
    before = facts(forge)
    request.row.update(_VOLATILE)
    request.notes[0].row["author"] = dict(forge.other) | {"avatar_url": "https://example.test/other.png"}
    assert reread(forge) == (0, 0)
    assert facts(forge) == before


def test_people_and_labels_in_another_order_write_nothing(forge: Forge) -> None:
    (request,) = make(forge, 1)
    request.row["assignees"] = [forge.user, forge.other]
    for name in ("b", "a"):
        forge.gitlab.add_label(forge.project, request, forge.user, name)
    forge.tick()
    visit(forge)
    before = facts(forge)
    for name in ("assignees", "labels"):
        request.row[name] = request.row[name][::-1]
    assert reread(forge) == (0, 0)
    assert facts(forge) == before


@pytest.mark.parametrize("how", ["no such list", "too few in it"])
def test_a_copy_of_a_note_with_less_detail_removes_nothing_and_is_no_change(forge: Forge, how: str) -> None:
    (request,) = make(forge, 1)
    thread = forge.gitlab.comment(request, forge.other, "Why?")
    forge.gitlab.comment(request, forge.user, "Because", reply_to=thread)
    forge.tick()
    visit(forge)
    before = facts(forge)
    gone = faults.json_answer(404, {"error": "404 Not Found"})
    few = faults.json_answer(200, [])
    forge.gitlab.faults.add("/discussions", gone if how == "no such list" else few, times=None)
    assert reread(forge) == (0, 0)
    assert facts(forge) == before
    forge.gitlab.faults.clear()
    assert reread(forge) == (0, 0)


# --- Told by two endpoints, or in words that nobody knows ------------------------------------------------


def test_a_fact_that_two_endpoints_tell_is_counted_once_with_both_origins(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.add_label(forge.project, request, forge.other, "bug")
    forge.gitlab.close(request, forge.user)
    forge.gitlab.reopen(request, forge.other)
    forge.gitlab.merge(request, forge.user)
    # As servers did that wrote both.
    now = forge.gitlab.clock.now()
    label = forge.project.labels["bug"]["id"]
    for who, text in (
        (forge.other, f"added ~{label} label"),
        (forge.user, "closed"),
        (forge.other, "reopened"),
        (forge.user, "merged"),
    ):
        forge.gitlab.system_note(request, who, text, now)
    forge.tick()
    visit(forge)
    rows = forge.rows(_EVENTS)
    origins = {kind: [r["origin"] for r in rows if r["event_type"] == kind] for kind in ("close", "reopen")}
    origins |= {kind: [r["origin"] for r in rows if r["event_type"] == kind] for kind in ("merge", "label")}
    assert origins == {"close": ["state"], "reopen": ["state"], "merge": ["state"], "label": ["label"]}
    notes = [r for r in rows if r["origin"] == "note" and r["is_system"]]
    assert len(notes) == 4
    by_id = {r["source_event_id"]: r["event_type"] for r in rows}
    assert sorted(by_id[n["duplicate_of"]] for n in notes) == ["close", "label", "merge", "reopen"]
    before = facts(forge)
    assert reread(forge) == (0, 0)
    assert facts(forge) == before


def test_kinds_of_event_that_nobody_knows_are_kept_as_they_came(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.add_label(forge.project, request, forge.other, "bug")
    request.label_events[-1]["action"] = "frobnicated"
    forge.gitlab.close(request, forge.user)
    request.state_events[-1]["state"] = "teleported"
    forge.gitlab.system_note(request, forge.user, "transmogrified the thing", forge.gitlab.clock.now())
    forge.tick()
    visit(forge)
    found = {r["origin"]: (r["event_type"], r["details"], r["body"]) for r in forge.rows(_EVENTS)}
    assert found["state"] == ("state", {"state": "teleported"}, None)
    assert found["label"][1]["action"] == "frobnicated"
    assert found["note"] == ("system", {}, "transmogrified the thing")


def test_a_person_who_types_what_the_system_writes_approves_nothing(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.comment(request, forge.other, "approved this merge request")
    forge.tick()
    visit(forge)
    assert [(e["event_type"], e["is_system"]) for e in forge.rows(_EVENTS)] == [("comment", False)]
    assert forge.rows(_IN_FORCE) == []


def test_a_merge_request_passes_through_locked_and_states_that_nobody_heard_of(forge: Forge) -> None:
    (request,) = make(forge, 1)
    for state in ("locked", "archived", "merged"):
        forge.gitlab.set_state(request, state)
        forge.gitlab.touch(request)
        forge.tick()
        visit(forge)
        assert [r["status"] for r in forge.rows(_MRS)] == [state]
    assert forge.rows("SELECT 1 FROM scm.quarantine") == []


def test_a_merge_request_that_shows_up_in_another_project_is_there_in_both(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.tick()
    visit(forge)
    # The same number within the instance, under another project and another iid.
    other = forge.gitlab.project("app2", group=forge.group, repository=forge.git)
    repo = register_project(forge.conn, forge.server.url, other.id, "team1/app2", origin=request.created_at)
    del forge.project.merge_requests[request.iid]
    request.iid = request.row["iid"] = 9
    request.row["project_id"] = request.row["source_project_id"] = request.row["target_project_id"] = other.id
    other.merge_requests[9] = request
    forge.gitlab.touch(request)
    unread_for_days(forge)
    forge.tick()
    visit(forge)
    for report in forge.syncer.run_together([forge.request(t, repo_id=repo) for t in (MR, REVIEWS)]):
        assert report.succeeded, report.error
    rows = forge.rows("SELECT repo_id, iid, gitlab_id, deleted_at FROM scm.mrs ORDER BY repo_id")
    assert [tuple(r.values()) for r in rows] == [
        (forge.repo_id, 1, request.id, None),
        (repo, 9, request.id, None),
    ]


# --- Clocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [-10, 10], ids=["we are ahead", "we are behind"])
def test_a_server_whose_clock_differs_by_ten_minutes_loses_nothing(forge: Forge, minutes: int) -> None:
    def ours() -> datetime:
        return datetime.now(UTC)

    forge.gitlab.clock.fixed = None
    for token in forge.gitlab.tokens.values():
        token.expires_at = None
    forge.gitlab.clock.system = lambda: ours() + timedelta(minutes=minutes)
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    requests = [
        forge.gitlab.open_merge_request(forge.project, title=f"{n}", source="topic", author=forge.user)
        for n in range(2)
    ]
    # Both inside the safety lag: later visits get them.
    for request, ago in zip(requests, (0, 3600), strict=True):
        forge.gitlab.touch(request, forge.gitlab.clock.now() - timedelta(seconds=ago))
    visit(forge)
    assert [r["title"] for r in forge.rows(_MRS)] == ["1"]
    for job_type in (MR, REVIEWS):
        mark = watermarks.get(forge.conn, forge.repo_id, job_type).watermark
        assert isinstance(mark, datetime)
        now = forge.gitlab.clock.now()
        assert now - timedelta(seconds=120) < mark < now - timedelta(seconds=59)
    shift = timedelta(minutes=minutes + 2)
    forge.gitlab.clock.system = lambda: ours() + shift
    visit(forge)
    assert [r["title"] for r in forge.rows(_MRS)] == ["0", "1"]
    assert forge.commits().succeeded
    (covered,) = watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered
    assert isinstance(covered, TimeWindow)
    assert covered.until < forge.gitlab.clock.now() - timedelta(seconds=59)


def test_an_edit_after_the_servers_clock_was_set_back_is_stored(forge: Forge) -> None:
    (request,) = make(forge, 1)
    note = forge.gitlab.comment(request, forge.other, "First")
    forge.tick(minutes=2)
    visit(forge)
    # Set back by ten minutes: what is stored is newer than everything that happens now.
    forge.tick(minutes=-10)
    forge.gitlab.edit(request, title="Second")
    forge.gitlab.edit_note(request, note, "Edited", bump=True)
    forge.gitlab.approve(request, forge.other)
    forge.tick(minutes=2)
    forge.conn.execute("UPDATE scm.sync_watermarks SET verified_at = verified_at - interval '1 minute'")
    visit(forge)
    assert [r["title"] for r in forge.rows(_MRS)] == ["Second"]
    assert [e["body"] for e in forge.rows(_EVENTS) if e["event_type"] == "comment"] == ["Edited"]
    assert [r["username"] for r in forge.rows(_IN_FORCE)] == ["user2"]


def test_a_merge_request_of_the_future_is_stored_moves_no_watermark_and_can_be_edited(forge: Forge) -> None:
    (request,) = make(forge, 1)
    forge.gitlab.touch(request, datetime(2120, 1, 1, tzinfo=UTC))
    visit(forge)
    assert [r["title"] for r in forge.rows(_MRS)] == ["0"]
    assert len(forge.rows("SELECT 1 FROM scm.mr_reviews")) == 1
    for job_type in (MR, REVIEWS):
        row = watermarks.get(forge.conn, forge.repo_id, job_type)
        last = row.covered[-1]
        assert isinstance(last, TimeWindow)
        assert row.watermark == last.until < forge.gitlab.clock.now()
    forge.asked()
    forge.tick(minutes=1)
    visit(forge)
    assert len(forge.asked()) == 2  # an idle visit costs no more than before
    forge.gitlab.edit(request, title="Today")
    forge.gitlab.comment(request, forge.other, "Hello")
    forge.tick()
    visit(forge)
    assert [r["title"] for r in forge.rows(_MRS)] == ["Today"]
    assert [e["body"] for e in forge.rows(_EVENTS)] == ["Hello"]
