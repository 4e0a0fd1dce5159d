"""What the commands have in common.

Belongs here: exit codes, the types of options that several groups take, the way to settings, database,
Dagster and the name of the person, a polite stop, and how rows, facts, documents, progress and complaints are
printed. Does not belong here: a command, or an option of a single one.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.exit_codes import SUCCESS
from sync_pipeline.safe_text import one_line, visible, visible_json

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from rich.console import RenderableType
    from rich.text import Text

    from sync_pipeline.operations.registration import ReaderFactory, Visitor
    from sync_pipeline.settings import Given, Settings
    from sync_pipeline.store.database import Database

Row = Mapping[str, object]

SYNC, INSPECT, OPERATE = "Sync", "Inspect", "Operate"
"""The sections of the commands in the help, in this order."""

NAMES = "svn:<url>, gitlab:<id, path or url>, a repo_id, or a slug as in asset keys."
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")]
Repo = Annotated[str, typer.Option("--repo", metavar="SPEC", help=NAMES)]
RepoArgument = Annotated[str, typer.Argument(metavar="SPEC", help=NAMES)]
Job = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="TYPE",
        help="commits, merge_requests (mrs), reviews or revisions (svn); default: all that it has.",
    ),
]
StartRev = Annotated[int | None, typer.Option("--start-rev", metavar="N", help="SVN: first revision.")]
EndRev = Annotated[int | None, typer.Option("--end-rev", metavar="N", help="SVN: last revision, included.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="GitLab: start; UTC without a zone.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="GitLab: end, not included.")]


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_PAUSE = 365 * 86_400
# Terminals with fewer columns for each of a table would break its words into pieces.
_COLUMN_WIDTH = 16
# Longer than any first sentence: the help never cuts one.
_SENTENCE = 500
# Seconds within which signals are one wish.
_ONE_PRESS = 1.0


class _Group(typer.core.TyperGroup):
    """A command group whose help lists its commands by section, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in (SYNC, INSPECT, OPERATE)}
        # Groups first, which Typer adds last.
        for name, command in sorted(self.commands.items(), key=lambda one: not hasattr(one[1], "commands")):
            if not command.hidden:
                section = getattr(command, "rich_help_panel", None)
                rows = sections.setdefault(section if isinstance(section, str) else "Commands", [])
                rows.append((name, command.get_short_help_str(limit=_SENTENCE)))
        for section, rows in sections.items():
            if not rows:
                continue
            with formatter.section(section):
                formatter.write_dl(rows)


