"""History that is rewritten or cleaned away: nothing is complete that is not, and nothing read in vain."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from sync_pipeline.core.model import JobStatus, JobType
from sync_pipeline.ledger import watermarks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_commits import git, shas, stored_shas


def rewrite(forge: Forge, branch: str, count: int, word: str) -> None:
    """Make ``branch`` a line of so many new commits that has nothing in common with what it was."""
    parts = [
        b"commit refs/heads/%s\ncommitter U <u@example.test> %d +0000\ndata %d\n%s\nM 100644 inline f\n"
        b"data %d\n%d\n"
        % (branch.encode(), 1714000000 + number, len(word), word.encode(), len(str(number)), number)
        for number in range(count)
    ]
    command = ["git", "-C", str(forge.git.path), "fast-import", "--quiet", "--force"]
    subprocess.run(command, input=b"\n".join(parts), check=True)


def prune(forge: Forge) -> Callable[[], object]:
    return lambda: git(forge.git, "-c", "gc.reflogExpire=now", "gc", "--quiet", "--prune=now")


@pytest.mark.parametrize("missing", [200, 404])
def test_a_range_whose_base_is_pruned_between_two_pages_is_read_whole(forge: Forge, missing: int) -> None:
    forge.gitlab.behaviour.missing_ref = missing
    rewrite(forge, "main", 3, "old")
    assert forge.commits().succeeded
    rewrite(forge, "main", 250, "new")
    forge.gitlab.faults.add(r"commits\?.*\.\..*[?&]page=2(&|$)", faults.Do(prune(forge)))
    forge.tick()
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) >= shas(forge)


def test_a_tip_that_is_pruned_while_it_is_read_is_never_complete(forge: Forge) -> None:
    rewrite(forge, "main", 250, "old")
    lost = shas(forge)

    def replaced() -> None:
        rewrite(forge, "main", 2, "new")
        prune(forge)()

    forge.gitlab.faults.add(r"commits\?.*[?&]page=2(&|$)", faults.Do(replaced))
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) >= shas(forge)
    assert len(stored_shas(forge) & lost) == 100
    complete = forge.rows("SELECT tip FROM scm.ref_walks WHERE completed_at IS NOT NULL")
    assert [row["tip"] for row in complete] == [forge.git.resolve("refs/heads/main")]


def test_a_whole_walk_in_place_of_a_range_goes_on_where_it_broke_off(forge: Forge) -> None:
    rewrite(forge, "main", 3, "old")
    assert forge.commits().succeeded
    rewrite(forge, "main", 450, "new")
    prune(forge)()
    forge.gitlab.faults.add(r"commits\?.*[?&]page=4(&|$)", faults.Reset(), times=None)
    forge.tick()
    assert forge.commits().job_status is JobStatus.FAILED
    assert len(stored_shas(forge)) == 303
    forge.gitlab.faults.clear()
    forge.gitlab.journal.clear()
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert forge.commits().succeeded
    assert stored_shas(forge) >= shas(forge)
    assert forge.gitlab.journal.count(r"commits\?.*[?&]page=[23](&|$)") == 0
    assert watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).covered != ()


def test_many_refs_on_stored_commits_are_covered_at_once(forge: Forge) -> None:
    rewrite(forge, "main", 60, "line")
    for number, sha in enumerate(git(forge.git, "rev-list", "main").decode().split()):
        forge.git.set_ref(f"refs/tags/t{number}", sha)
    assert forge.commits().succeeded
    assert forge.gitlab.journal.count(r"repository/commits") == 1
    (row,) = forge.rows("SELECT count(*) FROM scm.refs WHERE covered_tip IS DISTINCT FROM tip")
    assert row["count"] == 0


def test_after_a_rewrite_of_everything_each_branch_costs_its_own_commits_only(forge: Forge) -> None:
    def make(word: str) -> None:
        rewrite(forge, "main", 300, word)
        main = forge.git.resolve("refs/heads/main")
        assert main is not None
        for number in range(25):
            name = f"b{number:02}"
            forge.git.commit(name, f"{word} {number}\n", files={name: word}, parents=[main])

    make("old")
    assert forge.commits().succeeded
    old = shas(forge)
    # One branch goes on as it was; it is no part of the rewrite.
    kept = forge.git.resolve("refs/heads/b00")
    assert kept is not None
    make("new")
    more = forge.git.commit("b00", "More\n", files={"more": "1"}, parents=[kept])
    forge.git.set_ref("refs/heads/b00", more)
    forge.tick()
    forge.gitlab.journal.clear()
    report = forge.commits()
    assert report.succeeded, report.error
    assert stored_shas(forge) == old | shas(forge)
    # Five requests for the new main; b00 against it is all of the old line; the others are one commit each.
    assert forge.gitlab.journal.count(r"repository/commits") <= 5 + 4 + 24
    events = forge.rows(
        "SELECT name, event FROM scm.ref_events WHERE event IN ('moved', 'forced') ORDER BY 1"
    )
    assert {e["name"]: e["event"] for e in events} == {
        "main": "forced",
        "b00": "moved",
        **{f"b{number:02}": "forced" for number in range(1, 25)},
    }
    lost = forge.rows("SELECT commit_sha FROM scm.git_commits WHERE unreachable_since IS NOT NULL")
    assert {row["commit_sha"] for row in lost} == old - shas(forge)
