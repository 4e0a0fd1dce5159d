"""The shared rate limit as a request meets it: ask, wait for one's turn, tell what came back.

Belongs here: the waiting, which sees that somebody asks to stop, and the lines in the log when a server is
paused. Does not belong here: how a bucket changes (:mod:`sync_pipeline.policy.rate_limits`), the table
(:mod:`sync_pipeline.ledger.rate_limits`), when a client asks again after a refusal
(:mod:`sync_pipeline.sources.gitlab.transport`).

Without the database nothing is sent: the limit is the only thing that all processes have in common.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import psycopg

from sync_pipeline.core.errors import ConfigurationError, Transient
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import rate_limits as store
from sync_pipeline.ledger.rate_limits import ALL, SVN, Permit
from sync_pipeline.policy import rate_limits as policy
from sync_pipeline.policy.rate_limits import RAISED_PER_MINUTE, RateLimits, Signal
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.transport import Feedback, RateLimiter

_log = logging.getLogger(__name__)

_SLICE_SECONDS = 0.25
# Time between two checks in a long wait whether a pause was set or lifted meanwhile.
_POLL_SECONDS = 5.0
# How often a process writes down what the server says is left.
_NOTE_SECONDS = 30.0
# Where so many other kinds of request are refused at the same time, the limit is one of the whole server.
_KINDS_OF_ALL = 2
# Shorter pauses are not worth a line.
_SHORT_REFUSAL = timedelta(seconds=1)
_SHORT_PAUSE = timedelta(seconds=10)


def gitlab_limits(settings: Settings) -> RateLimits:
    """The limits of the settings for one GitLab."""
    return RateLimits(settings.rate_limit.rate, settings.rate_limit.burst)


def tenant_limits(settings: Settings) -> RateLimits:
    """The limits of the settings for one tenant at one GitLab."""
    return RateLimits(settings.tenant_rate_limit.rate, settings.tenant_rate_limit.burst)


def svn_limits(settings: Settings) -> RateLimits:
    """The limits of the settings for one SVN server."""
    return RateLimits(settings.svn.rate, max(1.0, settings.svn.rate))


def gitlab_limiter(
    database: Database, settings: Settings, instance: str, *, max_wait: float | None = None
) -> RateLimiter | None:
    """The limiter of requests to a GitLab; None where the settings switch it off. ``max_wait`` is that of the
    settings unless it is given."""
    if not settings.rate_limit.enabled:
        return None
    longest = settings.rate_limit.max_wait if max_wait is None else max_wait
    return SharedLimiter(database, instance, gitlab_limits(settings), max_wait=longest)


def svn_limiter(
    database: Database, settings: Settings, instance: str, *, max_wait: float | None = None
) -> SharedLimiter:
    """The limiter of commands to an SVN server."""
    longest = settings.rate_limit.max_wait if max_wait is None else max_wait
    return SharedLimiter(database, instance, svn_limits(settings), max_wait=longest, bucket=SVN)


class TenantLimiter:
    """The limit of one tenant at a GitLab in front of the limit of the server, which stays the ceiling. Only
    the server's limit learns from answers, because a server refuses the token of all tenants."""

    def __init__(
        self, database: Database, settings: Settings, instance: str, tenant: str, server: RateLimiter
    ):
        self._own = SharedLimiter(
            database,
            instance,
            tenant_limits(settings),
            max_wait=settings.rate_limit.max_wait,
            bucket=store.of_tenant(tenant),
        )
        self._server = server

    def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
        """See :class:`~sync_pipeline.sources.gitlab.transport.RateLimiter`. Each of both waits is limited."""
        return self._own.acquire(endpoint, go_on) + self._server.acquire(endpoint, go_on)

    def feedback(self, feedback: Feedback) -> None:
        """Tell the limit of the server."""
        self._server.feedback(feedback)


