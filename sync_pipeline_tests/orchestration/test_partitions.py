"""Blocks are appended in order, once, whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from sync_pipeline.orchestration.partitions import ensure_blocks, known_blocks
from sync_pipeline.store.database import Database


@pytest.mark.parametrize(("head", "blocks"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (20_000, 20)])
def test_every_block_up_to_head_exists(database: Database, head: int, blocks: int) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert ensure_blocks(instance, database, head) == blocks
        assert ensure_blocks(instance, database, head) == 0
        keys = known_blocks(instance)
        assert list(keys) == sorted(keys)
        assert len(keys) == blocks


def test_an_older_head_deletes_nothing(database: Database) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ensure_blocks(instance, database, 5000)
        ensure_blocks(instance, database, 10)
        assert len(known_blocks(instance)) == 5


def test_many_at_once_leave_the_keys_in_order_and_once(database: Database) -> None:
    with dg.DagsterInstance.ephemeral() as instance, ThreadPoolExecutor(6) as threads:
        heads = [n * 700 for n in range(1, 30)]
        list(threads.map(lambda head: ensure_blocks(instance, database, head), heads))
        keys = list(known_blocks(instance))
        assert keys == sorted(set(keys))
        assert len(keys) == -(-max(heads) // 1000)
