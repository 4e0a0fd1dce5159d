"""Our reading of GitLab beside that of dlt, tap-gitlab and Perceval, on the same server and data.

Belongs here: who reads what, and how the server behaves meanwhile. The server counts the requests, and the
rows are compared with those that it has. The page of the results is :mod:`bench.comparison`'s.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from bench.databases import databases
from bench.environments import NotInstalled, installed, version
from bench.programs import ProgramFailed, run
from bench.server import Behaviour, Counted, Measured, Subject

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
    Contestant("sync_pipeline", "ours", _ours("merge requests")),
    Contestant("sync_pipeline", "ours", _ours("merge requests", "gitlab_graphql=false")),
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
    peak_mb: float = 0.0
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
        databases(Path(folder)) as make_database,
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


def _run(contestant: Contestant, python: Path, task: Task) -> list[Result]:
    """The phases of one program, each with the figures since the start."""
    truth = asdict(task.subject.truth)
    number = version(python, contestant.package) if contestant.package else ""
    blank = Result(contestant.who, number, "", task.behaviour.name, task.subject.truth.merge_requests)
    task.measured.start(task.behaviour)
    try:
        phases, whole = run(
            python, contestant.driver, contestant.arguments(task), Path(task.folder), task.measured
        )
    except ProgramFailed as error:
        return [replace(blank, error=str(error))]
    results: list[Result] = []
    counted = Counted(0, 0, 0)
    seconds = cpu = 0.0
    for phase in phases:
        counted = counted.plus(phase.counted)
        seconds, cpu = seconds + phase.seconds, cpu + phase.cpu
        missing = {kind: truth[kind] - number for kind, number in phase.rows.items()}
        results.append(
            replace(
                blank,
                what=phase.name,
                seconds=seconds,
                cpu=cpu,
                peak_mb=phase.peak_mb,
                counted=counted,
                rows=phase.rows,
                missing={kind: number for kind, number in missing.items() if number},
            )
        )
    return [*results[:-1], replace(results[-1], whole=whole)]
