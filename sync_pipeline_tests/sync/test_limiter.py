"""The shared rate limit as processes, threads and servers meet it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.admin import limits
from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.errors import Cancelled, Transient
from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import rate_limits as store
from sync_pipeline.ledger import repos
from sync_pipeline.policy import rate_limits as policy
from sync_pipeline.policy.rate_limits import RateLimits
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.transport import Feedback
from sync_pipeline.sync import limiter as module
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.limiter import SharedLimiter, TenantLimiter, gitlab_limits
from sync_pipeline.sync.readers import Readers
from sync_pipeline.sync.server_load import ServerLoad
from sync_pipeline_sandbox.gitlab.faults import CannedResponse, throttled_text
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.svn_fixtures import SvnRepository
from sync_pipeline_tests.sync.conftest import Forge

LIMITS = RateLimits(rate=20.0, burst=2)


def limiter(database: Database, limits: RateLimits = LIMITS, **other: Any) -> SharedLimiter:
    return SharedLimiter(database, "git.test", limits, **({"max_wait": 10.0} | other))


def go_on() -> None:
    """Nobody asks to stop."""


def buckets(database: Database) -> dict[str, store.Listed]:
    with database.connection() as conn:
        return {one.endpoint_class: one for one in store.listed(conn)}


def pause(database: Database, seconds: float, reason: str = "by a person") -> None:
    with database.connection() as conn:
        store.change(
            conn,
            "git.test",
            "all",
            lambda old, now: policy.paused(old, now, now + timedelta(seconds=seconds), reason),
            rate=LIMITS.rate,
            tokens=LIMITS.burst,
        )


# Processes and a server ---------------------------------------------------------------------------------


class Askers:
    """Processes that ask a server side by side."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "sync_pipeline_tests.sync.asking"]
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            for _ in range(2)
        ]

    def ask(self, forge: Forge, *, rate: float, burst: int, threads: int, requests: int) -> list[list[str]]:
        """Let each of them ask under a rate; returns what they had to say."""
        forge.gitlab.clock.fixed = None
        task = {
            "database": forge.database.url,
            "settings": {
                "gitlab_url": forge.server.url,
                "gitlab_token": forge.gitlab.token(forge.user).secret,
                "gitlab_postgres_rate_limit_rate": rate,
                "gitlab_postgres_rate_limit_burst": burst,
            },
            "threads": threads,
            "requests": requests,
        }
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self._processes if process.stdout]

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.communicate(timeout=120)


@pytest.fixture(scope="module")
def askers() -> Iterator[Askers]:
    """See :class:`Askers`."""
    made = Askers()
    yield made
    made.close()


def arrived(forge: Forge) -> list[float]:
    """When each request came, in seconds after the first."""
    times = sorted(entry.at for entry in forge.gitlab.journal.entries)
    return [(moment - times[0]).total_seconds() for moment in times]


def test_what_reaches_the_server_from_all_processes_keeps_the_rate(forge: Forge, askers: Askers) -> None:
    rate, burst = 25.0, 5
    assert askers.ask(forge, rate=rate, burst=burst, threads=4, requests=5) == [[], []]
    times = arrived(forge)
    assert len(times) == 40
    # A permit may be used a moment later than it was given.
    late = 0.25
    for last, end in enumerate(times):
        for first in range(last + 1):
            assert last - first + 1 <= burst + rate * (end - times[first] + late)
    assert times[-1] >= (40 - burst) / rate - late


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_refusal_stops_every_process_for_as_long_as_the_server_asks(
    forge: Forge, askers: Askers, form: str
) -> None:
    whole = datetime.now(UTC).replace(microsecond=0)

    class Dated(dict[str, str]):
        """Headers whose date is made when they are sent."""

        def items(self) -> Any:
            at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
            return {"Retry-After": format_datetime(at, usegmt=True)}.items()

    answer = throttled_text(retry_after="1")
    if form == "date":
        answer = CannedResponse(429, b"Retry later\n", "text/plain", Dated())
    forge.gitlab.faults.add("/projects", answer, skip=8)
    printed = askers.ask(forge, rate=50.0, burst=5, threads=3, requests=4)
    entries = forge.gitlab.journal.entries
    assert len(entries) == 2 * 3 * 4 + 1
    refused = next(entry.at for entry in entries if entry.status == 429)
    assert refused >= whole
    after = [(entry.at - refused).total_seconds() for entry in entries]
    # What was under way arrives; then there is silence.
    assert [one for one in after if 0.3 < one < 0.95] == []
    assert any(one > 0.95 for one in after)
    lines = [line for lines in printed for line in lines]
    assert [line for line in lines if "too many requests" not in line] == []
    assert 1 <= len(lines) <= 2
    (bucket,) = buckets(forge.database).values()
    assert bucket.limited == 1
    assert 25.0 <= bucket.bucket.rate < 26.0


