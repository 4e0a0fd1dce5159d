"""The groups of settings about work: when jobs start and how many at once, how they run, and what protects a
source from them."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any, Literal

from pydantic import Field, model_validator

from sync_pipeline.core.model import JobType
from sync_pipeline.settings.fields import (
    Count,
    DaysOrZero,
    Group,
    Instances,
    JobTypes,
    Names,
    Rows,
    Seconds,
    SecondsOrZero,
    Share,
    SmallCount,
)

INTERVALS_UNTIL_STALE = 2

# Requests a second to a GitLab whose rate nobody set. It has no limit by default; gitlab.com allows 33.
_START_RATE = 10.0


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


class Chunks(Group, alias_generator="chunk_{}".format):
    """Sizes of the chunks of a window."""

    revisions: Count = 1000
    """Revisions of a chunk."""
    rows: Count = 500
    """GitLab: rows of a chunk."""


class Reconcile(Group, alias_generator="sweep_{}".format):
    """Reading stored rows again, comparing them with the source, and deletions."""

    enabled: bool = True
    """False: stored rows are not reread or compared by themselves. This stops the schedules `reconcile`,
    `full_sync` and `repair_recent`, and the rolling scans of live syncing.
    """
    fingerprint_revisions: int = Field(5, ge=1, le=100, alias="fingerprint_revisions")
    """Stored revisions that every visit compares with the source."""
    recent_revisions: int = Field(100, ge=0, le=1_000_000)
    """Newest revisions that each rolling scan reads again for edited properties."""
    interval_seconds: Seconds = 3600.0
    """Shortest time between two rolling scans of a repository."""
    deletion_confirmations: SmallCount = Field(2, alias="deletion_confirmations")
    """Comparisons that find a row gone before it may become a tombstone."""
    deletion_after_seconds: SecondsOrZero = Field(21_600.0, alias="deletion_after_seconds")
    """Shortest absence of a row before it becomes a tombstone."""
    recent_days: float = Field(2.0, gt=0, le=365, alias="reconcile_recent_days")
    """Days before the watermark that the schedule `reconcile` compares every hour."""
    days: float = Field(30.0, ge=1, le=3650)
    """Days in which the schedule `reconcile` compares everything once, with all details."""
    requests: int = Field(600, ge=60, le=1_000_000)
    """Most requests per hour that the schedule `reconcile` sends to one instance."""


class Jobs(Group, alias_generator="job_{}".format):
    """Attempts at a job, and the rights to write."""

    max_attempts: SmallCount = 3
    """Attempts at a job before it is dead."""
    claim_seconds: Seconds = Field(300.0, alias="claim_seconds")
    """Length of the claim on a job."""
    claim_renew_seconds: Seconds = Field(60.0, alias="claim_renew_seconds")
    """How often the claim is renewed."""
    lease_seconds: Seconds = Field(60.0, alias="lease_seconds")
    """Length of the lease of an asset."""
    lease_renew_seconds: Seconds = Field(15.0, alias="lease_renew_seconds")
    """How often the lease is renewed."""
    max_wait_seconds: SecondsOrZero = Field(600.0, alias="max_wait_seconds")
    """Longest wait for a lease or a job that another process holds."""
    parallel_repositories: int = Field(4, ge=1, le=64, alias="parallel_repositories")
    """Repositories synced side by side in one run; each takes up to two connections to the database, the
    process two more."""


class Worker(Group, alias_generator="worker_{}".format):
    """The worker pool of this process. An empty list means all."""

    pool: str = Field("default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")
    """Name of the pool that this process belongs to."""
    instance_allowlist: Instances = ()
    """Instances that it accepts, comma-separated: host, with the port if not the default."""
    tenant_allowlist: Names = ()
    """Tenants that it accepts, comma-separated."""
    job_type_allowlist: JobTypes = ()
    """Job types that it accepts, comma-separated."""
    poll_interval: float = Field(10.0, gt=0, le=86_400)
    """Seconds between two searches of scm-sync worker for due jobs."""
    max_renew_failures: int = Field(3, ge=1, le=100)
    """Failed renewals of a claim in a row after which the worker abandons the job."""


class Reaper(Group, alias_generator="reaper_{}".format):
    """Ends abandoned work, and waiting jobs that are no longer needed."""

    enabled: bool = True
    """False: the reaper ends nothing. A starter still takes over an expired claim."""
    interval_seconds: int = Field(60, ge=1, le=86_400)
    """Time between two searches of the reaper for abandoned work."""
    job_grace_seconds: SecondsOrZero = 60.0
    """Seconds after the end of a claim before the reaper takes the job from its owner."""
    lock_grace_seconds: SecondsOrZero = 120.0
    """Seconds after the end of a lease before the reaper releases it and raises the fence."""
    run_max_seconds: Seconds = 3600.0
    """Longest time that a run without a live claim stays open, in the ledger or in Dagster."""
    policy: Literal["failed", "pending"] = "failed"
    """New state of a job whose owner is gone: failed (it waits before its next attempt) or pending (it is due
    at once)."""
    job_expire_days: DaysOrZero = Field(30.0, alias="job_expire_days")
    """Days after which an unchanged waiting job ends as dead, if no coverage is missing without it; 0 is
    never."""


class Retention(Group, alias_generator="retention_{}".format):
    """Times that records of finished work are kept; 0 is for ever."""

    jobs_days: DaysOrZero = 90.0
    """Days that finished jobs are kept, with their runs and batches."""
    events_days: DaysOrZero = 365.0
    """Days that ended pauses, edges of circuit breakers, resolved differences and read deferred fetches are
    kept."""
    dagster_runs_days: DaysOrZero = 30.0
    """Days that Dagster keeps a finished run, with its events."""
    dagster_ticks_days: DaysOrZero = 90.0
    """Days that Dagster keeps a tick of a sensor or schedule."""


# The protection of a source --------------------------------------------------------------------------------


class Breaker(Group, alias_generator="cb_{}".format):
    """Circuit breaker. A share, 0 to 1, is one of the finished runs in the window or of their requests."""

    enabled: bool = True
    """False: circuit breakers hold nothing back, and their state stays as it is."""
    failure_rate_threshold: Share = 0.3
    """Share of failed runs that opens a circuit breaker."""
    rate_limit_threshold: Share = 0.2
    """Share of requests answered with a 429 that opens it."""
    timeout_rate_threshold: Share = 0.2
    """Share of requests without an answer in time that opens it."""
    min_samples: Rows = 5
    """Runs in the window below which it stays as it is."""
    enable_smoothing: bool = True
    """Smooth the shares (exponential moving average)."""
    smoothing_alpha: float = Field(0.5, ge=0.01, le=1)
    """Weight of the newest look in the smoothed shares; 1 is no smoothing."""
    window_count: Rows = 20
    """Newest runs that are judged at most."""
    window_minutes: float = Field(30.0, gt=0, le=525_600)
    """Runs that finished longer ago are not judged."""
    open_duration_seconds: Seconds = 300.0
    """How long it is open before it is tried again."""
    half_open_max_requests: SmallCount = 3
    """Probes while half open; it opens again where they run out."""
    recovery_success_count: SmallCount = 2
    """Probes in a row that have to succeed to close it."""
    degraded_batch_size: Rows = 10
    """Rows of a page while it is not closed."""
    degraded_forward_window_seconds: Seconds = 300.0
    """First step through a list by time while it is not closed."""
    backfill_only_mode: bool = True
    """While it is open: true starts a backfill job now and then, false starts nothing."""
    backfill_interval_seconds: Seconds = 600.0
    """Seconds between two backfill jobs while it is open."""
    probe_budget_per_interval: SmallCount = 2
    """Probes that are started at once while it is half open."""
    probe_job_types_allowlist: JobTypes = (JobType.COMMITS,)
    """Job types that serve as probes; `all`."""


class Degradation(Group, alias_generator="degradation_{}".format):
    """Smaller and slower requests where a source cannot follow. It loses speed, never a row."""

    enabled: bool = True
    """False: sizes stay the usual ones, and nothing rests after time-outs."""
    min_batch_size: Rows = 10
    """Fewest rows of a page."""
    default_batch_size: Rows = 100
    """Rows of a page where nothing is degraded."""
    max_batch_size: Rows = 500
    """Most rows of a page; GitLab gives 100 at most whatever is asked."""
    batch_shrink_factor: float = Field(0.5, gt=0, lt=1)
    """By what sizes are multiplied after a refusal or time-out."""
    batch_grow_factor: float = Field(1.2, gt=1, le=10)
    """By what they are multiplied after a success."""
    min_forward_window_seconds: Seconds = 300.0
    """Shortest step through a list by time."""
    default_forward_window_seconds: Seconds = 3600.0
    """The step that shrinks and grows; at this length lists are read as one."""
    max_forward_window_seconds: Seconds = 86_400.0
    """Longest step of a degraded job through time in which something was updated."""
    rate_limit_threshold: SmallCount = 3
    """429s in a row after which details are left for later."""
    timeout_threshold: SmallCount = 3
    """Time-outs or 5xx in a row after which the run pauses."""
    content_too_large_threshold: SmallCount = 5
    """Too large answers in a row after which details are left for later."""
    base_sleep_seconds: float = Field(1.0, gt=0, le=3600)
    """First such pause; each further one is twice as long."""
    max_sleep_seconds: float = Field(300.0, gt=0, le=86_400)
    """Longest such pause, also where the server asks for more."""
    recovery_success_count: SmallCount = 5
    """Successes in a row after which nothing is degraded any more."""


class RateLimit(Group, alias_generator="gitlab_postgres_rate_limit_{}".format):
    """One bucket of each GitLab, shared by all processes that use the same database."""

    enabled: bool = True
    """Every request to a GitLab takes from a bucket that all processes share."""
    rate: float | None = Field(None, ge=0.1, le=100_000)
    """Most requests a second to one GitLab, summed over all processes. Empty: it begins with 10 and finds the
    rate that the server bears, at most 100."""
    share: float = Field(0.5, gt=0, le=1)
    """Share of a limit that the server announces that is used."""
    burst: Count = 20
    """Requests that may be sent at once after a quiet time."""
    max_wait: float = Field(60.0, ge=0, le=3600)
    """Seconds: a request that would have to wait longer is not sent; its job is tried later."""

    @property
    def start(self) -> float:
        """Requests a second at the start, before a rate is found."""
        return _START_RATE if self.rate is None else self.rate


class TenantRateLimit(Group, alias_generator="gitlab_tenant_rate_limit_{}".format):
    """One bucket of each tenant at its GitLab."""

    enabled: bool = False
    """Syncing the projects of a tenant also takes from a bucket of that tenant at its GitLab."""
    rate: float = Field(5.0, ge=0.1, le=100_000)
    """Requests a second for one tenant at one GitLab."""
    burst: Count = 10
    """Requests for one tenant that may be sent at once."""
