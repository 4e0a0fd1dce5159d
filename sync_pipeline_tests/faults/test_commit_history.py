"""Commits that a server cannot list, histories that are rewritten, dates that cannot be: nothing is lost, and
nothing is invented."""

from __future__ import annotations

import subprocess

import pytest

from sync_pipeline.core.model import JobType
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_commits import git, shas, stored, stored_shas, truth

_QUARANTINED = """
SELECT natural_key, reason FROM scm.quarantine WHERE resolved_at IS NULL AND job_type = 'commits'
"""
_DEFERRED = (
    "SELECT natural_key, detail FROM scm.deferred_fetches WHERE resolved_at IS NULL AND job_type = 'commits'"
)
_EVENTS = "SELECT name, event FROM scm.ref_events WHERE event <> 'created' ORDER BY event_id"
_UNREACHABLE = "SELECT commit_sha FROM scm.git_commits WHERE unreachable_since IS NOT NULL"


def many(forge: Forge, count: int) -> list[str]:
    """So many commits in one line, oldest first."""
    texts = [f"Number {number}." for number in range(count)]
    lines = [
        f"commit refs/heads/main\ncommitter U <u@example.test> {1714000000 + number} +0000\n"
        f"data {len(text)}\n{text}\n"
        for number, text in enumerate(texts)
    ]
    command = ["git", "-C", str(forge.git.path), "fast-import", "--quiet"]
    subprocess.run(command, input="".join(lines).encode(), check=True)
    return git(forge.git, "rev-list", "--reverse", "main").decode().split()


def due_now(forge: Forge) -> None:
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now() - interval '1 second'")


@pytest.mark.parametrize(
    ("bad", "is_given_alone"),
    [(0, False), (19, True), (119, True), (119, False)],
    ids=["root", "edge, given alone", "tip, given alone", "tip"],
)
def test_a_commit_that_spoils_every_page_it_is_on_holds_up_no_other(
    forge: Forge, bad: int, is_given_alone: bool
) -> None:
    line = many(forge, 120)
    poison = faults.Poison(rb"Number %d\." % bad)
    where = r"/repository/commits\?" if is_given_alone else r"/repository/commits"
    forge.gitlab.faults.add(where, poison, times=None)
    report = forge.commits()
    assert report.succeeded, report.error
    left = [] if is_given_alone else [line[bad]]
    assert stored_shas(forge) == set(line) - set(left)
    assert [r["natural_key"] for r in forge.rows(_QUARANTINED)] == left
    assert [r["natural_key"] for r in forge.rows(_DEFERRED) if r["natural_key"] in left] == left
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).watermark is not None
    # Work goes on, and nothing looks forced or lost because its parent is not there.
    forge.git.commit("main", "Next\n", files={"n": "1\n"})
    forge.tick()
    assert forge.commits().succeeded
    assert stored_shas(forge) == shas(forge) - set(left)
    assert forge.rows(_UNREACHABLE) == []
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    assert forge.commits().succeeded
    forge.tick()
    assert forge.commits().succeeded
    assert stored_shas(forge) == shas(forge)
    assert forge.rows(_QUARANTINED) == []
    assert {r["event"] for r in forge.rows(_EVENTS)} == {"moved"}
    assert forge.rows(_UNREACHABLE) == []
    assert integrity_checks.failures(forge.conn) == {}


def test_two_commits_in_a_row_that_cannot_be_given_come_one_after_the_other(forge: Forge) -> None:
    line = many(forge, 30)
    forge.gitlab.faults.add("/repository/commits", faults.Poison(rb"Number [67]\."), times=None)
    assert forge.commits().succeeded
    assert line[7] not in stored_shas(forge)
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)
    assert forge.rows(_QUARANTINED) == []


def test_a_server_that_fails_for_every_page_is_down_and_no_row_is_to_blame(forge: Forge) -> None:
    many(forge, 30)
    forge.gitlab.faults.add(r"/repository/commits", faults.server_error(), times=None)
    report = forge.commits()
    assert (report.error_code, str(report.job_status)) == ("server_error", "failed")
    assert forge.rows(_QUARANTINED) == []
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered == ()


# --- Refs ------------------------------------------------------------------------------------------------


def branches(forge: Forge) -> dict[str, str]:
    rows = forge.rows("SELECT name, tip FROM scm.refs WHERE kind = 'branch' AND deleted_at IS NULL")
    return {row["name"]: row["tip"] for row in rows}


