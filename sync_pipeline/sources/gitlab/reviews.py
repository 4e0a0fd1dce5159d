"""Reviews: all events of a merge request with stable ids, and its current sets.

Belongs here: notes in their discussions, state, label and milestone events, approvals, reviewers; the kind of
each system note. Does not belong here: which events are missing compared with the last time, because that
needs the stored events. docs/decisions/gitlab-review-events.md has the reasons for ids and kinds.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sync_pipeline.core.errors import AccessDenied, Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.core.gitlab_rows import (
    ApprovalRow,
    MergeRequestRow,
    Origin,
    Person,
    ReviewerRow,
    ReviewEventRow,
    ReviewSet,
)
from sync_pipeline.core.model import DeferredFetch, QuarantinedRow, Refusal
from sync_pipeline.sources.gitlab.children import (
    OWN_ERRORS,
    REFUSED,
    DeferredFetches,
    Refusals,
    parallel_map,
    refusal_of,
)
from sync_pipeline.sources.gitlab.fields import Fields, moment, person, quarantined
from sync_pipeline.sources.gitlab.page_bisect import UnreadableRow
from sync_pipeline.sources.gitlab.paging import named, pages, rows
from sync_pipeline.sources.gitlab.transport import Client, Params, project_path

# Both belong to one act in one request to the server.
_SAME_FACT = timedelta(seconds=10)
# Kinds that servers send as a note (old ones) or as a structured event.
DUPLICATED = frozenset({"merge", "close", "reopen", "label", "milestone"})
_STATES = {"merged": "merge", "closed": "close", "reopened": "reopen", "opened": "reopen", "locked": "lock"}
# Beginnings of the bodies of system notes, in this order.
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"approved this merge request", "approve"),
        (r"unapproved this merge request", "unapprove"),
        (r"requested changes", "request_changes"),
        (r"(requested review from|removed review request for) @", "reviewer_assign"),
        (r"(assigned to|unassigned) @|removed assignee", "assign"),
        (r"added \d+ (new )?commits?\b", "push"),
        (r"marked (this merge request )?as (a )?\*\*(draft|work in progress)\*\*", "draft"),
        (
            r"marked this merge request as \*\*ready\*\*|unmarked as a \*\*(draft|work in progress)\*\*",
            "ready",
        ),
        (r"changed target branch from ", "retarget"),
        (r"(deleted|restored) source branch ", "branch"),
        (r"changed title from ", "title"),
        (r"(changed|removed) the description", "description"),
        (r"resolved all (threads|discussions)", "resolve_all"),
        (r"changed this line in ", "outdated"),
        (r"(enabled an|canceled the|aborted the) automatic merge", "auto_merge"),
        (r"locked this merge request", "lock"),
        (r"unlocked this merge request", "unlock"),
        (r"mentioned in ", "mention"),
        (r"merged\b", "merge"),
        (r"closed\b", "close"),
        (r"reopened\b", "reopen"),
        (r"(added|removed) ~.* labels?\b", "label"),
        (r"(changed milestone to|removed milestone)\b", "milestone"),
    )
)
_PEOPLE = re.compile(
    r"(?P<verb>unassigned|assigned to|requested review from|removed review request for)"
    r"(?P<names>(?:,?\s+(?:and\s+)?@[\w.\-]+)+)",
    re.IGNORECASE,
)
_LABEL_WORDS = re.compile(
    r"""\b(?P<verb>added|removed)\b|~(?:"(?P<quoted>[^"]*)"|(?P<label>[^\s,"]+))""", re.IGNORECASE
)
_NAME = re.compile(r"@([\w.\-]*[\w\-])")


def read_note(body: str) -> tuple[str, Mapping[str, Any]]:
    """Kind and details of a system note, from its text; ``system`` if the text is unknown. People are the
    usernames of that time.
    """
    text = body.lstrip()
    kind = next((kind for pattern, kind in _KINDS if pattern.match(text)), "system")
    if kind in ("assign", "reviewer_assign"):
        lists: dict[str, list[str]] = {"added": [], "removed": []}
        for found in _PEOPLE.finditer(text):
            removed = found["verb"].lower().startswith(("un", "removed"))
            lists["removed" if removed else "added"] += _NAME.findall(found["names"])
        return kind, lists
    if kind == "push" and (count := re.match(r"added (\d{1,9}) ", text, re.IGNORECASE)):
        return kind, {"commits": int(count[1])}
    return kind, {}


NeedsApprovals = Callable[[MergeRequestRow, Mapping[str, str]], bool]
"""Whether the approvals of a merge request are requested, given the kinds of its notes by their ids."""

_DETAILS = ("notes", "state_events", "label_events", "milestone_events", "approvals", "reviewers")


@dataclass
class _Gathered:
    """The parts of one merge request's review that were read so far."""

    events: dict[str, ReviewEventRow] = field(default_factory=dict)
    whole: set[Origin] = field(default_factory=set)
    quarantined_rows: list[QuarantinedRow] = field(default_factory=list)

    def add(self, make: Callable[[], ReviewEventRow], natural_key: str) -> None:
        try:
            row = make()
            self.events[row.event_id] = row
        except RowUnreadable as error:
            self.quarantined_rows.append(quarantined(natural_key, error))


