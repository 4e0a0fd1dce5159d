"""GitLab into PostgreSQL against the least that could do it: the same requests, parsed and thrown away.

Belongs here: time, memory and number of requests of the engine on the embedded server. The small GitLab runs
in its own process and takes 50 ms for every response.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Figure, process
from sync_pipeline.database import migrations
from sync_pipeline.runtime.environment import ensure_server, remove_server

LATENCY = 0.05
PARALLEL = 4

# Both run in processes of their own, so that neither shares an interpreter with the server.
_SYNC = """
import json, sys, time
from datetime import datetime, timezone
from sync_pipeline.core.catalog import parse_spec
from sync_pipeline.core.model import BEGINNING, Counts, Depth, JobRequest, JobType, Mode, TimeWindow, Trigger
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.settings import Settings
from sync_pipeline.database.pool import Database
from sync_pipeline.sync.engine import Syncer
url, server, token, project, what = sys.argv[1:6]
settings = Settings(gitlab_url=server, gitlab_token=token, gitlab_parallel=int(sys.argv[6]),
                    gitlab_postgres_rate_limit_rate=10_000, gitlab_postgres_rate_limit_burst=10_000)
job_types = [JobType.COMMITS] if what == "commits" else [JobType.MERGE_REQUESTS, JobType.REVIEWS]
now = TimeWindow(BEGINNING, datetime.now(timezone.utc))
with Database(url) as database:
    spec = parse_spec("gitlab:" + project)
    added = add_repository(database, settings, spec, actor="bench", reader_factory=None)
    repo = added.repository.repo_id
    syncer = Syncer(database, settings)
    def run(mode, window, reread=False):
        started = time.perf_counter()
        reports = syncer.run_together([
            JobRequest(repo, t, mode, Trigger.RUNNER, "bench", "bench", window=window, reread=reread)
            for t in job_types])
        for report in reports:
            assert report.succeeded, report.error
        counts = sum((r.counts for r in reports), Counts())
        return {"seconds": time.perf_counter() - started, "calls": sum(r.calls for r in reports),
                "rows": reports[0].counts.read, "changed": counts.changed}
    first = run(Mode.INCREMENTAL, None) if what == "commits" else run(Mode.BACKFILL, now)
    idle = run(Mode.INCREMENTAL, None)
    again = run(Mode.BACKFILL, now, True) if what != "commits" else idle
    def compare(depth):
        started = time.perf_counter()
        requests = [JobRequest(repo, t, Mode.PROBE, Trigger.RUNNER, "bench", "bench", window=now, depth=depth)
                    for t in job_types]
        reports = [syncer.run(request) for request in requests]
        assert all(report.succeeded for report in reports), reports[-1].error
        with database.connection() as conn:
            differ = conn.execute(
                "SELECT count(*) AS n FROM scm.reconciliations WHERE status <> 'clean'").fetchone()["n"]
        return {"seconds": time.perf_counter() - started, "calls": sum(r.calls for r in reports),
                "changed": differ}
    lists, details = compare(Depth.LISTING), compare(Depth.DETAILS)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak_mb": peak / 1024, "first": first, "idle": idle, "again": again,
                  "lists": lists, "details": details}))
"""

_BARE = """
import sys, threading, time, requests
from concurrent.futures import ThreadPoolExecutor
server, token, project, what, tip = sys.argv[1:6]
base = f"{server}/api/v4/projects/{project}"
local = threading.local()
def get(url, **params):
    if not hasattr(local, "session"):
        local.session = requests.Session()
        local.session.headers["PRIVATE-TOKEN"] = token
    answer = local.session.get(url, params=params, timeout=60)
    answer.raise_for_status()
    answer.json()
    return answer
def pages(url, **params):
    number = "1"
    while number:
        answer = get(url, per_page=100, page=number, **params)
        yield answer.json()
        number = answer.headers.get("X-Next-Page") if answer.json() else None
CHILDREN = ["versions", "commits", "discussions", "resource_state_events", "resource_label_events",
            "resource_milestone_events", "approvals"]
started = time.perf_counter()
rows = 0
if what == "commits":
    for page in pages(f"{base}/repository/commits", ref_name=tip, with_stats="true"):
        rows += len(page)
