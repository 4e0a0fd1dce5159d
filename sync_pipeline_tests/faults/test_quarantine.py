"""What is in quarantine is shown, tried again at the source, stored when it can be, and never lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import requests

from sync_pipeline.operations import quarantine
from sync_pipeline.operations.quarantine import Filter
from sync_pipeline.sandbox.gitlab import faults
from sync_pipeline.sandbox.gitlab.records import MergeRequest
from sync_pipeline.store import proofs
from sync_pipeline_tests.sync.conftest import Forge

_OPEN = """
SELECT job_type, natural_key, reason, seen FROM scm.quarantine
 WHERE resolved_at IS NULL ORDER BY job_type, natural_key
"""
_LEDGER = """
SELECT j.mode, j.status, j.actor, j.reason, j.trigger, r.status AS run, j.quarantine_ids
  FROM scm.sync_jobs AS j JOIN scm.sync_runs AS r USING (job_id)
 WHERE j.quarantine_ids IS NOT NULL ORDER BY j.created_at
"""

Wrong = Callable[[Forge, MergeRequest], None]


def retry(forge: Forge, **wanted: Any) -> dict[str, Any]:
    """Try everything again, or what is wanted."""
    return quarantine.retry(
        forge.database, forge.syncer, Filter(**wanted), actor="jo@desk", reason="it was mended"
    )


def opened(forge: Forge) -> MergeRequest:
    """A merge request with a note, from a branch with a commit, and a tag."""
    first = forge.git.commit("main", "First\n", files={"a": "0\n"})
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"}, parents=[first])
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    forge.git.tag("v1", base)
    made = forge.gitlab.open_merge_request(forge.project, title="One", source="topic", author=forge.user)
    forge.gitlab.comment(made, forge.other, "Good")
    forge.tick()
    return made


def answered(forge: Forge, pattern: str, path: str, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    """Let the server answer what matches ``pattern`` with its own answer to ``path``, edited."""
    url = f"{forge.server.api}/projects/{forge.project.id}/{path}"
    rows = requests.get(url, headers={"PRIVATE-TOKEN": forge.settings.gitlab_token.get_secret_value()}).json()
    edit(rows)
    forge.gitlab.faults.add(pattern, faults.json_answer(200, rows), times=None)


def no_state(forge: Forge, made: MergeRequest) -> None:
    made.row["state"] = None


def odd_state(forge: Forge, made: MergeRequest) -> None:
    made.row["state"] = "on fire"


def no_number(forge: Forge, made: MergeRequest) -> None:
    answered(forge, r"merge_requests\?", "merge_requests", lambda rows: rows[0].pop("iid"))


def huge_note(forge: Forge, made: MergeRequest) -> None:
    made.notes[0].row["id"] = 2**70


def nameless_note(forge: Forge, made: MergeRequest) -> None:
    made.notes[0].row["id"] = None


def nameless_commit(forge: Forge, made: MergeRequest) -> None:
    tip = forge.git.resolve("main")
    path = f"repository/commits?with_stats=true&ref_name={tip}"
    answered(forge, rf"/commits\?.*ref_name={tip}(&|$)", path, lambda rows: rows[1].pop("id"))


def tag_to_nowhere(forge: Forge, made: MergeRequest) -> None:
    answered(forge, "/repository/tags", "repository/tags", lambda rows: rows[0].update(commit=None))


def refused_commit(forge: Forge, made: MergeRequest) -> None:
    forge.conn.execute(
        "ALTER TABLE scm.git_commits ADD CONSTRAINT no_base CHECK (message <> 'Base' || chr(10))"
    )


@pytest.mark.parametrize(
    ("spoil", "keys"),
    [
        (no_state, ["merge_requests 1", "reviews 1"]),
        (odd_state, ["merge_requests 1"]),
        (no_number, ["merge_requests ?", "reviews ?"]),
        (huge_note, ["reviews 1:note:1180591620717411303424"]),
        (nameless_note, ["reviews 1:note:None"]),
        (nameless_commit, ["commits SHA:1:1"]),
        (tag_to_nowhere, ["commits tag:v1"]),
        (refused_commit, ["commits SHA"]),
    ],
)
def test_a_row_stays_while_it_is_bad_and_is_stored_once_it_is_mended(
    forge: Forge, spoil: Wrong, keys: list[str]
) -> None:
    made = opened(forge)
    state, note = made.row["state"], made.notes[0].row["id"]
    spoil(forge, made)
    assert forge.commits().succeeded
    first, second = forge.both()
    assert first.succeeded, first.error
    assert second.succeeded, second.error
    before = forge.rows(_OPEN)
    named = [f"{row['job_type']} {row['natural_key']}" for row in before]
    assert [re.sub("[0-9a-f]{40}", "SHA", name) for name in named] == keys

    still = retry(forge)
    assert (still["exit_code"], still["summary"]["remains"]) == (2, len(keys)), still
    again = forge.rows(_OPEN)
    assert [row["natural_key"] for row in again] == [row["natural_key"] for row in before]
    assert all(now["seen"] > then["seen"] for now, then in zip(again, before, strict=True))

    # Nothing tells of the mending: no time of update, no moved branch.
    forge.gitlab.faults.clear()
    made.row["state"], made.notes[0].row["id"] = state, note
    forge.conn.execute("ALTER TABLE scm.git_commits DROP CONSTRAINT IF EXISTS no_base")
    done = retry(forge)
    assert done["exit_code"] == 0, done
    assert forge.rows(_OPEN) == []
    assert {row["outcome"] for row in done["entries"]} <= {"stored", "gone"}
    assert len(forge.rows("SELECT 1 FROM scm.mrs WHERE status = 'open'")) == 1
    assert len(forge.rows("SELECT 1 FROM scm.review_events WHERE event_type = 'comment'")) == 1
    assert len(forge.rows("SELECT 1 FROM scm.git_commits")) == 3
    assert {row["name"] for row in forge.rows("SELECT name FROM scm.refs")} == {"main", "topic", "v1"}
    ledger = forge.rows(_LEDGER)
    assert {(r["mode"], r["status"], r["actor"], r["reason"], r["trigger"]) for r in ledger} == {
        ("repair", "completed", "jo@desk", "it was mended", "runner")
    }
    assert {id for row in ledger for id in row["quarantine_ids"]} == {row["id"] for row in done["entries"]}
    assert proofs.failures(forge.conn) == {}
    forge.tick()
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
