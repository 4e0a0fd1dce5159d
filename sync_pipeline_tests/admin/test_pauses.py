"""Pauses and breakers as a person handles them: names that nobody knows, and what a breaker tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sync_pipeline.admin import pauses
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import breakers, jobs
from sync_pipeline.settings import Settings
from sync_pipeline_tests.builders import register, request

SETTINGS = Settings()

_RUN = """
INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, worker, status, started_at, finished_at,
                           error_code, error, code_version)
SELECT job_id, %(attempt)s, repo_id, job_type, mode, 'w', 'failed', now(), now() - %(ago)s * interval '1 s',
       %(code)s, 'no', '1'
  FROM scm.sync_jobs
"""


def save(conn: Connection, key: str, state: str, rate: float, runs: int) -> None:
    """Store a breaker of a server that came into its state just now."""
    now = datetime.now(UTC) + timedelta(seconds=1)
    opened = None if state == "closed" else now
    row = breakers.BreakerRow(
        "instance", key, state, now, opened, rate, 0.0, 0.0, runs, None, 0, f"failures {rate:.0%}"
    )
    breakers.save(conn, row, actor="test")


def test_a_breaker_tells_its_thresholds_and_what_its_runs_failed_of(database: Database) -> None:
    with database.connection() as conn:
        jobs.enqueue(conn, request(register(conn, "paint")))
        # One run was before the window, one says nothing about the server.
        codes = ["timeout", "connection", "connection", "denied", "network"]
        for attempt, code in enumerate(codes, 1):
            ago = 86_400 * 30 if code == "network" else 5
            conn.execute(_RUN, {"attempt": attempt, "code": code, "ago": ago})
        save(conn, "local", "open", 1.0, 6)
        save(conn, "other", "closed", 0.6, 1)
    document = pauses.breaker_listing(database, SETTINGS)
    local, other = document["breakers"]
    assert local["errors"] == [{"code": "connection", "runs": 2}, {"code": "timeout", "runs": 1}]
    assert pauses.with_errors(local["reason"], local["errors"]) == "failures 100% (connection 2, timeout 1)"
    assert other["errors"] == []
    assert document["opens_at"]["failure_rate"] == SETTINGS.breaker.failure_rate_threshold
    assert document["opens_at"]["runs"] == SETTINGS.breaker.min_samples > other["runs"]


def test_a_closed_breaker_is_not_reset(database: Database) -> None:
    with database.connection() as conn:
        save(conn, "git.test", "open", 1.0, 6)

    def reset() -> str:
        return pauses.reset_breaker(database, "instance", "git.test", actor="ada", reason="mended")

    assert (reset(), reset()) == ("open", "closed")
    events = pauses.breaker_listing(database, SETTINGS)["events"]
    assert [(one["old_state"], one["new_state"]) for one in events] == [
        ("open", "closed"),
        ("closed", "open"),
    ]


def test_a_tenant_that_nobody_knows_is_answered_with_some_that_there_are(database: Database) -> None:
    with database.connection() as conn:
        for number in range(13):
            register(conn, f"paint{number}")
        conn.execute("UPDATE scm.repos SET tenant = lpad(repo_id::text, 2, '0') || repeat('x', 5000)")
    target = pauses.PauseTarget(tenant="nobody")
    with pytest.raises(ConfigurationError, match="no repository is of the tenant nobody") as caught:
        pauses.pause(database, target, seconds=60, actor="ada", reason="x")
    text = str(caught.value)
    assert text.endswith(" and 3 more")
    assert len(text) < 800
