"""sync_pipeline reads merge requests with reviews, or commits, and stores them in PostgreSQL.

Arguments: address of the GitLab, token, project, URL of the database, ``commits`` or ``merge requests``, and
settings as ``name=value``. With ``, all`` visits and comparisons follow the first reading.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import LiteralString

from bench.drivers.phases import phase
from sync_pipeline.core.catalog import parse_spec
from sync_pipeline.core.model import BEGINNING, Depth, JobRequest, JobType, Mode, TimeWindow, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.settings import Settings
from sync_pipeline.sync import merge_requests
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import svn_reader

_COUNTS: dict[str, LiteralString] = {
    "merge_requests": "SELECT count(*) AS n FROM scm.mrs WHERE deleted_at IS NULL",
    "notes": "SELECT count(*) AS n FROM scm.review_events WHERE origin = 'note' AND missing_since IS NULL",
    "approvals": "SELECT count(*) AS n FROM scm.mr_approvals WHERE closed_at IS NULL",
    "commits": "SELECT count(*) AS n FROM scm.git_commits",
}


class Program:
    """One repository with the job types that are read."""

    def __init__(
        self, database: Database, settings: Settings, project: str, job_types: list[JobType]
    ) -> None:
        added = add_repository(
            database,
            settings,
            parse_spec(f"gitlab:{project}"),
            actor="bench",
            reader_factory=lambda url: svn_reader(settings, url),
        )
        assert added.repository is not None
        self._repo_id = added.repository.repo_id
        self._database = database
        self._syncer = Syncer(database, settings)
        self._job_types = job_types
        self._kinds = (
            ["commits"] if JobType.COMMITS in job_types else ["merge_requests", "notes", "approvals"]
        )

    def backfill(self) -> None:
        """Read everything at once, as a person's backfill does."""
        window = TimeWindow(BEGINNING, datetime.now(UTC))
        self._together([self._request(one, Mode.BACKFILL, window) for one in self._job_types])

    def usable(self) -> None:
        """Read the lists, and reviews in batches, as a backfill of the scheduler does."""
        # It would complete some merge requests, too. Here it ends when all are usable.
        merge_requests._MAX_PLANNED = 0
        window = TimeWindow(BEGINNING, datetime.now(UTC))
        requests = [self._request(one, Mode.BACKFILL, window) for one in self._job_types]
        self._together([replace(one, trigger=Trigger.SENSOR) for one in requests])

    def complete(self) -> None:
        """Read what the usable level deferred."""
        requests = [self._request(one, Mode.REPAIR) for one in self._job_types]
        self._together([replace(one, only_deferred=True) for one in requests])

    def visit(self) -> None:
        """A visit of live syncing."""
        self._together([self._request(one, Mode.INCREMENTAL) for one in self._job_types])

    def count(self) -> Mapping[str, int]:
        """The stored rows."""
        with self._database.connection() as conn:
            return {kind: conn.execute(_COUNTS[kind]).fetchall()[0]["n"] for kind in self._kinds}

    def compare(self, depth: Depth) -> None:
        """Compare everything with the source. Raises RuntimeError if anything differs."""
        window = TimeWindow(BEGINNING, datetime.now(UTC))
        for one in self._job_types:
            self._together([self._request(one, Mode.PROBE, window, depth)])
        with self._database.connection() as conn:
            found = conn.execute(
                "SELECT count(*) AS n FROM scm.reconciliations WHERE status <> 'clean'"
            ).fetchall()
        if found[0]["n"]:
            raise RuntimeError(f"{found[0]['n']} comparisons found differences")

    def _request(
        self, job_type: JobType, mode: Mode, window: TimeWindow | None = None, depth: Depth | None = None
    ) -> JobRequest:
        return JobRequest(
            self._repo_id, job_type, mode, Trigger.RUNNER, "bench", "bench", window=window, depth=depth
        )

    def _together(self, requests: list[JobRequest]) -> None:
        for report in self._syncer.run_together(requests):
            if not report.succeeded:
                raise RuntimeError(report.error)


def main() -> None:
    """Register the project and read it."""
    server, token, project, url, how = sys.argv[1:6]
    given = dict(one.split("=", 1) for one in sys.argv[6:])
    os.environ.update({f"SCM_{name.upper()}": value for name, value in given.items()})
    settings = Settings(gitlab_url=server, gitlab_token=token)
    what, _, more = how.partition(", ")
    job_types = [JobType.COMMITS] if what == "commits" else [JobType.MERGE_REQUESTS, JobType.REVIEWS]
    with Database(url) as database:
        program = Program(database, settings, project, job_types)
        if what == "commits":
            phase("commits", program.visit, program.count)
        elif settings.gitlab.graphql:
            phase("usable", program.usable, program.count)
            phase("complete", program.complete, program.count)
        else:
            phase("complete by REST only", program.backfill, program.count)
        if more:
            phase("idle", program.visit, program.count)
            phase("changed", program.visit, program.count)
            phase("compared by lists", lambda: program.compare(Depth.LISTING), program.count)
            phase("compared in detail", lambda: program.compare(Depth.DETAILS), program.count)


if __name__ == "__main__":
    main()