class ReviewReader:
    """Reads the reviews of one project. One instance serves one job, with ``parallel`` requests at once.
    Details in ``refusals`` are not requested.
    """

    def __init__(
        self, client: Client, project_id: int, *, parallel: int = 4, refusals: Refusals | None = None
    ) -> None:
        self._client = client
        self._refusals = refusals
        self._project_id = project_id
        self._parallel = parallel

    def read(
        self,
        merge_requests: Sequence[MergeRequestRow],
        wanted: Mapping[int, Collection[str]] | None = None,
        needs_approvals: NeedsApprovals = lambda row, notes: True,
    ) -> list[ReviewSet]:
        """The reviews of these merge requests, in their order: five requests each, one more where somebody is
        asked for a review. A part that cannot be read is deferred (details ``notes``, ``state_events``,
        ``label_events``, ``milestone_events``, ``approvals``, ``reviewers``).

        With ``wanted``, by number, only these details are read. Approvals are not requested where
        ``needs_approvals`` says so after the notes of a merge request were read: they are as stored.
        """
        fetches = DeferredFetches(self._refusals)

        def read_one(row: MergeRequestRow) -> ReviewSet:
            details = _DETAILS if wanted is None else wanted.get(row.iid, ())
            return self._read(row, fetches, details, needs_approvals)

        found = parallel_map(read_one, merge_requests, self._parallel)
        fetches.settle(self.ask)
        deferred: dict[str, list[DeferredFetch]] = {}
        for one in fetches.found:
            deferred.setdefault(one.natural_key, []).append(one)
        return [replace(one, deferred=tuple(deferred.get(str(one.mr_iid), ()))) for one in found]

    def approved(self, iids: Sequence[int]) -> frozenset[int] | None:
        """Which of these merge requests somebody approves, by a filter of the list. None if the server does
        not have the filter. Raises as the transport does for errors that concern more than this list.
        """
        try:
            found = self._approved_by("Any", iids)
            # A server without the filter lists the same for the opposite.
            if len(found) == len(iids) and self._approved_by("None", iids):
                return None
        except (SourceGone, AccessDenied, Permanent, Transient) as error:
            if error.code not in OWN_ERRORS | REFUSED:
                raise
            return None
        return found

    def _approved_by(self, whom: str, iids: Sequence[int]) -> frozenset[int]:
        path = project_path(self._project_id, "merge_requests")
        query: Params = {"state": "all", "scope": "all", "iids[]": list(iids), "approved_by_ids[]": [whom]}
        return frozenset(
            iid
            for page in pages(self._client, path, query)
            for data in rows(page, path)
            if isinstance(data, dict) and isinstance(iid := data.get("iid"), int)
        )

    def ask(self, iid: int, detail: str) -> Refusal | None:
        """How the server refuses a detail of one review; None if it is readable. Raises as the transport
        does.
        """
        name = f"resource_{detail}" if detail.endswith("_events") else detail
        path = project_path(self._project_id, "merge_requests", iid)
        return refusal_of(self._client, path, f"{path}/{name}", detail)

    def _read(
        self,
        merge_request: MergeRequestRow,
        fetches: DeferredFetches,
        wanted: Collection[str],
        needs_approvals: NeedsApprovals,
    ) -> ReviewSet:
        iid = merge_request.iid
        key = str(iid)
        path = project_path(self._project_id, "merge_requests", iid)
        got = _Gathered()
        details = {Origin.NOTE: ("notes", partial(self._notes, path, merge_request, got))}
        for origin in (Origin.STATE, Origin.LABEL, Origin.MILESTONE):
            details[origin] = (f"{origin}_events", partial(self._resource, path, iid, origin, got))
        for origin, (detail, read) in details.items():
            unreadable = fetches.attempt(key, detail, read) if detail in wanted else None
            if unreadable:
                # The other parts are kept.
                fetches.defer(key, detail, unreadable[0].error)
            elif unreadable is not None:
                got.whole.add(origin)
        events = without_duplicates(got.events.values())
        approvals: tuple[ApprovalRow, ...] | None = None
        kept: frozenset[str] = frozenset()
        if "approvals" in wanted:
            notes = {row.event_id: row.kind for row in events if row.origin is Origin.NOTE}
            if Origin.NOTE in got.whole and not needs_approvals(merge_request, notes):
                kept = frozenset({"approvals"})
            else:
                approvals = fetches.attempt(key, "approvals", lambda: self._approvals(path, events))
        # Old servers have no reviewers.
        reviewers: tuple[ReviewerRow, ...] | None = () if "reviewers" in merge_request.raw else None
        if merge_request.reviewers:
            reviewers = None
            if "reviewers" in wanted:
                reviewers = fetches.attempt(key, "reviewers", lambda: self._reviewers(path))
        return ReviewSet(
            iid,
            merge_request.updated_at,
            events,
            approvals,
            reviewers,
            frozenset(got.whole),
            tuple(got.quarantined_rows),
            mr_id=merge_request.mr_id,
            notes_counted=merge_request.user_notes_count,
            kept=kept,
        )

    def _notes(self, path: str, merge_request: MergeRequestRow, got: _Gathered) -> list[UnreadableRow]:
        """All notes, from the discussions. The list of notes is read too if there are no discussions, or
        fewer comments in them than the merge request counts. Returns what is still missing.
        """
        iid = merge_request.iid
        unreadable: list[UnreadableRow] = []
        try:
            url = f"{path}/discussions"
            for discussion in self._all(url, unreadable=unreadable):
                within = Fields(discussion)
                for index, data in enumerate(within.items("notes")):
                    got.add(
                        partial(note, data, iid, within.text("id"), index > 0), f"{iid}:note:{_number(data)}"
                    )
            expected = merge_request.user_notes_count or 0
            if not unreadable and sum(not row.is_system for row in got.events.values()) >= expected:
                return []
        except (SourceGone, AccessDenied) as error:
            if error.code not in ("no_route", "no_object", "denied"):
                raise
        unreadable = []
        for data in self._all(f"{path}/notes", {"sort": "asc", "order_by": "created_at"}, unreadable):
            if f"note:{_number(data)}" not in got.events:
                got.add(partial(note, data, iid, None, False), f"{iid}:note:{_number(data)}")
        return unreadable

    def _resource(self, path: str, iid: int, origin: Origin, got: _Gathered) -> list[UnreadableRow]:
        unreadable: list[UnreadableRow] = []
        for data in self._all(f"{path}/resource_{origin}_events", unreadable=unreadable):
            got.add(partial(resource_event, data, iid, origin), f"{iid}:{origin}:{_number(data)}")
        return unreadable

    def _approvals(self, path: str, events: Sequence[ReviewEventRow]) -> tuple[ApprovalRow, ...]:
        data = named(self._client.get(f"{path}/approvals").data, f"{path}/approvals")
        return approvals(data, events)

    def _reviewers(self, path: str) -> tuple[ReviewerRow, ...]:
        found: list[ReviewerRow] = []
        for data in self._all(f"{path}/reviewers"):
            fields = Fields(data)
            if who := fields.person("user"):
                found.append(ReviewerRow(who, fields.text("state"), fields.moment("created_at")))
        return tuple(found)

    def _all(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        unreadable: list[UnreadableRow] | None = None,
    ) -> Iterator[Any]:
        for page in pages(self._client, path, params, unreadable=unreadable):
            yield from rows(page, path)


