"""Job types whose rows are a flat list: what one attempt reads, stores and compares.

Belongs here: reading the whole list at each visit, because no time of update reveals a change. Does not
belong here: any one job type. Its list is in :mod:`sync_pipeline.sources.gitlab.lists`, its table in
:mod:`sync_pipeline.facts.job_types`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sync_pipeline.core.model import (
    BEGINNING,
    Counts,
    Depth,
    Difference,
    Evidence,
    Page,
    TimeWindow,
    Window,
)
from sync_pipeline.core.windows import overlap
from sync_pipeline.facts import listed, quarantine
from sync_pipeline.facts.comparison import ComparedRow
from sync_pipeline.facts.job_types import LIST_TABLES
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.policy.freshness import is_worth_an_event
from sync_pipeline.sources.gitlab.lists import LISTS, ListPage, ListReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.chunks import store_in_chunks
from sync_pipeline.sync.pages import Batch, FactStore, write_page
from sync_pipeline.sync.project import ProjectComparison, ProjectVisit
from sync_pipeline.sync.reconcile import Compared
from sync_pipeline.sync.retry import RetryResult

_STEP = timedelta(milliseconds=1)


class ListedWork(FactStore[Page[Sequence[Any]]]):
    """Reads the list of one project for one attempt."""

    def __init__(self, attempts: Sequence[Attempt], client: Client, visit: ProjectVisit) -> None:
        (self._attempt,) = attempts
        self._client = client
        self._visit = visit
        self._repo_id = self._attempt.repo.repo_id
        self._job_type = self._attempt.job_type
        self._table = LIST_TABLES[self._job_type]
        self._reader = ListReader(client, visit.project_id, LISTS[self._job_type])
        self._attempt.meter = lambda: client.traffic
        # Keys of rows whose next copy wins over what is stored.
        self._invalidated: set[str] = set()

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        with self._visited() as readable:
            if readable is None:
                return
            window = self._attempt.claim.window
            part = overlap(window, readable) if isinstance(window, TimeWindow) else readable
            self._attempt.done.beyond_head = part is None
            if part is not None:
                self._read(part)
            self._visit.record(self._attempt, complete=True)

    @contextmanager
    def _visited(self) -> Iterator[TimeWindow | None]:
        """Look at the project; gives the time that can be read, None where the feature is switched off."""
        try:
            with self._visit.watched():
                self._visit.check_project()
                yield None if self._visit.is_disabled(self._attempt) else self._visit.readable(None)
        finally:
            self._attempt.done.traffic = self._client.traffic

    def _read(self, window: TimeWindow) -> None:
        """Read the list and store what is new in it. With its last page ``window`` is covered."""
        rows = self._attempt.settings.chunks.rows
        store_in_chunks([self._attempt], self._reader.read(), partial(self._store_news, window), rows=rows)

    def _store_news(self, window: TimeWindow, page: ListPage) -> int:
        rows = page.rows if self._attempt.rereads else self._news(page.rows)
        if rows or page.quarantined or (page.complete and self._is_worth_it(window)):
            self._store(page, rows, window)
        return len(page.rows)

    def _news(self, rows: Sequence[Any]) -> tuple[Any, ...]:
        """Those rows that are not stored as they are, or that are in quarantine."""
        with self._attempt.database.connection() as conn:
            same = listed.same_keys(conn, self._table, self._repo_id, rows)
            same -= quarantine.open_keys(conn, self._repo_id, self._job_type)
        return tuple(row for row in rows if listed.key_of(self._table, row) not in same)

    def _is_worth_it(self, window: TimeWindow) -> bool:
        """True if the coverage should say that nothing was new."""
        if self._attempt.done.batches or not self._attempt.is_incremental:
            return True
        return is_worth_an_event(self._visit.before[self._job_type].watermark, window.until)

    def _store(self, page: ListPage, rows: Sequence[Any], window: TimeWindow) -> None:
        write_page(
            self._attempt,
            Page(
                window,
                rows,
                covered=window if page.complete else None,
                quarantined=page.quarantined,
                evidence=Evidence(f"page {page.number} of the list"),
            ),
            self,
        )

    def store(self, batch: Batch, page: Page[Sequence[Any]]) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return listed.store_rows(
            batch.conn,
            self._table,
            self._job_type,
            repo_id=self._repo_id,
            batch_id=batch.batch_id,
            rows=page.rows,
            invalidated=self._invalidated,
        )

    def key(self, row: Any) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return listed.key_of(self._table, row)

    def _read_again(self) -> set[str]:
        """Store the whole list under one lease; returns the keys of what came or was set aside."""
        came: set[str] = set()
        with self._visited() as readable:
            if readable is not None:
                with self._attempt.lease():
                    for page in self._reader.read():
                        self._store(page, page.rows, readable)
                        came |= {listed.key_of(self._table, row) for row in page.rows}
                        came |= {row.natural_key for row in page.quarantined}
        return came

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """See :class:`sync_pipeline.sync.retry.Retries`."""
        came = self._read_again()
        return RetryResult(absent={one.natural_key for one in entries} - came)

    def repair_differences(self, found: Sequence[Difference]) -> None:
        """See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        self._invalidated = {one.natural_key for one in found}
        self._read_again()

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        with self._visited():
            return {one.natural_key for one in found if self._reader.is_gone(one.natural_key)}


class ListedComparison(ProjectComparison):
    """Compares the list of one project for one attempt. Changes at the source since the last visit differ as
    well; the repair reads them.
    """

    lists_are_whole = True

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        super().__init__(attempt, client, visit)
        self._table = LIST_TABLES[attempt.job_type]
        self._reader = ListReader(client, visit.project_id, LISTS[attempt.job_type])

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """See :class:`sync_pipeline.sync.reconcile.Comparison`."""
        assert isinstance(window, TimeWindow)
        rows: list[Any] = []
        unread: set[str] = set()
        for page in self._reader.read():
            rows += page.rows
            unread |= {row.natural_key for row in page.quarantined}
        once = {listed.key_of(self._table, row): row for row in rows}
        with self._database.connection() as conn:
            found = listed.compare(conn, self._table, self._repo_id, once.values())
        found = [one for one in found if one.natural_key not in unread and self._is_in(window, one)]
        # A row that was made since the last visit is no mismatch.
        newer = [one for one in found if one.stored is None and self._is_newer(window, one)]
        settled = [one for one in found if one not in newer]
        yield Compared.of(
            window, settled, partial(self._position, window), newer=len(newer), unread=sorted(unread)
        )

    def _moment(self, one: ComparedRow) -> datetime | None:
        moment: datetime | None = (one.stored or one.source or {})[self._table.time_column]
        return moment

    def _is_newer(self, window: TimeWindow, one: ComparedRow) -> bool:
        moment = self._moment(one)
        return moment is not None and moment >= window.until

    def _position(self, window: TimeWindow, one: ComparedRow) -> TimeWindow | None:
        moment = self._moment(one)
        is_inside = moment is not None and window.since <= moment < window.until
        return TimeWindow(moment, moment + _STEP) if moment is not None and is_inside else None

    def _is_in(self, window: TimeWindow, one: ComparedRow) -> bool:
        """Whether a row belongs to ``window``. The first one also holds rows without a time and earlier ones,
        the last one later ones."""
        moment = self._moment(one)
        if moment is None or moment < window.since:
            return window.since <= BEGINNING
        watermark = self._visit.before[self._attempt.job_type].watermark
        return moment < window.until or watermark is None or window.until == watermark
