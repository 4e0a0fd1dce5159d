"""Answers in which one odd thing comes very often: the work grows with their length, not with its square.

No time is measured: with the square these tests would take hours.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sync_pipeline.core.gitlab_rows import Origin
from sync_pipeline.core.model import RevisionWindow
from sync_pipeline.sources.gitlab.responses import redact
from sync_pipeline.sources.gitlab.reviews import without_duplicates
from sync_pipeline.sources.svn import Client
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_tests.facts.gitlab_facts import START, event
from sync_pipeline_tests.svn_fixtures import SvnRepository

DATE = "2020-01-02T03:04:05.678901Z"


def test_a_message_full_of_control_characters_is_read(svn_repository: Callable[..., SvnRepository]) -> None:
    message = "\x01\x1b" * 250_000
    writer = DumpWriter().revision("before", "dev", DATE).node("a", text="x")
    writer.revision(message, "dev", DATE).node("b", text="x")
    writer.revision("after", "dev", DATE).node("c", text="x")
    reader = SvnReader(Client(), svn_repository(dump=writer.dump()).url, "", log_timeout=60, info_timeout=60)
    (batch,) = reader.read(RevisionWindow(1, 4))
    rows = list(batch.rows)
    assert [row.message for row in rows] == ["before", message, "after"]
    assert [row.flags for row in rows] == [(), ("control_characters",), ()]
    (row,) = reader.read_single(2).rows
    assert row.message == message


def test_a_text_that_looks_like_many_urls_is_redacted() -> None:
    text = "a." * 250_000 + " https://ann:hunter2@host/x " + "://" * 250_000
    assert redact(text) == text.replace("ann:hunter2", "[redacted]")


def test_many_events_and_the_notes_that_tell_of_them_are_told_once() -> None:
    number = 10_000
    events = [
        event(
            index,
            origin,
            kind="label",
            is_system=True,
            occurred_at=START + timedelta(seconds=30 * index),
            body="added ~1 label",
            details={"action": "add", "id": 1},
        )
        for index in range(number)
        for origin in (Origin.NOTE, Origin.LABEL)
    ]
    twins = {
        row.event_id: row.duplicate_of for row in without_duplicates(events) if row.origin is Origin.NOTE
    }
    assert twins == {f"note:{index}": f"label:{index}" for index in range(number)}
