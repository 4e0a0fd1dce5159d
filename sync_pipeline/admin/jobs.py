"""Jobs as a person handles them: what waits, runs or died and why, tried again, given up, or taken from a
worker that hangs.

Belongs here: which job may be handled how, and the documents of ``scm-sync admin jobs``. Does not belong
here: what the reaper does by itself (:mod:`sync_pipeline.scheduling.reaper`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sync_pipeline.core.documents.common import from_row
from sync_pipeline.core.documents.ledger import (
    ActionName,
    Attempt,
    HandledJob,
    Job,
    JobAction,
    JobEvent,
    JobList,
    JobSettings,
    ShownJob,
)
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.exit_codes import PARTIAL, SUCCESS
from sync_pipeline.core.formatting import age, counted, given_reason, plain_window, some
from sync_pipeline.core.model import JobStatus, Repository
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.ranges import from_ranges
from sync_pipeline.ledger import configurations, repos
from sync_pipeline.ledger import job_actions as store
from sync_pipeline.ledger.job_actions import By, Filters
from sync_pipeline.sync import configuration

MAX_JOBS = 10_000
"""Jobs that one command handles."""

WAITING = (JobStatus.PENDING, JobStatus.FAILED)
_RELEASE_TRIES = 30
_RELEASE_PAUSE = 0.1


def listing(database: Database, filters: Filters, limit: int) -> JobList:
    """The jobs of ``filters`` and how many there are of each status, up to ``MAX_JOBS``. Raises
    ConfigurationError for an unknown server or tenant."""
    with database.connection() as conn:
        rows = store.listed(conn, filters, MAX_JOBS)
        repositories = _repositories(conn, filters)
    counts = Counter(str(row["status"]) for row in rows)
    oldest = {row["status"]: row["age"] for row in sorted(rows, key=lambda r: float(r["age"]))}
    return {
        "counts": dict(counts),
        "oldest_seconds": {status: round(seconds, 1) for status, seconds in oldest.items()},
        "more": max(0, len(rows) - limit),
        "jobs": [_document(row, repositories) for row in rows[:limit]],
    }


def summary(document: Mapping[str, Any]) -> str:
    """A listing in one line."""
    words = [
        f"{number:,} {status} ({'longest' if status == 'running' else 'oldest'} "
        f"{age(document['oldest_seconds'][status])})"
        for status, number in document["counts"].items()
    ]
    return ", ".join(words) or "no job waits, runs or is dead"


def show(database: Database, job_id: UUID) -> ShownJob:
    """One job, why it was started, its settings, attempts and events. Raises ConfigurationError if there is
    none."""
    with database.connection() as conn:
        row = _found(conn, Filters(job_ids=[job_id]))[0]
        return {
            **_document(row, _repositories(conn, Filters())),
            "decision": row["decision"],
            "configuration": _configuration(conn, row["config_hash"]),
            "history": [from_row(Attempt, one) for one in store.attempts(conn, job_id)],
            "events": [from_row(JobEvent, one) for one in store.events(conn, job_id)],
        }


def _configuration(conn: Connection, config_hash: str | None) -> JobSettings | None:
    """The settings of the latest attempt, or those that the job was made with; None if unknown. There are no
    settings if an earlier version stored only the hash.
    """
    if not config_hash:
        return None
    settings = configurations.get(conn, config_hash)
    return {
        "hash": config_hash,
        "settings": settings,
        "changed": None if settings is None else configuration.changed(settings),
    }


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a person does to jobs: those of which statuses, and how one is done, which returns "" or
    why not."""

    name: ActionName
    done: str
    statuses: Sequence[JobStatus]
    execute: Callable[[Connection, Mapping[str, Any], By, int], str]


def _reset(conn: Connection, row: Mapping[str, Any], by: By, attempts: int) -> str:
    if row["retired"]:
        return "its repository is retired"
    if row["one_off"]:
        return "only whoever asked for it can take it up; ask for it again"
    return store.reset(conn, row["job_id"], row["updated_at"], JobStatus(row["status"]), by, attempts)


def _drop(conn: Connection, row: Mapping[str, Any], by: By, attempts: int) -> str:
    return store.drop(conn, row["job_id"], row["updated_at"], JobStatus(row["status"]), by)


