"""The fixture ``site``: a mock GitLab over real HTTP, with settings that name it.

Belongs here: the fixture. Folders that need more of a site have a fixture of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, Server, serve
from sync_pipeline_sandbox.gitlab.records import Group, Project, Row

START = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)


@dataclass
class Site:
    """A running server, ``user`` as a developer of its group ``platform`` with a project, and their token in
    ``settings``. The clients sleep no time at all."""

    gitlab: GitLab
    server: Server
    settings: Settings
    group: Group
    user: Row
    project: Project
    instances: dict[str, Instance] = field(default_factory=dict)

    def client_of(self, instance: str) -> Client:
        """A client of the server, as the product makes them."""
        for server in self.settings.gitlab_servers():
            if server.url.partition("://")[2].partition("/")[0] == instance:
                made = Instance(
                    server.url, server.token, ca_file=server.ca_file, sleep=lambda _: None, attempts=2
                )
                return self.instances.setdefault(instance, made).client()
        raise AssertionError(f"no server {instance}")

    @property
    def client(self) -> Client:
        """A client of this server."""
        return self.client_of(self.instance)

    @property
    def instance(self) -> str:
        """Its key."""
        return self.server.url.partition("://")[2].partition("/")[0]

    def change(self, **values: Any) -> None:
        """Put other settings in force."""
        self.settings = self.settings.model_copy(update=values)
        self.instances.clear()

    def asked(self) -> list[str]:
        """Paths of all requests so far, below the API."""
        return [entry.path.partition("/api/v4")[2] for entry in self.gitlab.journal.entries]


@pytest.fixture
def site() -> Iterator[Site]:
    """See :class:`Site`."""
    gitlab = GitLab(first_id=2**40)
    gitlab.clock.fixed = START
    group, user = gitlab.group("platform"), gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    project = gitlab.project("api", group=group)
    with serve(gitlab, prefix="/git") as server:
        settings = Settings(gitlab_url=server.url, gitlab_token=gitlab.token(user).secret)
        site = Site(gitlab, server, settings, group, user, project)
        yield site
        for instance in site.instances.values():
            instance.close()
