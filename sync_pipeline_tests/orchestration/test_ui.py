"""The children of ``scm-sync up``: they do not outlive it, and are started without a fork."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.orchestration import ui
from sync_pipeline.settings import Settings

# gRPC has threads in this process; whatever forks then may hang for ever.
_PARENT = """import os, signal, sys
from sync_pipeline.orchestration import ui
os.register_at_fork(before=lambda: os._exit(7))
program = "import time; print('begun', flush=True); time.sleep(600)"
child = ui._child([sys.executable, "-c", program], os.environ)
print(child.pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def _lives(process: psutil.Process) -> bool:
    """Whoever takes orphans over may be late to bury them."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_child_needs_no_fork_and_ends_with_its_parent() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        said = {parent.stdout.readline().strip() for _ in range(2)}
        assert "begun" in said, parent.poll()
        child = psutil.Process(int((said - {"begun"}).pop()))
        parent.stdin.write("\n")
        parent.stdin.flush()
        deadline = time.monotonic() + 60
        while _lives(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_place_of_the_code_server_is_the_same_at_every_start_and_private(tmp_path: Path) -> None:
    ours, other = Settings(state_dir=tmp_path), Settings(state_dir=tmp_path / "other")
    with ui._private_folder(ours) as first, ui._private_folder(other) as elsewhere:
        assert first != elsewhere
        assert first.stat().st_mode & 0o777 == 0o700
    assert not first.exists()
    with ui._private_folder(ours) as again:
        assert again == first
        again.chmod(0o755)
        with pytest.raises(ConfigurationError, match="remove it"), ui._private_folder(ours):
            pass
