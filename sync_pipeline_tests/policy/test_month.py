"""A month unattended, on a fake clock: what must hold at every instant, and after every outage."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sync_pipeline.core.model import BreakerState
from sync_pipeline_tests.policy.month import BEGINNING, CAPS, INSTANCES, TENANTS, TICK, WEATHER, Month, Seen


@pytest.fixture(scope="module")
def month() -> Seen:
    """The month went through without a broken cap and without anything started twice: both raise at once."""
    return Month().run()


def test_no_cap_is_ever_exceeded_and_each_is_reached(month: Seen) -> None:
    assert month.most == {
        "running": CAPS.running,
        "queued": CAPS.queued,
        "instance": CAPS.per_instance,
        "tenant": CAPS.per_tenant,
    }


def test_no_tenant_waits_for_room_while_others_are_served(month: Seen) -> None:
    assert max(month.idle.values()) <= 2 * TICK
    for tenant, repositories in TENANTS.items():
        # A month of visits every four hours, less what the outages cost.
        assert month.by_tenant[tenant] > 0.6 * repositories * 30 * 24 / 4.25


def test_every_breaker_recovers_by_itself_soon_after_its_server(month: Seen) -> None:
    hours = [(moment - BEGINNING) / timedelta(hours=1) for moment in month.moments]
    for weather in WEATHER:
        if weather.kind == "slow" or weather.length < timedelta(hours=1):
            continue
        states = dict(zip(hours, month.states[weather.instance], strict=True))
        start = weather.start / timedelta(hours=1)
        end = (weather.start + weather.length) / timedelta(hours=1)
        during = [state for hour, state in states.items() if start + 1 < hour < end]
        # A storm of rate limits lets some through, so that it may close in between.
        assert BreakerState.OPEN in during
        assert any(state is BreakerState.CLOSED for hour, state in states.items() if end < hour < end + 1.5)


def test_the_backlog_drains_after_every_outage(month: Seen) -> None:
    for weather in WEATHER:
        end = BEGINNING + weather.start + weather.length
        lateness = dict(zip(month.moments, month.late[weather.instance], strict=True))
        after = [late for moment, late in lateness.items() if end + timedelta(hours=4) <= moment]
        assert min(after[:8]) < timedelta(hours=4.5), f"after {weather}"
    assert month.history[-1] == 0


def test_other_servers_do_not_notice_an_outage(month: Seen) -> None:
    for weather in WEATHER:
        start, end = BEGINNING + weather.start, BEGINNING + weather.start + weather.length
        for instance in INSTANCES:
            if instance not in {w.instance for w in WEATHER if w.start == weather.start}:
                during = [
                    late
                    for moment, late in zip(month.moments, month.late[instance], strict=True)
                    if start <= moment <= end
                ]
                assert max(during) < timedelta(hours=7), f"{instance} during {weather}"


def test_crashed_workers_lose_nothing(month: Seen) -> None:
    assert month.crashes > 20
    assert all(late[-1] < timedelta(hours=6) for late in month.late.values())
