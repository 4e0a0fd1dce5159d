"""Page, daemon and sensors as ``scm-sync up`` runs them: backfills from the UI, stops, unattended syncing.

One module, because they share what takes seconds to start. The scheduler is off until the last of them.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster._grpc.client import DagsterGrpcClient

from sync_pipeline.database.connecting import describe
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.gitlab.records import Project
from sync_pipeline_tests.end_to_end.conftest import Up, commit, until

pytestmark = pytest.mark.xdist_group("up")

LAUNCH = """
mutation Launch($assets: [AssetKeyInput!]!, $keys: [String!]!) {
  launchPartitionBackfill(backfillParams: {assetSelection: $assets, partitionNames: $keys}) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
BACKFILL = """
query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status error { message } }
  }
}
"""
CANCEL = """
mutation Cancel($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }
"""
MATERIALIZATIONS = """
query Materializations($key: AssetKeyInput!) {
  assetOrError(assetKey: $key) {
    ... on Asset {
      assetMaterializations(limit: 100) {
        partition
        metadataEntries { label ... on BoolMetadataEntry { boolValue } ... on IntMetadataEntry { intValue } }
      }
    }
  }
}
"""
CHECKS = """
query Checks($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      assetChecksOrError {
        ... on AssetChecks {
          checks { name executionForLatestMaterialization { status evaluation { success } } }
        }
      }
    }
  }
}
"""
RELOAD = """
mutation { reloadRepositoryLocation(repositoryLocationName: "sync_pipeline") {
  ... on WorkspaceLocationEntry { locationOrLoadError {
    __typename ... on PythonError { errorChain { error { message } } }
  } }
} }
"""
KEYS = [f"{first:010d}-{first + 999:010d}" for first in range(1, 4001, 1000)]


# The Subversion repositories of these tests and how many revisions each has. A chunk is 100 revisions.
REVISIONS = {
    "ui_range": 1010,
    "ui_stop": 1100,
    "alone": 1010,
    "first_survivor": 400,
    "second_survivor": 20,
    "third_survivor": 400,
    "fourth_survivor": 400,
}


@pytest.fixture(scope="module", autouse=True)
def project(up: Up) -> Project:
    """A project of GitLab with commits. It is registered in the running installation together with
    :data:`REVISIONS`, because each reload of the page takes seconds; the page is not restarted."""
    made, now = up.installation, datetime.now(UTC)
    git = made.forge.git_project("alone-git", now - timedelta(days=500), now - timedelta(days=1))
    urls = [svn_samples.large(made.folder / name, count, 1) for name, count in REVISIONS.items()]
    made.add(*(f"svn:{url}" for url in urls), f"gitlab:{git.id}")
    paths = [svn(up, name)[2] for name in REVISIONS] + [[*made.project(git)[1], "merge_requests"]]
    until(partial(_shown, up, paths), "the page shows the new assets without being restarted")
    return git


def _shown(up: Up, paths: list[list[str]]) -> bool:
    shown = up.asset_keys()
    return all(path in shown for path in paths)


def svn(up: Up, name: str) -> tuple[Path, int, list[str]]:
    """Place, ``repo_id`` and asset path of a repository of this installation."""
    repo_path = up.installation.folder / name
    repo_id = up.installation.repo_id(repo_path)
    [row] = up.installation.rows("SELECT slug FROM scm.repos WHERE repo_id = %(id)s", id=repo_id)
    return repo_path, repo_id, ["local", row["slug"], "revisions"]


@contextmanager
def scheduling(up: Up) -> Iterator[None]:
    """The scheduler is on inside the block; what it starts would mix with what other tests start."""
    up.switch("scheduler", on=True)
    try:
        yield
    finally:
        up.switch("scheduler", on=False)


def launch(up: Up, path: list[str], keys: list[str]) -> str:
    """Launch a backfill; returns its id once it has runs.

    Page and daemon look each second whether the code location changed. A backfill of an asset that the page
    shows and the daemon does not know yet is failed by Dagster; it is launched again, as a person would.
    """
    assets = [{"path": path}]
    deadline = time.monotonic() + 180
    while True:
        found = up.graphql(LAUNCH, assets=assets, keys=keys)["launchPartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        backfill = str(found["backfillId"])
        until(partial(_begun, up, backfill), "the backfill has runs")
        error = state(up, backfill)["error"]
        if error is None or "but no longer does" not in error["message"] or time.monotonic() > deadline:
            return backfill


def _begun(up: Up, backfill: str) -> bool:
    query = "SELECT 1 FROM dagster.run_tags WHERE key = 'dagster/backfill' AND value = %(id)s"
    return bool(up.installation.rows(query, id=backfill)) or state(up, backfill)["status"] == "FAILED"


def state(up: Up, backfill: str) -> Any:
    """Status and error of a backfill."""
    return up.graphql(BACKFILL, id=backfill)["partitionBackfillOrError"]


def ended(up: Up, backfill: str) -> str:
    """How a backfill ended, once it has; with what went wrong where it failed."""
    found = until(
        lambda: (
            (now := state(up, backfill))["status"].startswith(("COMPLETED", "CANCELED", "FAILED")) and now
        ),
        "the backfill ends",
    )
    if found["status"] != "FAILED":
        return str(found["status"])
    query = "SELECT r.run_id, e.event::jsonb ->> 'user_message' AS said FROM dagster.runs r"
    query += " JOIN dagster.run_tags t ON t.run_id = r.run_id AND t.key = 'dagster/backfill'"
    query += " JOIN dagster.event_logs e ON e.run_id = r.run_id WHERE t.value = %(id)s"
    query += " AND e.event::jsonb ->> 'level' IN ('40', '50') ORDER BY e.id"
    return f"FAILED: {found['error']} {up.installation.rows(query, id=backfill)}"


def materialized(up: Up, path: list[str]) -> dict[str, dict[str, Any]]:
    """Metadata of the latest materialization by partition."""
    asset = up.graphql(MATERIALIZATIONS, key={"path": path})["assetOrError"]
    found: dict[str, dict[str, Any]] = {}
    for event in asset.get("assetMaterializations", []):
        entries = {e["label"]: e.get("boolValue", e.get("intValue")) for e in event["metadataEntries"]}
        found.setdefault(event["partition"], entries)
    return found


def test_a_backfill_from_the_ui_covers_its_range_also_beyond_head(up: Up) -> None:
    _, repo_id, path = svn(up, "ui_range")
    add = "mutation A($key: String!, $s: RepositorySelector!) { addDynamicPartition("
    add += 'partitionsDefName: "svn_blocks", partitionKey: $key, repositorySelector: $s) { __typename } }'
    selector = {"repositoryLocationName": "sync_pipeline", "repositoryName": "__repository__"}
    up.graphql(add, key=KEYS[2], s=selector)
    assert ended(up, launch(up, path, KEYS[0:3])) == "COMPLETED_SUCCESS"
    assert up.installation.stored(repo_id) == list(range(1, 1011))
    assert up.installation.covered(repo_id) == "{[1,1011)}"
    found = materialized(up, path)
    assert set(found) == set(KEYS[0:3])
    assert [found[key]["run/beyond_head"] for key in KEYS[0:3]] == [False, False, True]
    check = up.graphql(CHECKS, key={"path": path})["assetNodeOrError"]["assetChecksOrError"]["checks"]
    assert [one["name"] for one in check] == ["health"]


def test_a_terminated_backfill_stops_between_batches_and_a_repeat_completes_it(up: Up) -> None:
    up.slow.touch()
    _, repo_id, path = svn(up, "ui_stop")
    first = launch(up, path, KEYS[0:1])
    until(lambda: up.installation.stored(repo_id), "the first batch is stored")
    up.graphql(CANCEL, id=first)
    assert ended(up, first) == "CANCELED"
    up.slow.unlink()
    query = "SELECT status, last_error_code FROM scm.sync_jobs WHERE repo_id = %(id)s AND dagster_run_id IN"
    query += " (SELECT run_id FROM dagster.run_tags WHERE key = 'dagster/backfill')"
    jobs = up.installation.rows(query, id=repo_id)
    assert "running" not in {job["status"] for job in jobs}, "a stopped job does not stay claimed"
    runs = up.installation.rows("SELECT status FROM scm.sync_runs WHERE repo_id = %(id)s", id=repo_id)
    assert "interrupted" in {run["status"] for run in runs}, (runs, jobs)
    half = up.installation.stored(repo_id)
    # Whole batches and nothing else: what is stored is covered.
    assert sum(1 for _ in half) == sum_of(up.installation.covered(repo_id))
    assert ended(up, launch(up, path, KEYS[0:1])) == "COMPLETED_SUCCESS"
    assert up.installation.stored(repo_id) == list(range(1, 1001))


def test_the_page_is_the_real_one_and_is_guarded(up: Up) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{up.url}/graphql?query=%7Bversion%7D", timeout=60)
    assert refused.value.code == 401
    refused.value.close()
    assert up.graphql("{ version }")["version"]
    note = json.loads((up.installation.folder / "state" / "ui.json").read_text())
    assert note["url"] == up.url


def test_a_location_that_cannot_be_loaded_says_why_in_the_page_and_comes_back(up: Up) -> None:
    file = up.installation.folder / "state" / "catalog.json"
    before = file.read_text() if file.exists() else None

    def reload() -> tuple[str, list[str]]:
        entry = up.graphql(RELOAD)["reloadRepositoryLocation"]["locationOrLoadError"]
        return entry["__typename"], [link["error"]["message"] for link in entry.get("errorChain", [])]

    file.write_text('{"version": 1}')
    try:
        kind, chain = reload()
        assert kind == "PythonError"
        # The page shows the whole chain; ours is at its end.
        assert "has version 1, this program reads" in chain[-1]
        assert up.process.poll() is None
    finally:
        file.unlink() if before is None else file.write_text(before)
    assert reload()[0] == "RepositoryLocation"


def test_it_says_at_the_start_what_runs_where(up: Up) -> None:
    log = (up.installation.folder / "up.log").read_text()
    [line] = [line for line in log.splitlines() if "starting UI" in line]
    assert "runs.log" in line
    assert describe(up.installation.url) in line
    assert up.token not in log


def test_a_second_up_on_the_same_folder_is_refused_in_one_line(up: Up) -> None:
    done = up.installation.run("up", expect=3)
    assert "runs already at" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    # A supervisor keeps the line: it has the command that shows the token, not the token.
    assert up.token not in done.stdout + done.stderr
    command = done.stderr.strip().split("with the token: ")[1]
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == f"{up.url}/?token={up.token}"


def test_no_log_and_no_process_list_has_a_secret(up: Up) -> None:
    state = up.installation.folder / "state"
    secrets = [up.token, up.installation.forge.variables["SCM_GITLAB_TOKEN"]]
    commands = []
    for process in psutil.Process(up.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            commands.append(" ".join(process.cmdline()))
    assert any("api grpc" in command for command in commands)
    texts = [*commands, (up.installation.folder / "up.log").read_text()]
    texts += [path.read_text() for path in (state / "runs.log", state / "ui.json", state / "sockets")]
    assert not [secret for secret in secrets for text in texts if secret in text]
    assert not [command for command in commands if "postgresql:" in command]


def test_what_runs_print_and_where_they_listen_is_for_the_owner_only(up: Up) -> None:
    state = up.installation.folder / "state"
    assert (state / "runs.log").stat().st_mode & 0o077 == 0
    assert " DEBUG " not in (state / "runs.log").read_text()
    private = Path("/tmp") / (state / "sockets").read_text().strip()
    assert private.stat().st_mode & 0o077 == 0
    listening = []
    for process in psutil.Process(up.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            if "--socket" in words:
                listening.append(Path(words[words.index("--socket") + 1]).parent)
    assert set(listening) == {private}


def definitions(up: Up) -> list[psutil.Process]:
    """The processes with the definitions, oldest first: that in use, and such as load or end."""
    found = []
    for process in psutil.Process(up.process.pid).children(recursive=True):
        # Short-lived ones come and go meanwhile.
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "dagster api grpc" in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def in_use(up: Up) -> psutil.Process:
    """The process with the definitions, once it is the only one."""
    until(lambda: len(definitions(up)) == 1, "one process has the definitions")
    return definitions(up)[0]


def is_printed(up: Up, words: str) -> bool:
    """True if ``up`` printed these words."""
    return words in (up.installation.folder / "up.log").read_text()


def test_a_slow_code_server_is_waited_for(up: Up) -> None:
    server = in_use(up)
    server.suspend()
    try:
        until(lambda: is_printed(up, "the code server answers slowly: "), "it is called slow")
        beat = "SELECT outcome FROM scm.heartbeats WHERE name = 'up'"
        until(
            lambda: "answers slowly" in up.installation.rows(beat)[0]["outcome"], "its heartbeat says so too"
        )
        report = json.loads(up.installation.run("status", "--json").stdout)
        assert [line for line in report["slow"] if "the code server answers slowly" in line]
        # A second one would only have made the machine slower.
        assert definitions(up) == [server]
    finally:
        server.resume()
    until(lambda: is_printed(up, "the code server answers again"), "it answers again")
    assert definitions(up) == [server]


def test_a_reload_that_does_not_get_ready_leaves_the_former_definitions_in_use(up: Up) -> None:
    server = in_use(up)
    url = svn_samples.large(up.installation.folder / "unready", 3, 1)
    adding = up.installation.start("repo", "add", f"svn:{url}")
    fresh = until(lambda: len(found := definitions(up)) == 2 and found[1], "the next one loads")
    fresh.kill()
    _, output = adding.communicate(180)
    assert adding.wait() == 0, output
    assert "was not reloaded" in output
    assert "the former definitions stay in use" in output
    assert definitions(up) == [server]
    _, repo_id = up.installation.repository("after_unready", 20)
    _, _, path = svn(up, "after_unready")
    until(partial(_shown, up, [path]), "the page shows the new asset without being restarted")
    assert ended(up, launch(up, path, KEYS[0:1])) == "COMPLETED_SUCCESS"
    assert up.installation.stored(repo_id) == list(range(1, 21))


def test_no_run_is_lost_when_the_code_server_ends_or_is_told_to_end(up: Up) -> None:
    """Told to end, a process of Dagster's refuses every run for as long as an earlier one works."""
    _, first_id, first = svn(up, "first_survivor")
    _, _, second = svn(up, "second_survivor")
    up.slow.touch()
    working = launch(up, first, KEYS[0:1])
    until(lambda: up.installation.stored(first_id), "a run works")
    words = (server := in_use(up)).cmdline()
    DagsterGrpcClient(socket=words[words.index("--socket") + 1]).shutdown_server()
    refused = launch(up, second, KEYS[0:1])
    up.slow.unlink()
    assert ended(up, refused) == "COMPLETED_SUCCESS"
    assert ended(up, working) == "COMPLETED_SUCCESS"
    until(lambda: not server.is_running() or server.status() == "zombie", "the former one ended")
    # Killed with a run at work: the run goes on, the next one is started by the next process.
    _, third_id, third = svn(up, "third_survivor")
    up.slow.touch()
    working = launch(up, third, KEYS[0:1])
    until(lambda: up.installation.stored(third_id), "a run works")
    in_use(up).kill()
    up.slow.unlink()
    assert ended(up, launch(up, second, KEYS[0:1])) == "COMPLETED_SUCCESS"
    assert ended(up, working) == "COMPLETED_SUCCESS"
    # Such a run can still be stopped.
    _, fourth_id, fourth = svn(up, "fourth_survivor")
    up.slow.touch()
    working = launch(up, fourth, KEYS[0:1])
    until(lambda: up.installation.stored(fourth_id), "a run works")
    in_use(up).kill()
    up.graphql(CANCEL, id=working)
    # The call that the run waits for is not waited for.
    assert ended(up, working) == "CANCELED"
    up.slow.unlink()
    jobs = "SELECT 1 FROM scm.sync_jobs WHERE repo_id = %(id)s AND status = 'running'"
    until(lambda: not up.installation.rows(jobs, id=fourth_id), "nobody works on it any more")
    query = "SELECT status FROM scm.sync_runs WHERE repo_id = %(id)s AND status = 'interrupted'"
    assert up.installation.rows(query, id=fourth_id), "it was told, and stopped between two batches"
    never = "SELECT run_id FROM dagster.runs WHERE status = 'FAILURE' AND start_time IS NULL"
    assert up.installation.rows(never) == []


def test_the_sensors_read_all_history_by_themselves_and_notice_what_is_new(up: Up, project: Project) -> None:
    made, today = up.installation, datetime.now(UTC).date().isoformat()
    repo_path, svn_id, svn_path = svn(up, "alone")
    git_id, beginning = made.project(project)
    # What other tests left to do would take turns with it.
    retire = "UPDATE scm.repos SET lifecycle = 'retired' WHERE repo_id <> ALL (%(ids)s) RETURNING repo_id"
    made.rows(retire, ids=[svn_id, git_id])
    with scheduling(up):
        until(lambda: made.stored(svn_id) == list(range(1, 1011)), "history and the rest are read")
        commit(repo_path, "news")
        complete = """
        SELECT count(*)::int AS n FROM scm.sync_watermarks WHERE repo_id = %(id)s
           AND isempty(tstzmultirange(tstzrange('1900-01-01', now() - interval '1 hour')) - covered_time)
        """
        until(lambda: made.rows(complete, id=git_id) == [{"n": 3}], "all history is covered")
        assert project.repository is not None
        base = project.repository.resolve("refs/heads/main")
        assert base is not None
        project.repository.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
        made.forge.gitlab.open_merge_request(project, title="Topic", source="topic", author=made.forge.user)
        until(lambda: 1011 in made.stored(svn_id), "the new revision is read")
        until(lambda: KEYS[1] in materialized(up, svn_path), "its block is materialized again")
        query = "SELECT title FROM scm.mrs WHERE repo_id = %(id)s"
        until(lambda: made.rows(query, id=git_id) == [{"title": "Topic"}], "a hint makes it due")
        until(
            lambda: today <= max(materialized(up, [*beginning, "merge_requests"]), default=""),
            "today is materialized",
        )
        beats = {beat["name"] for beat in made.rows("SELECT name FROM scm.heartbeats")}
        assert beats >= {"scheduler", "changes_local"}
        results = "SELECT count(*)::int AS n FROM scm.health WHERE repo_id = %(id)s AND passed"
        until(lambda: made.rows(results, id=git_id) == [{"n": 3}], "the health checks pass")
        until(lambda: made.rows(results, id=svn_id) == [{"n": 1}], "its health check passes too")


def sum_of(covered: str) -> int:
    """How many revisions a multirange has."""
    parts = [part.strip("[)").split(",") for part in covered.strip("{}").split("),") if part]
    return sum(int(end) - int(first) for first, end in parts)