def _number(data: Any) -> Any:
    return data.get("id") if isinstance(data, dict) else None


def note(data: Any, mr_iid: int, discussion_id: str | None, is_reply: bool) -> ReviewEventRow:
    """The event of a note. Raises RowUnreadable if it has no id."""
    fields = Fields(data)
    number = fields.required("id")
    body = fields.text("body")
    is_system = fields.boolean("system") is True
    position = fields.object("position")
    kind = "code_comment" if position else "comment"
    details: Mapping[str, Any] = {}
    if is_system:
        kind, details = read_note(body or "")
    return ReviewEventRow(
        event_id=f"{Origin.NOTE}:{number}",
        origin=Origin.NOTE,
        number=number,
        mr_iid=mr_iid,
        kind=kind,
        actor=fields.person("author"),
        occurred_at=fields.moment("created_at"),
        updated_at=fields.moment("updated_at"),
        body=body,
        is_system=is_system,
        is_internal=fields.boolean("internal") is True or fields.boolean("confidential") is True,
        discussion_id=discussion_id,
        is_reply=is_reply,
        resolvable=fields.boolean("resolvable") is True,
        resolved=fields.boolean("resolved"),
        resolved_by=fields.person("resolved_by"),
        resolved_at=fields.moment("resolved_at"),
        position=position,
        flags=fields.sorted_flags(),
        raw=fields.data,
        details=details,
    )


