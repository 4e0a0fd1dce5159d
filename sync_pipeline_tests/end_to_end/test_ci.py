"""``dagster job execute`` and ``scm-sync runner`` as a CI job calls them, as real processes.

They start warm; test_wheel starts some of them cold.
"""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.end_to_end.conftest import Installation, midnight, slow_svn, until
from sync_pipeline_tests.sources.gitlab.servers import silent
from sync_pipeline_tests.warm import Process

KEYS = [f"{first:010d}-{first + 999:010d}" for first in range(1, 3001, 1000)]


def only(made: Installation, name: str) -> None:
    """Narrow the location to one repository, as CI does."""
    made.variables = {"SCM_ONLY": f"svn:{(made.folder / name).as_uri()}"}


def finish(process: Process) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.wait(), output


def test_job_execute_syncs_a_block_once_for_two_at_once_and_a_wrong_one_not_at_all(
    shared: Installation,
) -> None:
    shared.variables = {}
    _, repo_id = shared.repository("ci", 1100)
    only(shared, "ci")
    # Side by side: starting each takes seconds.
    wrong = shared.job_execute({"dagster/partition": "0000009001-0000010000"})
    both = [shared.job_execute({"dagster/partition": KEYS[0]}) for _ in range(2)]
    code, output = finish(wrong)
    assert code == 1
    assert "there is no partition 0000009001-0000010000" in output.splitlines()[-1]
    assert "Stack Trace" not in output
    ends = [finish(process) for process in both]
    assert [code for code, _ in ends] == [0, 0], ends
    assert shared.stored(repo_id) == list(range(1, 1001))
    [row] = shared.rows(
        "SELECT sum(inserted)::int AS inserted FROM scm.sync_runs WHERE repo_id = %(id)s", id=repo_id
    )
    assert row["inserted"] == 1000
    code, output = finish(shared.job_execute())
    assert code == 0, output
    assert shared.stored(repo_id) == list(range(1, 1101))


def test_what_cannot_be_loaded_ends_a_command_in_one_line(shared: Installation) -> None:
    old = shared.folder / "old"
    old.mkdir(exist_ok=True)
    (old / "catalog.json").write_text('{"version": 1}')
    shared.variables = {}
    shared.repository("loaded", 1)
    no_day = "scm-sync: '2019-99-06' is no day; write year, month and day, such as 2024-01-31"
    wrong = [
        ({"SCM_ONLY": "svn:file:///nowhere"}, "the catalog has no svn:file:///nowhere"),
        ({"SCM_STATE_DIR": str(shared.folder / "none")}, "run: scm-sync catalog export"),
        ({"SCM_STATE_DIR": str(old)}, "has version 1"),
        ({"SCM_SAFETY_LAG_SECONDS": "soon"}, "SCM_SAFETY_LAG_SECONDS"),
        ({"SCM_DAGSTER_STORAGE_URL": ""}, 'run first: eval "$(scm-sync env)"'),
        ({"SCM_DAGSTER_STORAGE_URL": "postgresql+psycopg2://u@127.0.0.1:1/x"}, "nobody listens there"),
    ]
    started = []
    for variables, line in wrong:
        shared.variables = {**variables, "PYTHONWARNINGS": "ignore"}
        started.append((shared.job_execute(), line))
    shared.variables = {"DAGSTER_HOME": ""}
    homeless = shared.job_execute({"dagster/partition": KEYS[0]})
    shared.variables = {}
    none = shared.job_execute({"dagster/partition": "2019-99-06"}, "sync_merge_requests")
    for process, line in started:
        code, output = finish(process)
        assert code == 3
        assert line in output
        assert len(output.splitlines()) == 1, output
    code, output = finish(homeless)
    assert code == 3
    # Above it Dagster greets a new user.
    assert "knows no blocks of revisions" in output.splitlines()[-1]
    # What is no day at all is refused before anything runs, and our line is the last.
    code, output = finish(none)
    assert code == 3
    assert output.strip().splitlines()[-1] == no_day


def test_the_runner_shows_in_dagster_with_who_and_why(shared: Installation) -> None:
    shared.variables = {}
    repo_path, repo_id = shared.repository("runner", 1200)
    spec = f"svn:{repo_path.as_uri()}"
    found = json.loads(shared.run("runner", "incremental", "--repo", spec, "--json").stdout)
    assert (found["status"], found["items_synced"]) == ("success", 200)
    command = ["runner", "backfill", "--repo", spec, "--start-rev", "5", "--end-rev", "1100", "--json"]
    found = json.loads(shared.run(*command).stdout)
    assert (found["status"], found["total_chunks"]) == ("success", 2)
    assert shared.stored(repo_id) == list(range(5, 1201))
    tags = shared.rows(
        "SELECT key, value FROM dagster.run_tags WHERE run_id IN"
        " (SELECT dagster_run_id FROM scm.sync_jobs WHERE repo_id = %(id)s)",
        id=repo_id,
    )
    assert ("dagster/scm_trigger", "runner") in {(tag["key"], tag["value"]) for tag in tags}
    assert {"dagster/scm_actor", "scm/reason", "repo"} <= {tag["key"] for tag in tags}


