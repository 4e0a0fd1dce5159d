"""The status report: what is complete, how fresh it is, and what still waits, per (repository, job type).

Belongs here: the document, which ``docs/status.md`` describes key by key, and its order. It reads our own
tables and Dagster's, no source and no token of the shell it runs in, so it shows the same to everybody. Does
not belong here: the verdict, which is that of :mod:`sync_pipeline.reports.health`, and how the report looks
on a terminal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline import __version__
from sync_pipeline.admin import limits
from sync_pipeline.core.formatting import plain_mark
from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import (
    BEGINNING,
    BreakerScope,
    BreakerState,
    JobStatus,
    JobType,
    Kind,
    Lifecycle,
    Repository,
    RevisionWindow,
    TimeWindow,
    Window,
)
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.database.rows import mark_of
from sync_pipeline.ledger import completeness, credentials, heartbeats, pauses, pools
from sync_pipeline.ledger import status as store
from sync_pipeline.reports import blockers, estimates, health, run_starts, slowness
from sync_pipeline.reports.configuration import CredentialSources
from sync_pipeline.reports.health import Facts, HealthResult
from sync_pipeline.reports.reasons import PASSES, WARNINGS, HealthReason, remedies
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.scheduling.dispatch import limits_of
from sync_pipeline.scheduling.pools import pool_document
from sync_pipeline.settings import Settings

UNHEALTHY, WAITING, HEALTHY = "unhealthy", "waiting", "healthy"
"""The verdicts, worst first. A waiting asset becomes healthy without a person, as queued history is read."""

_VERDICTS = (UNHEALTHY, WAITING, HEALTHY)
_WAITING_JOBS = (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.FAILED)
_SHOWN_WINDOWS = 3
_READABLE = frozenset({"ok", "empty"})

Document = dict[str, Any]


def status(
    database: Database,
    settings: Settings,
    repository: Repository | None = None,
    job_types: Sequence[JobType] | None = None,
    credentials_from: CredentialSources = CredentialSources(),  # noqa: B008 (it is frozen)
) -> Document:
    """The report about every active repository, or about ``repository``, retired or not; of these
    ``job_types`` or of all. Times are ISO 8601 in UTC, lengths are seconds.

    ``credentials_from`` says where this process takes the credential of each server from.
    """
    repo_ids = None if repository is None else [repository.repo_id]
    with database.connection() as conn:
        now = database_time(conn)
        rows = store.assets(conn, repo_ids)
        stale_after = timedelta(seconds=settings.scheduler.stale_after_seconds)
        tokens = _tokens(conn, {row["instance"] for row in rows})
        results = health.read(conn, stale_after, tokens, repo_ids)
        jobs = store.jobs(conn, repo_ids)
        at_work = store.running(conn, repo_ids)
        unusual_limits = limits.unusual(conn, settings)
        opened = blockers.breaker_documents(conn, settings)
        paused = pauses.active(conn)
        attended = _liveness(conn, repo_ids)
        deferred = {(one.repo_id, one.job_type): one for one in completeness.deferred(conn, repo_ids)}
        known = [one.facts for one in results]
        costs = estimates.read(
            conn, settings, known, deferred, {row["repo_id"]: row["instance"] for row in rows}
        )
    by_asset = {(one.facts.repo_id, str(one.facts.job_type)): one for one in results}
    wanted = None if job_types is None else {str(job_type) for job_type in job_types}
    queued: Counter[tuple[int, str]] = Counter()
    counted: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    retry_at: dict[tuple[int, str], datetime] = {}
    for row in jobs:
        if row["retry_at"] is not None:
            retry_at[row["repo_id"], row["job_type"]] = row["retry_at"]
        if wanted is None or row["job_type"] in wanted:
            counted[row["repo_id"], row["job_type"]][row["status"]] += row["jobs"]
            if row["status"] in _WAITING_JOBS:
                queued[row["repo_id"], row["job_type"]] += row["with_window"]
    running: defaultdict[tuple[int, str], list[Document]] = defaultdict(list)
    for row in at_work:
        running[row["repo_id"], row["job_type"]].append(_at_work(row))
    obstacles: dict[str, Any] = {
        "breakers": opened,
        "pauses": blockers.pause_documents(paused, {row["repo_id"]: _spec(row) for row in rows}),
        "limits": unusual_limits,
    }
    if repository is not None:
        obstacles = _of_repository(obstacles, repository)
    assets, due, when = [], set(), limits_of(settings)
    for row in rows:
        key = row["repo_id"], row["job_type"]
        # Between two queries a repository may have been registered.
        if key in by_asset and (wanted is None or row["job_type"] in wanted):
            asset = _unit(row, by_asset[key], tokens, queued[key], running[key])
            asset |= _level(by_asset[key].facts, deferred, costs)
            asset["held_back"] = blockers.reasons(asset, obstacles, retry_at.get(key))
            asset["remedies"] |= remedies(asset["held_back"], asset["spec"])
            assets.append(asset)
            if blockers.is_due(row, by_asset[key], when):
                due.add(key)
    retired = {asset["repo_id"] for asset in assets if asset["lifecycle"] == Lifecycle.RETIRED}
    if repository is None:
        assets = [asset for asset in assets if asset["repo_id"] not in retired]
    assets.sort(key=_worst_first)
    counts = Counter(asset["verdict"] for asset in assets)
    by_status = sum(counted.values(), Counter())
    return {
        "version": __version__,
        "generated_at": now.isoformat(),
        "environment": settings.environment,
        "summary": {
            "repositories": len({asset["repo_id"] for asset in assets}),
            "retired_repositories": len(retired),
            "units": {verdict: counts[verdict] for verdict in reversed(_VERDICTS)},
            "jobs": {str(one): by_status[one] for one in JobStatus},
        },
        "servers": _servers(assets, counted, obstacles, credentials_from, costs),
        "due": blockers.due_document(assets, due, now, settings),
        **obstacles,
        "switched_off": settings.switched_off,
        **attended,
        "run_starts": _run_starts(settings, database),
        "units": assets,
    }


def accesses(
    conn: Connection, settings: Settings, repositories: Sequence[Repository]
) -> dict[tuple[int, str], Document]:
    """``units[].access`` of the report, by the number of the repository and the job type."""
    tokens = _tokens(conn, {repository.instance for repository in repositories})
    repo_ids = [repository.repo_id for repository in repositories]
    found = health.read(conn, timedelta(seconds=settings.scheduler.stale_after_seconds), tokens, repo_ids)
    return {(one.facts.repo_id, str(one.facts.job_type)): _access(one.facts) for one in found}


def _tokens(conn: Connection, instances: Collection[str]) -> Credentials:
    """The tokens as our tables know them: which there are now only those know who hold them."""
    refused = {stop.instance: stop for stop in credentials.unanswered(conn)}
    return Credentials(frozenset(instances), refused, {})


def _run_starts(settings: Settings, database: Database) -> Document | None:
    """How the newest runs of Dagster's began; None where it has no tables, or they cannot be read."""
    found = run_starts.read_starts(settings, database.url)
    if found is None:
        return None
    return {**asdict(found), "last_at": plain_mark(found.last_at)}


