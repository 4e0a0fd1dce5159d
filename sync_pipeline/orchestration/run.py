"""The runner's way: the asset job, executed in this process on the same Dagster instance.

Belongs here: narrowing the definitions to what is asked for, and carrying the reports out of the run. The run
shows in the UI like any other; it goes round Dagster's queue, not round our jobs and leases.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from uuid import uuid4

import dagster as dg

from sync_pipeline.core.catalog import CatalogSnapshot
from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.job_types import by_family
from sync_pipeline.core.model import Counts, JobReport, JobType, Kind, Mode, RevisionWindow, Trigger, Window
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import repos
from sync_pipeline.orchestration.assets import console_at
from sync_pipeline.orchestration.build import build_defs
from sync_pipeline.orchestration.dagster_internals import RunFailureReason
from sync_pipeline.orchestration.failures import REFUSED
from sync_pipeline.orchestration.instance import dagster_environment, quiet_dagster
from sync_pipeline.orchestration.partitions import day_partitions, ensure_blocks, first_day, partitions_of
from sync_pipeline.orchestration.processes import (
    Process,
    end_lost_run,
    process_of,
    signature,
)
from sync_pipeline.orchestration.run_spec import (
    PARTITION_TAG,
    PROCESS_TAG,
    TRIGGER_TAG,
    UPDATE_WATERMARK_TAG,
    names_of,
    run_tags,
    window_tags,
)
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.orchestration.step import Observer
from sync_pipeline.orchestration.storage import explained_storage
from sync_pipeline.scheduling import pools
from sync_pipeline.settings import Settings


def execute(
    settings: Settings,
    *,
    repo_ids: Sequence[int],
    job_types: Sequence[JobType],
    mode: Mode,
    windows: Sequence[Window] | None = None,
    trigger: Trigger = Trigger.RUNNER,
    actor: str,
    reason: str,
    update_watermark: bool = False,
    on_counts: Callable[[Mapping[JobType, Counts]], None] = lambda _: None,
    on_report: Callable[[JobReport], None] = lambda _: None,
) -> list[JobReport]:
    """Sync these job types, all of one family, of these repositories. Returns the result of each job, in the
    order of their ends.

    ``windows`` of revisions are cut at the edges of blocks, a job each; those of time are a job each. None
    means an incremental. ``on_counts`` gets the counts over everything so far, from several threads.
    ``on_report`` gets each report at once, so that an interruption loses none.

    Raises ConfigurationError before anything is touched, SyncError if no job could be made, Cancelled after
    an interruption.
    """
    [(family, job_types)] = by_family(tuple(job_types))
    reports: list[JobReport] = []

    def ended(report: JobReport) -> None:
        reports.append(report)
        on_report(report)

    with (
        explained_storage(),
        dagster_environment(settings) as variables,
        quiet_dagster(),
        Database(variables["SCM_DATABASE_URL"], max_size=2) as database,
        dg.DagsterInstance.get() as instance,
    ):
        with database.connection() as conn:
            chosen = tuple(repos.get(conn, repo_id) for repo_id in repo_ids)
            snapshot = CatalogSnapshot(
                chosen, history_start=repos.history_start(conn, settings.gitlab.history_floor)
            )
        if family.kind is Kind.SVN:
            revisions = [w for w in windows or () if isinstance(w, RevisionWindow)]
            ensure_blocks(instance, database, max((w.end - 1 for w in revisions), default=1))
        known = partitions_of(family, instance, day_partitions(first_day(snapshot, settings)))
        observer = Observer(_total(on_counts), ended)
        defs = build_defs(
            # A repository that a person named is read, also if the pool of this shell does not take it.
            settings=pools.unrestricted(settings),
            snapshot=snapshot,
            only="",
            resource_overrides={"observer": dg.ResourceDefinition.hardcoded_resource(observer)},
        )
        run_id = str(uuid4())
        carried = window_tags(known, windows, exact=True) if windows else {PARTITION_TAG: known.newest}
        tags = {
            **run_tags(mode, trigger, actor, reason, chosen),
            UPDATE_WATERMARK_TAG: "true" if update_watermark else "false",
            PROCESS_TAG: signature(run_id),
            **carried,
        }
        _close_lost_runs(instance)
        job = defs.resolve_job_def(family.job_name)
        try:
            # The caller shows progress and result, and the run keeps its log. Dagster prints some lines
            # without its loggers.
            with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
                result = job.execute_in_process(
                    instance=instance,
                    run_id=run_id,
                    tags=tags,
                    asset_selection=[asset_key(r, job_type) for r in chosen for job_type in job_types],
                    run_config=console_at("CRITICAL"),
                    raise_on_error=False,
                )
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
            raise _stopped() from None
    if not result.success:
        if any(_was_interrupted(event) for event in result.all_events):
            raise _stopped()
        if all(report.succeeded for report in reports):
            # Failures have no report, so the reports alone would look like success.
            raise _failure(result)
    return reports


def _close_lost_runs(instance: dg.DagsterInstance) -> None:
    """End runs of runners that were killed; without this they stay STARTED in Dagster."""
    for name in names_of(TRIGGER_TAG):
        started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags={name: str(Trigger.RUNNER)})
        for run in instance.get_runs(started, limit=100):
            if process_of(run) is Process.GONE:
                end_lost_run(instance, run.run_id, "the process of this run is gone")


def _total(
    on_counts: Callable[[Mapping[JobType, Counts]], None],
) -> Callable[[int, JobType, Window | None, Counts], None]:
    """Each job reports its own counts so far; the caller wants the sums."""
    lock = threading.Lock()
    jobs: dict[tuple[object, ...], Counts] = {}
    total: dict[JobType, Counts] = {}

    def add(repo_id: int, job_type: JobType, window: Window | None, counts: Counts) -> None:
        with lock:
            jobs[repo_id, job_type, window] = counts
            total[job_type] = sum((c for key, c in jobs.items() if key[1] is job_type), Counts())
            on_counts(dict(total))

    return add


def _stopped() -> Cancelled:
    return Cancelled("stopped between two batches; what was committed stays")


def _was_interrupted(event: dg.DagsterEvent) -> bool:
    return (
        event.is_job_failure
        and event.job_failure_data.failure_reason is RunFailureReason.UNEXPECTED_TERMINATION
    )


def _failure(result: dg.ExecuteInProcessResult) -> SyncError:
    """Why a run failed: the one line of the step's failure."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            failure = data.user_failure_data
            if failure is not None and failure.description:
                begun = REFUSED not in failure.metadata
                return SyncError(failure.description) if begun else ConfigurationError(failure.description)
            if data.error is not None:
                cause = data.error.cause or data.error
                return SyncError(cause.message.strip().splitlines()[-1])
    return SyncError(f"the Dagster run {result.run_id} failed before it began; look at it in the UI")
