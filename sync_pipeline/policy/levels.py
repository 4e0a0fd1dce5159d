"""Which details of a merge request are read at once, which later, and which not at all.

Belongs here: pure decisions from the row of the list, from what is stored, and from what GraphQL showed. A
merge request is usable when its row, notes, approvers and reviewers are stored. It is complete when each
detail was read to its end at full precision. Does not belong here: reading, and the order of deferred fetches
among repositories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.core.gitlab_rows import MergeRequestRow, StoredReview, who

NOTES = "notes"
STATE_EVENTS = "state_events"
LABEL_EVENTS = "label_events"
MILESTONE_EVENTS = "milestone_events"
APPROVALS = "approvals"
REVIEWERS = "reviewers"
VERSIONS = "versions"
COMMITS = "commits"

EVENTS = (STATE_EVENTS, LABEL_EVENTS, MILESTONE_EVENTS)
REVIEW_DETAILS = (NOTES, *EVENTS, APPROVALS, REVIEWERS)

AT_ONCE = 25
"""A page with at most so many merge requests to read is read to the complete level at once. Larger pages are
stored at the usable level, and the rest is planned."""

ABOUT_APPROVALS = frozenset({"approve", "unapprove"})
"""The kinds of notes about approvals."""

ABOUT_REVIEWERS = frozenset({"reviewer_assign"})
"""The kinds of notes about people who are asked for a review."""

ABOUT_VERSIONS = frozenset({"push", "retarget"})
"""The kinds of notes about what makes a new version."""

CONFIRM_AFTER = timedelta(hours=1)
"""Time before a list without a sign of a change is read again. Several updates within it cost one reading."""

_RECENT = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class SeenReview:
    """The part of a review that GraphQL shows. ``same_notes``: its notes are the stored ones, at the
    precision of a second. ``approval_notes`` and ``reviewer_notes`` are the ids of its notes about approvals
    and about who is asked for a review. ``approvers`` and ``reviewers`` are None where they did not come.
    ``is_entangled``: a system note, of GraphQL or stored, may repeat a state, label or milestone event.
    """

    same_notes: bool
    approval_notes: frozenset[str]
    reviewer_notes: frozenset[str]
    approvers: frozenset[str] | None
    reviewers: Mapping[str, str | None] | None
    is_entangled: bool


@dataclass(frozen=True, slots=True)
class ReviewPlan:
    """The details of one review by what happens to them. ``changed`` ones are new, or show a sign of a
    change. ``unsure`` ones were complete and may have changed without a sign. ``kept`` ones are complete
    without a request."""

    changed: frozenset[str]
    unsure: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()


EVERYTHING = ReviewPlan(frozenset(REVIEW_DETAILS))
"""The plan that reads all details."""


def plan_by_rest(row: MergeRequestRow, stored: StoredReview, *, has_milestones: bool) -> ReviewPlan:
    """The plan for a server without GraphQL: nothing but a request shows a change. Whether the approvals are
    read follows from the notes, see :func:`needs_approvals`."""
    kept = frozenset() if _may_have_milestones(row, stored, has_milestones) else {MILESTONE_EVENTS}
    changed = set(REVIEW_DETAILS) - kept - (set() if row.reviewers else {REVIEWERS})
    return ReviewPlan(frozenset(changed), kept=frozenset(kept))


def plan_by_graphql(
    row: MergeRequestRow, stored: StoredReview, seen: SeenReview, *, has_milestones: bool
) -> ReviewPlan:
    """The plan after GraphQL showed notes, approvers and reviewers. Nothing in GraphQL shows that a state,
    label or milestone event exists, so these lists are at best unsure."""
    changed: set[str] = set()
    unsure: set[str] = set()
    kept: set[str] = set()

    def sort(detail: str, is_same: bool) -> None:
        (kept if is_same and detail in stored.complete else changed).add(detail)

    sort(NOTES, seen.same_notes)
    for detail, is_same in (
        (STATE_EVENTS, stored.status == _status(row)),
        (LABEL_EVENTS, stored.labels == frozenset(row.labels)),
        (MILESTONE_EVENTS, stored.milestone == row.milestone),
    ):
        if detail == MILESTONE_EVENTS and not _may_have_milestones(row, stored, has_milestones):
            kept.add(detail)
        elif is_same and detail in stored.complete:
            unsure.add(detail)
        else:
            changed.add(detail)
    if not seen.approvers and seen.approvers is not None and not stored.approvers:
        # The server says that nobody approves. The list would be empty too.
        kept.add(APPROVALS)
    else:
        no_note = seen.approval_notes == _notes_about(stored, ABOUT_APPROVALS)
        sort(APPROVALS, no_note and seen.approvers == stored.approvers)
    if row.reviewers:
        listed = {who(person) for person in row.reviewers}
        # Somebody who was removed and is asked again has a new time.
        no_note = seen.reviewer_notes == _notes_about(stored, ABOUT_REVIEWERS)
        is_same = seen.reviewers == stored.reviewers and listed == set(stored.reviewers)
        sort(REVIEWERS, no_note and is_same)
    if seen.is_entangled and changed & {NOTES, *EVENTS}:
        # Which note repeats which event is decided with all of them.
        together = {NOTES, *EVENTS} - (kept & {MILESTONE_EVENTS})
        changed |= together
        unsure -= together
        kept -= together
    return ReviewPlan(frozenset(changed), frozenset(unsure), frozenset(kept))


def needs_approvals(row: MergeRequestRow, stored: StoredReview, notes: Mapping[str, str]) -> bool:
    """Whether only a request can tell who approves, by REST. ``notes`` are the kinds of all notes that came,
    by their ids.

    An approval has a note. A push may take approvals away without one, so a new head counts too."""
    if APPROVALS not in stored.complete:
        return "approve" in notes.values() or bool(stored.approvers)
    about = {event_id for event_id, kind in notes.items() if kind in ABOUT_APPROVALS}
    return about != _notes_about(stored, ABOUT_APPROVALS) or (
        bool(stored.approvers) and row.head_sha != stored.head_sha
    )


def _notes_about(stored: StoredReview, kinds: frozenset[str]) -> set[str]:
    return {key for key, note in stored.notes.items() if note["event_type"] in kinds}


def priority(row: MergeRequestRow, now: datetime) -> int:
    """The priority of planned fetches of a merge request: open ones first, recent ones before old ones."""
    is_recent = row.updated_at > now - _RECENT
    if row.state == "opened":
        return 10 if is_recent else 20
    return 30 if is_recent else 50


def _may_have_milestones(row: MergeRequestRow, stored: StoredReview, has_milestones: bool) -> bool:
    return has_milestones or row.milestone is not None or stored.has_milestone_events


def _status(row: MergeRequestRow) -> str:
    return "open" if row.state == "opened" else row.state