def slow_runner(shared: Installation, repo_path: Path) -> Process:
    """A runner that takes its time over small chunks."""
    (shared.folder / "slow").write_text("")
    shared.variables = {"SCM_CHUNK_REVISIONS": "20", **slow_svn(shared.folder)}
    return shared.start("runner", "incremental", "--repo", f"svn:{repo_path.as_uri()}", "--json")


def test_a_killed_runner_is_followed_at_once_by_one_that_reads_the_rest(shared: Installation) -> None:
    shared.variables = {}
    repo_path, repo_id = shared.repository("killed", 1000)
    process = slow_runner(shared, repo_path)
    until(lambda: shared.stored(repo_id), "the first batch is stored")
    process.kill()
    process.communicate(timeout=60)
    (shared.folder / "slow").unlink()
    shared.variables = {}
    half = len(shared.stored(repo_id))
    done = shared.run("runner", "incremental", "--repo", f"svn:{repo_path.as_uri()}", "--json")
    assert json.loads(done.stdout)["inserted"] == 1000 - half
    assert shared.stored(repo_id) == list(range(1, 1001))
    runs = shared.rows(
        "SELECT status, error_code FROM scm.sync_runs WHERE repo_id = %(id)s ORDER BY started_at", id=repo_id
    )
    assert [r["status"] for r in runs] == ["failed", "completed"]
    started = shared.rows("SELECT count(*) AS n FROM dagster.runs WHERE status = 'STARTED'")
    assert started == [{"n": 0}]


def test_an_interrupted_runner_stops_between_batches_and_says_so(shared: Installation) -> None:
    shared.variables = {}
    repo_path, repo_id = shared.repository("stopped", 1000)
    process = slow_runner(shared, repo_path)
    until(lambda: shared.stored(repo_id), "the first batch is stored")
    process.send_signal(signal.SIGINT)
    output, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    document = json.loads(output)
    first = shared.stored(repo_id)[-1] + 1
    assert (document["status"], document["exit_code"]) == ("cancelled", 130)
    assert document["missing"] == [{"start_rev": first, "end_rev": 1000}]
    assert f"stays; still missing: r{first}..r1000 ({1001 - first} revisions); the same" in complaint
    assert len(complaint.strip().splitlines()) == 1
    [row] = shared.rows("SELECT status FROM scm.sync_jobs WHERE repo_id = %(id)s", id=repo_id)
    assert row["status"] != "running"
    assert 0 < len(shared.stored(repo_id)) < 1000


# GitLab -----------------------------------------------------------------------------------------------------


def ago(now: datetime, days: int) -> str:
    """A partition key."""
    return (midnight(now) - timedelta(days=days)).date().isoformat()


def materialized(made: Installation, *path: str) -> list[str]:
    """The partitions of an asset that Dagster shows, oldest first."""
    query = """
    SELECT DISTINCT partition FROM dagster.event_logs
     WHERE asset_key = %(key)s AND dagster_event_type = 'ASSET_MATERIALIZATION' ORDER BY partition
    """
    return [row["partition"] for row in made.rows(query, key=json.dumps(path))]


