"""Decisions about abandoned work: jobs of lost owners, open runs, leases, waiting jobs.

Belongs here: the decision about each of them, from facts and a time. Does not belong here: how the facts are
found and how a decision is executed (:mod:`sync_pipeline.ledger.reaping`).

A live claim is never touched, however old it is, unless its process is known to be gone. All times are the
database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sync_pipeline.core.model import JobStatus
from sync_pipeline.policy.backoff import seconds_until_retry

WORKER_LOST = "worker_lost"
"""Code of an attempt whose owner is gone. Its job is dead if its attempts are used up."""

CANCELLED, SUPERSEDED, EXPIRED = "cancelled", "superseded", "expired"
"""Codes of waiting jobs that were given up. They are dead, and need no person."""

PERMANENT = frozenset(
    {"denied", "disabled", "credential", "scope", "blocked", "replaced", "moved", "permanent"}
)
"""Codes of failures that another attempt would meet again."""

LONGEST_BACKOFF = 1800.0
"""Seconds: longest wait of a job that lost its owner, however often that happened."""

ONE_OFF_AGE = timedelta(days=1)
"""Age at which a waiting job that only its starter can take is given up."""


class RunState(StrEnum):
    """The state of a run in Dagster: unknown, alive, or ended."""

    UNKNOWN = "unknown"
    LIVES = "lives"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Rules:
    """Grace periods after the end of a claim and of a lease, and the longest time that a run stays open
    without a live claim. ``retry_as`` is the status of a job that is retried: failed or pending.
    ``expire_after`` is None if waiting jobs do not expire.
    """

    job_grace: timedelta
    lease_grace: timedelta
    run_max: timedelta
    retry_as: JobStatus
    expire_after: timedelta | None


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A claimed job. ``failures`` is how many attempts before this one failed, and ``last_error_code`` is
    that of the last. ``got_on``: this attempt has stored something new. ``covered``: its window is complete,
    and it had no other purpose. ``process_gone`` is True only if the owner is known to be dead. ``dagster``
    is the state of its run.
    """

    attempts: int
    max_attempts: int
    failures: int
    got_on: bool
    claimed_at: datetime
    expires_at: datetime
    last_error_code: str | None
    covered: bool
    process_gone: bool
    dagster: RunState


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job without a worker. ``retired``: its repository is retired, and the job needs the source.
    ``covered`` as above. ``one_off``: only its starter can take it. ``needed``: without it something stays
    missing. ``touched_at`` is when the row last changed.
    """

    retired: bool
    covered: bool
    one_off: bool
    needed: bool
    touched_at: datetime


@dataclass(frozen=True, slots=True)
class Ending:
    """The new status of a job, with the code and one line about the reason; ``backoff`` is in seconds."""

    status: JobStatus
    code: str | None = None
    error: str | None = None
    backoff: float = 0.0


def evaluate_running(job: RunningJob, now: datetime, rules: Rules) -> Ending | None:
    """How the attempt of a lost owner ends; None while it has an owner.

    It ends at once if the owner's process is gone, and at the end of the claim if its Dagster run ended.
    Otherwise it ends after the grace period: a stopped process may still exist, and the fence refuses it when
    it continues. A long job whose workers are lost repeatedly is not dead as long as it makes progress.
    """
    if not job.process_gone and not _is_lost(job, now, rules):
        return None
    if job.covered:
        return Ending(JobStatus.COMPLETED)
    lost = f"the worker disappeared in attempt {job.attempts} of {job.max_attempts}"
    if job.attempts >= job.max_attempts and not job.got_on:
        return Ending(JobStatus.DEAD, WORKER_LOST, lost)
    if job.last_error_code in PERMANENT:
        return Ending(
            JobStatus.DEAD,
            job.last_error_code,
            f"{lost}, and the attempt before met what a retry cannot help: {job.last_error_code}",
        )
    if rules.retry_as is JobStatus.PENDING:
        return Ending(JobStatus.PENDING, WORKER_LOST, lost)
    backoff = min(seconds_until_retry(WORKER_LOST, 1 if job.got_on else job.failures + 1), LONGEST_BACKOFF)
    return Ending(JobStatus.FAILED, WORKER_LOST, lost, backoff)


def _is_lost(job: RunningJob, now: datetime, rules: Rules) -> bool:
    if now <= job.expires_at:
        return False
    return (
        job.dagster is RunState.ENDED
        or now > job.expires_at + rules.job_grace
        or now > job.claimed_at + rules.run_max
    )


def evaluate_waiting(job: WaitingJob, now: datetime, rules: Rules) -> Ending | None:
    """Why a waiting job is given up; None if it keeps waiting.

    A job without which something would stay missing waits for ever.
    """
    age = now - job.touched_at
    if age <= rules.job_grace:
        return None  # a process may have made it a moment ago, to claim it now
    if job.retired:
        return Ending(JobStatus.DEAD, CANCELLED, "the repository is retired")
    if job.covered:
        return Ending(JobStatus.DEAD, SUPERSEDED, "its window has been read by another job")
    if job.one_off and age > ONE_OFF_AGE:
        return Ending(JobStatus.DEAD, EXPIRED, "nobody took it up; ask for it again")
    if rules.expire_after is not None and age > rules.expire_after and not job.needed:
        days = rules.expire_after / timedelta(days=1)
        return Ending(JobStatus.DEAD, EXPIRED, f"nothing has touched it for {days:g} days")
    return None


def run_is_lost(started_at: datetime, now: datetime, rules: Rules) -> bool:
    """Whether an open run that its job does not know is closed."""
    return now > started_at + rules.job_grace


def lease_is_lost(expires_at: datetime, now: datetime, rules: Rules) -> bool:
    """Whether a lease, or a request for one, that expired at ``expires_at`` is released."""
    return now > expires_at + rules.lease_grace


@dataclass(frozen=True, slots=True)
class RunInDagster:
    """A run that Dagster reports as running. Its process may be known to be alive or gone. ``claims_live``:
    it holds a claim now. ``last_sign`` is when one of its attempts last began, or ended by itself.
    ``lost_at`` is when the claim of one was last taken. Both are None if the ledger has no attempt of it.
    """

    process_gone: bool
    process_lives: bool
    claims_live: bool
    last_sign: datetime | None
    lost_at: datetime | None


def loss_reason(run: RunInDagster, now: datetime, rules: Rules) -> str | None:
    """Why a run is ended in Dagster, in one line; None if it continues.

    A run whose claim was taken, and that did nothing since, hangs or was stopped. While Dagster reports it as
    running, its work does not start again. Without an attempt in the ledger nothing shows that it is lost,
    and Dagster's own limits end it.
    """
    if run.process_gone:
        return "the process of this run is gone"
    if run.claims_live or run.last_sign is None:
        return None
    if run.lost_at is not None and run.lost_at >= run.last_sign and now > run.lost_at + rules.job_grace:
        return "it let its claim run out, and did nothing since"
    if not run.process_lives and now > run.last_sign + rules.run_max:
        return f"it has no claim, and began nothing for {rules.run_max.total_seconds():.0f} s"
    return None
