"""The values of GraphQL answers: how rows of REST look in the schema, and connections with cursors.

Belongs here: pure conversions. Times are cut to whole seconds, and ids are global ones. Which rows a reader
gets is :mod:`sync_pipeline_sandbox.gitlab.graphql_reader`'s.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from graphql import GraphQLError

from sync_pipeline_sandbox.gitlab.graphql_schema import PAGE_SIZE
from sync_pipeline_sandbox.gitlab.records import EXTERNAL, MergeRequest, Note, Project, Row, moment

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


# --- Rows -----------------------------------------------------------------------------------------------


def seconds(at: datetime) -> str:
    """A time in whole seconds, UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def time_value(text: str | None) -> str | None:
    """A time of a REST row, cut to whole seconds. A text that is no time stays as it is."""
    try:
        return None if text is None else seconds(moment(text))
    except ValueError:
        return text


def user_value(user: Row | None) -> Any:
    """A person; None where there is none."""
    return user and {
        "id": f"gid://gitlab/User/{user['id']}",
        "username": user.get("username"),
        "name": user.get("name"),
        "publicEmail": user.get("public_email") or None,
        "bot": False,
        "webUrl": user.get("web_url"),
    }


def diff_refs_value(refs: Row) -> Row | None:
    """The three commits that a diff is between; None unless head and start are known."""
    if not (refs.get("head_sha") and refs.get("start_sha")):
        return None
    return {"baseSha": refs.get("base_sha"), "headSha": refs["head_sha"], "startSha": refs["start_sha"]}


def label_value(project: Project, name: str) -> Row:
    """A label by its name."""
    label = project.labels.get(name) or {"id": 0, "color": "#428BCA"}
    return {"id": f"gid://gitlab/ProjectLabel/{label['id']}", "title": name, "color": label["color"]}


def milestone_value(row: Row | None) -> Row | None:
    """A milestone; None where there is none."""
    return row and {
        "id": f"gid://gitlab/Milestone/{row['id']}",
        "iid": str(row["iid"]),
        "title": row["title"],
        "state": row["state"],
    }


def commit_value(row: Row) -> Row:
    """A commit without its author, who is a person."""
    return {
        "id": f"gid://gitlab/Commit/{row['id']}",
        "sha": row["id"],
        "shortId": row["short_id"],
        "title": row["title"],
        "message": row["message"],
        "parentSha": row["parent_ids"][0] if row["parent_ids"] else None,
        "authoredDate": time_value(row["authored_date"]),
        "committedDate": time_value(row["committed_date"]),
        "authorName": row["author_name"],
        "authorEmail": row["author_email"],
        "committerName": row["committer_name"],
        "committerEmail": row["committer_email"],
        "webUrl": row["web_url"],
    }


def note_value(project: Project, request: MergeRequest, note: Note) -> Row:
    """A note without its discussion."""
    row, position = note.row, note.row.get("position")
    on_commit = row.get("noteable_type") == "Commit"
    place = f"commit/{row['commit_id']}" if on_commit else f"merge_requests/{request.iid}"
    action, icon = _action(row)
    internal = bool(row.get("internal") or row.get("confidential"))
    return {
        "id": f"gid://gitlab/{row.get('type') or 'Note'}/{row['id']}",
        "body": row.get("body"),
        "author": user_value(row.get("author")),
        "createdAt": time_value(row.get("created_at")),
        "updatedAt": time_value(row.get("updated_at")),
        "lastEditedAt": time_value(row.get("updated_at"))
        if row.get("updated_at") != row.get("created_at")
        else None,
        "system": row.get("system"),
        "systemNoteIconName": icon,
        "systemNoteMetadata": action
        and {"id": f"gid://gitlab/SystemNoteMetadata/{row['id']}", "action": action},
        "internal": internal,
        "confidential": internal,
        "imported": bool(row.get("imported")),
        "noteableType": row.get("noteable_type"),
        # A commit has no number.
        "noteableId": None if on_commit else row["noteable_id"],
        "position": position and _position(position),
        "url": f"{EXTERNAL}/{project.full_path}/-/{place}#note_{row['id']}",
        "resolvable": bool(row.get("resolvable")),
        "resolved": bool(row.get("resolved")),
        "resolvedAt": time_value(row.get("resolved_at")),
        "resolvedBy": user_value(row.get("resolved_by")),
    }


def _action(row: Row) -> tuple[str | None, str | None]:
    if row.get("system"):
        for beginning, action, icon in _ACTIONS:
            if str(row.get("body")).startswith(beginning):
                return action, icon
    return None, None


def _position(row: Row) -> Row | None:
    refs = diff_refs_value(row)
    return refs and {
        "diffRefs": refs,
        "filePath": row.get("new_path") or row.get("old_path"),
        "oldPath": row.get("old_path"),
        "newPath": row.get("new_path"),
        "oldLine": row.get("old_line"),
        "newLine": row.get("new_line"),
        "positionType": row.get("position_type", "text"),
    }


# --- Connections ----------------------------------------------------------------------------------------


def by_position(rows: Sequence[Any], value: Callable[[Any], Any]) -> Resolver:
    """The resolver of a connection whose cursor is the position in the list."""

    def answer(_: Any, **page: Any) -> Row:
        numbered = list(enumerate(rows, 1))
        return connection(
            numbered, lambda pair: value(pair[1]), lambda pair: [pair[0]], "position", down=False, **page
        )

    return answer


def connection(
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
    nodes = [value(row) for row in cut]
    return {
        "count": len(rows),
        "nodes": nodes,
        "edges": lambda _: [
            {"cursor": _cursor(order, key(row)), "node": node} for row, node in zip(cut, nodes, strict=True)
        ],
        "pageInfo": {
            "hasNextPage": len(cut) < len(following),
            "hasPreviousPage": len(following) < len(rows),
            "startCursor": _cursor(order, key(cut[0])) if cut else None,
            "endCursor": _cursor(order, key(cut[-1])) if cut else None,
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
