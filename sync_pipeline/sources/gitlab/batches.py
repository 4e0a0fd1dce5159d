"""Notes, approvers, reviewers and commits of many merge requests in one request, by GraphQL.

Belongs here: which merge requests one query asks for, the pages behind a long list, and the rows that the
answers become. Does not belong here: sending a query and judging its answer
(:mod:`sync_pipeline.sources.gitlab.graphql`), and what only REST has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sync_pipeline.core.errors import Permanent, RowUnreadable, Transient
from sync_pipeline.core.gitlab_rows import (
    ApprovalRow,
    CommitRow,
    MergeRequestRow,
    Origin,
    ReviewerRow,
    ReviewEventRow,
    ReviewSet,
)
from sync_pipeline.core.model import QuarantinedRow
from sync_pipeline.sources.gitlab import graphql
from sync_pipeline.sources.gitlab.children import parallel_map
from sync_pipeline.sources.gitlab.fields import commit, is_sha, person, quarantined
from sync_pipeline.sources.gitlab.reviews import approvals, note
from sync_pipeline.sources.gitlab.transport import Client

MAX_SIZE = 50
"""Merge requests of one query, and notes of each of them, at first and at most."""

_MIN_NOTES = 10
# Failures in a row, without one answer, after which smaller queries are no remedy.
_MAX_FAILURES = 8
# Full queries that have to work before larger ones are tried.
_SUCCESSES = 10
_PREFIX = "gid://"

Node = Mapping[str, Any]
DiffRefs = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class BatchReview:
    """The part of one merge request that GraphQL gives.

    ``review`` has the notes, with times in whole seconds, the approvers and the reviewers. An approval has
    the time of the note about it, and a reviewer no time. ``commits`` are newest first, as the server lists
    them; None: not all came, or they are of another head. ``diff_refs`` are base, start and head of the
    newest version; None: they did not come.
    """

    review: ReviewSet
    commits: tuple[CommitRow, ...] | None
    diff_refs: DiffRefs | None

    @property
    def commit_shas(self) -> tuple[str, ...] | None:
        """The names of the commits."""
        return None if self.commits is None else tuple(one.sha for one in self.commits)


@dataclass(slots=True)
class _Found:
    """A merge request of an answer. ``notes`` and ``shas`` are those of the pages so far; the cursors lead to
    the next page, None: there is none. ``failed`` are the fields that the server could not give.
    """

    row: MergeRequestRow
    node: Node
    failed: frozenset[str]
    notes: list[Any]
    notes_after: str | None
    shas: list[Any] | None
    shas_after: str | None


class BatchReader:
    """Reads merge requests of one project in batches, with ``parallel`` requests at once. One instance serves
    one job.

    ``stepped_down`` is why GraphQL is no longer used in this job, in one line; None: it is used.
    """

    def __init__(self, client: Client, project_id: int, full_path: str, *, parallel: int) -> None:
        self.stepped_down: str | None = None
        self._client = client
        self._project_id = project_id
        self._full_path = full_path
        self._parallel = parallel
        self._lock = threading.Lock()
        self._size = MAX_SIZE
        self._failures = 0
        self._successes = 0

    def read(self, merge_requests: Sequence[MergeRequestRow]) -> Mapping[int, BatchReview]:
        """By number, those of ``merge_requests`` that came whole; nothing follows from the absence of the
        others. Empty once GraphQL is not used any more.

        Raises Cancelled, ConfigurationError, and errors of the credential, the rate limit and the network as
        the transport does.
        """
        batches = list(_parts(merge_requests, self._size))
        found = [one for part in parallel_map(self._batch, batches, self._parallel) for one in part]
        whole = parallel_map(self._completed, found, self._parallel)
        return {one.row.iid: _review(one) for one in whole if one is not None}

    def _batch(self, rows: Sequence[MergeRequestRow]) -> list[_Found]:
        """The first page of each of ``rows``, in smaller parts where the server needs them."""
        size = self._size
        if len(rows) > size:
            return self._in_parts(rows, size)
        if self.stepped_down is not None:
            return []
        by_iid = {str(row.iid): row for row in rows}
        variables = {"iids": list(by_iid), "count": max(size, _MIN_NOTES)}
        try:
            answer = self._ask(graphql.BATCH, variables)
        except Transient as error:
            if error.code != graphql.TOO_LARGE:
                raise
            self._shrink(size, len(rows), str(error))
            return [] if len(rows) == 1 else self._in_parts(rows, len(rows) // 2)
        if answer is None:
            return []
        self._grow(len(rows))
        return list(_found(answer, by_iid))

    def _in_parts(self, rows: Sequence[MergeRequestRow], size: int) -> list[_Found]:
        return [one for part in _parts(rows, size) for one in self._batch(part)]

    def _ask(self, query: str, variables: Mapping[str, Any]) -> graphql.QueryResult | None:
        """The answer about our project; None after a reason to step down. Raises Transient with the code
        ``graphql.TOO_LARGE``.
        """
        try:
            answer = graphql.ask(self._client, query, {"path": self._full_path, **variables})
        except Permanent as error:
            if error.code != graphql.REFUSED:
                raise
            self._step_down(str(error))
            return None
        project = answer.data.get("project")
        number = number_of(project.get("id")) if isinstance(project, dict) else None
        if not isinstance(answer.data.get("currentUser"), dict) and self._client.instance.token():
            self._step_down("the server answered as if there was no token")
        elif project is None:
            self._step_down(f"it does not show the project {self._full_path}")
        elif number != self._project_id:
            self._step_down(f"{self._full_path} is project {number} there, not {self._project_id}")
        else:
            return answer
        return None

    def _step_down(self, reason: str) -> None:
        with self._lock:
            self.stepped_down = self.stepped_down or f"GraphQL is not used: {' '.join(reason.split())}"

    def _shrink(self, size: int, asked: int, reason: str) -> None:
        """Learn that a query for ``asked`` merge requests failed, made when ``size`` was allowed."""
        with self._lock:
            # Queries that were sent at the same time fail for the same reason.
            if size <= self._size:
                self._failures += 1
                self._successes = 0
                self._size = max(1, asked // 2)
            failures = self._failures
        if failures >= _MAX_FAILURES:
            self._step_down(f"queries for one merge request fail too ({reason})")

    def _grow(self, asked: int) -> None:
        """Learn that a query for ``asked`` merge requests works."""
        with self._lock:
            self._failures = 0
            self._successes += asked == self._size
            if self._successes == _SUCCESSES:
                self._successes = 0
                self._size = min(MAX_SIZE, self._size * 2)

    def _completed(self, found: _Found) -> _Found | None:
        """``found`` with the further pages of its lists; None if a page of its notes did not come."""
        while found.notes_after is not None:
            more = self._more(graphql.MORE_NOTES, found, found.notes_after)
            rows, following = _connection(more, "notes")
            if rows is None or following == found.notes_after:
                return None
            found.notes += rows
            found.notes_after = following
        while found.shas is not None and found.shas_after is not None:
            more = self._more(graphql.MORE_COMMITS, found, found.shas_after)
            rows, following = _connection(more, "commits")
            if rows is None or following == found.shas_after:
                found.shas = None
                break
            found.shas += rows
            found.shas_after = following
        return found

    def _more(self, query: str, found: _Found, after: str) -> Node:
        """The merge request with a further page of one of its lists; empty if it did not come."""
        iid = str(found.row.iid)
        variables = {"iids": [iid], "count": graphql.PAGE, "after": after}
        try:
            answer = None if self.stepped_down is not None else self._ask(query, variables)
        except Transient as error:
            if error.code != graphql.TOO_LARGE:
                raise
            return {}
        if answer is None or answer.failed:
            return {}
        return next((node for _, node in _nodes(answer, {iid: found.row})), {})


def _parts(rows: Sequence[MergeRequestRow], size: int) -> Iterable[Sequence[MergeRequestRow]]:
    return (rows[first : first + size] for first in range(0, len(rows), size))


def _nodes(answer: graphql.QueryResult, rows: Mapping[str, MergeRequestRow]) -> Iterable[tuple[int, Node]]:
    """The merge requests of an answer that are among ``rows``, each with its position in the answer."""
    listed = (answer.data["project"].get("mergeRequests") or {}).get("nodes") or ()
    for index, node in enumerate(listed):
        row = rows.get(str(node.get("iid"))) if isinstance(node, dict) else None
        # Another merge request may have the number now.
        if row is not None and number_of(node.get("id")) == row.mr_id:
            yield index, node


def _found(answer: graphql.QueryResult, rows: Mapping[str, MergeRequestRow]) -> Iterable[_Found]:
    """The merge requests of an answer whose notes came, as far as the first page holds them."""
    for index, node in _nodes(answer, rows):
        paths = [path[4:] for path in answer.failed if path[3:4] in ((index,), ())]
        failed = frozenset(str(path[0]) if path else "notes" for path in paths)
        notes, notes_after = _connection(node, "notes")
        if notes is None or "notes" in failed:
            continue
        shas, shas_after = _connection(node, "commits")
        if "commits" in failed:
            shas = None
        yield _Found(rows[str(node["iid"])], node, failed, notes, notes_after, shas, shas_after)


def _connection(node: Node, name: str) -> tuple[list[Any] | None, str | None]:
    """The rows of a page and the cursor of the next one, None at the end. No rows where the page is not
    whole.
    """
    page = node.get(name)
    info = page.get("pageInfo") if isinstance(page, dict) else None
    rows = page.get("nodes") if isinstance(page, dict) else None
    if not isinstance(info, dict) or not isinstance(rows, list) or None in rows:
        return None, None
    if not info.get("hasNextPage"):
        return list(rows), None
    cursor = info.get("endCursor")
    return (list(rows), cursor) if isinstance(cursor, str) else (None, None)


def _review(found: _Found) -> BatchReview:
    row, node = found.row, found.node
    events, unreadable = _events(row.iid, found.notes)
    refs = _diff_refs(node) if "diffRefs" not in found.failed else None
    review = ReviewSet(
        row.iid,
        row.updated_at,
        events,
        None if "approvedBy" in found.failed else _approvals(node, events),
        None if "reviewers" in found.failed else _reviewers(node),
        frozenset({Origin.NOTE}),
        unreadable,
        mr_id=row.mr_id,
        notes_counted=row.user_notes_count,
    )
    return BatchReview(review, _commits(found, refs), refs)


def _events(iid: int, nodes: Iterable[Any]) -> tuple[tuple[ReviewEventRow, ...], tuple[QuarantinedRow, ...]]:
    """The events of the notes of a merge request, oldest first, and the notes that cannot be read."""
    own = [node for node in nodes if not isinstance(node, dict) or node.get("noteableType") == "MergeRequest"]
    found: dict[str, ReviewEventRow] = {}
    unreadable: list[QuarantinedRow] = []
    for node in own:
        number = number_of(node.get("id")) if isinstance(node, dict) else None
        try:
            row = note_of(node, iid, discussion_of(node), False)
            found[row.event_id] = row
        except RowUnreadable as error:
            unreadable.append(quarantined(f"{iid}:{Origin.NOTE}:{number}", error))
    # Within a second the numbers say the order.
    ordered = sorted(found.values(), key=lambda row: (str(row.occurred_at), row.number))
    begun: set[str | None] = {None}
    events: list[ReviewEventRow] = []
    for row in ordered:
        events.append(replace(row, is_reply=row.discussion_id in begun and row.discussion_id is not None))
        begun.add(row.discussion_id)
    return tuple(events), tuple(unreadable)


def _approvals(node: Node, events: Sequence[ReviewEventRow]) -> tuple[ApprovalRow, ...] | None:
    people, following = _connection(node, "approvedBy")
    if people is None or following is not None:
        return None
    return approvals({"approved_by": [{"user": _account(one)} for one in people]}, events)


def _reviewers(node: Node) -> tuple[ReviewerRow, ...] | None:
    listed, following = _connection(node, "reviewers")
    if listed is None or following is not None:
        return None
    found: list[ReviewerRow] = []
    for one in listed:
        state = (one.get("mergeRequestInteraction") or {}).get("reviewState")
        if who := person(_account(one)):
            found.append(ReviewerRow(who, state.lower() if isinstance(state, str) else None, None))
    return tuple(found)


def _diff_refs(node: Node) -> DiffRefs | None:
    refs = node.get("diffRefs")
    if not isinstance(refs, dict):
        return None
    base, start, head = (
        refs.get(name) if is_sha(refs.get(name)) else None for name in ("baseSha", "startSha", "headSha")
    )
    return base, start, head


def _commits(found: _Found, refs: DiffRefs | None) -> tuple[CommitRow, ...] | None:
    """The commits; None if they did not all come, or belong to another head than the row's."""
    if found.shas is None or (refs is not None and refs[2] != found.row.head_sha):
        return None
    try:
        return tuple(commit(_commit_as_rest(one)) for one in found.shas)
    except RowUnreadable:
        return None


