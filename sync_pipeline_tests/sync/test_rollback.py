"""The way back to 0.8.0 and forth again, with reads that are half done: no row is lost, nothing claims more
than before, and a further reading ends in the rows of a fresh one."""

from __future__ import annotations

import threading

import pytest

from sync_pipeline.core.model import JobType, Mode, Trigger
from sync_pipeline.database import migrations
from sync_pipeline.ledger import integrity_checks
from sync_pipeline.policy import levels
from sync_pipeline.scheduling import dispatch
from sync_pipeline.scheduling.worker import Worker
from sync_pipeline.sync import merge_requests as work
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.conftest import ENVIRONMENT
from sync_pipeline_tests.sync.conftest import START, Forge
from sync_pipeline_tests.sync.test_commit_history import again, is_whole, line, unmerged
from sync_pipeline_tests.sync.test_levels import read_anew

WINDOW = {"window": ("1990-01-01", "2024-05-06")}
TYPES = (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS)
PAIR = TYPES[1:]
_OPEN = "SELECT natural_key, detail, is_planned FROM scm.deferred_fetches WHERE resolved_at IS NULL"
_COVERED = "SELECT job_type, covered_time, watermark_time FROM scm.sync_watermarks WHERE repo_id = %(repo)s"
_IN_SECONDS = "SELECT source_event_id FROM scm.review_events WHERE time_precision = 'second'"


def back_and_forth(forge: Forge, steps: int) -> None:
    """Undo ``steps`` migrations and apply them again."""
    undone = migrations.rollback(forge.database.url, steps=steps)
    assert len(undone) == steps
    assert migrations.migrate(forge.database.url, ENVIRONMENT) == undone[::-1]
    forge.other_settings()


@pytest.fixture
def usable(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Forge:
    """A project of 40 merge requests: completed by a completion job, then read anew to the usable level, and
    some of them completed."""
    monkeypatch.setattr(levels, "AT_ONCE", 0)
    monkeypatch.setattr(work, "_MAX_PLANNED", 0)
    project = generate(forge.gitlab, forge.group, merge_requests=40, notes=4, tie=5)
    forge.conn.execute("UPDATE scm.repos SET lifecycle = 'retired'")
    forge.repo_id = register_project(
        forge.conn, forge.server.url, project.id, project.full_path, origin=START, job_types=TYPES
    )
    for report in forge.both(Mode.BACKFILL, **WINDOW):
        assert report.succeeded, report.error
    forge.conn.execute("UPDATE scm.sync_watermarks SET visited_at = now()")
    found = dispatch.dispatch(forge.database, forge.settings)
    assert {one.job_type for one in found.started} >= {*PAIR}
    assert Worker(forge.database, forge.settings).run(threading.Event(), once=True) == (2, 0)
    assert forge.rows(
        "SELECT FROM scm.sync_batches WHERE run_id IN"
        " (SELECT run_id FROM scm.sync_runs JOIN scm.sync_jobs USING (job_id) WHERE only_deferred)"
    )
    read_anew(forge, Trigger.SENSOR)
    monkeypatch.setattr(work, "_MAX_PLANNED", 10)
    for report in forge.both():
        assert report.succeeded, report.error
    return forge


@pytest.mark.parametrize("steps", range(1, 6))
def test_what_is_usable_stays_so_and_ends_in_the_rows_of_a_fresh_read(
    usable: Forge, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    before = {query: sorted(map(str, usable.rows(query))) for query in (_OPEN, _COVERED, _IN_SECONDS)}
    assert before[_IN_SECONDS]
    state = usable.state()
    back_and_forth(usable, steps)
    assert usable.state() == state
    assert {query: sorted(map(str, usable.rows(query))) for query in before} == before
    assert integrity_checks.failures(usable.conn) == {}
    monkeypatch.setattr(work, "_MAX_PLANNED", 1000)
    usable.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
    for report in usable.both():
        assert report.succeeded, report.error
    assert usable.rows(f"{_OPEN}") == []
    complete = usable.state()
    assert complete == read_anew(usable, Trigger.RUNNER)


@pytest.mark.parametrize("steps", [3, 5])
def test_half_read_histories_of_both_versions_are_continued(forge: Forge, steps: int) -> None:
    on_main = line(forge.git, 350)
    unmerged(forge.git, on_main[::40], each=2)
    # The list of all refs broke off, as this version leaves it.
    forge.gitlab.faults.add(r"all=true.*page=3", faults.json_answer(403, {"message": "403"}), times=None)
    assert not forge.commits().succeeded
    rows = forge.rows("SELECT commit_sha FROM scm.git_commits")
    assert rows
    back_and_forth(forge, steps)
    assert forge.rows("SELECT commit_sha FROM scm.git_commits") == rows
    # A walk from the tip broke off, as 0.8.0 leaves it.
    walk = forge.conn.execute(
        "INSERT INTO scm.ref_walks (repo_id, tip, generation, next_page, tip_read)"
        " SELECT repo_id, %s, generation, 2, TRUE FROM scm.sync_watermarks"
        "  WHERE repo_id = %s AND job_type = 'commits' RETURNING walk_id",
        [on_main[-1], forge.repo_id],
    ).fetchone()
    assert walk is not None
    forge.conn.execute(
        "UPDATE scm.git_commits SET walk_id = %s WHERE commit_sha = ANY (%s)",
        [walk["walk_id"], on_main[-50:]],
    )
    assert integrity_checks.failures(forge.conn) == {}
    again(forge)
    assert forge.commits().succeeded
    is_whole(forge)
