"""The values of GraphQL answers: projects, merge requests, notes and people as the schema has them.

Belongs here: access to rows, the difference between REST and GraphQL rows, and connections with cursors.
Times are in whole seconds, ids are global ones. Rows that a reader may not see are left out without an error.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from graphql import GraphQLEnumType, GraphQLError

from sync_pipeline_sandbox.gitlab import access
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.graphql_schema import PAGE_SIZE, Cost, schema
from sync_pipeline_sandbox.gitlab.records import DEVELOPER, EXTERNAL, MergeRequest, Note, Project, Row, moment
from sync_pipeline_sandbox.gitlab.shapes import version_commits

_COMMITS_WITH_NOTES = 100
"""GitLab looks for notes on that many of the newest commits of a merge request."""
_ACTIONS = (
    ("approved this merge request", "approved", "check-circle"),
    ("unapproved this merge request", "unapproved", "close"),
    ("requested changes", "requested_changes", "error"),
    ("requested review from", "reviewer", "user"),
    ("removed review request", "reviewer", "user"),
    ("assigned to", "assignee", "user"),
    ("added ", "commit", "commit"),
    ("changed title", "title", "pencil"),
    ("changed the description", "description", "pencil"),
)
"""First words of a system note, its action, and the name of its icon."""

Resolver = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks, and what the query costs. ``user`` None asks without a token and sees public data only."""

    gitlab: GitLab
    user: Row | None
    cost: Cost
    limit: int
    """The complexity that this reader may use."""

    def root(self) -> dict[str, Any]:
        """The fields of ``Query``."""
        behaviour = self.gitlab.behaviour
        return {
            "currentUser": _user(self.user),
            "metadata": self.user
            and {"version": behaviour.version, "revision": "abcdef01234", "enterprise": behaviour.enterprise},
            "queryComplexity": {"score": self.cost.complexity, "limit": self.limit},
            "project": self._project_at,
        }

    def _project_at(self, _: Any, fullPath: str) -> Row | None:
        found, old = self.gitlab.find_project(fullPath)
        # A number is no path, and old paths lead nowhere here.
        if found is None or old or fullPath.isdigit():
            return None
        return self.project(found) if access.sees_project(self.gitlab, found, self.user) else None

    # --- Projects and lists -----------------------------------------------------------------------------

    def project(self, project: Project) -> Row:
        """A project that the reader sees."""
        return {
            "id": f"gid://gitlab/Project/{project.id}",
            "fullPath": project.full_path,
            "archived": project.archived,
            "mergeRequest": lambda _, iid: self._one(project, iid),
            "mergeRequests": lambda _, **arguments: self._list(project, **arguments),
        }

    def _readable(self, project: Project) -> list[MergeRequest]:
        if not access.may(self.gitlab, project, self.user, "merge_requests"):
            return []
        return list(project.merge_requests.values())

    def _one(self, project: Project, iid: str) -> Row | None:
        found = [one for one in self._readable(project) if str(one.iid) == iid]
        return self.merge_request(project, found[0]) if found else None

    def _list(
        self,
        project: Project,
        iids: list[str] | None = None,
        state: str | None = None,
        updatedAfter: str | None = None,
        updatedBefore: str | None = None,
        sort: str = "CREATED_DESC",
        **page: Any,
    ) -> Row:
        since, until = _bound(updatedAfter), _bound(updatedBefore)
        found = [
            one
            for one in self._readable(project)
            if (iids is None or str(one.iid) in iids)
            and state in (None, "all", one.row["state"])
            and (since is None or one.updated_at >= since)
            and (until is None or one.updated_at <= until)
        ]
        order, _, direction = sort.rpartition("_")
        down = direction == "DESC"

        def key(one: MergeRequest) -> list[Any]:
            at = one.updated_at if order == "UPDATED" else one.created_at
            return [at.isoformat(timespec="microseconds"), one.id]

        found.sort(key=key, reverse=down)
        connection = _connection(
            found, lambda one: self.merge_request(project, one), key, sort, down=down, **page
        )
        limit = self.gitlab.behaviour.graphql.max_rows
        if limit is not None and len(connection["nodes"]) > limit:
            raise GraphQLError("Timeout on Project.mergeRequests")
        return connection

    # --- Merge requests ---------------------------------------------------------------------------------

    def merge_request(self, project: Project, request: MergeRequest) -> Row | None:
        """A merge request. Fields that cost much are made when the query has them."""
        row, refs = request.row, request.detail.get("diff_refs") or {}
        status, detailed = row.get("merge_status"), (row.get("detailed_merge_status") or "").upper()
        value: Row = {
            "id": f"gid://gitlab/MergeRequest/{request.id}",
            "iid": str(request.iid),
            "projectId": project.id,
            "sourceProjectId": row["source_project_id"],
            "targetProjectId": project.id,
            "project": lambda _: self.project(project),
            "title": row["title"],
            "description": row["description"],
            "state": row["state"],
            "draft": bool(row.get("draft") or row.get("work_in_progress")),
            "sourceBranch": row["source_branch"],
            "targetBranch": row["target_branch"],
            "createdAt": _seconds(request.created_at),
            "updatedAt": _seconds(request.updated_at),
            "mergedAt": _shown(row.get("merged_at")),
            "closedAt": _shown(row.get("closed_at")),
            "preparedAt": _shown(row.get("prepared_at")),
            "mergeAfter": _shown(row.get("merge_after")),
            "author": lambda _: self._participant(project, request, row["author"]),
            "assignees": self._people(project, request, row["assignees"]),
            "reviewers": self._people(
                project, request, [one["user"] for one in request.reviewers], _states(request)
            ),
            "approved": bool(request.approved_by) or self.gitlab.behaviour.premium,
            "approvedBy": _by_position([one["user"] for one in request.approved_by], _user),
            "mergeUser": _user(row.get("merge_user") or row.get("merged_by")),
            "diffHeadSha": row.get("sha"),
            "diffRefs": _diff_refs(refs) if refs else None,
            "mergeCommitSha": row.get("merge_commit_sha"),
            "mergeStatusEnum": (status or "unchecked").upper(),
            "detailedMergeStatus": detailed if detailed in _known("DetailedMergeStatus") else None,
            "commitCount": lambda _: len(_commits(project, request)),
            "commits": lambda _, **page: self._commit_list(project, request, **page),
            "labels": _by_position(row["labels"], lambda name: _label(project, name)),
            "milestone": _milestone(row.get("milestone")),
            "userNotesCount": row.get("user_notes_count"),
            "userDiscussionsCount": lambda _: sum(
                not notes[0].row["system"] for notes in self._threads(project, request).values()
            ),
            "resolvableDiscussionsCount": lambda _: len(self._resolvable(project, request)),
            "resolvedDiscussionsCount": lambda _: sum(
                _is_resolved(notes) for notes in self._resolvable(project, request)
            ),
            "upvotes": row["upvotes"],
            "downvotes": row["downvotes"],
            "discussionLocked": bool(row.get("discussion_locked")),
            "squash": bool(row.get("squash")),
            "webUrl": row.get("web_url") or f"{EXTERNAL}/{project.full_path}/-/merge_requests/{request.iid}",
            "reference": lambda _, full: f"{project.full_path if full else ''}!{request.iid}",
            "notes": lambda _, **page: self._note_list(
                project, request, self._notes(project, request), **page
            ),
            "discussions": lambda _, **page: self._discussion_list(project, request, **page),
        }
        return self._troubled(request, value)

    def _troubled(self, request: MergeRequest, value: Row) -> Row | None:
        """The merge request with the trouble that the control object has for it."""
        trouble = self.gitlab.behaviour.graphql
        if request.iid in trouble.null_rows:
            return None
        for name in trouble.null_fields.get(request.iid, ()):
            value[name] = None
        for name in trouble.failing_fields.get(request.iid, ()):
            value[name] = _fail
        return value

    def _participant(
        self, project: Project, request: MergeRequest, user: Row | None, state: str | None = None
    ) -> Row | None:
        if user is None:
            return None
        may_merge = self.gitlab.level(project, user) >= DEVELOPER
        shown: Row = _user(user)
        return shown | {
            "mergeRequestInteraction": {
                "canMerge": may_merge,
                "canUpdate": may_merge,
                "reviewState": state and state.upper(),
                "reviewed": state not in (None, "unreviewed"),
                "approved": any(one["user"]["id"] == user["id"] for one in request.approved_by),
            }
        }

    def _people(
        self,
        project: Project,
        request: MergeRequest,
        users: Sequence[Row],
        states: dict[int, str] | None = None,
    ) -> Resolver:
        return _by_position(
            users, lambda user: self._participant(project, request, user, (states or {}).get(user["id"]))
        )

    def _commit_list(self, project: Project, request: MergeRequest, **page: Any) -> Row:
        by_email = {
            address: user
            for user in self.gitlab.users.values()
            for address in (user.get("public_email"), f"{user['username']}@example.test")
            if address
        }
        answer: Row = _by_position(
            _commits(project, request), lambda row: _commit(row, by_email.get(row["author_email"]))
        )(None, **page)
        return answer

    # --- Notes and discussions --------------------------------------------------------------------------

    def _notes(self, project: Project, request: MergeRequest) -> list[Note]:
        """Notes of the merge request, with what people wrote on its newest commits."""
        newest = {row["id"] for row in _commits(project, request)[:_COMMITS_WITH_NOTES]}
        on_commits = [note for note in project.commit_notes if note.row["commit_id"] in newest]
        return sorted(
            (
                note
                for note in [*request.notes, *on_commits]
                if access.sees_note(self.gitlab, project, self.user, note)
            ),
            key=lambda note: int(note.row["id"]),
        )

    def _threads(self, project: Project, request: MergeRequest) -> dict[str, list[Note]]:
        threads: dict[str, list[Note]] = {}
        for note in self._notes(project, request):
            threads.setdefault(note.discussion_id, []).append(note)
        return threads

    def _resolvable(self, project: Project, request: MergeRequest) -> list[list[Note]]:
        threads = self._threads(project, request).values()
        return [notes for notes in threads if any(note.row.get("resolvable") for note in notes)]

    def _note_list(self, project: Project, request: MergeRequest, notes: Sequence[Note], **page: Any) -> Row:
        def value(note: Note) -> Row:
            return _note(project, request, note) | {
                "discussion": lambda _: self._discussion(
                    project, request, self._threads(project, request)[note.discussion_id]
                )
            }

        return _connection(notes, value, lambda note: [int(note.row["id"])], "note", down=False, **page)

    def _discussion_list(self, project: Project, request: MergeRequest, **page: Any) -> Row:
        threads = list(self._threads(project, request).values())
        answer: Row = _by_position(threads, lambda notes: self._discussion(project, request, notes))(
            None, **page
        )
        return answer

    def _discussion(self, project: Project, request: MergeRequest, notes: Sequence[Note]) -> Row:
        number = f"gid://gitlab/Discussion/{notes[0].discussion_id}"
        closing = [note for note in notes if note.row.get("resolved")]
        resolved = _is_resolved(notes)
        return {
            "id": number,
            "replyId": number,
            "createdAt": _shown(notes[0].row["created_at"]),
            "notes": lambda _, **page: self._note_list(project, request, notes, **page),
            "resolvable": any(note.row.get("resolvable") for note in notes),
            "resolved": resolved,
            "resolvedAt": _shown(closing[-1].row["resolved_at"]) if resolved else None,
            "resolvedBy": _user(closing[-1].row["resolved_by"]) if resolved else None,
        }


