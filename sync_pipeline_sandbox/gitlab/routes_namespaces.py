"""Routes for the instance, people, groups, projects and their milestones.

Belongs here: which of them a reader gets, in which order and page. :mod:`sync_pipeline_sandbox.gitlab.shapes`
makes their JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sync_pipeline_sandbox.gitlab import access, responses
from sync_pipeline_sandbox.gitlab.endpoint import Ask, Endpoint
from sync_pipeline_sandbox.gitlab.paging import Page
from sync_pipeline_sandbox.gitlab.parameters import PAGING, Parameter, choice, ordered
from sync_pipeline_sandbox.gitlab.records import REPORTER, Group, Project, Row, moment, stamp
from sync_pipeline_sandbox.gitlab.shapes import group_row, project_row, token_row

_FLAG = Parameter("bool", False)
_MAYBE = Parameter("bool")
_TIME = Parameter("time")
_PROJECTS: dict[str, Parameter] = {
    **PAGING,
    **ordered(
        ("created_at", "id", "name", "path", "updated_at", "last_activity_at", "similarity", "star_count")
    ),
    "pagination": Parameter(),
    "archived": _MAYBE,
    "visibility": choice(None, "private", "internal", "public"),
    "min_access_level": Parameter("int"),
    "simple": _FLAG,
    "owned": _FLAG,
    "starred": _FLAG,
    "search": Parameter(),
    "with_merge_requests_enabled": _FLAG,
}
_ALL_PROJECTS = _PROJECTS | {
    "membership": _FLAG,
    "id_after": Parameter("int"),
    "id_before": Parameter("int"),
    "last_activity_after": _TIME,
    "last_activity_before": _TIME,
    "updated_after": _TIME,
    "updated_before": _TIME,
}
_GROUP_PROJECTS = _PROJECTS | {"include_subgroups": _FLAG, "with_shared": Parameter("bool", True)}
_GROUPS: dict[str, Parameter] = {
    **PAGING,
    **ordered(("name", "path", "id", "similarity"), "asc"),
    "pagination": Parameter(),
    "cursor": Parameter(),
    "search": Parameter(),
    "owned": _FLAG,
    "min_access_level": Parameter("int"),
    "top_level_only": _FLAG,
    "skip_groups": Parameter("ints"),
}
_USERS: dict[str, Parameter] = {
    **PAGING,
    **ordered(("id", "name", "username", "created_at", "updated_at")),
    "pagination": Parameter(),
    "cursor": Parameter(),
    "username": Parameter(),
    "search": Parameter(),
}
_MILESTONES: dict[str, Parameter] = {
    **PAGING,
    "state": choice(None, "active", "closed", "all"),
    "iids": Parameter("ints"),
    "title": Parameter(),
    "search": Parameter(),
    "updated_after": _TIME,
    "updated_before": _TIME,
    "include_ancestors": _FLAG,
}


# --- The instance and the token -------------------------------------------------------------------------


def _version(ask: Ask) -> Row:
    return {"version": ask.gitlab.behaviour.version, "revision": "abcdef01234"}


def _metadata(ask: Ask) -> Row:
    behaviour = ask.gitlab.behaviour
    kas = {"enabled": False, "externalUrl": None, "version": None}
    return _version(ask) | {"kas": kas, "enterprise": behaviour.enterprise}


def _own_token(ask: Ask) -> Row:
    if ask.token is None:
        raise responses.unauthorized()
    now = ask.gitlab.clock.now()
    return token_row(ask.token, stamp(now - timedelta(seconds=1)), now.date().isoformat())


# --- People ---------------------------------------------------------------------------------------------


def _current_user(ask: Ask) -> Row:
    if ask.user is None:
        raise responses.unauthorized()
    return ask.gitlab.full_user(ask.user)


def _one_user(ask: Ask) -> Row:
    key = ask.path["id"]
    found = ask.gitlab.users.get(int(key)) if key.isdigit() else None
    if found is None:
        raise responses.not_found("User")
    if not access.is_admin(ask.gitlab, ask.user):
        return found
    return ask.gitlab.full_user(found)


def _users(ask: Ask) -> Page:
    wanted, search = ask.values["username"], ask.values["search"]
    rows = [
        row
        for row in ask.gitlab.users.values()
        if (wanted is None or row["username"].casefold() == wanted.casefold())
        and (search is None or search.casefold() in f"{row['username']} {row['name']}".casefold())
    ]
    order: str = ask.values["order_by"]
    if ask.values["pagination"] == "keyset":
        if order not in ("id", "name", "username"):
            raise responses.keyset_unavailable()
        return _by_cursor(ask, rows, order)
    rows.sort(key=lambda row: (row.get(order) or row["id"], row["id"]), reverse=ask.values["sort"] == "desc")
    return ask.pager().over(rows, kind="User")


# --- Groups ---------------------------------------------------------------------------------------------


def _groups(ask: Ask) -> Page:
    return _list_groups(ask, ask.gitlab.groups.values(), keyset=True)


def _subgroups(ask: Ask) -> Page:
    above = ask.group()
    return _list_groups(ask, (one for one in ask.gitlab.groups.values() if one.parent is above))


def _descendants(ask: Ask) -> Page:
    above = ask.group()
    below = (one for one in ask.gitlab.groups.values() if one is not above and above in one.chain())
    return _list_groups(ask, below)


def _list_groups(ask: Ask, groups: Iterable[Group], *, keyset: bool = False) -> Page:
    gitlab, values = ask.gitlab, ask.values
    least = 50 if values["owned"] else values["min_access_level"] or 0
    found = [
        group
        for group in groups
        if group.kind == "group"
        and access.sees_group(gitlab, group, ask.user)
        and gitlab.level(group, ask.user) >= least
        and not (values["top_level_only"] and group.parent is not None)
        and group.id not in (values["skip_groups"] or [])
        and (values["search"] or "").casefold() in f"{group.name} {group.path}".casefold()
    ]
    order = values["order_by"] if values["order_by"] != "similarity" else "name"
    if keyset and values["pagination"] == "keyset":
        if (order, values["sort"]) != ("name", "asc"):
            raise responses.keyset_unavailable()
        return _by_cursor(ask, [group_row(group) for group in found], "name")
    found.sort(key=lambda group: (getattr(group, order), group.id), reverse=values["sort"] == "desc")
    page = ask.pager().over(found, kind="Group")
    return Page([group_row(group) for group in page.rows], page.headers)


def _one_group(ask: Ask) -> Row:
    group = ask.group()
    row = group_row(group)
    if ask.values["with_projects"]:
        inside = [one for one in _visible(ask) if one.group is group]
        row["projects"] = [project_row(ask.gitlab, one, ask.user) for one in inside[:100]]
        row["shared_projects"] = []
    return row


def _by_cursor(ask: Ask, rows: list[Row], order: str) -> Page:
    """Keyset paging with an opaque cursor over an order and the id."""
    down = ask.values["sort"] == "desc"
    rows = sorted(rows, key=lambda row: (row[order], row["id"]), reverse=down)
    if ask.values["cursor"]:
        try:
            last = tuple(json.loads(base64.urlsafe_b64decode(ask.values["cursor"])))
            rows = [
                row
                for row in rows
                if ((row[order], row["id"]) < last if down else (row[order], row["id"]) > last)
            ]
        except (ValueError, TypeError) as error:
            raise responses.invalid("cursor is invalid") from error

    def following(row: Row) -> dict[str, Any]:
        return {"cursor": base64.urlsafe_b64encode(json.dumps([row[order], row["id"]]).encode()).decode()}

    return ask.pager().keyset(rows, following, full_only=False)


# --- Projects -------------------------------------------------------------------------------------------


def _visible(ask: Ask) -> list[Project]:
    return [one for one in ask.gitlab.projects.values() if access.sees_project(ask.gitlab, one, ask.user)]


def _projects(ask: Ask) -> Page:
    values, found = ask.values, _visible(ask)
    if values["membership"]:
        found = [one for one in found if ask.gitlab.level(one, ask.user)]
    if values["last_activity_after"]:
        found = [one for one in found if one.last_activity_at >= values["last_activity_after"]]
    if values["last_activity_before"]:
        found = [one for one in found if one.last_activity_at <= values["last_activity_before"]]
    if values["order_by"] == "updated_at":
        if values["updated_after"]:
            found = [one for one in found if one.updated_at >= values["updated_after"]]
        if values["updated_before"]:
            found = [one for one in found if one.updated_at <= values["updated_before"]]
    if values["id_after"] is not None:
        found = [one for one in found if one.id > values["id_after"]]
    if values["id_before"] is not None:
        found = [one for one in found if one.id < values["id_before"]]
    found = _filtered(ask, found)
    if values["pagination"] != "keyset":
        return _paged(ask, found)
    if values["order_by"] != "id":
        raise responses.keyset_unavailable()
    key = "id_before" if values["sort"] == "desc" else "id_after"
    page = ask.pager().keyset(found, lambda project: {key: project.id}, full_only=False)
    return Page(_rows(ask, page.rows), page.headers)


def _group_projects(ask: Ask) -> Page:
    group = ask.group()

    def inside(project: Project) -> bool:
        if project.group is group or (ask.values["include_subgroups"] and group in project.group.chain()):
            return True
        return ask.values["with_shared"] and group in project.shared_with

    return _paged(ask, _filtered(ask, [one for one in _visible(ask) if inside(one)]))


def _filtered(ask: Ask, projects: list[Project]) -> list[Project]:
    """The projects that pass the filters of both lists, in the requested order."""
    values, gitlab, user = ask.values, ask.gitlab, ask.user
    least = 50 if values["owned"] else values["min_access_level"] or 0
    found = [
        one
        for one in projects
        if values["archived"] in (None, one.archived)
        and values["visibility"] in (None, one.visibility)
        and gitlab.level(one, user) >= least
        and not values["starred"]
        and (values["search"] or "").casefold() in f"{one.name} {one.path}".casefold()
        and not (values["with_merge_requests_enabled"] and one.merge_requests_access_level == "disabled")
    ]
    order = values["order_by"] if values["order_by"] not in ("similarity", "star_count") else "created_at"
    return sorted(found, key=lambda one: (getattr(one, order), one.id), reverse=values["sort"] == "desc")


def _paged(ask: Ask, projects: list[Project]) -> Page:
    page = ask.pager().over(projects, kind="Project")
    return Page(_rows(ask, page.rows), page.headers)


def _rows(ask: Ask, projects: list[Project]) -> list[Row]:
    simple = ask.values["simple"] or ask.user is None
    return [project_row(ask.gitlab, one, ask.user, simple=simple) for one in projects]


def _one_project(ask: Ask) -> Row:
    project = ask.project()
    row = project_row(ask.gitlab, project, ask.user)
    if ask.values["statistics"] and ask.gitlab.level(project, ask.user) >= REPORTER:
        git = project.repository
        tip = git.resolve(f"refs/heads/{project.default_branch}") if git else None
        count = len(git.shas([tip])) if git and tip else 0
        row["statistics"] = {"commit_count": count, "storage_size": 0, "repository_size": 0}
    return row


def _events(ask: Ask) -> Page:
    project, values = ask.project(), ask.values
    words = {"pushed": ("pushed to", "pushed new", "deleted")}
    names = words.get(values["action"])
    rows = [
        row
        for row in project.events
        if (names is None or row["action_name"] in names)
        and (values["after"] is None or row["created_at"][:10] > values["after"].isoformat())
        and (values["before"] is None or row["created_at"][:10] < values["before"].isoformat())
    ]
    if values["sort"] == "desc":
        rows.reverse()
    return ask.pager().over(rows, in_memory=True)


# --- Milestones -----------------------------------------------------------------------------------------


def _project_milestones(ask: Ask) -> Page:
    project = ask.project()
    return _milestones(ask, project.milestones, project.group.chain())


def _group_milestones(ask: Ask) -> Page:
    group = ask.group()
    return _milestones(ask, group.milestones, group.chain()[1:])


def _milestones(ask: Ask, own: Iterable[Row], above: Iterable[Group]) -> Page:
    """The milestones of a place, and with ``include_ancestors`` those of the groups above that the reader
    sees."""
    values, rows = ask.values, list(own)
    if values["include_ancestors"]:
        rows += [
            row
            for group in above
            if access.sees_group(ask.gitlab, group, ask.user)
            for row in group.milestones
        ]
    found = [
        row
        for row in rows
        if values["state"] in (None, "all", row["state"])
        and (values["iids"] is None or row["iid"] in values["iids"])
        and values["title"] in (None, row["title"])
        and (values["search"] or "").casefold() in f"{row['title']} {row['description']}".casefold()
        and (values["updated_after"] is None or moment(row["updated_at"]) >= values["updated_after"])
        and (values["updated_before"] is None or moment(row["updated_at"]) <= values["updated_before"])
    ]
    return ask.pager().over(sorted(found, key=lambda row: int(row["id"]), reverse=True))


ENDPOINTS = (
    Endpoint("/version", _version, needs_user=True),
    Endpoint("/metadata", _metadata, needs_user=True),
    Endpoint("/personal_access_tokens/self", _own_token, scopes=()),
    Endpoint("/user", _current_user, scopes=("api", "read_api", "read_user")),
    Endpoint("/users", _users, _USERS, scopes=("api", "read_api", "read_user")),
    Endpoint("/users/{id}", _one_user, needs_user=True, scopes=("api", "read_api", "read_user")),
    Endpoint("/groups", _groups, _GROUPS),
    Endpoint("/groups/{id}", _one_group, {"with_projects": Parameter("bool", True)}),
    Endpoint("/groups/{id}/subgroups", _subgroups, _GROUPS),
    Endpoint("/groups/{id}/descendant_groups", _descendants, _GROUPS),
    Endpoint("/groups/{id}/projects", _group_projects, _GROUP_PROJECTS),
    Endpoint("/groups/{id}/milestones", _group_milestones, _MILESTONES),
    Endpoint("/projects", _projects, _ALL_PROJECTS),
    Endpoint("/projects/{id}/milestones", _project_milestones, _MILESTONES),
    Endpoint("/projects/{id}", _one_project, {"statistics": _FLAG}),
    Endpoint(
        "/projects/{id}/events",
        _events,
        PAGING
        | {
            "action": Parameter(),
            "target_type": Parameter(),
            "before": Parameter("date"),
            "after": Parameter("date"),
            "sort": choice("desc", "asc", "desc"),
        },
    ),
)
"""All routes of this module."""
