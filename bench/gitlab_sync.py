"""Requests and memory of our visits to a GitLab: the first one, and those that find nothing or a change.

Belongs here: figures that no other program has. :mod:`bench.peers` compares the first reading with others.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.databases import databases
from bench.measure import Figure
from bench.peers import LIFTED
from bench.programs import Phase, run
from bench.server import Behaviour, Measured

SLOW = Behaviour("50 ms", latency=0.05)
# Live syncing ends a minute before the server's time by default; then it would not see a change of now.
_AT_ONCE = "safety_lag_seconds=0"


def figures(commit_world: int, merge_requests: int) -> list[Figure]:
    """The figures of the commits of a project with ``commit_world`` merge requests, and of the merge requests
    and reviews of one with ``merge_requests``."""
    with (
        tempfile.TemporaryDirectory(prefix="scm-bench-") as folder,
        databases(Path(folder)) as make_database,
        Measured(sorted({commit_world, merge_requests})) as measured,
    ):
        measured.start(SLOW)

        def phases(size: int, what: str) -> dict[str, Phase]:
            subject = measured.subjects[size]

            def change(name: str) -> None:
                if name == "idle":
                    measured.change(subject.project)
                    # Its whole second has to be over, because the server tells its time in seconds.
                    time.sleep(2)

            arguments = [str(subject.project), make_database(), f"{what}, all", _AT_ONCE, *LIFTED]
            found, _ = run(Path(sys.executable), "ours", arguments, Path(folder), measured, change)
            return {phase.name: phase for phase in found}

        commits = phases(commit_world, "commits")
        requests = phases(merge_requests, "merge requests")
        truth = measured.subjects[commit_world].truth
    name = f"{truth.commits:,} commits"
    many = f"{merge_requests:,} merge requests, with reviews"
    first = requests["complete"].counted.requests
    return [
        Figure(f"{name}, memory", "", commits["commits"].peak_mb, None, "MB", "at most 300 MB"),
        _requests(f"{name}, first reading", commits["commits"], "at most 60"),
        _requests(f"{name}, a visit that finds nothing", commits["idle"], "at most 3"),
        _requests(f"{name}, a visit that finds a push", commits["changed"], "at most 3"),
        _requests(f"{name}, compared by lists", commits["compared by lists"], ""),
        _requests(f"{name}, compared in detail", commits["compared in detail"], ""),
        Figure(f"{many}, memory", "", requests["complete"].peak_mb, None, "MB", "at most 300 MB"),
        _requests(f"{many}, first reading", requests["complete"], f"at most {merge_requests * 5.6:,.0f}"),
        _requests(f"{many}, a visit that finds nothing", requests["idle"], "at most 2"),
        _requests(f"{many}, a visit that finds a comment", requests["changed"], "2 and what changed"),
        _requests(f"{many}, compared by lists", requests["compared by lists"], f"at most {first / 10:,.0f}"),
        _requests(f"{many}, compared in detail", requests["compared in detail"], ""),
    ]


def _requests(what: str, phase: Phase, budget: str) -> Figure:
    return Figure(f"{what}: requests", "", phase.counted.requests, None, "", budget)
