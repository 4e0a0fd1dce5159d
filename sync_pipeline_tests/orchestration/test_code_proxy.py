"""When a process with the definitions is taken for hanging. The rest is tested with real processes, in
``end_to_end/test_up.py``."""

from __future__ import annotations

from sync_pipeline.orchestration.code_proxy import _MIN_PINGS, Ping, hangs


def test_only_what_sleeps_and_uses_no_processor_while_it_is_asked_hangs() -> None:
    still = [Ping(7.5, True)] * _MIN_PINGS
    assert hangs(still)
    # Not looked at often enough, as on a machine that was suspended meanwhile.
    assert not hangs(still[1:])
    # Slow, but at work.
    assert not hangs([*still[1:], Ping(7.51, True)])
    # Waiting for a processor or the disk, or stopped by a signal.
    assert not hangs([Ping(7.5, False), *still[1:]])
