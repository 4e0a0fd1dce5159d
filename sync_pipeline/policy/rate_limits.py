"""The token bucket of a server: refill, requests, and the effect of responses.

Belongs here: pure functions from a bucket, the limits of the settings and a time to the next bucket. Does not
belong here: the clock, the table and the waiting (:mod:`sync_pipeline.sync.limiter`).
:mod:`sync_pipeline.ledger.rate_limits` has :func:`take` as one statement.

A request that finds no token gets a position in the queue. The bucket goes below zero, and the request waits
until its token has been refilled. So the queue is first come, first served, without polling. All processes
together never send more than ``burst + rate x time``. A pause voids all earlier positions, see
:func:`is_valid`.

The rate of the settings is where a server begins. The rate that it bears is found: :func:`tuned` raises it
step by step while response times stay as usual, and lowers it when they rise. A limit that the server
announces is used up to a share of it. A refusal halves the rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sync_pipeline.core.model import Bucket
from sync_pipeline.policy.load import Bearing

RAISED_PER_MINUTE = 0.05
"""Share of the setting by which a rate that a refusal lowered rises in a minute without a 429."""

LONGEST_PAUSE = 3600.0
"""Seconds: a server that requests a longer pause is tried again after this."""

STEP_SECONDS = 2.0
"""Shortest time between two steps of :func:`tuned`, in all processes."""

KEPT_SECONDS = 3600.0
"""A found rate that nothing confirms counts that long, and so does the memory of a refused rate."""

ANNOUNCED_SECONDS = 600.0
"""An announced limit that the server no longer names counts that long."""

HOLD_SECONDS = 0.2
"""Permits that a process took ahead are void after this."""

MIN_BUNDLED_RATE = 20.0
"""Requests a second from which permits are taken ahead. At a lower rate one statement each costs little."""

_STEP_UP = 0.1
_STEP_DOWN = 0.8
# Response times alone never lower the rate further: others may be the load.
_SLOWEST_SHARE = 0.5
# The share of a refused rate that is tried again within the hour.
_BELOW_REFUSED = 0.8
# GitLab announces its limit per minute, however long its period is.
_ANNOUNCED_PERIOD = 60.0

_LOWEST_SHARE = 0.1
_LOWEST_RATE = 0.1
# Seconds: responses that are closer together belong to requests that were sent together.
_ONE_STORM = 2.0
_LONGEST_GUESS = 60.0
_NEARLY_NOTHING = 0.1


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of the settings: ``rate`` requests a second at the start, ``burst`` at once after a quiet
    time. Up to ``max_rate`` a second are tried; None: no more than ``rate``. Of a limit that a server
    announces, ``share`` (0 to 1) is used.
    """

    rate: float
    burst: float
    max_rate: float | None = None
    share: float = 1.0

    @property
    def ceiling(self) -> float:
        """The highest rate, in requests a second."""
        return max(self.rate, self.max_rate or self.rate)

    @property
    def lowest(self) -> float:
        """The lowest rate after refusals, in requests a second."""
        return min(self.rate, max(_LOWEST_SHARE * self.rate, _LOWEST_RATE))

    def of_statement(self) -> dict[str, float]:
        """The numbers that the statement of :func:`sync_pipeline.ledger.rate_limits.acquire` needs."""
        return {
            "rate": self.rate,
            "burst": self.burst,
            "ceiling": self.ceiling,
            "lowest": self.lowest,
            "raised_per_minute": RAISED_PER_MINUTE,
            "kept_seconds": KEPT_SECONDS,
            "announced_seconds": ANNOUNCED_SECONDS,
            "below_refused": _BELOW_REFUSED,
            "hold_seconds": HOLD_SECONDS,
            "min_bundled_rate": MIN_BUNDLED_RATE,
        }


@dataclass(frozen=True, slots=True)
class Load:
    """How a server bore some responses: ``bearing``, and how many times longer than usual they took.
    ``is_limited``: requests waited for the rate limit, so that a higher rate would be used.
    """

    bearing: Bearing
    slowdown: float
    is_limited: bool


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


def top(bucket: Bucket, limits: RateLimits, now: datetime) -> float:
    """The highest rate at ``now``, in requests a second: by the settings, by the server's announcement, and
    below a rate that it refused.
    """
    found = limits.ceiling
    if bucket.announced_rate is not None and _is_within(bucket.announced_at, ANNOUNCED_SECONDS, now):
        found = min(found, bucket.announced_rate)
    if bucket.refused_rate is not None and _is_within(bucket.last_429_at, KEPT_SECONDS, now):
        found = min(found, max(limits.rate, _BELOW_REFUSED * bucket.refused_rate))
    return max(found, limits.lowest)


def at(bucket: Bucket, limits: RateLimits, now: datetime) -> Bucket:
    """``bucket`` at ``now``: its tokens and its rate. In a pause nothing is refilled."""
    since = _seconds(bucket.refilled_at, now)
    bundled = bucket.bundled if bucket.bundled_until is not None and bucket.bundled_until > now else 0
    tokens = min(limits.burst - bundled, bucket.tokens + bucket.rate * since)
    highest = top(bucket, limits, now)
    rate = start = min(limits.rate, highest)
    changed_at, tuned_at = bucket.changed_at, None
    if changed_at is not None:
        raised = RAISED_PER_MINUTE * limits.rate * _seconds(changed_at, now) / 60
        rate = min(start, bucket.rate + raised)
        changed_at = None if rate >= start else max(changed_at, now)
    elif _is_within(bucket.tuned_at, KEPT_SECONDS, now):
        rate, tuned_at = min(bucket.rate, highest), bucket.tuned_at
    filled = replace(
        bucket,
        tokens=tokens,
        refilled_at=max(bucket.refilled_at, now),
        changed_at=changed_at,
        tuned_at=tuned_at,
        bundled=bundled,
    )
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


