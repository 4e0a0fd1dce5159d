"""Estimates how many requests a reading takes. Registration and the runner use it.

Belongs here: pure arithmetic with the readers' numbers of requests. Does not belong here: the number of rows
(:mod:`sync_pipeline.registry.projects`), and the speed of reading (:mod:`sync_pipeline.ledger.throughput`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import JobType, RevisionWindow, Window
from sync_pipeline.sources.gitlab.page_bisect import PER_PAGE


def requests_for(job_type: JobType, rows: int) -> int:
    """How many requests to GitLab reading so many commits or merge requests takes, about; a merge request
    with all its children. Where two job types share a reader, its pages count twice."""
    declared = DECLARED[job_type]
    return declared.visit_calls + -(-rows // PER_PAGE) + rows * declared.row_calls


def commands_for(missing: Sequence[Window], chunk_revisions: int) -> int:
    """How many svn commands reading these windows takes, about."""
    lengths = (len(gap) for gap in missing if isinstance(gap, RevisionWindow))
    return DECLARED[JobType.REVISIONS].visit_calls + sum(-(-length // chunk_revisions) for length in lengths)
