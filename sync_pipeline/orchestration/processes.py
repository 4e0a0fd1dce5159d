"""The process of a Dagster run, and whether it still exists.

Belongs here: the mark that a run gets and its meaning. Dagster's launcher cannot say whether a run lives
after its code server is gone, so the process signs the run. The mark includes the run id: a re-executed run
gets the tags of the old one, and must not be confused with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

import dagster as dg

from sync_pipeline.orchestration.run_spec import PROCESS_TAG, tag_of
from sync_pipeline.sync.worker import is_gone, process_identity


class Process(StrEnum):
    """Whether a process lives. ``unknown``: it is on another machine, or the run is not signed."""

    UNKNOWN = "unknown"
    LIVES = "lives"
    GONE = "gone"


def signature(run_id: str) -> str:
    """The mark of a run that this process carries out."""
    return f"{run_id} {process_identity()}"


def sign(instance: dg.DagsterInstance, run: dg.DagsterRun, tags: Mapping[str, str] | None = None) -> None:
    """Mark a run as carried out by this process, and give it other ``tags`` that it may lack."""
    wanted = {**(tags or {}), PROCESS_TAG: signature(run.run_id)}
    lacking = {name: value for name, value in wanted.items() if run.tags.get(name) != value}
    if lacking:
        instance.add_run_tags(run.run_id, lacking)


def process_of(run: dg.DagsterRun) -> Process:
    """Whether the process that signed the run lives."""
    run_id, _, identity = tag_of(run.tags, PROCESS_TAG).partition(" ")
    if run_id != run.run_id or _machine(identity) != _machine(process_identity()):
        return Process.UNKNOWN
    return Process.GONE if is_gone(identity) else Process.LIVES


def interrupt(run: dg.DagsterRun) -> bool:
    """Ask the process that signed the run to stop between two batches, as Dagster asks its children. False if
    it is not known to live.
    """
    if process_of(run) is not Process.LIVES:
        return False
    _, pid, _ = tag_of(run.tags, PROCESS_TAG).rsplit(" ", 2)
    try:
        os.kill(int(pid), signal.SIGINT)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of this process, in force for the length of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _machine(identity: str) -> str:
    return identity.rsplit(" ", 2)[0]


def end_lost_run(instance: dg.DagsterInstance, run_id: str, why: str) -> bool:
    """Record in Dagster that a run has ended; False if Dagster knows already. The caller is sure that no
    process works on it, so the last events of the run itself are stored."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
    return True
