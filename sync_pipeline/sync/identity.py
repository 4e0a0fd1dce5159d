"""Is this still the repository that we know?

Belongs here: the comparison of what the source shows now with what is stored. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.core.model import Visibility, Visit


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A short mark of a revision: its date and its changed paths. Another mark means that it may have
    changed."""

    rev_num: int
    ts: datetime | None
    paths_hash: bytes
    visibility: Visibility


@dataclass(frozen=True, slots=True)
class Change:
    """How a stored revision differs from what the source shows now, where all of it can be seen in both.

    ``paths_differ``: it changed other paths. ``ts`` is its date now, ``stored_ts`` the stored one. It was
    first stored at ``first_seen_at``, and this look is of ``seen_at``.
    """

    rev_num: int
    paths_differ: bool
    message_differs: bool
    ts: datetime | None
    stored_ts: datetime | None
    first_seen_at: datetime
    seen_at: datetime


# How far the clocks of the server and of the database may be apart.
_CLOCKS = timedelta(hours=1)

_REMEDY = (
    "nothing is written until a person decides: restore the old repository, or register the new one with "
    "`scm-sync repo retire` and `scm-sync repo add`"
)


def replaced(
    *, known_uuid: str, known_root: str, known_head: int | None, visit: Visit, url: str
) -> str | None:
    """Why ``visit`` shows another repository than the known one, as one line, or None.

    A HEAD that went back means that the repository was restored from an older copy. New commits will reuse
    stored numbers with other content.
    """
    if visit.uuid != known_uuid:
        return f"{url} has another UUID than before ({visit.uuid}, was {known_uuid}); {_REMEDY}"
    if visit.root.rstrip("/") != known_root.rstrip("/"):
        return (
            f"{url} is below another root than before ({visit.root}, was {known_root}); if the server moved: "
            f"`scm-sync repo relocate`; else {_REMEDY}"
        )
    if known_head is not None and visit.head < known_head:
        return f"{url} was rolled back: HEAD is r{visit.head}, r{known_head} was seen before; {_REMEDY}"
    return None


def may_be_rewritten(stored: Iterable[Fingerprint], seen: Mapping[int, Fingerprint]) -> bool:
    """True if a revision of ``seen`` has another date or other paths than the stored one. Hidden revisions
    say nothing."""
    for old in stored:
        new = seen.get(old.rev_num)
        if new is None or Visibility.HIDDEN in (old.visibility, new.visibility):
            continue
        if old.paths_hash != new.paths_hash or old.ts != new.ts:
            return True
    return False


def rewritten(changes: Iterable[Change], url: str) -> str | None:
    """Why the changed revisions cannot be the stored ones, as one line, or None.

    The paths of a revision never change, so other paths are proof. Date, author and message can be edited.
    Another date with another message is proof in two revisions, and in one that was committed between the
    first look and this one.
    """
    others = []
    for one in changes:
        if one.paths_differ:
            return other_paths(one.rev_num, url)
        if one.ts is not None and one.ts != one.stored_ts and one.message_differs:
            others.append(one.rev_num)
            if len(others) > 1 or one.first_seen_at < one.ts < one.seen_at + _CLOCKS:
                numbers = ", ".join(f"r{number}" for number in others)
                return f"{url} has other revisions under {numbers} than what is stored; {_REMEDY}"
    return None


def other_paths(rev_num: int, url: str) -> str:
    """Why the revision, whose paths are not the stored ones, is another one, as one line."""
    return f"{url} has other paths under r{rev_num} than what is stored; {_REMEDY}"
