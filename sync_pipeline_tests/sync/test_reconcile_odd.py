"""Comparisons of what is odd: interrupted walks, holes in history, impossible dates, answers in part. Nothing
is named that is not there, and what is there is found."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from sync_pipeline.core.model import BEGINNING, Depth, JobReport, JobStatus, JobType, Mode, TimeWindow
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.faults.test_text_and_size import _NASTY, history, sync
from sync_pipeline_tests.sync import test_reconcile
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_pruned_history import rewrite
from sync_pipeline_tests.sync.test_reconcile import GITLAB, Proof

proof = test_reconcile.proof


def _wait_for_nothing(forge: Forge) -> None:
    forge.other_settings(deletion_after_seconds=0, deletion_confirmations=1)
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")


def _only_differences(proof: Proof, job_type: JobType, found: dict[str, str]) -> None:
    """What is ``found`` is named, healed and gone, and our own records agree."""
    _wait_for_nothing(proof.forge)
    assert proof.found(job_type) == found
    proof.repair_differences(job_type)
    assert proof.found(job_type) == {}
    assert proof.result()["status"] == "clean"
    assert integrity_checks.failures(proof.forge.conn) == {}


_DAMAGED = {
    "tombstones of commits": (
        JobType.COMMITS,
        "UPDATE scm.git_commits SET deleted_at = now() WHERE title IN ('Work 1', 'Work 3', 'Feature 2')",
        "missing",
    ),
    "what is told of refs": (
        JobType.COMMITS,
        "UPDATE scm.refs SET is_protected = NOT is_protected, covered_tip = NULL WHERE name = 'feature1'",
        "changed is_protected",
    ),
    "names of people": (
        JobType.REVIEWS,
        "WITH one AS (UPDATE scm.mr_reviewers SET name = 'x', state = 'x' WHERE mr_iid = 2 RETURNING 1) "
        "UPDATE scm.mr_approvals SET username = NULL WHERE mr_iid = 1",
        "changed",
    ),
}


@pytest.mark.parametrize("what", list(_DAMAGED))
def test_more_damage_is_named_and_healed(proof: Proof, what: str) -> None:
    job_type, query, kind = _DAMAGED[what]
    before = proof.forge.state()
    proof.forge.conn.execute(query)
    found = proof.found(job_type)
    assert found
    assert all(one.startswith(kind) for one in found.values()), found
    _only_differences(proof, job_type, found)
    assert proof.forge.state() == before


def test_a_commit_that_no_ref_reaches_and_that_was_lost_is_read_again(proof: Proof) -> None:
    forge = proof.forge
    lost = forge.git.resolve("feature2~1")
    assert lost == forge.git.resolve("main")
    forge.git.commit("main", "Another line\n", files={"a": "1"}, parents=[str(forge.git.resolve("main~1"))])
    for number in range(3):
        forge.git.set_ref(f"refs/heads/feature{number}", None)
    forge.tick()
    assert forge.commits().succeeded
    before = forge.state()["git_commits"]
    assert len([row for row in before if row["unreachable_since"]]) == 4
    forge.conn.execute("DELETE FROM scm.git_commits WHERE commit_sha = %(sha)s", {"sha": lost})
    _only_differences(proof, JobType.COMMITS, {str(lost): "missing"})
    after = forge.state()["git_commits"]
    flags = [
        [(row["commit_sha"], row["unreachable_since"] is None) for row in rows] for rows in (before, after)
    ]
    assert sorted(flags[0]) == sorted(flags[1])


def test_a_walk_that_was_interrupted_is_newer_and_no_mismatch(proof: Proof) -> None:
    forge = proof.forge
    rewrite(forge, "new", 250, "new")
    forge.gitlab.faults.add(r"commits\?.*[?&]page=2(&|$)", faults.Reset(), times=None)
    forge.tick()
    assert forge.commits().job_status is JobStatus.FAILED
    forge.gitlab.faults.clear()
    assert len(forge.rows("SELECT FROM scm.git_commits WHERE message = 'new'")) == 100
    assert proof.found(JobType.COMMITS) == {}
    assert proof.result()["status"] == "clean"


def test_history_that_the_server_has_no_more_is_not_missed(proof: Proof) -> None:
    """It names a parent and does not have it, as after a shallow import."""
    forge = proof.forge
    lost = forge.git.resolve("main~2")
    assert lost is not None
    forge.conn.execute("DELETE FROM scm.git_commits WHERE commit_sha = %(sha)s", {"sha": lost})
    forge.gitlab.faults.add(
        f"commits/{lost}", faults.json_answer(404, {"message": "404 Commit Not Found"}), times=None
    )
    forge.gitlab.faults.add(r"commits\?.*since=", faults.json_answer(200, []), times=None)
    assert proof.found(JobType.COMMITS) == {}
    assert proof.result()["unreadable"] == 1


_ODD_DATES = ["0 +1400", "1 -1200", "4733510400 +1400", "2147483648 +0000"]


def test_commits_of_any_date_are_compared_in_one_window_each(forge: Forge) -> None:
    forge.git.commit("main", "Begin\n", files={"a": "1"})
    for number, date in enumerate(_ODD_DATES):
        forge.git.commit("main", f"Odd {number}\n", files={"a": date}, date=date)
    forge.git.commit("lonely", "Orphan\n", files={"b": "1"}, parents=[], date="1000000000 +0000")
    forge.tick()
    assert forge.commits().succeeded
    proof = Proof(forge)
    assert proof.found(JobType.COMMITS) == {}
    before = forge.state()
    mark = watermarks.get(forge.conn, forge.repo_id, JobType.COMMITS).watermark
    assert isinstance(mark, datetime)
    cuts = [BEGINNING, datetime(2000, 1, 1, tzinfo=UTC), datetime(2005, 1, 1, tzinfo=UTC), mark]
    parts = [TimeWindow(*pair) for pair in pairwise(cuts)]
    for query in (
        "UPDATE scm.git_commits SET message = 'x' WHERE title LIKE %(odd)s OR title = 'Orphan'",
        "UPDATE scm.git_commits SET deleted_at = now() WHERE title LIKE %(odd)s",
    ):
        keys = {row["commit_sha"] for row in forge.rows(query + " RETURNING commit_sha", odd="Odd%")}
        seen: list[set[str]] = []
        for part in parts:
            already = set(proof.open(JobType.COMMITS))
            seen.append(set(proof.found(JobType.COMMITS, window=part)) - already)
        assert set().union(*seen) == keys
        proof.repair_differences(JobType.COMMITS)
        for part in parts:
            proof.found(JobType.COMMITS, window=part)
        assert proof.open(JobType.COMMITS) == {}
        assert forge.state() == before


def test_what_is_quarantined_is_unreadable_and_no_mismatch(proof: Proof) -> None:
    forge = proof.forge
    forge.gitlab.edit(forge.project.merge_requests[2], state="unheard_of")
    forge.conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'unheard_of')")
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    assert [r["natural_key"] for r in forge.rows("SELECT natural_key FROM scm.quarantine")] == ["2"]
    assert proof.found(JobType.MERGE_REQUESTS) == {}
    assert (proof.result()["status"], proof.result()["unreadable"]) == ("clean", 1)
    assert proof.found(JobType.REVIEWS) == {}


@pytest.mark.parametrize("part", ["resource_state", "resource_label", "discussions", "approvals", "versions"])
def test_answers_in_part_are_no_difference(proof: Proof, part: str) -> None:
    forge = proof.forge
    forge.gitlab.close(forge.project.merge_requests[1], forge.user)
    forge.tick()
    assert all(report.succeeded for report in forge.both())
    before = forge.state()
    forge.gitlab.faults.add(part, faults.server_error(), times=None)
    for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS):
        for depth in Depth:
            assert proof.found(job_type, depth=depth) == {}
    assert forge.state() == before


# At the same time ----------------------------------------------------------------------------------------


def test_a_repair_does_not_overwrite_what_live_syncing_reads_meanwhile(proof: Proof) -> None:
    forge = proof.forge
    request = forge.project.merge_requests[1]
    note = next(n for n in request.notes if n.row["body"] == "first")
    forge.conn.execute("UPDATE scm.mrs SET title = 'x' WHERE iid = 1")
    forge.conn.execute("UPDATE scm.review_events SET body = 'x' WHERE mr_iid = 1 AND body = 'first'")
    impatient = Syncer(forge.database, forge.settings.model_copy(update={"max_wait_seconds": 0.1}))

    def meanwhile() -> None:
        forge.gitlab.edit(request, title="Newer")
        forge.gitlab.edit_note(request, note, "newer", bump=True)
        forge.tick(hours=1)
        impatient.run_together([forge.request(job_type) for job_type in both])

    both = (JobType.MERGE_REQUESTS, JobType.REVIEWS)
    for job_type, last_of_all in zip(both, ("1/commits", "1/approvals"), strict=True):
        assert set(proof.found(job_type).values()) <= {"changed title", "changed body"}
        forge.gitlab.faults.add(last_of_all, faults.Do(meanwhile))
        proof.repair_differences(job_type)
        forge.gitlab.faults.clear()
        assert all(report.succeeded for report in forge.both())
        assert [row["title"] for row in forge.rows("SELECT title FROM scm.mrs WHERE iid = 1")] == ["Newer"]
        bodies = forge.rows("SELECT body FROM scm.review_events WHERE mr_iid = 1 AND NOT is_system")
        assert {row["body"] for row in bodies} == {"newer", "second"}


def test_comparisons_beside_live_syncing_and_a_backfill_name_nothing(proof: Proof) -> None:
    forge = proof.forge
    forge.other_settings(max_wait_seconds=60)
    past = {"window": ("2024-05-01", "2024-05-06T12:05"), "reread": True}

    def live() -> list[JobReport]:
        return [forge.commits(), *forge.both()]

    def backfill() -> list[JobReport]:
        return [forge.commits(Mode.BACKFILL, **past), *forge.both(Mode.BACKFILL, **past)]

    def compare() -> list[JobReport]:
        return [proof.probe(job_type) for job_type in GITLAB]

    for number in range(2):
        for request in forge.project.merge_requests.values():
            forge.gitlab.edit(request, title=f"Round {number}")
            forge.gitlab.comment(request, forge.other, f"Round {number}")
        forge.gitlab.push(forge.project, f"feature{number}", "More", author=forge.user)
        forge.tick()
        with ThreadPoolExecutor(3) as pool:
            works = [pool.submit(work) for work in (live, backfill, compare)]
            assert [report.error for work in works for report in work.result() if report.error] == []
    assert forge.rows("SELECT FROM scm.discrepancies") == []
    assert integrity_checks.failures(forge.conn) == {}


def test_what_a_failing_source_kept_from_being_read_was_not_tried(proof: Proof) -> None:
    forge = proof.forge
    forge.conn.execute("UPDATE scm.mrs SET title = 'x' WHERE iid = 1")
    found = proof.found(JobType.MERGE_REQUESTS)
    for _ in range(4):
        forge.gitlab.faults.add("merge_requests", faults.server_error(), times=None)
        proof.repair_if_possible(JobType.MERGE_REQUESTS)
        forge.gitlab.faults.clear()
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert {row["repairs"] for row in forge.rows("SELECT repairs FROM scm.discrepancies")} == {0}
    _only_differences(proof, JobType.MERGE_REQUESTS, found)


# Any value -----------------------------------------------------------------------------------------------

_LISTS = r"/(commits|merge_requests|discussions|notes|resource_\w+|versions|branches|tags|reviewers)(\?|$)"


def _spoilt(body: bytes, seed: int) -> bytes:
    """A list with some values of its rows replaced, the same ones in every answer."""
    data = json.loads(body)
    for row in data if isinstance(data, list) else []:
        for one in (row, *row.get("notes", ())):
            chance = random.Random(f"{seed} {one.get('id')}")
            # Another time or name would be another truth, and a row without parents is read by its name.
            keys = sorted(one.keys() - {"updated_at", "name", "iid", "id", "notes", "parent_ids"})
            for _ in range(chance.choice([0, 1, 2, 4])):
                one[chance.choice(keys)] = chance.choice(_NASTY)
    return json.dumps(data).encode()


@pytest.mark.parametrize("seed", [0, 1])
def test_values_that_cannot_be_stored_as_they_are_are_no_difference(forge: Forge, seed: int) -> None:
    history(forge)
    forge.gitlab.faults.add(_LISTS, faults.Edited(lambda body: _spoilt(body, seed)), times=None)
    for _ in range(2):
        assert [report.error for report in sync(forge)] == [None] * 3
        forge.tick()
    proof = Proof(forge)
    for job_type in GITLAB:
        assert proof.found(job_type) == {}
        assert proof.result()["status"] == "clean"
