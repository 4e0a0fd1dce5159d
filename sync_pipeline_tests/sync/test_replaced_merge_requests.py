"""A server that was restored from a backup: the numbers of merge requests name other merge requests."""

from __future__ import annotations

from typing import Any

import pytest

from sync_pipeline.core.model import Depth, JobType
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_reconcile import Proof

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_DEFERRED = (
    "SELECT job_type, natural_key, detail FROM scm.deferred_fetches"
    " WHERE resolved_at IS NULL ORDER BY 1, 2, 3"
)


def opened(forge: Forge, title: str, **other: Any) -> MergeRequest:
    request = forge.gitlab.open_merge_request(
        forge.project, title=title, source="topic", author=forge.user, **other
    )
    forge.gitlab.comment(request, forge.other, f"About {title}")
    forge.gitlab.approve(request, forge.other)
    forge.gitlab.request_review(request, forge.user, forge.other)
    return request


@pytest.fixture
def before(forge: Forge) -> list[MergeRequest]:
    """Three merge requests of a synced project, made after the backup."""
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    base = forge.git.resolve("refs/heads/main")
    assert base is not None
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    found = [opened(forge, f"Old {number}") for number in (1, 2, 3)]
    forge.tick()
    assert forge.commits().succeeded
    assert all(report.succeeded for report in forge.both())
    return found


def restored(forge: Forge, before: list[MergeRequest]) -> list[MergeRequest]:
    """Other merge requests under the same numbers; the first note has the number of the earlier one too."""
    made = []
    for old in before:
        forge.gitlab.delete_merge_request(forge.project, old)
        new = opened(forge, f"New {old.iid}", iid=old.iid)
        new.notes[0].row["id"] = old.notes[0].row["id"]
        made.append(new)
    forge.tick()
    return made


def stored_events(forge: Forge) -> dict[str, list[tuple[Any, ...]]]:
    """What a person reads of the merge requests, the earlier ones by the numbers of their ids."""
    queries = {
        "mrs": "SELECT gitlab_id, iid, title, deleted_at IS NULL FROM scm.mrs",
        "versions": "SELECT m.gitlab_id, count(*) FROM scm.mr_versions AS v JOIN scm.mrs AS m"
        " ON (m.repo_id, m.iid, m.replaced_id) = (v.repo_id, v.mr_iid, v.replaced_id) GROUP BY 1",
        "commits": "SELECT m.gitlab_id, count(*) FROM scm.mr_commits AS c JOIN scm.mrs AS m"
        " ON (m.repo_id, m.iid, m.replaced_id) = (c.repo_id, c.mr_iid, c.replaced_id) GROUP BY 1",
        "comments": "SELECT m.gitlab_id, e.body, e.deleted_at IS NULL FROM scm.review_events AS e"
        " JOIN scm.mrs AS m USING (mr_id) WHERE NOT e.is_system",
        "approvals": "SELECT m.gitlab_id, a.username, a.closed_at IS NULL FROM scm.mr_approvals AS a"
        " JOIN scm.mrs AS m ON (m.repo_id, m.iid, m.replaced_id) = (a.repo_id, a.mr_iid, a.replaced_id)",
        "reviewers": "SELECT m.gitlab_id, r.username, r.closed_at IS NULL FROM scm.mr_reviewers AS r"
        " JOIN scm.mrs AS m ON (m.repo_id, m.iid, m.replaced_id) = (r.repo_id, r.mr_iid, r.replaced_id)",
        "facts": "SELECT (meta_json ->> 'title') FROM scm.v_facts WHERE source_type = 'mr'",
    }
    return {name: sorted(tuple(row.values()) for row in forge.rows(query)) for name, query in queries.items()}


def expected(old: list[MergeRequest], new: list[MergeRequest]) -> dict[str, list[tuple[Any, ...]]]:
    return {
        "mrs": [(one.id, one.iid, f"Old {one.iid}", False) for one in old]
        + [(one.id, one.iid, f"New {one.iid}", True) for one in new],
        "versions": [(one.id, 1) for one in old + new],
        "commits": [(one.id, 1) for one in old + new],
        "comments": [(one.id, f"About Old {one.iid}", False) for one in old]
        + [(one.id, f"About New {one.iid}", True) for one in new],
        "approvals": [(one.id, "user2", one in new) for one in old + new],
        "reviewers": [(one.id, "user2", one in new) for one in old + new],
        "facts": [(f"New {one.iid}",) for one in new],
    }


