"""Due work and its blockers: the parts of the status report that explain why nothing moves.

Belongs here: breakers that are not closed, pauses, and due visits, from rows that the report has read. The
policy of the scheduler (:mod:`sync_pipeline.policy.due`) decides whether a visit is due. Only a plan
(``scm-sync scheduler --dry-run``) says why each one does not start now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from sync_pipeline.admin import pauses
from sync_pipeline.core.formatting import plain_mark
from sync_pipeline.core.model import BreakerScope, BreakerState, DecisionReason, JobType, Lifecycle, Mode
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import breakers
from sync_pipeline.ledger.pauses import PauseRow
from sync_pipeline.ledger.rate_limits import ALL, SVN
from sync_pipeline.policy.due import evaluate_asset
from sync_pipeline.policy.snapshot import AssetState, PlanningLimits
from sync_pipeline.reports.health import HealthResult
from sync_pipeline.settings import Settings

Document = dict[str, Any]

_DUE = frozenset({DecisionReason.NEVER_VISITED, DecisionReason.HINT, DecisionReason.INTERVAL})
_OF_BREAKER = {
    BreakerState.OPEN: DecisionReason.BREAKER_OPEN,
    BreakerState.HALF_OPEN: DecisionReason.HALF_OPEN,
}
_FACTS_OF_ASSET = ("repo_id", "lifecycle", "access", "visited_at", "watermark", "head")
_COLUMNS_OF_ASSET = (
    *("instance", "instance_slug", "tenant", "hint_head", "hint_at", "hint_failed"),
    *("activity_at", "hint_activity_at", "listed_at", "listed_down_to"),
)
# A visit is late when it is older than so many intervals.
_LATE = 2


def breaker_documents(conn: Connection, settings: Settings) -> list[Document]:
    """The breakers that are not closed. The reason includes the most frequent error. There are none if
    breakers are switched off.
    """
    if not settings.breaker.enabled:
        return []
    return [
        {
            "scope": row.scope,
            "key": row.key,
            "state": row.state,
            "since": row.since.isoformat(),
            "reason": pauses.with_errors(row.reason, pauses.errors_of(conn, settings, row)),
        }
        for row in breakers.read(conn)
        if row.state != BreakerState.CLOSED
    ]


def pause_documents(rows: Sequence[PauseRow], names: Mapping[int, str]) -> list[Document]:
    """The pauses with the keys of ``scm-sync admin pauses``, times as ISO 8601."""
    documents = [pauses.document(row, names) for row in rows]
    return [
        {**one, "since": plain_mark(one["since"]), "until": plain_mark(one["until"])} for one in documents
    ]


def hinders(breaker: Mapping[str, Any], asset: Mapping[str, Any]) -> bool:
    """True if this breaker is about the repository of ``asset``, which has ``instance`` and ``tenant``. That
    of a worker pool is about none: another pool may take its repositories."""
    keys = {
        BreakerScope.GLOBAL: "",
        BreakerScope.INSTANCE: asset["instance"],
        BreakerScope.TENANT: asset["tenant"],
    }
    return bool(keys.get(BreakerScope(breaker["scope"])) == breaker["key"])


def holds(pause: Mapping[str, Any], asset: Mapping[str, Any]) -> bool:
    """True if this pause is about the repository of ``asset``, which has ``spec``, ``instance`` and
    ``tenant``; whichever job type it is about."""
    values = {"repository": pause["repo"], "instance": pause["instance"], "tenant": pause["tenant"]}
    names = {"repository": "spec", "instance": "instance", "tenant": "tenant"}
    scope = pause["scope"]
    return scope == "global" or bool(values[scope] == asset[names[scope]])


def reasons(
    asset: Mapping[str, Any], report: Mapping[str, Sequence[Mapping[str, Any]]], retry_at: datetime | None
) -> dict[str, str]:
    """Why jobs of ``unit`` do not start now, one line for each reason of a plan. The reasons come from the
    ``breakers``, ``pauses`` and ``limits`` of ``report``, or its live syncing failed and is retried at
    ``retry_at``.
    """
    found: dict[str, str] = {}
    for one in report["pauses"]:
        if one["job"] in (None, asset["job_type"]) and holds(one, asset):
            found[DecisionReason.PAUSED] = f"{one['actor']}: {one['reason']}"
    for one in report["breakers"]:
        if hinders(one, asset):
            line = f"breaker {one['scope']} {one['key']}".rstrip()
            found[_OF_BREAKER[BreakerState(one["state"])]] = f"{line}: {one['reason']}"
    bucket = SVN if asset["spec"].startswith("svn:") else ALL
    for one in report["limits"]:
        if one["paused"] and (one["instance"], one["endpoint_class"]) == (asset["instance"], bucket):
            found[DecisionReason.RATE_LIMITED] = one["reason"] or "no request is sent"
    if retry_at is not None:
        found[DecisionReason.WAITS_FOR_RETRY] = (
            f"it failed, and is tried again at {retry_at:%Y-%m-%d %H:%M:%S} UTC"
        )
    return {str(name): line for name, line in found.items()}


def is_due(row: Mapping[str, Any], result: HealthResult, limits: PlanningLimits) -> bool:
    """True if a visit of this asset is due: it was never visited, has a hint, or was last visited before the
    interval. Inaccessible and dead assets are not due.
    """
    facts = result.facts
    if facts.incremental_dead:
        return False
    asset = AssetState(
        job_type=JobType(facts.job_type),
        dead_at=None,
        **{name: getattr(facts, name) for name in _FACTS_OF_ASSET},
        **{name: row[name] for name in _COLUMNS_OF_ASSET},
    )
    reason, _ = evaluate_asset(asset, (), result.evaluated_at, limits)
    return reason in _DUE


def due_document(
    assets: Sequence[Document], due: Collection[tuple[int, str]], now: datetime, settings: Settings
) -> Document:
    """How many of ``units`` are due but not started, and the longest time since a visit (never visited: since
    the registration). ``due`` has the repository and job type of each.

    Visits are late if at least half of the unblocked assets are due, and half of those for more than two
    intervals. Single late ones say nothing about the whole.
    """
    waiting = [
        asset for asset in assets if (asset["repo_id"], asset["job_type"]) in due and not _started(asset)
    ]
    ages = [_age(asset, now) for asset in waiting]
    free = [asset for asset in assets if asset["lifecycle"] == Lifecycle.ACTIVE and not _stopped(asset)]
    free_ages = [_age(asset, now) for asset in waiting if not _stopped(asset)]
    late = bool(free_ages) and median(free_ages) > _LATE * settings.scheduler.sync_interval_seconds
    return {
        "count": len(waiting),
        "never_visited": sum(asset["visited_at"] is None for asset in waiting),
        "held_back": sum(_stopped(asset) for asset in waiting),
        "longest_seconds": round(max(ages), 3) if ages else None,
        "interval_seconds": settings.scheduler.sync_interval_seconds,
        "interval_kept": not (late and 2 * len(free_ages) >= len(free)),
    }


def _started(asset: Document) -> bool:
    return any(one["mode"] == Mode.INCREMENTAL and not one["claim_ran_out"] for one in asset["running"])


def _stopped(asset: Document) -> bool:
    return bool(asset["held_back"] or asset["credential"])


def _age(asset: Document, now: datetime) -> float:
    """Seconds since the last visit, or since the registration."""
    since = datetime.fromisoformat(asset["visited_at"] or asset["registered_at"])
    return max(timedelta(0), now - since).total_seconds()
