"""Small projects, each odd in one way, for tests that compare two ways of reading.

Belongs here: one function for each kind of oddity, and their list. Large projects are
:mod:`sync_pipeline_sandbox.gitlab.generator`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_sandbox.gitlab.records import Group, MergeRequest, Project, Row

BEGINNING = datetime(2024, 3, 1, 9, 0, 0, 123456, tzinfo=UTC)
REVIEW_STATES = ("unreviewed", "reviewed", "requested_changes", "approved", "unapproved", "review_started")
MANY_NOTES, MANY_COMMITS = 130, 120
LARGE_ID = 2**53 + 1
"""The smallest number that a floating point number cannot hold."""


@dataclass(frozen=True, slots=True)
class ProjectBuilder:
    """The project that a data set fills, with three people and a real git repository."""

    gitlab: GitLab
    project: Project
    folder: Path
    author: Row
    reviewer: Row
    third: Row

    def tick(self, **time: float) -> None:
        """Let the server's time pass; a second and a millisecond unless told otherwise."""
        step = timedelta(**(time or {"seconds": 1, "milliseconds": 1}))
        self.gitlab.clock.fixed = self.gitlab.clock.now() + step

    def commit(self, branch: str, message: str) -> str:
        """Commit a file to a branch, which begins at main, with the effects of a push."""
        git = self.project.repository
        assert git is not None
        parents = None if git.resolve(f"refs/heads/{branch}") else [git.resolve("refs/heads/main") or ""]
        date = f"{int(self.gitlab.clock.now().timestamp())} +0200"
        files = {f"{branch}.txt": f"{message}\n"}
        return self.gitlab.push(
            self.project, branch, f"{message}\n", author=self.author, files=files, parents=parents, date=date
        )

    def open(self, branch: str, **more: Any) -> MergeRequest:
        """Open a merge request from a new branch with one commit."""
        self.commit(branch, f"Add {branch}")
        request = self.gitlab.open_merge_request(
            self.project, author=self.author, source=branch, title=f"Add {branch}", **more
        )
        self.tick()
        return request

    def position(self, request: MergeRequest, line: int, *, lines: int = 1) -> Row:
        """The position of a note on lines of the diff."""
        refs = request.detail["diff_refs"]
        name = f"{request.row['source_branch']}.txt"
        ends = {
            end: {"line_code": f"{name}_0_{number}", "type": "new", "old_line": None, "new_line": number}
            for end, number in (("start", line), ("end", line + lines - 1))
        }
        return {
            **refs,
            "old_path": name,
            "new_path": name,
            "position_type": "text",
            "old_line": None,
            "new_line": line,
            "line_range": ends,
        }


def build(name: str, gitlab: GitLab, group: Group, folder: Path) -> Project:
    """Make the project of a data set (see ``DATA_SETS``) in a group, with its repositories in a folder.
    The clock of the server is afterwards as it was before."""
    with gitlab.lock:
        before, gitlab.clock.fixed = gitlab.clock.fixed, BEGINNING
        try:
            git = GitRepository.create(folder / f"{name}.git")
            git.commit("main", "Begin\n", files={"README.md": "Begin\n"}, date="1709280000 +0000")
            project = gitlab.project(name, group=group, repository=git)
            people = [gitlab.user(f"{name}-{role}") for role in ("author", "reviewer", "third")]
            DATA_SETS[name](ProjectBuilder(gitlab, project, folder, *people))
        finally:
            gitlab.clock.fixed = before
    return project


