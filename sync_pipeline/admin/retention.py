"""Retention: deletes records that are older than the settings keep them.

Belongs here: the rules by their settings, the size of a transaction, and the report. Does not belong
here: which records may be deleted (:mod:`sync_pipeline.ledger.retention`), and Dagster's own records
(:mod:`sync_pipeline.orchestration.retention`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import retention as store
from sync_pipeline.ledger.retention import FinishedJob
from sync_pipeline.settings import Settings

RETENTION = "retention"
"""Name of its schedule, of its job and of its heartbeat."""

AT_ONCE = 500
"""Rows of a transaction, batches not counted."""

_DAY = 86_400.0
# A history has thousands of batches; a transaction of too many would hold others up.
_BATCHES_AT_ONCE = 5000
# Jobs found by one scan of the table.
_MAX_ROWS_READ = 20_000


@dataclass
class Kind:
    """The result for one kind of records. ``days`` is how long they are kept, 0 for ever. ``found`` are older
    ones that may be deleted; ``kept`` are older ones that stay, if they are counted.
    """

    name: str
    days: float
    found: int = 0
    deleted: int = 0
    kept: int = 0


@dataclass
class RetentionReport:
    """The records that a pass deleted, or that ``execute`` would delete. ``stopped``: it was asked to end, or
    its time was up; the next pass continues.
    """

    execute: bool
    kinds: list[Kind] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stopped: bool = False

    def document(self) -> dict[str, Any]:
        """The report as ``scm-sync admin retention --json`` prints it; ``docs/retention.md`` describes it."""
        return {
            "execute": self.execute,
            "stopped": self.stopped,
            "records": [
                {
                    "kind": one.name,
                    "kept_days": one.days or None,
                    "found": one.found,
                    "deleted": one.deleted,
                    "kept": one.kept,
                }
                for one in self.kinds
            ],
            "errors": list(self.errors),
        }

    def summary(self) -> str:
        """The report in one line."""
        counts = [(one.deleted if self.execute else one.found, one.name) for one in self.kinds]
        words = [f"{number:,} {name}" for number, name in counts if number]
        done = "deleted" if self.execute else "would delete"
        line = f"{done} {', '.join(words)}" if words else "nothing is older than it is kept"
        return line + ("; stopped before the end" if self.stopped else "")


class Until:
    """When a pass ends early: ``cancel`` was set, or ``seconds`` are over."""

    def __init__(self, cancel: threading.Event | None = None, seconds: float | None = None) -> None:
        self._cancel = cancel
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def over(self) -> bool:
        """True once the pass should end."""
        late = self._deadline is not None and time.monotonic() > self._deadline
        return late or (self._cancel is not None and self._cancel.is_set())


def retain(
    database: Database, settings: Settings, *, execute: bool, until: Until | None = None
) -> RetentionReport:
    """Delete what is older than it is kept, in short transactions; without ``execute`` only count it. Raises
    ConfigurationError if the database does not answer or was migrated since this process began."""
    report = RetentionReport(execute)
    until = until or Until()
    with database.connection() as conn:
        migrations.require_current(conn)
        _jobs(conn, report, settings.retention.jobs_days, until)
        for rule in store.EVENTS:
            kind = Kind(rule.table, settings.retention.events_days)
            report.kinds.append(kind)
            if kind.days:
                kind.found = rule.count(conn, kind.days * _DAY)
                _repeat(report, kind, until, partial(rule.delete, conn, kind.days * _DAY, AT_ONCE))
    return report


def _jobs(conn: Connection, report: RetentionReport, days: float, until: Until) -> None:
    jobs, runs, batches = (Kind(f"scm.sync_{name}", days) for name in ("jobs", "runs", "batches"))
    report.kinds += [jobs, runs, batches]
    if not days:
        return
    age = days * _DAY
    jobs.found, runs.found, batches.found = store.count_finished(conn, age)
    while report.execute and (found := store.finished_jobs(conn, age, _MAX_ROWS_READ)):
        before = jobs.deleted
        for part in parts(found):
            if until.over():
                report.stopped = True
                return
            gone = store.delete_jobs(conn, part)
            for kind, number in zip((jobs, runs, batches), gone, strict=True):
                kind.deleted += number
        if jobs.deleted == before:
            return  # other processes have locked all of them


def parts(found: Sequence[FinishedJob]) -> Iterator[list[UUID]]:
    """Jobs that go together: at most 500, and unless it is a single one at most 5,000 batches."""
    part: list[UUID] = []
    weight = 0
    for job in found:
        if part and (len(part) == AT_ONCE or weight + job.batches > _BATCHES_AT_ONCE):
            yield part
            part, weight = [], 0
        part.append(job.job_id)
        weight += job.batches
    if part:
        yield part


def _repeat(report: RetentionReport, kind: Kind, until: Until, delete: Callable[[], int]) -> None:
    while report.execute and kind.deleted < kind.found:
        if until.over():
            report.stopped = True
            return
        gone = delete()
        if not gone:
            return
        kind.deleted += gone
