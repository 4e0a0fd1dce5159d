"""The short commands, such as ``scm-sync-worker``, which an older system had.

Belongs here: the entry point of each. They take the options of their command; those of the program, such as
``--set``, have to be given to ``scm-sync`` itself.
"""

from __future__ import annotations

import sys

from sync_pipeline.cli.program import main


def scheduler() -> None:
    """``scm-sync-scheduler`` is ``scm-sync scheduler``."""
    main(["scheduler", *sys.argv[1:]])


def worker() -> None:
    """``scm-sync-worker`` is ``scm-sync worker``."""
    main(["worker", *sys.argv[1:]])


def reaper() -> None:
    """``scm-sync-reaper`` is ``scm-sync reaper``."""
    main(["reaper", *sys.argv[1:]])


def status() -> None:
    """``scm-sync-status`` is ``scm-sync status``."""
    main(["status", *sys.argv[1:]])
