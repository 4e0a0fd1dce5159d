"""Pauses and breakers as a person handles them.

Belongs here: pausing a place, ending a pause, resetting a breaker, and the documents of both. Whatever is
under way in a paused place ends in its own time; nothing new is started or claimed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sync_pipeline.core.documents.common import from_row
from sync_pipeline.core.documents.gates import (
    Breaker,
    BreakerError,
    BreakerEvent,
    BreakerList,
    Pause,
    PauseList,
)
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import given_reason, some
from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import BreakerScope, BreakerState, JobType, Repository
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import breakers, pauses, repos
from sync_pipeline.policy.samples import SERVER_CODES
from sync_pipeline.registry.registration import find_repository
from sync_pipeline.scheduling.dispatch import limits_of
from sync_pipeline.settings import Settings


@dataclass(frozen=True, slots=True)
class PauseTarget:
    """The scope of a pause: exactly one of the first three is set, or none of them for everything.
    ``job_type`` narrows it.
    """

    instance: str | None = None
    tenant: str | None = None
    repo: str | None = None
    job_type: JobType | None = None

    @property
    def scope(self) -> str:
        """Its scope in the ledger."""
        if self.repo is not None:
            return "repository"
        if self.instance is not None:
            return "instance"
        return "global" if self.tenant is None else "tenant"


def pause(
    database: Database, target: PauseTarget, *, seconds: float | None, actor: str, reason: str
) -> Pause:
    """Pause a place for so many seconds, or until it is resumed; returns the pause. Raises
    ConfigurationError where there is no such place, or it is paused already."""
    repository = None if target.repo is None else find_repository(database, target.repo)
    reason = given_reason(reason)
    _require_kind(repository, target)
    with database.connection() as conn:
        _require_known(conn, target)
        pause_id = pauses.add(
            conn,
            scope=target.scope,
            instance=target.instance,
            tenant=target.tenant,
            repo_id=None if repository is None else repository.repo_id,
            job_type=None if target.job_type is None else str(target.job_type),
            seconds=seconds,
            actor=actor,
            reason=reason,
        )
        if pause_id is None:
            raise ConfigurationError(
                "this is paused already; see `scm-sync admin pauses`, and resume it to pause it anew"
            )
        names = _names(conn)
        return next(document(row, names) for row in pauses.active(conn) if row.pause_id == pause_id)


def resume(database: Database, pause_id: int, *, actor: str) -> None:
    """End a pause. Raises ConfigurationError if there is none of this number that holds."""
    with database.connection() as conn:
        if not pauses.end(conn, pause_id, actor=actor):
            raise ConfigurationError(f"there is no pause {pause_id} that holds; see `scm-sync admin pauses`")


def listing(database: Database) -> PauseList:
    """The pauses that hold now."""
    with database.connection() as conn:
        names = _names(conn)
        return {"pauses": [document(row, names) for row in pauses.active(conn)]}


def breaker_listing(database: Database, settings: Settings) -> BreakerList:
    """Every breaker that was ever judged, what happened to them last, and when one opens by ``settings``;
    ``enabled`` is False where they hold nothing back."""
    limits = limits_of(settings).breaker
    with database.connection() as conn:
        return {
            "enabled": settings.breaker.enabled,
            "opens_at": {
                "failure_rate": limits.failure_rate_threshold,
                "rate_limit_rate": limits.rate_limit_threshold,
                "timeout_rate": limits.timeout_rate_threshold,
                "runs": limits.min_samples,
            },
            "breakers": [
                from_row(
                    Breaker,
                    row,
                    errors=errors_of(conn, settings, row),
                    failure_rate=round(row.failure_rate, 4),
                    rate_limit_rate=round(row.rate_limit_rate, 4),
                    timeout_rate=round(row.timeout_rate, 4),
                    runs=row.samples,
                    judged_at=row.updated_at,
                )
                for row in breakers.read(conn)
            ],
            "events": [from_row(BreakerEvent, row) for row in breakers.events(conn)],
        }


def errors_of(conn: Connection, settings: Settings, row: breakers.BreakerRow) -> list[BreakerError]:
    """The errors of the runs that opened a breaker, the most frequent first; empty if it is closed."""
    if row.state == BreakerState.CLOSED:
        return []
    seconds = limits_of(settings).breaker.window.total_seconds()
    return [from_row(BreakerError, one) for one in breakers.errors(conn, row, SERVER_CODES, seconds)]


def with_errors(reason: str | None, errors: Sequence[BreakerError]) -> str | None:
    """The reason of a breaker with what its runs failed of."""
    found = ", ".join(f"{one['code']} {one['runs']}" for one in errors)
    return f"{reason} ({found})" if reason and found else reason


def reset_breaker(database: Database, scope: str, key: str, *, actor: str, reason: str) -> str:
    """Close a breaker whose cause is found; what happened until now is no evidence any more. Returns the
    state it was in; where that is closed, nothing is changed. Raises ConfigurationError if there is no such
    breaker."""
    if scope not in tuple(BreakerScope):
        raise ConfigurationError(f"--scope: {scope!r} is none of {', '.join(BreakerScope)}")
    reason = given_reason(reason)
    with database.connection() as conn:
        before = breakers.reset(conn, scope, key, actor=actor, reason=reason)
    if before is None:
        raise ConfigurationError(
            f"there is no breaker {scope} {key}".rstrip() + "; see `scm-sync admin breakers`"
        )
    return before


def _require_known(conn: Connection, target: PauseTarget) -> None:
    """A typing error must not look like a pause."""
    known = repos.list_all(conn, retired=False)
    if target.instance is not None and target.instance not in {r.instance for r in known}:
        raise ConfigurationError(
            f"no repository is at {target.instance}; there are {some(r.instance for r in known)}"
        )
    if target.tenant is not None and target.tenant not in {r.tenant for r in known}:
        raise ConfigurationError(
            f"no repository is of the tenant {target.tenant}; there are {some(r.tenant for r in known)}"
        )


def _require_kind(repository: Repository | None, target: PauseTarget) -> None:
    if repository is None or target.job_type is None:
        return
    if DECLARED[target.job_type].kind is not repository.kind:
        raise ConfigurationError(f"{repository.spec} has no {target.job_type}; leave --job out")


def _names(conn: Connection) -> Mapping[int, str]:
    return {repo.repo_id: repo.spec for repo in repos.list_all(conn)}


def document(row: pauses.PauseRow, names: Mapping[int, str]) -> Pause:
    """A pause as the documents have it; ``names`` are the specifications of the repositories."""
    return from_row(
        Pause,
        row,
        id=row.pause_id,
        repo=None if row.repo_id is None else names.get(row.repo_id),
        job=row.job_type,
        since=row.created_at,
    )
