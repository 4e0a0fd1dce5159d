"""Optional job types: nobody gets one without asking, and everybody who asks does."""

from __future__ import annotations

import pytest

from sync_pipeline.core.catalog import CatalogSnapshot, parse_root, parse_spec
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.job_types import job_types_of
from sync_pipeline.core.model import JobType, Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import integrity_checks, repos
from sync_pipeline.orchestration.build import build_defs
from sync_pipeline.registry import discovery, registration
from sync_pipeline.registry.registration import Registered
from sync_pipeline.settings import Settings
from sync_pipeline_tests.gitlab_site import Site

RELEASES = (JobType.RELEASES,)
DEFAULT = (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS)


def add(
    database: Database, site: Site, job_types: tuple[JobType, ...] = (), *, dry: bool = False
) -> Registered:
    """Register the project of the site."""
    return registration.add_repository(
        database,
        site.settings,
        parse_spec("gitlab:platform/api"),
        job_types=job_types,
        actor="me",
        reader_factory=lambda _: pytest.fail("no SVN repository is asked for"),
        client_of=site.client_of,
        dry_run=dry,
    )


def registered(database: Database) -> dict[str, Repository]:
    """The catalog by path. Its watermarks agree with its job types."""
    with database.connection() as conn:
        assert "units" not in integrity_checks.failures(conn)
        return {str(one.project_path): one for one in repos.list_all(conn)}


def assets(database: Database, settings: Settings) -> set[str]:
    """The last parts of the keys of all assets in Dagster."""
    snapshot = CatalogSnapshot(tuple(registered(database).values()))
    found = build_defs(settings=settings, snapshot=snapshot, only="").get_repository_def()
    return {key.path[-1] for key in found.assets_defs_by_key if key.path[0] != "fleet"}


def test_a_project_has_no_releases_unless_they_are_asked_for(database: Database, site: Site) -> None:
    assert add(database, site).added == ()
    assert job_types_of(registered(database)["platform/api"]) == DEFAULT
    assert assets(database, site.settings) == set(DEFAULT)
    assert add(database, site, RELEASES, dry=True).added == RELEASES
    assert job_types_of(registered(database)["platform/api"]) == DEFAULT
    assert add(database, site, RELEASES).added == RELEASES
    assert add(database, site, RELEASES).added == ()
    assert job_types_of(registered(database)["platform/api"]) == (*DEFAULT, *RELEASES)
    assert assets(database, site.settings) == {*DEFAULT, *RELEASES}


def test_the_snapshot_of_the_catalog_is_written_again_when_a_job_type_comes(
    database: Database, site: Site
) -> None:
    add(database, site)
    registration.export_catalog(database, site.settings)
    known = registered(database).values()
    assert not registration.snapshot_lacks(site.settings.catalog_file, known)
    add(database, site, RELEASES)
    assert registration.snapshot_lacks(site.settings.catalog_file, registered(database).values())


def test_a_root_gives_its_projects_the_job_types_of_the_settings(database: Database, site: Site) -> None:
    root = parse_root("gitlab:group:platform")
    added = discovery.add_root(database, site.settings, root, actor="me", client_of=site.client_of)
    assert added.root is not None
    roots = [added.root]
    site.gitlab.project("web", group=site.group)
    site.change(gitlab_optional_job_types=RELEASES)

    def visit() -> bool:
        found = discovery.rediscover(database, site.settings, site.client_of, "me", roots=roots)
        return [one.changed for one in found] == [True]

    assert visit()
    found = registered(database)
    assert {path: one.optional_job_types for path, one in found.items()} == {
        "platform/api": RELEASES,
        "platform/web": RELEASES,
    }
    assert not visit()


def test_what_cannot_be_synced_is_refused_by_name(database: Database, site: Site) -> None:
    entry = registration.listed({"spec": "gitlab:1", "with": "commits"}, "entry 1")
    assert entry.problem == "commits is not optional; the optional ones are: releases"
    assert registration.listed({"spec": "gitlab:1", "with": "releases"}, "entry 1").job_types == RELEASES
    with pytest.raises(ConfigurationError, match="cannot sync releases; this is for GitLab projects"):
        registration.add_repository(
            database,
            site.settings,
            parse_spec("svn:https://svn.example.com/tools"),
            job_types=RELEASES,
            actor="me",
            reader_factory=lambda _: pytest.fail("nothing is asked"),
        )
    assert registration.listed({"spec": "gitlab:1", "with": "foo"}, "entry 1").problem == (
        "unknown job type 'foo'; the optional ones are: releases"
    )
    for name, problem in (
        ("commits", "commits is not optional"),
        ("foo", "'foo'; the optional ones are: rel"),
    ):
        with pytest.raises(ValueError, match=problem):
            Settings(gitlab_optional_job_types=name)
