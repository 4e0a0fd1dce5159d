"""The history of many refs: few requests, and the stored parents as the proof that nothing is missing."""

from __future__ import annotations

import subprocess

import pytest

from sync_pipeline.core.model import JobStatus, JobType
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline_sandbox.gitlab import GitRepository, faults
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_commits import git, shas, stored, stored_shas, truth

_FIRST = 1_700_000_000
_UNCOVERED = """
SELECT FROM scm.refs WHERE repo_id = %(repo)s AND deleted_at IS NULL AND covered_tip IS DISTINCT FROM tip
"""
_OPEN = "SELECT FROM scm.ref_walks WHERE completed_at IS NULL"


def fast_import(repository: GitRepository, commits: list[tuple[str, str, str | None, int]]) -> None:
    """Write commits: branch (or full name of a ref), text, where the branch starts, and the time."""
    parts = []
    for branch, text, start, seconds in commits:
        ref = branch if branch.startswith("refs/") else f"refs/heads/{branch}"
        parts.append(
            f"commit {ref}\ncommitter U <u@example.test> {_FIRST + seconds} +0000\ndata {len(text)}\n{text}\n"
            + (f"from {start}\n" if start else "")
            + f"M 100644 inline f\ndata {len(text)}\n{text}\n"
        )
    command = ["git", "-C", str(repository.path), "fast-import", "--quiet", "--force"]
    subprocess.run(command, input="\n".join(parts).encode(), check=True)


def line(repository: GitRepository, count: int) -> list[str]:
    """A line of commits on main; returns their names, oldest first."""
    fast_import(repository, [("main", f"Main {number}", None, number * 100) for number in range(count)])
    return git(repository, "rev-list", "--reverse", "main").decode().split()


def unmerged(repository: GitRepository, starts: list[str], each: int = 1, later: int = 0) -> None:
    """A branch with ``each`` commits from each of ``starts``, written ``later``."""
    fast_import(
        repository,
        [
            (f"b{number:03}", f"Branch {number} {n}", None if n else start, later + number * 100 + n)
            for number, start in enumerate(starts)
            for n in range(each)
        ],
    )


def again(forge: Forge) -> None:
    """The next attempt may begin at once, and the server has no more faults."""
    forge.gitlab.faults.clear()
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    forge.gitlab.journal.clear()
    forge.tick()


def is_whole(forge: Forge) -> None:
    """Everything that a branch or tag reaches is stored and proved, and nothing else."""
    assert stored_shas(forge) == shas(forge)
    assert forge.rows(_UNCOVERED) == []
    assert integrity_checks.failures(forge.conn) == {}


def test_a_first_load_with_hundreds_of_branches_asks_for_each_page_of_commits_once(forge: Forge) -> None:
    on_main = line(forge.git, 3426)
    unmerged(forge.git, on_main[::11][:300], each=2)
    forge.git.set_ref("refs/heads/merged", on_main[7])
    forge.git.set_ref("refs/heads/develop", on_main[-1])
    assert len(shas(forge)) == 4026
    report = forge.commits()
    assert report.succeeded, report.error
    is_whole(forge)
    # The project, four pages of branches, the tags, 41 pages of commits, and the one behind the last.
    assert report.calls <= 48
    # The refs, the pages in chunks of 500 rows, and the end.
    assert report.batches <= 11
    # Whatever moves then is one page, with the branches and the tags.
    again(forge)
    assert forge.commits().batches == 0
    assert forge.rows(_OPEN) == []


def test_one_moved_branch_costs_three_requests(forge: Forge) -> None:
    start = line(forge.git, 150)[140]
    assert forge.commits().succeeded
    pushes = [("main", None, 1), ("topic", start, 3), ("main", None, 99), ("topic", None, 1)]
    for branch, parent, count in pushes:
        name = f"refs/heads/{branch}^0"
        fast_import(
            forge.git,
            [
                (branch, f"{branch} {count} {n}", parent or name if n == 0 else None, 10**6)
                for n in range(count)
            ],
        )
        again(forge)
        report = forge.commits()
        assert (report.calls, report.counts.inserted) == (3, count)
        is_whole(forge)
    # A branch on a stored commit needs no commits at all.
    forge.git.set_ref("refs/heads/old", start)
    again(forge)
    assert forge.commits().calls == 2
    is_whole(forge)
    again(forge)
    assert forge.commits().calls == 3


