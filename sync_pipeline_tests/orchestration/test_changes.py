"""Change detection on a real GitLab: one page a tick, hints and nothing else."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from pydantic import SecretStr

from sync_pipeline.admin import limits
from sync_pipeline.admin.pauses import PauseTarget, pause
from sync_pipeline.core.catalog import instance_of, parse_root
from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.model import Kind, Repository
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import breakers, credentials, heartbeats, planning, repos, servers
from sync_pipeline.orchestration import changes
from sync_pipeline.orchestration.resources import SvnResource
from sync_pipeline.registry.discovery import add_root
from sync_pipeline.reports.reasons import remedy
from sync_pipeline.reports.status import status
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers
from sync_pipeline_sandbox.gitlab import DEVELOPER, faults
from sync_pipeline_tests.builders import register, register_source, request
from sync_pipeline_tests.orchestration.conftest import Forge
from sync_pipeline_tests.svn_fixtures import SvnRepository

HINTS = """
SELECT r.project_id, h.activity_at, h.error_code
  FROM scm.change_hints AS h
  JOIN scm.repos AS r USING (repo_id)
 ORDER BY r.project_id
"""
ROOTS = "SELECT root_id, listed_at, listed_down_to FROM scm.discovery_roots ORDER BY root_id"


def tick(forge: Forge) -> str:
    """A tick of the sensor; returns what it said."""
    found = forge.site.tick(name(forge))
    assert isinstance(found, dg.SkipReason)
    return found.skip_message or ""


def name(forge: Forge) -> str:
    [row] = forge.site.rows("SELECT DISTINCT instance_slug FROM scm.repos WHERE kind = 'gitlab'")
    return f"changes_{row['instance_slug']}"


def hints(forge: Forge) -> list[dict[str, Any]]:
    return forge.site.rows(HINTS)


def root(forge: Forge, text: str) -> int:
    """A discovery root, with its first visit done."""
    readers = Readers(forge.site.settings)
    added = add_root(
        forge.site.database, forge.site.settings, parse_root(text), actor="test", client_of=readers.gitlab
    )
    assert added.root is not None
    forge.asked()
    return added.root.root_id


def test_without_a_root_one_page_of_the_membership_gives_hints_of_known_projects(forge: Forge) -> None:
    known = forge.git_project("app", "2026-01-01")
    stranger = forge.gitlab.project("stranger", group=forge.group)
    assert tick(forge) == "listed 2 of the membership, 1 known"
    [path] = forge.asked()
    assert path.endswith("/projects")
    [hint] = hints(forge)
    assert hint["project_id"] == forge.project(known).id != stranger.id
    # The API shows milliseconds.
    assert (
        timedelta(0)
        <= forge.project(known).last_activity_at - hint["activity_at"]
        < timedelta(milliseconds=1)
    )
    assert forge.site.instance.get_runs() == []
    assert forge.site.rows("SELECT 1 FROM scm.sync_jobs") == []


def test_roots_are_listed_in_turn_one_a_tick_and_remember_how_far_down(forge: Forge) -> None:
    other = forge.gitlab.group("team2")
    forge.gitlab.add_member(other, forge.user, DEVELOPER)
    forge.git_project("app", "2026-01-01")
    forge.gitlab.project("lib", group=other)
    first, second = root(forge, "gitlab:group:team1"), root(forge, "gitlab:group:team2")
    forge.gitlab.project("more", group=other)
    outcomes = []
    for _ in range(3):
        outcomes.append(tick(forge))
        assert len(forge.asked()) == 1
    assert outcomes == [
        "listed 1 of team1, 1 known",
        "listed 2 of team2, 1 known",
        "listed 1 of team1, 1 known",
    ]
    rows = {row["root_id"]: row for row in forge.site.rows(ROOTS)}
    assert all(rows[number]["listed_at"] is not None for number in (first, second))
    assert all(row["listed_down_to"] is None for row in rows.values()), "both lists were seen to their end"


def test_what_is_below_the_page_was_not_active_since_its_last_row(forge: Forge) -> None:
    now = datetime.now(UTC)
    forge.git_project("app", "2026-01-01")
    number = root(forge, "gitlab:group:team1")
    for count in range(105):
        forge.gitlab.project(f"p{count}", group=forge.group).last_activity_at = now - timedelta(minutes=count)
    assert tick(forge).startswith("listed 100 of team1, ")
    [row] = forge.site.rows(ROOTS)
    assert row["root_id"] == number
    lowest = now - timedelta(minutes=99)
    assert abs(row["listed_down_to"] - lowest) < timedelta(seconds=120)


def test_a_paused_server_is_not_asked(forge: Forge, svn_repository: Callable[..., SvnRepository]) -> None:
    forge.git_project("app", "2026-01-01")
    with forge.site.database.connection() as conn:
        register_source(conn, svn_repository().url)
    for instance in ("local", *Readers(forge.site.settings).gitlab_instances()):
        end = datetime.now(UTC) + timedelta(hours=1)
        limits.pause(
            forge.site.database, forge.site.settings, instance, end, actor="ann", reason="an upgrade"
        )
    forge.asked()
    assert "membership cannot be listed: no request is sent to 127.0.0.1" in tick(forge)
    assert forge.asked() == []
    outcomes = forge.site.tick("changes_local")
    assert isinstance(outcomes, dg.SkipReason)
    assert re.match(
        r"looked at 0 of 1, 0 failed; no request is sent to local .*an upgrade$", str(outcomes.skip_message)
    )
    assert hints(forge) == [], "nothing is known about who was not asked"


def test_activity_makes_a_quiet_project_due_at_once_and_only_that_one(forge: Forge) -> None:
    for path in ("app", "lib"):
        repo_id = forge.git_project(path, "2026-01-01")
        forge.project(repo_id).last_activity_at = datetime.now(UTC) - timedelta(hours=2)
    root(forge, "gitlab:group:team1")
    forge.site.execute("UPDATE scm.repos SET root_id = (SELECT root_id FROM scm.discovery_roots)")
    assert forge.site.run("sync_commits").success
    assert forge.site.run("sync_merge_requests").success
    # Long enough ago for the interval, had no listing shown that nothing happened.
    forge.site.execute("UPDATE scm.sync_watermarks SET visited_at = now() - interval '10 minutes'")
    tick(forge)
    assert forge.site.schedule() == []
    app = next(p for p in forge.gitlab.projects.values() if p.path == "app")
    app.last_activity_at = datetime.now(UTC)
    tick(forge)
    requests = forge.site.schedule()
    assert {request.job_name for request in requests} == {"sync_commits", "sync_merge_requests"}
    assert {key.path[1] for request in requests for key in request.asset_selection or ()} == {
        f"project_{app.id}"
    }
    assert {request.tags["scm/reason"] for request in requests} == {"hint"}


def test_a_refused_token_is_not_sent_again(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    [token] = forge.gitlab.tokens.values()
    forge.gitlab.revoke(token)
    assert "cannot be listed" in tick(forge)
    assert len(forge.asked()) == 1
    with forge.site.database.connection() as conn:
        [stop] = credentials.stops(conn)
    assert token.secret not in stop.reason
    assert tick(forge).startswith("not asked: ")
    assert forge.asked() == []
    # The plan holds the instance back as well, until another token is in force.
    assert forge.site.schedule() == []
    forge.site.settings = forge.site.settings.model_copy(
        update={"gitlab_token": SecretStr(forge.gitlab.token(forge.user).secret)}
    )
    assert tick(forge).startswith("listed 1 of the membership")
    requests = forge.site.schedule()
    assert [request.job_name for request in requests] == ["sync_commits", "sync_merge_requests"]
    assert all(forge.site.start(request).success for request in requests)


def test_a_server_in_trouble_costs_one_request_a_tick_and_no_hint(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    forge.gitlab.faults.add(r"/projects\?", faults.server_error(503), times=None)
    outcomes = tick(forge)
    assert "cannot be listed" in outcomes
    assert len(forge.asked()) == 1
    assert hints(forge) == []
    with forge.site.database.connection() as conn:
        assert heartbeats.read(conn)[0].outcome == outcomes


def checks(forge: Forge) -> dict[str, dg.AssetCheckEvaluation]:
    """What a tick of the scheduler reports, by job type or name of a fleet-wide check."""
    found = forge.site.tick("scheduler")
    assert isinstance(found, dg.SensorResult)
    events = [one for one in found.asset_events if isinstance(one, dg.AssetCheckEvaluation)]
    return {one.asset_key.path[-1] if one.check_name == "health" else one.check_name: one for one in events}


def test_a_login_page_is_red_within_two_ticks_and_green_again_with_the_next_answer(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    checks(forge)
    forge.gitlab.faults.add(r"/projects\?", faults.login_page(), times=1)
    tick(forge)
    found = checks(forge)
    assert set(found) == {"commits", "merge_requests", "reviews", "servers"}
    assert not any(one.passed for one in found.values())
    reasons = str(found["commits"].metadata["reasons"].value)
    assert "login_page" in reasons
    assert "with text/html instead of JSON" in str(found["commits"].metadata["login_page"].value)
    assert "HTTPS_PROXY" in str(found["commits"].metadata["login_page: what to do"].value)
    assert found["servers"].severity is dg.AssetCheckSeverity.ERROR
    assert any("login_page: " in str(value.value) for value in found["servers"].metadata.values())
    assert checks(forge) == {}, "once"
    assert tick(forge).startswith("listed 1")
    found = checks(forge)
    assert found["servers"].passed
    assert "login_page" not in str(found["commits"].metadata["reasons"].value)


def test_a_proxy_that_asks_for_credentials_is_no_answer_of_the_server(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    checks(forge)
    forge.gitlab.faults.add(r"/projects\?", faults.server_error(503), times=1)
    tick(forge)
    assert not checks(forge)["servers"].passed
    forge.gitlab.faults.add(r"/projects\?", faults.CannedResponse(407), times=1)
    assert "asks for credentials" in tick(forge)
    assert checks(forge) == {}, "as red as before"
    with forge.site.database.connection() as conn:
        assert [one.error_code for one in servers.failing(conn)] == ["configuration"]
    assert tick(forge).startswith("listed 1")
    assert checks(forge)["servers"].passed


def test_a_look_that_failed_for_a_reason_of_ours_changes_nothing(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    instance = instance_of(forge.server.url)
    with forge.site.database.connection() as conn:
        servers.record_failure(conn, instance, Kind.GITLAB, "connection", "cannot be reached")
        for code in ("database_busy", "no_room", "exception", "a_word_of_tomorrow"):
            changes._note_server(conn, instance, Kind.GITLAB, [SyncError("x", code=code)])
        [failure] = servers.failing(conn)
        assert (failure.error_code, failure.failures) == ("connection", 1)
        changes._note_server(
            conn, instance, Kind.GITLAB, [SyncError("x", code="connection"), SyncError("x", code="denied")]
        )
        assert servers.failing(conn) == []


def test_a_revoked_token_is_red_within_two_ticks(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    checks(forge)
    [token] = forge.gitlab.tokens.values()
    token.revoked = True
    tick(forge)
    found = checks(forge)
    assert set(found) == {"commits", "merge_requests", "reviews", "servers"}
    assert "credential" in str(found["reviews"].metadata["reasons"].value)
    assert "the token is revoked" in str([value.value for value in found["servers"].metadata.values()])


def test_a_dead_svn_server_is_red_at_all_its_repositories_though_only_some_were_looked_at(
    forge: Forge,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with forge.site.database.connection() as conn:
        for number in range(3):
            at(conn, f"paint{number}", port)
        conn.execute("UPDATE scm.sync_watermarks SET verified_at = now(), visited_at = now()")
    forge.site.settings = forge.site.settings.model_copy(update={"changes_per_tick": 1})
    assert all(one.passed for one in checks(forge).values())
    found = forge.site.tick("changes_local")
    assert isinstance(found, dg.SkipReason)
    assert found.skip_message == "looked at 1 of 3, 1 failed"
    red = checks(forge)
    assert len(forge.site.rows("SELECT 1 FROM scm.health WHERE reasons = '{unreachable}'")) == 3
    assert not red["servers"].passed
    assert "(3 repositories, since " in str(red["servers"].metadata[f"svn 127.0.0.1:{port}"].value)
    document = status(forge.site.database, forge.site.settings)
    assert {asset["verdict"] for asset in document["units"]} == {"unhealthy"}
    assert {asset["access"]["state"] for asset in document["units"]} == {"unreachable"}
    assert {asset["remedies"]["unreachable"] for asset in document["units"]} == {remedy("unreachable")}


def at(conn: Connection, slug: str, port: int) -> int:
    """A repository at an svn server of this machine."""
    repo_id = register(conn, slug)
    url = f"svn://127.0.0.1:{port}/{slug}"
    conn.execute(
        "UPDATE scm.repos SET url = %s, svn_root = %s, instance = %s WHERE repo_id = %s",
        [url, url, f"127.0.0.1:{port}", repo_id],
    )
    return repo_id


def test_a_silent_svn_server_is_red_with_the_second_tick(forge: Forge) -> None:
    """The default of 30 s between two ticks makes that a good minute. No job has to fail first."""
    forge.site.settings = forge.site.settings.model_copy(update={"changes_max_seconds": 1.0})
    with socket.create_server(("127.0.0.1", 0)) as silent, forge.site.database.connection() as conn:
        for slug in ("paint", "glue"):
            at(conn, slug, silent.getsockname()[1])
        conn.execute("UPDATE scm.sync_watermarks SET verified_at = now(), visited_at = now()")
        assert all(one.passed for one in checks(forge).values())
        forge.site.tick("changes_local")
        assert checks(forge) == {}, "a healthy server may be as slow"
        started = time.monotonic()
        forge.site.tick("changes_local")
        patient = time.monotonic() - started
        assert patient > 3.5
        assert not checks(forge)["servers"].passed
        # From then on looks are short again, and change nothing about that.
        started = time.monotonic()
        forge.site.tick("changes_local")
        assert time.monotonic() - started < patient
        [failure] = servers.failing(conn)
        assert (failure.is_confirmed, failure.failures) == (True, 3)


def test_a_slow_server_is_given_the_time_that_it_needs_and_stays_green(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    forge.site.settings = forge.site.settings.model_copy(update={"changes_max_seconds": 2.0})
    checks(forge)
    forge.gitlab.faults.add(r"/projects\?", faults.Slow(2.5), times=None)
    assert "cannot be listed" in tick(forge)
    assert tick(forge) == "listed 1 of the membership, 1 known"
    with forge.site.database.connection() as conn:
        assert servers.failing(conn) == []
    assert all(one.passed for one in checks(forge).values())


def test_a_server_that_lets_looks_time_out_is_red_once_live_syncing_times_out_too(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where no look is patient."""
    monkeypatch.setattr(servers, "is_doubted", lambda *_: False)
    forge.site.settings = forge.site.settings.model_copy(
        update={"changes_max_seconds": 1.0, "svn_info_timeout_seconds": 1.0}
    )
    # The kernel takes connections, and nobody answers.
    with socket.create_server(("127.0.0.1", 0)) as silent, forge.site.database.connection() as conn:
        paint, glue = (at(conn, slug, silent.getsockname()[1]) for slug in ("paint", "glue"))
        conn.execute("UPDATE scm.sync_watermarks SET verified_at = now(), visited_at = now()")
        assert all(one.passed for one in checks(forge).values())
        for number in (1, 2, 3):
            found = forge.site.tick("changes_local")
            assert isinstance(found, dg.SkipReason)
            assert found.skip_message == "looked at 1 of 2, 1 failed"
            [failure] = servers.failing(conn)
            assert (failure.error_code, failure.failures) == ("timeout", number)
        assert checks(forge) == {}, "a healthy server may be as slow"
        report = Syncer(forge.site.database, forge.site.settings).run(request(paint))
        assert report.error_code == "timeout"
        assert not checks(forge)["servers"].passed
        red = conn.execute("SELECT repo_id FROM scm.health WHERE 'unreachable' = ANY (reasons)").fetchall()
        assert {row["repo_id"] for row in red} == {paint, glue}
        # As soon as live syncing gets an answer, the time-outs of looks say nothing again.
        conn.execute("UPDATE scm.sync_runs SET status = 'no_data', error_code = NULL, error = NULL")
        assert checks(forge)["servers"].passed


