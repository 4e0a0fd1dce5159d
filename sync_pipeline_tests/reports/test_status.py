"""The status report: every key of its page, what the numbers mean, and its order."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sync_pipeline.admin import pauses
from sync_pipeline.cli import health as health_command
from sync_pipeline.cli import reports
from sync_pipeline.cli.output import print_wrapped
from sync_pipeline.core.model import (
    BEGINNING,
    JobRequest,
    JobType,
    Kind,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import breakers, credentials, jobs, repos, watermarks
from sync_pipeline.registry import registration
from sync_pipeline.reports.configuration import CredentialSources, credential_sources
from sync_pipeline.reports.status import status
from sync_pipeline.settings import Settings, explained_settings
from sync_pipeline.sync.readers import Readers
from sync_pipeline_tests import builders

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
ORIGIN = datetime(2024, 5, 1, tzinfo=UTC)
SECRET = "glpat-never-shown"
SETTINGS = Settings(gitlab_url="https://git.test", gitlab_token=SECRET, environment="test")

_LIMITS = """
INSERT INTO scm.sync_rate_limits (instance, endpoint_class, tokens, rate, paused_until, pause_reason,
                                  changed_at)
VALUES ('git.test', 'all', 5, 10, '2100-01-01', 'paused by ann: upgrade', NULL),
       ('git.test', 'groups/projects', 5, 2, NULL, NULL, '2100-01-01'),
       ('other.test', 'all', 5, 10, '2020-01-01', 'long ago', NULL)
"""

_RUN = """
INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, worker, status, started_at, finished_at,
                           rows_read, inserted, updated, calls, error_code, error, code_version)
SELECT job_id, %(attempt)s, repo_id, job_type, mode, 'w', %(status)s, now() - %(ago)s * interval '1 s',
       now(), 7, 2, 1, 3, %(code)s, %(code)s, '1'
  FROM scm.sync_jobs WHERE job_id = %(job_id)s
