"""Failures of the database in which Dagster keeps its tables.

Belongs here: recognising such a failure, and one line about it without the statement. Does not belong here:
failures of our own tables (:func:`sync_pipeline.sync.attempt.database_error`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy.exc

from sync_pipeline.core.errors import ConfigurationError


def storage_problem(error: BaseException) -> str | None:
    """One line about an error in Dagster's tables, with the remedy where it is known; None for every other
    error.

    SQLAlchemy's text holds the whole statement with its values, so only the server's message is kept.
    """
    # Not needed to load a code location.
    from sync_pipeline.orchestration.dagster_internals import DagsterPostgresException

    if isinstance(error, DagsterPostgresException):
        return "Dagster's database does not answer"
    if not isinstance(error, sqlalchemy.exc.DBAPIError):
        return None
    message = first_line(error.orig) if error.orig is not None else ""
    state = getattr(error.orig, "pgcode", None) or ""
    if state.startswith("53"):
        return f"Dagster's database has no room: {message}; make room there, then try again"
    if state:
        return f"Dagster's database refused: {message}"
    return "Dagster's database does not answer"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def records_problem(error: Exception) -> str:
    """One line about an error that kept us from Dagster's records, which may be away although our database
    answers."""
    return f"Dagster's records: {type(error).__name__}: {first_line(error)}"


@contextmanager
def explained_storage() -> Iterator[None]:
    """Raise ConfigurationError with one line for a failure of Dagster's tables in the block."""
    try:
        yield
    except Exception as error:
        if (problem := storage_problem(error)) is None:
            raise
        raise ConfigurationError(problem) from None


def is_outage(error: BaseException) -> bool:
    """Whether the same may work later, when the database answers again."""
    return storage_problem(error) is not None and (
        not isinstance(error, sqlalchemy.exc.DBAPIError)
        or isinstance(error, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError)
    )