def group(help_text: str, *, examples: Sequence[str] = (), completion: bool = False) -> typer.Typer:
    """A command group that leaves errors and formatting to the program. Alone it prints its help, which ends
    with ``examples``. ``completion`` adds the options that install the completion of a shell."""
    return typer.Typer(
        cls=_Group,
        help=help_text,
        epilog=examples_text(*examples) if examples else None,
        no_args_is_help=True,
        add_completion=completion,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def examples_text(*lines: str) -> str:
    """The end of a help text: command lines as they are typed."""
    # \b: a paragraph whose lines stay as they are.
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def read_settings() -> Settings:
    """The settings in force, also for what is logged. Raises ConfigurationError for wrong ones."""
    return read_explained_settings()[0]


def read_explained_settings() -> tuple[Settings, dict[str, Given]]:
    """As :func:`read_settings`, and what gave each setting that does not have its default."""
    from sync_pipeline.settings import explained_settings

    settings, given = explained_settings()
    logging.getLogger("sync_pipeline").setLevel(settings.log_level.upper())
    return settings, given


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """The migrated database that the settings name; the embedded one is started."""
    from sync_pipeline.operations import environment
    from sync_pipeline.store import migrations
    from sync_pipeline.store.database import Database, connections_for

    url = environment.resolve_urls(settings).database_url
    migrations.require(url, settings.environment)
    with Database(url, max_size=connections_for(settings.jobs.parallel_repositories)) as database:
        yield database


@contextmanager
def dagster_instance(settings: Settings, database: Database) -> Iterator[DagsterInstance | None]:
    """The Dagster instance, if its tables are there: asking must not make them."""
    from sync_pipeline.operations import environment
    from sync_pipeline.store import diagnosis

    own = settings.dagster_database_url
    url = environment.dagster_url(own or database.url, "" if own else environment.DAGSTER_SCHEMA)
    try:
        there = diagnosis.look(url.replace("+psycopg2", "", 1), 5, "SCM_DAGSTER_DATABASE_URL").has_runs
    except ConfigurationError as error:
        print_message(f"Dagster is left out: {error}")
        there = False
    if not there:
        yield None
        return
    import dagster as dg

    from sync_pipeline.orchestration.build import quiet_dagster
    from sync_pipeline.orchestration.run import dagster_environment

    with dagster_environment(settings), quiet_dagster(), dg.DagsterInstance.get() as instance:
        yield instance


def visitor_for(settings: Settings, database: Database) -> ReaderFactory:
    """What opens the SVN repository of a URL, to look at it before it is in the catalog."""

    def visitor(url: str) -> Visitor:
        from sync_pipeline.catalog import instance_of
        from sync_pipeline.sync.limiter import svn_limiter
        from sync_pipeline.sync.readers import svn_reader

        return svn_reader(settings, url, limiter=svn_limiter(database, settings, instance_of(url)))

    return visitor


def actor() -> str:
    """Who runs the command, for the ledger: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def length_of(option: str, text: str) -> float:
    """The seconds of ``90s``, ``30m``, ``2h`` or ``3d``. Raises ConfigurationError that names ``option``."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if found is None:
        raise ConfigurationError(f"{option}: {text!r} is no length; write it like 90s, 30m, 2h or 3d")
    return float(int(found[1]) * _UNITS[found[2]])


def seconds_of(length: str | None, until: str | None, moment: datetime) -> float | None:
    """The seconds that ``--for`` or ``--until`` mean at ``moment`` (UTC, and so is ``until`` without a zone);
    None where neither is given. Raises ConfigurationError."""
    if length is not None and until is not None:
        raise ConfigurationError("--for and --until exclude each other; give one of them")
    if until is not None:
        try:
            end = datetime.fromisoformat(until)
        except ValueError:
            raise ConfigurationError(
                f"--until: {until!r} is no time; write it like 2026-01-31T18:00Z"
            ) from None
        seconds = ((end if end.tzinfo else end.replace(tzinfo=UTC)) - moment).total_seconds()
        name = "--until"
    elif length is not None:
        seconds = length_of("--for", length)
        name = "--for"
    else:
        return None
    if not 0 < seconds <= _LONGEST_PAUSE:
        raise ConfigurationError(f"{name}: the end has to be in the future, a year from now at most")
    return seconds


def after_catalog_change(settings: Settings, database: Database) -> None:
    """Write the snapshot and tell Dagster; the catalog itself is already right."""
    from sync_pipeline.orchestration.catalog_changes import after_catalog_change

    after_catalog_change(settings, database)


@contextmanager
def stopped_politely() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, for work that looks at it between two steps; the second one, a
    second later at the earliest, ends the work where it is: ``timeout`` sends its signal twice at once."""
    cancel = threading.Event()
    first = 0.0
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: object) -> None:
        nonlocal first
        if not cancel.is_set():
            first = time.monotonic()
            cancel.set()
        elif time.monotonic() - first > _ONE_PRESS:
            raise KeyboardInterrupt

    for number in before:
        signal.signal(number, stop)
    try:
        yield cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(document: object, *, in_line: bool = False) -> None:
    """One document of ``--json``; times as text. ``in_line``: as a line of its own, where others follow."""
    text = json.dumps(document, indent=None if in_line else 2, default=_plain, ensure_ascii=False)
    print(visible_json(text), flush=in_line)  # noqa: T201


def say(line: str = "", *, flush: bool = False, error: bool = False) -> None:
    """Print a line for a person on stdout, or as an ``error`` on stderr. Escape sequences in it do not reach
    the terminal."""
    print(visible(line), file=sys.stderr if error else sys.stdout, flush=flush)


def say_wrapped(line: str) -> None:
    """As :func:`say`; a terminal gets it broken between words, with what follows indented."""
    if not sys.stdout.isatty():
        say(line)
        return
    from rich.console import Console

    console = Console()
    indent = "    " if line.startswith(" ") else "  "
    parts = cell(line).wrap(console, max(console.width - len(indent), 20))
    for number, part in enumerate(parts):
        say((indent if number else "") + part.plain.rstrip())


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
    """What JSON has no form for, as text; a time as every document writes it."""
    return value.isoformat() if isinstance(value, date) else str(value)


def print_rows(rows: Sequence[Row]) -> None:
    """A table on a terminal, or a line per value where its columns are too many for that; elsewhere plain
    lines, columns parted by tabs, with a header."""
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
                say_wrapped(f"{name:<{width}}  {value}")
        say()


def print_facts(facts: Row) -> None:
    """One fact a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name:<{width}}  {'' if value is None else value}")


def finish_runner(document: Mapping[str, Any], as_json: bool, round_at: datetime | None = None) -> int:
    """Print what the runner did, a line per job, and return its exit code; its errors go to stderr.
    ``round_at`` is when a round of a loop ended: it stands before the lines, and a document is one line."""
    code = int(document["exit_code"])
    if as_json:
        print_json(document, in_line=round_at is not None)
    when = f"{round_at:%Y-%m-%dT%H:%M:%SZ} " if round_at is not None else ""
    for one in document.get("jobs", [document]):
        if not as_json:
            what = f"{when}{one['repo']} {one['job']} {one['phase']}: {one['status']}"
            if "total_chunks" in one:
                what += f", {one['success_chunks']} of {one['total_chunks']} chunks"
            say(f"{what}; {one['message']}", flush=round_at is not None)
        if one["exit_code"] and one["error"]:
            print_message(f"{one['repo']} {one['job']}: {one['error']}", code)
    return code


def print_message(message: str, code: int = SUCCESS) -> int:
    """One line on stderr, without what may be a password in a URL; returns ``code``."""
    line = re.sub(r"(://[^\s/:@]*):[^\s/@]*@", r"\1:***@", one_line(message))
    with suppress(BrokenPipeError):
        say(f"scm-sync: {line}", error=True)
    return code
