"""A program that does one job, for tests that stop, kill or starve it.

``python -m sync_pipeline_tests.faults.worker <database url> <job as JSON>``: ``repo_id``, ``job_types``,
``mode``, ``settings``, ``window``, ``depth``, ``only_differences``. Prints one JSON document per report.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.model import (
    Depth,
    JobReport,
    JobRequest,
    JobType,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.database.pool import Database
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer


@dataclass(frozen=True)
class Job:
    """What a worker is told to do. ``settings`` are those of :class:`Settings`, by name; ``window`` is a pair
    of revisions or ISO dates."""

    repo_id: int
    job_types: tuple[str, ...]
    settings: dict[str, Any]
    mode: str = "incremental"
    window: tuple[Any, Any] | None = None
    depth: str | None = None
    only_differences: bool = False

    def run(self, database: Database, **other_settings: Any) -> list[JobReport]:
        """Do it in this process."""
        window: Window | None = None
        if self.window is not None:
            first, end = self.window
            if isinstance(first, int):
                window = RevisionWindow(first, end)
            else:
                window = TimeWindow(datetime.fromisoformat(first), datetime.fromisoformat(end))
        requests = [
            JobRequest(
                self.repo_id,
                JobType(job_type),
                Mode(self.mode),
                Trigger.SENSOR,
                "test",
                "test",
                window=window,
                depth=None if self.depth is None else Depth(self.depth),
                only_differences=self.only_differences,
            )
            for job_type in self.job_types
        ]
        return Syncer(database, Settings(**self.settings | other_settings)).run_together(requests)


def main(url: str, job: str) -> int:
    """Do the job and print what came of it."""
    values = json.loads(job)
    values["job_types"] = tuple(values["job_types"])
    with Database(url, timeout=3.0) as database:
        try:
            reports = Job(**values).run(database)
        except SyncError as error:
            print(json.dumps({"status": "none", "code": error.code, "error": str(error)}))
            return 2
    for report in reports:
        shown = {"status": report.job_status, "code": report.error_code, "error": report.error}
        print(json.dumps(shown | {"inserted": report.counts.inserted}))
    return 0 if all(report.succeeded for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
