"""The command line: what it prints, its exit codes, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import psycopg
import pytest
import typer
from psycopg import sql
from rich.cells import cell_len

from sync_pipeline import __version__, cli
from sync_pipeline.cli import program, progress, shared
from sync_pipeline.core.model import Counts, JobRequest, JobStatus, JobType, Kind, Mode, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import jobs, leases, servers
from sync_pipeline.registry import registration
from sync_pipeline.settings import Settings, load_settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.worker import process_identity
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, serve
from sync_pipeline_tests import builders
from sync_pipeline_tests.warm import Process, Starter

SECRET = "hunter2-never-shown"
COMMANDS = (
    "",
    "env",
    "db migrate",
    "db check",
    "db verify",
    "admin verify",
    "db rollback",
    "db start",
    "db stop",
    "repo add",
    "repo list",
    "repo show",
    "repo relocate",
    "repo retire",
    "root add",
    "root list",
    "root sync",
    "root retire",
    "catalog export",
    "watermark reset",
    "watermark set",
    "watermark events",
    "runner incremental",
    "runner backfill",
    "repair remap",
    "ui",
    "up",
    "doctor",
    "status",
    "completeness",
    "scheduler",
    "worker",
    "reaper",
    "admin retention",
    "admin pause",
    "admin resume",
    "admin pauses",
    "admin breakers",
    "admin breaker-reset",
    "health",
    "admin full-sync",
    "admin repair-recent",
    "admin runs list",
    "admin runs show",
    "admin runs replay",
)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def refused(self, code: int, *parts: str) -> None:
        """Assert exit code and one line on stderr that holds every part, and nothing else."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("scm-sync: "), self
        assert self.err.count("\n") == 1, self
        for part in parts:
            assert part in self.err
        assert SECRET not in self.err


Scm = Callable[..., Done]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder and a state folder of the test's own; --set and --debug end with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(logging.getLogger("sync_pipeline"), "level", logging.NOTSET)  # put back at the end
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SCM_ENVIRONMENT", "test")


