"""Consequences of a difference between a source and the stored rows.

Belongs here: pure decisions: when a missing row counts as deleted, what a repair can fix, and when a person
has to act. Does not belong here: how rows are compared and read again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sync_pipeline.core.model import Difference, DifferenceKind

REPAIRS_BEFORE_A_PERSON = 3
"""After this number of repairs without success a difference needs a person."""

# Members of a set, or rows that are listed as a whole: reading the set again removes extra ones.
_OF_SETS = re.compile(r"(branch|tag):|[0-9]+:(approval|reviewer):")


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
