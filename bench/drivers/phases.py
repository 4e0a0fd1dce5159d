"""Reports of a compared program about itself: a line of JSON after each phase.

Belongs here: measuring a phase inside the process. The standard library only, because peers import it too.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping


def phase(name: str, work: Callable[[], object], count: Callable[[], Mapping[str, int]]) -> None:
    """Do the work and report it, with the rows by kind that are stored afterwards.

    Waits for a line in the end: meanwhile the benchmark reads the counts of the server.
    """
    cpu, started = _cpu(), time.perf_counter()
    work()
    line = {
        "name": name,
        "seconds": time.perf_counter() - started,
        "cpu": _cpu() - cpu,
        "peak_mb": _peak_mb(),
        "rows": dict(count()),
    }
    # The program prints on the same pipe, perhaps without an end of line.
    print(f"\nPHASE {json.dumps(line)}", flush=True)
    sys.stdin.readline()


def _cpu() -> float:
    """Seconds of CPU of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _peak_mb() -> float:
    """The most memory that this process had. ``ru_maxrss`` would be that of the process which started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
