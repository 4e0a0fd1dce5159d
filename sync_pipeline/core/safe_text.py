"""Texts of others, made harmless for a terminal, a JSON document or a Markdown page.

Belongs here: the one filter for each of these outputs. A source controls project paths, branch and user
names, messages and its error texts. A terminal would execute an escape sequence in them, and a page would
show a bracket as a link. Stored texts stay as they were received.
"""

from __future__ import annotations

import json
import re

_UNSAFE = re.compile(r"[^\n -~]")


def visible(text: str, keep: str = "") -> str:
    """``text`` with each character that a terminal does not show as one written out, such as ``\\x1b``,
    ``\\n`` or ``\\u202e``. Those in ``keep`` stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def one_line(text: str) -> str:
    """``text`` on one line: white space as single blanks, the rest as :func:`visible` has it."""
    return visible(" ".join(text.split()))


def visible_json(document: str) -> str:
    """An equal JSON document without characters that a terminal would obey. JSON itself escapes only those
    below U+0020.
    """

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]

    return _UNSAFE.sub(escape, document)


def markdown(text: str) -> str:
    """``text`` for a page: unchanged if Markdown shows it so, else as :func:`code`."""
    # No sign of a link, a list or an emphasis, for which an underscore has to stand at the edge of a word.
    plain = re.fullmatch(r"[A-Za-z](?:[A-Za-z0-9./-]|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])|:(?=//))*", text)
    return text if plain else code(text)


def code(text: str) -> str:
    """``text`` as a piece of code in Markdown, also in a table: neither a link nor an image nor an element
    begins there. A backtick and a bar, which would end it, become similar characters."""
    line = one_line(text).replace("`", "'").replace("|", "\N{BROKEN BAR}")
    return f"`{line}`" if line else ""
