"""One pass of the reaper: find abandoned work, and end it.

Belongs here: the order of a pass, and its report. Sensor, command and tests call the same :func:`reap`.
:mod:`sync_pipeline.policy.reaping` decides what is lost. :mod:`sync_pipeline.orchestration.reaper` handles
the remains in Dagster, because only that package may know Dagster.

A pass is repeatable, and two at once are harmless: one of them has nothing to do. Every item is ended
separately, so a failing one does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import psycopg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import counted
from sync_pipeline.core.model import JobStatus
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.database.rows import read_row
from sync_pipeline.ledger import reaping as store
from sync_pipeline.policy import reaping as policy
from sync_pipeline.policy.reaping import Rules, RunningJob, RunState, WaitingJob
from sync_pipeline.settings import Settings
from sync_pipeline.sync import lost
from sync_pipeline.sync.worker import is_gone

REAPER = "reaper"
"""Name of its sensor and of its heartbeat."""

LOOP = "reaper_loop"
"""Name of the heartbeat of ``scm-sync reaper``."""

AT_ONCE = 100
"""Items of one kind that a pass ends; the rest is for the next one."""


class DagsterRuns(Protocol):
    """Who can say whether runs of Dagster live."""

    def states(self, run_ids: Collection[str]) -> Mapping[str, RunState]:
        """The state of each of these runs; one that is left out is unknown."""


class NoDagster:
    """Where there is no Dagster to ask."""

    def states(self, run_ids: Collection[str]) -> Mapping[str, RunState]:
        """Knows of no run."""
        return {}


@dataclass(frozen=True, slots=True)
class Item:
    """Something that a pass ended: ``kind`` is job, run, lease, wish, waiting, or one of Dagster's;
    ``outcome`` what it became, ``line`` that in words. ``name`` tells it from others."""

    kind: str
    name: str
    outcome: str
    line: str


@dataclass
class ReapReport:
    """The result of a pass, or of its dry run."""

    dry_run: bool
    items: list[Item] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    skipped: str | None = None

    def count(self, kind: str, outcome: str | None = None) -> int:
        """How many items of this kind there are, with this outcome."""
        return sum(i.kind == kind and outcome in (None, i.outcome) for i in self.items)

    def document(self) -> dict[str, Any]:
        """The report as ``scm-sync reaper --json`` prints it; ``docs/reaper.md`` describes it."""
        return {
            "dry_run": self.dry_run,
            "skipped": self.skipped,
            "processed": len(self.items),
            **{f"to_{one}": self.count("job", one) for one in ("failed", "pending", "dead", "completed")},
            "runs_closed": self.count("run"),
            "leases_released": self.count("lease"),
            "wishes_forgotten": self.count("wish"),
            "expired": self.count("waiting"),
            "dagster_runs_ended": self.count("dagster run"),
            "dagster_slots_freed": self.count("dagster slot"),
            "dagster_backfills_stuck": self.count("dagster backfill"),
            "errors": list(self.errors),
            "items": [asdict(item) for item in self.items],
        }

    def summary(self) -> str:
        """The report in one line."""
        if self.skipped:
            return self.skipped
        counts = {
            "job": self.count("job"),
            "run": self.count("run"),
            "lease": self.count("lease") + self.count("wish"),
            "waiting job": self.count("waiting"),
            "Dagster run": self.count("dagster run"),
            "Dagster slot": self.count("dagster slot"),
        }
        words = [counted(number, what) for what, number in counts.items() if number]
        if stuck := self.count("dagster backfill"):
            words.append(f"{counted(stuck, 'Dagster backfill')} stuck")
        if self.errors:
            words.append(f"{counted(len(self.errors), 'error')}, first: {self.errors[0]}")
        return ", ".join(words) or "nothing was lost"

    def attempt(self, item: Item, end: Callable[[], bool]) -> None:
        """End an item, unless this is a dry run. An error is recorded and does not stop other items. An item
        that has an owner again is skipped.
        """
        try:
            if self.dry_run or end():
                self.items.append(item)
        except psycopg.OperationalError:
            raise  # the database is away: nothing else would go better
        except Exception as error:
            self.errors.append(f"{item.kind} {item.name}: {type(error).__name__}: {_first_line(error)}")


def rules_of(settings: Settings) -> Rules:
    """The graces and limits in force."""
    return Rules(
        job_grace=timedelta(seconds=settings.reaper.job_grace_seconds),
        lease_grace=timedelta(seconds=settings.reaper.lock_grace_seconds),
        run_max=timedelta(seconds=settings.reaper.run_max_seconds),
        retry_as=JobStatus(settings.reaper.policy),
        expire_after=timedelta(days=settings.reaper.job_expire_days)
        if settings.reaper.job_expire_days
        else None,
    )


def reap(
    database: Database, settings: Settings, dagster: DagsterRuns | None = None, *, dry_run: bool = False
) -> ReapReport:
    """One pass over our own records. ``dagster`` says whether the run of an owner still lives, None where
    nobody can.

    Raises ConfigurationError if the database does not answer or was migrated since this process began.
    """
    report = ReapReport(dry_run)
    if not settings.reaper.enabled:
        report.skipped = "the reaper is switched off: reaper_enabled is false"
        return report
    rules = rules_of(settings)
    try:
        # The lock is held by a transaction of its own, which changes nothing: each item has its own.
        with database.connection() as guard, guard.transaction(), database.connection() as conn:
            if not store.try_lock(guard):
                report.skipped = "another reaper is at work"
                return report
            migrations.require_current(conn)
            now = database_time(conn)
            _jobs(conn, report, rules, dagster or NoDagster(), now)
            _runs(conn, report, rules, now)
            _leases(conn, report, rules, now)
            _waiting(conn, report, rules, now)
    except psycopg.OperationalError as failure:
        raise ConfigurationError(
            f"the database went away: {_first_line(failure)}", code="database_down"
        ) from None
    return report


def _jobs(conn: Connection, report: ReapReport, rules: Rules, dagster: DagsterRuns, now: datetime) -> None:
    rows = store.running_jobs(conn)
    gone = {row["token"] for row in rows if is_gone(row["claimed_process"])}
    suspects = [row for row in rows if row["token"] in gone or row["expires_at"] < now][:AT_ONCE]
    asked = {row["dagster_run_id"] for row in suspects if row["dagster_run_id"]}
    states = dagster.states(asked) if asked else {}
    for row in suspects:
        is_dead = row["token"] in gone
        dagster_run = states.get(row["dagster_run_id"], RunState.UNKNOWN)
        facts = read_row(RunningJob, row, process_gone=is_dead, dagster=dagster_run)
        ending = policy.evaluate_running(facts, now, rules)
        if ending is None:
            continue
        why = "is gone" if is_dead else f"let its claim run out at {row['expires_at']:%H:%M:%S} UTC"
        line = f"{_unit(row)}: {row['claimed_by']} {why}; job {row['job_id']} is {ending.status} now"
        if ending.status is JobStatus.FAILED:
            line += f", next attempt in {ending.backoff:.0f} s"
        report.attempt(
            Item("job", str(row["job_id"]), str(ending.status), line),
            partial(lost.end, conn, row, ending, process_gone=is_dead),
        )


def _runs(conn: Connection, report: ReapReport, rules: Rules, now: datetime) -> None:
    for row in store.open_runs(conn, AT_ONCE):
        if policy.run_is_lost(row["started_at"], now, rules):
            line = f"{_unit(row)}: attempt {row['attempt']} of job {row['job_id']} was still open"
            report.attempt(
                Item("run", str(row["run_id"]), "failed", line),
                partial(store.close_run, conn, row["run_id"]),
            )


def _leases(conn: Connection, report: ReapReport, rules: Rules, now: datetime) -> None:
    for row in store.ended_leases(conn, AT_ONCE):
        if policy.lease_is_lost(row["expires_at"], now, rules):
            line = f"{_unit(row)}: the lease of {row['locked_by']} ended at {row['expires_at']:%H:%M:%S} UTC"
            report.attempt(
                Item("lease", str(row["lock_id"]), "released", f"{line}; it is free and its fence raised"),
                partial(store.release_lease, conn, row["lock_id"], row["fence"], row["holder"]),
            )
    for row in store.ended_waiters(conn, AT_ONCE):
        if policy.lease_is_lost(row["expires_at"], now, rules):
            line = f"{_unit(row)}: {row['who']} no longer waits for the lease"
            report.attempt(
                Item("wish", str(row["waiter"]), "forgotten", line),
                partial(store.delete_waiter, conn, row["lock_id"], row["waiter"], row["expires_at"]),
            )


def _waiting(conn: Connection, report: ReapReport, rules: Rules, now: datetime) -> None:
    rows = store.waiting_jobs(
        conn,
        grace=rules.job_grace.total_seconds(),
        one_off_age=policy.ONE_OFF_AGE.total_seconds(),
        age=rules.expire_after.total_seconds() if rules.expire_after else None,
        limit=AT_ONCE,
    )
    for row in rows:
        ending = policy.evaluate_waiting(read_row(WaitingJob, row), now, rules)
        if ending is None:
            continue
        line = f"{_unit(row)}: {row['mode']} job {row['job_id']} is given up: {ending.error}"
        report.attempt(
            Item("waiting", str(row["job_id"]), str(ending.code), line),
            partial(
                store.give_up,
                conn,
                row["job_id"],
                row["touched_at"],
                code=str(ending.code),
                error=str(ending.error),
            ),
        )


def _unit(row: Mapping[str, Any]) -> str:
    return f"{row['slug']} {row['job_type']}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
