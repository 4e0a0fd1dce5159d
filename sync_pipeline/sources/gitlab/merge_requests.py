"""Merge requests by their time of update, with their versions and commits.

Belongs here: the list, single merge requests, and these two kinds of children. Does not belong here: the
review (:mod:`sync_pipeline.sources.gitlab.reviews`).

The list row lacks the compared commits and the number of changed files. The newest version has them, so the
detail is requested only if versions cannot be read or do not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline.core.errors import AccessDenied, Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.core.gitlab_rows import CommitRow, MergeRequestPage, MergeRequestRow, MergeRequestVersion
from sync_pipeline.core.model import DeferredFetch, Page, QuarantinedRow, Refusal, TimeWindow
from sync_pipeline.sources.gitlab.children import (
    OWN_ERRORS,
    DeferredFetches,
    Refusals,
    parallel_map,
    refusal_of,
)
from sync_pipeline.sources.gitlab.fields import Fields, commit, moment, payload, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED, UnreadableRow
from sync_pipeline.sources.gitlab.paging import Key, by_time, pages, rows, stamp
from sync_pipeline.sources.gitlab.transport import Client, Params, project_path

_ORDER = {"state": "all", "scope": "all", "order_by": "updated_at", "sort": "asc"}
_IIDS_AT_ONCE = 100
# Merge requests with their details in one batch.
_WHOLE_AT_ONCE = 25
# Prefix of the key in quarantine of a merge request that is known only by a range of update times.
_UPDATED = "updated:"

Head = tuple[str | None, str | None]
"""Head and target branch of a merge request: while both stay, its versions and commits stay too."""

Known = Callable[[Mapping[int, int]], Mapping[int, Head]]
"""Returns, for numbers of merge requests (each with its number within the instance), the heads for which
versions and commits are stored.
"""


KnownCommits = Callable[[Sequence[MergeRequestRow]], Mapping[int, tuple[CommitRow, ...]]]
"""Returns, for rows with their versions, the commits that are known without a request, by number."""


class MergeRequestReader:
    """Reads the merge requests of one project. One instance serves one job. Without ``children``
    versions and commits are never requested. Details in ``refusals`` are not requested.
    """

    def __init__(
        self,
        client: Client,
        project_id: int,
        *,
        children: bool = True,
        refusals: Refusals | None = None,
    ) -> None:
        self._client = client
        self._refusals = refusals
        self._project_id = project_id
        self._path = project_path(project_id, "merge_requests")
        self._children = children

    def read(self, window: TimeWindow, known: Known = lambda _: {}) -> Iterator[MergeRequestPage]:
        """The merge requests updated in ``window``, each version of one once. ``known`` tells, for iids, the
        heads whose versions and commits are stored: they are not asked for again.

        One that the list cannot be given with is requested by itself. If it does not come then either, it is
        quarantined by its number, or by the times between which it was updated (:func:`unlisted_window`). Its
        fetch is deferred, as ``detail`` or ``list``.

        Raises as the transport does; AccessDenied with code ``denied`` also where merge requests are
        disabled."""
        for page in self.listed(window):
            for part in parts_of(page):
                yield self.complete(part, self._unread(part.rows, known))

    def listed(
        self, window: TimeWindow, ends: Callable[[datetime | None], datetime] | None = None
    ) -> Iterator[MergeRequestPage]:
        """As :meth:`read`, in whole pages of the list and without versions and commits. ``ends`` gives the
        end of the window instead, from the server's clock at the first response."""
        covered = window.since
        for page in by_time(self._client, self._path, _ORDER, window, _key, {"view": "simple"}, ends):
            single, unlisted = self._single([_iid(one.data) for one in page.partial_rows])
            unlisted += [_between(one.since, one.until, one.error) for one in page.unlisted]
            reached = TimeWindow(covered, page.covered_until) if page.covered_until > covered else None
            covered = page.covered_until
            found = _page([*page.rows, *single], page.date, unlisted)
            yield replace(found, window=window, covered=reached)

    def read_some(self, iids: Sequence[int], known: Known = lambda _: {}) -> Iterator[MergeRequestPage]:
        """The merge requests with these numbers as they are now, such as open ones or those whose branch
        moved; ``known`` as for :meth:`read`. One that is not in any batch was not found this once."""
        for page in self.listed_some(iids):
            yield self.complete(page, self._unread(page.rows, known))

    def listed_some(self, iids: Sequence[int]) -> Iterator[MergeRequestPage]:
        """As :meth:`read_some`, without versions and commits."""
        for first in range(0, len(iids), _IIDS_AT_ONCE):
            left = list(iids[first : first + _IIDS_AT_ONCE])
            query: Params = {"state": "all", "scope": "all", "iids[]": list(left)}
            unreadable: list[UnreadableRow] = []
            for answer in pages(self._client, self._path, query, unreadable=unreadable):
                came = {iid for data in rows(answer, self._path) if isinstance(iid := _iid(data), int)}
                left = [iid for iid in left if iid not in came]
                yield _page(answer.data, answer.date)
            if unreadable:
                single, unlisted = self._single(left)
                yield _page(single, None, unlisted)

    def complete(
        self, page: MergeRequestPage, wanted: Collection[int], known_commits: KnownCommits = lambda _: {}
    ) -> MergeRequestPage:
        """``page`` with versions and commits of the ``wanted`` rows, given by their numbers. A detail that
        cannot be read is deferred. The rows with their versions go to ``known_commits``; only the commits of
        the others are requested."""
        fetches = DeferredFetches(self._refusals)
        rows = {row.iid: row for row in page.rows}
        rows |= self._with_children([row for row in page.rows if row.iid in wanted], fetches, known_commits)
        fetches.settle(self.ask)
        return replace(
            page,
            rows=tuple(rows[row.iid] for row in page.rows),
            deferred=(*fetches.found, *page.deferred),
        )

    def settle(self, iid: int) -> tuple[MergeRequestRow, tuple[DeferredFetch, ...]]:
        """One merge request with its versions and commits, and what of them cannot be read. Raises as the
        transport does, RowUnreadable where it cannot be stored."""
        fetches = DeferredFetches(self._refusals)
        found = merge_request(self._client.get(f"{self._path}/{iid}").data)
        (row,) = self._with_children([found], fetches, lambda _: {}).values()
        fetches.settle(self.ask)
        return row, fetches.found

    def ask(self, iid: int, detail: str) -> Refusal | None:
        """How the server refuses a detail of one merge request; None if it is readable. Raises as the
        transport does.
        """
        path = f"{self._path}/{iid}"
        return refusal_of(self._client, path, path if detail == "detail" else f"{path}/{detail}", detail)

    def _unread(self, found: Sequence[MergeRequestRow], known: Known) -> set[int]:
        """The numbers of rows whose head is not among the stored ones."""
        if not found or not self._children:
            return set()
        stored = known({row.iid: row.mr_id for row in found})
        return {row.iid for row in found if stored.get(row.iid) != (row.head_sha, row.target_branch)}

    def _single(self, iids: Sequence[Any]) -> tuple[list[Any], list[QuarantinedRow]]:
        """Merge requests requested one by one, and those that failed."""
        found: list[Any] = []
        unlisted: list[QuarantinedRow] = []
        for iid in iids:
            try:
                found.append(self._client.get(f"{self._path}/{iid}").data)
            except (SourceGone, AccessDenied, Permanent, Transient) as error:
                if error.code in OWN_ERRORS:
                    unlisted.append(QuarantinedRow(str(iid), UNLISTED, str(error), b""))
                elif error.code != "no_object":
                    raise
        return found, unlisted

    def _with_children(
        self, rows: Sequence[MergeRequestRow], fetches: DeferredFetches, known_commits: KnownCommits
    ) -> dict[int, MergeRequestRow]:
        found = parallel_map(lambda row: self._with_versions(row, fetches), rows, self._client.parallel)
        known = known_commits(found) if found else {}

        def with_commits(row: MergeRequestRow) -> MergeRequestRow:
            commits = known.get(row.iid)
            if commits is None:
                commits = fetches.attempt(str(row.iid), "commits", lambda: self._commits(row.iid))
            return replace(row, commits=commits)

        return {row.iid: row for row in parallel_map(with_commits, found, self._client.parallel)}

    def _with_versions(self, row: MergeRequestRow, fetches: DeferredFetches) -> MergeRequestRow:
        key = str(row.iid)
        versions = fetches.attempt(key, "versions", lambda: self._versions(row.iid))
        if versions:
            newest = max(versions, key=lambda version: version.version_id)
            row = replace(
                row, base_sha=newest.base_sha, start_sha=newest.start_sha, changes_count=newest.size or None
            )
        elif row.head_sha is not None:
            path = f"{self._path}/{row.iid}"
            detail = fetches.attempt(key, "detail", lambda: merge_request(self._client.get(path).data))
            if detail is not None:
                row = detail
        return replace(row, versions=versions)

    def _versions(self, iid: int) -> tuple[MergeRequestVersion, ...]:
        path = f"{self._path}/{iid}/versions"
        answers = pages(self._client, path)
        found = [merge_request_version(data) for page in answers for data in rows(page, path)]
        return tuple({version.version_id: version for version in found}.values())

    def _commits(self, iid: int) -> tuple[CommitRow, ...]:
        path = f"{self._path}/{iid}/commits"
        found = [commit(data) for page in pages(self._client, path) for data in rows(page, path)]
        return tuple({row.sha: row for row in found}.values())


