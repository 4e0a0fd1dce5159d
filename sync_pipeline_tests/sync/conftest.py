"""A small GitLab whose project is registered, and a syncer for it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.job_types import JOB_TYPES_OF_KIND
from sync_pipeline.core.model import JobReport, JobRequest, JobType, Kind, Mode, TimeWindow, Trigger
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.settings import GitLabServer, Settings
from sync_pipeline.sources.gitlab.transport import Instance
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, serve
from sync_pipeline_sandbox.gitlab.records import Group, Project, Row
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.sources.gitlab.servers import Clock

START = datetime(2024, 5, 6, 12, 0, 0, 123456, tzinfo=UTC)


class Impatient(Readers):
    """Readers that do not sleep between two attempts at a request."""

    def connect(self, server: GitLabServer) -> Instance:
        clock = Clock()
        return Instance(server.url, server.token, sleep=clock.sleep, monotonic=clock.monotonic)


# Live facts without the columns that are ours.
_LIVE = {
    "git_commits": "SELECT * FROM scm.git_commits WHERE repo_id = %(repo)s AND deleted_at IS NULL",
    "refs": "SELECT * FROM scm.refs WHERE repo_id = %(repo)s AND deleted_at IS NULL",
    "mrs": "SELECT * FROM scm.mrs WHERE repo_id = %(repo)s AND deleted_at IS NULL",
    "mr_versions": "SELECT * FROM scm.mr_versions WHERE repo_id = %(repo)s",
    "mr_commits": "SELECT * FROM scm.mr_commits WHERE repo_id = %(repo)s",
    "review_events": "SELECT * FROM scm.review_events WHERE repo_id = %(repo)s AND deleted_at IS NULL",
    "mr_approvals": "SELECT * FROM scm.mr_approvals WHERE repo_id = %(repo)s AND closed_at IS NULL",
    "mr_reviewers": "SELECT * FROM scm.mr_reviewers WHERE repo_id = %(repo)s AND closed_at IS NULL",
}
_OURS = frozenset(
    [
        "raw",
        "version",
        "batch_id",
        "content_hash",
        "stored_at",
        "first_seen_at",
        "walk_id",
        "parents_asked_at",
        "git_commit_id",
        "id",
        "read_at",
        "children_head",
        "children_target",
        "versions_read_at",
        "versions_hash",
        "commits_hash",
        "moved_at",
        "judged_tip",
        "approval_id",
        "reviewer_id",
        "seen_from",
        "missing_since",
    ]
)


@dataclass
class Forge:
    """A running server with a project over ``git`` (empty at first), registered as ``repo_id``."""

    gitlab: GitLab
    server: Server
    group: Group
    user: Row
    other: Row
    project: Project
    git: GitRepository
    database: Database
    conn: Connection
    settings: Settings
    repo_id: int = 0
    syncer: Syncer = field(init=False)

    def __post_init__(self) -> None:
        self.syncer = Syncer(self.database, self.settings, Impatient(self.settings))

    def tick(self, **time: float) -> None:
        """Let the server's time pass; ten minutes unless told otherwise."""
        self.gitlab.clock.fixed = self.gitlab.clock.now() + timedelta(**(time or {"minutes": 10}))

    def request(self, job_type: JobType, mode: Mode = Mode.INCREMENTAL, **other: Any) -> JobRequest:
        """A request for the project; ``window`` may be a pair of ISO dates."""
        window = other.pop("window", None)
        if isinstance(window, tuple):
            window = TimeWindow(*(datetime.fromisoformat(text).replace(tzinfo=UTC) for text in window))
        values: dict[str, Any] = {"trigger": Trigger.SENSOR, "actor": "test", "reason": "test"}
        return JobRequest(
            other.pop("repo_id", self.repo_id), job_type, mode, window=window, **(values | other)
        )

    def commits(self, *arguments: Any, **other: Any) -> JobReport:
        """Sync commits."""
        return self.syncer.run(self.request(JobType.COMMITS, *arguments, **other))

    def both(self, *arguments: Any, **other: Any) -> tuple[JobReport, JobReport]:
        """Sync merge requests and reviews together."""
        types = (JobType.MERGE_REQUESTS, JobType.REVIEWS)
        first, second = self.syncer.run_together([self.request(t, *arguments, **other) for t in types])
        return first, second

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """The rows of a query; ``%(repo)s`` is the repository."""
        return self.conn.execute(query, {"repo": self.repo_id, **values}).fetchall()

    def state(self) -> dict[str, list[dict[str, Any]]]:
        """What a reader of the tables sees of the project: live facts with their values, without what is
        ours (versions, batches, times of reading)."""
        return {
            name: sorted(
                ({key: value for key, value in row.items() if key not in _OURS} for row in self.rows(query)),
                key=str,
            )
            for name, query in _LIVE.items()
        }

    def asked(self, pattern: str = "") -> list[str]:
        """Paths that were requested since the last call, those that contain ``pattern``."""
        entries = self.gitlab.journal.entries[self._seen :]
        self._seen = len(self.gitlab.journal.entries)
        return [entry.path for entry in entries if pattern in entry.path]

    _seen: int = 0

    def other_settings(self, **changes: Any) -> None:
        """Go on with other settings, in a process that starts anew."""
        self.settings = self.settings.model_copy(update=changes)
        self.syncer = Syncer(self.database, self.settings, Impatient(self.settings))


@pytest.fixture
def forge(tmp_path: Path, database: Database) -> Iterator[Forge]:
    """See :class:`Forge`."""
    gitlab = GitLab(first_id=2**40)
    gitlab.clock.fixed = START
    group = gitlab.group("team1")
    user, other = gitlab.user("user1"), gitlab.user("user2")
    gitlab.add_member(group, user, DEVELOPER)
    gitlab.add_member(group, other, DEVELOPER)
    git = GitRepository.create(tmp_path / "app1.git")
    project = gitlab.project("app1", group=group, repository=git)
    with serve(gitlab, prefix="/gitlab") as server, database.connection() as conn:
        settings = Settings(
            gitlab_url=server.url,
            gitlab_token=gitlab.token(user).secret,
            max_wait_seconds=5,
            gitlab_parallel=2,
        )
        made = Forge(gitlab, server, group, user, other, project, git, database, conn, settings)
        made.repo_id = register_project(
            conn,
            server.url,
            project.id,
            "team1/app1",
            origin=START - timedelta(days=30),
            job_types=JOB_TYPES_OF_KIND[Kind.GITLAB],
        )
        yield made
    assert [entry.crash for entry in gitlab.journal.entries if entry.crash] == []