def _commit_as_rest(node: Node) -> dict[str, Any]:
    return {
        "id": node.get("sha"),
        "title": node.get("title"),
        "message": node.get("message"),
        "author_name": node.get("authorName"),
        "author_email": node.get("authorEmail"),
        "authored_date": node.get("authoredDate"),
        "committer_name": node.get("committerName"),
        "committer_email": node.get("committerEmail"),
        "committed_date": node.get("committedDate"),
    }


# The shape of a note --------------------------------------------------------------------------------------


def number_of(global_id: object) -> int | None:
    """The number at the end of a global id, such as 9001 of ``gid://gitlab/Note/9001``."""
    digits = str(global_id).rpartition("/")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 19 else None


def is_of_graphql(raw: object) -> bool:
    """Whether a note has the shape of GraphQL: its id is a global one."""
    return isinstance(raw, Mapping) and str(raw.get("id")).startswith(_PREFIX)


def discussion_of(node: Any) -> str | None:
    """The name of the discussion of a note, as REST has it."""
    discussion = node.get("discussion") if isinstance(node, Mapping) else None
    found = discussion.get("id") if isinstance(discussion, Mapping) else None
    return found.rpartition("/")[2] or None if isinstance(found, str) else None


def note_of(raw: Any, mr_iid: int, discussion_id: str | None, is_reply: bool) -> ReviewEventRow:
    """The event of a note in the shape of REST or GraphQL. Raises RowUnreadable if it has no id."""
    if not is_of_graphql(raw):
        return note(raw, mr_iid, discussion_id, is_reply)
    row = note(_as_rest(raw), mr_iid, discussion_id, is_reply)
    return replace(row, raw=raw, time_precision="second")


