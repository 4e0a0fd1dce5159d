"""``python -m bench``: run the benchmarks and print, with ``--write`` also keep, what they found.

Belongs here: the choice of benchmarks and their sizes. The modules beside this one measure. Absolute seconds
differ from machine to machine; the ratios should hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from bench import comparison, dagster_load, gitlab_sync, limiter, peers, svn_sync
from bench.measure import Figure
from bench.page import Grid, Section, replaced

RESULTS = Path(__file__).parent / "RESULTS.md"


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes of a run; ``SMALL`` is for a quick look."""

    revisions: int
    wide_paths: int
    repositories: int
    commit_world: int
    merge_requests: int
    rounds: tuple[peers.Round, ...]


FULL = Options(20_000, 100_000, 1_000, commit_world=2_000, merge_requests=400, rounds=peers.FULL)
SMALL = Options(2_000, 20_000, 200, commit_world=100, merge_requests=100, rounds=peers.SMALL)


def _svn(size: Options) -> Section:
    return _section("svn", svn_sync.figures(size.revisions, size.wide_paths))


def _gitlab(size: Options) -> Section:
    note = f"The mock GitLab takes {gitlab_sync.SLOW.name} for every response, and counts the requests."
    return _section("gitlab", gitlab_sync.figures(size.commit_world, size.merge_requests), note)


def _limiter(_: Options) -> Section:
    return _section("limiter", limiter.figures())


def _dagster(size: Options) -> Section:
    return _section("dagster", dagster_load.figures(size.repositories))


def _peers(size: Options) -> Section:
    return comparison.section("peers", peers.compete(size.rounds))


BENCHMARKS: dict[str, Callable[[Options], Section]] = {
    "svn": _svn,
    "gitlab": _gitlab,
    "limiter": _limiter,
    "dagster": _dagster,
    "peers": _peers,
}


def main() -> int:
    """Run what was asked for; exit code 0 unless a benchmark itself fails."""
    parser = argparse.ArgumentParser(prog="dev bench", description=__doc__)
    parser.add_argument("which", nargs="*", choices=[[], *BENCHMARKS], help="default: all")
    parser.add_argument("--small", action="store_true", help="a tenth of the size, for a quick look")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} and its plot, too")
    chosen = parser.parse_args()
    sections: list[Section] = []
    for name in chosen.which or BENCHMARKS:
        Console(stderr=True).print(f"bench: {name}", style="dim")
        sections.append(BENCHMARKS[name](SMALL if chosen.small else FULL))
    if chosen.json:
        print(json.dumps({section.name: section.records for section in sections}, indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else 150)
        for section in sections:
            for grid in section.grids:
                grid.show(console)
    if chosen.write:
        RESULTS.write_text(replaced(RESULTS.read_text(), sections))
        for section in sections:
            if section.name == "peers":
                comparison.plot(section.records, RESULTS.parent / comparison.PLOT)
    return 0


def _section(name: str, found: list[Figure], *notes: str) -> Section:
    head = ["what", "against", "ours", "theirs", "ratio", "budget"]
    return Section(
        name, notes, [Grid(head, [figure.cells() for figure in found])], [asdict(one) for one in found]
    )


if __name__ == "__main__":
    sys.exit(main())
