"""Jobs that a plan dispatched: found once, claimed by their ids."""

from __future__ import annotations

from sync_pipeline.core.model import JobType, Mode
from sync_pipeline.ledger import jobs, planning
from sync_pipeline_tests.sync.conftest import Forge


def test_a_dispatched_job_is_claimed_by_its_id_and_not_made_again(forge: Forge) -> None:
    job_id = jobs.enqueue(forge.conn, forge.request(JobType.COMMITS))
    [found] = planning.waiting_requests(
        forge.conn, repo_ids=[forge.repo_id], mode=Mode.INCREMENTAL, window=None
    )
    assert found.job_id == job_id
    assert [forge.syncer.run(found).job_id for _ in range(2)] == [job_id, job_id]
    assert forge.rows("SELECT job_id, attempts FROM scm.sync_jobs") == [{"job_id": job_id, "attempts": 1}]


def test_a_run_does_the_jobs_of_its_dispatch_and_no_others(forge: Forge) -> None:
    job_types = (JobType.COMMITS, JobType.MERGE_REQUESTS)
    ids = [jobs.enqueue(forge.conn, forge.request(job_type)) for job_type in job_types]
    planning.decided(forge.conn, {ids[0]: {"dispatch": "first"}, ids[1]: {}}, dispatched=False)

    def waiting(dispatch: str) -> set[object]:
        found = planning.waiting_requests(
            forge.conn, repo_ids=[forge.repo_id], mode=Mode.INCREMENTAL, window=None, dispatch=dispatch
        )
        return {one.job_id for one in found}

    assert waiting("first") == {ids[0]}
    assert waiting("second") == set()
    assert waiting("") == set(ids)
