"""Records of ours that disagree are found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sync_pipeline.sandbox import svn_samples
from sync_pipeline.settings import Settings
from sync_pipeline.store import proofs
from sync_pipeline.store.database import Database
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_tests.builders import register_source, request

DAMAGE = {
    "coverage": "UPDATE scm.sync_watermarks SET covered_revs = '{}'",
    "counts": "UPDATE scm.sync_runs SET inserted = inserted + 1",
    "paths": "DELETE FROM scm.svn_changed_paths WHERE rev_num = 2 AND path_no = 1",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_found_by_its_proof_alone(database: Database, tmp_path: Path, name: str) -> None:
    url = svn_samples.large(tmp_path / "repository", 3, 2)
    with database.connection() as conn:
        Syncer(database, Settings()).run(request(register_source(conn, url)))
        assert proofs.failures(conn) == {}
        conn.execute(DAMAGE[name])
        assert list(proofs.failures(conn)) == [name]


def test_every_proof_is_tried() -> None:
    assert proofs.names() == sorted(DAMAGE)
