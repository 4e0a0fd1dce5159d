"""The history of the refs of one listing: read until the stored graph proves that it is whole.

Belongs here: how missing commits are read with few requests, and when a ref is covered. Does not belong here:
the listing itself and what follows from it (:mod:`sync_pipeline.sync.commits`).

The proof is one query: every parent of a commit that was read in this generation was read as well. Reading
only has to bring the rows. If many tips are new, the list of all refs brings them a hundred at a time. Walks
bring the rest, from the default branch first and from the others side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from sync_pipeline.core.errors import Permanent, SyncError, Transient
from sync_pipeline.core.gitlab_rows import CommitPage, RefKind
from sync_pipeline.core.model import DeferredFetch, TimeWindow
from sync_pipeline.facts import commits, refs
from sync_pipeline.sources.gitlab.children import OWN_ERRORS, parallel_map
from sync_pipeline.sources.gitlab.fields import is_sha, quarantine_key
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.chunks import retry_on_lease_loss, store_in_chunks
from sync_pipeline.sync.commit_graph import Candidates
from sync_pipeline.sync.commit_pages import CommitPages

# A walk costs one request or more. So for more new tips than these the list of all refs is cheaper, although
# it may have many commits of hidden refs.
_MAX_WALKED = 5
# Gaps in the list of all refs, which a push or a deletion shifts, are requested by name up to this number.
_MAX_NAMED = 20
# Pages of the list that are stored at once, where few of their rows are facts.
_MAX_JOINED = 10
# Errors of the history of one ref: the others are read anyway. If more refs have them, the server is the
# cause.
_OF_ONE_REF = OWN_ERRORS - {"denied"}
_MAX_FAILED_REFS = 2


@dataclass
class _Reading:
    """A walk that is being read, and its pages."""

    walk: commits.Walk
    pages: Iterator[CommitPage]


class CommitHistory:
    """Makes the history of ``listed`` refs whole. The tips in ``given_up`` are not tried.

    :meth:`read` sets the rest: the tips that were whole before (``known``), and those whose history the
    server does not give (``lost``, or added to ``given_up``). ``failures`` are the errors of single refs.
    """

    def __init__(
        self,
        attempt: Attempt,
        pages: CommitPages,
        listed: Sequence[refs.StoredRef],
        window: TimeWindow,
        given_up: set[str],
    ) -> None:
        self._attempt = attempt
        self._database = attempt.database
        self._repo_id = attempt.repo.repo_id
        self._generation = attempt.claim.generation
        self._pages = pages
        # The default branch first: the others are read against it.
        self.refs = sorted(listed, key=lambda ref: (not ref.is_default, ref.kind is RefKind.TAG, ref.name))
        self._window = window
        self.given_up = given_up
        self.known: set[str] = set()
        self.lost: set[str] = set()
        self.failures: list[SyncError] = []
        # Deferred fetches of rows of the list that wait for a child.
        self._late: dict[str, DeferredFetch] = {}
        self._main = self.refs[0].tip if self.refs else None
        # Names that the server may take for the id of a commit, or the other way round.
        self._like_ids = {ref.name for ref in self.refs if is_sha(ref.name)}

    def read(self) -> None:
        """Read what the refs reach and what is not stored, and cover those whose history is whole then.

        An error in the history of one ref is kept in ``failures``, and the others are read. Raises all other
        errors."""
        todo = dict.fromkeys(ref.tip for ref in self.refs if ref.covered_tip != ref.tip)
        tips = [tip for tip in todo if tip not in self.given_up]
        if not tips:
            return
        with self._database.connection() as conn:
            self.known = commits.covered_tips(conn, self._repo_id, self._generation, tips)
            tips = [tip for tip in tips if tip not in self.known]
            if not tips:
                return
            holes = commits.holes(conn, self._repo_id, self._generation, tips)
            list_begun = commits.is_list_begun(conn, self._repo_id, self._generation)
        if list_begun or len(holes.intersection(tips)) > _MAX_WALKED:
            is_whole = self._read_list(tips, holes)
        else:
            is_whole = not holes and self._complete(tips)
        if not is_whole:
            self._walk_tips(tips)

    # -- the list of all refs -------------------------------------------------------------------------------

    def _read_list(self, tips: Sequence[str], holes: set[str]) -> bool:
        """Read the list of all refs as long as that is worth its requests. Returns whether the history of
        ``tips`` is whole then.

        Where the server cannot give the list, the walks bring everything."""
        walk = self._begin("", None)
        candidates = Candidates(holes)
        last: list[CommitPage] = []

        def store(page: CommitPage) -> int:
            last[:] = [page]
            return self._pages.store(self._window, page, walk)

        facts = self._facts(walk, candidates)
        try:
            store_in_chunks([self._attempt], facts, store, rows=self._attempt.settings.chunks.rows)
        except (Permanent, Transient) as error:
            if not _is_of_one_ref(error):
                raise
            last.clear()
        with self._attempt.fenced() as conn:
            # The walks bring the rest, so the next visit does not continue the list.
            commits.record_page(conn, walk.walk_id, next_page=1, tip_read=False)
        if not candidates.wanted and self._complete(tips):
            return True
        holes = self._holes(tips)
        if last and last[0].next_number is None:
            holes = self._fill(tips, holes, walk, candidates)
        return not holes and self._complete(tips)

    def _facts(self, walk: commits.Walk, candidates: Candidates) -> Iterator[CommitPage]:
        """The facts of the list of all refs, as many pages in one as a chunk has rows. An error comes behind
        the rows that were read before it."""
        most = self._attempt.settings.chunks.rows
        # While this reads, the facts that were yielded last are stored. All before them are.
        yielded: set[str] = set()
        facts: CommitPage | None = None
        failure: SyncError | None = None
        try:
            for page in self._pages.reader.read_all(walk.next_page, lambda: len(candidates.wanted)):
                facts = _joined(facts, self._take(candidates, page, yielded | _shas(facts)))
                if not candidates.is_worth_more:
                    break
                if len(facts.rows) >= most or facts.number - (facts.first_number or 0) >= _MAX_JOINED - 1:
                    yielded = _shas(facts)
                    yield facts
                    facts = None
        except SyncError as error:
            failure = error
        if facts is not None:
            yield facts
        if failure is not None:
            raise failure

    def _take(self, candidates: Candidates, page: CommitPage, unstored: Collection[str] = ()) -> CommitPage:
        """The rows of ``page`` that are facts, and those that waited for them. ``unstored`` facts were taken
        before."""
        named = {sha for row in page.rows for sha in (row.sha, *(row.parents or ()))}
        with self._database.connection() as conn:
            seen = commits.seen(conn, self._repo_id, self._generation, named | candidates.wanted)
        rows = candidates.take(page.rows, seen.union(unstored))
        self._late |= {one.natural_key: one for one in page.deferred}
        deferred = tuple(self._late.pop(row.sha) for row in rows if row.sha in self._late)
        self._late = {sha: one for sha, one in self._late.items() if sha in candidates.waiting}
        return replace(page, rows=tuple(rows), deferred=deferred)

    def _fill(
        self, tips: Sequence[str], holes: set[str], walk: commits.Walk, candidates: Candidates
    ) -> set[str]:
        """Request the commits by name that a list read to its end lacks: a deletion shifts its rows to a page
        that was read. Returns the holes that are left."""
        asked: set[str] = set()
        while (todo := holes - asked) and len(asked | todo) <= _MAX_NAMED:
            asked |= todo
            read = partial(self._pages.read_by_name, detail="parents")
            found = parallel_map(read, sorted(todo), self._pages.reader.parallel)
            rows = tuple(row for page in found for row in page.rows)
            deferred = tuple(fetch for page in found if page.rows for fetch in page.deferred)
            candidates.wanted |= todo
            facts = self._take(candidates, CommitPage(None, rows, deferred=deferred, number=0))
            retry_on_lease_loss(partial(self._pages.store_one, self._window, facts, walk))
            holes = self._holes(tips)
        return holes

    # -- walks ----------------------------------------------------------------------------------------------

    def _walk_tips(self, tips: Sequence[str]) -> None:
        """Walk from each of ``tips`` whose history is not whole. The default branch is read first, and the
        others against its history, several at once."""
        by_tip = {ref.tip: ref for ref in reversed(self.refs)}
        base = None if self._main in self.given_up else self._main
        rewritten: bool | None = None if base else False
        if self._main in tips:
            main = by_tip[tips[0]]
            if not self._is_read(main.tip) and not self._walk_all({main.tip: main.covered_tip}):
                base, rewritten = None, False
        others = [tip for tip in tips if tip != self._main]
        while others:
            some = self._pages.reader.parallel()
            # A walk since then may have come through it.
            left = [tip for tip in others[:some] if not self._is_read(tip)]
            others = others[some:]
            if left and rewritten is None:
                rewritten = self._is_rewritten(self.refs[0])
            # Where all of history was rewritten, old tips have nothing in common with the new ones.
            bases = {tip: base if rewritten else by_tip[tip].covered_tip or base for tip in left}
            whole = self._walk_all(bases)
            base = base or next(iter(whole), None)

    def _walk_all(self, bases: dict[str, str | None]) -> list[str]:
        """Walk from each of the tips without what its base reaches, side by side. Returns the tips whose
        history is whole then."""
        readings: dict[str, _Reading] = {}
        for tip, base in bases.items():
            base = None if base in self._like_ids else base
            names = [ref.full_name for ref in self.refs if ref.tip == tip] if tip in self._like_ids else []
            walk = self._begin(tip, base)
            pages = self._pages.reader.read_tip(
                tip,
                base,
                first_page=walk.next_page,
                tip_read=walk.tip_read,
                whole=partial(self._whole, tip),
                names=names,
                ahead=len(bases) == 1,
            )
            readings[tip] = _Reading(walk, pages)
        errors: dict[str, SyncError] = {}
        pages_by_tip = _side_by_side({tip: reading.pages for tip, reading in readings.items()})
        store = partial(self._store_walked, readings, errors)
        rows = self._attempt.settings.chunks.rows
        store_in_chunks([self._attempt], pages_by_tip, store, rows=rows)
        for tip, error in errors.items():
            self._note(tip, error)
        read = [tip for tip in bases if tip not in errors]
        return [tip for tip in read if self._is_whole(tip, readings[tip].walk)]

    def _store_walked(
        self,
        readings: dict[str, _Reading],
        errors: dict[str, SyncError],
        item: tuple[str, CommitPage | SyncError],
    ) -> int:
        tip, page = item
        if isinstance(page, SyncError):
            errors[tip] = page
            return 0
        reading = readings[tip]
        if page.base != reading.walk.covered:
            # The answer about the range could not be relied on: the tip is read whole.
            reading.walk = self._begin(tip, None)
        return self._pages.store(self._window, page, reading.walk)

    def _is_whole(self, tip: str, walk: commits.Walk) -> bool:
        """Whether the history of ``tip``, which was walked to its end, is whole. Commits that no page had are
        requested by name. Those that do not come then are known holes."""
        asked: set[str] = set()
        while not self._complete([tip]):
            with self._database.connection() as conn:
                holes = commits.holes_behind(conn, self._repo_id, self._generation, [tip]) - asked
            if not holes:
                raise Transient(
                    f"the server gives the history of commit {tip}, but not every commit of it",
                    code="incomplete",
                )
            self._pages.read_unlisted(self._window, holes, walk)
            asked |= holes
        return True

    def _note(self, tip: str, error: SyncError) -> None:
        """Note ``error`` of the walk from ``tip``. Raises it where it is not of this ref alone."""
        if error.code == "no_commit":
            # A ref that an earlier visit gave up needs no second listing.
            (self.given_up if self._was_given_up(tip) else self.lost).add(tip)
        elif _is_of_one_ref(error) and tip != self._main and len(self.failures) < _MAX_FAILED_REFS:
            self.failures.append(error)
        else:
            raise error

    def _was_given_up(self, tip: str) -> bool:
        with self._database.connection() as conn:
            keys = refs.quarantined_keys(conn, self._repo_id, without_history=True)
        return any(ref.tip == tip and key_of(ref) in keys for ref in self.refs)

    def _is_rewritten(self, main: refs.StoredRef) -> bool:
        """Whether ``main``, which is covered, no longer leads to where it led at the last visit."""
        with self._database.connection() as conn:
            return any(
                not refs.is_ancestor(conn, self._repo_id, old, new)
                for kind, name, old, new in refs.unrecorded_moves(conn, self._repo_id)
                if (kind, name) == (main.kind, main.name)
            )

    # -- the tables -----------------------------------------------------------------------------------------

    def _holes(self, tips: Sequence[str]) -> set[str]:
        with self._database.connection() as conn:
            return commits.holes(conn, self._repo_id, self._generation, tips)

    def _is_read(self, tip: str) -> bool:
        """Whether nothing is missing behind ``tip``; if so, its refs are covered."""
        with self._database.connection() as conn:
            if commits.holes_behind(conn, self._repo_id, self._generation, [tip]):
                return False
        return self._complete([tip])

    def _complete(self, tips: Sequence[str]) -> bool:
        """Whether the whole history of ``tips`` is stored; if so, their refs are covered."""
        with self._attempt.lease() as lease, self._attempt.fenced(lease) as conn:
            return commits.complete_history(conn, self._repo_id, self._generation, tips)

    def _whole(self, tip: str) -> tuple[int, bool]:
        """Where the walk from ``tip`` to the root goes on, and whether it has read ``tip``."""
        walk = self._begin(tip, None)
        return walk.next_page, walk.tip_read

    def _begin(self, tip: str, covered: str | None) -> commits.Walk:
        with self._attempt.fenced() as conn:
            return commits.begin_walk(
                conn, repo_id=self._repo_id, tip=tip, covered=covered, generation=self._generation
            )


def key_of(ref: refs.StoredRef) -> str:
    """The key of ``ref`` in quarantine."""
    return quarantine_key(f"{ref.kind}:{ref.name}")


def _joined(one: CommitPage | None, following: CommitPage) -> CommitPage:
    """Both pages of the list as one."""
    if one is None:
        return replace(following, first_number=following.number)
    rows, deferred = one.rows + following.rows, (*one.deferred, *following.deferred)
    return replace(following, rows=rows, deferred=deferred, first_number=one.first_number)


def _shas(page: CommitPage | None) -> set[str]:
    return set() if page is None else {row.sha for row in page.rows}


def _is_of_one_ref(error: SyncError) -> bool:
    """Whether the history of another ref may be read all the same. A server that says when to come back is at
    rest."""
    is_asked_later = isinstance(error, Transient) and error.retry_after is not None
    return error.code in _OF_ONE_REF and not is_asked_later


def _side_by_side(
    readings: dict[str, Iterator[CommitPage]],
) -> Iterator[tuple[str, CommitPage | SyncError]]:
    """The pages of all ``readings`` as they come, each with its key. An error ends its own reading only, and
    takes the place of the page."""
    if not readings:
        return
    with ThreadPoolExecutor(len(readings), thread_name_prefix="walks") as pool:
        coming: dict[Future[CommitPage | None], str] = {
            pool.submit(next, pages, None): key for key, pages in readings.items()
        }
        while coming:
            for done in wait(coming, return_when=FIRST_COMPLETED).done:
                key = coming.pop(done)
                try:
                    page = done.result()
                except (Permanent, Transient) as error:
                    yield key, error
                    continue
                if page is not None:
                    coming[pool.submit(next, readings[key], None)] = key
                    yield key, page
