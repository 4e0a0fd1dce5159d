"""The token bucket of a server: refill, requests, and the effect of responses.

Belongs here: pure functions from a bucket, the limits of the settings and a time to the next bucket. Does not
belong here: the clock, the table and the waiting (:mod:`sync_pipeline.sync.limiter`).
:mod:`sync_pipeline.ledger.rate_limits` has :func:`take` as one statement.

A request that finds no token gets a position in the queue. The bucket goes below zero, and the request waits
until its token has been refilled. So the queue is first come, first served, without polling. All processes
together never send more than ``burst + rate x time``. A pause voids all earlier positions, see
:func:`is_valid`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sync_pipeline.core.model import Bucket

RAISED_PER_MINUTE = 0.05
"""Share of the setting by which a lowered rate rises in a minute without a 429."""

LONGEST_PAUSE = 3600.0
"""Seconds: a server that requests a longer pause is tried again after this."""

_LOWEST_SHARE = 0.1
_LOWEST_RATE = 0.1
# Seconds: responses that are closer together belong to requests that were sent together.
_ONE_STORM = 2.0
_LONGEST_GUESS = 60.0
_NEARLY_NOTHING = 0.1


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of the settings: ``rate`` requests a second, ``burst`` at once after a quiet time."""

    rate: float
    burst: float


@dataclass(frozen=True, slots=True)
class Signal:
    """The load that a response shows. ``status`` is None without a response; ``seconds`` is the age of the
    request. ``retry_after`` is the wait that the server requested. ``remaining`` of ``limit`` requests are
    left for ``reset`` seconds.
    """

    status: int | None
    seconds: float = 0.0
    retry_after: float | None = None
    remaining: int | None = None
    limit: int | None = None
    reset: float | None = None

    @property
    def is_refusal(self) -> bool:
        """The server asks us to slow down."""
        if self.status == 503:
            return self.retry_after is not None
        return self.status == 429 or (self.status == 403 and self.remaining == 0)

    @property
    def is_of_its_kind(self) -> bool:
        """The refusal is of a limit for this kind of request: the whole limit has requests left, or the
        server names none. GitLab's limits of single endpoints come without any header.
        """
        has_no_limits = self.remaining is None and self.limit is None and self.retry_after is None
        return self.status == 429 and (bool(self.remaining) or has_no_limits)

    @property
    def is_nearly_out(self) -> bool:
        """Few of the allowed requests are left for some time."""
        if self.remaining is None or not self.reset:
            return False
        return self.remaining <= _NEARLY_NOTHING * (self.limit or 0)


def at(bucket: Bucket, limits: RateLimits, now: datetime) -> Bucket:
    """``bucket`` at ``now``: its tokens and its rate. In a pause nothing is refilled."""
    since = _seconds(bucket.refilled_at, now)
    tokens = min(limits.burst, bucket.tokens + bucket.rate * since)
    rate, changed_at = limits.rate, bucket.changed_at
    if changed_at is not None:
        raised = RAISED_PER_MINUTE * limits.rate * _seconds(changed_at, now) / 60
        rate = min(limits.rate, bucket.rate + raised)
        changed_at = None if rate >= limits.rate else max(changed_at, now)
    filled = replace(bucket, tokens=tokens, refilled_at=max(bucket.refilled_at, now), changed_at=changed_at)
    return _with_rate(filled, rate)


def _with_rate(bucket: Bucket, rate: float) -> Bucket:
    """The queue keeps its length in seconds, so no request overtakes an earlier one."""
    tokens = bucket.tokens * rate / bucket.rate if bucket.tokens < 0 else bucket.tokens
    return replace(bucket, tokens=tokens, rate=rate)


def take(bucket: Bucket, limits: RateLimits, now: datetime, longest: float) -> tuple[Bucket, float]:
    """The bucket after one request at ``now``, and the seconds that the request has to wait. Nothing is taken
    if that is longer than ``longest``.
    """
    bucket = at(bucket, limits, now)
    wait = _seconds(now, bucket.refilled_at) + max(0.0, 1.0 - bucket.tokens) / bucket.rate
    return (replace(bucket, tokens=bucket.tokens - 1) if wait <= longest else bucket), wait


