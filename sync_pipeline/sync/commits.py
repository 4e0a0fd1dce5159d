"""Commits of a GitLab project: how one attempt reads and stores them, ref by ref.

Belongs here: which refs are walked, from where, and when everything that any ref reaches is stored. Coverage
then reaches to the time of the listing. Dates prove nothing here: git stops a date-limited walk at the first
old-dated commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from sync_pipeline.core.errors import Permanent, RowUnreadable, SourceGone, SyncError, Transient
from sync_pipeline.core.gitlab_rows import CommitPage, CommitRow, RefKind, RefListing
from sync_pipeline.core.model import (
    Counts,
    DeferredFetch,
    Difference,
    Evidence,
    Page,
    QuarantinedRow,
    TimeWindow,
)
from sync_pipeline.core.windows import overlap, span
from sync_pipeline.facts import commits, comparison, quarantine, refs
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.ledger import watermarks
from sync_pipeline.policy.freshness import is_worth_an_event
from sync_pipeline.sources.gitlab import project
from sync_pipeline.sources.gitlab.children import OWN_ERRORS
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import commit, is_sha, quarantine_key, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED
from sync_pipeline.sources.gitlab.refs import RefReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import DEFERRED_PER_VISIT, Attempt
from sync_pipeline.sync.chunks import store_in_chunks
from sync_pipeline.sync.pages import Batch, FactStore, open_batch, write_page
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.retry import RetryResult

_LISTINGS = 3
_TIPS_AT_ONCE = 500
# For more old tips than these one query follows all parents; for fewer a query each is faster.
_MAX_OLD_TIPS = 20
_MAX_UNLISTED_PER_VISIT = 50
# For more commits than these the whole history is read again, a hundred with each request.
_MAX_READ_BY_NAME = 200
_SCAN_EVERY = timedelta(days=1)
# Commits that merge requests list, stored in one visit, and how many are then read with their parents.
_MAX_OF_MERGE_REQUESTS = 2000
_MAX_PARENTS_PER_VISIT = 100
_PARENTS_PER_BATCH = 20
# After so long a commit that the server did not have is asked for again.
_PARENTS_EVERY = timedelta(days=7)
# Errors of one commit, whose details stay deferred. Every other error is one of the job.
_STAYS_DEFERRED = OWN_ERRORS | {"no_object"}
# Errors of the history of one ref: the others are read anyway. If more refs have them, the server is the
# cause.
_OF_ONE_REF = OWN_ERRORS - {"denied"}
_MAX_FAILED_REFS = 2
# Keys of quarantine that are of refs.
_REF_KEYS = tuple(f"{kind}:" for kind in RefKind)


@dataclass
class CommitFacts(FactStore[CommitPage]):
    """Writes pages of commits. ``walk`` is the one that reads them, None where they are read by date or by
    name. Commits in ``overriding`` replace what is stored. ``reached_again``: a walk came through a commit
    that no ref reached until now, or led there."""

    repo_id: int
    walk: commits.Walk | None = None
    overriding: set[str] = field(default_factory=set)
    reached_again: bool = False

    def store(self, batch: Batch, page: CommitPage) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        if again := [row.sha for row in page.rows if row.sha in self.overriding]:
            commits.invalidate(batch.conn, self.repo_id, again)
        if self.walk is not None and not self.reached_again:
            met = {sha for row in page.rows for sha in (row.sha, *(row.parents or ()))}
            self.reached_again = refs.any_unreachable(batch.conn, self.repo_id, met)
        return commits.store_commits(
            batch.conn,
            repo_id=self.repo_id,
            batch_id=batch.batch_id,
            rows=page.rows,
            walk_id=None if self.walk is None else self.walk.walk_id,
            deferred={one.natural_key for one in page.deferred},
        )

    def finish(self, batch: Batch, page: CommitPage) -> None:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        if page.absent:
            commits.note_parents_asked(batch.conn, self.repo_id, page.absent)
        if self.walk is None:
            return
        if page.complete:
            commits.complete_walk(batch.conn, self.walk.walk_id)
            refs.cover(batch.conn, self.repo_id, [self.walk.tip])
        else:
            # An answer without its tip cannot be relied on: the next visit begins it again.
            commits.record_page(
                batch.conn,
                self.walk.walk_id,
                next_page=page.next_number or 1,
                tip_read=page.tip_read and page.next_number is not None,
            )

    def key(self, row: CommitRow) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return row.sha


@dataclass
class _Walks:
    """The walks from the ``refs`` of one listing, the default branch first. Tips in ``given_up`` are not
    tried, and those in ``known`` are covered already. The server does not give the history of tips in
    ``lost``. ``failures`` are errors of single refs."""

    refs: Sequence[refs.StoredRef]
    readable: TimeWindow
    given_up: set[str]
    known: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    failures: list[SyncError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main = self.refs[0].tip if self.refs else None
        # Names that the server may take for the id of a commit, or the other way round.
        self.like_ids = {ref.name for ref in self.refs if is_sha(ref.name)}


class CommitWork:
    """Reads the refs and commits of a project for one attempt."""

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        self._attempt = attempt
        self._client = client
        self._visit = visit
        self._database = attempt.database
        self._repo_id = attempt.repo.repo_id
        self._reader = CommitReader(client, visit.project_id)
        self._facts = CommitFacts(self._repo_id)
        attempt.meter = lambda: client.traffic
        self._all_gone = False
        self._came_late = False
        self._is_repair = False

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        with self._visit.watched():
            self._work()

    def _work(self) -> None:
        project_info = self._visit.check_project()
        if self._visit.is_disabled(self._attempt):
            return
        if self._attempt.is_incremental:
            self._fetch_deferred()
        readable = self._read_refs(project_info)
        if readable is not None:
            self._read_window(readable)
        detail = "every branch and tag is gone; what is stored stays" if self._all_gone else None
        self._visit.record(self._attempt, complete=readable is not None, detail=detail)

    # -- refs ---------------------------------------------------------------------------------------------

    def _read_refs(self, info: project.ProjectInfo) -> TimeWindow | None:
        """Make everything complete that any ref reaches; returns the time that is covered then. None where
        the source shows an empty repository that was none before."""
        given_up: set[str] = set()
        for _ in range(_LISTINGS):
            reader = RefReader(self._client, self._visit.project_id)
            listing = reader.listing()
            with self._database.connection() as conn:
                stored = refs.stored_refs(conn, self._repo_id)
            if not listing.refs and stored:
                if not info.is_empty:
                    raise Transient(
                        f"{info.path}: the server lists no branch and no tag, yet says it is not empty",
                        code="incomplete",
                    )
                # Storage that is away looks the same as a repository that was emptied.
                self._all_gone = True
                return None
            self._confirm(reader, listing, stored)
            readable, lost = self._cover(listing, given_up)
            if readable is not None:
                return readable
            # The ref moved between listing and walk, and its old tip was deleted. Or it still leads there,
            # and the server does not return it.
            given_up |= lost
        raise Transient(f"{info.path}: refs change faster than they can be read", code="unstable")

    def _confirm(self, reader: RefReader, listing: RefListing, stored: Sequence[refs.StoredRef]) -> None:
        """Where a listing has no branch at all, or no tag, of many, ask for one of them by its name. Raises
        Transient where it is there."""
        for kind in {ref.kind for ref in stored} - {ref.kind for ref in listing.refs} - listing.partial:
            # The default branch is the last to go, and some proxies spoil names with a slash.
            one = min((r for r in stored if r.kind is kind), key=lambda r: (not r.is_default, "/" in r.name))
            if reader.is_there(kind, one.name):
                raise Transient(
                    f"the server lists no {kind}, yet has the {kind} {one.name!r}", code="incomplete"
                )

    def _cover(self, listing: RefListing, given_up: set[str]) -> tuple[TimeWindow | None, set[str]]:
        """Read what the refs of ``listing`` reach; returns the time that is covered then. Returns None, with
        the tips, where the server does not give the history of some. Tips in ``given_up`` are not tried
        again, and their refs are quarantined.

        An error in the history of one ref is raised after those of the others were read."""
        readable = self._visit.readable(listing.date)
        stored, deleted = self._record(listing, readable)
        ordered = sorted(stored, key=lambda r: (not r.is_default, r.kind is RefKind.TAG, r.name))
        walks = _Walks(ordered, readable, given_up)
        self._walk_refs(walks)
        if walks.failures:
            raise walks.failures[0]
        if walks.lost:
            return None, walks.lost
        self._find_unlisted(readable)
        without_history = [ref for ref in ordered if ref.tip in given_up and ref.covered_tip != ref.tip]
        if self._attempt.is_incremental:
            if not without_history:
                self._store_of_merge_requests(readable)
            self._read_parents(readable)
        self._quarantine(without_history, readable)
        tips = [ref.tip for ref in ordered]
        self._conclude(readable, listing.date, walks.known, deleted, tips, whole=not without_history)
        return readable, set()

    def _walk_refs(self, walks: _Walks) -> None:
        """Read what each ref reaches that is not covered. The default branch is read first, and the others
        against its history."""
        main = walks.main
        base = None if main in walks.given_up else main
        rewritten: bool | None = None
        todo = [ref for ref in walks.refs if ref.covered_tip != ref.tip]
        for number, ref in enumerate(todo):
            if ref.tip in walks.lost or ref.tip in walks.given_up:
                continue
            if number % _TIPS_AT_ONCE == 0:
                walks.known |= self._covered(one.tip for one in todo[number : number + _TIPS_AT_ONCE])
            # A walk since then may have come through it.
            if ref.tip in walks.known or self._covered([ref.tip]):
                walks.known.add(ref.tip)
            elif ref.tip == main:
                if not self._try_walk(walks, ref.tip, ref.covered_tip):
                    base = None
            else:
                if main in walks.lost or main in walks.given_up:
                    rewritten = False
                elif rewritten is None:
                    rewritten = self._is_rewritten(walks.refs[0])
                # Where all of history was rewritten, old tips have nothing in common with the new ones.
                if self._try_walk(walks, ref.tip, base if rewritten else ref.covered_tip or base):
                    base = base or ref.tip

    def _try_walk(self, walks: _Walks, tip: str, base: str | None) -> bool:
        """Walk from ``tip``; returns whether that succeeded. Raises the errors that are not of this ref."""
        names = [ref.full_name for ref in walks.refs if ref.tip == tip] if tip in walks.like_ids else []
        try:
            self._walk(tip, None if base in walks.like_ids else base, walks.readable, names)
        except (Permanent, Transient) as error:
            if error.code == "no_commit":
                # A ref that an earlier visit gave up needs no second listing.
                (walks.given_up if self._was_given_up(walks, tip) else walks.lost).add(tip)
            elif _is_of_one_ref(error) and tip != walks.main and len(walks.failures) < _MAX_FAILED_REFS:
                walks.failures.append(error)
            else:
                raise
            return False
        return True

    def _was_given_up(self, walks: _Walks, tip: str) -> bool:
        with self._database.connection() as conn:
            keys = refs.quarantined_keys(conn, self._repo_id, without_history=True)
        return any(ref.tip == tip and _quarantine_key(ref) in keys for ref in walks.refs)

    def _quarantine(self, without_history: Sequence[refs.StoredRef], readable: TimeWindow) -> None:
        """Put the refs whose history the server does not give into quarantine, and take the others out."""
        now = {
            _quarantine_key(ref): QuarantinedRow(
                _quarantine_key(ref),
                refs.NO_HISTORY,
                f"the {ref.kind} leads to {ref.tip}; the server does not give that commit's history",
                b"",
            )
            for ref in without_history
        }
        with self._database.connection() as conn:
            before = refs.quarantined_keys(conn, self._repo_id, without_history=True)
        if now.keys() == before:
            return

        new = tuple(row for key, row in now.items() if key not in before)
        with self._attempt.lease(), open_batch(self._attempt, Page(readable, (), quarantined=new)) as batch:
            refs.resolve(batch.conn, self._repo_id, before - now.keys())

    def _is_rewritten(self, main: refs.StoredRef) -> bool:
        """Whether ``main``, which is covered, no longer leads to where it led at the last visit."""
        with self._database.connection() as conn:
            return any(
                not refs.is_ancestor(conn, self._repo_id, old, new)
                for kind, name, old, new in refs.unrecorded_moves(conn, self._repo_id)
                if (kind, name) == (main.kind, main.name)
            )

    def _record(
        self, listing: RefListing, readable: TimeWindow
    ) -> tuple[Sequence[refs.StoredRef], Sequence[str]]:
        """Store where the refs lead now; returns them, and the last tips of those that are gone."""
        with self._database.connection() as conn:
            stored = refs.stored_refs(conn, self._repo_id)
            quarantined_before = refs.quarantined_keys(conn, self._repo_id)
            same = refs.changes(conn, self._repo_id, listing.refs).none
        quarantined_now = {row.natural_key for row in listing.quarantined}
        if same and quarantined_before == quarantined_now and not self._is_repair:
            return stored, []
        # An unreadable commit is not gone.
        kept = {(r.kind, r.name) for r in stored if quarantine_key(f"{r.kind}:{r.name}") in quarantined_now}
        evidence = Evidence(f"list of {len(listing.refs):,} branches and tags")
        page = Page(readable, (), quarantined=listing.quarantined, evidence=evidence)
        with self._attempt.lease(), open_batch(self._attempt, page) as batch:
            deleted = refs.record_listing(
                batch.conn,
                repo_id=self._repo_id,
                batch_id=batch.batch_id,
                rows=listing.refs,
                observed_at=listing.date,
                partial=listing.partial,
                kept=kept,
            )
            refs.resolve(batch.conn, self._repo_id, quarantined_before - quarantined_now)
        with self._database.connection() as conn:
            return refs.stored_refs(conn, self._repo_id), deleted

    def _covered(self, tips: Iterable[str]) -> set[str]:
        """Those of ``tips`` whose whole history is stored."""
        with self._database.connection() as conn:
            return commits.covered_tips(conn, self._repo_id, self._attempt.claim.generation, list(tips))

    def _walk(self, tip: str, base: str | None, window: TimeWindow, names: Sequence[str] = ()) -> None:
        """Read and store everything that ``tip`` reaches and ``base`` does not; ``names`` as for
        :meth:`CommitReader.read_tip`."""
        self._facts.walk = walk = self._begin(tip, base)
        pages = self._reader.read_tip(
            tip,
            base,
            first_page=walk.next_page,
            tip_read=walk.tip_read,
            whole=partial(self._whole, tip),
            names=names,
        )
        try:
            self._store_pages(pages, window)
        finally:
            self._facts.walk = None

    def _store_pages(self, pages: Iterator[CommitPage], window: TimeWindow) -> None:
        rows = self._attempt.settings.chunks.rows
        store_in_chunks([self._attempt], pages, partial(self._store, window), rows=rows)

    def _store(self, window: TimeWindow, page: CommitPage) -> int:
        walk = self._facts.walk
        if walk is not None and page.base != walk.covered:
            # The answer about the range could not be relied on: the tip is read whole.
            self._facts.walk = self._begin(walk.tip, None)
        write_page(self._attempt, replace(page, window=window, evidence=_evidence(page)), self._facts)
        return len(page.rows)

    def _store_one(self, page: CommitPage, window: TimeWindow) -> None:
        """Store a page that was read by itself, under a lease of its own."""
        with self._attempt.lease():
            self._store(window, page)

    def _whole(self, tip: str) -> tuple[int, bool]:
        """Where the walk from ``tip`` to the root goes on, and whether it has read ``tip``."""
        walk = self._begin(tip, None)
        return walk.next_page, walk.tip_read

    def _begin(self, tip: str, covered: str | None) -> commits.Walk:
        with self._attempt.fenced() as conn:
            return commits.begin_walk(
                conn,
                repo_id=self._repo_id,
                tip=tip,
                covered=covered,
                generation=self._attempt.claim.generation,
            )

    def _find_unlisted(self, readable: TimeWindow) -> None:
        """Request commits that no page could return. Their children name them, and each is requested alone. A
        commit that does not come then is deferred and quarantined under its name.
        """
        with self._database.connection() as conn:
            keys = refs.nameless(conn, self._repo_id, UNLISTED)
        if not keys and not self._came_late:
            return
        asked: set[str] = set()
        while len(asked) < _MAX_UNLISTED_PER_VISIT:
            with self._database.connection() as conn:
                found = set(refs.missing(conn, self._repo_id, _MAX_UNLISTED_PER_VISIT)) - asked
            if not found:
                break
            for sha in sorted(found):
                page = self._read_by_name(sha, "stats")
                if not page.rows and not page.quarantined:
                    unlisted = QuarantinedRow(sha, UNLISTED, page.deferred[0].error, b"")
                    page = replace(page, quarantined=(unlisted,))
                self._store_one(page, readable)
            asked |= found
        with self._attempt.lease(), open_batch(self._attempt, Page(readable, ())) as batch:
            refs.resolve(batch.conn, self._repo_id, keys)

    def _store_of_merge_requests(self, readable: TimeWindow) -> None:
        """Store the commits that only merge requests list: no branch and no tag reaches them. Their parents
        are unknown, because that list has none. Every ref has to be walked: behind a commit that is not
        stored nothing looks reached."""
        with self._database.connection() as conn:
            found = commits.of_merge_requests(conn, self._repo_id, _MAX_OF_MERGE_REQUESTS)
            if found and refs.missing(conn, self._repo_id, 1):
                return
        rows: list[CommitRow] = []
        unreadable: list[QuarantinedRow] = []
        for sha, data in found.items():
            try:
                rows.append(replace(commit(data), parents=None))
            except RowUnreadable as error:
                unreadable.append(quarantined(sha, error))
        step = self._attempt.settings.chunks.rows
        for first in range(0, len(found), step):
            some = tuple(rows[first : first + step])
            self._store_one(CommitPage(None, some, quarantined=tuple(unreadable)), readable)
            unreadable = []

    def _read_parents(self, readable: TimeWindow) -> None:
        """Read commits whose parents are unknown by their names, some in each visit."""
        with self._database.connection() as conn:
            todo = commits.without_parents(conn, self._repo_id, _PARENTS_EVERY, _MAX_PARENTS_PER_VISIT)
        for first in range(0, len(todo), _PARENTS_PER_BATCH):
            pages = [self._read_by_name(sha, "parents") for sha in todo[first : first + _PARENTS_PER_BATCH]]
            page = CommitPage(
                None,
                tuple(row for one in pages for row in one.rows),
                quarantined=tuple(row for one in pages for row in one.quarantined),
                deferred=tuple(fetch for one in pages for fetch in one.deferred),
                absent=tuple(sha for one in pages for sha in one.absent),
            )
            self._store_one(page, readable)
            if not page.rows and not page.absent:
                # The server is in trouble; the others are asked for in the next visit.
                break

    def _conclude(
        self,
        readable: TimeWindow,
        listed_at: datetime | None,
        known: Collection[str],
        deleted: Collection[str],
        tips: Sequence[str],
        *,
        whole: bool,
    ) -> None:
        """Every ref is covered: record that, judge which refs moved, and flag commits that no ref reaches.
        Not ``whole``: the history of some tip could not be read."""
        before = self._visit.before[self._attempt.job_type]
        main = tips[0] if tips else None
        changed = self._attempt.done.batches > 0
        with self._database.connection() as conn:
            unrecorded_moves = refs.unrecorded_moves(conn, self._repo_id)
            # Following parents to the root for each of many takes too long: most were left by all refs.
            old_tips = {old for _, _, old, _ in unrecorded_moves}
            near = old_tips
            if len(old_tips) > _MAX_OLD_TIPS:
                near = refs.reached(conn, self._repo_id, old_tips)
            moves = [
                (kind, name, old, new, old not in near or not refs.is_ancestor(conn, self._repo_id, old, new))
                for kind, name, old, new in unrecorded_moves
            ]
            lost = len(deleted) > _MAX_OLD_TIPS or any(
                main is None or not refs.is_ancestor(conn, self._repo_id, old, main) for old in deleted
            )
            # A ref that was deleted and comes back leads where nothing has to be walked.
            found = self._facts.reached_again or (
                bool(known or changed) and refs.any_unreachable(conn, self._repo_id, tips)
            )
            is_scan = before.swept_at is None or self._visit.looked_at - before.swept_at >= _SCAN_EVERY
            marks = lost or found or is_scan or self._is_repair or any(forced for *_, forced in moves)
            if marks and (not whole or refs.missing(conn, self._repo_id, 1)):
                # Behind a missing commit everything looks unreachable. A forced move shows later.
                marks = False
                moves = [move for move in moves if not move[-1]]
        worth = is_worth_an_event(before.watermark, readable.until)
        if not (known or moves or marks or is_scan or changed or worth):
            return

        page = Page(readable, (), covered=readable)
        with self._attempt.lease(), open_batch(self._attempt, page) as batch:
            refs.cover(batch.conn, self._repo_id, known)
            for kind, name, old, new, forced in moves:
                refs.record_move(
                    batch.conn,
                    repo_id=self._repo_id,
                    batch_id=batch.batch_id,
                    kind=kind,
                    name=name,
                    old_tip=old,
                    new_tip=new,
                    forced=forced,
                    observed_at=listed_at,
                )
            if marks:
                refs.mark_unreachable(batch.conn, self._repo_id)
            if marks or is_scan:
                watermarks.record_scan(
                    batch.conn, repo_id=self._repo_id, job_type=self._attempt.job_type, sweep_rev=1
                )

    # -- quarantine ---------------------------------------------------------------------------------------

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """Read the commits and refs of ``entries`` again. See :class:`sync_pipeline.sync.retry.Retries`.

        A commit is requested by its name. One without a name is searched in the whole history of its tip, or
        in its days. Refs are listed as in every visit.
        """
        result = RetryResult()
        with self._visit.watched():
            project_info = self._visit.check_project()
            if self._visit.is_disabled(self._attempt):
                return result
            readable = self._visit.readable(None)
            if any(entry.natural_key.startswith(_REF_KEYS) for entry in entries):
                self._read_refs(project_info)
            nameless: dict[str, list[QuarantineEntry]] = {}
            for entry in entries:
                if is_sha(entry.natural_key):
                    self._retry_commit(entry.natural_key, readable, result)
                elif not entry.natural_key.startswith(_REF_KEYS):
                    tip = entry.natural_key.partition(":")[0]
                    nameless.setdefault(tip if is_sha(tip) else str(entry.window), []).append(entry)
            for tip, some in nameless.items():
                self._retry_nameless(tip, some, readable, result)
        return result

    def _retry_commit(self, sha: str, readable: TimeWindow, result: RetryResult) -> None:
        page = self._read_by_name(sha, "stats")
        if page.rows:
            self._store_one(page, readable)
        elif page.quarantined:
            # Nothing is deferred for a row that is not stored.
            self._store_one(replace(page, deferred=()), readable)
        else:
            result.unread[sha] = page.deferred[0].error

    def _retry_nameless(
        self, tip: str, entries: Sequence[QuarantineEntry], readable: TimeWindow, result: RetryResult
    ) -> None:
        keys = [entry.natural_key for entry in entries]
        window = entries[0].window
        try:
            if is_sha(tip):
                self._store_pages(self._reader.read_tip(tip), readable)
            elif isinstance(window, TimeWindow):
                self._read_days(window, readable)
            else:
                return
        except SourceGone as gone:
            result.unread |= dict.fromkeys(keys, str(gone))
        else:
            result.absent.update(keys)

    # -- differences --------------------------------------------------------------------------------------

    def repair_differences(self, found: Sequence[Difference]) -> None:
        """Read the refs and commits of ``found`` again.
        See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        shas = [one.natural_key for one in found if is_sha(one.natural_key)]
        with self._visit.watched():
            project_info = self._check_project()
            readable = self._visit.readable(None)
            self._is_repair = True
            self._facts.overriding = set(shas)
            if len(shas) <= _MAX_READ_BY_NAME:
                for sha in shas:
                    self._store_one(self._read_by_name(sha, "stats"), readable)
            else:
                self._walk_all(readable)
            # This also flags what no ref reaches.
            self._read_refs(project_info)

    def _walk_all(self, readable: TimeWindow) -> None:
        """Read the whole history of every stored ref."""
        with self._database.connection() as conn:
            stored = refs.stored_refs(conn, self._repo_id)
        main = next((ref.tip for ref in stored if ref.is_default), None)
        if main is not None:
            self._walk(main, None, readable)
        for tip in sorted({ref.tip for ref in stored} - {main}):
            self._walk(tip, main, readable)

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        with self._visit.watched():
            self._check_project()
            singles = SingleReader(self._client, self._visit.project_id)
            gone = {one.natural_key for one in found if singles.is_commit_gone(one.natural_key)}
            with self._database.connection() as conn:
                # A commit that a branch or tag reaches exists, whatever its own address answers.
                return gone - refs.reached(conn, self._repo_id, gone)

    def _check_project(self) -> project.ProjectInfo:
        project_info = self._visit.check_project()
        # Raises: a window of its own waits until it is switched on.
        self._visit.is_disabled(self._attempt)
        return project_info

    # -- days and details ---------------------------------------------------------------------------------

    def _read_window(self, readable: TimeWindow) -> None:
        """A job with a window: its refs are covered by now. Its days are read again if requested, which
        refreshes rows but proves nothing.
        """
        window = self._attempt.claim.window
        if not isinstance(window, TimeWindow):
            return
        part = overlap(window, readable)
        self._attempt.done.beyond_head = part is None
        if part is None:
            return
        if self._attempt.rereads:
            self._read_days(part, part)
        with self._attempt.lease(), open_batch(self._attempt, Page(part, (), covered=part)):
            pass

    def _read_days(self, days: TimeWindow, window: TimeWindow) -> None:
        """Store again what was committed in ``days``, in batches of ``window``.

        The server lists what any ref reaches there, hidden ones (of merge requests, of pipelines) as well. So
        a row is stored if it has a row already, or if the history of a branch or tag lacks it."""
        with self._database.connection() as conn:
            wanted = set(comparison.unstored_commits(conn, self._repo_id))

        store = partial(self._store_known, wanted, window)
        rows = self._attempt.settings.chunks.rows
        store_in_chunks([self._attempt], self._reader.read_days(days), store, rows=rows)

    def _store_known(self, wanted: set[str], window: TimeWindow, page: CommitPage) -> int:
        with self._database.connection() as conn:
            stored = commits.stored(conn, self._repo_id, [row.sha for row in page.rows])
        kept = stored | _within(page.rows, wanted)
        rows = tuple(row for row in page.rows if row.sha in kept)
        deferred = tuple(one for one in page.deferred if one.natural_key in kept)
        self._store(window, replace(page, rows=rows, deferred=deferred))
        return len(page.rows)

    def _fetch_deferred(self) -> None:
        """Try again to read what of commits could not be read at earlier visits."""
        with self._database.connection() as conn:
            due = quarantine.due(conn, self._repo_id, self._attempt.job_type, DEFERRED_PER_VISIT)
        for item in due:
            before = self._attempt.done.counts.inserted
            self._store_one(self._read_by_name(item.natural_key, item.detail), self._visit.readable(None))
            # Its parents may not be stored either.
            self._came_late = self._came_late or self._attempt.done.counts.inserted > before

    def _read_by_name(self, sha: str, detail: str) -> CommitPage:
        """A commit by its name, for its ``detail``, which stays deferred where it does not come."""
        page = CommitPage(None, ())
        try:
            row = self._reader.settle(sha)
        except RowUnreadable as error:
            late = DeferredFetch(sha, detail, str(error))
            return replace(page, quarantined=(quarantined(sha, error),), deferred=(late,))
        except SyncError as error:
            if error.code not in _STAYS_DEFERRED:
                raise
            if error.code == "no_object" and detail == "parents":
                # A commit that merge requests list stays a fact; no more of it can be read.
                return replace(page, absent=(sha,))
            return replace(page, deferred=(DeferredFetch(sha, detail, str(error)),))
        lacking = {
            "stats": "the server sent no numbers of lines" if row.additions is None else None,
            "parents": "the server sent no parents" if row.parents is None else None,
        }
        deferred = tuple(DeferredFetch(sha, name, error) for name, error in lacking.items() if error)
        return replace(page, rows=(row,), deferred=deferred)


