"""What one reader gets from the GraphQL endpoint: the fields of ``Query``, projects and merge requests.

Belongs here: access, filters and order. Rows that the reader may not see are left out or null, without an
error. How they look is :mod:`sync_pipeline_sandbox.gitlab.graphql_values`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from graphql import GraphQLEnumType, GraphQLError

from sync_pipeline_sandbox.gitlab import access
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.graphql_schema import Cost, schema
from sync_pipeline_sandbox.gitlab.graphql_values import (
    by_position,
    commit_value,
    connection,
    diff_refs_value,
    label_value,
    milestone_value,
    note_value,
    seconds,
    time_value,
    user_value,
)
from sync_pipeline_sandbox.gitlab.records import DEVELOPER, EXTERNAL, MergeRequest, Note, Project, Row
from sync_pipeline_sandbox.gitlab.shapes import version_commits

_COMMITS_WITH_NOTES = 100
"""GitLab looks for notes on that many of the newest commits of a merge request."""


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
        metadata = {
            "version": behaviour.version,
            "revision": "abcdef01234",
            "enterprise": behaviour.enterprise,
        }
        return {
            "currentUser": user_value(self.user),
            "metadata": metadata if self.user else None,
            "queryComplexity": {"score": self.cost.complexity, "limit": self.limit},
            "project": self._project_at,
        }

    def _project_at(self, _: Any, fullPath: str) -> Row | None:
        found, old = self.gitlab.find_project(fullPath)
        # A number is no path, and old paths lead nowhere here.
        if found is None or old or fullPath.isdigit():
            return None
        return self.project(found) if access.sees_project(self.gitlab, found, self.user) else None

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
        return _Request(self, project, found[0]).value() if found else None

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
        wanted = None if iids is None else frozenset(iids)
        found = [
            one
            for one in self._readable(project)
            if (wanted is None or str(one.iid) in wanted)
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
        answer = connection(
            found, lambda one: _Request(self, project, one).value(), key, sort, down=down, **page
        )
        limit = self.gitlab.behaviour.graphql.max_rows
        if limit is not None and len(answer["nodes"]) > limit:
            raise GraphQLError("Timeout on Project.mergeRequests")
        return answer


@dataclass(frozen=True)
class _Request:
    """A merge request as a reader sees it. Lists that several fields need are made once."""

    reader: Reader
    project: Project
    request: MergeRequest

    @cached_property
    def commits(self) -> list[Row]:
        """Commits of the newest version, newest first."""
        versions = self.request.versions
        return version_commits(self.project, self.request, versions[-1]) if versions else []

    @cached_property
    def notes(self) -> list[Note]:
        """Notes of the merge request, with what people wrote on its newest commits."""
        notes, on_commits = list(self.request.notes), self.project.commit_notes
        if on_commits:
            newest = {row["id"] for row in self.commits[:_COMMITS_WITH_NOTES]}
            notes += [note for note in on_commits if note.row["commit_id"] in newest]
        gitlab, user = self.reader.gitlab, self.reader.user
        seen = [note for note in notes if access.sees_note(gitlab, self.project, user, note)]
        return sorted(seen, key=lambda note: int(note.row["id"] or 0))

    @cached_property
    def threads(self) -> dict[str, list[Note]]:
        """Notes by the id of their discussion, oldest discussion first."""
        threads: dict[str, list[Note]] = {}
        for note in self.notes:
            threads.setdefault(note.discussion_id, []).append(note)
        return threads

    def value(self) -> Row | None:
        """All fields; those that cost much are made when the query has them. The trouble that the control
        object has for this merge request is in them."""
        trouble, iid = self.reader.gitlab.behaviour.graphql, self.request.iid
        if iid in trouble.null_rows:
            return None
        value = self._plain() | self._people() | self._texts()
        value |= dict.fromkeys(trouble.null_fields.get(iid, ()))
        return value | dict.fromkeys(trouble.failing_fields.get(iid, ()), _fail)

    def _plain(self) -> Row:
        project, request, row = self.project, self.request, self.request.row
        detailed = (row.get("detailed_merge_status") or "").upper()
        return {
            "id": f"gid://gitlab/MergeRequest/{request.id}",
            "iid": str(request.iid),
            "projectId": project.id,
            "sourceProjectId": row.get("source_project_id"),
            "targetProjectId": project.id,
            "project": lambda _: self.reader.project(project),
            "title": row.get("title"),
            "description": row.get("description"),
            "state": row["state"],
            "draft": bool(row.get("draft") or row.get("work_in_progress")),
            "sourceBranch": row.get("source_branch"),
            "targetBranch": row.get("target_branch"),
            "createdAt": seconds(request.created_at),
            "updatedAt": seconds(request.updated_at),
            "mergedAt": time_value(row.get("merged_at")),
            "closedAt": time_value(row.get("closed_at")),
            "preparedAt": time_value(row.get("prepared_at")),
            "mergeAfter": time_value(row.get("merge_after")),
            "diffHeadSha": row.get("sha"),
            "diffRefs": diff_refs_value(request.detail.get("diff_refs") or {}),
            "mergeCommitSha": row.get("merge_commit_sha"),
            "mergeStatusEnum": (row.get("merge_status") or "unchecked").upper(),
            "detailedMergeStatus": detailed if detailed in _known("DetailedMergeStatus") else None,
            "labels": by_position(row.get("labels") or [], lambda name: label_value(project, name)),
            "milestone": milestone_value(row.get("milestone")),
            "upvotes": row.get("upvotes"),
            "downvotes": row.get("downvotes"),
            "discussionLocked": bool(row.get("discussion_locked")),
            "squash": bool(row.get("squash")),
            "webUrl": row.get("web_url") or f"{EXTERNAL}/{project.full_path}/-/merge_requests/{request.iid}",
            "reference": lambda _, full: f"{project.full_path if full else ''}!{request.iid}",
        }

    def _people(self) -> Row:
        request, row = self.request, self.request.row
        author = row.get("author")
        approvers = [one["user"] for one in request.approved_by]
        return {
            "author": author and self._participant(author, None),
            "assignees": by_position(row.get("assignees") or [], lambda user: self._participant(user, None)),
            "reviewers": by_position(
                request.reviewers, lambda one: self._participant(one["user"], one["state"])
            ),
            "approved": bool(approvers) or self.reader.gitlab.behaviour.premium,
            "approvedBy": by_position(approvers, user_value),
            "mergeUser": user_value(row.get("merge_user") or row.get("merged_by")),
        }

    def _participant(self, user: Row, state: str | None) -> Row:
        may_merge = self.reader.gitlab.level(self.project, user) >= DEVELOPER
        shown: Row = user_value(user)
        return shown | {
            "mergeRequestInteraction": {
                "canMerge": may_merge,
                "canUpdate": may_merge,
                "reviewState": state and state.upper(),
                "reviewed": state not in (None, "unreviewed"),
                "approved": any(one["user"]["id"] == user["id"] for one in self.request.approved_by),
            }
        }

    def _texts(self) -> Row:
        """Commits, notes and discussions, and their numbers."""
        return {
            "commitCount": lambda _: len(self.commits),
            "commits": lambda info, **page: by_position(self.commits, self._commit)(info, **page),
            "userNotesCount": self.request.row.get("user_notes_count"),
            "userDiscussionsCount": lambda _: sum(
                not notes[0].row["system"] for notes in self.threads.values()
            ),
            "resolvableDiscussionsCount": lambda _: sum(map(_is_resolvable, self.threads.values())),
            "resolvedDiscussionsCount": lambda _: sum(map(_is_resolved, self.threads.values())),
            "notes": lambda _, **page: self._note_list(self.notes, **page),
            "discussions": lambda info, **page: by_position(list(self.threads.values()), self._discussion)(
                info, **page
            ),
        }

    def _commit(self, row: Row) -> Row:
        found = (
            user
            for user in self.reader.gitlab.users.values()
            if row["author_email"] in (user.get("public_email"), f"{user['username']}@example.test")
        )
        return commit_value(row) | {"author": lambda _: user_value(next(found, None))}

    def _note_list(self, notes: Sequence[Note], **page: Any) -> Row:
        def number(note: Note) -> list[int]:
            return [int(note.row["id"] or 0)]

        return connection(notes, self._note, number, "note", down=False, **page)

    def _note(self, note: Note) -> Row:
        return note_value(self.project, self.request, note) | {
            "discussion": lambda _: self._discussion(self.threads[note.discussion_id])
        }

    def _discussion(self, notes: Sequence[Note]) -> Row:
        number, resolved = f"gid://gitlab/Discussion/{notes[0].discussion_id}", _is_resolved(notes)
        last: Row = next((note.row for note in reversed(notes) if note.row.get("resolved")), {})
        return {
            "id": number,
            "replyId": number,
            "createdAt": time_value(notes[0].row["created_at"]),
            "notes": lambda _, **page: self._note_list(notes, **page),
            "resolvable": _is_resolvable(notes),
            "resolved": resolved,
            "resolvedAt": time_value(last["resolved_at"]) if resolved else None,
            "resolvedBy": user_value(last["resolved_by"]) if resolved else None,
        }


def _is_resolvable(notes: Sequence[Note]) -> bool:
    return any(note.row.get("resolvable") for note in notes)


def _is_resolved(notes: Sequence[Note]) -> bool:
    return _is_resolvable(notes) and all(
        note.row.get("resolved") for note in notes if note.row.get("resolvable")
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


def _fail(*_: Any, **__: Any) -> None:
    raise GraphQLError(
        "The git server, Gitaly, is not available at this time. Please contact your administrator."
    )
