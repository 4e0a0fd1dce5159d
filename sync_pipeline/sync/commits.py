"""Commits of a GitLab project: one attempt, from the listing of refs to coverage.

Belongs here: what a visit, a retry and a repair read, and what follows once everything that any ref reaches
is stored. Coverage then reaches to the time of the listing. Dates prove nothing here: git stops a
date-limited walk at the first old-dated commit. Does not belong here: how the history of the refs is read
(:mod:`sync_pipeline.sync.commit_history`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sync_pipeline.core.errors import AccessDenied, Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.core.gitlab_rows import CommitPage, CommitRow, RefKind, RefListing, RefRow
from sync_pipeline.core.model import (
    Difference,
    Evidence,
    Page,
    QuarantinedRow,
    TimeWindow,
)
from sync_pipeline.core.windows import overlap
from sync_pipeline.facts import commits, comparison, quarantine, refs
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.ledger import watermarks
from sync_pipeline.policy.freshness import is_worth_an_event
from sync_pipeline.sources.gitlab import project
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import Fields, commit, is_sha, quarantine_key, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED
from sync_pipeline.sources.gitlab.refs import RefReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import DEFERRED_PER_VISIT, Attempt
from sync_pipeline.sync.chunks import store_in_chunks
from sync_pipeline.sync.commit_graph import Candidates
from sync_pipeline.sync.commit_history import CommitHistory, key_of
from sync_pipeline.sync.commit_pages import CommitPages
from sync_pipeline.sync.pages import open_batch
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.retry import RetryResult

_LISTINGS = 3
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
        self._pages = CommitPages(attempt, self._reader)
        attempt.meter = lambda: client.traffic
        self._all_gone = False
        self._came_late = False
        self._is_repair = False
        self._is_recalled = False

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        with self._visit.watched():
            self._work()

    def _work(self) -> None:
        project_info, listing = self._begin()
        if self._visit.is_disabled(self._attempt):
            return
        if self._attempt.is_incremental:
            self._fetch_deferred()
        readable = self._read_refs(project_info, listing)
        if readable is not None:
            self._read_window(readable)
        detail = "every branch and tag is gone; what is stored stays" if self._all_gone else None
        activity_at = readable.until if readable and self._is_recalled else None
        self._visit.record(
            self._attempt, complete=readable is not None, detail=detail, activity_at=activity_at
        )

    # -- refs ---------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[project.ProjectInfo, RefListing | None]:
        """The project, and the first listing of refs if it was read. A listing that shows moved refs of the
        registered project saves the request for the project, but for one each hour."""
        recalled = None
        if self._attempt.is_incremental:
            recalled = self._visit.recall_project()
        if recalled is None:
            return self._visit.check_project(), None
        begun = self._visit.looked_at
        try:
            listing = RefReader(self._client, self._visit.project_id).listing()
        except Permanent as error:
            if isinstance(error, AccessDenied) and error.is_of_the_token:
                raise
            # The project tells why.
            return self._visit.check_project(), None
        self._is_recalled = self._shows_moves(listing, recalled.path)
        if self._is_recalled:
            return recalled, listing
        found = self._visit.check_project()
        # The listing shows the refs as they were when the visit began.
        self._visit.looked_at = min(begun, self._visit.looked_at)
        return found, listing

    def _shows_moves(self, listing: RefListing, path: str) -> bool:
        """Whether a branch or tag has moved, in the repository that is stored. Equal commits have the same
        history, so a repository that took its place has none of those that are stored."""
        with self._database.connection() as conn:
            changes = refs.changes(conn, self._repo_id, listing.refs)
            if not changes.new and all(one.old_tip == one.new_tip for one in changes.changed.values()):
                return False
            near = {sha for ref in listing.refs for sha in (ref.tip, *_parents_of_tip(ref))}
            is_same = bool(commits.stored(conn, self._repo_id, list(near)))
        return is_same and all(_is_at(path, ref) for ref in listing.refs)

    def _read_refs(self, info: project.ProjectInfo, listing: RefListing | None = None) -> TimeWindow | None:
        """Make everything complete that any ref reaches; returns the time that is covered then. None where
        the source shows an empty repository that was none before. ``listing``: the first one, if it was
        read."""
        given_up: set[str] = set()
        for _ in range(_LISTINGS):
            reader = RefReader(self._client, self._visit.project_id)
            listing = listing or reader.listing()
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
            listing = None
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
        history = CommitHistory(self._attempt, self._pages, stored, readable, given_up)
        history.read()
        if history.failures:
            raise history.failures[0]
        if history.lost:
            return None, history.lost
        self._find_unlisted(readable)
        without_history = [ref for ref in history.refs if ref.tip in given_up and ref.covered_tip != ref.tip]
        if self._attempt.is_incremental:
            if not without_history:
                self._store_of_merge_requests(readable)
            self._read_parents(readable)
        self._quarantine(without_history, readable)
        tips = [ref.tip for ref in history.refs]
        self._conclude(readable, listing.date, history.known, deleted, tips, whole=not without_history)
        return readable, set()

    def _quarantine(self, without_history: Sequence[refs.StoredRef], readable: TimeWindow) -> None:
        """Put the refs whose history the server does not give into quarantine, and take the others out."""
        now = {
            key_of(ref): QuarantinedRow(
                key_of(ref),
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

    def _find_unlisted(self, readable: TimeWindow) -> None:
        """Every commit that no page could return is stored or in quarantine under its name now, so those
        without a name leave quarantine. Parents of commits that came late are requested by their names."""
        with self._database.connection() as conn:
            keys = refs.nameless(conn, self._repo_id, UNLISTED)
        asked: set[str] = set()
        while (keys or self._came_late) and len(asked) < _MAX_UNLISTED_PER_VISIT:
            with self._database.connection() as conn:
                found = set(refs.missing(conn, self._repo_id, _MAX_UNLISTED_PER_VISIT)) - asked
                found -= quarantine.open_keys(conn, self._repo_id, self._attempt.job_type)
            if not found:
                break
            self._pages.read_unlisted(readable, found)
            asked |= found
        if keys:
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
            self._pages.store_one(readable, CommitPage(None, some, quarantined=tuple(unreadable)))
            unreadable = []

    def _read_parents(self, readable: TimeWindow) -> None:
        """Read commits whose parents are unknown by their names, some in each visit."""
        with self._database.connection() as conn:
            todo = commits.without_parents(conn, self._repo_id, _PARENTS_EVERY, _MAX_PARENTS_PER_VISIT)
        for first in range(0, len(todo), _PARENTS_PER_BATCH):
            pages = [
                self._pages.read_by_name(sha, "parents") for sha in todo[first : first + _PARENTS_PER_BATCH]
            ]
            page = CommitPage(
                None,
                tuple(row for one in pages for row in one.rows),
                quarantined=tuple(row for one in pages for row in one.quarantined),
                deferred=tuple(fetch for one in pages for fetch in one.deferred),
                absent=tuple(sha for one in pages for sha in one.absent),
            )
            self._pages.store_one(readable, page)
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
            found = self._pages.facts.reached_again or (
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
        page = self._pages.read_by_name(sha, "stats")
        if page.rows:
            self._pages.store_one(readable, page)
        elif page.quarantined:
            # Nothing is deferred for a row that is not stored.
            self._pages.store_one(readable, replace(page, deferred=()))
        else:
            result.unread[sha] = page.deferred[0].error

    def _retry_nameless(
        self, tip: str, entries: Sequence[QuarantineEntry], readable: TimeWindow, result: RetryResult
    ) -> None:
        keys = [entry.natural_key for entry in entries]
        window = entries[0].window
        try:
            if is_sha(tip):
                self._pages.store_all(readable, self._reader.read_tip(tip))
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
            self._pages.facts.overriding = set(shas)
            left = set(shas)
            if len(left) > _MAX_READ_BY_NAME:
                left -= self._read_all(readable)
            for sha in sorted(left)[:_MAX_READ_BY_NAME]:
                self._pages.store_one(readable, self._pages.read_by_name(sha, "stats"))
            # This also flags what no ref reaches.
            self._read_refs(project_info)

    def _read_all(self, readable: TimeWindow) -> set[str]:
        """Read the list of all refs, and store again what is stored or missing; returns what was listed."""
        listed: set[str] = set()

        def noted() -> Iterator[CommitPage]:
            for page in self._reader.read_all():
                listed.update(row.sha for row in page.rows)
                yield page

        self._store_known(noted(), readable)
        return listed

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
        self._store_known(self._reader.read_days(days), window)

    def _store_known(self, pages: Iterator[CommitPage], window: TimeWindow) -> None:
        """Store the rows of ``pages`` that are stored already, or that the history of a ref lacks."""
        with self._database.connection() as conn:
            candidates = Candidates(comparison.unstored_commits(conn, self._repo_id))

        def store(page: CommitPage) -> int:
            with self._database.connection() as conn:
                known = commits.stored(conn, self._repo_id, [row.sha for row in page.rows])
            kept = known | {row.sha for row in candidates.take(page.rows)}
            rows = tuple(row for row in page.rows if row.sha in kept)
            deferred = tuple(one for one in page.deferred if one.natural_key in kept)
            self._pages.store(window, replace(page, rows=rows, deferred=deferred))
            return len(page.rows)

        store_in_chunks([self._attempt], pages, store, rows=self._attempt.settings.chunks.rows)

    def _fetch_deferred(self) -> None:
        """Try again to read what of commits could not be read at earlier visits."""
        with self._database.connection() as conn:
            due = quarantine.due(conn, self._repo_id, self._attempt.job_type, DEFERRED_PER_VISIT)
        for item in due:
            before = self._attempt.done.counts.inserted
            self._pages.store_one(
                self._visit.readable(None), self._pages.read_by_name(item.natural_key, item.detail)
            )
            # Its parents may not be stored either.
            self._came_late = self._came_late or self._attempt.done.counts.inserted > before


def _parents_of_tip(ref: RefRow) -> Sequence[str]:
    """The parents of the commit that ``ref`` leads to, as the listing shows them."""
    found = Fields(Fields(ref.raw).object("commit") or {}).items("parent_ids")
    return [sha for sha in found if is_sha(sha)]


def _is_at(path: str, ref: RefRow) -> bool:
    """Whether the address of ``ref`` is below the project's path, as far as the server shows one."""
    address = Fields(ref.raw).text("web_url") or ""
    return "/-/" not in address or f"/{path}/-/" in address
