"""Is it all there? The statement for the fleet: what is expected, what is stored, and what nobody knows.

Belongs here: the document, which ``docs/completeness.md`` describes key by key; the command line, the metrics
and the asset in Dagster tell the same. It reads our own tables and asks no source. Does not belong here:
comparing with a source (:mod:`sync_pipeline.sync.reconcile`), and how the document looks on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline import __version__
from sync_pipeline.model import Access, JobType, Lifecycle
from sync_pipeline.quality import health
from sync_pipeline.quality.credentials import Credentials
from sync_pipeline.quality.health import HealthResult
from sync_pipeline.quality.reasons import Reason
from sync_pipeline.settings import Settings
from sync_pipeline.store import completeness as store
from sync_pipeline.store import credentials, repos
from sync_pipeline.store.database import Connection, Database, database_time

_UNREACHED = frozenset({Reason.DENIED, Reason.GONE, Reason.REPLACED, Reason.CREDENTIAL})
_COUNTED = ("stored", "deleted", "hidden", "missing", "extra", "changed", "quarantined", "unstored", "owed")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AssetCounts:
    """The counts of one (repository, job type). ``denied``: nothing can be read from its source now.
    ``unreadable`` has a line for each detail that the server refuses for every row. ``unstored`` are
    quarantined rows of which nothing is stored. ``windows`` were never complete; for Subversion ``revisions``
    is their number of revisions. ``verified_at`` is when all of it was last compared with its source
    (UTC)."""

    repo_id: int
    instance: str
    tenant: str
    job_type: JobType
    denied: bool = False
    disabled: bool = False
    never_read: bool = False
    windows: int = 0
    revisions: int = 0
    verified_at: datetime | None = None
    stored: int = 0
    deleted: int = 0
    hidden: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    quarantined: int = 0
    unstored: int = 0
    owed: int = 0
    spec: str = ""
    unreadable: tuple[str, ...] = ()


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
    """Every (repository, job type) that is synced, and how many repositories are retired."""
    known = {repository.repo_id: repository for repository in repos.list_all(conn)}
    active = {repo_id: one for repo_id, one in known.items() if one.lifecycle is Lifecycle.ACTIVE}
    counts: dict[tuple[int, str], dict[str, int]] = {}

    def count(rows: Iterable[Mapping[str, Any]], job_type: JobType | None = None) -> None:
        for row in rows:
            found = counts.setdefault((row["repo_id"], job_type or row["job_type"]), {})
            found |= {name: row[name] for name in _COUNTED if name in row}

    for job_type in JobType:
        count(store.rows_of(conn, job_type), job_type)
    for rows in (store.differences(conn), store.quarantined(conn), store.owed(conn)):
        count(rows)
    judged = {(one.facts.repo_id, str(one.facts.job_type)): one for one in _verdicts(conn, settings, active)}
    assets = []
    for row in store.assets(conn):
        key = row["repo_id"], row["job_type"]
        if row["repo_id"] in active:
            repository, facts = active[row["repo_id"]], judged[key].facts
            assets.append(
                AssetCounts(
                    repo_id=repository.repo_id,
                    instance=repository.instance,
                    tenant=repository.tenant,
                    job_type=JobType(row["job_type"]),
                    denied=not _UNREACHED.isdisjoint(judged[key].health.reasons),
                    disabled=facts.access is Access.DISABLED,
                    never_read=facts.watermark is None and facts.verified_at is None,
                    windows=row["windows"],
                    revisions=row["revisions"],
                    verified_at=row["verified_at"],
                    spec=repository.spec,
                    unreadable=tuple(one.text for one in facts.unreadable),
                    **counts.get(key, {}),
                )
            )
    return assets, len(known) - len(active)


def _verdicts(conn: Connection, settings: Settings, active: Mapping[int, Any]) -> list[HealthResult]:
    """As the status report judges: by what the servers refused, not by the tokens of this shell."""
    refused = {stop.instance: stop for stop in credentials.unanswered(conn)}
    instances = frozenset(repository.instance for repository in active.values())
    tokens = Credentials(instances, refused, {})
    return health.read(conn, timedelta(seconds=settings.scheduler.stale_after_seconds), tokens, list(active))


def statement(assets: Sequence[AssetCounts], since: datetime) -> Document:
    """``units`` in total, by each thing that a person asks for, and in the smallest groups. What was compared
    after ``since`` (UTC) counts as verified."""
    return {
        "total": group(assets, since),
        "instances": _by(assets, since, lambda asset: {"instance": asset.instance}),
        "tenants": _by(assets, since, lambda asset: {"tenant": asset.tenant}),
        "job_types": _by(assets, since, lambda asset: {"job_type": str(asset.job_type)}),
        "groups": _by(
            assets,
            since,
            lambda asset: {
                "instance": asset.instance,
                "tenant": asset.tenant,
                "job_type": str(asset.job_type),
            },
        ),
    }


def _by(
    assets: Sequence[AssetCounts], since: datetime, labels: Callable[[AssetCounts], dict[str, str]]
) -> list[Document]:
    found: dict[tuple[str, ...], list[AssetCounts]] = {}
    for asset in assets:
        found.setdefault(tuple(labels(asset).values()), []).append(asset)
    return [labels(some[0]) | group(some, since) for _, some in sorted(found.items())]


def group(assets: Sequence[AssetCounts], since: datetime) -> Document:
    """What is known, and what is not, of some units."""
    total = {name: sum(getattr(asset, name) for asset in assets) for name in _COUNTED}
    # Of what is switched off, or was never read, no window says how much it is; revisions are numbers.
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
        "owed": total["owed"],
        "unreadable": sum(len(asset.unreadable) for asset in assets),
    }
    verified = [asset for asset in assets if asset.verified_at is not None and asset.verified_at > since]
    rounds = [asset.verified_at for asset in assets if asset.verified_at is not None]
    rows = sum(asset.stored for asset in verified)
    differs = total["missing"] + total["extra"] + total["changed"]
    reached = not any(unknown[name] for name in unknown if name != "uncovered")
    return {
        "repositories": len({asset.repo_id for asset in assets}),
        "units": len(assets),
        "disabled": sum(asset.disabled for asset in assets),
        "complete": reached and not differs and not any(unknown["uncovered"].values()),
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
