"""A project of a size that is worth measuring: a year of merge requests over a real git repository.

Belongs here: the data set of the benchmarks and of tests that count requests. Its counts are exact (see
:class:`Truth`), and it is the same for the same seed. Odd rows are in
:mod:`sync_pipeline_sandbox.gitlab.generator`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sync_pipeline_sandbox.gitlab.control import GitLab, blank_detail, blank_merge_request
from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_sandbox.gitlab.records import Group, MergeRequest, Note, Project, Row, stamp

BEGINNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
STEP = timedelta(hours=4)
"""Time between two merge requests."""
PEOPLE = 20
TAGS = 12
_LABELS = ("bug", "feature", "documentation", "security")


@dataclass(frozen=True, slots=True)
class Truth:
    """How many rows of each kind the project has."""

    merge_requests: int
    notes: int
    approvals: int
    approved_merge_requests: int
    reviewed_merge_requests: int
    commits: int
    branches: int
    tags: int

    @classmethod
    def of(cls, merge_requests: int) -> Truth:
        """The counts of a project with so many merge requests; 2,000 give those of the budgets."""
        unmerged = merge_requests * 3 // 20
        merged = merge_requests - unmerged
        direct = merge_requests * 88 // 1000
        return cls(
            merge_requests=merge_requests,
            notes=merge_requests * 5,
            approvals=merge_requests * 29 // 40,
            approved_merge_requests=merge_requests * 11 // 20,
            reviewed_merge_requests=merge_requests * 2 // 3,
            # A merged branch has a commit and its merge; every second unmerged one has two commits.
            commits=2 * merged + unmerged + unmerged // 2 + direct,
            branches=unmerged + 3,
            tags=min(TAGS, direct),
        )


@dataclass(slots=True)
class World:
    """The project with its truth."""

    project: Project
    truth: Truth


@dataclass(slots=True)
class _Change:
    """A merge request to be: its branch and times."""

    iid: int
    author: int
    created: datetime
    ended: datetime
    commit_count: int
    state: str
    branch: str = field(init=False)
    base: str = ""
    shas: list[str] = field(default_factory=list)
    merge_sha: str | None = None

    def __post_init__(self) -> None:
        self.branch = f"feature/{self.iid:04d}"


def build_world(
    gitlab: GitLab,
    group: Group,
    folder: Path,
    *,
    merge_requests: int = 2_000,
    seed: int = 1,
    path: str = "world",
    beginning: datetime = BEGINNING,
) -> World:
    """Make the project, with its repository in ``folder``. It has no milestones.

    2,000 merge requests take about two seconds. Raises ValueError for less than 20 of them.
    """
    if merge_requests < 20:
        raise ValueError("the world needs at least 20 merge requests")
    truth = Truth.of(merge_requests)
    chance = random.Random(seed)
    changes = _plan(merge_requests, beginning, chance)
    repository = _history(folder / f"{path}.git", changes, truth, beginning)
    with gitlab.lock:
        before = gitlab.clock.fixed
        gitlab.clock.fixed = beginning
        try:
            project = gitlab.project(path, group=group, repository=repository)
            people = [gitlab.user(f"{path}-user{number}") for number in range(1, PEOPLE + 1)]
            commits = {
                row["id"]: row for row in repository.commits([sha for one in changes for sha in one.shas])
            }
            _talk(gitlab, project, people, changes, commits, truth, chance)
        finally:
            gitlab.clock.fixed = before
    return World(project, truth)


def _plan(count: int, beginning: datetime, chance: random.Random) -> list[_Change]:
    """Which merge requests there are: spread evenly over time, every state among old and new ones."""
    unmerged = set(chance.sample(range(1, count + 1), count * 3 // 20))
    changes = []
    seen = 0
    for iid in range(1, count + 1):
        created = beginning + STEP * iid + timedelta(microseconds=chance.randrange(1_000_000))
        # Of three unmerged ones two are open.
        seen += iid in unmerged
        state = ("closed" if seen % 3 == 0 else "opened") if iid in unmerged else "merged"
        changes.append(
            _Change(
                iid=iid,
                author=chance.randrange(PEOPLE),
                created=created,
                ended=created
                + STEP * chance.uniform(0.5, 6)
                + timedelta(microseconds=chance.randrange(1000)),
                commit_count=2 if iid in unmerged and seen % 2 == 0 else 1,
                state=state,
            )
        )
    return changes


# --- The repository -------------------------------------------------------------------------------------


class _Importer:
    """A stream for ``git fast-import`` that makes commits and remembers their marks."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.refs: dict[str, int] = {}
        self.count = 0

    def commit(self, ref: str, who: int, at: datetime, title: str, parents: list[int], file: str) -> int:
        """Add a commit that writes one file, and point the ref at it; returns its mark."""
        self.count += 1
        body = f"{title}\n\nIt changes {file}.\n".encode()
        lines = "".join(f"line {line} of {title}\n" for line in range(self.count % 12 + 1)).encode()
        person = f"User {who + 1} <user{who + 1}@example.test> {int(at.timestamp())} +0000"
        # One name for all, because git writes those of a stream slowly. The reset makes it forget its tip.
        self.parts.append(f"reset refs/heads/main\n\ncommit refs/heads/main\nmark :{self.count}\n".encode())
        self.parts.append(f"author {person}\ncommitter {person}\n".encode())
        self.parts.append(b"data %d\n%s\n" % (len(body), body))
        for position, parent in enumerate(parents):
            self.parts.append(f"{'merge' if position else 'from'} :{parent}\n".encode())
        self.parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (file.encode(), len(lines), lines))
        self.refs[ref] = self.count
        return self.count


