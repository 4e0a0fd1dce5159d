"""The protection of a source: circuit breaker, degradation, rate limits."""

from __future__ import annotations

from pydantic import Field

from sync_pipeline.core.model import JobType
from sync_pipeline.settings.fields import Count, Group, JobTypes, Rows, Seconds, Share, SmallCount


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
    rate: float = Field(10.0, ge=0.1, le=100_000)
    """Requests a second to one GitLab, summed over all processes."""
    burst: Count = 20
    """Requests that may be sent at once after a quiet time."""
    max_wait: float = Field(60.0, ge=0, le=3600)
    """Seconds: a request that would have to wait longer is not sent; its job is tried later."""


class TenantRateLimit(Group, alias_generator="gitlab_tenant_rate_limit_{}".format):
    """One bucket of each tenant at its GitLab."""

    enabled: bool = False
    """Syncing the projects of a tenant also takes from a bucket of that tenant at its GitLab."""
    rate: float = Field(5.0, ge=0.1, le=100_000)
    """Requests a second for one tenant at one GitLab."""
    burst: Count = 10
    """Requests for one tenant that may be sent at once."""
