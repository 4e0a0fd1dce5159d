"""Trouble with one merge request, or one of two jobs, holds up neither the others nor the next visit."""

from __future__ import annotations

import pytest

from sync_pipeline.core.model import Access, JobStatus, JobType, Mode, TimeWindow
from sync_pipeline.ledger import watermarks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.sync.conftest import START, Forge
from sync_pipeline_tests.sync.test_reconcile import Proof

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_DEFERRED = """
SELECT natural_key, detail, attempts, not_before > now() AS waits FROM scm.deferred_fetches
 WHERE resolved_at IS NULL AND NOT is_planned ORDER BY job_type, natural_key, detail
"""


def make(forge: Forge, count: int) -> list[MergeRequest]:
    """So many open merge requests from a branch with a commit."""
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    found = []
    for number in range(count):
        forge.tick(seconds=1)
        found.append(
            forge.gitlab.open_merge_request(
                forge.project, title=f"{number}", source="topic", author=forge.user
            )
        )
    forge.tick()
    return found


def due_now(forge: Forge) -> None:
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now() - interval '1 second'")


def unread_for_days(forge: Forge) -> None:
    forge.conn.execute("UPDATE scm.mrs SET read_at = now() - interval '3 days'")
    forge.conn.execute("UPDATE scm.mr_reviews SET read_at = now() - interval '3 days'")


@pytest.mark.parametrize("status", [403, 400, 422])
def test_a_detail_that_is_refused_for_one_merge_request_stops_no_later_visit(
    forge: Forge, status: int
) -> None:
    make(forge, 3)
    refused = faults.json_answer(status, {"message": f"{status} No"})
    forge.gitlab.faults.add(r"merge_requests/2/versions", refused, times=None)
    for number in range(3):
        first, second = forge.both()
        assert first.succeeded, first.error
        assert second.succeeded, second.error
        (deferred,) = forge.rows(_DEFERRED)
        assert (deferred["natural_key"], deferred["detail"], deferred["attempts"]) == (
            "2",
            "versions",
            number,
        )
        due_now(forge)
        forge.tick()
    forge.gitlab.faults.clear()
    forge.both()
    assert forge.rows(_DEFERRED) == []
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 3


def test_what_a_deleted_merge_request_owes_waits_longer_each_time(forge: Forge) -> None:
    first, *_ = make(forge, 2)
    forge.gitlab.approve(first, forge.other)
    forge.tick()
    forge.gitlab.faults.add(r"merge_requests/1/(approvals|versions)", faults.server_error(), times=None)
    forge.both()
    del forge.project.merge_requests[first.iid]
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    mrs, both = forge.both()
    assert mrs.succeeded
    assert both.succeeded
    assert [(o["detail"], o["attempts"], o["waits"]) for o in forge.rows(_DEFERRED)] == [
        ("versions", 1, True),
        ("approvals", 1, True),
    ]


def test_a_tombstone_settles_deferred_fetches_and_its_lifting_asks_again(forge: Forge) -> None:
    first, *_ = make(forge, 2)
    forge.gitlab.approve(first, forge.other)
    forge.tick()
    forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    trouble = r"merge_requests/1/(approvals|versions|resource_label_events)"
    forge.gitlab.faults.add(trouble, faults.server_error(), times=None)
    forge.both()
    assert [row["detail"] for row in forge.rows(_DEFERRED)] == ["versions", "approvals", "label_events"]
    forge.gitlab.delete_merge_request(forge.project, first)
    forge.tick()
    forge.both()
    proof = Proof(forge)
    assert proof.found(MR) == {"1": "extra"}
    proof.repair_differences(MR)
    assert forge.rows("SELECT iid FROM scm.mrs WHERE deleted_at IS NOT NULL") == [{"iid": 1}]
    assert forge.rows(_DEFERRED) == []
    # It was restored, with the same time of update as far as that goes; the trouble is still there.
    forge.project.merge_requests[1] = first
    forge.tick()
    forge.gitlab.touch(first)
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    assert forge.rows("SELECT iid FROM scm.mrs WHERE deleted_at IS NOT NULL") == []
    assert [row["detail"] for row in forge.rows(_DEFERRED)] == ["versions", "approvals", "label_events"]
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    forge.both()
    assert forge.rows(_DEFERRED) == []
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 2


def test_a_lifted_tombstone_has_its_children_read_again(forge: Forge) -> None:
    # By REST: GraphQL would show that the approvals are the stored ones.
    forge.other_settings(gitlab_graphql=False)
    first, *_ = make(forge, 1)
    forge.gitlab.approve(first, forge.other)
    forge.tick()
    forge.both()
    forge.conn.execute("UPDATE scm.mrs SET deleted_at = now()")
    forge.gitlab.touch(first)
    forge.tick()
    forge.asked()
    forge.both()
    asked = forge.asked("/merge_requests/1/")
    assert {path.rpartition("/")[2] for path in asked} >= {"versions", "approvals"}


