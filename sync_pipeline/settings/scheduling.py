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
    """The scheduler starts nothing while so many Dagster runs wait."""
    changes_per_tick: Count = Field(20, alias="changes_per_tick")
    """SVN repositories that one tick of the changes sensor looks at."""
    changes_max_seconds: Seconds = Field(3.0, alias="changes_max_seconds")
    """Wall clock limit of one tick of the changes sensor."""


class Scheduler(Group, alias_generator="scheduler_{}".format):
    """Due times, the order in which jobs start, and rests after failures."""

    enabled: bool = Field(True, alias="sync_enabled")
    """False: nothing is started by itself; what a person starts still runs."""
    sync_interval_seconds: Seconds = Field(300.0, alias="sync_interval_seconds")
    """A repository is due when its last visit is older."""
    stale_after_seconds: Seconds = Field(3600.0, alias="stale_after_seconds")
    """The health check fails when freshness is older. At least twice sync_interval_seconds, which is the
    default where that is more."""
    max_running: Count = 100
    """Jobs at work at once, in all processes."""
    global_concurrency: Count = 200
    """Jobs dispatched at once: those at work and those that wait in a run."""
    per_instance_concurrency: Count = 100
    """Jobs of one instance dispatched at once."""
    per_tenant_concurrency: Count = 100
    """Jobs of one tenant dispatched at once."""
    max_enqueue_per_scan: Count = 100
    """Jobs that one tick of the scheduler may start."""
    error_budget_threshold: Share = 0.3
    """Share of failed runs, 0 to 1, from which a (repository, job type) rests."""
    pause_duration_seconds: Seconds = 300.0
    """How long it rests before it is probed."""
    rate_limit_threshold: Share = 0.1
    """Share of runs that met a 429, 0 to 1, from which the priority is lowered."""
    backfill_repair_window_hours: float = Field(24.0, gt=0, le=87_600)
    """The recent window that a repair backfill reads again."""
    max_backfill_window_hours: float = Field(8784.0, gt=0, le=87_600)
    """Longest window of a backfill job of merge requests or reviews that the scheduler starts. Of a longer
    one it starts the newest piece, and the rest stays queued. Time before the oldest fact does not count. A
    window that a person runs is read in chunks, however long it is."""
    backfill_max_concurrent_jobs: int | None = Field(
        None, ge=1, le=100_000, alias="backfill_max_concurrent_jobs"
    )
    """Jobs of history dispatched at once; at most half of scheduler_global_concurrency, which is also the
    default."""
    enable_tenant_fairness: bool = True
    """True: the tenant that waited longest is served first. False: by priority only."""
    tenant_fairness_max_per_round: SmallCount = 1
    """Jobs of one tenant before the next tenant has its turn."""
    mvp_mode_enabled: bool = False
    """True: only the job types of scheduler_mvp_job_type_allowlist start by themselves."""
    mvp_job_type_allowlist: JobTypes = (JobType.COMMITS,)
    """Job types that start by themselves where the MVP mode is on; `all`."""
    full_sync_days: int = Field(7, ge=0, le=3650, alias="full_sync_days")
    """Days before now that are read again at 02:00 UTC; of SVN so many blocks; 0 is off."""

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
