"""``scm-sync admin full-sync`` and ``repair-recent``: queue windows to be read again, without a daemon.

Belongs here: the commands and how their result looks to a person. Does not belong here: the choice of windows
(:mod:`sync_pipeline.scheduling.resync`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sync_pipeline.cli import options, output, shared

if TYPE_CHECKING:
    from sync_pipeline.scheduling.resync import Resync


def full_sync_command(execute: options.Execute = False, as_json: options.AsJson = False) -> int:
    """Queue the last full_sync_days days to be read again. SVN: so many blocks. The schedule
    `full_sync` does it at 02:00 UTC."""
    from sync_pipeline.scheduling.resync import Resync

    return _queue(Resync.FULL_SYNC, execute, as_json)


def repair_recent_command(execute: options.Execute = False, as_json: options.AsJson = False) -> int:
    """Queue the recent window again after an outage. It is queued where live syncing failed lately and works
    again, once after each outage. The schedule `repair_recent` does it every hour."""
    from sync_pipeline.scheduling.resync import Resync

    return _queue(Resync.REPAIR_RECENT, execute, as_json)


def _queue(kind: Resync, execute: bool, as_json: bool) -> int:
    from sync_pipeline.core.model import Trigger
    from sync_pipeline.scheduling.resync import queue

    with shared.settings_and_database() as (settings, database):
        actor = shared.actor()
        found = queue(database, settings, kind, execute=execute, actor=actor, trigger=Trigger.RUNNER)

    def show(_: object) -> None:
        output.print_rows(
            [{"repo": one.spec, "job": str(one.job_type), "window": str(one.window)} for one in found.pieces]
        )
        for one in found.busy:
            window = f"{one.spec} {one.job_type} {one.window}"
            output.print_message(f"{window}: a job that does other work has this window")
        output.print_line(found.summary() + ("" if execute or not found.pieces else "; --execute queues"))

    return output.print_document(found.document(), as_json, show)
