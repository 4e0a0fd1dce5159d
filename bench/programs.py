"""Running a program of :mod:`bench.drivers` against the mock GitLab, and measuring it from outside.

Belongs here: the process, its phases, and why it failed. Who runs, and what is made of the figures, is in the
modules that call this one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.server import Counted, Measured

MAX_SECONDS = 1800.0
"""A program that takes longer is ended."""
_ROOT = Path(__file__).parents[1]


class ProgramFailed(Exception):
    """A program ended with an error; the text is the line that names it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase, with its seconds of wall clock and of CPU, and the requests that the server counted.

    ``peak_mb`` is the most memory until its end, ``rows`` those that are stored then."""

    name: str
    seconds: float
    cpu: float
    peak_mb: float
    rows: Mapping[str, int]
    counted: Counted


def run(
    python: Path,
    driver: str,
    arguments: Sequence[str],
    folder: Path,
    measured: Measured,
    after: Callable[[str], None] = lambda name: None,
) -> tuple[list[Phase], float]:
    """The phases of a program, and the wall clock seconds of its whole process.

    ``after`` is called behind each phase, before the next one begins. Raises ProgramFailed.
    """
    command = [str(python), "-m", f"bench.drivers.{driver}", measured.url, measured.token, *arguments]
    phases: list[Phase] = []
    measured.counted()
    started = time.perf_counter()
    with (
        (folder / "errors.txt").open("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=_ROOT,
            # dlt sends nothing home, and keeps its files in the folder of this run.
            env={**os.environ, "RUNTIME__DLTHUB_TELEMETRY": "false", "DLT_DATA_DIR": str(folder)},
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        limit = threading.Timer(MAX_SECONDS, child.kill)
        limit.start()
        for line in child.stdout:
            if line.startswith("PHASE "):
                found = json.loads(line.removeprefix("PHASE "))
                phases.append(Phase(**found, counted=measured.counted()))
                after(phases[-1].name)
                child.stdin.write("\n")
                child.stdin.flush()
        child.wait()
        limit.cancel()
        whole = time.perf_counter() - started
        if child.returncode != 0:
            errors.seek(0)
            raise ProgramFailed(_reason(errors.read()) or f"ended with {child.returncode}")
    return phases, whole


def _reason(text: str) -> str:
    """The line of a traceback that names the error, else the last line."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failed|Missing)\b", line)]
    return (named or lines or [""])[-1][:300]
