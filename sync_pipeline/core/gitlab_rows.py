"""The rows of GitLab: what its readers yield and the store writes.

Belongs here: frozen dataclasses and the meaning of their fields. Does not belong here: where the values come
from (:mod:`sync_pipeline.sources.gitlab`) and how they are stored (:mod:`sync_pipeline.facts`). The content
hash takes the fields in their order (:mod:`sync_pipeline.facts.tables`).

Times are UTC, None where the source has none or wrote one that is no time (then ``flags`` holds
``bad_date``). Texts are as received and may hold what PostgreSQL cannot store (``control_characters``: NUL;
``invalid_unicode``: half of a surrogate pair). ``raw`` is the source's object as received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sync_pipeline.core.model import DeferredFetch, Page, QuarantinedRow

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Person:
    """An account as embedded in other objects. One ``ghost`` stands for everybody who was deleted."""

    user_id: int | None
    username: str | None
    name: str | None


def who(person: Person) -> str:
    """The identity of an account: its number, else ``@`` and the user name."""
    return f"@{person.username}" if person.user_id is None else str(person.user_id)


class RefKind(StrEnum):
    """The kind of a ref."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class RefRow:
    """A branch or tag. ``tip`` is the commit it leads to; ``target`` the tag object of an annotated tag, else
    the commit. ``is_default`` is False for tags. ``created_at`` and ``message`` are of annotated tags."""

    kind: RefKind
    name: str
    tip: str
    target: str
    is_default: bool
    is_protected: bool
    created_at: datetime | None
    message: str | None
    flags: tuple[str, ...]
    raw: Raw


@dataclass(frozen=True, slots=True)
class RefListing:
    """All refs at one time. ``date`` is the server's clock when the listing began; a push before it is in. Of
    the kinds in ``partial`` there are refs that the server could not list: one that is not here may be
    there."""

    refs: tuple[RefRow, ...]
    date: datetime | None
    quarantined: tuple[QuarantinedRow, ...] = ()
    partial: frozenset[RefKind] = frozenset()


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One commit. ``parents`` is None where the source did not say, which is not the same as a root (none).
    ``authored_raw`` and ``committed_raw`` keep each date as written, with its own offset. The
    numbers of lines are None where they were not read."""

    sha: str
    parents: tuple[str, ...] | None
    author_name: str | None
    author_email: str | None
    authored_at: datetime | None
    authored_raw: str | None
    committer_name: str | None
    committer_email: str | None
    committed_at: datetime | None
    committed_raw: str | None
    title: str | None
    message: str | None
    additions: int | None
    deletions: int | None
    web_url: str | None
    flags: tuple[str, ...]
    raw: Raw


@dataclass(frozen=True)
class CommitPage(Page[tuple[CommitRow, ...]]):
    """A page of commits. One of a walk holds what ``tip`` reaches and ``base`` does not (None: to the root).

    ``number`` counts from 1, and is 0 for commits that were requested by name. The walk can be continued at
    ``next_number``, None at its end. ``tip_read``: the tip was in this page or an earlier one. ``complete``:
    this page ends the walk, and its answers can be relied on. ``absent`` are commits that were requested by
    name and that the server does not have. ``first_number`` is that of the first of several pages in one."""

    tip: str | None = None
    base: str | None = None
    number: int = 1
    first_number: int | None = None
    next_number: int | None = None
    tip_read: bool = False
    complete: bool = False
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeRequestVersion:
    """The state of a merge request after one push. ``size`` is a text: ``1000+`` at the cap."""

    version_id: int
    head_sha: str | None
    base_sha: str | None
    start_sha: str | None
    created_at: datetime | None
    state: str | None
    size: str | None
    patch_id: str | None
    raw: Raw


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """A release of a project. ``released_at`` may be in the future. ``milestones`` are titles.
    ``asset_links`` have the keys id, name, url and type. ``assets_count`` counts the links and
    the archives of the source."""

    tag: str
    name: str | None
    description: str | None
    commit_sha: str | None
    created_at: datetime | None
    released_at: datetime | None
    author: Person | None
    milestones: tuple[str, ...]
    assets_count: int | None
    asset_links: tuple[Raw, ...]
    flags: tuple[str, ...]
    raw: Raw


@dataclass(frozen=True, slots=True)
class MergeRequestRow:
    """One merge request as of ``updated_at``. ``state`` is the source's word (``opened``, ``closed``,
    ``merged``, ``locked``, or any other). ``versions`` (newest first) and ``commits`` (newest first) are
    whole sets that replace what is stored; None where they were not read."""

    iid: int
    mr_id: int
    project_id: int
    state: str
    title: str | None
    description: str | None
    is_draft: bool | None
    author: Person | None
    merged_by: Person | None
    closed_by: Person | None
    assignees: tuple[Person, ...]
    reviewers: tuple[Person, ...]
    labels: tuple[str, ...]
    milestone: str | None
    created_at: datetime | None
    updated_at: datetime
    merged_at: datetime | None
    closed_at: datetime | None
    prepared_at: datetime | None
    source_project_id: int | None
    source_branch: str | None
    target_branch: str | None
    head_sha: str | None
    merge_commit_sha: str | None
    squash_commit_sha: str | None
    base_sha: str | None
    start_sha: str | None
    changes_count: str | None
    user_notes_count: int | None
    web_url: str | None
    flags: tuple[str, ...]
    raw: Raw
    versions: tuple[MergeRequestVersion, ...] | None = None
    commits: tuple[CommitRow, ...] | None = None


MergeRequestPage = Page[tuple[MergeRequestRow, ...]]
"""Merge requests of a list, oldest update first, or some that were requested by their numbers."""


class Origin(StrEnum):
    """Which kind of object of the source an event is; the first part of its id."""

    NOTE = "note"
    STATE = "state"
    LABEL = "label"
    MILESTONE = "milestone"


@dataclass(frozen=True, slots=True)
class ReviewEventRow:
    """One thing that happened in a review. ``event_id`` is ``<origin>:<number>`` and never changes; ``kind``
    may, when later versions know a note's text better. See docs/decisions/gitlab-review-events.md.

    ``duplicate_of`` names the structured event of the same fact; such a note has the kind ``system``.
    ``is_reply``: not the first note of its discussion. ``details`` are of the kind (people added and removed,
    the label, the number of commits). ``time_precision`` is ``second`` or ``millisecond``: the unit to which
    the source gave the times.
    """

    mr_iid: int
    event_id: str
    origin: Origin
    number: int
    kind: str
    actor: Person | None
    occurred_at: datetime | None
    updated_at: datetime | None
    body: str | None
    is_system: bool
    is_internal: bool
    discussion_id: str | None
    is_reply: bool
    resolvable: bool
    resolved: bool | None
    resolved_by: Person | None
    resolved_at: datetime | None
    position: Mapping[str, Any] | None
    flags: tuple[str, ...]
    raw: Raw
    details: Mapping[str, Any] = field(default_factory=dict)
    duplicate_of: str | None = None
    time_precision: str = "millisecond"


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval in force. ``time_source`` says where ``approved_at`` is from: ``approval``, ``note``, or
    None
    where no time is known."""

    person: Person
    approved_at: datetime | None
    time_source: str | None


