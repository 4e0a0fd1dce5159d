"""Leases and their fences."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest

from sync_pipeline.core.errors import LeaseLost
from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import leases
from sync_pipeline_tests.builders import register


def take(
    conn: Connection, repo: int, *, waiter: UUID | None = None, who: str = "w1", priority: int = 0
) -> leases.Lease | None:
    return leases.acquire(
        conn,
        repo_id=repo,
        job_type=JobType.REVISIONS,
        waiter=waiter or uuid4(),
        who=who,
        priority=priority,
        length=60,
    )


def prepare(conn: Connection) -> int:
    repo = register(conn)
    leases.ensure(conn, repo, JobType.REVISIONS)
    return repo


def expire(conn: Connection) -> None:
    conn.execute("UPDATE scm.sync_locks SET expires_at = clock_timestamp() - interval '1 second'")


def test_every_claim_raises_the_fence_and_the_old_holder_is_refused(database: Database) -> None:
    with database.connection() as conn:
        repo = prepare(conn)
        first = take(conn, repo)
        assert first is not None
        waiter = uuid4()
        assert take(conn, repo, who="w2", waiter=waiter) is None
        expire(conn)
        second = take(conn, repo, who="w2", waiter=waiter)
        assert second is not None
        assert second.fence == first.fence + 1
        assert not leases.renew(conn, first, 60)
        leases.release(conn, first)
        with pytest.raises(LeaseLost, match="w2 has it since"), conn.transaction():
            leases.guard(conn, first)
        with conn.transaction():
            leases.guard(conn, second)
        held = leases.holder(conn, repo, JobType.REVISIONS)
        assert held is not None
        assert held.who == "w2"


def test_a_lease_that_could_not_be_given_back_does_not_keep_its_own_holder_out(database: Database) -> None:
    with database.connection() as conn:
        repo, waiter = prepare(conn), uuid4()
        first = take(conn, repo, waiter=waiter)
        again = take(conn, repo, waiter=waiter)
        assert first is not None
        assert again is not None
        assert again.fence == first.fence + 1
        assert take(conn, repo) is None


def test_an_expired_lease_cannot_write_even_if_nobody_took_it(database: Database) -> None:
    with database.connection() as conn:
        repo = prepare(conn)
        lease = take(conn, repo)
        assert lease is not None
        expire(conn)
        with pytest.raises(LeaseLost), conn.transaction():
            leases.guard(conn, lease)
        assert not leases.renew(conn, lease, 60)


def test_a_heartbeat_passes_a_writer_and_a_takeover_does_not(database: Database) -> None:
    with database.connection() as writer, database.connection() as other:
        repo = prepare(writer)
        lease = take(writer, repo)
        assert lease is not None
        with writer.transaction():
            leases.guard(writer, lease)
            other.execute("SET lock_timeout = '1s'")
            assert leases.renew(other, lease, 60)
            # Even run out, the lease of somebody in the middle of a batch is not given away.
            other.execute("UPDATE scm.sync_locks SET expires_at = clock_timestamp() - interval '1 second'")
            waiter = uuid4()
            assert take(other, repo, waiter=waiter) is None
        assert take(other, repo, waiter=waiter) is not None


def test_a_waiting_incremental_goes_before_a_waiting_backfill(database: Database) -> None:
    with database.connection() as conn:
        repo = prepare(conn)
        backfill, live = uuid4(), uuid4()
        lease = take(conn, repo, waiter=backfill, priority=2)
        assert lease is not None
        assert take(conn, repo, waiter=live, priority=0) is None
        leases.release(conn, lease)
        assert take(conn, repo, waiter=backfill, priority=2) is None
        lease = take(conn, repo, waiter=live, priority=0)
        assert lease is not None
        leases.release(conn, lease)
        assert take(conn, repo, waiter=backfill, priority=2) is not None


def test_the_longer_wait_goes_first_among_equals_and_a_wish_can_be_taken_back(database: Database) -> None:
    with database.connection() as conn:
        repo = prepare(conn)
        first, second = uuid4(), uuid4()
        lease = take(conn, repo)
        assert lease is not None
        assert take(conn, repo, waiter=first) is None
        assert take(conn, repo, waiter=second) is None
        leases.release(conn, lease)
        assert take(conn, repo, waiter=second) is None
        leases.stop_waiting(conn, first)
        assert take(conn, repo, waiter=second) is not None


def test_of_many_at_once_one_gets_the_lease(database: Database) -> None:
    with database.connection() as conn:
        repo = prepare(conn)
    barrier = threading.Barrier(6)

    def attempt(_: int) -> leases.Lease | None:
        barrier.wait()
        with database.connection() as conn:
            return take(conn, repo)

    with ThreadPoolExecutor(6) as pool:
        assert sum(lease is not None for lease in pool.map(attempt, range(6))) == 1
