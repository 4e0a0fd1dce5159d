"""The activity of people in the demo's GitLab: the same at every start, for one time of the first start.

Belongs here: projects, branches, merge requests and reviews, each with its time. Each merge request is a
generator that yields the time of its next step, so that they overlap as in a real project. The second sync of
the demo finds everything after :attr:`Activity.anchor`. :mod:`sync_pipeline_sandbox.sample_gitlab` has the
address of the server.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from heapq import heappop, heappush
from pathlib import Path

from sync_pipeline_sandbox.gitlab import DEVELOPER, GUEST, REPORTER, GitLab, GitRepository
from sync_pipeline_sandbox.gitlab.records import Group, MergeRequest, Note, Project, Row
from sync_pipeline_sandbox.people import TEAM, Person

HISTORY = timedelta(days=91)
"""How long before the anchor the projects begin."""

READABLE = ("demo/engine", "demo/tools/lathe")
"""Paths of the projects that the token may read; the second one is in a subgroup."""

DENIED = "finance/payroll"
"""Path of the project that the token sees and may not read."""

_ADA, _BJORN, _CHEN, _DMITRI, _ESI, _GRACE = TEAM
_BOT = "scm-sync"

Script = Iterator[datetime]
"""Yields the time of its next step."""


class End(Enum):
    """How a merge request ends."""

    MERGE = "merge commit"
    SQUASH = "squash"
    FAST_FORWARD = "fast-forward"
    CLOSE = "closed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Topic:
    """A merge request: opened so many days before the anchor."""

    days: float
    title: str
    label: str
    end: End

    @property
    def branch(self) -> str:
        """Name of its branch."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def file(self) -> str:
        """Path of the file that it changes."""
        return f"src/{self.branch.replace('-', '_')}.py"


_ENGINE = (
    Topic(88.2, "Read the settings once", "feature", End.MERGE),
    Topic(86.1, "Fix the overflow of the step counter", "bug", End.SQUASH),
    Topic(83.3, "Log the reason of an emergency stop", "feature", End.FAST_FORWARD),
    Topic(80.2, "Limit the current of the spindle", "bug", End.MERGE),
    Topic(77.1, "Cache the parsed programs", "performance", End.SQUASH),
    Topic(74.3, "Show the temperature in degrees", "feature", End.MERGE),
    Topic(71.2, "Try a lock-free queue", "performance", End.CLOSE),
    Topic(68.1, "Stop when a sensor is silent", "bug", End.MERGE),
    Topic(64.3, "Accept arcs with negative radius", "bug", End.SQUASH),
    Topic(57.2, "Keep the last position after a reset", "feature", End.MERGE),
    Topic(53.1, "Use the monotonic clock", "bug", End.FAST_FORWARD),
    Topic(49.2, "Name the axis in every error", "feature", End.SQUASH),
    Topic(45.3, "Halve the start-up time", "performance", End.MERGE),
    Topic(36.2, "Check the limits before each move", "bug", End.MERGE),
    Topic(31.1, "Drop the old serial protocol", "feature", End.CLOSE),
    Topic(26.3, "Add a simulated spindle", "feature", End.SQUASH),
    Topic(21.2, "Report lost steps", "feature", End.MERGE),
    Topic(16.1, "Round half to even", "bug", End.FAST_FORWARD),
    Topic(11.2, "Retry the calibration once", "bug", End.SQUASH),
    Topic(7.1, "Document the error codes", "docs", End.MERGE),
    Topic(1.6, "Support a fourth axis", "feature", End.OPEN),
)
_LATHE = (
    Topic(70.2, "Draw the tool path", "feature", End.MERGE),
    Topic(61.1, "Fix the scale of the preview", "bug", End.SQUASH),
    Topic(50.3, "Import drawings in inches", "feature", End.MERGE),
    Topic(42.2, "Warn about collisions", "feature", End.FAST_FORWARD),
    Topic(33.1, "Remember the window size", "bug", End.SQUASH),
    Topic(24.2, "Export the tool list", "feature", End.MERGE),
    Topic(13.1, "Try another renderer", "performance", End.CLOSE),
    Topic(8.2, "Open large drawings faster", "performance", End.SQUASH),
)
_QUESTIONS = (
    "Can this fail when the list is empty?",
    "Why is this limit not a setting?",
    "Please add a test for negative values.",
    "Could this share code with the parser?",
    "Is the unit here millimetres?",
)
_REPLIES = (
    "It could; it returns early now.",
    "Good point, it is a setting now.",
    "Added.",
    "It could; done in the last commit.",
    "Yes, the name says it now.",
)
_SUBJECTS = ("Add a first version", "Cover the edge cases", "Simplify the loop")


