"""The shared rate limit as a request meets it: ask, wait for one's turn, tell what came back.

Belongs here: the waiting, which sees that somebody asks to stop, and the lines in the log when a server is
paused. Does not belong here: how a bucket changes (:mod:`sync_pipeline.policy.rate_limits`), the table
(:mod:`sync_pipeline.ledger.rate_limits`), when a client asks again after a refusal
(:mod:`sync_pipeline.sources.gitlab.transport`).

At a high rate a process takes permits ahead, for a fifth of a second. So a statement serves many requests.

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
from sync_pipeline.policy.load import outcome
from sync_pipeline.policy.rate_limits import HOLD_SECONDS, Load, RateLimits, Signal
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.transport import Feedback, RateLimiter
from sync_pipeline.sync.server_load import ServerLoad

_log = logging.getLogger(__name__)

FIRST_IN_FLIGHT = 4
"""Requests of a job in flight when a process starts, or fewer where the setting says so."""

_SLICE_SECONDS = 0.25
# A place in the queue counts if a statement of this process showed no pause within this time.
_FRESH_SECONDS = 0.25
# Seconds: a shorter one is that of the statement, not of the limit.
_A_WAIT = 0.05
# Time between two checks in a long wait whether a pause was set or lifted meanwhile.
_POLL_SECONDS = 5.0
# How often a process writes down what the server says is left.
_NOTE_SECONDS = 30.0
# Where so many other kinds of request are refused at the same time, the limit is one of the whole server.
_KINDS_OF_ALL = 2
# Shorter pauses are not worth a line.
_SHORT_REFUSAL = timedelta(seconds=1)
_SHORT_PAUSE = timedelta(seconds=10)
# Most requests a second to a server whose rate nobody set.
_MAX_RATE = 100.0
# Most permits that one statement takes ahead.
_MAX_AHEAD = 64
# An announced rate that differs by this share from the one that was noted is noted at once.
_OTHER_RATE = 0.1


def gitlab_limits(settings: Settings) -> RateLimits:
    """The limits of the settings for one GitLab."""
    own = settings.rate_limit
    return RateLimits(own.start, own.burst, _MAX_RATE if own.rate is None else None, own.share)


def tenant_limits(settings: Settings) -> RateLimits:
    """The limits of the settings for one tenant at one GitLab."""
    return RateLimits(settings.tenant_rate_limit.rate, settings.tenant_rate_limit.burst)


def svn_limits(settings: Settings) -> RateLimits:
    """The limits of the settings for one SVN server."""
    return RateLimits(settings.svn.rate, max(1.0, settings.svn.rate))


def gitlab_limiter(
    database: Database, settings: Settings, instance: str, *, max_wait: float | None = None
) -> RateLimiter:
    """The limiter of requests to a GitLab. Where the settings switch the shared limit off, only the requests
    in flight are limited. ``max_wait`` is that of the settings unless it is given."""
    load = ServerLoad(FIRST_IN_FLIGHT, settings.gitlab.parallel)
    if not settings.rate_limit.enabled:
        return LocalLimiter(load)
    longest = settings.rate_limit.max_wait if max_wait is None else max_wait
    return SharedLimiter(database, instance, gitlab_limits(settings), max_wait=longest, load=load)


def svn_limiter(
    database: Database, settings: Settings, instance: str, *, max_wait: float | None = None
) -> SharedLimiter:
    """The limiter of commands to an SVN server."""
    longest = settings.rate_limit.max_wait if max_wait is None else max_wait
    return SharedLimiter(database, instance, svn_limits(settings), max_wait=longest, bucket=SVN)


class LocalLimiter:
    """No rate: only the requests in flight are limited, by how the server bears them."""

    def __init__(self, load: ServerLoad) -> None:
        self._load = load

    def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
        """May be sent."""
        self._load.sent(waited=False)
        return 0.0

    def feedback(self, feedback: Feedback) -> None:
        """Learn from a response."""
        ended = outcome(feedback.status, _signal(feedback).is_refusal)
        self._load.answered(feedback.endpoint, feedback.seconds, ended)

    def parallel(self) -> int:
        """See :class:`~sync_pipeline.sources.gitlab.transport.RateLimiter`."""
        return self._load.limit()


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

    def parallel(self) -> int:
        """That of the server."""
        return self._server.parallel()


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
        load: ServerLoad | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._instance = instance
        self._limits = limits
        self._max_wait = max_wait
        self._bucket = bucket
        self._load = load
        self._sleep = sleep
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._reported: datetime | None = None
        self._noted_at = float("-inf")
        # Buckets whose last answer, by what we know, was a refusal.
        self._refusing: set[str] = set()
        self._noted_rate: float | None = None
        # Permits taken ahead, until a moment of our clock, for all kinds of requests but some.
        self._asking = threading.Lock()
        self._ahead = self._ahead_given = 0
        self._ahead_until = float("-inf")
        self._ahead_wanted = 1
        self._slowed_kinds: frozenset[str] = frozenset()
        # When a statement about a bucket began that showed no pause, by our clock.
        self._unpaused_at: dict[str, float] = {}

    def parallel(self) -> int:
        """See :class:`~sync_pipeline.sources.gitlab.transport.RateLimiter`."""
        return 1 if self._load is None else self._load.limit()

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
        waited = self._monotonic() - started
        if self._load is not None:
            self._load.sent(waited >= _A_WAIT)
        return waited

    def _take(self, bucket: str, kind: str | None, started: float, go_on: Callable[[], None]) -> bool:
        """Return when it is our turn at ``bucket``; False where its kind of request has to go to a bucket of
        its own first."""
        while True:
            go_on()
            if bucket == self._bucket and self._has_ahead(kind):
                return True
            asked_at = self._monotonic()
            longest = max(0.0, self._max_wait - (asked_at - started))
            if bucket == self._bucket:
                # One thread asks, for permits of the others too.
                with self._asking:
                    if self._has_ahead(kind):
                        return True
                    permit = self._ask_ahead(kind, longest)
            else:
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

    def _has_ahead(self, kind: str | None) -> bool:
        """Use a permit that was taken ahead, if there is one for this kind of request."""
        with self._lock:
            if not self._ahead or kind in self._slowed_kinds or self._monotonic() >= self._ahead_until:
                return False
            self._ahead -= 1
            return True

    def _ask_ahead(self, kind: str | None, longest: float) -> Permit:
        """As :meth:`_ask`, and take permits ahead: twice as many as before if all of those were used in time,
        else as many as were."""
        asked_at = self._monotonic()
        with self._lock:
            is_over = asked_at >= self._ahead_until
            unused = self._ahead if is_over else 0
            if is_over and self._ahead_given:
                self._ahead_wanted = max(1, self._ahead_given - unused)
            elif self._ahead_given and not self._ahead:
                self._ahead_wanted = min(2 * self._ahead_given, _MAX_AHEAD)
            wanted = 0 if self._ahead and not is_over else self._ahead_wanted
            if wanted:
                self._ahead = self._ahead_given = 0
        permit = self._ask(self._bucket, kind, longest, wanted, unused)
        if wanted and permit.ahead:
            with self._lock:
                self._ahead = self._ahead_given = permit.ahead
                # By our clock from before the statement, so that it is over before the bucket's time is.
                self._ahead_until = asked_at + HOLD_SECONDS
                self._slowed_kinds = frozenset(permit.slowed_kinds)
        return permit

    def _ask(self, bucket: str, kind: str | None, longest: float, ahead: int = 0, unused: int = 0) -> Permit:
        asked_at = self._monotonic()
        try:
            with self._database.connection() as conn:
                permit = store.acquire(
                    conn,
                    self._instance,
                    bucket,
                    self._limits.of_statement(),
                    longest=longest,
                    kind=kind,
                    ahead=ahead,
                    unused=unused,
                )
        except (psycopg.Error, ConfigurationError) as error:
            raise _no_database(error) from None
        if permit.paused_until is None or permit.paused_until <= permit.given_at:
            self._unpaused_at[bucket] = asked_at
        else:
            self._unpaused_at.pop(bucket, None)
        return permit

    def _wait(self, bucket: str, permit: Permit, go_on: Callable[[], None]) -> bool:
        """Wait for one's place in the queue; False where it does not count any more."""
        end = self._monotonic() + permit.wait
        next_poll = min(end, self._monotonic() + _POLL_SECONDS)
        while True:
            while (left := next_poll - self._monotonic()) > 0:
                self._sleep(min(left, _SLICE_SECONDS))
                go_on()
            known_at = self._unpaused_at.get(bucket, float("-inf"))
            if next_poll >= end and self._monotonic() - known_at < _FRESH_SECONDS:
                return True
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
        signal = _signal(feedback)
        load: Load | None = None
        if self._load is not None:
            ended = outcome(signal.status, signal.is_refusal)
            load = self._load.answered(feedback.endpoint, feedback.seconds, ended)
        if signal.status is None:
            if load is not None:
                self._tune(load)
            return
        if signal.is_refusal:
            with self._lock:
                others = self._refusing - {self._bucket, feedback.endpoint}
                self._ahead = 0
            own = signal.is_of_its_kind and len(others) < _KINDS_OF_ALL
            self._learn(feedback.endpoint if own else self._bucket, signal)
            return
        with self._lock:
            concerned = self._refusing & {self._bucket, feedback.endpoint}
        if signal.is_nearly_out or self._is_worth_a_note(signal):
            concerned.add(self._bucket)
        for bucket in concerned:
            self._learn(bucket, signal)
        if load is not None:
            self._tune(load)

    def _tune(self, load: Load) -> None:
        """Let the rate follow how the server bears the load."""
        try:
            with self._database.connection() as conn:
                before, after = store.change(
                    conn,
                    self._instance,
                    self._bucket,
                    lambda old, now: policy.tuned(old, self._limits, load, now),
                    rate=self._limits.rate,
                    tokens=self._limits.burst,
                )
        except (psycopg.Error, ConfigurationError) as error:
            _log.debug("the load of %s could not be noted: %s", self._instance, error)
            return
        if after.rate != before.rate:
            _log.debug("%s: %g requests a second: %s", self._instance, after.rate, after.rate_reason)

    def _is_worth_a_note(self, signal: Signal) -> bool:
        if signal.remaining is None or signal.limit is None:
            return False
        rate = policy.announced_rate(signal, self._limits.share)
        with self._lock:
            due = self._monotonic() - self._noted_at > _NOTE_SECONDS
            if rate is not None:
                noted = self._noted_rate
                due |= noted is None or abs(rate - noted) > _OTHER_RATE * noted
            if due:
                self._noted_at, self._noted_rate = self._monotonic(), rate
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
            self._unpaused_at.pop(bucket, None)
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


def _signal(feedback: Feedback) -> Signal:
    return Signal(
        feedback.status,
        feedback.seconds,
        feedback.retry_after,
        feedback.remaining,
        feedback.limit,
        feedback.reset,
    )


def _no_database(error: Exception) -> Transient:
    if isinstance(error, ConfigurationError):
        line = str(error)
    else:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Transient(
        f"the shared rate limit cannot be asked, so nothing is sent: {line}", code="database_down"
    )
