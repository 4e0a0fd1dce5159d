"""From usable to complete: planned, dispatched, read by a worker, and reported, on a real server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sync_pipeline.core.model import JobType, Mode
from sync_pipeline.reports.completeness import completeness
from sync_pipeline.reports.status import status
from sync_pipeline.scheduling import dispatch
from sync_pipeline.scheduling.worker import Worker
from sync_pipeline.sync import attempt, details
from sync_pipeline.sync import merge_requests as work
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.sync import conftest
from sync_pipeline_tests.sync.conftest import START, Forge

forge = conftest.forge
WINDOW = {"window": ("1990-01-01", "2024-05-06")}
COVERAGE = """
SELECT repo_id, job_type, watermark_time, covered_time, verified_at FROM scm.sync_watermarks ORDER BY 1, 2
"""
PAIR = (JobType.MERGE_REQUESTS, JobType.REVIEWS)


@pytest.fixture
def usable(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Forge:
    """A project of 60 merge requests whose history is usable, and that no live syncing is due for."""
    monkeypatch.setattr(work, "_MAX_PLANNED", 0)
    project = generate(forge.gitlab, forge.group, merge_requests=60, notes=4, tie=5)
    forge.conn.execute("UPDATE scm.repos SET lifecycle = 'retired'")
    forge.repo_id = register_project(
        forge.conn, forge.server.url, project.id, project.full_path, origin=START, job_types=PAIR
    )
    for report in forge.both(Mode.BACKFILL, **WINDOW):
        assert report.succeeded, report.error
    forge.conn.execute("UPDATE scm.sync_watermarks SET visited_at = now()")
    return forge


def planned(forge: Forge) -> int:
    return len(forge.rows("SELECT 1 FROM scm.deferred_fetches WHERE is_planned AND resolved_at IS NULL"))


def units(forge: Forge) -> list[dict[str, Any]]:
    return list(status(forge.database, forge.settings)["units"])


def complete(forge: Forge) -> None:
    """One plan, and a worker that does what it dispatched."""
    found = dispatch.dispatch(forge.database, forge.settings)
    assert {(d.job_type, str(d.reason)) for d in found.started} == {(one, "planned_fetches") for one in PAIR}
    assert Worker(forge.database, forge.settings).run(threading.Event(), once=True) == (2, 0)


def test_what_is_usable_is_completed_from_spare_budget_and_only_then_called_complete(usable: Forge) -> None:
    assert planned(usable) > 60
    assert {one["level"] for one in units(usable)} == {"usable"}
    assert not completeness(usable.database, usable.settings)["total"]["complete"]
    before = usable.rows(COVERAGE)
    complete(usable)
    assert planned(usable) == 0
    assert {one["level"] for one in units(usable)} == {"complete"}
    assert completeness(usable.database, usable.settings)["total"]["levels"] == {"usable": 0, "complete": 2}
    # Completion covers nothing and verifies nothing.
    after = usable.rows(COVERAGE)
    assert after == before
    assert dispatch.dispatch(usable.database, usable.settings).started == []


def test_a_completion_that_makes_room_is_planned_again_and_ends_with_the_same_rows(
    usable: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(details, "_PLANNED_AT_ONCE", 20)
    monkeypatch.setattr(attempt, "_MIN_COMPLETION_SECONDS", 0.0)
    # As if the time of the job were over before its first page.
    monkeypatch.setattr(attempt, "_MAX_COMPLETION_SECONDS", 1e-9)
    whole = planned(usable)
    complete(usable)
    # Nothing was read: the plan waits before it tries again.
    assert planned(usable) == whole
    assert dispatch.dispatch(usable.database, usable.settings).started == []
    usable.conn.execute("UPDATE scm.sync_jobs SET finished_at = finished_at - interval '2 hours'")
    monkeypatch.setattr(attempt, "_MAX_COMPLETION_SECONDS", 900.0)
    complete(usable)
    assert planned(usable) == 0
    assert usable.rows("SELECT 1 FROM scm.review_events WHERE time_precision = 'second'") == []


def test_the_estimate_until_complete_is_near_the_requests_that_completion_takes(usable: Forge) -> None:
    left = sum(one["estimate"]["complete"]["requests"] for one in units(usable))
    usable.asked()
    complete(usable)
    sent = len(usable.asked())
    assert 0.5 * sent <= left <= 2 * sent, (left, sent)


def test_live_syncing_of_a_project_goes_on_while_its_planned_details_are_read(
    usable: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(details, "_PLANNED_AT_ONCE", 10)
    whole = planned(usable)
    found: list[Any] = []
    left: list[int] = []

    def visit() -> None:
        # In the middle of a page: the completion job waits for this answer.
        if not found:
            found.extend(usable.both())
            left.append(planned(usable))

    usable.other_settings(max_wait_seconds=1)
    usable.gitlab.faults.add("/discussions", faults.Do(visit), times=1, skip=25)
    complete(usable)
    assert [report.error for report in found] == [None, None]
    assert 0 < left[0] < whole
    assert planned(usable) == 0
