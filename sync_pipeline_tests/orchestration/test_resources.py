"""The GitLab resource in assets of users: a real python-gitlab on our session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import gitlab
import pytest
from pydantic import SecretStr

from sync_pipeline.admin import limits
from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.errors import ConfigurationError, Permanent, SourceGone, SyncError, Transient
from sync_pipeline.orchestration.instance import quiet_dagster
from sync_pipeline.orchestration.resources import GitLabResource, PostgresResource
from sync_pipeline.settings import GitLabTable, Settings
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.orchestration.conftest import Forge
from sync_pipeline_tests.sources.gitlab.servers import answer, scripted


@contextmanager
def resource_of(settings: Settings) -> Iterator[GitLabResource]:
    with quiet_dagster(), GitLabResource(settings=settings).process_config_and_initialize_cm() as resource:
        yield resource


@pytest.fixture
def client(forge: Forge) -> Iterator[gitlab.Gitlab]:
    with resource_of(forge.site.settings) as resource:
        yield resource.client()


def test_an_asset_of_a_user_reads_gitlab_and_stores_rows(forge: Forge) -> None:
    for path in ("app", "lib"):
        forge.git_project(path, "2026-01-01")

    @dg.asset
    def my_projects(gitlab: GitLabResource, postgres: PostgresResource) -> dg.MaterializeResult[Any]:
        api = gitlab.client()
        names = [project.path for project in api.projects.list(iterator=True, per_page=1)]
        with postgres.database() as database, database.connection() as conn:
            conn.execute("CREATE TABLE my_projects AS SELECT unnest(%s::text[]) AS name", [names])
        return dg.MaterializeResult(metadata={"projects": len(names)})

    own = dg.Definitions(assets=[my_projects], jobs=[dg.define_asset_job("own", [my_projects])])
    with quiet_dagster():
        job = dg.Definitions.merge(forge.site.definitions(), own).resolve_job_def("own")
        assert job.execute_in_process(instance=forge.site.instance).success
    rows = forge.site.rows("SELECT name FROM my_projects ORDER BY name")
    assert [row["name"] for row in rows] == ["app", "lib"]


def test_the_client_is_python_gitlab_and_a_new_one_in_each_call(forge: Forge) -> None:
    with resource_of(forge.site.settings) as resource:
        first, second = resource.client(), resource.client(instance_of(forge.server.url))
        assert isinstance(first, gitlab.Gitlab)
        assert first is not second


def test_a_redirect_or_link_to_another_host_gets_neither_request_nor_token(
    forge: Forge, client: gitlab.Gitlab
) -> None:
    with scripted(answer([])) as foreign:
        forge.gitlab.faults.add(r"/projects\?", faults.redirect(f"{foreign.url}/api/v4/projects", 301))
        with pytest.raises(Permanent) as caught:
            client.projects.list(get_all=False)
        assert caught.value.code == "redirect"
        with pytest.raises(SyncError, match="no request goes there"):
            client.http_get(f"{foreign.url}/api/v4/projects")
        assert foreign.asked == []
    assert forge.site.settings.gitlab.token.get_secret_value() not in f"{caught.value!r} {client!r}"


def test_the_client_shares_the_rate_limit_of_the_server(forge: Forge) -> None:
    instance = instance_of(forge.server.url)
    # Only at a high rate are permits taken ahead. They outlast a pause by a fifth of a second.
    slow = forge.site.settings.model_copy(update={"gitlab_postgres_rate_limit_rate": 10.0})
    with resource_of(slow) as resource:
        client = resource.client()
    client.projects.list(get_all=False)
    assert [
        one["instance"] for one in limits.listing(forge.site.database, forge.site.settings)["limits"]
    ] == [instance]
    end = datetime.now(UTC) + timedelta(hours=1)
    limits.pause(forge.site.database, forge.site.settings, instance, end, actor="ann", reason="an upgrade")
    forge.asked()
    with pytest.raises(Transient) as caught:
        client.projects.list(get_all=False)
    assert caught.value.code == "throttled"
    assert forge.asked() == []


@pytest.mark.parametrize(
    ("change", "requests"),
    [(lambda api: api.projects.list(get_all=False), 2), (lambda api: api.http_post("/projects"), 1)],
    ids=["reading", "changing"],
)
def test_a_change_whose_answer_got_lost_is_not_repeated(
    forge: Forge, client: gitlab.Gitlab, change: Callable[[gitlab.Gitlab], Any], requests: int
) -> None:
    rule = forge.gitlab.faults.add(r"/projects", faults.Reset(), times=1)
    with pytest.raises(SyncError) if requests == 1 else nullcontext():
        change(client)
    assert rule.seen == requests


def test_files_and_empty_answers_are_read_but_no_page_for_people(forge: Forge, client: gitlab.Gitlab) -> None:
    file = faults.CannedResponse(200, b"line\xff\n", "application/octet-stream")
    forge.gitlab.faults.add("/raw", file, times=None)
    project = client.projects.get(1, lazy=True)
    assert project.files.raw("a", ref="main") == b"line\xff\n"
    parts: list[bytes] = []
    project.files.raw("a", ref="main", streamed=True, action=parts.append, chunk_size=2)
    assert b"".join(parts) == b"line\xff\n"
    forge.gitlab.faults.add("/labels/1", faults.CannedResponse(204, b"", ""))
    assert client.http_delete("/projects/1/labels/1").status_code == 204
    forge.gitlab.faults.add("/login", faults.login_page(), times=None)
    with pytest.raises(Transient, match="instead of JSON"):
        client.http_get("/login")


def test_what_is_not_there_is_an_error_of_ours(client: gitlab.Gitlab) -> None:
    with pytest.raises(SourceGone):
        client.projects.get(404404)


def test_a_server_that_is_not_configured_or_not_named_is_refused(forge: Forge) -> None:
    settings = forge.site.settings
    with (
        resource_of(settings) as resource,
        pytest.raises(ConfigurationError, match=r"for elsewhere\.example"),
    ):
        resource.client("elsewhere.example")
    none = settings.model_copy(update={"gitlab_url": "", "gitlab_token": SecretStr("")})
    with resource_of(none) as resource, pytest.raises(ConfigurationError, match="no GitLab is configured"):
        resource.client()
    two = settings.model_copy(update={"gitlab": (GitLabTable(url="https://a.example"),)})
    with resource_of(two) as resource, pytest.raises(ConfigurationError, match=r"name one of .*a\.example"):
        resource.client()
