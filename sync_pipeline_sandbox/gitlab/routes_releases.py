"""Routes for releases.

Belongs here: the list of a project's releases and one by its tag. A test puts the rows into
``Project.releases`` with :func:`blank_release`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sync_pipeline_sandbox.gitlab import access, responses
from sync_pipeline_sandbox.gitlab.endpoint import Ask, Endpoint
from sync_pipeline_sandbox.gitlab.paging import Page
from sync_pipeline_sandbox.gitlab.parameters import PAGING, choice
from sync_pipeline_sandbox.gitlab.records import Project, Row, stamp

_RELEASES = PAGING | {
    "order_by": choice("released_at", "created_at", "released_at"),
    "sort": choice("desc", "asc", "desc"),
}


def blank_release(tag: str, at: datetime, author: Row | None, **fields: Any) -> Row:
    """The row of a release that was made and released at ``at``."""
    return {
        "tag_name": tag,
        "name": tag,
        "description": "",
        "created_at": stamp(at),
        "released_at": stamp(at),
        "upcoming_release": False,
        "author": author and dict(author),
        "commit": None,
        "milestones": [],
        "assets": {"count": 4, "sources": [], "links": []},
        "evidences": [],
    } | fields


def _readable(ask: Ask) -> tuple[Project, bool]:
    """The project, and whether the reader sees its repository. Raises Refusal (403) without the feature."""
    project = ask.project()
    hidden = project.releases_access_level == "private" and not ask.gitlab.level(project, ask.user)
    if hidden or project.releases_access_level == "disabled":
        raise responses.forbidden()
    return project, access.may(ask.gitlab, project, ask.user, "repository")


def _shown(row: Row, *, with_code: bool) -> Row:
    return row if with_code else {key: row[key] for key in row if key not in ("tag_name", "commit")}


def _releases(ask: Ask) -> Page:
    project, with_code = _readable(ask)
    order, down = ask.values["order_by"], ask.values["sort"] == "desc"
    rows = sorted(project.releases.values(), key=lambda row: str(row.get(order)), reverse=down)
    return ask.pager().over([_shown(row, with_code=with_code) for row in rows])


def _one_release(ask: Ask) -> Row:
    project, with_code = _readable(ask)
    if not with_code:
        raise responses.forbidden()
    found = project.releases.get(ask.path["tag"])
    if found is None:
        raise responses.not_found()
    return found


ENDPOINTS = (
    Endpoint("/projects/{id}/releases", _releases, _RELEASES),
    Endpoint("/projects/{id}/releases/{tag}", _one_release),
)
"""All routes of this module."""
