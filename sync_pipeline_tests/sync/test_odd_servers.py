"""Servers that are slow, odd or rude: what is covered stays true, and work goes on by itself."""

from __future__ import annotations

import subprocess
from datetime import timedelta

import requests

from sync_pipeline.core.model import JobStatus, JobType, Mode, RunStatus
from sync_pipeline.ledger import watermarks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.sync.conftest import START, Forge
from sync_pipeline_tests.sync.test_merge_request_trouble import make

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_EVERYTHING = ("1990-01-01", "2024-05-07")


def test_a_server_that_does_not_tell_its_time_covers_nothing(forge: Forge) -> None:
    make(forge, 1)
    headers = {"PRIVATE-TOKEN": forge.settings.gitlab.token.get_secret_value()}
    at = f"{forge.server.api}/projects/{forge.project.id}"
    for path in ("", "/repository/branches", "/repository/tags"):
        body = requests.get(at + path, headers=headers, timeout=60).content
        undated = faults.CannedResponse(200, body, headers={"Date": "soon"})
        forge.gitlab.faults.add(rf"projects/{forge.project.id}{path}(\?|$)", undated, times=None)
    for report in (*forge.both(), forge.commits()):
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "no_date")
    for job_type in (MR, REVIEWS, JobType.COMMITS):
        assert watermarks.get(forge.conn, forge.repo_id, job_type).covered == ()


def test_what_happens_after_a_servers_clock_was_set_back_is_read(forge: Forge) -> None:
    make(forge, 1)
    forge.both()
    late = forge.gitlab.clock.now()
    forge.gitlab.clock.fixed = late - timedelta(hours=2)
    forge.gitlab.open_merge_request(forge.project, title="Meanwhile", source="topic", author=forge.user)
    # An hour goes by until the next visit.
    forge.gitlab.clock.fixed = late - timedelta(hours=1)
    forge.conn.execute("UPDATE scm.sync_watermarks SET verified_at = verified_at - interval '1 hour'")
    forge.both()
    assert len(forge.rows("SELECT 1 FROM scm.mrs")) == 2


def test_a_long_backfill_that_is_throttled_again_and_again_gets_done(forge: Forge) -> None:
    project = generate(forge.gitlab, forge.group, merge_requests=350, notes=0, tie=1)
    repo = register_project(forge.conn, forge.server.url, project.id, "team1/large", origin=START)
    wanted = {"repo_id": repo, "window": _EVERYTHING}
    for _ in range(3):
        # A page an hour is all that the server allows.
        limit = faults.throttled_text(retry_after="1800")
        forge.gitlab.faults.add(r"merge_requests\?", limit, times=None, skip=1)
        report = forge.syncer.run(forge.request(MR, Mode.BACKFILL, **wanted))
        assert report.job_status is JobStatus.FAILED
        forge.gitlab.faults.clear()
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    report = forge.syncer.run(forge.request(MR, Mode.BACKFILL, **wanted))
    assert report.succeeded, report.error
    assert len(forge.rows("SELECT 1 FROM scm.mrs")) == 350
    assert len(forge.rows("SELECT DISTINCT job_id FROM scm.sync_runs WHERE attempt > 3")) == 1


def test_a_server_that_only_throttles_costs_no_job(forge: Forge) -> None:
    limit = faults.throttled_text(retry_after="1800")
    forge.gitlab.faults.add(".", limit, times=None)
    for _ in range(5):
        report = forge.syncer.run(forge.request(MR, Mode.BACKFILL, window=_EVERYTHING))
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "rate_limit")
        (job,) = forge.rows("SELECT not_before - now() AS waits FROM scm.sync_jobs")
        assert timedelta(minutes=29) < job["waits"] < timedelta(minutes=61)
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")


def test_a_failure_without_any_progress_is_given_up(forge: Forge) -> None:
    make(forge, 1)
    forge.gitlab.faults.add(r"merge_requests\?", faults.server_error(), times=None)
    states = []
    for _ in range(3):
        states.append(forge.syncer.run(forge.request(MR, Mode.BACKFILL, window=_EVERYTHING)).job_status)
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert states == [JobStatus.FAILED, JobStatus.FAILED, JobStatus.DEAD]


def test_what_a_server_says_may_hold_what_no_database_takes(forge: Forge) -> None:
    make(forge, 2)
    rude = faults.json_answer(500, {"message": "bad\x00 \ud800 thing"})
    forge.gitlab.faults.add(r"/versions", rude, times=None)
    nameless = [{"iid": "a\x00\ud800" + "x" * 5000, "updated_at": "2024-05-06T11:00:00.000Z", "id": "b"}]
    forge.gitlab.faults.add(r"merge_requests\?.*updated_after", faults.json_answer(200, nameless), times=1)
    first, _ = forge.both()
    assert first.succeeded, first.error
    kept = forge.rows("SELECT job_type FROM scm.quarantine ORDER BY job_type")
    assert [row["job_type"] for row in kept] == ["merge_requests", "reviews"]
    first, _ = forge.both(Mode.BACKFILL, window=_EVERYTHING, reread=True)
    assert first.succeeded, first.error
    assert len(forge.rows("SELECT 1 FROM scm.deferred_fetches")) == 2
    forge.gitlab.faults.clear()
    forge.gitlab.faults.add(".", rude, times=None)
    first, second = forge.both()
    assert {str(first.job_status), str(second.job_status)} == {"failed"}
    assert forge.rows("SELECT 1 FROM scm.sync_jobs WHERE status = 'running'") == []


def test_a_tag_that_leads_to_no_commit_is_quarantined_once_and_costs_no_idle_visit(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.commits()
    forge.tick()
    good = {"name": "v1", "target": "b" * 40, "commit": None, "message": ""}
    rule = forge.gitlab.faults.add("/repository/tags", faults.json_answer(200, [good]), times=None)
    assert forge.commits().counts.quarantined == 1
    forge.tick(minutes=2)
    again = forge.commits()
    assert (again.run_status, again.batches) == (RunStatus.NO_DATA, 0)
    assert rule.struck >= 2
    # A name that fits no index is no reason to read nothing.
    long = good | {"name": "".join(f"{n:x}" for n in range(9000)), "commit": {"id": "a" * 40}}
    forge.gitlab.faults.clear()
    forge.gitlab.faults.add("/repository/tags", faults.json_answer(200, [long]), times=None)
    forge.tick(minutes=2)
    assert forge.commits().succeeded
    forge.gitlab.faults.clear()
    forge.tick(minutes=2)
    assert forge.commits().succeeded
    assert forge.rows("SELECT 1 FROM scm.quarantine WHERE resolved_at IS NULL") == []


def test_statistics_are_read_again_once_the_server_can_count(forge: Forge) -> None:
    lines = [
        b"commit refs/heads/main\ncommitter U <u@example.test> %d +0000\ndata 2\nx\n\nM 100644 inline f\n"
        b"data %d\n%d\n" % (1714000000 + number, len(str(number)), number)
        for number in range(1200)
    ]
    command = ["git", "-C", str(forge.git.path), "fast-import", "--quiet"]
    subprocess.run(command, input=b"\n".join(lines), check=True)
    # Two pages in a row fail, four times each, while the server is restarted.
    forge.gitlab.faults.add("with_stats=true", faults.server_error(), times=8)
    assert forge.commits().succeeded
    (row,) = forge.rows("SELECT count(*), count(additions) AS counted FROM scm.git_commits")
    assert row["count"] == 1200
    assert row["counted"] == 500
