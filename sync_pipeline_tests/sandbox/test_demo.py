"""The demo ends well, shows what it promises, and may be repeated and killed."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline_sandbox import demo as program
from sync_pipeline_sandbox import sample_gitlab
from sync_pipeline_sandbox.people import TEAM
from sync_pipeline_tests.sandbox.conftest import Demo, folder_for_demos
from sync_pipeline_tests.warm import Starter

pytestmark = pytest.mark.xdist_group("demo")

# What is read, without the times and numbers that are ours. The address of the mock GitLab is left out, too.
_FACTS = {
    "people": """
SELECT u.display_name, a.account_type, a.account_name
  FROM identity.accounts AS a JOIN identity.users AS u USING (user_id)
""",
    "commits": """
SELECT p.project_path, c.commit_sha, c.author_raw, c.parents, c.title, c.is_bulk,
       c.unreachable_since IS NOT NULL AS unreachable
  FROM scm.git_commits AS c JOIN scm.repos AS p USING (repo_id)
""",
    "refs": """
SELECT p.project_path, r.kind, r.name, r.tip, r.deleted_at IS NOT NULL AS deleted
  FROM scm.refs AS r JOIN scm.repos AS p USING (repo_id)
""",
    "ref events": """
SELECT p.project_path, e.kind, e.name, e.event, e.old_tip, e.new_tip
  FROM scm.ref_events AS e JOIN scm.repos AS p USING (repo_id)
""",
    "merge requests": """
SELECT p.project_path, m.iid, m.status, m.title, m.updated_at, m.head_sha, m.merge_commit_sha,
       m.squash_commit_sha
  FROM scm.mrs AS m JOIN scm.repos AS p USING (repo_id)
""",
    "commits of merge requests": "SELECT repo_id, mr_iid, position, commit_sha FROM scm.mr_commits",
    "versions": "SELECT repo_id, mr_iid, version_id, head_sha, base_sha FROM scm.mr_versions",
    "review events": """
SELECT p.project_path, e.mr_iid, e.source_event_id, e.event_type, e.reviewer_username, e.ts, e.body,
       e.resolved, e.missing_since IS NOT NULL AS missing
  FROM scm.review_events AS e JOIN scm.repos AS p USING (repo_id)
""",
    "approvals": "SELECT repo_id, mr_iid, username, closed_at IS NULL AS in_force FROM scm.mr_approvals",
    "revisions": "SELECT repo_id, rev_num, author_raw, ts, message, is_bulk, version FROM scm.svn_revisions",
    "paths": "SELECT repo_id, rev_num, path_no, path, action FROM scm.svn_changed_paths",
    "earlier revisions": "SELECT repo_id, rev_num, version, message FROM scm.svn_revision_versions",
    "access": "SELECT repo_id, job_type, access FROM scm.sync_watermarks",
}


def facts(demo: Demo) -> dict[str, list[str]]:
    """Everything that the demo stored from its sources."""
    return {name: sorted(repr(row) for row in demo.rows(query)) for name, query in _FACTS.items()}


def lines(output: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The table that a demo printed."""
    return {(line["repository"], line["job_type"]): line for line in json.loads(output)}


def test_the_demo_ends_well_and_shows_the_denied_project_as_denied(demo: Demo) -> None:
    assert demo.first is not None
    assert demo.first.returncode == 0, demo.first.stderr
    # A warning would look like a fault.
    assert [line for line in demo.first.stderr.splitlines() if not line.startswith("demo: ")] == []
    table = lines(demo.first.stdout)
    denied = {key: line for key, line in table.items() if line["status"] != "complete"}
    assert {line["status"] for line in denied.values()} == {"denied"}
    assert [(line["source"] > 0, line["stored"]) for line in denied.values()] == [(True, 0)] * 3
    assert {repository for repository, _ in table.keys() - denied.keys()}.isdisjoint(
        repository for repository, _ in denied
    )
    assert len(table) == 12
    assert all(line["source"] == line["stored"] > 0 for line in table.values() if line not in denied.values())


