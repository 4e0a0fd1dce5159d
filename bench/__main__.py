"""``python -m bench``: run the benchmarks and print, with ``--write`` also keep, a table of ratios.

Belongs here: the choice of benchmarks, the table, the results file. The modules beside this one measure.
Absolute seconds differ from machine to machine; the ratios should hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import dagster_load, gitlab_sync, limiter, svn_sync
from bench.measure import Figure

RESULTS = Path(__file__).parent / "RESULTS.md"


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes of a run; ``small`` is for a quick look."""

    revisions: int
    wide_paths: int
    repositories: int
    commits: int
    merge_requests: int


FULL = Options(20_000, 100_000, 1_000, commits=10_000, merge_requests=400)
SMALL = Options(2_000, 20_000, 200, commits=2_000, merge_requests=100)
BENCHMARKS: dict[str, Callable[[Options], list[Figure]]] = {
    "svn": lambda size: svn_sync.figures(size.revisions, size.wide_paths),
    "gitlab": lambda size: gitlab_sync.figures(size.commits, size.merge_requests),
    "limiter": lambda _: limiter.figures(),
    "dagster": lambda size: dagster_load.figures(size.repositories),
}


def main() -> int:
    """Run what was asked for; exit code 0 unless a benchmark itself fails."""
    parser = argparse.ArgumentParser(prog="dev bench", description=__doc__)
    parser.add_argument("which", nargs="*", choices=[[], *BENCHMARKS], help="default: all")
    parser.add_argument("--small", action="store_true", help="a tenth of the size, for a quick look")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} too")
    chosen = parser.parse_args()
    options = SMALL if chosen.small else FULL
    found: list[Figure] = []
    for name in chosen.which or BENCHMARKS:
        Console(stderr=True).print(f"bench: {name}", style="dim")
        found += BENCHMARKS[name](options)
    if chosen.json:
        print(json.dumps([asdict(figure) for figure in found], indent=2))
    else:
        show(found)
    if chosen.write:
        RESULTS.write_text(page(found, options))
    return 0


def show(found: list[Figure]) -> None:
    """The figures as a table."""
    table = Table("what", "against", "ours", "theirs", "ratio", "budget")
    for figure in found:
        table.add_row(*figure.cells())
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def page(found: list[Figure], options: Options) -> str:
    """The figures as the results page, with date and machine."""
    lines = [
        "# Benchmark results",
        "",
        "`./dev bench --write` writes this page. A ratio compares two measurements of one run.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; {options.revisions:,} revisions with 8 paths, "
        f"one revision with {options.wide_paths:,} paths, {options.repositories:,} repositories. "
        f"The GitLab takes {gitlab_sync.LATENCY * 1000:.0f} ms for every response.",
        "",
        "| what | against | ours | theirs | ratio | budget |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(figure.cells()) + " |" for figure in found]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
