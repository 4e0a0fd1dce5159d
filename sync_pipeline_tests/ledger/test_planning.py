"""What a plan looks at: that no backlog hides the work of somebody else."""

from __future__ import annotations

from typing import Any

import pytest

from sync_pipeline.admin import pauses
from sync_pipeline.core.model import Mode
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import planning
from sync_pipeline.scheduling import dispatch
from sync_pipeline.settings import Settings
from sync_pipeline_tests.builders import register

_BACKLOG = """
INSERT INTO scm.sync_jobs (repo_id, job_type, mode, revs, priority, status, not_before, generation, trigger,
                           actor, reason, created_at)
SELECT %(repo_id)s, 'revisions', 'backfill', int8range(n * 10, n * 10 + 10), %(priority)s, %(status)s,
       now() + %(wait)s::interval, 1, 'ui', 'ada', 'history', now() + n * interval '1 second'
  FROM generate_series(1, %(number)s) AS n
"""


def backlog(conn: Connection, repo_id: int, number: int, **other: Any) -> None:
    """So many waiting windows of history, the first one most urgent."""
    values = {"repo_id": repo_id, "number": number, "priority": 100, "status": "pending", "wait": None}
    conn.execute(_BACKLOG, values | other)


@pytest.mark.parametrize("why", ["paused", "other_pool", "more_urgent"])
def test_no_backlog_hides_the_history_of_others(database: Database, why: str) -> None:
    settings = Settings()
    with database.connection() as conn:
        hog, other = register(conn, "hog"), register(conn, "other")
        conn.execute("UPDATE scm.repos SET tenant = slug")
        backlog(conn, hog, 4500)
        backlog(conn, other, 1, priority=900)
    if why == "paused":
        pauses.pause(database, pauses.PauseTarget(tenant="hog"), seconds=None, actor="ada", reason="audit")
    elif why == "other_pool":
        settings = settings.model_copy(update={"worker_tenant_allowlist": ("other",)})
    found = dispatch.dispatch(database, settings, dry_run=True)
    started = {(d.repo_id, d.mode) for d in found.started}
    assert (other, Mode.BACKFILL) in started
    assert ((hog, Mode.BACKFILL) in started) is (why == "more_urgent")


def test_a_plan_looks_at_the_most_urgent_of_what_need_not_wait(database: Database) -> None:
    with database.connection() as conn:
        hog, other = register(conn, "hog"), register(conn, "other")
        backlog(conn, hog, 2100, status="failed", wait="1 hour")
        conn.execute("UPDATE scm.sync_jobs SET revs = int8range(lower(revs) + 50000, upper(revs) + 50000)")
        backlog(conn, hog, 2100, priority=200)
        conn.execute(_LIVE, {"repo_id": hog})
        rows = planning.snapshot(conn, sample_seconds=60, newest=10, burst=10).jobs
        assert {row["repo_id"] for row in rows} == {hog}
        history = [row for row in rows if row["mode"] == "backfill"]
        assert (len(history), {row["priority"] for row in history}) == (2100, {200})
        assert [row["mode"] for row in rows if row not in history] == ["incremental"]
        # Shared out evenly among those that have any.
        backlog(conn, other, 2100, priority=300)
        rows = planning.snapshot(conn, sample_seconds=60, newest=10, burst=10).jobs
        ends = [row["window"].end for row in rows if row["repo_id"] == hog and row["mode"] == "backfill"]
        assert (len(ends), max(ends)) == (2000, 20_010)
        assert sum(row["repo_id"] == other for row in rows) == 2000


_LIVE = """
INSERT INTO scm.sync_jobs (repo_id, job_type, mode, status, not_before, generation, trigger, actor, reason)
VALUES (%(repo_id)s, 'revisions', 'incremental', 'failed', now() + interval '1 hour', 1, 'ui', 'ada', 'hint')
"""