def _evidence(page: CommitPage) -> Evidence:
    """Where a page was read. A replay reads the time in which its commits were committed."""
    if page.tip is not None:
        without = f" without {page.base[:12]}" if page.base else ""
        position = f"page {page.number} of the commits of {page.tip[:12]}{without}"
    elif page.date is not None:
        position = f"page {page.number} of the commits by date"
    else:
        position = "commits by name"
    times = [row.committed_at for row in page.rows if row.committed_at is not None]
    return Evidence(position, span(times))


def _quarantine_key(ref: refs.StoredRef) -> str:
    return quarantine_key(f"{ref.kind}:{ref.name}")


def _is_of_one_ref(error: SyncError) -> bool:
    """Whether the history of another ref may be read all the same. A server that says when to come back is at
    rest."""
    is_asked_later = isinstance(error, Transient) and error.retry_after is not None
    return error.code in _OF_ONE_REF and not is_asked_later


def _within(rows: Sequence[CommitRow], wanted: set[str]) -> set[str]:
    """Those of ``rows`` that are ``wanted``, or that lead there from one that is; the parents of all of these
    are wanted from then on."""
    by_sha = {row.sha: row for row in rows}
    todo = [sha for sha in by_sha if sha in wanted]
    found = set(todo)
    while todo:
        parents = by_sha[todo.pop()].parents or ()
        wanted.update(parents)
        fresh = [parent for parent in parents if parent in by_sha and parent not in found]
        found.update(fresh)
        todo += fresh
    return found
