"""Refs and commits of a GitLab project compared with their source.

Belongs here: what each difference is. Commits are complete by refs: whatever a ref reaches has to be stored,
which our own rows show by their parents, without a request. Dates only choose whose values are compared, as
git lists by date what it pleases; what it does not list is asked for by its name. What the listing has beyond
that is reached by no branch and no tag, such as the heads of merge requests of forks.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sync_pipeline.errors import SourceGone, Transient
from sync_pipeline.gitlab_rows import CommitRow
from sync_pipeline.model import Depth, Difference, DifferenceKind, TimeWindow, Window
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import quarantine_key
from sync_pipeline.sources.gitlab.refs import RefReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.store import aside, comparison, refs
from sync_pipeline.store.comparison import StoredCommit
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.reconcile import Compared

_ASKED_ONE_BY_ONE = 200
_STEP = timedelta(milliseconds=1)
# What is another one of a ref that just moved.
_MOVED = frozenset({"tip", "target"})


class CommitComparison:
    """Compares refs and commits for one attempt."""

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        self._attempt = attempt
        self._client = client
        self._visit = visit
        self._database = attempt.database
        self._repo_id = attempt.repo.repo_id
        self._refs = RefReader(client, visit.project_id)
        self._asked = 0

    # See sync_pipeline.sync.reconcile.Comparison.
    lists_are_whole = False

    @property
    def calls(self) -> int:
        """Requests sent so far."""
        return self._client.calls

    def begin(self) -> None:
        """Look at the project. Raises Permanent where it has its repository switched off, Transient where it
        shows no ref although there were some: its storage may be away."""
        with self._visit.watched():
            self._look = self._visit.look()
            self._visit.is_disabled(self._attempt)

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """See :class:`sync_pipeline.sync.reconcile.Comparison`."""
        assert isinstance(window, TimeWindow)
        found, newer, unreadable = self._compare_refs()
        start = TimeWindow(window.since, window.since)
        # What has no place, in a piece without any time.
        yield Compared(start, 0, 0, tuple(found), newer, unreadable)
        reader = CommitReader(self._client, self._visit.project_id, stats=depth is Depth.DETAILS)
        with self._database.connection() as conn:
            stored = comparison.commits_in(
                conn, self._repo_id, window.since, window.until, to_end=self._is_last(window)
            )
        seen: set[str] = set()
        absent: dict[str, CommitRow] = {}
        for batch in reader.read_days(window):
            rows = [row for row in batch.rows if row.sha not in seen]
            seen |= {row.sha for row in rows}
            yield self._compare(start, rows, absent, len(batch.quarantined))
        yield from self._unlisted(start, stored, seen, absent, reader, depth)
        yield self._missing(window, absent, reader)

    def _is_last(self, window: TimeWindow) -> bool:
        """Whether nothing that is covered lies behind ``window``."""
        watermark = self._visit.before[self._attempt.job_type].watermark
        return watermark is None or window.until == watermark

    # -- refs ---------------------------------------------------------------------------------------------

    def _compare_refs(self) -> tuple[list[Difference], int, int]:
        """The refs that differ, how many are newer than the latest visit, and how many cannot be read. A ref
        that moved on, or is new, is newer; one that is gone, or leads back or elsewhere, differs."""
        listing = self._refs.listing()
        with self._database.connection() as conn:
            changes = refs.changes(conn, self._repo_id, listing.refs)
        if not listing.refs and changes.gone:
            raise Transient(
                f"{self._look.path}: the server lists no branch and no tag, where there were some",
                code="incomplete",
            )
        aside_now = {row.natural_key for row in listing.quarantined}
        found = [Difference(f"{kind}:{name}", DifferenceKind.MISSING, None) for kind, name in changes.lost]
        newer = len(changes.new)
        for kind, name in changes.gone:
            if kind in listing.partial or quarantine_key(f"{kind}:{name}") in aside_now:
                continue
            if not self._refs.is_there(kind, name):
                found.append(Difference(f"{kind}:{name}", DifferenceKind.EXTRA, None))
        for (kind, name), change in changes.changed.items():
            if set(change.fields) <= _MOVED and self._is_forward(change.old_tip, change.new_tip):
                newer += 1
                continue
            found.append(Difference(f"{kind}:{name}", DifferenceKind.CHANGED, None, change.fields))
        return found, newer, len(aside_now)

    def _is_forward(self, old: str, new: str) -> bool:
        """Whether everything that ``old`` reaches is reached from ``new``."""
        self._asked += 1
        return self._asked > _ASKED_ONE_BY_ONE or self._refs.leads_to(new, old)

    # -- commits ------------------------------------------------------------------------------------------

    def _compare(
        self, window: TimeWindow, rows: list[CommitRow], absent: dict[str, CommitRow], unreadable: int
    ) -> Compared:
        """Compare the values of ``rows``; those that are not stored are put into ``absent``."""
        by_sha = {row.sha: row for row in rows}
        with self._database.connection() as conn:
            compared = comparison.compare_commits(conn, self._repo_id, rows)
        absent |= {one.sha: by_sha[one.sha] for one in compared if one.missing}
        changed = [one for one in compared if one.fields]
        here = len(compared) - sum(one.missing for one in compared)
        return Compared(
            window,
            here,
            here,
            tuple(
                Difference(one.sha, DifferenceKind.CHANGED, _place(by_sha[one.sha]), one.fields)
                for one in changed
            ),
            0,
            unreadable,
        )

    def _unlisted(
        self,
        window: TimeWindow,
        stored: dict[str, StoredCommit],
        seen: set[str],
        absent: dict[str, CommitRow],
        reader: CommitReader,
        depth: Depth,
    ) -> Iterator[Compared]:
        """What is stored in the window and was not listed there, asked for by its name."""
        left = {
            sha: one
            for sha, one in stored.items()
            if sha not in seen and not (one.unreachable and depth is Depth.LISTING)
        }
        for sha, one in left.items():
            if self._asked >= _ASKED_ONE_BY_ONE:
                yield Compared(window, 0, 0, unreadable=1)
                continue
            self._asked += 1
            row = self._ask(reader, sha)
            if row is not None:
                yield self._compare(window, [row], absent, 0)
            else:
                place = None if one.ts is None else TimeWindow(one.ts, one.ts + _STEP)
                yield Compared(window, 0, 1, (Difference(sha, DifferenceKind.EXTRA, place),))

    def _ask(self, reader: CommitReader, sha: str) -> CommitRow | None:
        """A commit by its name; None where the server does not have it."""
        try:
            return reader.settle(sha)
        except SourceGone as error:
            if error.code != "no_object":
                raise
            return None

    def _missing(self, window: TimeWindow, absent: dict[str, CommitRow], reader: CommitReader) -> Compared:
        """What refs reach and is not stored: what stored commits and refs name, what that names, and so on.
        A commit that was listed and that nothing names is reached by no ref."""
        with self._database.connection() as conn:
            todo = refs.missing(conn, self._repo_id, _ASKED_ONE_BY_ONE)
            set_aside = aside.open_keys(conn, self._repo_id, self._attempt.job_type)
        found: dict[str, Difference] = {}
        unreadable = 0
        while todo:
            sha = todo.pop()
            if sha in found:
                continue
            if sha in set_aside:
                unreadable += 1
                continue
            row = absent.get(sha)
            if row is None and self._asked < _ASKED_ONE_BY_ONE:
                self._asked += 1
                row = self._ask(reader, sha)
            found[sha] = Difference(sha, DifferenceKind.MISSING, None if row is None else _place(row))
            if row is not None:
                parents = [parent for parent in row.parents if parent not in found]
                with self._database.connection() as conn:
                    todo += sorted(refs.not_stored(conn, self._repo_id, parents))
        return Compared(window, len(found), 0, tuple(found.values()), 0, unreadable)


def _place(row: CommitRow) -> TimeWindow | None:
    moment = row.committed_at or row.authored_at
    return None if moment is None else TimeWindow(moment, moment + _STEP)
