"""Notes that the token may not see, beside notes that are deleted."""

from __future__ import annotations

import pytest

from sync_pipeline.core.model import Depth, JobType
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_reconcile import Proof

REVIEWS = JobType.REVIEWS


@pytest.fixture
def request_with_notes(forge: Forge) -> MergeRequest:
    """A merge request of a public project with two comments and an internal one; nobody is a member."""
    forge.gitlab.push(forge.project, "main", "Work", author=forge.user)
    forge.git.set_ref("refs/heads/topic", forge.git.resolve("main"))
    request = forge.gitlab.open_merge_request(forge.project, author=forge.user, source="topic")
    forge.gitlab.comment(request, forge.other, "first")
    forge.gitlab.comment(request, forge.other, "second")
    forge.gitlab.comment(request, forge.other, "secret", internal=True)
    forge.project.visibility = "public"
    forge.tick()
    return request


def visited(forge: Forge) -> None:
    forge.tick()
    assert all(report.succeeded for report in forge.both())


def bodies(forge: Forge, mark: str | None = None) -> list[str]:
    """The comments that are stored, or those that have this mark (a column)."""
    rows = forge.rows("SELECT * FROM scm.review_events WHERE NOT is_system ORDER BY body")
    return [row["body"] for row in rows if mark is None or row[mark] is not None]


def delete(forge: Forge, request: MergeRequest, body: str) -> str:
    note = next(one for one in request.notes if one.row["body"] == body)
    forge.gitlab.delete_note(request, note)
    return f"{request.iid}:note:{note.row['id']}"


@pytest.mark.parametrize("read_between", [False, True])
def test_a_note_deleted_beside_a_hidden_one_is_found(
    forge: Forge, request_with_notes: MergeRequest, read_between: bool
) -> None:
    forge.group.members.clear()
    visited(forge)
    assert bodies(forge) == ["first", "second"]
    forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    proof = Proof(forge)
    assert proof.found(REVIEWS) == {}
    key = delete(forge, request_with_notes, "first")
    if read_between:
        forge.gitlab.touch(request_with_notes)
        visited(forge)
        visited(forge)
    assert proof.found(REVIEWS) == {key: "extra"}
    proof.repair_differences(REVIEWS)
    assert bodies(forge, "deleted_at") == ["first"]
    assert proof.found(REVIEWS) == {}
    result = proof.result()
    assert (result["status"], result["unreadable"], result["hidden"]) == ("clean", 0, 0)


def test_a_token_that_sees_internal_notes_reads_what_others_could_not_see(
    forge: Forge, request_with_notes: MergeRequest
) -> None:
    """Also where nobody touched the merge request since, and it is closed."""
    members = list(forge.group.members.items())
    forge.gitlab.close(request_with_notes, forge.user)
    forge.group.members.clear()
    visited(forge)
    assert bodies(forge) == ["first", "second"]
    forge.group.members.update(members)
    visited(forge)
    assert bodies(forge) == ["first", "second", "secret"]
    forge.asked()
    visited(forge)
    assert forge.asked("discussions") == []


def test_an_internal_note_that_counts_as_missing_is_found_by_a_token_that_sees_it(
    forge: Forge, request_with_notes: MergeRequest
) -> None:
    """Version 0.5.0 marked such notes after a visit with a token that does not see them."""
    visited(forge)
    forge.gitlab.merge(request_with_notes, forge.user)
    visited(forge)
    forge.conn.execute("UPDATE scm.review_events SET missing_since = now() WHERE is_internal")
    forge.conn.execute("UPDATE scm.mr_reviews SET saw_internal = NULL")
    visited(forge)
    assert bodies(forge, "missing_since") == []
    # One that is deleted for good is not requested at each visit.
    delete(forge, request_with_notes, "secret")
    forge.gitlab.touch(request_with_notes)
    visited(forge)
    assert bodies(forge, "missing_since") == ["secret"]
    forge.asked()
    visited(forge)
    assert forge.asked("discussions") == []


def test_a_note_that_another_token_stored_is_told_as_hidden_and_is_no_difference(
    forge: Forge, request_with_notes: MergeRequest
) -> None:
    visited(forge)
    assert bodies(forge) == ["first", "second", "secret"]
    forge.group.members.clear()
    forge.gitlab.touch(request_with_notes)
    visited(forge)
    # The weaker token says nothing about it.
    assert bodies(forge, "missing_since") == []
    proof = Proof(forge)
    assert proof.found(REVIEWS, depth=Depth.DETAILS) == {}
    result = proof.result()
    assert (result["status"], result["unreadable"], result["hidden"]) == ("clean", 0, 1)
    key = delete(forge, request_with_notes, "first")
    assert proof.found(REVIEWS) == {key: "extra"}
