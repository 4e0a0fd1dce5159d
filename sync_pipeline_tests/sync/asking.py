"""A process that asks a GitLab as fast as it may.

Belongs here: what :mod:`sync_pipeline_tests.sync.test_limiter` starts more than one of. Each line of its
input is a task as JSON: ``database``, ``settings``, ``threads``, and ``requests`` of each thread. For each it
prints what went wrong and what was logged, as a JSON list.
"""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sync_pipeline.core.errors import SyncError
from sync_pipeline.database.pool import Database
from sync_pipeline.settings import Settings
from sync_pipeline.sync.readers import Readers


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.summary: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.summary.append(record.getMessage())


def send_requests(task: dict[str, Any], lines: list[str]) -> None:
    """Ask, and say what goes wrong."""
    with Database(task["database"]) as database:
        readers = Readers(Settings(**task["settings"]), database)
        (instance,) = readers.gitlab_instances()

        def ask(_: int) -> None:
            client = readers.gitlab(instance)
            for _ in range(task["requests"]):
                try:
                    client.get("/projects")
                except SyncError as error:
                    lines.append(f"{error.code}: {error}")

        with ThreadPoolExecutor(task["threads"]) as pool:
            list(pool.map(ask, range(task["threads"])))


if __name__ == "__main__":
    lines = Lines()
    logging.getLogger("sync_pipeline").addHandler(lines)
    for line in sys.stdin:
        lines.summary = []
        send_requests(json.loads(line), lines.summary)
        print(json.dumps(lines.summary), flush=True)
