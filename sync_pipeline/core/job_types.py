"""The declaration of each job type, which the generic parts of the program read.

Belongs here: the names, texts, requests and switches of a job type, as data. Does not belong here: where its
rows are stored (:mod:`sync_pipeline.facts.job_types`) and how a job of it is done
(:mod:`sync_pipeline.sync.job_types`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sync_pipeline.core.model import JobType, Kind, Repository


class Family(StrEnum):
    """The job types that one reader reads together, in one step and one Dagster job. Merge requests and
    reviews are one family, because both are read from the same list of changed merge requests."""

    COMMITS = "commits"
    MERGE_REQUESTS = "merge_requests"
    REVISIONS = "revisions"
    RELEASES = "releases"

    @property
    def job_types(self) -> tuple[JobType, ...]:
        """Its job types, in the order in which they are claimed."""
        return tuple(job_type for job_type, one in DECLARED.items() if one.family is self)

    @property
    def kind(self) -> Kind:
        """The kind of source that it is read from."""
        return DECLARED[self.job_types[0]].kind

    @property
    def job_name(self) -> str:
        """Name of the Dagster job that syncs it; fixed, because people and CI call it."""
        return f"sync_{self}"

    @property
    def content(self) -> str:
        """Its content, for the description of its Dagster job."""
        return _CONTENT_OF_FAMILY[self]


_CONTENT_OF_FAMILY: Mapping[Family, str] = {
    Family.COMMITS: "GitLab commits",
    Family.MERGE_REQUESTS: "GitLab merge requests and their reviews",
    Family.REVISIONS: "SVN revisions",
    Family.RELEASES: "GitLab releases",
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """The properties of a job type. ``content`` describes its asset. ``row`` names the object that is read
    and counted; for reviews that is a merge request. ``page`` is what its web page adds to the project's URL.

    ``feature`` is the GitLab feature that it needs: the first part of ``<feature>_access_level``. With
    ``needs_commits`` a project without commits has the state ``empty``.

    ``by_time``: a job reads the rows that were updated within its window, so history is queued year by year.
    Without it, each job of GitLab reads the whole list. An ``optional`` one is synced only for the
    repositories that it was switched on for.

    ``visit_calls`` is the number of requests of a visit. ``row_calls`` is the mean number for each row with
    all its details, and ``usable_row_calls`` that for a usable row. ``compare_calls`` and
    ``compare_row_calls`` are the numbers of a comparison.
    """

    kind: Kind
    family: Family
    content: str
    row: str
    page: str = ""
    feature: str = ""
    needs_commits: bool = False
    by_time: bool = False
    optional: bool = False
    visit_calls: int = 1
    row_calls: float = 0.0
    usable_row_calls: float = 0.0
    compare_calls: int = 4
    compare_row_calls: float = 0.02


DECLARED: Mapping[JobType, Declaration] = {
    JobType.COMMITS: Declaration(
        Kind.GITLAB,
        Family.COMMITS,
        content="Commits of every branch and tag",
        row="commit",
        page="/-/commits",
        feature="repository",
        needs_commits=True,
        # The project and the two lists of its refs.
        visit_calls=3,
        compare_calls=8,
    ),
    JobType.MERGE_REQUESTS: Declaration(
        Kind.GITLAB,
        Family.MERGE_REQUESTS,
        content="Merge requests with their commits and versions",
        row="merge request",
        page="/-/merge_requests?state=all",
        feature="merge_requests",
        by_time=True,
        row_calls=1.1,
        compare_row_calls=3.0,
    ),
    JobType.REVIEWS: Declaration(
        Kind.GITLAB,
        Family.MERGE_REQUESTS,
        content="Events in the reviews of merge requests",
        row="merge request",
        page="/-/merge_requests?state=all",
        feature="merge_requests",
        by_time=True,
        row_calls=4.5,
        # Two queries for a page of 100, and one for a merge request with many notes.
        usable_row_calls=0.05,
        compare_row_calls=7.0,
    ),
    JobType.REVISIONS: Declaration(
        Kind.SVN,
        Family.REVISIONS,
        content="Revisions with their changed paths",
        row="revision",
        # The repository and its fingerprints.
        visit_calls=2,
        compare_row_calls=0.002,
    ),
    JobType.RELEASES: Declaration(
        Kind.GITLAB,
        Family.RELEASES,
        content="Releases with their assets and milestones",
        row="release",
        page="/-/releases",
        feature="releases",
        optional=True,
    ),
}

FAMILY_OF: Mapping[JobType, Family] = {job_type: one.family for job_type, one in DECLARED.items()}
"""The family of each job type."""

JOB_TYPES_OF_KIND: Mapping[Kind, tuple[JobType, ...]] = {
    kind: tuple(job_type for job_type, one in DECLARED.items() if one.kind is kind) for kind in Kind
}
"""The job types of each kind of repository, with the optional ones."""

OPTIONAL: tuple[JobType, ...] = tuple(job_type for job_type, one in DECLARED.items() if one.optional)
"""The job types that are synced only where somebody asked for them."""


def optional_job_types(names: Iterable[str]) -> tuple[JobType, ...]:
    """The optional job types of these names. Raises ValueError for the first other name."""
    found: dict[JobType, None] = {}
    for name in names:
        try:
            job_type = JobType.parse(name)
        except ValueError:
            raise ValueError(
                f"unknown job type {name!r}; the optional ones are: {', '.join(OPTIONAL)}"
            ) from None
        if job_type not in OPTIONAL:
            raise ValueError(f"{job_type} is not optional; the optional ones are: {', '.join(OPTIONAL)}")
        found[job_type] = None
    return tuple(found)


def job_types_of(repository: Repository) -> tuple[JobType, ...]:
    """The job types of ``repository``: those of its kind, and of the optional ones its own."""
    left_out = set(OPTIONAL) - set(repository.optional_job_types)
    return tuple(job_type for job_type in JOB_TYPES_OF_KIND[repository.kind] if job_type not in left_out)


def by_family(job_types: Iterable[JobType]) -> list[tuple[Family, tuple[JobType, ...]]]:
    """``job_types`` by family, each in the order of the family."""
    chosen = set(job_types)
    families = [(family, tuple(one for one in family.job_types if one in chosen)) for family in Family]
    return [(family, found) for family, found in families if found]
