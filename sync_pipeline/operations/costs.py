"""What reading takes, in requests: pure arithmetic that registration and the runner share.

Belongs here: figures of the readers' ways with a source. Does not belong here: how many rows there are, which
has to be asked (:mod:`sync_pipeline.operations.projects`), and how fast they come
(:mod:`sync_pipeline.store.throughput`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sync_pipeline.model import JobType, RevisionWindow, Window
from sync_pipeline.sources.gitlab.page_bisect import PER_PAGE

# A look at a project and the two lists of its refs; a look at an SVN repository and its fingerprints.
_OF_A_VISIT = {JobType.COMMITS: 3, JobType.REVISIONS: 2}
# The children of one changed merge request, at most, where no list of them is long.
_OF_CHILDREN = {JobType.MERGE_REQUESTS: 2, JobType.REVIEWS: 6}


def requests_for(job_type: JobType, rows: int) -> int:
    """How many requests to GitLab reading so many commits or merge requests takes, about; a merge request
    with all its children. Where two job types share a reader, its pages count twice."""
    return _OF_A_VISIT.get(job_type, 1) + -(-rows // PER_PAGE) + rows * _OF_CHILDREN.get(job_type, 0)


def commands_for(missing: Sequence[Window], chunk_revisions: int) -> int:
    """How many svn commands reading these windows takes, about."""
    lengths = (len(gap) for gap in missing if isinstance(gap, RevisionWindow))
    return _OF_A_VISIT[JobType.REVISIONS] + sum(-(-length // chunk_revisions) for length in lengths)
