"""What is in quarantine is shown, tried again at the source, stored when it can be, and never lost."""

from __future__ import annotations

import json
import os
import re
import threading
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline import cli
from sync_pipeline.admin import quarantine
from sync_pipeline.admin.quarantine import Filter
from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.errors import Cancelled, LeaseHeld
from sync_pipeline.core.model import Access, JobStatus, JobType, Mode
from sync_pipeline.database.pool import Database
from sync_pipeline.facts import quarantine as stored
from sync_pipeline.facts import svn_revisions
from sync_pipeline.ledger import integrity_checks, jobs, planning, repos, watermarks
from sync_pipeline.reports import health
from sync_pipeline.reports.reasons import HealthReason
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings
from sync_pipeline.sync import lost, remap
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.retry import request as retry_request
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.conftest import ENVIRONMENT
from sync_pipeline_tests.svn_fixtures import SvnRepository
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.test_schemas import validate

MR = JobType.MERGE_REQUESTS
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


def answered(forge: Forge, pattern: str, edit: Callable[[dict[str, Any]], object], which: int = 0) -> None:
    """Let one row of each list be edited that the server answers to what matches ``pattern``."""

    def edited(body: bytes) -> bytes:
        rows = json.loads(body)
        if len(rows) > which:
            edit(rows[which])
        return json.dumps(rows).encode()

    forge.gitlab.faults.add(pattern, faults.Edited(edited), times=None)


def no_state(forge: Forge, made: MergeRequest) -> None:
    made.row["state"] = None


def refused_state(forge: Forge, made: MergeRequest) -> None:
    made.row["state"] = "on fire"
    forge.conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'on fire')")


def no_number(forge: Forge, made: MergeRequest) -> None:
    answered(forge, r"merge_requests\?", lambda row: row.pop("iid"))


def huge_note(forge: Forge, made: MergeRequest) -> None:
    made.notes[0].row["id"] = 2**70


def nameless_note(forge: Forge, made: MergeRequest) -> None:
    made.notes[0].row["id"] = None


def nameless_commit(forge: Forge, made: MergeRequest) -> None:
    tip = forge.git.resolve("main")
    answered(forge, rf"/commits\?.*ref_name={tip}(&|$)", lambda row: row.pop("id"), which=1)


def tag_to_nowhere(forge: Forge, made: MergeRequest) -> None:
    answered(forge, "/repository/tags", lambda row: row.update(commit=None))


def refused_commit(forge: Forge, made: MergeRequest) -> None:
    forge.conn.execute(
        "ALTER TABLE scm.git_commits ADD CONSTRAINT no_base CHECK (message <> 'Base' || chr(10))"
    )


@pytest.mark.parametrize(
    ("spoil", "keys"),
    [
        (no_state, ["merge_requests 1", "reviews 1"]),
        (refused_state, ["merge_requests 1"]),
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
    assert integrity_checks.failures(forge.conn) == {}
    forge.tick()
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))


def test_retry_takes_up_a_raw_that_cannot_be_read_and_the_review_that_was_refused(forge: Forge) -> None:
    """A stored raw is derived anew and asks no server; a review refused as a whole is read again."""
    opened(forge)
    forge.conn.execute("ALTER TABLE scm.review_events ADD CONSTRAINT no_good CHECK (body <> 'Good')")
    assert all(report.succeeded for report in forge.both())
    (review,) = forge.rows(_OPEN)
    assert (review["job_type"], review["natural_key"], review["reason"]) == ("reviews", "1", "unstorable")
    forge.conn.execute("ALTER TABLE scm.review_events DROP CONSTRAINT no_good")
    forge.conn.execute("UPDATE scm.mrs SET raw = raw - 'state'")
    spoilt = forge.syncer.run(
        remap.request(repos.get(forge.conn, forge.repo_id), MR, None, actor="a", reason="r")
    )
    assert spoilt.counts.quarantined == 1
    forge.conn.execute("UPDATE scm.mrs SET raw = jsonb_set(raw, '{state}', '\"opened\"')")
    forge.asked()
    done = retry(forge)
    assert (done["exit_code"], done["summary"]["stored"]) == (0, 2), done
    assert forge.rows(_OPEN) == []
    assert not forge.asked(r"merge_requests/1/versions")
    assert len(forge.rows("SELECT 1 FROM scm.review_events WHERE body = 'Good'")) == 1


