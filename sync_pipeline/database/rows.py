"""Rows of the database as values and dataclasses.

Belongs here: what every store module does with a row. Does not belong here: any statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

import psycopg

Record = TypeVar("Record")


def only_row(cursor: psycopg.Cursor[dict[str, Any]]) -> dict[str, Any]:
    """The row of a statement that always returns one."""
    row = cursor.fetchone()
    assert row is not None
    return row


def only_value(cursor: psycopg.Cursor[dict[str, Any]]) -> Any:
    """The value of a statement that always returns one row with one column."""
    (value,) = only_row(cursor).values()
    return value


def read_row(kind: type[Record], row: Any, /, **values: Any) -> Record:
    """A dataclass with ``values``, and for its other fields the columns of ``row``, which is a row or another
    dataclass. A text becomes the enum that the field has. A field without a column has its default. Raises
    TypeError where there is none."""
    if not isinstance(row, Mapping):
        row = {field.name: getattr(row, field.name) for field in fields(row)}
    enums = _enums(cast(Any, kind))
    for name in enums.keys() & row.keys() - values.keys():
        value, enum = row[name], enums[name]
        values[name] = value if value is None or enum is None else enum(value)
    return kind(**values)


@cache
def _enums(kind: Any) -> dict[str, type[Enum] | None]:
    """The enum of each field of a dataclass, None where it has none."""
    hints = get_type_hints(kind)
    return {field.name: _enum(hints[field.name]) for field in fields(kind)}


def _enum(hint: Any) -> type[Enum] | None:
    kinds = (one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, Enum))
    return next(kinds, None)


def mark_of(row: Mapping[str, Any], name: str) -> int | datetime | None:
    """The mark in a pair of columns: the revision in ``<name>_rev``, or the time in ``<name>_time``."""
    revision: int | None = row[f"{name}_rev"]
    moment: datetime | None = row[f"{name}_time"]
    return moment if revision is None else revision
