"""Commits of a GitLab project: what one attempt reads and stores, ref by ref.

Belongs here: which refs have to be walked, from where, and when everything that any ref reaches is stored;
then coverage reaches to the time of the listing. Dates prove nothing here: git stops a date-limited walk at
the first old-dated commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sync_pipeline.errors import Permanent, RowUnreadable, SourceGone, SyncError, Transient
from sync_pipeline.gitlab_rows import CommitBatch, CommitRow, RefKind, RefListing
from sync_pipeline.model import Counts, DeferredFetch, Difference, Evidence, QuarantinedRow, TimeWindow
from sync_pipeline.policy.freshness import is_worth_an_event
from sync_pipeline.policy.windows import overlap, span
from sync_pipeline.sources.gitlab import project
from sync_pipeline.sources.gitlab.children import OWN_ERRORS
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import commit, is_sha, payload, quarantine_key, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED
from sync_pipeline.sources.gitlab.refs import RefReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.store import commits, comparison, quarantine, refs, watermarks
from sync_pipeline.store.database import Connection
from sync_pipeline.store.leases import Lease
from sync_pipeline.store.quarantine import QuarantineEntry
from sync_pipeline.sync.attempt import OBLIGATIONS_PER_RUN, Attempt
from sync_pipeline.sync.chunks import store_in_chunks
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.retry import RetryResult

_LISTINGS = 3
_TIPS_AT_ONCE = 500
# Of more refs than these it is not asked one by one what became of their commits.
_ASKED_ONE_BY_ONE = 20
_UNLISTED_AT_ONCE = 50
# Of more commits than these the whole history is read again, a hundred with each request.
_HEALED_ONE_BY_ONE = 200
_SWEEP_EVERY = timedelta(days=1)
# Commits that merge requests list, stored in one visit, and how many are then read with their parents.
_OF_MERGE_REQUESTS_PER_VISIT = 2000
_PARENTS_PER_VISIT = 100
_PARENTS_AT_ONCE = 20
# After so long a commit that the server did not have is asked for again.
_PARENTS_AGAIN = timedelta(days=7)
# Errors of one commit, which stays owed; everything else is an error of the job.
_STILL_OWED = OWN_ERRORS | {"no_object"}
# Errors of the history of one ref: the others are read anyway. If more refs have them, the server is the
# cause.
_OF_ONE_REF = OWN_ERRORS - {"denied"}
_MOST_FAILED_REFS = 2
# Keys of quarantine that are of refs.
_REF_KEYS = tuple(f"{kind}:" for kind in RefKind)


class CommitWork:
    """Reads the refs and commits of a project for one attempt."""

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        self._attempt = attempt
        self._client = client
        self._visit = visit
        self._database = attempt.database
        self._repo_id = attempt.repo.repo_id
        self._reader = CommitReader(client, visit.project_id)
        self._rows = attempt.settings.chunks.rows
        attempt.meter = lambda: client.traffic
        self._all_gone = False
        self._came_late = False
        # Commits whose next copy wins over what is stored.
        self._distrusted: set[str] = set()
        self._heals = False
        # A walk came through what no ref reached until now, or led there.
        self._reached_again = False

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        try:
            with self._visit.watched():
                self._work()
        finally:
            self._attempt.done.traffic = self._client.traffic

    def _work(self) -> None:
        look = self._visit.look()
        if self._visit.is_disabled(self._attempt):
            return
        if self._attempt.is_incremental:
            self._settle_obligations()
        readable = self._read_refs(look)
        if readable is not None:
            self._read_window(readable)
        detail = "every branch and tag is gone; what is stored stays" if self._all_gone else None
        self._visit.record(self._attempt, complete=readable is not None, detail=detail)

    # -- refs ---------------------------------------------------------------------------------------------

    def _read_refs(self, look: project.ProjectInfo) -> TimeWindow | None:
        """Make everything complete that any ref reaches; returns the time that is covered then. None where
        the source shows an empty repository that was none before."""
        given_up: set[str] = set()
        for _ in range(_LISTINGS):
            reader = RefReader(self._client, self._visit.project_id)
            listing = reader.listing()
            with self._database.connection() as conn:
                stored = refs.stored_refs(conn, self._repo_id)
            if not listing.refs and stored:
                if not look.is_empty:
                    raise Transient(
                        f"{look.path}: the server lists no branch and no tag, yet says it is not empty",
                        code="incomplete",
                    )
                # Storage that is away looks the same as a repository that was emptied.
                self._all_gone = True
                return None
            self._confirm(reader, listing, stored)
            readable, lost = self._cover(listing, given_up)
            if readable is not None:
                return readable
            # A ref moved on, and its old tip was cleaned away, between listing and walk; or it still leads
            # there, and the server does not give it.
            given_up |= lost
        raise Transient(f"{look.path}: refs change faster than they can be read", code="unstable")

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
        main = ordered[0].tip if ordered else None
        todo = [ref for ref in ordered if ref.covered_tip != ref.tip]
        known: set[str] = set()
        rewritten: bool | None = None
        # Names that the server may take for the id of a commit, or the other way round.
        like_ids = {ref.name for ref in ordered if is_sha(ref.name)}
        # Whose history the others are read against.
        base = None if main in given_up else main
        lost: set[str] = set()
        failures: list[SyncError] = []
        skip_remaining: set[str] = set()
        if todo:
            with self._database.connection() as conn:
                keys = refs.set_aside(conn, self._repo_id, without_history=True)
            skip_remaining = {ref.tip for ref in todo if _aside_key(ref) in keys}

        def walk(tip: str, covered: str | None) -> bool:
            """Whether that succeeded."""
            names = [ref.full_name for ref in ordered if ref.tip == tip] if tip in like_ids else []
            try:
                self._walk(tip, None if covered in like_ids else covered, readable, names)
            except (Permanent, Transient) as error:
                if error.code == "no_commit":
                    # What was given up at an earlier visit needs no second listing.
                    (given_up if tip in skip_remaining else lost).add(tip)
                elif _is_of_one_ref(error) and tip != main and len(failures) < _MOST_FAILED_REFS:
                    failures.append(error)
                else:
                    raise
                return False
            return True

        for number, ref in enumerate(todo):
            if ref.tip in lost or ref.tip in given_up:
                continue
            if number % _TIPS_AT_ONCE == 0:
                known |= self._covered(one.tip for one in todo[number : number + _TIPS_AT_ONCE])
            if ref.tip in known:
                continue
            # A walk since then may have come through it.
            if found := self._covered([ref.tip]):
                known |= found
            else:
                if ref.tip == main:
                    if not walk(ref.tip, ref.covered_tip):
                        base = None
                    continue
                if main in lost or main in given_up:
                    rewritten = False
                elif rewritten is None:
                    rewritten = self._is_rewritten(ordered[0])
                # Where all of history was rewritten, old tips have nothing in common with the new ones.
                if walk(ref.tip, base if rewritten else ref.covered_tip or base):
                    base = base or ref.tip
        if failures:
            raise failures[0]
        if lost:
            return None, lost
        self._find_unlisted(readable)
        without_history = [ref for ref in ordered if ref.tip in given_up and ref.covered_tip != ref.tip]
        if self._attempt.is_incremental:
            if not without_history:
                self._store_of_merge_requests(readable)
            self._read_parents(readable)
        self._set_aside(without_history, readable)
        tips = [ref.tip for ref in ordered]
        self._conclude(readable, listing.date, known, deleted, tips, whole=not without_history)
        return readable, set()

    def _set_aside(self, without_history: Sequence[refs.StoredRef], readable: TimeWindow) -> None:
        """Put the refs whose history the server does not give into quarantine, and take the others out."""
        now = {
            _aside_key(ref): QuarantinedRow(
                _aside_key(ref),
                refs.NO_HISTORY,
                f"the {ref.kind} leads to {ref.tip}; the server does not give that commit's history",
                b"",
            )
            for ref in without_history
        }
        with self._database.connection() as conn:
            before = refs.set_aside(conn, self._repo_id, without_history=True)
        if now.keys() == before:
            return

        def resolve(conn: Connection, batch_id: int) -> Counts:
            refs.resolve(conn, self._repo_id, before - now.keys())
            return Counts()

        with self._attempt.lease() as lease:
            new = [row for key, row in now.items() if key not in before]
            self._attempt.write(lease, resolve, window=readable, quarantined=new)

    def _is_rewritten(self, main: refs.StoredRef) -> bool:
        """Whether ``main``, which is covered, no longer leads to where it led at the last visit."""
        with self._database.connection() as conn:
            return any(
                not refs.is_ancestor(conn, self._repo_id, old, new)
                for kind, name, old, new in refs.unjudged(conn, self._repo_id)
                if (kind, name) == (main.kind, main.name)
            )

    def _record(
        self, listing: RefListing, readable: TimeWindow
    ) -> tuple[Sequence[refs.StoredRef], Sequence[str]]:
        """Store where the refs lead now; returns them, and the last tips of those that are gone."""
        with self._database.connection() as conn:
            stored = refs.stored_refs(conn, self._repo_id)
            aside_before = refs.set_aside(conn, self._repo_id)
            same = refs.changes(conn, self._repo_id, listing.refs).none
        aside_now = {row.natural_key for row in listing.quarantined}
        if same and aside_before == aside_now and not self._heals:
            return stored, []
        deleted: list[str] = []

        def store(conn: Connection, batch_id: int) -> Counts:
            deleted[:] = refs.record_listing(
                conn,
                repo_id=self._repo_id,
                batch_id=batch_id,
                rows=listing.refs,
                observed_at=listing.date,
                partial=listing.partial,
                # What cannot be read is not gone.
                kept={(r.kind, r.name) for r in stored if quarantine_key(f"{r.kind}:{r.name}") in aside_now},
            )
            refs.resolve(conn, self._repo_id, aside_before - aside_now)
            return Counts()

        with self._attempt.lease() as lease:
            self._attempt.write(
                lease,
                store,
                window=readable,
                quarantined=listing.quarantined,
                evidence=Evidence(f"list of {len(listing.refs):,} branches and tags"),
            )
        with self._database.connection() as conn:
            return refs.stored_refs(conn, self._repo_id), deleted

    def _covered(self, tips: Iterable[str]) -> set[str]:
        """Those of ``tips`` whose whole history is stored."""
        with self._database.connection() as conn:
            return commits.covered_tips(conn, self._repo_id, self._attempt.claim.generation, list(tips))

    def _walk(self, tip: str, covered: str | None, window: TimeWindow, names: Sequence[str] = ()) -> None:
        """Read and store everything that ``tip`` reaches and ``covered`` does not; ``names`` as for
        :meth:`CommitReader.read_tip`."""
        walk = self._begin(tip, covered)
        pages = self._reader.read_tip(
            tip,
            covered,
            first_page=walk.next_page,
            tip_read=walk.tip_read,
            whole=lambda: self._whole(tip),
            names=names,
        )

        def store(lease: Lease, batch: CommitBatch) -> int:
            nonlocal walk
            if batch.covered != walk.covered:
                # The answer about the range could not be believed: the tip is read whole.
                walk = self._begin(tip, None)
            self._store(lease, batch, window, walk)
            return len(batch.rows)

        store_in_chunks(pages, self._attempt.lease, store, self._rows, [self._attempt])

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

    def _store(
        self,
        lease: Lease,
        batch: CommitBatch,
        window: TimeWindow,
        walk: commits.Walk | None = None,
    ) -> None:
        owed = {one.natural_key for one in batch.obligations}

        def store(conn: Connection, batch_id: int, rows: Sequence[CommitRow]) -> Counts:
            if doubtful := [row.sha for row in rows if row.sha in self._distrusted]:
                commits.invalidate(conn, self._repo_id, doubtful)
            if walk is not None and not self._reached_again:
                met = {sha for row in rows for sha in (row.sha, *(row.parents or ()))}
                self._reached_again = refs.any_unreachable(conn, self._repo_id, met)
            return commits.store_commits(
                conn,
                repo_id=self._repo_id,
                batch_id=batch_id,
                rows=rows,
                walk_id=None if walk is None else walk.walk_id,
                owed=owed,
            )

        def turn(conn: Connection, batch_id: int) -> None:
            if batch.absent:
                commits.note_parents_asked(conn, self._repo_id, batch.absent)
            if walk is None:
                return
            if batch.complete:
                commits.complete_walk(conn, walk.walk_id)
                refs.cover(conn, self._repo_id, [walk.tip])
            else:
                # An answer without its tip is not believed; the next look begins it again.
                commits.turn_page(
                    conn,
                    walk.walk_id,
                    next_page=batch.next_page or 1,
                    tip_read=batch.tip_read and batch.next_page is not None,
                )

        self._attempt.write_rows(
            lease,
            batch.rows,
            store,
            key=lambda row: row.sha,
            payload=lambda row: payload(row.raw),
            window=window,
            evidence=_evidence(batch),
            quarantined=batch.quarantined,
            obligations=batch.obligations,
            also=turn,
        )

    def _find_unlisted(self, readable: TimeWindow) -> None:
        """Commits that no page could be given with: their children name them, and each is asked for by
        itself. What does not come then is owed and set aside under its name."""
        with self._database.connection() as conn:
            places = refs.nameless(conn, self._repo_id, UNLISTED)
        if not places and not self._came_late:
            return
        asked: set[str] = set()
        while len(asked) < _UNLISTED_AT_ONCE:
            with self._database.connection() as conn:
                found = set(refs.missing(conn, self._repo_id, _UNLISTED_AT_ONCE)) - asked
            if not found:
                break
            for sha in sorted(found):
                batch = self._settled(sha, "stats")
                if not batch.rows and not batch.quarantined:
                    unlisted = QuarantinedRow(sha, UNLISTED, batch.obligations[0].error, b"")
                    batch = replace(batch, quarantined=(unlisted,))
                with self._attempt.lease() as lease:
                    self._store(lease, batch, readable)
            asked |= found

        def named(conn: Connection, batch_id: int) -> Counts:
            refs.resolve(conn, self._repo_id, places)
            return Counts()

        with self._attempt.lease() as lease:
            self._attempt.write(lease, named, window=readable)

    def _store_of_merge_requests(self, readable: TimeWindow) -> None:
        """Store the commits that only merge requests list: no branch and no tag reaches them. Their parents
        are unknown, because that list has none. Every ref has to be walked: behind a commit that is not
        stored nothing looks reached."""
        with self._database.connection() as conn:
            found = commits.of_merge_requests(conn, self._repo_id, _OF_MERGE_REQUESTS_PER_VISIT)
            if found and refs.missing(conn, self._repo_id, 1):
                return
        rows: list[CommitRow] = []
        unreadable: list[QuarantinedRow] = []
        for sha, data in found.items():
            try:
                rows.append(replace(commit(data), parents=None))
            except RowUnreadable as error:
                unreadable.append(quarantined(sha, error))
        for first in range(0, len(found), self._rows):
            some = tuple(rows[first : first + self._rows])
            batch = CommitBatch(None, None, 1, None, some, False, False, None, tuple(unreadable))
            with self._attempt.lease() as lease:
                self._store(lease, batch, readable)
            unreadable = []

    def _read_parents(self, readable: TimeWindow) -> None:
        """Read commits whose parents are unknown by their names, some in each visit."""
        with self._database.connection() as conn:
            todo = commits.without_parents(conn, self._repo_id, _PARENTS_AGAIN, _PARENTS_PER_VISIT)
        for first in range(0, len(todo), _PARENTS_AT_ONCE):
            batches = [self._settled(sha, "parents") for sha in todo[first : first + _PARENTS_AT_ONCE]]
            batch = replace(
                batches[0],
                rows=tuple(row for one in batches for row in one.rows),
                quarantined=tuple(row for one in batches for row in one.quarantined),
                obligations=tuple(owed for one in batches for owed in one.obligations),
                absent=tuple(sha for one in batches for sha in one.absent),
            )
            with self._attempt.lease() as lease:
                self._store(lease, batch, readable)
            if not batch.rows and not batch.absent:
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
            unjudged = refs.unjudged(conn, self._repo_id)
            # Following parents to the root for each of many takes too long: most were left by all refs.
            old_tips = {old for _, _, old, _ in unjudged}
            near = old_tips
            if len(old_tips) > _ASKED_ONE_BY_ONE:
                near = refs.reached(conn, self._repo_id, old_tips)
            moves = [
                (kind, name, old, new, old not in near or not refs.is_ancestor(conn, self._repo_id, old, new))
                for kind, name, old, new in unjudged
            ]
            lost = len(deleted) > _ASKED_ONE_BY_ONE or any(
                main is None or not refs.is_ancestor(conn, self._repo_id, old, main) for old in deleted
            )
            # A ref that was deleted and comes back leads where nothing has to be walked.
            found = self._reached_again or (
                bool(known or changed) and refs.any_unreachable(conn, self._repo_id, tips)
            )
            sweeps = before.swept_at is None or self._visit.looked_at - before.swept_at >= _SWEEP_EVERY
            marks = lost or found or sweeps or self._heals or any(forced for *_, forced in moves)
            if marks and (not whole or refs.missing(conn, self._repo_id, 1)):
                # Behind a commit that is not stored nothing looks reached. What was forced shows later.
                marks = False
                moves = [move for move in moves if not move[-1]]
        worth = is_worth_an_event(before.watermark, readable.until)
        if not (known or moves or marks or sweeps or changed or worth):
            return

        def store(conn: Connection, batch_id: int) -> Counts:
            refs.cover(conn, self._repo_id, known)
            for kind, name, old, new, forced in moves:
                refs.judge(
                    conn,
                    repo_id=self._repo_id,
                    batch_id=batch_id,
                    kind=kind,
                    name=name,
                    old_tip=old,
                    new_tip=new,
                    forced=forced,
                    observed_at=listed_at,
                )
            if marks:
                refs.mark_unreachable(conn, self._repo_id)
            if marks or sweeps:
                watermarks.record_sweep(
                    conn, repo_id=self._repo_id, job_type=self._attempt.job_type, sweep_rev=1
                )
            return Counts()

        with self._attempt.lease() as lease:
            self._attempt.write(lease, store, window=readable, covered=(readable,))

    # -- quarantine ---------------------------------------------------------------------------------------

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """Ask again for the commits and refs of ``entries``. See :class:`sync_pipeline.sync.retry.Retries`.

        A commit is asked for by its name. What came without one is looked for in the whole history of the
        tip, or in the days, that it was met in; refs are listed as in every visit."""
        outcome = RetryResult()
        try:
            with self._visit.watched():
                look = self._visit.look()
                if self._visit.is_disabled(self._attempt):
                    return outcome
                readable = self._visit.readable(None)
                if any(entry.natural_key.startswith(_REF_KEYS) for entry in entries):
                    self._read_refs(look)
                nameless: dict[str, list[QuarantineEntry]] = {}
                for entry in entries:
                    if is_sha(entry.natural_key):
                        self._retry_commit(entry.natural_key, readable, outcome)
                    elif not entry.natural_key.startswith(_REF_KEYS):
                        place = entry.natural_key.partition(":")[0]
                        if not is_sha(place):
                            place = str(entry.window)
                        nameless.setdefault(place, []).append(entry)
                for place, some in nameless.items():
                    self._retry_nameless(place, some, readable, outcome)
        finally:
            self._attempt.done.traffic = self._client.traffic
        return outcome

    def _retry_commit(self, sha: str, readable: TimeWindow, outcome: RetryResult) -> None:
        batch = self._settled(sha, "stats")
        if not batch.rows and not batch.quarantined:
            outcome.unread[sha] = batch.obligations[0].error
            return
        with self._attempt.lease() as lease:
            # A row that is set aside owes nothing.
            obligations = batch.obligations if batch.rows else ()
            self._store(lease, replace(batch, obligations=obligations), readable)

    def _retry_nameless(
        self, place: str, entries: Sequence[QuarantineEntry], readable: TimeWindow, outcome: RetryResult
    ) -> None:
        window = entries[0].window

        def store(lease: Lease, batch: CommitBatch) -> int:
            self._store(lease, batch, readable)
            return len(batch.rows)

        keys = [entry.natural_key for entry in entries]
        try:
            if is_sha(place):
                pages = self._reader.read_tip(place)
                store_in_chunks(pages, self._attempt.lease, store, self._rows, [self._attempt])
            elif isinstance(window, TimeWindow):
                self._read_days(window, readable)
            else:
                return
        except SourceGone as gone:
            outcome.unread |= dict.fromkeys(keys, str(gone))
        else:
            outcome.absent.update(keys)

    # -- what differs from the source ---------------------------------------------------------------------

    def heal(self, found: Sequence[Difference]) -> None:
        """Read the refs and commits of ``found`` again. See :class:`sync_pipeline.sync.reconcile.Healing`."""
        shas = [one.natural_key for one in found if is_sha(one.natural_key)]
        try:
            with self._visit.watched():
                look = self._look()
                readable = self._visit.readable(None)
                self._heals = True
                self._distrusted = set(shas)
                for sha in shas if len(shas) <= _HEALED_ONE_BY_ONE else ():
                    batch = self._settled(sha, "stats")
                    with self._attempt.lease() as lease:
                        self._store(lease, batch, readable)
                if len(shas) > _HEALED_ONE_BY_ONE:
                    with self._database.connection() as conn:
                        stored = refs.stored_refs(conn, self._repo_id)
                    main = next((ref.tip for ref in stored if ref.is_default), None)
                    tips = {ref.tip for ref in stored} - {main}
                    for tip in [main, *sorted(tips)] if main else sorted(tips):
                        # What the default branch reaches has been read by then.
                        self._walk(tip, None if tip == main else main, readable)
                # What no ref reaches is flagged there.
                self._read_refs(look)
        finally:
            self._attempt.done.traffic = self._client.traffic

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """See :class:`sync_pipeline.sync.reconcile.Healing`."""
        try:
            with self._visit.watched():
                self._look()
                singles = SingleReader(self._client, self._visit.project_id)
                gone = {one.natural_key for one in found if singles.is_commit_gone(one.natural_key)}
                with self._database.connection() as conn:
                    # What a branch or a tag leads to is there, whatever its own address answers.
                    return gone - refs.reached(conn, self._repo_id, gone)
        finally:
            self._attempt.done.traffic = self._client.traffic

    def _look(self) -> project.ProjectInfo:
        look = self._visit.look()
        # Raises: a window of its own waits until it is switched on.
        self._visit.is_disabled(self._attempt)
        return look

    # -- days and details ---------------------------------------------------------------------------------

    def _read_window(self, readable: TimeWindow) -> None:
        """A job with a window: its refs are covered by now; its days are read again where that is asked for,
        which refreshes rows and proves nothing."""
        window = self._attempt.claim.window
        if not isinstance(window, TimeWindow):
            return
        part = overlap(window, readable)
        self._attempt.done.beyond_head = part is None
        if part is None:
            return
        if self._attempt.rereads:
            self._read_days(part, part)
        with self._attempt.lease() as lease:
            self._attempt.write(lease, lambda conn, batch_id: Counts(), window=part, covered=(part,))

    def _read_days(self, days: TimeWindow, window: TimeWindow) -> None:
        """Store again what was committed in ``days``, in batches of ``window``.

        The server lists what any ref reaches there, hidden ones (of merge requests, of pipelines) as well. So
        a row is stored if it has a row already, or if the history of a branch or tag lacks it."""
        with self._database.connection() as conn:
            wanted = set(comparison.unstored_commits(conn, self._repo_id))

        def store(lease: Lease, batch: CommitBatch) -> int:
            with self._database.connection() as conn:
                stored = commits.stored(conn, self._repo_id, [row.sha for row in batch.rows])
            kept = stored | _within(batch.rows, wanted)
            rows = tuple(row for row in batch.rows if row.sha in kept)
            owed = tuple(one for one in batch.obligations if one.natural_key in kept)
            self._store(lease, replace(batch, rows=rows, obligations=owed), window)
            return len(batch.rows)

        pages = self._reader.read_days(days)
        store_in_chunks(pages, self._attempt.lease, store, self._rows, [self._attempt])

    def _settle_obligations(self) -> None:
        """Try again to read the statistics that are owed from earlier visits."""
        with self._database.connection() as conn:
            due = quarantine.due(conn, self._repo_id, self._attempt.job_type, OBLIGATIONS_PER_RUN)
        for item in due:
            batch = self._settled(item.natural_key, item.detail)
            with self._attempt.lease() as lease:
                before = self._attempt.done.counts.inserted
                self._store(lease, batch, self._visit.readable(None))
                # Its parents may not be stored either.
                self._came_late = self._came_late or self._attempt.done.counts.inserted > before

    def _settled(self, sha: str, detail: str) -> CommitBatch:
        rows: tuple[CommitRow, ...] = ()
        owed: tuple[DeferredFetch, ...] = ()
        set_aside: tuple[QuarantinedRow, ...] = ()
        absent: tuple[str, ...] = ()
        try:
            row = self._reader.settle(sha)
            rows = (row,)
            if row.additions is None:
                owed += (DeferredFetch(sha, "stats", "the server sent no numbers of lines"),)
            if row.parents is None:
                owed += (DeferredFetch(sha, "parents", "the server sent no parents"),)
        except RowUnreadable as error:
            set_aside = (quarantined(sha, error),)
            owed = (DeferredFetch(sha, detail, str(error)),)
        except SyncError as error:
            if error.code not in _STILL_OWED:
                raise
            if error.code == "no_object" and detail == "parents":
                # What merge requests list stays a fact; nobody can read more of it.
                absent = (sha,)
            else:
                owed = (DeferredFetch(sha, detail, str(error)),)
        return CommitBatch(None, None, 1, None, rows, False, False, None, set_aside, owed, absent)


def _evidence(batch: CommitBatch) -> Evidence:
    """Where a batch was read. A replay reads the time in which its commits were committed."""
    if batch.tip is not None:
        without = f" without {batch.covered[:12]}" if batch.covered else ""
        position = f"page {batch.page} of the commits of {batch.tip[:12]}{without}"
    elif batch.date is not None:
        position = f"page {batch.page} of the commits by date"
    else:
        position = "commits by name"
    times = [row.committed_at for row in batch.rows if row.committed_at is not None]
    return Evidence(position, span(times))


def _aside_key(ref: refs.StoredRef) -> str:
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
