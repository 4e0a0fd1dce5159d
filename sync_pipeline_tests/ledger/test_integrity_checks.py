"""Records of ours that disagree are found and named."""

from __future__ import annotations

from pathlib import Path

from psycopg import sql

from sync_pipeline.core.gitlab_rows import MergeRequestRow
from sync_pipeline.core.model import Mode
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.values import content_hash
from sync_pipeline.facts import commits, merge_requests, refs
from sync_pipeline.ledger import integrity_checks
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.facts.gitlab_facts import commit, merge_request, project, ref, sha, version

# What is damaged behind the back, and by which proof alone it is found.
DAMAGE = (
    (
        "coverage",
        "UPDATE scm.sync_watermarks SET covered_revs = covered_revs + '{[900,1000)}' WHERE origin_rev = 1",
    ),
    ("coverage", "UPDATE scm.sync_watermarks SET generation = generation + 1"),
    ("batches", "UPDATE scm.sync_batches SET covers = FALSE WHERE covers"),
    ("batches", "UPDATE scm.sync_batches SET revs = '[1,2)' WHERE covers AND revs = '[1,4)'"),
    (
        "batches",
        "DELETE FROM scm.sync_watermark_events WHERE added_revs IS NOT NULL;"
        "UPDATE scm.sync_watermarks SET covered_revs = '{}' WHERE origin_rev = 1",
    ),
    ("counts", "UPDATE scm.sync_runs SET inserted = inserted + 1"),
    ("jobs", "UPDATE scm.sync_runs SET status = 'failed', error_code = 'timeout' WHERE mode = 'incremental'"),
    ("jobs", "UPDATE scm.sync_jobs SET status = 'dead' WHERE mode = 'incremental'"),
    ("jobs", "UPDATE scm.sync_runs SET mode = 'repair' WHERE mode = 'incremental'"),
    ("jobs", "UPDATE scm.sync_jobs SET attempts = 0"),
    (
        "jobs",
        "UPDATE scm.sync_jobs SET status = 'running', finished_at = NULL, claim_token = gen_random_uuid(),"
        " claim_expires_at = now() WHERE mode = 'backfill'",
    ),
    ("jobs", "UPDATE scm.sync_runs SET status = 'running', finished_at = NULL WHERE mode = 'backfill'"),
    (
        "leases",
        "UPDATE scm.sync_locks SET locked_by = 'nobody:1', holder = gen_random_uuid(),"
        " expires_at = now() + interval '1 minute'",
    ),
    (
        "leases",
        "UPDATE scm.sync_batches SET fence = 0 WHERE batch_id = (SELECT max(batch_id) FROM scm.sync_batches)",
    ),
    ("leases", "UPDATE scm.sync_locks SET fence = 0"),
    ("units", "UPDATE scm.repos SET kind = 'gitlab', project_id = 1 WHERE kind = 'svn'"),
    (
        "units",
        "DELETE FROM scm.sync_watermark_events WHERE job_type = 'reviews';"
        "DELETE FROM scm.sync_watermarks WHERE job_type = 'reviews'",
    ),
    ("history", "DELETE FROM scm.git_commits WHERE title = 'Commit a'"),
    ("refs", "UPDATE scm.refs SET judged_tip = target, tip = target"),
    ("paths", "DELETE FROM scm.svn_changed_paths WHERE rev_num = 2 AND path_no = 1"),
    (
        "revisions",
        "DELETE FROM scm.svn_changed_paths WHERE rev_num = 2;DELETE FROM scm.svn_revisions WHERE rev_num = 2",
    ),
    ("children", "DELETE FROM scm.mr_versions"),
    ("children", "DELETE FROM scm.mr_commits"),
    ("children", "DELETE FROM scm.mr_commits WHERE position = 1"),
    ("children", "UPDATE scm.mrs SET versions_hash = NULL"),
)


def test_what_is_damaged_is_found_by_its_proof_alone(database: Database, tmp_path: Path) -> None:
    with database.connection() as conn:
        _store_revisions(database, conn, tmp_path)
        repo = _store_commits(conn)
        _store_merge_requests(conn, repo)
        assert integrity_checks.failures(conn) == {}
        found = []
        for _, statement in DAMAGE:
            with conn.transaction(force_rollback=True):
                for one in statement.split(";"):
                    conn.execute(sql.SQL(one))
                found.append(list(integrity_checks.failures(conn)))
        assert list(zip(found, DAMAGE, strict=True)) == [([proof], (proof, how)) for proof, how in DAMAGE]


def test_every_proof_is_tried() -> None:
    assert integrity_checks.names() == sorted({proof for proof, _ in DAMAGE})


def test_of_a_large_damage_the_first_rows_are_told_and_all_are_counted(database: Database) -> None:
    with database.connection() as conn:
        project(conn)
        conn.execute(
            "INSERT INTO scm.mrs (repo_id, iid, gitlab_id, project_id, status, updated_at, raw, content_hash,"
            " batch_id, commits_hash)"
            " SELECT repo_id, n, n, 42, 'open', now(), '{}', '', 1, %s"
            "   FROM scm.repos, generate_series(1, 30) AS n",
            [content_hash(["a commit"])],
        )
        (failed,) = (proof for proof in integrity_checks.integrity_checks(conn) if proof.total)
    assert (failed.name, failed.total, [row["iid"] for row in failed.rows]) == (
        "children",
        30,
        [*range(1, 21)],
    )
    assert failed.rows[0]["problem"] == "commits are missing"
    assert failed.about == (
        "Merge requests whose versions and commits differ from the sets that they count. "
        "Empty if the records agree."
    )


def test_a_batch_that_is_gone_with_its_run_verifies_nothing(database: Database, tmp_path: Path) -> None:
    """As retention leaves it."""
    with database.connection() as conn:
        _store_revisions(database, conn, tmp_path)
        conn.execute("DELETE FROM scm.sync_runs")
        conn.execute("DELETE FROM scm.sync_jobs")
        assert integrity_checks.failures(conn) == {}


def _store_revisions(database: Database, conn: Connection, tmp_path: Path) -> None:
    url = svn_samples.large(tmp_path / "repository", 3, 2)
    repo = register_source(conn, url)
    syncer = Syncer(database, Settings())
    assert syncer.run(request(repo)).succeeded
    assert syncer.run(request(repo, Mode.BACKFILL, window=(1, 4), reread=True)).succeeded


def _store_commits(conn: Connection) -> int:
    repo = project(conn)
    main = ref("main", "b", target=sha("another"))
    refs.record_listing(conn, repo_id=repo, batch_id=1, rows=[main], observed_at=None)
    walk = commits.begin_walk(conn, repo_id=repo, tip=sha("b"), covered=None, generation=1)
    rows = [commit("b", "a"), commit("a")]
    commits.store_commits(conn, repo_id=repo, batch_id=1, rows=rows, walk_id=walk.walk_id)
    assert commits.complete_history(conn, repo, 1, [sha("b")])
    return repo


def _store_merge_requests(conn: Connection, repo: int) -> None:
    def store(*rows: MergeRequestRow) -> None:
        merge_requests.store_merge_requests(conn, repo_id=repo, batch_id=1, rows=rows)

    children = {"versions": (version(1, "head"),), "commits": (commit("head", "first"), commit("first"))}
    store(merge_request(1, **children), merge_request(2, versions=(), commits=()), merge_request(3))
