"""The front door: every state of a project is told apart, and the token tells its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from sync_pipeline.core.errors import AccessDenied, SourceGone, SyncError
from sync_pipeline.core.model import Access, JobType
from sync_pipeline.sources.gitlab.project import access, get_project, get_token
from sync_pipeline.sources.gitlab.transport import Instance
from sync_pipeline_tests.sources.gitlab.conftest import Site
from sync_pipeline_tests.sources.gitlab.servers import answer, scripted


def states(site: Site) -> list[Access]:
    info = get_project(site.client, site.project.id)
    return [access(info, job_type) for job_type in (JobType.COMMITS, JobType.MERGE_REQUESTS)]


def test_each_state_is_told_apart(site: Site) -> None:
    assert states(site) == [Access.EMPTY, Access.OK]
    site.git.commit("main", "One\n")
    assert states(site) == [Access.OK, Access.OK]
    site.gitlab.switch_feature(site.project, "merge_requests", "disabled")
    assert states(site) == [Access.OK, Access.DISABLED]
    site.gitlab.archive(site.project)
    assert states(site) == [Access.ARCHIVED, Access.DISABLED]
    site.gitlab.delete_project(site.project)
    with pytest.raises(SourceGone) as caught:
        states(site)
    assert caught.value.code == "not_found"


def test_a_renamed_project_keeps_its_number_and_is_found_by_its_old_path(site: Site) -> None:
    site.git.commit("main", "One\n")
    assert get_project(site.client, "team1/app1").project_id == site.project.id
    site.gitlab.rename_project(site.project, "renamed")
    assert get_project(site.client, site.project.id).path == "team1/renamed"
    old = get_project(site.client, "team1/app1")
    assert (old.project_id, old.path) == (site.project.id, "team1/renamed")


def test_a_group_is_no_project(site: Site) -> None:
    with pytest.raises(SyncError) as caught:
        get_project(site.client, "team1")
    assert caught.value.code == "not_found"


def test_the_example_project_and_token_are_read(example: Callable[[str], Any]) -> None:
    project = example("project") | {"runners_token": "GR1348941secretsecret", "import_url": "https://u:p@h/x"}
    with scripted(answer(project), answer(example("personal_access_token_self"))) as server:
        client = Instance(server.url, "t").client()
        info = get_project(client, 101)
        assert (info.path, info.default_branch, info.is_empty) == ("team1/app1", "main", False)
        assert "secret" not in repr(info.raw)
        token = get_token(client)
    assert token is not None
    assert (token.scopes, token.expires_at) == (("read_api",), date(2025, 1, 1))


def test_a_refused_token_says_so_and_a_silent_server_says_nothing() -> None:
    silent = answer({"error": "404 Not Found"}, "404 Not Found")
    with scripted(silent, answer({"message": "401 Unauthorized"}, "401 Unauthorized")) as server:
        client = Instance(server.url, "t").client()
        assert get_token(client) is None
        with pytest.raises(AccessDenied):
            get_token(client)