def test_what_a_merge_request_owes_that_was_never_stored_ends_when_it_is_gone(forge: Forge) -> None:
    first, *_ = make(forge, 2)
    forge.other_settings(deletion_after_seconds=0, deletion_confirmations=2)
    # Neither the list nor its own address gives it; only its number is known.
    spoiled = r"merge_requests(/|\?(?!.*view=simple))"
    forge.gitlab.faults.add(spoiled, faults.Poison(rb'"title":"0"'), times=None)
    forge.both()
    assert {(o["natural_key"], o["detail"]) for o in forge.rows(_DEFERRED)} == {
        ("1", "detail"),
        ("1", "notes"),
    }
    forge.gitlab.delete_merge_request(forge.project, first)
    forge.gitlab.faults.clear()
    for _ in range(2):
        assert len(forge.rows(_DEFERRED)) == 2, forge.rows(_DEFERRED)
        due_now(forge)
        forge.tick()
        assert all(report.succeeded for report in forge.both())
    assert forge.rows(_DEFERRED) == []
    assert forge.rows("SELECT 1 FROM scm.quarantine WHERE resolved_at IS NULL") == []


def test_deleted_merge_requests_do_not_keep_the_sweep_from_others(forge: Forge) -> None:
    requests = make(forge, 3)
    forge.both()
    for one in requests[:2]:
        del forge.project.merge_requests[one.iid]
    unread_for_days(forge)
    # Since then its review could not be read even once.
    forge.conn.execute("DELETE FROM scm.mr_reviews WHERE mr_iid = 2")
    forge.conn.execute("UPDATE scm.mrs SET first_seen_at = now() - interval '3 days'")
    forge.tick()
    forge.both()
    assert forge.rows("SELECT 1 FROM scm.mrs WHERE read_at < now() - interval '1 day'") == []
    assert forge.rows("SELECT 1 FROM scm.mr_reviews WHERE read_at < now() - interval '1 day'") == []
    forge.asked()
    forge.tick()
    forge.both()
    assert len(forge.asked()) == 2
    assert [r["deleted_at"] for r in forge.rows("SELECT deleted_at FROM scm.mrs")] == [None] * 3


def test_reviews_that_are_refused_in_the_sweep_do_not_stop_merge_requests(forge: Forge) -> None:
    make(forge, 25)
    forge.both()
    unread_for_days(forge)
    refused = faults.json_answer(403, {"message": "403 Forbidden"})
    forge.gitlab.faults.add(r"discussions|/notes|approvals", refused, times=None)
    forge.tick()
    first, second = forge.both()
    assert first.succeeded, first.error
    assert (second.job_status, second.error_code) == (JobStatus.DEAD, "denied")
    assert watermarks.get(forge.conn, forge.repo_id, MR).access is Access.OK
    assert watermarks.get(forge.conn, forge.repo_id, REVIEWS).access is Access.DENIED


def test_a_watermark_set_by_hand_ends_its_own_job_only(forge: Forge) -> None:
    make(forge, 3)

    def by_hand() -> None:
        with forge.database.connection() as conn:
            watermarks.replace(
                conn, repo_id=forge.repo_id, job_type=REVIEWS, covered=(), actor="me", reason="test"
            )

    forge.gitlab.faults.add(r"merge_requests\?", faults.Do(by_hand), times=1)
    first, second = forge.both()
    assert first.succeeded, first.error
    assert (second.job_status, second.error_code) == (JobStatus.PENDING, "watermark_set")
    assert watermarks.get(forge.conn, forge.repo_id, REVIEWS).covered == ()
    _, second = forge.both()
    assert second.succeeded
    assert second.counts.read > 0 or forge.rows("SELECT 1 FROM scm.mr_reviews") != []


def test_versions_that_come_a_moment_after_the_push_are_not_missed(forge: Forge) -> None:
    make(forge, 1)
    # The row has the new head already, the version of it is still being made.
    forge.gitlab.faults.add(r"merge_requests/1/versions", faults.json_answer(200, []), times=1)
    forge.both()
    assert forge.rows("SELECT 1 FROM scm.mr_versions") == []
    unread_for_days(forge)
    forge.tick()
    forge.both()
    assert len(forge.rows("SELECT 1 FROM scm.mr_versions")) == 1
    assert len(forge.rows("SELECT 1 FROM scm.mr_commits")) == 1
    unread_for_days(forge)
    forge.asked()
    forge.both()
    assert forge.asked("/versions") == []


def test_a_page_read_ahead_does_not_take_back_what_was_seen_after_it(forge: Forge) -> None:
    forge.other_settings(chunk_rows=1)
    requests = make(forge, 2)
    window = ("1990-01-01", "2024-05-07")
    other = forge.syncer

    def approved_and_synced() -> None:
        forge.tick()
        forge.gitlab.approve(requests[0], forge.other)
        forge.tick()
        incremental = [forge.request(t) for t in (MR, REVIEWS)]
        assert all(report.succeeded for report in other.run_together(incremental))

    # The backfill has the approvers of the first one when live syncing passes it.
    forge.gitlab.faults.add(
        r"merge_requests/2/resource_label_events", faults.Do(approved_and_synced), times=1
    )
    reports = forge.both(Mode.BACKFILL, window=window)
    assert all(report.succeeded for report in reports)
    (approval,) = forge.rows("SELECT closed_at FROM scm.mr_approvals WHERE mr_iid = 1")
    assert approval["closed_at"] is None
    gone = forge.rows("SELECT 1 FROM scm.review_events WHERE missing_since IS NOT NULL")
    assert gone == []


def test_coverage_is_one_window_whatever_the_size_of_a_chunk(forge: Forge) -> None:
    forge.other_settings(chunk_rows=1)
    make(forge, 5)
    reports = forge.both(Mode.BACKFILL, window=("1990-01-01", "2024-05-06"))
    assert all(report.succeeded for report in reports)
    assert (
        watermarks.missing(
            forge.conn, forge.repo_id, MR, TimeWindow(START.replace(year=1991), START.replace(day=5))
        )
        == ()
    )
