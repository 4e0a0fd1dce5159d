"""Planning and working without a daemon: what a plan leaves behind, and what workers take from it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql
from pydantic import SecretStr

from sync_pipeline.admin import pauses
from sync_pipeline.cli import reports
from sync_pipeline.core.errors import Cancelled, ConfigurationError
from sync_pipeline.core.model import (
    DecisionReason,
    JobStatus,
    JobType,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
)
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import breakers, heartbeats, jobs, planning, repos
from sync_pipeline.reports.status import status
from sync_pipeline.scheduling import dispatch
from sync_pipeline.scheduling.worker import Worker
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register, register_project, register_source, request

SETTINGS = Settings(max_wait_seconds=0.2, worker_poll_interval=1, chunk_revisions=10)


@dataclass
class Fleet:
    """Three small repositories in a database."""

    database: Database
    repos: list[int]

    def rows(self, query: str, **params: Any) -> list[dict[str, Any]]:
        with self.database.connection() as conn:
            return conn.execute(query, params).fetchall()

    def jobs(self) -> list[tuple[str, str]]:
        query = "SELECT mode, status FROM scm.sync_jobs ORDER BY repo_id, created_at"
        return [(row["mode"], row["status"]) for row in self.rows(query)]

    def failed_runs(self, number: int, code: str = "connection", *, of: Sequence[int] = ()) -> None:
        """The latest runs failed, those of these repositories in turn."""
        with self.database.connection() as conn:
            backfill = replace(request(self.repos[0]), mode=Mode.BACKFILL, window=RevisionWindow(1, 2))
            job_id = jobs.enqueue(conn, backfill)
            conn.execute(
                "INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, worker, status,"
                " started_at, finished_at, error_code, error, code_version)"
                " SELECT %(job_id)s, n, (%(of)s::bigint[])[1 + mod(n, cardinality(%(of)s))], 'revisions',"
                " 'backfill', 'w', 'failed', now() - interval '2 minutes',"
                " now() - make_interval(secs => 100 - n), %(code)s, 'no', '0'"
                " FROM generate_series(1, %(number)s::int) AS n",
                {"job_id": job_id, "of": list(of or self.repos), "number": number, "code": code},
            )
            conn.execute("UPDATE scm.sync_jobs SET status = 'dead', finished_at = now()")


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("fleet")
    for name in ("a", "b", "c"):
        svn_samples.create(folder / name, svn_samples.growing(12, paths=1))
    return [folder / name for name in ("a", "b", "c")]


@pytest.fixture
def fleet(database: Database, paths: list[Path]) -> Iterator[Fleet]:
    with database.connection() as conn:
        yield Fleet(database, [register_source(conn, target) for target in paths])


def plan(fleet: Fleet, settings: Settings = SETTINGS, **changes: Any) -> dispatch.Round:
    return dispatch.dispatch(fleet.database, settings, **changes)


def admin_connection(url: str) -> psycopg.Connection[Any]:
    """A connection to another database of the same server."""
    return psycopg.connect(conninfo.make_conninfo(url, dbname="postgres"), autocommit=True)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def work(fleet: Fleet, settings: Settings = SETTINGS) -> tuple[int, int]:
    return Worker(fleet.database, settings).run(threading.Event(), once=True)


def test_what_a_scheduler_hands_out_a_worker_does(fleet: Fleet) -> None:
    assert len(plan(fleet).started) == 3
    assert work(fleet) == (3, 0)
    assert fleet.jobs() == [("incremental", "completed")] * 3
    # Nothing is due, and nothing is left.
    assert plan(fleet).started == []
    assert work(fleet) == (0, 0)


def test_a_dry_run_explains_everything_and_leaves_nothing_behind(fleet: Fleet) -> None:
    found = plan(fleet, dry_run=True)
    names = {repo_id: f"repo {repo_id}" for repo_id in fleet.repos}
    document = dispatch.document(found, SETTINGS, names)
    assert {d["repo"] for d in document["decisions"]} == set(names.values())
    assert {(d["chosen"], d["reason"]) for d in document["decisions"]} == {(True, "never_visited")}
    assert json.dumps(document, default=str)
    assert fleet.jobs() == []
    assert fleet.rows("SELECT 1 FROM scm.breakers") == fleet.rows("SELECT 1 FROM scm.tenant_fairness") == []


def test_each_job_says_why_it_was_started_and_what_the_budget_was(fleet: Fleet) -> None:
    plan(fleet, SETTINGS.model_copy(update={"scheduler_max_enqueue_per_scan": 2}))
    [first, _] = fleet.rows("SELECT reason, decision FROM scm.sync_jobs")
    assert first["decision"]["reason"] == first["reason"] == "never_visited"
    assert first["decision"]["budget"]["caps"]["per_scan"] == 2
    assert first["decision"]["budget"]["started"] == 2
    assert (first["decision"]["breaker"], first["decision"]["tenant"]) == ("closed", "acme")
    assert fleet.rows("SELECT tenant FROM scm.tenant_fairness") == [{"tenant": "acme"}]


def test_what_was_handed_out_is_not_handed_out_again(fleet: Fleet) -> None:
    assert len(plan(fleet).started) == 3
    again = plan(fleet)
    assert again.started == []
    assert again.plan is not None
    assert {d.reason for d in again.plan.decisions} == {DecisionReason.IN_FLIGHT}
    # If no worker took it, somebody else may start it after a while.
    fleet.rows("UPDATE scm.sync_jobs SET dispatched_at = now() - interval '11 minutes' RETURNING 1")
    assert len(plan(fleet).started) == 3


def test_a_second_scheduler_at_the_same_moment_does_nothing(fleet: Fleet) -> None:
    with fleet.database.connection() as conn, conn.transaction():
        assert planning.try_lock_scheduler(conn)
        assert plan(fleet).summary() == "another scheduler is at work"
    assert fleet.jobs() == []


def test_workers_side_by_side_do_each_job_once(fleet: Fleet) -> None:
    plan(fleet)
    threads = [threading.Thread(target=work, args=(fleet,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    runs = fleet.rows("SELECT repo_id, status FROM scm.sync_runs ORDER BY repo_id")
    assert [(run["repo_id"], run["status"]) for run in runs] == [(r, "completed") for r in fleet.repos]


def test_a_worker_takes_only_what_its_pool_takes(fleet: Fleet) -> None:
    plan(fleet)
    for allowlist in (
        {"worker_instance_allowlist": ("svn.example",)},
        {"worker_tenant_allowlist": ("other",)},
        {"worker_job_type_allowlist": (JobType.COMMITS,)},
    ):
        assert work(fleet, SETTINGS.model_copy(update=allowlist)) == (0, 0)
    assert work(fleet, SETTINGS.model_copy(update={"worker_tenant_allowlist": ("acme",)})) == (3, 0)


def test_a_worker_that_is_stopped_gives_back_what_it_has_not_done(fleet: Fleet) -> None:
    plan(fleet)
    stop = threading.Event()
    stop.set()
    with fleet.database.connection() as conn:
        [waiting, *_] = planning.dispatched_requests(
            conn, instances=(), tenants=(), job_types=(), gitlabs=(), limit=9
        )
    with pytest.raises(Cancelled):
        Syncer(fleet.database, SETTINGS).run(waiting, cancel=stop)
    assert Worker(fleet.database, SETTINGS).run(stop, once=True) == (0, 0)
    assert fleet.jobs() == [("incremental", "pending")] * 3
    # A stop is no attempt: nothing was lost by it.
    assert fleet.rows("SELECT DISTINCT max_attempts - attempts AS left FROM scm.sync_jobs") == [{"left": 3}]


def test_what_was_paused_after_it_was_handed_out_holds_up_nothing_behind_it(fleet: Fleet) -> None:
    plan(fleet)
    for repo in fleet.repos[:2]:
        target = pauses.PauseTarget(repo=str(repo))
        pauses.pause(fleet.database, target, seconds=None, actor="ada", reason="x")
    one = SETTINGS.model_copy(update={"parallel_repositories": 1})
    done, _ = work(fleet, one)
    assert done == 3
    assert [status for _, status in fleet.jobs()] == ["pending", "pending", "completed"]
    # It is the scheduler's again, which knows of the pause.
    assert fleet.rows("SELECT 1 FROM scm.sync_jobs WHERE dispatched_at IS NOT NULL") == []
    assert plan(fleet).started == []


def test_a_worker_that_goes_leaves_to_the_scheduler_what_nobody_took(fleet: Fleet) -> None:
    assert len(plan(fleet).started) == 3
    stop = threading.Event()
    stop.set()
    assert Worker(fleet.database, SETTINGS).run(stop) == (0, 0)
    assert len(plan(fleet).started) == 3


def test_a_breaker_that_opens_takes_back_what_was_handed_out(fleet: Fleet) -> None:
    assert len(plan(fleet).started) == 3
    fleet.failed_runs(6)
    fleet.rows(
        "UPDATE scm.sync_jobs SET status = 'pending', finished_at = NULL WHERE mode = 'incremental'"
        " RETURNING 1"
    )
    assert [b.state for b in plan(fleet).plan.breakers] == ["open"]  # type: ignore[union-attr]
    assert work(fleet) == (0, 0)


def test_what_was_handed_to_workers_that_do_not_live_is_planned_anew(fleet: Fleet) -> None:
    plan(fleet)
    fleet.rows("UPDATE scm.sync_jobs SET dispatched_at = dispatched_at - interval '2 minutes' RETURNING 1")
    assert len(plan(fleet).started) == 3
    fleet.rows("UPDATE scm.sync_jobs SET dispatched_at = dispatched_at - interval '2 minutes' RETURNING 1")
    with fleet.database.connection() as conn:
        heartbeats.beat(conn, dispatch.WORKER, seconds=1.0, outcome="busy", every=60.0)
    assert plan(fleet).started == []


def test_a_worker_leaves_to_others_what_it_has_no_token_for(fleet: Fleet) -> None:
    known = SETTINGS.model_copy(update={"gitlab_url": "https://git.example", "gitlab_token": SecretStr("t")})
    with fleet.database.connection() as conn:
        project = register_project(
            conn, "https://git.example", 1, "a/b", origin=datetime(2024, 1, 1, tzinfo=UTC)
        )
    assert len(plan(fleet, known).started) > 3
    assert work(fleet) == (3, 0)
    left = "SELECT DISTINCT status, attempts FROM scm.sync_jobs WHERE repo_id = %(repo)s"
    assert fleet.rows(left, repo=project) == [{"status": "pending", "attempts": 0}]


def test_a_worker_waits_for_a_database_that_is_away(fleet: Fleet) -> None:
    plan(fleet)
    stop = threading.Event()
    name, control = fleet.rows("SELECT current_database() AS name")[0]["name"], fleet.database.url
    ended: list[tuple[int, int]] = []
    quick = SETTINGS.model_copy(update={"worker_poll_interval": 0.2})
    with Database(control, timeout=0.5) as own, admin_connection(control) as admin:
        access = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(access.format(sql.Identifier(name), sql.SQL("false")))
        worker = threading.Thread(target=lambda: ended.append(Worker(own, quick).run(stop)))
        worker.start()
        worker.join(1.5)
        assert worker.is_alive()
        admin.execute(access.format(sql.Identifier(name), sql.SQL("true")))
        wait_until(lambda: [status for _, status in fleet.jobs()] == ["completed"] * 3)
        stop.set()
        worker.join(120)
    assert ended == [(3, 0)]


def test_a_moment_that_python_has_no_form_for_stops_nobody_else(fleet: Fleet) -> None:
    for name, column in (("repos", "created_at"), ("sync_watermarks", "visited_at")):
        with fleet.database.connection() as conn:
            conn.execute(
                sql.SQL("UPDATE {} SET {} = 'infinity' WHERE repo_id = %(repo)s").format(
                    sql.Identifier("scm", name), sql.Identifier(column)
                ),
                {"repo": fleet.repos[0]},
            )
    target = pauses.PauseTarget(instance="local", job_type=JobType.REVISIONS)
    pauses.pause(fleet.database, target, seconds=60, actor="ada", reason="x")
    fleet.rows("UPDATE scm.pauses SET until = 'infinity' RETURNING 1")
    assert plan(fleet).started == []
    (found,) = pauses.listing(fleet.database)["pauses"]
    assert f"{found['until']:%Y}" == "9000"
    fleet.rows("UPDATE scm.pauses SET until = '-infinity' RETURNING 1")
    assert {d.repo_id for d in plan(fleet).started} == set(fleet.repos[1:])


def test_a_breaker_is_stored_at_every_edge_and_a_restart_forgets_nothing(fleet: Fleet) -> None:
    fleet.failed_runs(6)
    found = plan(fleet)
    assert found.started == []
    assert found.plan is not None
    assert {d.reason for d in found.plan.decisions} >= {DecisionReason.BREAKER_OPEN}
    [row] = [
        row
        for row in pauses.breaker_listing(fleet.database, SETTINGS)["breakers"]
        if row["scope"] == "instance"
    ]
    assert (row["key"], row["state"], row["failure_rate"]) == ("local", "open", 1.0)
    # Nothing but time goes by: it is tried, and what succeeds closes it.
    fleet.rows("UPDATE scm.breakers SET opened_at = opened_at - interval '6 minutes' RETURNING 1")
    probes = plan(fleet)
    assert {d.reason for d in probes.started} == {DecisionReason.PROBE}
    assert len(probes.started) == SETTINGS.breaker.probe_budget_per_interval
    assert work(fleet) == (2, 0)
    assert len(plan(fleet).started) == 1
    events = fleet.rows("SELECT old_state, new_state FROM scm.breaker_events ORDER BY event_id")
    assert [(e["old_state"], e["new_state"]) for e in events] == [
        ("closed", "open"),
        ("open", "half_open"),
        ("half_open", "closed"),
    ]


def test_a_breaker_that_is_switched_off_holds_nothing_back_and_keeps_its_state(fleet: Fleet) -> None:
    fleet.failed_runs(6)
    assert plan(fleet).started == []
    off = SETTINGS.model_copy(update={"cb_enabled": False, "scheduler_error_budget_threshold": 1.0})
    fleet.rows("UPDATE scm.sync_runs SET finished_at = finished_at - interval '10 minutes' RETURNING 1")
    assert len(plan(fleet, off, dry_run=True).started) == 3
    listed = pauses.breaker_listing(fleet.database, off)
    assert listed["enabled"] is False
    assert [one["state"] for one in listed["breakers"] if one["scope"] == "instance"] == ["open"]
    report = status(fleet.database, off)
    assert report["breakers"] == []
    assert list(report["switched_off"]) == ["cb_enabled"]
    assert [asset["held_back"] for asset in report["units"]] == [{}] * 3
    assert next(reports.status_obstacles(report)).startswith("switched off: cb_enabled is false: ")
    # Switched on again it goes on where it was.
    assert plan(fleet, dry_run=True).started == []
    assert status(fleet.database, SETTINGS)["switched_off"] == {}


def test_a_reset_closes_a_breaker_and_says_who_did_it(fleet: Fleet) -> None:
    fleet.failed_runs(6)
    plan(fleet)
    before = pauses.reset_breaker(
        fleet.database, "instance", "local", actor="ada", reason="the cable was loose"
    )
    assert before == "open"
    assert len(plan(fleet).started) == 3
    with fleet.database.connection() as conn:
        assert breakers.events(conn, 1)[0]["actor"] == "ada"
    with pytest.raises(ConfigurationError, match="no breaker instance nowhere"):
        pauses.reset_breaker(fleet.database, "instance", "nowhere", actor="ada", reason="x")


def test_the_breaker_of_a_pool_stops_this_pool_and_takes_back_what_it_handed_out(fleet: Fleet) -> None:
    pools = {name: SETTINGS.model_copy(update={"worker_pool": name}) for name in ("a", "b")}
    assert len(plan(fleet, pools["a"]).started) == 3
    fleet.failed_runs(6)
    # The runs so far are of the pool a; another pool has read all repositories meanwhile.
    decided = "UPDATE scm.sync_jobs SET decision = jsonb_build_object('pool', 'a')"
    fleet.rows(f"{decided} WHERE mode = 'backfill' RETURNING 1")
    fleet.rows(
        "UPDATE scm.sync_jobs SET status = 'pending', finished_at = NULL WHERE mode <> 'backfill' RETURNING 1"
    )
    syncer = Syncer(fleet.database, pools["b"])
    for repo in fleet.repos:
        report = syncer.run(replace(request(repo), mode=Mode.BACKFILL, window=RevisionWindow(1, 5)))
        assert report.succeeded
    fleet.rows('UPDATE scm.sync_jobs SET decision = \'{"pool": "b"}\' WHERE decision IS NULL RETURNING 1')
    stopped = plan(fleet, pools["a"])
    assert stopped.started == []
    listed = pauses.breaker_listing(fleet.database, SETTINGS)["breakers"]
    assert [(one["scope"], one["key"]) for one in listed if one["state"] == "open"] == [("pool", "a")]
    [opened] = [one for one in listed if one["state"] == "open"]
    assert opened["errors"] == [{"code": "connection", "runs": 6}]
    assert fleet.rows("SELECT 1 FROM scm.sync_jobs WHERE dispatched_at IS NOT NULL") == []
    assert len(plan(fleet, pools["b"]).started) == 3
    assert pauses.reset_breaker(fleet.database, "pool", "a", actor="ada", reason="cable") == "open"


class TestAPause:
    """Nothing is planned, and nothing claimed either: not by a worker, not by a person."""

    def pause(self, fleet: Fleet, **changes: Any) -> int:
        target = pauses.PauseTarget(**({"instance": "local"} | changes))
        made = pauses.pause(fleet.database, target, seconds=60, actor="ada", reason="upgrade")
        return int(made["id"])

    def test_holds_at_the_plan_and_ends(self, fleet: Fleet) -> None:
        number = self.pause(fleet)
        assert plan(fleet).summary() == "0 jobs dispatched; held back: 3 paused"
        pauses.resume(fleet.database, number, actor="ada")
        assert len(plan(fleet).started) == 3

    @pytest.mark.parametrize(
        ("target", "claimed"),
        [
            ({}, 0),
            ({"job_type": JobType.REVISIONS}, 0),
            ({"instance": None, "tenant": "acme"}, 0),
            ({"instance": None}, 0),
            ({"job_type": JobType.COMMITS}, 3),
        ],
    )
    def test_holds_at_the_claim(self, fleet: Fleet, target: dict[str, Any], claimed: int) -> None:
        plan(fleet)
        self.pause(fleet, **target)
        done = [Syncer(fleet.database, SETTINGS).run(request(repo)) for repo in fleet.repos]
        assert sum(report.succeeded for report in done) == claimed
        for report in done:
            if not report.succeeded:
                assert (report.error_code, report.job_status) == ("paused", JobStatus.PENDING)
                assert "ada paused this" in str(report.error)

    def test_of_one_repository_leaves_the_others(self, fleet: Fleet) -> None:
        self.pause(fleet, instance=None, repo=str(fleet.repos[1]))
        assert {d.repo_id for d in plan(fleet).started} == {fleet.repos[0], fleet.repos[2]}

    def test_is_made_once_and_of_what_there_is(self, fleet: Fleet) -> None:
        self.pause(fleet)
        for target, words in (
            ({}, "paused already"),
            ({"instance": "nowhere"}, "no repository is at nowhere; there are local"),
            ({"instance": None, "tenant": "x"}, "no repository is of the tenant x"),
            ({"instance": None, "repo": "77"}, "77"),
            ({"instance": None, "repo": str(fleet.repos[0]), "job_type": JobType.COMMITS}, "no commits"),
        ):
            with pytest.raises(ConfigurationError, match=words):
                self.pause(fleet, **target)


def test_no_more_are_at_work_than_the_cap_says_whoever_claims(fleet: Fleet) -> None:
    one = SETTINGS.model_copy(update={"scheduler_max_running": 1, "max_wait_seconds": 0.0})
    plan(fleet)
    with fleet.database.connection() as conn:
        job_id = jobs.enqueue(conn, request(fleet.repos[0]))
        held = jobs.claim(conn, job_id, worker="w", process="p", length=60, dagster_run_id=None)
        assert held is not None
    planned = replace(request(fleet.repos[1]), trigger=Trigger.WORKER)
    refused = Syncer(fleet.database, one).run(planned)
    assert (refused.error_code, refused.job_status) == ("lease_held", JobStatus.PENDING)
    assert "scheduler_max_running" in str(refused.error)
    # Another window of the same repository is work of its own.
    window = replace(planned, repo_id=fleet.repos[0], mode=Mode.BACKFILL, window=RevisionWindow(1, 2))
    with fleet.database.connection() as conn:
        other = jobs.enqueue(conn, replace(window, window=RevisionWindow(2, 3)))
        assert jobs.claim(conn, other, worker="w", process="p", length=60, dagster_run_id=None)
    two = one.model_copy(update={"scheduler_max_running": 2})
    assert Syncer(fleet.database, two).run(window).error_code == "lease_held"
    # What a person asks for finds room.
    assert Syncer(fleet.database, one).run(replace(planned, trigger=Trigger.RUNNER)).succeeded


def test_a_source_in_trouble_is_read_in_smaller_pieces_and_the_run_says_so(fleet: Fleet) -> None:
    fleet.failed_runs(3, "timeout", of=fleet.repos[:1])
    later = "UPDATE scm.sync_runs SET finished_at = finished_at - interval '10 minutes',"
    fleet.rows(later + " started_at = started_at - interval '10 minutes' RETURNING 1")
    found = plan(fleet, SETTINGS.model_copy(update={"cb_min_samples": 50}))
    assert {d.reason for d in found.started if d.repo_id == fleet.repos[0]} == {DecisionReason.PROBE}
    assert work(fleet)[1] == 0
    runs = fleet.rows(
        "SELECT repo_id, batches, inserted, degradation FROM scm.sync_runs WHERE status = 'completed'"
        " ORDER BY repo_id"
    )
    # Ten revisions a chunk, and an eighth of that after three time-outs; the same rows are read.
    assert [(run["batches"], run["inserted"]) for run in runs] == [(12, 12), (2, 12), (2, 12)]
    assert [run["degradation"] and run["degradation"]["reasons"] for run in runs] == [
        ["slow answers"],
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("visited", "died", "next_visit"),
    [(700, (30,), -25), (700, (2,), 3), (700, (240, 30), 30), (20, (240, 10), -5), (None, (25, 10), 5)],
)
def test_what_died_is_looked_at_again_after_as_long_as_it_has_not_worked(
    fleet: Fleet, visited: int | None, died: tuple[int, ...], next_visit: int
) -> None:
    """In minutes: jobs that died before the last visit that succeeded do not count."""
    with fleet.database.connection() as conn:
        for ago in died:
            job_id = jobs.enqueue(conn, request(fleet.repos[0]))
            conn.execute(
                "UPDATE scm.sync_jobs SET status = 'dead', last_error_code = 'bad_request',"
                " created_at = now() - make_interval(mins => %(ago)s),"
                " finished_at = now() - make_interval(mins => %(ago)s) WHERE job_id = %(job_id)s",
                {"job_id": job_id, "ago": ago},
            )
        conn.execute(
            "UPDATE scm.sync_watermarks SET visited_at = now() - make_interval(mins => %(ago)s::int)",
            {"ago": visited},
        )
    found = plan(fleet, dry_run=True)
    assert found.plan is not None
    [decision] = [one for one in found.plan.decisions if one.repo_id == fleet.repos[0]]
    if next_visit <= 0:
        assert (decision.chosen, decision.reason) == (True, DecisionReason.REPROBE)
    else:
        assert decision.reason is DecisionReason.DEAD
        assert decision.until is not None
        assert found.now is not None
        assert round((decision.until - found.now).total_seconds() / 60) == next_visit


def test_a_repository_without_a_server_disables_itself_and_nothing_else(fleet: Fleet) -> None:
    with fleet.database.connection() as conn:
        broken = register(conn, "broken")
    plan(fleet)
    assert work(fleet) == (4, 1)
    status = "SELECT repo_id, status FROM scm.sync_jobs ORDER BY repo_id"
    found = {row["repo_id"]: row["status"] for row in fleet.rows(status)}
    assert [found[repo] for repo in fleet.repos] == ["completed"] * 3
    assert found[broken] in ("failed", "dead")


def test_a_long_backfill_is_handed_out_in_pieces_and_no_day_of_it_is_lost(database: Database) -> None:
    settings = SETTINGS.model_copy(
        update={
            "gitlab_url": "https://git.test",
            "gitlab_token": SecretStr("t"),
            "scheduler_max_backfill_window_hours": 168.0,
        }
    )
    whole = TimeWindow(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC))
    with database.connection() as conn:
        repo = register_project(conn, "https://git.test", 7, "a/b", origin=whole.until)
        repos.begin_history(conn, whole.since.date(), settings.gitlab.history_floor)
        for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS):
            job_request = replace(request(repo), job_type=job_type, mode=Mode.BACKFILL, window=whole)
            jobs.enqueue(conn, job_request)
        fleet, rounds = Fleet(database, [repo]), 0
        while started := [d for d in plan(fleet, settings).started if d.mode is Mode.BACKFILL]:
            rounds += 1
            assert len({d.window for d in started}) == 1, "what is read together stays together"
            handed = planning.dispatched_requests(
                conn, instances=(), tenants=(), job_types=(), gitlabs=["git.test"], limit=100
            )
            assert {r.window for r in handed if r.mode is Mode.BACKFILL} == {d.window for d in started}
            conn.execute(
                "UPDATE scm.sync_jobs SET status = 'completed', finished_at = now(), dispatched_at = NULL"
                " WHERE dispatched_at IS NOT NULL AND mode = 'backfill'"
            )
        [row] = conn.execute(
            "SELECT range_agg(period)::text AS periods, count(*) AS jobs, max(upper(period) - lower(period))"
            " AS longest FROM scm.sync_jobs WHERE job_type = 'reviews' AND mode = 'backfill'"
        ).fetchall()
    assert (rounds, row["jobs"], row["longest"]) == (5, 5, timedelta(days=7))
    assert row["periods"] == '{["2026-01-01 00:00:00+00","2026-01-31 00:00:00+00")}'