def test_a_visit_without_the_project_is_only_for_moved_refs_of_that_project(forge: Forge) -> None:
    def asks_for_project() -> bool:
        again(forge)
        report = forge.commits()
        assert report.succeeded, report.error
        return forge.gitlab.journal.count(rf"projects/{forge.project.id}(\?|$)") > 0

    line(forge.git, 3)
    assert asks_for_project()
    assert asks_for_project()
    forge.git.commit("main", "Top\n", files={"t": "1"})
    assert not asks_for_project()
    # Nothing moved, a branch is gone, or the last look is old.
    assert asks_for_project()
    forge.git.commit("topic", "Topic\n", files={"t": "1"})
    forge.git.set_ref("refs/heads/topic", None)
    assert asks_for_project()
    forge.git.commit("main", "Next\n", files={"t": "2"})
    forge.conn.execute("UPDATE scm.project_snapshots SET looked_at = looked_at - interval '61 minutes'")
    assert asks_for_project()
    # Another history may be another project.
    forge.git.commit("main", "Another root\n", files={"t": "3"}, parents=[])
    assert asks_for_project()


def test_hundreds_of_branches_pushed_at_once_are_a_few_pages(forge: Forge) -> None:
    on_main = line(forge.git, 400)
    assert forge.commits().succeeded
    unmerged(forge.git, on_main[:300], later=10**6)
    again(forge)
    report = forge.commits()
    assert (report.succeeded, report.counts.inserted) == (True, 300)
    is_whole(forge)
    # Four pages of branches, the tags, and three pages of commits.
    assert report.calls <= 9


def test_a_list_of_hidden_commits_is_left_for_walks_and_none_of_them_is_stored(forge: Forge) -> None:
    on_main = line(forge.git, 250)
    start = on_main[-1]
    # Old commits on branches, and newer ones that only merge requests reach.
    unmerged(forge.git, on_main[:8], each=2)
    fast_import(
        forge.git,
        [
            (f"refs/merge-requests/{n % 40 + 1}/head", f"Hidden {n}", start if n < 40 else None, 10**6 + n)
            for n in range(3000)
        ],
    )
    report = forge.commits()
    assert report.succeeded, report.error
    is_whole(forge)
    listed = forge.gitlab.journal.count(r"[?&]all=true")
    assert 0 < listed <= 10
    assert forge.gitlab.journal.count(r"repository/commits") <= listed + 3 + 8


@pytest.mark.parametrize("is_whole_list", [True, False])
def test_a_list_that_broke_off_goes_on_where_it_was(forge: Forge, is_whole_list: bool) -> None:
    on_main = line(forge.git, 500)
    unmerged(forge.git, on_main[::50])
    page = 3 if is_whole_list else 5
    forge.gitlab.faults.add(rf"all=true.*[?&]page={page}(&|$)", faults.json_answer(401, {}), times=None)
    assert forge.commits().job_status is not JobStatus.COMPLETED
    assert 200 <= len(stored_shas(forge)) < 510
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered == ()
    forge.conn.execute("DELETE FROM scm.revoked_credentials")
    if not is_whole_list:
        # A deletion shifts the pages that are left, and a push those behind it.
        forge.git.set_ref("refs/heads/b009", None)
        unmerged(forge.git, on_main[-5:], later=10**6)
    again(forge)
    report = forge.commits()
    assert report.succeeded, report.error
    assert forge.gitlab.journal.count(r"all=true.*[?&]page=[12](&|$)") == 0
    assert stored_shas(forge) >= shas(forge)
    assert forge.rows(_UNCOVERED) == []
    assert integrity_checks.failures(forge.conn) == {}


def test_line_counts_of_a_commit_that_is_listed_before_its_child_are_read_later(forge: Forge) -> None:
    dates = [10**6 if number == 50 else number * 100 for number in range(150)]
    fast_import(forge.git, [("main", f"Main {number}", None, date) for number, date in enumerate(dates)])
    on_main = git(forge.git, "rev-list", "--topo-order", "--reverse", "main").decode().split()
    unmerged(forge.git, on_main[100:110])
    # Through it the list begins with a commit whose child is on the second page.
    forge.git.set_ref("refs/merge-requests/1/head", on_main[50])
    first = r"all=true.*[?&]page=1&with_stats=true"
    forge.gitlab.faults.add(first, faults.server_error(), times=None)
    report = forge.commits()
    assert report.succeeded, report.error
    is_whole(forge)
    uncounted = forge.rows("SELECT commit_sha AS sha FROM scm.git_commits WHERE additions IS NULL")
    deferred = forge.rows("SELECT natural_key AS sha FROM scm.deferred_fetches WHERE resolved_at IS NULL")
    assert {"sha": on_main[50]} in uncounted
    assert sorted(row["sha"] for row in uncounted) == sorted(row["sha"] for row in deferred)


