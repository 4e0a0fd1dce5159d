"""The completeness statement for the fleet: how many rows are expected, stored and unknown.

Belongs here: the document, which ``docs/completeness.md`` describes key by key; the command line, the metrics
and the asset in Dagster show the same. It reads our own tables and asks no source. Does not belong here:
comparing with a source (:mod:`sync_pipeline.sync.reconcile`), and how the document looks on a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline import __version__
from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import Access, JobType, Level, Lifecycle
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.database.rows import read_row
from sync_pipeline.facts import stored_rows
from sync_pipeline.ledger import completeness as store
from sync_pipeline.ledger import credentials, repos
from sync_pipeline.reports import health
from sync_pipeline.reports.health import HealthResult
from sync_pipeline.reports.reasons import HealthReason
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings

_UNREACHED = frozenset(
    {HealthReason.DENIED, HealthReason.GONE, HealthReason.REPLACED, HealthReason.CREDENTIAL}
)
_COUNTED = ("stored", "deleted", "hidden", "missing", "extra", "changed", "quarantined", "unstored")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AssetCounts:
    """The counts of one asset. ``denied``: nothing can be read from its source now. ``unreadable`` has a line
    for each detail that the server refuses for every row. ``windows`` were never complete; for Subversion
    ``revisions`` is their number of revisions. ``verified_at`` is when all of it was last compared with its
    source (UTC). ``counts`` are those of ``_COUNTED`` that are not 0; ``unstored`` are quarantined rows that
    have no stored row. ``failed`` details could not be read, ``planned`` ones wait for their turn. ``level``
    is that of what is covered. ``by_time``: ``complete_until`` is the end of the time in which everything is
    stored with every detail, None if there is none."""

    repo_id: int
    spec: str
    instance: str
    tenant: str
    job_type: JobType
    denied: bool
    disabled: bool
    never_read: bool
    windows: int
    revisions: int
    verified_at: datetime | None
    unreadable: tuple[str, ...]
    counts: Mapping[str, int]
    failed: int
    planned: int
    level: Level | None
    by_time: bool
    complete_until: datetime | None


def completeness(database: Database, settings: Settings) -> Document:
    """The statement about every active repository, as of one moment."""
    with database.connection() as conn:
        now = database_time(conn)
        with store.one_moment(conn):
            assets, retired = read(conn, settings)
    return {
        "version": __version__,
        "generated_at": now.isoformat(),
        "environment": settings.environment,
        "retired_repositories": retired,
        # In the words of health and status.
        "unreadable": [
            {"spec": asset.spec, "job_type": str(asset.job_type), "text": text}
            for asset in assets
            for text in asset.unreadable
        ],
        # All history is compared once in so many days; what was within two rounds counts as verified.
        **statement(assets, now - timedelta(days=2 * settings.reconcile.days)),
    }


def read(conn: Connection, settings: Settings) -> tuple[list[AssetCounts], int]:
    """Every asset that is synced, and how many repositories are retired."""
    known = {repository.repo_id: repository for repository in repos.list_all(conn)}
    active = {repo_id: one for repo_id, one in known.items() if one.lifecycle is Lifecycle.ACTIVE}
    counts: dict[tuple[int, str], dict[str, int]] = {}
    rows = [
        *(
            {"job_type": job_type} | row
            for job_type in JobType
            for row in stored_rows.by_repository(conn, job_type)
        ),
        *store.counts(conn),
    ]
    for row in rows:
        found = counts.setdefault((row["repo_id"], row["job_type"]), {})
        found |= {name: row[name] for name in _COUNTED if name in row}
    evaluated = {
        (one.facts.repo_id, str(one.facts.job_type)): one for one in _health_results(conn, settings, active)
    }
    deferred = {(one.repo_id, str(one.job_type)): one for one in store.deferred(conn)}
    assets = []
    for row in store.assets(conn):
        key = row["repo_id"], row["job_type"]
        if row["repo_id"] in active:
            repository, verdict = active[row["repo_id"]], evaluated[key]
            facts = verdict.facts
            left = deferred.get(key) or store.Deferred(row["repo_id"], JobType(key[1]), 0, 0, None, False)
            assets.append(
                read_row(
                    AssetCounts,
                    row,
                    spec=repository.spec,
                    instance=repository.instance,
                    tenant=repository.tenant,
                    denied=not _UNREACHED.isdisjoint(verdict.health.reasons),
                    disabled=facts.access is Access.DISABLED,
                    never_read=facts.watermark is None and facts.verified_at is None,
                    unreadable=tuple(one.text for one in facts.unreadable),
                    counts=counts.get(key, {}),
                    failed=left.failed,
                    planned=left.planned,
                    level=facts.level,
                    by_time=DECLARED[facts.job_type].by_time,
                    complete_until=None if row["windows"] else left.complete_until(facts.watermark),
                )
            )
    return assets, len(known) - len(active)


def _health_results(conn: Connection, settings: Settings, active: Mapping[int, Any]) -> list[HealthResult]:
    """As in the status report: by what the servers refused, not by the tokens of this shell."""
    refused = {stop.instance: stop for stop in credentials.unanswered(conn)}
    instances = frozenset(repository.instance for repository in active.values())
    tokens = Credentials(instances, refused, {})
    return health.read(conn, timedelta(seconds=settings.scheduler.stale_after_seconds), tokens, list(active))


def statement(assets: Sequence[AssetCounts], since: datetime) -> Document:
    """The counts in total, by each label, and in the smallest groups. An asset that was compared after
    ``since`` (UTC) counts as verified."""
    return {
        "total": group(assets, since),
        "instances": _by(assets, since, "instance"),
        "tenants": _by(assets, since, "tenant"),
        "job_types": _by(assets, since, "job_type"),
        "groups": _by(assets, since, "instance", "tenant", "job_type"),
    }


def _by(assets: Sequence[AssetCounts], since: datetime, *labels: str) -> list[Document]:
    found: dict[tuple[str, ...], list[AssetCounts]] = {}
    for asset in assets:
        found.setdefault(tuple(str(getattr(asset, label)) for label in labels), []).append(asset)
    return [
        dict(zip(labels, values, strict=True)) | group(some, since) for values, some in sorted(found.items())
    ]


def group(assets: Sequence[AssetCounts], since: datetime) -> Document:
    """The counts of some assets: the known and the unknown ones."""
    total = {name: sum(asset.counts.get(name, 0) for asset in assets) for name in _COUNTED}
    # Windows of assets that are switched off or were never read have no size; revisions are numbers.
    partly = [asset for asset in assets if asset.windows and not asset.never_read and not asset.disabled]
    unknown: Document = {
        "denied": sum(asset.denied for asset in assets),
        "never_read": sum(asset.never_read and not asset.disabled for asset in assets),
        "uncovered": {
            "units": len(partly),
            "windows": sum(asset.windows for asset in partly),
            "revisions": sum(asset.revisions for asset in assets),
        },
        "hidden": total["hidden"],
        "quarantined": total["quarantined"],
        "owed": sum(asset.failed for asset in assets),
        "planned": sum(asset.planned for asset in assets),
        "unreadable": sum(len(asset.unreadable) for asset in assets),
    }
    verified = [asset for asset in assets if asset.verified_at is not None and asset.verified_at > since]
    rounds = [asset.verified_at for asset in assets if asset.verified_at is not None]
    rows = sum(asset.counts.get("stored", 0) for asset in verified)
    until = [asset.complete_until for asset in assets if asset.by_time and not asset.disabled]
    known = [moment for moment in until if moment is not None]
    differs = total["missing"] + total["extra"] + total["changed"]
    reached = not any(unknown[name] for name in unknown if name != "uncovered")
    return {
        "repositories": len({asset.repo_id for asset in assets}),
        "units": len(assets),
        "disabled": sum(asset.disabled for asset in assets),
        "complete": reached and not differs and not any(unknown["uncovered"].values()),
        "levels": {str(level): sum(asset.level is level for asset in assets) for level in Level},
        "complete_until": min(known).isoformat() if known and len(known) == len(until) else None,
        "expected": total["stored"] + total["missing"] - total["extra"] + total["unstored"],
        **{name: total[name] for name in ("stored", "missing", "extra", "changed", "deleted")},
        "unknown": unknown,
        "verified": {
            "units": len(verified),
            "rows": rows,
            "share": round(rows / total["stored"], 4) if total["stored"] else None,
            "oldest_at": min(rounds).isoformat() if rounds else None,
        },
    }
