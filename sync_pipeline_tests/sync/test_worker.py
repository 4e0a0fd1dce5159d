"""Whether the process that works on a job still exists."""

from __future__ import annotations

import subprocess
import sys

from sync_pipeline.sync.worker import is_gone, process_identity

_PRINT = "from sync_pipeline.sync.worker import process_identity as p; print(p(), flush=True); input()"


def test_a_process_is_gone_once_it_ended_and_not_before() -> None:
    child = subprocess.Popen([sys.executable, "-c", _PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    identity = child.stdout.readline().decode().strip()
    assert not is_gone(identity)
    child.kill()
    child.communicate()
    assert is_gone(identity)


def test_another_process_with_the_same_number_is_not_the_old_one() -> None:
    machine, pid, _ = process_identity().rsplit(" ", 2)
    assert not is_gone(process_identity())
    assert is_gone(f"{machine} {pid} 12.34")


def test_nothing_is_known_about_processes_of_other_machines() -> None:
    _, pid, started = process_identity().rsplit(" ", 2)
    assert not is_gone(f"other-boot/pid:[1] {pid} {started}")
    assert not is_gone(None)
    assert not is_gone("nonsense")
