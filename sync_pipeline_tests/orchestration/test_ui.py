"""The children of ``scm-sync up``: they do not outlive it, and are started without a fork."""

from __future__ import annotations

import subprocess
import sys

import psutil

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
        child.wait(timeout=30)
