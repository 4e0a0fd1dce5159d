"""A visit to a GitLab project: its project info, and what is recorded of it.

Belongs here: the common part of commits, merge requests and reviews. It is the access state of each job type,
the end of the readable time, and a rejected credential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from sync_pipeline.core.errors import (
    AccessDenied,
    LeaseLost,
    Permanent,
    SourceReplaced,
    SyncError,
    Transient,
)
from sync_pipeline.core.model import BEGINNING, Access, TimeWindow, Traffic
from sync_pipeline.database.pool import database_time
from sync_pipeline.ledger import credentials, project_snapshots, repos, watermarks
from sync_pipeline.sources.gitlab import project
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import Attempt

# Commits and merge requests of a round are visited at the same time, by two runs.
_POLL_SECONDS = 60.0
# A project whose refs moved was looked at within this time.
_RECALL_SECONDS = 3600.0
# Responses tell the time in whole seconds.
_DATE_SLACK = timedelta(seconds=2)
_MOVED_SHOWS = timedelta(days=1)
_WAS = "it was "
# The lowest level of access to a project that shows everything that is read.
_REPORTER = 20


class ProjectVisit:
    """One visit to a project, for all ``attempts`` that share it. ``fingerprint`` is that of the token."""

    def __init__(self, attempts: Sequence[Attempt], client: Client, fingerprint: str) -> None:
        self._attempts = attempts
        self._client = client
        self.fingerprint = fingerprint
        self._database = attempts[0].database
        self._repo = attempts[0].repo
        self._lag = timedelta(seconds=attempts[0].settings.gitlab.safety_lag_seconds)
        self._moved: str | None = None

    @property
    def project_id(self) -> int:
        """The project's number at its server."""
        assert self._repo.project_id is not None
        return self._repo.project_id

    def check_project(self) -> project.ProjectInfo:
        """Get the project info, or use that of another job type's visit a moment ago. Raises as the
        transport does; SourceGone where the project is not found this once, SourceReplaced where another one
        has its number."""
        job_types = [attempt.job_type for attempt in self._attempts]
        repo_id = self._repo.repo_id
        with self._database.connection() as conn:
            self.looked_at = database_time(conn)
            self.before = {one: watermarks.get(conn, repo_id, one) for one in job_types}
            known = None
            if all(attempt.is_incremental for attempt in self._attempts):
                known = project_snapshots.recent(
                    conn, repo_id, self.fingerprint, job_types, seconds=_POLL_SECONDS
                )
        if known is None:
            self.project = info = project.get_project(self._client, self.project_id)
        else:
            self.project = info = project.parse_project(known.raw, known.server_date)
            self.looked_at = known.looked_at
        changed: Sequence[str] = ()
        with self._attempts[0].fenced() as conn:
            first_seen = info.created_at if known is None else None
            created = repos.source_created_at(conn, repo_id, first_seen)
            if created is not None and info.created_at is not None and created != info.created_at:
                raise SourceReplaced(
                    f"{info.path} was created {info.created_at:%Y-%m-%dT%H:%M:%SZ}, but the registered "
                    f"project {self.project_id} {created:%Y-%m-%dT%H:%M:%SZ}: another project has its "
                    "number now, and nothing is written; restore the old one, or register the new one with "
                    "`scm-sync repo retire` and `scm-sync repo add`"
                )
            if known is None:
                changed = repos.record_project(conn, repo_id, info, actor=self._attempts[0].claim.actor)
                credentials.clear(conn, self._repo.instance, self.fingerprint)
                fresh = project_snapshots.StoredProject(info.raw, info.date, self.looked_at)
                project_snapshots.put(conn, repo_id, self.fingerprint, job_types, fresh)
            else:
                # Its own visit recorded it. A discovery may have seen a newer state since.
                project_snapshots.used(conn, repo_id, job_types, known)
        if "moved" in changed:
            self._moved = f"{_WAS}{self._repo.project_path}, it is {info.path} now"
        return info

    def recall_project(self) -> project.ProjectInfo | None:
        """The project info of any visit in the last hour, if the project was in order then. It takes no
        request, so another one has to show that the project is still there. Else call :meth:`check_project`.
        Its ``date`` is that of the server's clock at least, unless somebody set the clock back.
        """
        job_types = [attempt.job_type for attempt in self._attempts]
        repo_id = self._repo.repo_id
        with self._database.connection() as conn:
            self.looked_at = database_time(conn)
            self.before = {one: watermarks.get(conn, repo_id, one) for one in job_types}
            known = project_snapshots.latest(conn, repo_id, self.fingerprint, seconds=_RECALL_SECONDS)
        if known is None or any(before.access is not Access.OK for before in self.before.values()):
            return None
        marks = [before.watermark for before in self.before.values()]
        dates = [mark + self._lag for mark in marks if isinstance(mark, datetime)]
        if known.server_date is not None:
            dates.append(known.server_date + (self.looked_at - known.looked_at) - _DATE_SLACK)
        info = project.parse_project(known.raw, max(dates, default=None))
        is_in_order = all(project.access(info, one) is Access.OK for one in job_types)
        if not is_in_order or info.path != self._repo.project_path:
            return None
        self.project = info
        return info

    def sees_internal_notes(self) -> bool:
        """True if the token is known to see notes that only members see. Without that, a missing internal
        note may just be hidden. Valid after :meth:`check_project`.
        """
        permissions = self.project.raw.get("permissions")
        found = permissions.values() if isinstance(permissions, dict) else ()
        levels = [one.get("access_level") for one in found if isinstance(one, dict)]
        return any(isinstance(level, int) and level >= _REPORTER for level in levels)

    def readable(self, clock: datetime | None) -> TimeWindow:
        """All time up to the safety lag before ``clock``, the server's clock at an answer (None: at the
        project info). Raises Transient where the server does not send its time: ours may be ahead, and what
        happened in between would count as read."""
        now = clock or self.project.date
        if now is None:
            raise Transient(
                f"{self._client.instance.url} sends no Date with its answers, without which nothing can be "
                "called complete; does a proxy take it away?",
                code="no_date",
            )
        return TimeWindow(BEGINNING, max(BEGINNING, now - self._lag))

    def is_disabled(self, attempt: Attempt) -> bool:
        """True if the project has what ``attempt`` reads switched off; that is recorded. Raises Permanent
        with code ``disabled`` for a job with a window of its own, which waits until it is switched on."""
        if project.access(self.project, attempt.job_type) is not Access.DISABLED:
            return False
        line = f"{self.project.path} has {attempt.job_type.replace('_', ' ')} switched off"
        self._record(attempt, Access.DISABLED, line, verified=False)
        if not attempt.is_incremental:
            raise Permanent(f"{line}; this waits until it is switched on", code="disabled")
        return True

    def record(
        self,
        attempt: Attempt,
        *,
        complete: bool,
        detail: str | None = None,
        activity_at: datetime | None = None,
    ) -> None:
        """Record that ``attempt`` could read. ``complete``: nothing was missing when the visit began.
        ``activity_at``: activity up to then was read (None: what the project info shows)."""
        access = project.access(self.project, attempt.job_type)
        if access is Access.PENDING_DELETION and detail is None:
            detail = (
                f"{self.project.path} was marked for deletion on {self.project.marked_on}: the server "
                "deletes it unless somebody restores it there; what is stored stays"
            )
        before = self.before[attempt.job_type]
        # A move within the server shows for a day, so that a person can see it.
        shows = before.access is Access.MOVED and self.looked_at - before.access_since < _MOVED_SHOWS
        shows = shows and (before.access_detail or "").startswith(_WAS)
        if access is Access.OK and (self._moved is not None or shows):
            access, detail = Access.MOVED, self._moved or before.access_detail
        verified = complete and not attempt.done.failures
        self._record(attempt, access, detail, verified=verified, activity_at=activity_at)

    def _record(
        self,
        attempt: Attempt,
        access: Access,
        detail: str | None,
        *,
        verified: bool,
        activity_at: datetime | None = None,
    ) -> None:
        with attempt.fenced() as conn:
            watermarks.record_visit(
                conn,
                repo_id=self._repo.repo_id,
                job_type=attempt.job_type,
                access=access,
                detail=detail,
                verified_at=self.looked_at if verified else None,
                activity_at=(activity_at or self._activity_read()) if verified else None,
            )

    def _activity_read(self) -> datetime | None:
        """The project's last activity, as far as this visit can have read it: what happened within the safety
        lag is news for the next one."""
        last = self.project.last_activity_at
        return None if last is None else min(last, self.readable(None).until)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Remembers a token that the server refuses inside the block; see :meth:`note`."""
        try:
            yield
        except AccessDenied as refused:
            self.note(refused)
            raise

    def note(self, error: SyncError) -> None:
        """Remember a token that the server refused, so that nothing else is started with it."""
        if isinstance(error, AccessDenied) and error.is_of_the_token:
            # An attempt that lost its job says nothing about the token: its answer may be an old one.
            with suppress(LeaseLost), self._attempts[0].fenced() as conn:
                credentials.stop(conn, self._repo.instance, self.fingerprint, str(error))


class ProjectComparison:
    """The common part of the comparisons of a GitLab project with its source, each for one attempt. See
    :class:`sync_pipeline.sync.reconcile.Comparison`."""

    lists_are_whole = False

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        self._attempt = attempt
        self._client = client
        self._visit = visit
        self._database = attempt.database
        self._repo_id = attempt.repo.repo_id

    @property
    def traffic(self) -> Traffic:
        """The requests so far."""
        return self._client.traffic

    def begin(self) -> None:
        """Check the project. Raises Permanent where it has the feature switched off."""
        with self._visit.watched():
            self._info = self._visit.check_project()
            self._visit.is_disabled(self._attempt)