else:
    with ThreadPoolExecutor(int(sys.argv[6])) as pool:
        url = f"{base}/merge_requests"
        for page in pages(url, state="all", scope="all", order_by="updated_at", sort="asc"):
            rows += len(page)
            children = [(row, child) for row in page for child in CHILDREN]
            # The eighth list is of use only where there is a reviewer.
            children += [(row, "reviewers") for row in page if row["reviewers"]]
            list(pool.map(get, [f"{url}/{row['iid']}/{child}" for row, child in children]))
print(time.perf_counter() - started, rows)
"""


def figures(commits: int, merge_requests: int) -> list[Figure]:
    """The ratios of a project with so many commits, and of one with so many merge requests."""
    with tempfile.TemporaryDirectory(prefix="scm-bench-") as folder:
        state = Path(folder)
        tip = _line(state / "line.git", commits)
        url = ensure_server(state)
        try:
            migrations.migrate(url, "development")
            with _server(state / "line.git", merge_requests) as (server, token):
                return [
                    *_compare(url, server, token, "1", "commits", tip),
                    *_compare(url, server, token, "2", "merge requests", tip),
                ]
        finally:
            remove_server(state)


def _compare(url: str, server: str, token: str, project: str, what: str, tip: str) -> list[Figure]:
    name = what.replace(" ", "_")
    bare = process(["-c", _BARE, server, token, project, name, tip, str(PARALLEL)])
    seconds, rows = bare.output.split()
    result = json.loads(
        process(["-c", _SYNC, url, server, token, project, name, str(PARALLEL)]).output.splitlines()[-1]
    )
    first, idle, again = result["first"], result["idle"], result["again"]
    lists, details = result["lists"], result["details"]
    changed = again["changed"] + lists["changed"] + details["changed"]
    if first["rows"] < int(rows) or changed:
        raise RuntimeError(f"{what}: {first['rows']} of {rows} rows were read, {changed} changed or differ")
    label = f"{int(rows):,} {what}" + (", with reviews" if what != "commits" else "")
    budget = "at most 0.01 + a few" if what == "commits" else "at most 7"
    return [
        Figure(label, "the same requests, parsed", first["seconds"], float(seconds), "s", "at most 1.25"),
        Figure(f"{label}, memory", "", result["peak_mb"], None, "MB", "at most 300 MB"),
        Figure(f"{label}, requests per row", "", first["calls"] / int(rows), None, "", budget),
        Figure(f"{label}, requests of an idle visit", "", idle["calls"], None, "", ""),
        Figure(
            f"{label}, reconciled", "the same requests, parsed", details["seconds"], float(seconds), "s", ""
        ),
        Figure(f"{label}, reconciled, requests per row", "", details["calls"] / int(rows), None, "", ""),
        Figure(f"{label}, reconciled by lists only, requests", "", lists["calls"], None, "", ""),
    ]


def _line(path: Path, commits: int) -> str:
    """A repository with so many commits in one line; returns the newest."""
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", path], check=True)
    importer = subprocess.Popen(["git", "-C", path, "fast-import", "--quiet"], stdin=subprocess.PIPE)
    assert importer.stdin is not None
    for number in range(commits):
        body = f"Commit {number}\n\nIt changes a file of some lines.\n".encode()
        text = "".join(f"line {line} {number if line == number % 20 else 0}\n" for line in range(20)).encode()
        importer.stdin.write(
            b"commit refs/heads/main\ncommitter User %d <user%d@example.test> %d +0000\ndata %d\n%s\n"
            b"M 100644 inline file%d.txt\ndata %d\n%s\n"
            % (number % 9, number % 9, 1700000000 + number, len(body), body, number % 50, len(text), text)
        )
    importer.stdin.close()
    if importer.wait() != 0:
        raise RuntimeError("git fast-import failed")
    found = subprocess.run(
        ["git", "-C", path, "rev-parse", "main"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


@contextmanager
def _server(repository: Path, merge_requests: int) -> Iterator[tuple[str, str]]:
    """A small GitLab in a process of its own: its address and a token."""
    command = [sys.executable, "-m", "sync_pipeline_sandbox.gitlab", "--latency", str(LATENCY)]
    command += ["--repository", str(repository), "--generate", str(merge_requests)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.match(r"API (\S+)/api/v4 +token (\S+)", line):
                yield found[1], found[2]
                return
        raise RuntimeError("the small GitLab did not start")
    finally:
        server.terminate()
        server.wait()
