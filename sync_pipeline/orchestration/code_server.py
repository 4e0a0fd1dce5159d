"""Starting the code server of ``scm-sync up``, and requests to it.

Belongs here: what other processes need. The program is :mod:`sync_pipeline.orchestration.code_proxy`.
Dagster's client is loaded when it is needed: commands that only name the location are quicker without.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.safe_text import one_line

LOCATION_NAME = "sync_pipeline"
"""Name of the code location; Dagster keeps the state of sensors by it."""

RELOAD_SECONDS = 60
"""How long a caller waits for a reload, which continues after that."""


def command(socket_path: Path, log: Path) -> list[str]:
    """The command that serves the definitions on the socket ``socket_path``. The output of runs is added to
    ``log``; its own lines for a person go to stderr."""
    return [sys.executable, "-m", "sync_pipeline.orchestration.code_proxy", str(socket_path), str(log)]


def reload(socket_path: str) -> bool:
    """Load the definitions again in the code server at ``socket_path``; page and daemon notice. False
    where that still goes on after RELOAD_SECONDS. Raises SyncError with one line if they cannot be loaded,
    and then the former ones stay, or if it is away."""
    import grpc

    from sync_pipeline.orchestration.dagster_internals import (
        DagsterGrpcClient,
        DagsterUserCodeUnreachableError,
    )

    try:
        DagsterGrpcClient(socket=socket_path).reload_code(timeout=RELOAD_SECONDS)
    except DagsterUserCodeUnreachableError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.Call) and cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        details = cause.details() if isinstance(cause, grpc.Call) else None
        raise SyncError(one_line(details or str(error))[:500]) from None
    return True


def is_answering(socket_path: Path) -> bool:
    """True once the process with the definitions answers through the socket; waits for it as long as Dagster
    waits for a call."""
    from sync_pipeline.orchestration.dagster_internals import (
        DagsterGrpcClient,
        DagsterUserCodeUnreachableError,
    )

    if not socket_path.exists():
        return False
    try:
        DagsterGrpcClient(socket=str(socket_path)).ping("ready")
    except DagsterUserCodeUnreachableError:
        return False
    return True
