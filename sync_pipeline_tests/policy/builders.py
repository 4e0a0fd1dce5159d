"""Units, jobs and runs for the tests of the policy, and the limits they are judged by.

Belongs here: what several modules of tests build, at one fixed moment.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sync_pipeline.core.model import Access, JobStatus, JobType, Lifecycle, Mode, RevisionWindow, RunStatus
from sync_pipeline.policy.breaker import BreakerLimits
from sync_pipeline.policy.degradation import DegradationLimits
from sync_pipeline.policy.samples import Sample
from sync_pipeline.policy.snapshot import AssetState, Caps, Job, PlanningLimits

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
LIMITS = PlanningLimits(
    sync_interval=timedelta(minutes=5),
    quiet_interval=timedelta(minutes=30),
    reprobe_interval=timedelta(hours=1),
    caps=Caps(running=1000, queued=1000, per_scan=100, per_instance=1000, per_tenant=1000),
    error_budget=0.3,
    budget_pause=timedelta(minutes=5),
    slow_down=0.1,
    fair=True,
    per_round=1,
    breaker=BreakerLimits(
        failure_rate_threshold=0.3,
        rate_limit_threshold=0.2,
        timeout_rate_threshold=0.2,
        min_samples=5,
        alpha=0.5,
        window_count=20,
        window=timedelta(minutes=30),
        open_for=timedelta(minutes=5),
        half_open_max_requests=3,
        recovery_success_count=2,
    ),
    degradation=DegradationLimits(
        min_batch_size=10,
        default_batch_size=100,
        max_batch_size=500,
        batch_shrink_factor=0.5,
        batch_grow_factor=1.2,
        min_forward_window_seconds=300,
        default_forward_window_seconds=3600,
        max_forward_window_seconds=86_400,
        rate_limit_threshold=3,
        timeout_threshold=3,
        content_too_large_threshold=5,
        base_sleep_seconds=1,
        max_sleep_seconds=300,
        recovery_success_count=5,
    ),
    open_backfill=timedelta(minutes=10),
    probes_per_scan=2,
    probe_job_types=frozenset(),
    degraded_batch=10,
    degraded_window=300,
)
BLOCK = RevisionWindow(1, 1001)


def ago(**length: float) -> datetime:
    return NOW - timedelta(**length)


def asset(repo_id: int = 1, **changes: Any) -> AssetState:
    settled = AssetState(
        repo_id=repo_id,
        job_type=JobType.REVISIONS,
        instance="local",
        instance_slug="local",
        lifecycle=Lifecycle.ACTIVE,
        access=Access.OK,
        visited_at=ago(minutes=1),
        watermark=11,
        head=10,
        hint_head=None,
        hint_at=None,
        hint_failed=False,
        dead_at=None,
    )
    return replace(settled, **changes)


def project(repo_id: int = 1, job_type: JobType = JobType.COMMITS, **changes: Any) -> AssetState:
    """A GitLab unit that was complete a minute ago."""
    settled: dict[str, Any] = {
        "job_type": job_type,
        "instance": "gitlab.example",
        "instance_slug": "gitlab_example",
        "watermark": ago(minutes=2),
        "head": None,
        "activity_at": ago(days=1),
    }
    return asset(repo_id, **(settled | changes))


def job(number: int = 1, repo_id: int = 1, **changes: Any) -> Job:
    waiting = Job(
        job_id=UUID(int=number),
        repo_id=repo_id,
        job_type=JobType.REVISIONS,
        mode=Mode.BACKFILL,
        window=BLOCK,
        status=JobStatus.PENDING,
        priority=100,
        attempts=0,
        not_before=None,
        claim_expires_at=None,
        created_at=ago(minutes=10),
    )
    return replace(waiting, **changes)


def sample(repo_id: int = 1, **changes: Any) -> Sample:
    """A run that succeeded a minute ago; with ``code`` it failed with that."""
    status = RunStatus.FAILED if changes.get("code") else RunStatus.COMPLETED
    finished = changes.get("finished_at", ago(minutes=1))
    settled: dict[str, Any] = {
        "repo_id": repo_id,
        "job_type": JobType.COMMITS,
        "instance": "gitlab.example",
        "tenant": "team1",
        "mode": Mode.INCREMENTAL,
        "started_at": finished - timedelta(seconds=10),
        "finished_at": finished,
        "status": status,
        "requests": 10,
    }
    return Sample(**(settled | changes))
