"""How pages of merge requests and of reviews are written, and what differs between the two job types.

Belongs here: a ``FactStore`` for each, with the details that the server refuses. Does not belong here: which
merge requests are read (:mod:`sync_pipeline.sync.merge_requests`), SQL (:mod:`sync_pipeline.facts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from sync_pipeline.core.gitlab_rows import MergeRequestPage, MergeRequestRow, ReviewPage, ReviewSet
from sync_pipeline.core.model import Counts, Refusal
from sync_pipeline.database.pool import Connection
from sync_pipeline.facts import merge_requests, reviews, unreadable
from sync_pipeline.sources.gitlab.children import Refusals
from sync_pipeline.sources.gitlab.fields import payload
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.pages import Batch, FactStore, P, write_page
from sync_pipeline.sync.project import ProjectVisit

PROBE_EVERY = timedelta(days=1)
"""How often the server is asked for a detail that it refused for every merge request."""


class Asker(Protocol):
    """A reader of details of merge requests."""

    def ask(self, iid: int, detail: str) -> Refusal | None:
        """How the server refuses a detail; None where it gives it."""
        ...


class _Facts(FactStore[P]):
    """The common part of both job types. Rows whose keys are in ``overriding`` replace the stored ones."""

    def __init__(self, attempt: Attempt, visit: ProjectVisit, reader: Asker, refusals: Refusals) -> None:
        self.attempt = attempt
        self.reader = reader
        self.refusals = refusals
        self.overriding: set[str] = set()
        self._visit = visit
        self._repo_id = attempt.repo.repo_id

    def write(self, page: P) -> None:
        """Write a page, with the refusals that it showed. See :func:`write_page`."""
        refusals = self.refusals.unsaved
        write_page(self.attempt, page, self)
        self.refusals.saved(refusals)

    def finish(self, batch: Batch, page: P) -> None:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        for one in self.refusals.unsaved:
            self.refuse(batch, one)

    def refuse(self, batch: Batch, refusal: Refusal) -> None:
        """Record that the server refuses a detail for every merge request."""
        unreadable.refuse(
            batch.conn,
            repo_id=self._repo_id,
            job_type=self.attempt.job_type,
            refusal=refusal,
            fingerprint=self._visit.fingerprint,
            pause=PROBE_EVERY,
        )


class MergeRequestFacts(_Facts[MergeRequestPage]):
    """Writes merge requests with their versions and commits."""

    def store(self, batch: Batch, page: MergeRequestPage) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return merge_requests.store_merge_requests(
            batch.conn,
            repo_id=self._repo_id,
            batch_id=batch.batch_id,
            rows=page.rows,
            deferred=page.deferred,
            server_now=page.date,
            begun=self._visit.looked_at,
            overriding=self.overriding,
        )

    def key(self, row: MergeRequestRow) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return str(row.iid)

    def not_read_for(self, conn: Connection, age: timedelta, limit: int) -> list[int]:
        """At most ``limit`` open merge requests that were not read for ``age``."""
        return merge_requests.oldest_read_open(conn, self._repo_id, age, limit)

    def postpone(self, batch: Batch, iids: Sequence[int]) -> None:
        """These were requested and did not come: they wait for the next round."""
        merge_requests.postpone(batch.conn, self._repo_id, iids)


class ReviewFacts(_Facts[ReviewPage]):
    """Writes reviews."""

    def store(self, batch: Batch, page: ReviewPage) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return reviews.store_reviews(
            batch.conn,
            repo_id=self._repo_id,
            batch_id=batch.batch_id,
            sets=page.rows,
            server_now=page.date,
            begun=self._visit.looked_at,
            overriding=self.overriding,
            sees_internal=self._visit.sees_internal_notes(),
        )

    def key(self, row: ReviewSet) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return str(row.mr_iid)

    def payload(self, row: ReviewSet) -> bytes:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return payload([dict(event.raw) for event in row.events])

    def not_read_for(self, conn: Connection, age: timedelta, limit: int) -> list[int]:
        """At most ``limit`` open merge requests whose review was not read for ``age``."""
        return reviews.stale_reviews(conn, self._repo_id, age, limit)

    def postpone(self, batch: Batch, iids: Sequence[int]) -> None:
        """These were requested and did not come: they wait for the next round."""
        reviews.postpone(
            batch.conn,
            self._repo_id,
            batch.batch_id,
            iids,
            sees_internal=self._visit.sees_internal_notes(),
        )
