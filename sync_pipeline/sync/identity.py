"""Is this still the repository that we know?

Belongs here: the comparison of what the source shows now with what is stored. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.model import Visibility, Visit


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What does not change in a revision: its changed paths; and its date, which people seldom edit."""

    rev_num: int
    ts: datetime | None
    paths_hash: bytes
    visibility: Visibility


_REMEDY = (
    "nothing is written until a person decides: restore the old repository, or register the new one with "
    "`scm-sync repo retire` and `scm-sync repo add`"
)


def replaced(
    *, known_uuid: str, known_root: str, known_head: int | None, visit: Visit, url: str
) -> str | None:
    """Why ``visit`` shows another repository than the known one, as one line, or None.

    A HEAD that went back means that the repository was restored from an older copy: new commits will reuse
    numbers that are stored with other content.
    """
    if visit.uuid != known_uuid:
        return f"{url} has another UUID than before ({visit.uuid}, was {known_uuid}); {_REMEDY}"
    if visit.root.rstrip("/") != known_root.rstrip("/"):
        return f"{url} is below another root than before ({visit.root}, was {known_root}); {_REMEDY}"
    if known_head is not None and visit.head < known_head:
        return f"{url} was rolled back: HEAD is r{visit.head}, r{known_head} was seen before; {_REMEDY}"
    return None


def rewritten(stored: Iterable[Fingerprint], seen: Mapping[int, Fingerprint], url: str) -> str | None:
    """Why revisions ``seen`` now cannot be the ``stored`` ones, as one line, or None.

    Other paths with the same date is a change of access, another date with the same paths is an edited
    property; only both together are another history. Hidden revisions say nothing.
    """
    for old in stored:
        new = seen.get(old.rev_num)
        if new is None or Visibility.HIDDEN in (old.visibility, new.visibility):
            continue
        if old.paths_hash != new.paths_hash and old.ts != new.ts:
            return f"{url} has other content under r{old.rev_num} than what is stored; {_REMEDY}"
    return None