def test_a_look_that_is_cut_short_says_nothing_and_is_the_first_of_the_next_tick(
    forge: Forge, svn_repository: Callable[..., SvnRepository]
) -> None:
    settings = forge.site.settings.model_copy(update={"changes_max_seconds": 20.0})
    svn = SvnResource(settings=settings)

    def check(repositories: Sequence[Repository], seconds: float) -> tuple[int, str]:
        database, deadline = forge.site.database, time.monotonic() + seconds
        return changes._check_repositories(
            forge.site.instance, database, settings, svn, repositories, 0, deadline
        )

    with socket.create_server(("127.0.0.1", 0)) as silent, forge.site.database.connection() as conn:
        quick = repos.get(conn, register_source(conn, svn_repository().url))
        slow = repos.get(conn, at(conn, "paint", silent.getsockname()[1]))
        planning.record_hint(conn, slow.repo_id, head_rev=7)
        last, outcomes = check([quick, slow], 4.0)
        assert last == quick.repo_id
        assert re.match(
            r"looked at 1 of 2, 0 failed; .* does not answer: svn did not finish within", outcomes
        )
        # The next tick begins with it. Had it again too little time, another one would have its turn.
        last, outcomes = check([slow, quick], 1.0)
        assert (last, outcomes) == (slow.repo_id, "looked at 1 of 2, 1 failed")
        assert servers.failing(conn) == []
        hint = conn.execute(
            "SELECT head_rev, error_code FROM scm.change_hints WHERE repo_id = %s", [slow.repo_id]
        )
        assert hint.fetchone() == {"head_rev": 7, "error_code": None}


