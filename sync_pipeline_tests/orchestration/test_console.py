"""What ``dagster job execute`` prints of failures. That the real command prints it is proven end to end."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from sync_pipeline.orchestration import console


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """Failures are explained; returns what would be called at the end of the process."""
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(console, "_reasons", {})
    before = logging.getLoggerClass()
    console.explain_failures()
    yield at_exit
    logging.setLoggerClass(before)


def failing(error: Exception) -> dg.JobDefinition:
    """A job whose only step raises ``error``."""

    @dg.op
    def fails() -> None:
        raise error

    @dg.job
    def doomed() -> None:
        fails()

    return doomed


@pytest.mark.parametrize(
    ("error", "reason", "has_stack"),
    [
        (
            dg.Failure("there is no partition 1; \x1b[2Jrun x"),
            "there is no partition 1; \\x1b[2Jrun x",
            False,
        ),
        (ValueError("nobody foresaw this"), "ValueError: nobody foresaw this", True),
        (dg.Failure(), "ure", True),
    ],
)
def test_a_described_failure_has_no_call_stack_and_each_ends_with_its_reason(
    explained: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
    has_stack: bool,
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = failing(error).execute_in_process(instance=instance, raise_on_error=False)
        [kept] = [e for e in done.all_events if e.is_step_failure]
    assert not done.success
    printed = capsys.readouterr().err
    assert ("Stack Trace" in printed) is has_stack
    # The event log has it in any case.
    assert kept.step_failure_data.error is not None
    assert kept.step_failure_data.error.stack
    explained[0]()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("scm-sync: ")
    assert reason in line


def test_a_run_that_fails_before_its_steps_says_why(
    explained: list[Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    @dg.resource
    def broken(_: dg.InitResourceContext) -> None:
        raise ValueError("the resource is broken")

    @dg.op(required_resource_keys={"thing"})
    def works() -> None: ...

    @dg.job(resource_defs={"thing": broken})
    def doomed() -> None:
        works()

    with dg.DagsterInstance.ephemeral() as instance:
        assert not doomed.execute_in_process(instance=instance, raise_on_error=False).success
    capsys.readouterr()
    explained[0]()
    assert "the resource is broken" in capsys.readouterr().err.splitlines()[-1]