def parts_of(page: MergeRequestPage) -> Iterator[MergeRequestPage]:
    """``page`` in parts of few rows, because their details take many requests. The last part has everything
    that is not a row."""
    left = page.rows
    while len(left) > _WHOLE_AT_ONCE:
        yield Page(page.window, left[:_WHOLE_AT_ONCE], date=page.date)
        left = left[_WHOLE_AT_ONCE:]
    yield replace(page, rows=left)


def _page(
    found: Sequence[Any], date: datetime | None, unlisted: Sequence[QuarantinedRow] = ()
) -> MergeRequestPage:
    good: list[MergeRequestRow] = []
    quarantined_rows = list(unlisted)
    for data in found:
        try:
            good.append(merge_request(data))
        except RowUnreadable as error:
            quarantined_rows.append(quarantined(str(_iid(data) or "?"), error))
    deferred = tuple(deferred_of_unlisted(row, "detail") for row in unlisted)
    return Page(None, tuple(good), None, tuple(quarantined_rows), deferred, date=date)


def _iid(data: Any) -> Any:
    return data.get("iid") if isinstance(data, dict) else None


def _between(since: datetime, until: datetime, error: str) -> QuarantinedRow:
    return QuarantinedRow(f"{_UPDATED}{stamp(since)}/{stamp(until)}", UNLISTED, error, b"")


