"""The results of :mod:`bench.peers` as tables, budgets and a plot.

Belongs here: the words and pictures of the comparison. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from bench.page import Grid, Section
from bench.peers import Result

PLOT = "peers.svg"
OURS = "sync_pipeline"
SLOW = "50 ms"
BUDGET_SIZE = 2_000
"""Merge requests of the project that the budgets are of."""

_HEAD = (
    "program",
    "reads",
    "merge requests",
    "requests",
    "refused",
    "in flight",
    "reading and storing",
    "whole process",
    "CPU",
    "CPU per request",
    "memory",
    "rows",
    "missing",
)


def section(name: str, results: Sequence[Result]) -> Section:
    """The section of the results page."""
    notes = [
        "One mock GitLab in a process of its own serves the same projects to every program, one at a time. "
        "It counts the requests, and the rows are compared with those that it has. "
        f"The project of {BUDGET_SIZE:,} merge requests has 10,000 notes, 1,450 approvals, 4,026 commits and "
        "303 branches, of which 300 are not merged.",
        f"{OURS} and dlt store in PostgreSQL; tap-gitlab and Perceval write files. The whole process "
        "includes imports and the registration of the project. CPU is that of the program, without the "
        "database.",
        f"The bench lifts the rate limit of {OURS} where the server has none. At 10 requests a second it is "
        "as by default. tap-gitlab knows one address, so the bench sets another. Programs that would take "
        "many minutes read smaller projects.",
        f"![Seconds and requests of each program at {SLOW}]({PLOT})",
    ]
    rounds = list(dict.fromkeys(result.round for result in results))
    grids = [_table(one, [result for result in results if result.round == one]) for one in rounds]
    if grid := _budgets(results):
        grids.append(grid)
    return Section(name, notes, grids, [asdict(result) for result in results])


def _table(title: str, results: Sequence[Result]) -> Grid:
    return Grid(_HEAD, [_cells(result) for result in results], title)


def _cells(result: Result) -> list[str]:
    cells = [f"{result.who} {result.version}".strip(), result.what, f"{result.size:,}"]
    if result.error is not None:
        return [*cells, f"failed: {result.error}", *[""] * (len(_HEAD) - len(cells) - 1)]
    counted = result.counted
    return [
        *cells,
        f"{counted.requests:,}",
        f"{counted.refused:,}",
        str(counted.in_flight),
        f"{result.seconds:,.1f} s",
        "" if result.whole is None else f"{result.whole:,.1f} s",
        f"{result.cpu:,.1f} s",
        f"{_cpu_per_request(result):.1f} ms",
        f"{result.peak_mb:,.0f} MB",
        _listed(result.rows),
        _listed(result.missing) or "none",
    ]


def _listed(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in rows.items())


def _cpu_per_request(result: Result) -> float:
    """Milliseconds."""
    return result.cpu / max(1, result.counted.requests + result.counted.refused) * 1000


# --- Budgets --------------------------------------------------------------------------------------------

_Find = Callable[[str, str], Result]


def _faster(theirs: Result, ours: Result) -> str:
    return f"{theirs.seconds / ours.seconds:.1f} x as fast"


_BUDGETS: Sequence[tuple[str, Callable[[_Find], str], str, str]] = (
    ("usable: requests", lambda find: f"{find(OURS, 'usable').counted.requests:,}", "200", ""),
    ("usable: seconds", lambda find: f"{find(OURS, 'usable').seconds:.1f}", "11", ""),
    ("complete: requests", lambda find: f"{find(OURS, 'complete').counted.requests:,}", "11,200", "10,200"),
    ("complete: seconds", lambda find: f"{find(OURS, 'complete').seconds:.1f}", "56", "38"),
    (
        "complete by REST only: requests",
        lambda find: f"{find(OURS, 'complete by REST only').counted.requests:,}",
        "12,400",
        "11,200",
    ),
    ("commits: requests", lambda find: f"{find(OURS, 'commits').counted.requests:,}", "60", "48"),
    ("commits: seconds", lambda find: f"{find(OURS, 'commits').seconds:.1f}", "3.6", "1.2"),
    (
        "usable, against dlt",
        lambda find: _faster(find("dlt", "merge requests and notes"), find(OURS, "usable")),
        "10 x as fast",
        "",
    ),
    (
        "complete, against dlt",
        lambda find: _faster(find("dlt", "merge requests and notes"), find(OURS, "complete")),
        "2 x as fast",
        "3 x as fast",
    ),
    (
        "commits, against tap-gitlab",
        lambda find: _faster(find("tap-gitlab", "commits"), find(OURS, "commits")),
        "as fast",
        "3 x as fast",
    ),
    (
        "complete: CPU per request",
        lambda find: f"{_cpu_per_request(find(OURS, 'complete')):.1f} ms",
        "2.5 ms",
        "",
    ),
)
"""Each with its figure, its budget and the aim."""


def _budgets(results: Sequence[Result]) -> Grid | None:
    """The budgets beside the figures; None where the project of the budgets was not read."""
    found = {
        (result.who, result.what): result
        for result in results
        if result.round == SLOW and result.size == BUDGET_SIZE and result.error is None
    }
    if not found:
        return None

    def cells(what: str, figure: Callable[[_Find], str], budget: str, aim: str) -> list[str]:
        try:
            return [what, figure(lambda who, phase: found[who, phase]), budget, aim]
        except KeyError:
            return [what, "not measured", budget, aim]

    rows = [cells(*budget) for budget in _BUDGETS]
    lost = sum(sum(result.missing.values()) for (who, _), result in found.items() if who == OURS)
    rows.append(["rows missing", f"{lost:,}", "0", ""])
    return Grid(
        ("budget", "figure", "at most", "aim"), rows, f"Budgets: {BUDGET_SIZE:,} merge requests, {SLOW}"
    )


# --- Plot -----------------------------------------------------------------------------------------------


def plot(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of the seconds and of the requests of every program at 50 ms, as SVG."""
    shown = [one for one in records if one["round"] == SLOW and one["error"] is None]
    names = [f"{one['who']}, {one['what']}" + _size(one) for one in shown]
    colours = ["tab:blue" if one["who"] == OURS else "tab:gray" for one in shown]
    # Text stays text, and nothing in the file changes without a change of the figures.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": PLOT, "font.size": 9}):
        figure, (left, right) = pyplot.subplots(1, 2, sharey=True, figsize=(10, 0.8 + 0.35 * len(shown)))
        for axes, values, title in (
            (left, [one["seconds"] for one in shown], "seconds"),
            (right, [one["counted"]["requests"] for one in shown], "requests (logarithmic)"),
        ):
            bars = axes.barh(names, values, color=colours)
            axes.bar_label(
                bars, labels=[f"{value:,.0f}" if value >= 10 else f"{value:.1f}" for value in values]
            )
            axes.set_title(title)
            axes.margins(x=0.25)
        right.set_xscale("log")
        left.invert_yaxis()
        figure.tight_layout()
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _size(record: Mapping[str, Any]) -> str:
    return "" if record["size"] == BUDGET_SIZE else f" ({record['size']:,} merge requests)"
