"""How a long command shows that it moves: a bar on a terminal, now and then a line elsewhere.

Belongs here: what is drawn where and how often. Does not belong here: what the numbers mean; the words are
those of :mod:`sync_pipeline.core.formatting`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from sync_pipeline.cli.output import print_message
from sync_pipeline.core.formatting import pace
from sync_pipeline.core.model import Counts, JobType
from sync_pipeline.core.safe_text import visible

Show = Callable[[Counts], None]

LINE_SECONDS = 10.0
"""Seconds between two lines of progress without a terminal."""


@contextmanager
def shown(
    what: str, *, quiet: bool, total: int | None = None, changed: str = "new or changed"
) -> Iterator[Show]:
    """Shows counts as they grow, with rate and, where the ``total`` of rows is known, the time that is left.
    ``changed`` is the word for changed rows. On a terminal a bar that goes away; elsewhere a line
    every ten seconds, none where ``quiet``. May be called from several threads."""
    text, what = _Text(total), visible(what)
    if not sys.stderr.isatty():
        yield (lambda _: None) if quiet else _lines(what, text, changed)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), BarColumn(12), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(f"{what}: starting", total=total)
        yield lambda counts: bar.update(line, description=text(counts.read), completed=counts.read)


class _Text:
    """Rows in words. The rate counts from the first rows on, without the time of the start."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._first: tuple[float, int] | None = None

    def __call__(self, rows: int) -> str:
        now = time.monotonic()
        began, before = self._first = self._first or (now, rows)
        rate = (rows - before) / (now - began) if now - began >= 1 else None
        return pace(rows, self._total, rate)


def _lines(what: str, text: _Text, changed: str) -> Show:
    printed_at = time.monotonic()
    lock = threading.Lock()

    def show(counts: Counts) -> None:
        nonlocal printed_at
        with lock:
            words = text(counts.read)
            if time.monotonic() - printed_at < LINE_SECONDS:
                return
            printed_at = time.monotonic()
        print_message(f"{what}: {words}, {counts.changed:,} {changed}")

    return show


def of_rows(show: Show, first: JobType) -> Callable[[Mapping[JobType, Counts]], None]:
    """Shows, of the counts of several job types, the rows read of the one that the total is of and the
    changes of all."""

    def sums(counts: Mapping[JobType, Counts]) -> None:
        whole = sum(counts.values(), Counts())
        show(replace(whole, read=counts.get(first, Counts()).read))

    return sums
