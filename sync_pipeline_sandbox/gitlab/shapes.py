"""The JSON of groups, projects, merge requests, notes, tokens and commits.

Belongs here: building rows from the data of the server. The routes decide which rows are sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sync_pipeline_sandbox.gitlab import access
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.git import GitError
from sync_pipeline_sandbox.gitlab.records import (
    EXTERNAL,
    Group,
    MergeRequest,
    Note,
    Project,
    Row,
    Token,
    stamp,
)

SIMPLE = ("id", "iid", "project_id", "title", "description", "state", "created_at", "updated_at", "web_url")
_LATE = {
    "reviewers",
    "merge_user",
    "detailed_merge_status",
    "prepared_at",
    "merge_after",
    "imported",
    "imported_from",
    "internal",
    "approved_at",
    "patch_id_sha",
    "extended_trailers",
    "public_email",
    "locked",
    "squash_on_merge",
    "generated_file",
}


def aged(value: Any) -> Any:
    """A value without the fields that came late, as an old server answers."""
    if isinstance(value, dict):
        return {key: aged(one) for key, one in value.items() if key not in _LATE}
    return [aged(one) for one in value] if isinstance(value, list) else value


def group_row(group: Group) -> Row:
    """A group."""
    return {
        "id": group.id,
        "web_url": f"{EXTERNAL}/groups/{group.full_path}",
        "name": group.name,
        "path": group.path,
        "description": "",
        "visibility": group.visibility,
        "full_name": group.full_name,
        "full_path": group.full_path,
        "created_at": stamp(group.created_at),
        "parent_id": group.parent.id if group.parent else None,
        "avatar_url": None,
        "archived": group.archived,
    }


def project_row(gitlab: GitLab, project: Project, user: Row | None, *, simple: bool = False) -> Row:
    """A project as this reader sees it."""
    here, api = f"{EXTERNAL}/{project.full_path}", f"{EXTERNAL}/api/v4/projects/{project.id}"
    host = EXTERNAL.split("://", 1)[1]
    group = project.group
    kind = "" if group.kind == "user" else "groups/"
    row: Row = {
        "id": project.id,
        "description": None,
        "name": project.name,
        "name_with_namespace": f"{group.full_name} / {project.name}",
        "path": project.path,
        "path_with_namespace": project.full_path,
        "created_at": stamp(project.created_at),
        "default_branch": project.default_branch,
        "tag_list": [],
        "topics": [],
        "ssh_url_to_repo": f"git@{host}:{project.full_path}.git",
        "http_url_to_repo": f"{here}.git",
        "web_url": here,
        "readme_url": f"{here}/-/blob/{project.default_branch}/README.md",
        "forks_count": 0,
        "avatar_url": None,
        "star_count": 0,
        "last_activity_at": stamp(project.last_activity_at),
        "namespace": {
            "id": group.id,
            "name": group.name,
            "path": group.path,
            "kind": group.kind,
            "full_path": group.full_path,
            "parent_id": group.parent.id if group.parent else None,
            "avatar_url": None,
            "web_url": f"{EXTERNAL}/{kind}{group.full_path}",
        },
    }
    if not access.may(gitlab, project, user, "repository"):
        del row["default_branch"], row["readme_url"]
    if simple:
        return row
    merge_requests = project.merge_requests_access_level
    row |= {
        "_links": {
            "self": api,
            "merge_requests": f"{api}/merge_requests",
            "repo_branches": f"{api}/repository/branches",
            "labels": f"{api}/labels",
            "events": f"{api}/events",
            "members": f"{api}/members",
        },
        "empty_repo": project.repository is None or project.repository.is_empty(),
        "archived": project.archived,
        "visibility": project.visibility,
        "creator_id": project.creator_id,
        "updated_at": stamp(project.updated_at),
        "merge_requests_enabled": merge_requests != "disabled",
        "repository_access_level": project.repository_access_level,
        "merge_requests_access_level": merge_requests,
        "issues_enabled": True,
        "import_status": "none",
        "merge_method": "merge",
        "squash_option": "default_off",
    }
    if project.marked_for_deletion_on is not None:
        row["marked_for_deletion_on"] = project.marked_for_deletion_on.isoformat()
    if user is not None:
        own = project.members.get(int(user["id"]))
        above = max((one.members.get(int(user["id"]), 0) for one in group.chain()), default=0)
        row["permissions"] = {
            "project_access": {"access_level": own, "notification_level": 3} if own else None,
            "group_access": {"access_level": above, "notification_level": 3} if above else None,
        }
    return row


def merge_request_row(
    gitlab: GitLab,
    project: Project,
    request: MergeRequest,
    *,
    below: Group | None = None,
    label_details: bool = False,
    simple: bool = False,
    detail: bool = False,
) -> Row:
    """A merge request; ``below`` is the group whose list it is in. A recorded row keeps its own address."""
    row = dict(request.row)
    row["created_at"], row["updated_at"] = stamp(request.created_at), stamp(request.updated_at)
    iid, path = request.iid, project.full_path
    if row.get("references") is None:
        inside = path.removeprefix(f"{below.full_path}/") if below else ""
        row["references"] = {"short": f"!{iid}", "relative": f"{inside}!{iid}", "full": f"{path}!{iid}"}
    if row.get("web_url") is None:
        row["web_url"] = f"{EXTERNAL}/{path}/-/merge_requests/{iid}"
    if simple:
        return {key: row[key] for key in SIMPLE}
    if label_details:
        row["labels"] = [project.labels.get(name, {"name": name}) for name in row["labels"]]
    if gitlab.behaviour.premium:
        row.setdefault("approvals_before_merge", None)
    return row | request.detail if detail else row


def approvals_row(gitlab: GitLab, request: MergeRequest, user: Row | None) -> Row:
    """Who approves now, in the form of the edition."""
    by = list(request.approved_by)
    mine = user is not None and any(one["user"]["id"] == user["id"] for one in by)
    if not gitlab.behaviour.premium:
        return {
            "user_has_approved": mine,
            "user_can_approve": False,
            "approved": bool(by),
            "approved_by": by,
        }
    keys = ("id", "iid", "project_id", "title", "description", "state")
    return {key: request.row[key] for key in keys} | {
        "created_at": stamp(request.created_at),
        "updated_at": stamp(request.updated_at),
        "merge_status": request.row.get("merge_status"),
        "approved": True,
        "approvals_required": 0,
        "approvals_left": 0,
        "require_password_to_approve": False,
        "approved_by": by,
        "suggested_approvers": [],
        "approvers": [],
        "approver_groups": [],
        "user_has_approved": mine,
        "user_can_approve": False,
        "approval_rules_left": [],
        "has_approval_rules": False,
        "merge_request_approvers_available": True,
        "multiple_approval_rules_available": True,
        "invalid_approvers_rules": [],
    }


def discussion_rows(notes: Iterable[Note]) -> list[Row]:
    """Notes as threads, oldest thread first."""
    threads: dict[str, list[Note]] = {}
    for note in notes:
        threads.setdefault(note.discussion_id, []).append(note)
    return [
        {"id": key, "individual_note": found[0].individual, "notes": [note.row for note in found]}
        for key, found in threads.items()
    ]


def token_row(token: Token, now: str, today: str) -> Row:
    """The token that asks, about itself."""
    expires = token.expires_at.isoformat() if token.expires_at else None
    return {
        "id": token.id,
        "name": token.name,
        "revoked": token.revoked,
        "created_at": stamp(token.created_at),
        "description": "",
        "scopes": list(token.scopes),
        "user_id": token.user["id"],
        "last_used_at": now,
        "active": not token.revoked and (expires is None or expires > today),
        "expires_at": expires,
    }


def with_address(project: Project, commits: Iterable[Row]) -> list[Row]:
    """Commit rows with their address in a project."""
    return [row | {"web_url": f"{EXTERNAL}/{project.full_path}/-/commit/{row['id']}"} for row in commits]


def version_commits(project: Project, request: MergeRequest, version: Row) -> list[Row]:
    """Commits of a version, newest first. Those that git threw away are left out."""
    if version["id"] in request.commits:
        return with_address(project, request.commits[version["id"]])
    head, base = version["head_commit_sha"], version["base_commit_sha"]
    if project.repository is None or head is None:
        return []
    try:
        shas = project.repository.shas([head, *([f"^{base}"] if base else [])])
        return with_address(project, project.repository.commits(shas))
    except GitError:
        return []
