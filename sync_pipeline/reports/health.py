"""Health: whether the stored copy of an asset is covered and fresh, and the reasons if it is not.

Belongs here: the verdict and its reasons. The asset check in Dagster, the command line's health gate and the
status report all use it. It evaluates our own ledger and sends no request to a source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sync_pipeline.core.formatting import counted
from sync_pipeline.core.model import (
    BEGINNING,
    Access,
    JobType,
    Kind,
    Level,
    Lifecycle,
    Mode,
    RevisionWindow,
    Window,
)
from sync_pipeline.core.safe_text import visible
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.rows import mark_of, read_row
from sync_pipeline.ledger import health as store
from sync_pipeline.policy.reconciliation import REPAIRS_BEFORE_A_PERSON
from sync_pipeline.reports.reasons import PASSES, HealthReason
from sync_pipeline.scheduling.credentials import Credentials

_SHOWN_WINDOWS = 5

_REASON_OF_ACCESS = {
    Access.DENIED: HealthReason.DENIED,
    Access.GONE: HealthReason.GONE,
    Access.REPLACED: HealthReason.REPLACED,
}
# The reason that a failed check of the source gives, by its error code.
_REASON_OF_CHECK = {
    "denied": HealthReason.DENIED,
    "not_found": HealthReason.GONE,
    "moved": HealthReason.MOVED,
    "replaced": HealthReason.REPLACED,
    # Of GitLab, and of svn.
    **dict.fromkeys(("not_json", "redirected"), HealthReason.LOGIN_PAGE),
    **dict.fromkeys(
        (
            "certificate",
            "connection",
            "timeout",
            "server_error",
            "blocked",
            "redirect",
            "foreign_host",
            "incomplete",
            "malformed",
            "truncated",
            "missing_revisions",
            "control_characters",
            "invalid_utf8",
            "content_too_large",
            "too_large",
            "out_of_memory",
            "window_too_hard",
            "corrupt",
            "svn_failed",
            # Among others a proxy that asks for credentials, and an svn command that is not there.
            "configuration",
        ),
        HealthReason.UNREACHABLE,
    ),
}
# A job sends many requests: only these failures of it are about the server as a whole.
_REASON_OF_RETRY = {
    "not_json": HealthReason.LOGIN_PAGE,
    **dict.fromkeys(("certificate", "connection", "blocked", "redirect"), HealthReason.UNREACHABLE),
}
# A job that fails with one of these is about its repository or token, whatever it asked for.
_REASON_OF_FAILURE = {
    **_REASON_OF_RETRY,
    "redirected": HealthReason.LOGIN_PAGE,
    "credential": HealthReason.CREDENTIAL,
    "scope": HealthReason.CREDENTIAL,
    "denied": HealthReason.DENIED,
    "disabled": HealthReason.DISABLED,
    "moved": HealthReason.MOVED,
    "no_repository": HealthReason.GONE,
    "not_found": HealthReason.GONE,
    "replaced": HealthReason.REPLACED,
}
NOT_ASKED = frozenset(
    {
        "throttled",
        "paused",
        "rate_limit",
        "cancelled",
        "database_busy",
        "database_down",
        "database_full",
        "database_refused",
        "no_room",
    }
)
"""Codes of failed checks that say nothing about the source: it was not asked, or we had no room for its
answer. They change nothing that is recorded."""
ANSWER_CODES = frozenset(
    {
        "bad_request",
        "corrupt",
        "credential",
        "denied",
        "graphql",
        "moved",
        "no_commit",
        "no_object",
        "no_repository",
        "no_route",
        "no_such_revision",
        "not_found",
        "paging_ceiling",
        "paging_loop",
        "replaced",
        "scope",
        "unordered",
        "unreadable",
        "unstable",
    }
)
"""Codes of failed checks with which a server answers about a single repository."""
# A person stopped it, another job works on it, or our own database was away.
_OWN_FAILURES = (NOT_ASKED - {"throttled", "rate_limit"}) | {
    "claim_lost",
    "configuration",
    "lease_held",
    "lease_lost",
    "watermark_set",
}
# Checks have a short time limit, so time-outs of them alone prove nothing.
_SLOW = "timeout"


def reason_of_server(code: str) -> HealthReason | None:
    """UNREACHABLE, LOGIN_PAGE or None for the code of a failed check. None does not mean that the server
    works: only a code of :data:`ANSWER_CODES` shows that it responded."""
    reason = None if code in ANSWER_CODES else _REASON_OF_CHECK.get(code)
    return reason if reason in (HealthReason.UNREACHABLE, HealthReason.LOGIN_PAGE) else None


def reason_of_failure(code: str | None, mode: Mode, *, is_tried_again: bool) -> str | None:
    """The entry of the catalogue for a job of ``mode`` that failed with ``code``.

    ``is_tried_again``: its next attempt comes by itself. None: the error itself says what to do, such as the
    errors of our own database.
    """
    if code in _REASON_OF_FAILURE:
        return str(_REASON_OF_FAILURE[code])
    if code in _OWN_FAILURES:
        return None
    if not is_tried_again:
        return str(HealthReason.FAILED_WINDOW)
    return "waits_for_retry" if mode is Mode.INCREMENTAL else str(HealthReason.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a source cannot be read now, a line about it, and since when it is known (UTC)."""

    reason: HealthReason
    line: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A detail that the server has refused for every row since the time ``since``. ``is_unknown``: the server
    has no such details, which is no defect. ``readable_at``: when it began to return them again. Times are
    UTC."""

    detail: str
    since: datetime
    error: str
    is_unknown: bool = False
    readable_at: datetime | None = None

    @property
    def text(self) -> str:
        """One line for a person."""
        what = self.detail.replace("_", " ") + ("" if self.detail.endswith("s") else "s")
        if self.readable_at is not None:
            return (
                f"{what} are readable again since {_minute(self.readable_at)}; what is missing is being read"
            )
        return f"{what} not readable since {_minute(self.since)}: {self.error}; tried again once a day"


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one asset. Times are UTC.

    ``gap``: before the watermark, not covered, and no job will fill it. ``queued``: likewise, but a job waits
    for it. ``hint_code``: how a check of the repository after the latest visit failed; a time-out counts if
    live syncing timed out too. ``server_code``: how checks of its server failed, if that is confirmed.
    ``retry_code``: the error code of live syncing that waits for its retry. ``failed``: windows of dead jobs
    that are not covered since. ``regressed``: rows of the latest visit that arrived with less than is stored.
    ``credential``: why nothing can be read from the server with the present token. ``missing``, ``extra`` and
    ``changed`` are rows that differ from the source; ``unrepaired`` counts those that repairs did not heal.
    ``deferred_fetches`` are details that could not be read. ``has_planned``: others wait for their turn.
    ``planned_stalled``: none of these was read for a day, although jobs ran.
    """

    repo_id: int
    job_type: JobType
    lifecycle: Lifecycle
    access: Access
    access_detail: str | None
    visited_at: datetime | None
    verified_at: datetime | None
    watermark: int | datetime | None
    head: int | None
    gap: tuple[Window, ...]
    queued: tuple[Window, ...]
    hint_code: str | None
    hint_error: str | None
    failed: tuple[Window, ...]
    incremental_dead: bool
    last_error: str | None
    quarantined: int
    deferred_fetches: int
    regressed: int
    credential: str | None = None
    missing: int = 0
    extra: int = 0
    changed: int = 0
    unrepaired: int = 0
    unreadable: tuple[Unreadable, ...] = ()
    access_since: datetime | None = None
    credential_since: datetime | None = None
    hint_at: datetime | None = None
    server_code: str | None = None
    server_error: str | None = None
    server_since: datetime | None = None
    retry_code: str | None = None
    retry_error: str | None = None
    has_planned: bool = False
    planned_stalled: bool = False

    @property
    def level(self) -> Level | None:
        """How much of the covered rows is stored; None before anything is covered. A detail that the server
        refuses is missing as well, unless the server has no such details."""
        if self.fresh_at is None and self.watermark is None:
            return None
        refused = any(not one.is_unknown for one in self.unreadable)
        return Level.USABLE if self.has_planned or self.deferred_fetches or refused else Level.COMPLETE

    @property
    def problem(self) -> Problem | None:
        """The reason why the source cannot be read now; None if it can. A visit's result goes before a
        check's. A refused token goes before both, because no request can be sent with it."""
        if self.credential is not None:
            return Problem(HealthReason.CREDENTIAL, self.credential, self.credential_since)
        if self.access in _REASON_OF_ACCESS:
            line = self.access_detail or f"the source says: {self.access}"
            return Problem(_REASON_OF_ACCESS[self.access], line, self.access_since)
        if self.access is Access.DISABLED:
            line = self.access_detail or "the project has this switched off"
            return Problem(HealthReason.DISABLED, line, self.access_since)
        if self.hint_code in _REASON_OF_CHECK and (self.hint_code != _SLOW or self.retry_code == _SLOW):
            line = self.hint_error or "the latest check failed"
            return Problem(_REASON_OF_CHECK[self.hint_code], line, self.hint_at)
        if self.server_code is not None:
            away = reason_of_server(self.server_code)
            if away is not None:
                return Problem(away, self.server_error or "it does not answer", self.server_since)
        if self.retry_code in _REASON_OF_RETRY:
            line = self.retry_error or "the latest job failed"
            return Problem(_REASON_OF_RETRY[self.retry_code], line, self.visited_at)
        return None

    @property
    def revisions_behind(self) -> int | None:
        """Revisions between the watermark and the youngest one; None where there are no revisions."""
        if not isinstance(self.watermark, int) or self.head is None:
            return None
        return max(0, self.head + 1 - self.watermark)

    @property
    def fresh_at(self) -> datetime | None:
        """Until when everything is known to be covered: the later of watermark and verified-at; a
        watermark in revisions says nothing about time."""
        times = [t for t in (self.verified_at, self.watermark) if isinstance(t, datetime)]
        return max(times, default=None)


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict; ``detail`` has one entry per reason, a line for a person that says what is wrong."""

    passed: bool
    reasons: tuple[HealthReason, ...]
    detail: dict[str, str]


def evaluate(facts: Facts, now: datetime, stale_after: timedelta) -> Health:
    """The verdict over ``facts`` at ``now``. A retired repository passes. So does what the
    project has switched off, which is no defect; that reason is reported all the same."""
    if facts.lifecycle is Lifecycle.RETIRED:
        return Health(True, (), {})
    problem = facts.problem
    if problem is not None and problem.reason in PASSES:
        return Health(True, (problem.reason,), {str(problem.reason): visible(problem.line)})
    found: dict[HealthReason, str] = {}
    if problem is not None:
        found[problem.reason] = problem.line
    fresh = facts.fresh_at
    if fresh is None:
        found[HealthReason.NEVER_SYNCED] = "no visit has finished successfully yet"
    elif now - fresh > stale_after:
        found[HealthReason.STALE] = f"last fresh at {fresh:%Y-%m-%d %H:%M:%S} UTC, {_ago(now - fresh)} ago"
    if facts.gap:
        found[HealthReason.GAP] = f"not covered and no job will fill it: {in_words(facts.gap)}"
    if facts.queued:
        found[HealthReason.INCOMPLETE] = f"waits to be read: {in_words(facts.queued)}"
    if facts.failed or facts.incremental_dead:
        what = in_words(facts.failed) if facts.failed else "the latest incremental"
        found[HealthReason.FAILED_WINDOW] = f"dead: {what}; {facts.last_error or 'no error was recorded'}"
    if facts.quarantined:
        count = "1 row is" if facts.quarantined == 1 else f"{facts.quarantined} rows are"
        found[HealthReason.QUARANTINE] = f"{count} set aside; see: scm-sync admin quarantine list"
    if facts.deferred_fetches:
        found[HealthReason.DEFERRED_FETCH] = (
            f"{counted(facts.deferred_fetches, 'detail')} still to fetch, see scm.deferred_fetches"
        )
    if facts.has_planned:
        found[HealthReason.USABLE] = "usable, not complete: planned fetches of details wait for their turn"
    if facts.planned_stalled:
        found[HealthReason.PLANNED_STALLED] = "no planned fetch was read for a day, although jobs ran"
    if facts.unreadable:
        found[HealthReason.UNREADABLE] = "; ".join(one.text for one in facts.unreadable)
    if facts.regressed:
        found[HealthReason.REGRESSED] = (
            f"{facts.regressed} rows arrived with less than is stored; was access reduced?"
        )
    kinds = {"missing": facts.missing, "extra": facts.extra, "changed": facts.changed}
    if any(kinds.values()):
        counts = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        found[HealthReason.MISMATCH] = f"rows differ from the source: {counts}; see: scm-sync reconcile"
    if facts.unrepaired:
        found[HealthReason.UNREPAIRED] = (
            f"{REPAIRS_BEFORE_A_PERSON} repairs did not remove {facts.unrepaired} of them; look at them, "
            "then: scm-sync reconcile --repair"
        )
    passed = not (found.keys() - {HealthReason.UNREADABLE} - PASSES) and all(
        one.is_unknown for one in facts.unreadable
    )
    return Health(passed, tuple(sorted(found)), {str(k): visible(v) for k, v in sorted(found.items())})


@dataclass(frozen=True, slots=True)
class HealthResult:
    """A verdict with its facts, and the verdict that Dagster shows (None: it shows none yet)."""

    facts: Facts
    health: Health
    shown: tuple[bool, tuple[str, ...]] | None
    shown_at: datetime | None
    evaluated_at: datetime

    @property
    def changed(self) -> bool:
        """True if Dagster shows another verdict or other reasons."""
        return self.shown != (self.health.passed, tuple(str(r) for r in self.health.reasons))

    @property
    def lag_seconds(self) -> float | None:
        """Seconds since everything was known to be covered; None before the first time."""
        fresh = self.facts.fresh_at
        return None if fresh is None else max(0.0, round((self.evaluated_at - fresh).total_seconds(), 3))


def read(
    conn: Connection,
    stale_after: timedelta,
    credentials: Credentials,
    repo_ids: Sequence[int] | None = None,
) -> list[HealthResult]:
    """The verdicts of these repositories, or of all, by the database's clock."""
    return [
        HealthResult(
            facts=(facts := _facts(row, credentials)),
            health=evaluate(facts, row["now"], stale_after),
            shown=None if row["shown_at"] is None else (row["shown_passed"], tuple(row["shown_reasons"])),
            shown_at=row["shown_at"],
            evaluated_at=row["now"],
        )
        for row in store.facts(conn, repo_ids, repairs=REPAIRS_BEFORE_A_PERSON)
    ]


