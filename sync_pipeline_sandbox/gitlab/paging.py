"""Pages of a list and the headers that lead to the next one.

Belongs here: offset and keyset paging exactly as the REST contract has them, with their limits. Routes give
the
rows and the parameters that the server resolved; links carry all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sync_pipeline_sandbox.gitlab import parameters
from sync_pipeline_sandbox.gitlab.responses import offset_too_large

MAX_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of one page and its headers."""

    rows: list[Any]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Pager:
    """Paging for one request. ``url`` is what links point at, without a query; ``values`` are the parameters
    the server resolved, the path's own among them."""

    url: str
    values: Mapping[str, Any]
    total_limit: int = 10_000
    max_offset: int = 50_000

    @property
    def page(self) -> int:
        """Number of the page, from 1."""
        return max(1, int(self.values.get("page") or 1))

    @property
    def per_page(self) -> int:
        """Rows per page, at most 100."""
        asked = int(self.values.get("per_page") or 20)
        return min(MAX_PER_PAGE, asked) if asked > 0 else 20

    @property
    def start(self) -> int:
        """Rows before this page."""
        return (self.page - 1) * self.per_page

    def link(self, **changes: Any) -> str:
        """A link to this list with other parameters."""
        return f"{self.url}?{parameters.write(dict(self.values) | {'per_page': self.per_page} | changes)}"

    def over(
        self, rows: Sequence[Any], *, totals: bool = True, in_memory: bool = False, kind: str = ""
    ) -> Page:
        """One page of a list that is known whole. Totals go when it is too long; ``kind`` names a record type
        with an offset ceiling, beyond which Refusal (405) is raised."""
        if kind and self.page * self.per_page > self.max_offset:
            raise offset_too_large(self.max_offset, kind)
        few = len(rows) < self.total_limit if in_memory else len(rows) <= self.total_limit
        cut = list(rows[self.start : self.start + self.per_page])
        more = self.start + self.per_page < len(rows)
        return Page(cut, self.headers(more=more, total=len(rows) if totals and few else None))

    def unknown_length(self, rows: Sequence[Any]) -> Page:
        """A page of a list whose length nobody counts: a full page always announces the next."""
        return Page(list(rows), self.headers(more=len(rows) == self.per_page, total=None))

    def first_page(self, rows: Sequence[Any], total: int) -> Page:
        """The first page of branches or tags, whose headers the server makes up: there is always a page 2."""
        pages = total // self.per_page + 1
        return Page(list(rows[: self.per_page]), self.headers(more=True, total=total, pages=pages))

    def keyset(
        self, rows: Sequence[Any], following: Callable[[Any], dict[str, Any]], *, full_only: bool
    ) -> Page:
        """A keyset page from rows that begin after the key. ``following`` gives the parameters of the page
        after a row. ``full_only``: the next link is there only when the page is full; otherwise as long as it
        has any row."""
        cut = list(rows[: self.per_page])
        going = len(cut) == self.per_page if full_only else bool(cut)
        if not going:
            return Page(cut, {})
        return Page(cut, {"Link": f'<{self.link(page=None, **following(cut[-1]))}>; rel="next"'})

    def headers(self, *, more: bool, total: int | None, pages: int | None = None) -> dict[str, str]:
        """The headers of an offset page."""
        known = {
            "X-Per-Page": str(self.per_page),
            "X-Page": str(self.page),
            "X-Next-Page": str(self.page + 1) if more else "",
            "X-Prev-Page": str(self.page - 1) if self.page > 1 else "",
        }
        links = []
        if self.page > 1:
            links.append((self.page - 1, "prev"))
        if more:
            links.append((self.page + 1, "next"))
        links.append((1, "first"))
        if total is not None:
            count = pages if pages is not None else max(1, -(-total // self.per_page))
            known |= {"X-Total": str(total), "X-Total-Pages": str(count)}
            links.append((count, "last"))
        known["Link"] = ", ".join(f'<{self.link(page=page)}>; rel="{rel}"' for page, rel in links)
        return known
