"""Commits through the engine: complete by refs, compared with git itself."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from sync_pipeline.core.model import BEGINNING, Access, JobStatus, JobType, Mode, RunStatus, TimeWindow
from sync_pipeline.ledger import watermarks
from sync_pipeline_sandbox.gitlab import GitRepository, faults
from sync_pipeline_tests.sync.conftest import START, Forge

_COMMITS = """
SELECT commit_sha, parents, author_name, author_email, extract(epoch FROM authored_at)::bigint AS authored,
       committer_name, committer_email, extract(epoch FROM committed_at)::bigint AS committed,
       message, additions, deletions
  FROM scm.git_commits WHERE repo_id = %(repo)s
"""
_EVENTS = """
SELECT kind, name, event, old_tip, new_tip FROM scm.ref_events WHERE repo_id = %(repo)s ORDER BY event_id
"""
_UNREACHABLE = """
SELECT commit_sha FROM scm.git_commits WHERE repo_id = %(repo)s AND unreachable_since IS NOT NULL
"""


def git(repository: GitRepository, *arguments: str) -> bytes:
    command = ["git", "-C", str(repository.path), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def truth(repository: GitRepository) -> dict[str, tuple[object, ...]]:
    """What git says about everything that any ref reaches."""
    form = "%x1e%H%x1f%P%x1f%an%x1f%ae%x1f%at%x1f%cn%x1f%ce%x1f%ct%x1f%B%x1f"
    everything = git(repository, "rev-list", "--branches", "--tags").decode().split()
    # GitLab counts the lines of a merge against its first parent.
    options = ["-m", "--first-parent", "--no-walk=unsorted", "--numstat", "--encoding=UTF-8"]
    answer = git(repository, "log", *options, f"--format={form}", *everything).decode("utf-8", "replace")
    found: dict[str, tuple[object, ...]] = {}
    for record in answer.split("\x1e")[1:]:
        sha, parents, an, ae, at, cn, ce, ct, body, stat = record.split("\x1f")
        lines = re.findall(r"^(\d+|-)\t(\d+|-)\t", stat, re.M)
        added, deleted = (sum(int(pair[i]) for pair in lines if pair[i] != "-") for i in (0, 1))
        found[sha] = (parents.split(), an, ae, int(at), cn, ce, int(ct), body.rstrip("\n"), added, deleted)
    return found


def stored(forge: Forge) -> dict[str, tuple[object, ...]]:
    return {
        row["commit_sha"]: (
            row["parents"],
            row["author_name"],
            row["author_email"],
            row["authored"],
            row["committer_name"],
            row["committer_email"],
            row["committed"],
            row["message"].rstrip("\n"),
            row["additions"],
            row["deletions"],
        )
        for row in forge.rows(_COMMITS)
    }


def shas(forge: Forge, *revisions: str) -> set[str]:
    return set(git(forge.git, "rev-list", *(revisions or ("--branches", "--tags"))).decode().split())


def stored_shas(forge: Forge) -> set[str]:
    return {row["commit_sha"] for row in forge.rows(_COMMITS)}


def nasty(repository: GitRepository) -> None:
    """Merges, two roots, tags off branches, time zones, an old-dated commit on top, odd encodings."""
    commit = repository.commit
    one = commit("main", "One\n", files={"a": "1\n2\n3\n"}, date="1714000000 +0530")
    two = commit("main", "Two\n\nbody\n", files={"a": "1\n2\n", "b": "x\n"}, date="1714000100 -0330")
    side = commit("side", "Side\n", files={"c": "c\n"}, parents=[one], date="1714000200 +0000")
    both = commit("main", "Merge\n", files={"c": "c\n"}, parents=[two, side], date="1714000300 +0000")
    commit("main", "Old date on top\n", files={"d": "d\n"}, parents=[both], date="978307200 +0000")
    other = commit("island", "Another root\n", files={"i": "i\n"}, parents=[], date="1714000400 +1400")
    commit("main", "Grüße aus \N{SNOWMAN}\n".encode(), files={"e": "é\n"}, date="1714000500 +0200")
    lost = commit("gone", "Only a tag reaches this\n", files={"t": "t\n"}, parents=[two])
    repository.tag("v1", lost, message="Annotated\n")
    repository.tag("light", other)
    repository.set_ref("refs/heads/gone", None)


def test_everything_that_any_ref_reaches_is_stored_as_git_has_it(forge: Forge) -> None:
    nasty(forge.git)
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored(forge) == truth(forge.git)
    assert {name for _, name, *_ in (tuple(r.values()) for r in forge.rows(_EVENTS))} == {
        "main",
        "side",
        "island",
        "v1",
        "light",
    }
    (covered,) = watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered
    assert isinstance(covered, TimeWindow)
    # From the beginning of time to the listing, less the safety lag.
    assert covered == TimeWindow(BEGINNING, START.replace(microsecond=0, minute=59, hour=11))


def test_the_own_repository_of_this_project_arrives_whole(forge: Forge, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        pytest.skip("this is no clone of a git repository")
    command = ["git", "clone", "-q", "--bare", str(root), str(tmp_path / "own.git")]
    subprocess.run(command, check=True, capture_output=True)
    forge.project.repository = forge.git = GitRepository(tmp_path / "own.git")
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)


def test_a_second_look_at_an_idle_project_asks_little_and_writes_nothing(forge: Forge) -> None:
    nasty(forge.git)
    first = forge.commits()
    forge.asked()
    forge.tick(minutes=5)
    again = forge.commits()
    assert again.succeeded
    assert (again.run_status, again.batches) == (RunStatus.NO_DATA, 0)
    # The project, its branches, its tags.
    assert len(forge.asked()) == again.calls <= 5
    assert first.calls > again.calls
    row = watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS)
    assert row.verified_at is not None
    assert row.access is Access.OK


def test_late_pushes_with_old_dates_on_any_branch_arrive(forge: Forge) -> None:
    nasty(forge.git)
    assert forge.commits().succeeded
    for branch in ("main", "side", "topic"):
        parent = forge.git.resolve(f"refs/heads/{branch}") or forge.git.resolve("refs/heads/side")
        assert parent is not None
        date = "100000000 +0000"
        forge.git.commit(branch, f"Late on {branch}\n", files={branch: "x"}, parents=[parent], date=date)
    forge.tick()
    report = forge.commits()
    assert report.counts.inserted == 3
    assert report.counts.updated == 0
    assert stored(forge) == truth(forge.git)
    events = [tuple(row.values())[:3] for row in forge.rows(_EVENTS)][-3:]
    assert sorted(events) == [
        ("branch", "main", "moved"),
        ("branch", "side", "moved"),
        ("branch", "topic", "created"),
    ]


def test_a_move_is_observed_at_the_listing_not_at_the_look_of_another_job_before_it(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    assert forge.commits().succeeded
    # Their second visit looks at the project itself; that look also serves the next visit of commits.
    for _ in range(2):
        assert all(report.succeeded for report in forge.both())
    forge.tick(minutes=1)
    forge.git.commit("main", "Forced\n", files={"a": "2\n"}, parents=[base])
    forge.tick(minutes=1)
    assert forge.commits().succeeded
    [row] = forge.rows("SELECT observed_at FROM scm.ref_events WHERE repo_id = %(repo)s AND event = 'moved'")
    assert row["observed_at"] == forge.gitlab.clock.now().replace(microsecond=0)


def test_a_force_push_is_recorded_and_what_nothing_reaches_is_flagged_not_deleted(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    old = forge.git.commit("main", "Old\n", files={"a": "2\n"})
    assert forge.commits().succeeded
    new = forge.git.commit("rewrite", "New\n", files={"a": "3\n"}, parents=[base])
    forge.git.set_ref("refs/heads/main", new)
    forge.git.set_ref("refs/heads/rewrite", None)
    forge.tick()
    assert forge.commits().succeeded
    assert list(forge.rows(_EVENTS)[-1].values()) == ["branch", "main", "forced", old, new]
    assert [row["commit_sha"] for row in forge.rows(_UNREACHABLE)] == [old]
    assert stored_shas(forge) == {base, old, new}
    # Rewound to where it was: reachable again, and the other one is not.
    forge.git.set_ref("refs/heads/main", old)
    forge.tick()
    assert forge.commits().succeeded
    assert [row["commit_sha"] for row in forge.rows(_UNREACHABLE)] == [new]
    assert forge.rows(_EVENTS)[-1]["event"] == "forced"


def test_a_deleted_branch_is_an_event_and_its_unmerged_commits_are_flagged(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    merged = forge.git.commit("merged", "Merged\n", files={"b": "1\n"}, parents=[base])
    forge.git.set_ref("refs/heads/main", merged)
    lost = forge.git.commit("lost", "Lost\n", files={"c": "1\n"}, parents=[base])
    assert forge.commits().succeeded
    for branch in ("merged", "lost"):
        forge.git.set_ref(f"refs/heads/{branch}", None)
    forge.tick()
    assert forge.commits().succeeded
    assert sorted((row["name"], row["event"], row["old_tip"]) for row in forge.rows(_EVENTS)[-2:]) == [
        ("lost", "deleted", lost),
        ("merged", "deleted", merged),
    ]
    assert [row["commit_sha"] for row in forge.rows(_UNREACHABLE)] == [lost]
    forge.git.set_ref("refs/heads/restored", lost)
    forge.tick()
    assert forge.commits().succeeded
    assert forge.rows(_UNREACHABLE) == []


def line_of(forge: Forge, count: int) -> None:
    parts = []
    for number in range(count):
        parts.append(
            b"commit refs/heads/main\ncommitter U <u@example.test> %d +0000\ndata 2\nx\n\n"
            b"M 100644 inline f\ndata %d\n%d\n" % (1714000000 + number, len(str(number)), number)
        )
    subprocess.run(
        ["git", "-C", str(forge.git.path), "fast-import", "--quiet"], input=b"\n".join(parts), check=True
    )


def test_a_walk_that_broke_off_goes_on_where_it_was(forge: Forge) -> None:
    line_of(forge, 520)
    forge.gitlab.faults.add(r"commits\?.*[?&]page=4(&|$)", faults.Reset(), times=None)
    report = forge.commits()
    assert report.job_status is JobStatus.FAILED
    assert len(stored_shas(forge)) == 300
    # Nothing is claimed before the last page.
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered == ()
    forge.gitlab.faults.clear()
    forge.gitlab.journal.clear()
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert forge.commits().succeeded
    assert stored_shas(forge) == shas(forge)
    assert forge.gitlab.journal.count(r"commits\?.*[?&]page=[123](&|$)") == 0


def test_a_reset_watermark_reads_everything_again(forge: Forge) -> None:
    nasty(forge.git)
    assert forge.commits().succeeded
    with forge.conn.transaction():
        watermarks.replace(
            forge.conn, repo_id=forge.repo_id, job_type=JobType.COMMITS, covered=(), actor="x", reason="y"
        )
    forge.tick()
    again = forge.commits()
    assert again.succeeded
    assert again.counts.read >= len(shas(forge))
    assert again.counts.changed == 0


def test_days_are_read_again_where_that_is_asked_for(forge: Forge) -> None:
    nasty(forge.git)
    window = ("2024-04-24", "2024-04-26")
    first = forge.commits(Mode.BACKFILL, window=window)
    assert first.succeeded
    assert stored(forge) == truth(forge.git)
    forge.conn.execute("UPDATE scm.git_commits SET title = 'spoilt', content_hash = '' WHERE title = 'Two'")
    again = forge.commits(Mode.BACKFILL, window=window, reread=True)
    assert (again.counts.updated, again.counts.inserted) == (1, 0)
    late = forge.commits(Mode.BACKFILL, window=("2030-01-01", "2030-01-02"))
    assert late.succeeded
    assert late.beyond_head


def test_an_empty_repository_is_a_state_and_one_that_suddenly_is_empty_deletes_nothing(forge: Forge) -> None:
    assert forge.commits().succeeded
    row = watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS)
    assert (row.access, len(row.covered)) == (Access.EMPTY, 1)
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.tick()
    assert forge.commits().succeeded
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).access is Access.OK
    forge.gitlab.faults.add(r"repository/(branches|tags)", faults.CannedResponse(200, b"[]"), times=6)
    forge.tick()
    report = forge.commits()
    assert (report.job_status, report.error_code) == (JobStatus.FAILED, "incomplete")
    assert [row["event"] for row in forge.rows(_EVENTS)] == ["created"]


def test_a_commit_that_postgresql_refuses_goes_to_quarantine_and_the_page_goes_on(forge: Forge) -> None:
    line_of(forge, 30)
    bad = git(forge.git, "rev-list", "main").decode().split()[10]
    forge.conn.execute("ALTER TABLE scm.git_commits ADD CHECK (commit_sha <> '" + bad + "')")
    report = forge.commits()
    assert report.succeeded
    assert report.counts.quarantined == 1
    assert stored_shas(forge) == shas(forge) - {bad}
    (row,) = forge.rows("SELECT natural_key, reason FROM scm.quarantine WHERE repo_id = %(repo)s")
    assert (row["natural_key"], row["reason"]) == (bad, "unstorable")


def test_statistics_that_cannot_be_counted_are_deferred_and_read_later(forge: Forge) -> None:
    line_of(forge, 3)
    forge.gitlab.faults.add(r"stats=true", faults.server_error(), times=None)
    assert forge.commits().succeeded
    assert {row["additions"] for row in forge.rows(_COMMITS)} == {None}
    forge.gitlab.faults.clear()
    forge.tick()
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)
    assert forge.rows("SELECT 1 FROM scm.deferred_fetches WHERE resolved_at IS NULL") == []


def test_dates_of_impossible_times_are_stored_and_move_no_watermark(forge: Forge) -> None:
    forge.git.commit("main", "Future\n", files={"a": "1\n"}, date="4733510400 +0000")
    forge.git.commit("main", "Past\n", files={"a": "2\n"}, date="0 +0000")
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)
    row = watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS)
    assert isinstance(row.watermark, datetime)
    assert row.watermark < START.astimezone(UTC)


def test_days_that_are_read_again_bring_no_commit_that_only_hidden_refs_reach(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"}, date="1714003200 +0000")
    hidden = forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base], date="1714003300 +0000")
    request = forge.gitlab.open_merge_request(forge.project, author=forge.user, source="topic")
    built = forge.git.commit("build", "Built\n", files={"c": "1\n"}, parents=[base], date="1714003400 +0000")
    forge.gitlab.run_pipeline(forge.project, built)
    for branch in ("topic", "build"):
        forge.gitlab.delete_branch(forge.project, branch, author=forge.user)
    forge.gitlab.close(request, forge.user)
    window = ("2024-04-24", "2024-04-26")
    assert forge.commits(Mode.BACKFILL, window=window).succeeded
    # The server lists all three in these days.
    path = f"{forge.server.url}/api/v4/projects/{forge.project.id}/repository/commits?all=true&per_page=100"
    headers = {"PRIVATE-TOKEN": next(iter(forge.gitlab.tokens))}
    listed = {row["id"] for row in requests.get(path, headers=headers, timeout=30).json()}
    assert listed == {base, hidden, built}
    again = forge.commits(Mode.BACKFILL, window=window, reread=True)
    assert again.succeeded
    assert stored_shas(forge) == {base}
    # What the history of a branch lacks is put back, and what it leads to.
    top = forge.git.commit("main", "Top\n", files={"a": "2\n"}, date="1714003500 +0000")
    last = forge.git.commit("main", "Last\n", files={"a": "3\n"}, date="1714003600 +0000")
    forge.tick()
    assert forge.commits().succeeded
    forge.conn.execute("DELETE FROM scm.git_commits WHERE commit_sha = ANY (%s)", [[top, base]])
    assert forge.commits(Mode.BACKFILL, window=window, reread=True).succeeded
    assert stored_shas(forge) == {base, top, last}
    assert forge.rows(_UNREACHABLE) == []


_FACTS = """
SELECT commit_sha, parents, is_merge, additions, unreachable_since IS NOT NULL AS unreachable
  FROM scm.git_commits WHERE repo_id = %(repo)s
