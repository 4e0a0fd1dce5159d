"""Rows in quarantine tried again by one attempt.

Belongs here: the order of the steps, and the end of an entry whose row did not come. How a row is
read again is up to each job type (:mod:`sync_pipeline.sync.revisions`,
:mod:`~sync_pipeline.sync.commits`, :mod:`~sync_pipeline.sync.merge_requests`). The source is always asked: a
payload may have been redacted or cut, and the row may have been mended. Only what a stored raw could not be
read from (keys that begin with ``raw:``) is another work, that of :mod:`sync_pipeline.sync.remap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sync_pipeline.core.model import (
    BEGINNING,
    JobRequest,
    Mode,
    Page,
    QuarantinedRow,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.database.pool import Connection, database_time
from sync_pipeline.facts import quarantine
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.pages import open_batch

RAW = "raw:"
"""Keys of quarantine that begin so are of stored raws, not of rows of the source."""


@dataclass
class RetryResult:
    """The result of reading again, for rows that did not come. ``absent``: everything that the row could be
    among was read, and it is not there. ``unread``: why the row could not be looked for, by its key."""

    absent: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)


class Retries(Protocol):
    """The work of a job type that can read single rows again."""

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """Read again what ``entries`` are about and store it, or quarantine it again."""
        ...


def request(conn: Connection, entries: Sequence[QuarantineEntry], *, actor: str, reason: str) -> JobRequest:
    """The request to try open entries of one (repository, job type) again. Its window is where they came
    from."""
    revisions = [w for entry in entries if isinstance(w := entry.window, RevisionWindow)]
    times = [w for entry in entries if isinstance(w := entry.window, TimeWindow)]
    window: Window
    if revisions:
        window = RevisionWindow(min(w.first for w in revisions), max(w.end for w in revisions))
    elif times:
        window = TimeWindow(min(w.since for w in times), max(w.until for w in times))
    else:
        window = TimeWindow(BEGINNING, database_time(conn))
    return JobRequest(
        repo_id=entries[0].repo_id,
        job_type=entries[0].job_type,
        mode=Mode.REPAIR,
        trigger=Trigger.RUNNER,
        actor=actor,
        reason=reason,
        window=window,
        quarantine=tuple(sorted(entry.quarantine_id for entry in entries)),
    )


class RetryWork:
    """Tries entries of quarantine again for one attempt."""

    def __init__(self, attempt: Attempt, work: Retries) -> None:
        self._attempt = attempt
        self._work = work

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        before = self._open()
        if before:
            result = self._work.retry(before)
            seen = {entry.quarantine_id: entry.seen for entry in before}
            left = [entry for entry in self._open() if entry.seen == seen.get(entry.quarantine_id)]
            if left and not self._attempt.done.failures:
                self._conclude(left, result)

    def _open(self) -> list[QuarantineEntry]:
        with self._attempt.database.connection() as conn:
            found, _ = quarantine.entries(conn, ids=self._attempt.request.quarantine)
        return found

    def _conclude(self, left: Sequence[QuarantineEntry], result: RetryResult) -> None:
        """Entries whose rows did not come: they leave quarantine where nothing is there any more, and else
        stay, as met once more."""
        gone = [entry.quarantine_id for entry in left if entry.natural_key in result.absent]
        kept = [entry for entry in left if entry.natural_key not in result.absent]
        with self._attempt.database.connection() as conn:
            rows = tuple(
                QuarantinedRow(
                    entry.natural_key,
                    entry.reason,
                    result.unread.get(entry.natural_key, entry.detail),
                    quarantine.payload_of(conn, entry.quarantine_id),
                )
                for entry in kept
            )
        page = Page(self._attempt.claim.window, (), quarantined=rows)
        with self._attempt.lease(), open_batch(self._attempt, page) as batch:
            quarantine.resolve(batch.conn, gone)
