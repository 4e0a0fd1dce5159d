"""Metadata of materializations: the numbers of the asset first, then those of the run.

Belongs here: the metadata of materializations. The page plots numbers in the order of their names. So the
counters of a run begin with ``run/``, which comes after the numbers of the asset. The properties of an asset
are in :mod:`sync_pipeline.orchestration.specs`, its check in
:mod:`sync_pipeline.orchestration.health_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from sync_pipeline.core.formatting import requests_and_time
from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import JobReport, JobType, Kind, Mode, Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.facts import stored_rows
from sync_pipeline.facts.stored_rows import StoredRows
from sync_pipeline.ledger import completeness
from sync_pipeline.orchestration.health_checks import (
    CHECK_NAME,
    check_description,
    check_metadata,
    moment_or_number,
    severity,
)
from sync_pipeline.orchestration.specs import link, source_page
from sync_pipeline.reports import estimates, health
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings

RUN = "run/"
"""The prefix of the counters of a run."""

OF_EVERY_PARTITION = ("source", f"{RUN}window", f"{RUN}mode", f"{RUN}job_id", f"{RUN}sync_run_id")
"""Metadata of every partition that a job finished; only the newest partition has the rest."""

# Gaps and lag do not depend on tokens.
_NO_TOKENS = Credentials(frozenset(), {}, {})


class AssetPages:
    """The metadata of the materializations of one step.

    The rows of an asset are counted once in a step, at most :data:`stored_rows.COUNTED_ROWS` of them. The
    rows that later jobs of the step insert are added, so a backfill in many jobs does not count the same rows
    repeatedly. Rows of other runs show with the next run.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._rows: dict[tuple[int, JobType], StoredRows] = {}

    def metadata(self, repository: Repository, report: JobReport) -> Mapping[str, Any]:
        """The metadata after ``report``; call it once for each report."""
        key = repository.repo_id, report.job_type
        with self._database.connection() as conn:
            [verdict] = [
                one
                for one in health.read(conn, timedelta(), _NO_TOKENS, [repository.repo_id])
                if one.facts.job_type is report.job_type
            ]
            changed_at = stored_rows.last_change_at(conn, *key)
            deferred = {
                (one.repo_id, one.job_type): one for one in completeness.deferred(conn, [repository.repo_id])
            }
            instances = {repository.repo_id: repository.instance}
            costs = estimates.read(conn, self._settings, [verdict.facts], deferred, instances)
            if key in self._rows:
                rows = self._rows[key]
                rows = StoredRows(rows.number + report.counts.inserted, rows.is_estimate)
            else:
                rows = stored_rows.count(conn, *key)
            self._rows[key] = rows
        numbers = asset_metadata(verdict, rows, changed_at)
        if DECLARED[report.job_type].by_time:
            numbers["planned_fetches"] = deferred[key].planned if key in deferred else 0
        return {**numbers, **run_metadata(repository, report), **_level_metadata(verdict, costs.get(key))}


def check_fields(verdict: health.HealthResult, spec: str) -> dict[str, Any]:
    """A verdict of the repository ``spec`` as arguments of a check result."""
    return {
        "check_name": CHECK_NAME,
        "passed": verdict.health.passed,
        "severity": severity(verdict.health),
        "description": check_description(verdict, spec),
        "metadata": check_metadata(verdict, spec),
    }


def asset_metadata(
    verdict: health.HealthResult, rows: StoredRows, changed_at: datetime | None
) -> dict[str, Any]:
    """The numbers of the asset.

    They are the stored rows with tombstones, the gaps, and the seconds since the asset was last known to be
    covered. Gaps are uncovered windows that no job will read. Then follow the last change of the source
    (UTC) and its age, because a time has no plot.
    """
    found: dict[str, Any] = {"dagster/row_count": rows.number}
    if rows.is_estimate:
        found["row_count_is"] = f"an estimate; over {stored_rows.COUNTED_ROWS:,} rows are not counted"
    found["gaps"] = len(verdict.facts.gap)
    if verdict.lag_seconds is not None:
        found["lag_seconds"] = verdict.lag_seconds
    if changed_at is not None:
        found["last_change"] = dg.MetadataValue.timestamp(changed_at)
        age = (verdict.evaluated_at - changed_at).total_seconds()
        found["last_change_age_seconds"] = max(0.0, round(age, 3))
    return found


def _level_metadata(verdict: health.HealthResult, costs: estimates.LevelCosts | None) -> dict[str, Any]:
    """The level of what is covered, and what is left until each level, in words."""
    found: dict[str, Any] = {}
    if verdict.facts.level is not None:
        found["level"] = str(verdict.facts.level)
    if costs is not None:
        for name, cost in (("until_usable", costs.usable), ("until_complete", costs.complete)):
            found[name] = requests_and_time(cost.requests, cost.seconds) if cost.requests else "nothing"
    return found


def run_metadata(repository: Repository, report: JobReport) -> dict[str, Any]:
    """The requests and counters of the job behind a materialization."""
    svn = repository.kind is Kind.SVN
    window = f"from the watermark to {'HEAD' if svn else 'now'}"
    if report.window is not None:
        window = str(report.window)
    elif report.mode is Mode.REPAIR:
        window = "planned fetches"
    run: dict[str, Any] = {
        "mode": str(report.mode),
        "window": window,
        "rows_read": report.counts.read,
        "inserted": report.counts.inserted,
        "updated": report.counts.updated,
        "unchanged": report.counts.unchanged,
        "poorer": report.counts.regressed,
        "quarantined": report.counts.quarantined,
        "batches": report.batches,
        "seconds": round(report.seconds, 3),
        "waited_seconds": round(report.waited_seconds, 3),
        "request_wait_seconds": round(report.traffic.waited, 3),
        "rate_limited": report.traffic.rate_limited,
        "timeouts": report.traffic.timeouts,
    }
    if svn:
        run["beyond_head"] = report.beyond_head
    if report.head is not None:
        run["head"] = report.head
    for name, mark in (
        ("watermark_before", report.watermark_before),
        ("watermark_after", report.watermark_after),
    ):
        if mark is not None:
            run[name] = moment_or_number(mark)
    run["job_id"], run["sync_run_id"] = str(report.job_id), str(report.run_id)
    return {
        "requests": report.calls,
        "source": link(source_page(repository, report.job_type)),
        **{f"{RUN}{name}": value for name, value in run.items()},
    }
