"""Records of ours that disagree are found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sync_pipeline.sandbox import svn_samples
from sync_pipeline.settings import Settings
from sync_pipeline.store import commits, proofs, refs
from sync_pipeline.store.database import Connection, Database
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.store.gitlab_facts import commit, project, ref, sha

DAMAGE = {
    "coverage": "UPDATE scm.sync_watermarks SET covered_revs = '{}'",
    "counts": "UPDATE scm.sync_runs SET inserted = inserted + 1",
    "history": "DELETE FROM scm.git_commits WHERE title = 'Commit a'",
    "paths": "DELETE FROM scm.svn_changed_paths WHERE rev_num = 2 AND path_no = 1",
    "refs": "UPDATE scm.refs SET judged_tip = target, tip = target",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_found_by_its_proof_alone(database: Database, tmp_path: Path, name: str) -> None:
    url = svn_samples.large(tmp_path / "repository", 3, 2)
    with database.connection() as conn:
        Syncer(database, Settings()).run(request(register_source(conn, url)))
        _store_commits(conn)
        assert proofs.failures(conn) == {}
        conn.execute(DAMAGE[name])
        assert list(proofs.failures(conn)) == [name]


def _store_commits(conn: Connection) -> None:
    repo = project(conn)
    main = ref("main", "b", target=sha("another"))
    refs.record_listing(conn, repo_id=repo, batch_id=1, rows=[main], observed_at=None)
    walk = commits.begin_walk(conn, repo_id=repo, tip=sha("b"), covered=None, generation=1)
    rows = [commit("b", "a"), commit("a")]
    commits.store_commits(conn, repo_id=repo, batch_id=1, rows=rows, walk_id=walk.walk_id)
    commits.complete_walk(conn, walk.walk_id)
    refs.cover(conn, repo, [sha("b")])


def test_every_proof_is_tried() -> None:
    assert proofs.names() == sorted(DAMAGE)
