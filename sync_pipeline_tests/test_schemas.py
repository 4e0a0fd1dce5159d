"""The published JSON schemas against real documents of the runner and of repair: planned, done, failed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError

from sync_pipeline import cli
from sync_pipeline.database.pool import Database, database_time
from sync_pipeline.ledger import breakers, rate_limits
from sync_pipeline_sandbox import schemas, svn_samples
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, faults, serve
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.builders import register_project, register_source
from sync_pipeline_tests.conftest import ENVIRONMENT

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"
SCHEMAS: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
RESULT, REMAP = "runner-result.json", "repair-remap.json"

formats = FormatChecker(())


@formats.checks("date-time", raises=ValueError)
def is_date_time(value: object) -> bool:
    """True for a time with its zone."""
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


Runner = Callable[..., dict[str, Any]]


def validate(document: Any, name: str = RESULT) -> None:
    """Raises ValidationError unless the document is as the schema says and has no other key."""
    Draft202012Validator(_strict(SCHEMAS[name]), format_checker=formats).validate(document)


def _strict(schema: Any) -> Any:
    """The schema without the permission of keys that it does not name."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(one) for name, one in schema.items()}
    return found | {"additionalProperties": False} if "properties" in schema else found


@pytest.fixture
def runner(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    """Runs ``scm-sync runner ... --json``, or ``repair ...``; its document is as the schemas say."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_ENVIRONMENT", ENVIRONMENT)
    monkeypatch.setenv("SCM_STATE_DIR", str(tmp_path / "state"))

    def run(*arguments: object) -> dict[str, Any]:
        capsys.readouterr()
        words = [*map(str, arguments), "--json"]
        code = cli.run(words if words[0] == "repair" else ["runner", *words])
        out, err = capsys.readouterr()
        document: dict[str, Any] = json.loads(out or "null")
        assert document is not None, err
        validate(document, REMAP if words[0] == "repair" else RESULT)
        assert document["exit_code"] == code
        return document

    return run


def test_the_schemas_are_those_of_the_documents() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == {
        Path(name).name: text for name, text in schemas.texts().items()
    }, "run: ./dev generate"
    names = [one.__name__ for one in schemas.classes()]
    assert len(names) == len(set(names))
    for schema in SCHEMAS.values():
        assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$schema"]
        for part in (schema, *schema.get("$defs", {}).values()):
            assert "properties" not in part or part["additionalProperties"] is True
        Draft202012Validator.check_schema(schema)


def test_the_document_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    secret = "hunter2-never-shown"
    file = tmp_path / "sync_pipeline.toml"
    file.write_text(
        f"[scm.scheduler]\nmax_running = 7\n[[gitlab]]\nurl = 'https://two'\ntoken = '{secret}'\n"
    )
    monkeypatch.setenv("SCM_DATABASE_URL", f"postgresql://u:{secret}@h/d")
    monkeypatch.setenv("SVN_PASSWORD", secret)
    assert cli.run(["--set", "profile=large", "--set", "safety_lag_seconds=7", "settings", "--json"]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    validate(document, "settings.json")
    found = {one["name"]: (one["value"], one["origin"], one["given_by"]) for one in document["settings"]}
    assert [
        found[name] for name in ("safety_lag_seconds", "svn_password", "database_url", "gitlab_token")
    ] == [
        (7, "command line", "--set safety_lag_seconds"),
        ("set", "environment", "SVN_PASSWORD"),
        ("set", "environment", "SCM_DATABASE_URL"),
        ("not set", "default", None),
    ]
    assert found["scheduler_max_running"] == (7, "file", f"scm.scheduler.max_running in {file}")
    assert found["claim_seconds"] == (600, "profile", "the profile large")
    assert found["gitlab"][0][0]["token"] == "set"
    assert cli.run(["settings"]) == 0
    text = capsys.readouterr().out
    assert "svn_password\tset\tenvironment: SVN_PASSWORD\n" in text
    assert secret not in out + text
    monkeypatch.setenv("SCM_STALE_AFTER_SECONDS", "soon")
    monkeypatch.setenv("SCM_OVERLAP_SECONDS", "-1")
    assert cli.run(["settings", "--json"]) == 3
    done = capsys.readouterr()
    assert (done.out, [line.partition(": ")[2].partition(":")[0] for line in done.err.splitlines()]) == (
        "",
        ["SCM_OVERLAP_SECONDS", "SCM_STALE_AFTER_SECONDS"],
    )


def test_documents_of_planning(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_ENVIRONMENT", ENVIRONMENT)
    with database.connection() as conn:
        register_project(conn, "https://gitlab.example", 1, "a/b", origin=datetime(2024, 1, 1, tzinfo=UTC))
        now = database_time(conn)
        opened = breakers.BreakerRow("global", "", "open", now, now, 0.5, 0, 0, 9, None, 0, "no answers")
        breakers.save(conn, opened, actor="test")

    def printed(*arguments: str, schema: str) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.run([*arguments, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        validate(document, schema)
        return document

    assert printed("scheduler", "--dry-run", schema="scheduler.json")["decisions"]
    assert cli.run(["admin", "pause", "--all", "--reason", "x"]) == 0
    assert printed("admin", "pauses", schema="admin-pauses.json")["pauses"][0]["scope"] == "global"
    found = printed("admin", "breakers", schema="admin-breakers.json")
    assert (len(found["breakers"]), len(found["events"])) == (1, 1)
    with database.connection() as conn:
        rate_limits.change(conn, "gitlab.example", "all", lambda old, _: old, rate=1.0, tokens=1.0)
    assert len(printed("admin", "limits", "list", schema="admin-limits.json")["limits"]) == 1


def test_documents_of_work_and_of_what_ends_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_ENVIRONMENT", ENVIRONMENT)
    monkeypatch.setenv("SCM_STATE_DIR", str(tmp_path))
    svn_samples.large(tmp_path / "small", 3, 1)
    with database.connection() as conn:
        register_source(conn, (tmp_path / "small").as_uri())

    def printed(*arguments: str, schema: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.run([*arguments, "--json"]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        validate(document, schema)
        return document

    assert cli.run(["scheduler"]) == 0
    assert len(printed("worker", "--dry-run", schema="worker.json")["jobs"]) == 1
    (waiting,) = printed("admin", "jobs", "list", schema="admin-jobs.json")["jobs"]
    why = ("--reason", "x")
    for action, code in (("drop", 0), ("reset", 0), ("release", 1)):
        words = ("admin", "jobs", action, waiting["job_id"], *why)
        assert printed(*words, schema="admin-jobs.json", code=code)["exit_code"] == code
    shown = printed("admin", "jobs", "show", waiting["job_id"], schema="admin-jobs.json")
    assert [event["action"] for event in shown["events"]] == ["reset", "drop"]
    assert cli.run(["scheduler"]) == 0
    done = printed("worker", schema="worker.json")
    assert (done["repo"], done["status"]) == (f"svn:{(tmp_path / 'small').as_uri()}", "completed")
    with database.connection() as conn:
        conn.execute(
            "UPDATE scm.sync_jobs SET status = 'running', claim_token = gen_random_uuid(), claimed_by = 'w',"
            " claimed_process = 'w', claimed_at = now() - interval '2 hours', finished_at = NULL,"
            " claim_expires_at = now() - interval '1 hour'"
        )
    assert printed("reaper", schema="reaper.json")["to_failed"] == 1
    printed("admin", "retention", schema="retention.json")


def test_documents_of_subversion(database: Database, runner: Runner, tmp_path: Path) -> None:
    svn_samples.large(tmp_path / "paint", 1100, 1)
    with database.connection() as conn:
        repo = register_source(conn, tmp_path / "paint", origin=1001)
    plan = runner("backfill", "--repo", repo, "--dry-run")
    assert (plan["head"], plan["total_chunks"], plan["missing_items"]) == (1100, 2, 1100)
    # Nothing was read from this server yet, so nobody knows how fast it is.
    assert plan["expected"] == {"rows": 1100, "requests": 4, "seconds": None, "problem": None}
    live = runner("incremental", "--repo", repo, "--dry-run")
    assert (live["phase"], live["missing_items"], live["expected"]["requests"]) == ("incremental", 100, 3)
    assert runner("incremental", "--repo", repo)["watermark_after"] == 1101
    plan = runner("backfill", "--repo", repo, "--dry-run")
    assert (plan["missing_items"], plan["expected"]["seconds"] > 0) == (1000, True)
    done = runner("backfill", "--repo", repo, "--start-rev", 900, "--end-rev", 1010)
    assert [(chunk["window"], chunk["status"], chunk["state"]) for chunk in done["chunk_results"]] == [
        ({"start_rev": 900, "end_rev": 1000}, "success", "missing"),
        ({"start_rev": 1001, "end_rev": 1010}, "success", "covered"),
    ]
    assert [chunk["rows_read"] for chunk in done["chunk_results"]] == [101, 0]
    assert done["message"].endswith("; 1 of 2 chunks complete before")
    again = runner("backfill", "--repo", repo, "--start-rev", 1001)
    assert again["message"] == "nothing was missing, so nothing was read"
    (tmp_path / "paint").rename(tmp_path / "away")
    failed = runner("incremental", "--repo", repo)
    assert (failed["status"], failed["exit_code"], failed["window"]) == ("failed", 2, None)

    # What comes later and is not known here is kept; what contradicts is found.
    Draft202012Validator(SCHEMAS[RESULT]).validate(done | {"later": {"a": 1}})
    contradictions: list[dict[str, Any]] = [
        {"status": "fine"},
        {"exit_code": 7},
        {"window": {"start_rev": 1}},
        {"started_at": "yesterday"},
        {"chunk_results": [{}]},
    ]
    for wrong in contradictions:
        with pytest.raises(ValidationError):
            validate(done | wrong)
    for document in (done, plan, failed):
        for key in document:
            if key not in ("dry_run", "jobs"):
                with pytest.raises(ValidationError):
                    validate({name: value for name, value in document.items() if name != key})


def test_documents_of_gitlab(database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    gitlab = GitLab()
    group, user = gitlab.group("team1"), gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    with serve(gitlab) as server, database.connection() as conn:
        now = database_time(conn)
        project = generate(
            gitlab, group, merge_requests=3, notes=1, path="app", beginning=now - timedelta(days=5), tie=1
        )
        repo = register_project(conn, server.url, project.id, "team1/app", origin=now - timedelta(days=30))
        monkeypatch.setenv("SCM_GITLAB_URL", server.url)
        monkeypatch.setenv("SCM_GITLAB_TOKEN", gitlab.token(user).secret)
        live = {
            one["job"]: one["expected"] for one in runner("incremental", "--repo", repo, "--dry-run")["jobs"]
        }
        assert live["merge_requests"]["rows"] == live["reviews"]["rows"] == 3
        assert live["reviews"]["seconds"] > 0
        several = runner("incremental", "--repo", repo)
        assert sum(one["calls"] for one in several["jobs"][1:]) <= sum(
            live[job]["requests"] for job in ("merge_requests", "reviews")
        )
        assert [one["job"] for one in several["jobs"]] == ["commits", "merge_requests", "reviews"]
        plan = runner("repair", "remap", "--repo", repo, "--dry-run")
        assert [one["rows_to_change"] for one in plan["jobs"]] == [0, 0, 0]
        done = runner("repair", "remap", "--repo", repo)
        assert (done["status"], len(done["jobs"])) == ("success", 3)
        one = runner("repair", "remap", "--repo", repo, "--job", "mrs", "--since", "2020-01-01")
        planned = runner("repair", "remap", "--repo", repo, "--job", "mrs", "--dry-run")
        wrong: list[dict[str, Any]] = [done | {"jobs": []}, one | {"calls": 1}, planned | {"rows_read": -1}]
        for document in [*wrong, one | {"window": {}}, one | {"phase": "backfill"}]:
            with pytest.raises(ValidationError):
                validate(document, REMAP)
        window = ("--since", "2020-01-01", "--until", "2020-02-01")
        plan = runner("backfill", "--repo", repo, *window, "--dry-run")
        assert {one["job"]: one["missing_days"] for one in plan["jobs"]}["reviews"] == 31
        done = runner("backfill", "--repo", repo, "--job", "mrs", "--last-days", 2)
        # The days before the latest visit are complete; the moments since then may be too young to be read.
        assert (done["job"], done["chunk_results"][0]["state"]) == ("merge_requests", "covered")
        old = ("--since", "1990-01-01", "--until", "1991-01-01")
        read = runner("backfill", "--repo", repo, "--job", "mrs", *old)["chunk_results"]
        assert {chunk["status"] for chunk in read} == {"success"}
        assert (read[0]["state"], read[0]["calls"] > 0) == ("missing", True)
        monkeypatch.setenv("SCM_GITLAB_TOKEN", "glpat-wrong-token-0123456789")
        assert runner("backfill", "--repo", repo, *window)["status"] != "success"
        refused = runner("backfill", "--repo", repo, "--job", "mrs", *window, "--dry-run")
        assert "the token is missing or wrong" in refused["expected"]["problem"]


def test_a_backfill_that_fails_in_the_middle_names_what_to_read_again(
    database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gitlab = GitLab()
    group, user = gitlab.group("team1"), gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    monkeypatch.setenv("SCM_CHUNK_ROWS", "20")
    # By REST, in small batches.
    monkeypatch.setenv("SCM_GITLAB_GRAPHQL", "false")
    with serve(gitlab) as server, database.connection() as conn:
        now = database_time(conn)
        project = generate(
            gitlab, group, merge_requests=150, notes=0, path="app", beginning=now - timedelta(days=99), tie=1
        )
        repo = register_project(conn, server.url, project.id, "team1/app", origin=now - timedelta(days=30))
        monkeypatch.setenv("SCM_GITLAB_URL", server.url)
        monkeypatch.setenv("SCM_GITLAB_TOKEN", gitlab.token(user).secret)
        gitlab.faults.add(
            "per_page=100.*updated_before",
            faults.json_answer(403, {"message": "403 Forbidden"}),
            skip=1,
            times=None,
        )
        window = ("--since", "2020-01-01", "--until", f"{now - timedelta(minutes=10):%Y-%m-%dT%H:%M:%SZ}")
        failed = runner("backfill", "--repo", repo, "--job", "mrs", *window)
        assert (failed["status"], failed["exit_code"]) == ("partial", 1)
        # A page of the list is a hundred; what is stored of one that is not complete belongs to it.
        good, bad = failed["chunk_results"]
        assert (good["status"], good["inserted"], good["error"]) == ("success", 100, None)
        assert (good["batches"], good["seconds"] > 0) == (4, True)
        assert (bad["status"], bad["inserted"], bad["error"] is not None) == ("failed", 0, True)
        assert good["calls"] + bad["calls"] == failed["calls"]
        assert good["window"]["since"] == failed["window"]["since"]
        assert good["window"]["until"] == bad["window"]["since"]
        assert bad["window"]["until"] == failed["window"]["until"]

        gitlab.faults.clear()
        alone = ("--since", bad["window"]["since"], "--until", bad["window"]["until"])
        again = runner("backfill", "--repo", repo, "--job", "mrs", *alone)
        assert (again["status"], again["inserted"]) == ("success", 50)
        # Those updated in the same millisecond as the last one come twice.
        assert again["unchanged"] < 10
        assert again["chunk_results"][0]["window"]["since"] == bad["window"]["since"]
        whole = runner("backfill", "--repo", repo, "--job", "mrs", *window)
        assert whole["message"] == "nothing was missing, so nothing was read"
        assert (whole["chunk_results"][0]["state"], whole["chunk_results"][0]["calls"]) == ("covered", 0)
        shown = cli.run(
            ["runner", "backfill", "--repo", str(repo), "--job", "mrs", "--since", "2019-12-01", *window[2:]]
        )
        out = capsys.readouterr().out.splitlines()
        assert (shown, out[0].split("\t")[:3]) == (0, ["chunk", "since", "until"])
        assert [line.split("\t")[4] for line in out[1:3]] == ["success", "covered before"]


def test_a_backfill_that_is_stopped_tells_what_it_had_read(
    database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    gitlab = GitLab()
    group, user = gitlab.group("team1"), gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    with serve(gitlab) as server, database.connection() as conn:
        now = database_time(conn)
        project = generate(
            gitlab, group, merge_requests=150, notes=0, path="app", beginning=now - timedelta(days=99), tie=1
        )
        repo = register_project(conn, server.url, project.id, "team1/app", origin=now - timedelta(days=30))
        monkeypatch.setenv("SCM_GITLAB_URL", server.url)
        monkeypatch.setenv("SCM_GITLAB_TOKEN", gitlab.token(user).secret)
        # By REST, in small batches. While these are read, the first hundred are stored.
        monkeypatch.setenv("SCM_GITLAB_GRAPHQL", "false")
        stop = faults.Do(lambda: os.kill(os.getpid(), signal.SIGINT))
        gitlab.faults.add("/merge_requests/140/versions", stop)
        window = ("--since", "2020-01-01", "--until", f"{now - timedelta(minutes=10):%Y-%m-%dT%H:%M:%SZ}")
        stopped = runner("backfill", "--repo", repo, "--job", "mrs", *window)
        assert (stopped["status"], stopped["exit_code"]) == ("cancelled", 130)
        good, rest = stopped["chunk_results"]
        assert (good["status"], good["inserted"]) == ("success", 100)
        assert (rest["status"], rest["inserted"]) == ("cancelled", stopped["inserted"] - 100)
        assert stopped["missing"] == [rest["window"]]
        done = runner("backfill", "--repo", repo, "--job", "mrs", *window)
        assert [chunk["state"] for chunk in done["chunk_results"]] == ["covered", "missing"]
        assert stopped["inserted"] + done["inserted"] == 150


def test_documents_of_runs_and_of_their_replay(
    database: Database, runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svn_samples.large(tmp_path / "paint", 1100, 1)
    with database.connection() as conn:
        repo = register_source(conn, tmp_path / "paint")

    def printed(*arguments: object, schema: str = "admin-runs.json", code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.run(["admin", "runs", *map(str, arguments), "--json"]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        validate(document, schema)
        return document

    assert runner("backfill", "--repo", repo)["inserted"] == 1100
    (later, first) = printed("list", "--repo", repo)["runs"]
    assert (first["window"], later["window"]) == (
        {"start_rev": 1, "end_rev": 1000},
        {"start_rev": 1001, "end_rev": 1100},
    )
    shown = printed("show", later["run_id"])
    (batch,) = shown["batches"]
    assert (batch["position"], batch["first_key"], batch["last_key"]) == (
        "svn log r1001..r1100",
        "1001",
        "1100",
    )
    assert printed("show", later["run_id"], "--limit", 1)["more"] == 0
    job = cli.run(["admin", "jobs", "show", later["job_id"]])
    assert (job, f"scm-sync admin runs show {later['run_id']}" in capsys.readouterr().out) == (0, True)

    replay, named = "admin-replay.json", ("--batch", batch["batch_id"], "--reason", "a row is gone")
    with database.connection() as conn:
        conn.execute("DELETE FROM scm.svn_revisions WHERE rev_num = 1007")
        planned = printed("replay", *named, "--dry-run", schema=replay)
        assert (planned["windows"], planned["before"]["inserted"]) == ([batch["window"]], 100)
        assert conn.execute("SELECT count(*) AS n FROM scm.sync_jobs").fetchone() == {"n": 2}
        done = printed("replay", *named, schema=replay)
        assert (done["status"], done["rows_read"], done["inserted"], done["unchanged"]) == (
            "success",
            100,
            1,
            99,
        )
        kept = conn.execute(
            "SELECT mode, trigger, reason, reread FROM scm.sync_jobs WHERE mode = 'repair'"
        ).fetchall()
    assert kept == [
        {
            "mode": "repair",
            "trigger": "runner",
            "reason": f"replay of batch {batch['batch_id']}: a row is gone",
            "reread": True,
        }
    ]
    for command, line in (
        (["list"], "revisions\trepair\tr1001..r1100\tcompleted\t100\t1\t1"),
        (["show", later["run_id"]], "svn log r1001..r1100\t1001..1100\tr1001..r1100\tchanged\t100\t100\t0"),
        (["replay", later["run_id"], "--reason", "x", "--dry-run"], "would read 1 window"),
        (["replay", later["run_id"], "--reason", "x"], "success, 1 window; 100 rows read (100 by run"),
    ):
        assert cli.run(["admin", "runs", *command]) == 0
        assert line in capsys.readouterr().out
    for command, line in (
        (["show", "nonsense"], "'nonsense' is no id of a run"),
        (["replay", "--reason", "x"], "name a run, or a batch with --batch"),
        (["replay", "--batch", "99999", "--reason", "x"], "there is no batch 99999"),
    ):
        assert cli.run(["admin", "runs", *command]) == 3
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), line in err) == ("", 1, True)
