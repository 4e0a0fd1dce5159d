"""The doctor: what it says of a healthy place, of each thing that can be broken, and that it always ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sync_pipeline.core.model import BEGINNING, Kind
from sync_pipeline.database import diagnosis, migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import credentials, heartbeats, pools, repos
from sync_pipeline.ledger import servers as server_failures
from sync_pipeline.ledger.heartbeats import Heartbeat
from sync_pipeline.registry import registration
from sync_pipeline.reports import doctor, health
from sync_pipeline.reports.doctor import CHECKS, Finding, State, findings, local, servers
from sync_pipeline.reports.doctor import database as database_checks
from sync_pipeline.reports.doctor.database import evaluate_version
from sync_pipeline.reports.doctor.findings import DAGSTER_CHECKS, GITLAB_CHECKS
from sync_pipeline.reports.reasons import HealthReason, remedy
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import SWITCHES, GitLabServer, GitLabTable, Settings
from sync_pipeline.sources.gitlab.project import TokenInfo
from sync_pipeline.sync.readers import Readers
from sync_pipeline_sandbox.gitlab import RateLimit, Server, faults
from sync_pipeline_tests.builders import register, register_project, register_source
from sync_pipeline_tests.conftest import ENVIRONMENT, database_of
from sync_pipeline_tests.gitlab_site import START, Site
from sync_pipeline_tests.svn_fixtures import SvnRepository, SvnServers, free_port

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
SECRET = "hunter2-never-shown"
OK, WARNING, FAILED, SKIPPED = State


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder and a state folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SCM_ENVIRONMENT", ENVIRONMENT)


def no_dagster(settings: Settings, database_url: str | None) -> dict[str, Finding]:
    """In place of the checks of Dagster, which are tested where they are."""
    return dict.fromkeys(DAGSTER_CHECKS, doctor.skipped("not looked at"))


def examined() -> list[Finding]:
    found = list(doctor.examine(no_dagster))
    assert {one.check for one in found} == set(CHECKS), "every check has a result"
    assert SECRET not in json.dumps(doctor.document(found))
    for one in found:
        assert (one.remedy != "") == (one.state in (WARNING, FAILED)), one
        assert "\n" not in one.seen + one.remedy
    return found


def of(found: Sequence[Finding], check: str) -> Finding:
    (one,) = [one for one in found if one.check == check]
    return one


def findings_of(site: Site, url: str | None = None, token: str | None = None) -> dict[str, Finding]:
    """The checks of one GitLab, at its own time."""
    (server,) = site.settings.gitlab_servers()
    secret = server.token() if token is None else token
    asked = GitLabServer(url or server.url, lambda: secret, server.ca_file)
    found = servers.GitLabChecks(asked, None, now=lambda: START).run()
    assert tuple(found) == GITLAB_CHECKS
    assert not secret or secret not in str(found)
    return found


# All that there is was read just now.
READ = """
UPDATE scm.sync_watermarks
   SET verified_at = now(), visited_at = now(),
       covered_time = tstzmultirange(tstzrange(%(beginning)s, origin_time + interval '1 day'))
 WHERE origin_time IS NOT NULL
