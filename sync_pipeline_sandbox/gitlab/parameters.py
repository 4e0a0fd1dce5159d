"""Query parameters: the known ones of a route, valid values, and defaults.

Belongs here: reading a query string into values and writing them back for links. Unknown parameters are
ignored, as GitLab does. The routes define the meaning of a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

from sync_pipeline_sandbox.gitlab.responses import invalid


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. ``kind`` is ``text``, ``int``, ``bool``, ``time``, ``date``, ``texts`` or ``ints``
    (arrays, given as ``name[]`` or with commas)."""

    kind: str = "text"
    default: Any = None
    values: tuple[str, ...] = ()
    required: bool = False


PAGING = {"page": Parameter("int", 1), "per_page": Parameter("int", 20)}


def choice(default: str | None, *values: str) -> Parameter:
    """A parameter with a fixed set of values."""
    return Parameter("text", default, values)


def ordered(order_by: tuple[str, ...], sort: str = "desc") -> dict[str, Parameter]:
    """``order_by`` (the first is the default) and ``sort``."""
    return {"order_by": choice(order_by[0], *order_by), "sort": choice(sort, "asc", "desc")}


def read(query: Iterable[tuple[str, str]], known: Mapping[str, Parameter]) -> dict[str, Any]:
    """All known parameters with their values or defaults. Raises Refusal (400) naming every bad one."""
    given: dict[str, list[str]] = {}
    for name, value in query:
        given.setdefault(name.removesuffix("[]"), []).append(value)
    values, wrong = {}, []
    for name, parameter in known.items():
        texts = given.get(name)
        if texts is None:
            if parameter.required:
                wrong.append(f"{name} is missing")
            values[name] = parameter.default
            continue
        try:
            values[name] = _value(parameter.kind, texts)
        except ValueError:
            wrong.append(f"{name} is invalid")
            continue
        if parameter.values and values[name] not in parameter.values:
            wrong.append(f"{name} does not have a valid value")
    if values.get("per_page") == 0:
        wrong.append("per_page has a value not allowed")
    if wrong:
        raise invalid(*wrong)
    return values


def write(values: Mapping[str, Any]) -> str:
    """Values as a sorted query string; those that are None are left out."""
    pairs = []
    for name in sorted(values):
        value = values[name]
        if value is None:
            continue
        if isinstance(value, list):
            pairs += [(f"{name}[]", str(one)) for one in value]
        elif isinstance(value, bool):
            pairs.append((name, "true" if value else "false"))
        elif isinstance(value, datetime):
            pairs.append((name, value.isoformat().replace("+00:00", "Z")))
        else:
            pairs.append((name, str(value)))
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)


def _value(kind: str, texts: list[str]) -> Any:
    text = texts[-1]
    match kind:
        case "int":
            return int(text)
        case "bool":
            if text.lower() not in ("true", "false", "1", "0"):
                raise ValueError(text)
            return text.lower() in ("true", "1")
        case "time":
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        case "date":
            return date.fromisoformat(text[:10])
        case "texts":
            return [one for part in texts for one in part.split(",")]
        case "ints":
            return [int(one) for part in texts for one in part.split(",")]
    return text
