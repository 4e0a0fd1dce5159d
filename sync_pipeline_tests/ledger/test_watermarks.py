"""Coverage and its events."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from sync_pipeline.core.errors import ClaimLost, ConfigurationError
from sync_pipeline.core.model import JobType, RevisionWindow, TimeWindow, Window
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline_tests.builders import register, register_project

REVISIONS = JobType.REVISIONS


def cover(conn: Connection, repo_id: int, *windows: Window, job_type: JobType = REVISIONS) -> list[bool]:
    with conn.transaction():
        return [
            watermarks.extend(
                conn,
                repo_id=repo_id,
                job_type=job_type,
                window=window,
                actor="test",
                reason="test",
                run_id=uuid4(),
                batch_id=1,
            )
            for window in windows
        ]


def test_the_watermark_is_the_end_of_the_range_with_the_origin_whatever_the_order(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, origin=3001)
        blocks = [RevisionWindow(first, first + 1000) for first in range(1, 5001, 1000)]
        random.Random(7).shuffle(blocks)
        marks = []
        for block in blocks:
            cover(conn, repo, block)
            marks.append(watermarks.get(conn, repo, REVISIONS).watermark)
        assert marks[-1] == 5001
        known = [m for m in marks if m is not None]
        assert known == sorted(known)
        assert watermarks.get(conn, repo, REVISIONS).covered == (RevisionWindow(1, 5001),)
        assert integrity_checks.failures(conn) == {}


def test_history_that_does_not_join_the_origin_leaves_the_watermark_alone(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, origin=1001)
        cover(conn, repo, RevisionWindow(1001, 1500), RevisionWindow(1, 500))
        row = watermarks.get(conn, repo, REVISIONS)
        assert row.watermark == 1500
        assert watermarks.missing(conn, repo, REVISIONS, RevisionWindow(1, 2001)) == (
            RevisionWindow(500, 1001),
            RevisionWindow(1500, 2001),
        )


def test_covering_the_same_window_again_writes_no_event(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        assert cover(conn, repo, RevisionWindow(1, 11), RevisionWindow(3, 8), RevisionWindow(5, 20)) == [
            True,
            False,
            True,
        ]
        events = conn.execute("SELECT direction FROM scm.sync_watermark_events ORDER BY event_id").fetchall()
        assert [e["direction"] for e in events] == ["register", "forward", "forward"]


def test_time_windows_use_the_same_code(database: Database) -> None:
    day = [datetime(2024, 1, d, tzinfo=UTC) for d in range(1, 6)]
    with database.connection() as conn:
        repo = register_project(conn, "https://git.test", 7, "platform/api", origin=day[1])
        cover(conn, repo, TimeWindow(day[3], day[4]), TimeWindow(day[1], day[2]), job_type=JobType.COMMITS)
        assert watermarks.get(conn, repo, JobType.COMMITS).watermark == day[2]
        assert watermarks.missing(conn, repo, JobType.COMMITS, TimeWindow(day[0], day[4])) == (
            TimeWindow(day[0], day[1]),
            TimeWindow(day[2], day[3]),
        )
        assert integrity_checks.failures(conn) == {}


def test_the_origin_moves_back_only_over_a_window_that_joins_it(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, origin=1001)
        cover(conn, repo, RevisionWindow(1001, 1200), RevisionWindow(1, 501))

        def move(window: RevisionWindow) -> bool:
            return watermarks.move_origin(
                conn,
                repo_id=repo,
                job_type=REVISIONS,
                window=window,
                actor="test",
                reason="test",
            )

        assert not move(RevisionWindow(1, 501))
        cover(conn, repo, RevisionWindow(501, 1001))
        assert move(RevisionWindow(1, 501))
        row = watermarks.get(conn, repo, REVISIONS)
        assert (row.origin, row.watermark) == (1, 1200)
        assert integrity_checks.failures(conn) == {}


def test_a_reset_starts_a_generation_that_locks_older_jobs_out(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        cover(conn, repo, RevisionWindow(1, 101))
        generation = watermarks.replace(
            conn, repo_id=repo, job_type=REVISIONS, covered=(), actor="ann", reason="restored the server"
        )
        assert generation == 2
        assert watermarks.get(conn, repo, REVISIONS).watermark is None
        with pytest.raises(ClaimLost, match="set by hand"), conn.transaction():
            watermarks.lock_generation(conn, repo, REVISIONS, 1)
        cover(conn, repo, RevisionWindow(1, 11))
        assert integrity_checks.failures(conn) == {}


def test_coverage_changed_behind_the_events_is_found(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        cover(conn, repo, RevisionWindow(1, 101))
        conn.execute("UPDATE scm.sync_watermarks SET covered_revs = '{[1,102)}'")
        found = integrity_checks.failures(conn)["coverage"]
        assert [(d["repo_id"], d["covered_revs"], d["replayed_revs"]) for d in found] == [
            (repo, "{[1,102)}", "{[1,101)}")
        ]


def test_events_cannot_be_rewritten(database: Database) -> None:
    with database.connection() as conn:
        register(conn)
        with pytest.raises(psycopg.errors.RaiseException, match="append only"):
            conn.execute("UPDATE scm.sync_watermark_events SET actor = 'somebody else'")


def test_an_unregistered_job_type_is_named(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        with pytest.raises(ConfigurationError, match="has no commits"):
            watermarks.get(conn, repo, JobType.COMMITS)
