"""The scheduler: the sensor that starts due work.

Belongs here: its ticks, and the grouping of decisions into runs. A run carries many repositories, because
starting one costs seconds. The scheduler reads only our database and sends no request to a source. Its name
is fixed: Dagster keeps cursors and on/off switches by name. :mod:`sync_pipeline.policy.planning` decides;
:mod:`sync_pipeline.orchestration.changes` writes the hints.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import dagster as dg

from sync_pipeline.core.catalog import BLOCK_REVISIONS, block_of
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.job_types import FAMILY_OF, Family
from sync_pipeline.core.model import (
    JobType,
    Kind,
    Mode,
    Repository,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.core.windows import hull
from sync_pipeline.database.pool import Database, database_time
from sync_pipeline.ledger import planning
from sync_pipeline.ledger.pools import DEFAULT_POOL
from sync_pipeline.orchestration.asset_page import check_fields
from sync_pipeline.orchestration.assets import BLOCKS_PER_RUN
from sync_pipeline.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from sync_pipeline.orchestration.health_checks import mark_reported
from sync_pipeline.orchestration.liveness import fleet_results
from sync_pipeline.orchestration.partitions import ensure_blocks, partitions_of
from sync_pipeline.orchestration.resources import GitLabResource, PostgresResource
from sync_pipeline.orchestration.run_spec import (
    DISPATCH_TAG,
    PRIORITY_TAG,
    read_run_spec,
    run_tags,
    window_tags,
)
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.orchestration.ticks import UNFINISHED, WAITING, heartbeat, skips_outages
from sync_pipeline.orchestration.ui_requests import UiRequests
from sync_pipeline.policy.snapshot import Decision, InFlight
from sync_pipeline.reports import health
from sync_pipeline.scheduling import credentials, dispatch, pools
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings

SCHEDULER = "scheduler"

_MAX_RUNS_READ = 500
_MAX_RESULTS_PER_TICK = 100
_PATIENCE = 2.0
# A verdict is shown again after a day, in case the one that was reported got lost.
_MAX_RESULT_AGE = timedelta(days=1)
# Live syncing goes before history in Dagster's queue, where the larger number is first.
_RUN_PRIORITY = {Mode.INCREMENTAL: "10", Mode.REPAIR: "0", Mode.BACKFILL: "-10"}
_RUN_PRIORITY_OF_COMPLETION = "-20"


def scheduler_sensor(
    repositories: Sequence[Repository],
    days: dg.DailyPartitionsDefinition,
    jobs: Sequence[UnresolvedAssetJobDefinition | dg.JobDefinition],
    settings: Settings,
    fleet: dg.AssetKey,
) -> dg.SensorDefinition:
    """The sensor that starts due work of the repositories of this code location, and reports changed
    verdicts. Verdicts about the whole installation are shown at the asset ``fleet``.
    """
    by_id = {r.repo_id: r for r in repositories}

    @dg.sensor(
        name=SCHEDULER,
        jobs=jobs,
        minimum_interval_seconds=settings.sensors.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts what is due, by the ledger. Calls no source.",
    )
    @skips_outages
    def scheduler(
        context: dg.SensorEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
        gitlab: GitLabResource,
    ) -> dg.SensorResult:
        every = settings.sensors.interval_seconds
        with (
            postgres.database() as database,
            heartbeat(database, settings, SCHEDULER, every=every) as record_tick,
        ):
            with database.connection() as conn:
                pools.heartbeat(conn, settings)
                tokens = credentials.in_force(conn, gitlab.readers(database))
            taken, refused = UiRequests(context.instance, database, settings, repositories, days).take_over()
            requests, summary = _schedule(context.instance, database, settings, by_id, days, tokens)
            events = _changed_results(database, settings, by_id, tokens)
            of_fleet, cursor = _changed_fleet_results(database, settings, tokens, fleet, context.cursor)
            context.update_cursor(cursor)
            events += of_fleet
            summary += f"; {len(events)} verdicts" if events else ""
            summary += f"; {taken} jobs of requests in the UI" if taken else ""
            summary += f"; {refused} requests in the UI failed, see the log" if refused else ""
            record_tick(summary)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else dg.SkipReason(summary),
            asset_events=events,
        )

    return scheduler


def _schedule(
    instance: dg.DagsterInstance,
    database: Database,
    settings: Settings,
    by_id: Mapping[int, Repository],
    days: dg.DailyPartitionsDefinition,
    tokens: Credentials,
) -> tuple[list[dg.RunRequest], str]:
    """The run requests of one tick, and what it did in one line."""
    room = settings.sensors.max_queued_runs - instance.get_runs_count(dg.RunsFilter(statuses=WAITING))
    if room <= 0:
        return [], "held back: enough runs wait already"
    in_flight = _in_flight(instance, settings, by_id, days)
    with database.connection() as conn, conn.transaction():
        # Where there are several pools, another one plans other work, and its ticks come at the same time.
        patience = 0.0 if settings.worker.pool == DEFAULT_POOL else _PATIENCE
        if not planning.try_lock_scheduler(conn, patience):
            return [], "another scheduler is at work"
        plan, now = dispatch.read_plan(conn, settings, in_flight, tokens, by_id.keys())
        starts = group(plan.decisions)[:room]
        started = [
            replace(decision, dispatch=start.run_key(now, settings.jobs.claim_seconds))
            for start in starts
            for decision in start.decisions
        ]
        dispatch.record(conn, plan, started, settings, now, trigger=Trigger.SENSOR)
    if not starts:
        return [], dispatch.blockers_text(plan)
    if any(start.family.kind is Kind.SVN for start in starts):
        ensure_blocks(instance, database, _last_revision(starts))
    requests = [_run_request(start, now, instance, days, settings, by_id) for start in starts]
    return requests, f"{sum(len(s.decisions) for s in starts)} jobs in {len(starts)} runs"


def _last_revision(starts: Sequence[Start]) -> int:
    return max((s.window.end - 1 for s in starts if isinstance(s.window, RevisionWindow)), default=1)


def _run_request(
    start: Start,
    now: datetime,
    instance: dg.DagsterInstance,
    days: dg.DailyPartitionsDefinition,
    settings: Settings,
    by_id: Mapping[int, Repository],
) -> dg.RunRequest:
    partitions = partitions_of(start.family, instance, days)
    run_key = start.run_key(now, settings.jobs.claim_seconds)
    reason = ", ".join(sorted({d.reason for d in start.decisions}))
    repositories = [by_id[repo_id] for repo_id, _ in start.assets]
    tags = run_tags(start.mode, Trigger.SENSOR, SCHEDULER, reason, repositories)
    tags[PRIORITY_TAG] = _RUN_PRIORITY_OF_COMPLETION if start.is_completion else _RUN_PRIORITY[start.mode]
    tags[DISPATCH_TAG] = run_key
    if start.window is not None:
        # A window of time may lie in front of all partitions; one of revisions is whole blocks.
        tags |= window_tags(partitions, [start.window], exact=isinstance(start.window, TimeWindow))
    return dg.RunRequest(
        run_key=run_key,
        job_name=start.family.job_name,
        # A job without a window needs some partition to be a run of a partitioned asset: the newest one.
        partition_key=partitions.newest if start.window is None else None,
        asset_selection=[asset_key(by_id[repo_id], job_type) for repo_id, job_type in start.assets],
        asset_check_keys=[],
        tags=tags,
    )


def _in_flight(
    instance: dg.DagsterInstance,
    settings: Settings,
    by_id: Mapping[int, Repository],
    days: dg.DailyPartitionsDefinition,
) -> list[InFlight]:
    """The work of the runs that wait or work."""
    assets = {
        asset_key(repository, job_type): (repository.repo_id, job_type)
        for repository in by_id.values()
        for job_type in pools.job_types_of(settings, repository)
    }
    known = {family: partitions_of(family, instance, days) for family in Family}
    found = []
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED), limit=_MAX_RUNS_READ):
        carried: dict[JobType, set[int]] = {}
        for key in assets if run.asset_selection is None else run.asset_selection & assets.keys():
            repo_id, job_type = assets[key]
            if run.asset_selection is not None or run.job_name == FAMILY_OF[job_type].job_name:
                carried.setdefault(job_type, set()).add(repo_id)
        for job_type, repo_ids in carried.items():
            try:
                order = read_run_spec(run.tags, known[FAMILY_OF[job_type]])
            except ConfigurationError:
                continue  # it will refuse its own tags
            window = None if order.mode is Mode.INCREMENTAL else hull(order.windows)
            found.append(InFlight(frozenset(repo_ids), job_type, order.mode, window))
    return found


def _changed_results(
    database: Database, settings: Settings, by_id: Mapping[int, Repository], tokens: Credentials
) -> list[dg.AssetCheckEvaluation]:
    """Health verdicts that Dagster does not show yet, a few per tick."""
    with database.connection() as conn, conn.transaction():
        results = health.read(conn, timedelta(seconds=settings.scheduler.stale_after_seconds), tokens)
        news = [
            v
            for v in results
            if (repository := by_id.get(v.facts.repo_id)) is not None
            and v.facts.job_type in pools.job_types_of(settings, repository)
            and (v.changed or v.shown_at is None or v.evaluated_at - v.shown_at > _MAX_RESULT_AGE)
        ]
        news = _most_severe_first(news, by_id)[:_MAX_RESULTS_PER_TICK]
        for verdict in news:
            mark_reported(conn, verdict)
    return [
        dg.AssetCheckEvaluation(
            asset_key=asset_key(by_id[v.facts.repo_id], v.facts.job_type),
            **check_fields(v, by_id[v.facts.repo_id].spec),
        )
        for v in news
    ]


def _most_severe_first(
    news: Sequence[health.HealthResult], by_id: Mapping[int, Repository]
) -> list[health.HealthResult]:
    """The order of reports: verdicts that turned red, then those that turned green, then repeated ones. The
    first one of each server comes before the second one of any, so the limit of a tick hides no server."""
    before: Counter[tuple[bool, str]] = Counter()
    ranked: list[tuple[bool, int, int, health.HealthResult]] = []
    for verdict in news:
        group = verdict.health.passed or not verdict.changed, by_id[verdict.facts.repo_id].instance
        ranked.append((group[0], before[group], len(ranked), verdict))
        before[group] += 1
    return [verdict for *_, verdict in sorted(ranked, key=lambda one: one[:3])]


def _changed_fleet_results(
    database: Database, settings: Settings, tokens: Credentials, fleet: dg.AssetKey, cursor: str | None
) -> tuple[list[dg.AssetCheckEvaluation], str]:
    """The verdicts about the whole installation that differ from the last reported ones, which the cursor
    stores. Each is reported once a day anyway, in case the last report was lost.
    """
    with database.connection() as conn:
        results = fleet_results(conn, tokens, settings)
        today = database_time(conn).date().isoformat()
    try:
        known = json.loads(cursor or "{}")
    except ValueError:
        known = {}
    shown = known.get("shown", {}) if isinstance(known, dict) else {}
    now = {one.name: [today, *one.wrong] for one in results}
    changed = [one.evaluation(fleet) for one in results if shown.get(one.name) != now[one.name]]
    return changed, json.dumps({"version": 1, "shown": now})


# From a plan to runs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """One Dagster run to start. ``window`` contains the windows of all its jobs: whole blocks, or the one
    window of time that they share. It is None for live syncing and for completion.
    """

    family: Family
    instance_slug: str
    mode: Mode
    window: Window | None
    decisions: tuple[Decision, ...]

    @property
    def assets(self) -> tuple[tuple[int, JobType], ...]:
        """The (repository, job type)s that the run carries."""
        return tuple(sorted({(d.repo_id, d.job_type) for d in self.decisions}))

    @property
    def is_completion(self) -> bool:
        """True if its jobs read planned deferred fetches only."""
        return self.decisions[0].only_deferred

    def run_key(self, moment: datetime, length: float) -> str:
        """Name of this start. Dagster remembers it for ever, even for a failed run. So it contains the
        attempt, and the current period of ``length`` seconds for a run that died before it claimed anything.
        """
        asset = f"{self.family} {self.instance_slug} {self.mode} {self.window}"
        work = sorted(f"{d.repo_id} {d.job_type} {d.window} {d.job_id} {d.attempts}" for d in self.decisions)
        text = "\n".join([asset, str(int(moment.timestamp() // length)), *work])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def group(decisions: Iterable[Decision]) -> list[Start]:
    """The runs for the chosen decisions, in the order of their most urgent job."""
    groups: dict[tuple[Family, str, Mode, object], list[Decision]] = {}
    for decision in decisions:
        if decision.chosen:
            key = FAMILY_OF[decision.job_type], decision.instance_slug, decision.mode, _part(decision.window)
            groups.setdefault(key, []).append(decision)
    return [
        Start(family, instance_slug, mode, _range(members), tuple(members))
        for (family, instance_slug, mode, _), members in groups.items()
    ]


def _part(window: Window | None) -> object:
    """The part of a window that all jobs of a run share: a range of blocks, or the same window of time."""
    if isinstance(window, RevisionWindow):
        return block_of(window.first).first // (BLOCK_REVISIONS * BLOCKS_PER_RUN)
    return window


def _range(members: Sequence[Decision]) -> Window | None:
    windows = [d.window for d in members if d.window is not None]
    blocks = [
        RevisionWindow(block_of(w.first).first, block_of(w.end - 1).end)
        for w in windows
        if isinstance(w, RevisionWindow)
    ]
    return hull(blocks) or hull(windows)