def test_no_job_waits_but_those_of_the_denied_project(demo: Demo) -> None:
    left = demo.rows(
        "SELECT DISTINCT r.project_path, j.last_error_code FROM scm.sync_jobs AS j "
        "JOIN scm.repos AS r USING (repo_id) WHERE j.status <> 'completed'"
    )
    assert left == [{"project_path": "finance/payroll", "last_error_code": "denied"}]
    assert demo.rows("SELECT * FROM scm.quarantine") == []
    assert demo.rows("SELECT * FROM scm.deferred_fetches WHERE resolved_at IS NULL") == []
    unhealthy = demo.rows(
        "SELECT DISTINCT r.project_path FROM scm.health AS h JOIN scm.repos AS r USING (repo_id) "
        "WHERE NOT h.passed"
    )
    assert unhealthy == [{"project_path": "finance/payroll"}]


def test_merge_requests_have_commits_versions_and_all_ways_to_end(demo: Demo) -> None:
    [counts] = demo.rows(
        """
SELECT count(*) AS requests,
       count(*) FILTER (WHERE EXISTS (SELECT FROM scm.mr_commits AS c
                                       WHERE (c.repo_id, c.mr_iid) = (m.repo_id, m.iid))) AS with_commits,
       count(*) FILTER (WHERE EXISTS (SELECT FROM scm.mr_versions AS v
                                       WHERE (v.repo_id, v.mr_iid) = (m.repo_id, m.iid))) AS with_versions,
       count(*) FILTER (WHERE merge_commit_sha IS NOT NULL) AS merged,
       count(*) FILTER (WHERE squash_commit_sha IS NOT NULL) AS squashed,
       count(*) FILTER (WHERE status = 'merged' AND merge_commit_sha IS NULL
                          AND squash_commit_sha IS NULL) AS fast_forwarded,
       count(*) FILTER (WHERE status = 'closed') AS closed,
       count(*) FILTER (WHERE status = 'open') AS open,
       count(*) FILTER (WHERE merged_at < created_at + interval '1 hour') AS too_fast
  FROM scm.mrs AS m
"""
    )
    assert counts == {
        "requests": 34,
        "with_commits": 34,
        "with_versions": 34,
        "merged": 13,
        "squashed": 10,
        "fast_forwarded": 4,
        "closed": 3,
        "open": 4,
        "too_fast": 0,
    }
    # What a merge leaves behind is in the history of the default branch.
    lost = demo.rows(
        "SELECT m.iid FROM scm.mrs AS m LEFT JOIN scm.git_commits AS c ON c.repo_id = m.repo_id "
        "AND c.commit_sha = coalesce(m.merge_commit_sha, m.squash_commit_sha, m.head_sha) "
        "AND c.unreachable_since IS NULL WHERE m.status = 'merged' AND c.commit_sha IS NULL"
    )
    assert lost == []


def test_what_changed_between_the_two_syncs_is_kept_with_what_was_before(demo: Demo) -> None:
    events = demo.rows("SELECT name, event FROM scm.ref_events WHERE event <> 'created' ORDER BY event, name")
    assert [tuple(row.values()) for row in events] == [
        ("print-the-tool-list", "deleted"),
        ("smooth-the-acceleration", "forced"),
        ("main", "moved"),
    ]
    missing = demo.rows("SELECT body, reviewer_name FROM scm.review_events WHERE missing_since IS NOT NULL")
    assert missing == [{"body": "Wrong merge request, sorry.", "reviewer_name": "Björn Haugen"}]
    closed = demo.rows("SELECT name FROM scm.mr_approvals WHERE closed_at IS NOT NULL")
    assert closed == [{"name": "Grace Okafor"}]
    earlier = demo.rows("SELECT rev_num, message FROM scm.svn_revision_versions")
    assert earlier == [{"rev_num": 396, "message": "Correct the scale of sheet 12"}]


def test_everybody_is_one_person_in_both_sources(demo: Demo) -> None:
    found = demo.rows(
        "SELECT u.display_name, count(DISTINCT f.source_type) AS sources FROM scm.v_facts AS f "
        "JOIN identity.users AS u ON u.user_id = f.author_user_id GROUP BY 1"
    )
    assert {row["display_name"]: row["sources"] for row in found} == {person.name: 3 for person in TEAM}
    # But for a revision without an author.
    strangers = demo.rows("SELECT author_raw FROM scm.v_facts WHERE author_user_id IS NULL")
    assert strangers == [{"author_raw": None}]


def test_a_second_demo_changes_nothing(demo: Demo) -> None:
    before = facts(demo)
    done = demo.run()
    assert done.returncode == 0, done.stderr
    assert {line["changed"] for line in lines(done.stdout).values()} == {0}
    assert facts(demo) == before


