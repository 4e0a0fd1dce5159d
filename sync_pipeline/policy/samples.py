"""Finished runs as evidence about their source.

Belongs here: the sample, which failures count for which scope, and rates.
:mod:`~sync_pipeline.policy.breaker`, :mod:`~sync_pipeline.policy.gates` and
:mod:`~sync_pipeline.policy.degradation` draw the conclusions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sync_pipeline.core.model import JobType, Mode, RunStatus

SERVER_CODES = frozenset(
    {
        "blocked",
        "certificate",
        "connection",
        "content_too_large",
        "incomplete",
        "malformed",
        "network",
        "not_json",
        "rate_limit",
        "redirect",
        "server_error",
        "timeout",
        "truncated",
        "window_too_hard",
    }
)
"""Error codes that are evidence about the server, for every repository."""

NEUTRAL_CODES = frozenset(
    {
        "cancelled",
        "claim_lost",
        "configuration",
        "credential",
        "database_busy",
        "database_down",
        "database_full",
        "database_refused",
        "disabled",
        "expired",
        "lease_held",
        "lease_lost",
        "no_gitlab",
        "no_room",
        "paused",
        "scope",
        "superseded",
        "throttled",
        "watermark_set",
        "worker_lost",
    }
)
"""Error codes that are no evidence about the source. Examples are a held lease, a rejected token, our own
rate limit, and a failure of our database or disk.
"""

ANSWER_CODES = frozenset(
    {
        "bad_request",
        "denied",
        "disabled",
        "moved",
        "no_object",
        "no_repository",
        "no_route",
        "no_such_revision",
        "not_found",
        "replaced",
    }
)
"""Error codes with which a server refuses a repository. They are neither failures of the server nor work that
it did. But such a server is there and responds.
"""

_TOO_LARGE = frozenset({"content_too_large", "window_too_hard"})
_TIMEOUTS = frozenset({"timeout", "server_error", "connection", "network"})


class RunOutcome(StrEnum):
    """The evidence of a run. A neutral one is neither success nor failure (seed 000, invariant 5a)."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished run. Times are UTC by the database's clock. ``requests`` are those sent to the source.
    ``rate_limited`` of them were refused with 429, and ``timeouts`` timed out. ``pool`` is the worker pool
    whose scheduler started it, empty if none did.
    """

    repo_id: int
    job_type: JobType
    instance: str
    tenant: str
    mode: Mode
    started_at: datetime
    finished_at: datetime
    status: RunStatus
    code: str | None = None
    requests: int = 0
    rate_limited: int = 0
    timeouts: int = 0
    pool: str = ""

    @property
    def outcome(self) -> RunOutcome:
        """Its evidence about the repository."""
        if self.status in (RunStatus.COMPLETED, RunStatus.NO_DATA):
            return RunOutcome.SUCCESS
        if self.status is not RunStatus.FAILED or self.code in NEUTRAL_CODES:
            return RunOutcome.NEUTRAL
        return RunOutcome.FAILURE

    @property
    def outcome_of_server(self) -> RunOutcome:
        """Its evidence about the server. A repository that is denied or gone is no evidence about how the
        server works.
        """
        if self.outcome is RunOutcome.FAILURE and self.code not in SERVER_CODES:
            return RunOutcome.NEUTRAL
        return self.outcome

    @property
    def is_answer(self) -> bool:
        """True if the server gave a proper response, even a refusal."""
        refused = self.status is RunStatus.FAILED and self.code in ANSWER_CODES
        return refused or self.outcome is RunOutcome.SUCCESS

    @property
    def is_rate_limited(self) -> bool:
        """True if the server asked it to slow down."""
        return self.rate_limited > 0 or self.code == "rate_limit"

    @property
    def is_slow(self) -> bool:
        """True if requests timed out, or the server failed."""
        return self.timeouts > 0 or self.code in _TIMEOUTS

    @property
    def is_too_large(self) -> bool:
        """True if a response was too large, or too costly for the server."""
        return self.code in _TOO_LARGE


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares from 0 to 1. ``failure`` is of finished runs, without neutral ones; ``rate_limit`` and
    ``timeout`` are of requests. ``samples`` is the number of runs.
    """

    failure: float = 0.0
    rate_limit: float = 0.0
    timeout: float = 0.0
    samples: int = 0


def rates_of_server(samples: Iterable[Sample]) -> Rates:
    """The rates of these runs as evidence about their server."""
    counted = [s for s in samples if s.outcome_of_server is not RunOutcome.NEUTRAL]
    if not counted:
        return Rates()
    failed = sum(s.outcome_of_server is RunOutcome.FAILURE for s in counted)
    # A run that ended with a code and counted nothing had at least that one response.
    limited = sum(max(s.rate_limited, s.code == "rate_limit") for s in counted)
    timeouts = sum(max(s.timeouts, s.code == "timeout") for s in counted)
    requests = max(sum(max(s.requests, 1) for s in counted), limited, timeouts)
    return Rates(failed / len(counted), limited / requests, timeouts / requests, len(counted))
