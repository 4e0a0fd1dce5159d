"""What a source has against what is stored: comparisons name exactly what differs, and repairs fix it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline import cli
from sync_pipeline.core.model import BEGINNING, DeferredFetch, Depth, JobReport, JobType, Mode, TimeWindow
from sync_pipeline.facts import quarantine
from sync_pipeline.ledger import watermarks
from sync_pipeline.reports import health
from sync_pipeline.reports.reasons import HealthReason
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline_sandbox.gitlab import GitRepository
from sync_pipeline_sandbox.gitlab.faults import json_answer, server_error
from sync_pipeline_tests.conftest import ENVIRONMENT
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.test_schemas import validate

GITLAB = (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS)


@dataclass
class Proof:
    """Comparisons and repairs of the project of a forge."""

    forge: Forge

    def probe(self, job_type: JobType, depth: Depth = Depth.DETAILS, **other: Any) -> JobReport:
        """Compare everything that is covered."""
        if "window" not in other:
            mark = watermarks.get(self.forge.conn, self.forge.repo_id, job_type).watermark
            assert isinstance(mark, datetime)
            other["window"] = TimeWindow(BEGINNING, mark)
        return self.forge.syncer.run(self.forge.request(job_type, Mode.PROBE, depth=depth, **other))

    def found(self, job_type: JobType, **other: Any) -> dict[str, str]:
        """What a comparison shows as open: by key the kind, and the columns that differ."""
        report = self.probe(job_type, **other)
        assert report.succeeded, report.error
        return self.open(job_type)

    def open(self, job_type: JobType) -> dict[str, str]:
        """The open differences."""
        rows = self.forge.rows(
            "SELECT natural_key, kind, fields FROM scm.discrepancies "
            "WHERE repo_id = %(repo)s AND job_type = %(job)s AND resolved_at IS NULL",
            job=str(job_type),
        )
        return {row["natural_key"]: " ".join([row["kind"], *row["fields"]]) for row in rows}

    def repair_differences(self, job_type: JobType) -> JobReport:
        """Heal what is open."""
        window = TimeWindow(BEGINNING, datetime(2100, 1, 1, tzinfo=UTC))
        report = self.forge.syncer.run(
            self.forge.request(job_type, Mode.REPAIR, only_differences=True, window=window)
        )
        assert report.succeeded, report.error
        return report

    def repair_if_possible(self, job_type: JobType) -> None:
        """Try to repair the differences; the source may refuse."""
        window = TimeWindow(BEGINNING, datetime(2100, 1, 1, tzinfo=UTC))
        self.forge.syncer.run(self.forge.request(job_type, Mode.REPAIR, only_differences=True, window=window))

    def result(self) -> dict[str, Any]:
        """The latest result."""
        return self.forge.rows("SELECT * FROM scm.reconciliations ORDER BY reconciliation_id DESC LIMIT 1")[0]


@pytest.fixture
def proof(forge: Forge) -> Proof:
    """A project with some history, merge requests and reviews, all of it synced."""
    gitlab, project = forge.gitlab, forge.project
    for number in range(4):
        gitlab.push(project, "main", f"Work {number}", author=forge.user)
    for number in range(3):
        branch = f"feature{number}"
        forge.git.set_ref(f"refs/heads/{branch}", forge.git.resolve("main"))
        gitlab.push(project, branch, f"Feature {number}", author=forge.user)
        request = gitlab.open_merge_request(
            project, author=forge.user, source=branch, title=f"Title {number}"
        )
        gitlab.comment(request, forge.other, "first")
        gitlab.comment(request, forge.user, "second")
        gitlab.approve(request, forge.other)
        gitlab.request_review(request, forge.user, forge.other)
        gitlab.add_label(project, request, forge.user, "bug")
        forge.tick(minutes=3)
    forge.tick()
    assert forge.commits().succeeded
    assert all(report.succeeded for report in forge.both())
    return Proof(forge)


@pytest.mark.parametrize("depth", list(Depth))
def test_what_is_stored_as_the_source_has_it_shows_no_difference(proof: Proof, depth: Depth) -> None:
    for job_type in GITLAB:
        assert proof.found(job_type, depth=depth) == {}
        result = proof.result()
        assert (result["status"], result["expected"]) == ("clean", result["stored"])


# Behind the back of the tables ---------------------------------------------------------------------------

_TAMPERED: dict[str, tuple[JobType, str, dict[str, str]]] = {
    "a merge request taken away": (
        JobType.MERGE_REQUESTS,
        "DELETE FROM scm.mrs WHERE iid = 2",
        {"2": "missing"},
    ),
    "a title changed": (
        JobType.MERGE_REQUESTS,
        "UPDATE scm.mrs SET title = 'x' WHERE iid = 1",
        {"1": "changed title"},
    ),
    "a time of update ahead": (
        JobType.MERGE_REQUESTS,
        "UPDATE scm.mrs SET updated_at = updated_at + interval '4 minutes', batch_id = 10^9 WHERE iid = 1",
        {"1": "changed updated_at"},
    ),
    "commits and versions of it taken away": (
        JobType.MERGE_REQUESTS,
        "WITH one AS (DELETE FROM scm.mr_commits WHERE mr_iid = 1 RETURNING 1) "
        "DELETE FROM scm.mr_versions WHERE mr_iid = 3 AND EXISTS (SELECT FROM one)",
        {"1": "changed commits", "3": "changed versions"},
    ),
    "a merge request that never was": (
        JobType.MERGE_REQUESTS,
        "INSERT INTO scm.mrs (repo_id, iid, gitlab_id, project_id, status, updated_at, raw, content_hash, "
        "batch_id) SELECT repo_id, 77, 77, project_id, 'open', updated_at, '{}', '', 1 "
        "FROM scm.mrs WHERE iid = 1",
        {"77": "extra"},
    ),
    "labels, people and a state changed": (
        JobType.MERGE_REQUESTS,
        "UPDATE scm.mrs SET labels = '{}', reviewers = '[]', status = 'merged', author_username = NULL "
        "WHERE iid = 3",
        {"3": "changed author_username labels reviewers status"},
    ),
    "a tombstone of what is there": (
        JobType.MERGE_REQUESTS,
        "UPDATE scm.mrs SET deleted_at = now() WHERE iid = 3",
        {"3": "missing"},
    ),
    "a commit changed": (
        JobType.COMMITS,
        "UPDATE scm.git_commits SET message = 'x', additions = 7, committed_at = committed_at - "
        "interval '9 years' WHERE title = 'Work 1'",
        {"Work 1": "changed additions committed_at message"},
    ),
    "commits in a row taken away": (
        JobType.COMMITS,
        "DELETE FROM scm.git_commits WHERE title IN ('Work 1', 'Work 2', 'Feature 2')",
        {"Work 1": "missing", "Work 2": "missing", "Feature 2": "missing"},
    ),
    "a commit that never was": (
        JobType.COMMITS,
        "INSERT INTO scm.git_commits (repo_id, commit_sha, parents, title, raw, content_hash, batch_id) "
        "SELECT repo_id, repeat('ab', 20), '{}', 'Never', '{}', '', 1 FROM scm.git_commits LIMIT 1",
        {"Never": "extra"},
    ),
    "a branch taken away and another moved": (
        JobType.COMMITS,
        "WITH one AS (DELETE FROM scm.refs WHERE name = 'feature1' RETURNING 1) "
        "UPDATE scm.refs SET tip = repeat('cd', 20) WHERE name = 'feature2' AND EXISTS (SELECT FROM one)",
        {"branch:feature1": "missing", "branch:feature2": "changed tip"},
    ),
    "notes taken away, changed and made up": (
        JobType.REVIEWS,
        "WITH gone AS (DELETE FROM scm.review_events WHERE body = 'first' AND mr_iid = 1 RETURNING 1), "
        "other AS (UPDATE scm.review_events SET body = 'x', updated_at = updated_at + interval '1 minute', "
        "batch_id = 10^9 WHERE body = 'second' AND mr_iid = 2 RETURNING 1) "
        "INSERT INTO scm.review_events (repo_id, mr_iid, source_event_id, origin, event_type, ts, body, "
        "is_system, is_internal, is_reply, resolvable, raw, content_hash, batch_id) "
        "SELECT repo_id, 3, 'note:999', 'note', 'comment', ts, 'made up', FALSE, FALSE, FALSE, FALSE, '{}', "
        "'', 1 FROM scm.review_events WHERE body = 'first' AND mr_iid = 3",
        {"1:first": "missing", "2:second": "changed body updated_at", "3:made up": "extra"},
    ),
    "an approval taken away and a reviewer made up": (
        JobType.REVIEWS,
        "WITH one AS (DELETE FROM scm.mr_approvals WHERE mr_iid = 1 RETURNING 1) "
        "INSERT INTO scm.mr_reviewers (repo_id, mr_iid, person, batch_id) "
        "SELECT repo_id, 2, '4711', 1 FROM scm.mrs WHERE iid = 2",
        {"1:approval:user2": "missing", "2:reviewer:4711": "extra"},
    ),
}


def _named(proof: Proof, found: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    """Keys with the titles of commits, the texts of notes and the names of people instead of numbers."""
    people = {str(user["id"]): user["username"] for user in (proof.forge.user, proof.forge.other)}
    named = {}
    for key, what in found.items():
        name = before.get(key, key)
        first, _, last = name.rpartition(":")
        named[f"{first}:{people[last]}" if last in people else name] = what
    return named


def _names(proof: Proof) -> dict[str, str]:
    """What commits and notes are called, by their keys."""
    return {
        row["key"]: row["name"]
        for row in proof.forge.rows(
            "SELECT commit_sha AS key, title AS name FROM scm.git_commits UNION ALL "
            "SELECT mr_iid || ':' || source_event_id, mr_iid || ':' || body FROM scm.review_events "
            "WHERE NOT is_system"
        )
    }


@pytest.mark.parametrize("what", list(_TAMPERED))
def test_what_was_done_behind_the_back_of_the_tables_is_named_and_healed(proof: Proof, what: str) -> None:
    job_type, query, expected = _TAMPERED[what]
    before = proof.forge.state()
    names = _names(proof)
    proof.forge.conn.execute(query)
    found = proof.found(job_type)
    assert _named(proof, found, _names(proof) | names) == expected
    result = proof.result()
    assert result["status"] == "mismatch"
    assert (result["missing"], result["extra"], result["changed"]) == tuple(
        sum(kind.startswith(word) for kind in expected.values()) for word in ("missing", "extra", "changed")
    )
    proof.forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    proof.repair_differences(job_type)
    assert proof.found(job_type) == {}
    assert proof.result()["status"] == "clean"
    assert proof.forge.state() == before


# Behind the back of the sync -----------------------------------------------------------------------------


def _delete_notes(forge: Forge) -> None:
    request = forge.project.merge_requests[1]
    forge.gitlab.delete_note(request, next(n for n in request.notes if n.row["body"] == "first"))
    other = forge.project.merge_requests[2]
    forge.gitlab.edit_note(other, next(n for n in other.notes if n.row["body"] == "second"), "edited")


def _rewind(forge: Forge) -> None:
    forge.git.set_ref("refs/heads/main", forge.git.resolve("main~2"))
    forge.git.set_ref("refs/heads/feature1", None)


_AT_SOURCE: dict[str, tuple[JobType, Callable[[Forge], object], dict[str, str]]] = {
    "notes deleted and edited": (
        JobType.REVIEWS,
        _delete_notes,
        {"1:first": "extra", "2:second": "changed body updated_at"},
    ),
    "an approval taken back": (
        JobType.REVIEWS,
        lambda forge: forge.project.merge_requests[3].approved_by.clear(),
        {"3:approval:user2": "extra"},
    ),
    "a merge request deleted": (
        JobType.MERGE_REQUESTS,
        lambda forge: forge.gitlab.delete_merge_request(forge.project, forge.project.merge_requests[2]),
        {"2": "extra"},
    ),
    "a merge request edited without a word": (
        JobType.MERGE_REQUESTS,
        lambda forge: forge.gitlab.edit(forge.project.merge_requests[1], bump=False, title="Other"),
        {"1": "changed title"},
    ),
    "a head moved without a word": (
        JobType.MERGE_REQUESTS,
        lambda forge: forge.gitlab.push(forge.project, "feature2", "Late", author=forge.user, bump=False),
        {"3": "changed commits head_sha versions"},
    ),
    "a branch rewound and another deleted": (
        JobType.COMMITS,
        _rewind,
        {"branch:main": "changed target tip", "branch:feature1": "extra"},
    ),
}


@pytest.mark.parametrize("depth", list(Depth))
@pytest.mark.parametrize("what", list(_AT_SOURCE))
def test_what_was_done_behind_the_back_of_the_sync_is_named_and_healed(
    proof: Proof, what: str, depth: Depth
) -> None:
    job_type, act, expected = _AT_SOURCE[what]
    names = _names(proof)
    act(proof.forge)
    found = proof.found(job_type, depth=depth)
    assert _named(proof, found, names) == expected
    proof.forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    proof.repair_differences(job_type)
    if job_type is not JobType.COMMITS:
        # A row with an open difference is read with its details at either depth.
        assert proof.found(job_type, depth=depth) == {}
    assert proof.found(job_type) == {}
    assert proof.result()["status"] == "clean"


# Lists and batches ---------------------------------------------------------------------------------------

_BEYOND_LISTS = {
    "a comment": ("UPDATE scm.review_events SET body = 'x' WHERE mr_iid = 1 AND body = 'first'", 1),
    "the author of a comment": (
        "UPDATE scm.review_events SET reviewer_username = 'x' WHERE mr_iid = 1 AND body = 'first'",
        1,
    ),
    "the second of a comment": (
        "UPDATE scm.review_events SET ts = ts + interval '1 second' WHERE mr_iid = 1 AND body = 'first'",
        1,
    ),
    "an approval": ("UPDATE scm.mr_approvals SET closed_at = now() WHERE mr_iid = 1", 1),
    "the state of a reviewer": ("UPDATE scm.mr_reviewers SET state = 'x' WHERE mr_iid = 1", 1),
    # Only a comparison of all details sees these.
    "the millisecond of a comment": (
        "UPDATE scm.review_events SET ts = ts + interval '1 ms' WHERE mr_iid = 1 AND body = 'first'",
        0,
    ),
    "a label event": ("DELETE FROM scm.review_events WHERE mr_iid = 1 AND origin = 'label'", 0),
}


@pytest.mark.parametrize("what", list(_BEYOND_LISTS))
def test_graphql_shows_what_lists_do_not(proof: Proof, what: str) -> None:
    statement, number = _BEYOND_LISTS[what]
    proof.forge.conn.execute(statement)
    assert len(proof.found(JobType.REVIEWS, depth=Depth.LISTING)) == number
    assert len(proof.found(JobType.REVIEWS)) == 1


def test_reviews_without_a_difference_cost_a_tenth_of_a_first_reading(forge: Forge) -> None:
    project = forge.project
    branch = "feature"
    forge.gitlab.push(project, "main", "Work", author=forge.user)
    forge.git.set_ref(f"refs/heads/{branch}", forge.git.resolve("main"))
    for number in range(40):
        request = forge.gitlab.open_merge_request(
            project, author=forge.user, source=branch, title=f"Title {number}"
        )
        forge.gitlab.comment(request, forge.other, "first")
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    proof = Proof(forge)
    report = proof.probe(JobType.REVIEWS, depth=Depth.LISTING)
    # The project, the list, one batch, and the end of the list.
    assert report.calls <= 4
    assert report.succeeded
    result = proof.result()
    assert (result["status"], result["expected"]) == ("clean", result["stored"])
    assert result["stored"] >= 40
    # One that differs is read on its own.
    forge.conn.execute("UPDATE scm.review_events SET body = 'x' WHERE mr_iid = 7 AND body = 'first'")
    assert proof.probe(JobType.REVIEWS, depth=Depth.LISTING).calls <= 4 + 6
    assert set(proof.open(JobType.REVIEWS).values()) == {"changed body"}


def test_a_server_without_graphql_is_compared_by_its_lists_and_the_report_says_so(command: Command) -> None:
    forge = command.proof.forge
    one = command.document("--job", "reviews")["results"][0]
    assert (one["details"], one["notice"]) == (["notes", "approvers", "reviewers"], None)
    assert "state, label and milestone events" in one["details_left_out"]
    assert "compared: notes, approvers, reviewers; not compared: state" in command("--job", "reviews")[0]
    forge.gitlab.behaviour.graphql.enabled = False
    forge.conn.execute("UPDATE scm.review_events SET body = 'x' WHERE mr_iid = 1 AND body = 'first'")
    forge.asked()
    one = command.document("--job", "reviews")["results"][0]
    assert one["notice"].startswith("GraphQL is not used: ")
    assert (one["status"], one["details"]) == ("clean", ["numbers of comments", "times of update"])
    assert forge.asked("discussions") == []
    forge.conn.execute("DELETE FROM scm.review_events WHERE mr_iid = 2 AND body = 'first'")
    one = command.document("--job", "reviews", "--no-repair", code=1)["results"][0]
    assert [found["kind"] for found in one["differences"]] == ["missing"]
    one = command.document("--job", "reviews", "--full", "--no-repair", code=1)["results"][0]
    assert (one["changed"], one["missing"], one["details_left_out"]) == (1, 1, [])


def test_a_comparison_repairs_and_closes_by_lists_alone(command: Command) -> None:
    forge = command.proof.forge
    forge.conn.execute("UPDATE scm.review_events SET body = 'x' WHERE mr_iid = 1 AND body = 'first'")
    repaired = command.document("--job", "reviews", "--repair")["results"][0]
    assert (repaired["changed"], repaired["after"]["status"]) == (1, "clean")
    assert command.proof.open(JobType.REVIEWS) == {}


def test_details_that_are_planned_to_be_read_are_newer_and_no_mismatch(proof: Proof) -> None:
    forge = proof.forge
    forge.conn.execute("DELETE FROM scm.review_events WHERE mr_iid = 1 AND origin = 'label'")
    forge.conn.execute("UPDATE scm.mr_reviews SET whole = array_remove(whole, 'label') WHERE mr_iid = 1")
    planned = DeferredFetch("1", "label_events", "planned", is_planned=True)
    quarantine.defer(forge.conn, repo_id=forge.repo_id, job_type=JobType.REVIEWS, fetches=[planned])
    for depth, newer in ((Depth.LISTING, 0), (Depth.DETAILS, 1)):
        assert proof.found(JobType.REVIEWS, depth=depth) == {}
        assert (proof.result()["status"], proof.result()["newer"]) == ("clean", newer)


def test_what_is_newer_than_the_latest_visit_is_no_mismatch(proof: Proof) -> None:
    forge = proof.forge
    forge.gitlab.push(forge.project, "main", "Newer", author=forge.user)
    forge.git.set_ref("refs/heads/new", forge.git.resolve("main"))
    forge.tick()
    forge.gitlab.comment(forge.project.merge_requests[2], forge.other, "newer")
    forge.gitlab.open_merge_request(forge.project, author=forge.user, source="new", title="New")
    for job_type, newer in ((JobType.COMMITS, 2), (JobType.MERGE_REQUESTS, 1), (JobType.REVIEWS, 1)):
        assert proof.found(job_type) == {}
        assert (proof.result()["status"], proof.result()["newer"]) == ("clean", newer)


# Deletions are believed late ------------------------------------------------------------------------------


def test_a_deletion_becomes_a_tombstone_after_looks_and_time_and_is_lifted(proof: Proof) -> None:
    forge = proof.forge
    request = forge.project.merge_requests[2]
    forge.gitlab.delete_merge_request(forge.project, request)
    both = (JobType.MERGE_REQUESTS, JobType.REVIEWS)
    live = {job_type: len(_live(forge, job_type)) for job_type in both}
    for looks in (1, 2):
        for job_type in both:
            found = proof.found(job_type)
            assert set(found.values()) == {"extra"}
            assert {row["looks"] for row in forge.rows("SELECT looks FROM scm.discrepancies WHERE "
                    "job_type = %(job)s AND resolved_at IS NULL AND natural_key !~ ':(approval|reviewer):'",
                    job=str(job_type))} == {looks}  # fmt: skip
            proof.repair_differences(job_type)
            gone = [row for row in _live(forge, job_type) if row["iid"] == 2]
            assert gone, "seen gone twice, but not for long enough"
    forge.conn.execute("UPDATE scm.discrepancies SET found_at = found_at - interval '7 hours'")
    for job_type in both:
        proof.repair_differences(job_type)
        assert all(row["iid"] != 2 for row in _live(forge, job_type))
        assert proof.found(job_type) == {}
    assert forge.rows("SELECT FROM scm.v_facts WHERE source_id = %(id)s", id=f"mr:{forge.repo_id}:2") == []
    # It was restored.
    forge.project.merge_requests[2] = request
    for job_type in both:
        assert set(proof.found(job_type).values()) == {"missing"}
        proof.repair_differences(job_type)
        assert proof.found(job_type) == {}
        assert len(_live(forge, job_type)) == live[job_type]


def test_a_commit_that_the_server_cleaned_away_becomes_a_tombstone_and_comes_back(
    proof: Proof, tmp_path: Path
) -> None:
    forge = proof.forge
    forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    lost = forge.git.resolve("main") or ""
    copy = GitRepository.create(tmp_path / "copy.git")
    copy.fetch(forge.git, "main", "refs/heads/main")
    forge.git.set_ref("refs/heads/main", forge.git.resolve("main~1"))
    for number in range(3):
        forge.git.set_ref(f"refs/heads/feature{number}", None)
        forge.project.merge_requests.pop(number + 1)
    forge.tick()
    assert forge.commits().succeeded
    (flagged,) = forge.rows(
        "SELECT unreachable_since, deleted_at FROM scm.git_commits WHERE commit_sha = %(sha)s", sha=lost
    )
    assert flagged["unreachable_since"] is not None
    # No ref reaches it, but the server still has it.
    assert proof.found(JobType.COMMITS) == {}
    forge.git.drop_hidden_cache()
    forge.git.prune()
    gone = proof.found(JobType.COMMITS)
    assert gone[lost] == "extra"
    assert set(gone.values()) == {"extra"}
    assert proof.found(JobType.COMMITS, depth=Depth.LISTING) == gone, "a look that does not ask says nothing"
    proof.repair_differences(JobType.COMMITS)
    assert proof.found(JobType.COMMITS) == {}
    assert forge.rows("SELECT FROM scm.v_facts WHERE meta_json->>'sha' = %(sha)s", sha=lost) == []
    forge.git.fetch(copy, "main", "refs/heads/main")
    forge.tick()
    assert forge.commits().succeeded
    (back,) = forge.rows(
        "SELECT unreachable_since, deleted_at FROM scm.git_commits WHERE commit_sha = %(sha)s", sha=lost
    )
    assert back == {"unreachable_since": None, "deleted_at": None}
    assert proof.found(JobType.COMMITS) == {}


def _live(forge: Forge, job_type: JobType) -> list[dict[str, Any]]:
    if job_type is JobType.MERGE_REQUESTS:
        return forge.rows("SELECT iid FROM scm.mrs WHERE deleted_at IS NULL")
    return forge.rows("SELECT mr_iid AS iid FROM scm.review_events WHERE deleted_at IS NULL")


@pytest.mark.parametrize(
    "loss",
    [
        "removed",
        "guest",
        "disabled",
        "private",
        "storage away",
        "server error",
        "another project",
        "empty lists, nothing by name",
        "comments withheld",
    ],
)
def test_lost_access_is_inconclusive_and_makes_no_tombstone(proof: Proof, loss: str) -> None:
    forge = proof.forge
    forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    before = forge.state()
    if loss == "removed":
        forge.group.members.clear()
        forge.project.visibility = "private"
    elif loss == "guest":
        forge.group.members[forge.user["id"]] = 10
    elif loss == "disabled":
        forge.project.merge_requests_access_level = forge.project.repository_access_level = "disabled"
    elif loss == "private":
        forge.project.visibility = "public"
        forge.project.merge_requests_access_level = forge.project.repository_access_level = "private"
        forge.group.members.clear()
    elif loss == "storage away":
        for ref in ("main", "feature0", "feature1", "feature2"):
            forge.git.set_ref(f"refs/heads/{ref}", None)
    elif loss == "another project":
        forge.project.created_at += timedelta(days=1)
        forge.project.merge_requests.clear()
    elif loss == "empty lists, nothing by name":
        for path in (r"/merge_requests\?", r"/repository/commits\?"):
            forge.gitlab.faults.add(path, json_answer(200, []), times=None)
        for path in (r"/merge_requests/", r"/repository/commits/"):
            forge.gitlab.faults.add(path, json_answer(404, {"message": "404 Not found"}), times=None)
    elif loss == "comments withheld":
        for path in ("/discussions", r"/notes\?"):
            forge.gitlab.faults.add(path, json_answer(200, []), times=None)
        forge.gitlab.faults.add("/notes/", json_answer(404, {"message": "404 Not found"}), times=None)
    else:
        forge.gitlab.faults.add("", server_error(), times=None, skip=3)
    for job_type in GITLAB:
        report = proof.probe(job_type)
        if report.succeeded:
            assert proof.open(job_type) == {}
        else:
            assert proof.result()["status"] == "inconclusive"
            assert proof.result()["detail"]
        proof.repair_if_possible(job_type)
    assert forge.state() == before
    assert forge.rows("SELECT FROM scm.discrepancies") == []


def test_only_what_is_covered_is_compared_and_an_unread_window_is_inconclusive(proof: Proof) -> None:
    forge = proof.forge
    future = TimeWindow(datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC))
    report = proof.probe(JobType.MERGE_REQUESTS, window=future)
    assert report.succeeded
    assert (proof.result()["status"], proof.result()["detail"]) == (
        "inconclusive",
        "nothing of it has been read yet",
    )
    mark = watermarks.get(forge.conn, forge.repo_id, JobType.MERGE_REQUESTS).watermark
    assert isinstance(mark, datetime)
    proof.probe(JobType.MERGE_REQUESTS, window=TimeWindow(mark - timedelta(days=3), mark + timedelta(days=3)))
    compared = proof.result()["period"]
    assert (compared.lower, compared.upper) == (mark - timedelta(days=3), mark)


def test_a_comparison_that_uses_up_its_requests_says_how_far_it_got(proof: Proof) -> None:
    report = proof.probe(JobType.REVIEWS, max_calls=1)
    assert report.succeeded
    result = proof.result()
    assert result["status"] == "clean"
    assert result["period"].upper <= datetime(2100, 1, 1, tzinfo=UTC)


# The command ----------------------------------------------------------------------------------------------


@dataclass
class Command:
    """``scm-sync reconcile`` for the project of a forge."""

    proof: Proof
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str, code: int = 0) -> tuple[str, str]:
        """What it prints, on both channels."""
        self.capsys.readouterr()
        assert cli.run(["reconcile", "--repo", str(self.proof.forge.repo_id), *words]) == code
        return self.capsys.readouterr()

    def document(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Its document, which is as the schema says."""
        document: dict[str, Any] = json.loads(self(*words, "--json", code=code)[0])
        validate(document, "reconcile.json")
        return document