class Activity:
    """Everything that happens in the demo's GitLab, in order of time. Fills an empty ``gitlab``, with git
    repositories below ``folder``, which are made anew."""

    def __init__(self, gitlab: GitLab, folder: Path, anchor: datetime, secret: str) -> None:
        """``anchor`` is the time up to which the first sync sees it (UTC), ``secret`` the token that may read
        all projects but one."""
        self.anchor = anchor
        self._gitlab = gitlab
        self._folder = folder
        self._queue: list[tuple[datetime, int, Script]] = []
        gitlab.clock.fixed = anchor - HISTORY
        people = {person.username: gitlab.user(person.username, name=person.name) for person in TEAM}
        bot = gitlab.user(_BOT, name="Source Sync")
        demo, finance = gitlab.group("demo"), gitlab.group("finance")
        for person in people.values():
            gitlab.add_member(demo, person, DEVELOPER)
            gitlab.add_member(finance, person, DEVELOPER)
        gitlab.add_member(demo, bot, REPORTER)
        # A guest sees that the project exists, and neither code nor merge requests.
        gitlab.add_member(finance, bot, GUEST)
        gitlab.token(bot, secret=secret, expires_at=(anchor + timedelta(days=365)).date())
        engine = self._project(demo, "engine", people)
        lathe = self._project(gitlab.group("tools", parent=demo), "lathe", people)
        payroll = self._project(finance, "payroll", people)
        for work, topics in ((engine, _ENGINE), (lathe, _LATHE)):
            for number, topic in enumerate(topics):
                self._begin(self._topic(work, topic, number))
        self._begin(self._forgotten(engine))
        self._begin(self._reformatted(engine))
        self._begin(self._rewritten(engine))
        self._begin(self._finished_later(lathe))
        self._begin(self._opened_later(lathe))
        self._begin(self._topic(payroll, Topic(40.2, "Pay out in two currencies", "feature", End.OPEN), 0))

    def advance(self, until: datetime) -> None:
        """Let everything happen up to and including ``until`` (UTC), where the server's clock stands then."""
        with self._gitlab.lock:
            while self._queue and self._queue[0][0] <= until:
                moment, number, script = heappop(self._queue)
                self._gitlab.clock.fixed = moment
                self._push(number, script)
            self._gitlab.clock.fixed = until

    def _begin(self, script: Script) -> None:
        self._push(len(self._queue), script)

    def _push(self, number: int, script: Script) -> None:
        following = next(script, None)
        if following is not None:
            heappush(self._queue, (following, number, script))

    def _project(self, group: Group, path: str, people: Mapping[str, Row]) -> _ProjectScripts:
        folder = self._folder / f"{path}.git"
        shutil.rmtree(folder, ignore_errors=True)
        git = GitRepository.create(folder)
        work = _ProjectScripts(self._gitlab, self._gitlab.project(path, group=group, repository=git), people)
        work.push(_ADA, "main", "Begin\n", {"README.md": f"# {path.title()}\n"}, parents=[])
        return work

    # -- merge requests -----------------------------------------------------------------------------------

    def _topic(self, work: _ProjectScripts, topic: Topic, number: int) -> Script:
        """A merge request as most are: commits, review, more commits, an end."""
        author, reviewer = TEAM[number % 6], TEAM[(number + 1 + number // 6 % 3) % 6]
        question, answer = _QUESTIONS[number % 5], _REPLIES[number % 5]
        opened = self.anchor - timedelta(days=topic.days)
        for step in range(1 + number % 2):
            yield opened - timedelta(hours=6 - 3 * step)
            work.push(author, topic.branch, f"{_SUBJECTS[step]}\n", {topic.file: _code(4 + 4 * step)})
        yield opened
        request = work.open(topic, author, reviewer)
        yield (moment := opened + timedelta(hours=1 + 5 * number % 23))
        if number % 3 == 0:
            note = work.comment_line(request, reviewer, question, topic.file, 3)
        else:
            note = work.comment(request, reviewer, question)
        yield (moment := moment + timedelta(minutes=50 + 7 * number))
        work.comment(request, author, answer, reply_to=note if number % 3 == 0 else None)
        if topic.end is End.OPEN:
            return
        yield (moment := moment + timedelta(hours=2))
        if topic.end is End.CLOSE:
            work.comment(request, author, "This is not worth it; closing.")
            work.close(request, author)
            return
        work.push(author, topic.branch, f"{_SUBJECTS[2]}\n", {topic.file: _code(10)})
        yield (moment := moment + timedelta(hours=1 + number % 5))
        if number % 3 == 0:
            work.resolve(request, note, reviewer)
        work.approve(request, reviewer)
        yield moment + timedelta(minutes=10 + 3 * number)
        work.merge(request, topic, by=reviewer, author=author)

    def _forgotten(self, work: _ProjectScripts) -> Script:
        """A merge request that has been open for 60 days."""
        topic = Topic(60.1, "Replace the filter of the encoder", "feature", End.OPEN)
        yield self.anchor - timedelta(days=topic.days, hours=2)
        work.push(_DMITRI, topic.branch, "Replace the filter\n", {topic.file: _code(12)})
        yield self.anchor - timedelta(days=topic.days)
        request = work.open(topic, _DMITRI, _ESI)
        yield self.anchor - timedelta(days=topic.days - 2)
        work.comment(request, _ESI, "Did you measure this on the small machine?")

    def _reformatted(self, work: _ProjectScripts) -> Script:
        """A bulk change."""
        topic = Topic(40.1, "Reformat all sources", "maintenance", End.MERGE)
        files = {f"src/generated/part_{number:02d}.py": _code(12) for number in range(60)}
        yield self.anchor - timedelta(days=topic.days, hours=1)
        work.push(_GRACE, topic.branch, "Reformat all sources\n\nNo change in behaviour.\n", files)
        yield self.anchor - timedelta(days=topic.days)
        request = work.open(topic, _GRACE, _ADA)
        yield self.anchor - timedelta(days=topic.days, hours=-3)
        work.comment(request, _ADA, "Formatting only, as far as I can see.")
        work.approve(request, _ADA)
        yield self.anchor - timedelta(days=topic.days, hours=-4)
        work.merge(request, topic, by=_ADA, author=_GRACE)

    def _rewritten(self, work: _ProjectScripts) -> Script:
        """Seen by both syncs: a force push, a withdrawn approval, a resolved thread and a deleted note."""
        topic = Topic(3.2, "Smooth the acceleration", "performance", End.OPEN)
        yield self.anchor - timedelta(days=topic.days, hours=5)
        work.push(_CHEN, topic.branch, "Smooth the acceleration\n", {topic.file: _code(6)})
        yield self.anchor - timedelta(days=topic.days, hours=2)
        work.push(_CHEN, topic.branch, "Try a longer window\n", {topic.file: _code(9)})
        yield self.anchor - timedelta(days=topic.days)
        request = work.open(topic, _CHEN, _GRACE)
        yield self.anchor - timedelta(days=2, hours=4)
        thread = work.comment_line(request, _GRACE, "This allocates in the inner loop.", topic.file, 5)
        yield self.anchor - timedelta(days=1, hours=3)
        work.approve(request, _GRACE)
        yield self.anchor - timedelta(hours=9)
        mistake = work.comment(request, _BJORN, "Wrong merge request, sorry.")
        yield self.anchor + timedelta(minutes=5)
        main = work.tips["main"]
        message = "Smooth the acceleration\n\nWithout allocations.\n"
        work.push(_CHEN, topic.branch, message, {topic.file: _code(8)}, parents=[main])
        yield self.anchor + timedelta(minutes=8)
        work.comment(request, _CHEN, "Rewritten without allocations.", reply_to=thread)
        work.resolve(request, thread, _CHEN)
        yield self.anchor + timedelta(minutes=12)
        self._gitlab.delete_note(request, mistake)
        yield self.anchor + timedelta(minutes=20)
        work.withdraw(request, _GRACE)
        work.comment(request, _GRACE, "The new version rounds differently; I will read it again.")

    def _finished_later(self, work: _ProjectScripts) -> Script:
        """Open at the first sync, merged and its branch deleted at the second."""
        topic = Topic(2.3, "Print the tool list", "feature", End.SQUASH)
        yield self.anchor - timedelta(days=topic.days, hours=3)
        work.push(_ESI, topic.branch, "Print the tool list\n", {topic.file: _code(5)})
        yield self.anchor - timedelta(days=topic.days)
        request = work.open(topic, _ESI, _BJORN)
        yield self.anchor - timedelta(days=1, hours=6)
        work.comment(request, _BJORN, "Works here.")
        yield self.anchor + timedelta(minutes=15)
        work.approve(request, _BJORN)
        yield self.anchor + timedelta(minutes=25)
        work.merge(request, topic, by=_BJORN, author=_ESI)

    def _opened_later(self, work: _ProjectScripts) -> Script:
        """Not there at the first sync."""
        topic = Topic(0.0, "Snap to the grid", "feature", End.OPEN)
        yield self.anchor + timedelta(minutes=30)
        work.push(_ADA, topic.branch, "Snap to the grid\n", {topic.file: _code(4)})
        yield self.anchor + timedelta(minutes=40)
        work.open(topic, _ADA, _CHEN)


@dataclass
class _ProjectScripts:
    """One project and the actions of people in it, at the time of the server's clock."""

    gitlab: GitLab
    project: Project
    people: Mapping[str, Row]
    tips: dict[str, str] = field(default_factory=dict)
    _files: dict[str, dict[str, str]] = field(default_factory=dict)
    """The changed files of each branch."""

    def push(
        self,
        who: Person,
        branch: str,
        message: str,
        files: Mapping[str, str],
        *,
        parents: list[str] | None = None,
        author: Person | None = None,
    ) -> str:
        """Push a commit; a new branch begins at main. With other ``parents`` than the tip it is a force
        push."""
        before = self.tips.get(branch)
        if parents is None:
            parents = [before or self.tips["main"]]
            self._files.setdefault(branch, {}).update(files)
        else:
            self._files[branch] = dict(files)
        sha = self._git.commit(
            branch,
            message,
            files=files,
            parents=parents,
            author=(author or who).git,
            committer=who.git,
            date=f"{int(self.gitlab.clock.now().timestamp())} +0200",
        )
        self._moved(who, branch, sha)
        return sha

    def open(self, topic: Topic, author: Person, reviewer: Person) -> MergeRequest:
        """Open a merge request with a label, and request a review."""
        row = self.people[author.username]
        request = self.gitlab.open_merge_request(
            self.project, title=topic.title, source=topic.branch, author=row
        )
        self.gitlab.add_label(self.project, request, row, topic.label)
        self.gitlab.request_review(request, row, self.people[reviewer.username])
        return request

    def comment(self, request: MergeRequest, who: Person, body: str, *, reply_to: Note | None = None) -> Note:
        """Write a comment."""
        return self.gitlab.comment(request, self.people[who.username], body, reply_to=reply_to)

    def comment_line(self, request: MergeRequest, who: Person, body: str, path: str, line: int) -> Note:
        """Begin a thread on a line that the merge request adds."""
        at = request.versions[-1]
        position = {
            "base_sha": at["base_commit_sha"],
            "start_sha": at["start_commit_sha"],
            "head_sha": at["head_commit_sha"],
            "old_path": path,
            "new_path": path,
            "position_type": "text",
            "old_line": None,
            "new_line": line,
            "line_range": None,
        }
        return self.gitlab.comment(request, self.people[who.username], body, position=position)

    def resolve(self, request: MergeRequest, note: Note, who: Person) -> None:
        """Resolve a thread."""
        self.gitlab.resolve(request, note, self.people[who.username])

    def approve(self, request: MergeRequest, who: Person) -> None:
        """Approve."""
        self.gitlab.approve(request, self.people[who.username])

    def withdraw(self, request: MergeRequest, who: Person) -> None:
        """Take an approval back."""
        self.gitlab.unapprove(request, self.people[who.username])

    def close(self, request: MergeRequest, who: Person) -> None:
        """Close without merging."""
        self.gitlab.close(request, self.people[who.username])

    def merge(self, request: MergeRequest, topic: Topic, *, by: Person, author: Person) -> None:
        """Merge in the topic's way, and delete the branch."""
        main, head = self.tips["main"], self.tips[topic.branch]
        files = self._files[topic.branch]
        merged: str | None = None
        if topic.end is End.SQUASH:
            sha = self.push(by, "main", f"{topic.title}\n", files, author=author)
            request.row |= {"squash": True, "squash_on_merge": True, "squash_commit_sha": sha}
        elif topic.end is End.FAST_FORWARD:
            if self._git.merge_base([main, head]) != main:
                head = self.push(author, topic.branch, f"{topic.title}\n", files, parents=[main])
            self._git.set_ref("refs/heads/main", head)
            self._moved(by, "main", head)
        else:
            text = f"Merge branch '{topic.branch}' into 'main'\n\n{topic.title}\n"
            merged = self.push(by, "main", text, files, parents=[main, head])
        self.gitlab.merge(request, self.people[by.username], merge_commit_sha=merged)
        self.gitlab.delete_branch(self.project, topic.branch, author=self.people[by.username])
        del self.tips[topic.branch]

    @property
    def _git(self) -> GitRepository:
        assert self.project.repository is not None
        return self.project.repository

    def _moved(self, who: Person, branch: str, sha: str) -> None:
        before, self.tips[branch] = self.tips.get(branch), sha
        self.gitlab.pushed(self.project, branch, before, sha, author=self.people[who.username])


def _code(count: int) -> str:
    """The text of a file with so many functions."""
    return "".join(f"def step_{n}(value):\n    return value * {n}\n\n" for n in range(1, count + 1))
