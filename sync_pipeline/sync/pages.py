"""Write one page of a source to the database.

Belongs here: the one transaction that holds everything of a page, and the quarantine of a row that the
database refuses. Does not belong here: how the rows of a job type are written (its ``FactStore``), and who
may write (:mod:`sync_pipeline.sync.attempt`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import psycopg

from sync_pipeline.core.model import Counts, Evidence, Page, QuarantinedRow
from sync_pipeline.database.pool import Connection
from sync_pipeline.facts import quarantine
from sync_pipeline.ledger import jobs, watermarks
from sync_pipeline.sources.gitlab.fields import payload
from sync_pipeline.sync.attempt import Attempt, database_error, is_about_a_row

_MAX_PAYLOAD_BYTES = 1 << 20

P = TypeVar("P", bound=Page[Any])


@dataclass
class Batch:
    """An open transaction in which only the owner of the job can write. ``counts`` and ``evidence`` go into
    its ledger row."""

    conn: Connection
    batch_id: int
    evidence: Evidence | None
    counts: Counts = field(default_factory=Counts)

    def note(self, *keys: str) -> None:
        """Record that rows with these keys arrived. The ledger row keeps the first and the last key."""
        if self.evidence is not None:
            self.evidence.note(*keys)


class FactStore(ABC, Generic[P]):
    """How the rows of one job type are written."""

    @abstractmethod
    def store(self, batch: Batch, page: P) -> Counts:
        """Upsert the rows of ``page``. Raises psycopg.Error if the database refuses a row."""

    def finish(self, batch: Batch, page: P) -> None:
        """Write what requires that all rows of ``page`` are stored. Part of the page's last transaction."""

    @abstractmethod
    def key(self, row: Any) -> str:
        """The key of ``row`` in quarantine."""

    def payload(self, row: Any) -> bytes:
        """``row`` as received, without secrets."""
        return payload(row.raw)


def write_page(attempt: Attempt, page: P, facts: FactStore[P]) -> None:
    """Write ``page`` under the lease that ``attempt`` holds, in one transaction.

    If the database refuses a row, each half of the rows is written in a transaction of its own, and so on. A
    single row that is refused goes to quarantine. The last transaction also writes the coverage and
    everything else of the page that is not a row.

    Raises the errors of :meth:`Attempt.fenced`. Raises psycopg.Error if no row caused the error, or if the
    rows come from an iterator, because they cannot be sent again."""
    todo = [page.rows]
    refused: list[QuarantinedRow] = []
    while todo:
        rows = todo.pop()
        is_last = not todo
        part: Page[Any] = Page(page.window, rows, evidence=page.evidence)
        if is_last:
            part = replace(page, rows=rows, quarantined=(*page.quarantined, *refused))
        try:
            with open_batch(attempt, part) as batch:
                if rows:
                    batch.counts = facts.store(batch, replace(page, rows=rows))
                    if isinstance(rows, Sequence):
                        batch.note(facts.key(rows[0]), facts.key(rows[-1]))
                if is_last:
                    facts.finish(batch, page)
        except psycopg.Error as error:
            if not rows or not isinstance(rows, Sequence) or not is_about_a_row(error):
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                todo += [rows[middle:], rows[:middle]]
                continue
            received = facts.payload(rows[0])[:_MAX_PAYLOAD_BYTES]
            refused.append(
                QuarantinedRow(facts.key(rows[0]), "unstorable", str(database_error(error)), received)
            )
            if is_last:
                todo.append(())


@contextmanager
def open_batch(attempt: Attempt, page: Page[Any]) -> Iterator[Batch]:
    """One transaction: the fence, the writes of the caller, and all of ``page`` except its rows.

    To write something else than a page of rows, pass a ``page`` that has only a window. Raises Cancelled and
    ClaimLost before the transaction begins, and the errors of :meth:`Attempt.fenced`. If the caller raises,
    nothing is written."""
    attempt.stop_if_asked()
    assert page.window is not None
    asset: dict[str, Any] = {"repo_id": attempt.repo.repo_id, "job_type": attempt.job_type}
    claim, lease = attempt.claim, attempt.held
    assert lease is not None
    is_news = False
    with attempt.fenced(lease) as conn:
        batch = Batch(conn, jobs.next_batch(conn), page.evidence and replace(page.evidence))
        yield batch
        batch_id = batch.batch_id
        quarantined_count = quarantine.quarantine(conn, **asset, batch_id=batch_id, rows=page.quarantined)
        quarantine.defer(conn, **asset, fetches=page.deferred)
        counts = replace(
            batch.counts, read=batch.counts.read + quarantined_count, quarantined=quarantined_count
        )
        if page.covered is not None:
            is_news = watermarks.extend(
                conn,
                **asset,
                window=page.covered,
                actor=claim.actor,
                reason=claim.reason,
                run_id=claim.run_id,
                batch_id=batch_id,
            )
        calls, seconds = attempt.since_last_batch()
        jobs.add_batch(
            conn,
            claim,
            batch_id=batch_id,
            fence=lease.fence,
            window=page.window,
            covers=page.covered is not None,
            counts=counts,
            deferred=len(page.deferred),
            evidence=batch.evidence,
            calls=calls,
            seconds=seconds,
        )
    attempt.note_batch(counts, page.covered if is_news else None, calls)