def test_without_the_database_nothing_is_sent(
    forge: Forge, svn_repository: Callable[..., SvnRepository]
) -> None:
    nowhere = Database("postgresql://127.0.0.1:1/none", timeout=0.2)
    readers = Readers(forge.settings, nowhere)
    with nowhere, pytest.raises(Transient, match="nothing is sent") as caught:
        readers.gitlab(instance_of(forge.server.url)).get("/projects")
    assert caught.value.code == "database_down"
    assert forge.asked() == []
    with forge.database.connection() as conn:
        repo = repos.get(conn, register_source(conn, svn_repository().url))
    reader = readers.svn(repo, lambda: False)
    with pytest.raises(Transient, match="nothing is sent"):
        reader.visit()
    assert reader.calls == 0


def test_svn_commands_take_from_the_bucket_of_their_server(
    database: Database, svn_repository: Callable[..., SvnRepository]
) -> None:
    readers = Readers(Settings(svn_rate=2.0), database)
    with database.connection() as conn:
        repo = repos.get(conn, register_source(conn, svn_repository().url))
    reader = readers.svn(repo, lambda: False)
    for _ in range(4):
        reader.visit()
    assert reader.traffic.waited >= 0.3
    assert buckets(database)["svn"].consumed == reader.traffic.calls == 4


def test_a_tenant_has_a_limit_of_its_own_below_that_of_the_server(database: Database) -> None:
    settings = Settings(
        gitlab_tenant_rate_limit_rate=0.1,
        gitlab_tenant_rate_limit_burst=2,
        gitlab_postgres_rate_limit_max_wait=0.0,
    )
    server = limiter(database, RateLimits(rate=0.1, burst=3), max_wait=0.0)
    acme, labs = (TenantLimiter(database, settings, "git.test", name, server) for name in ("acme", "labs"))
    acme.acquire("projects", go_on)
    acme.acquire("projects", go_on)
    with pytest.raises(Transient, match=r"no request is sent to git\.test for tenant:acme") as caught:
        acme.acquire("projects", go_on)
    assert caught.value.code == "throttled"
    labs.acquire("projects", go_on)
    # The ceiling is the same for all of them.
    with pytest.raises(Transient, match=r"no request is sent to git\.test for"):
        labs.acquire("projects", go_on)
    # A refusal is about the token, which all of them use.
    labs.feedback(Feedback("projects", 429, 0.1, 30.0))
    found = buckets(database)
    assert {name: one.consumed for name, one in found.items()} == {
        "all": 3,
        "tenant:acme": 2,
        "tenant:labs": 2,
    }
    assert [name for name, one in found.items() if one.bucket.paused_until] == ["all"]


def test_syncing_takes_from_the_bucket_of_the_tenant_only_where_that_is_switched_on(forge: Forge) -> None:
    plain = Syncer(forge.database, forge.settings, Readers(forge.settings, forge.database))
    assert plain.run(forge.request(JobType.COMMITS)).succeeded
    assert list(buckets(forge.database)) == ["all"]
    settings = forge.settings.model_copy(update={"gitlab_tenant_rate_limit_enabled": True})
    limited = Syncer(forge.database, settings, Readers(settings, forge.database))
    report = limited.run(forge.request(JobType.MERGE_REQUESTS))
    assert report.succeeded
    assert buckets(forge.database)["tenant:acme"].consumed == report.calls > 0
    document = limits.listing(forge.database, settings)["limits"]
    assert {one["endpoint_class"]: one["full_rate"] for one in document} == {
        "all": settings.rate_limit.start,
        "tenant:acme": 5.0,
    }


# Waiting ------------------------------------------------------------------------------------------------


def test_who_would_wait_too_long_is_turned_away_and_told_for_how_long(database: Database) -> None:
    impatient = limiter(database, RateLimits(0.05, 1), max_wait=1.0)
    assert impatient.acquire("projects", go_on) < 0.5
    with pytest.raises(Transient, match="more is waiting than its limit lets through") as caught:
        impatient.acquire("projects", go_on)
    assert (caught.value.code, buckets(database)["all"].rejected) == ("throttled", 1)
    assert caught.value.retry_after == pytest.approx(20, abs=10)
    pause(database, 100, "maintenance")
    with pytest.raises(Transient, match=r"git\.test for 1[012]\d s: it is paused until .* UTC: maintenance"):
        impatient.acquire("projects", go_on)