@pytest.mark.parametrize(
    "order", [(MR, REVIEWS), (REVIEWS, MR), None], ids=["apart", "reviews first", "both"]
)
def test_the_earlier_one_is_gone_with_its_notes_and_the_new_one_is_another_row(
    forge: Forge, before: list[MergeRequest], order: tuple[JobType, ...] | None
) -> None:
    after = restored(forge, before)
    reports = forge.both() if order is None else [forge.syncer.run(forge.request(t)) for t in order]
    assert all(report.succeeded for report in reports)
    assert stored_events(forge) == expected(before, after)
    (first,) = forge.rows("SELECT mr_id FROM scm.mrs WHERE gitlab_id = %(id)s", id=before[0].id)
    assert first["mr_id"] == f"{forge.repo_id}:1:{before[0].id}"
    for _ in range(2):
        forge.tick()
        assert all(report.counts.changed == 0 for report in forge.both())
    assert stored_events(forge) == expected(before, after)
    assert integrity_checks.failures(forge.conn) == {}


def test_a_comparison_finds_the_other_one_and_a_repair_leaves_both(
    forge: Forge, before: list[MergeRequest]
) -> None:
    # Restored with an older time of update than what is stored: no visit reads them.
    after = restored(forge, before)
    for old, new in zip(before, after, strict=True):
        forge.gitlab.touch(new, old.updated_at)
    forge.both()
    proof = Proof(forge)
    assert {key: kind.split()[0] for key, kind in proof.found(MR).items()} == dict.fromkeys("123", "changed")
    assert "1" in {key.partition(":")[0] for key in proof.found(REVIEWS, depth=Depth.LISTING)}
    proof.found(REVIEWS)
    for job_type in (MR, REVIEWS):
        proof.repair_differences(job_type)
    assert stored_events(forge) == expected(before, after)
    for job_type in (MR, REVIEWS):
        assert proof.found(job_type) == {}


def test_one_that_comes_back_is_taken_up_again(forge: Forge, before: list[MergeRequest]) -> None:
    after = restored(forge, before)
    forge.both()
    for old in before:
        forge.project.merge_requests[old.iid] = old
        forge.gitlab.touch(old)
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    found = stored_events(forge)
    assert found["facts"] == [("Old 1",), ("Old 2",), ("Old 3",)]
    assert found["comments"] == [(one.id, f"About Old {one.iid}", True) for one in before] + [
        (one.id, f"About New {one.iid}", False) for one in after
    ]
    assert [row for row in found["approvals"] if row[2]] == [(one.id, "user2", True) for one in before]


def test_deferred_fetches_of_the_earlier_one_are_settled_and_those_of_the_new_one_are_not(
    forge: Forge, before: list[MergeRequest]
) -> None:
    forge.gitlab.faults.add(r"/merge_requests/1/(versions|approvals)\b", faults.server_error(), times=None)
    forge.gitlab.push(forge.project, "topic", "More\n", files={"b": "2\n"})
    forge.gitlab.touch(before[0])
    forge.tick()
    forge.both()
    assert [tuple(row.values()) for row in forge.rows(_DEFERRED)] == [
        ("merge_requests", "1", "versions"),
        ("reviews", "1", "approvals"),
    ]
    forge.gitlab.faults.clear()
    forge.gitlab.faults.add(r"/merge_requests/1/resource_label_events", faults.server_error(), times=None)
    restored(forge, before)
    forge.both()
    assert [tuple(row.values()) for row in forge.rows(_DEFERRED)] == [("reviews", "1", "label_events")]


def test_a_reset_does_not_mix_the_notes_of_two(forge: Forge, before: list[MergeRequest]) -> None:
    for job_type in (MR, REVIEWS):
        watermarks.replace(
            forge.conn, repo_id=forge.repo_id, job_type=job_type, covered=(), actor="me", reason="restored"
        )
    after = restored(forge, before)
    assert all(report.succeeded for report in forge.both())
    assert stored_events(forge) == expected(before, after)