@dataclass(frozen=True, slots=True)
class ReviewerRow:
    """A person asked for a review, with the state of it (an open set of words) and when they were asked."""

    person: Person
    state: str | None
    requested_at: datetime | None


@dataclass(frozen=True, slots=True)
class ReviewSet:
    """Everything of one merge request's review that could be read, as of its ``mr_updated_at``.

    ``whole`` are the origins that were read to their end. A stored event of such an origin is missing at the
    source if ``events`` lacks it. ``approvals`` and ``reviewers`` are the current sets, None if they could
    not be read. ``notes_counted`` is how many comments the server counts, including hidden ones. ``mr_id`` is
    the number of the merge request within the instance, None if it is not known.

    ``kept`` are further details that are complete without a request. ``seen`` are sets of people that
    GraphQL showed, without times: they add to what is stored and remove nothing. A ``partial`` review holds
    some details of a review that was read before, and leaves the others as they are.
    """

    mr_iid: int
    mr_updated_at: datetime
    events: tuple[ReviewEventRow, ...]
    approvals: tuple[ApprovalRow, ...] | None
    reviewers: tuple[ReviewerRow, ...] | None
    whole: frozenset[Origin]
    quarantined: tuple[QuarantinedRow, ...] = ()
    deferred: tuple[DeferredFetch, ...] = ()
    mr_id: int | None = None
    notes_counted: int | None = None
    kept: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    partial: bool = False

    @property
    def notes_hidden(self) -> int | None:
        """How many comments the server counts but does not show; None if it does not say."""
        if self.notes_counted is None or Origin.NOTE not in self.whole:
            return None
        came = sum(event.origin is Origin.NOTE and not event.is_system for event in self.events)
        return max(0, self.notes_counted - came)


ReviewPage = Page[tuple[ReviewSet, ...]]
"""The reviews of the merge requests of one page."""


@dataclass(frozen=True, slots=True)
class StoredReview:
    """The stored state of a merge request and its review.

    ``read_as_of`` is the ``updated_at`` of the merge request at the latest reading, None if there was none.
    ``complete`` are the details that were read to their end at full precision then, and have no open deferred
    fetch. ``status``, ``labels``, ``milestone`` and ``head_sha`` are of the stored row. ``approvers`` and
    ``reviewers`` (with their states) are the present ones, as :func:`who` names them. ``notes`` are the
    columns of the present notes by their event ids.
    """

    read_as_of: datetime | None = None
    complete: frozenset[str] = frozenset()
    status: str | None = None
    labels: frozenset[str] = frozenset()
    milestone: str | None = None
    head_sha: str | None = None
    approvers: frozenset[str] = frozenset()
    reviewers: Mapping[str, str | None] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_milestone_events: bool = False
