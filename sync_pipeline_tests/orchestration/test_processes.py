"""Stopping a run through the process that signed it, which is all that is left where its starter is gone."""

from __future__ import annotations

import subprocess
import sys

import dagster as dg

from sync_pipeline.orchestration.processes import interrupt
from sync_pipeline.orchestration.run_spec import PROCESS_TAG

_SIGNED = """import sys, time
from sync_pipeline.sync.worker import process_identity
try:
    print(process_identity(), flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_the_process_that_signed_a_run_is_interrupted_and_no_other() -> None:
    with subprocess.Popen([sys.executable, "-c", _SIGNED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()

        def run(tag: str) -> dg.DagsterRun:
            return dg.DagsterRun(job_name="sync_revisions", run_id="this", tags={PROCESS_TAG: tag})

        machine, pid, started = identity.rsplit(" ", 2)
        for other in (
            "",
            f"another {identity}",
            f"this elsewhere {pid} {started}",
            f"this {machine} {pid} 12.00",
        ):
            assert not interrupt(run(other))
        assert process.poll() is None
        assert interrupt(run(f"this {identity}"))
        assert process.wait() == 7
        assert not interrupt(run(f"this {identity}"))
