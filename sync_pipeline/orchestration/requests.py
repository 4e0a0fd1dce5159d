"""From the order of a run to requests for the engine.

Belongs here: the windows that a run asks for, and which of them are read again. Used by the step that does
the work, and by the record of what people asked for, so that both name the same jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import dagster as dg

from sync_pipeline.core.job_types import Family
from sync_pipeline.core.model import (
    JobRequest,
    JobType,
    Kind,
    Mode,
    Repository,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.core.windows import hull, merged
from sync_pipeline.ledger import dagster_requests
from sync_pipeline.orchestration.partitions import Days, is_done
from sync_pipeline.orchestration.resources import WatermarkStore
from sync_pipeline.orchestration.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one run of a family. ``days`` are the partitions of everything from GitLab."""

    family: Family
    order: RunSpec
    days: dg.DailyPartitionsDefinition
    watermarks: WatermarkStore
    dagster_run_id: str | None

    def groups(self, repository: Repository, job_types: Sequence[JobType]) -> list[list[JobRequest]]:
        """The requests of one repository, oldest window first; those of a group are read together."""
        return [
            [self._request(repository, job_type, window) for job_type in job_types]
            for window in self._windows(repository, job_types)
        ]

    def with_priority(self, request: JobRequest) -> JobRequest:
        """``request`` with the reread flag if a person materializes a covered partition, which is a request
        to compare. The runner reads missing windows only.
        """
        by_hand = request.trigger in (Trigger.UI, Trigger.CI)
        if request.window is None or not by_hand or self.order.from_ledger:
            return request
        with self.watermarks.database.connection() as conn:
            if dagster_requests.is_done(conn, request):
                # The ledger was faster than Dagster's run of the same backfill.
                return request
        return replace(request, reread=self._is_covered(request, request.window))

    def _request(self, repository: Repository, job_type: JobType, window: Window | None) -> JobRequest:
        return JobRequest(
            repo_id=repository.repo_id,
            job_type=job_type,
            mode=self.order.mode,
            trigger=self.order.trigger,
            actor=self.order.actor,
            reason=self.order.reason,
            window=window,
            dagster_run_id=self.dagster_run_id,
            reread=self.order.mode is Mode.REPAIR,
        )

    def _windows(self, repository: Repository, job_types: Sequence[JobType]) -> Sequence[Window | None]:
        if self.order.mode is Mode.INCREMENTAL:
            return [None]
        if self.family.kind is Kind.SVN or self.order.exact:
            return self.order.windows
        # Neighbouring days are one window, so that empty years cost one question. Only what is covered and
        # what is not stay apart: the one is read again as a whole, of the other only what is missing.
        days = [day for day in self.order.windows if isinstance(day, TimeWindow)]
        known = {job_type: self._covered_days(repository, job_type, days) for job_type in job_types}

        def state(day: TimeWindow) -> tuple[bool, ...]:
            return tuple(day in known[job_type] for job_type in job_types)

        return [window for _, group in groupby(days, state) for window in merged(group)]

    def _covered_days(
        self, repository: Repository, job_type: JobType, days: Sequence[TimeWindow]
    ) -> set[TimeWindow]:
        whole = hull(days)
        if whole is None:
            return set()
        missing = self.watermarks.missing(repository.repo_id, job_type, whole)
        today = Days.of(self.days).today
        return {day for day in days if is_done(day, missing, today)}

    def _is_covered(self, request: JobRequest, window: Window) -> bool:
        if isinstance(window, TimeWindow):
            days = Days.of(self.days)
            missing = self.watermarks.missing(request.repo_id, request.job_type, window)
            return all(is_done(day, missing, days.today) for day in days.touched(window) or (window,))
        row = self.watermarks.get(request.repo_id, request.job_type)
        end = min(window.end, (row.head_rev or 0) + 1)
        if end <= window.first:
            return False
        return not self.watermarks.missing(
            request.repo_id, request.job_type, RevisionWindow(window.first, end)
        )