def unlisted_window(natural_key: str) -> TimeWindow | None:
    """The window in which to look again for the quarantined ``natural_key``; None if that is the number of a
    merge request.
    """
    since, _, until = natural_key.removeprefix(_UPDATED).partition("/")
    first, last = moment(since), moment(until)
    if not natural_key.startswith(_UPDATED) or first is None or last is None:
        return None
    return TimeWindow(first, last + timedelta(milliseconds=1))


def deferred_of_unlisted(row: QuarantinedRow, detail: str) -> DeferredFetch:
    """The deferred fetch of a merge request that did not come: of its ``detail``, or of the list where its
    number is not known."""
    return DeferredFetch(
        row.natural_key, "list" if row.natural_key.startswith(_UPDATED) else detail, row.detail
    )


def _key(data: Any) -> Key | None:
    if not isinstance(data, dict):
        return None
    number, time = data.get("id"), moment(data.get("updated_at"))
    return (number, time) if isinstance(number, int) and time is not None else None


def merge_request_version(data: Any) -> MergeRequestVersion:
    """A version of a merge request. Raises RowUnreadable if it has no number."""
    fields = Fields(data)
    return MergeRequestVersion(
        version_id=fields.required("id"),
        head_sha=fields.sha("head_commit_sha"),
        base_sha=fields.sha("base_commit_sha"),
        start_sha=fields.sha("start_commit_sha"),
        created_at=fields.moment("created_at"),
        state=fields.text("state"),
        size=fields.text("real_size"),
        patch_id=fields.sha("patch_id_sha"),
        raw=fields.data,
    )


def merge_request(data: Any) -> MergeRequestRow:
    """A merge request from a list row or a detail. Raises RowUnreadable without number, state or time of
    update.
    """
    fields = Fields(data)
    updated_at = fields.moment("updated_at")
    state = fields.text("state")
    if updated_at is None or state is None:
        raise RowUnreadable("the merge request has no state or no updated_at", payload=payload(data))
    draft = fields.boolean("draft")
    between = Fields(fields.object("diff_refs") or {})
    milestone = Fields(fields.object("milestone") or {})
    assignees = fields.people("assignees")
    if not assignees and (only := fields.person("assignee")):
        assignees = (only,)
    labels = tuple(_label(item) for item in fields.items("labels"))
    for label in labels:
        fields.note_text(label)
    return MergeRequestRow(
        mr_id=fields.required("id"),
        iid=fields.required("iid"),
        project_id=fields.required("project_id"),
        state=state,
        title=fields.text("title"),
        description=fields.text("description"),
        is_draft=fields.boolean("work_in_progress") if draft is None else draft,
        author=fields.person("author"),
        assignees=assignees,
        reviewers=fields.people("reviewers"),
        # On an open one, merge_user is the person who set auto-merge.
        merged_by=(fields.person("merge_user") or fields.person("merged_by")) if state == "merged" else None,
        closed_by=fields.person("closed_by"),
        created_at=fields.moment("created_at"),
        updated_at=updated_at,
        merged_at=fields.moment("merged_at"),
        closed_at=fields.moment("closed_at"),
        prepared_at=fields.moment("prepared_at"),
        source_project_id=fields.integer("source_project_id"),
        source_branch=fields.text("source_branch"),
        target_branch=fields.text("target_branch"),
        head_sha=fields.sha("sha"),
        merge_commit_sha=fields.sha("merge_commit_sha"),
        squash_commit_sha=fields.sha("squash_commit_sha"),
        base_sha=between.sha("base_sha"),
        start_sha=between.sha("start_sha"),
        changes_count=fields.text("changes_count"),
        labels=labels,
        milestone=milestone.text("title"),
        user_notes_count=fields.integer("user_notes_count"),
        web_url=fields.text("web_url"),
        flags=fields.sorted_flags(),
        raw=fields.data,
    )


def _label(item: Any) -> str:
    return str(item.get("name")) if isinstance(item, dict) else str(item)
