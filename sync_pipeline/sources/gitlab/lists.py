"""Flat lists of a project: rows without children, read page by page to the end.

Belongs here: the list of each job type that is no more than that, and its reader. Does not belong here: what
a row means; each has a module with its parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sync_pipeline.core.errors import RowUnreadable, SourceGone, Transient
from sync_pipeline.core.model import JobType, QuarantinedRow
from sync_pipeline.sources.gitlab.fields import payload, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED, UnreadableRow
from sync_pipeline.sources.gitlab.paging import pages, rows
from sync_pipeline.sources.gitlab.releases import release
from sync_pipeline.sources.gitlab.transport import Client, project_path

_MAX_PASSES = 5
# An index entry of PostgreSQL is at most 2,700 bytes.
_MAX_KEY_BYTES = 2000


@dataclass(frozen=True, slots=True)
class RowList:
    """A list below the address of a project. ``path`` leads to it, and with the value of the field ``key`` to
    one row. ``parse`` makes a record of a row and raises RowUnreadable. ``order`` is the query for a stable
    order: oldest first, so that a new row moves no other."""

    path: tuple[str, ...]
    key: str
    parse: Callable[[Any], Any]
    order: Mapping[str, str] = field(default_factory=dict)


LISTS: Mapping[JobType, RowList] = {
    JobType.RELEASES: RowList(("releases",), "tag_name", release, {"order_by": "created_at", "sort": "asc"}),
}
"""The list of each job type that is a flat list."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list; ``number`` counts from 1. ``complete``: with it every row of the list was read."""

    number: int
    rows: tuple[Any, ...]
    quarantined: tuple[QuarantinedRow, ...]
    complete: bool = False


class ListReader:
    """Reads a flat list of one project."""

    def __init__(self, client: Client, project_id: int, row_list: RowList) -> None:
        self._client = client
        self._project_id = project_id
        self._list = row_list

    def read(self) -> Iterator[ListPage]:
        """Every row. Pages by number shift when a row goes away, so a list of several pages is read until two
        passes agree. Raises as the transport does, and Transient where the list changes too fast."""
        before: list[Any] | None = None
        for _ in range(_MAX_PASSES):
            keys: list[Any] = []
            number = 0
            for page in self._pages(keys):
                number = page.number
                yield page
            if number <= 1 or keys == before:
                yield ListPage(number + 1, (), (), complete=True)
                return
            before = keys
        raise Transient("the list changes too fast to be read", code="unstable")

    def is_gone(self, key: str) -> bool:
        """True if a row that is asked for by its key is not there. Raises as the transport does where the
        server does not say."""
        try:
            self._client.get(project_path(self._project_id, *self._list.path, key))
        except SourceGone as error:
            if error.code not in ("no_object", "no_route"):
                raise
            # An old server without this address proves nothing about the row.
            return error.code == "no_object"
        return False

    def _pages(self, keys: list[Any]) -> Iterator[ListPage]:
        """The pages of one pass; the keys of their rows are added to ``keys``."""
        path = project_path(self._project_id, *self._list.path)
        unreadable: list[UnreadableRow] = []
        for number, answer in enumerate(
            pages(self._client, path, self._list.order, unreadable=unreadable), 1
        ):
            found: list[Any] = []
            quarantined_rows = [
                QuarantinedRow(f"?{one.index}", UNLISTED, one.error, b"") for one in unreadable
            ]
            unreadable.clear()
            for index, data in enumerate(rows(answer, path)):
                key = data.get(self._list.key) if isinstance(data, dict) else None
                keys.append(key)
                try:
                    _require_storable(key, data)
                    found.append(self._list.parse(data))
                except RowUnreadable as error:
                    quarantined_rows.append(quarantined(str(key or f"?{number}:{index}"), error))
            yield ListPage(number, tuple(found), tuple(quarantined_rows))


def _require_storable(key: Any, data: Any) -> None:
    """Raises RowUnreadable for a key that no column can hold."""
    text = str(key)
    if "\0" in text or len(text.encode("utf-8", "surrogatepass")) > _MAX_KEY_BYTES:
        raise RowUnreadable("the key contains NUL or is too long", payload=payload(data))
