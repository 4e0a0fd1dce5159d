"""How commands print: rows, facts, documents, messages and tables.

Belongs here: the form of the output on a terminal and elsewhere. Does not belong here: the words of a
command.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any

from sync_pipeline.core.exit_codes import SUCCESS
from sync_pipeline.core.safe_text import one_line, visible, visible_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Row = Mapping[str, object]


# Terminals with fewer columns for each of a table would break its words into pieces.
_COLUMN_WIDTH = 16


def print_json(document: object, *, in_line: bool = False) -> None:
    """One document of ``--json``; times as text. ``in_line``: as a line of its own, where others follow."""
    text = json.dumps(document, indent=None if in_line else 2, default=_plain, ensure_ascii=False)
    print(visible_json(text), flush=in_line)  # noqa: T201


def print_document(
    document: Any, as_json: bool, show: Callable[[Any], object], *, in_line: bool = False
) -> int:
    """Print a document as JSON, or let ``show`` print it for a person. Returns its exit code, or 0."""
    if as_json:
        print_json(document, in_line=in_line)
    else:
        show(document)
    return int(document["exit_code"]) if "exit_code" in document else SUCCESS


def print_line(line: str = "", *, flush: bool = False, error: bool = False) -> None:
    """Print a line for a person on stdout, or as an ``error`` on stderr. Escape sequences in it do not reach
    the terminal."""
    print(visible(line), file=sys.stderr if error else sys.stdout, flush=flush)


def print_wrapped(line: str) -> None:
    """As :func:`print_line`; a terminal gets it broken between words, with what follows indented."""
    if not sys.stdout.isatty():
        print_line(line)
        return
    from rich.console import Console

    console = Console()
    indent = "    " if line.startswith(" ") else "  "
    parts = cell(line).wrap(console, max(console.width - len(indent), 20))
    for number, part in enumerate(parts):
        print_line((indent if number else "") + part.plain.rstrip())


def print_raw(text: str) -> None:
    """Print a text of several lines that holds nothing of a source, or is made visible already."""
    print(text, end="")  # noqa: T201


def print_table(table: RenderableType) -> None:
    """A table, or what else rich lays out, on a terminal. Its cells are made by :func:`cell`."""
    from rich.console import Console

    Console().print(table)


def fits_terminal(table: RenderableType) -> bool:
    """Whether the columns of the terminal are enough for ``table`` without breaking a word."""
    from rich.console import Console

    return Console(width=1000).measure(table).maximum <= terminal_width()


def terminal_width() -> int:
    """The columns of the terminal that stdout is."""
    from rich.console import Console

    return Console().width


def cell(text: object, style: str = "") -> Text:
    """A text for a table: no markup of rich, and nothing that the terminal takes for a command."""
    from rich.text import Text

    return Text(visible(str(text)), style=style)


def _plain(value: object) -> str:
    """Values that JSON cannot represent, as text; a time as every document writes it."""
    return value.isoformat() if isinstance(value, date) else str(value)


def print_rows(rows: Sequence[Row]) -> None:
    """A table on a terminal, or a line per value if it has too many columns. Other outputs get plain lines
    with a header, and tabs between the columns.
    """
    if not rows:
        return
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    if not sys.stdout.isatty():
        for line in [list(rows[0]), *cells]:
            print("\t".join(visible(re.sub(r"\s", " ", text)) for text in line))  # noqa: T201
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for line in cells:
        table.add_row(*map(cell, line))
    console = Console()
    columns = zip(rows[0], *cells, strict=True)
    # A border of three characters for each column, and one at the end.
    words = sum(3 + max(cell_len(word) for text in one for word in f"{text} x".split()) for one in columns)
    if words < console.width or len(rows[0]) * _COLUMN_WIDTH <= console.width:
        console.print(table)
        return
    width = max(map(len, rows[0]))
    for line in cells:
        for name, value in zip(rows[0], line, strict=True):
            if value:
                print_wrapped(f"{name:<{width}}  {value}")
        print_line()


def print_facts(facts: Row) -> None:
    """One fact a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {'' if value is None else value}")


def print_message(message: str, code: int = SUCCESS) -> int:
    """One line on stderr, without what may be a password in a URL; returns ``code``."""
    line = re.sub(r"(://[^\s/:@]*):[^\s/@]*@", r"\1:***@", one_line(message))
    with suppress(BrokenPipeError):
        print_line(f"scm-sync: {line}", error=True)
    return code