def _facts(row: dict[str, Any], credentials: Credentials) -> Facts:
    """The facts in a row of :func:`sync_pipeline.ledger.health.facts`."""
    is_gitlab = row["kind"] == Kind.GITLAB
    stop = credentials.stopped.get(row["instance"]) if is_gitlab else None
    return read_row(
        Facts,
        row,
        watermark=mark_of(row, "watermark"),
        head=row["head_rev"],
        credential=credentials.problem(row["instance"]) if is_gitlab else None,
        credential_since=None if stop is None else stop.stopped_at,
        unreadable=tuple(map(_unreadable, row["unreadable"])),
    )


def _unreadable(row: dict[str, Any]) -> Unreadable:
    return Unreadable(
        detail=row["detail"],
        since=_utc(row["since"]),
        error=row["error"],
        is_unknown=row["code"] == "no_route",
        readable_at=None if row["readable_at"] is None else _utc(row["readable_at"]),
    )


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def in_words(windows: Sequence[Window]) -> str:
    """Windows for people: the first ones, the count of the rest, and the total number of revisions."""
    shown = ", ".join(_window(w) for w in windows[:_SHOWN_WINDOWS])
    more = len(windows) - _SHOWN_WINDOWS
    total = sum(len(w) for w in windows if isinstance(w, RevisionWindow))
    return shown + (f" and {more} more" if more > 0 else "") + (f" ({total} revisions)" if total else "")


def _window(window: Window) -> str:
    if isinstance(window, RevisionWindow):
        return str(window)
    start = "the beginning" if window.since <= BEGINNING else f"{window.since:%Y-%m-%d %H:%M}"
    return f"{start} to {window.until:%Y-%m-%d %H:%M} UTC"


def _ago(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    if seconds >= 2 * 86400:
        return f"{seconds // 86400} days"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min" if seconds >= 3600 else f"{seconds // 60} min"