class SharedLimiter:
    """The limit of one server. Safe to share between threads; satisfies the protocol of the transport."""

    def __init__(
        self,
        database: Database,
        instance: str,
        limits: RateLimits,
        *,
        max_wait: float,
        bucket: str = ALL,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._instance = instance
        self._limits = limits
        self._max_wait = max_wait
        self._bucket = bucket
        self._sleep = sleep
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._reported: datetime | None = None
        self._noted_at = float("-inf")
        # Buckets whose last answer, by what we know, was a refusal.
        self._refusing: set[str] = set()

    def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
        """See :class:`~sync_pipeline.sources.gitlab.transport.RateLimiter`. Raises Transient before anything
        is sent. The code is ``throttled`` if the wait would be too long, and ``database_down`` if the limit
        cannot be read.
        """
        started = self._monotonic()
        kind: str | None = endpoint if self._bucket == ALL else None
        while not self._take(self._bucket, kind, started, go_on):
            # The bucket of its kind first: the one of the whole server is exact.
            assert kind is not None
            self._take(kind, None, started, go_on)
            kind = None
        return self._monotonic() - started

    def _take(self, bucket: str, kind: str | None, started: float, go_on: Callable[[], None]) -> bool:
        """Return when it is our turn at ``bucket``; False where its kind of request has to go to a bucket of
        its own first."""
        while True:
            go_on()
            asked_at = self._monotonic()
            longest = max(0.0, self._max_wait - (asked_at - started))
            permit = self._ask(bucket, kind, longest)
            if permit.needs_own:
                return False
            with self._lock:
                (self._refusing.add if permit.consecutive_429 else self._refusing.discard)(bucket)
            if permit.wait > longest:
                raise self._turned_away(bucket, permit)
            if permit.paused_until is not None:
                self._report_pause(
                    bucket, permit.given_at, permit.paused_until, permit.pause_reason, _SHORT_PAUSE
                )
            if permit.wait <= 0 or self._wait(bucket, permit, go_on):
                return True

    def _ask(self, bucket: str, kind: str | None, longest: float) -> Permit:
        try:
            with self._database.connection() as conn:
                return store.acquire(
                    conn,
                    self._instance,
                    bucket,
                    rate=self._limits.rate,
                    burst=self._limits.burst,
                    raised_per_minute=RAISED_PER_MINUTE,
                    longest=longest,
                    kind=kind,
                )
        except (psycopg.Error, ConfigurationError) as error:
            raise _no_database(error) from None

    def _wait(self, bucket: str, permit: Permit, go_on: Callable[[], None]) -> bool:
        """Wait for one's place in the queue; False where it does not count any more."""
        end = self._monotonic() + permit.wait
        next_poll = min(end, self._monotonic() + _POLL_SECONDS)
        while True:
            while (left := next_poll - self._monotonic()) > 0:
                self._sleep(min(left, _SLICE_SECONDS))
                go_on()
            try:
                with self._database.connection() as conn:
                    if not store.is_valid(conn, self._instance, bucket, permit.given_at):
                        return False
            except (psycopg.Error, ConfigurationError) as error:
                raise _no_database(error) from None
            if next_poll >= end:
                return True
            next_poll = min(end, next_poll + _POLL_SECONDS)

    def _turned_away(self, bucket: str, permit: Permit) -> Transient:
        where = self._name(bucket)
        why = "more is waiting than its limit lets through"
        if permit.paused_until is not None and permit.paused_until > permit.given_at:
            why = f"it is paused until {permit.paused_until:%Y-%m-%d %H:%M:%S} UTC: {permit.pause_reason}"
        return Transient(
            f"no request is sent to {where} for {permit.wait:.0f} s: {why}",
            code="throttled",
            retry_after=permit.wait,
        )

    # -- answers -----------------------------------------------------------------------------------------

    def feedback(self, feedback: Feedback) -> None:
        """See :class:`~sync_pipeline.sources.gitlab.transport.RateLimiter`. Writes only where the answer
        changes something."""
        signal = Signal(
            feedback.status,
            feedback.seconds,
            feedback.retry_after,
            feedback.remaining,
            feedback.limit,
            feedback.reset,
        )
        if signal.status is None:
            return
        if signal.is_refusal:
            with self._lock:
                others = self._refusing - {self._bucket, feedback.endpoint}
            own = signal.is_of_its_kind and len(others) < _KINDS_OF_ALL
            self._learn(feedback.endpoint if own else self._bucket, signal)
            return
        with self._lock:
            concerned = self._refusing & {self._bucket, feedback.endpoint}
        if signal.is_nearly_out or self._is_worth_a_note(signal):
            concerned.add(self._bucket)
        for bucket in concerned:
            self._learn(bucket, signal)

    def _is_worth_a_note(self, signal: Signal) -> bool:
        if signal.remaining is None or signal.limit is None:
            return False
        with self._lock:
            due = self._monotonic() - self._noted_at > _NOTE_SECONDS
            if due:
                self._noted_at = self._monotonic()
        return due

    def _learn(self, bucket: str, signal: Signal) -> None:
        try:
            with self._database.connection() as conn:
                before, after = store.change(
                    conn,
                    self._instance,
                    bucket,
                    lambda old, now: policy.after_answer(old, self._limits, signal, now),
                    rate=self._limits.rate,
                    tokens=self._limits.burst,
                    refused=signal.is_refusal,
                )
        except (psycopg.Error, ConfigurationError) as error:
            # The answer is good all the same; and without the database nothing is sent.
            _log.debug("what %s answered could not be noted: %s", self._instance, error)
            return
        with self._lock:
            (self._refusing.add if after.consecutive_429 else self._refusing.discard)(bucket)
        if after.paused_at is not None and after.paused_at != before.paused_at:
            assert after.paused_until is not None
            short = _SHORT_REFUSAL if signal.is_refusal else _SHORT_PAUSE
            then = f", then {after.rate:g} a second"
            self._report_pause(bucket, after.paused_at, after.paused_until, after.pause_reason, short, then)

    def _report_pause(
        self,
        bucket: str,
        now: datetime,
        until: datetime,
        reason: str | None,
        short: timedelta,
        then: str = "",
    ) -> None:
        """One line per pause in each process that sets it or waits for its end."""
        with self._lock:
            if until - now < short or (self._reported and abs(until - self._reported) < _SHORT_REFUSAL):
                return
            self._reported = until
        _log.warning(
            "no request to %s until %s UTC%s: %s", self._name(bucket), f"{until:%H:%M:%S}", then, reason
        )

    def _name(self, bucket: str) -> str:
        return self._instance if bucket in (ALL, SVN) else f"{self._instance} for {bucket}"


def _no_database(error: Exception) -> Transient:
    if isinstance(error, ConfigurationError):
        line = str(error)
    else:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Transient(
        f"the shared rate limit cannot be asked, so nothing is sent: {line}", code="database_down"
    )