def _threads(builder: ProjectBuilder) -> None:
    """Single notes, threads, replies, and threads on the diff, resolved and not."""
    gitlab, request = builder.gitlab, builder.open("threads")
    gitlab.comment(request, builder.reviewer, "A single note")
    answered = gitlab.comment(request, builder.reviewer, "A single note that becomes a thread")
    thread = gitlab.comment(request, builder.reviewer, "A thread", thread=True)
    on_line = gitlab.comment(request, builder.reviewer, "On a line", position=builder.position(request, 1))
    on_lines = gitlab.comment(
        request, builder.third, "On two", position=builder.position(request, 1, lines=2)
    )
    for note in (answered, thread, on_line, on_lines):
        builder.tick()
        gitlab.comment(request, builder.author, "A reply", reply_to=note)
    builder.tick()
    gitlab.resolve(request, thread, builder.author)
    gitlab.resolve(request, on_lines, builder.third)
    builder.tick()
    gitlab.resolve(request, on_lines, builder.third, resolved=False)
    gitlab.comment(request, builder.third, "A reply in a resolved thread", reply_to=thread)
    gone = gitlab.comment(request, builder.third, "Deleted later")
    gitlab.delete_note(request, gone, bump=True)
    # The commit of the position is no longer the head.
    builder.commit("threads", "Answer the review")


def _deleted_users(builder: ProjectBuilder) -> None:
    """People who were deleted and are the ghost or null now, in every role."""
    gitlab = builder.gitlab
    for branch, leave_null in (("ghost", False), ("nobody", True)):
        request = builder.open(branch)
        leaving = gitlab.user(f"leaving-{branch}")
        note = gitlab.comment(request, leaving, "Before I go", thread=True)
        gitlab.resolve(request, note, leaving)
        gitlab.request_review(request, builder.author, leaving, builder.reviewer)
        gitlab.approve(request, leaving)
        gitlab.approve(request, builder.reviewer)
        gitlab.assign(request, leaving, leaving)
        gitlab.add_label(builder.project, request, leaving, "left")
        gitlab.close(request, leaving)
        builder.tick()
        gitlab.delete_user(leaving, leave_null=leave_null)
    request = gitlab.open_merge_request(builder.project, author=None, source="ghost", title="By nobody")
    gitlab.comment(request, None, "By nobody")


def _internal_notes(builder: ProjectBuilder) -> None:
    """Internal notes, alone and in threads."""
    gitlab, request = builder.gitlab, builder.open("internal")
    gitlab.comment(request, builder.reviewer, "For all")
    gitlab.comment(request, builder.reviewer, "Between us", internal=True)
    thread = gitlab.comment(request, builder.reviewer, "A thread between us", thread=True, internal=True)
    gitlab.comment(request, builder.author, "A reply between us", reply_to=thread, internal=True)


def _commit_notes(builder: ProjectBuilder) -> None:
    """Notes on commits, which GraphQL lists among those of the merge requests with the commit."""
    gitlab, request = builder.gitlab, builder.open("noted")
    head = builder.commit("noted", "Second")
    gitlab.comment(request, builder.reviewer, "On the merge request")
    gitlab.comment_on_commit(builder.project, head, builder.reviewer, "On its commit")
    git = builder.project.repository
    assert git is not None
    gitlab.comment_on_commit(builder.project, git.resolve("main") or "", builder.third, "On another commit")
    # One commit can be in two merge requests.
    gitlab.open_merge_request(builder.project, author=builder.third, source="noted", title="The same commits")


def _many_notes(builder: ProjectBuilder) -> None:
    """Merge requests with as many notes as a page has, one more, and several pages."""
    for count in (50, 51, 100, 101, MANY_NOTES):
        request = builder.open(f"notes-{count}")
        for number in range(count):
            if number % 10 == 9:
                builder.gitlab.system_note(
                    request, builder.author, "changed the description", builder.gitlab.clock.now()
                )
            else:
                builder.gitlab.comment(request, builder.reviewer, f"Note {number}", thread=number % 3 == 0)
            builder.tick(milliseconds=400)


def _many_commits(builder: ProjectBuilder) -> None:
    """A merge request with more commits than a page has, and two without any."""
    request = builder.open("long")
    git = builder.project.repository
    assert git is not None
    before = git.resolve("long")
    stream = [f"reset refs/heads/long\nfrom {before}\n"]
    for number in range(MANY_COMMITS - 1):
        text = f"Commit {number}\n"
        who = f"User 1 <user1@example.test> {1709290000 + number} +0000"
        stream.append(f"commit refs/heads/long\ncommitter {who}\ndata {len(text)}\n{text}\n")
    git.fast_import("".join(stream).encode())
    builder.gitlab.pushed(builder.project, "long", before, git.resolve("long"), author=builder.author)
    builder.gitlab.comment(request, builder.reviewer, "Long")
    builder.gitlab.open_merge_request(builder.project, author=builder.author, source="fresh", fresh=True)
    git.set_ref("refs/heads/same", git.resolve("main"))
    builder.gitlab.open_merge_request(
        builder.project, author=builder.author, source="same", title="No commit"
    )


