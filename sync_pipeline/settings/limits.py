"""The protection of a source: circuit breaker, degradation, rate limits."""

from __future__ import annotations

from pydantic import Field

from sync_pipeline.core.model import JobType
from sync_pipeline.settings.fields import Count, Group, JobTypes, Rows, Seconds, Share, SmallCount


class Breaker(Group, alias_generator="cb_{}".format):
    """Circuit breaker. A share, 0 to 1, is of the finished runs in the window or of their requests."""

    enabled: bool = True
    """False: circuit breakers stop no job and keep their state."""
    failure_rate_threshold: Share = 0.3
    """Share of failed runs that opens a circuit breaker."""
    rate_limit_threshold: Share = 0.2
    """Share of requests refused with 429 that opens it."""
    timeout_rate_threshold: Share = 0.2
    """Share of requests that timed out that opens it."""
    min_samples: Rows = 5
    """Least number of runs in the window for a change of state."""
    enable_smoothing: bool = True
    """True: the shares are smoothed (exponential moving average)."""
    smoothing_alpha: float = Field(0.5, ge=0.01, le=1)
    """Weight of the newest evaluation in the smoothed shares; 1 is no smoothing."""
    window_count: Rows = 20
    """Most runs that are evaluated, the newest ones."""
    window_minutes: float = Field(30.0, gt=0, le=525_600)
    """Age of the oldest run that is evaluated."""
    open_duration_seconds: Seconds = 300.0
    """Time that it is open before the first probe."""
    half_open_max_requests: SmallCount = 3
    """Most probes while it is half open; after the last one it opens again."""
    recovery_success_count: SmallCount = 2
    """Successful probes in a row that close it."""
    degraded_batch_size: Rows = 10
    """Rows of a page while it is not closed."""
    degraded_forward_window_seconds: Seconds = 300.0
    """First step through a list by time while it is not closed."""
    backfill_only_mode: bool = True
    """While it is open: true starts single backfill jobs, false starts nothing."""
    backfill_interval_seconds: Seconds = 600.0
    """Seconds between two backfill jobs while it is open."""
    probe_budget_per_interval: SmallCount = 2
    """Probes that run at once while it is half open."""
    probe_job_types_allowlist: JobTypes = (JobType.COMMITS,)
    """Job types that serve as probes; `all`."""


class Degradation(Group, alias_generator="degradation_{}".format):
    """Smaller and slower requests to a source that is too slow. It loses speed, never a row."""

    enabled: bool = True
    """False: sizes never shrink, and runs do not pause after time-outs."""
    min_batch_size: Rows = 10
    """Fewest rows of a page."""
    default_batch_size: Rows = 100
    """Rows of a page without degradation."""
    max_batch_size: Rows = 500
    """Most rows of a page. GitLab never returns more than 100."""
    batch_shrink_factor: float = Field(0.5, gt=0, lt=1)
    """Factor of the sizes after a refusal or time-out."""
    batch_grow_factor: float = Field(1.2, gt=1, le=10)
    """Factor of the sizes after a success."""
    min_forward_window_seconds: Seconds = 300.0
    """Shortest step through a list by time."""
    default_forward_window_seconds: Seconds = 3600.0
    """Usual step; at this length a list is read without steps."""
    max_forward_window_seconds: Seconds = 86_400.0
    """Longest step of a degraded job through a period with updates."""
    rate_limit_threshold: SmallCount = 3
    """Responses 429 in a row after which details are deferred."""
    timeout_threshold: SmallCount = 3
    """Time-outs or 5xx in a row after which the run pauses."""
    content_too_large_threshold: SmallCount = 5
    """Responses in a row that are too large, after which details are deferred."""
    base_sleep_seconds: float = Field(1.0, gt=0, le=3600)
    """First such pause; each further one is twice as long."""
    max_sleep_seconds: float = Field(300.0, gt=0, le=86_400)
    """Longest such pause, even if the server requests more."""
    recovery_success_count: SmallCount = 5
    """Successes in a row that end degradation."""


class RateLimit(Group, alias_generator="gitlab_postgres_rate_limit_{}".format):
    """One bucket of each GitLab, shared by all processes that use the same database."""

    enabled: bool = True
    """Every request to a GitLab takes from a bucket that all processes share."""
    rate: float = Field(10.0, ge=0.1, le=100_000)
    """Requests per second to one GitLab, of all processes together."""
    burst: Count = 20
    """Requests that may be sent at once after an idle time."""
    max_wait: float = Field(60.0, ge=0, le=3600)
    """Longest wait of a request in seconds. A request that would wait longer is not sent, and its job is
    retried later."""


class TenantRateLimit(Group, alias_generator="gitlab_tenant_rate_limit_{}".format):
    """One bucket of each tenant at its GitLab."""

    enabled: bool = False
    """Syncing the projects of a tenant also takes from a bucket of that tenant at its GitLab."""
    rate: float = Field(5.0, ge=0.1, le=100_000)
    """Requests per second for one tenant at one GitLab."""
    burst: Count = 10
    """Requests for one tenant that may be sent at once."""
