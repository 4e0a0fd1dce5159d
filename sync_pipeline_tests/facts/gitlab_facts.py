"""Rows of GitLab as its readers yield them, for the tests of how they are stored.

Belongs here: builders with sensible values for everything that a test does not care about.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from typing import Any

from sync_pipeline.core.gitlab_rows import (
    CommitRow,
    MergeRequestRow,
    MergeRequestVersion,
    Origin,
    Person,
    RefKind,
    RefRow,
    ReviewEventRow,
    ReviewSet,
)
from sync_pipeline.database.pool import Connection
from sync_pipeline_tests.builders import register_project

START = datetime(2024, 5, 6, 12, 0, 0, 123456, tzinfo=UTC)
BIG = 2**63 - 1
JO = Person(7, "jo", "Jo")
KIM = Person(8, "kim", "Kim")


def project(conn: Connection, number: int = 42) -> int:
    """A registered project of ``https://gitlab.example``; returns its repo_id."""
    return register_project(conn, "https://gitlab.example", number, f"acme/p{number}", origin=START)


def later(minutes: float) -> datetime:
    """A time of the source after :data:`START`."""
    return START + timedelta(minutes=minutes)


def sha(name: object) -> str:
    """The name of a commit, made of a short one."""
    return sha1(str(name).encode()).hexdigest()


def commit(name: object, *parents: object, stats: tuple[int, int] | None = (2, 1), **other: Any) -> CommitRow:
    """A commit with the numbers of lines, or without."""
    values: dict[str, Any] = {
        "author_name": "Jo",
        "author_email": "jo@example.org",
        "authored_at": START,
        "authored_raw": "2024-05-06T14:00:00.123456+02:00",
        "committer_name": "Jo",
        "committer_email": "jo@example.org",
        "committed_at": START,
        "committed_raw": "2024-05-06T14:00:00.123456+02:00",
        "title": f"Commit {name}",
        "message": f"Commit {name}\n",
        "additions": stats[0] if stats else None,
        "deletions": stats[1] if stats else None,
        "web_url": None,
        "flags": (),
        "raw": {"id": sha(name), "stats": stats and {"additions": stats[0], "deletions": stats[1]}},
    }
    return CommitRow(sha=sha(name), parents=tuple(map(sha, parents)), **(values | other))


def ref(name: str, tip: object, kind: RefKind = RefKind.BRANCH, **other: Any) -> RefRow:
    """A branch that leads to the commit of that short name."""
    values: dict[str, Any] = {
        "target": sha(tip),
        "is_default": name == "main",
        "is_protected": False,
        "created_at": None,
        "message": None,
        "flags": (),
        "raw": {"name": name},
    }
    return RefRow(kind=kind, name=name, tip=sha(tip), **(values | other))


def version(number: int, head: object, **other: Any) -> MergeRequestVersion:
    """A version whose head is the commit of that short name."""
    values: dict[str, Any] = {
        "base_sha": sha("base"),
        "start_sha": sha("start"),
        "created_at": START,
        "state": "collected",
        "size": "3",
        "patch_id": None,
        "raw": {"id": number},
    }
    return MergeRequestVersion(version_id=number, head_sha=sha(head), **(values | other))


def merge_request(iid: int, head: object = "head", **other: Any) -> MergeRequestRow:
    """An open merge request as a list says it, without versions and commits."""
    values: dict[str, Any] = {
        "mr_id": 1000 + iid,
        "project_id": 42,
        "state": "opened",
        "title": f"Change {iid}",
        "description": None,
        "is_draft": False,
        "author": JO,
        "assignees": (),
        "reviewers": (),
        "merged_by": None,
        "closed_by": None,
        "created_at": START,
        "updated_at": START,
        "merged_at": None,
        "closed_at": None,
        "prepared_at": None,
        "source_project_id": 42,
        "source_branch": "topic",
        "target_branch": "main",
        "head_sha": sha(head),
        "merge_commit_sha": None,
        "squash_commit_sha": None,
        "base_sha": None,
        "start_sha": None,
        "changes_count": None,
        "labels": (),
        "milestone": None,
        "user_notes_count": 0,
        "web_url": None,
        "flags": (),
        "raw": {"iid": iid},
    }
    return MergeRequestRow(iid=iid, **(values | other))


def whole(iid: int, head: object = "head", **other: Any) -> MergeRequestRow:
    """A merge request with one version and one commit."""
    values: dict[str, Any] = {
        "base_sha": sha("base"),
        "start_sha": sha("start"),
        "changes_count": "3",
        "versions": (version(1, head),),
        "commits": (commit(head, stats=None),),
    }
    return merge_request(iid, head, **(values | other))


def event(number: int, origin: Origin = Origin.NOTE, iid: int = 1, **other: Any) -> ReviewEventRow:
    """A comment, or an event of another origin."""
    is_note = origin is Origin.NOTE
    values: dict[str, Any] = {
        "kind": "comment" if is_note else str(origin),
        "actor": JO,
        "occurred_at": START,
        "updated_at": START,
        "body": f"Note {number}" if is_note else None,
        "is_system": not is_note,
        "is_internal": False,
        "discussion_id": "d1" if is_note else None,
        "is_reply": False,
        "resolvable": False,
        "resolved": None,
        "resolved_by": None,
        "resolved_at": None,
        "position": None,
        "flags": (),
        "raw": {"id": number},
    }
    return ReviewEventRow(
        event_id=f"{origin}:{number}", origin=origin, number=number, mr_iid=iid, **(values | other)
    )


def review(*events: ReviewEventRow, iid: int = 1, **other: Any) -> ReviewSet:
    """A review that was read whole, with these events and nobody who approves or is asked."""
    values: dict[str, Any] = {
        "mr_updated_at": START,
        "approvals": (),
        "reviewers": (),
        "whole": frozenset(Origin),
    }
    return ReviewSet(mr_iid=iid, events=tuple(replace(one, mr_iid=iid) for one in events), **(values | other))
