"""Many revisions and huge ones: everything arrives, memory stays flat."""

from __future__ import annotations

import tracemalloc

import pytest

from sync_pipeline.core.model import RevisionWindow
from sync_pipeline.sources.svn import Client
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline_tests.svn_fixtures import SvnRepository, large_repository

HUGE = 100_000
REVISIONS = 2_500


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> SvnRepository:
    return large_repository(tmp_path_factory.mktemp("large") / "repo", REVISIONS, huge=HUGE)


def reader_of(repository: SvnRepository, prefix: str = "") -> SvnReader:
    return SvnReader(Client(), repository.url, prefix, log_timeout=300, info_timeout=60)


def test_many_revisions_and_a_huge_one_arrive_whole_in_flat_memory(repository: SvnRepository) -> None:
    reader = reader_of(repository)
    list(reader.read(RevisionWindow(1, 10)))
    tracemalloc.start()
    try:
        numbers, paths = [], 0
        for window in RevisionWindow(1, REVISIONS + 1).pieces(1000):
            (batch,) = reader.read(window)
            for row in batch.rows:
                numbers.append(row.rev_num)
                paths += sum(1 for _ in row.paths)
                assert row.message == f"Change {row.rev_num}\n\nWith <some> text & more of it\n"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert numbers == list(range(1, REVISIONS + 1))
    assert paths == 9 + 8 * (REVISIONS - 2) + HUGE + HUGE // 1000
    assert peak < 16 * 1024**2


def test_the_paths_of_a_huge_revision_can_be_read_again_and_filtered(repository: SvnRepository) -> None:
    (batch,) = reader_of(repository).read(RevisionWindow(REVISIONS, REVISIONS + 1))
    (row,) = batch.rows
    names = {path.path for path in row.paths}
    assert len(names) == HUGE + HUGE // 1000
    assert {path.path for path in row.paths} == names
    (batch,) = reader_of(repository, "big-007").read(RevisionWindow(1, REVISIONS + 1))
    (row,) = batch.rows
    inside = [path.path for path in row.paths]
    assert len(inside) == 1001
    assert inside == [path.path for path in row.paths]
    single = reader_of(repository, "big-007").read_single(REVISIONS)
    assert sorted(path.path for row in single.rows for path in row.paths) == sorted(inside)


def test_an_answer_outlives_its_batch(repository: SvnRepository) -> None:
    """Rows and paths read from the answer's file, which must stay as long as they do, and go with them."""
    (batch,) = reader_of(repository).read(RevisionWindow(REVISIONS, REVISIONS + 1))
    (row,) = batch.rows
    del batch
    assert sum(1 for _ in row.paths) == HUGE + HUGE // 1000