def _approvals(builder: ProjectBuilder) -> None:
    """Approvals with and without a note, taken back, given again, and reset without a note."""
    gitlab = builder.gitlab
    with_note, without, back, again, reset, pushed = (
        builder.open(branch)
        for branch in ("with-note", "without-note", "taken-back", "again", "reset", "pushed")
    )
    gitlab.approve(with_note, builder.reviewer)
    builder.tick(milliseconds=700)
    gitlab.approve(with_note, builder.third)
    gitlab.approve(without, builder.reviewer, note=False)
    gitlab.approve(without, builder.third)
    gitlab.approve(back, builder.reviewer)
    builder.tick()
    gitlab.unapprove(back, builder.reviewer)
    for _ in range(2):
        gitlab.approve(again, builder.reviewer)
        builder.tick()
        gitlab.unapprove(again, builder.reviewer)
        builder.tick()
    gitlab.approve(again, builder.reviewer)
    gitlab.approve(reset, builder.reviewer)
    builder.tick()
    gitlab.reset_approvals(reset)
    gitlab.approve(pushed, builder.reviewer)
    builder.tick()
    builder.commit("pushed", "After the approval")
    gitlab.reset_approvals(pushed)
    builder.tick()
    gitlab.approve(pushed, builder.third)
    gitlab.comment(pushed, builder.third, "approved this merge request")


def _reviewers(builder: ProjectBuilder) -> None:
    """Reviewers in all states, one who was removed, and one merge request without any."""
    gitlab, request = builder.gitlab, builder.open("reviewed")
    for state in REVIEW_STATES:
        user = gitlab.user(f"{state.replace('_', '-')}-reviewer")
        gitlab.request_review(request, builder.author, user)
        gitlab.set_review_state(request, user, state)
        builder.tick()
    gitlab.request_review(request, builder.author, builder.third)
    gitlab.remove_reviewer(request, builder.author, builder.third)
    builder.open("not-reviewed")


def _events(builder: ProjectBuilder) -> None:
    """State, label and milestone events, also of labels and milestones that are gone."""
    gitlab, project, user = builder.gitlab, builder.project, builder.author
    request, merged, quiet = builder.open("changed"), builder.open("merged"), builder.open("quiet")
    first, second = gitlab.milestone(project, "1.0"), gitlab.milestone(project.group, "2024")
    steps: list[Callable[[], None]] = [
        lambda: gitlab.close(request, user),
        lambda: gitlab.reopen(request, user),
        lambda: gitlab.add_label(project, request, user, "bug"),
        lambda: gitlab.add_label(project, request, None, "urgent"),
        lambda: gitlab.remove_label(project, request, user, "bug"),
        lambda: gitlab.set_milestone(request, user, first),
        lambda: gitlab.set_milestone(request, user, second),
        lambda: gitlab.set_milestone(request, user, None),
        lambda: gitlab.merge(merged, user, merge_commit_sha="a" * 40),
        lambda: gitlab.set_milestone(merged, user, second),
        lambda: gitlab.close_milestone(second),
        lambda: gitlab.delete_label(project, "urgent"),
    ]
    for step in steps:
        step()
        builder.tick(milliseconds=600)
    gitlab.comment(quiet, builder.reviewer, "Without events")