def _fail(*_: Any, **__: Any) -> None:
    raise GraphQLError(
        "The git server, Gitaly, is not available at this time. Please contact your administrator."
    )


def _bound(text: str | None) -> datetime | None:
    try:
        at = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise GraphQLError(f"{text!r} is not a valid time") from error
    return at.replace(tzinfo=UTC) if at and at.tzinfo is None else at


def _known(name: str) -> dict[str, Any]:
    """The values of an enumeration."""
    found = schema().type_map[name]
    assert isinstance(found, GraphQLEnumType)
    return found.values


def _is_resolved(notes: Sequence[Note]) -> bool:
    asked = [note.row for note in notes if note.row.get("resolvable")]
    return bool(asked) and all(row.get("resolved") for row in asked)


def _states(request: MergeRequest) -> dict[int, str]:
    return {one["user"]["id"]: one["state"] for one in request.reviewers}


def _commits(project: Project, request: MergeRequest) -> list[Row]:
    return version_commits(project, request, request.versions[-1]) if request.versions else []


# --- Rows -----------------------------------------------------------------------------------------------


def _seconds(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _shown(text: str | None) -> str | None:
    """A time of a REST row, cut to whole seconds."""
    return None if text is None else _seconds(moment(text))


def _user(user: Row | None) -> Any:
    return user and {
        "id": f"gid://gitlab/User/{user['id']}",
        "username": user["username"],
        "name": user["name"],
        "publicEmail": user.get("public_email") or None,
        "bot": False,
        "webUrl": user["web_url"],
    }


def _diff_refs(refs: Row) -> Row:
    return {"baseSha": refs["base_sha"], "headSha": refs["head_sha"], "startSha": refs["start_sha"]}


def _label(project: Project, name: str) -> Row:
    label = project.labels.get(name) or {"id": 0, "color": "#428BCA"}
    return {"id": f"gid://gitlab/ProjectLabel/{label['id']}", "title": name, "color": label["color"]}


def _milestone(row: Row | None) -> Row | None:
    return row and {
        "id": f"gid://gitlab/Milestone/{row['id']}",
        "iid": str(row["iid"]),
        "title": row["title"],
        "state": row["state"],
    }


def _commit(row: Row, author: Row | None) -> Row:
    return {
        "id": f"gid://gitlab/Commit/{row['id']}",
        "sha": row["id"],
        "shortId": row["short_id"],
        "title": row["title"],
        "message": row["message"],
        "parentSha": row["parent_ids"][0] if row["parent_ids"] else None,
        "authoredDate": _shown(row["authored_date"]),
        "committedDate": _shown(row["committed_date"]),
        "authorName": row["author_name"],
        "authorEmail": row["author_email"],
        "committerName": row["committer_name"],
        "committerEmail": row["committer_email"],
        "author": _user(author),
        "webUrl": row["web_url"],
    }


def _note(project: Project, request: MergeRequest, note: Note) -> Row:
    row, position = note.row, note.row.get("position")
    on_commit = row["noteable_type"] == "Commit"
    place = f"commit/{row['commit_id']}" if on_commit else f"merge_requests/{request.iid}"
    action, icon = _action(row)
    return {
        "id": f"gid://gitlab/{row['type'] or 'Note'}/{row['id']}",
        "body": row["body"],
        "author": _user(row["author"]),
        "createdAt": _shown(row["created_at"]),
        "updatedAt": _shown(row["updated_at"]),
        "lastEditedAt": _shown(row["updated_at"]) if row["updated_at"] != row["created_at"] else None,
        "system": row["system"],
        "systemNoteIconName": icon,
        "systemNoteMetadata": action
        and {"id": f"gid://gitlab/SystemNoteMetadata/{row['id']}", "action": action},
        "internal": bool(row.get("internal") or row.get("confidential")),
        "imported": bool(row.get("imported")),
        "noteableType": row["noteable_type"],
        # A commit has no number.
        "noteableId": None if on_commit else row["noteable_id"],
        "position": position and _position(position),
        "url": f"{EXTERNAL}/{project.full_path}/-/{place}#note_{row['id']}",
        "resolvable": bool(row.get("resolvable")),
        "resolved": bool(row.get("resolved")),
        "resolvedAt": _shown(row.get("resolved_at")),
        "resolvedBy": _user(row.get("resolved_by")),
    }


def _action(row: Row) -> tuple[str | None, str | None]:
    if row["system"]:
        for beginning, action, icon in _ACTIONS:
            if row["body"].startswith(beginning):
                return action, icon
    return None, None


def _position(row: Row) -> Row:
    return {
        "diffRefs": _diff_refs(row),
        "filePath": row.get("new_path") or row.get("old_path"),
        "oldPath": row.get("old_path"),
        "newPath": row.get("new_path"),
        "oldLine": row.get("old_line"),
        "newLine": row.get("new_line"),
        "positionType": row.get("position_type", "text"),
    }


# --- Connections ----------------------------------------------------------------------------------------


def _by_position(rows: Sequence[Any], value: Callable[[Any], Any]) -> Resolver:
    """The resolver of a connection whose cursor is the position in the list."""

    def answer(_: Any, **page: Any) -> Row:
        numbered = list(enumerate(rows, 1))
        return _connection(
            numbered, lambda pair: value(pair[1]), lambda pair: [pair[0]], "position", down=False, **page
        )

    return answer


def _connection(
    rows: Sequence[Any],
    value: Callable[[Any], Any],
    key: Callable[[Any], list[Any]],
    order: str,
    *,
    down: bool,
    first: int | None = None,
    after: str | None = None,
) -> Row:
    """A page of sorted rows. A cursor holds the order and the key of a row, so it fits its own order only.
    Raises GraphQLError for a cursor that is none, and for a negative ``first``."""
    if first is not None and first < 0:
        raise GraphQLError("`first` must be a non-negative integer")
    following = list(rows)
    if after is not None:
        last = _key(after, order)
        following = [row for row in rows if (key(row) < last if down else key(row) > last)]
    cut = following[: PAGE_SIZE if first is None else min(first, PAGE_SIZE)]
    cursors = [_cursor(order, key(row)) for row in cut]
    nodes = [value(row) for row in cut]
    return {
        "count": len(rows),
        "nodes": nodes,
        "edges": [{"cursor": cursor, "node": node} for cursor, node in zip(cursors, nodes, strict=True)],
        "pageInfo": {
            "hasNextPage": len(cut) < len(following),
            "hasPreviousPage": len(following) < len(rows),
            "startCursor": cursors[0] if cursors else None,
            "endCursor": cursors[-1] if cursors else None,
        },
    }


def _cursor(order: str, key: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode()


def _key(cursor: str, order: str) -> list[Any]:
    try:
        found, *key = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError) as error:
        raise GraphQLError("Please provide a valid cursor") from error
    if found != order:
        raise GraphQLError("Please provide a valid cursor")
    return list(key)