def _liveness(conn: Connection, repo_ids: Sequence[int] | None) -> Document:
    """The living worker pools, the assets that none of them takes, and what is silent or slow."""
    beats = heartbeats.read(conn)
    return {
        "pools": [pool_document(pool) for pool in pools.alive(conn)],
        "unserved": [
            {"spec": one.spec, "job_type": one.job_type, "instance": one.instance, "tenant": one.tenant}
            for one in pools.unserved(conn)
            if repo_ids is None or one.repo_id in repo_ids
        ],
        "silent": [
            {
                "name": one.name,
                "beat_at": one.beat_at.isoformat(),
                "age_seconds": round(one.age, 3),
                "every_seconds": one.every,
            }
            for one in beats
            if one.silent
        ],
        "slow": slowness.summary(beats),
    }


def _of_repository(
    obstacles: Mapping[str, list[Document]], repository: Repository
) -> dict[str, list[Document]]:
    """Those that concern ``repository``."""
    asset = {"spec": repository.spec, "instance": repository.instance, "tenant": repository.tenant}
    return {
        "breakers": [x for x in obstacles["breakers"] if blockers.hinders(x, asset)],
        "pauses": [x for x in obstacles["pauses"] if blockers.holds(x, asset)],
        "limits": [x for x in obstacles["limits"] if x["instance"] == repository.instance],
    }


