"""What follows from a difference between a source and what is stored.

Belongs here: pure decisions: when a row that a source no longer has is believed to be deleted, what a repair
can heal, and when a person has to look. Does not belong here: how rows are compared and read again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sync_pipeline.core.model import Difference, DifferenceKind

REPAIRS_BEFORE_A_PERSON = 3
"""After so many repairs that did not help a difference is left to a person."""

# Rows that are members of a set, or are listed as a whole: reading the set again takes away what is extra.
_OF_SETS = re.compile(r"(branch|tag):|[0-9]+:(approval|reviewer):")


class Next(StrEnum):
    """What is done about a difference. ``wait``: it may be a deletion that is not believed yet."""

    READ = "read"
    DELETE = "delete"
    WAIT = "wait"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and for how long at least, a row has to be gone before it is believed."""

    looks: int
    time: timedelta


def what_next(
    difference: Difference, *, looks: int, repairs: int, found_at: datetime, now: datetime, patience: Patience
) -> Next:
    """What to do about an open difference that ``looks`` comparisons saw since ``found_at`` and ``repairs``
    repairs did not heal. Times are the database's clock."""
    if is_gone_at_source(difference):
        believed = looks >= patience.looks and now - found_at >= patience.time
        return Next.DELETE if believed else Next.WAIT
    return Next.ESCALATE if repairs >= REPAIRS_BEFORE_A_PERSON else Next.READ


def is_gone_at_source(difference: Difference) -> bool:
    """True if the row itself is no longer at its source, so that it may become a tombstone; members of sets
    are taken out of the set instead."""
    is_member = _OF_SETS.match(difference.natural_key) is not None
    return difference.kind is DifferenceKind.EXTRA and not is_member