def test_waiting_ends_when_somebody_asks_to_stop(database: Database) -> None:
    patient = limiter(database, RateLimits(0.002, 1), max_wait=600.0)
    patient.acquire("projects", go_on)
    asked = iter([False, False, True])

    def stop() -> None:
        if next(asked):
            raise Cancelled("stopped")

    started = time.monotonic()
    with pytest.raises(Cancelled):
        patient.acquire("projects", stop)
    assert time.monotonic() - started < 250


def test_who_waits_sees_a_pause_set_and_lifted(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.1)
    caplog.set_level(logging.WARNING)
    pause(database, 30, "maintenance")
    done = threading.Event()
    patient = limiter(database, max_wait=60.0)

    def wait() -> None:
        patient.acquire("projects", go_on)
        done.set()

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert not done.wait(0.3)
    with database.connection() as conn:
        store.change(
            conn,
            "git.test",
            "all",
            lambda bucket, now: policy.resumed(bucket, now, "done"),
            rate=1.0,
            tokens=1.0,
        )
    for thread in waiting:
        thread.join(60)
    assert done.is_set()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert messages[0].startswith("no request to git.test until ")
    assert messages[0].endswith(": maintenance")


def test_a_short_wait_takes_one_statement_and_a_later_pause_still_stops_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[bool] = []
    is_valid = store.is_valid

    def counted(*arguments: Any) -> bool:
        checks.append(is_valid(*arguments))
        return checks[-1]

    monkeypatch.setattr(store, "is_valid", counted)
    clock = Time()
    slow = limiter(database, RateLimits(10.0, 1), monotonic=clock, sleep=clock.sleep)
    for _ in range(2):
        slow.acquire("projects", go_on)
    assert (round(clock.seconds, 1), checks) == (0.1, [])
    # What was known when a long wait began is too old at its end.
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_rate_limits SET tokens = -5")

    def sleep(seconds: float) -> None:
        if not checks:
            pause(database, 0.0, "maintenance")
            checks.append(True)
        clock.sleep(seconds)

    limiter(database, RateLimits(10.0, 1), monotonic=clock, sleep=sleep).acquire("projects", go_on)
    assert checks[:2] == [True, False]


# Answers ------------------------------------------------------------------------------------------------


def test_a_limit_of_one_kind_of_request_slows_that_kind_only(database: Database) -> None:
    shared, other = limiter(database), limiter(database)
    shared.acquire("groups/projects", go_on)
    shared.feedback(Feedback("groups/projects", 429, 0.01, 1.0, remaining=1500, limit=2000, reset=9.0))
    assert other.acquire("projects/merge_requests", go_on) < 0.5
    assert other.acquire("groups/projects", go_on) >= 0.9
    found = buckets(database)
    assert found["groups/projects"].bucket.rate == pytest.approx(10.0, abs=0.1)
    assert found["all"].bucket.rate == 20.0


def test_a_refusal_that_says_nothing_slows_its_kind_and_one_of_every_kind_the_server(
    database: Database,
) -> None:
    shared, other = limiter(database), limiter(database)
    shared.feedback(Feedback("projects", 429, 0.01))
    assert other.acquire("projects/merge_requests", go_on) < 0.5
    assert other.acquire("projects", go_on) >= 0.9
    shared.feedback(Feedback("projects/merge_requests/notes", 429, 0.01))
    assert sorted(buckets(database)) == ["all", "projects", "projects/merge_requests/notes"]
    assert buckets(database)["all"].limited == 0
    # Something in front of the whole server.
    shared.feedback(Feedback("projects/repository/commits", 429, 0.01))
    assert buckets(database)["all"].limited == 1


