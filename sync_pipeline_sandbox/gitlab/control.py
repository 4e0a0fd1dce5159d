"""The control object of the small GitLab: what people do with merge requests, done from a test or a demo.

Belongs here: opening, pushing to, commenting, approving, merging, closing, labelling merge requests, with the
system notes and events that GitLab writes beside them. Groups, projects and people are in
:mod:`sync_pipeline_sandbox.gitlab.namespaces`. Recorded and generated merge requests have their own modules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sync_pipeline_sandbox.gitlab.faults import Faults
from sync_pipeline_sandbox.gitlab.journal import Journal
from sync_pipeline_sandbox.gitlab.namespaces import Namespaces
from sync_pipeline_sandbox.gitlab.records import (
    EXTERNAL,
    Behaviour,
    Group,
    MergeRequest,
    Note,
    Project,
    Row,
    stamp,
)


class GitLab(Namespaces):
    """The whole state of one server. Changes take effect at the next request.

    ``faults`` holds the switches for trouble, ``journal`` what was asked.
    """

    def __init__(self, behaviour: Behaviour | None = None, *, first_id: int = 1) -> None:
        """See :class:`Namespaces`."""
        super().__init__(behaviour, first_id=first_id)
        self.faults = Faults()
        self.journal = Journal()

    # --- Opening and pushing ----------------------------------------------------------------------------

    def open_merge_request(
        self,
        project: Project,
        *,
        author: Row | None,
        source: str = "feature",
        target: str | None = None,
        title: str = "Change",
        description: str | None = "",
        source_project: Project | None = None,
        draft: bool = False,
        fresh: bool = False,
        iid: int | None = None,
    ) -> MergeRequest:
        """Open a merge request and take its first version from the source branch.

        ``fresh`` leaves it as it is before its diff exists: no diff_refs, no changes_count, no version.
        """
        with self.lock:
            now = self.clock.now()
            number = self.next_id("merge_request")
            iid = iid if iid is not None else max(project.merge_requests, default=0) + 1
            row = blank_merge_request(
                project,
                number,
                iid,
                author=author,
                title=f"Draft: {title}" if draft else title,
                description=description,
                source=source,
                target=target or project.default_branch,
                source_project=source_project,
                draft=draft,
            )
            request = MergeRequest(row=row, created_at=now, updated_at=now)
            request.detail = blank_detail()
            project.merge_requests[iid] = request
            row["prepared_at"] = None if fresh else stamp(now)
            if fresh:
                row["merge_status"], row["detailed_merge_status"] = "checking", "preparing"
            else:
                self._add_version(project, request, now)
            self._active(project)
            return request

    def push(
        self,
        project: Project,
        branch: str,
        message: str | bytes = "Work",
        *,
        author: Row | None = None,
        bump: bool = True,
        **commit: Any,
    ) -> str:
        """Commit to a branch (see :meth:`GitRepository.commit` for the rest) with the effects of a push in
        GitLab. Each open merge request from the branch gets a version, a new head and a note, and the push is
        an event.

        ``bump`` False leaves ``updated_at`` as it is, as some servers do.
        """
        with self.lock:
            if project.repository is None:
                raise ValueError("this project has no repository to push to")
            before = project.repository.resolve(f"refs/heads/{branch}")
            sha = project.repository.commit(branch, message, **commit)
            self.pushed(project, branch, before, sha, author=author, bump=bump)
            return sha

    def pushed(
        self,
        project: Project,
        branch: str,
        before: str | None,
        after: str | None,
        *,
        author: Row | None = None,
        bump: bool = True,
    ) -> None:
        """Record that a branch was moved, made (``before`` None) or removed (``after`` None) in the
        repository."""
        with self.lock:
            now = self.clock.now()
            actor = author or self.ghost()
            action = "created" if before is None else "removed" if after is None else "pushed"
            names = {"created": "pushed new", "removed": "deleted", "pushed": "pushed to"}
            title = None
            count = 0
            if after is not None and project.repository is not None:
                title = project.repository.commits([after])[0]["title"]
                count = len(project.repository.shas([after, *([f"^{before}"] if before else [])]))
            data = {
                "commit_count": count,
                "action": action,
                "ref_type": "branch",
                "commit_from": before,
                "commit_to": after,
                "ref": branch,
                "commit_title": title,
                "ref_count": None,
            }
            self._event(project, actor, names[action], now, push_data=data)
            for target in self.projects.values():
                for request in target.merge_requests.values():
                    row = request.row
                    if (row["source_project_id"], row["source_branch"]) != (project.id, branch):
                        continue
                    if row["state"] == "opened" and after is not None:
                        self._add_version(target, request, now)
                        self.system_note(request, actor, f"added {count} commit{'s' * (count != 1)}", now)
                        request.updated_at = now if bump else request.updated_at
            self._active(project)

    def delete_branch(self, project: Project, branch: str, *, author: Row | None = None) -> None:
        """Delete a branch, with its event."""
        with self.lock:
            if project.repository is not None:
                before = project.repository.resolve(f"refs/heads/{branch}")
                project.repository.set_ref(f"refs/heads/{branch}", None)
                self.pushed(project, branch, before, None, author=author)

    def run_pipeline(self, project: Project, sha: str) -> None:
        """Run a pipeline for a commit, which a hidden ref holds from then on."""
        with self.lock:
            if project.repository is not None:
                project.repository.keep({f"refs/pipelines/{self.next_id('pipeline')}": sha})

    # --- Talking ----------------------------------------------------------------------------------------

    def comment(
        self,
        request: MergeRequest,
        author: Row | None,
        body: str,
        *,
        thread: bool = False,
        reply_to: Note | None = None,
        position: Row | None = None,
        internal: bool = False,
        bump: bool = True,
    ) -> Note:
        """Write a comment: a single one, the start of a thread, a reply, or on a line of the diff."""
        with self.lock:
            now = self.clock.now()
            kind = None
            if reply_to is not None:
                reply_to.individual = False
                kind = reply_to.row["type"] or "DiscussionNote"
                reply_to.row["type"] = kind
            elif position is not None:
                kind = "DiffNote"
            elif thread:
                kind = "DiscussionNote"
            note = self._note(request, author, body, now, kind=kind, internal=internal, reply_to=reply_to)
            if kind == "DiffNote":
                shown_position = (
                    position if position is not None else (reply_to.row.get("position") if reply_to else None)
                )
                note.row |= {"commit_id": None, "position": shown_position, "suggestions": []}
            if kind is not None:
                for one in [note, *([reply_to] if reply_to else [])]:
                    one.row["resolvable"] = True
                    for key, value in (("resolved", False), ("resolved_by", None), ("resolved_at", None)):
                        one.row.setdefault(key, value)
            request.row["user_notes_count"] += 1
            if bump:
                request.updated_at = now
            return note

    def comment_on_commit(self, project: Project, sha: str, author: Row | None, body: str) -> Note:
        """Write a comment on a commit. GraphQL shows it among the notes of a merge request that has the
        commit; REST does not."""
        with self.lock:
            number, now = self.next_id("note"), stamp(self.clock.now())
            row: Row = {
                "id": number,
                "type": None,
                "body": body,
                "author": author,
                "created_at": now,
                "updated_at": now,
                "system": False,
                "noteable_id": None,
                "noteable_type": "Commit",
                "project_id": project.id,
                "commit_id": sha,
                "resolvable": False,
                "internal": False,
            }
            note = Note(row=row, discussion_id=discussion_id(number), individual=True)
            project.commit_notes.append(note)
            return note

    def edit_note(self, request: MergeRequest, note: Note, body: str, *, bump: bool = False) -> None:
        """Change a note's text. The merge request's ``updated_at`` moves only with ``bump``."""
        with self.lock:
            now = self.clock.now()
            note.row |= {"body": body, "updated_at": stamp(now)}
            if bump:
                request.updated_at = now

    def delete_note(self, request: MergeRequest, note: Note, *, bump: bool = False) -> None:
        """Delete a note; it is gone from every answer."""
        with self.lock:
            request.notes.remove(note)
            if not note.row["system"]:
                request.row["user_notes_count"] -= 1
            if bump:
                request.updated_at = self.clock.now()

    def resolve(self, request: MergeRequest, note: Note, user: Row | None, *, resolved: bool = True) -> None:
        """Resolve the thread of a note, or open it again."""
        with self.lock:
            now = self.clock.now()
            for one in request.notes:
                if one.discussion_id == note.discussion_id and one.row.get("resolvable"):
                    one.row |= {
                        "resolved": resolved,
                        "resolved_by": user if resolved else None,
                        "resolved_at": stamp(now) if resolved else None,
                    }
            request.updated_at = now

    # --- Reviewing --------------------------------------------------------------------------------------

    def request_review(self, request: MergeRequest, by: Row, *reviewers: Row) -> None:
        """Ask people for a review."""
        with self.lock:
            now = self.clock.now()
            for user in reviewers:
                request.row["reviewers"].append(user)
                request.reviewers.append({"user": user, "state": "unreviewed", "created_at": stamp(now)})
            names = _sentence([f"@{user['username']}" for user in reviewers])
            self.system_note(request, by, f"requested review from {names}", now)
            request.updated_at = now

    def remove_reviewer(self, request: MergeRequest, by: Row, user: Row) -> None:
        """Take a review request back."""
        with self.lock:
            now = self.clock.now()
            request.row["reviewers"] = [one for one in request.row["reviewers"] if one["id"] != user["id"]]
            request.reviewers = [one for one in request.reviewers if one["user"]["id"] != user["id"]]
            self.system_note(request, by, f"removed review request for @{user['username']}", now)
            request.updated_at = now

    def approve(self, request: MergeRequest, user: Row, *, note: bool = True) -> None:
        """Approve; without ``note`` as an import does, which writes none."""
        with self.lock:
            now = self.clock.now()
            request.approved_by.append({"user": user, "approved_at": stamp(now)})
            self.set_review_state(request, user, "approved")
            if note:
                self.system_note(request, user, "approved this merge request", now)
            request.updated_at = now

    def unapprove(self, request: MergeRequest, user: Row) -> None:
        """Take an approval back."""
        with self.lock:
            now = self.clock.now()
            request.approved_by = [one for one in request.approved_by if one["user"]["id"] != user["id"]]
            self.set_review_state(request, user, "unapproved")
            self.system_note(request, user, "unapproved this merge request", now)
            request.updated_at = now

    def reset_approvals(self, request: MergeRequest) -> None:
        """Remove all approvals without a note, as a push does where the project says so."""
        with self.lock:
            request.approved_by = []
            request.updated_at = self.clock.now()

    def set_review_state(self, request: MergeRequest, user: Row, state: str) -> None:
        """Put a reviewer in a state, such as ``requested_changes``; nothing happens to others."""
        with self.lock:
            for one in request.reviewers:
                if one["user"]["id"] == user["id"]:
                    one["state"] = state

    def assign(self, request: MergeRequest, by: Row, user: Row) -> None:
        """Assign somebody."""
        with self.lock:
            now = self.clock.now()
            request.row["assignees"].append(user)
            request.row["assignee"] = request.row["assignees"][0]
            self.system_note(request, by, f"assigned to @{user['username']}", now)
            request.updated_at = now

    # --- State, labels, milestones ----------------------------------------------------------------------

    def merge(self, request: MergeRequest, user: Row | None, *, merge_commit_sha: str | None = None) -> None:
        """Merge. The repository is not touched; name the merge commit if there is one."""
        with self.lock:
            now = self.clock.now()
            request.row |= {
                "state": "merged",
                "merged_by": user,
                "merge_user": user,
                "merged_at": stamp(now),
                "merge_commit_sha": merge_commit_sha,
                "detailed_merge_status": "not_open",
            }
            self._state_event(request, user, "merged", now)

    def close(self, request: MergeRequest, user: Row | None) -> None:
        """Close without merging."""
        with self.lock:
            now = self.clock.now()
            request.row |= {
                "state": "closed",
                "closed_by": user,
                "closed_at": stamp(now),
                "detailed_merge_status": "not_open",
            }
            self._state_event(request, user, "closed", now)

    def reopen(self, request: MergeRequest, user: Row | None) -> None:
        """Open a closed one again; ``closed_by`` stays as it is."""
        with self.lock:
            request.row |= {"state": "opened", "closed_at": None, "detailed_merge_status": "mergeable"}
            self._state_event(request, user, "reopened", self.clock.now())

    def set_state(self, request: MergeRequest, state: str) -> None:
        """Put a merge request in any state without an event, such as ``locked``."""
        with self.lock:
            request.row["state"] = state

    def edit(self, request: MergeRequest, *, bump: bool = True, **fields: Any) -> None:
        """Change fields of the row, such as ``title``."""
        with self.lock:
            request.row |= fields
            if bump:
                request.updated_at = self.clock.now()

    def retarget(self, project: Project, request: MergeRequest, user: Row, target: str) -> None:
        """Change the target branch: the server writes a note and compares anew."""
        with self.lock:
            now = self.clock.now()
            old, request.row["target_branch"] = request.row["target_branch"], target
            self.system_note(request, user, f"changed target branch from `{old}` to `{target}`", now)
            self.compare(project, request)

    def compare(self, project: Project, request: MergeRequest) -> None:
        """Compare a merge request anew, as after a forced push of its target branch."""
        with self.lock:
            now = self.clock.now()
            self._add_version(project, request, now)
            request.updated_at = now

    def touch(self, request: MergeRequest, moment: datetime | None = None) -> None:
        """Move ``updated_at`` and nothing else."""
        with self.lock:
            request.updated_at = moment or self.clock.now()

    def add_label(self, project: Project, request: MergeRequest, user: Row | None, name: str) -> None:
        """Put a label on; the project gets it when it is new."""
        with self.lock:
            label = project.labels.get(name) or self._label(project, name)
            request.row["labels"] = sorted({*request.row["labels"], name})
            self._label_event(request, user, label, "add")

    def remove_label(self, project: Project, request: MergeRequest, user: Row | None, name: str) -> None:
        """Take a label off."""
        with self.lock:
            request.row["labels"] = [one for one in request.row["labels"] if one != name]
            self._label_event(request, user, project.labels.get(name), "remove")

    def delete_label(self, project: Project, name: str) -> None:
        """Delete a label: gone from all merge requests, null in their events, no ``updated_at`` moves."""
        with self.lock:
            label = project.labels.pop(name)
            for request in project.merge_requests.values():
                request.row["labels"] = [one for one in request.row["labels"] if one != name]
                for event in request.label_events:
                    if event["label"] is label:
                        event["label"] = None

    def set_milestone(self, request: MergeRequest, user: Row | None, milestone: Row | None) -> None:
        """Set or clear the milestone (see :meth:`milestone`)."""
        with self.lock:
            now = self.clock.now()
            old = request.row["milestone"]
            for one, action in ((old, "remove"), (milestone, "add")):
                if one is not None:
                    event = self._event_row(request, "milestone_event", user, now)
                    event |= {"milestone": one, "action": action, "state": request.row["state"]}
                    request.milestone_events.append(event)
            request.row["milestone"] = milestone
            request.updated_at = now

    def milestone(self, place: Project | Group, title: str) -> Row:
        """Make a milestone of a project or a group."""
        with self.lock:
            now = stamp(self.clock.now())
            number = self.next_id("milestone")
            groups = "groups/" if isinstance(place, Group) else ""
            row: Row = {
                "id": number,
                "iid": number,
                "group_id" if isinstance(place, Group) else "project_id": place.id,
                "title": title,
                "description": "",
                "state": "active",
                "created_at": now,
                "updated_at": now,
                "due_date": None,
                "start_date": None,
                "expired": False,
                "web_url": f"{EXTERNAL}/{groups}{place.full_path}/-/milestones/{number}",
            }
            place.milestones.append(row)
            return row

    def close_milestone(self, milestone: Row) -> None:
        """Close a milestone, which changes no merge request."""
        with self.lock:
            milestone |= {"state": "closed", "updated_at": stamp(self.clock.now())}

    def delete_milestone(self, place: Project | Group, milestone: Row) -> None:
        """Delete a milestone with its events. No ``updated_at`` of a merge request moves."""
        with self.lock:
            place.milestones.remove(milestone)
            for project in self.projects.values():
                for request in project.merge_requests.values():
                    if request.row["milestone"] is milestone:
                        request.row["milestone"] = None
                    request.milestone_events[:] = [
                        event for event in request.milestone_events if event["milestone"] is not milestone
                    ]

    def delete_merge_request(self, project: Project, request: MergeRequest) -> None:
        """Delete a merge request for good."""
        with self.lock:
            del project.merge_requests[request.iid]

    def bulk_push_event(self, project: Project, author: Row, refs: int) -> None:
        """Record a push of so many branches that GitLab keeps only their number."""
        with self.lock:
            names = ("commit_from", "commit_to", "ref", "commit_title")
            data: Row = {"commit_count": 0, "action": "pushed", "ref_type": "branch"}
            data |= dict.fromkeys(names) | {"ref_count": refs}
            self._event(project, author, "pushed to", self.clock.now(), push_data=data)

    # --- Helpers ----------------------------------------------------------------------------------------

    def _active(self, project: Project) -> None:
        project.last_activity_at = self.clock.now()

    def _add_version(self, project: Project, request: MergeRequest, now: datetime) -> None:
        row, git = request.row, project.repository
        source = self.projects.get(row["source_project_id"] or 0, project)
        if git is not None and source is not project and source.repository is not None:
            # The commits of a fork live on in the target under a ref that is no branch.
            own = f"refs/merge-requests/{request.iid}/head"
            git.fetch(source.repository, row["source_branch"], own)
            head = git.resolve(own)
        else:
            head = git.resolve(f"refs/heads/{row['source_branch']}") if git else None
        start = git.resolve(f"refs/heads/{row['target_branch']}") if git else None
        if git is None or head is None:
            return
        base = git.merge_base([start, head]) if start else None
        # A version outlives its branch: hidden refs hold its commits.
        held = {sha for sha in (head, base, start) if sha}
        git.keep(
            {f"refs/merge-requests/{request.iid}/head": head}
            | {f"refs/keep-around/{sha}": sha for sha in held}
        )
        size = str(len(git.diff(base, head))) if base else "0"
        row["sha"] = head
        row["merge_status"], row["detailed_merge_status"] = "can_be_merged", "mergeable"
        request.detail |= {
            "changes_count": size,
            "diff_refs": {"base_sha": base, "head_sha": head, "start_sha": start},
        }
        request.versions.append(
            {
                "id": self.next_id("version"),
                "head_commit_sha": head,
                "base_commit_sha": base,
                "start_commit_sha": start,
                "created_at": stamp(now),
                "merge_request_id": request.id,
                "state": "collected",
                "real_size": size,
                "patch_id_sha": hashlib.sha1(f"{base}{head}".encode(), usedforsecurity=False).hexdigest(),
            }
        )

    def _note(
        self,
        request: MergeRequest,
        author: Row | None,
        body: str,
        now: datetime,
        *,
        kind: str | None = None,
        internal: bool = False,
        system: bool = False,
        reply_to: Note | None = None,
    ) -> Note:
        number = self.next_id("note")
        row: Row = {
            "id": number,
            "type": kind,
            "body": body,
            "attachment": None,
            "author": author,
            "created_at": stamp(now),
            "updated_at": stamp(now),
            "system": system,
            "noteable_id": request.id,
            "noteable_type": "MergeRequest",
            "project_id": request.row["project_id"],
            "resolvable": False,
            "confidential": internal,
            "internal": internal,
            "imported": False,
            "imported_from": "none",
            "noteable_iid": request.iid,
            "commands_changes": {},
        }
        thread = reply_to.discussion_id if reply_to else discussion_id(number)
        note = Note(row=row, discussion_id=thread, individual=kind is None)
        request.notes.append(note)
        return note

    def system_note(self, request: MergeRequest, author: Row | None, body: str, now: datetime) -> None:
        """A note of the system, which changes no time of update."""
        self._note(request, author, body, now, system=True)

    def _event_row(self, request: MergeRequest, kind: str, user: Row | None, now: datetime) -> Row:
        return {
            "id": self.next_id(kind),
            "user": user,
            "created_at": stamp(now),
            "resource_type": "MergeRequest",
            "resource_id": request.id,
        }

    def _state_event(self, request: MergeRequest, user: Row | None, state: str, now: datetime) -> None:
        event = self._event_row(request, "state_event", user, now)
        event |= {"source_commit": None, "source_merge_request_id": None, "state": state}
        request.state_events.append(event)
        request.updated_at = now

    def _label(self, project: Project, name: str) -> Row:
        label: Row = {
            "id": self.next_id("label"),
            "name": name,
            "color": "#428BCA",
            "description": None,
            "description_html": "",
            "text_color": "#FFFFFF",
        }
        project.labels[name] = label
        return label

    def _label_event(self, request: MergeRequest, user: Row | None, label: Row | None, action: str) -> None:
        now = self.clock.now()
        event = self._event_row(request, "label_event", user, now)
        request.label_events.append(event | {"label": label, "action": action})
        request.updated_at = now

    def _event(
        self, project: Project, author: Row, action_name: str, now: datetime, **more: Mapping[str, Any]
    ) -> None:
        row: Row = {
            "id": self.next_id("event"),
            "project_id": project.id,
            "action_name": action_name,
            "target_id": None,
            "target_iid": None,
            "target_type": None,
            "author_id": author["id"],
            "target_title": None,
            "created_at": stamp(now),
            "author": author,
            "imported": False,
            "imported_from": "none",
            "author_username": author["username"],
        }
        project.events.append(row | more)


def discussion_id(note_id: int) -> str:
    """The thread id that a first note gets."""
    return hashlib.sha1(f"discussion {note_id}".encode(), usedforsecurity=False).hexdigest()


def blank_merge_request(
    project: Project,
    number: int,
    iid: int,
    *,
    author: Row | None,
    title: str,
    description: str | None,
    source: str,
    target: str,
    source_project: Project | None = None,
    draft: bool = False,
) -> Row:
    """The row of an untouched merge request. Times and fields that depend on the project are filled in when
    it is shown.
    """
    row: Row = {
        "id": number,
        "iid": iid,
        "project_id": project.id,
        "title": title,
        "description": description,
        "state": "opened",
        "created_at": None,
        "updated_at": None,
        "merged_by": None,
        "merge_user": None,
        "merged_at": None,
        "closed_by": None,
        "closed_at": None,
        "target_branch": target,
        "source_branch": source,
        "user_notes_count": 0,
        "upvotes": 0,
        "downvotes": 0,
        "author": author,
        "assignees": [],
        "assignee": None,
        "reviewers": [],
        "source_project_id": source_project.id if source_project else project.id,
        "target_project_id": project.id,
        "labels": [],
        "draft": draft,
        "imported": False,
        "imported_from": "none",
        "work_in_progress": draft,
        "milestone": None,
        "merge_when_pipeline_succeeds": False,
        "merge_status": "unchecked",
        "detailed_merge_status": "unchecked",
        "merge_after": None,
        "sha": None,
        "merge_commit_sha": None,
        "squash_commit_sha": None,
        "discussion_locked": None,
        "should_remove_source_branch": None,
        "force_remove_source_branch": False,
        "prepared_at": None,
        "reference": f"!{iid}",
        "references": None,
        "web_url": None,
        "time_stats": {
            "time_estimate": 0,
            "total_time_spent": 0,
            "human_time_estimate": None,
            "human_total_time_spent": None,
        },
        "squash": False,
        "squash_on_merge": False,
        "task_completion_status": {"count": 0, "completed_count": 0},
        "has_conflicts": False,
        "blocking_discussions_resolved": True,
    }
    if source_project is not None and source_project is not project:
        row |= {"allow_collaboration": False, "allow_maintainer_to_push": False}
    return row


def blank_detail() -> Row:
    """The extra fields of a single read before the diff exists."""
    return {
        "subscribed": False,
        "changes_count": None,
        "latest_build_started_at": None,
        "latest_build_finished_at": None,
        "first_deployed_to_production_at": None,
        "pipeline": None,
        "head_pipeline": None,
        "diff_refs": None,
        "merge_error": None,
        "first_contribution": False,
        "user": {"can_merge": False},
    }


def _sentence(words: list[str]) -> str:
    if len(words) > 2:
        return ", ".join(words[:-1]) + f", and {words[-1]}"
    return " and ".join(words)


__all__ = [
    "GitLab",
    "Group",
    "MergeRequest",
    "Note",
    "Project",
    "blank_detail",
    "blank_merge_request",
    "discussion_id",
]
