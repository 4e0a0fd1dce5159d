"""The children of ``scm-sync up``: they do not outlive it, and are started without a fork."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sync_pipeline.orchestration import ui
from sync_pipeline.settings import Settings

# gRPC has threads in this process; whatever forks then may hang for ever.
_PARENT = """import os, signal, sys
from sync_pipeline.orchestration import ui
os.register_at_fork(before=lambda: os._exit(7))
program = "import time; print('begun', flush=True); time.sleep(600)"
child = ui._start(lambda: [sys.executable, "-c", program], os.environ)
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
    command = [sys.executable, "-c", _PARENT]
    # A child writes to stderr: on stdout stands the address only.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        lines = {parent.stdout.readline().strip() for _ in range(2)}
        assert "begun" in lines, parent.poll()
        child = psutil.Process(int((lines - {"begun"}).pop()))
        parent.stdin.write("\n")
        parent.stdin.flush()
        deadline = time.monotonic() + 60
        while _lives(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_place_of_the_code_server_is_the_same_at_every_start_and_private(tmp_path: Path) -> None:
    ours, other = Settings(state_dir=tmp_path), Settings(state_dir=tmp_path / "other")
    other.state_dir.mkdir()
    with ui._private_folder(ours) as first, ui._private_folder(other) as elsewhere:
        assert first != elsewhere
        assert first.stat().st_mode & 0o777 == 0o700
    assert not first.exists()
    with ui._private_folder(ours) as again:
        assert again == first


@pytest.mark.parametrize("trap", ["open folder", "link", "file", "name"])
def test_a_place_that_somebody_else_took_is_left_alone(tmp_path: Path, trap: str) -> None:
    settings = Settings(state_dir=tmp_path)
    with ui._private_folder(settings) as ours:
        pass
    target = tmp_path / "target"
    target.mkdir()
    try:
        if trap == "open folder":
            ours.mkdir()
            ours.chmod(0o755)
        elif trap == "link":
            ours.symlink_to(target)
        elif trap == "file":
            ours.touch()
        else:
            (tmp_path / "sockets").write_text(f"../{target}\n")
        with ui._private_folder(settings) as another:
            assert another != ours
            assert another.parent == Path("/tmp")
            assert another.stat().st_mode & 0o777 == 0o700
    finally:
        if ours.is_symlink() or ours.is_file():
            ours.unlink()
        elif ours.exists():
            ours.rmdir()