def test_a_demo_that_was_killed_ends_with_the_same_rows_when_it_runs_again(
    demo: Demo, server_url: str, template: str, tmp_path: Path, warm: Starter
) -> None:
    with folder_for_demos(server_url, template, tmp_path, warm) as other:
        # The same histories at another port, from the beginning.
        content = json.loads(demo.address_file.read_text()) | {"changed": False, "port": _free_port()}
        other.address_file.parent.mkdir(parents=True)
        other.address_file.write_text(json.dumps(content))
        commits = "SELECT 1 FROM scm.git_commits LIMIT 1"
        _killed(other, lambda: other.rows(commits), "commits are stored")
        assert not other.has_changed
        _killed(other, lambda: other.has_changed, "the sources have changed")
        done = other.run()
        assert done.returncode == 0, done.stderr
        assert facts(other) == facts(demo)


def _killed(demo: Demo, moment: Callable[[], Any], what: str) -> None:
    process = demo.start()
    deadline = time.monotonic() + 240
    while not moment():
        assert process.poll() is None, f"ended before {what}"
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(120)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_start_anew_gives_the_same_history(tmp_path: Path) -> None:
    now = datetime(2026, 3, 4, 5, 30, tzinfo=UTC)
    assert sample_gitlab.choose_address(tmp_path / "one", now).anchor == datetime(2026, 3, 4, 4, tzinfo=UTC)
    with sample_gitlab.start(tmp_path / "one") as one:
        before = _state(one)
        one.go_on()
        after = _state(one)
    assert before != after
    # Another process, such as ./dev up, begins where the first one ended.
    with sample_gitlab.start(tmp_path / "one") as again:
        assert _state(again) == after
    # A new database needs the first sync before the changes.
    sample_gitlab.begin_again(tmp_path / "one")
    with sample_gitlab.start(tmp_path / "one") as anew:
        assert _state(anew) == before


def _state(sample: sample_gitlab.Sample) -> list[Any]:
    found: list[Any] = []
    for project in sample.server.gitlab.projects.values():
        assert project.repository is not None
        refs = [(ref.name, ref.commit) for ref in project.repository.branches()]
        requests = [(r.row, r.versions, [n.row for n in r.notes]) for r in project.merge_requests.values()]
        found.append((project.full_path, refs, requests))
    return json.loads(json.dumps(found, default=str))  # type: ignore[no-any-return]


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_fits_a_terminal_of(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("demo/tools/lathe", "demo/tools/lathe", "finance/payroll")
    statuses = ("complete", "complete", "denied")
    job_types = ("commits", "merge_requests", "reviews")
    program.show(
        [
            program.Line(name, name, job_type, 1_250, 1_250, 1_250, 150, 1.5, status)
            for name, job_type, status in zip(names, job_types, statuses, strict=True)
        ],
        width,
    )
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= width
    rows = [line.split() for line in shown[-3:]]
    assert [row[-1] for row in rows] == list(statuses)
    assert rows[1][0] == "merge_requests"


def test_the_port_of_a_running_sample_is_refused_and_its_repositories_stay(tmp_path: Path) -> None:
    with sample_gitlab.start(tmp_path) as running:
        before = _state(running)
        with pytest.raises(ConfigurationError, match="dev up running"), sample_gitlab.start(tmp_path):
            pass
        assert _state(running) == before


def test_demos_that_start_at_the_same_time_choose_one_place(tmp_path: Path) -> None:
    for number in range(5):
        barrier = Barrier(8)

        def choose(_: int, folder: Path = tmp_path / str(number), barrier: Barrier = barrier) -> object:
            barrier.wait()
            return sample_gitlab.choose_address(folder)

        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(choose, range(8)))) == 1


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (
            '{"port": 1, "token": "x", "since": "2026-01-01T00:00:00+00:00"}',
            "an older version.*SCM_STATE_DIR",
        ),
        ('{"port": 1, "token"', "damaged; delete it"),
        ("{}", "damaged; delete it"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_a_remedy(
    tmp_path: Path, content: str, advice: str
) -> None:
    (tmp_path / "gitlab.json").write_text(content)
    with pytest.raises(ConfigurationError, match=advice):
        sample_gitlab.address(tmp_path)