"""
_DEFERRED_PARENTS = "SELECT natural_key, detail FROM scm.deferred_fetches WHERE resolved_at IS NULL"


def squashed(forge: Forge) -> tuple[str, list[str]]:
    """A merge request of two commits whose branch is gone before anybody looked; returns where it began."""
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    one = forge.git.commit("topic", "One\n", files={"b": "1\n"}, parents=[base])
    two = forge.git.commit("topic", "Two\n", files={"b": "1\n2\n"})
    request = forge.gitlab.open_merge_request(forge.project, author=forge.user, source="topic")
    forge.git.commit("main", "Squashed\n", files={"b": "1\n2\n"})
    forge.gitlab.merge(request, forge.user)
    forge.gitlab.delete_branch(forge.project, "topic", author=forge.user)
    forge.tick()
    return base, [one, two]


@pytest.mark.parametrize("is_late", [False, True])
def test_commits_that_only_a_merge_request_lists_are_facts_whenever_they_are_seen(
    forge: Forge, is_late: bool
) -> None:
    if not is_late:
        forge.git.commit("main", "Base\n", files={"a": "1\n"})
    base, (one, two) = squashed(forge)
    if not is_late:
        forge.git.set_ref("refs/heads/topic", two)
        assert forge.commits().succeeded
        forge.git.set_ref("refs/heads/topic", None)
        forge.tick()
    assert all(report.succeeded for report in forge.both())
    assert forge.commits().succeeded
    facts = {row.pop("commit_sha"): row for row in forge.rows(_FACTS)}
    assert set(facts) == shas(forge) | {one, two}
    assert facts[one] == {"parents": [base], "is_merge": False, "additions": 1, "unreachable": True}
    assert facts[two] == {"parents": [one], "is_merge": False, "additions": 1, "unreachable": True}
    assert not any(facts[sha]["unreachable"] for sha in shas(forge))
    # The next visit asks for nothing of it.
    forge.asked()
    forge.tick()
    assert forge.commits().batches == 0
    assert forge.asked("/commits") == []


def test_unknown_parents_are_never_none_and_verify_nothing(forge: Forge) -> None:
    _, (one, two) = squashed(forge)
    assert all(report.succeeded for report in forge.both())
    forge.gitlab.faults.add(rf"commits/({one}|{two})", faults.server_error(), times=None)
    assert forge.commits().succeeded
    unknown = {"parents": None, "is_merge": None, "additions": None, "unreachable": True}
    facts = {row.pop("commit_sha"): row for row in forge.rows(_FACTS)}
    assert facts[one] == facts[two] == unknown
    assert sorted(tuple(row.values()) for row in forge.rows(_DEFERRED_PARENTS)) == sorted(
        (sha, "parents") for sha in (one, two)
    )
    view = "SELECT meta_json -> 'parent_ids' AS parents FROM scm.v_facts WHERE meta_json ->> 'sha' = %(sha)s"
    assert forge.rows(view, sha=one) == [{"parents": None}]
    # Derived anew from what is stored, and compared with the source, they stay what they are.
    report = forge.commits(Mode.REPAIR, window=("1990-01-01", "2024-05-07"), from_raw=True)
    assert (report.succeeded, report.counts.changed) == (True, 0)
    # A branch that comes back there is walked: a row without parents is no history.
    forge.git.set_ref("refs/heads/again", two)
    forge.gitlab.faults.clear()
    forge.tick()
    assert forge.commits().succeeded
    facts = {row.pop("commit_sha"): row for row in forge.rows(_FACTS)}
    assert (facts[one]["unreachable"], facts[two]["unreachable"]) == (False, False)
    assert facts[two]["parents"] == [one]
    assert forge.rows(_DEFERRED_PARENTS) == []
    assert stored(forge) == truth(forge.git)


def test_a_commit_of_a_merge_request_that_the_server_lost_is_kept_and_no_longer_deferred(
    forge: Forge,
) -> None:
    _, (one, two) = squashed(forge)
    assert all(report.succeeded for report in forge.both())
    forge.git.drop_hidden_cache()
    forge.git.prune()
    assert forge.commits().succeeded
    lost = {row["commit_sha"]: row["parents"] for row in forge.rows(_FACTS) if row["unreachable"]}
    assert lost == {one: None, two: None}
    assert forge.rows(_DEFERRED_PARENTS) == []
    forge.asked()
    forge.tick()
    assert forge.commits().batches == 0
    assert forge.asked("/commits/") == []


def test_a_branch_named_like_a_commit_is_told_from_it(forge: Forge) -> None:
    forge.gitlab.behaviour.names_before_ids = True
    line_of(forge, 105)
    tip, *_, first = git(forge.git, "rev-list", "main").decode().split()
    # The server takes the tip of the default branch, whose history is two pages, for this branch.
    forge.git.set_ref(f"refs/heads/{tip}", first)
    forge.git.commit("zz", "Later in the order\n", files={"z": "1\n"}, parents=[first])
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored(forge) == truth(forge.git)
    assert forge.rows("SELECT FROM scm.refs WHERE covered_tip IS DISTINCT FROM tip") == []
    forge.tick()
    assert forge.commits().batches == 0
    # A range from the covered tip would begin at the branch.
    hidden = forge.git.commit("main", "Unseen\n", files={"u": "1\n"})
    forge.git.set_ref(f"refs/heads/{tip}", hidden)
    forge.git.commit("main", "On top\n", files={"t": "1\n"})
    forge.tick()
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)


def test_one_ref_whose_history_is_not_given_fails_alone(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    bad = forge.git.commit("bad", "Bad\n", files={"b": "1\n"}, parents=[base])
    forge.git.commit("later", "Later\n", files={"c": "1\n"}, parents=[base])
    forge.gitlab.faults.add(rf"commits\?.*ref_name=[^&]*{bad}", faults.CannedResponse(200, b"[]"), times=None)
    for visit in range(3):
        report = forge.commits()
        assert report.succeeded, report.error
        assert stored_shas(forge) == shas(forge) - {bad}
        quarantined = "SELECT natural_key, reason, seen FROM scm.quarantine WHERE resolved_at IS NULL"
        assert [tuple(row.values()) for row in forge.rows(quarantined)] == [("branch:bad", "no_history", 1)]
        # A range, the whole, and at first both once more after a second listing.
        assert len(forge.asked("repository/commits")) <= (6 if visit == 0 else 2)
        forge.tick()
    # Nothing is judged by what is not known.
    assert forge.rows(_UNREACHABLE) == []
    forge.gitlab.faults.clear()
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)
    assert forge.rows(quarantined) == []


@pytest.mark.parametrize("is_whole_ref", [True, False])
def test_a_commit_of_a_merge_request_is_not_called_unreachable_before_all_refs_are_read(
    forge: Forge, is_whole_ref: bool
) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    one = forge.git.commit("bad", "Spoilt one\n", files={"b": "1\n"}, parents=[base])
    two = forge.git.commit("bad", "Spoilt two\n", files={"b": "2\n"})
    forge.git.commit("bad", "Three\n", files={"b": "3\n"})
    forge.gitlab.open_merge_request(forge.project, author=forge.user, source="bad")
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    if is_whole_ref:
        tip = git(forge.git, "rev-parse", "bad").decode().strip()
        forge.gitlab.faults.add(
            rf"commits\?.*ref_name=[^&]*{tip}", faults.CannedResponse(200, b"[]"), times=None
        )
    else:
        # The server gives neither of them, except in the list of the merge request.
        forge.gitlab.faults.add("/repository/commits", faults.Poison(b"Spoilt (one|two)"), times=None)
    assert forge.commits().succeeded
    assert forge.rows(_UNREACHABLE) == []
    forge.gitlab.faults.clear()
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
    forge.tick()
    assert forge.commits().succeeded
    assert forge.rows(_UNREACHABLE) == []
    assert {one, two} <= stored_shas(forge)
    assert stored(forge) == truth(forge.git)


def test_an_error_in_the_history_of_one_ref_holds_up_no_other(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    bad = forge.git.commit("bad", "Bad\n", files={"b": "1\n"}, parents=[base])
    forge.git.commit("later", "Later\n", files={"c": "1\n"}, parents=[base])
    html = faults.CannedResponse(200, b"<html>", "text/html")
    forge.gitlab.faults.add(rf"commits\?.*ref_name=[^&]*{bad}", html, times=None)
    report = forge.commits()
    assert (report.job_status, report.error_code) == (JobStatus.FAILED, "not_json")
    assert stored_shas(forge) == shas(forge) - {bad}
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered == ()
    forge.gitlab.faults.clear()
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert forge.commits().succeeded
    assert stored(forge) == truth(forge.git)


def test_a_commit_that_was_not_asked_for_is_not_stored_in_its_place(forge: Forge) -> None:
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    line = forge.git.commit("main", "Top\n", files={"a": "2\n"})
    forge.gitlab.faults.add(r"stats=true", faults.server_error(), times=None)
    assert forge.commits().succeeded
    forge.gitlab.faults.clear()
    # The server gives the branch of that name.
    forge.git.set_ref(f"refs/heads/{base}", line)
    forge.tick()
    assert forge.commits().succeeded
    rows = forge.rows("SELECT commit_sha, additions FROM scm.git_commits")
    assert {row["commit_sha"]: row["additions"] for row in rows} == {base: None, line: 1}
    assert [row["natural_key"] for row in forge.rows(_DEFERRED_PARENTS)] == [base]
