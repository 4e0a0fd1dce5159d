"""Notes, approvers, reviewers and commits of many merge requests in one request, by GraphQL.

Belongs here: which merge requests one query asks for, the pages behind a long list, and the rows that the
answers become. Does not belong here: sending a query and judging its answer
(:mod:`sync_pipeline.sources.gitlab.graphql`), and what only REST has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sync_pipeline.core.gitlab_rows import MergeRequestRow, ReviewSet
from sync_pipeline.sources.gitlab.transport import Client


@dataclass(frozen=True, slots=True)
class BatchReview:
    """What GraphQL gives of one merge request.

    ``review`` has the notes, with times in whole seconds, the approvers and the reviewers. An approval has
    the time of the note about it, and a reviewer no time. ``commit_shas`` are newest first, as the server
    lists them; None: not all came. ``diff_refs`` are base, start and head of the newest version; None: they
    did not come.
    """

    review: ReviewSet
    commit_shas: tuple[str, ...] | None
    diff_refs: tuple[str | None, str | None, str | None] | None


class BatchReader:
    """Reads merge requests of one project in batches, with ``parallel`` requests at once. One instance serves
    one job.

    ``stepped_down`` is why GraphQL is no longer used in this job, in one line; None: it is used.
    """

    def __init__(self, client: Client, project_id: int, full_path: str, *, parallel: int) -> None:
        self.stepped_down: str | None = None
        self._client = client
        self._project_id = project_id
        self._full_path = full_path
        self._parallel = parallel

    def read(self, merge_requests: Sequence[MergeRequestRow]) -> Mapping[int, BatchReview]:
        """By number, those of ``merge_requests`` that came whole; nothing follows from the absence of the
        others. Empty once GraphQL is not used any more.

        Raises Cancelled, ConfigurationError, and errors of the credential, the rate limit and the network as
        the transport does.
        """
        return {}
