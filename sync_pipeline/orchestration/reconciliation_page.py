"""The metadata of a materialization of the reconciliation: figures, the worst of the fleet, a plot.

Belongs here: the metadata, and nothing that decides. Loaded by the run only: the plot needs matplotlib, which
is slow to import.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import dagster as dg
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sync_pipeline.core.model import JobType, Repository
from sync_pipeline.core.safe_text import code
from sync_pipeline.database.pool import Database
from sync_pipeline.facts import stored_rows
from sync_pipeline.ledger import reconcile_progress
from sync_pipeline.policy.reconcile_schedule import ReconcileAsset, SkipReason, share_compared
from sync_pipeline.policy.reconciliation import REPAIRS_BEFORE_A_PERSON
from sync_pipeline.reports import estimates
from sync_pipeline.reports.completeness import completeness
from sync_pipeline.scheduling.reconcile_schedule import ReconcileRound, limits_of
from sync_pipeline.settings import Settings

WORST = 20
"""Lines of the table of the worst assets."""

DAYS = 30
"""Days of the plot."""

# There is nothing to compare, and nothing wrong.
_NOTHING = {SkipReason.RETIRED, SkipReason.NEVER_READ, SkipReason.EMPTY}
_STATUS = ("clean", "mismatch", "inconclusive")
_SUMS = ("missing", "extra", "changed", "newer", "unreadable")
_SHORT = 80
_COLOURS = {"missing": "#c0392b", "extra": "#8e44ad", "changed": "#e67e22"}

Shares = dict[JobType, tuple[float, int]]
"""Of each job type the share of rows compared within the time of a round, and how many rows there are."""


def metadata_of(
    database: Database, settings: Settings, ran: ReconcileRound, by_id: Mapping[int, Repository]
) -> dict[str, Any]:
    """The metadata of a run that came to ``ran``."""
    with database.connection() as conn:
        totals = reconcile_progress.totals(conn, repairs=REPAIRS_BEFORE_A_PERSON)
        by_day = reconcile_progress.mismatches_by_day(conn, DAYS)
        rows = {
            (row["repo_id"], job_type): int(row["stored"])
            for job_type in JobType
            for row in stored_rows.by_repository(conn, job_type)
        }
    assert ran.now is not None
    shares = _shares(ran, settings, rows)
    ended = [asset.round_ended_at for asset in _compared(ran)]
    first = [moment for moment in ended if moment is not None]
    results = [result for outcome in ran.outcomes for result in outcome.results]
    found: dict[str, Any] = {
        "turns": len(ran.outcomes),
        "turns_waiting": ran.waiting,
        "compared_rows": sum(result.sums["expected"] for result in results),
        **{status: sum(result.status == status for result in results) for status in _STATUS},
        **{name: sum(result.sums[name] for result in results) for name in _SUMS},
        "open_differences": totals["open"],
        "escalated": totals["escalated"],
        "waiting_for_deletion": totals["waiting"],
        "tombstones": totals["tombstones"],
        "repairs_queued": ran.repairs,
        "requests": dg.MetadataValue.json(ran.sent),
        "requests_at_most": settings.reconcile.requests,
        "not_answering": dg.MetadataValue.json(ran.dropped),
        "left_out": dg.MetadataValue.json(Counter(str(reason) for reason in ran.left_out.values())),
        "first_round_not_ended": len(ended) - len(first),
        "completeness": dg.MetadataValue.json(completeness(database, settings)["total"]),
        "left_to_read": dg.MetadataValue.json(estimates.of_fleet(database, settings)),
        "worst": dg.MetadataValue.md(worst_table(ran, settings, by_id)),
        "overview": dg.MetadataValue.md(_image(plot(shares, by_day, ran.now.date()))),
    }
    if first:
        found["oldest_round"] = dg.MetadataValue.timestamp(min(first))
    return found


def _compared(ran: ReconcileRound) -> list[ReconcileAsset]:
    """The assets that can be compared."""
    return [asset for asset in ran.assets if ran.left_out.get(asset.key) not in _NOTHING]


def _shares(ran: ReconcileRound, settings: Settings, rows: Mapping[tuple[int, JobType], int]) -> Shares:
    assert ran.now is not None
    limits = limits_of(settings)
    found: Shares = {}
    for job_type in JobType:
        assets = [asset for asset in _compared(ran) if asset.job_type is job_type]
        total = sum(rows.get(asset.key, 0) for asset in assets)
        if assets:
            done = sum(rows.get(asset.key, 0) * share_compared(asset, limits, ran.now) for asset in assets)
            found[job_type] = (done / total if total else 1.0), total
    return found


# The worst ----------------------------------------------------------------------------------------------


def worst_table(ran: ReconcileRound, settings: Settings, by_id: Mapping[int, Repository]) -> str:
    """Assets that need a person, the worst first, as a Markdown table."""
    assert ran.now is not None
    limits = limits_of(settings)
    failures: dict[tuple[int, JobType], str] = {}
    for outcome in ran.outcomes:
        if outcome.failure or outcome.error:
            failures[outcome.task.key] = outcome.failure or outcome.error or ""
        elif outcome.stuck:
            failures[outcome.task.key] = "its comparison needs more requests than sweep_requests leaves"
    for key, reason in ran.left_out.items():
        if reason not in _NOTHING and reason is not SkipReason.RUNNING:
            failures.setdefault(key, str(reason))
    bad = [asset for asset in ran.assets if asset.key in failures or asset.open]
    bad.sort(key=lambda asset: (-asset.escalated, -asset.open, asset.key not in failures, asset.key))
    if not bad:
        return "Nothing is open, and everything could be compared."
    lines = [
        "| repository | job type | open | escalated | compared | why |",
        "|---|---|---:|---:|---:|---|",
    ]
    for asset in bad[:WORST]:
        repository = by_id[asset.repo_id]
        share = f"{share_compared(asset, limits, ran.now):.0%}"
        name = _cell(repository.project_path or repository.url)
        why = _cell(failures.get(asset.key, ""))
        lines.append(f"| {name} | {asset.job_type} | {asset.open} | {asset.escalated} | {share} | {why} |")
    if len(bad) > WORST:
        lines.append(f"| and {len(bad) - WORST} more | | | | | |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A text as one cell: short, and as it is."""
    return code(text if len(text) <= _SHORT else text[: _SHORT - 1] + "…")


