"""Runs and their batches as a person looks at them, and the replay of one of them.

Belongs here: the documents of ``scm-sync admin runs``, and which windows a replay reads. Does not belong
here: executing it (``orchestration.run``), and jobs before and after their runs
(:mod:`sync_pipeline.admin.jobs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.core import catalog
from sync_pipeline.core.documents.common import from_row, row_counts
from sync_pipeline.core.documents.ledger import Batch, BatchStatus, Run, RunList, ShownRun
from sync_pipeline.core.documents.runner import Replay as ReplayDocument
from sync_pipeline.core.documents.runner import ReplayBase, ReplayJob
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.exit_codes import SUCCESS
from sync_pipeline.core.formatting import counted, plain_window, some, window_range
from sync_pipeline.core.model import (
    BEGINNING,
    Counts,
    JobReport,
    JobType,
    Level,
    Mode,
    Repository,
    RevisionWindow,
    RunStatus,
    TimeWindow,
    Window,
)
from sync_pipeline.core.windows import merged, overlap
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.database.ranges import from_ranges
from sync_pipeline.ledger import repos, runs
from sync_pipeline.ledger.runs import BatchRow
from sync_pipeline.reports.runner import exit_code, outcome_of, outcome_of_all

_LIST = "see `scm-sync admin runs list`"
_NAMED = 5


# Showing ------------------------------------------------------------------------------------------------


def listing(database: Database, *, repo_id: int | None, job_type: JobType | None, limit: int) -> RunList:
    """The newest runs, all or those of a repository and a job type."""
    with database.connection() as conn:
        rows = runs.listed(conn, repo_id=repo_id, job_type=job_type, limit=limit)
        found = {repo.repo_id: repo for repo in repos.list_all(conn)}
    return {"runs": [_run_document(row, found[row["repo_id"]]) for row in rows]}


def show(database: Database, run_id: UUID, limit: int) -> ShownRun:
    """One run with the first ``limit`` of its batches. Raises ConfigurationError if there is none."""
    with database.connection() as conn:
        row = _run(conn, run_id)
        repository = repos.get(conn, row["repo_id"])
        found = runs.batches(conn, [run_id], limit)
    return {
        **_run_document(row, repository),
        "more": row["batches"] - len(found),
        "batches": [batch_document(one) for one in found],
    }


def batch_document(batch: BatchRow) -> Batch:
    """A batch with where it was read and what became of its rows."""
    return from_row(
        Batch,
        batch,
        **row_counts(batch.counts),
        batch_no=batch.number,
        status=_status(batch.counts),
        window=plain_window(batch.window),
        covered=plain_window(batch.covered),
        replay=[window_range(window) for window in batch.read],
        seconds=None if batch.seconds is None else round(batch.seconds, 3),
    )


def _status(counts: Counts) -> BatchStatus:
    """The results for the rows of a batch, the most important one first."""
    if counts.quarantined:
        return "quarantined"
    if counts.changed:
        return "changed"
    return "unchanged" if counts.read else "empty"


def _run_document(row: Mapping[str, Any], repository: Repository) -> Run:
    return from_row(
        Run,
        row,
        poorer=row["regressed"],
        repo=repository.spec,
        path=repository.project_path or repository.url,
        job=row["job_type"],
        window=plain_window(from_ranges(row["revs"], row["period"])),
        batch_count=row["batches"],
        level=_level(row),
        seconds=round(row["seconds"], 3),
    )


def _level(row: Mapping[str, Any]) -> Level | None:
    """The level of what a run stored, as of now."""
    is_reading = row["mode"] != Mode.PROBE and not row["from_raw"]
    if not is_reading or row["status"] == RunStatus.RUNNING or not row["rows_read"]:
        return None
    return Level.USABLE if row["has_deferred"] else Level.COMPLETE


# Replay -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replay:
    """The plan to read a run or one of its batches again. ``windows`` are a job each, ``before`` are the rows
    of the first read.
    """

    repository: Repository
    job_type: JobType
    run_id: UUID
    batch_id: int | None
    windows: tuple[Window, ...]
    before: Counts
    actor: str
    reason: str


def plan_replay(
    database: Database, *, run_id: UUID | None = None, batch_id: int | None = None, actor: str, reason: str
) -> Replay:
    """The windows to read a run, or a batch, again: exactly those that were read then.

    For revisions they are the numbers. For merge requests and reviews they are the update times of the list;
    for single ones the second of the last update. For commits they are the range of commit times of a page.

    Raises ConfigurationError if the run is unknown, was removed, still runs, or stored nothing that a source
    has. It also does so for a retired repository, and without a ``reason``.
    """
    if not reason.strip():
        raise ConfigurationError("--reason is empty; say why, the next one who looks will ask")
    if (run_id is None) == (batch_id is None):
        raise ConfigurationError("name a run, or a batch with --batch; one of the two")
    with database.connection() as conn:
        now = database_time(conn)
        if batch_id is not None:
            batch = runs.batch(conn, batch_id)
            if batch is None:
                raise _unknown(conn, None, batch_id)
            batches = [batch]
            run_id = batch.run_id
        assert run_id is not None
        row = _run(conn, run_id)
        repository = repos.get(conn, row["repo_id"])
        if batch_id is None:
            batches = runs.batches(conn, [run_id])
    catalog.require_active(repository)
    found = Replay(
        repository=repository,
        job_type=JobType(row["job_type"]),
        run_id=run_id,
        batch_id=batch_id,
        windows=tuple(_askable(now, merged(window for one in batches for window in one.read))),
        before=sum((one.counts for one in batches), Counts()),
        actor=actor,
        reason=f"replay of {_name(run_id, batch_id)}: {' '.join(reason.split())}",
    )
    if (why := _nothing_to_read(found, row, batches)) is not None:
        raise ConfigurationError(f"{_name(run_id, batch_id)} {why}")
    return found


def _askable(now: datetime, windows: Sequence[Window]) -> Iterator[Window]:
    """The windows, a job each: revisions in blocks, time as far as a source can be asked for it. Some rows
    have a date in the future.
    """
    for window in windows:
        if isinstance(window, RevisionWindow):
            yield from catalog.blocks(window)
        elif (part := overlap(window, TimeWindow(BEGINNING, now))) is not None:
            yield part


def _nothing_to_read(replay: Replay, row: Mapping[str, Any], batches: Sequence[BatchRow]) -> str | None:
    """Why there is nothing to read again; None where there is."""
    if row["status"] == "running":
        return "is still at work; replay it when it has ended"
    if row["mode"] == Mode.PROBE:
        return f"compared and stored no facts; run: scm-sync reconcile --repo {replay.repository.spec}"
    if row["from_raw"]:
        return f"asked no source; run: scm-sync repair remap --repo {replay.repository.spec}"
    if replay.windows:
        return None
    if not batches:
        return "wrote nothing; name one that did, " + _LIST
    if replay.before.read and all(one.position is None for one in batches):
        return "is of an earlier version, which did not store where it read; name a later one, " + _LIST
    if replay.batch_id is not None:
        return f"holds no rows that a window finds; run: scm-sync admin runs replay {replay.run_id}"
    return "stored no rows that a window finds; name one that did, " + _LIST


def replay_document(replay: Replay, reports: Sequence[JobReport] | None) -> ReplayDocument:
    """The document of a replay; without ``reports`` of what it would do."""
    document: ReplayBase = {
        "run_id": replay.run_id,
        "batch_id": replay.batch_id,
        "repo": replay.repository.spec,
        "job": replay.job_type,
        "actor": replay.actor,
        "reason": replay.reason,
        "windows": [window_range(window) for window in replay.windows],
        "before": row_counts(replay.before),
    }
    if reports is None:
        return {**document, "dry_run": True, "exit_code": SUCCESS}
    done = {report.window for report in reports}
    not_tried = [window for window in replay.windows if window not in done]
    outcome = outcome_of_all([outcome_of(report) for report in reports])
    counts = sum((report.counts for report in reports), Counts())
    errors = [report.error for report in reports if report.error]
    return {
        **document,
        "dry_run": False,
        "status": outcome.value,
        **row_counts(counts),
        "calls": sum(report.calls for report in reports),
        "error": errors[0] if errors else None,
        "jobs": [
            from_row(
                ReplayJob,
                report,
                **row_counts(report.counts),
                window=plain_window(report.window),
                status=outcome_of(report).value,
                seconds=round(report.seconds, 3),
            )
            for report in reports
        ],
        "not_tried": [window_range(window) for window in not_tried],
        "exit_code": exit_code(outcome),
    }


def replay_line(document: Mapping[str, Any]) -> str:
    """A replay in one line for people."""
    name = _name(document["run_id"], document["batch_id"])
    where = counted(len(document["windows"]), "window")
    if document["dry_run"]:
        return f"would read {where} of {document['repo']} {document['job']} again, as {name} did"
    rows = f"{counted(document['rows_read'], 'row')} read ({document['before']['rows_read']:,} by {name})"
    changed = f"{document['inserted']:,} inserted, {document['updated']:,} updated"
    return f"replay of {name}: {document['status']}, {where}; {rows}, {changed}"


def _name(run_id: UUID | None, batch_id: int | None) -> str:
    return f"run {run_id}" if batch_id is None else f"batch {batch_id}"


def _run(conn: Connection, run_id: UUID) -> dict[str, Any]:
    rows = runs.listed(conn, run_id=run_id)
    if not rows:
        raise _unknown(conn, run_id, None)
    return rows[0]


def _unknown(conn: Connection, run_id: UUID | None, batch_id: int | None) -> ConfigurationError:
    name = _name(run_id, batch_id)
    if runs.was_there(conn, run_id=run_id, batch_id=batch_id):
        return ConfigurationError(
            f"the records of {name} are removed (docs/retention.md); materialize its partitions in the UI to "
            "read them again"
        )
    if run_id is not None:
        ours = runs.listed(conn, dagster_run_id=str(run_id), limit=_NAMED)
        if ours:
            names = some(str(row["run_id"]) for row in ours)
            return ConfigurationError(f"{run_id} is a run of Dagster; its runs of the ledger are: {names}")
    return ConfigurationError(f"there is no {name}; {_LIST}")
