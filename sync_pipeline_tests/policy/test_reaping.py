"""What is lost and what is not, over states and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.model import JobStatus
from sync_pipeline.policy.reaping import (
    LONGEST_BACKOFF,
    PERMANENT,
    Rules,
    RunInDagster,
    RunningJob,
    RunState,
    WaitingJob,
    evaluate_running,
    evaluate_waiting,
    loss_reason,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
seconds = st.integers(-100_000, 100_000).map(lambda n: timedelta(seconds=n))
graces = st.integers(0, 10_000).map(lambda n: timedelta(seconds=n))
rules = st.builds(
    Rules,
    job_grace=graces,
    lease_grace=graces,
    run_max=graces,
    retry_as=st.sampled_from([JobStatus.FAILED, JobStatus.PENDING]),
    expire_after=st.none() | st.just(timedelta(days=30)),
)
running = st.builds(
    RunningJob,
    attempts=st.integers(1, 12),
    max_attempts=st.integers(1, 12),
    failures=st.integers(0, 12),
    got_on=st.booleans(),
    claimed_at=seconds.map(lambda age: NOW - abs(age)),
    expires_at=seconds.map(lambda left: NOW + left),
    last_error_code=st.sampled_from([None, "timeout", "denied"]),
    covered=st.booleans(),
    process_gone=st.booleans(),
    dagster=st.sampled_from(RunState),
)
waiting = st.builds(
    WaitingJob,
    retired=st.booleans(),
    covered=st.booleans(),
    one_off=st.booleans(),
    needed=st.booleans(),
    touched_at=st.integers(-1, 100).map(lambda days: NOW - timedelta(days=days)),
)
RULES = Rules(
    timedelta(seconds=60),
    timedelta(seconds=120),
    timedelta(hours=1),
    JobStatus.FAILED,
    timedelta(days=30),
)


@given(running, rules)
def test_a_live_claim_is_left_alone_and_a_lost_one_never_for_long(job: RunningJob, given_: Rules) -> None:
    ending = evaluate_running(job, NOW, given_)
    live = job.expires_at >= NOW
    if not job.process_gone and live:
        assert ending is None
    if job.process_gone or job.expires_at + given_.job_grace < NOW:
        assert ending is not None
    if ending is None:
        assert job.dagster is not RunState.ENDED or live


@given(running, rules)
def test_a_crash_costs_an_attempt_and_nothing_is_retried_for_ever(job: RunningJob, given_: Rules) -> None:
    ending = evaluate_running(job, NOW, given_)
    if ending is None:
        return
    used_up = job.attempts >= job.max_attempts and not job.got_on
    if job.covered:
        assert (ending.status, ending.code) == (JobStatus.COMPLETED, None)
    elif used_up or job.last_error_code in PERMANENT:
        assert ending.status is JobStatus.DEAD
        assert "disappeared" in (ending.error or "")
        assert ending.code == ("worker_lost" if used_up else job.last_error_code)
    else:
        assert (ending.status, ending.code) == (given_.retry_as, "worker_lost")
    assert 0 <= ending.backoff <= LONGEST_BACKOFF
    assert (ending.backoff > 0) is (ending.status is JobStatus.FAILED)


@given(waiting, rules)
def test_what_would_leave_a_gap_waits_however_old_it_is(job: WaitingJob, given_: Rules) -> None:
    ending = evaluate_waiting(job, NOW, given_)
    if job.needed and not (job.retired or job.covered or job.one_off):
        assert ending is None
    if ending is not None:
        assert ending.status is JobStatus.DEAD
        assert ending.code in ("cancelled", "superseded", "expired")
        assert NOW - job.touched_at > given_.job_grace


@pytest.mark.parametrize(
    ("facts", "days", "code"),
    [
        ({}, 29, None),
        ({}, 31, "expired"),
        ({"needed": True}, 31, None),
        ({"one_off": True}, 0.9, None),
        ({"one_off": True}, 1.1, "expired"),
        ({"covered": True}, 0.1, "superseded"),
        ({"retired": True, "needed": True}, 0.1, "cancelled"),
        ({"retired": True}, 0.0001, None),
    ],
)
def test_why_a_waiting_job_is_given_up(facts: dict[str, bool], days: float, code: str | None) -> None:
    none = dict.fromkeys(("retired", "covered", "one_off", "needed"), False)
    job = WaitingJob(**none | facts, touched_at=NOW - timedelta(days=days))
    ending = evaluate_waiting(job, NOW, RULES)
    assert (ending and ending.code) == code


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, None),
        ({"process_gone": True}, "process of this run is gone"),
        ({"quiet": 3601}, "began nothing for 3600 s"),
        ({"quiet": 3599}, None),
        ({"quiet": 3601, "claims_live": True}, None),
        ({"quiet": 3601, "process_lives": True}, None),
        ({"quiet": 400, "lost": 61, "process_lives": True}, "let its claim run out"),
        ({"quiet": 400, "lost": 59}, None),
        ({"quiet": 400, "lost": 61, "claims_live": True}, None),
        ({"quiet": 60, "lost": 61}, None),
    ],
)
def test_a_run_of_dagster_is_lost_only_where_something_shows_it(
    facts: dict[str, int], why: str | None
) -> None:
    last_sign, lost_at = (
        NOW - timedelta(seconds=facts[name]) if name in facts else None for name in ("quiet", "lost")
    )
    run = RunInDagster(
        process_gone="process_gone" in facts,
        process_lives="process_lives" in facts,
        claims_live="claims_live" in facts,
        last_sign=last_sign,
        lost_at=lost_at,
    )
    found = loss_reason(run, NOW, RULES)
    assert found is None if why is None else why in (found or "")
