"""``scm-sync admin full-sync`` and ``repair-recent``: queue what is read again, without a daemon.

Belongs here: the commands and how their result looks to a person. What is queued is said in
:mod:`sync_pipeline.operations.resync`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    actor,
    open_database,
    print_json,
    print_message,
    print_rows,
    read_settings,
    say,
)

if TYPE_CHECKING:
    from sync_pipeline.operations.resync import Resync

Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Queue, or only show what would be; default: show.")
]


def full_sync_command(execute: Execute = False, as_json: AsJson = False) -> None:
    """Queue the last full_sync_days days to be read again. SVN: so many blocks. The schedule does it once a
    night. The schedule `full_sync` does it at 02:00 UTC."""
    from sync_pipeline.operations.resync import Resync

    _queue(Resync.FULL_SYNC, execute, as_json)


def repair_recent_command(execute: Execute = False, as_json: AsJson = False) -> None:
    """Queue the recent window again after an outage. It is queued where live syncing failed lately and works
    again, once after each outage. The schedule `repair_recent` does it every hour."""
    from sync_pipeline.operations.resync import Resync

    _queue(Resync.REPAIR_RECENT, execute, as_json)


def _queue(what: Resync, execute: bool, as_json: bool) -> None:
    from sync_pipeline.model import Trigger
    from sync_pipeline.operations.resync import queue

    settings = read_settings()
    with open_database(settings) as database:
        found = queue(database, settings, what, execute=execute, actor=actor(), trigger=Trigger.RUNNER)
    if as_json:
        print_json(found.document())
        return
    print_rows(
        [{"repo": one.spec, "job": str(one.job_type), "window": str(one.window)} for one in found.pieces]
    )
    for one in found.busy:
        print_message(f"{one.spec} {one.job_type} {one.window}: a job that does other work has this window")
    say(found.summary() + ("" if execute or not found.pieces else "; --execute queues"))