@pytest.fixture
def command(
    proof: Proof, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """See :class:`Command`."""
    monkeypatch.setenv("SCM_DATABASE_URL", proof.forge.database.url)
    monkeypatch.setenv("SCM_ENVIRONMENT", ENVIRONMENT)
    monkeypatch.setenv("SCM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SCM_GITLAB_URL", proof.forge.server.url)
    monkeypatch.setenv("SCM_GITLAB_TOKEN", proof.forge.settings.gitlab.token.get_secret_value())
    return Command(proof, capsys)


def test_the_command_names_repairs_and_verifies(command: Command) -> None:
    forge = command.proof.forge
    planned = command.document("--dry-run")
    assert [(one["job"], one["stored"]) for one in planned["results"]] == [
        ("commits", 7),
        ("merge_requests", 3),
        ("reviews", 3),
    ]
    assert forge.rows("SELECT FROM scm.reconciliations") == []
    clean = command.document()
    assert clean["status"] == "clean"
    assert all(
        one["calls"] <= plan["calls"] for one, plan in zip(clean["results"], planned["results"], strict=True)
    )
    forge.conn.execute("UPDATE scm.mrs SET title = 'x' WHERE iid < 3")
    found = command.document("--job", "mrs", "--no-repair", "--limit", "1", code=1)["results"][0]
    assert (found["changed"], len(found["differences"]), found["repair"]) == (2, 1, None)
    assert (found["differences"][0]["key"], found["differences"][0]["fields"]) == ("1", ["title"])
    out, _ = command("--job", "mrs", code=1)
    assert "merge_requests: mismatch, 2 changed: 3 at the source, 3 stored" in out
    assert "a repair waits for the scheduler" in out
    (waiting,) = forge.rows("SELECT status, only_differences FROM scm.sync_jobs WHERE mode = 'repair'")
    assert waiting == {"status": "pending", "only_differences": True}
    repaired = command.document("--job", "mrs", "--repair")["results"][0]
    assert (repaired["repair"]["status"], repaired["repair"]["updated"]) == ("completed", 2)
    assert (repaired["after"]["status"], repaired["after"]["changed"]) == ("clean", 0)
    out, _ = command("--last-days", "100000")
    assert "commits: clean: 7 at the source, 7 stored" in out


def test_a_repair_that_does_not_help_is_left_to_a_person_and_not_repeated(command: Command) -> None:
    forge = command.proof.forge
    forge.conn.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.title := 'x'; RETURN NEW; END $$; "
        "CREATE TRIGGER keep BEFORE INSERT OR UPDATE ON scm.mrs FOR EACH ROW EXECUTE FUNCTION keep(); "
        "UPDATE scm.mrs SET title = 'x' WHERE iid = 1"
    )
    for repairs in range(3):
        found = command.document("--job", "mrs", code=1)["results"][0]
        assert (found["differences"][0]["repairs"], found["differences"][0]["next"]) == (repairs, "read")
        command.proof.repair_differences(JobType.MERGE_REQUESTS)
    found = command.document("--job", "mrs", code=1)["results"][0]
    assert (found["differences"][0]["next"], found["repair"]) == ("escalate", None)
    (result,) = [
        one
        for one in health.read(forge.conn, timedelta(days=3650), Credentials(frozenset(), {}, {}))
        if one.facts.job_type is JobType.MERGE_REQUESTS
    ]
    assert {HealthReason.MISMATCH, HealthReason.UNREPAIRED} <= set(result.health.reasons)
    # A person mended the cause.
    forge.conn.execute("DROP TRIGGER keep ON scm.mrs")
    assert command.document("--job", "mrs", "--repair")["results"][0]["after"]["status"] == "clean"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--since", "2030-01-01"), "is in the future"),
        (("--until", "2025-01-01"), "not settled, commits are read up to 2024-05-06T12:"),
        (("--since", "2025-01-01"), "not settled, commits are read up to 2024-05-06T12:"),
        (("--start-rev", "1"), "is read by time"),
        (("--since", "yesterday"), "write a date or a time"),
        (("--since", "2024-02-01", "--until", "2024-01-01"), "is before"),
        (("--job", "revisions"), "has no revisions"),
        (("--job", "nonsense"), "unknown job type"),
    ],
)
def test_a_window_that_says_nothing_is_refused_in_one_line(
    command: Command, words: tuple[str, ...], line: str
) -> None:
    _, error = command(*words, code=3)
    assert line in error
    assert error.count("\n") == 1
    assert command.proof.forge.rows("SELECT FROM scm.sync_jobs WHERE mode = 'probe'") == []


