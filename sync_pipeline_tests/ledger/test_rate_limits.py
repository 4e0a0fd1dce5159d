"""The shared buckets: the statement against the policy it stands for, and many who ask at once."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timedelta

import pytest

from sync_pipeline.core.model import Bucket
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import rate_limits
from sync_pipeline.ledger.rate_limits import Permit
from sync_pipeline.policy.rate_limits import RateLimits, paused, take, take_ahead


def acquire(
    conn: Connection,
    limits: RateLimits,
    *,
    longest: float = 60.0,
    bucket: str = "all",
    kind: str | None = None,
    ahead: int = 0,
    unused: int = 0,
) -> Permit:
    return rate_limits.acquire(
        conn,
        "git.test",
        bucket,
        limits.of_statement(),
        longest=longest,
        kind=kind,
        ahead=ahead,
        unused=unused,
    )


def stored(conn: Connection, bucket: str = "all") -> rate_limits.Listed:
    return next(one for one in rate_limits.listed(conn) if one.endpoint_class == bucket)


def put(conn: Connection, bucket: Bucket) -> None:
    rate_limits.change(conn, "git.test", "all", lambda _, __: bucket, rate=1.0, tokens=1.0)


def test_the_statement_takes_what_the_policy_says(database: Database) -> None:
    chance = random.Random(7)
    with database.connection() as conn:
        now = acquire(conn, RateLimits(10.0, 5)).given_at
        for _ in range(200):
            rate = chance.choice([0.5, 10.0, 40.0])
            limits = RateLimits(rate, chance.choice([1, 20]), chance.choice([None, 100.0]), 0.5)

            def moment(least: float, most: float, now: datetime = now) -> datetime:
                return now + timedelta(seconds=chance.uniform(least, most))

            before = Bucket(
                tokens=chance.uniform(-30, 20),
                rate=limits.rate * chance.choice([0.1, 0.5, 0.99, 1, 2]),
                refilled_at=moment(-20, 20),
                changed_at=chance.choice([None, None, moment(-2000, -1), moment(0, 50)]),
                tuned_at=chance.choice([None, moment(-100, -1), moment(-9000, -3700)]),
                announced_rate=chance.choice([None, 0.01, 30.0]),
                announced_at=moment(-1200, 0),
                refused_rate=chance.choice([None, 60.0]),
                last_429_at=chance.choice([None, moment(-7200, 0)]),
                bundled=chance.choice([0, 3]),
                bundled_until=chance.choice([None, moment(-1, -0.5), moment(10, 20)]),
            )
            put(conn, before)
            counted = stored(conn)
            longest = chance.choice([0.0, 5.0, 60.0])
            wanted = chance.choice([0, 4, 50])
            permit = acquire(conn, limits, longest=longest, ahead=wanted)
            after, wait = take(before, limits, permit.given_at, longest)
            ahead = 0
            if wait == 0:
                after, ahead = take_ahead(after, limits, permit.given_at, wanted)
            found = stored(conn)
            assert permit.wait == pytest.approx(wait, abs=1e-5)
            assert permit.ahead == ahead
            assert asdict(found.bucket) == pytest.approx(asdict(after), abs=1e-5)
            taken = wait <= longest
            assert found.consumed - counted.consumed == taken + ahead
            assert found.rejected - counted.rejected == (not taken)


def test_all_who_ask_at_once_get_places_that_keep_the_limit(database_url: str) -> None:
    limits = RateLimits(50.0, 10)
    slots: list[float] = []
    start = threading.Barrier(8)

    def ask(_: int) -> list[tuple[datetime, float]]:
        start.wait()
        with database.connection() as conn:
            permits = [acquire(conn, limits) for _ in range(15)]
        return [(permit.given_at, permit.wait) for permit in permits]

    with Database(database_url, max_size=8) as database, ThreadPoolExecutor(8) as pool:
        given = [one for found in pool.map(ask, range(8)) for one in found]
        with database.connection() as conn:
            assert stored(conn).consumed == len(given) == 120
    begin = min(moment for moment, _ in given)
    slots = sorted((moment - begin).total_seconds() + wait for moment, wait in given)
    for last, end in enumerate(slots):
        for first in range(last + 1):
            assert last - first + 1 <= limits.burst + limits.rate * (end - slots[first]) + 1e-3
    # And nothing is given away: the last one waits as long as the limit asks for.
    assert slots[-1] == pytest.approx((120 - limits.burst) / limits.rate, abs=0.1)


def test_a_kind_of_request_with_a_bucket_of_its_own_brings_its_token(database: Database) -> None:
    limits = RateLimits(10.0, 20)
    with database.connection() as conn:
        assert not acquire(conn, limits, kind="projects").needs_own

        def slow(bucket: Bucket, now: datetime) -> Bucket:
            return replace(bucket, rate=0.01, changed_at=now, tokens=0.0, refilled_at=now)

        rate_limits.change(conn, "git.test", "projects", slow, rate=10.0, tokens=20.0)
        before = stored(conn).consumed
        assert acquire(conn, limits, kind="projects").needs_own
        assert not acquire(conn, limits, kind="groups").needs_own
        assert stored(conn).consumed == before + 1
        assert acquire(conn, limits, bucket="projects").wait == pytest.approx(100, abs=30)
        # Once it is as fast as the setting it is one with the others.
        conn.execute("UPDATE scm.sync_rate_limits SET changed_at = now() - interval '1 hour', tokens = 1")
        assert acquire(conn, limits, bucket="projects").wait == 0
        assert not acquire(conn, limits, kind="projects").needs_own


def test_a_pause_ends_the_places_given_before_it(database: Database) -> None:
    limits = RateLimits(1.0, 1)
    with database.connection() as conn:
        acquire(conn, limits)
        waiting = acquire(conn, limits)
        assert rate_limits.is_valid(conn, "git.test", "all", waiting.given_at)
        rate_limits.change(
            conn,
            "git.test",
            "all",
            lambda bucket, now: paused(bucket, now, now + timedelta(seconds=30), "by a person"),
            rate=1.0,
            tokens=1.0,
            refused=True,
        )
        assert not rate_limits.is_valid(conn, "git.test", "all", waiting.given_at)
        again = acquire(conn, limits)
        assert again.wait == pytest.approx(31, abs=0.5)
        assert (again.pause_reason, stored(conn).limited) == ("by a person", 1)
        assert rate_limits.is_valid(conn, "git.test", "all", again.given_at)
