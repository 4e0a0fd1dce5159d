"""Merge requests and reviews through the engine, over HTTP, in real tables."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from sync_pipeline.core.model import (
    BEGINNING,
    Access,
    JobStatus,
    JobType,
    Mode,
    RunStatus,
    TimeWindow,
    Trigger,
)
from sync_pipeline.ledger import jobs, watermarks
from sync_pipeline.ledger import planning as planning_store
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.recorded import load_recorded
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.sync.conftest import START, Forge

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_MRS = "SELECT * FROM scm.mrs WHERE repo_id = %(repo)s ORDER BY iid"
_EVENTS = "SELECT * FROM scm.review_events WHERE repo_id = %(repo)s ORDER BY mr_iid, origin, source_event_id"
_APPROVALS = "SELECT username, closed_at FROM scm.mr_approvals WHERE repo_id = %(repo)s ORDER BY approval_id"


@pytest.fixture
def opened(forge: Forge) -> MergeRequest:
    """An open merge request from a branch with two commits."""
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    base = forge.git.resolve("refs/heads/main")
    assert base is not None
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    request = forge.gitlab.open_merge_request(forge.project, title="Topic", source="topic", author=forge.user)
    forge.tick()
    return request


def row(forge: Forge, job_type: JobType, repo_id: int = 0) -> watermarks.WatermarkRow:
    return watermarks.get(forge.conn, repo_id or forge.repo_id, job_type)


def test_a_merge_request_arrives_with_its_commits_versions_and_review(
    forge: Forge, opened: MergeRequest
) -> None:
    forge.gitlab.comment(opened, forge.other, "Looks good")
    forge.gitlab.approve(opened, forge.other)
    forge.tick()
    first, second = forge.both()
    assert (first.succeeded, second.succeeded) == (True, True), (first.error, second.error)
    (mr,) = forge.rows(_MRS)
    assert (mr["status"], mr["title"], mr["author_username"]) == ("open", "Topic", "user1")
    assert mr["head_sha"] == forge.git.resolve("refs/heads/topic")
    assert len(forge.rows("SELECT 1 FROM scm.mr_commits WHERE repo_id = %(repo)s")) == 1
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions WHERE repo_id = %(repo)s")) == 1
    assert [e["event_type"] for e in forge.rows(_EVENTS)] == ["comment", "approve"]
    assert [a["username"] for a in forge.rows(_APPROVALS)] == ["user2"]
    until = (forge.gitlab.clock.now() - timedelta(seconds=60)).replace(microsecond=0)
    for job_type in (MR, REVIEWS):
        assert row(forge, job_type).watermark == until
        assert row(forge, job_type).verified_at is not None


def test_a_round_over_all_job_types_asks_for_the_project_once(forge: Forge, opened: MergeRequest) -> None:
    for _ in range(2):
        forge.tick()
        forge.asked()
        assert all(report.succeeded for report in (forge.commits(), *forge.both()))
        project = f"/projects/{forge.project.id}"
        assert [path for path in forge.asked(project) if path.endswith(project)] == [
            f"/gitlab/api/v4{project}"
        ]
    # Each look serves a job type once: nothing is called fresh by an old answer.
    forge.asked()
    forge.both()
    assert [path for path in forge.asked(project) if path.endswith(project)] == [f"/gitlab/api/v4{project}"]
    verified = {row(forge, job_type).verified_at for job_type in (JobType.COMMITS, MR)}
    assert len(verified) == 2


def test_both_job_types_share_one_list_and_an_unchanged_merge_request_costs_nothing(
    forge: Forge, opened: MergeRequest
) -> None:
    first, second = forge.both()
    lists = [path for path in forge.asked() if path.endswith("/merge_requests")]
    # Once a day it is also asked for what is dated later than now.
    assert len(lists) == 2
    assert first.calls + second.calls == len(forge.gitlab.journal.entries)
    # GraphQL, which also has the commits, and versions; discussions, three kinds of events. Nobody approves.
    assert (first.calls, second.calls) == (5, 4)
    forge.tick(minutes=2)
    first, second = forge.both()
    assert first.calls + second.calls == len(forge.asked()) == 2
    assert (first.counts.changed, second.counts.changed) == (0, 0)


def test_a_changed_merge_request_saves_the_request_for_the_project_where_its_row_shows_it(
    forge: Forge, opened: MergeRequest
) -> None:
    project = f"/gitlab/api/v4/projects/{forge.project.id}"

    def asked(text: str) -> list[str]:
        forge.gitlab.comment(opened, forge.other, text)
        forge.tick(minutes=2)
        forge.asked()
        first, second = forge.both()
        assert (first.succeeded, second.succeeded) == (True, True), (first.error, second.error)
        assert text in [event["body"] for event in forge.rows(_EVENTS)]
        assert row(forge, MR).watermark == (forge.gitlab.clock.now() - timedelta(seconds=60)).replace(
            microsecond=0
        )
        return forge.asked()

    forge.both()
    paths = asked("One")
    assert project not in paths
    assert paths[:3] == [
        f"{project}/merge_requests",
        "/gitlab/api/graphql",
        f"{project}/merge_requests/1/discussions",
    ]
    # The last look is old, the server's clock was set back, or no row that came is stored.
    forge.conn.execute("UPDATE scm.project_snapshots SET looked_at = looked_at - interval '61 minutes'")
    assert project in asked("Two")
    forge.conn.execute("UPDATE scm.project_snapshots SET server_date = server_date + interval '10 minutes'")
    assert project in asked("Three")
    forge.conn.execute("UPDATE scm.mrs SET gitlab_id = gitlab_id + 1000")
    assert project in asked("Four")
    assert project not in asked("Five")


def test_an_idle_visit_writes_nothing_although_the_project_is_read_behind_the_list(
    forge: Forge, opened: MergeRequest
) -> None:
    forge.both()
    forge.tick(minutes=10)
    forge.both()
    forge.tick(minutes=10)
    later = faults.Do(lambda: forge.tick(seconds=2))
    forge.gitlab.faults.add(rf"/projects/{forge.project.id}(\?|$)", later)
    forge.asked()
    reports = forge.both()
    assert [(report.succeeded, report.batches) for report in reports] == [(True, 0), (True, 0)]
    assert [path.rpartition("/")[2] for path in forge.asked()] == ["merge_requests", str(forge.project.id)]


def test_an_idle_visit_notices_lost_access_at_once(forge: Forge, opened: MergeRequest) -> None:
    forge.both()
    forge.tick(hours=1)
    forge.gitlab.faults.add("/merge_requests", faults.json_answer(401, {"message": "401 Unauthorized"}))
    forge.asked()
    reports = forge.both()
    assert [report.error_code for report in reports] == ["credential", "credential"]
    assert len(forge.asked()) == 1


def test_edits_deletions_and_approvals_taken_back_arrive(forge: Forge, opened: MergeRequest) -> None:
    note = forge.gitlab.comment(opened, forge.other, "Frist")
    gone = forge.gitlab.comment(opened, forge.other, "Gone soon")
    forge.gitlab.approve(opened, forge.other)
    forge.tick()
    forge.both()
    forge.gitlab.edit_note(opened, note, "First")
    forge.gitlab.delete_note(opened, gone)
    forge.gitlab.unapprove(opened, forge.other)
    forge.gitlab.edit(opened, title="Better")
    forge.tick()
    first, _ = forge.both()
    assert first.counts.updated == 1
    assert forge.rows(_MRS)[0]["title"] == "Better"
    events = {e["source_event_id"]: e for e in forge.rows(_EVENTS)}
    assert events[f"note:{note.row['id']}"]["body"] == "First"
    assert events[f"note:{note.row['id']}"]["version"] == 2
    missing = [e["source_event_id"] for e in events.values() if e["missing_since"] is not None]
    assert missing == [f"note:{gone.row['id']}"]
    assert [e["event_type"] for e in forge.rows(_EVENTS)].count("unapprove") == 1
    assert [a["closed_at"] is not None for a in forge.rows(_APPROVALS)] == [True]


def test_a_push_that_no_time_of_update_tells_of_is_found_by_its_branch(
    forge: Forge, opened: MergeRequest
) -> None:
    forge.commits()
    forge.both()
    before = opened.row["sha"]
    after = forge.gitlab.push(forge.project, "topic", "More\n", files={"b": "2\n"}, bump=False)
    forge.tick(hours=1)
    forge.both()
    assert forge.rows(_MRS)[0]["head_sha"] == before
    forge.commits()
    forge.both()
    assert forge.rows(_MRS)[0]["head_sha"] == after
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions WHERE repo_id = %(repo)s")) == 2


def test_a_silent_edit_of_an_open_merge_requests_note_is_found_within_a_day(
    forge: Forge, opened: MergeRequest
) -> None:
    note = forge.gitlab.comment(opened, forge.other, "Frist")
    forge.tick()
    forge.both()
    forge.gitlab.edit_note(opened, note, "First")
    forge.conn.execute("UPDATE scm.mr_reviews SET read_at = now() - interval '25 hours'")
    forge.tick()
    _, second = forge.both()
    assert second.counts.updated == 1
    assert "First" in [e["body"] for e in forge.rows(_EVENTS)]


def test_one_job_type_may_be_read_alone(forge: Forge, opened: MergeRequest) -> None:
    forge.gitlab.comment(opened, forge.other, "Hello")
    forge.tick()
    report = forge.syncer.run(forge.request(REVIEWS))
    assert report.succeeded
    assert report.counts.inserted == 1
    assert forge.rows(_MRS) == []
    assert row(forge, MR).watermark is None
    assert forge.syncer.run(forge.request(MR)).counts.inserted == 1


def test_history_is_backfill_that_joins_the_watermark_and_empty_years_cost_little(forge: Forge) -> None:
    forge.both()
    window = {"window": ("2019-01-01", "2024-01-01")}
    first, second = forge.both(Mode.BACKFILL, **window)
    assert first.succeeded
    assert second.succeeded
    assert first.calls + second.calls <= 5
    assert row(forge, MR).watermark == row(forge, REVIEWS).watermark
    again, _ = forge.both(Mode.BACKFILL, **window)
    assert again.run_status is RunStatus.NO_DATA
    assert again.calls <= 1


def test_a_chunk_that_broke_off_keeps_its_pages_and_goes_on(forge: Forge) -> None:
    project = generate(forge.gitlab, forge.group, merge_requests=350, notes=0, tie=3)
    repo = register_project(forge.conn, forge.server.url, project.id, "team1/large", origin=START)
    everything = {"repo_id": repo, "window": ("1990-01-01", "2024-05-01")}
    forge.gitlab.faults.add(r"merge_requests\?", faults.Reset(), times=None, skip=2)
    report = forge.syncer.run(forge.request(MR, Mode.BACKFILL, **everything))
    assert report.job_status is JobStatus.FAILED
    # Each page begins a little before the end of the one before it.
    assert 190 <= report.counts.inserted <= 200
    assert len(report.covered) == 2
    forge.gitlab.faults.clear()
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    report = forge.syncer.run(forge.request(MR, Mode.BACKFILL, **everything))
    assert report.succeeded
    # The versions of fifty merge requests were planned, and read in the same visit.
    assert 200 <= report.counts.read <= 215
    assert (
        watermarks.missing(forge.conn, repo, MR, TimeWindow(BEGINNING + timedelta(days=33000), START)) != ()
    )


def test_large_and_nasty_projects_arrive_whole_and_twice_changes_nothing(forge: Forge) -> None:
    # Several chunks, and more rows of one time than a page has; every oddity of the generator is among them.
    project = generate(forge.gitlab, forge.group, merge_requests=220, notes=1, tie=110)
    forge.other_settings(chunk_rows=100)
    repo = register_project(forge.conn, forge.server.url, project.id, "team1/large", origin=START)
    # A person's job reads all that was planned.
    everything = {"repo_id": repo, "window": ("1990-01-01", "2024-05-01"), "trigger": Trigger.RUNNER}
    first, second = forge.both(Mode.BACKFILL, **everything)
    assert first.succeeded
    assert second.succeeded, second.error
    found = forge.rows(
        "SELECT iid, gitlab_id, status, title FROM scm.mrs WHERE repo_id = %(large)s", large=repo
    )
    states = {"opened": "open"}
    assert {(r["iid"], r["gitlab_id"], r["status"]) for r in found} == {
        (iid, one.row["id"], states.get(one.row["state"], one.row["state"]))
        for iid, one in project.merge_requests.items()
    }
    notes = forge.rows("SELECT source_event_id FROM scm.review_events WHERE repo_id = %(large)s", large=repo)
    wanted = {f"note:{n.row['id']}" for one in project.merge_requests.values() for n in one.notes}
    assert {r["source_event_id"] for r in notes if r["source_event_id"].startswith("note:")} == wanted
    first, second = forge.both(Mode.BACKFILL, **everything, reread=True)
    assert (first.counts.changed, second.counts.changed) == (0, 0)
    assert first.counts.read == 220


def test_recorded_merge_requests_and_notes_of_a_real_server_arrive_whole(forge: Forge) -> None:
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "gitlab"
    if not folder.is_dir():
        pytest.skip(f"the recorded data is not at {folder}")
    project = load_recorded(forge.gitlab, folder, group=forge.group)
    repo = register_project(forge.conn, forge.server.url, project.id, "team1/recorded", origin=START)
    first, second = forge.both(Mode.BACKFILL, repo_id=repo, window=("1990-01-01", "2024-05-01"))
    assert first.succeeded
    assert second.succeeded
    source = json.loads((folder / "merge_requests.json").read_text(encoding="utf-8"))
    states = {"opened": "open"}
    stored = forge.rows("SELECT * FROM scm.mrs WHERE repo_id = %(r)s", r=repo)
    assert {(m["iid"], m["status"], m["title"], m["merged_at"], m["updated_at"]) for m in stored} == {
        (
            m["iid"],
            states.get(m["state"], m["state"]),
            m["title"],
            _time(m.get("merged_at")),
            _time(m["updated_at"]),
        )
        for m in source
    }
    notes = json.loads((folder / "merge_request_notes.json").read_text(encoding="utf-8"))
    events = forge.rows("SELECT * FROM scm.review_events WHERE repo_id = %(r)s", r=repo)
    assert {(e["mr_iid"], e["source_event_id"], e["body"], e["is_system"]) for e in events} == {
        (int(iid), f"note:{n['id']}", n["body"], n["system"]) for iid, some in notes.items() for n in some
    }
    assert (len(stored), len(events)) == (16, 26)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


# --- Trouble ---------------------------------------------------------------------------------------------


def test_reviews_that_cannot_be_read_do_not_hold_merge_requests_up(forge: Forge) -> None:
    for number in range(25):
        forge.gitlab.open_merge_request(
            forge.project, title=f"Number {number}", source="x", author=forge.user
        )
    forge.tick()
    forge.gitlab.faults.add(
        r"discussions|/notes", faults.json_answer(403, {"message": "403 Forbidden"}), times=None
    )
    first, second = forge.both()
    assert first.succeeded
    assert first.counts.inserted == 25
    assert (second.job_status, second.error_code) == (JobStatus.DEAD, "denied")
    assert row(forge, MR).access is Access.OK
    assert row(forge, REVIEWS).access is Access.DENIED
    assert row(forge, REVIEWS).watermark is None


@pytest.mark.parametrize("what", ["approvals", "versions|/commits", "discussions"])
def test_a_detail_that_the_token_may_see_nowhere_holds_nothing_else_up(forge: Forge, what: str) -> None:
    for number in range(25):
        request = forge.gitlab.open_merge_request(
            forge.project, title=f"Number {number}", source="x", author=forge.user
        )
        forge.gitlab.comment(request, forge.other, "Hello")
        if what == "approvals":
            forge.gitlab.approve(request, forge.other)
    forge.tick()
    forge.gitlab.faults.add(what, faults.json_answer(403, {"message": "403 Forbidden"}), times=None)
    assert all(report.succeeded for report in forge.both())
    assert len(forge.rows("SELECT FROM scm.mrs")) == 25
    assert len(forge.rows("SELECT FROM scm.review_events WHERE event_type = 'comment'")) == 25
    # One state for each kind, and nothing for each merge request.
    assert forge.rows("SELECT 1 FROM scm.deferred_fetches") == []
    states = forge.rows("SELECT detail, error_code FROM scm.unreadable_details ORDER BY 1")
    # The notes are to be had without the discussions.
    names = {"approvals": ["approvals"], "versions|/commits": ["commits", "versions"], "discussions": []}[
        what
    ]
    assert [(r["detail"], r["error_code"]) for r in states] == [(name, "denied") for name in names]


def test_a_detail_that_fails_is_deferred_and_the_rest_is_complete(forge: Forge, opened: MergeRequest) -> None:
    forge.gitlab.comment(opened, forge.other, "Hello")
    forge.gitlab.approve(opened, forge.other)
    forge.tick()
    forge.gitlab.faults.add(r"approvals|versions", faults.server_error(), times=None)
    first, second = forge.both()
    assert first.succeeded
    assert second.succeeded
    deferred = forge.rows(
        "SELECT job_type, natural_key, detail FROM scm.deferred_fetches WHERE resolved_at IS NULL ORDER BY 3"
    )
    assert [tuple(o.values()) for o in deferred] == [
        ("reviews", "1", "approvals"),
        ("merge_requests", "1", "versions"),
    ]
    assert len(forge.rows(_EVENTS)) == 2
    forge.gitlab.faults.clear()
    forge.tick()
    forge.both()
    assert forge.rows("SELECT 1 FROM scm.deferred_fetches WHERE resolved_at IS NULL") == []
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions WHERE repo_id = %(repo)s")) == 1


def test_a_refused_token_stops_itself_and_no_job_loses_an_attempt(forge: Forge, opened: MergeRequest) -> None:
    secret = forge.gitlab.tokens  # every token of the server
    good = forge.settings.gitlab.token.get_secret_value()
    forge.other_settings(gitlab_token=type(forge.settings.gitlab.token)("glpat-wrong"))
    assert secret
    first, second = forge.both()
    for report in (first, second):
        assert (report.job_status, report.error_code) == (JobStatus.PENDING, "credential")
        assert "token" in (report.error or "")
    (stop,) = forge.rows("SELECT * FROM scm.revoked_credentials")
    assert "glpat-wrong" not in str(stop)
    assert {j["attempts"] < j["max_attempts"] for j in forge.rows("SELECT * FROM scm.sync_jobs")} == {True}
    forge.other_settings(gitlab_token=type(forge.settings.gitlab.token)(good))
    first, second = forge.both()
    assert first.succeeded
    assert second.succeeded
    assert row(forge, MR).access is Access.OK


def test_a_command_with_a_wrong_token_stops_nothing_that_runs_unattended(
    forge: Forge, opened: MergeRequest
) -> None:
    good = forge.settings.gitlab.token
    forge.other_settings(gitlab_token=type(good)("glpat-wrong"))
    report, _ = forge.both(trigger=Trigger.RUNNER)
    assert (report.job_status, report.run_status) == (JobStatus.PENDING, RunStatus.FAILED)
    forge.other_settings(gitlab_token=good)
    assert forge.both()[0].job_id == report.job_id
    assert forge.rows("SELECT 1 FROM scm.sync_jobs WHERE status <> 'completed'") == []


def test_a_switched_off_feature_is_a_state_and_its_history_waits(forge: Forge) -> None:
    forge.gitlab.switch_feature(forge.project, "merge_requests", "disabled")
    first, second = forge.both()
    assert (first.run_status, second.run_status) == (RunStatus.NO_DATA, RunStatus.NO_DATA)
    assert row(forge, MR).access is Access.DISABLED
    assert row(forge, MR).watermark is None
    late, _ = forge.both(Mode.BACKFILL, window=("2020-01-01", "2021-01-01"))
    assert (late.job_status, late.error_code) == (JobStatus.PENDING, "disabled")
    assert forge.commits().succeeded
    forge.gitlab.switch_feature(forge.project, "merge_requests", "enabled")
    late, _ = forge.both(Mode.BACKFILL, window=("2020-01-01", "2021-01-01"))
    assert late.succeeded


def test_archived_and_moved_projects_are_read_on_and_say_so(forge: Forge, opened: MergeRequest) -> None:
    forge.gitlab.rename_project(forge.project, "renamed")
    first, _ = forge.both()
    assert first.succeeded
    assert row(forge, MR).access is Access.MOVED
    assert "team1/renamed" in (row(forge, MR).access_detail or "")
    (repo,) = forge.rows("SELECT project_path, slug FROM scm.repos")
    assert repo["project_path"] == "team1/renamed"
    forge.gitlab.archive(forge.project)
    forge.tick()
    first, _ = forge.both()
    assert first.succeeded
    assert row(forge, MR).access is Access.ARCHIVED


def test_addresses_follow_a_project_that_moves(forge: Forge, opened: MergeRequest) -> None:
    """Also those of merge requests that nobody touches, as a move updates none of them."""
    gone = forge.gitlab.open_merge_request(forge.project, author=forge.user, source="topic")
    forge.gitlab.merge(opened, forge.user)
    forge.tick()
    forge.both()
    urls = "SELECT iid, url FROM scm.mrs WHERE deleted_at IS NULL ORDER BY iid"
    assert all("/team1/app1/" in row["url"] for row in forge.rows(urls))
    forge.gitlab.rename_project(forge.project, "renamed")
    forge.gitlab.delete_merge_request(forge.project, gone)
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    assert "/team1/renamed/" in forge.rows(urls)[0]["url"]
    # One that does not come, or whose address never holds the path, is requested once.
    forge.conn.execute("UPDATE scm.mrs SET url = 'https://other/x' WHERE iid = 1")
    forge.tick()
    count = len(forge.gitlab.journal.entries)
    forge.both()
    assert not [one.query for one in forge.gitlab.journal.entries[count:] if "iids" in one.query]


def test_a_project_is_gone_only_after_it_was_not_found_again_and_again(
    forge: Forge, opened: MergeRequest
) -> None:
    forge.both()
    before = len(forge.rows(_MRS))
    forge.gitlab.delete_project(forge.project)
    states = []
    for _ in range(3):
        first, _ = forge.both()
        states.append((first.job_status, row(forge, MR).access))
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert states == [
        (JobStatus.FAILED, Access.OK),
        (JobStatus.FAILED, Access.OK),
        (JobStatus.DEAD, Access.GONE),
    ]
    assert len(forge.rows(_MRS)) == before


def test_a_row_that_cannot_be_stored_goes_to_quarantine_and_the_page_goes_on(forge: Forge) -> None:
    for number in range(5):
        request = forge.gitlab.open_merge_request(
            forge.project, title=f"{number}", source="x", author=forge.user
        )
    forge.gitlab.set_state(request, "on fire")
    forge.conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'on fire')")
    forge.tick()
    first, _ = forge.both()
    assert first.succeeded
    assert (first.counts.inserted, first.counts.quarantined) == (4, 1)
    (entry,) = forge.rows("SELECT natural_key, reason, payload FROM scm.quarantine")
    assert (entry["natural_key"], entry["reason"]) == ("5", "unstorable")
    assert b"on fire" in bytes(entry["payload"])
    forge.gitlab.set_state(request, "closed")
    forge.gitlab.touch(request)
    forge.tick()
    forge.both()
    assert forge.rows("SELECT 1 FROM scm.quarantine WHERE resolved_at IS NULL") == []


def test_a_server_in_trouble_is_asked_in_steps_that_cost_few_requests_and_lose_nothing(forge: Forge) -> None:
    titles = []
    for number in range(120):
        # Two bursts with eleven quiet days between them, in a window of 30 days.
        forge.tick(seconds=1) if number != 60 else forge.tick(days=11)
        forge.gitlab.open_merge_request(forge.project, title=f"{number}", source="x", author=forge.user)
        titles.append(f"{number}")
    forge.tick()
    job = jobs.enqueue(forge.conn, forge.request(MR))
    sizes = {"share": 0.2, "batch": 20, "window_seconds": 300.0, "reasons": ["slow answers"]}
    planning_store.decided(forge.conn, {job: {"sizes": sizes}}, dispatched=False)
    before = len(forge.gitlab.journal.entries)
    assert forge.syncer.run(forge.request(MR)).succeeded
    assert [r["title"] for r in forge.rows(_MRS)] == titles
    lists = [e.query for e in forge.gitlab.journal.entries[before:] if "updated_before" in e.query]
    ends = {end for query in lists for end in re.findall(r"updated_before=([^&]+)", query)}
    # Steps of five minutes would be 8,640; doubled over quiet time they are few.
    assert 12 <= len(ends) <= 40
    assert len(lists) <= 60
    (run,) = forge.rows("SELECT degradation FROM scm.sync_runs WHERE job_id = %(job)s", job=job)
    assert run["degradation"] == sizes


def test_edits_while_the_list_is_read_lose_nothing(forge: Forge) -> None:
    requests = []
    for number in range(230):
        forge.tick(seconds=1)
        requests.append(
            forge.gitlab.open_merge_request(forge.project, title=f"{number}", source="x", author=forge.user)
        )
    forge.tick()

    def edit() -> None:
        for request in requests[5:60]:
            forge.gitlab.edit(request, title="edited")

    forge.gitlab.faults.add(r"merge_requests\?", faults.Do(edit, after=True), times=1)
    assert forge.syncer.run(forge.request(MR)).succeeded
    forge.tick()
    assert forge.syncer.run(forge.request(MR)).succeeded
    assert [r["title"] for r in forge.rows(_MRS)] == [one.row["title"] for one in requests]


def test_what_a_person_asked_for_is_read_whole_also_where_the_scheduler_cut_its_job(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    for name in ("One", "Two", "Three"):
        forge.gitlab.open_merge_request(forge.project, title=name, source="topic", author=forge.user)
        forge.tick(days=10)
    whole = TimeWindow(START - timedelta(days=1), START + timedelta(days=29))
    rest = TimeWindow(whole.since, START + timedelta(days=15))
    piece = TimeWindow(rest.until, whole.until)
    enqueue = forge.syncer._enqueue

    def cut(*arguments: Any) -> UUID:
        job_id = enqueue(*arguments)
        jobs.cut(forge.conn, job_id, piece, rest)
        return job_id

    monkeypatch.setattr(forge.syncer, "_enqueue", cut)
    reports = forge.both(Mode.BACKFILL, window=whole, trigger=Trigger.RUNNER)
    for report in reports:
        assert (report.succeeded, report.window) == (True, whole)
        assert watermarks.missing(forge.conn, forge.repo_id, report.job_type, whole) == ()
    assert reports[0].counts.inserted == 3
    waiting = "SELECT 1 FROM scm.sync_jobs WHERE status IN ('pending', 'running', 'failed')"
    assert forge.rows(waiting) == []