def test_pages_that_shift_while_they_are_read_lose_nothing(forge: Forge) -> None:
    on_main = line(forge.git, 350)
    unmerged(forge.git, on_main[::40])
    lost = [("lost", f"Lost {n}", None if n else on_main[0], 10**6 + n) for n in range(7)]
    fast_import(forge.git, lost)
    # Seven commits leave the list behind its first page: as many rows are on no page.
    gone = faults.Do(lambda: forge.git.set_ref("refs/heads/lost", None))
    forge.gitlab.faults.add(r"all=true.*[?&]page=2(&|$)", gone)
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) >= shas(forge)
    assert forge.rows(_UNCOVERED) == []
    # They are asked for by name, and nothing is walked.
    assert forge.gitlab.journal.count(r"ref_name=") == 0
    assert forge.gitlab.journal.count(r"repository/commits/[0-9a-f]+") == 7


def test_a_server_without_the_list_is_read_by_walks(forge: Forge) -> None:
    unmerged(forge.git, line(forge.git, 60)[::5], each=2)
    forge.gitlab.faults.add(r"all=true", faults.server_error(), times=None)
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored(forge) == truth(forge.git)
    is_whole(forge)


def test_an_unreadable_commit_of_the_list_is_a_known_hole_and_not_walked_at_each_visit(forge: Forge) -> None:
    on_main = line(forge.git, 30)
    unmerged(forge.git, on_main[::3])
    bad = on_main[12]
    forge.gitlab.faults.add("/repository/commits", faults.Poison(b"Main 12[^0-9]"), times=None)
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) == shas(forge) - {bad}
    assert forge.rows(_UNCOVERED) == []
    assert integrity_checks.failures(forge.conn) == {}
    named = "SELECT natural_key FROM scm.quarantine WHERE resolved_at IS NULL"
    assert forge.rows(named) == [{"natural_key": bad}]
    forge.gitlab.journal.clear()
    for branch in ("main", "b001"):
        forge.git.commit(branch, "More\n", files={branch: "more"})
    forge.tick()
    assert forge.commits().succeeded
    assert forge.gitlab.journal.count(r"commits\?") == 2


def test_a_refused_commit_of_the_list_hides_nothing_behind_it(forge: Forge) -> None:
    on_main = line(forge.git, 30)
    unmerged(forge.git, on_main[::3])
    bad = on_main[20]
    forge.conn.execute("ALTER TABLE scm.git_commits ADD CHECK (commit_sha <> '" + bad + "')")
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) == shas(forge) - {bad}
    assert forge.rows(_UNCOVERED) == []
    # The list does not have it, nor does a request by name; one walk shows that all the rest is there.
    assert forge.gitlab.journal.count(r"commits/[0-9a-f]+") == 1
    assert forge.gitlab.journal.count(r"ref_name=") == 1
    forge.git.commit("main", "More\n", files={"main": "more"})
    forge.tick()
    assert forge.commits().calls == 3


def test_after_a_reset_only_rows_that_were_seen_since_count(forge: Forge) -> None:
    on_main = line(forge.git, 150)
    unmerged(forge.git, on_main[::20])
    assert forge.commits().succeeded
    with forge.conn.transaction():
        watermarks.replace(
            forge.conn, repo_id=forge.repo_id, job_type=JobType.COMMITS, covered=(), actor="x", reason="y"
        )
    again(forge)
    report = forge.commits()
    assert report.succeeded, report.error
    assert (report.counts.read, report.counts.changed) == (len(shas(forge)), 0)
    is_whole(forge)


def test_a_walk_that_an_older_version_began_goes_on(forge: Forge) -> None:
    """Its commits belong to a walk that says at which page it continues, and nothing is proved."""
    line(forge.git, 350)
    forge.gitlab.faults.add(r"commits\?.*[?&]page=3(&|$)", faults.Reset(), times=None)
    assert forge.commits().job_status is JobStatus.FAILED
    forge.conn.execute("UPDATE scm.ref_walks SET next_page = 3, tip_read = TRUE")
    again(forge)
    assert forge.commits().succeeded
    is_whole(forge)
    assert forge.gitlab.journal.count(r"commits\?.*[?&]page=[12](&|$)") == 0


@pytest.mark.parametrize("is_root", [True, False])
def test_a_tip_that_cannot_be_read_holds_up_no_other_branch(forge: Forge, is_root: bool) -> None:
    on_main = line(forge.git, 20)
    unmerged(forge.git, on_main[::3])
    parents = [] if is_root else [on_main[3]]
    bad = forge.git.commit("bad", "Spoilt\n", files={"s": "1"}, parents=parents)
    forge.gitlab.faults.add("/repository/commits", faults.Poison(b"Spoilt"), times=None)
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) == shas(forge) - {bad}
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered != ()
    assert integrity_checks.failures(forge.conn) == {}
    key = "branch:bad" if is_root else bad
    named = "SELECT natural_key FROM scm.quarantine WHERE resolved_at IS NULL"
    assert forge.rows(named) == [{"natural_key": key}]
    again(forge)
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
    assert forge.commits().succeeded
    is_whole(forge)
    assert forge.rows(named) == []