def is_valid(bucket: Bucket, given_at: datetime) -> bool:
    """True if a position in the queue that was given at ``given_at`` still counts."""
    return bucket.paused_at is None or bucket.paused_at < given_at


def is_paused(bucket: Bucket, now: datetime) -> bool:
    """True if no request is sent at ``now``."""
    return bucket.paused_until is not None and bucket.paused_until > now


def after_answer(bucket: Bucket, limits: RateLimits, signal: Signal, now: datetime) -> Bucket:
    """The bucket after a response that came at ``now``."""
    bucket = at(bucket, limits, now)
    if signal.limit is not None and signal.remaining is not None:
        bucket = replace(bucket, server_limit=signal.limit, server_remaining=signal.remaining)
    if signal.is_refusal:
        return _slowed(bucket, limits, signal, now)
    sent_at = now - timedelta(seconds=signal.seconds)
    answered = signal.status is not None and signal.status < 500
    if answered and bucket.last_429_at is not None and sent_at > bucket.last_429_at:
        bucket = replace(bucket, consecutive_429=0)
    if signal.is_nearly_out:
        assert signal.reset is not None
        assert signal.remaining is not None
        apart = min(signal.reset / (signal.remaining + 1), LONGEST_PAUSE)
        if apart > 1 / bucket.rate:
            reason = f"the server allows {signal.remaining} more requests in {signal.reset:.0f} s"
            bucket = paused(bucket, now, now + timedelta(seconds=apart), reason)
    return bucket


def _slowed(bucket: Bucket, limits: RateLimits, signal: Signal, now: datetime) -> Bucket:
    """The bucket after a refusal: paused as long as the server requested, longer after several refusals, and
    with half the rate. Refusals of requests that were sent together halve it once.
    """
    sent_at = now - timedelta(seconds=signal.seconds)
    last = bucket.last_429_at
    if last is None or sent_at > last + timedelta(seconds=_ONE_STORM):
        lowest = min(limits.rate, max(_LOWEST_SHARE * limits.rate, _LOWEST_RATE))
        bucket = replace(
            _with_rate(bucket, max(lowest, bucket.rate / 2)),
            changed_at=now,
            consecutive_429=bucket.consecutive_429 + 1,
            last_429_at=now,
        )
    guessed = min(2.0 ** (max(bucket.consecutive_429, 1) - 1), _LONGEST_GUESS)
    seconds = min(max(signal.retry_after or 0.0, guessed), LONGEST_PAUSE)
    asked = "asked for a pause" if signal.retry_after else "did not say for how long"
    reason = f"status {signal.status}: too many requests; the server {asked}"
    bucket = paused(bucket, now, now + timedelta(seconds=seconds), reason)
    # The rate rises again from the end of the pause.
    return replace(bucket, changed_at=max(bucket.changed_at or now, bucket.paused_until or now))


def paused(bucket: Bucket, now: datetime, until: datetime, reason: str) -> Bucket:
    """The bucket without requests before ``until``; a longer pause stays as it is. After the pause requests
    go one by one, without a burst.
    """
    if bucket.paused_until is not None and bucket.paused_until >= max(until, now):
        return bucket
    return replace(
        bucket, tokens=0.0, refilled_at=until, paused_until=until, paused_at=now, pause_reason=reason
    )


def resumed(bucket: Bucket, now: datetime, reason: str) -> Bucket:
    """The bucket without a pause from ``now`` on; ``reason`` says who lifted it and why."""
    if not is_paused(bucket, now):
        return bucket
    return replace(bucket, tokens=0.0, refilled_at=now, paused_until=None, paused_at=now, pause_reason=reason)


def restored(bucket: Bucket, limits: RateLimits, now: datetime, reason: str) -> Bucket:
    """The bucket without a pause and at the rate of the settings."""
    bucket = _with_rate(resumed(at(bucket, limits, now), now, reason), limits.rate)
    return replace(bucket, changed_at=None, consecutive_429=0, pause_reason=reason)


def _seconds(start: datetime, end: datetime) -> float:
    """From ``start`` to ``end``; 0 if ``end`` is earlier."""
    return max(0.0, (end - start).total_seconds())
