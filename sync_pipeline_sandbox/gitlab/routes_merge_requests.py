"""Routes for merge requests and what hangs on them: commits, versions, notes, discussions, approvals, events.

Belongs here: filters, order and pages of these lists. How the rows look is
:mod:`sync_pipeline_sandbox.gitlab.shapes`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any

from sync_pipeline_sandbox.gitlab import access, responses
from sync_pipeline_sandbox.gitlab.endpoint import Ask, Endpoint
from sync_pipeline_sandbox.gitlab.paging import Page
from sync_pipeline_sandbox.gitlab.parameters import PAGING, Parameter, choice, ordered
from sync_pipeline_sandbox.gitlab.records import Group, MergeRequest, Note, Project, Row
from sync_pipeline_sandbox.gitlab.shapes import (
    approvals_row,
    discussion_rows,
    merge_request_row,
    version_commits,
)

_FLAG = Parameter("bool", False)
_TIME = Parameter("time")
_ORDERS = ("created_at", "updated_at", "merged_at", "title", "priority", "label_priority", "milestone_due")
_LIST: dict[str, Parameter] = {
    **PAGING,
    **ordered((*_ORDERS, "popularity")),
    "state": choice("all", "opened", "closed", "locked", "merged", "all"),
    "scope": choice("all", "created_by_me", "created-by-me", "assigned_to_me", "reviews_for_me", "all"),
    "created_after": _TIME,
    "created_before": _TIME,
    "updated_after": _TIME,
    "updated_before": _TIME,
    "view": choice(None, "simple"),
    "with_labels_details": _FLAG,
    "with_merge_status_recheck": _FLAG,
    "author_id": Parameter("int"),
    "author_username": Parameter(),
    "assignee_id": Parameter(),
    "reviewer_id": Parameter(),
    "reviewer_username": Parameter(),
    "approved_by_ids": Parameter("texts"),
    "labels": Parameter("texts"),
    "milestone": Parameter(),
    "search": Parameter(),
    "source_branch": Parameter(),
    "target_branch": Parameter(),
    "wip": choice(None, "yes", "no"),
    "draft": Parameter("bool"),
}
_PROJECT_LIST = _LIST | {"iids": Parameter("ints")}
_GROUP_LIST = _LIST | {"non_archived": Parameter("bool", True)}
_MINE = choice("created_by_me", "created_by_me", "created-by-me", "assigned_to_me", "reviews_for_me", "all")
_INSTANCE_LIST = _LIST | {"scope": _MINE, "non_archived": _FLAG}
_NOTES: dict[str, Parameter] = {
    **PAGING,
    **ordered(("created_at", "updated_at")),
    "activity_filter": choice("all_notes", "all_notes", "only_comments", "only_activity"),
}


_BY_CREATION: Callable[[MergeRequest], Any] = attrgetter("created_at")
_ORDER: dict[str, Callable[[MergeRequest], Any]] = {
    "updated_at": attrgetter("updated_at"),
    "title": lambda request: request.row["title"],
    "merged_at": lambda request: request.row["merged_at"] or "",
}
"""Orders of lists; any other order means the creation."""


# --- Lists ----------------------------------------------------------------------------------------------


def _of_project(ask: Ask) -> Page:
    project = ask.project()
    if not access.may(ask.gitlab, project, ask.user, "merge_requests"):
        raise responses.forbidden()
    return _listed(ask, list(project.merge_requests.values()))


def _of_group(ask: Ask) -> Page:
    group = ask.group()
    projects = (one for one in ask.gitlab.projects.values() if group in one.group.chain())
    return _listed(ask, _readable(ask, projects), below=group)


def _of_instance(ask: Ask) -> Page:
    if ask.user is None and ask.values["scope"] != "all":
        raise responses.unauthorized()
    return _listed(ask, _readable(ask, ask.gitlab.projects.values()))


def _readable(ask: Ask, projects: Iterable[Project]) -> list[MergeRequest]:
    return [
        request
        for project in projects
        if access.sees_project(ask.gitlab, project, ask.user)
        and access.may(ask.gitlab, project, ask.user, "merge_requests")
        and not (ask.values["non_archived"] and project.archived)
        for request in project.merge_requests.values()
    ]


def _listed(ask: Ask, requests: list[MergeRequest], *, below: Group | None = None) -> Page:
    values = ask.values
    for test in _tests(ask):
        requests = list(filter(test, requests))
    # Equal values are ordered by id, the newest first, whatever the direction.
    requests.sort(key=attrgetter("id"), reverse=True)
    if ask.gitlab.behaviour.unstable_ties:
        random.Random(len(ask.gitlab.journal.entries)).shuffle(requests)
    requests.sort(key=_ORDER.get(values["order_by"], _BY_CREATION), reverse=values["sort"] == "desc")
    page = ask.pager().over(requests)
    rows = [
        merge_request_row(
            ask.gitlab,
            ask.gitlab.projects[request.row["project_id"]],
            request,
            below=below,
            label_details=values["with_labels_details"],
            simple=values["view"] == "simple",
        )
        for request in page.rows
    ]
    return Page(rows, page.headers)


def _tests(ask: Ask) -> list[Callable[[MergeRequest], bool]]:
    """The filters that are in use, each as a test of one merge request."""
    values, me = ask.values, ask.user["id"] if ask.user else None
    tests: list[Callable[[MergeRequest], bool]] = []

    def use(name: str, test: Callable[[MergeRequest, Any], bool]) -> None:
        value = values.get(name)
        if value is not None:
            tests.append(lambda request: test(request, value))

    def within(name: str, read: Callable[[MergeRequest], datetime]) -> None:
        use(f"{name}_after", lambda request, bound: read(request) >= bound)
        use(f"{name}_before", lambda request, bound: read(request) <= bound)

    if values["state"] != "all":
        use("state", lambda request, state: request.row["state"] == state)
    match values["scope"].replace("-", "_"):
        case "created_by_me":
            tests.append(lambda request: _person(request.row["author"]) == me)
        case "assigned_to_me":
            tests.append(lambda request: me in _people(request, "assignees"))
        case "reviews_for_me":
            tests.append(lambda request: me in _people(request, "reviewers"))
    within("created", lambda request: request.created_at)
    within("updated", lambda request: request.updated_at)
    use("iids", lambda request, iids: request.iid in iids)
    use("author_id", lambda request, number: _person(request.row["author"]) == number)
    use("author_username", lambda request, name: (request.row["author"] or {}).get("username") == name)
    use("assignee_id", lambda request, wanted: _among(wanted, _people(request, "assignees")))
    use("reviewer_id", lambda request, wanted: _among(wanted, _people(request, "reviewers")))
    use(
        "reviewer_username",
        lambda request, name: name in [user["username"] for user in request.row.get("reviewers", [])],
    )
    use(
        "approved_by_ids",
        lambda request, wanted: all(
            _among(one, [approval["user"]["id"] for approval in request.approved_by]) for one in wanted
        ),
    )
    use("labels", lambda request, wanted: all(_among(one, request.row["labels"]) for one in wanted))
    use("milestone", lambda request, title: (request.row["milestone"] or {}).get("title") == title)
    use("source_branch", lambda request, name: request.row["source_branch"] == name)
    use("target_branch", lambda request, name: request.row["target_branch"] == name)
    use("draft", lambda request, flag: bool(request.row.get("draft")) == flag)
    use("wip", lambda request, flag: bool(request.row.get("draft")) == (flag == "yes"))
    use(
        "search",
        lambda request, text: (
            text.casefold() in f"{request.row['title']} {request.row['description']}".casefold()
        ),
    )
    return tests


def _person(user: Row | None) -> Any:
    return user["id"] if user else None


def _people(request: MergeRequest, key: str) -> list[int]:
    return [user["id"] for user in request.row.get(key) or []]


def _among(wanted: str, values: list[Any]) -> bool:
    """Whether a filter value that may be ``Any`` or ``None`` fits."""
    if wanted.casefold() in ("any", "none"):
        return bool(values) == (wanted.casefold() == "any")
    return wanted in [str(value) for value in values]


# --- One merge request ----------------------------------------------------------------------------------


def _one(ask: Ask) -> Row:
    project = ask.project()
    row = merge_request_row(ask.gitlab, project, ask.merge_request(project), detail=True)
    if ask.values["include_rebase_in_progress"]:
        row["rebase_in_progress"] = False
    return row


def _commits(ask: Ask) -> Page:
    project = ask.project()
    request = ask.merge_request(project)
    versions = request.versions
    rows = version_commits(project, request, versions[-1]) if versions else []
    # The server reads this list from its database, which has no parents.
    return ask.pager().over([row | {"parent_ids": []} for row in rows])


def _versions(ask: Ask) -> Page:
    return ask.pager().over(list(reversed(ask.merge_request(ask.project()).versions)))


def _one_version(ask: Ask) -> Row:
    project = ask.project()
    request = ask.merge_request(project)
    found = [one for one in request.versions if str(one["id"]) == ask.path["version_id"]]
    if not found:
        raise responses.not_found()
    version, git = found[0], project.repository
    base, head = version["base_commit_sha"], version["head_commit_sha"]
    diffs = git.diff(base, head) if git and base and head and git.resolve(head) and git.resolve(base) else []
    return version | {"commits": version_commits(project, request, version), "diffs": diffs}


def _diffs(ask: Ask) -> Page:
    project = ask.project()
    request = ask.merge_request(project)
    version, git = (request.versions or [{}])[-1], project.repository
    base, head = version.get("base_commit_sha"), version.get("head_commit_sha")
    found = git.diff(base, head) if git and base and head and git.resolve(head) and git.resolve(base) else []
    return ask.pager().over(found)


def _notes(ask: Ask) -> Page:
    project = ask.project()
    request, values = ask.merge_request(project), ask.values
    notes = list(request.notes)
    if values["activity_filter"] != "all_notes":
        system = values["activity_filter"] == "only_activity"
        notes = [note for note in notes if note.row["system"] == system]

    def key(note: Note) -> Any:
        return (note.row["updated_at"] if values["order_by"] == "updated_at" else "", note.row["id"])

    notes.sort(key=key, reverse=values["sort"] == "desc")
    page = ask.pager().over(notes)
    # Cut first, then filter: pages can be short or empty and not be the last.
    return Page(_seen(ask, project, page.rows), page.headers)


def _seen(ask: Ask, project: Project, notes: Iterable[Note]) -> list[Row]:
    return [note.row for note in notes if access.sees_note(ask.gitlab, project, ask.user, note)]


def _one_note(ask: Ask) -> Row:
    project = ask.project()
    wanted = [one for one in ask.merge_request(project).notes if str(one.row["id"]) == ask.path["note_id"]]
    rows = _seen(ask, project, wanted)
    if not rows:
        raise responses.not_found("Note")
    return rows[0]


def _discussions(ask: Ask) -> Page:
    project = ask.project()
    request = ask.merge_request(project)
    ids = list(dict.fromkeys(note.discussion_id for note in request.notes))
    page = ask.pager().over(ids)
    return Page(_threads(ask, project, request, set(page.rows)), page.headers)


def _one_discussion(ask: Ask) -> Row:
    project = ask.project()
    found = _threads(ask, project, ask.merge_request(project), {ask.path["discussion_id"]})
    if not found:
        raise responses.not_found("Discussion")
    return found[0]


def _threads(ask: Ask, project: Project, request: MergeRequest, ids: set[str]) -> list[Row]:
    notes = [note for note in request.notes if note.discussion_id in ids]
    return discussion_rows(note for note in notes if access.sees_note(ask.gitlab, project, ask.user, note))


def _approvals(ask: Ask) -> Row:
    return approvals_row(ask.gitlab, ask.merge_request(ask.project()), ask.user)


def _approval_state(ask: Ask) -> Row:
    if not ask.gitlab.behaviour.premium:
        raise responses.no_route()
    ask.merge_request(ask.project())
    return {"approval_rules_overwritten": False, "rules": []}


def _reviewers(ask: Ask) -> list[Row]:
    return list(ask.merge_request(ask.project()).reviewers)


def _participants(ask: Ask) -> list[Row]:
    request = ask.merge_request(ask.project())
    people = [request.row["author"], *request.row["assignees"], *request.row.get("reviewers", [])]
    people += [note.row["author"] for note in request.notes if not note.row["system"]]
    return list({user["id"]: user for user in people if user}.values())


def _award_emoji(ask: Ask) -> Page:
    """Reactions to a merge request or a note: nobody reacts here."""
    ask.merge_request(ask.project())
    return ask.pager().over([])


def _events(kind: str) -> tuple[Callable[[Ask], Page], Callable[[Ask], Row]]:
    """The list of one kind of resource event, and a single one."""

    def several(ask: Ask) -> Page:
        return ask.pager().over(getattr(ask.merge_request(ask.project()), f"{kind}_events"))

    def one(ask: Ask) -> Row:
        rows = getattr(ask.merge_request(ask.project()), f"{kind}_events")
        found: list[Row] = [row for row in rows if str(row["id"]) == ask.path["event_id"]]
        if not found:
            raise responses.not_found()
        return found[0]

    return several, one


_ONE = "/projects/{id}/merge_requests/{merge_request_iid}"
_NOTED = "/projects/{id}/merge_requests/{noteable_id}"
_EVENTS = "/projects/{id}/merge_requests/{eventable_id}"
ENDPOINTS = (
    Endpoint("/merge_requests", _of_instance, _INSTANCE_LIST),
    Endpoint("/groups/{id}/merge_requests", _of_group, _GROUP_LIST),
    Endpoint("/projects/{id}/merge_requests", _of_project, _PROJECT_LIST),
    Endpoint(
        _ONE,
        _one,
        {
            "render_html": _FLAG,
            "include_diverged_commits_count": _FLAG,
            "include_rebase_in_progress": _FLAG,
        },
    ),
    Endpoint(f"{_ONE}/commits", _commits, PAGING),
    Endpoint(f"{_ONE}/diffs", _diffs, PAGING),
    Endpoint(f"{_ONE}/versions", _versions, PAGING, needs_user=True),
    Endpoint(f"{_ONE}/versions/{{version_id}}", _one_version, needs_user=True),
    Endpoint(f"{_NOTED}/notes", _notes, _NOTES, needs_user=True),
    Endpoint(f"{_NOTED}/notes/{{note_id}}", _one_note, needs_user=True),
    Endpoint(f"{_NOTED}/notes/{{note_id}}/award_emoji", _award_emoji, PAGING),
    Endpoint(f"{_NOTED}/award_emoji", _award_emoji, PAGING),
    Endpoint(f"{_NOTED}/discussions", _discussions, PAGING, needs_user=True),
    Endpoint(f"{_NOTED}/discussions/{{discussion_id}}", _one_discussion, needs_user=True),
    Endpoint(f"{_ONE}/approvals", _approvals),
    Endpoint(f"{_ONE}/approval_state", _approval_state),
    Endpoint(f"{_ONE}/reviewers", _reviewers),
    Endpoint(f"{_ONE}/participants", _participants),
    *(
        Endpoint(f"{_EVENTS}/resource_{kind}_events{tail}", answer, PAGING if not tail else {})
        for kind in ("state", "label", "milestone")
        for tail, answer in zip(("", "/{event_id}"), _events(kind), strict=True)
    ),
)
"""All routes of this module."""
