"""A small GitLab over a real git repository, and a client for it that does not sleep.

Belongs here: fixtures of this folder only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, serve
from sync_pipeline_sandbox.gitlab.records import Group, Project, Row
from sync_pipeline_tests.sources.gitlab.servers import Clock

START = datetime(2024, 5, 6, 12, 0, 0, 123456, tzinfo=UTC)
_SHARED = Path(__file__).resolve().parents[4] / "shared"


@dataclass
class Site:
    """A running server with a project over ``git``, which is empty at first."""

    gitlab: GitLab
    server: Server
    group: Group
    user: Row
    other: Row
    project: Project
    git: GitRepository
    client: Client

    def tick(self, **time: float) -> None:
        """Let the server's time pass; a second unless told otherwise."""
        self.gitlab.clock.fixed = self.gitlab.clock.now() + timedelta(**(time or {"seconds": 1}))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """See :class:`Site`."""
    gitlab = GitLab(first_id=2**40)
    gitlab.clock.fixed = START
    group = gitlab.group("team1")
    user, other = gitlab.user("user1"), gitlab.user("user2")
    gitlab.add_member(group, user, DEVELOPER)
    gitlab.add_member(group, other, DEVELOPER)
    git = GitRepository.create(tmp_path / "app1.git")
    project = gitlab.project("app1", group=group, repository=git)
    clock = Clock()
    with serve(gitlab, prefix="/gitlab") as server:
        token = gitlab.token(user).secret
        instance = Instance(server.url, token, sleep=clock.sleep, monotonic=clock.monotonic)
        yield Site(gitlab, server, group, user, other, project, git, instance.client())
        instance.close()


@pytest.fixture
def example() -> Callable[[str], Any]:
    """An example of an answer by its name; the test is skipped where the reference material is absent."""
    folder = _SHARED / "reference" / "gitlab" / "examples"
    if not folder.is_dir():
        pytest.skip(f"there are no examples at {folder}")
    return lambda name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def recorded() -> Path:
    """The folder of recorded merge requests; the test is skipped where it is absent."""
    folder = _SHARED / "data" / "gitlab"
    if not folder.is_dir():
        pytest.skip(f"the recorded data is not at {folder}")
    return folder
