"""The requests and the time that are left until rows are usable, and until they are complete.

Belongs here: the estimate of each asset from counts of our own tables, for ``scm-sync status`` and the asset
page. It sends no request to a source. Does not belong here: the estimate of a project that is not registered
(:mod:`sync_pipeline.registry.projects`), and that of a manual sync (:mod:`sync_pipeline.reports.plans`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import Access, JobType
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import completeness as store
from sync_pipeline.ledger import repos
from sync_pipeline.ledger.completeness import Deferred
from sync_pipeline.registry.projects import requests_for
from sync_pipeline.reports import health
from sync_pipeline.reports.health import Facts
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings

Key = tuple[int, JobType]


@dataclass(frozen=True, slots=True)
class Pace:
    """How a server is read now: ``rate`` in requests per second, and ``calls_per_fetch``, the requests that a
    planned fetch took in the latest completion jobs."""

    rate: float
    calls_per_fetch: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests until a level is reached, and the seconds that they take at the rate of the server, if nothing
    else is read there."""

    requests: int
    seconds: float

    def document(self) -> dict[str, Any]:
        """As a report shows it."""
        return {"requests": self.requests, "seconds": round(self.seconds, 1)}


@dataclass(frozen=True, slots=True)
class LevelCosts:
    """The cost until all rows are ``usable``, and the whole cost until all are ``complete``."""

    usable: Cost
    complete: Cost

    def document(self) -> dict[str, Any]:
        """As a report shows it."""
        return {"usable": self.usable.document(), "complete": self.complete.document()}


def costs(job_type: JobType, unread: int, planned: int, pace: Pace) -> LevelCosts:
    """The estimate for ``unread`` merge requests and ``planned`` fetches."""
    usable = requests_for(job_type, unread, usable=True) if unread else 0
    complete = requests_for(job_type, unread) if unread else 0
    complete = max(usable, complete) + math.ceil(planned * pace.calls_per_fetch)
    return LevelCosts(Cost(usable, usable / pace.rate), Cost(complete, complete / pace.rate))


def of_fleet(database: Database, settings: Settings) -> dict[str, dict[str, Any]]:
    """The estimate for every active repository, by server. See :func:`by_server`."""
    with database.connection() as conn:
        instances = {one.repo_id: one.instance for one in repos.list_all(conn, retired=False)}
        # Tokens decide nothing here: coverage and planned fetches are in our own tables.
        tokens = Credentials(frozenset(instances.values()), {}, {})
        found = health.read(conn, timedelta(), tokens, list(instances))
        deferred = {(one.repo_id, one.job_type): one for one in store.deferred(conn)}
        facts = [one.facts for one in found]
        return by_server(read(conn, settings, facts, deferred, instances), instances)


def by_server(
    found: Mapping[Key, LevelCosts | None], instances: Mapping[int, str]
) -> dict[str, dict[str, Any]]:
    """The sum of the assets of each server, as a report shows it. It is not known of ``unknown`` assets."""
    of_server: dict[str, list[LevelCosts | None]] = {}
    for (repo_id, _), one in found.items():
        of_server.setdefault(instances[repo_id], []).append(one)
    return {
        instance: {
            **total(one for one in some if one is not None).document(),
            "unknown": sum(one is None for one in some),
        }
        for instance, some in sorted(of_server.items())
    }


def total(found: Iterable[LevelCosts]) -> LevelCosts:
    """The sum of some assets of one server."""
    every = list(found)

    def summed(some: Iterable[Cost]) -> Cost:
        parts = list(some)
        return Cost(sum(one.requests for one in parts), sum(one.seconds for one in parts))

    return LevelCosts(summed(one.usable for one in every), summed(one.complete for one in every))


def read(
    conn: Connection,
    settings: Settings,
    facts: Collection[Facts],
    deferred: Mapping[Key, Deferred],
    instances: Mapping[int, str],
) -> dict[Key, LevelCosts | None]:
    """The estimate of each asset that is read by time. None while it is not known how much is unread.

    The number of merge requests is the largest number among the stored ones: live syncing reads the newest
    first. ``instances`` has the server of each repository.
    """
    by_time = [one for one in facts if DECLARED[one.job_type].by_time and one.access is not Access.DISABLED]
    partly = sorted({one.repo_id for one in by_time if _is_partly_read(one)})
    counted = store.merge_requests(conn, partly) if partly else {}
    paces = {
        instance: Pace(
            rate=row["rate"] or settings.rate_limit.start, calls_per_fetch=row["calls_per_fetch"] or 1.0
        )
        for instance, row in store.paces(conn, sorted(set(instances.values()))).items()
    }
    found: dict[Key, LevelCosts | None] = {}
    for one in by_time:
        key = one.repo_id, one.job_type
        unread = counted.get(key) if _is_partly_read(one) else 0
        planned = deferred[key].planned if key in deferred else 0
        pace = paces[instances[one.repo_id]]
        found[key] = None if unread is None else costs(one.job_type, unread, planned, pace)
    return found


def _is_partly_read(facts: Facts) -> bool:
    return bool(facts.gap or facts.queued or facts.level is None)