def test_only_answers_that_change_something_are_written_down(database: Database) -> None:
    shared = limiter(database)

    def changes() -> int:
        with database.connection() as conn:
            row = conn.execute("SELECT xmin::text::bigint AS by FROM scm.sync_rate_limits").fetchone()
        assert row is not None
        return int(row["by"])

    shared.acquire("projects", go_on)
    before = changes()
    shared.feedback(Feedback("projects", 200, 0.01))
    shared.feedback(Feedback("projects", 500, 0.01))
    shared.feedback(Feedback("projects", None, 0.01))
    assert changes() == before
    shared.feedback(Feedback("projects", 200, 0.01, None, 500, 600, 30.0))
    noted = changes()
    assert noted != before
    shared.feedback(Feedback("projects", 200, 0.01, None, 499, 600, 30.0))
    assert changes() == noted
    shared.feedback(Feedback("projects", 429, 0.01, 0.0))
    assert buckets(database)["all"].bucket.consecutive_429 == 1
    # The next good answer ends the series, also by another process that only knows it from the bucket.
    other = limiter(database)
    other.acquire("projects", go_on)
    other.feedback(Feedback("projects", 200, 0.01))
    assert buckets(database)["all"].bucket.consecutive_429 == 0


def test_a_run_keeps_how_often_it_was_refused_and_how_long_it_waited(forge: Forge) -> None:
    forge.gitlab.faults.add("/projects/", throttled_text(retry_after="3"), times=2)
    report = forge.commits()
    assert report.succeeded
    (run,) = forge.rows("SELECT calls, rate_limited, timeouts, waited_seconds FROM scm.sync_runs")
    assert (run["rate_limited"], run["timeouts"]) == (2, 0)
    # Of a clock that does not sleep.
    assert run["waited_seconds"] >= 6
    assert report.traffic.calls == run["calls"] == report.calls
    assert report.traffic.rate_limited == 2


# Permits taken ahead ------------------------------------------------------------------------------------


class Time:
    """A clock of a process that moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Time goes by."""
        self.seconds += seconds


