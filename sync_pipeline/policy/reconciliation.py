"""Consequences of a difference between a source and the stored rows.

Belongs here: pure decisions: when a missing row counts as deleted, what a repair can fix, and when a person
has to act. Does not belong here: how rows are compared and read again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sync_pipeline.core.model import Depth, Difference, DifferenceKind, JobType

REPAIRS_BEFORE_A_PERSON = 3
"""After this number of repairs without success a difference needs a person."""

# Members of a set, or rows that are listed as a whole: reading the set again removes extra ones.
_OF_SETS = re.compile(r"(branch|tag):|[0-9]+:(approval|reviewer):")


@dataclass(frozen=True, slots=True)
class Scope:
    """The details of each row that a comparison covers, and those that it leaves out."""

    compared: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


_MERGE_REQUEST_DETAILS = ("versions", "commits")
_SHOWN_BY_GRAPHQL = ("notes", "approvers", "reviewers")
_LEFT_TO_REST = (
    "state, label and milestone events",
    "times of approvals and review requests",
    "fractions of a second",
    "line ranges of notes",
)


def default_depth(job_type: JobType) -> Depth:
    """The depth of a comparison for which a person names none. Details of each merge request cost requests of
    their own; other lists hold everything.
    """
    has_details = job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS)
    return Depth.LISTING if has_details else Depth.DETAILS


def scope_of(job_type: JobType, depth: Depth, *, by_graphql: bool) -> Scope:
    """The scope of a comparison, for rows that show no difference in what it covers. ``by_graphql``: GraphQL
    answered to the end.
    """
    if job_type is JobType.MERGE_REQUESTS:
        details = _MERGE_REQUEST_DETAILS
        if depth is Depth.DETAILS:
            return Scope(("values of the list", *details))
        return Scope(("values of the list",), details)
    if job_type is JobType.REVIEWS:
        if depth is Depth.DETAILS:
            return Scope(("all details",))
        if by_graphql:
            return Scope(_SHOWN_BY_GRAPHQL, _LEFT_TO_REST)
        return Scope(("numbers of comments", "times of update"), (*_SHOWN_BY_GRAPHQL, *_LEFT_TO_REST[:2]))
    if job_type is JobType.COMMITS and depth is Depth.LISTING:
        return Scope(("values of the list",), ("numbers of lines", "unreachable commits"))
    return Scope(("all details",))


class Next(StrEnum):
    """The next action for a difference. ``wait``: it may be a deletion that is not confirmed yet."""

    READ = "read"
    DELETE = "delete"
    WAIT = "wait"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long a row has to be gone before its deletion is confirmed."""

    looks: int
    time: timedelta


def what_next(
    difference: Difference, *, looks: int, repairs: int, found_at: datetime, now: datetime, patience: Patience
) -> Next:
    """The next action for an open difference that ``looks`` comparisons found since ``found_at`` and
    ``repairs`` repairs did not fix. Times are the database's clock.
    """
    if is_gone_at_source(difference):
        believed = looks >= patience.looks and now - found_at >= patience.time
        return Next.DELETE if believed else Next.WAIT
    return Next.ESCALATE if repairs >= REPAIRS_BEFORE_A_PERSON else Next.READ


def is_gone_at_source(difference: Difference) -> bool:
    """True if the row itself is no longer at its source, so that it may become a tombstone. Members of sets
    are closed instead.
    """
    is_member = _OF_SETS.match(difference.natural_key) is not None
    return difference.kind is DifferenceKind.EXTRA and not is_member
