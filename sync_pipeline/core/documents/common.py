"""The common parts of several documents: times, counts, windows, and the numbers of rows.

Belongs here: types that more than one command prints. Does not belong here: a whole document.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast
from uuid import UUID

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from sync_pipeline.core.model import Counts

# A datetime, or its ISO 8601 text: both are printed alike.
Time = Annotated[Any, WithJsonSchema({"type": "string", "format": "date-time"})]
Id = Annotated[UUID | str, WithJsonSchema({"type": "string"})]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Revision = Annotated[int, Field(ge=0, le=2**31 - 1)]
Outcome = Literal["success", "partial", "failed", "skipped", "cancelled"]


Document = TypeVar("Document")


class RevisionRange(TypedDict):
    """Revisions."""

    start_rev: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """First revision."""
    end_rev: Revision
    """Last revision, included; less than start_rev where there is none."""


class TimeRange(TypedDict):
    """A stretch of time."""

    since: Time
    """Start, in UTC; 1900-01-01 stands for the beginning of everything."""
    until: Time
    """End, in UTC, not included."""


WindowRange = RevisionRange | TimeRange


class ChangedRows(TypedDict):
    """How many rows arrived, by their fate."""

    inserted: Count
    updated: Count
    unchanged: Count
    """Rows that were stored already."""
    quarantined: Count
    """Rows that could not be read or stored."""


class RowCounts(ChangedRows):
    """All counts of rows."""

    rows_read: Count
    """Rows that arrived from the source."""
    poorer: Count
    """Rows that arrived with less than is stored and changed nothing."""


def changed_rows(counts: Counts) -> ChangedRows:
    """The counts as the documents of the runner have them."""
    return from_row(ChangedRows, counts)


def row_counts(counts: Counts) -> RowCounts:
    """All counts as documents have them."""
    return from_row(RowCounts, counts, rows_read=counts.read, poorer=counts.regressed)


def from_row(kind: type[Document], row: object, **values: object) -> Document:
    """A document of this type: ``values``, and for its other keys the columns or fields of ``row``."""
    read = row.__getitem__ if isinstance(row, Mapping) else partial(getattr, row)
    found = {name: values[name] if name in values else read(name) for name in kind.__annotations__}
    return cast(Document, found)