# The plot -----------------------------------------------------------------------------------------------


def plot(shares: Shares, by_day: Sequence[Mapping[str, Any]], today: date) -> bytes:
    """A PNG: on the left the share of rows that was compared within the time of a round. On the right the
    differing rows of each of the last days.
    """
    figure = Figure(figsize=(8.4, 2.6), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    names = [job_type for job_type in reversed(JobType) if job_type in shares]
    percent = [100 * shares[name][0] for name in names]
    left.barh([str(name).replace("_", " ") for name in names], percent, color="#2e7d32", height=0.6)
    for row, name in enumerate(names):
        inside = percent[row] > 60
        left.text(
            percent[row] + (-2 if inside else 2),
            row,
            f"{percent[row]:.0f} % of {shares[name][1]:,}".replace(",", " "),
            va="center",
            ha="right" if inside else "left",
            fontsize=8,
            color="white" if inside else "black",
        )
    left.set_xlim(0, 100)
    left.set_ylim(-0.6, max(len(names), 3) - 0.4)
    left.set_title("Rows compared within the sweep, %", fontsize=9)

    days = [today - timedelta(days=age) for age in reversed(range(DAYS))]
    known = {row["day"]: row for row in by_day}
    below = [0] * DAYS
    for kind, colour in _COLOURS.items():
        heights = [int(known[day][kind]) if day in known else 0 for day in days]
        right.bar(range(DAYS), heights, bottom=below, color=colour, label=kind, width=0.85)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    right.set_xlim(-0.7, DAYS - 0.3)
    right.set_ylim(0, max(*below, 1) * 1.15)
    right.yaxis.get_major_locator().set_params(integer=True)
    ticks = range(DAYS - 1, -1, -7)
    right.set_xticks(list(ticks), [f"{days[tick]:%d %b}" for tick in ticks])
    right.set_title(f"Rows that differed, last {DAYS} days", fontsize=9)
    right.legend(fontsize=7, frameon=False, ncols=3, loc="upper left")
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def _image(png: bytes) -> str:
    return f"![reconciliation](data:image/png;base64,{base64.b64encode(png).decode()})"