def test_a_source_that_does_not_answer_changes_nothing_in_quarantine_and_no_state(forge: Forge) -> None:
    opened(forge)
    forge.gitlab.set_state(next(iter(forge.project.merge_requests.values())), "on fire")
    forge.conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'on fire')")
    forge.both()
    before = forge.rows(_OPEN)
    assert len(before) == 1
    project = rf"/projects/{forge.project.id}([?]|$)"
    for fault, code in (
        (faults.server_error(), "server_error"),
        (faults.json_answer(404, {"message": "404 Project Not Found"}), "not_found"),
        (faults.json_answer(401, {"message": "401 Unauthorized"}), "credential"),
    ):
        forge.gitlab.faults.add(project, fault, times=None)
        failed = retry(forge)
        assert (failed["exit_code"], failed["entries"][0]["outcome"]) == (2, "failed")
        assert failed["jobs"][0]["error_code"] == code
        assert failed["jobs"][0]["status"] == "dead"
        assert forge.rows(_OPEN) == before
        forge.gitlab.faults.clear()
    # One look is no proof that the project is gone, and a dead retry is no window that failed.
    assert watermarks.get(forge.conn, forge.repo_id, MR).access is Access.OK
    in_force = Credentials(frozenset({instance_of(forge.server.url)}), {}, {})
    results = health.read(forge.conn, timedelta(days=9999), in_force, [forge.repo_id])
    (result,) = (one for one in results if one.facts.job_type is MR)
    assert HealthReason.QUARANTINE in result.health.reasons
    assert not {HealthReason.FAILED_WINDOW, HealthReason.GONE, HealthReason.DENIED} & set(
        result.health.reasons
    )


def test_a_merge_request_that_is_gone_stays_with_the_reason_and_a_deleted_note_leaves(forge: Forge) -> None:
    made = opened(forge)
    forge.gitlab.set_state(made, "on fire")
    forge.conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'on fire')")
    made.notes[0].row["id"] = 2**70
    forge.both()
    assert len(forge.rows(_OPEN)) == 2
    del made.notes[0]
    done = retry(forge)
    assert (done["exit_code"], done["summary"]["gone"], done["summary"]["remains"]) == (1, 1, 1)
    del forge.project.merge_requests[made.iid]
    (left,) = retry(forge)["entries"]
    assert (left["outcome"], left["seen"]) == ("remains", 3)
    assert "does not list the merge request" in left["detail"]
    assert b"on fire" in stored.payload_of(forge.conn, left["id"])


# Subversion, by the command line -------------------------------------------------------------------------


@dataclass
class Desk:
    """Runs ``scm-sync admin quarantine`` for a repository with 12 revisions of which 5, 6 and 9 are bad."""

    repository: SvnRepository
    database: Database
    repo_id: int
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        self.capsys.readouterr()
        assert cli.run(["admin", "quarantine", *map(str, arguments)]) == code
        out, err = self.capsys.readouterr()
        return out, err

    def document(self, name: str, *arguments: object, code: int = 0) -> dict[str, Any]:
        """The document of a command, which is as its schema says."""
        found: dict[str, Any] = json.loads(self(*arguments, "--json", code=code)[0])
        validate(found, f"quarantine-{name}.json")
        return found


