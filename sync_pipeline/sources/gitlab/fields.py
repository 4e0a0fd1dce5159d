"""From the JSON of GitLab to typed values: one object at a time, with repairs as flags.

Belongs here: reading a field, a person, a date, a commit. Does not belong here: which objects there are and
how they are requested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sync_pipeline.core.errors import RowUnreadable
from sync_pipeline.core.gitlab_rows import CommitRow, Person
from sync_pipeline.core.model import QuarantinedRow
from sync_pipeline.sources.gitlab.responses import redact

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Python also accepts forms that no server sends, and offsets such as +13:75.
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]| UTC| ?[+-]\d\d:?[0-5]\d)")
_LONGEST_KEY = 500
_LARGEST = 2**63 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")


def moment(text: object) -> datetime | None:
    """An ISO 8601 time with an offset, in UTC; None for anything else, and for times outside the years 1 to
    9999.
    """
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        # Ruby's own form has a blank before the zone, and UTC as its name.
        day, clock = text[:10], text[11:].upper().replace("UTC", "Z").replace(" ", "")
        return datetime.fromisoformat(f"{day}T{clock}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def is_sha(text: object) -> bool:
    """Whether ``text`` is the full name of a git object."""
    return isinstance(text, str) and _SHA.fullmatch(text) is not None


class Fields:
    """Reads the fields of one object. A field of another type than expected reads as None and leaves the flag
    ``bad_type``. RowUnreadable is raised only for fields that the row needs.
    """

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise RowUnreadable("the row is no object", payload=payload(data))
        self.data: Mapping[str, Any] = data
        self.flags: set[str] = set()

    def _typed(self, name: str, kind: type) -> Any:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.flags.add("bad_type")
            return None
        return value

    def text(self, name: str) -> str | None:
        """A text as received, with a flag if PostgreSQL cannot store it."""
        value: str | None = self._typed(name, str)
        if value is not None:
            self.note_text(value)
        return value

    def note_text(self, value: str) -> None:
        """Flag a text that PostgreSQL cannot store."""
        if "\x00" in value:
            self.flags.add("control_characters")
        if _SURROGATE.search(value):
            self.flags.add("invalid_unicode")

    def integer(self, name: str) -> int | None:
        """A whole number of at most 64 bits; any other value is flagged."""
        value: int | None = self._typed(name, int)
        if value is not None and not -_LARGEST - 1 <= value <= _LARGEST:
            self.flags.add("bad_type")
            return None
        return value

    def boolean(self, name: str) -> bool | None:
        """True, False or None."""
        value: bool | None = self._typed(name, bool)
        return value

    def sha(self, name: str) -> str | None:
        """The name of a git object."""
        value = self.data.get(name)
        if value is None or value == "":
            return None
        if not is_sha(value):
            self.flags.add("bad_type")
            return None
        return str(value)

    def moment(self, name: str) -> datetime | None:
        """A time; any other value is flagged."""
        value = self.data.get(name)
        found = moment(value)
        if found is None and value is not None:
            self.flags.add("bad_date")
        return found

    def items(self, name: str) -> list[Any]:
        """A list; empty if there is none."""
        found: list[Any] | None = self._typed(name, list)
        return found or []

    def object(self, name: str) -> Mapping[str, Any] | None:
        """An object."""
        found: Mapping[str, Any] | None = self._typed(name, dict)
        return found

    def person(self, name: str) -> Person | None:
        """An embedded account."""
        return person(self.object(name))

    def people(self, name: str) -> tuple[Person, ...]:
        """Embedded accounts."""
        return tuple(found for found in map(person, self.items(name)) if found is not None)

    def required(self, name: str) -> int:
        """A whole number that the row needs."""
        value = self.integer(name)
        if value is None:
            found = "no" if self.data.get(name) is None else "no usable"
            raise RowUnreadable(f"the row has {found} {name}", payload=payload(self.data))
        return value

    def sorted_flags(self) -> tuple[str, ...]:
        """The flags so far."""
        return tuple(sorted(self.flags))


def person(data: Any) -> Person | None:
    """An account; None without an object, or without a name in it."""
    if not isinstance(data, dict):
        return None
    fields = Fields(data)
    found = Person(fields.integer("id"), fields.text("username"), fields.text("name"))
    return found if found.user_id is not None or found.username is not None else None


def commit(data: Any) -> CommitRow:
    """A commit. Raises RowUnreadable if it has no name."""
    fields = Fields(data)
    sha = fields.sha("id")
    if sha is None:
        raise RowUnreadable("the commit has no id", payload=payload(data))
    listed = fields.data.get("parent_ids")
    parents: tuple[str, ...] | None = None
    if isinstance(listed, list) and all(map(is_sha, listed)):
        parents = tuple(listed)
    elif listed is not None:
        # An unreadable one leaves the others without their position.
        fields.flags.add("bad_type")
    stats = Fields(fields.object("stats") or {})
    row = {
        "author_name": fields.text("author_name"),
        "author_email": fields.text("author_email"),
        "authored_at": fields.moment("authored_date"),
        "authored_raw": fields.text("authored_date"),
        "committer_name": fields.text("committer_name"),
        "committer_email": fields.text("committer_email"),
        "committed_at": fields.moment("committed_date"),
        "committed_raw": fields.text("committed_date"),
        "title": fields.text("title"),
        "message": fields.text("message"),
        "web_url": fields.text("web_url"),
    }
    return CommitRow(
        sha=sha,
        parents=parents,
        additions=stats.integer("additions"),
        deletions=stats.integer("deletions"),
        flags=fields.sorted_flags(),
        raw=fields.data,
        **row,  # type: ignore[arg-type]  # names and types are those above
    )


def payload(data: Any) -> bytes:
    """``data`` as bytes for quarantine, without secrets."""
    return redact(json.dumps(data, default=str)).encode("utf-8", "backslashreplace")


def quarantine_key(natural_key: str) -> str:
    """``natural_key`` in a form that any database stores."""
    return natural_key.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:_LONGEST_KEY]


def quarantined(natural_key: str, error: RowUnreadable) -> QuarantinedRow:
    """The row of ``error`` for quarantine, with its :func:`quarantine_key`."""
    return QuarantinedRow(quarantine_key(natural_key), error.code, str(error), error.payload)