def resource_event(data: Any, mr_iid: int, origin: Origin) -> ReviewEventRow:
    """The event of a state, label or milestone event. Raises RowUnreadable if it has no id."""
    fields = Fields(data)
    number = fields.required("id")
    happened = fields.moment("created_at")
    details: Mapping[str, Any]
    if origin is Origin.STATE:
        state = fields.text("state") or ""
        kind, details = _STATES.get(state, "state"), {"state": state}
    else:
        subject = fields.object(str(origin)) or {}
        name = subject.get("name") or subject.get("title")
        kind = str(origin)
        details = {"action": fields.text("action") or "", "id": subject.get("id"), "name": name}
    return ReviewEventRow(
        event_id=f"{origin}:{number}",
        origin=origin,
        number=number,
        mr_iid=mr_iid,
        kind=kind,
        actor=fields.person("user"),
        occurred_at=happened,
        updated_at=happened,
        body=None,
        is_system=True,
        is_internal=False,
        discussion_id=None,
        is_reply=False,
        resolvable=False,
        resolved=None,
        resolved_by=None,
        resolved_at=None,
        position=None,
        flags=fields.sorted_flags(),
        raw=fields.data,
        details=details,
    )


def without_duplicates(events: Iterable[ReviewEventRow]) -> tuple[ReviewEventRow, ...]:
    """``events`` by time and id, each fact under one kind only.

    A system note that duplicates a structured event of the same person at the same time points to that event.
    For labels the note must contain the label of the event. For labels and milestones the action (added or
    removed) must be equal too.
    """
    ordered = sorted(events, key=lambda row: (str(row.occurred_at), row.origin, row.number))
    # By time, so that each note checks only the first ones.
    free: dict[tuple[Any, ...], deque[tuple[datetime, str]]] = defaultdict(deque)
    for row in ordered:
        if row.origin is not Origin.NOTE and row.occurred_at is not None:
            for change in _changes_of_event(row):
                free[row.kind, _who(row.actor), change].append((row.occurred_at, row.event_id))
    result: list[ReviewEventRow] = []
    for row in ordered:
        if row.origin is Origin.NOTE and row.is_system and row.kind in DUPLICATED and row.occurred_at:
            for change in _changes_of_note(row):
                others = free[row.kind, _who(row.actor), change]
                while others and others[0][0] < row.occurred_at - _SAME_FACT:
                    others.popleft()
                if others and others[0][0] <= row.occurred_at + _SAME_FACT:
                    twin = others[0][1]
                    if row.kind != "label":  # one note tells of all labels that were changed at once
                        others.popleft()
                    row = replace(row, kind="system", duplicate_of=twin)
                    break
        result.append(row)
    return tuple(result)


_Change = tuple[str, str | None] | None
"""The change of a fact: ``add`` or ``remove``, and the label by its number or name. None is a label that was
deleted since, or a milestone.
"""


def _changes_of_event(row: ReviewEventRow) -> list[_Change]:
    """The change of a structured event under each name that a note may have for it."""
    action = str(row.details.get("action"))
    if row.kind == "milestone":
        return [(action, None)]
    if row.kind != "label":
        return [None]
    names = {str(name) for name in (row.details.get("id"), row.details.get("name")) if name is not None}
    return [(action, name) for name in sorted(names)] or [(action, None)]


def _changes_of_note(row: ReviewEventRow) -> list[_Change]:
    """The changes in the text of a system note."""
    body = row.body or ""
    if row.kind == "milestone":
        return [("remove" if body.lstrip().lower().startswith("removed") else "add", None)]
    if row.kind != "label":
        return [None]
    found: dict[_Change, None] = {}
    action = ""
    for token in _LABEL_WORDS.finditer(body):
        if token["verb"]:
            action = "add" if token["verb"].lower() == "added" else "remove"
        else:
            found[action, token["quoted"] or token["label"]] = None
    # If the label was deleted since, the event no longer names it.
    return [*found, *dict.fromkeys((change[0], None) for change in found if change)]


def _who(one: Person | None) -> int | str | None:
    return None if one is None else (one.user_id or one.username)


def approvals(data: Mapping[str, Any], events: Sequence[ReviewEventRow]) -> tuple[ApprovalRow, ...]:
    """The current approvals. If the server sends no time, it is that of the person's last approving note,
    unless they withdrew it; else unknown.
    """
    last: dict[int | str | None, datetime | None] = {}
    for event in events:
        if event.kind == "approve":
            last[_who(event.actor)] = event.occurred_at
        elif event.kind == "unapprove":
            last.pop(_who(event.actor), None)
    found: dict[int | str | None, ApprovalRow] = {}
    for item in Fields(data).items("approved_by"):
        fields = item if isinstance(item, dict) else {}
        who = person(fields.get("user"))
        if who is None:
            continue
        given, from_note = moment(fields.get("approved_at")), last.get(_who(who))
        source = "approval" if given else "note" if from_note else None
        found[_who(who)] = ApprovalRow(who, given or from_note, source)
    return tuple(found.values())
