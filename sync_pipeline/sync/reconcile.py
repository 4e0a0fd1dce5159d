"""One attempt at comparing a window with its source, or at repairing the differences in it.

Belongs here: the order of the steps, and the results that are written. Each job type reads and compares its
own rows (:mod:`sync_pipeline.sync.compare_revisions`, :mod:`~sync_pipeline.sync.compare_commits`,
:mod:`~sync_pipeline.sync.compare_merge_requests`), and reads them again.
:mod:`sync_pipeline.policy.reconciliation` decides the consequences of a difference.

A probe stores no fact. It reads and compares under the lease, so that no other job writes in between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from sync_pipeline.core.errors import Cancelled, LeaseLost, SyncError
from sync_pipeline.core.model import Counts, Depth, Difference, DifferenceKind, Page, Traffic, Window
from sync_pipeline.core.windows import between, bounds, without
from sync_pipeline.facts import quarantine, tombstones
from sync_pipeline.facts.comparison import ComparedRow
from sync_pipeline.ledger import reconciliations, watermarks
from sync_pipeline.ledger.reconciliations import Discrepancy
from sync_pipeline.policy.reconciliation import Next, Patience, what_next
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.fields import quarantine_key
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.chunks import retry_on_lease_loss
from sync_pipeline.sync.pages import open_batch

CLEAN, MISMATCH, INCONCLUSIVE = "clean", "mismatch", "inconclusive"
"""The status of a comparison, as it is stored."""

# Rows that are asked for, and become tombstones, under one lease.
_MAX_DELETED_PER_BATCH = 50
_MAX_KEPT = 10_000
"""Differences that one comparison writes down; all are counted."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A piece of a window after its comparison: ``window`` begins where the piece before it ended. Counts are
    rows. ``newer`` are differences that arose after the latest reading, and no mismatch. ``unread`` are the
    keys of rows that could not be compared, and ``unreadable`` counts others. ``hidden`` are those that the
    token may not see. Nothing is known of them, so their earlier differences stay open. ``whole`` are the
    keys of rows that were compared with all their details although others were not.
    """

    window: Window
    expected: int
    stored: int
    differences: tuple[Difference, ...] = ()
    newer: int = 0
    unreadable: int = 0
    unread: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        window: Window,
        rows: Sequence[ComparedRow],
        position: Callable[[ComparedRow], Window | None],
        *,
        excluded: Collection[str] = (),
        newer: int = 0,
        unread: Iterable[str] = (),
        hidden: Iterable[str] = (),
        whole: Iterable[str] = (),
    ) -> Compared:
        """The comparison of ``rows``, which are those of both sides. ``position`` returns the smallest window
        of a row. Rows whose keys are ``excluded`` are counted and are no difference."""
        return cls(
            window,
            expected=sum(row.source is not None for row in rows),
            stored=sum(row.stored is not None for row in rows),
            differences=tuple(
                Difference(row.natural_key, row.kind, position(row), row.fields)
                for row in rows
                if row.kind is not None and row.natural_key not in excluded
            ),
            newer=newer,
            unread=tuple(dict.fromkeys(unread)),
            hidden=tuple(hidden),
            whole=tuple(whole),
        )


class Comparison(Protocol):
    """The comparison of a window with its source, by job type."""

    @property
    def traffic(self) -> Traffic:
        """The requests so far."""
        ...

    @property
    def lists_are_whole(self) -> bool:
        """True where the lists hold all details."""
        ...

    def begin(self) -> None:
        """Check the source. Raises where it cannot be read, or is another one."""
        ...

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """Read ``window``, which is covered, and compare it, piece by piece in order. Each piece is read when
        it is asked for. Rows without a place are compared in the first piece."""
        ...


class Repairing(Protocol):
    """The repair of rows that differ, by job type."""

    def repair_differences(self, found: Sequence[Difference]) -> None:
        """Read the rows of these again and store them over the stored rows, whatever their age."""
        ...

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """The keys of the rows that the source does not have when it is asked for each by name. A row
        without an answer is not gone."""
        ...


@dataclass
class _Part:
    """The comparison of one covered part of the window, so far up to ``end``; ``counts`` are those of
    COUNTED."""

    number: int
    window: Window
    end: Any
    unread: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def differing(self) -> int:
        """How many rows differ."""
        return sum(self.counts[kind] for kind in DifferenceKind)

    def add(self, piece: Compared) -> None:
        self.end = bounds(piece.window)[1]
        self.unread.update(piece.unread, piece.hidden)
        self.whole.update(piece.whole)
        self.counts.update(
            expected=piece.expected,
            stored=piece.stored,
            newer=piece.newer,
            unreadable=piece.unreadable + len(piece.unread),
            hidden=len(piece.hidden),
        )
        self.counts.update(str(one.kind) for one in piece.differences)


class ProbeWork:
    """Compares the window of one attempt with its source."""

    def __init__(self, attempt: Attempt, comparison: Comparison) -> None:
        self._attempt = attempt
        self._comparison = comparison
        self._repo_id = attempt.repo.repo_id
        self._job_type = attempt.job_type
        assert attempt.request.depth is not None
        self._depth = attempt.request.depth

    def run(self) -> None:
        """Do the whole job. See :class:`sync_pipeline.sync.attempt.Work`."""
        window = self._attempt.claim.window
        assert window is not None
        try:
            self._probe(window)
        finally:
            self._attempt.done.traffic = self._comparison.traffic

    def _probe(self, window: Window) -> None:
        left = deque(self._covered(window))
        if not left:
            return self._conclude(self._part(window), "nothing of it has been read yet")
        part: _Part | None = None
        try:
            self._comparison.begin()
            while left:
                part = self._part(left.popleft())
                if not self._compare(part):
                    return None
        except (Cancelled, LeaseLost):
            raise
        except SyncError as failure:
            # Nothing is concluded about the part that the source did not show.
            why = f"{failure.code}: {failure}"
            for rest in [part or self._part(left.popleft()), *map(self._part, left)]:
                self._conclude(rest, why)
            raise

    def _covered(self, window: Window) -> tuple[Window, ...]:
        """The parts of ``window`` that are complete: rows of the rest are no difference but a gap."""
        with self._attempt.database.connection() as conn:
            gaps = watermarks.missing(conn, self._repo_id, self._job_type, window)
        return without(window, gaps)

    def _part(self, window: Window) -> _Part:
        with self._attempt.database.connection() as conn:
            return _Part(reconciliations.next_number(conn), window, bounds(window)[0])

    def _compare(self, part: _Part) -> bool:
        """Compare a part; False where the requests are used up before its end."""
        pieces = self._comparison.read(part.window, self._depth)
        while True:
            with self._attempt.lease():
                piece = next(pieces, None)
                if piece is None:
                    break
                self._write(part, piece)
            limit = self._attempt.request.max_calls
            start, end = bounds(part.window)
            if limit is not None and self._comparison.traffic.calls >= limit and part.end != end:
                why = f"{limit} requests do not suffice for a piece of it" if part.end == start else None
                self._conclude(part, why)
                return False
        self._conclude(part, None)
        return True

    def _write(self, part: _Part, piece: Compared) -> None:
        piece = self._without_quarantined(piece)
        room = max(0, _MAX_KEPT - part.differing)
        part.add(piece)

        with open_batch(self._attempt, Page(piece.window, ())) as batch:
            reconciliations.put(
                batch.conn,
                repo_id=self._repo_id,
                job_type=self._job_type,
                number=part.number,
                found=piece.differences[:room],
            )
            batch.counts = Counts(read=piece.expected, unchanged=piece.expected)

    def _without_quarantined(self, piece: Compared) -> Compared:
        """``piece`` without differences of rows in quarantine, which wait there for their own repair."""
        if not piece.differences:
            return piece
        with self._attempt.database.connection() as conn:
            keys = quarantine.open_keys(conn, self._repo_id, self._job_type)
        waiting = [
            one.natural_key
            for one in piece.differences
            if one.kind is not DifferenceKind.EXTRA
            # A merge request in quarantine hides its whole review.
            and not keys.isdisjoint((quarantine_key(one.natural_key), one.natural_key.partition(":")[0]))
        ]
        differences = tuple(one for one in piece.differences if one.natural_key not in waiting)
        return replace(piece, differences=differences, unread=(*piece.unread, *waiting))

    def _conclude(self, part: _Part, error: str | None) -> None:
        """Write the result of the compared part, and where there is an ``error`` that of the rest."""
        start, end = bounds(part.window)
        if part.end > start:
            self._result(part, between(start, part.end), MISMATCH if part.differing else CLEAN, None)
        if error is not None and part.end < end:
            rest = self._part(between(part.end, end))
            # Differences without a place may have been found already.
            number = rest.number if part.end > start else part.number
            self._result(replace(rest, number=number), rest.window, INCONCLUSIVE, error)

    def _result(self, part: _Part, window: Window, status: str, detail: str | None) -> None:
        with self._attempt.lease(), open_batch(self._attempt, Page(window, ())) as batch:
            reconciliations.add(
                batch.conn,
                window,
                {
                    "number": part.number,
                    "repo_id": self._repo_id,
                    "job_type": str(self._job_type),
                    "depth": str(self._depth),
                    "status": status,
                    "calls": self._comparison.traffic.calls,
                    "detail": detail,
                    "run_id": self._attempt.claim.run_id,
                }
                | {name: part.counts[name] for name in reconciliations.COUNTED},
            )
            if status != INCONCLUSIVE:
                is_whole = self._depth is Depth.DETAILS or self._comparison.lists_are_whole
                reconciliations.resolve_unseen(
                    batch.conn,
                    repo_id=self._repo_id,
                    job_type=self._job_type,
                    window=window,
                    number=part.number,
                    unread=part.unread,
                    # Lists alone do not show differences in details.
                    only=None if is_whole else part.whole,
                    # Some rows without a place are compared at the end.
                    everywhere=window == part.window,
                )


class RepairWork:
    """Repairs the differences in the window of one attempt."""

    def __init__(self, attempt: Attempt, work: Repairing) -> None:
        self._attempt = attempt
        self._work = work

    def run(self) -> None:
        """Do the whole job. See :class:`sync_pipeline.sync.attempt.Work`."""
        repo_id, job_type = self._attempt.repo.repo_id, self._attempt.job_type
        window = self._attempt.claim.window
        assert window is not None
        with self._attempt.database.connection() as conn:
            found = reconciliations.open_ones(conn, repo_id, job_type, window=window)
        patience = patience_of(self._attempt.settings)
        to_delete = [one for one in found if next_of(one, patience) is Next.DELETE]
        to_read = [one for one in found if next_of(one, patience) is Next.READ]
        if to_read:
            self._work.repair_differences([one.difference for one in to_read])
            # A row that could not be read does not count as tried.
            if not self._attempt.done.failures:
                self._tried(window, to_read)
        back: list[Discrepancy] = []
        for first in range(0, len(to_delete), _MAX_DELETED_PER_BATCH):
            some = to_delete[first : first + _MAX_DELETED_PER_BATCH]
            gone = retry_on_lease_loss(partial(self._mark_deleted, window, some))
            back += [one for one in some if one.difference.natural_key not in gone]
        if back:
            self._work.repair_differences([one.difference for one in back])

    def _tried(self, window: Window, read: Sequence[Discrepancy]) -> None:
        with self._attempt.lease(), open_batch(self._attempt, Page(window, ())) as batch:
            reconciliations.tried(batch.conn, [one.discrepancy_id for one in read])

    def _mark_deleted(self, window: Window, some: Sequence[Discrepancy]) -> set[str]:
        """Make tombstones of those that are gone; returns their keys. The source is asked under the lease,
        so that no other job stores one that came back in between."""
        with self._attempt.lease():
            gone = self._work.gone([one.difference for one in some])
            if gone:
                with open_batch(self._attempt, Page(window, ())) as batch:
                    number = tombstones.mark_deleted(
                        batch.conn,
                        repo_id=self._attempt.repo.repo_id,
                        job_type=self._attempt.job_type,
                        batch_id=batch.batch_id,
                        keys=sorted(gone),
                    )
                    ids = [one.discrepancy_id for one in some if one.difference.natural_key in gone]
                    reconciliations.deleted(batch.conn, ids)
                    batch.counts = Counts(read=number, updated=number)
        return gone


def patience_of(settings: Settings) -> Patience:
    """How long a row has to be gone, by the settings."""
    return Patience(
        settings.reconcile.deletion_confirmations,
        timedelta(seconds=settings.reconcile.deletion_after_seconds),
    )


def next_of(one: Discrepancy, patience: Patience) -> Next:
    """The next step for an open difference."""
    return what_next(
        one.difference,
        looks=one.looks,
        repairs=one.repairs,
        found_at=one.found_at,
        now=one.now,
        patience=patience,
    )
