"""Which process works on a job, and whether it still exists.

Belongs here: the name that people read and the identity that the next starter checks. An owner that is known
to be dead is replaced at once instead of when its claim ends. Being wrong would be harmless, because the
fence refuses the writes of a replaced worker.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

_given_name: str | None = None


def worker_name() -> str:
    """The name of this process in the ledger: ``host:pid``, or the one that :func:`name_worker` gave it."""
    return _given_name or f"{socket.gethostname()}:{os.getpid()}"


def name_worker(name: str | None) -> None:
    """Name this process, None for ``host:pid``. Nothing is decided by the name; two may have the same."""
    global _given_name
    _given_name = name


def process_identity() -> str:
    """This process, told apart from every other one that ever had its number: boot of the machine, name
    space of process numbers, number, start."""
    return f"{_machine()} {os.getpid()} {psutil.Process().create_time():.2f}"


def is_gone(identity: str | None) -> bool:
    """True only if ``identity`` is of a process of this very machine that no longer exists."""
    try:
        machine, pid, started = (identity or "").rsplit(" ", 2)
        if machine != _machine():
            return False
        process = psutil.Process(int(pid))
        return f"{process.create_time():.2f}" != started or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (ValueError, psutil.Error):
        return False


def _machine() -> str:
    # Both are Linux only; elsewhere the identity never matches and the claim has to run out.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown-{os.getpid()}"
