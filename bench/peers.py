"""Our reading of GitLab beside that of dlt, tap-gitlab and Perceval, on the same server and data.

Belongs here: who reads what, and how the server behaves meanwhile. The server counts the requests, and the
rows are compared with those that it has. The page of the results is :mod:`bench.comparison`'s.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from bench.environments import NotInstalled, installed, version
from bench.server import Behaviour, Counted, Measured, Subject
from sync_pipeline.database import migrations
from sync_pipeline.runtime.environment import ensure_server, remove_server

ROOT = Path(__file__).parents[1]
MAX_SECONDS = 1800.0
"""A program that takes longer is ended."""
LIFTED = ("gitlab_postgres_rate_limit_rate=100000", "gitlab_postgres_rate_limit_burst=100000")
"""Where the server has no limit, our own of 10 requests a second would decide."""


@dataclass(frozen=True, slots=True)
class Round:
    """A behaviour of the server, and the merge requests of the project to read: ``few`` for programs that
    would take many minutes."""

    behaviour: Behaviour
    size: int
    few: int


FULL = (
    Round(Behaviour("0 ms"), 2_000, 2_000),
    Round(Behaviour("50 ms", latency=0.05), 2_000, 200),
    Round(Behaviour("10 requests a second", limit=10), 60, 60),
)
SMALL = (
    Round(Behaviour("0 ms"), 100, 40),
    Round(Behaviour("50 ms", latency=0.05), 100, 40),
    Round(Behaviour("10 requests a second", limit=10), 20, 20),
)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a driver: the server, the project, and the database and folder it may write to."""

    measured: Measured
    subject: Subject
    database: str
    folder: str
    behaviour: Behaviour


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program with its driver. ``package`` and ``extra`` are what pip installs; None: it is ours."""

    who: str
    driver: str
    arguments: Callable[[Task], Sequence[str]]
    package: str | None = None
    extra: str = ""
    is_slow: bool = False


def _ours(what: str, *settings: str) -> Callable[[Task], Sequence[str]]:
    def arguments(task: Task) -> Sequence[str]:
        lifted = () if task.behaviour.limit else LIFTED
        return [str(task.subject.project), task.database, what, *settings, *lifted]

    return arguments


def _dlt(how: str) -> Callable[[Task], Sequence[str]]:
    return lambda task: [str(task.subject.project), task.database, task.folder, how]


CONTESTANTS = (
    Contestant("sync_pipeline", "ours", _ours("merge_requests")),
    Contestant("dlt", "run_dlt", _dlt("default"), "dlt", "[postgres]"),
    Contestant("dlt", "run_dlt", _dlt("parallelized"), "dlt", "[postgres]"),
    Contestant(
        "Perceval",
        "run_perceval",
        lambda task: [task.subject.path, task.folder],
        "perceval",
        is_slow=True,
    ),
    Contestant("sync_pipeline", "ours", _ours("commits")),
    Contestant(
        "tap-gitlab",
        "run_tap",
        lambda task: [str(task.subject.project), task.folder],
        "tap-gitlab",
    ),
)
"""Everybody who takes part, in the order of the results."""


@dataclass(frozen=True, slots=True)
class Result:
    """One phase of a program; the figures are summed from the start of the program on.

    ``seconds`` and ``cpu`` are those of reading and storing. ``whole`` is the wall clock of the process, and
    known with the last phase. ``missing`` are the rows that it lacks of each kind that it reads. With an
    ``error`` there is nothing else.
    """

    who: str
    version: str
    what: str
    round: str
    size: int
    seconds: float = 0.0
    cpu: float = 0.0
    whole: float | None = None
    counted: Counted = field(default_factory=lambda: Counted(0, 0, 0))
    rows: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


def compete(rounds: Sequence[Round]) -> list[Result]:
    """Let everybody read in each round, one after the other. A peer that fails is a result with its error."""
    results: list[Result] = []
    pythons: dict[str, Path | NotInstalled] = {}
    sizes = sorted({size for one in rounds for size in (one.size, one.few)})
    with (
        tempfile.TemporaryDirectory(prefix="scm-bench-") as folder,
        _databases(Path(folder)) as make_database,
        Measured(sizes) as measured,
    ):
        for one in rounds:
            for contestant in CONTESTANTS:
                size = one.few if contestant.is_slow else one.size
                _tell(f"{one.behaviour.name}: {contestant.who}, {size:,} merge requests")
                python = pythons.setdefault(contestant.driver, _python(contestant))
                if isinstance(python, NotInstalled):
                    failed = Result(contestant.who, "", "", one.behaviour.name, size, error=f"pip: {python}")
                    results.append(failed)
                    continue
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    task = Task(measured, measured.subjects[size], make_database(), own, one.behaviour)
                    results += _run(contestant, python, task)
    return results


def _tell(text: str) -> None:
    Console(stderr=True).print(f"bench: {text}", style="dim", highlight=False)


def _python(contestant: Contestant) -> Path | NotInstalled:
    """The Python that runs a program, or why there is none."""
    if contestant.package is None:
        return Path(sys.executable)
    try:
        return installed(contestant.package + contestant.extra, contestant.package)
    except NotInstalled as error:
        return error


@contextmanager
def _databases(state: Path) -> Iterator[Callable[[], str]]:
    """A PostgreSQL server, and a function that makes an empty database of ours in it and returns its URL."""
    url = ensure_server(state)
    names = (f"bench{number}" for number in itertools.count(1))

    def make() -> str:
        name = next(names)
        migrations.create_database(url, name)
        fresh = url.replace("@/scm?", f"@/{name}?")
        migrations.migrate(fresh, "development")
        return fresh

    try:
        yield make
    finally:
        remove_server(state)


def _run(contestant: Contestant, python: Path, task: Task) -> list[Result]:
    """The phases of one program. Its stderr is read only if it fails."""
    measured, behaviour, truth = task.measured, task.behaviour, asdict(task.subject.truth)
    command = [str(python), "-m", f"bench.drivers.{contestant.driver}", measured.url, measured.token]
    results: list[Result] = []
    number = version(python, contestant.package) if contestant.package else ""
    blank = Result(contestant.who, number, "", behaviour.name, task.subject.truth.merge_requests)
    counted = Counted(0, 0, 0)
    seconds = cpu = 0.0
    measured.start(behaviour)
    started = time.perf_counter()
    with (
        (Path(task.folder) / "errors.txt").open("w+") as errors,
        subprocess.Popen(
            [*command, *contestant.arguments(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            # dlt sends nothing home, and keeps its files in the folder of this run.
            env={**os.environ, "RUNTIME__DLTHUB_TELEMETRY": "false", "DLT_DATA_DIR": task.folder},
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        limit = threading.Timer(MAX_SECONDS, child.kill)
        limit.start()
        for line in child.stdout:
            if not line.startswith("PHASE "):
                continue
            found = json.loads(line.removeprefix("PHASE "))
            counted = counted.plus(measured.counted())
            seconds, cpu = seconds + found["seconds"], cpu + found["cpu"]
            missing = {kind: truth[kind] - number for kind, number in found["rows"].items()}
            result = replace(
                blank,
                what=found["phase"],
                seconds=seconds,
                cpu=cpu,
                counted=counted,
                rows=found["rows"],
                missing={kind: number for kind, number in missing.items() if number},
            )
            results.append(result)
            child.stdin.write("\n")
            child.stdin.flush()
        child.wait()
        limit.cancel()
        whole = time.perf_counter() - started
        if child.returncode != 0:
            errors.seek(0)
            return [replace(blank, error=_reason(errors.read()) or f"ended with {child.returncode}")]
    return [*results[:-1], replace(results[-1], whole=whole)]


def _reason(text: str) -> str:
    """The line of a traceback that names the error, else the last line."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failed|Missing)\b", line)]
    return (named or lines or [""])[-1][:300]