def _history(path: Path, changes: list[_Change], truth: Truth, beginning: datetime) -> GitRepository:
    """The repository of the changes: ``main`` with their merges, and a branch of each that is not merged.

    Fills in the shas of the changes. Hidden refs keep every head, as in GitLab.
    """
    git = _Importer()
    direct = truth.commits - sum(one.commit_count + (one.state == "merged") for one in changes)
    span = (changes[-1].created - beginning) / direct
    # What happens to main and to branches, in the order of time.
    events: list[tuple[datetime, int, _Change | None]] = [
        (beginning + span * number, 0, None) for number in range(direct)
    ]
    events += [(one.created, 1, one) for one in changes]
    events += [(one.ended, 2, one) for one in changes if one.state == "merged"]
    events.sort(key=lambda event: event[:2])
    main: list[int] = []
    marks: dict[int, list[int]] = {}
    bases: dict[int, int] = {}
    merges: dict[int, int] = {}
    for number, (at, what, change) in enumerate(events):
        if change is None:
            who, title, file = number % PEOPLE, f"Work on main {number}", f"main/{number % 40}.txt"
            main.append(git.commit("refs/heads/main", who, at, title, main[-1:], file))
        elif what == 1:
            bases[change.iid] = main[-1]
            own = marks.setdefault(change.iid, [])
            for part in range(change.commit_count):
                title = f"Change {change.iid}, part {part + 1}"
                when = at - timedelta(minutes=10 - part)
                # A branch that is merged leaves no ref but the hidden one.
                ref = f"refs/merge-requests/{change.iid}/head"
                parent = own[-1:] or main[-1:]
                own.append(git.commit(ref, change.author, when, title, parent, f"src/{change.iid % 200}.txt"))
            if change.state != "merged":
                git.refs[f"refs/heads/{change.branch}"] = own[-1]
        else:
            head = marks[change.iid][-1]
            title = f"Merge branch '{change.branch}' into 'main'"
            merged = git.commit(
                "refs/heads/main", change.author, at, title, [main[-1], head], f"src/{change.iid % 200}.txt"
            )
            main.append(merged)
            merges[change.iid] = merged
    git.refs |= {"refs/heads/develop": main[-1], "refs/heads/release/1.0": main[len(main) // 2]}
    for number in range(truth.tags):
        git.refs[f"refs/tags/v1.{number}"] = main[len(main) * (number + 1) // (truth.tags + 1)]
    repository = GitRepository.create(path)
    shas = repository.import_history(b"".join(git.parts), git.refs)
    for change in changes:
        change.base = shas[bases[change.iid] - 1]
        change.shas = [shas[mark - 1] for mark in marks[change.iid]]
        if change.iid in merges:
            change.merge_sha = shas[merges[change.iid] - 1]
    return repository


# --- What people do ---------------------------------------------------------------------------------------


def _talk(
    gitlab: GitLab,
    project: Project,
    people: list[Row],
    changes: list[_Change],
    commits: dict[str, Row],
    truth: Truth,
    chance: random.Random,
) -> None:
    """Open every merge request and let people review, comment, approve and end it."""
    iids = range(1, truth.merge_requests + 1)
    approved = set(chance.sample(iids, truth.approved_merge_requests))
    twice = set(chance.sample(sorted(approved), truth.approvals - truth.approved_merge_requests))
    reviewed = set(chance.sample(iids, truth.reviewed_merge_requests))
    system = truth.approvals + truth.reviewed_merge_requests
    comments = _comments(truth, truth.notes - system, chance)
    for change in changes:
        clock = _moments(change, chance)
        author = people[change.author]
        others = [one for one in people if one is not author]
        chance.shuffle(others)
        request = _opened(gitlab, project, change, author, commits)
        if change.iid in reviewed:
            gitlab.clock.fixed = next(clock)
            gitlab.request_review(request, author, *others[: chance.randint(1, 2)])
        if chance.random() < 0.3:
            gitlab.clock.fixed = next(clock)
            gitlab.add_label(project, request, author, chance.choice(_LABELS))
        _comment(gitlab, request, [author, *others[:3]], comments.get(change.iid, 0), clock, chance)
        for approver in others[: (change.iid in approved) + (change.iid in twice)]:
            gitlab.clock.fixed = next(clock)
            gitlab.approve(request, approver)
        gitlab.clock.fixed = change.ended
        if change.state == "merged":
            gitlab.merge(request, others[0], merge_commit_sha=change.merge_sha)
        elif change.state == "closed":
            gitlab.close(request, author)
        project.last_activity_at = max(project.last_activity_at, request.updated_at)
    project.updated_at = project.last_activity_at


def _comments(truth: Truth, count: int, chance: random.Random) -> dict[int, int]:
    """Comments by iid. A few merge requests have more than a page of GraphQL takes."""
    size = truth.merge_requests
    busy = (size // 4, size // 2, size * 3 // 4)
    found: dict[int, int] = {}
    for _ in range(count):
        iid = chance.choice(busy) if chance.random() < 0.03 else chance.randint(1, size)
        found[iid] = found.get(iid, 0) + 1
    return found


def _moments(change: _Change, chance: random.Random) -> Iterator[datetime]:
    """Rising times between the start of a merge request and its end."""
    left = change.ended - change.created
    at = change.created
    while True:
        # Each takes a part of the time that is left, so it never runs out.
        step = left * chance.uniform(0.005, 0.05)
        left -= step
        at += step
        yield at


def _opened(
    gitlab: GitLab, project: Project, change: _Change, author: Row, commits: dict[str, Row]
) -> MergeRequest:
    head = change.shas[-1]
    row = blank_merge_request(
        project,
        gitlab.next_id("merge_request"),
        change.iid,
        author=author,
        title=f"Change {change.iid}",
        description=f"Part of the plan.\n\nIt changes src/{change.iid % 200}.txt.",
        source=change.branch,
        target="main",
    )
    row |= {
        "sha": head,
        "prepared_at": stamp(change.created),
        "merge_status": "can_be_merged",
        "detailed_merge_status": "mergeable",
    }
    request = MergeRequest(
        row=row, created_at=change.created, updated_at=change.created, detail=blank_detail()
    )
    request.detail |= {
        "changes_count": "1",
        "diff_refs": {"base_sha": change.base, "head_sha": head, "start_sha": change.base},
    }
    version = gitlab.next_id("version")
    request.versions.append(
        {
            "id": version,
            "head_commit_sha": head,
            "base_commit_sha": change.base,
            "start_commit_sha": change.base,
            "created_at": stamp(change.created),
            "merge_request_id": request.id,
            "state": "collected",
            "real_size": "1",
            "patch_id_sha": head[::-1],
        }
    )
    # Asking git for each would take most of the time of the server.
    request.commits[version] = [commits[sha] for sha in reversed(change.shas)]
    project.merge_requests[change.iid] = request
    return request


def _comment(
    gitlab: GitLab,
    request: MergeRequest,
    people: list[Row],
    count: int,
    clock: Iterator[datetime],
    chance: random.Random,
) -> None:
    """Single comments, threads with replies, and remarks on lines; some threads are resolved."""
    threads: list[Note] = []
    refs = request.detail["diff_refs"]
    for number in range(count):
        gitlab.clock.fixed = next(clock)
        author = chance.choice(people)
        body = f"Remark {number + 1} on !{request.iid} ✓"
        kind = chance.random()
        if threads and kind < 0.35:
            gitlab.comment(request, author, body, reply_to=chance.choice(threads))
        elif kind < 0.5:
            line = chance.randint(1, 12)
            file = f"src/{request.iid % 200}.txt"
            position = refs | {
                "position_type": "text",
                "old_path": file,
                "new_path": file,
                "old_line": None,
                "new_line": line,
                "line_range": None,
            }
            threads.append(gitlab.comment(request, author, body, position=position))
        else:
            note = gitlab.comment(request, author, body, thread=kind < 0.7)
            if kind < 0.7:
                threads.append(note)
    for note in threads:
        if chance.random() < 0.5:
            gitlab.clock.fixed = next(clock)
            gitlab.resolve(request, note, people[0])
