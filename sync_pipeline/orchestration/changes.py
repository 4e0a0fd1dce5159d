"""Change detection: one sensor per instance that finds repositories with possible changes.

Belongs here: the only sensors that use the network, for a few seconds a tick. They write hints and start
nothing; what follows from a hint is decided in :mod:`sync_pipeline.policy.planning`. For a GitLab server a
tick lists one page of the most recently active projects. For SVN it checks a few repositories in turn. Names
are fixed: Dagster keeps cursors and on/off switches by name.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

import dagster as dg

from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.model import Kind, Lifecycle, Repository
from sync_pipeline.core.safe_text import visible
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import discovery, planning, servers
from sync_pipeline.orchestration.partitions import ensure_blocks
from sync_pipeline.orchestration.resources import GitLabResource, PostgresResource, SvnResource
from sync_pipeline.orchestration.ticks import heartbeat, skips_outages
from sync_pipeline.reports.health import ANSWER_CODES, NOT_ASKED, reason_of_server
from sync_pipeline.scheduling import credentials
from sync_pipeline.settings import Settings

_log = logging.getLogger(__name__)

_MIN_CHECK_SECONDS = 0.2
# A time-out counts only if the request had most of a tick's time. At the usual 3 s, svn info then had 1.8 s
# or more.
_SHARE_THAT_COUNTS = 0.8
# After a time-out the next request to the server may take this many times the limit of a tick. So the second
# tick distinguishes a silent server from a slow one.
_PATIENT = 6.0


def changes_name(instance_slug: str) -> str:
    """Name of the changes sensor of a server; fixed, because Dagster keeps its switch and cursor by name."""
    return f"changes_{instance_slug}"


def changes_sensors(repositories: Sequence[Repository], settings: Settings) -> list[dg.SensorDefinition]:
    """One sensor per instance that has a repository, retired ones too: a name that vanishes loses its
    switch. A host may be both an SVN and a GitLab server."""
    grouped: dict[str, list[Repository]] = {}
    for repository in repositories:
        grouped.setdefault(repository.instance_slug, []).append(repository)
    return [_changes_sensor(slug, members, settings) for slug, members in sorted(grouped.items())]


def _changes_sensor(
    instance_slug: str, repositories: Sequence[Repository], settings: Settings
) -> dg.SensorDefinition:
    name = changes_name(instance_slug)
    svn_repositories = sorted(
        (r for r in repositories if r.kind is Kind.SVN and r.lifecycle is Lifecycle.ACTIVE),
        key=lambda repository: repository.repo_id,
    )
    server = next((r.instance for r in repositories if r.kind is Kind.GITLAB), None)
    instances = ", ".join(sorted({r.instance for r in repositories}))

    @dg.sensor(
        name=name,
        minimum_interval_seconds=settings.sensors.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Looks at {instances} where something may be new and writes hints. Starts nothing.",
    )
    @skips_outages
    def changes(
        context: dg.SensorEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
        svn: SvnResource,
        gitlab: GitLabResource,
    ) -> dg.SkipReason:
        last, root = _cursor(context.cursor)
        deadline = time.monotonic() + settings.sensors.changes_max_seconds
        summary: list[str] = []
        every = settings.sensors.interval_seconds
        with postgres.database() as database, heartbeat(database, settings, name, every=every) as record_tick:
            if server is not None:
                root, line = _list_newest(database, gitlab, server, root, deadline)
                summary.append(line)
            if svn_repositories or server is None:
                last, line = _check_repositories(
                    context.instance,
                    database,
                    settings,
                    svn,
                    _rotated(svn_repositories, last),
                    last,
                    deadline,
                )
                summary.append(line)
            record_tick("; ".join(summary))
        context.update_cursor(json.dumps({"version": 1, "last": last, "root": root}))
        return dg.SkipReason("; ".join(summary))

    return changes


def _cursor(cursor: str | None) -> tuple[int, int]:
    """The SVN repository and the discovery root that the tick before ended with; a cursor of another kind
    starts from the beginning."""
    try:
        content = json.loads(cursor or "")
        return int(content["last"]), int(content.get("root", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, 0


# GitLab -------------------------------------------------------------------------------------------------


def _list_newest(
    database: Database, gitlab: GitLabResource, instance: str, last: int, deadline: float
) -> tuple[int, str]:
    """List the newest activity of the next discovery root, or of the token's membership if there is no root.
    Returns the root, and one line.
    """
    readers = gitlab.readers(database)
    with database.connection() as conn:
        problem = credentials.in_force(conn, readers).problem(instance)
        roots = [root for root in discovery.list_roots(conn) if root.instance == instance]
    root = next((root for root in roots if root.root_id > last), roots[0] if roots else None)
    number = last if root is None else root.root_id
    what = "the membership" if root is None or root.group_id is None else visible(root.group_path or "")
    if problem is not None:
        return number, f"not asked: {problem}"
    seconds = max(deadline - time.monotonic(), _MIN_CHECK_SECONDS)
    with database.connection() as conn:
        is_patient = servers.is_doubted(conn, instance, Kind.GITLAB)
    if is_patient:
        seconds = max(seconds, _PATIENT * gitlab.settings.sensors.changes_max_seconds)
    try:
        found = gitlab.newest_activity(
            database, instance, None if root is None else root.group_id, timeout=seconds
        )
    except SyncError as error:
        with database.connection() as conn:
            credentials.note(conn, readers, instance, error)
            if not _is_cut_short(error, seconds, gitlab.settings):
                _note_server(conn, instance, Kind.GITLAB, [error], was_patient=is_patient)
        return number, f"{what} cannot be listed: {error}"
    with database.connection() as conn:
        servers.record_answer(conn, instance, Kind.GITLAB)
        known = planning.record_activity(conn, instance, found.projects)
        if root is not None:
            planning.record_listing(conn, root.root_id, found.down_to)
    return number, f"listed {len(found.projects)} of {what}, {known} known"


def _is_cut_short(error: SyncError, seconds: float, settings: Settings) -> bool:
    """True if a request of so many seconds timed out and had too little of the tick to count."""
    return error.code == "timeout" and seconds < _SHARE_THAT_COUNTS * settings.sensors.changes_max_seconds


def _note_server(
    conn: Connection,
    instance: str,
    kind: Kind,
    results: Sequence[SyncError | None],
    *,
    was_patient: bool = False,
) -> None:
    """Record whether a server answers. ``results`` has the error of each request, None where it succeeded;
    one answer is enough. Errors that do not concern the server change nothing. ``was_patient``: the last
    request waited longer than a tick."""
    if any(error is None or error.code in ANSWER_CODES for error in results):
        servers.record_answer(conn, instance, kind)
        return
    away = [error for error in results if error is not None and reason_of_server(error.code) is not None]
    if away:
        last = away[-1]
        servers.record_failure(
            conn, instance, kind, last.code, str(last), was_patient=was_patient and last.code == "timeout"
        )


# SVN ----------------------------------------------------------------------------------------------------


def _rotated(active: Sequence[Repository], last: int) -> list[Repository]:
    """Every repository once, beginning after ``last``."""
    return [r for r in active if r.repo_id > last] + [r for r in active if r.repo_id <= last]


def _check_repositories(
    instance: dg.DagsterInstance,
    database: Database,
    settings: Settings,
    svn: SvnResource,
    repositories: Sequence[Repository],
    last: int,
    deadline: float,
) -> tuple[int, str]:
    """Visit as many of ``repositories`` as fit the limits; returns the last one looked at, and one line."""
    seen, failed, highest, ended = 0, 0, 0, ""
    # By server: a relocated repository keeps its sensor and has another one.
    results: dict[str, list[SyncError | None]] = {}
    patient: set[str] = set()
    for repository in repositories[: settings.sensors.changes_per_tick]:
        left = deadline - time.monotonic()
        if left < _MIN_CHECK_SECONDS and seen:
            break
        head: int | None = None
        failure: SyncError | None = None
        # All that is left: a look that is given up early proves nothing.
        seconds = max(left, _MIN_CHECK_SECONDS)
        if not seen:
            with database.connection() as conn:
                if servers.is_doubted(conn, repository.instance, Kind.SVN):
                    patient.add(repository.instance)
                    seconds = max(seconds, _PATIENT * settings.sensors.changes_max_seconds)
        cut = False
        try:
            head = svn.visit(database, repository, timeout=seconds).head
        except SyncError as error:
            cut = _is_cut_short(error, seconds, settings)
            if error.code == "throttled" or (cut and seen):
                # Nothing is known; it is the first of the next tick, which then has all of its time for it.
                ended = f"; {error}"
                break
            failure = error
        except Exception as error:
            _log.exception("%s cannot be looked at", repository.spec)
            failure = SyncError(type(error).__name__, code="exception")
        if failure is None or not (cut or failure.code in NOT_ASKED):
            with database.connection() as conn:
                planning.record_hint(
                    conn,
                    repository.repo_id,
                    head_rev=head,
                    error_code=None if failure is None else failure.code,
                    error=None if failure is None else str(failure),
                )
        last = repository.repo_id
        if not cut:
            results.setdefault(repository.instance, []).append(failure)
        seen += 1
        failed += failure is not None
        highest = max(highest, head or 0)
        if failure is not None and failure.code == "timeout":
            # The rest of the tick is too short for another request.
            break
    with database.connection() as conn:
        for server, summary in results.items():
            # Where none of them answered, the server is the cause; its other repositories show that too.
            _note_server(conn, server, Kind.SVN, summary, was_patient=server in patient)
    if highest:
        ensure_blocks(instance, database, highest)
    return last, f"looked at {seen} of {len(repositories)}, {failed} failed{ended}"
