"""Which rows of the list of all refs are facts, and how long that list is worth its requests.

Belongs here: the decision about each row, as the parents of wanted commits say. The list also has commits
that only hidden refs reach, of merge requests and of pipelines. Does not belong here: what is stored already
(:mod:`sync_pipeline.facts.commits`), and the proof.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, KeysView, Sequence

from sync_pipeline.core.gitlab_rows import CommitRow

# Rows that wait for a child. Where clocks were wrong, git lists a parent before its child.
_MAX_WAITING = 2000
_COUNTED_PAGES = 10


class Candidates:
    """Commits of a list in any order, of which the ``wanted`` ones and their ancestors are facts."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = set(wanted)
        self._waiting: dict[str, CommitRow] = {}
        self._shares: deque[tuple[int, int]] = deque(maxlen=_COUNTED_PAGES)

    def take(self, rows: Sequence[CommitRow], seen: Collection[str] = ()) -> list[CommitRow]:
        """The rows that are facts, among ``rows`` and those that waited. Their parents are wanted from then
        on. Commits that were ``seen`` before are neither wanted nor followed."""
        self.wanted -= set(seen)
        self._waiting |= {row.sha: row for row in rows if row.sha not in seen}
        found: dict[str, CommitRow] = {}
        todo = [sha for sha in self._waiting if sha in self.wanted]
        while todo:
            row = self._waiting.pop(todo.pop(), None)
            if row is None:
                continue
            found[row.sha] = row
            self.wanted.discard(row.sha)
            parents = set(row.parents or ()).difference(seen, found)
            self.wanted |= parents
            todo += parents & self._waiting.keys()
        self._shares.append((len(found), len(rows)))
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return list(found.values())

    @property
    def waiting(self) -> KeysView[str]:
        """The names of rows that wait for a child."""
        return self._waiting.keys()

    @property
    def is_worth_more(self) -> bool:
        """Whether the next page of the list costs less than a request for each wanted commit. It does not
        where fewer than half of the last rows were facts: of ten pages, or of as many as are wanted."""
        counted = min(_COUNTED_PAGES, len(self.wanted))
        last = list(self._shares)[-counted:]
        found, count = (sum(column) for column in zip(*last, strict=True)) if last else (0, 0)
        return bool(self.wanted) and (len(last) < counted or found * 2 >= count)
