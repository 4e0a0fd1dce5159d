"""Every sample dump, read over ``file://`` and over a real server, is what the repository holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sync_pipeline.core.model import RevisionRow, RevisionWindow, Visibility
from sync_pipeline.sources.svn import Client
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline_tests.sources.truth import assert_equal
from sync_pipeline_tests.svn_fixtures import SAMPLE_DUMPS, SvnRepository, SvnServers


def read_all(url: str, head: int) -> list[RevisionRow]:
    reader = SvnReader(Client(), url, "", log_timeout=60, info_timeout=60)
    (batch,) = reader.read(RevisionWindow(1, head + 1))
    assert batch.covered == batch.window
    assert not batch.quarantined
    assert not batch.deferred
    return list(batch.rows)


@pytest.mark.parametrize("dump", SAMPLE_DUMPS)
def test_a_sample_reads_as_it_is(
    dump: Path, svn_repository: Callable[..., SvnRepository], svnserve: SvnServers
) -> None:
    repository = svn_repository(dump=dump)
    head = repository.youngest
    rows = read_all(repository.url, head)
    assert_equal(rows, repository)
    assert {row.visibility for row in rows} <= {Visibility.FULL}
    url = svnserve(repository).url(repository)
    assert_equal(read_all(url, head), repository)


@pytest.mark.parametrize("dump", SAMPLE_DUMPS)
def test_every_revision_alone_reads_the_same(
    dump: Path, svn_repository: Callable[..., SvnRepository]
) -> None:
    repository = svn_repository(dump=dump)
    reader = SvnReader(Client(), repository.url, "", log_timeout=60, info_timeout=60)
    rows = [row for number in range(1, repository.youngest + 1) for row in reader.read_single(number).rows]
    assert_equal(rows, repository)