@pytest.fixture
def desk(
    svn_repository: Callable[..., SvnRepository],
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Desk:
    """See :class:`Desk`."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "DATABASE_URL": database.url,
        "ENVIRONMENT": ENVIRONMENT,
        "STATE_DIR": "state",
    }.items():
        monkeypatch.setenv(f"SCM_{name}", value)
    repository = svn_repository()
    for number in range(12):
        repository.commit_file(f"f{number}", message=f"Message {number + 1}")
    refuse(database, "rev_num NOT IN (5, 6, 9)")
    with database.connection() as conn:
        repo_id = register_source(conn, repository.path)
        report = Syncer(database, Settings()).run(request(repo_id))
    assert (report.counts.inserted, report.counts.quarantined) == (9, 3)
    return Desk(repository, database, repo_id, capsys)


def refuse(database: Database, allowed: str) -> None:
    """Let the database take only these revisions."""
    with database.connection() as conn:
        conn.execute("ALTER TABLE scm.svn_revisions DROP CONSTRAINT IF EXISTS picky")
        conn.execute(f"ALTER TABLE scm.svn_revisions ADD CONSTRAINT picky CHECK ({allowed})".encode())


def test_revisions_are_listed_shown_and_retried_by_the_command_line(desk: Desk) -> None:
    listed = desk.document("list", "list")
    assert (listed["total"], {one["key"] for one in listed["entries"]}) == (3, {"5", "6", "9"})
    assert desk.document("list", "list", "--limit", 1)["total"] == 3
    assert "1 of 3 entries" in desk("list", "--limit", 1)[1]
    for narrow in (("--repo", desk.repo_id), ("--job", "svn"), ("--reason", "unstorable")):
        assert desk.document("list", "list", *narrow)["total"] == 3
    assert desk.document("list", "list", "--reason", "corrupt")["entries"] == []
    assert desk("list")[0].splitlines()[0].split("\t")[:5] == ["id", "repo", "job", "key", "reason"]
    ids = {one["key"]: one["id"] for one in listed["entries"]}

    entry = desk.document("entry", "show", ids["5"])
    assert json.loads(b64decode(entry["payload_base64"]))["message"] == "Message 5"
    assert "Message 5" in desk("show", ids["5"])[0]

    plan = desk.document("retry", "retry", "--repo", desk.repo_id, "--dry-run")
    assert [one["how"] for one in plan["entries"]] == ["read r5 again", "read r6 again", "read r9 again"]
    assert plan["jobs"][0]["entries"] == 3

    refuse(desk.database, "rev_num <> 6")
    desk("retry", ids["6"], code=2)
    some = desk.document("retry", "retry", "--repo", desk.repo_id, "--reason", "mended", code=1)
    assert some["summary"] == {"entries": 3, "stored": 2, "gone": 0, "remains": 1, "failed": 0}
    (left,) = desk.document("list", "list")["entries"]
    assert (left["key"], left["seen"]) == ("6", 3)
    assert desk.document("list", "list", "--all")["total"] == 3
    refuse(desk.database, "TRUE")
    assert "stored" in desk("retry", ids["6"])[0]
    assert desk.document("retry", "retry", "--repo", desk.repo_id)["entries"] == []
    with desk.database.connection() as conn:
        assert svn_revisions.count_revisions(conn, desk.repo_id) == 12
        assert integrity_checks.failures(conn) == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["retry"], "name entries by their ids"),
        (["retry", "999"], "quarantine has no entry 999"),
        (["show", "999"], "quarantine has no entry 999"),
        (["show", "many"], "valid integer"),
        (["retry", "99999999999999999999"], "less than or equal"),
        (["list", "--job", "nonsense"], "unknown job type 'nonsense'"),
        (["list", "--repo", "svn:file:///nowhere"], "the catalog has no"),
        (["list", "--limit", "0"], "greater than or equal"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(desk: Desk, arguments: list[str], says: str) -> None:
    out, err = desk(*arguments, code=3)
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert {one["seen"] for one in desk.document("list", "list")["entries"]} == {1}


def test_a_retired_repository_a_resolved_entry_and_a_stop_are_told(desk: Desk) -> None:
    with desk.database.connection() as conn:
        first, *_ = stored.entries(conn, repo_id=desk.repo_id)[0]
        stored.resolve(conn, [first.quarantine_id])
        assert "left quarantine already" in desk("retry", first.quarantine_id, code=3)[1]
        stop = threading.Event()
        stop.set()
        syncer = Syncer(desk.database, Settings())
        with pytest.raises(Cancelled):
            quarantine.retry(desk.database, syncer, Filter(), actor="jo", reason="r", cancel=stop)
        repos.retire(conn, desk.repo_id, "over")
        assert "is retired; to sync it again" in desk("retry", "--repo", desk.repo_id, code=3)[1]
        rows = conn.execute("SELECT status FROM scm.sync_jobs WHERE quarantine_ids IS NOT NULL").fetchall()
        assert [row["status"] for row in rows] == ["dead"]


def test_what_is_shown_cannot_command_a_terminal(desk: Desk) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J \x9b31m \u202egnp.exe\u2028".encode() + b"\xff\xfe\0<msg>\n\tend"
    with desk.database.connection() as conn:
        conn.execute(
            "UPDATE scm.quarantine SET payload = %(nasty)s, detail = %(text)s WHERE natural_key = '5'",
            {"nasty": nasty, "text": "a\x1b[31m"},
        )
    listed = {one["key"]: one for one in desk.document("list", "list")["entries"]}
    for out, _ in (desk("show", listed["5"]["id"]), desk("list")):
        assert all(one.isprintable() or one in "\n\t" for one in out), out
    out, _ = desk("show", listed["5"]["id"])
    assert "\\x1b]0;owned\\x07" in out
    assert "\\u202egnp.exe\\u2028\\xff\\xfe\\x00<msg>\n\tend" in out
    assert b64decode(desk.document("entry", "show", listed["5"]["id"])["payload_base64"]) == nasty


def test_the_scheduler_leaves_a_retry_to_whoever_asked_for_it(desk: Desk) -> None:
    """A worker that dies in a retry leaves a dead job behind, which nobody reads as a window."""
    with desk.database.connection() as conn:
        entries, _ = stored.entries(conn, repo_id=desk.repo_id)
        wanted = retry_request(conn, entries, actor="jo", reason="r")
        job_id = jobs.enqueue(conn, wanted, max_attempts=1)
        assert jobs.enqueue(conn, wanted, max_attempts=1) == job_id
        other = replace(wanted, quarantine=wanted.quarantine[:1])
        with pytest.raises(LeaseHeld, match="does other work"):
            jobs.enqueue(conn, other, max_attempts=1)
        assert [
            job
            for job in planning.snapshot(conn, sample_seconds=60, newest=10, burst=1).jobs
            if job["mode"] == Mode.REPAIR
        ] == []
        claim = jobs.claim(conn, job_id, worker="w", process="gone", length=0.0, dagster_run_id=None)
        assert claim is not None
        lost.expire_abandoned_jobs(conn, desk.repo_id, JobType.REVISIONS)
        assert jobs.state(conn, job_id).status is JobStatus.DEAD
    assert desk.document("retry", "retry", "--repo", desk.repo_id, code=2)["summary"]["remains"] == 3
