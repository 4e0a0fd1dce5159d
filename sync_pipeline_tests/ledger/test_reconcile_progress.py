"""What the unattended comparison is planned from, and how far it got."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sync_pipeline.core.model import (
    BEGINNING,
    Difference,
    DifferenceKind,
    JobRequest,
    JobType,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import stored_rows
from sync_pipeline.ledger import jobs, reconcile_progress, reconciliations
from sync_pipeline_tests.builders import register, register_project

LIMITS = {"repairs": 3, "looks": 2, "believed": 21_600.0}
MRS, COMMITS, REVISIONS = JobType.MERGE_REQUESTS, JobType.COMMITS, JobType.REVISIONS


def asset(conn: Connection, repo_id: int, job_type: JobType = REVISIONS) -> dict[str, Any]:
    found = reconcile_progress.snapshot(conn, **LIMITS).assets  # type: ignore[arg-type]
    return next(row for row in found if (row["repo_id"], row["job_type"]) == (repo_id, job_type))


def differs(conn: Connection, repo_id: int, key: str, kind: str = "changed", place: int | None = 7) -> None:
    window = None if place is None else RevisionWindow(place, place + 1)
    found = [Difference(key, DifferenceKind(kind), window)]
    number = reconciliations.next_number(conn)
    reconciliations.put(conn, repo_id=repo_id, job_type=REVISIONS, number=number, found=found)


def test_places_are_due_after_the_repair_and_while_a_deletion_is_not_believed(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn)
        differs(conn, repo_id, "7")
        differs(conn, repo_id, "9", "extra", 9)
        found = asset(conn, repo_id)
        assert (found["open"], found["places"], found["repairing"]) == (2, (), False)
        window = RevisionWindow(1, 100)
        request = JobRequest(
            repo_id, REVISIONS, Mode.REPAIR, Trigger.SENSOR, "a", "b", window=window, only_differences=True
        )
        jobs.enqueue(conn, request)
        assert asset(conn, repo_id)["repairing"]
        assert reconcile_progress.is_repairing(conn, repo_id, REVISIONS)
        conn.execute("UPDATE scm.sync_jobs SET status = 'completed', finished_at = now()")
        conn.execute("UPDATE scm.discrepancies SET repairs = 1 WHERE natural_key = '7'")
        found = asset(conn, repo_id)
        assert (found["places"], found["repairing"]) == ((RevisionWindow(7, 8),), False)
        differs(conn, repo_id, "7")
        assert asset(conn, repo_id)["places"] == (), "seen since"
        conn.execute(
            "UPDATE scm.discrepancies SET last_seen_at = now() - interval '6 hours', repairs = 3 - looks"
            " WHERE natural_key = '7'"
        )
        conn.execute(
            "UPDATE scm.discrepancies SET last_seen_at = now() - interval '6 hours' WHERE natural_key = '9'"
        )
        conn.execute("DELETE FROM scm.sync_jobs")
        assert asset(conn, repo_id)["places"] == (RevisionWindow(9, 10),)
        conn.execute("UPDATE scm.discrepancies SET looks = 2, found_at = now() - interval '7 hours'")
        assert asset(conn, repo_id)["places"] == (), "believed: a repair is due, no further look"


def test_an_escalated_difference_and_one_without_a_place_are_told(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn)
        differs(conn, repo_id, "x", "extra", None)
        conn.execute("UPDATE scm.discrepancies SET last_seen_at = now() - interval '7 hours'")
        differs(conn, repo_id, "8")
        conn.execute("UPDATE scm.discrepancies SET repairs = 3 WHERE natural_key = '8'")
        found = asset(conn, repo_id)
        assert (found["anywhere"], found["places"], found["escalated"]) == (True, (), 1)
        assert reconcile_progress.totals(conn, repairs=3) == {
            "open": 2,
            "escalated": 1,
            "waiting": 1,
            "tombstones": 0,
        }


def test_a_round_begins_goes_on_and_ends(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn)
        for why in ("recent", "history"):
            reconcile_progress.mark_started(conn, repo_id, REVISIONS, why)
        found = asset(conn, repo_id)
        assert found["recent_at"] is not None
        assert found["history_at"] is not None
        assert (found["places_at"], found["round_began_at"], found["next"]) == (None, None, None)
        reconcile_progress.begin(conn, repo_id, REVISIONS, 40)
        reconcile_progress.move(conn, repo_id, REVISIONS, 1001, rows=30)
        reconcile_progress.mark_started(conn, repo_id, REVISIONS, "places")
        found = asset(conn, repo_id)
        assert (found["next"], found["round_rows"], found["round_done"]) == (1001, 40, 30)
        assert found["round_ended_at"] is None
        reconcile_progress.move(conn, repo_id, REVISIONS, None, rows=10)
        found = asset(conn, repo_id)
        assert (found["next"], found["round_done"]) == (None, 40)
        assert found["round_ended_at"] > found["round_began_at"]
        assert found["recent_at"] is not None
        reconcile_progress.begin(conn, repo_id, REVISIONS, 50)
        assert asset(conn, repo_id)["round_done"] == 0


DAY = datetime(2024, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "rows", "end"),
    [
        (BEGINNING, 2, DAY + timedelta(days=2)),
        (DAY + timedelta(days=2), 2, DAY + timedelta(days=2, milliseconds=1)),
        (DAY + timedelta(days=2, milliseconds=1), 2, None),
        (BEGINNING, 9, None),
    ],
)
def test_a_window_ends_after_so_many_rows_and_never_within_a_moment(
    database: Database, start: datetime, rows: int, end: datetime | None
) -> None:
    mark = DAY + timedelta(days=30)
    with database.connection() as conn:
        repo_id = register_project(conn, "https://gitlab.example", 7, "team1/app", origin=DAY)
        for iid, day in enumerate((0, 1, 2, 2, 2, 2, 4), 1):
            conn.execute(
                "INSERT INTO scm.mrs (repo_id, iid, gitlab_id, project_id, status, updated_at, raw,"
                " content_hash, batch_id) VALUES (%(r)s, %(i)s, %(i)s, 7, 'open', %(at)s, '{}', '', 1)",
                {"r": repo_id, "i": iid, "at": DAY + timedelta(days=day)},
            )
        assert stored_rows.end_of(conn, repo_id, MRS, TimeWindow(start, mark), rows) == (end or mark)
        assert stored_rows.end_of(conn, repo_id, COMMITS, TimeWindow(start, mark), rows) == mark


def test_requests_of_an_hour_are_those_of_every_comparison(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn)
        run = conn.execute("SELECT gen_random_uuid() AS id").fetchone()
        assert run is not None
        for calls in (3, 8):
            reconciliations.add(
                conn,
                RevisionWindow(1, 9),
                dict.fromkeys(reconciliations.COUNTED, 0)
                | {
                    "number": reconciliations.next_number(conn),
                    "repo_id": repo_id,
                    "job_type": "revisions",
                    "depth": "listing",
                    "status": "clean",
                    "calls": calls,
                    "detail": None,
                    "run_id": run["id"],
                },
            )
        found = reconcile_progress.snapshot(conn, **LIMITS)  # type: ignore[arg-type]
        assert found.sent == {"local": (8, 0)}, "parts of one comparison count on"
        [day] = reconcile_progress.mismatches_by_day(conn, 30)
        assert (day["missing"], day["extra"], day["changed"]) == (0, 0, 0)
