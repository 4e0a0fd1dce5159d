"""Families: the job types that are read together.

Belongs here: which job types share a reader, and with it a step and a Dagster job. Merge requests and reviews
are one family: both follow from the same list of changed merge requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sync_pipeline.model import JobType, Kind


class Family(StrEnum):
    """A group of job types of one kind of source that are read together."""

    COMMITS = "commits"
    MERGE_REQUESTS = "merge_requests"
    REVISIONS = "revisions"

    @property
    def job_types(self) -> tuple[JobType, ...]:
        """Its job types, in the order in which they are claimed."""
        return _JOB_TYPES[self]

    @property
    def kind(self) -> Kind:
        """The kind of source that it is read from."""
        return Kind.SVN if self is Family.REVISIONS else Kind.GITLAB

    @property
    def job_name(self) -> str:
        """Name of the Dagster job that syncs it; fixed, because people and CI call it."""
        return f"sync_{self}"


_JOB_TYPES: Mapping[Family, tuple[JobType, ...]] = {
    Family.COMMITS: (JobType.COMMITS,),
    Family.MERGE_REQUESTS: (JobType.MERGE_REQUESTS, JobType.REVIEWS),
    Family.REVISIONS: (JobType.REVISIONS,),
}

FAMILY_OF = {job_type: family for family, job_types in _JOB_TYPES.items() for job_type in job_types}
"""The family of each job type."""


def by_family(job_types: tuple[JobType, ...]) -> list[tuple[Family, tuple[JobType, ...]]]:
    """``job_types`` by family, each in the order of the family."""
    return [
        (family, chosen)
        for family in Family
        if (chosen := tuple(job_type for job_type in family.job_types if job_type in job_types))
    ]