"""


# The whole ----------------------------------------------------------------------------------------------


def test_the_page_names_every_check_in_its_order() -> None:
    text = (DOCS / "doctor.md").read_text()
    table = text.partition("## The checks")[2].partition("## The document")[0]
    assert re.findall(r"(?m)^\| (\w+) \| ", table)[1:] == list(CHECKS)


def test_a_place_where_all_is_well(
    database: Database,
    site: Site,
    svn_repository: Callable[..., SvnRepository],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site.gitlab.clock.fixed = None
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_GITLAB_URL", site.server.url)
    monkeypatch.setenv("SCM_GITLAB_TOKEN", site.gitlab.token(site.user).secret)
    with database.connection() as conn:
        register_project(conn, site.server.url, site.project.id, "platform/api", origin=START)
        register_source(conn, svn_repository().path)
        conn.execute(READ, {"beginning": BEGINNING})
        heartbeats.beat(conn, "scheduler", seconds=0.1, outcome="nothing is due")
        heartbeats.beat(conn, "up", seconds=0.02, outcome="the code server answers", every=15)
        pools.seen(conn, "default", instances=(), tenants=(), job_types=())
    settings = Settings()
    registration.export_catalog(database, settings)
    waited: list[Sequence[str]] = []
    found = list(doctor.examine(no_dagster, waited.append))
    assert {(one.check, one.seen) for one in found if one.state in (WARNING, FAILED)} == set()
    assert {one.check for one in found if one.state is OK} == {*CHECKS} - {*DAGSTER_CHECKS, "certificate"}
    assert "database" in waited[0]
    assert site.instance in waited[-1] or any(site.instance in names for names in waited)
    document = doctor.document(found)
    assert document["exit_code"] == 0
    assert document["counts"]["failed"] == document["counts"]["warning"] == 0
    assert [one["check"] for one in document["checks"]] == sorted(
        (one.check for one in found), key=CHECKS.index
    )
    assert len(site.asked()) <= 4


def test_what_is_wrong_with_an_asset_is_said_in_the_words_of_every_report(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn, "paint")
        server_failures.record_failure(conn, "local", Kind.SVN, "connection", "svn://x cannot be reached")
        results = health.read(conn, timedelta(hours=1), Credentials(frozenset(), {}, {}))
        repository = repos.get(conn, repo_id)
    (finding,) = local.assets(results, [repository])
    assert finding.state is WARNING
    assert finding.seen == (
        "unreachable: 1 asset, such as svn:file:///srv/paint revisions: svn://x cannot be reached"
    )
    assert finding.remedy == remedy("unreachable", repository.spec)
    assert local.assets([], [])[0].state is OK


def test_the_remedy_of_a_dead_job_names_the_reason_to_remove_first(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn, "paint")
        (result,) = health.read(conn, timedelta(hours=1), Credentials(frozenset(), {}, {}))
        repository = repos.get(conn, repo_id)
    reasons = HealthReason.DENIED, HealthReason.FAILED_WINDOW
    detail = {str(reason): "403" for reason in reasons}
    result = replace(result, health=health.Health(False, reasons, detail))
    denied, failed_window = local.assets([result], [repository])
    assert denied.remedy == remedy("denied", repository.spec)
    assert failed_window.remedy == "first remove the reason denied"


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    well, nothing = doctor.ok("x"), doctor.skipped("x")
    little, much = doctor.warning("x", "y"), doctor.failed("x", "y")
    assert [doctor.exit_code(one) for one in ([], [well, nothing], [little, well], [little, much])] == [
        0,
        0,
        1,
        2,
    ]


def test_nothing_at_all_is_told_with_a_way_on(tmp_path: Path) -> None:
    found = examined()
    assert (of(found, "database").state, of(found, "database").remedy) == (FAILED, "run: scm-sync db migrate")
    assert doctor.exit_code(found) == 2
    assert not (tmp_path / "state").exists(), "looking changes nothing"


def test_a_task_that_hangs_or_breaks_keeps_nobody_waiting() -> None:
    release = threading.Event()

    def hang() -> Sequence[Finding]:
        release.wait(60)
        return []

    def break_down() -> Sequence[Finding]:
        raise RuntimeError(SECRET)

    tasks = [
        findings.Task(("gitlab", "gitlab_version"), hang, "dead.test"),
        findings.Task(("svn_server",), break_down, "svn.test"),
        findings.Task(("database",), lambda: doctor.ok("answers")),
    ]
    started = time.monotonic()
    found = sorted(findings.run_in_parallel(tasks, 0.3), key=lambda one: one.order)
    release.set()
    assert time.monotonic() - started < 50
    assert [(one.check, one.state) for one in found] == [
        ("database", OK),
        ("gitlab", FAILED),
        ("gitlab_version", SKIPPED),
        ("svn_server", FAILED),
    ]
    assert SECRET not in str(found)


# Settings, folders, snapshot ----------------------------------------------------------------------------


def test_an_unknown_setting_does_not_keep_the_rest_from_being_looked_at(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database_url)
    monkeypatch.setenv("SCM_STALE_AFTR", "3")
    found = examined()
    assert of(found, "settings").remedy == "did you mean SCM_STALE_AFTER_SECONDS?"
    assert of(found, "migrations").state is OK


def test_a_wrong_setting_leaves_only_what_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCM_STALE_AFTER_SECONDS", "soon")
    monkeypatch.setenv("SCM_LEASE_RENEW_SECONDS", "90")
    found = examined()
    first, second = [one for one in found if one.check == "settings"]
    assert "SCM_STALE_AFTER_SECONDS" in first.seen
    assert ("lease_renew" in second.seen, second.remedy) == (True, "see SCM_LEASE_RENEW_SECONDS")
    assert [one.check for one in found if one.state is OK] == ["svn_command"]


def test_a_file_with_a_secret_that_everybody_may_read_is_worth_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "sync_pipeline.toml"
    file.write_text(f'svn_password = "{SECRET}"\n')
    for mode, state in ((0o644, WARNING), (0o600, OK)):
        file.chmod(mode)
        (finding,), settings = local.settings_in_force()
        assert (finding.state, str(file) in finding.seen) == (state, True)
        assert SECRET not in str(finding)
        assert settings is not None


def test_what_is_switched_off_is_worth_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.setenv(f"SCM_{name.upper()}", "false")
    [first, *off], _ = local.settings_in_force()
    assert first.state is State.OK
    assert {(one.subject, one.state) for one in off} == {(name, WARNING) for name in SWITCHES}
    assert off[0].seen == "switched off: nothing is started by itself"


def test_too_little_space_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for least, none in ((0, 0), (2**62, 0), (2**62, 2**62)):
        monkeypatch.setattr(local, "LITTLE_SPACE", least)
        monkeypatch.setattr(local, "NO_SPACE", none)
        finding = local.disk_space(tmp_path / "not" / "yet")
        states.append(finding.state)
    assert states == [OK, WARNING, FAILED]


def test_the_snapshot_is_compared_with_the_database(database: Database) -> None:
    settings = Settings()
    assert local.catalog_snapshot(settings, []).state is SKIPPED
    with database.connection() as conn:
        register_project(conn, "https://git.test", 7, "platform/api", origin=START)
    known = list(registration.export_catalog(database, settings).repositories)

    def state(file: str | None = None) -> tuple[State, str]:
        if file is not None:
            settings.catalog_file.write_text(file)
        finding = local.catalog_snapshot(settings, known)
        return finding.state, finding.remedy

    again = "run: scm-sync catalog export"
    assert state() == (OK, "")
    known.append(replace(known[0], repo_id=99))
    assert state() == (WARNING, again)
    assert state('{"version": 0}') == (FAILED, again)
    assert state("{") == (FAILED, again)
    settings.catalog_file.unlink()
    assert state() == (FAILED, again)


def test_a_name_that_another_server_has_in_its_asset_keys_is_told(database: Database) -> None:
    with database.connection() as conn:
        register_project(conn, "https://git.test", 7, "platform/api", origin=START)
        known = repos.list_all(conn)  # below the alias gitlab

    def finding_of(url: str, name: str) -> tuple[State, str]:
        settings = Settings(gitlab=(GitLabTable(url=url, name=name),))
        (finding,) = local.server_names(settings, known)
        return finding.state, finding.remedy

    assert finding_of("https://git.test", "gitlab") == finding_of("https://git.test", "main") == (OK, "")
    assert finding_of("https://new.test", "gitlab") == (FAILED, "give new.test another name")
    assert local.server_names(Settings(), known)[0].state is OK


def test_silent_and_failing_sensors_are_named() -> None:
    def finding_of(age: float, outcome: str) -> tuple[State, str]:
        beats = [
            Heartbeat("scheduler", START, 0.1, outcome, age, 30),
            Heartbeat("rediscovery", START, 0.1, "x", 800, 300),
            Heartbeat("reconcile", START, 0.1, "x", 7300, 3600),
            Heartbeat("reaper_loop", START, 0.1, "tried once", 1e6),
        ]
        finding = local.sensors(beats)
        return finding.state, finding.seen

    assert finding_of(20, "nothing is due")[0] is OK
    assert finding_of(119, "nothing is due")[0] is OK
    assert finding_of(7300, "nothing is due") == (WARNING, "silent: scheduler for 2 h")
    assert finding_of(20, "failed: OSError") == (WARNING, "scheduler failed: OSError")


# Database -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "seen", "remedy"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/scm", "127.0.0.1:1/scm", "SCM_DATABASE_URL"),
        (f"postgresql://me:x@{SECRET}@127.0.0.1:1/scm", "is not a PostgreSQL URL", "@ as %40"),
        (f"postgresql://me:x/{SECRET}@127.0.0.1:1/scm", "is not a PostgreSQL URL", "/ as %2F"),
        (f"mysql://me:{SECRET}@h/scm", "is not a PostgreSQL URL", "write postgresql://"),
    ],
)
def test_a_database_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, url: str, seen: str, remedy: str
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", url)
    found = examined()
    assert of(found, "database").state is FAILED
    assert seen in of(found, "database").seen
    assert remedy in of(found, "database").remedy
    assert of(found, "migrations").state is SKIPPED


def test_a_server_that_never_answers_costs_seconds(
    silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_checks, "CONNECT_SECONDS", 2)  # the least that libpq takes
    monkeypatch.setenv("SCM_DATABASE_URL", f"postgresql://127.0.0.1:{silent_server}/scm")
    started = time.monotonic()
    assert of(examined(), "database").state is FAILED
    assert time.monotonic() - started < 60


def test_a_refused_login_and_a_missing_database_are_told_apart(
    server_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, seen in (
        (psycopg.conninfo.make_conninfo(database_url, user="nobody_here"), "refuses the login"),
        (database_of(server_url, "nothing_here"), "has no such database"),
    ):
        monkeypatch.setenv("SCM_DATABASE_URL", url)
        assert seen in of(examined(), "database").seen


def test_every_state_of_the_schema_has_its_remedy(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", empty_database_url)
    found = examined()
    assert of(found, "migrations").remedy == "run: scm-sync db migrate"
    assert (of(found, "environment").state, of(found, "database_rights").state) == (SKIPPED, OK)
    migrations.migrate(empty_database_url, "elsewhere")
    found = examined()
    assert of(found, "migrations").state is OK
    assert "'elsewhere'" in of(found, "environment").seen
    monkeypatch.setenv("SCM_ENVIRONMENT", "elsewhere")
    migrations.rollback(empty_database_url)
    assert of(examined(), "migrations").remedy == "run: scm-sync db migrate"
    with psycopg.connect(empty_database_url) as conn:
        conn.execute(
            "UPDATE migrations._yoyo_migration SET migration_id = '9999.future', migration_hash = 'x'"
            " WHERE migration_id = (SELECT max(migration_id) FROM migrations._yoyo_migration)"
        )
    found = examined()
    assert "9999.future" in of(found, "migrations").seen
    assert "install" in of(found, "migrations").remedy


def test_a_lost_index_is_named_and_keeps_nothing_else_from_being_looked_at(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database_url)
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("DROP INDEX scm.sync_jobs_one_active")
        conn.execute("DROP TRIGGER sync_locks_no_delete ON scm.sync_locks")
    found = examined()
    assert of(found, "schema").seen == "index scm.sync_jobs_one_active is missing, and 1 more"
    assert "scm-sync db check" in of(found, "schema").remedy
    assert of(found, "environment").state is OK


def test_what_the_account_may_not_do_is_named(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    role = f"limited_{os.getpid()}_{threading.get_ident()}"
    with psycopg.connect(database_url, autocommit=True) as conn:
        for text in (
            "CREATE ROLE {} LOGIN",
            "GRANT USAGE ON SCHEMA scm, migrations TO {}",
            "GRANT ALL ON ALL TABLES IN SCHEMA scm, migrations TO {}",
        ):
            conn.execute(sql.SQL(text).format(sql.Identifier(role)))
    try:
        monkeypatch.setenv("SCM_DATABASE_URL", psycopg.conninfo.make_conninfo(database_url, user=role))
        assert of(examined(), "database_rights").state is OK
        with psycopg.connect(database_url, autocommit=True) as conn:
            conn.execute(sql.SQL("REVOKE INSERT, UPDATE ON scm.mrs FROM {}").format(sql.Identifier(role)))
        finding = of(examined(), "database_rights")
        assert (finding.state, finding.seen) == (FAILED, "the account lacks INSERT, UPDATE on scm.mrs")
        with psycopg.connect(database_url, autocommit=True) as conn:
            conn.execute(sql.SQL("REVOKE USAGE ON SCHEMA migrations FROM {}").format(sql.Identifier(role)))
        assert of(examined(), "migrations").state is FAILED
    finally:
        with psycopg.connect(database_url, autocommit=True) as conn:
            for text in ("DROP OWNED BY {}", "DROP ROLE {}"):
                conn.execute(sql.SQL(text).format(sql.Identifier(role)))


def test_a_database_of_another_encoding_and_an_old_server(
    server_url: str, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"latin_{os.getpid()}_{threading.get_ident()}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        text = "CREATE DATABASE {} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
        conn.execute(sql.SQL(text).format(sql.Identifier(name)))
    try:
        monkeypatch.setenv("SCM_DATABASE_URL", database_of(server_url, name))
        assert of(examined(), "database_encoding").state is FAILED
    finally:
        with psycopg.connect(server_url, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    server = diagnosis.inspect(empty_database_url, 5)
    assert evaluate_version(server).state is OK
    assert evaluate_version(replace(server, version_number=140_012)).state is FAILED


# GitLab -------------------------------------------------------------------------------------------------


def test_a_gitlab_as_it_should_be(site: Site) -> None:
    found = findings_of(site)
    assert {one.state for one in found.values()} == {OK}
    assert found["gitlab_version"].seen == "17.11.2-ee, Enterprise Edition"
    assert found["gitlab_user"].seen == "user1"
    assert found["gitlab_token"].seen.startswith("scopes read_api; until ")
    site.gitlab.faults.add("/metadata", faults.json_answer(404, {"error": "404 Not Found"}), times=None)
    assert findings_of(site)["gitlab_version"].seen.startswith("17.11.2"), "before 15.2"


def test_a_gitlab_that_is_not_there_and_one_that_never_answers(
    site: Site, silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ANSWER_SECONDS", 0.3)
    started = time.monotonic()
    for port in (free_port(), silent_server):
        found = findings_of(site, f"http://127.0.0.1:{port}")
        assert found["gitlab"].state is FAILED
        assert {found[check].state for check in ("gitlab_version", "gitlab_token", "gitlab_limits")} == {
            SKIPPED
        }
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("fault", "check", "state", "seen"),
    [
        (faults.login_page(), "gitlab", FAILED, "instead of JSON"),
        (faults.proxy_error(502), "gitlab", FAILED, "502"),
        (faults.redirect("https://login.test/"), "gitlab", FAILED, "redirected to https://login.test/"),
        (faults.throttled_json("60"), "gitlab_limits", WARNING, "ask again in 60 s"),
        (faults.json_answer(200, {"hello": 1}), "gitlab_version", WARNING, "no version"),
    ],
)
def test_what_stands_in_front_of_a_gitlab_is_seen(
    site: Site, fault: faults.Fault, check: str, state: State, seen: str
) -> None:
    site.gitlab.faults.add("/metadata", fault, times=None)
    finding = findings_of(site)[check]
    assert finding.state is state
    assert seen in finding.seen
    assert finding.remedy


@pytest.mark.parametrize(
    ("scopes", "days", "state", "seen"),
    [
        (("read_api",), -1, FAILED, "expired"),
        (("read_user",), 99, FAILED, "scope"),
        (("read_api",), 14, WARNING, "in 14 days"),
        (("read_api",), 15, OK, "until"),
    ],
)
def test_tokens_that_end_or_may_too_little(
    site: Site, scopes: tuple[str, ...], days: int, state: State, seen: str
) -> None:
    ends = START.date() + timedelta(days=days)
    token = site.gitlab.token(site.user, secret=SECRET, scopes=scopes, expires_at=ends).secret
    finding = findings_of(site, token=token)["gitlab_token"]
    assert (finding.state, seen in finding.seen) == (state, True), finding
    if state is FAILED:
        assert "scope read_api" in finding.remedy
        asked = [path for path in site.asked() if path]
        assert len(asked) == 1, "a refused token is not sent again"


def test_the_last_days_of_a_token() -> None:
    today = date(2026, 5, 6)

    def finding_of(scopes: tuple[str, ...], ends: date | None) -> tuple[State, str]:
        finding = servers.evaluate_token(TokenInfo("x", scopes, ends), today)
        return finding.state, finding.seen

    assert finding_of(("api",), None) == (OK, "scopes api; never expires")
    assert finding_of((), None) == (FAILED, "scopes none; never expires")
    assert finding_of(("read_api",), date(2026, 5, 7))[1].endswith("within a day")
    assert finding_of(("read_api",), today)[1].endswith("today")


def test_no_token_and_one_that_cannot_be_read(site: Site, tmp_path: Path) -> None:
    (server,) = site.settings.gitlab_servers()
    found = findings_of(site, token="")
    assert (found["gitlab"].state, found["gitlab_token"].seen) == (OK, "this shell has no token set")
    gone = Settings(gitlab_url=server.url, gitlab_token_file=tmp_path / "gone").gitlab_servers()[0]
    found = servers.GitLabChecks(gone, None).run()
    assert found["gitlab"].state is OK
    assert "gone cannot be read" in found["gitlab_token"].seen


def test_a_blocked_user_a_wrong_clock_and_a_small_budget(site: Site) -> None:
    site.gitlab.behaviour.rate_limit = RateLimit(limit=20)
    site.gitlab.clock.fixed = START + timedelta(seconds=61)
    found = findings_of(site)
    assert found["gitlab_clock"].seen == "its clock is 61 s ahead of ours"
    assert found["gitlab_limits"].seen == "17 of 20 requests left"
    site.gitlab.behaviour.rate_limit = RateLimit(limit=4)
    site.gitlab.clock.fixed = START - timedelta(seconds=60)
    found = findings_of(site)
    assert found["gitlab_clock"].state is OK
    assert found["gitlab_limits"].state is OK, "a quarter is left"
    site.gitlab.behaviour.rate_limit = RateLimit(limit=3)
    assert findings_of(site)["gitlab_limits"].state is WARNING
    site.gitlab.behaviour.rate_limit = None
    ours: Any = {
        "rate": 5.0,
        "full_rate": 10.0,
        "paused": False,
        "lowered": True,
        "paused_until": None,
        "reason": "status 429",
        "rate_reason": None,
    }
    (server,) = site.settings.gitlab_servers()
    slowed = servers.GitLabChecks(server, None, [ours]).run()["gitlab_limits"]
    assert slowed.seen == "5 instead of 10 requests a second are sent: status 429"
    assert slowed.state is WARNING
    faster: Any = {**ours, "rate": 17.0, "lowered": False, "rate_reason": "requests wait"}
    quicker = servers.GitLabChecks(server, None, [faster]).run()["gitlab_limits"]
    assert quicker.seen == (
        "none is announced; 17 requests a second are sent, 10 at the start: requests wait"
    )
    assert quicker.state is OK
    site.user["state"] = "blocked"
    assert findings_of(site)["gitlab_token"].state is FAILED


def test_a_stopped_token_is_told_until_another_one_is_in_force(
    database: Database, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.gitlab.clock.fixed = None
    token = site.gitlab.token(site.user)
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_GITLAB_URL", site.server.url)
    monkeypatch.setenv("SCM_GITLAB_TOKEN", token.secret)
    with database.connection() as conn:
        credentials.stop(conn, site.instance, Readers(Settings()).fingerprint(site.instance), "refused")
    finding = of(examined(), "gitlab_stop")
    assert (finding.state, "and accepted now" in finding.seen) == (WARNING, True)
    token.revoked = True
    assert of(examined(), "gitlab_stop").state is FAILED
    monkeypatch.setenv("SCM_GITLAB_TOKEN", site.gitlab.token(site.user).secret)
    assert of(examined(), "gitlab_stop").state is OK


def test_a_server_that_repositories_need_and_nobody_configured(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    with database.connection() as conn:
        register_project(conn, "https://git.test", 7, "platform/api", origin=START)
    finding = of(examined(), "gitlab")
    assert (finding.subject, finding.state) == ("git.test", FAILED)
    assert "which 1 registered repository needs" in finding.seen
    assert "SCM_GITLAB_URL" in finding.remedy


# Certificates -------------------------------------------------------------------------------------------


def test_a_certificate_is_trusted_or_it_is_said_why_not(site: Site, tmp_path: Path) -> None:
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-subj", "/CN=our own", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "30"]
    subprocess.run([*command, "-keyout", key, "-out", pem], check=True, capture_output=True)
    with Server(site.gitlab, certificate=str(pem), key=str(key)) as secure:
        found = findings_of(site, secure.url)
        assert (found["gitlab"].state, "not trusted" in found["gitlab"].seen) == (FAILED, True)

        def finding_of(
            url: str = secure.url, ca_file: Path | None = pem, days: int = 0, accepted: str = ""
        ) -> Finding:
            return servers.certificate(
                url,
                ca_file=ca_file,
                accepted=accepted,
                now=lambda: datetime.now(UTC) + timedelta(days=days),
            )

        assert finding_of().state is OK
        assert "by our own" in finding_of().seen
        assert finding_of(days=17).state is WARNING
        assert (finding_of(ca_file=None).state, finding_of(ca_file=None).remedy) == (
            FAILED,
            "set SCM_CA_FILE to the PEM file of its authority",
        )
        assert finding_of(ca_file=None, accepted="unknown-ca").state is WARNING
        other_name = finding_of(secure.url.replace("127.0.0.1", "localhost"))
        assert (other_name.state, "use the name" in other_name.remedy) == (FAILED, True)
        assert finding_of(ca_file=key).state is FAILED
    assert finding_of(f"https://127.0.0.1:{free_port()}").state is SKIPPED
    assert finding_of("http://127.0.0.1:1").state is SKIPPED
    assert finding_of("http://git.test").state is WARNING


# SVN ----------------------------------------------------------------------------------------------------


def test_an_svn_server_is_asked_with_the_login_in_force(
    database: Database,
    svn_repository: Callable[..., SvnRepository],
    svnserve: SvnServers,
    silent_server: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = svn_repository()
    server = svnserve(repository, users={"reader": SECRET}, anonymous="none")
    with database.connection() as conn:
        register_source(conn, repository.path)
        (known,) = registration.export_catalog(database, Settings()).repositories
    assert known.kind is Kind.SVN

    def finding_of(port: int, password: str) -> Finding:
        url = server.url(repository).replace(str(server.port), str(port))
        there = replace(known, url=url, svn_root=url, instance="svn.test")
        settings = Settings(svn_username="reader", svn_password=password)
        return servers.svn_server(settings, there)

    assert finding_of(server.port, SECRET).state is OK
    assert finding_of(server.port, SECRET).seen.endswith("answers as reader, HEAD r0")
    refused = finding_of(server.port, "wrong")
    assert (refused.state, "SCM_SVN_PASSWORD" in refused.remedy) == (FAILED, True)
    assert "cannot reach" in finding_of(free_port(), SECRET).seen
    monkeypatch.setattr(servers, "ANSWER_SECONDS", 0.3)
    started = time.monotonic()
    assert "does not answer" in finding_of(silent_server, SECRET).seen
    assert time.monotonic() - started < 60


def test_the_svn_command_is_missed_only_where_it_is_needed(
    database: Database,
    svn_repository: Callable[..., SvnRepository],
    fake_svn: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with database.connection() as conn:
        register_source(conn, svn_repository().path)
    known = list(registration.export_catalog(database, Settings()).repositories)
    assert local.svn_command(known).state is OK
    old = Path(fake_svn("echo 1.9.7\n"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert local.svn_command(known).seen == "not on PATH, and needed by 1 registered SVN repository"
    assert local.svn_command([]).state is SKIPPED
    assert local.svn_command(None).state is FAILED
    assert servers.svn_server(Settings(), known[0]).state is SKIPPED
    old.rename(tmp_path / "bin" / "svn").chmod(0o755)
    assert (local.svn_command(known).state, local.svn_command(known).seen) == (WARNING, "version 1.9.7")
