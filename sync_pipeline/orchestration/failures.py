"""Failures of steps with a reason for people, and without a call stack, which would hide it.

Belongs here: the exception, with its text and metadata. Does not belong here: the remedy of each reason
(:mod:`sync_pipeline.reports.reasons`), and the console of a command (the modules that print).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from sync_pipeline.core.errors import ConfigurationError, SyncError
from sync_pipeline.orchestration.dagster_internals import DagsterUserCodeProcessError, SerializableErrorInfo
from sync_pipeline.reports.reasons import remedy

REFUSED = "refused"
"""Metadata key: the code of an error in the configuration, because of which the step could not begin."""

_SHOWN_ERRORS = 5
_SHOWN_REMEDIES = 2
_KEPT_ERRORS = 200


class StepFailure(dg.Failure, DagsterUserCodeProcessError):
    """A failure that people can read: Dagster shows its text and metadata, and no call stack.

    Dagster makes the call stack of every exception part of its event, but of those of another process it
    takes the error as it is. So this one looks like one of them. Unforeseen errors keep their call stack.
    """

    def __init__(self, description: str, metadata: Mapping[str, Any] | None = None) -> None:
        shown = SerializableErrorInfo(f"{description}\n", [], None)
        Exception.__init__(self, description)
        self.user_code_process_error_infos = [shown]
        self.description = description
        self.metadata = {
            name: dg.MetadataValue.text(value) if isinstance(value, str) else value
            for name, value in (metadata or {}).items()
        }
        self.allow_retries = False


def refused(error: SyncError) -> StepFailure:
    """The failure of a step that could not begin, because a person has to change something first."""
    return StepFailure(str(error), {REFUSED: error.code})


@contextmanager
def refusing() -> Iterator[None]:
    """A ConfigurationError inside the block becomes the failure of the step; see :func:`refused`."""
    try:
        yield
    except ConfigurationError as error:
        raise refused(error) from None


def failed(
    errors: Sequence[str], causes: Mapping[str, Sequence[str]] | None = None, refusal: str | None = None
) -> StepFailure:
    """The failure of a step with ``errors``, a line each. ``causes`` are the reasons of the catalogue behind
    them, each with the specifications of its repositories; ``refusal`` is as :data:`REFUSED`."""
    more = len(errors) - _SHOWN_ERRORS
    text = "; ".join(errors[:_SHOWN_ERRORS]) + (f"; and {more} more" if more > 0 else "")
    metadata: dict[str, Any] = {"errors": dg.MetadataValue.json(list(errors[:_KEPT_ERRORS]))}
    remedies = {reason: _remedy(reason, specs) for reason, specs in (causes or {}).items()}
    if remedies:
        text += ". What to do: " + "; ".join(list(remedies.values())[:_SHOWN_REMEDIES])
        metadata |= {f"{reason}: what to do": line for reason, line in remedies.items()}
    if refusal is not None:
        metadata[REFUSED] = refusal
    return StepFailure(text, metadata)


def _remedy(reason: str, specs: Sequence[str]) -> str:
    """The remedy for ``reason`` in the first of these repositories, and how many others have it."""
    others = len(set(specs)) - 1
    return remedy(reason, specs[0]) + (f" (likewise in {others} more)" if others else "")