def test_servers_that_share_a_sensor_after_a_relocation_are_evaluated_apart(
    forge: Forge, svn_repository: Callable[..., SvnRepository]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with forge.site.database.connection() as conn:
        register_source(conn, svn_repository().url)
        at(conn, "paint", port)
        servers.record_failure(conn, "local", Kind.SVN, "connection", "it was away")
        found = forge.site.tick("changes_local")
        assert isinstance(found, dg.SkipReason)
        assert found.skip_message == "looked at 2 of 2, 1 failed"
        assert [(one.instance, one.error_code) for one in servers.failing(conn)] == [
            (f"127.0.0.1:{port}", "connection")
        ]


def test_a_pause_is_yellow_with_the_next_tick_and_says_how_it_ends(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    checks(forge)
    pause(
        forge.site.database,
        PauseTarget(instance=instance_of(forge.server.url)),
        seconds=None,
        actor="ann",
        reason="audit\x1b[2J",
    )
    found = checks(forge)["held_back"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.metadata["pause 1"].value).endswith(r" until it is resumed (ann: audit\x1b[2J)")
    assert "scm-sync admin resume" in str(found.metadata["paused: what to do"].value)
    assert checks(forge) == {}


def test_a_switch_that_is_off_is_yellow_and_a_breaker_that_is_off_holds_nothing_back(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    checks(forge)
    now = datetime.now(UTC)
    with forge.site.database.connection() as conn:
        row = breakers.BreakerRow("tenant", "acme", "open", now, now, 1, 0, 0, 5, None, 0, "failures 100%")
        breakers.save(conn, row, actor="test")
    assert "breaker tenant acme" in checks(forge)["held_back"].metadata
    forge.site.settings = forge.site.settings.model_copy(update={"cb_enabled": False})
    found = checks(forge)["held_back"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert {name: one.value for name, one in found.metadata.items()} == {
        "held_back_count": 1,
        "cb_enabled": "switched off: circuit breakers hold nothing back; set it to true, "
        "unless this is wanted",
    }


def test_a_slow_server_ends_the_tick_in_time(forge: Forge) -> None:
    forge.git_project("app", "2026-01-01")
    forge.site.settings = forge.site.settings.model_copy(update={"changes_max_seconds": 0.5})
    forge.gitlab.faults.add(r"/projects\?", faults.Slow(5.0))
    # A tick that waited for the answer would list the project.
    assert "cannot be listed" in tick(forge)
