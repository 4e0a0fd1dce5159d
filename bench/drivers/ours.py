"""sync_pipeline reads merge requests with reviews, or commits, and stores them in PostgreSQL.

Arguments: address of the GitLab, token, project, URL of the database, ``commits`` or ``merge_requests``, and
settings as ``name=value``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import LiteralString

from bench.drivers.phases import phase
from sync_pipeline.core.catalog import parse_spec
from sync_pipeline.core.model import BEGINNING, JobRequest, JobType, Mode, TimeWindow, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import svn_reader

_COUNTS: dict[str, LiteralString] = {
    "merge_requests": "SELECT count(*) AS n FROM scm.mrs WHERE deleted_at IS NULL",
    "notes": "SELECT count(*) AS n FROM scm.review_events WHERE origin = 'note' AND missing_since IS NULL",
    "approvals": "SELECT count(*) AS n FROM scm.mr_approvals WHERE closed_at IS NULL",
    "commits": "SELECT count(*) AS n FROM scm.git_commits",
}


def main() -> None:
    """Register the project and read it from its beginning."""
    server, token, project, url, what = sys.argv[1:6]
    given = dict(one.split("=", 1) for one in sys.argv[6:])
    os.environ.update({f"SCM_{name.upper()}": value for name, value in given.items()})
    settings = Settings(gitlab_url=server, gitlab_token=token)
    if what == "commits":
        job_types, kinds = [JobType.COMMITS], ["commits"]
    else:
        job_types = [JobType.MERGE_REQUESTS, JobType.REVIEWS]
        kinds = ["merge_requests", "notes", "approvals"]
    with Database(url) as database:
        spec = parse_spec(f"gitlab:{project}")
        added = add_repository(
            database, settings, spec, actor="bench", reader_factory=lambda url: svn_reader(settings, url)
        )
        assert added.repository is not None
        repo_id = added.repository.repo_id
        syncer = Syncer(database, settings)

        def work() -> Mapping[str, int]:
            if what == "commits":
                mode, window = Mode.INCREMENTAL, None
            else:
                mode, window = Mode.BACKFILL, TimeWindow(BEGINNING, datetime.now(UTC))
            reports = syncer.run_together(
                [
                    JobRequest(repo_id, one, mode, Trigger.RUNNER, "bench", "bench", window=window)
                    for one in job_types
                ]
            )
            for report in reports:
                if not report.succeeded:
                    raise RuntimeError(report.error)
            with database.connection() as conn:
                return {kind: conn.execute(_COUNTS[kind]).fetchall()[0]["n"] for kind in kinds}

        phase("commits" if what == "commits" else "complete", work)


if __name__ == "__main__":
    main()