def take_ahead(bucket: Bucket, limits: RateLimits, now: datetime, wanted: int) -> tuple[Bucket, int]:
    """The bucket after a request that did not wait took up to ``wanted`` more permits for the next
    :data:`HOLD_SECONDS`, and how many. All processes together hold at most half of the burst. The bucket has
    room for that many fewer, so that permits used late exceed no limit.
    """
    if bucket.rate < MIN_BUNDLED_RATE:
        return bucket, 0
    ahead = max(0, min(wanted, int(bucket.tokens), int(limits.burst / 2) - bucket.bundled))
    if ahead:
        until = now + timedelta(seconds=HOLD_SECONDS)
        bucket = replace(
            bucket, tokens=bucket.tokens - ahead, bundled=bucket.bundled + ahead, bundled_until=until
        )
    return bucket, ahead


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
        bucket = _announced(bucket, limits, signal, now)
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


def announced_rate(signal: Signal, share: float) -> float | None:
    """The requests a second that are ``share`` of the limit that a response announces; None if it announces
    no limit with its end. A limit of more than a minute is spread over the rest of its time, without the
    part of others.
    """
    if signal.limit is None or signal.remaining is None or signal.reset is None:
        return None
    if signal.reset > _ANNOUNCED_PERIOD and signal.remaining <= signal.limit:
        return max(0.0, signal.remaining - (1 - share) * signal.limit) / signal.reset
    return share * signal.limit / _ANNOUNCED_PERIOD


def _announced(bucket: Bucket, limits: RateLimits, signal: Signal, now: datetime) -> Bucket:
    """The bucket after a response that may announce a limit."""
    found = announced_rate(signal, limits.share)
    if found is None:
        return bucket
    before = bucket.rate
    bucket = at(replace(bucket, announced_rate=found, announced_at=now), limits, now)
    if bucket.rate < before:
        reason = f"the server announces a limit of {signal.limit}; {limits.share:.0%} of it are used"
        bucket = replace(bucket, rate_reason=reason)
    return bucket


def tuned(bucket: Bucket, limits: RateLimits, load: Load, now: datetime) -> Bucket:
    """The bucket after some responses. The rate rises by a tenth of the start where requests wait and
    response times are as usual. It falls by a fifth where these are slow, or most requests get no response.
    After a refusal it only recovers with time.
    """
    bucket = at(bucket, limits, now)
    if bucket.changed_at is not None or is_paused(bucket, now):
        return bucket
    if _is_within(bucket.tuned_at, STEP_SECONDS, now):
        return bucket
    highest = top(bucket, limits, now)
    if load.bearing in (Bearing.SLOW, Bearing.FAILING):
        least = min(bucket.rate, _SLOWEST_SHARE * min(limits.rate, highest))
        rate = max(least, _STEP_DOWN * bucket.rate)
        reason = f"responses take {load.slowdown:.1f} times as long as usual"
        if load.bearing is Bearing.FAILING:
            reason = "most requests get no response"
    elif load.bearing is Bearing.FLAT and load.is_limited:
        rate = min(highest, bucket.rate + _STEP_UP * limits.rate)
        reason = "requests wait, and responses take as long as usual"
    else:
        return bucket
    if rate == bucket.rate and bucket.tuned_at is None:
        return bucket
    if rate != bucket.rate:
        bucket = replace(_with_rate(bucket, rate), rate_reason=reason)
    return replace(bucket, tuned_at=now)


def _slowed(bucket: Bucket, limits: RateLimits, signal: Signal, now: datetime) -> Bucket:
    """The bucket after a refusal: paused as long as the server requested, longer after several refusals, and
    with half the rate. Refusals of requests that were sent together halve it once.
    """
    sent_at = now - timedelta(seconds=signal.seconds)
    last = bucket.last_429_at
    if last is None or sent_at > last + timedelta(seconds=_ONE_STORM):
        refused = bucket.rate
        rate = max(limits.lowest, refused / 2)
        is_found = rate >= min(limits.rate, top(bucket, limits, now))
        bucket = replace(
            _with_rate(bucket, rate),
            changed_at=None if is_found else now,
            tuned_at=now if is_found else None,
            rate_reason=f"status {signal.status}: too many requests",
            refused_rate=refused if refused > limits.rate else bucket.refused_rate,
            consecutive_429=bucket.consecutive_429 + 1,
            last_429_at=now,
        )
    guessed = min(2.0 ** (max(bucket.consecutive_429, 1) - 1), _LONGEST_GUESS)
    seconds = min(max(signal.retry_after or 0.0, guessed), LONGEST_PAUSE)
    asked = "asked for a pause" if signal.retry_after else "did not say for how long"
    reason = f"status {signal.status}: too many requests; the server {asked}"
    bucket = paused(bucket, now, now + timedelta(seconds=seconds), reason)
    if bucket.changed_at is None:
        return bucket
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
    """The bucket without a pause and at the rate of the settings. Nothing that was found counts any more."""
    bucket = _with_rate(resumed(at(bucket, limits, now), now, reason), limits.rate)
    return replace(
        bucket,
        changed_at=None,
        consecutive_429=0,
        pause_reason=reason,
        tuned_at=None,
        rate_reason=None,
        announced_rate=None,
        announced_at=None,
        refused_rate=None,
    )


def _is_within(moment: datetime | None, seconds: float, now: datetime) -> bool:
    """True if ``moment`` is less than ``seconds`` before ``now``."""
    return moment is not None and now - moment < timedelta(seconds=seconds)


def _seconds(start: datetime, end: datetime) -> float:
    """From ``start`` to ``end``; 0 if ``end`` is earlier."""
    return max(0.0, (end - start).total_seconds())
