"""SVN into PostgreSQL against the least that could do it: ``svn log`` to a file and a bare COPY.

Belongs here: time and memory of the engine over generated repositories on the embedded server.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import LiteralString

import psycopg

from bench.measure import Figure, process, seconds
from sync_pipeline.database import migrations
from sync_pipeline.runtime.environment import ensure_server, remove_server
from sync_pipeline.settings import project_root
from sync_pipeline_sandbox import svn_samples

# Runs in a process of its own, so that its peak memory is the engine's.
_SYNC = """
import json, sys, time, resource
from sync_pipeline.core.catalog import parse_spec
from sync_pipeline.core.model import Depth, JobRequest, JobType, Mode, RevisionWindow, Trigger
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.settings import Settings
from sync_pipeline.database.pool import Database
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import svn_reader
url, address, head, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
mode = Mode.PROBE if how == "compare" else Mode.BACKFILL
depth = Depth.DETAILS if how == "compare" else None
settings = Settings()
with Database(url) as database:
    added = add_repository(database, settings, parse_spec("svn:" + address), actor="bench",
                           reader_factory=lambda place: svn_reader(settings, place))
    started = time.perf_counter()
    report = Syncer(database, settings).run(JobRequest(
        added.repository.repo_id, JobType.REVISIONS, mode, Trigger.RUNNER, "bench", "bench",
        window=RevisionWindow(1, head + 1), reread=how == "again", depth=depth))
    with database.connection() as conn:
        (differ,) = conn.execute("SELECT count(*) AS n FROM scm.discrepancies").fetchone().values()
    taken = time.perf_counter() - started
assert report.succeeded, report.error
# Not ru_maxrss: that is inherited from the process that started this one.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak_mb": peak / 1024, "seconds": taken, "changed": report.counts.changed + differ}))
"""


_PATHS: dict[str, LiteralString] = {
    "create": "CREATE TABLE bare_paths (LIKE scm.svn_changed_paths)",
    "out": "COPY scm.svn_changed_paths TO STDOUT",
    "in": "COPY bare_paths FROM STDIN",
}
# COPY leaves generated columns out.
_REVISIONS: dict[str, LiteralString] = {
    "create": """
        CREATE TABLE bare_revisions AS SELECT * FROM scm.svn_revisions LIMIT 0;
        ALTER TABLE bare_revisions DROP is_bulk, DROP bulk_reason, DROP source_id
    """,
    "out": "COPY scm.svn_revisions TO STDOUT",
    "in": "COPY bare_revisions FROM STDIN",
}


def figures(revisions: int, wide_paths: int) -> list[Figure]:
    """The ratios of a deep and the memory of a wide repository."""
    samples = project_root() / ".state" / "bench"
    samples.mkdir(parents=True, exist_ok=True)
    deep = _sample(samples / f"deep-{revisions}", revisions)
    wide = _sample(samples / f"wide-{wide_paths}", 3, huge=wide_paths)
    with tempfile.TemporaryDirectory(prefix="scm-bench-") as folder:
        state = Path(folder)
        url = ensure_server(state)
        try:
            migrations.migrate(url, "development")
            return _deep(url, deep, revisions, state) + _wide(url, wide, wide_paths)
        finally:
            remove_server(state)


def _sample(path: Path, revisions: int, huge: int = 0) -> str:
    if not path.exists():
        svn_samples.large(path, revisions, huge=huge)
    return path.as_uri()


def _sync(url: str, address: str, head: int, how: str = "first") -> tuple[float, float]:
    """Seconds and megabytes; ``how`` may be ``again`` or ``compare``, neither of which may find a change."""
    finished = process(["-c", _SYNC, url, address, str(head), how])
    result = json.loads(finished.output.splitlines()[-1])
    if how != "first" and result["changed"]:
        raise RuntimeError(f"the second run ({how}) changed rows")
    return result["seconds"], result["peak_mb"]


def _deep(url: str, address: str, revisions: int, folder: Path) -> list[Figure]:
    answer = folder / "answer.xml"

    def log() -> None:
        with answer.open("wb") as out:
            subprocess.run(["svn", "log", "--xml", "-v", address], stdout=out, check=True)

    log()
    reading = seconds(log, runs=3)
    first, peak = _sync(url, address, revisions)
    copying = _bare_copy(url)
    again, _ = _sync(url, address, revisions, "again")
    compared, wide = _sync(url, address, revisions, "compare")
    bare = reading + copying
    what = f"{revisions:,} revisions with 8 paths"
    return [
        Figure(what, "svn log to a file + bare COPY", first, bare, "s", "at most 3"),
        Figure(f"{what}, read again", "svn log to a file + bare COPY", again, bare, "s", "at most 3"),
        Figure(f"{what}, memory", "", peak, None, "MB", "at most 300 MB"),
        Figure(f"{what}, reconciled", "svn log to a file + bare COPY", compared, bare, "s", ""),
        Figure(f"{what}, reconciled, memory", "", wide, None, "MB", "at most 300 MB"),
    ]


def _bare_copy(url: str) -> float:
    """Seconds to COPY the stored rows into tables of the same columns without any key."""
    total = 0.0
    with psycopg.connect(url, autocommit=True) as conn:
        for statements in (_PATHS, _REVISIONS):
            conn.execute(statements["create"])
            with conn.cursor().copy(statements["out"]) as copy:
                blocks = [bytes(block) for block in copy]

            def copy_in(into: LiteralString = statements["in"], blocks: list[bytes] = blocks) -> None:
                with conn.cursor().copy(into) as copy:
                    for block in blocks:
                        copy.write(block)

            total += seconds(copy_in)
    return total


def _wide(url: str, address: str, paths: int) -> list[Figure]:
    taken, peak = _sync(url, address, 3)
    return [
        Figure(f"one revision with {paths:,} paths", "", taken, None, "s", ""),
        Figure(f"one revision with {paths:,} paths, memory", "", peak, None, "MB", "at most 300 MB"),
    ]
