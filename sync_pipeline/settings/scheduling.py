"""When jobs start and how many at once: sensors and the scheduler."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

from pydantic import Field, model_validator

from sync_pipeline.core.model import JobType
from sync_pipeline.settings.fields import Count, Group, JobTypes, Seconds, Share, SmallCount

INTERVALS_UNTIL_STALE = 2


class Sensors(Group):
    """Ticks of Dagster's sensors."""

    interval_seconds: int = Field(30, ge=1, le=86_400, alias="sensor_interval_seconds")
    """Shortest time between two ticks of a sensor."""
    max_queued_runs: Count = Field(10, alias="max_queued_runs")
    """Number of waiting Dagster runs at which the scheduler starts nothing more."""
    changes_per_tick: Count = Field(20, alias="changes_per_tick")
    """SVN repositories that one tick of the changes sensor checks."""
    changes_max_seconds: Seconds = Field(3.0, alias="changes_max_seconds")
    """Wall clock limit of one tick of the changes sensor."""


class Scheduler(Group, alias_generator="scheduler_{}".format):
    """Due times, the order in which jobs start, and pauses after failures."""

    enabled: bool = Field(True, alias="sync_enabled")
    """False: no job starts automatically; jobs of a person still run."""
    sync_interval_seconds: Seconds = Field(300.0, alias="sync_interval_seconds")
    """A repository is due when its last visit is older."""
    stale_after_seconds: Seconds = Field(3600.0, alias="stale_after_seconds")
    """The health check fails when the last complete visit is older. The value is at least twice
    sync_interval_seconds; the default rises with it."""
    max_running: Count = 100
    """Most jobs at work at once, in all processes."""
    global_concurrency: Count = 200
    """Most dispatched jobs: those at work and those that wait in a run."""
    per_instance_concurrency: Count = 100
    """Most dispatched jobs of one instance."""
    per_tenant_concurrency: Count = 100
    """Most dispatched jobs of one tenant."""
    max_enqueue_per_scan: Count = 100
    """Most jobs that one tick of the scheduler starts."""
    error_budget_threshold: Share = 0.3
    """Share of failed runs, 0 to 1, at which an asset pauses."""
    pause_duration_seconds: Seconds = 300.0
    """Length of this pause before a probe."""
    rate_limit_threshold: Share = 0.1
    """Share of runs with a response 429, 0 to 1, at which the priority is lowered."""
    backfill_repair_window_hours: float = Field(24.0, gt=0, le=87_600)
    """Length of the recent window that a repair backfill reads again."""
    max_backfill_window_hours: float = Field(8784.0, gt=0, le=87_600)
    """Longest window of a backfill job of merge requests or reviews that the scheduler starts. Of a longer
    one it starts the newest piece, and the rest stays queued. Time before the oldest fact does not count. A
    window that a person runs is read in chunks, however long it is."""
    backfill_max_concurrent_jobs: int | None = Field(
        None, ge=1, le=100_000, alias="backfill_max_concurrent_jobs"
    )
    """Most dispatched jobs of history. The limit and the default are half of scheduler_global_concurrency."""
    enable_tenant_fairness: bool = True
    """True: the tenant that waited longest is served first. False: by priority only."""
    tenant_fairness_max_per_round: SmallCount = 1
    """Jobs of one tenant before the next tenant is served."""
    mvp_mode_enabled: bool = False
    """True: only the job types of scheduler_mvp_job_type_allowlist start automatically."""
    mvp_job_type_allowlist: JobTypes = (JobType.COMMITS,)
    """Job types that start automatically in MVP mode; `all`."""
    full_sync_days: int = Field(7, ge=0, le=3650, alias="full_sync_days")
    """Latest days that are read again at 02:00 UTC (for SVN: latest blocks); 0 is off."""

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, data: dict[str, Any]) -> dict[str, Any]:
        """A longer sync_interval_seconds alone moves the default of stale_after_seconds."""
        if "stale_after_seconds" not in data:
            with suppress(TypeError, ValueError, OverflowError):
                least = INTERVALS_UNTIL_STALE * float(data.get("sync_interval_seconds", 0))
                if cls.model_fields["stale_after_seconds"].default < least < inf:
                    return {**data, "stale_after_seconds": least}
        return data
