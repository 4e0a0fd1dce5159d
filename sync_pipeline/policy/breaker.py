"""The circuit breaker of a scope: closed, open, half open.

Belongs here: how its state follows from finished runs and the clock. Pure: every change of state is stored
(:mod:`sync_pipeline.ledger.breakers`), so a restart keeps it. :mod:`sync_pipeline.policy.gates` decides what
may start in each state. A person's stop is a pause, not a breaker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sync_pipeline.core.model import BreakerScope, BreakerState
from sync_pipeline.policy.samples import Rates, RunOutcome, Sample, rates_of_server

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_NO_RATES = Rates()


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker as it was last stored. ``since`` is the start of its state: earlier runs are no evidence.
    ``judged_upto`` is the end of the latest evaluated run. ``successes`` are the probes that the server
    answered since it became half open. Times are UTC.
    """

    scope: BreakerScope
    key: str
    state: BreakerState = BreakerState.CLOSED
    since: datetime = _BEGINNING
    opened_at: datetime | None = None
    rates: Rates = _NO_RATES
    judged_upto: datetime | None = None
    successes: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When a breaker opens and closes (seed 000, section 1.11). Rates are shares from 0 to 1, see
    :class:`~sync_pipeline.policy.samples.Rates`. ``alpha`` is the weight of the newest rates, 1 without
    smoothing. The newest ``window_count`` runs of the last ``window`` count. Without ``enabled`` no breaker
    is evaluated, and none stops anything.
    """

    failure_rate_threshold: float
    rate_limit_threshold: float
    timeout_rate_threshold: float
    min_samples: int
    alpha: float
    window_count: int
    window: timedelta
    open_for: timedelta
    half_open_max_requests: int
    recovery_success_count: int
    enabled: bool = True


def evaluate(breaker: Breaker, samples: Sequence[Sample], now: datetime, limits: BreakerLimits) -> Breaker:
    """The breaker after the runs of its scope so far; the same object if nothing changed.

    ``samples`` are in any order and may contain runs that were evaluated before.
    """
    if breaker.state is BreakerState.OPEN:
        assert breaker.opened_at is not None
        if now < breaker.opened_at + limits.open_for:
            return breaker
        return replace(
            breaker,
            state=BreakerState.HALF_OPEN,
            since=now,
            successes=0,
            reason=f"open for {limits.open_for.total_seconds():.0f} s; probing",
        )
    since = sorted((s for s in samples if s.started_at >= breaker.since), key=lambda s: s.finished_at)
    if breaker.state is BreakerState.HALF_OPEN:
        # A probe tests whether the server responds: a refusal of a repository is a response.
        probes = [s for s in since if s.is_answer or s.outcome_of_server is RunOutcome.FAILURE]
        return _evaluate_probes(breaker, probes, now, limits)
    runs = [s for s in since if s.outcome_of_server is not RunOutcome.NEUTRAL]
    return _evaluate_runs(breaker, runs, now, limits)


def _evaluate_probes(
    breaker: Breaker, probes: Sequence[Sample], now: datetime, limits: BreakerLimits
) -> Breaker:
    failed = next((s for s in probes if s.outcome_of_server is RunOutcome.FAILURE), None)
    if failed is not None:
        return replace(
            breaker,
            state=BreakerState.OPEN,
            since=now,
            opened_at=now,
            successes=0,
            reason=f"a probe failed: {failed.code}",
        )
    if len(probes) >= limits.recovery_success_count:
        return replace(
            breaker,
            state=BreakerState.CLOSED,
            since=now,
            rates=_NO_RATES,
            judged_upto=None,
            successes=len(probes),
            reason=f"{len(probes)} probes were answered",
        )
    return breaker if len(probes) == breaker.successes else replace(breaker, successes=len(probes))


def _evaluate_runs(breaker: Breaker, runs: Sequence[Sample], now: datetime, limits: BreakerLimits) -> Breaker:
    evaluated = [s for s in runs if s.finished_at > now - limits.window][-limits.window_count :]
    # Without new runs the smoothed rates stay: the same runs are no new evidence.
    if not evaluated or (
        breaker.judged_upto is not None and evaluated[-1].finished_at <= breaker.judged_upto
    ):
        return breaker
    rates = _smoothed(breaker, rates_of_server(evaluated), limits.alpha)
    evaluated_breaker = replace(breaker, rates=rates, judged_upto=evaluated[-1].finished_at)
    reached = [
        f"{name} {rate:.0%}"
        for name, rate, threshold in (
            ("failures", rates.failure, limits.failure_rate_threshold),
            ("rate limits", rates.rate_limit, limits.rate_limit_threshold),
            ("time-outs", rates.timeout, limits.timeout_rate_threshold),
        )
        if rate >= threshold
    ]
    if rates.samples < limits.min_samples or not reached:
        return evaluated_breaker
    return replace(
        evaluated_breaker,
        state=BreakerState.OPEN,
        since=now,
        opened_at=now,
        successes=0,
        reason=f"{', '.join(reached)} of the last {rates.samples} runs",
    )


def _smoothed(breaker: Breaker, found: Rates, alpha: float) -> Rates:
    if breaker.judged_upto is None:
        return found
    before = breaker.rates
    return Rates(
        alpha * found.failure + (1 - alpha) * before.failure,
        alpha * found.rate_limit + (1 - alpha) * before.rate_limit,
        alpha * found.timeout + (1 - alpha) * before.timeout,
        found.samples,
    )
