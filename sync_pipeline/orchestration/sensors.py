"""Sensors: the scheduler that starts what is due, and per SVN instance one that notices changes.

Belongs here: ticks. The scheduler decides by our database alone and calls no source; a changes sensor is the
only one that uses the network, for a few seconds, and starts nothing. Both write a heartbeat, because Dagster
tells nobody that a sensor fails. Names are fixed: Dagster keeps cursors and on/off switches by name.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sync_pipeline.catalog import block_of
from sync_pipeline.errors import ConfigurationError, SyncError
from sync_pipeline.model import JobRequest, JobType, Lifecycle, Mode, Repository, RevisionWindow, Trigger
from sync_pipeline.orchestration.assets import CHECK_NAME, asset_key, check_metadata, severity, show
from sync_pipeline.orchestration.jobs import JOB_OF_JOB_TYPE
from sync_pipeline.orchestration.order import (
    ACTOR_TAG,
    MODE_TAG,
    PRIORITY_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    REASON_TAG,
    TRIGGER_TAG,
    read_order,
)
from sync_pipeline.orchestration.partitions import block_key, ensure_blocks, known_blocks
from sync_pipeline.orchestration.planning import Start, group, read_plan
from sync_pipeline.policy.planning import InFlight
from sync_pipeline.quality import health
from sync_pipeline.resources import PostgresResource, SvnResource
from sync_pipeline.settings import Settings
from sync_pipeline.store import heartbeats, jobs, planning
from sync_pipeline.store.database import Database
from sync_pipeline.sync.engine import settings_hash

_log = logging.getLogger(__name__)

SCHEDULER = "scheduler"

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_WAITING = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]
_RUNS_LOOKED_AT = 500
_VERDICTS_PER_TICK = 10
# A verdict is shown again after a day, in case the one that was reported got lost.
_VERDICT_AGE = timedelta(days=1)
# Live syncing goes before history in Dagster's queue, where the larger number is first.
_RUN_PRIORITY = {Mode.INCREMENTAL: "10", Mode.PROBE: "10", Mode.REPAIR: "0", Mode.BACKFILL: "-10"}
_SHORTEST_LOOK = 0.2


def changes_name(instance_slug: str) -> str:
    """Name of the changes sensor of an instance."""
    return f"changes_{instance_slug}"


@contextmanager
def _heartbeat(database: Database, name: str) -> Iterator[Callable[[str], None]]:
    """Write the heartbeat of one tick, whatever becomes of it; the block says in one line what it did."""
    started = time.monotonic()
    said = ["nothing"]
    try:
        yield lambda line: said.append(line)
    except Exception as error:
        said.append(f"failed: {type(error).__name__}")
        raise
    finally:
        with database.connection() as conn:
            heartbeats.beat(conn, name, seconds=time.monotonic() - started, outcome=said[-1])


# The scheduler ------------------------------------------------------------------------------------------


def scheduler_sensor(
    repositories: Sequence[Repository], jobs: Sequence[UnresolvedAssetJobDefinition], settings: Settings
) -> dg.SensorDefinition:
    """The sensor that starts what is due for the repositories of this code location."""
    by_id = {r.repo_id: r for r in repositories}

    @dg.sensor(
        name=SCHEDULER,
        jobs=jobs,
        minimum_interval_seconds=settings.sensor_interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts what is due, by the ledger. Calls no source.",
    )
    def scheduler(
        context: dg.SensorEvaluationContext, settings: dg.ResourceParam[Settings], postgres: PostgresResource
    ) -> dg.SensorResult:
        with postgres.database() as database, _heartbeat(database, SCHEDULER) as say:
            requests, said = _schedule(context.instance, database, settings, by_id)
            events = _changed_verdicts(database, settings, by_id)
            said += f"; {len(events)} verdicts" if events else ""
            say(said)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else dg.SkipReason(said),
            asset_events=events,
        )

    return scheduler


def _schedule(
    instance: dg.DagsterInstance, database: Database, settings: Settings, by_id: Mapping[int, Repository]
) -> tuple[list[dg.RunRequest], str]:
    """The run requests of one tick, and what it did in one line."""
    room = settings.max_queued_runs - instance.get_runs_count(dg.RunsFilter(statuses=_WAITING))
    if room <= 0:
        return [], "held back: enough runs wait already"
    in_flight = _in_flight(instance, by_id)
    with database.connection() as conn, conn.transaction():
        if not planning.try_lock_scheduler(conn):
            return [], "another scheduler is at work"
        decisions, now = read_plan(conn, settings, in_flight)
        # A repository that was registered a moment ago is not loaded here yet.
        mine = [d for d in decisions if d.repo_id in by_id and d.job_type in JOB_OF_JOB_TYPE]
        starts = group(mine)[:room]
        for start in starts:
            for decision in start.decisions:
                if decision.job_id is None:
                    jobs.enqueue(
                        conn,
                        JobRequest(
                            repo_id=decision.repo_id,
                            job_type=decision.job_type,
                            mode=decision.mode,
                            trigger=Trigger.SENSOR,
                            actor=SCHEDULER,
                            reason=str(decision.reason),
                            priority=decision.priority,
                        ),
                        max_attempts=settings.job_max_attempts,
                        config_hash=settings_hash(settings),
                    )
    if not starts:
        return [], f"nothing is due among {len(mine)}"
    ensure_blocks(instance, database, _last_revision(starts))
    newest = known_blocks(instance)[-1]
    requests = [_run_request(start, now, newest, settings, by_id) for start in starts]
    return requests, f"{sum(len(s.decisions) for s in starts)} jobs in {len(starts)} runs"


def _last_revision(starts: Sequence[Start]) -> int:
    return max((s.blocks.end - 1 for s in starts if s.blocks is not None), default=1)


def _run_request(
    start: Start, now: datetime, newest: str, settings: Settings, by_id: Mapping[int, Repository]
) -> dg.RunRequest:
    tags = {
        MODE_TAG: str(start.mode),
        TRIGGER_TAG: str(Trigger.SENSOR),
        ACTOR_TAG: SCHEDULER,
        REASON_TAG: ", ".join(sorted({d.reason for d in start.decisions})),
        PRIORITY_TAG: _RUN_PRIORITY[start.mode],
    }
    if start.blocks is not None:
        tags[RANGE_START_TAG] = block_key(block_of(start.blocks.first))
        tags[RANGE_END_TAG] = block_key(block_of(start.blocks.end - 1))
    return dg.RunRequest(
        run_key=start.run_key(now, settings.claim_length),
        job_name=JOB_OF_JOB_TYPE[start.job_type],
        # An incremental needs some partition to be a run of a partitioned asset: the newest carries it.
        partition_key=newest if start.blocks is None else None,
        asset_selection=[asset_key(by_id[repo_id], start.job_type) for repo_id in start.repo_ids],
        asset_check_keys=[],
        tags=tags,
    )


def _in_flight(instance: dg.DagsterInstance, by_id: Mapping[int, Repository]) -> list[InFlight]:
    """What the runs that wait or work will do."""
    by_key = {asset_key(r, JobType.REVISIONS): r.repo_id for r in by_id.values()}
    known = known_blocks(instance)
    found = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED), limit=_RUNS_LOOKED_AT):
        keys = by_key if run.asset_selection is None else run.asset_selection & by_key.keys()
        if not keys or (run.asset_selection is None and run.job_name not in JOB_OF_JOB_TYPE.values()):
            continue
        try:
            order = read_order(run.tags, known)
        except ConfigurationError:
            continue  # it will refuse its own tags
        window = None
        if order.mode is not Mode.INCREMENTAL:
            window = RevisionWindow(order.windows[0].first, order.windows[-1].end)
        repo_ids = frozenset(by_key[key] for key in keys)
        found.append(InFlight(repo_ids, JobType.REVISIONS, order.mode, window))
    return found


def _changed_verdicts(
    database: Database, settings: Settings, by_id: Mapping[int, Repository]
) -> list[dg.AssetCheckEvaluation]:
    """Health verdicts that Dagster does not show yet, a few per tick."""
    with database.connection() as conn, conn.transaction():
        verdicts = health.read(conn, timedelta(seconds=settings.stale_after))
        news = [
            v
            for v in verdicts
            if v.facts.repo_id in by_id
            and v.facts.job_type in JOB_OF_JOB_TYPE
            and (v.changed or v.shown_at is None or v.judged_at - v.shown_at > _VERDICT_AGE)
        ][:_VERDICTS_PER_TICK]
        for verdict in news:
            show(conn, verdict)
    return [
        dg.AssetCheckEvaluation(
            asset_key=asset_key(by_id[v.facts.repo_id], v.facts.job_type),
            check_name=CHECK_NAME,
            passed=v.health.passed,
            severity=severity(v.health),
            metadata=check_metadata(v),
        )
        for v in news
    ]


# Changes ------------------------------------------------------------------------------------------------


def changes_sensor(
    instance_slug: str, repositories: Sequence[Repository], settings: Settings
) -> dg.SensorDefinition:
    """The sensor that looks at a few SVN repositories of an instance per tick, in turn."""
    name = changes_name(instance_slug)
    active = sorted(
        (r for r in repositories if r.lifecycle is Lifecycle.ACTIVE),
        key=lambda repository: repository.repo_id,
    )

    @dg.sensor(
        name=name,
        minimum_interval_seconds=settings.sensor_interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Looks at a few repositories in turn and writes hints. Starts nothing.",
    )
    def changes(
        context: dg.SensorEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
        svn: SvnResource,
    ) -> dg.SkipReason:
        with postgres.database() as database, _heartbeat(database, name) as say:
            last, said = _look(
                context.instance, database, settings, svn, _turn(active, _last_seen(context.cursor))
            )
            say(said)
        if last is not None:
            context.update_cursor(json.dumps({"version": 1, "last": last}))
        return dg.SkipReason(said)

    return changes


def _last_seen(cursor: str | None) -> int:
    """The repository that the tick before ended with; a cursor of another kind starts from the beginning."""
    try:
        return int(json.loads(cursor or "")["last"])
    except (ValueError, KeyError, TypeError):
        return 0


def _turn(active: Sequence[Repository], last: int) -> list[Repository]:
    """Everybody once, beginning after ``last``."""
    return [r for r in active if r.repo_id > last] + [r for r in active if r.repo_id <= last]


def _look(
    instance: dg.DagsterInstance,
    database: Database,
    settings: Settings,
    svn: SvnResource,
    turn: Sequence[Repository],
) -> tuple[int | None, str]:
    """Visit as many of ``turn`` as fit the limits; returns the last one looked at, and one line."""
    deadline = time.monotonic() + settings.changes_time_limit
    last, seen, failed, highest = None, 0, 0, 0
    for repository in turn[: settings.changes_per_tick]:
        left = deadline - time.monotonic()
        if left < _SHORTEST_LOOK and last is not None:
            break
        last = repository.repo_id
        head: int | None = None
        code: str | None = None
        line: str | None = None
        try:
            # Half of what is left: one slow repository leaves time for the next.
            head = svn.visit(repository, timeout=max(left / 2, _SHORTEST_LOOK)).head
        except SyncError as error:
            code, line = error.code, str(error)
        except Exception as error:
            _log.exception("%s cannot be looked at", repository.spec)
            code, line = "exception", type(error).__name__
        with database.connection() as conn:
            planning.record_hint(conn, repository.repo_id, head_rev=head, error_code=code, error=line)
        seen += 1
        failed += code is not None
        highest = max(highest, head or 0)
    if highest:
        ensure_blocks(instance, database, highest)
    return last, f"looked at {seen} of {len(turn)}, {failed} failed"
