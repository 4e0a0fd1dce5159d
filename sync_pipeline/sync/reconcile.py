"""Windows compared with their source, and what differs there healed: what one attempt at either does.

Belongs here: the order of things, and what is written of it. How rows are read and compared is the matter of
each job type (:mod:`sync_pipeline.sync.compare_revisions`, :mod:`~sync_pipeline.sync.compare_commits`,
:mod:`~sync_pipeline.sync.compare_merge_requests`), and so is how they are read again. What follows from a
difference is decided in :mod:`sync_pipeline.policy.reconciliation`.

A probe stores no fact. Everything is read and compared under the lease, so that nobody writes in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Protocol

from sync_pipeline.errors import Cancelled, LeaseLost, SyncError
from sync_pipeline.model import (
    Counts,
    Depth,
    Difference,
    DifferenceKind,
    Page,
    RevisionWindow,
    TimeWindow,
    Traffic,
    Window,
)
from sync_pipeline.policy.reconciliation import Next, Patience, what_next
from sync_pipeline.policy.windows import bounds
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.fields import quarantine_key
from sync_pipeline.store import quarantine, reconciliations, tombstones, watermarks
from sync_pipeline.store.reconciliations import Discrepancy
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.chunks import retry_on_lease_loss
from sync_pipeline.sync.pages import open_batch

CLEAN, MISMATCH, INCONCLUSIVE = "clean", "mismatch", "inconclusive"
"""What a comparison comes to, as it is stored."""

# Rows that are asked for, and buried, under one lease.
_BURIED_AT_ONCE = 50
_KEPT = 10_000
"""Differences that one comparison writes down; all are counted."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A piece of a window after its comparison: ``window`` begins where the piece before it ended. Counts are
    rows. ``newer`` are differences that arose after what was read last, and no mismatch. ``unread`` are the
    keys of rows that could not be compared, and ``unreadable`` is how many others there are; ``hidden`` are
    those that the token may not see. Nothing is known of them, so what was found of them earlier stays
    open."""

    window: Window
    expected: int
    stored: int
    differences: tuple[Difference, ...] = ()
    newer: int = 0
    unreadable: int = 0
    unread: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class Comparison(Protocol):
    """What a job type does to compare a window with its source."""

    @property
    def traffic(self) -> Traffic:
        """What was sent so far."""
        ...

    @property
    def lists_are_whole(self) -> bool:
        """True where the lists hold all details."""
        ...

    def begin(self) -> None:
        """Look at the source. Raises where it cannot be read, or is another one."""
        ...

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """Read ``window``, which is covered, and compare it, piece by piece in order. Each piece is read when
        it is asked for. What has no place is looked for in the first piece."""
        ...


class Healing(Protocol):
    """What a job type does to read again what differs."""

    def heal(self, found: Sequence[Difference]) -> None:
        """Read the rows of these again and store them over whatever is stored, whatever its age."""
        ...

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """The keys of those rows that the source, asked for each of them by its name, does not have. What it
        does not answer is not gone."""
        ...


@dataclass
class _Part:
    """The comparison of one covered part of the window so far."""

    number: int
    window: Window
    reached: Window | None = None
    expected: int = 0
    stored: int = 0
    newer: int = 0
    unreadable: int = 0
    hidden: int = 0
    unread: set[str] = field(default_factory=set)
    by_kind: dict[DifferenceKind, int] = field(default_factory=lambda: dict.fromkeys(DifferenceKind, 0))

    @property
    def differs(self) -> bool:
        return any(self.by_kind.values())

    def add(self, piece: Compared) -> None:
        start = bounds(self.window)[0]
        self.reached = _like(self.window, start, bounds(piece.window)[1])
        self.expected += piece.expected
        self.stored += piece.stored
        self.newer += piece.newer
        self.unreadable += piece.unreadable + len(piece.unread)
        self.hidden += len(piece.hidden)
        self.unread.update(piece.unread, piece.hidden)
        for one in piece.differences:
            self.by_kind[one.kind] += 1


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
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
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
            # Of what the source did not show nothing is concluded.
            why = f"{failure.code}: {failure}"
            for rest in [part or self._part(left.popleft()), *map(self._part, left)]:
                self._conclude(rest, why)
            raise

    def _covered(self, window: Window) -> list[Window]:
        """What of ``window`` is known to be complete: the rest is no mismatch but a gap."""
        with self._attempt.database.connection() as conn:
            gaps = watermarks.missing(conn, self._repo_id, self._job_type, window)
        found: list[Window] = []
        start, end = bounds(window)
        for gap in gaps:
            found.append(_like(window, start, bounds(gap)[0]))
            start = bounds(gap)[1]
        found.append(_like(window, start, end))
        return [part for part in found if not _is_empty(part)]

    def _part(self, window: Window) -> _Part:
        with self._attempt.database.connection() as conn:
            return _Part(reconciliations.next_number(conn), window)

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
            if limit is not None and self._comparison.traffic.calls >= limit and part.reached != part.window:
                got_on = part.reached is not None and not _is_empty(part.reached)
                why = None if got_on else f"{limit} requests do not suffice for a piece of it"
                self._conclude(part, why)
                return False
        self._conclude(part, None)
        return True

    def _write(self, part: _Part, piece: Compared) -> None:
        piece = self._without_set_aside(piece)
        room = max(0, _KEPT - sum(part.by_kind.values()))
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

    def _without_set_aside(self, piece: Compared) -> Compared:
        """``piece`` without differences of what is in quarantine: that waits there for its own repair."""
        if not piece.differences:
            return piece
        with self._attempt.database.connection() as conn:
            keys = quarantine.open_keys(conn, self._repo_id, self._job_type)
        waiting = [
            one.natural_key
            for one in piece.differences
            if one.kind is not DifferenceKind.EXTRA
            # Of a merge request that is set aside so is its whole review.
            and not keys.isdisjoint((quarantine_key(one.natural_key), one.natural_key.partition(":")[0]))
        ]
        differences = tuple(one for one in piece.differences if one.natural_key not in waiting)
        return replace(piece, differences=differences, unread=(*piece.unread, *waiting))

    def _conclude(self, part: _Part, error: str | None) -> None:
        """Write the result of what was compared, and that of the rest where ``error`` says why there is
        none."""
        done = None if part.reached is None or _is_empty(part.reached) else part.reached
        if done is not None:
            self._result(part, done, MISMATCH if part.differs else CLEAN, None)
        if error is not None:
            rest = part.window if done is None else _like(done, bounds(done)[1], bounds(part.window)[1])
            number = self._part(rest).number if done is not None else part.number
            if not _is_empty(rest):
                self._result(_Part(number, rest), rest, INCONCLUSIVE, error)

    def _result(self, part: _Part, window: Window, status: str, detail: str | None) -> None:
        with self._attempt.lease(), open_batch(self._attempt, Page(window, ())) as batch:
            reconciliations.add(
                batch.conn,
                number=part.number,
                repo_id=self._repo_id,
                job_type=self._job_type,
                window=window,
                depth=self._depth,
                status=status,
                expected=part.expected,
                stored=part.stored,
                missing=part.by_kind[DifferenceKind.MISSING],
                extra=part.by_kind[DifferenceKind.EXTRA],
                changed=part.by_kind[DifferenceKind.CHANGED],
                newer=part.newer,
                unreadable=part.unreadable,
                hidden=part.hidden,
                calls=self._comparison.traffic.calls,
                detail=detail,
                run_id=self._attempt.claim.run_id,
            )
            # Lists alone do not show what was found in details.
            if status != INCONCLUSIVE and (self._depth is Depth.DETAILS or self._comparison.lists_are_whole):
                reconciliations.resolve_unseen(
                    batch.conn,
                    repo_id=self._repo_id,
                    job_type=self._job_type,
                    window=window,
                    number=part.number,
                    unread=part.unread,
                    # Some of them are looked for at the end.
                    everywhere=window == part.window,
                )


class HealWork:
    """Heals what differs in the window of one attempt."""

    def __init__(self, attempt: Attempt, work: Healing) -> None:
        self._attempt = attempt
        self._work = work

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        repo_id, job_type = self._attempt.repo.repo_id, self._attempt.job_type
        window = self._attempt.claim.window
        assert window is not None
        with self._attempt.database.connection() as conn:
            found, _ = reconciliations.open_ones(conn, repo_id, job_type, window=window)
        patience = patience_of(self._attempt.settings)
        to_delete = [one for one in found if next_of(one, patience) is Next.DELETE]
        to_read = [one for one in found if next_of(one, patience) is Next.READ]
        if to_read:
            self._work.heal([one.difference for one in to_read])
            # What could not be read was not tried.
            if not self._attempt.done.failures:
                self._tried(window, to_read)
        back: list[Discrepancy] = []
        for first in range(0, len(to_delete), _BURIED_AT_ONCE):
            some = to_delete[first : first + _BURIED_AT_ONCE]
            gone = retry_on_lease_loss(partial(self._bury, window, some))
            back += [one for one in some if one.difference.natural_key not in gone]
        if back:
            self._work.heal([one.difference for one in back])

    def _tried(self, window: Window, read: Sequence[Discrepancy]) -> None:
        with self._attempt.lease(), open_batch(self._attempt, Page(window, ())) as batch:
            reconciliations.tried(batch.conn, [one.discrepancy_id for one in read])

    def _bury(self, window: Window, some: Sequence[Discrepancy]) -> set[str]:
        """Make tombstones of those that are gone; returns their keys. They are asked for under the lease, so
        that nobody stores one that came back in between."""
        with self._attempt.lease():
            gone = self._work.gone([one.difference for one in some])
            if gone:
                with open_batch(self._attempt, Page(window, ())) as batch:
                    number = tombstones.bury(
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
    """What is done about an open difference."""
    return what_next(
        one.difference,
        looks=one.looks,
        repairs=one.repairs,
        found_at=one.found_at,
        now=one.now,
        patience=patience,
    )


def _is_empty(window: Window) -> bool:
    return not bounds(window)[0] < bounds(window)[1]


def _like(window: Window, start: object, end: object) -> Window:
    kind: type[RevisionWindow] | type[TimeWindow] = type(window)
    return kind(start, end)  # type: ignore[arg-type]
