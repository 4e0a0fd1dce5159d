"""The numbers on the page of an asset: exact while they are cheap, an estimate beyond."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sync_pipeline.core.job_types import JOB_TYPES_OF_KIND
from sync_pipeline.core.model import JobType, Kind
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts.stored_rows import StoredRows, count, last_change_at
from sync_pipeline_tests.builders import register, register_project

# Revisions of one day each, from 2020-01-01 on.
_REVISIONS = """
INSERT INTO scm.svn_revisions (repo_id, rev_num, ts, visibility, detail_level, path_count, content_hash,
                               paths_hash, batch_id, deleted_at)
SELECT %(repo_id)s, n, '2020-01-01Z'::timestamptz + (n - 1) * interval '1 day', 'full', 2, 0, '', '', 1,
       CASE WHEN n = 1 THEN now() END
  FROM generate_series(1, %(number)s::bigint) AS n
"""


def fill(conn: Connection, repo_id: int, number: int) -> None:
    """Store so many revisions; the first one is a tombstone."""
    conn.execute(_REVISIONS, {"repo_id": repo_id, "number": number})


def test_rows_are_counted_up_to_a_limit_and_estimated_beyond_it(database: Database) -> None:
    with database.connection() as conn:
        small, large = register(conn, "small"), register(conn, "large")
        fill(conn, small, 10)
        fill(conn, large, 300)
        conn.execute("ANALYZE scm.svn_revisions")
        assert count(conn, small, JobType.REVISIONS, 10) == StoredRows(10)
        assert count(conn, large, JobType.REVISIONS, 300) == StoredRows(300)
        found = count(conn, large, JobType.REVISIONS, 100)
        assert found.is_estimate
        assert found.number == pytest.approx(300, rel=0.1)
        # Statistics that know nothing of it yet never make it smaller than what was counted.
        new = register(conn, "new")
        fill(conn, new, 200)
        assert count(conn, new, JobType.REVISIONS, 100).number >= 101


def test_the_last_change_is_of_the_newest_revision_or_of_the_projects_activity(database: Database) -> None:
    with database.connection() as conn:
        svn = register(conn)
        assert last_change_at(conn, svn, JobType.REVISIONS) is None
        fill(conn, svn, 3)
        assert last_change_at(conn, svn, JobType.REVISIONS) == datetime(2020, 1, 3, tzinfo=UTC)
        project = register_project(
            conn, "https://gitlab.example", 7, "acme/app", origin=datetime(2026, 1, 1, tzinfo=UTC)
        )
        for job_type in JOB_TYPES_OF_KIND[Kind.GITLAB]:
            assert count(conn, project, job_type) == StoredRows(0)
            assert last_change_at(conn, project, job_type) is None
        conn.execute("UPDATE scm.sync_watermarks SET activity_at = '2026-01-02Z'")
        assert last_change_at(conn, project, JobType.COMMITS) == datetime(2026, 1, 2, tzinfo=UTC)
        conn.execute(
            """
            INSERT INTO scm.change_hints (repo_id, activity_at, observed_at)
            VALUES (%s, '2026-01-03Z', now())
            """,
            [project],
        )
        assert last_change_at(conn, project, JobType.COMMITS) == datetime(2026, 1, 3, tzinfo=UTC)
