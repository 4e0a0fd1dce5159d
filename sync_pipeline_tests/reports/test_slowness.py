"""What is called slow, how it is measured, and that everybody who asks the database is told."""

from __future__ import annotations

import threading

import pytest

from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import heartbeats
from sync_pipeline.reports import slowness
from sync_pipeline.reports.doctor import State, local
from sync_pipeline.reports.slowness import CodeServerWatch, lines
from sync_pipeline.settings import Settings


@pytest.mark.parametrize(
    ("waiting", "load", "cores", "expected"),
    [
        (0.02, 0.5, 2, []),
        (4.9, 3.0, 2, []),
        (12.3, 1.0, 2, ["the code server answers slowly: 12 s"]),
        (0.1, 9.26, 2, ["the load is 9.3 on 2 cores"]),
        (0.1, 4.0, 1, ["the load is 4.0 on 1 core"]),
        (60, 16, 8, ["the code server answers slowly: 60 s", "the load is 16.0 on 8 cores"]),
    ],
)
def test_what_is_called_slow(waiting: float, load: float, cores: int, expected: list[str]) -> None:
    assert lines(waiting, load, cores) == expected


def test_a_question_without_an_answer_counts_from_the_first_one() -> None:
    now, there = 0.0, True

    def ask() -> bool:
        nonlocal now
        now += 2
        return there

    watch = CodeServerWatch(ask, lambda: now)
    assert watch.waiting == 0
    watch.ask()
    assert watch.waiting == 2
    there = False
    watch.ask()
    watch.ask()
    assert watch.waiting == 4
    now += 10
    assert watch.waiting == 14
    there = True
    watch.ask()
    assert watch.waiting == 16
    watch.ask()
    assert watch.waiting == 2


def test_status_and_doctor_are_told_by_the_heartbeat_and_a_stop_takes_it_back(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(worker_pool="west")
    monkeypatch.setattr(slowness, "_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(slowness, "machine", lambda: (7.5, 2))
    watch = CodeServerWatch(lambda: True, iter([0.0, 12.0]).__next__)
    watch.ask()
    stop = threading.Event()
    thread = slowness.keep_writing(database_url, settings, watch, stop)
    try:
        beats: list[heartbeats.Heartbeat] = []
        while not beats:
            with database.connection() as conn:
                beats = heartbeats.read(conn)
        assert [beat.name for beat in beats] == ["up@west"]
        assert slowness.summary(beats) == [
            "the code server answers slowly: 12 s",
            "the load is 7.5 on 2 cores",
        ]
        found = local.code_server(beats)
        assert found.state is State.WARNING
        assert "12 s; the load is 7.5" in found.seen
    finally:
        stop.set()
        thread.join()
    with database.connection() as conn:
        assert heartbeats.read(conn) == []
    assert local.code_server([]).state is State.SKIPPED
