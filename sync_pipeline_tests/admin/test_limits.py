"""What a person sees of the shared rate limits, and does to them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline import cli
from sync_pipeline.admin import limits
from sync_pipeline.core.errors import ConfigurationError, Transient
from sync_pipeline.database.pool import Database
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.transport import Feedback
from sync_pipeline.sync.limiter import SharedLimiter, gitlab_limits
from sync_pipeline_tests import builders
from sync_pipeline_tests.conftest import ENVIRONMENT

PAGE = Path(__file__).parents[2] / "docs" / "rate-limits.md"
SETTINGS = Settings(gitlab_url="https://git.test", gitlab_postgres_rate_limit_rate=10.0)

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs ``scm-sync admin limits ...``: exit code, output and complaints."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    for name, value in (
        ("SCM_DATABASE_URL", database.url),
        ("SCM_ENVIRONMENT", ENVIRONMENT),
        ("SCM_STATE_DIR", str(tmp_path / "state")),
        ("SCM_GITLAB_URL", "https://git.test"),
        ("SCM_GITLAB_POSTGRES_RATE_LIMIT_RATE", "10"),
    ):
        monkeypatch.setenv(name, value)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(["admin", "limits", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def limiter(database: Database) -> SharedLimiter:
    return SharedLimiter(database, "git.test", gitlab_limits(SETTINGS), max_wait=1.0)


def acquire(database: Database) -> float:
    return limiter(database).acquire("projects", lambda: None)


def test_the_page_names_every_key(database: Database) -> None:
    acquire(database)
    (limit,) = limits.listing(database, SETTINGS)["limits"]
    named = re.findall(r"(?m)^\| `limits\[\]\.([^`]+)` \|", PAGE.read_text())
    assert list(limit) == named
    assert len(limits.listing(database, SETTINGS, "git.test")["limits"]) == 1


def test_a_pause_stops_everybody_until_it_is_lifted_and_says_who_and_why(
    database: Database, command: Command
) -> None:
    limiter(database).feedback(Feedback("projects", 429, 0.01, 0.0))
    code, out, err = command(
        "pause", "--instance", "git.test", "--for", "30m", "--reason", "their upgrade", "--json"
    )
    assert (code, err) == (0, "")
    (limit,) = json.loads(out)["limits"]
    assert (limit["paused"], limit["lowered"], limit["rate"], limit["refused"]) == (True, True, 5.0, 1)
    assert limit["pause_remaining_seconds"] == pytest.approx(1800, abs=120)
    assert re.fullmatch(r"paused by .+@.+: their upgrade", limit["reason"])
    with pytest.raises(Transient, match="their upgrade") as caught:
        acquire(database)
    assert caught.value.retry_after == pytest.approx(1800, abs=120)
    assert "paused until" in command("list")[1]
    # A shorter one changes nothing.
    until = (datetime.now(UTC) + timedelta(minutes=5)).replace(tzinfo=None).isoformat()
    _, out, _ = command("pause", "--instance", "git.test", "--until", until, "--reason", "x", "--json")
    assert json.loads(out)["limits"][0]["paused_until"] == limit["paused_until"]
    assert command("resume", "--instance", "git.test", "--reason", "done")[0] == 0
    assert acquire(database) < 1
    _, out, _ = command("reset", "--instance", "git.test", "--reason", "raised", "--json")
    (limit,) = json.loads(out)["limits"]
    assert (limit["paused"], limit["lowered"], limit["rate"]) == (False, False, 10.0)
    assert limit["reason"].endswith(": raised")


def test_who_changed_a_limit_stays_known_after_the_next_one(database: Database, command: Command) -> None:
    acquire(database)
    limits.reset(database, SETTINGS, "git.test", actor="ann", reason="their\nlimit was raised")
    end = datetime.now(UTC) + timedelta(hours=1)
    limits.pause(database, SETTINGS, "git.test", end, actor="bob", reason="their upgrade")
    limits.resume(database, SETTINGS, "git.test", actor="eve", reason="done early")
    found = json.loads(command("list", "--json")[1])["events"]
    assert [(one["action"], one["actor"], one["reason"]) for one in found] == [
        ("resume", "eve", "done early"),
        ("pause", "bob", "their upgrade"),
        ("reset", "ann", "their limit was raised"),
    ]
    assert datetime.fromisoformat(found[1]["until"]) == end
    assert "git.test: reset by ann: their limit was raised" in command("list")[2]
    of_server = limits.listing(database, SETTINGS, "git.test")["events"]
    assert [one["action"] for one in of_server] == ["resume", "pause", "reset"]
    with pytest.raises(ConfigurationError):
        limits.pause(database, SETTINGS, "git.test", end, actor="ann", reason=" ")
    assert len(limits.listing(database, SETTINGS)["events"]) == 3


def test_the_rate_is_what_others_send_and_not_the_setting_of_this_shell(
    database: Database, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(database)
    monkeypatch.setenv("SCM_GITLAB_POSTGRES_RATE_LIMIT_RATE", "5")
    _, out, err = command("list")
    head, row = (line.split("\t") for line in out.splitlines())
    seen = dict(zip(head, row, strict=True))
    assert (seen["state"], seen["a second"], seen["setting of this shell"]) == ("open", "10", "5")
    assert "the last request was sent at 10 a second, the settings of this shell say 5" in err
    # Nor does it stretch the queue of the others.
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_rate_limits SET tokens = -3, refilled_at = now() + interval '1 hour'")
    assert json.loads(command("list", "--json")[1])["limits"][0]["waiting"] == 3
    # One refusal halves what the others send; that this shell would send less is no reason to call it full.
    limiter(database).feedback(Feedback("projects", 429, 0.01, 0.0))
    monkeypatch.setenv("SCM_GITLAB_POSTGRES_RATE_LIMIT_RATE", "2")
    (limit,) = json.loads(command("list", "--json")[1])["limits"]
    assert (limit["lowered"], limit["rate"], limit["full_rate"]) == (True, 5.0, 2.0)


def test_a_server_that_was_never_asked_can_be_paused(database: Database) -> None:
    with database.connection() as conn:
        builders.register(conn, "paint")
        builders.register_project(conn, "https://old.test", 7, "a/b", origin=datetime.now(UTC))
    end = datetime.now(UTC) + timedelta(hours=1)

    def paused(instance: str) -> list[Any]:
        document = limits.pause(database, SETTINGS, instance, end, actor="ann", reason="why")
        return [(one["endpoint_class"], one["paused"]) for one in document["limits"]]

    assert paused("git.test") == paused("old.test") == [("all", True)]
    assert paused("local") == [("svn", True)]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["pause", "--instance", "git.tst", "--for", "1h", "--reason", "x"], "did you mean git.test?"),
        (["resume", "--instance", "nowhere", "--reason", "x"], "write one of: git.test"),
        (["list", "--instance", "nowhere"], "there is no server nowhere"),
        (["pause", "--instance", "git.test", "--reason", "x"], "either --for or --until"),
        (
            ["pause", "--instance", "git.test", "--for", "1h", "--until", "2099-01-01", "--reason", "x"],
            "exclude each other",
        ),
        (["pause", "--instance", "git.test", "--for", "soon", "--reason", "x"], "like 90s, 30m, 2h or 3d"),
        (["pause", "--instance", "git.test", "--for", "0m", "--reason", "x"], "in the future"),
        (
            ["pause", "--instance", "git.test", "--until", "soon", "--reason", "x"],
            "is no time; write it like",
        ),
        (["pause", "--instance", "git.test", "--until", "2020-01-01", "--reason", "x"], "in the future"),
        (["pause", "--instance", "git.test", "--for", "999999d", "--reason", "x"], "a year from now at most"),
        (["pause", "--instance", "git.test", "--for", "1h", "--reason", " "], "say why"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    database: Database, command: Command, words: list[str], complaint: str
) -> None:
    code, out, err = command(*words)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert complaint in err
    assert limits.listing(database, SETTINGS) == {"limits": [], "events": []}