def _forks(builder: ProjectBuilder) -> None:
    """Merge requests from a fork, from one that was pushed to again, and from one that is gone."""
    gitlab, git = builder.gitlab, builder.project.repository
    assert git is not None
    name = builder.project.path
    for state in ("there", "forced", "gone"):
        own = GitRepository.create(builder.folder / f"{name}-{state}.git")
        own.fetch(git, "main", "refs/heads/main")
        fork = gitlab.project(f"{name}-{state}", group=gitlab.group(f"{name}-{state}"), repository=own)
        main = own.resolve("main") or ""
        gitlab.push(fork, "idea", f"From {state}\n", author=builder.third, parents=[main])
        request = gitlab.open_merge_request(
            builder.project, author=builder.third, source="idea", title=f"From {state}", source_project=fork
        )
        builder.tick()
        gitlab.comment(request, builder.reviewer, "From outside")
        if state == "forced":
            gitlab.push(fork, "idea", "Anew\n", author=builder.third, parents=[main], bump=False)
        if state == "gone":
            gitlab.delete_project(fork)
            gitlab.edit(request, bump=False, source_project_id=None)
        builder.tick()


def _pushes(builder: ProjectBuilder) -> None:
    """Versions of all kinds: pushes, a forced push, a moved target, and a branch that was deleted."""
    gitlab, git = builder.gitlab, builder.project.repository
    assert git is not None
    request = builder.open("growing")
    builder.commit("growing", "Second")
    builder.tick()
    main = git.resolve("main") or ""
    gitlab.push(builder.project, "growing", "Anew\n", author=builder.author, parents=[main], bump=False)
    builder.tick()
    builder.commit("main", "The target moves")
    builder.commit("growing", "After the target moved")
    gitlab.comment(request, builder.reviewer, "After four versions")
    builder.open("deleted")
    gitlab.delete_branch(builder.project, "deleted", author=builder.author)


def _large_ids(builder: ProjectBuilder) -> None:
    """Ids that need 64 bits: of merge requests, notes, people and events."""
    gitlab = builder.gitlab
    gitlab.continue_ids(LARGE_ID)
    user = gitlab.user("large")
    for branch in ("first", "second"):
        request = builder.open(branch)
        note = gitlab.comment(request, user, "Large", thread=True)
        gitlab.comment(request, builder.author, "A reply", reply_to=note)
        gitlab.request_review(request, builder.author, user)
        gitlab.approve(request, user)
        gitlab.add_label(builder.project, request, user, "large")
        gitlab.close(request, user)


def _same_second(builder: ProjectBuilder) -> None:
    """Notes, edits and approvals within one second, and an edit that does not move the merge request."""
    gitlab, request = builder.gitlab, builder.open("quick")
    gitlab.clock.fixed = gitlab.clock.now().replace(microsecond=1_000)
    first = gitlab.comment(request, builder.reviewer, "First")
    builder.tick(milliseconds=200)
    second = gitlab.comment(request, builder.reviewer, "Second")
    builder.tick(milliseconds=200)
    gitlab.edit_note(request, first, "First, edited")
    gitlab.approve(request, builder.reviewer)
    builder.tick(milliseconds=200)
    gitlab.edit_note(request, second, "Second, edited", bump=True)
    gitlab.unapprove(request, builder.reviewer)
    builder.tick(milliseconds=200)
    gitlab.approve(request, builder.reviewer)
    slow = builder.open("slow")
    late = gitlab.comment(slow, builder.third, "Edited a day later")
    builder.tick(days=1)
    gitlab.edit_note(slow, late, "Edited")


def _texts(builder: ProjectBuilder) -> None:
    """Texts that break parsers: empty, long, of all planes, with control characters and markup."""
    request = builder.open("texts", description=None)
    for text in ("", "é✓🐛\u202e", "a\u0000b", "\r\n\t", "<b>&amp;</b>", '"\\"', "x" * 20_000):
        builder.gitlab.comment(request, builder.reviewer, text)


DATA_SETS: dict[str, Callable[[ProjectBuilder], None]] = {
    "threads": _threads,
    "deleted-users": _deleted_users,
    "internal-notes": _internal_notes,
    "commit-notes": _commit_notes,
    "many-notes": _many_notes,
    "many-commits": _many_commits,
    "approvals": _approvals,
    "reviewers": _reviewers,
    "events": _events,
    "forks": _forks,
    "pushes": _pushes,
    "large-ids": _large_ids,
    "same-second": _same_second,
    "texts": _texts,
}
"""The function that fills a project, by the name of the data set and the project."""