def _release(conn: Connection, row: Mapping[str, Any], by: By, attempts: int) -> str:
    for _ in range(_RELEASE_TRIES):
        if store.release(conn, row["job_id"], row["claim_token"], by):
            return ""
        now = store.listed(conn, Filters(job_ids=[row["job_id"]], everything=True), 1)
        if not now or now[0]["claim_token"] != row["claim_token"]:
            return "it changed meanwhile"
        # Its owner was in the middle of a batch, which is being ended.
        time.sleep(_RELEASE_PAUSE)
    return "its owner is in the middle of a batch that does not end; try again"


RESET = Action("reset", "is tried again", (JobStatus.DEAD, JobStatus.FAILED), _reset)
DROP = Action("drop", "is given up", WAITING, _drop)
RELEASE = Action("release", "waits again", (JobStatus.RUNNING,), _release)


def handle(
    database: Database, action: Action, filters: Filters, by: By, *, attempts: int, dry_run: bool = False
) -> JobAction:
    """Do ``action`` to the jobs of ``filters``, or to those that are named; ``attempts`` is how often a reset
    one is tried. Raises ConfigurationError for a job, server or tenant that is not there, and where ``by``
    has no reason."""
    by = replace(by, reason=given_reason(by.reason))
    with database.connection() as conn:
        if filters.job_ids is None:
            rows = store.listed(conn, replace(filters, statuses=action.statuses), MAX_JOBS)
        else:
            rows = _found(conn, filters)
        repositories = _repositories(conn, filters)
        handled: list[HandledJob] = []
        for row in rows:
            if row["status"] not in action.statuses:
                why = f"it is {row['status']}; {action.name} is for {' and '.join(action.statuses)} jobs"
            else:
                why = "" if dry_run else action.execute(conn, row, by, attempts)
            handled.append({**_document(row, repositories), "done": not why, "why_not": why or None})
    done = [one for one in handled if one["done"]]
    return {
        "action": action.name,
        "dry_run": dry_run,
        "done": len(done),
        "left": len(handled) - len(done),
        "missing": sum(one["missing"] for one in done) if action is DROP else 0,
        "jobs": handled,
        "exit_code": PARTIAL if len(done) < len(handled) else SUCCESS,
    }


def handled(document: Mapping[str, Any]) -> str:
    """The action on the jobs, in one line."""
    if not document["jobs"]:
        return "no such job"
    words = f"{document['action']}: {counted(document['done'], 'job')}"
    if document["dry_run"]:
        words = f"would {words}"
    if document["left"]:
        words += f", {counted(document['left'], 'other')} not"
    if document["missing"]:
        words += (
            f"; what {counted(document['missing'], 'job')} had to read stays missing: `scm-sync status` "
            "shows the gaps, `scm-sync runner backfill` reads them"
        )
    return words


def _found(conn: Connection, filters: Filters) -> list[dict[str, Any]]:
    """The jobs that are named, in the order of their names."""
    assert filters.job_ids is not None
    rows = {row["job_id"]: row for row in store.listed(conn, replace(filters, everything=True), MAX_JOBS)}
    for job_id in filters.job_ids:
        if job_id not in rows:
            raise ConfigurationError(f"there is no job {job_id}; see `scm-sync admin jobs list`")
    return [rows[job_id] for job_id in dict.fromkeys(filters.job_ids)]


def _repositories(conn: Connection, filters: Filters) -> dict[int, Repository]:
    """All repositories by their ``repo_id``. Raises ConfigurationError where none is at the server, or of the
    tenant, of ``filters``."""
    found = repos.list_all(conn)
    for option, wanted, known in (
        ("--instance", filters.instance, {repo.instance for repo in found}),
        ("--tenant", filters.tenant, {repo.tenant for repo in found}),
    ):
        if wanted is not None and wanted not in known:
            raise ConfigurationError(f"{option}: no repository is of {wanted}; there are {some(known)}")
    return {repo.repo_id: repo for repo in found}


def _document(row: Mapping[str, Any], repositories: Mapping[int, Repository]) -> Job:
    repository = repositories[row["repo_id"]]
    is_running = row["status"] == JobStatus.RUNNING
    return from_row(
        Job,
        row,
        planned_at=row["dispatched_at"],
        repo=repository.spec,
        path=repository.project_path or repository.url,
        job=row["job_type"],
        window=plain_window(from_ranges(row["revs"], row["period"])),
        age_seconds=round(row["age"], 1),
        worker=row["claimed_by"] if is_running else None,
        claimed_at=row["claimed_at"] if is_running else None,
        error_code=row["last_error_code"],
        error=row["last_error"],
    )
