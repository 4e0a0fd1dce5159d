"""The status report of whole servers: how many of their assets are well, and what holds them back.

Belongs here: one document per server, made from the assets of the report. Does not belong here: the verdict
about an asset (:mod:`sync_pipeline.reports.health`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sync_pipeline.core.model import JobStatus, Kind
from sync_pipeline.policy.breaker import BreakerState, Scope
from sync_pipeline.reports.configuration import CredentialSources
from sync_pipeline.reports.reasons import Reason

Document = dict[str, Any]

_READABLE = frozenset({"ok", "empty"})
_VERDICTS = ("healthy", "waiting", "unhealthy")


def server_documents(
    assets: Sequence[Document],
    jobs: Mapping[tuple[int, str], Mapping[str, int]],
    obstacles: Mapping[str, Sequence[Mapping[str, Any]]],
    credentials: CredentialSources,
) -> list[Document]:
    """A document for each server that has one of ``units``, the one with most unhealthy assets first.

    ``jobs`` has the number of jobs by status of each (repository, job type). ``obstacles`` are the breakers,
    pauses and limits of the report.
    """
    by_server: defaultdict[tuple[str, Kind], list[Document]] = defaultdict(list)
    for asset in assets:
        kind = Kind.SVN if asset["spec"].startswith("svn:") else Kind.GITLAB
        by_server[asset["instance"], kind].append(asset)
    found = [
        _server(instance, kind, mine, jobs, obstacles, credentials.of(kind, instance))
        for (instance, kind), mine in by_server.items()
    ]
    return sorted(found, key=lambda one: (-one["assets"]["unhealthy"], one["instance"], one["kind"]))


def _server(
    instance: str,
    kind: Kind,
    assets: Sequence[Document],
    jobs: Mapping[tuple[int, str], Mapping[str, int]],
    obstacles: Mapping[str, Sequence[Mapping[str, Any]]],
    credential: str | None,
) -> Document:
    by_verdict = Counter(asset["verdict"] for asset in assets)
    access = Counter(asset["access"]["state"] for asset in assets if asset["verdict"] == "unhealthy")
    lags = [asset["lag_seconds"] for asset in assets if asset["lag_seconds"] is not None]
    counts: Counter[str] = Counter()
    for asset in assets:
        counts.update(jobs.get((asset["repo_id"], asset["job_type"]), {}))
    states = {one["state"] for one in obstacles["breakers"] if _is_about(one, one["key"], instance)}
    return {
        "instance": instance,
        "kind": str(kind),
        "repositories": len({asset["repo_id"] for asset in assets}),
        "assets": {
            "total": len(assets),
            **{verdict: by_verdict[verdict] for verdict in _VERDICTS},
            "late": sum(Reason.STALE in asset["reasons"] for asset in assets),
            "with_gaps": sum(asset["gaps"]["windows"] > 0 for asset in assets),
            "never_complete": len(assets) - len(lags),
        },
        "access": {state: number for state, number in access.items() if state not in _READABLE},
        "lag_seconds": max(lags, default=None),
        "jobs": {
            "waiting": counts[JobStatus.PENDING] + counts[JobStatus.FAILED],
            "running": counts[JobStatus.RUNNING],
            "dead": counts[JobStatus.DEAD],
        },
        "breaker": next((str(s) for s in (BreakerState.OPEN, BreakerState.HALF_OPEN) if s in states), None),
        "paused": any(_is_about(one, one["instance"], instance) for one in obstacles["pauses"]),
        "credential": credential,
    }


def _is_about(obstacle: Mapping[str, Any], key: str | None, instance: str) -> bool:
    """True if a breaker or pause holds the whole server back."""
    if obstacle.get("job") is not None:
        return False
    return obstacle["scope"] == Scope.GLOBAL or (obstacle["scope"] == Scope.INSTANCE and key == instance)
