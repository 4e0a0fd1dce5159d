"""The unattended comparison, in process: what a run compares, what it starts, and what it tells Dagster."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sync_pipeline.orchestration import reconciliation_page
from sync_pipeline.orchestration.instance import quiet_dagster
from sync_pipeline.orchestration.reconciliation import RECONCILE
from sync_pipeline.orchestration.reconciliation_page import plot
from sync_pipeline.policy.reconcile_schedule import hour_of
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.orchestration.conftest import Forge, Ran

OPEN = """
SELECT job_type, natural_key, kind, looks, repairs FROM scm.discrepancies
 WHERE resolved_at IS NULL ORDER BY job_type, natural_key
"""
RESULTS = """
SELECT repo_id, job_type, depth, status, expected, stored, detail FROM scm.reconciliations
 ORDER BY reconciliation_id
"""


@dataclass
class Fleet:
    """A project with merge requests, one with commits, and an SVN repository, all of it synced."""

    forge: Forge
    project: int
    commits: int
    svn: int

    def run(self) -> Ran:
        """One run of the job."""
        return self.forge.site.run(RECONCILE)

    def summary(self) -> dict[str, Any]:
        """The metadata of the latest materialization."""
        key = dg.AssetKey(["fleet", "reconciliation"])
        event = self.forge.site.instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}

    def open(self) -> dict[tuple[str, str], str]:
        """Open differences: by job type and key their kind."""
        rows = self.forge.site.rows(OPEN)
        return {(row["job_type"], row["natural_key"]): row["kind"] for row in rows}

    def results(self) -> list[dict[str, Any]]:
        """Every comparison so far."""
        return self.forge.site.rows(RESULTS)

    def repair(self) -> None:
        """Let the scheduler start the repairs that wait, and run them."""
        ticks = 0
        while requests := [one for one in self.forge.site.schedule() if one.tags["scm/mode"] == "repair"]:
            ticks += 1
            for request in requests:
                done = self.forge.site.start(request)
                assert done.success, done.error
        assert ticks, "the scheduler asks for the repair"

    def later(self, **time: float) -> None:
        """Let time pass for what is compared by itself."""
        self.forge.site.execute(
            """
            UPDATE scm.reconcile_progress
               SET places_at = places_at - %(t)s, recent_at = recent_at - %(t)s,
                   history_at = history_at - %(t)s, round_began_at = round_began_at - %(t)s,
                   round_ended_at = round_ended_at - %(t)s
            """,
            t=timedelta(**time),
        )
        self.forge.site.execute(
            "UPDATE scm.discrepancies SET found_at = found_at - %(t)s, last_seen_at = last_seen_at - %(t)s",
            t=timedelta(**time),
        )


_DRAWN: list[bytes] = []


def drawn_once(*arguments: Any) -> bytes:
    """The first picture of this process, again and again: to draw one takes half a second of CPU."""
    if not _DRAWN:
        _DRAWN.append(plot(*arguments))
    return _DRAWN[0]


@pytest.fixture
def fleet(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """See :class:`Fleet`."""
    monkeypatch.setattr(reconciliation_page, "plot", drawn_once)
    now = datetime.now(UTC)
    project = forge.large_project("app", 4, now - timedelta(days=3))
    commits = forge.git_project("lib", *(f"2024-05-0{day}" for day in range(1, 6)))
    svn_samples.create(tmp_path / "paint", svn_samples.growing(12))
    with forge.site.database.connection() as conn:
        svn = register_source(conn, tmp_path / "paint")
    forge.gitlab.clock.fixed = now - timedelta(minutes=10)
    for job in ("sync_commits", "sync_merge_requests", "sync_revisions"):
        done = forge.site.run(job)
        assert done.success, done.error
    forge.gitlab.clock.fixed = None
    return Fleet(forge, project, commits, svn)


def evaluate(forge: Forge, *, running: bool = False) -> dg.RunRequest | dg.SkipReason:
    """One tick of the schedule."""
    from dagster._core.test_utils import create_run_for_test

    location = forge.site.definitions().get_repository_def()
    with (
        quiet_dagster(),
        # A schedule opens its instance itself, so it has to be on disk.
        dg.instance_for_test() as instance,
        dg.build_schedule_context(
            instance=instance,
            resources=dict(location.get_top_level_resources()),
            scheduled_execution_time=datetime.now(UTC),
        ) as context,
    ):
        if running:
            create_run_for_test(instance, job_name=RECONCILE, status=dg.DagsterRunStatus.STARTED)
        found = location.get_schedule_def(RECONCILE)(context)
    assert isinstance(found, dg.RunRequest | dg.SkipReason)
    return found


def test_the_schedule_starts_one_run_at_a_time_and_leaves_a_heartbeat(forge: Forge) -> None:
    assert isinstance(evaluate(forge), dg.RunRequest)
    assert isinstance(evaluate(forge, running=True), dg.SkipReason)
    [beat] = forge.site.rows("SELECT name, outcome FROM scm.heartbeats")
    assert (beat["name"], beat["outcome"]) == ("reconcile", "a run is at work")
    schedule = forge.site.definitions().get_repository_def().get_schedule_def(RECONCILE)
    assert (schedule.cron_schedule, schedule.default_status) == (
        "17 * * * *",
        dg.DefaultScheduleStatus.RUNNING,
    )


def test_what_is_equal_is_compared_once_an_hour_and_once_a_round(fleet: Fleet) -> None:
    began = datetime.now(UTC)
    done = fleet.run()
    assert done.success, done.error
    results = fleet.results()
    assert {row["status"] for row in results} == {"clean"}
    assets = {(fleet.svn, "revisions"), (fleet.commits, "commits")} | {
        (repo_id, job_type)
        for repo_id in (fleet.project, fleet.commits)
        for job_type in ("merge_requests", "reviews")
    }
    for depth in ("listing", "details"):
        assert {(row["repo_id"], row["job_type"]) for row in results if row["depth"] == depth} == assets
    summary = fleet.summary()
    assert (summary["clean"], summary["mismatch"], summary["inconclusive"]) == (12, 0, 0)
    assert summary["left_out"] == {"empty": 1}
    assert summary["first_round_not_ended"] == 0
    assert summary["compared_rows"] == sum(row["expected"] for row in results)
    assert summary["requests_at_most"] == 600
    assert sum(summary["requests"].values()) < 100
    assert summary["worst"] == "Nothing is open, and everything could be compared."
    assert summary["completeness"]["stored"] > 0
    [png] = re.findall(r"data:image/png;base64,([^)]+)\)", summary["overview"])
    assert base64.b64decode(png).startswith(b"\x89PNG")
    # In the same hour nothing is due again, in the next one the newest part, after a round everything.
    assert fleet.run().success
    fleet.later(hours=1)
    assert fleet.run().success
    fleet.later(days=30)
    assert fleet.run().success
    depths = [row["depth"] for row in fleet.results()]
    assert sorted(depths[:12]) == ["details"] * 6 + ["listing"] * 6
    assert sorted(depths[-12:]) == ["details"] * 6 + ["listing"] * 6
    # Each hour of the clock compares the newest part once; the tests may run over the end of one.
    hours = {1} if hour_of(datetime.now(UTC)) == hour_of(began) else {1, 2}
    assert depths[12:-12] in [["listing"] * 6 * hour for hour in hours]


def test_damage_is_found_repaired_by_the_scheduler_and_closed_by_the_next_run(fleet: Fleet) -> None:
    site = fleet.forge.site
    site.execute("DELETE FROM scm.mrs WHERE iid = 2")
    site.execute("UPDATE scm.review_events SET body = 'x' WHERE mr_iid = 4 AND NOT is_system")
    site.execute("UPDATE scm.svn_revisions SET author_raw = 'x' WHERE rev_num = 7")
    site.execute(
        "DELETE FROM scm.git_commits WHERE git_commit_id = (SELECT max(git_commit_id) FROM scm.git_commits)"
    )
    done = fleet.run()
    assert done.success, done.error
    found = fleet.open()
    assert {(job_type, kind) for (job_type, _), kind in found.items()} == {
        ("merge_requests", "missing"),
        ("reviews", "changed"),
        ("revisions", "changed"),
        ("commits", "missing"),
    }
    jobs = site.rows(
        "SELECT trigger, actor, mode, only_differences FROM scm.sync_jobs WHERE status = 'pending'"
    )
    assert (
        jobs == [{"trigger": "sensor", "actor": "reconcile", "mode": "repair", "only_differences": True}] * 4
    )
    summary = fleet.summary()
    assert (summary["open_differences"], summary["repairs_queued"], summary["escalated"]) == (
        len(found),
        4,
        0,
    )
    assert summary["worst"].count("\n") == 5
    fleet.repair()
    assert fleet.open() == found, "what was repaired is looked at before it is closed"
    assert fleet.run().success
    assert fleet.open() == {}
    assert fleet.summary()["open_differences"] == 0
    assert site.rows("SELECT FROM scm.mrs WHERE iid = 2") != []
    assert site.rows("SELECT author_raw FROM scm.svn_revisions WHERE author_raw = 'x'") == []
    outcomes = site.rows("SELECT DISTINCT outcome FROM scm.discrepancies")
    assert outcomes == [{"outcome": "healed"}]


def test_a_deletion_becomes_a_tombstone_after_two_looks_and_the_delay(fleet: Fleet) -> None:
    forge = fleet.forge
    project = forge.project(fleet.project)
    forge.gitlab.delete_merge_request(project, project.merge_requests[3])
    alive = "SELECT FROM scm.mrs WHERE iid = 3 AND deleted_at IS NULL"
    assert fleet.run().success
    assert fleet.open()["merge_requests", "3"] == "extra"
    # Who approved and who was asked are members of sets, which are read again at once.
    repairs = forge.site.rows("SELECT job_type FROM scm.sync_jobs WHERE mode = 'repair'")
    assert repairs == [{"job_type": "reviews"}]
    fleet.repair()
    fleet.later(hours=2)
    assert fleet.run().success
    summary = fleet.summary()
    assert summary["open_differences"] >= summary["waiting_for_deletion"] > 0
    assert forge.site.rows(alive) != []
    fleet.later(hours=5)
    assert fleet.run().success
    fleet.repair()
    assert forge.site.rows(alive) == []
    assert fleet.run().success
    assert fleet.open() == {}
    assert fleet.summary()["tombstones"] > 0


def test_a_source_that_is_down_is_inconclusive_and_no_failure_of_the_run(fleet: Fleet) -> None:
    forge = fleet.forge
    forge.gitlab.faults.add(
        r"/projects/", faults.json_answer(400, {"message": "400 Bad request"}), times=None
    )
    done = fleet.run()
    assert done.success, done.error
    summary = fleet.summary()
    assert 3 <= summary["inconclusive"] <= 6, "then the server is left alone"
    [server] = summary["not_answering"]
    assert server.startswith("127.0.0.1")
    assert summary["worst"].count("400") >= 3
    assert {row["status"] for row in fleet.results() if row["repo_id"] == fleet.svn} == {"clean"}
    assert fleet.open() == {}


def test_an_old_visit_is_made_anew_and_its_day_shown(fleet: Fleet) -> None:
    forge = fleet.forge
    forge.site.execute("UPDATE scm.sync_watermarks SET visited_at = visited_at - interval '1 hour'")
    request = forge.project(fleet.project).merge_requests[1]
    edited = datetime.now(UTC) - timedelta(minutes=5)
    forge.gitlab.clock.fixed = edited
    forge.gitlab.edit(request, title="Edited")
    forge.gitlab.clock.fixed = None
    done = fleet.run()
    assert done.success, done.error
    assert fleet.open() == {}
    assert {row["status"] for row in fleet.results()} == {"clean"}
    # One day, and two where midnight passed meanwhile.
    days = {edited.date().isoformat(), datetime.now(UTC).date().isoformat()}
    assert set(done.materialized["merge_requests"]) <= days
    assert done.materialized["merge_requests"]
    visits = forge.site.rows(
        "SELECT job_type FROM scm.sync_jobs WHERE mode = 'incremental' AND actor = 'reconcile' "
        "AND repo_id = %(id)s ORDER BY job_type",
        id=fleet.project,
    )
    assert [row["job_type"] for row in visits] == ["merge_requests", "reviews"], "once together"


def test_no_more_requests_are_sent_than_the_hour_has(fleet: Fleet) -> None:
    site = fleet.forge.site
    site.settings = site.settings.model_copy(update={"sweep_requests": 60})
    fleet.forge.asked()
    assert fleet.run().success
    sent = len(fleet.forge.asked())
    summary = fleet.summary()
    [instance] = [name for name in summary["requests"] if name != "local"]
    assert summary["requests"][instance] == sent <= 60
    hour = "SELECT date_trunc('hour', now()) AS hour, date_trunc('hour', max(compared_at)) AS last"
    [before] = site.rows(f"{hour} FROM scm.reconciliations")
    assert fleet.run().success
    more = len(fleet.forge.asked())
    # Each hour of the clock has its own requests; the tests may run over the end of one.
    if site.rows(f"{hour} FROM scm.reconciliations") == [before]:
        assert fleet.summary()["requests"][instance] == sent + more <= 60
    assert more <= 60


def test_sweeps_that_are_switched_off_compare_nothing(fleet: Fleet) -> None:
    site = fleet.forge.site
    site.settings = site.settings.model_copy(update={"sweep_enabled": False})
    before = len(fleet.forge.gitlab.journal.entries)
    assert fleet.run().success
    assert (fleet.results(), len(fleet.forge.gitlab.journal.entries)) == ([], before)
    assert fleet.summary()["turns"] == 0
