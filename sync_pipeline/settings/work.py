"""How jobs run: chunks, jobs and leases, comparisons with the source, worker pools, the reaper, retention."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sync_pipeline.settings.fields import (
    Count,
    DaysOrZero,
    Group,
    Instances,
    JobTypes,
    Names,
    Seconds,
    SecondsOrZero,
    SmallCount,
)


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
    """Days that ended pauses, edges of circuit breakers and resolved differences are kept."""
    dagster_runs_days: DaysOrZero = 30.0
    """Days that Dagster keeps a finished run, with its events."""
    dagster_ticks_days: DaysOrZero = 90.0
    """Days that Dagster keeps a tick of a sensor or schedule."""