def _spec(row: Mapping[str, Any]) -> str:
    return f"svn:{row['url']}" if row["kind"] == Kind.SVN else f"gitlab:{row['project_id']}"


def _at_work(row: Mapping[str, Any]) -> Document:
    return {
        "job_id": str(row["job_id"]),
        "mode": row["mode"],
        "attempt": row["attempts"],
        "worker": row["claimed_by"],
        "since": plain_mark(row["claimed_at"]),
        "claim_expires_at": plain_mark(row["claim_expires_at"]),
        "claim_ran_out": not row["claimed"],
    }


def _unit(
    row: Mapping[str, Any],
    result: HealthResult,
    tokens: Credentials,
    queued_jobs: int,
    running: list[Document],
) -> Document:
    facts = result.facts
    kind = Kind(row["kind"])
    stop = tokens.stopped.get(row["instance"]) if kind is Kind.GITLAB else None
    return {
        "repo_id": row["repo_id"],
        "spec": _spec(row),
        "path": row["project_path"] or row["url"],
        "instance": row["instance"],
        "tenant": row["tenant"],
        "slug": row["slug"],
        "lifecycle": row["lifecycle"],
        "registered_at": plain_mark(row["registered_at"]),
        "job_type": row["job_type"],
        "verdict": verdict_of(result.health),
        "reasons": result.health.detail,
        "remedies": remedies((r for r in result.health.reasons if r not in PASSES), _spec(row)),
        "access": _access(facts),
        "credential": facts.credential
        and {"problem": facts.credential, "stopped_at": plain_mark(stop.stopped_at if stop else None)},
        "origin": plain_mark(mark_of(row, "origin")),
        "covered": _covered(row, facts.watermark),
        "covered_apart": _extent(row["apart"]),
        "watermark": plain_mark(facts.watermark),
        "verified_at": plain_mark(facts.verified_at),
        "visited_at": plain_mark(facts.visited_at),
        "lag_seconds": result.lag_seconds,
        "head_rev": facts.head,
        "revisions_behind": facts.revisions_behind,
        "gaps": _extent(facts.gap),
        "queued": {"jobs": queued_jobs, **_extent(facts.queued)},
        "running": running,
        "last_run": _last_run(row),
    }


def _level(
    facts: Facts,
    deferred: Mapping[tuple[int, JobType], completeness.Deferred],
    costs: Mapping[tuple[int, JobType], estimates.LevelCosts | None],
) -> Document:
    """The level of what is covered, and what is left until everything is usable and complete."""
    key = facts.repo_id, facts.job_type
    left = deferred.get(key) or completeness.Deferred(*key, 0, 0, None, False)
    is_whole = not (facts.gap or facts.queued) and DECLARED[facts.job_type].by_time
    cost = costs.get(key)
    return {
        "level": None if facts.level is None else str(facts.level),
        "planned_fetches": left.planned,
        "failed_fetches": left.failed,
        "complete_until": plain_mark(left.complete_until(facts.watermark)) if is_whole else None,
        "estimate": None if cost is None else cost.document(),
    }


def _access(facts: Facts) -> Document:
    """The result of the last visit, unless a later look showed that the source cannot be read."""
    state, detail, since = str(facts.access), facts.access_detail, facts.access_since
    if facts.problem is not None:
        state, detail, since = str(facts.problem.reason), facts.problem.line, facts.problem.since
    return {"state": state, "detail": detail, "since": plain_mark(since)}


def verdict_of(verdict: health.Health) -> str:
    """One of the three words for a verdict."""
    if verdict.passed:
        return HEALTHY
    return WAITING if set(verdict.reasons) <= WARNINGS else UNHEALTHY