@pytest.fixture
def scm(capsys: pytest.CaptureFixture[str]) -> Scm:
    """Runs a command in this process."""

    def run(*arguments: str | Path) -> Done:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def on_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The test's database as the one in force."""
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    return database


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects what Dagster would be told of catalog changes; that it is told is proven end to end."""
    seen: list[str] = []

    def notify(settings: Settings, database: Database) -> None:
        registration.export_catalog(database, settings)
        seen.append("notified")

    monkeypatch.setattr(shared, "after_catalog_change", notify)
    return seen


@pytest.fixture
def repository_url(tmp_path: Path) -> str:
    """A real SVN repository with three revisions."""
    folder = tmp_path / "paint"
    subprocess.run(["svnadmin", "create", folder], check=True)
    url = f"file://{folder}"
    for name in ("trunk", "branches", "tags"):
        subprocess.run(["svn", "mkdir", "-q", "-m", name, f"{url}/{name}"], check=True)
    return url


@pytest.mark.parametrize(
    "arguments", [("repo", "show", "a\udcff"), ("admin", "pause", "--reason", "\udcff", "--all")]
)
def test_an_argument_that_is_not_utf8_is_refused_in_one_line(
    on_database: Database, scm: Scm, arguments: tuple[str, ...]
) -> None:
    scm(*arguments).refused(3, "is not UTF-8", "\\udcff")


def jobs_of(database: Database) -> int:
    with database.connection() as conn:
        row = conn.execute("SELECT count(*) AS n FROM scm.sync_jobs").fetchone()
        assert row is not None
        return int(row["n"])


# Usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(scm: Scm, command: str) -> None:
    done = scm(*command.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: scm-sync {command}".rstrip())


@pytest.mark.parametrize("group", ["", "repo", "admin jobs"])
def test_a_group_alone_says_which_commands_it_has(scm: Scm, group: str) -> None:
    done = scm(*group.split())
    assert (done.code, done.err) == (0, "")
    assert done.out == scm(*group.split(), "-h").out == scm(*group.split(), "--help").out


def commands(group: Any = None, path: str = "scm-sync") -> Iterator[tuple[str, Any]]:
    """Every command and group with the words that call it."""
    group = group if group is not None else typer.main.get_command(program.app)
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


def test_no_help_is_cut_or_wider_than_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in commands():
        with command.make_context(path, [], resilient_parsing=True) as context:
            text = command.get_help(context)
        assert max(map(len, text.splitlines())) <= 80, text
        if hasattr(command, "commands"):
            assert not re.search(r"\.\.\.$", text.partition("\n")[2], re.MULTILINE), text
            for name, one in command.commands.items():
                sentence = one.get_short_help_str(limit=500)
                assert one.hidden or re.search(rf"(?m)^  {name} +{re.escape(sentence)}$", text), (name, text)


def test_the_help_lists_commands_by_what_they_are_for(scm: Scm) -> None:
    text = scm("--help").out
    places = [
        text.index(word) for word in ("Sync:", "  runner ", "Inspect:", "  status ", "Operate:", "  db ")
    ]
    assert places == sorted(places)


def test_every_example_of_the_help_is_a_command_that_exists() -> None:
    examples = [
        line.strip()
        for _, command in commands()
        for line in (command.epilog or "").splitlines()
        if "scm-sync" in line
    ]
    assert len(examples) > 20
    program_command = typer.main.get_command(program.app)
    for example in examples:
        command: Any = program_command
        words = shlex.split(example)[1:]
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        command.make_context(example, words)


@pytest.mark.parametrize("name", ["scheduler", "worker", "reaper", "status"])
def test_the_short_commands_are_those_of_the_program(name: str) -> None:
    content = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    module, _, function = content["project"]["scripts"][f"scm-sync-{name}"].partition(":")
    code = f"from {module} import {function}; {function}()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: scm-sync {name} [OPTIONS]")


def test_a_shell_may_ask_for_completion(tmp_path: Path) -> None:
    asked = {"_SCM_SYNC_COMPLETE": "complete_bash", "COMP_WORDS": "scm-sync repo re", "COMP_CWORD": "2"}
    done = subprocess.run(["scm-sync"], capture_output=True, text=True, env=_with_our_path() | asked)
    assert (done.returncode, done.stdout.split()) == (0, ["retire", "relocate"])


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("", "ui", "up", "env", "db stop")])
def test_every_command_that_prints_data_can_print_json(scm: Scm, command: str) -> None:
    assert "--json" in scm(*command.split(), "--help").out


@pytest.mark.parametrize(
    "command",
    [
        "db migrate",
        "db rollback",
        "repo add",
        "repo relocate",
        "repo retire",
        "root add",
        "root retire",
        "runner backfill",
        "repair remap",
        "scheduler",
        "worker",
        "reaper",
        "admin retention",
        "admin full-sync",
        "admin repair-recent",
    ],
)
def test_every_command_that_changes_much_can_be_tried(scm: Scm, command: str) -> None:
    assert "--dry-run" in scm(*command.split(), "--help").out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["repo", "list", "--nonsense"], "No such option"),
        (["repo", "show"], "Missing argument"),
        (["repo", "retire", "1"], "--reason"),
        (["runner", "backfill", "--repo", "1", "--start-rev", "x"], "--start-rev"),
        (["runner", "incremental"], "--repo"),
        (["reaper", "--policy", "dead"], "none of failed, pending"),
        (["reaper", "--once", "--loop"], "exclude each other"),
        (["scheduler", "--once", "--loop"], "exclude each other"),
        (["worker", "--once", "--loop"], "exclude each other"),
        (["worker", "--interval-seconds", "0"], "--interval-seconds"),
        (["worker", "--poll-interval", "0"], "--poll-interval"),
        (["worker", "--job-types", "commits,nonsense"], "--job-types: unknown job type 'nonsense'"),
        (["worker", "--lease-seconds", "0"], "--lease-seconds"),
        (["worker", "--lease-seconds", "30"], "or the claim is lost; see --lease-seconds"),
        (["worker", "--worker-id", "a b"], "--worker-id: write a name"),
        (["worker", "--worker-id", ""], "--worker-id: write a name"),
        (["health", "--for", "x"], "none of scheduler, worker, reaper, location"),
        (["health", "--max-age", "9"], "--for"),
        (["admin", "pause", "--reason", "x"], "one of --instance, --tenant, --repo and --all"),
        (["admin", "pause", "--all", "--tenant", "x", "--reason", "x"], "one of --instance"),
        (["admin", "pause", "--all"], "--reason"),
        (["admin", "pause", "--all", "--reason", "x", "--for", "2w"], "write it like 90s, 30m, 2h or 3d"),
        (["admin", "pause", "--all", "--reason", "x", "--for", "0s"], "in the future"),
        (["admin", "pause", "--all", "--reason", "x", "--until", "soon"], "is no time"),
        (["admin", "pause", "--all", "--reason", "x", "--until", "2001-01-01"], "in the future"),
        (["admin", "pause", "--all", "--reason", "x", "--for", "1h", "--until", "x"], "exclude each other"),
        (["admin", "pause", "--all", "--reason", "x", "--job", "nonsense"], "--job"),
        (["admin", "resume", "x"], "ID"),
        (["db", "rollback", "--steps", "0"], "--steps"),
        (["--set", "chunk_revisions", "repo", "list"], "NAME=VALUE"),
        (["--set", f"svn_password={SECRET}", "repo", "list"], "svn_password"),
        (["--set", f"gitlab_token={SECRET}", "repo", "list"], "gitlab_token"),
        (["--set", f"database_url=postgresql://u:{SECRET}@h/d", "repo", "list"], "seen by everybody"),
        (["root", "add", "platform"], "gitlab:group:<path or id>"),
        (["--set", "chunk_revision=5", "repo", "list"], "did you mean chunk_revisions?"),
        (["--set", "chunk_revisions=0", "repo", "list"], "--set chunk_revisions: "),
        (["--set", "gitlab=x", "repo", "list"], "--set gitlab: there is no such setting"),
        (["--set", "max_jobs_per_tick=0", "repo", "list"], "--set scheduler_max_enqueue_per_scan: "),
    ],
)
def test_a_wrong_call_is_one_line_that_leads_on(scm: Scm, arguments: list[str], part: str) -> None:
    scm(*arguments).refused(3, part)


def test_the_version_is_printed(scm: Scm) -> None:
    assert scm("--version") == Done(0, f"scm-sync {__version__}\n", "")


def test_the_entry_stays_light() -> None:
    heavy = {"dagster", "psycopg", "pydantic", "rich", "lxml", "pandas", "sqlalchemy"}
    code = f"import sys, sync_pipeline.cli; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


# Errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "part"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/scm", "127.0.0.1:1/scm"),
        (f"mysql://me:{SECRET}@h/scm", "is not a PostgreSQL URL"),
        (f"postgresql://me:{SECRET}/{SECRET}@h:1/scm", "write postgresql://"),
    ],
)
@pytest.mark.parametrize("command", ["repo list", "db check", "db migrate", "runner incremental --repo 1"])
def test_a_database_that_is_not_there_is_one_line(
    scm: Scm, monkeypatch: pytest.MonkeyPatch, url: str, part: str, command: str
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", url)
    scm(*command.split()).refused(3, part)


def test_a_database_without_our_tables_names_the_remedy(
    scm: Scm, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", empty_database_url)
    scm("repo", "list").refused(3, "scm-sync db migrate")
    assert scm("db", "migrate", "--dry-run").out.startswith("would apply 0001")
    scm("db", "check").refused(3, "scm-sync db migrate")
    assert scm("db", "migrate", "--json").json["applied"]
    assert scm("db", "migrate").out == "nothing to do\n"
    assert scm("db", "check", "--json").json["status"] == "up_to_date"
    with psycopg.connect(empty_database_url) as conn:
        conn.execute("DROP INDEX scm.sync_jobs_one_active")
    lost = scm("db", "check")
    assert (lost.code, lost.out.count(";\n")) == (3, 1)
    assert "index scm.sync_jobs_one_active is missing" in lost.err
    assert scm("db", "check", "--json").json["damages"][0]["statement"] == lost.out.splitlines()[1]
    with psycopg.connect(empty_database_url) as conn:
        conn.execute(lost.out.encode())
    assert scm("db", "rollback", "--dry-run").out.startswith("would undo")
    assert scm("db", "check").code == 0
    assert scm("db", "status").out == scm("db", "check").out
    assert scm("db", "rollback", "--yes", "--steps", "99").code == 0
    scm("db", "check").refused(3, "scm-sync db migrate")


def test_a_database_of_another_environment_is_refused(scm: Scm, on_database: Database) -> None:
    for command in (["repo", "list"], ["db", "migrate"], ["db", "migrate", "--dry-run"], ["db", "rollback"]):
        scm("--set", "environment=production", *command).refused(3, "production", "test")
    os.environ["SCM_ENVIRONMENT"] = "test"
    assert scm("db", "check").code == 0


def test_a_server_of_ones_own_is_not_started_or_stopped(scm: Scm, on_database: Database) -> None:
    for command in ("start", "stop"):
        scm("db", command).refused(3, "SCM_DATABASE_URL")


def test_what_is_logged_is_a_setting(
    scm: Scm, on_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_WORKER_LOG_LEVEL", "INFO")
    assert scm("repo", "list").code == 0
    assert logging.getLogger("sync_pipeline").level == logging.INFO


def test_a_wrong_file_of_settings_is_one_line(scm: Scm, tmp_path: Path) -> None:
    (tmp_path / "sync_pipeline.toml").write_text(f"svn_password = '{SECRET}")
    scm("repo", "list").refused(3, "sync_pipeline.toml", "line 1, column")


def test_an_unforeseen_error_is_one_line_and_a_traceback_only_on_demand(
    scm: Scm, on_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"two\nlines about https://me:{SECRET}@h/x")

    monkeypatch.setattr(registration, "export_catalog", broken)
    scm("catalog", "export").refused(2, "RuntimeError", "two lines", "--debug")
    done = scm("--debug", "catalog", "export")
    assert done.code == 2
    assert "Traceback" in done.err


def test_an_interruption_is_one_line(
    scm: Scm, on_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registration, "export_catalog", interrupted)
    scm("catalog", "export").refused(130, "interrupted")


def test_a_reader_that_went_away_is_not_complained_about(on_database: Database) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sync_pipeline", "repo", "list", "--json"]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=os.environ
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_shell_can_evaluate_the_environment(on_database: Database, tmp_path: Path) -> None:
    script = (
        'eval "$(scm-sync env)" && printf "%s\\n" "$SCM_DATABASE_URL" "$DAGSTER_HOME" && scm-sync repo list'
    )
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, env=_with_our_path()
    )
    url, home = done.stdout.splitlines()
    assert url == on_database.url
    assert Path(home, "dagster.yaml").is_file()


def _with_our_path() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


# The catalog --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("paint", "svn:<url>"),
        ("svn://h/paint", "svn:svn://h/paint"),
        (f"svn:https://me:{SECRET}@h/paint", "SCM_SVN_PASSWORD"),
        ("gitlab:12", "SCM_GITLAB_URL"),
        (f"gitlab:https://oauth2:{SECRET}@h/a/b", "SCM_GITLAB_TOKEN"),
        ("svn:file:///nowhere/paint", "/nowhere/paint"),
    ],
)
def test_what_cannot_be_registered_leaves_no_trace(
    scm: Scm, on_database: Database, notified: list[str], spec: str, part: str
) -> None:
    scm("repo", "add", spec).refused(3, part)
    assert scm("repo", "list", "--all", "--json").json == []
    assert notified == []


def test_the_catalog_shows_access_in_the_words_of_the_status_report(
    scm: Scm, on_database: Database, notified: list[str], repository_url: str
) -> None:
    number = scm("repo", "add", f"svn:{repository_url}", "--json").json["repo_id"]
    [listed] = scm("repo", "list", "--json").json
    assert listed["access"] == {"revisions": "ok"}
    with on_database.connection() as conn:
        servers.record_failure(conn, listed["instance"], Kind.SVN, "connection", "cannot be reached")
    [listed] = scm("repo", "list", "--json").json
    [shown] = scm("repo", "show", str(number), "--json").json["job_types"]
    [reported] = scm("status", "--json").json["units"]
    assert listed["access"] == {"revisions": "unreachable"}
    assert (shown["access"], shown["access_detail"]) == ("unreachable", "cannot be reached")
    assert reported["access"]["state"] == "unreachable"
    assert "unreachable" in scm("repo", "list").out


def test_a_host_that_does_not_answer_is_one_line(scm: Scm, on_database: Database) -> None:
    scm("repo", "add", "svn:svn://127.0.0.1:1/paint").refused(2, "127.0.0.1:1")


def test_a_repository_is_added_listed_shown_and_retired(
    scm: Scm, on_database: Database, notified: list[str], repository_url: str, tmp_path: Path
) -> None:
    spec = f"svn:{repository_url}"
    assert "would be registered: HEAD r3" in scm("repo", "add", spec, "--dry-run").out
    assert scm("repo", "list", "--json").json == []
    added = scm("repo", "add", f"{spec}/", "--json", "--tenant", "shop").json
    assert (added["result"], added["spec"], added["head"], added["origin"]) == ("registered", spec, 3, 1)
    assert notified == ["notified"]
    assert (
        json.loads((tmp_path / "state" / "catalog.json").read_text())["repositories"][0]["tenant"] == "shop"
    )
    again = scm("repo", "add", spec)
    assert again == Done(0, f"{spec} is registered already as repository {added['repo_id']}\n", "")
    assert notified == ["notified"]
    header, line = scm("repo", "list").out.splitlines()
    names = ["repo_id", "spec", "path", "tenant", "slug", "access", "root", "lifecycle"]
    assert header.split("\t") == names
    assert line.split("\t")[1:] == [spec, "", "shop", added["slug"], "ok", "", "active"]
    for name in (spec, str(added["repo_id"]), added["slug"]):
        shown = scm("repo", "show", name, "--json").json
        assert shown["slug"] == added["slug"]
        assert shown["job_types"][0]["origin"] == 1
    assert added["slug"] in scm("repo", "show", spec).out
    retire = ("repo", "retire", spec, "--reason", "moved")
    assert scm(*retire, "--dry-run", "--json").json["result"] == "would_retire"
    assert scm(*retire, "--json").json["result"] == "retired"
    assert "was retired before" in scm(*retire).out
    assert notified == ["notified", "notified"]
    assert scm("repo", "list", "--json").json == []
    assert scm("repo", "list", "--all", "--json").json[0]["lifecycle"] == "retired"
    scm("runner", "incremental", "--repo", spec).refused(3, "is retired")


def test_a_repository_whose_server_moved_is_relocated(
    scm: Scm, on_database: Database, notified: list[str], repository_url: str, tmp_path: Path
) -> None:
    number = scm("repo", "add", f"svn:{repository_url}", "--json").json["repo_id"]
    assert scm("runner", "incremental", "--repo", str(number)).code == 0
    (tmp_path / "paint").rename(tmp_path / "moved")
    new = f"file://{tmp_path}/moved"
    scm("repo", "add", f"svn:{new}").refused(3, f"scm-sync repo relocate {number} {new} --reason TEXT")
    relocate = ("repo", "relocate", str(number), new, "--reason", "new disk")
    tried = scm(*relocate, "--dry-run").out
    assert tried == (
        f"repository {number} would be relocated: {new}, HEAD r3, 3 stored revisions are the same\n"
    )
    assert notified == ["notified"]
    done = scm(*relocate, "--json").json
    assert (done["result"], done["old_url"], done["url"]) == ("relocated", repository_url, new)
    assert notified == ["notified", "notified"]
    assert "is there already" in scm(*relocate).out
    shown = scm("repo", "show", str(number), "--json").json
    assert (shown["svn_root"], shown["events"][-1]["reason"]) == (new, "new disk")
    snapshot = json.loads((tmp_path / "state" / "catalog.json").read_text())
    assert snapshot["repositories"][0]["url"] == new


@pytest.fixture
def gitlab(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitLab]:
    """A small GitLab with a project ``platform/api``, named by the environment."""
    gitlab = GitLab()
    group, user = gitlab.group("platform"), gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    gitlab.project("api", group=group)
    with serve(gitlab) as server:
        monkeypatch.setenv("SCM_GITLAB_URL", server.url)
        monkeypatch.setenv("GITLAB_TOKEN", f"{gitlab.token(user).secret}\n")
        yield gitlab


def test_a_project_is_added_listed_shown_and_retired(
    scm: Scm, on_database: Database, notified: list[str], gitlab: GitLab
) -> None:
    plan = scm("repo", "add", "gitlab:platform/api", "--dry-run")
    assert plan.out.startswith("gitlab:platform/api would be registered: live from ")
    assert "0 merge requests, 0 commits: about 5 requests, less than 2 minutes until usable; " in plan.out
    assert plan.out.rstrip().endswith("5 requests, less than 2 minutes until complete")
    assert scm("repo", "add", "gitlab:1", "--dry-run", "--json").json["estimate"]["requests"] == 5
    planned = scm("repo", "add", "gitlab:1", "--dry-run", "--json").json
    assert planned["estimate"]["hours"] == round(planned["estimate"]["hours"], 4)
    assert datetime.fromisoformat(planned["origin"]).isoformat() == planned["origin"]
    assert scm("repo", "list", "--json").json == []
    added = scm("repo", "add", "gitlab:platform/api", "--json").json
    assert (added["result"], added["path"], added["spec"]) == ("registered", "platform/api", "gitlab:1")
    assert added["history_windows"]
    assert notified == ["notified"]
    assert "is registered already as repository" in scm("repo", "add", "gitlab:1").out
    assert "instance" not in scm("repo", "list").out
    with on_database.connection() as conn:
        builders.register(conn, "elsewhere")
    listed = [row.split("\t") for row in scm("repo", "list").out.splitlines()]
    assert [row[listed[0].index("instance")] for row in listed[2:]] == ["local"]
    line = [cell for name, cell in zip(*listed[:2], strict=True) if name != "instance"]
    assert line[1:] == ["gitlab:1", "platform/api", "platform", "platform__api", "ok", "", "active"]
    shown = scm("repo", "show", "gitlab:Platform/API", "--json").json
    assert [row["job_type"] for row in shown["job_types"]] == ["commits", "merge_requests", "reviews"]
    assert shown["url"].endswith("/platform/api")
    assert [event["event"] for event in shown["events"]] == ["registered"]
    text = scm("repo", "show", "platform__api").out
    assert "svn_root" not in text
    assert "merge_requests" in text
    assert scm("repo", "retire", "gitlab:platform/api", "--reason", "x").code == 0
    assert "taken up again" in scm("repo", "add", "gitlab:1").out
    scm("repo", "add", "gitlab:platform/nothing").refused(3, "no project platform/nothing")
    scm("repo", "add", "gitlab:platform").refused(3, "scm-sync root add gitlab:group:platform")


def test_a_root_is_added_synced_listed_and_retired(
    scm: Scm, on_database: Database, notified: list[str], gitlab: GitLab
) -> None:
    group = gitlab.find_group("platform")
    assert group is not None
    assert "no roots" in scm("root", "list").err
    plan = scm("root", "add", "gitlab:group:platform", "--dry-run")
    assert plan.out == "platform/api\ngitlab:group:platform: 1 projects, 1 would be registered\n"
    tried = scm("root", "add", "gitlab:group:platform", "--exclude", "*/api", "--dry-run", "--json").json
    assert (tried["result"], tried["listed"], tried["would_register"]) == ("would_add", 1, [])
    assert (scm("root", "list", "--json").json, notified) == ([], [])
    added = scm("root", "add", "gitlab:group:platform", "--include", "platform/*", "--json").json
    assert (added["result"], added["registered"]) == ("added", [{"repo_id": 1, "path": "platform/api"}])
    assert notified == ["notified"]
    assert "1 projects, 1 match, nothing new" in scm("root", "sync").out
    assert notified == ["notified"]
    gitlab.project("web", group=group)
    assert (
        scm("root", "sync", "gitlab:group:platform", "--json").json[0]["registered"][0]["path"]
        == "platform/web"
    )
    assert notified == ["notified", "notified"]
    (root,) = scm("root", "list", "--json").json
    assert (root["root"], root["repositories"], root["include"]) == (
        "gitlab:group:platform",
        2,
        ["platform/*"],
    )
    assert "platform/*" in scm("root", "list").out
    assert [row["root"] for row in scm("repo", "list", "--json").json] == [1, 1]
    assert "has the new patterns" in scm("root", "add", "gitlab:group:platform").out
    gitlab.delete_group(group)
    failed = scm("root", "sync")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("scm-sync: gitlab:group:platform: ")
    assert scm("root", "list", "--json").json[0]["error"]
    assert "would be retired" in scm("root", "retire", "1", "--dry-run").out
    assert scm("root", "retire", "1", "--json").json["result"] == "retired"
    assert "retired before" in scm("root", "retire", "1").out
    scm("root", "sync", "1").refused(3, "root 1 is retired")
    assert len(scm("repo", "list", "--json").json) == 2


def test_a_lost_snapshot_is_written_by_the_next_add(
    scm: Scm, on_database: Database, notified: list[str], repository_url: str, tmp_path: Path
) -> None:
    scm("repo", "add", f"svn:{repository_url}")
    (tmp_path / "state" / "catalog.json").unlink()
    assert "registered already" in scm("repo", "add", f"svn:{repository_url}").out
    assert (tmp_path / "state" / "catalog.json").exists()
    (tmp_path / "state" / "catalog.json").unlink()
    assert scm("catalog", "export", "--json").json["repositories"] == 1
    assert (tmp_path / "state" / "catalog.json").exists()


def test_a_list_is_added_as_far_as_it_can_be(
    scm: Scm, on_database: Database, notified: list[str], repository_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "repos.toml"
    entry = '[[repository]]\nspec = "{}"\n'
    path.write_text(entry.format("nonsense") + entry.format(f"svn:{repository_url}"))
    done = scm("repo", "add", "--file", path, "--json")
    assert done.code == 1
    assert [document["result"] for document in done.json] == ["failed", "registered"]
    assert done.err.count("\n") == 1
    assert "nonsense" in done.err
    assert notified == ["notified"]
    path.write_text(entry.format("nonsense") * 2)
    assert scm("repo", "add", "--file", path).code == 2
    path.write_text("[[repository]")
    scm("repo", "add", "--file", path).refused(3, "line 1, column")
    scm("repo", "add", "--file", tmp_path / "absent.toml").refused(3, "absent.toml")
    scm("repo", "add").refused(3, "--file")


# The runner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--start-rev", "3", "--end-rev", "2"), "--end-rev 2 is before --start-rev 3"),
        (("--end-rev", "4"), "beyond HEAD, which is r3"),
        (("--start-rev", "9"), "beyond HEAD, which is r3"),
        (("--start-rev", "0"), "the first revision is 1"),
        (("--job", "commits"), "has no commits"),
        (("--job", "nonsense"), "unknown job type"),
    ],
)
def test_a_window_that_does_not_exist_is_refused_before_anything_is_written(
    scm: Scm,
    on_database: Database,
    notified: list[str],
    repository_url: str,
    arguments: tuple[str, ...],
    part: str,
) -> None:
    scm("repo", "add", f"svn:{repository_url}")
    scm("runner", "backfill", "--repo", f"svn:{repository_url}", *arguments).refused(3, part)
    assert jobs_of(on_database) == 0


def test_an_unknown_repository_is_refused_by_name(scm: Scm, on_database: Database) -> None:
    for mode in ("incremental", "backfill"):
        scm("runner", mode, "--repo", "svn:svn://h/x").refused(3, "svn:svn://h/x", "scm-sync repo add")


def test_a_dry_run_shows_what_is_missing_and_writes_nothing(
    scm: Scm, on_database: Database, notified: list[str], repository_url: str
) -> None:
    scm("repo", "add", f"svn:{repository_url}")
    command = ("runner", "backfill", "--repo", f"svn:{repository_url}", "--start-rev", "2", "--dry-run")
    plan = scm(*command, "--json").json
    assert plan["chunks"] == [
        {
            "chunk_index": 0,
            "window": {"start_rev": 2, "end_rev": 3},
            "state": "missing",
            "missing": [{"start_rev": 2, "end_rev": 3}],
        }
    ]
    assert (plan["head"], plan["missing_items"], plan["exit_code"]) == (3, 2, 0)
    assert "2 revisions in 1 block missing; HEAD is r3; about 3 svn commands" in scm(*command).out
    assert jobs_of(on_database) == 0


def test_a_repository_whose_source_is_gone_is_one_line(
    scm: Scm, on_database: Database, tmp_path: Path
) -> None:
    with on_database.connection() as conn:
        number = builders.register(conn)
    scm("runner", "backfill", "--repo", str(number)).refused(3, "file:///srv/paint")


def test_facts_are_derived_anew_without_a_server(
    scm: Scm, on_database: Database, notified: list[str], gitlab: GitLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project,) = gitlab.projects.values()
    author = next(iter(gitlab.users.values()))
    gitlab.clock.fixed = datetime.now(UTC) - timedelta(hours=1)
    gitlab.comment(gitlab.open_merge_request(project, author=author, title="Right"), author, "Hello")
    gitlab.clock.fixed = None
    assert scm("repo", "add", "gitlab:platform/api").code == 0
    syncer = Syncer(on_database, load_settings())
    for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS):
        assert syncer.run(JobRequest(1, job_type, Mode.INCREMENTAL, Trigger.RUNNER, "test", "test")).succeeded
    monkeypatch.delenv("SCM_GITLAB_URL")
    monkeypatch.delenv("GITLAB_TOKEN")
    asked = len(gitlab.journal.entries)
    with on_database.connection() as conn:
        conn.execute("UPDATE scm.mrs SET title = 'Wrong'")
        conn.execute("UPDATE scm.review_events SET raw = '{}'")
    remap = ("repair", "remap", "--repo", "platform__api")
    before = jobs_of(on_database)
    assert scm(*remap, "--dry-run") == Done(
        0,
        "gitlab:1 commits: 0 of 0 rows would change\n"
        "gitlab:1 merge_requests: 1 of 1 rows would change\n"
        "gitlab:1 reviews: 0 of 1 rows would change, 1 cannot be read\n",
        "",
    )
    assert jobs_of(on_database) == before
    tried = scm(*remap, "--job", "mrs", "--dry-run", "--json").json
    assert (tried["rows_read"], tried["rows_to_change"], tried["dry_run"]) == (1, 1, True)
    scm(*remap, "--job", "mrs", "--since", "2100-01-01").refused(3, "--since 2100-01-01 is in the future")
    one = scm(*remap, "--job", "mrs", "--since", "2001-01-01", "--json").json
    assert (one["status"], one["updated"], one["calls"], one["exit_code"]) == ("success", 1, 0, 0)
    assert one["window"] == {"since": "2001-01-01T00:00:00+00:00", "until": None}
    every = scm(*remap)
    assert (every.code, every.err) == (0, "")
    assert every.out.splitlines()[1:] == [
        "gitlab:1 merge_requests repair: success; 0 inserted, 0 updated, 1 unchanged",
        "gitlab:1 reviews repair: success; 0 inserted, 0 updated, 0 unchanged, 1 quarantined",
    ]
    assert len(gitlab.journal.entries) == asked
    scm(*remap, "--job", "revisions").refused(3, "has no revisions")
    scm(*remap, "--job", "nonsense").refused(3, "unknown job type")
    with on_database.connection() as conn:
        svn = builders.register(conn)
    scm("repair", "remap", "--repo", str(svn)).refused(3, "only facts of GitLab keep the raw")


@pytest.fixture
def start(warm: Starter, tmp_path: Path) -> Callable[..., Process]:
    """Starts ``scm-sync`` as a process of its own."""

    def start(*arguments: str, stderr: int = subprocess.PIPE) -> Process:
        return warm.start("sync_pipeline", *arguments, env=os.environ, cwd=tmp_path, stderr=stderr)

    return start


def test_ctrl_c_stops_it_politely(on_database: Database, start: Callable[..., Process]) -> None:
    with on_database.connection() as conn:
        origin = datetime(2024, 1, 1, tzinfo=UTC)
        repo = builders.register_project(conn, "https://gitlab.example", 1, "a/b", origin=origin)
        leases.ensure(conn, repo, JobType.COMMITS)
        held = leases.acquire(
            conn, repo_id=repo, job_type=JobType.COMMITS, waiter=uuid4(), who="me", priority=0, length=300
        )
        assert held is not None
        process = start("repair", "remap", "--repo", str(repo))
        deadline = time.monotonic() + 60
        while conn.execute("SELECT 1 FROM scm.sync_lock_waiters").fetchone() is None:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, "")
        assert err == "scm-sync: stopped between two batches; what was committed stays\n"
        job = conn.execute("SELECT status, last_error_code AS code FROM scm.sync_jobs").fetchall()
        assert job == [{"status": "dead", "code": "cancelled"}]


def test_the_runner_syncs_for_real_and_tells_how_it_went(
    on_database: Database, repository_url: str, tmp_path: Path, start: Callable[..., Process]
) -> None:
    def run(*arguments: str) -> Done:
        process = start(*arguments)
        out, err = process.communicate(timeout=120)
        return Done(process.wait(), out, err)

    spec = f"svn:{repository_url}"
    added = run("repo", "add", spec)
    assert (added.code, added.err) == (0, "")
    assert added.out.startswith(f"{spec} registered as repository")
    first = run("runner", "incremental", "--repo", spec, "--json")
    assert (first.code, first.err) == (0, "")
    assert (first.json["status"], first.json["items_synced"], first.json["watermark_after"]) == (
        "success",
        3,
        4,
    )
    again = run("runner", "backfill", "--repo", spec, "--start-rev", "2", "--end-rev", "3", "--json")
    assert (again.code, again.err) == (0, "")
    assert (again.json["total_chunks"], again.json["items_synced"]) == (1, 0)
    (tmp_path / "paint" / "format").unlink()
    failed = run("runner", "incremental", "--repo", spec, "--json")
    assert (failed.code, failed.json["exit_code"], failed.json["status"]) == (2, 2, "failed")
    assert failed.json["error"]
    assert failed.err.count("\n") == 1


@pytest.mark.parametrize("table", ["event_logs", "runs"])
def test_a_full_disk_in_dagsters_tables_is_one_line(
    on_database: Database, repository_url: str, tmp_path: Path, start: Callable[..., Process], table: str
) -> None:
    def run() -> Done:
        process = start("runner", "incremental", "--repo", str(repo))
        out, err = process.communicate(timeout=120)
        return Done(process.wait(), out, err)

    with on_database.connection() as conn:
        repo = builders.register_source(conn, tmp_path / "paint")
        assert run().code == 0
        conn.execute(
            "CREATE FUNCTION dagster.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'could not extend file: No space left on device' "
            "USING ERRCODE = 'disk_full'; END $$"
        )
        conn.execute(
            sql.SQL(
                "CREATE TRIGGER full_disk BEFORE INSERT ON dagster.{} EXECUTE FUNCTION dagster.full_disk()"
            ).format(sql.Identifier(table))
        )
        failed = run()
    assert failed.code == 3
    # The first line says what there is to read.
    assert failed.err.splitlines()[1:] == [
        "scm-sync: Dagster's database has no room: could not extend file: No space left on device; "
        "make room there, then try again"
    ]


def test_a_loop_goes_round_and_on_where_a_round_failed(
    on_database: Database, repository_url: str, tmp_path: Path, start: Callable[..., Process]
) -> None:
    """The second round finds the source gone, the third finds it again; the code tells of all of them."""
    with on_database.connection() as conn:
        repo = builders.register_source(conn, tmp_path / "paint")
    options = ["--loop", "--loop-interval", "0", "--max-iterations", "4", "--json"]
    process = start("runner", "incremental", "--repo", str(repo), *options)
    assert process.stdout is not None
    rounds = [json.loads(process.stdout.readline())]
    (tmp_path / "paint").rename(tmp_path / "away")
    while (rounds[-1]["status"]) == "success":
        rounds.append(json.loads(process.stdout.readline()))
    (tmp_path / "away").rename(tmp_path / "paint")
    out, err = process.communicate(timeout=60)
    rounds += map(json.loads, out.splitlines())
    assert (len(rounds), rounds[0]["items_synced"], process.returncode) == (4, 3, 1)
    assert {one["status"] for one in rounds} == {"success", "failed"}
    assert len(err.splitlines()) == sum(one["status"] == "failed" for one in rounds)


def test_a_loop_that_waits_ends_at_once_and_well_when_it_is_stopped(
    on_database: Database, repository_url: str, tmp_path: Path, start: Callable[..., Process]
) -> None:
    with on_database.connection() as conn:
        repo = builders.register_source(conn, tmp_path / "paint")
    options = ["--loop", "--loop-interval", "600"]
    process = start("runner", "incremental", "--repo", str(repo), *options)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert re.match(
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ svn:\S+ revisions incremental: success; 3 inserted", first
    )
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (0, "scm-sync: stopped after 1 round")


def test_the_reaper_tells_what_is_lost_and_ends_it_in_a_loop_until_it_is_stopped(
    scm: Scm, on_database: Database, start: Callable[..., Process]
) -> None:
    with on_database.connection() as conn:
        job = jobs.enqueue(conn, builders.request(builders.register(conn)))
        machine = process_identity().rsplit(" ", 2)[0]
        gone = f"{machine} 999999999 1.00"
        assert jobs.claim(conn, job, worker="w1", process=gone, length=300, dagster_run_id=None)
        tried = scm("reaper", "--dry-run", "--json").json
        assert (tried["to_failed"], tried["processed"], tried["exit_code"]) == (1, 1, 0)
        assert jobs.state(conn, job).status is JobStatus.RUNNING
        process = start("reaper", "--loop", "--interval-seconds", "600", "--policy", "pending", "--json")
        assert process.stdout is not None
        done = json.loads(process.stdout.readline())
        assert (done["to_pending"], done["items"][0]["name"]) == (1, str(job))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert err.splitlines()[-1] == "scm-sync: stopped after 1 round"
        assert jobs.state(conn, job).status is JobStatus.PENDING
        assert conn.execute("SELECT name, outcome FROM scm.heartbeats").fetchall() == [
            {"name": "reaper_loop", "outcome": "1 job"}
        ]
    assert scm("reaper").out == "nothing was lost\n"
    assert scm("admin", "retention").out.endswith("nothing is older than it is kept; --execute deletes\n")


def test_scheduler_and_worker_sync_without_a_daemon_and_stop_when_they_are_told(
    scm: Scm, on_database: Database, repository_url: str, notified: list[str], start: Callable[..., Process]
) -> None:
    assert scm("repo", "add", f"svn:{repository_url}").code == 0
    planned = scm("scheduler", "--dry-run", "--json").json
    assert [(d["chosen"], d["reason"]) for d in planned["decisions"]] == [(True, "never_visited")]
    assert scm("worker", "--dry-run").out == "0 jobs dispatched to this pool\n"
    assert scm("scheduler").out.endswith("1 job dispatched; nothing else is due among 1\n")
    assert scm("worker", "--dry-run", "--job-types", "commits,mrs").out == "0 jobs dispatched to this pool\n"
    assert scm("worker", "--dry-run", "--job-types", "svn").out.endswith("1 job dispatched to this pool\n")
    options = ("--poll-interval", "1", "--worker-id", "build-7", "--lease-seconds", "90")
    worker = start("worker", "--loop", *options, "--json")
    assert worker.stdout is not None
    done = json.loads(worker.stdout.readline())
    assert (done["status"], done["rows"], done["error"]) == ("completed", 3, None)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)
    assert (worker.returncode, err.splitlines()[-1]) == (0, "scm-sync: 1 job, 0 of them failed")
    with on_database.connection() as conn:
        assert conn.execute("SELECT worker FROM scm.sync_runs").fetchall() == [{"worker": "build-7"}]
    loop = start("scheduler", "--loop", "--interval-seconds", "600")
    assert loop.stdout is not None
    assert "0 jobs dispatched" in loop.stdout.readline()
    loop.send_signal(signal.SIGTERM)
    _, err = loop.communicate(timeout=60)
    assert (loop.returncode, err.splitlines()[-1]) == (0, "scm-sync: stopped after 1 round")


@pytest.mark.parametrize(
    "command",
    [
        ("runner", "incremental", "--repo", "{repo}"),
        ("worker", "--loop"),
        ("reconcile", "--repo", "{repo}"),
        ("repo", "add", "svn:{silent}/other"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_sigterm_ends_everybody_who_waits_for_a_silent_svn_server(
    scm: Scm,
    on_database: Database,
    repository_url: str,
    tmp_path: Path,
    silent_server: int,
    start: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    """No limit of svn comes to the rescue, and no svn is left behind."""
    for name in ("INFO", "LOG"):
        monkeypatch.setenv(f"SCM_SVN_{name}_TIMEOUT", "3600")
    silent = f"svn://127.0.0.1:{silent_server}"
    with on_database.connection() as conn:
        repo = builders.register_source(conn, tmp_path / "paint")
        if command[0] == "reconcile":
            Syncer(on_database, Settings()).run(builders.request(repo))
        conn.execute("UPDATE scm.repos SET url = %(url)s, svn_root = %(url)s", {"url": f"{silent}/r"})
        if command[0] == "worker":
            assert scm("scheduler").code == 0
    process = start(*(part.format(repo=repo, silent=silent) for part in command))
    deadline = time.monotonic() + 120
    while not (svn := _svn_below(process.pid)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert not psutil.wait_procs(svn, timeout=60)[1]


def _svn_below(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if p.name() == "svn"]


def test_what_is_paused_is_listed_refused_and_resumed(
    scm: Scm, on_database: Database, repository_url: str, notified: list[str]
) -> None:
    assert scm("repo", "add", f"svn:{repository_url}").code == 0
    made = scm("admin", "pause", "--instance", "local", "--for", "2h", "--reason", "upgrade", "--json")
    assert (made.json["scope"], made.json["instance"], made.json["reason"]) == (
        "instance",
        "local",
        "upgrade",
    )
    assert scm("admin", "pauses", "--json").json["pauses"] == [made.json]
    refused = scm("runner", "incremental", "--repo", "1")
    assert refused.code == 2
    assert "upgrade" in refused.err
    assert "paused" in scm("scheduler", "--dry-run").out
    assert scm("admin", "resume", str(made.json["id"])).out == f"pause {made.json['id']} has ended\n"
    assert scm("admin", "pauses").out == "nothing is paused\n"
    assert scm("runner", "incremental", "--repo", "1").code == 0


def test_a_terminal_sees_how_far_a_backfill_is_and_no_line_of_a_chunk(
    on_database: Database, tmp_path: Path, start: Callable[..., Process]
) -> None:
    svn_samples.large(tmp_path / "paint", 3000, 1)
    with on_database.connection() as conn:
        repo = builders.register_source(conn, tmp_path / "paint")
    ours, theirs = pty.openpty()
    process = start("runner", "backfill", "--repo", str(repo), stderr=theirs)
    os.close(theirs)
    drawn = b""
    # The end of a terminal that nobody writes to any more is an error.
    with suppress(OSError):
        while piece := os.read(ours, 4096):
            drawn += piece
    out, _ = process.communicate(timeout=60)
    assert "revisions backfill: success, 3 of 3 chunks; 3000 inserted" in out
    os.close(ours)
    text = drawn.decode()
    assert "3,000 revisions in 3 blocks missing; HEAD is r3000; about 5 svn commands" in text
    assert re.search(r"3,000 of 3,000 rows \(100 %\)", text)
    assert "chunks)" not in text


def test_without_a_terminal_long_work_tells_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.shown("svn:x revisions", quiet=False, total=400) as show:
        show(Counts(read=100, inserted=90))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.shown("svn:x revisions", quiet=False, total=400) as show:
        show(Counts(read=100, inserted=90, unchanged=10))
    assert capsys.readouterr().err == "scm-sync: svn:x revisions: 100 of 400 rows (25 %), 90 new or changed\n"
    with progress.shown("svn:x revisions", quiet=True) as show:
        show(Counts(read=100))
    assert capsys.readouterr().err == ""


def test_a_person_can_reset_and_set_what_counts_as_complete(scm: Scm, on_database: Database) -> None:
    with on_database.connection() as conn:
        repo = builders.register(conn, head=40)
    scm("watermark", "reset", str(repo)).refused(3, "--reason")
    plan = scm(
        "watermark", "set", str(repo), "--start-rev", "1", "--end-rev", "40", "--reason", "x", "--dry-run"
    )
    assert plan.code == 0
    events = json.loads(scm("watermark", "events", str(repo), "--json").out)
    assert [e["direction"] for e in events] == ["register"]
    done = scm(
        "watermark", "set", str(repo), "--start-rev", "1", "--end-rev", "40", "--reason", "checked", "--json"
    )
    assert json.loads(done.out)["watermark_after"] == 41
    assert scm("watermark", "reset", str(repo), "--reason", "server was restored").code == 0
    events = json.loads(scm("watermark", "events", str(repo), "--json").out)
    assert [(e["direction"], e["generation"], e["reason"]) for e in events] == [
        ("reset", 3, "server was restored"),
        ("set", 2, "checked"),
        ("register", 1, "test"),
    ]
    assert [e["watermark"] for e in events] == [None, 41, None]
    with on_database.connection() as conn:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        project = builders.register_project(conn, "https://git.test", 7, "acme/app", origin=start)
    of_reviews = (str(project), "--job", "reviews")
    day = ("--since", "2026-01-01", "--until", "2026-01-02", "--reason", "checked")
    assert scm("watermark", "set", *of_reviews, *day).code == 0
    event, _ = json.loads(scm("watermark", "events", *of_reviews, "--json").out)
    assert event["watermark"] == "2026-01-02T00:00:00+00:00"
    wrong = ("watermark", "set", str(repo), "--reason", "x", "--start-rev")
    scm(*wrong, "5", "--end-rev", "4").refused(3, "before --start-rev 5")
    scm(*wrong, "5", "--end-rev", "41").refused(3, "beyond HEAD, which is r40")


def test_verify_names_records_that_disagree(scm: Scm, on_database: Database) -> None:
    with on_database.connection() as conn:
        builders.register(conn)
        assert scm("catalog", "export").code == 0
        well = scm("admin", "verify")
        assert (well.code, well.err) == (0, "")
        lines = well.out.splitlines()
        assert {"catalog: all is well", "coverage: all is well", "quarantine: 0 open"} < set(lines)
        conn.execute("UPDATE scm.sync_watermarks SET covered_revs = '{[1,9)}'")
    found = scm("db", "verify", "--json")
    assert (found.code, found.json["exit_code"], found.json["passed"]) == (2, 2, False)
    assert [proof["name"] for proof in found.json["proofs"] if not proof["passed"]] == ["coverage"]
    notified = scm("admin", "verify")
    assert notified.code == 2
    assert "coverage: 1 row disagrees: Coverage, origin and generation" in notified.out
    assert "{[1,9)}" in notified.out


# Reports ------------------------------------------------------------------------------------------------


def test_completeness_has_a_line_for_each_and_one_for_all(scm: Scm, on_database: Database) -> None:
    with on_database.connection() as conn:
        builders.register(conn, head=12)
    lines = [line.split("\t") for line in scm("completeness", "--by", "tenant").out.splitlines()]
    last = (
        "rows are missing, or parts are not known: 1 never read, 12 uncovered revisions; 0% of the rows were "
        "compared with the sources lately"
    )
    assert [line[0] for line in lines] == ["tenant", "acme", "total", last]
    assert dict(zip(lines[0], lines[1], strict=True))["uncovered_revisions"] == "12"
    assert scm("completeness", "--json").json["total"]["unknown"]["never_read"] == 1
    scm("completeness", "--by", "owner").refused(3, "'owner' is not one of")


def test_the_doctor_ends_with_the_code_of_what_it_found(scm: Scm, on_database: Database) -> None:
    done = scm("doctor", "--json")
    assert done.code == done.json["exit_code"] == 0, done
    plain = scm("doctor")
    assert plain.out.splitlines()[0] == "state\tcheck\tsubject\tseen\tremedy"
    assert len(plain.out.splitlines()) == 1 + len(done.json["checks"])
    assert (plain.code, plain.err) == (0, "")


def test_the_doctor_goes_on_without_a_database(scm: Scm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", f"postgresql://me:{SECRET}@127.0.0.1:1/scm")
    done = scm("doctor")
    assert (done.code, done.err) == (2, "")
    assert "127.0.0.1:1/scm" in done.out
    assert SECRET not in done.out


def test_the_status_of_what_is_registered(scm: Scm, on_database: Database) -> None:
    done = scm("status")
    assert (done.code, done.out) == (0, "")
    assert "scm-sync repo add" in done.err
    with on_database.connection() as conn:
        builders.register(conn, "paint", head=10)
    servers, server, empty, head, row, due, summary = scm("status").out.splitlines()
    assert servers.split("\t")[:5] == ["server", "kind", "repositories", "assets", "ok"]
    assert server.split("\t")[:5] == ["local", "svn", "1", "1", "0"]
    assert empty == ""
    assert head.split("\t")[:3] == ["state", "repository", "job_type"]
    assert row.split("\t")[:3] == ["waiting", "file:///srv/paint", "revisions"]
    assert due.startswith("due and not started: 1 (1 never visited), the longest not visited for ")
    assert summary == "1 repository; assets: 1 waiting; jobs: none"
    (asset,) = scm("status", "--repo", "svn:file:///srv/paint", "--job", "svn", "--json").json["units"]
    assert asset["verdict"] == "waiting"
    scm("status", "--job", "nonsense").refused(3, "unknown job type 'nonsense'")
    scm("status", "--repo", "paint", "--job", "commits").refused(3, "it has revisions")
    scm("status", "--repo", "nothing").refused(3, "no repository 'nothing'; see: scm-sync repo list")
    with on_database.connection() as conn:
        origin = datetime(2026, 1, 1, tzinfo=UTC)
        builders.register_project(conn, "https://git.example.com", 7, "acme/app", origin=origin)
    scm("status", "--repo", "acme/app").refused(3, "write gitlab:acme/app")


@pytest.mark.parametrize(("width", "is_table"), [(60, False), (80, False), (300, True)])
def test_a_list_of_many_columns_is_neither_clipped_nor_wider_than_the_terminal(
    scm: Scm, on_database: Database, monkeypatch: pytest.MonkeyPatch, width: int, is_table: bool
) -> None:
    path = "平台/データ同期/" + "a-long-subgroup/" * 8 + "api"
    with on_database.connection() as conn:
        origin = datetime(2026, 1, 1, tzinfo=UTC)
        builders.register_project(conn, "https://git.example.com", 7, path, origin=origin)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich.console.Console._environ", os.environ)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = _RICH.sub("", scm("repo", "list").out)
    assert max(map(cell_len, text.splitlines())) <= width
    assert path in re.sub(r"\s", "", text)
    assert ("│" in text) is is_table


@pytest.mark.parametrize(("width", "is_table"), [(30, False), (200, True)])
def test_completeness_breaks_no_word_on_a_narrow_terminal(
    scm: Scm, on_database: Database, monkeypatch: pytest.MonkeyPatch, width: int, is_table: bool
) -> None:
    with on_database.connection() as conn:
        origin = datetime(2026, 1, 1, tzinfo=UTC)
        builders.register_project(conn, "https://git.example.com", 7, "acme/app", origin=origin)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich.console.Console._environ", os.environ)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = _RICH.sub("", scm("completeness").out)
    assert {"merge_requests", "repositories"} <= set(text.split())
    assert ("│" in text) is is_table
    assert "quarantined" not in text


NASTY = "acme/\x1b]0;owned\x07\x1b[2J\x9b2J[red]x[/red]\u202e\nscm-sync: all is well"
# What rich itself writes: colours and emphasis.
_RICH = re.compile(r"\x1b\[[0-9;]*m")

READING = (
    "status",
    "repo list",
    "repo show {repo}",
    "completeness --by tenant",
    "scheduler --dry-run",
    "admin jobs list",
    "admin jobs show {job}",
    "admin pauses",
    "admin breakers",
    "admin quarantine list",
    "admin quarantine show 1",
    "root list",
    "watermark events {repo} --job commits",
)


@pytest.fixture
def nasty(on_database: Database) -> dict[str, str]:
    """A project whose every text is a trap for a terminal; its repo_id and a job of it."""
    with on_database.connection() as conn:
        repo = builders.register_project(
            conn, "http://127.0.0.1:1", 7, NASTY, origin=datetime(2026, 1, 1, tzinfo=UTC)
        )
        conn.execute("UPDATE scm.repos SET tenant = %s, default_branch = %s", [NASTY, NASTY])
        conn.execute("UPDATE scm.sync_watermarks SET access = 'moved', access_detail = %s", [NASTY])
        conn.execute(
            "INSERT INTO scm.change_hints (repo_id, observed_at, error_code, error)"
            " VALUES (%s, now(), 'denied', %s)",
            [repo, NASTY],
        )
        conn.execute(
            "INSERT INTO scm.pauses (scope, tenant, reason, actor) VALUES ('tenant', %s, %s, %s)", [NASTY] * 3
        )
        conn.execute(
            "INSERT INTO scm.discovery_roots (instance, scope, group_id, group_path, error_code, error)"
            " VALUES ('127.0.0.1:1', 'group', 3, %s, 'denied', %s)",
            [NASTY, NASTY],
        )
        conn.execute(
            "INSERT INTO scm.quarantine (repo_id, job_type, natural_key, reason, detail, payload)"
            " VALUES (%s, 'commits', %s, 'unstorable', %s, %s)",
            [repo, NASTY, NASTY, NASTY.encode()],
        )
        job = conn.execute(
            "INSERT INTO scm.sync_jobs (repo_id, job_type, mode, status, priority, trigger, actor, reason,"
            " last_error, last_error_code, generation, attempts, finished_at)"
            " VALUES (%s, 'commits', 'incremental', 'dead', 1,"
            " 'runner', %s, %s, %s, 'denied', 0, 1, now()) RETURNING job_id",
            [repo, NASTY, NASTY, NASTY],
        ).fetchone()
    assert job is not None
    return {"repo": str(repo), "job": str(job["job_id"])}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_text_of_a_source_reaches_the_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    nasty: dict[str, str],
    is_terminal: bool,
) -> None:
    if is_terminal:
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "400")
        # It keeps the environment of its import, which may be that of another test.
        monkeypatch.setattr("rich.console.Console._environ", os.environ)
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)
    for command in READING:
        assert cli.run(command.format(**nasty).split()) in (0, 1, 2), command
        done = capsys.readouterr()
        for line in (_RICH.sub("", done.out) + done.err).split("\n"):
            assert line.replace("\t", "").isprintable(), (command, line)
            # A payload is shown with its lines, below the facts.
            assert "quarantine show" in command or not line.startswith("scm-sync: all is well"), command
        if command.startswith(("status", "repo")):
            assert "[red]x[/red]" in _RICH.sub("", done.out)


def test_a_document_has_every_text_of_a_source_exactly(scm: Scm, nasty: dict[str, str]) -> None:
    for command in READING:
        done = scm(*command.format(**nasty).split(), "--json")
        assert done.out.replace("\n", "").isprintable(), command
        if done.out:
            json.loads(done.out)
        if command == "repo list":
            assert done.json[0]["path"] == NASTY


def test_what_is_logged_and_refused_quotes_nothing_that_a_terminal_obeys(
    scm: Scm, capsys: pytest.CaptureFixture[str]
) -> None:
    scm("status", "--repo", "x\x1b[2J\x9b")
    logging.getLogger("sync_pipeline.test").handle(
        logging.LogRecord("x", logging.WARNING, "x", 1, "a \x1b]0;x\x07 b", None, None)
    )
    err = scm("--debug", "status", "--repo", "x\x1b[2J\x9b").err
    assert err.replace("\n", "").isprintable()


def test_a_project_with_a_nasty_path_is_added_without_harm(
    scm: Scm, on_database: Database, notified: list[str], gitlab: GitLab
) -> None:
    (project,) = gitlab.projects.values()
    project.path = "a\x1b]0;x\x07\nb"
    done = scm("repo", "add", "gitlab:1")
    assert done.code == 0, done
    assert r"a\x1b]0;x\x07\nb" in done.out
    assert (done.out + done.err).replace("\n", "").isprintable()
