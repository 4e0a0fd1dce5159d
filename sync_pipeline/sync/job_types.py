"""How a job of each job type is done: the work that reads it and the comparison with its source.

Belongs here: the choice between them, and the client and the look at the project that they share. A job type
that is named nowhere here is a flat list (:mod:`sync_pipeline.sync.listed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sync_pipeline.core.model import JobType, Kind
from sync_pipeline.policy.chunking import page_size
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import Attempt, Work
from sync_pipeline.sync.commits import CommitWork
from sync_pipeline.sync.compare_commits import CommitComparison
from sync_pipeline.sync.compare_merge_requests import MergeRequestComparison
from sync_pipeline.sync.compare_revisions import RevisionComparison
from sync_pipeline.sync.listed import ListedComparison, ListedWork
from sync_pipeline.sync.merge_requests import MergeRequestWork
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.reconcile import Comparison, Repairing
from sync_pipeline.sync.retry import Retries
from sync_pipeline.sync.revisions import RevisionWork, SourceState
from sync_pipeline.sync.source import Sources


class Reading(Work, Repairing, Retries, Protocol):
    """The work of a job type that reads its source."""


def _commits(attempts: Sequence[Attempt], client: Client, visit: ProjectVisit) -> Reading:
    return CommitWork(attempts[0], client, visit)


_READING: Mapping[JobType, Callable[[Sequence[Attempt], Client, ProjectVisit], Reading]] = {
    JobType.COMMITS: _commits,
    JobType.MERGE_REQUESTS: MergeRequestWork,
    JobType.REVIEWS: MergeRequestWork,
}
_COMPARISON: Mapping[JobType, Callable[[Attempt, Client, ProjectVisit], Comparison]] = {
    JobType.COMMITS: CommitComparison,
    JobType.MERGE_REQUESTS: MergeRequestComparison,
    JobType.REVIEWS: MergeRequestComparison,
}


def reading(
    attempts: Sequence[Attempt],
    sources: Sources,
    cancelled: Callable[[], bool],
    states: dict[int, SourceState],
) -> Reading:
    """The work that reads for ``attempts``, whose job types share a reader. ``states`` are the latest
    states of SVN repositories."""
    first = attempts[0]
    if first.repo.kind is Kind.SVN:
        return RevisionWork(first, sources.svn(first.repo, cancelled), states)
    client, visit = _project(attempts, sources, cancelled)
    return _READING.get(first.job_type, ListedWork)(attempts, client, visit)


def comparison(attempt: Attempt, sources: Sources, cancelled: Callable[[], bool]) -> Comparison:
    """The comparison of the rows of ``attempt`` with their source."""
    if attempt.repo.kind is Kind.SVN:
        source = sources.svn(attempt.repo, cancelled)
        return RevisionComparison(attempt, source, RevisionWork(attempt, source, {}))
    client, visit = _project([attempt], sources, cancelled)
    return _COMPARISON.get(attempt.job_type, ListedComparison)(attempt, client, visit)


def _project(
    attempts: Sequence[Attempt], sources: Sources, cancelled: Callable[[], bool]
) -> tuple[Client, ProjectVisit]:
    repo = attempts[0].repo
    client = sources.gitlab(repo.instance, cancelled, tenant=repo.tenant)
    client.per_page = page_size(attempts[0].claim.share)
    return client, ProjectVisit(attempts, client, sources.fingerprint(repo.instance))