def _as_rest(node: Node) -> dict[str, Any]:
    is_resolvable = node.get("resolvable") is True
    resolved_by = _account(node.get("resolvedBy"))
    return {
        "id": number_of(node.get("id")),
        "body": node.get("body"),
        "author": _account(node.get("author")),
        "created_at": node.get("createdAt"),
        "updated_at": node.get("updatedAt"),
        "system": node.get("system"),
        "internal": node.get("internal"),
        "resolvable": is_resolvable,
        # Where nothing can be resolved, GraphQL says that it is not.
        "resolved": node.get("resolved") if is_resolvable else None,
        "resolved_by": resolved_by if is_resolvable else None,
        "resolved_at": node.get("resolvedAt") if is_resolvable else None,
        "position": _position(node.get("position")),
    }


def _account(node: Any) -> dict[str, Any] | None:
    if not isinstance(node, Mapping):
        return None
    return {"id": number_of(node.get("id")), "username": node.get("username"), "name": node.get("name")}


def _position(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    refs = node.get("diffRefs") or {}
    return {
        "base_sha": refs.get("baseSha"),
        "start_sha": refs.get("startSha"),
        "head_sha": refs.get("headSha"),
        "old_path": node.get("oldPath"),
        "new_path": node.get("newPath"),
        "position_type": node.get("positionType"),
        "old_line": node.get("oldLine"),
        "new_line": node.get("newLine"),
    }
