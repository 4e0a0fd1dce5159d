"""A small GitLab with one project over a real git repository, served over HTTP, for the tests beside it.

Belongs here: fixtures of this folder only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, serve
from sync_pipeline_sandbox.gitlab.records import Group, Project, Row, Token

START = datetime(2024, 5, 6, 12, 0, 0, 123456, tzinfo=UTC)


@dataclass
class Site:
    """A running server with what most tests need."""

    gitlab: GitLab
    server: Server
    group: Group
    user: Row
    other: Row
    token: Token
    project: Project
    git: GitRepository
    http: requests.Session

    def get(
        self, path: str, token: str | None = "", headers: dict[str, str] | None = None, **parameters: Any
    ) -> requests.Response:
        """GET below /api/v4. ``token`` empty is the site's own, None is none."""
        sent = dict(headers or {})
        if token is not None:
            sent["PRIVATE-TOKEN"] = token or self.token.secret
        url = f"{self.server.api}{path}"
        return self.http.get(url, params=parameters, headers=sent, allow_redirects=False, timeout=120)

    def rows(self, path: str, **parameters: Any) -> Any:
        """The body of a good answer."""
        answer = self.get(path, **parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tick(self, **time: float) -> None:
        """Let the server's time pass; a second unless told otherwise."""
        self.gitlab.clock.fixed = self.gitlab.clock.now() + timedelta(**(time or {"seconds": 1}))

    @property
    def at(self) -> str:
        """Path of the project."""
        return f"/projects/{self.project.id}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server with a private project that has three commits on main and one on ``feature/parser``."""
    gitlab = GitLab(first_id=101)
    gitlab.clock.fixed = START
    group = gitlab.group("team1")
    user, other = gitlab.user("user1"), gitlab.user("user2")
    gitlab.add_member(group, user, DEVELOPER)
    gitlab.add_member(group, other, DEVELOPER)
    git = GitRepository.create(tmp_path / "app1.git")
    for number in (1, 2, 3):
        git.commit("main", f"Commit {number}\n", files={"README.md": "line\n" * number}, date=_date(number))
    main = git.resolve("main")
    assert main is not None
    git.commit("feature/parser", "Add parser\n", files={"p.py": "a\nb\n"}, parents=[main], date=_date(4))
    project = gitlab.project("app1", group=group, repository=git)
    with serve(gitlab) as server, requests.Session() as http:
        yield Site(gitlab, server, group, user, other, gitlab.token(user), project, git, http)
    assert [entry.crash for entry in gitlab.journal.entries if entry.crash] == []


def _date(hours: int) -> str:
    return f"{1714989731 + 3600 * hours} +0200"


@pytest.fixture
def reference() -> Path:
    """The folder of reference material; the test is skipped where it is absent."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "reference" / "gitlab"
    if not folder.is_dir():
        pytest.skip(f"the reference material is not at {folder}")
    return folder


@pytest.fixture
def recorded() -> Path:
    """The folder of recorded merge requests; the test is skipped where it is absent."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "data" / "gitlab"
    if not folder.is_dir():
        pytest.skip(f"the recorded data is not at {folder}")
    return folder
