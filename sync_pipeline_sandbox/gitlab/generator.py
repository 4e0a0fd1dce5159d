"""Merge requests in any number, the same for the same seed.

Belongs here: making a project large and nasty without a git repository: equal times, people who are null, odd
text, all states. Nothing is random between two runs.
"""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime, timedelta

from sync_pipeline_sandbox.gitlab.control import GitLab, blank_detail, blank_merge_request, discussion_id
from sync_pipeline_sandbox.gitlab.records import EXTERNAL, Group, MergeRequest, Note, Project, Row, stamp

BEGINNING = datetime(2020, 1, 1, 8, tzinfo=UTC)
_TITLES = (
    "Add parser",
    "Répare l'été",
    "修正 🐛 in loader",
    "a\u0000b",
    "x" * 300,
    'Revert "revert"',
    "<b>&amp;</b>",
)
_STATES = ("merged",) * 6 + ("opened",) * 2 + ("closed",) + ("locked",)


def generate(
    gitlab: GitLab,
    group: Group,
    *,
    merge_requests: int = 10_000,
    notes: int = 2,
    seed: int = 1,
    path: str = "large",
    beginning: datetime = BEGINNING,
    tie: int = 250,
) -> Project:
    """Make a project with so many merge requests, about ``notes`` notes each.

    Up to ``tie`` of them in a row share one ``updated_at``; others differ by microseconds within a
    millisecond. Every 17th has no author, every 23rd no source project, every 29th of the merged no
    ``merged_at``. Ids continue those of the control object (see its ``first_id`` for 64-bit ones).
    """
    chance = random.Random(seed)
    with gitlab.lock:
        project = gitlab.project(path, group=group)
        people = [gitlab.user(f"{path}-user{number}") for number in range(1, 21)]
        updated = beginning
        left = 0
        for iid in range(1, merge_requests + 1):
            if left == 0:
                # Some long ties, many single rows, some neighbours within one millisecond.
                left = tie if chance.random() < 0.002 or iid == 100 else 1
                close = chance.random() < 0.2
                updated += (
                    timedelta(microseconds=137) if close else timedelta(seconds=chance.randint(1, 9000))
                )
            left -= 1
            request = _request(gitlab, project, people, iid, updated, chance)
            for _ in range(chance.randint(0, 2 * notes)):
                _add_note(gitlab, request, people, chance)
            request.row["user_notes_count"] = sum(not note.row["system"] for note in request.notes)
            project.merge_requests[iid] = request
        project.created_at = beginning + timedelta(days=30)
        project.updated_at = project.last_activity_at = updated
    return project


def _request(
    gitlab: GitLab, project: Project, people: list[Row], iid: int, updated: datetime, chance: random.Random
) -> MergeRequest:
    created = updated - timedelta(
        seconds=chance.randint(60, 900_000), microseconds=chance.randint(0, 999_999)
    )
    author = None if iid % 17 == 0 else chance.choice(people)
    row = blank_merge_request(
        project,
        gitlab.next_id("merge_request"),
        iid,
        author=author,
        title=_TITLES[iid % len(_TITLES)] if iid % 5 == 0 else f"Change {iid}",
        description=None if iid % 7 == 0 else f"Part {iid}\n\nCloses #{iid}",
        source=f"feature/{iid}" if iid % 11 else f"feature/{iid}-" + "long" * 90,
        target="main",
    )
    sha, base = _sha(project, iid, "head"), _sha(project, iid, "base")
    row |= {"sha": sha, "state": chance.choice(_STATES), "prepared_at": stamp(created)}
    if iid % 23 == 0:
        row |= {"source_project_id": None, "allow_collaboration": False, "allow_maintainer_to_push": False}
    reviewers = chance.sample(people, chance.randint(0, 2))
    row["reviewers"] = list(reviewers)
    request = MergeRequest(row=row, created_at=created, updated_at=updated, detail=blank_detail())
    request.reviewers = [
        {"user": user, "state": "unreviewed", "created_at": stamp(created)} for user in reviewers
    ]
    request.detail |= {
        "changes_count": "1000+" if iid % 97 == 0 else "1",
        "diff_refs": {"base_sha": base, "head_sha": sha, "start_sha": base},
    }
    version = gitlab.next_id("version")
    request.versions.append(
        {
            "id": version,
            "head_commit_sha": sha,
            "base_commit_sha": base,
            "start_commit_sha": base,
            "created_at": stamp(created),
            "merge_request_id": request.id,
            "state": "collected",
            "real_size": "1",
            "patch_id_sha": None,
        }
    )
    request.commits[version] = [_commit(sha, base, created, f"Change {iid}")]
    if row["state"] in ("merged", "closed"):
        by = chance.choice(people)
        # The merge is often later than updated_at, as in recorded data.
        at = updated + timedelta(milliseconds=chance.randint(0, 400))
        if row["state"] == "merged":
            row |= {"merged_by": by, "merge_user": by, "merged_at": None if iid % 29 == 0 else stamp(at)}
            row["merge_commit_sha"] = _sha(project, iid, "merge")
            approver = chance.choice(people)
            request.approved_by = [{"user": approver, "approved_at": stamp(updated)}]
        else:
            row |= {"closed_by": by, "closed_at": stamp(at)}
        request.state_events.append(
            {
                "id": gitlab.next_id("state_event"),
                "user": None if iid % 19 == 0 else by,
                "created_at": stamp(at),
                "resource_type": "MergeRequest",
                "resource_id": request.id,
                "source_commit": None,
                "source_merge_request_id": None,
                "state": row["state"],
            }
        )
    return request


def _add_note(gitlab: GitLab, request: MergeRequest, people: list[Row], chance: random.Random) -> None:
    number = gitlab.next_id("note")
    system = chance.random() < 0.6
    at = stamp(request.created_at + (request.updated_at - request.created_at) * chance.random())
    internal = not system and chance.random() < 0.1
    body = "approved this merge request" if system else f"Remark {number} ✓"
    row: Row = {
        "id": number,
        "type": None if system else "DiscussionNote",
        "body": body,
        "attachment": None,
        "author": None if number % 31 == 0 else chance.choice(people),
        "created_at": at,
        "updated_at": at,
        "system": system,
        "noteable_id": request.id,
        "noteable_type": "MergeRequest",
        "project_id": request.row["project_id"],
        "resolvable": not system,
        "confidential": internal,
        "internal": internal,
        "imported": False,
        "imported_from": "none",
        "noteable_iid": request.iid,
        "commands_changes": {},
    }
    if not system:
        row |= {"resolved": False, "resolved_by": None, "resolved_at": None}
    request.notes.append(Note(row=row, discussion_id=discussion_id(number), individual=system))


def _commit(sha: str, parent: str, at: datetime, title: str) -> Row:
    # git stores whole seconds.
    date = at.replace(microsecond=0).isoformat(timespec="milliseconds")
    return {
        "id": sha,
        "short_id": sha[:8],
        "created_at": date,
        "parent_ids": [parent],
        "title": title,
        "message": f"{title}\n",
        "author_name": "User 1",
        "author_email": "user1@example.test",
        "authored_date": date,
        "committer_name": "User 1",
        "committer_email": "user1@example.test",
        "committed_date": date,
        "trailers": {},
        "extended_trailers": {},
        "web_url": f"{EXTERNAL}/-/commit/{sha}",
    }


def _sha(project: Project, iid: int, what: str) -> str:
    return hashlib.sha1(f"{project.path} {iid} {what}".encode(), usedforsecurity=False).hexdigest()
