"""The newest activity of many projects in one page: a hint where something may have changed.

Belongs here: the one request of change detection. The server's ``last_activity_at`` may lag an hour and
misses some kinds of change, so it never proves that nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.sources.gitlab.fields import Fields
from sync_pipeline.sources.gitlab.page_bisect import PER_PAGE
from sync_pipeline.sources.gitlab.paging import rows
from sync_pipeline.sources.gitlab.project import projects_of
from sync_pipeline.sources.gitlab.transport import Client


@dataclass(frozen=True, slots=True)
class Activity:
    """Time of the last activity of projects, by their number. Other projects were not active after
    ``down_to``, in the server's time; None: there are no others.
    """

    projects: Mapping[int, datetime]
    down_to: datetime | None


def newest_activity(client: Client, group_id: int | None) -> Activity:
    """The most recently active projects of a group and its subgroups; with None those of the token's user.
    Raises as the transport does.
    """
    path, query = projects_of(group_id)
    newest = {"order_by": "last_activity_at", "sort": "desc", "simple": "true", "per_page": str(PER_PAGE)}
    answer = client.get(path, query | newest)
    found: dict[int, datetime] = {}
    for row in rows(answer, path):
        fields = Fields(row)
        moment = fields.moment("last_activity_at")
        if moment is not None:
            found[fields.required("id")] = moment
    return Activity(found, min(found.values(), default=None) if answer.next_query is not None else None)
