"""Single rows asked for by their names, to learn whether they are still there.

Belongs here: what the server's answer means for one row. A row is gone where its own address answers that
there is no such row, while the project itself can be read. Does not belong here: how often, and over how long
a time, a row must be missing before it counts as deleted.
"""

from __future__ import annotations

from sync_pipeline.core.errors import SourceGone
from sync_pipeline.core.gitlab_rows import Origin
from sync_pipeline.sources.gitlab.transport import Client, project_path

_PATHS = {
    Origin.NOTE: "notes",
    Origin.STATE: "resource_state_events",
    Origin.LABEL: "resource_label_events",
    Origin.MILESTONE: "resource_milestone_events",
}


class SingleReader:
    """Requests single rows of one project. Raises as the transport does if there is no clear response."""

    def __init__(self, client: Client, project_id: int) -> None:
        self._client = client
        self._project_id = project_id

    def is_gone(self, iid: int) -> bool:
        """True if there is no merge request of this number."""
        return self._is_gone("merge_requests", iid)

    def is_event_gone(self, iid: int, origin: Origin, natural_key: str) -> bool:
        """True if an existing merge request has no such note or event. Its number ends ``natural_key``."""
        return self._is_gone("merge_requests", iid, _PATHS[origin], natural_key.rpartition(":")[2])

    def is_commit_gone(self, sha: str) -> bool:
        """True if the repository does not have this commit."""
        return self._is_gone("repository", "commits", sha)

    def _is_gone(self, *parts: str | int) -> bool:
        try:
            self._client.get(project_path(self._project_id, *parts))
        except SourceGone as error:
            if error.code not in ("no_object", "no_route"):
                raise
            # An old server without this address proves nothing about the row.
            return error.code == "no_object"
        return False