def test_a_tag_whose_message_was_changed_is_written_again(proof: Proof) -> None:
    forge = proof.forge
    forge.git.tag("v1", forge.git.resolve("main") or "", message="first")
    forge.tick()
    assert forge.commits().succeeded
    forge.conn.execute("UPDATE scm.refs SET message = 'x', tagged_at = NULL WHERE kind = 'tag'")
    assert proof.found(JobType.COMMITS) == {"tag:v1": "changed message tagged_at"}
    proof.repair_differences(JobType.COMMITS)
    assert proof.found(JobType.COMMITS) == {}


def test_what_could_not_be_compared_is_told_by_the_exit_code(command: Command) -> None:
    forge = command.proof.forge
    forge.gitlab.faults.add(
        "/merge_requests/2/versions", json_answer(403, {"message": "403 Forbidden"}), times=None
    )
    one = command.document("--job", "mrs", "--full", code=1)["results"][0]
    assert (one["status"], one["unreadable"]) == ("clean", 1)
    assert command.document("--job", "mrs", "--lists-only")["status"] == "clean"


def test_a_source_that_fails_is_inconclusive_with_its_reason(command: Command) -> None:
    command.proof.forge.gitlab.faults.add("", server_error(), times=None, skip=1)
    document = command.document("--job", "mrs", code=2)
    assert document["status"] == "inconclusive"
    assert "500" in document["results"][0]["detail"]
