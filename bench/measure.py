"""Measurements: seconds of wall clock, and memory of a separate process.

Belongs here: the shape of a figure and the stopwatch. The modules beside this one choose the subjects.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: ``ours`` against ``theirs`` in ``unit``; the budget is of ratio or value."""

    what: str
    against: str
    ours: float
    theirs: float | None
    unit: str
    budget: str

    def cells(self) -> list[str]:
        """The line as text."""
        # A figure without a unit is a count.
        form = ",.2f" if self.unit else ",.0f"
        theirs = "" if self.theirs is None else f"{self.theirs:{form}} {self.unit}"
        ratio = "" if not self.theirs else f"{self.ours / self.theirs:.2f}"
        return [
            self.what,
            self.against,
            f"{self.ours:{form}} {self.unit}".strip(),
            theirs,
            ratio,
            self.budget,
        ]


def seconds(work: Callable[[], object], runs: int = 1) -> float:
    """Wall clock seconds of ``work``, the median of ``runs``."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that ended: wall clock seconds and its output."""

    seconds: float
    output: str


def process(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run ``python <arguments>`` to its end. Raises RuntimeError with its last line if it fails."""
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert child.stdout is not None
    output = child.stdout.read()
    if child.wait() != 0:
        raise RuntimeError(f"{arguments[:3]} failed: {output.strip().splitlines()[-1:]}")
    return Finished(time.perf_counter() - started, output)