def test_a_branch_that_spoils_the_list_hides_no_other_and_counts_as_deleted_never(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    for number in range(15):
        forge.git.commit(f"b{number:02}", f"Branch {number}\n", files={"b": f"{number}\n"}, parents=[base])
    assert forge.commits().succeeded
    before = branches(forge)
    assert len(before) == 16
    forge.gitlab.faults.add(r"/branches", faults.Poison(rb'"name":"b07"'), times=None)
    new = forge.git.commit("b99", "New\n", files={"n": "1\n"}, parents=[base])
    forge.git.set_ref("refs/heads/b01", None)
    for _ in range(2):
        forge.tick()
        report = forge.commits()
        assert report.succeeded, report.error
        # While the list is not whole, what is not on it may be there.
        assert branches(forge) == before | {"b99": new}
        assert stored_shas(forge) >= shas(forge)
        ((key, reason),) = [tuple(r.values()) for r in forge.rows(_QUARANTINED)]
        assert (key.startswith("branch:?"), reason) == (True, "unlisted")
        assert forge.rows(_UNREACHABLE) == []
    forge.gitlab.faults.clear()
    forge.tick()
    assert forge.commits().succeeded
    assert set(branches(forge)) == set(before) - {"b01"} | {"b99"}
    assert forge.rows(_QUARANTINED) == []


def test_a_branch_that_the_server_shows_without_its_commit_is_not_deleted(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    tip = forge.git.commit("side", "Side\n", files={"b": "1\n"}, parents=[base])
    assert forge.commits().succeeded
    broken = faults.json_answer(
        200, [{"name": "main", "default": True, "commit": {"id": base}}, {"name": "side", "commit": None}]
    )
    forge.gitlab.faults.add("/branches", broken, times=None)
    forge.tick()
    assert forge.commits().succeeded
    assert branches(forge) == {"main": base, "side": tip}
    assert [r["natural_key"] for r in forge.rows(_QUARANTINED)] == ["branch:side"]
    forge.gitlab.faults.clear()
    forge.tick()
    assert forge.commits().succeeded
    assert forge.rows(_EVENTS) == forge.rows(_UNREACHABLE) == forge.rows(_QUARANTINED) == []


def test_a_list_of_branches_that_is_empty_is_asked_about_before_all_are_deleted(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.tag("v1", base)
    assert forge.commits().succeeded
    forge.gitlab.faults.add(r"/branches\?", faults.json_answer(200, []), times=None)
    forge.tick()
    report = forge.commits()
    assert (str(report.job_status), report.error_code) == ("failed", "incomplete")
    assert branches(forge) == {"main": base}
    # The tags are gone indeed.
    forge.gitlab.faults.clear()
    forge.git.set_ref("refs/tags/v1", None)
    forge.tick()
    assert forge.commits().succeeded
    assert [r["name"] for r in forge.rows(_EVENTS)] == ["v1"]


@pytest.mark.parametrize("how", ["the same branch", "a branch on top", "merged"])
def test_what_was_lost_and_is_reached_again_says_so_at_once(forge: Forge, how: str) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    first = forge.git.commit("side", "First\n", files={"b": "1\n"}, parents=[base])
    lost = forge.git.commit("side", "Second\n", files={"b": "2\n"}, parents=[first])
    assert forge.commits().succeeded
    forge.git.set_ref("refs/heads/side", None)
    forge.tick()
    assert forge.commits().succeeded
    assert len(forge.rows(_UNREACHABLE)) == 2
    if how == "the same branch":
        forge.git.set_ref("refs/heads/side", lost)
    elif how == "a branch on top":
        forge.git.commit("other", "Third\n", files={"b": "3\n"}, parents=[lost])
    else:
        forge.git.commit("main", "Merge\n", files={"b": "2\n"}, parents=[base, lost])
    forge.tick()
    assert forge.commits().succeeded
    assert forge.rows(_UNREACHABLE) == []


def test_a_branch_that_was_rewound_and_comes_back_is_told_both_times(forge: Forge) -> None:
    old = forge.git.commit("main", "One\n", files={"a": "1\n"})
    new = forge.git.commit("main", "Two\n", files={"a": "2\n"})
    assert forge.commits().succeeded
    for tip, lost in ((old, {new}), (new, set())):
        forge.git.set_ref("refs/heads/main", tip)
        forge.tick()
        assert forge.commits().succeeded
        assert {r["commit_sha"] for r in forge.rows(_UNREACHABLE)} == lost
        assert stored_shas(forge) == {old, new}
    assert [tuple(r.values()) for r in forge.rows(_EVENTS)] == [("main", "forced"), ("main", "moved")]


def test_the_same_tip_under_a_new_name_and_another_default_branch_invent_nothing(forge: Forge) -> None:
    tip = forge.git.commit("main", "One\n", files={"a": "1\n"})
    assert forge.commits().succeeded
    forge.git.set_ref("refs/heads/trunk", tip)
    forge.git.set_ref("refs/heads/main", None)
    forge.project.default_branch = "trunk"
    subprocess.run(["git", "-C", str(forge.git.path), "symbolic-ref", "HEAD", "refs/heads/trunk"], check=True)
    forge.tick()
    assert forge.commits().succeeded
    assert forge.rows(_UNREACHABLE) == []
    assert [tuple(r.values()) for r in forge.rows(_EVENTS)] == [("main", "deleted")]
    (row,) = forge.rows("SELECT name FROM scm.refs WHERE is_default AND deleted_at IS NULL")
    assert row["name"] == "trunk"


@pytest.mark.parametrize("name", ["feature/c++", "a%2Fb", "ümlaut-\N{SNOWMAN}", "x" * 240, "HEAD", "v1", "@"])
def test_names_of_branches_and_tags_may_be_anything_that_git_allows(forge: Forge, name: str) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    tip = forge.git.commit("tmp", "On it\n", files={"b": "1\n"}, parents=[base])
    forge.git.set_ref("refs/heads/tmp", None)
    for kind in ("heads", "tags"):
        # On the command line some of these mean something else.
        subprocess.run(
            ["git", "-C", str(forge.git.path), "update-ref", f"refs/{kind}/{name}", tip], check=True
        )
    assert forge.commits().succeeded
    rows = forge.rows("SELECT kind, name FROM scm.refs WHERE tip = %(tip)s ORDER BY kind", tip=tip)
    assert [tuple(r.values()) for r in rows] == [("branch", name), ("tag", name)]
    assert stored_shas(forge) == {base, tip}
    assert forge.rows(_QUARANTINED) == []
