"""Partitions: windows as Dagster shows them.

Belongs here: the one dynamic definition of revision blocks, the names of blocks, and how missing ones are
appended. Every SVN repository of a code location shares the list, so a block can lie beyond the HEAD of one.
Does not belong here: what a block covers; that is in our own tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import dagster as dg

from sync_pipeline.catalog import BLOCK_REVISIONS, block_of
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import RevisionWindow
from sync_pipeline.store import planning
from sync_pipeline.store.database import Database

svn_blocks = dg.DynamicPartitionsDefinition(name="svn_blocks")
"""Blocks of revisions, oldest first. Keys are appended in order and never deleted."""

_KEY = re.compile(r"(\d{10})-(\d{10})")
# One statement per so many keys keeps far below the limit of bind parameters.
_KEYS_PER_STATEMENT = 5000


def blocks_of(window: RevisionWindow) -> Iterator[RevisionWindow]:
    """Every block that ``window`` touches, oldest first; none for an empty window."""
    if window.end > window.first:
        for first in range(block_of(window.first).first, window.end, BLOCK_REVISIONS):
            yield RevisionWindow(first, first + BLOCK_REVISIONS)


def block_key(block: RevisionWindow) -> str:
    """The partition key of a block: first and last revision, such as ``0000001001-0000002000``."""
    return f"{block.first:010d}-{block.end - 1:010d}"


def block_window(key: str) -> RevisionWindow:
    """The block behind a partition key. Raises ConfigurationError with one line if it is none."""
    found = _KEY.fullmatch(key)
    if found:
        first, last = int(found[1]), int(found[2])
        if first % BLOCK_REVISIONS == 1 and last == first + BLOCK_REVISIONS - 1:
            return RevisionWindow(first, last + 1)
    raise ConfigurationError(
        f"{key!r} is no block of revisions; write first and last of {BLOCK_REVISIONS} in ten digits, "
        f"such as {block_key(block_of(1))}",
        code="unknown_partition",
    )


def known_blocks(instance: dg.DagsterInstance) -> Sequence[str]:
    """The partition keys that the Dagster instance has, oldest first."""
    return instance.get_dynamic_partitions(str(svn_blocks.name))


def ensure_blocks(instance: dg.DagsterInstance, database: Database, head: int) -> int:
    """Append every missing block up to the one that holds ``head``; returns how many were new.

    Two at once are harmless: a range of a dynamic definition follows the order of insertion, so a database
    lock keeps writers apart. A young or empty repository still has the first block.
    """
    if block_key(block_of(head)) in known_blocks(instance):
        return 0
    with database.connection() as conn, conn.transaction():
        planning.lock_blocks(conn)
        known = set(known_blocks(instance))
        wanted = (block_key(block) for block in blocks_of(RevisionWindow(1, max(head, 1) + 1)))
        missing = [key for key in wanted if key not in known]
        for start in range(0, len(missing), _KEYS_PER_STATEMENT):
            instance.add_dynamic_partitions(
                str(svn_blocks.name), missing[start : start + _KEYS_PER_STATEMENT]
            )
    return len(missing)
