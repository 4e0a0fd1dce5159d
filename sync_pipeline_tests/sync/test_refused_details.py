"""Details that a server refuses for every merge request: one state for each kind, and one probe a day."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from sync_pipeline.core.model import JobType, Mode
from sync_pipeline.reports import health
from sync_pipeline.reports.completeness import completeness
from sync_pipeline.reports.reasons import HealthReason
from sync_pipeline.reports.status import status
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.sync import merge_requests as module
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_merge_request_trouble import make

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
COUNT = 8
# Those that failed.
_DEFERRED = (
    "SELECT natural_key, detail FROM scm.deferred_fetches WHERE resolved_at IS NULL AND NOT is_planned"
)
_STATES = "SELECT job_type, detail, error_code FROM scm.unreadable_details ORDER BY 1, 2"
_FORBIDDEN = faults.json_answer(403, {"message": "403 Forbidden"})
_NOT_FOUND = faults.json_answer(404, {"message": "404 Not found"})
_NO_ROUTE = faults.json_answer(404, {"error": "404 Not Found"})

# Each kind of child by its path, with the details that it is known by.
KINDS: dict[str, tuple[JobType, str]] = {
    "approvals": (REVIEWS, "approvals"),
    "reviewers": (REVIEWS, "reviewers"),
    "resource_state_events": (REVIEWS, "state_events"),
    "resource_label_events": (REVIEWS, "label_events"),
    "resource_milestone_events": (REVIEWS, "milestone_events"),
    "versions": (MR, "versions"),
    "commits": (MR, "commits"),
}


def stock(forge: Forge, count: int) -> None:
    for request in make(forge, count):
        forge.gitlab.approve(request, forge.other)
        forge.gitlab.request_review(request, forge.user, forge.other)
        forge.gitlab.add_label(forge.project, request, forge.user, "bug")
    forge.tick()


def refuse(forge: Forge, kind: str, answer: faults.CannedResponse = _FORBIDDEN) -> None:
    forge.gitlab.faults.add(rf"merge_requests/\d+/{kind}", answer, times=None)


def asked(forge: Forge) -> Counter[str]:
    """How often each kind of child was asked for since the last call."""
    return Counter(path.rpartition("/")[2] for path in forge.asked("/merge_requests/"))


def synced(forge: Forge) -> None:
    for report in forge.both():
        assert report.succeeded, report.error


def probe_is_due(forge: Forge) -> None:
    forge.conn.execute("UPDATE scm.unreadable_details SET probe_at = now()")


def health_result(forge: Forge, job_type: JobType) -> health.HealthResult:
    # The time before the origin is not what this is about.
    forge.conn.execute("UPDATE scm.sync_watermarks SET covered_time = '{(,)}'")
    (one,) = forge.rows("SELECT instance FROM scm.repos")
    tokens = Credentials(frozenset({one["instance"]}), {}, {})
    found = health.read(forge.conn, timedelta(days=9999), tokens)
    return next(one for one in found if one.facts.job_type is job_type)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [*((kind, _FORBIDDEN) for kind in KINDS), ("approvals", _NO_ROUTE), ("versions", _NO_ROUTE)],
)
def test_what_is_refused_everywhere_is_one_state_that_ends_with_all_of_it_read(
    forge: Forge, kind: str, answer: faults.CannedResponse
) -> None:
    job_type, detail = KINDS[kind]
    stock(forge, COUNT)
    refuse(forge, kind, answer)
    asked(forge)
    synced(forge)
    # Two threads may be on their way when the third one is refused.
    assert 3 <= asked(forge)[kind] <= 4
    code = "denied" if answer is _FORBIDDEN else "no_route"
    assert [tuple(row.values()) for row in forge.rows(_STATES)] == [(str(job_type), detail, code)]
    assert forge.rows(_DEFERRED) == []
    for _ in range(2):
        forge.tick(minutes=2)
        synced(forge)
        assert asked(forge) == {}
    forge.gitlab.edit(forge.project.merge_requests[1], title="Edited")
    forge.tick()
    synced(forge)
    assert kind not in asked(forge)
    # Once a day a few are asked for.
    probe_is_due(forge)
    forge.tick(minutes=2)
    synced(forge)
    assert asked(forge) == {kind: 2}
    forge.tick(minutes=2)
    synced(forge)
    assert asked(forge) == {}
    forge.gitlab.faults.clear()
    probe_is_due(forge)
    forge.tick(minutes=2)
    synced(forge)
    assert asked(forge)[kind] == COUNT + 1
    assert forge.rows(_STATES) == []
    forge.tick(minutes=2)
    synced(forge)
    assert asked(forge) == {}
    assert forge.state() == whole(forge)
    assert HealthReason.UNREADABLE not in health_result(forge, job_type).health.reasons


def whole(forge: Forge) -> dict[str, Any]:
    """What is stored of the same project where nothing was ever refused."""
    for job_type in (MR, REVIEWS):
        report = forge.syncer.run(
            forge.request(job_type, Mode.REPAIR, window=("1990-01-01", "2024-05-06"), reread=True)
        )
        assert report.succeeded, report.error
    return forge.state()


def test_the_state_is_told_in_the_same_words_everywhere(forge: Forge) -> None:
    stock(forge, 3)
    refuse(forge, "approvals")
    synced(forge)
    one = health_result(forge, REVIEWS)
    assert (one.health.passed, one.health.reasons) == (False, (HealthReason.UNREADABLE,))
    text = one.health.detail["unreadable"]
    assert text.startswith("approvals not readable since 2")
    assert text.endswith("; tried again once a day")
    assert "403" in text
    assets = status(forge.database, forge.settings)["units"]
    assert [asset["reasons"] for asset in assets if asset["job_type"] == "reviews"] == [{"unreadable": text}]
    document = completeness(forge.database, forge.settings)
    spec = f"gitlab:{forge.project.id}"
    assert document["unreadable"] == [{"spec": spec, "job_type": "reviews", "text": text}]
    assert document["total"]["unknown"]["unreadable"] == 1
    assert not document["total"]["complete"]


def test_what_the_server_does_not_have_at_all_is_told_and_is_no_defect(forge: Forge) -> None:
    stock(forge, 3)
    refuse(forge, "approvals", _NO_ROUTE)
    synced(forge)
    one = health_result(forge, REVIEWS)
    assert (one.health.passed, one.health.reasons) == (True, (HealthReason.UNREADABLE,))


def test_a_refusal_of_one_merge_request_is_deferred_for_that_one(forge: Forge) -> None:
    stock(forge, 4)
    synced(forge)
    forge.gitlab.faults.add(r"merge_requests/2/approvals", _FORBIDDEN, times=None)
    # It comes on a page of its own: others are asked before anything is said about all.
    forge.gitlab.approve(forge.project.merge_requests[2], forge.user)
    forge.tick()
    synced(forge)
    assert [tuple(row.values()) for row in forge.rows(_DEFERRED)] == [("2", "approvals")]
    assert forge.rows(_STATES) == []


@pytest.mark.parametrize("answer", [_FORBIDDEN, _NOT_FOUND, _NO_ROUTE])
@pytest.mark.parametrize("kind", ["(notes|discussions)", "approvals", "versions"])
def test_what_a_few_merge_requests_refuse_is_deferred_for_these(
    forge: Forge, kind: str, answer: faults.CannedResponse
) -> None:
    stock(forge, 6)
    synced(forge)
    _, detail = KINDS.get(kind, (REVIEWS, "notes"))
    forge.gitlab.faults.add(rf"merge_requests/[123]/{kind}", answer, times=None)
    if answer is _NOT_FOUND:
        # Somebody deletes the newest ones at the same time.
        forge.gitlab.faults.add(r"merge_requests/[56]\b", answer, times=None)
    for iid in (1, 2, 3):
        forge.gitlab.approve(forge.project.merge_requests[iid], forge.user)
    forge.conn.execute("UPDATE scm.mrs SET children_head = NULL WHERE iid <= 3")
    forge.tick()
    synced(forge)
    deferred = {tuple(row.values()) for row in forge.rows(_DEFERRED)}
    assert {(iid, detail) for iid in "123"} <= deferred
    assert ("4", detail) not in deferred
    assert forge.rows(_STATES) == []


def test_merge_requests_that_are_all_gone_say_nothing_of_the_project(forge: Forge) -> None:
    stock(forge, 4)
    refuse(forge, "(notes|discussions|approvals|versions)", _NOT_FOUND)
    synced(forge)
    assert forge.rows(_STATES) == []
    deferred = {tuple(row.values()) for row in forge.rows(_DEFERRED)}
    assert {(iid, detail) for iid in "1234" for detail in ("notes", "approvals", "versions")} <= deferred
    # That they are there, and their detail is not, says something.
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
    forge.tick(minutes=2)
    synced(forge)
    assert [tuple(row.values()) for row in forge.rows(_STATES)] == [
        (str(MR), "versions", "no_object"),
        (str(REVIEWS), "approvals", "no_object"),
        (str(REVIEWS), "notes", "no_object"),
    ]
    assert forge.rows(_DEFERRED) == []


def test_a_probe_of_merge_requests_that_are_gone_asks_others(forge: Forge) -> None:
    stock(forge, COUNT)
    refuse(forge, "approvals", _NO_ROUTE)
    synced(forge)
    forge.gitlab.faults.clear()
    for iid in (6, 7, 8):
        del forge.project.merge_requests[iid]
    probe_is_due(forge)
    forge.tick(minutes=2)
    synced(forge)
    assert forge.rows(_STATES) == []


def test_another_token_is_tried_at_once(forge: Forge) -> None:
    stock(forge, 3)
    refuse(forge, "approvals")
    synced(forge)
    forge.gitlab.faults.clear()
    forge.tick(minutes=2)
    synced(forge)
    assert len(forge.rows(_STATES)) == 1
    forge.other_settings(gitlab_token=SecretStr(forge.gitlab.token(forge.other).secret))
    forge.tick(minutes=2)
    synced(forge)
    assert forge.rows(_STATES) == []
    assert len(forge.rows("SELECT 1 FROM scm.mr_approvals")) == 3


def test_deferred_fetches_of_an_earlier_version_become_the_state(forge: Forge) -> None:
    stock(forge, 3)
    refuse(forge, "approvals")
    synced(forge)
    forge.conn.execute("DELETE FROM scm.unreadable_details")
    forge.conn.execute(
        "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error)"
        " SELECT repo_id, 'reviews', iid::text, 'approvals', 'denied: 403 Forbidden' FROM scm.mrs"
    )
    forge.tick(minutes=2)
    synced(forge)
    assert forge.rows(_DEFERRED) == []
    assert len(forge.rows(_STATES)) == 1


def test_an_interrupted_reading_of_what_was_refused_goes_on(forge: Forge) -> None:
    stock(forge, 30)
    refuse(forge, "approvals")
    synced(forge)
    forge.gitlab.faults.clear()
    forge.gitlab.faults.add("/approvals", faults.server_error(502), times=None, skip=5)
    probe_is_due(forge)
    forge.tick(minutes=2)
    forge.both()
    (state,) = forge.rows("SELECT readable_at IS NOT NULL AS readable FROM scm.unreadable_details")
    assert state["readable"]
    forge.gitlab.faults.clear()
    forge.tick(minutes=2)
    synced(forge)
    assert forge.rows(_STATES) == []
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
    forge.tick(minutes=2)
    synced(forge)
    assert len(forge.rows("SELECT 1 FROM scm.mr_approvals WHERE closed_at IS NULL")) == 30


@pytest.mark.parametrize("kind", ["approvals", "versions"])
def test_what_was_refused_is_read_some_in_each_visit(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(module, "_MAX_PER_VISIT", 3)
    job_type, _ = KINDS[kind]
    stock(forge, COUNT)
    refuse(forge, kind)
    synced(forge)
    forge.gitlab.faults.clear()
    # These do not come, and keep no other from being read.
    for iid in (6, 7, 8):
        del forge.project.merge_requests[iid]
    probe_is_due(forge)
    counts = []
    for _ in range(4):
        forge.tick(minutes=2)
        asked(forge)
        synced(forge)
        counts.append(asked(forge)[kind])
    # The first visit tests whether it can be read: three are gone, the next one gives it.
    assert counts == [4, 3, 2, 0]
    assert forge.rows(_STATES) == []
    assert HealthReason.UNREADABLE not in health_result(forge, job_type).health.reasons


def test_two_kinds_that_were_refused_come_one_after_the_other(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_PER_VISIT", 5)
    stock(forge, COUNT)
    for kind in ("versions", "commits"):
        refuse(forge, kind)
    synced(forge)
    # Without the commits no merge request is whole, and each is read once all the same.
    forge.gitlab.faults.clear()
    refuse(forge, "commits")
    probe_is_due(forge)
    counts = []
    for _ in range(3):
        forge.tick(minutes=2)
        asked(forge)
        synced(forge)
        counts.append(asked(forge)["versions"])
    assert (counts, len(forge.rows(_STATES))) == ([6, 5, 0], 1)


def test_without_notes_there_is_no_review(forge: Forge) -> None:
    stock(forge, 1)
    refuse(forge, "(notes|discussions)")
    _, reviews = forge.both()
    assert (reviews.error_code, forge.rows(_STATES)) == ("denied", [])
