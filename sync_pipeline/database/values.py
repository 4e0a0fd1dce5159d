"""Values in the form of PostgreSQL: texts, the source's own objects as jsonb, pages of rows, content hashes.

Belongs here: problems that every table of facts has. They are NUL and lone surrogates, numbers that jsonb
cannot store, and secrets inside an object. Does not belong here: any table.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from psycopg.types.json import Json, Jsonb

ESCAPED = "escaped"
"""Flag of a row whose jsonb had to be escaped; :func:`restored` undoes it."""

REDACTED = "[redacted]"

# Names of fields that hold a secret, with _ and - taken out.
_SECRET = re.compile(
    r"(tokens?|passwords?|passwd|secrets?|privatekey|authorization|credentials?)$", re.IGNORECASE
)
_USERINFO = re.compile(r"(://)[^/?#\s]*@")
# Characters that PostgreSQL text and jsonb refuse.
_REFUSED = re.compile("[\x00\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPABLE = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-f]{4}))")
_NUMBERS = {"\\NaN": math.nan, "\\Infinity": math.inf, "\\-Infinity": -math.inf}
_HEXADECIMAL = re.compile(r"\\-?0x[0-9a-f]+")
# Python writes no longer number in decimal digits (it stops at 4,300), and jsonb holds all shorter ones.
_LONGEST_INTEGER = 14_000
# Deeper than any object of a source; PostgreSQL and Python both end far below.
_DEEPEST = 200
_TOO_DEEP = "\\[nested too deep]"


def storable(text: str | None) -> str | None:
    """``text`` as a text column takes it: a visible mark in the place of NUL and of half a surrogate pair."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\0", "\N{SYMBOL FOR NULL}"))


def payload(raw: Mapping[str, Any], *, escaped: bool = False) -> tuple[Jsonb, bool]:
    r"""An object of the source as jsonb, without the values of fields that hold a secret.

    The second value is True if jsonb could not store it unchanged, or if the caller wants ``escaped`` anyway,
    to match stored values. Then every backslash in its texts and keys is written ``\\``, and refused
    characters are written ``\u0000`` or ``\ud83d``. Numbers that jsonb does not have become the texts
    ``\NaN``, ``\Infinity``, ``\-Infinity`` and ``\0x...``.
    """
    escape = escaped or _holds_refused(raw, 0)
    return Jsonb(_stored(raw, 0) if escape else _without_secrets(raw)), escape


def restored(stored: Any, escaped: bool) -> Any:
    """The input of :func:`payload`, from its stored output; only redacted values stay redacted."""
    if not escaped:
        return stored
    if isinstance(stored, dict):
        return {_unescaped(key): restored(value, True) for key, value in stored.items()}
    if isinstance(stored, list):
        return [restored(value, True) for value in stored]
    if isinstance(stored, str):
        if stored in _NUMBERS:
            return _NUMBERS[stored]
        if _HEXADECIMAL.fullmatch(stored):
            return int(stored[1:], 16)
        return _unescaped(stored)
    return stored


def _holds_refused(value: Any, depth: int) -> bool:
    """True if a key or a value, at any depth, is refused by jsonb; what is nested too deep is."""
    # The usual types first, because each value of each row comes here.
    if type(value) is dict and depth < _DEEPEST:
        for key, part in value.items():
            if _is_refused(key):
                return True
            if type(part) is str and part.isascii():
                if "\0" in part:
                    return True
            elif part is not None and _holds_refused(part, depth + 1):
                return True
        return False
    if isinstance(value, str) or not isinstance(value, (Mapping, list, tuple)) or depth >= _DEEPEST:
        return _is_refused(value)
    if isinstance(value, Mapping):
        return _holds_refused(dict(value), depth)
    return any(_holds_refused(part, depth + 1) for part in value)


def _is_refused(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value if value.isascii() else _REFUSED.search(value) is not None
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() > _LONGEST_INTEGER
    return isinstance(value, (Mapping, list, tuple))


def _without_secrets(value: Any) -> Any:
    """A value that jsonb stores unchanged, without secrets."""
    if isinstance(value, Mapping):
        return {
            key: part
            if part is None or part is True or part is False or part == ""
            else _public_value(key, part)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_secrets(part) for part in value]
    return value


def _public_value(key: str, value: Any) -> Any:
    is_secret, is_url = _names(key)
    if is_secret:
        return REDACTED
    if type(value) is str:
        return _USERINFO.sub(rf"\1{REDACTED}@", value) if is_url and "@" in value else value
    return _without_secrets(_public(key, value))


def _stored(value: Any, depth: int) -> Any:
    """A value with escapes in the place of everything that jsonb refuses, without secrets."""
    if isinstance(value, (Mapping, list, tuple)):
        if depth >= _DEEPEST:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return {_escaped(key): _stored(_public(key, part), depth + 1) for key, part in value.items()}
        return [_stored(part, depth + 1) for part in value]
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, (int, float)) and _is_refused(value):
        return f"\\{value:#x}" if isinstance(value, int) else f"\\{json.dumps(value)}"
    return value


def _public(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool) or value == "":
        return value
    is_secret, is_url = _names(key)
    if is_secret:
        return REDACTED
    if is_url and isinstance(value, str):
        return _USERINFO.sub(rf"\1{REDACTED}@", value)
    return value


@lru_cache(maxsize=1024)
def _names(key: str) -> tuple[bool, bool]:
    """Whether a field of this name holds a secret, and whether it holds a URL. Objects share few names."""
    name = key.replace("_", "").replace("-", "")
    return _SECRET.search(name) is not None, name.lower().endswith("url")


def _escaped(text: str) -> str:
    return _ESCAPABLE.sub(lambda m: "\\\\" if m[0] == "\\" else f"\\u{ord(m[0]):04x}", text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else "\\", text)


def flags(*found: Iterable[str], escaped: bool = False) -> list[str]:
    """Flags of a row: sorted, each once, with :data:`ESCAPED` where something of it was."""
    return sorted({flag for some in found for flag in some} | ({ESCAPED} if escaped else set()))


def recordset(rows: Iterable[Mapping[str, Any]]) -> Json:
    """Rows of columns as one parameter for ``json_to_recordset``: a page is one round trip. Texts are made
    storable; a value from :func:`payload` is for a jsonb column, a list for an array, bytes for bytea."""
    columns = [{name: _column(value) for name, value in row.items()} for row in rows]
    return Json(columns, dumps=partial(json.dumps, ensure_ascii=False))


def _column(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, (list, tuple)):
        return [_column(part) for part in value]
    if isinstance(value, dict):
        return {name: _column(part) for name, part in value.items()}
    if isinstance(value, Jsonb):
        return value.obj
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value


def content_hash(*values: Any) -> bytes:
    """SHA-256 over typed values: texts, numbers, times, lists, jsonb from :func:`payload`, None."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=_hashable)
    return hashlib.sha256(text.encode()).digest()


def _hashable(value: Any) -> Any:
    if isinstance(value, Jsonb):
        return value.obj
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no value of a row: {type(value).__name__}")