def test_job_execute_syncs_days_of_gitlab_and_prints_no_token(shared: Installation) -> None:
    shared.variables = {}
    today = midnight(datetime.now(UTC))
    project = shared.forge.large_project("ci-mrs", 12, today - timedelta(days=9))
    repo_id, path = shared.register(project)
    shared.variables = {"SCM_ONLY": f"gitlab:{project.id}"}
    days = [(today - timedelta(days=number)).date().isoformat() for number in range(9, 0, -1)]
    tags = {"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[-1]}
    code, output = finish(shared.job_execute(tags, "sync_merge_requests"))
    assert code == 0, output
    [token] = shared.forge.gitlab.tokens.values()
    assert token.secret not in output
    wanted = [request.row["iid"] for request in project.merge_requests.values() if request.updated_at < today]
    stored = shared.rows("SELECT iid FROM scm.mrs WHERE repo_id = %(id)s ORDER BY iid", id=repo_id)
    assert [row["iid"] for row in stored] == sorted(wanted)
    for job_type in ("merge_requests", "reviews"):
        assert materialized(shared, *path, job_type) == days


def test_the_runner_reads_all_of_a_project_and_backfills_what_is_named(shared: Installation) -> None:
    shared.variables = {}
    now = datetime.now(UTC)
    project = shared.forge.git_project("runner", now - timedelta(days=700), now - timedelta(days=2))
    with shared.forge.gitlab.lock:
        generated = shared.forge.large_project("runner-mrs", 3, now - timedelta(days=400))
        project.merge_requests = generated.merge_requests
    repo_id, _ = shared.register(project)
    spec = f"gitlab:{project.id}"
    found = json.loads(shared.run("runner", "incremental", "--repo", spec, "--json").stdout)
    assert (found["status"], found["exit_code"], found["job"]) == ("success", 0, None)
    assert [one["job"] for one in found["jobs"]] == ["commits", "merge_requests", "reviews"]
    assert found["jobs"][0]["inserted"] == 2
    backfill = ["runner", "backfill", "--repo", spec]
    since, until = ago(now, 401), ago(now, 390)
    plan = json.loads(shared.run(*backfill, "--since", since, "--until", until, "--dry-run", "--json").stdout)
    assert [one["missing_days"] for one in plan["jobs"]] == [0.0, 11.0, 11.0]
    done = json.loads(shared.run(*backfill, "--since", since, "--until", until, "--json").stdout)
    assert [one["total_chunks"] for one in done["jobs"]] == [1, 1, 1]
    assert done["jobs"][1]["window"] == {
        "since": f"{since}T00:00:00+00:00",
        "until": f"{until}T00:00:00+00:00",
    }
    assert shared.rows("SELECT count(*)::int AS n FROM scm.mrs WHERE repo_id = %(id)s", id=repo_id) == [
        {"n": 3}
    ]
    # Without bounds everything that is missing is read.
    rest = json.loads(shared.run(*backfill, "--job", "reviews", "--json").stdout)
    assert rest["status"] == "success"
    [row] = shared.rows(
        "SELECT lower(covered_time)::text AS since, isempty(tstzmultirange(tstzrange('1900-01-01', now() - "
        "interval '1 hour')) - covered_time) AS complete FROM scm.sync_watermarks"
        " WHERE repo_id = %(id)s AND job_type = 'reviews'",
        id=repo_id,
    )
    assert row["complete"], row
    refused = shared.run(*backfill, "--start-rev", "1", expect=3)
    assert f"--start-rev: {spec} is read by time" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("project_id", "how"), [(10**6, "runner"), (10**6 + 1, "worker"), (10**6 + 2, "step")]
)
def test_sigterm_ends_it_although_a_server_says_nothing(
    shared: Installation, project_id: int, how: str
) -> None:
    """The wait for one answer may take a minute; systemd and Kubernetes kill before that."""
    asked: list[int] = []
    with silent(b"", asked=asked) as url:
        shared.variables = {"SCM_GITLAB_URL": url}
        with psycopg.connect(shared.url, autocommit=True, row_factory=dict_row) as conn:
            repo_id = register_project(conn, url, project_id, f"silent/{how}", origin=datetime.now(UTC))
        shared.run("catalog", "export")
        shared.variables |= {"SCM_ONLY": f"gitlab:{project_id}"}
        if how == "runner":
            process = shared.start("runner", "incremental", "--repo", str(repo_id), "--job", "mrs")
        elif how == "worker":
            shared.variables |= {"SCM_WORKER_INSTANCE_ALLOWLIST": url.removeprefix("http://")}
            shared.run("scheduler")
            process = shared.start("worker", "--loop", "--interval-seconds", "1")
        else:
            process = shared.job_execute(job="sync_merge_requests")
        # The runner asks first how much there is.
        until(lambda: len(asked) > (how == "runner"), "the server is asked")
        process.send_signal(signal.SIGTERM)
        # Less than the wait for an answer, and far more than the end takes.
        output, complaint = process.communicate(timeout=45)
    shared.variables = {}
    query = "SELECT status, error_code FROM scm.sync_runs WHERE repo_id = %(id)s ORDER BY run_id"
    runs = [(row["status"], row["error_code"]) for row in shared.rows(query, id=repo_id)]
    assert runs, (output, complaint)
    assert set(runs) == {("interrupted", "cancelled")}
    left = "SELECT 1 FROM scm.sync_jobs WHERE repo_id = %(id)s AND status IN ('running', 'failed')"
    assert shared.rows(left, id=repo_id) == []


def test_the_token_never_shows(shared: Installation) -> None:
    shared.variables = {}
    project = shared.forge.git_project("token", datetime.now(UTC))
    repo_id, _ = shared.register(project)
    shared.variables = {"SCM_GITLAB_TOKEN": "glpat-wrong-token-0123456789"}
    done = shared.run("runner", "incremental", "--repo", f"gitlab:{project.id}", expect=2)
    assert "create a new one with scope read_api" in done.stderr.splitlines()[-1]
    assert "glpat-wrong-token" not in done.stdout + done.stderr
    shared.variables |= {"SCM_ONLY": f"gitlab:{project.id}"}
    shared.run("catalog", "export")
    code, output = finish(shared.job_execute(job="sync_commits"))
    assert code == 1
    assert "create a new one with scope read_api" in output.splitlines()[-1]
    assert "Stack Trace" not in output
    assert "glpat-wrong-token" not in output
    shared.variables = {}
    texts = shared.rows("SELECT * FROM scm.revoked_credentials") + shared.rows(
        "SELECT last_error FROM scm.sync_jobs WHERE repo_id = %(id)s", id=repo_id
    )
    assert texts
    assert "glpat-wrong-token" not in str(texts)
