"""Whether Dagster can start runs at all: a run that fails before it begins has no row in our ledger.

Belongs here: finding Dagster's own tables, and two queries on them, so that a report needs no Dagster to be
loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database import diagnosis
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.runtime import environment
from sync_pipeline.settings import Settings

NEWEST = 12
"""So many runs are looked at, the newest of the last day."""

_LONGEST_REASON = 300
_SECONDS = 4

_SQL = queries("run_starts")


@dataclass(frozen=True, slots=True)
class RunStarts:
    """Of the newest ``runs`` runs, ``failed`` failed before they began. The newest of them failed at
    ``last_at``, with the one line ``reason``; both are None if none failed.
    """

    runs: int
    failed: int
    reason: str | None
    last_at: datetime | None


def read_starts(settings: Settings, database_url: str) -> RunStarts | None:
    """How the newest runs began; None where Dagster's tables are not there or cannot be read.
    ``database_url`` is that of our database."""
    own = settings.dagster_database_url
    try:
        url = environment.dagster_url(own) if own else None
        url = url or environment.dagster_url(database_url, environment.DAGSTER_SCHEMA)
        with diagnosis.connection(url.replace("+psycopg2", "", 1), _SECONDS) as conn:
            return _read(conn)
    except (ConfigurationError, psycopg.Error):
        return None


def _read(conn: Connection) -> RunStarts | None:
    """How the newest runs began; None where Dagster has no tables on this search path yet."""
    there = conn.execute("SELECT to_regclass('runs') IS NOT NULL AS yes").fetchone()
    if there is None or not there["yes"]:
        return None
    runs = conn.execute(_SQL["runs"], {"newest": NEWEST}).fetchall()
    failed = [run for run in runs if run["never_began"]]
    if not failed:
        return RunStarts(len(runs), 0, None, None)
    notes = conn.execute(_SQL["notes"], {"run_id": failed[0]["run_id"]}).fetchall()
    return RunStarts(
        len(runs), len(failed), _reason([row["event"] for row in notes]), failed[0]["updated_at"]
    )


def _reason(events: list[str]) -> str:
    """The innermost error of the newest event that has one, else what the newest one says."""
    read = [json.loads(event) for event in events]
    errors = [error for one in read if (error := _error(one))]
    texts = [one.get("user_message") or (one.get("dagster_event") or {}).get("message") for one in read]
    for text in (*errors, *texts):
        lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
        if lines:
            shown = "".join(letter if letter.isprintable() else " " for letter in lines[-1])
            return shown[:_LONGEST_REASON]
    return "Dagster says nothing about it"


def _error(event: dict[str, Any]) -> str:
    data = (event.get("dagster_event") or {}).get("event_specific_data") or {}
    error = data.get("error")
    while error and error.get("cause"):
        error = error["cause"]
    return str(error["message"]) if error else ""
