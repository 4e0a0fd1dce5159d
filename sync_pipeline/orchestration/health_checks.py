"""Health verdicts as Dagster shows them.

Belongs here: the asset check of a verdict and the memory of what was shown. The verdict itself is in
:mod:`sync_pipeline.reports.health`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from sync_pipeline.core.safe_text import code
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import health as store
from sync_pipeline.reports import health
from sync_pipeline.reports.reasons import WARNINGS, remedies

CHECK_NAME = "health"
"""Name of the one asset check that every asset has."""

CHECK_DESCRIPTION = (
    "Fails if the asset is not covered and fresh by our own ledger, or cannot be read. Passes at both levels."
)
"""The text above each result of the check, passed or failed."""


def mark_reported(conn: Connection, verdict: health.HealthResult) -> None:
    """Remember that Dagster is shown ``verdict``."""
    store.record_shown(
        conn,
        verdict.facts.repo_id,
        str(verdict.facts.job_type),
        passed=verdict.health.passed,
        reasons=[str(reason) for reason in verdict.health.reasons],
    )


def show_again(database: Database, repo_id: int, job_type: str) -> None:
    """Report the verdict again at the next tick of the scheduler. Dagster shows a check as "Not Evaluated"
    once its asset is materialized after the latest result."""
    with database.connection() as conn, conn.transaction():
        store.forget_shown(conn, repo_id, job_type)


def severity(verdict: health.Health) -> dg.AssetCheckSeverity:
    """Red for what is wrong, yellow for what has merely not happened yet."""
    waits = set(verdict.reasons) <= WARNINGS
    return dg.AssetCheckSeverity.WARN if waits else dg.AssetCheckSeverity.ERROR


def check_description(verdict: health.HealthResult, spec: str) -> str:
    """The verdict in words, as Markdown, which the page of the check shows above the metadata.

    It has each reason, and what helps against it in the repository ``spec``. Texts of the source are shown as
    code, so none of them becomes a link.
    """
    if not verdict.health.reasons:
        return "Complete and fresh."
    detail = verdict.health.detail
    return "\n".join(
        f"- {reason}: {code(detail[reason])}. What to do: {code(line)}"
        for reason, line in remedies(verdict.health.reasons, spec).items()
    )


def check_metadata(verdict: health.HealthResult, spec: str) -> Mapping[str, Any]:
    """The reasons in the form of the UI, one entry each, and one for its remedy in the repository ``spec``.
    Then follow the numbers behind them, the same ones for every verdict, which the UI plots.
    """
    facts = verdict.facts
    found: dict[str, Any] = {}
    for reason, line in remedies(verdict.health.reasons, spec).items():
        found[reason] = verdict.health.detail[reason]
        found[f"{reason}: what to do"] = line
    found["reasons"] = ", ".join(verdict.health.reasons) or "none"
    if facts.level is not None:
        found["level"] = str(facts.level)
    if verdict.lag_seconds is not None:
        found["lag_seconds"] = verdict.lag_seconds
    found["gaps"] = len(facts.gap)
    found["queued_windows"] = len(facts.queued)
    found["dead_windows"] = len(facts.failed)
    found["quarantined_rows"] = facts.quarantined
    found["owed_details"] = facts.deferred_fetches
    found["different_rows"] = facts.missing + facts.extra + facts.changed
    if facts.revisions_behind is not None:
        found["revisions_behind"] = facts.revisions_behind
    if facts.watermark is not None:
        found["watermark"] = moment_or_number(facts.watermark)
    if facts.head is not None:
        found["head"] = facts.head
    if facts.verified_at is not None:
        found["verified_at"] = dg.MetadataValue.timestamp(facts.verified_at)
    return found


def moment_or_number(value: int | datetime) -> Any:
    """A watermark as metadata: a point in time, or a revision."""
    return dg.MetadataValue.timestamp(value) if isinstance(value, datetime) else value