"""


def cover(conn: Connection, repo_id: int, job_type: JobType, *windows: Window) -> None:
    """Make exactly these windows covered, and the repository looked at just now."""
    watermarks.replace(conn, repo_id=repo_id, job_type=job_type, covered=windows, actor="test", reason="test")
    conn.execute(
        "UPDATE scm.sync_watermarks SET verified_at = now(), visited_at = now(), access = 'ok'"
        " WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s",
        {"repo_id": repo_id, "job_type": str(job_type)},
    )


def queue(conn: Connection, repo_id: int, job_type: JobType, mode: Mode, window: Window | None = None) -> Any:
    """A job that waits."""
    request = JobRequest(repo_id, job_type, mode, Trigger.REGISTRATION, "test", "test", window=window)
    return jobs.enqueue(conn, request)


def day(number: int) -> datetime:
    """A day of May 2024."""
    return datetime(2024, 5, number, tzinfo=UTC)


@pytest.fixture
def project(database: Database) -> int:
    """A GitLab project whose commits are complete; the others wait for the first time."""
    with database.connection() as conn:
        repo_id = builders.register_project(conn, "https://git.test", 7, "platform/api", origin=ORIGIN)
        now = datetime.now(UTC)
        cover(conn, repo_id, JobType.COMMITS, TimeWindow(BEGINNING, now - timedelta(seconds=90)))
        for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS):
            queue(conn, repo_id, job_type, Mode.BACKFILL, TimeWindow(BEGINNING, ORIGIN))
    return repo_id


def store_merge_request(conn: Connection, repo_id: int, iid: int) -> None:
    """A merge request with this number; no other one is stored."""
    conn.execute(
        "INSERT INTO scm.mrs (repo_id, iid, gitlab_id, project_id, status, updated_at, raw, content_hash,"
        " batch_id) VALUES (%(r)s, %(i)s, %(i)s, 7, 'open', '2024-05-02', '{}', '', 1)",
        {"r": repo_id, "i": iid},
    )


def claim(conn: Connection, repo_id: int, job_type: JobType) -> Any:
    """Let a worker begin the job of this kind that waits."""
    row = conn.execute(
        "UPDATE scm.sync_jobs SET status = 'running', attempts = 1, claim_token = gen_random_uuid(),"
        " claimed_at = now() - interval '3 minutes', claim_expires_at = now() + interval '1 minute',"
        " claimed_by = 'build-7:42'"
        " WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = 'incremental' RETURNING job_id",
        {"repo_id": repo_id, "job_type": str(job_type)},
    ).fetchone()
    assert row is not None
    return row["job_id"]


def open_breaker(conn: Connection, instance: str) -> None:
    """Open the breaker of a server."""
    now = datetime.now(UTC)
    row = breakers.BreakerRow("instance", instance, "open", now, now, 1, 0, 0, 5, None, 0, "failures 100%")
    breakers.save(conn, row, actor="test")


def asset(document: dict[str, Any], job_type: JobType, path: str = "platform/api") -> dict[str, Any]:
    (found,) = [u for u in document["units"] if (u["path"], u["job_type"]) == (path, str(job_type))]
    return dict(found)


def keys(value: object, place: str = "") -> set[str]:
    """Every key of a document, written as the page writes them."""
    if isinstance(value, list):
        return set().union(*(keys(item, f"{place}[]") for item in value)) | (
            {f"{place}[]"} if place else set()
        )
    if not isinstance(value, dict):
        return set()
    return set().union(
        *(keys(item, f"{place}.{name}".strip(".")) for name, item in value.items()),
        {f"{place}.{name}".strip(".") for name in value},
    )


def test_the_page_names_every_key(database: Database, project: int) -> None:
    with database.connection() as conn:
        cover(conn, project, JobType.REVIEWS, TimeWindow(day(1), day(2)), TimeWindow(day(1), day(3)))
        conn.execute(
            _RUN,
            {
                "job_id": queue(conn, project, JobType.REVIEWS, Mode.INCREMENTAL),
                "attempt": 1,
                "status": "completed",
                "ago": 60,
                "code": None,
            },
        )
        fingerprint = Readers(SETTINGS).fingerprint("git.test")
        credentials.stop(conn, "git.test", fingerprint, "the token is expired; create a new one")
        claim(conn, project, JobType.REVIEWS)
        store_merge_request(conn, project, 300)
        open_breaker(conn, "git.test")
    pauses.pause(database, pauses.PauseTarget(instance="git.test"), seconds=None, actor="ann", reason="audit")
    document = status(database, SETTINGS, repos_get(database, project), [JobType.REVIEWS])
    text = (DOCS / "status.md").read_text().partition("## The document")[2]
    named = set(re.findall(r"(?m)^\| `([^`]+)` \|", text))
    # Those below these are names of things that are counted, and what a window holds.
    free = (
        "units[].reasons.",
        "servers[].access.",
        "units[].remedies.",
        "units[].covered_apart.",
        "units[].held_back.",
        "summary.units.",
        "summary.jobs.",
        "limits[].",
        "units[].gaps.first[].",
        "units[].queued.first[].",
    )
    found = {key for key in keys(document) if not key.startswith(free)}
    # What only holds others needs no line of its own.
    holders = {
        "summary",
        "due",
        "breakers",
        "pauses",
        "limits",
        "pools",
        "unserved",
        "silent",
        "slow",
        "units",
        "units[].access",
        "units[].running",
        "servers",
        "servers[].assets",
        "servers[].jobs",
        "units[].gaps.first",
        "units[].queued.first",
    }
    assert found - holders == named
    assert json.loads(json.dumps(document)) == document
    assert SECRET not in json.dumps(document)


def test_each_server_has_a_summary_the_worst_first(database: Database, project: int) -> None:
    with database.connection() as conn:
        paint = builders.register(conn, "paint", head=10)
        cover(conn, paint, JobType.REVISIONS, RevisionWindow(1, 11))
        conn.execute(
            "UPDATE scm.sync_watermarks SET access = 'denied' WHERE repo_id = %s AND job_type = 'reviews'",
            [project],
        )
        open_breaker(conn, "git.test")
    pauses.pause(
        database,
        pauses.PauseTarget(repo="gitlab:7", job_type=JobType.REVIEWS),
        seconds=None,
        actor="ann",
        reason="x",
    )
    sources = CredentialSources({"git.test": "SCM_GITLAB_TOKEN"}, "SCM_SVN_PASSWORD")
    gitlab, svn = status(database, SETTINGS, credentials_from=sources)["servers"]
    assert (gitlab["instance"], gitlab["kind"], gitlab["repositories"]) == ("git.test", "gitlab", 1)
    assert gitlab["assets"] == {
        "total": 3,
        "healthy": 1,
        "waiting": 1,
        "unhealthy": 1,
        "late": 0,
        "with_gaps": 0,
        "never_complete": 2,
    }
    assert (gitlab["access"], gitlab["jobs"]) == ({"denied": 1}, {"waiting": 2, "running": 0, "dead": 0})
    assert 0 <= gitlab["lag_seconds"] < 60
    # A pause of one job type is not one of the server.
    assert (gitlab["breaker"], gitlab["paused"]) == ("open", False)
    assert gitlab["credential"] == "SCM_GITLAB_TOKEN"
    assert (svn["instance"], svn["assets"]["healthy"], svn["access"]) == ("local", 1, {})
    assert (svn["breaker"], svn["credential"]) == (None, None)
    pauses.pause(database, pauses.PauseTarget(), seconds=None, actor="ann", reason="x")
    assert [one["paused"] for one in status(database, SETTINGS)["servers"]] == [True, True]


def test_where_a_credential_comes_from_is_told_and_never_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, token = tmp_path / "sync_pipeline.toml", tmp_path / "token"
    token.write_text(SECRET)
    file.write_text(
        f'[[gitlab]]\nurl = "https://a.test"\ntoken_file = "{token}"\n'
        '[[gitlab]]\nurl = "https://b.test:8443"\ntoken_env = "B_TOKEN"\n'
        f'[[gitlab]]\nurl = "https://c.test"\ntoken = "{SECRET}"\n[[gitlab]]\nurl = "https://d.test"\n'
    )
    monkeypatch.setenv("SCM_CONFIG", str(file))
    monkeypatch.setenv("SCM_GITLAB_URL", "https://git.test")
    monkeypatch.setenv("GITLAB_PRIVATE_TOKEN", SECRET)
    monkeypatch.setenv("SCM_SVN_PASSWORD", SECRET)
    found = credential_sources(*explained_settings())
    assert found.gitlab == {
        "git.test": "GITLAB_PRIVATE_TOKEN",
        "a.test": f"{token} (token_file of [[gitlab]] in {file})",
        "b.test:8443": f"B_TOKEN (token_env of [[gitlab]] in {file})",
        "c.test": f"token of [[gitlab]] in {file}",
    }
    assert found.of(Kind.SVN, "svn.test") == "SCM_SVN_PASSWORD"
    assert found.of(Kind.SVN, "local") is None
    monkeypatch.setenv("SCM_GITLAB_TOKEN_FILE", str(token))
    found = credential_sources(*explained_settings())
    assert found.of(Kind.GITLAB, "git.test") == f"{token} (SCM_GITLAB_TOKEN_FILE)"


@pytest.mark.parametrize("width", [40, 60, 80, 139, 140, 200])
def test_nothing_on_a_terminal_is_wider_than_it_or_clipped(
    database: Database, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [
        "平台/データ同期/とても長いプロジェクト名のリポジトリ",
        "group/" + "subgroup-with-a-long-name/" * 6 + "api",
    ]
    host = "a-long-host-name-of-a-server.department.example.com:8443"
    with database.connection() as conn:
        for number, name in enumerate(names):
            builders.register_project(conn, f"https://{host}", number + 1, name, origin=ORIGIN)
        builders.register(conn, "paint")
        open_breaker(conn, host)
    document = status(database, SETTINGS)
    console = Console(width=width, record=True, file=io.StringIO())
    for part in (reports.server_summary(document), reports.status_table(document, width)):
        console.print(part)
    text = console.export_text()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich.console.Console._environ", os.environ)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for line in (*reports.status_explanations(document), *reports.status_obstacles(document)):
        print_wrapped(line)
    text += capsys.readouterr().out
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for name in (*names, host):
        assert name[-5:] in text or name[-5:] in re.sub(r"\s+", "", text)


def test_a_terminal_lists_the_worst_assets_and_counts_the_others(database: Database) -> None:
    with database.connection() as conn:
        for number in range(20):
            builders.register_project(conn, "https://git.test", number + 1, f"p/{number}", origin=ORIGIN)
    document = status(database, SETTINGS)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(reports.status_table(document, 80))
    assert console.export_text().count("fresh never") == reports.MAX_LISTED
    [line] = reports.status_left_out(document)
    assert line.startswith("and 10 more assets (")
    assert len(reports.status_rows(document)) == 60


def repos_get(database: Database, repo_id: int) -> Any:
    with database.connection() as conn:
        return repos.get(conn, repo_id)


def test_what_is_complete_is_told_from_the_beginning(database: Database, project: int) -> None:
    document = status(database, SETTINGS)
    commits = asset(document, JobType.COMMITS)
    assert (commits["verdict"], commits["reasons"], commits["credential"]) == ("healthy", {}, None)
    assert commits["covered"]["from"] is None
    assert commits["covered"]["from_beginning"] is True
    assert commits["covered"]["to"] == commits["watermark"]
    assert 0 <= commits["lag_seconds"] < 60, "the complete look counts, not the older watermark"
    reviews = asset(document, JobType.REVIEWS)
    assert (reviews["covered"], reviews["watermark"], reviews["lag_seconds"]) == (None, None, None)
    assert (reviews["origin"], reviews["last_run"]) == (ORIGIN.isoformat(), None)


def test_gaps_and_queued_history_are_counted_apart(database: Database, project: int) -> None:
    with database.connection() as conn:
        cover(conn, project, JobType.REVIEWS, TimeWindow(day(1), day(10)))
        conn.execute(
            "UPDATE scm.sync_watermarks SET covered_time = %(covered)s::tstzmultirange"
            " WHERE repo_id = %(repo_id)s AND job_type = 'reviews'",
            {"repo_id": project, "covered": "{[2024-04-01,2024-04-02),[2024-04-04,2024-05-10)}"},
        )
        queue(conn, project, JobType.REVIEWS, Mode.INCREMENTAL)
    reviews = asset(status(database, SETTINGS), JobType.REVIEWS)
    assert reviews["covered"]["from"] == "2024-04-04T00:00:00+00:00"
    assert reviews["covered"]["from_beginning"] is False
    assert reviews["gaps"]["windows"] == 0
    assert reviews["queued"] == {
        "jobs": 1,
        "windows": 2,
        "revisions": 0,
        "seconds": 2 * 86_400.0,
        "from_beginning": True,
        "first": [
            {"since": None, "until": "2024-04-01T00:00:00+00:00"},
            {"since": "2024-04-02T00:00:00+00:00", "until": "2024-04-04T00:00:00+00:00"},
        ],
    }
    assert reviews["verdict"] == "waiting"
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_jobs SET status = 'completed', finished_at = now()")
        conn.execute("DELETE FROM scm.sync_jobs")
    reviews = asset(status(database, SETTINGS), JobType.REVIEWS)
    assert (reviews["gaps"]["windows"], reviews["queued"]["windows"]) == (2, 0)
    assert (reviews["verdict"], "gap" in reviews["reasons"]) == ("unhealthy", True)


def test_what_is_left_until_usable_and_until_complete_follows_from_counts_and_the_present_rate(
    database: Database, project: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def reviews() -> dict[str, Any]:
        return asset(status(database, SETTINGS), JobType.REVIEWS)

    # Before anything is stored nothing is known.
    assert (reviews()["level"], reviews()["estimate"]) == (None, None)
    unread = status(database, SETTINGS)
    assert list(reports.status_levels(unread)) == []
    assert "until usable and complete: not known yet for 2 assets without a stored merge request" in shown(
        unread
    )
    with database.connection() as conn:
        cover(conn, project, JobType.REVIEWS, TimeWindow(ORIGIN, day(3)))
        cover(conn, project, JobType.MERGE_REQUESTS, TimeWindow(BEGINNING, day(3)))
        store_merge_request(conn, project, 201)
        conn.execute(_LIMITS)
        conn.execute("UPDATE scm.sync_rate_limits SET rate = 4 WHERE endpoint_class = 'all'")
    # 200 reviews are unread: the largest number is 201, and none is stored.
    left = reviews()["estimate"]
    assert left["usable"]["requests"] == 1 + 3 + 11
    assert left["complete"] == {"requests": 1 + 3 + 905, "seconds": pytest.approx(909 / 4, abs=0.1)}
    plan_fetches(database, project, 8)
    planned = reviews()
    assert (planned["level"], planned["planned_fetches"], planned["failed_fetches"]) == ("usable", 8, 0)
    assert planned["estimate"]["usable"] == left["usable"]
    assert planned["estimate"]["complete"]["requests"] == left["complete"]["requests"] + 8
    # What is covered whole has only its planned fetches left.
    with database.connection() as conn:
        cover(conn, project, JobType.REVIEWS, TimeWindow(BEGINNING, day(3)))
        assert asset(status(database, SETTINGS), JobType.MERGE_REQUESTS)["level"] == "complete"
    whole = status(database, SETTINGS)
    found = asset(whole, JobType.REVIEWS)
    assert (found["estimate"]["usable"]["requests"], found["estimate"]["complete"]["requests"]) == (0, 8)
    assert found["complete_until"] == day(2).isoformat()
    assert asset(whole, JobType.MERGE_REQUESTS)["complete_until"] == day(3).isoformat()
    [server] = whole["servers"]
    assert server["estimate"] == {
        "usable": {"requests": 0, "seconds": 0.0},
        "complete": {"requests": 8, "seconds": 2.0},
        "unknown": 0,
    }
    assert reports.server_rows(whole)[0]["until_complete"] == "8 requests, 2 s"
    assert list(reports.status_levels(whole)) == [
        "usable, not complete: 1 asset. The covered rows have notes, approvers and reviewers; 8 planned "
        "fetches of other details will be done while nothing more urgent waits"
    ]
    assert "usable (8 planned)" in shown(whole)
    health_command._print_assets({"unhealthy": [], "usable": 1})
    assert (
        capsys.readouterr().out == "no asset is unhealthy; usable, not complete yet: 1, see scm-sync status\n"
    )


def shown(document: dict[str, Any], width: int = 200) -> str:
    """The summary of the servers and the table, as a terminal of this width shows them."""
    console = Console(width=width, record=True, file=io.StringIO())
    for part in (reports.server_summary(document), reports.status_table(document, width)):
        console.print(part)
    return console.export_text()


def test_the_estimate_uses_the_requests_that_planned_fetches_took_lately(
    database: Database, project: int
) -> None:
    with database.connection() as conn:
        for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS):
            cover(conn, project, job_type, TimeWindow(BEGINNING, day(3)))
        asked = JobRequest(
            project, JobType.REVIEWS, Mode.REPAIR, Trigger.SENSOR, "a", "b", only_deferred=True
        )
        run = {"job_id": jobs.enqueue(conn, asked), "attempt": 1, "status": "completed", "ago": 60}
        conn.execute(_RUN, run | {"code": None})
    plan_fetches(database, project, 2)
    with database.connection() as conn:
        conn.execute("UPDATE scm.deferred_fetches SET resolved_at = now() - interval '30 s'")
    plan_fetches(database, project, 4)
    found = asset(status(database, SETTINGS), JobType.REVIEWS)
    # The run sent 3 requests for 2 fetches.
    assert found["estimate"]["complete"]["requests"] == 6


def plan_fetches(database: Database, repo_id: int, number: int) -> None:
    """So many planned fetches of reviews, of merge requests that were updated on May 2 or later."""
    with database.connection() as conn:
        conn.execute(
            "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error,"
            " is_planned, row_updated_at) SELECT %s, 'reviews', n::text, 'notes', '', TRUE,"
            " timestamptz '2024-05-01T00:00Z' + n * interval '1 day' FROM generate_series(1, %s) AS n",
            (repo_id, number),
        )


def test_revisions_have_a_distance_to_head(database: Database) -> None:
    with database.connection() as conn:
        repo_id = builders.register(conn, origin=1001, head=1500)
        cover(conn, repo_id, JobType.REVISIONS, RevisionWindow(1, 11), RevisionWindow(1001, 1401))
    found = asset(status(database, SETTINGS), JobType.REVISIONS, "file:///srv/paint")
    assert found["covered"] == {"from": 1001, "to": 1400, "from_beginning": False}
    assert (found["watermark"], found["head_rev"], found["revisions_behind"]) == (1401, 1500, 100)
    assert found["gaps"]["revisions"] == 990
    assert found["gaps"]["first"] == [{"start_rev": 11, "end_rev": 1000}]
    assert found["gaps"]["from_beginning"] is False


def test_the_latest_attempt_is_the_last_run(database: Database, project: int) -> None:
    with database.connection() as conn:
        job_id = queue(conn, project, JobType.COMMITS, Mode.INCREMENTAL)
        for attempt, ago, state, code in ((1, 50, "failed", "timeout"), (2, 9, "completed", None)):
            values = {"job_id": job_id, "attempt": attempt, "ago": ago, "status": state, "code": code}
            conn.execute(_RUN, values)
    run = asset(status(database, SETTINGS), JobType.COMMITS)["last_run"]
    assert (run["status"], run["seconds"], run["error_code"]) == ("completed", 9.0, None)
    assert [run[name] for name in ("read", "inserted", "updated", "calls")] == [7, 2, 1, 3]


def test_a_stopped_token_shows_on_all_that_needs_it(database: Database, project: int) -> None:
    with database.connection() as conn:
        fingerprint = Readers(SETTINGS).fingerprint("git.test")
        credentials.stop(conn, "git.test", fingerprint, "the token is expired; create a new one")
    commits = asset(status(database, SETTINGS), JobType.COMMITS)
    assert commits["credential"]["problem"].startswith("the token is expired")
    assert commits["credential"]["stopped_at"] is not None
    assert (commits["verdict"], list(commits["reasons"])) == ("unhealthy", ["credential"])


def test_everybody_is_told_the_same_whatever_token_the_shell_has(database: Database, project: int) -> None:
    shells = [
        SETTINGS,
        Settings(environment="test"),
        Settings(gitlab_url="https://git.test", gitlab_token="glpat-another", environment="test"),
        Settings(gitlab_url="https://git.test", gitlab_token_file=Path("/nowhere"), environment="test"),
    ]

    def seen() -> list[Any]:
        """What each shell is told of the token."""
        return [asset(status(database, shell), JobType.COMMITS)["credential"] for shell in shells]

    assert seen() == [None] * len(shells)
    with database.connection() as conn:
        credentials.stop(conn, "git.test", "an older one", "the token has no scope")
        credentials.stop(conn, "git.test", "in force", "the token is expired")
    documents = seen()
    assert documents == [documents[0]] * len(shells)
    assert documents[0]["problem"] == "the token is expired"
    # A complete look at another project of that server took a token that it accepts.
    with database.connection() as conn:
        other = builders.register_project(conn, "https://git.test", 8, "platform/web", origin=ORIGIN)
        cover(conn, other, JobType.COMMITS, TimeWindow(BEGINNING, datetime.now(UTC)))
    named = status(database, SETTINGS, repos_get(database, project))
    assert seen() == [None] * len(shells)
    assert asset(named, JobType.COMMITS)["credential"] is None


def test_the_worst_come_first_and_retired_ones_only_when_named(database: Database, project: int) -> None:
    with database.connection() as conn:
        builders.register(conn, "gone")
        paint = builders.register(conn, "paint")
        cover(conn, paint, JobType.REVISIONS, RevisionWindow(1, 11))
        conn.execute(
            "UPDATE scm.sync_watermarks SET access = 'denied', access_detail = 'refused'"
            " WHERE repo_id = %(repo_id)s",
            {"repo_id": paint},
        )
        (gone,) = [one for one in repos.list_all(conn) if one.url.endswith("gone")]
    registration.retire_repository(database, gone.repo_id, reason="test", actor="test")
    document = status(database, SETTINGS)
    results = [u["verdict"] for u in document["units"]]
    assert results == sorted(results, key=["unhealthy", "waiting", "healthy"].index)
    assert document["units"][0]["access"]["detail"] == "refused"
    assert document["summary"]["units"] == {"healthy": 1, "waiting": 2, "unhealthy": 1}
    assert (document["summary"]["repositories"], document["summary"]["retired_repositories"]) == (2, 1)
    named = status(database, SETTINGS, repos_get(database, gone.repo_id))
    assert [u["lifecycle"] for u in named["units"]] == ["retired"]
    narrow = status(database, SETTINGS, job_types=[JobType.COMMITS])
    assert [u["job_type"] for u in narrow["units"]] == ["commits"]


def test_what_a_terminal_shows(database: Database, project: int) -> None:
    with database.connection() as conn:
        paint = builders.register(conn, "paint", origin=1001, head=1400)
        cover(conn, paint, JobType.REVISIONS, RevisionWindow(1, 11), RevisionWindow(1001, 1401))
    document = status(database, SETTINGS)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(reports.status_table(document, 200))
    text = console.export_text()
    assert re.search(
        r"unhealthy │ file:///srv/paint +│ local +│ revisions +│ r1001 to r1400, and apart r1..r10 +"
        "│ 0 s ago +│ 1 gap ",
        text,
    )
    assert re.search(r"healthy +│ platform/api +│ git.test +│ commits +│ the beginning to 20", text)
    line, help_line = reports.status_explanations(document)
    assert line == (
        "file:///srv/paint revisions: gap: not covered and no job will fill it: r11..r1000 (990 revisions)"
    )
    assert help_line == (
        "  → scm-sync runner backfill --repo svn:file:///srv/paint reads exactly what is missing"
    )
    assert reports.status_summary(document).startswith(
        "2 repositories; assets: 1 healthy, 2 waiting, 1 unhealthy; jobs: "
    )
    row = reports.status_rows(document)[0]
    assert row["instance"] == "local"
    assert "instance" not in reports.status_rows(status(database, SETTINGS, repos_get(database, paint)))[0]
    assert row["gaps"] == "1 window, 990 revisions: r11..r1000"
    assert row["queued"] == ""


def test_a_limit_that_is_paused_or_lowered_is_named(database: Database, project: int) -> None:
    with database.connection() as conn:
        paint = builders.register(conn, "paint")
        conn.execute(_LIMITS)
    document = status(database, SETTINGS)
    full = SETTINGS.rate_limit.start
    assert list(reports.status_limits(document)) == [
        "git.test: no request until 2100-01-01 00:00:00 UTC: paused by ann: upgrade",
        f"git.test for groups/projects: 2 requests a second instead of {full:g}",
    ]
    found = {**document["limits"][0], "paused": False, "lowered": False, "rate": 24.0, "max_rate": 100.0}
    [line] = reports.status_limits({"limits": [{**found, "rate_reason": "requests wait"}]})
    assert line == f"git.test: 24 requests a second ({full:g} at the start, at most 100): requests wait"
    assert status(database, SETTINGS, repos_get(database, paint))["limits"] == []


def test_what_breakers_and_people_hold_back_is_told(database: Database, project: int) -> None:
    assert list(reports.status_obstacles(status(database, SETTINGS)))[1:] == []
    with database.connection() as conn:
        paint = builders.register(conn, "paint")
        open_breaker(conn, "git.test")
        breakers.save(
            conn,
            breakers.BreakerRow("global", "", "closed", day(1), None, 0, 0, 0, 5, None, 0, None),
            actor="x",
        )
    place = pauses.PauseTarget(repo="gitlab:7", job_type=JobType.REVIEWS)
    made = pauses.pause(database, place, seconds=None, actor="ann", reason="an audit")
    document = status(database, SETTINGS)
    [breaker] = document["breakers"]
    assert (breaker["scope"], breaker["key"], breaker["state"]) == ("instance", "git.test", "open")
    assert [(one["actor"], one["reason"], one["until"]) for one in document["pauses"]] == [
        ("ann", "an audit", None)
    ]
    assert asset(document, JobType.COMMITS)["held_back"] == {
        "breaker_open": "breaker instance git.test: failures 100%"
    }
    assert asset(document, JobType.COMMITS)["verdict"] == "healthy"
    assert asset(document, JobType.REVIEWS)["held_back"]["paused"] == "ann: an audit"
    assert asset(document, JobType.REVISIONS, "file:///srv/paint")["held_back"] == {}
    lines = list(reports.status_obstacles(document))
    assert (
        lines[0] == f"pause {made['id']}: reviews of repository gitlab:7 until it is resumed (ann: an audit)"
    )
    assert re.fullmatch(r"breaker instance git\.test: open since 2.* UTC: failures 100%", lines[1])
    elsewhere = status(database, SETTINGS, repos_get(database, paint))
    assert (elsewhere["breakers"], elsewhere["pauses"]) == ([], [])
    assert len(status(database, SETTINGS, repos_get(database, project))["pauses"]) == 1


def test_the_owner_of_a_running_job_is_named(database: Database, project: int) -> None:
    with database.connection() as conn:
        queue(conn, project, JobType.COMMITS, Mode.INCREMENTAL)
        job_id = claim(conn, project, JobType.COMMITS)
    document = status(database, SETTINGS)
    [running] = asset(document, JobType.COMMITS)["running"]
    assert (running["job_id"], running["worker"], running["attempt"]) == (str(job_id), "build-7:42", 1)
    assert running["claim_expires_at"] > document["generated_at"]
    assert list(reports.status_running(document)) == [
        "at work: platform/api commits: incremental for 3 min by build-7:42"
    ]
    assert asset(document, JobType.REVIEWS)["running"] == []


def test_what_is_due_and_not_started_is_counted_with_its_age(database: Database, project: int) -> None:
    with database.connection() as conn:
        conn.execute("UPDATE scm.repos SET created_at = now() - interval '2 hours'")
        conn.execute(
            "UPDATE scm.sync_watermarks SET visited_at = now() - interval '4 minutes'"
            " WHERE job_type = 'commits'"
        )
    document = status(database, SETTINGS)
    due = document["due"]
    assert (due["count"], due["never_visited"], due["held_back"]) == (2, 2, 0)
    assert 7200 <= due["longest_seconds"] < 7300
    assert due["interval_kept"] is False
    # What a worker reads now is started, and what somebody paused is late for a reason.
    with database.connection() as conn:
        queue(conn, project, JobType.REVIEWS, Mode.INCREMENTAL)
        claim(conn, project, JobType.REVIEWS)
        conn.execute(
            "UPDATE scm.sync_watermarks SET visited_at = now() - interval '6 minutes'"
            " WHERE job_type = 'commits'"
        )
    assert status(database, SETTINGS)["due"]["count"] == 2
    pauses.pause(database, pauses.PauseTarget(), seconds=60, actor="ann", reason="audit")
    paused = status(database, SETTINGS)
    assert (paused["due"]["held_back"], paused["due"]["interval_kept"]) == (2, True)
    assert list(reports.status_obstacles(paused))[-1] == (
        "due and not started: 2 (1 never visited, 2 held back: paused, refused or to be retried), "
        "the longest not visited for 2 h; scm-sync scheduler --dry-run says why"
    )
    with database.connection() as conn:
        conn.execute("UPDATE scm.pauses SET ended_at = now(), ended_by = 'ann'")
        job_id = queue(conn, project, JobType.COMMITS, Mode.INCREMENTAL)
        conn.execute(
            "UPDATE scm.sync_jobs SET status = 'failed', not_before = now() + interval '1 minute'"
            " WHERE job_id = %(job_id)s",
            {"job_id": job_id},
        )
    failed = status(database, SETTINGS)
    assert list(asset(failed, JobType.COMMITS)["held_back"]) == ["waits_for_retry"]
    assert (failed["due"]["count"], failed["due"]["held_back"]) == (2, 1)
    # Its first visit has begun, but the claim has run out: nobody works on it.
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = now() WHERE status = 'running'")
    assert status(database, SETTINGS)["due"]["count"] == 3


def test_a_terminal_of_80_columns_shows_the_whole_name_and_the_reason(
    database: Database, project: int
) -> None:
    with database.connection() as conn:
        paint = builders.register(conn, "a_name_of_thirty_characters_00", origin=1001, head=1400)
        cover(conn, paint, JobType.REVISIONS, RevisionWindow(1001, 1401))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(reports.status_table(status(database, SETTINGS), 80))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    first = next(number for number, line in enumerate(lines) if line.startswith("unhealthy"))
    assert lines[first].split() == [
        "unhealthy",
        "file:///srv/a_name_of_thirty_characters_00",
        "on",
        "local",
        "revisions",
    ]
    below = " ".join(line.strip() for line in lines[first + 1 : first + 3])
    assert below.startswith("r1001 to r1400; fresh 0 s ago; 1 gap; last run none; gap")


def test_what_is_covered_apart_from_the_origin_is_not_called_nothing(database: Database) -> None:
    with database.connection() as conn:
        paint = builders.register(conn, "paint", origin=12_001, head=13_000)
        cover(conn, paint, JobType.REVISIONS, RevisionWindow(1, 12_001))
    document = status(database, SETTINGS)
    (asset,) = document["units"]
    assert asset["covered"] is None
    assert asset["covered_apart"] == {
        "windows": 1,
        "revisions": 12_000,
        "seconds": 0.0,
        "from_beginning": True,
        "first": [{"start_rev": 1, "end_rev": 12_000}],
    }
    assert reports.status_rows(document)[0]["covered"] == "r1..r12000, not yet the origin r12001"
