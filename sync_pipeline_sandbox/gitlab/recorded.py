"""Recorded merge requests and notes, as a real server once gave them.

Belongs here: reading such files into a project. Rows are kept as recorded, with whatever fields an older
server did not have.
"""

from __future__ import annotations

import json
from pathlib import Path

from sync_pipeline_sandbox.gitlab.control import GitLab, discussion_id
from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_sandbox.gitlab.records import Group, MergeRequest, Note, Project, Row, moment

MERGE_REQUESTS, NOTES = "merge_requests.json", "merge_request_notes.json"


def load_recorded(
    gitlab: GitLab,
    folder: Path,
    *,
    group: Group,
    path: str = "recorded",
    repository: GitRepository | None = None,
) -> Project:
    """Make a project from a folder with a list of merge requests and an object of note lists by iid. It gets
    the project id that they name. Raises FileNotFoundError when the folder has no merge requests."""
    rows: list[Row] = json.loads((folder / MERGE_REQUESTS).read_text(encoding="utf-8"))
    notes: dict[str, list[Row]] = {}
    if (folder / NOTES).exists():
        notes = json.loads((folder / NOTES).read_text(encoding="utf-8"))
    number = int(rows[0]["project_id"]) if rows else None
    with gitlab.lock:
        project = gitlab.project(path, group=group, project_id=number, repository=repository)
        for row in rows:
            project.merge_requests[int(row["iid"])] = MergeRequest(
                row=row,
                created_at=moment(row["created_at"]),
                updated_at=moment(row["updated_at"]),
                notes=[
                    _note(one) for one in sorted(notes.get(str(row["iid"]), []), key=lambda one: one["id"])
                ],
            )
            for person in (row.get("author"), row.get("merged_by"), *row.get("assignees", [])):
                if person is not None:
                    gitlab.users.setdefault(int(person["id"]), person)
    return project


def _note(row: Row) -> Note:
    return Note(row=row, discussion_id=discussion_id(int(row["id"])), individual=row.get("type") is None)
