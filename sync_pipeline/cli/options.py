"""The options of commands: each that several commands take is written once, and how its text is read.

Belongs here: types of options, command groups, and the readers of lengths, ids and words. Does not belong
here: an option of a single command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer
import typer.core

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobType

SYNC, INSPECT, OPERATE = "Sync", "Inspect", "Operate"
"""The sections of the commands in the help, in this order."""

MAX_ID = 2**63 - 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_PAUSE_SECONDS = 365 * 86_400
# Longer than any first sentence: the help never cuts one.
_MAX_SENTENCE = 500


def word(option: str, words: type[StrEnum] | Sequence[str], help_text: str, metavar: str) -> Any:
    """An option whose value is one of ``words``, in any case."""

    def parse(text: str) -> Any:
        if (value := text.strip().lower()) not in list(words):
            raise ConfigurationError(f"{option}: {text!r} is none of {', '.join(words)}")
        return words(value) if isinstance(words, type) else value

    return typer.Option(option, metavar=metavar, help=help_text, parser=parse)


def limit(help_text: str, most: int | None = None) -> Any:
    """The option ``--limit``."""
    return typer.Option("--limit", min=1, max=most, help=help_text)


def uuid_of(what: str) -> Callable[[str], UUID]:
    """A reader of ids of a ``job`` or a ``run``."""

    def parse(text: str) -> UUID:
        try:
            return UUID(text)
        except ValueError:
            raise ConfigurationError(
                f"{text!r} is no id of a {what}; see `scm-sync admin {what}s list`"
            ) from None

    return parse


def _job_type(text: str) -> JobType:
    try:
        return JobType.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None


NAMES = "svn:<url>, gitlab:<id, path or url>, a repo_id, or a slug as in asset keys."

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Do it, or only show what would happen; default: show.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded with your name.")]
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
OfRepo = Annotated[
    str | None, typer.Option("--repo", metavar="SPEC", help=f"Only of this repository: {NAMES}")
]
OfJob = Annotated[
    JobType | None,
    typer.Option("--job", metavar="TYPE", help="Only of this job type.", parser=_job_type),
]
OfInstance = Annotated[str | None, typer.Option("--instance", metavar="HOST", help="Only of this server.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only of this tenant.")]
Retired = Annotated[bool, typer.Option("--all", help="The retired ones too.")]
StartRev = Annotated[int | None, typer.Option("--start-rev", metavar="N", help="SVN: first revision.")]
EndRev = Annotated[int | None, typer.Option("--end-rev", metavar="N", help="SVN: last revision, included.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="GitLab: start; UTC without a zone.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="GitLab: end, not included.")]
LastDays = Annotated[
    int | None, typer.Option("--last-days", metavar="N", help="GitLab: from N days ago until now.")
]
LastHours = Annotated[
    int | None, typer.Option("--last-hours", metavar="N", help="GitLab: from N hours ago until now.")
]
PauseLength = Annotated[
    str | None, typer.Option("--for", metavar="LENGTH", help="How long, such as 90s, 30m, 2h or 3d.")
]
PauseEnd = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="TIME", help="Until when, such as 2026-01-31T18:00Z; UTC without a zone."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="One round; the default.")]
Loop = Annotated[bool, typer.Option("--loop", help="Again and again, until it is stopped.")]
Interval = Annotated[
    int | None,
    typer.Option(
        "--interval-seconds",
        min=1,
        max=86_400,
        metavar="N",
        help="Pause between two rounds of a loop; default: the setting of the same purpose.",
    ),
]


class _Group(typer.core.TyperGroup):
    """A command group whose help lists its commands by section, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in (SYNC, INSPECT, OPERATE)}
        # Groups first, which Typer adds last.
        for name, command in sorted(self.commands.items(), key=lambda one: not hasattr(one[1], "commands")):
            if not command.hidden:
                section = getattr(command, "rich_help_panel", None)
                rows = sections.setdefault(section if isinstance(section, str) else "Commands", [])
                rows.append((name, command.get_short_help_str(limit=_MAX_SENTENCE)))
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
    if not 0 < seconds <= _MAX_PAUSE_SECONDS:
        raise ConfigurationError(f"{name}: the end has to be in the future, a year from now at most")
    return seconds