def _covered(row: Mapping[str, Any], watermark: int | datetime | None) -> Document | None:
    """The covered range that holds the origin."""
    if isinstance(watermark, int):
        first = row["covered_from_rev"]
        return {"from": first, "to": watermark - 1, "from_beginning": first <= 1}
    if isinstance(watermark, datetime):
        first = row["covered_from_time"]
        whole = first <= BEGINNING
        return {
            "from": None if whole else plain_mark(first),
            "to": plain_mark(watermark),
            "from_beginning": whole,
        }
    return None


def _extent(windows: Sequence[Window]) -> Document:
    """How much ``windows`` are; the one that reaches back to the beginning has no length in seconds."""
    revisions = [window for window in windows if isinstance(window, RevisionWindow)]
    times = [window for window in windows if isinstance(window, TimeWindow)]
    bounded = [window for window in times if window.since > BEGINNING]
    return {
        "windows": len(windows),
        "revisions": sum(map(len, revisions)),
        "seconds": sum(((w.until - w.since).total_seconds() for w in bounded), 0.0),
        "from_beginning": len(bounded) < len(times) or any(window.first <= 1 for window in revisions),
        "first": [_window(window) for window in windows[:_SHOWN_WINDOWS]],
    }


def _window(window: Window) -> Document:
    if isinstance(window, RevisionWindow):
        return {"start_rev": window.first, "end_rev": window.end - 1}
    return {
        "since": None if window.since <= BEGINNING else plain_mark(window.since),
        "until": plain_mark(window.until),
    }


def _last_run(row: Mapping[str, Any]) -> Document | None:
    if row["run_status"] is None:
        return None
    started, finished = row["run_started_at"], row["run_finished_at"]
    return {
        "mode": row["run_mode"],
        "status": row["run_status"],
        "started_at": plain_mark(started),
        "finished_at": plain_mark(finished),
        "seconds": None if finished is None else round((finished - started).total_seconds(), 3),
        **{
            name: row[f"run_{name}"]
            for name in ("read", "inserted", "updated", "unchanged", "poorer", "quarantined", "calls")
        },
        "error_code": row["run_error_code"],
        "error": row["run_error"],
        "dagster_run_id": row["run_dagster_run_id"],
    }


def _worst_first(asset: Document) -> tuple[int, int, float, str, str]:
    lag = asset["lag_seconds"]
    return (
        _VERDICTS.index(asset["verdict"]),
        -len(asset["reasons"]),
        float("-inf") if lag is None else -lag,
        asset["path"],
        asset["job_type"],
    )


# Whole servers --------------------------------------------------------------------------------------------


def _servers(
    assets: Sequence[Document],
    jobs: Mapping[tuple[int, str], Mapping[str, int]],
    obstacles: Mapping[str, Sequence[Mapping[str, Any]]],
    credentials: CredentialSources,
    costs: Mapping[tuple[int, JobType], estimates.LevelCosts | None],
) -> list[Document]:
    """A document for each server that has one of ``units``, the one with most unhealthy assets first.

    ``jobs`` has the number of jobs by status of each (repository, job type). ``obstacles`` are the breakers,
    pauses and limits of the report.
    """
    by_server: defaultdict[tuple[str, Kind], list[Document]] = defaultdict(list)
    for asset in assets:
        kind = Kind.SVN if asset["spec"].startswith("svn:") else Kind.GITLAB
        by_server[asset["instance"], kind].append(asset)
    shown = {(asset["repo_id"], JobType(asset["job_type"])): asset["instance"] for asset in assets}
    left = estimates.by_server(
        {key: cost for key, cost in costs.items() if key in shown},
        {repo_id: instance for (repo_id, _), instance in shown.items()},
    )
    found = [
        _server(instance, kind, mine, jobs, obstacles, credentials.of(kind, instance))
        | {"estimate": left.get(instance) if kind is Kind.GITLAB else None}
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
    results = Counter(asset["verdict"] for asset in assets)
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
            **{verdict: results[verdict] for verdict in reversed(_VERDICTS)},
            "late": sum(HealthReason.STALE in asset["reasons"] for asset in assets),
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
    return obstacle["scope"] == BreakerScope.GLOBAL or (
        obstacle["scope"] == BreakerScope.INSTANCE and key == instance
    )
