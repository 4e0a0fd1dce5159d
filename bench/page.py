"""The results page: a section for each benchmark, with the date and the machine of its own run.

Belongs here: what sections look like on the page and in a terminal, and replacing some of them. Their content
comes from the modules that measure.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

_HEAD = """# Benchmark results

`./dev bench --write` writes this page; `./dev bench NAME --write` only the section of this name.
A ratio compares two measurements of one run."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        """The table, below its title."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [
            "| " + " | ".join(cells) + " |" for cells in (self.head, ["---"] * len(self.head), *self.rows)
        ]
        return "\n".join(lines)

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(*self.head, title=self.title or None, title_justify="left")
        for cells in self.rows:
            table.add_row(*cells)
        console.print(table)


@dataclass(frozen=True, slots=True)
class Section:
    """The findings of a benchmark: how it was measured, tables, and the same figures for ``--json``."""

    name: str
    notes: Sequence[str]
    grids: Sequence[Grid]
    records: Sequence[dict[str, Any]]

    def markdown(self) -> str:
        """The section, with the date and the machine."""
        machine = (
            f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, "
            f"Python {platform.python_version()}."
        )
        return "\n\n".join(
            [f"## {self.name}", machine, *self.notes, *(grid.markdown() for grid in self.grids)]
        )


def replaced(page: str, fresh: Sequence[Section]) -> str:
    """The page with these sections instead of those of the same names; others stay."""
    found = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    sections = {text.split("\n", 1)[0].removeprefix("## "): text.strip() for text in found}
    sections |= {section.name: section.markdown() for section in fresh}
    return "\n\n".join([_HEAD, *(sections[name] for name in sorted(sections))]) + "\n"
