"""Branches and tags: one complete listing of every ref and its commit.

Belongs here: reading both lists so that no ref is missed while they change. Does not belong here: which refs
moved since the last time, because that needs the stored refs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sync_pipeline.core.errors import Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.core.gitlab_rows import RefKind, RefListing, RefRow
from sync_pipeline.core.model import QuarantinedRow
from sync_pipeline.sources.gitlab.fields import Fields, payload, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED, UnreadableRow, is_splittable
from sync_pipeline.sources.gitlab.paging import pages, rows
from sync_pipeline.sources.gitlab.transport import Client, project_path

# By name, and by keyset if the server can: then a deleted ref hides no other one.
_LISTS: Mapping[RefKind, tuple[str, Mapping[str, str]]] = {
    RefKind.BRANCH: ("branches", {"sort": "name_asc"}),
    RefKind.TAG: ("tags", {"order_by": "name", "sort": "asc"}),
}
_MAX_PASSES = 5
# Bytes: the database finds refs by their name, and an index takes no more than 2,700.
_LONGEST_NAME = 2000


@dataclass
class _Pass:
    """The result of one pass over the list of one kind of ref."""

    rows: dict[str, RefRow] = field(default_factory=dict)
    quarantined_rows: list[QuarantinedRow] = field(default_factory=list)
    unreadable: list[UnreadableRow] = field(default_factory=list)
    date: datetime | None = None
    by_number: bool = False
    is_nameless: bool = False


class RefReader:
    """Reads the refs of one project."""

    def __init__(self, client: Client, project_id: int) -> None:
        self._client = client
        self._project_id = project_id

    def listing(self) -> RefListing:
        """All branches and tags. A project without a repository has none. Raises as the transport does, and
        Transient if the lists change too fast for two equal passes.
        """
        found = {kind: self._whole(kind) for kind in RefKind}
        dates = [one.date for one in found.values() if one.date is not None]
        return RefListing(
            tuple(row for one in found.values() for row in one.rows.values()),
            min(dates, default=None),
            tuple(row for one in found.values() for row in one.quarantined_rows),
            frozenset(kind for kind, one in found.items() if one.unreadable or one.is_nameless),
        )

    def is_there(self, kind: RefKind, name: str) -> bool:
        """Whether the server has this ref, requested by name. Raises as the transport does."""
        path = project_path(self._project_id, "repository", _LISTS[kind][0], name)
        try:
            self._client.get(path)
        except SourceGone as error:
            if error.code not in ("no_object", "no_route", "no_repository"):
                raise
            return False
        return True

    def leads_to(self, tip: str, other: str) -> bool:
        """Whether the commit ``tip`` reaches everything that the commit ``other`` reaches; False if the
        server lacks one of them. Raises as the transport does.
        """
        path = project_path(self._project_id, "repository", "commits")
        try:
            answer = self._client.get(path, {"ref_name": f"{tip}..{other}", "per_page": 1})
            if rows(answer, path):
                return False
            # A range with a deleted commit may be empty as well.
            self._client.get(f"{path}/{other}")
        except (SourceGone, Permanent) as error:
            if error.code not in ("no_object", "bad_request"):
                raise
            return False
        return True

    def _whole(self, kind: RefKind) -> _Pass:
        """One kind of ref. Page numbers shift when a ref is deleted, so the pages are read until two passes
        agree.
        """
        before: list[tuple[str, str]] | None = None
        for _ in range(_MAX_PASSES):
            found = self._pass(kind)
            now = [(row.name, row.tip) for row in found.rows.values()]
            if not found.by_number or now == before:
                return found
            before = now
        raise Transient("the refs change too fast to be listed", code="unstable")

    def _pass(self, kind: RefKind) -> _Pass:
        name, order = _LISTS[kind]
        path = project_path(self._project_id, "repository", name)
        try:
            try:
                return self._read(kind, path, {**order, "pagination": "keyset"})
            except (Permanent, Transient) as error:
                # Servers that support keyset paging for other lists only refuse it. A ref that the server
                # cannot list can be skipped by page number only.
                if error.code != "bad_request" and not is_splittable(error):
                    raise
                return self._read(kind, path, order)
        except SourceGone as error:
            if error.code == "no_repository":
                return _Pass()
            raise

    def _read(self, kind: RefKind, path: str, params: Mapping[str, str]) -> _Pass:
        found = _Pass()
        by_number = by_keyset = False
        for number, page in enumerate(
            pages(self._client, path, params, empty_ends=True, unreadable=found.unreadable)
        ):
            found.date = found.date or page.date
            # The first page announces a second one even if there is none: only a second with rows counts.
            by_number = by_number or (number > 0 and bool(page.data))
            by_keyset = by_keyset or "page_token" in (page.next_query or {})
            for data in page.data:
                try:
                    row = _ref(kind, data)
                    found.rows[row.name] = row
                except RowUnreadable as error:
                    found.quarantined_rows.append(quarantined(f"{kind}:{_name(data)}", error))
                    found.is_nameless = found.is_nameless or _name(data) is None
        found.by_number = bool(found.unreadable) or (by_number and not by_keyset)
        for one in found.unreadable:
            found.quarantined_rows.append(QuarantinedRow(f"{kind}:?{one.index}", UNLISTED, one.error, b""))
        return found


def _name(data: Any) -> str | None:
    name = data.get("name") if isinstance(data, dict) else None
    return name if isinstance(name, str) else None


def _ref(kind: RefKind, data: Any) -> RefRow:
    fields = Fields(data)
    name = fields.text("name")
    commit = Fields(fields.object("commit") or {})
    tip = commit.sha("id")
    if name is None or tip is None:
        raise RowUnreadable(f"the {kind} has no name or leads to no commit", payload=payload(data))
    if len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
        raise RowUnreadable(f"the name of the {kind} is too long", payload=payload(data))
    return RefRow(
        kind=kind,
        name=name,
        tip=tip,
        target=fields.sha("target") or tip,
        is_default=fields.boolean("default") is True,
        is_protected=fields.boolean("protected") is True,
        created_at=fields.moment("created_at"),
        message=fields.text("message"),
        flags=fields.sorted_flags(),
        raw=fields.data,
    )
