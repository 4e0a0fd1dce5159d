"""The error budget of an asset: one that fails too often is paused for a while.

Belongs here: the failure rate with its decay, and the end of the pause. It can never block for ever: after
each pause one run tests whether the asset still fails, and the first success ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sync_pipeline.policy.samples import RunOutcome, Sample

RUNS = 10
"""The newest runs that count (seed 000, section 1.6)."""

_MIN_SAMPLES = 3
# Half-life of the weight: a failure of an hour ago is weak evidence.
_HALF_LIFE = timedelta(minutes=15)


def failure_rate(samples: Iterable[Sample], now: datetime) -> float:
    """Share of the newest runs that failed, from 0 to 1. A run's weight halves every quarter of an hour."""
    counted = _counted(samples)
    weights = [0.5 ** ((now - s.finished_at) / _HALF_LIFE) for s in counted]
    failed = sum(w for w, s in zip(weights, counted, strict=True) if s.outcome is RunOutcome.FAILURE)
    return failed / sum(weights) if counted else 0.0


def rate_limit_rate(samples: Iterable[Sample]) -> float:
    """Share of the newest runs with a 429, from 0 to 1."""
    counted = _counted(samples)
    return sum(s.is_rate_limited for s in counted) / len(counted) if counted else 0.0


def paused_until(
    samples: Iterable[Sample], now: datetime, *, threshold: float, pause: timedelta
) -> datetime | None:
    """The end of the pause of a used-up budget. It is in the past when a probe is due, and None while there
    is budget left.
    """
    counted = _counted(samples)
    if len(counted) < _MIN_SAMPLES or counted[-1].outcome is not RunOutcome.FAILURE:
        return None
    if failure_rate(counted, now) < threshold:
        return None
    return counted[-1].finished_at + pause


def _counted(samples: Iterable[Sample]) -> Sequence[Sample]:
    """The newest runs that are evidence, in the order of their end."""
    decisive = [s for s in samples if s.outcome is not RunOutcome.NEUTRAL]
    return sorted(decisive, key=lambda s: s.finished_at)[-RUNS:]
