"""Attempts whose owners are gone, ended as the policy decides.

Belongs here: the step from rows of the ledger to :mod:`sync_pipeline.policy.reaping` and back. The reaper
does this for all jobs, after a grace period. Starting a job does it at once for the other jobs of that asset,
because the same window may never be requested again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sync_pipeline.core.model import JobStatus, JobType
from sync_pipeline.database.pool import Connection, database_time
from sync_pipeline.database.rows import read_row
from sync_pipeline.ledger import jobs, reaping
from sync_pipeline.policy.reaping import Ending, Rules, RunningJob, RunState, evaluate_running
from sync_pipeline.sync.worker import is_gone

_log = logging.getLogger(__name__)

# This asset is worked on now, so waiting before the next attempt gains nothing.
_AT_ONCE = Rules(
    job_grace=timedelta(),
    lease_grace=timedelta(),
    run_max=timedelta(),
    retry_as=JobStatus.PENDING,
    expire_after=None,
)


def end(conn: Connection, row: Mapping[str, Any], ending: Ending, *, process_gone: bool) -> bool:
    """End the attempt of ``row`` as ``ending`` says; False if the job has an owner again. See
    :func:`sync_pipeline.ledger.jobs.end_lost`."""
    return jobs.end_lost(
        conn,
        row["job_id"],
        row["token"],
        status=ending.status,
        error_code=ending.code,
        error=ending.error,
        backoff=ending.backoff,
        process_gone=process_gone,
    )


def expire_abandoned_jobs(conn: Connection, repo_id: int, job_type: JobType) -> None:
    """End the jobs of one asset that dead workers left running, whatever their window, and log it."""
    now = database_time(conn)
    for row in reaping.running_jobs(conn, repo_id, job_type):
        gone = is_gone(row["claimed_process"])
        job = read_row(RunningJob, row, process_gone=gone, dagster=RunState.UNKNOWN)
        ending = evaluate_running(job, now, _AT_ONCE)
        if ending is not None and end(conn, row, ending, process_gone=gone):
            _log.warning(
                "%s, who worked on a job of %s, is gone; the job is %s now",
                row["claimed_by"],
                row["slug"],
                ending.status,
            )