FAST = RateLimits(rate=100.0, burst=400)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many permits each statement took ahead."""
    found: list[int] = []
    acquire = store.acquire

    def counted(*arguments: Any, **named: Any) -> store.Permit:
        permit = acquire(*arguments, **named)
        found.append(permit.ahead)
        return permit

    monkeypatch.setattr(store, "acquire", counted)
    return found


def test_one_statement_serves_many_requests_at_a_high_rate_and_one_each_at_a_low_one(
    database: Database, statements: list[int]
) -> None:
    clock = Time()
    quick = limiter(database, FAST, monotonic=clock, sleep=clock.sleep)
    for _ in range(100):
        quick.acquire("projects", go_on)
    assert statements == [1, 2, 4, 8, 16, 32, 64]
    assert buckets(database)["all"].consumed == 134
    # Those that were not used in time are given back, and as few are taken as were used.
    clock.seconds = 1.0
    quick.acquire("projects", go_on)
    assert statements[-1] == 30
    clock.seconds = 2.0
    quick.acquire("projects", go_on)
    assert statements[-1] == 1
    assert buckets(database)["all"].consumed == 102 + 1
    statements.clear()
    slow = SharedLimiter(database, "slow.test", RateLimits(19.0, 200), max_wait=10.0)
    for _ in range(5):
        slow.acquire("projects", go_on)
    assert statements == [0] * 5


def test_permits_taken_ahead_are_void_after_a_refusal_and_for_kinds_with_a_limit_of_their_own(
    database: Database, statements: list[int]
) -> None:
    clock = Time()
    quick = limiter(database, FAST, monotonic=clock, sleep=clock.sleep, max_wait=60.0)
    shared = limiter(database, FAST)
    shared.feedback(Feedback("groups/projects", 429, 0.01, 30.0, remaining=1500, limit=2000, reset=9.0))
    for _ in range(8):
        quick.acquire("projects", go_on)
    statements.clear()
    with pytest.raises(Transient, match="groups/projects"):
        limiter(database, FAST, max_wait=0.0).acquire("groups/projects", go_on)
    assert quick.acquire("groups/projects", go_on) > 5
    quick.feedback(Feedback("projects", 429, 0.01, 300.0, remaining=0, limit=2000))
    with pytest.raises(Transient, match="it is paused until"):
        quick.acquire("projects", go_on)


def test_processes_that_take_permits_ahead_keep_the_rate_together(forge: Forge, askers: Askers) -> None:
    rate, burst = 60.0, 20
    assert askers.ask(forge, rate=rate, burst=burst, threads=8, requests=8) == [[], []]
    times = arrived(forge)
    assert len(times) == 128
    # A permit may be used a moment later than it was given.
    late = 0.25
    for last, end in enumerate(times):
        for first in range(last + 1):
            assert last - first + 1 <= burst + rate * (end - times[first] + late)


# The load of the server ---------------------------------------------------------------------------------


def loaded(database: Database, clock: Time, limits: RateLimits, most: int = 16) -> SharedLimiter:
    """A limiter that learns from response times, by a clock of its own."""
    return limiter(database, limits, monotonic=clock, sleep=clock.sleep, load=ServerLoad(4, most, clock))


def send(shared: SharedLimiter, clock: Time, seconds: float, count: int, status: int | None = 200) -> None:
    """Send ``count`` requests, as many at once as the limiter allows, each of which takes so long."""
    while count > 0:
        together = min(shared.parallel(), count)
        for _ in range(together):
            shared.acquire("projects", go_on)
        clock.seconds += seconds
        for _ in range(together):
            shared.feedback(Feedback("projects", status, seconds))
        count -= together


def test_requests_in_flight_follow_a_server_that_becomes_slow_refuses_and_recovers(
    database: Database,
) -> None:
    clock = Time()
    shared = loaded(database, clock, RateLimits(1e5, 100_000))
    assert shared.parallel() == 4
    send(shared, clock, 0.1, 400)
    assert shared.parallel() == 16
    send(shared, clock, 0.4, 64)
    assert shared.parallel() <= 9
    send(shared, clock, 0.1, 400)
    assert shared.parallel() == 16
    send(shared, clock, 5.0, 16, status=None)
    assert shared.parallel() == 8
    clock.seconds += 1
    send(shared, clock, 5.0, 1, status=429)
    assert shared.parallel() == 4


def test_a_server_that_gets_slower_is_sent_less_by_all_processes(database: Database) -> None:
    clock = Time()
    limits = RateLimits(50.0, 10_000, 100.0)
    shared = loaded(database, clock, limits)
    send(shared, clock, 0.1, 400)
    assert buckets(database)["all"].bucket.rate == 50.0
    send(shared, clock, 0.5, 100)
    slower = buckets(database)["all"].bucket
    assert slower.rate < 50.0
    assert "times as long as usual" in str(slower.rate_reason)
    other = limiter(database, limits)
    other.acquire("projects", go_on)
    assert buckets(database)["all"].bucket.rate == slower.rate


@pytest.mark.parametrize("status", [502, 503, 504, None])
def test_quick_errors_of_an_overloaded_server_are_no_sign_that_it_bears_more(
    database: Database, status: int | None
) -> None:
    clock = Time()
    shared = loaded(database, clock, RateLimits(50.0, 10_000, 100.0))
    send(shared, clock, 0.1, 40)
    before = shared.parallel()
    send(shared, clock, 0.01, 1, status=status)
    assert shared.parallel() == before // 2
    for _ in range(8):
        send(shared, clock, 0.4, 8, status=status)
    assert shared.parallel() == 1
    slower = buckets(database)["all"].bucket
    assert slower.rate < 50.0
    assert slower.rate_reason == "most requests get no response"
    # Later the usual times are those of good responses.
    clock.seconds += 10
    send(shared, clock, 0.1, 400)
    assert shared.parallel() == 16


@pytest.mark.parametrize("status", [404, 500])
def test_errors_of_single_objects_change_neither_the_requests_in_flight_nor_the_rate(
    database: Database, status: int
) -> None:
    clock = Time()
    shared = loaded(database, clock, RateLimits(50.0, 10_000, 100.0))
    send(shared, clock, 0.1, 40)
    before = shared.parallel()
    send(shared, clock, 0.001, 400, status=status)
    assert shared.parallel() == before
    # Quick errors do not make good responses look slow.
    send(shared, clock, 0.1, 400)
    assert shared.parallel() == 16
    assert buckets(database)["all"].bucket.rate == 50.0


def test_the_rate_rises_above_the_start_only_where_the_settings_name_none() -> None:
    free = gitlab_limits(Settings(gitlab_postgres_rate_limit_rate=None))
    assert (free.rate, free.ceiling, free.share) == (10.0, 100.0, 0.5)
    named = gitlab_limits(Settings(gitlab_postgres_rate_limit_rate=7.0))
    assert named.ceiling == named.rate == 7.0


def test_an_announced_limit_is_noted_at_once_when_it_changes(database: Database) -> None:
    shared = limiter(database, RateLimits(10.0, 20, 100.0, 0.5))
    for limit, rate in ((2000, 10.0), (300, 2.5), (299, 2.5), (600, 5.0)):
        shared.feedback(Feedback("projects", 200, 0.01, None, limit, limit, 60.0))
        assert buckets(database)["all"].bucket.rate == pytest.approx(rate)
