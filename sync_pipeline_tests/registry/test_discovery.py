"""Discovery over a real server: projects enter the catalog, move in it, leave it only when they are gone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sync_pipeline.core.catalog import parse_root, parse_spec
from sync_pipeline.core.errors import ConfigurationError, Transient
from sync_pipeline.core.model import JobType, Lifecycle, Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import discovery as store
from sync_pipeline.ledger import integrity_checks, repos, watermarks
from sync_pipeline.registry import discovery, registration
from sync_pipeline.registry.discovery import AddedRoot, Discovered, matches
from sync_pipeline.settings import Settings
from sync_pipeline_sandbox.gitlab import DEVELOPER, faults
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.gitlab_site import Site

NOW = {"missing_confirmations": 1, "missing_after_seconds": 0.0}


def add(database: Database, site: Site, text: str = "gitlab:group:platform", **options: Any) -> AddedRoot:
    return discovery.add_root(
        database, site.settings, parse_root(text), actor="me@host", client_of=site.client_of, **options
    )


def visit(database: Database, site: Site, root_id: int = 1) -> Discovered:
    """One visit to a root, by its number."""
    with database.connection() as conn:
        root = store.get_root(conn, root_id)
    (done,) = discovery.rediscover(database, site.settings, site.client_of, "sensor", roots=[root])
    return done


def catalog_of(database: Database) -> dict[str, str]:
    """Path and lifecycle of everything in the catalog."""
    with database.connection() as conn:
        return {str(one.project_path): str(one.lifecycle) for one in repos.list_all(conn)}


def row(database: Database, path: str) -> dict[str, Any]:
    query = "SELECT * FROM scm.repos WHERE project_path = %(path)s"
    with database.connection() as conn:
        found = conn.execute(query, {"path": path}).fetchone()
    assert found is not None
    return found


def events(database: Database, repository: Repository) -> list[str]:
    with database.connection() as conn:
        return [event["event"] for event in repos.events(conn, repository.repo_id)]


def paths(repositories: tuple[Repository, ...]) -> list[str | None]:
    return [one.project_path for one in repositories]


@pytest.mark.parametrize(
    ("include", "exclude", "found"),
    [
        ([], [], True),
        (["platform/*"], [], True),
        (["PLATFORM/*/API"], [], True),
        (["platform/tools"], [], False),
        (["other/*", "*/api"], [], True),
        (["platform/*"], ["*/tools/*"], False),
        ([], ["*/api"], False),
        (["platform/tools/ap[hi]"], ["platform/api"], True),
    ],
)
def test_patterns_choose_by_the_whole_path_and_exclusion_wins(
    include: list[str], exclude: list[str], found: bool
) -> None:
    assert matches("platform/tools/Api", include, exclude) is found


def test_a_group_is_registered_with_all_that_lies_below_it(database: Database, site: Site) -> None:
    below = site.gitlab.group("deep", parent=site.gitlab.group("tools", parent=site.group))
    for number in range(150):
        site.gitlab.project(f"p{number}", group=below)
    site.gitlab.archive(site.project)
    shared = site.gitlab.project("shared", group=site.gitlab.group("elsewhere"), visibility="internal")
    shared.shared_with.append(site.group)
    plan = add(database, site, dry_run=True, exclude=["*/p1*"])
    assert (plan.root, plan.listed, len(plan.would_register)) == (None, 151, 90)
    assert catalog_of(database) == {}
    site.gitlab.journal.clear()
    added = add(database, site, exclude=["*/p1*"], tenant="crew")
    assert added.created
    assert added.discovered is not None
    assert added.discovered.changed
    assert (added.discovered.listed, added.discovered.matching) == (151, 90)
    assert len(added.discovered.registered) == 90
    # Two for the group and two pages: nothing is asked for each project.
    assert len(site.asked()) == 4
    known = row(database, "platform/api")
    assert (known["tenant"], known["root_id"]) == ("crew", 1)
    with database.connection() as conn:
        assert [event["event"] for event in repos.events(conn, known["repo_id"])] == [
            "registered",
            "archived",
        ]
        for job_type in (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS):
            assert watermarks.get(conn, known["repo_id"], job_type).covered == ()
        first = conn.execute("SELECT min(lower(period))::date::text AS day FROM scm.sync_jobs").fetchone()
        assert first == {"day": "1900-01-01"}
        assert integrity_checks.failures(conn) == {}
    again = visit(database, site)
    assert not again.changed
    assert (again.listed, again.error) == (151, None)


def test_a_membership_is_what_the_token_is_a_member_of(database: Database, site: Site) -> None:
    other = site.gitlab.group("other")
    site.gitlab.add_member(site.gitlab.project("mine", group=other), site.user, DEVELOPER)
    site.gitlab.project("open", group=other, visibility="public")
    add(database, site, "gitlab:membership")
    assert set(catalog_of(database)) == {"platform/api", "other/mine"}
    with pytest.raises(ConfigurationError, match="write gitlab:membership:"):
        add(database, site, f"gitlab:membership:{site.server.url}/platform")


def test_a_server_with_the_alias_of_another_one_is_not_listed(database: Database, site: Site) -> None:
    with database.connection() as conn:
        register_project(conn, "https://other.test", 7, "a/b", origin=datetime.now(UTC))  # alias gitlab
    site.change(gitlab_name="gitlab")
    with pytest.raises(ConfigurationError, match=r"of the gitlab server other\.test; give 127\.0\.0\.1"):
        add(database, site)
    with database.connection() as conn:
        assert store.list_roots(conn) == []
    site.change(gitlab_name="")
    add(database, site, exclude=["*"])
    assert set(catalog_of(database)) == {"a/b"}
    site.change(gitlab_name="gitlab")
    found = visit(database, site)
    assert "give 127.0.0.1" in str(found.error)


def test_new_projects_enter_and_renamed_ones_keep_number_slug_and_rows(
    database: Database, site: Site
) -> None:
    add(database, site)
    before = row(database, "platform/api")
    site.gitlab.rename_group(site.group, "base")
    site.gitlab.rename_project(site.project, "core")
    site.gitlab.archive(site.project)
    site.gitlab.project("api", group=site.group)  # a newcomer at the old place
    done = visit(database, site)
    assert (paths(done.moved), paths(done.registered)) == (["base/core"], ["base/api"])
    assert done.changed
    after = row(database, "base/core")
    assert {name for name in before if before[name] != after[name]} == {
        "project_path",
        "tenant",
        "updated_at",
    }
    assert events(database, done.moved[0]) == ["registered", "moved", "tenant", "archived"]
    with database.connection() as conn:
        assert store.get_root(conn, 1).group_path == "base"
    assert not visit(database, site).changed


def test_a_vanished_project_is_retired_only_when_it_is_missed_often_and_long_and_gone(
    database: Database, site: Site
) -> None:
    site.gitlab.project("stays", group=site.group)
    add(database, site)
    site.change(missing_confirmations=3, missing_after_seconds=3600.0)
    site.gitlab.delete_project(site.project)
    first = visit(database, site)
    assert (paths(first.vanished), first.changed) == (["platform/api"], False)
    for _ in range(3):  # often enough, but not long enough
        assert visit(database, site).retired == ()
    with database.connection() as conn:
        conn.execute(
            "UPDATE scm.repos SET vanished_since = now() - interval '2 hours', missing_confirmations = 1"
        )
    assert visit(database, site).retired == ()  # long enough, but not often enough
    site.gitlab.faults.add(rf"/projects/{site.project.id}\?", faults.proxy_error(), times=None)
    assert visit(database, site).retired == ()  # the second way does not answer
    site.gitlab.faults.clear()
    done = visit(database, site)
    assert paths(done.retired) == ["platform/api"]
    assert done.changed
    assert catalog_of(database) == {"platform/api": "retired", "platform/stays": "active"}
    assert "no longer lists it" in row(database, "platform/api")["retired_reason"]
    assert events(database, done.retired[0]) == ["registered", "vanished", "retired"]
    with database.connection() as conn:
        waiting = conn.execute(
            "SELECT count(*) AS n FROM scm.sync_jobs JOIN scm.repos USING (repo_id)"
            " WHERE lifecycle = 'retired' AND status <> 'dead'"
        ).fetchone()
    assert waiting == {"n": 0}
    assert not visit(database, site).changed


def test_a_project_that_comes_back_is_taken_up_again(database: Database, site: Site) -> None:
    site.gitlab.project("stays", group=site.group)
    add(database, site)
    site.change(**NOW)
    site.gitlab.mark_for_deletion(site.project, hidden=True)
    (retired,) = visit(database, site).retired
    site.gitlab.restore(site.project)
    done = visit(database, site)
    assert [one.repo_id for one in done.returned] == [retired.repo_id]
    assert done.changed
    assert row(database, "platform/api")["vanished_since"] is None
    assert events(database, retired) == ["registered", "vanished", "retired", "reactivated"]
    with database.connection() as conn:
        waiting = conn.execute(
            "SELECT count(*) AS n FROM scm.sync_jobs WHERE repo_id = %(id)s AND status = 'pending'",
            {"id": retired.repo_id},
        ).fetchone()
    assert waiting is not None
    assert waiting["n"] > 0


def test_a_project_that_a_listing_missed_once_is_seen_again(database: Database, site: Site) -> None:
    site.gitlab.project("stays", group=site.group)
    (api, _) = add(database, site).discovered.registered  # type: ignore[union-attr]
    site.gitlab.mark_for_deletion(site.project, hidden=True)
    visit(database, site)
    assert row(database, "platform/api")["missing_confirmations"] == 1
    site.gitlab.restore(site.project)
    visit(database, site)
    assert (row(database, "platform/api")["missing_confirmations"], api.lifecycle) == (0, Lifecycle.ACTIVE)
    assert events(database, api) == ["registered", "vanished", "returned"]


def test_what_a_person_retired_stays_retired(database: Database, site: Site) -> None:
    (api,) = add(database, site).discovered.registered  # type: ignore[union-attr]
    registration.retire_repository(database, api.repo_id, reason="too large", actor="me@host")
    assert not visit(database, site).changed
    assert catalog_of(database) == {"platform/api": "retired"}


def test_a_project_that_moved_out_of_the_group_stays_and_is_told_of_once(
    database: Database, site: Site
) -> None:
    site.gitlab.project("stays", group=site.group)
    add(database, site)
    site.change(**NOW)
    elsewhere = site.gitlab.group("elsewhere")
    site.gitlab.add_member(elsewhere, site.user, DEVELOPER)
    site.gitlab.move_project(site.project, elsewhere)
    done = visit(database, site)
    assert (paths(done.left), done.retired) == (["elsewhere/api"], ())
    assert (row(database, "elsewhere/api")["root_id"], catalog_of(database)["elsewhere/api"]) == (
        None,
        "active",
    )
    assert visit(database, site).left == ()
    # The root of its new place answers for it from now on.
    add(database, site, "gitlab:group:elsewhere")
    assert row(database, "elsewhere/api")["root_id"] == 2


def test_a_root_answers_for_what_a_person_registered_below_it(database: Database, site: Site) -> None:
    registration.add_repository(
        database,
        site.settings,
        parse_spec("gitlab:platform/api"),
        actor="me@host",
        reader_factory=lambda url: pytest.fail("no SVN here"),
        client_of=site.client_of,
    )
    assert add(database, site).discovered.registered == ()  # type: ignore[union-attr]
    assert row(database, "platform/api")["root_id"] == 1
    # Another root that lists it too leaves it where it is.
    add(database, site, "gitlab:membership")
    assert row(database, "platform/api")["root_id"] == 1


def no_rights(site: Site) -> None:
    site.gitlab.add_member(site.group, site.user, 0)


def no_group(site: Site) -> None:
    site.gitlab.groups.clear()


def nothing_listed(site: Site) -> None:
    site.gitlab.faults.add("/groups/.*/projects", faults.json_answer(200, []), times=None)


def half_a_listing(site: Site) -> None:
    site.gitlab.faults.add(r"/groups/.*/projects\?.*page=2", faults.server_error(), times=None)


def login_page(site: Site) -> None:
    site.gitlab.faults.add("/groups/", faults.login_page(), times=None)


def revoked(site: Site) -> None:
    for token in site.gitlab.tokens.values():
        site.gitlab.revoke(token)


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (no_rights, "not_found"),
        (no_group, "not_found"),
        (nothing_listed, "empty_listing"),
        (half_a_listing, "server_error"),
        (login_page, "not_json"),
        (revoked, "credential"),
    ],
)
def test_a_listing_that_fails_retires_nothing_and_shows_at_the_root(
    database: Database, site: Site, break_it: Callable[[Site], None], code: str
) -> None:
    for number in range(120):
        site.gitlab.project(f"p{number}", group=site.group)
    add(database, site)
    site.change(**NOW)
    break_it(site)
    done = visit(database, site)
    assert done.error is not None
    assert (done.error.code, done.changed) == (code, False)
    assert set(catalog_of(database).values()) == {"active"}
    with database.connection() as conn:
        root = store.get_root(conn, 1)
        missed = conn.execute(
            "SELECT count(*) AS n FROM scm.repos WHERE missing_confirmations > 0"
        ).fetchone()
    assert missed == {"n": 0}
    assert (root.error_code, root.error) == (code, str(done.error))
    assert root.completed_at is not None
    assert root.visited_at is not None
    assert root.visited_at > root.completed_at


def test_one_root_that_fails_does_not_stop_the_others(database: Database, site: Site) -> None:
    gone = site.gitlab.group("gone")
    site.gitlab.project("x", group=gone)
    site.gitlab.add_member(gone, site.user, DEVELOPER)
    add(database, site, "gitlab:group:gone")
    add(database, site)
    site.gitlab.delete_group(gone)
    site.gitlab.project("new", group=site.group)
    with database.connection() as conn:
        assert store.due_roots(conn, site.settings.discovery.interval_seconds) == []
        conn.execute("UPDATE scm.discovery_roots SET visited_at = now() - interval '1 day'")
    first, second = discovery.rediscover(database, site.settings, site.client_of, "sensor")
    assert first.error is not None
    assert paths(second.registered) == ["platform/new"]
    assert discovery.rediscover(database, site.settings, site.client_of, "sensor") == []

    def unconfigured(instance: str) -> Any:
        raise ConfigurationError(f"no GitLab is configured for {instance}")

    with database.connection() as conn:
        roots = store.list_roots(conn)
    done = discovery.rediscover(database, site.settings, unconfigured, "sensor", roots=roots)
    assert [one.error is not None for one in done] == [True, True]


def test_adding_a_root_again_replaces_its_patterns(database: Database, site: Site) -> None:
    site.gitlab.project("web", group=site.group)
    assert add(database, site, include=["*/web"]).created
    again = add(database, site, f"gitlab:group:{site.group.id}", exclude=["*/web"], tenant="crew")
    assert not again.created
    assert again.root is not None
    assert (again.root.include, again.root.exclude, again.root.tenant) == ((), ("*/web",), "crew")
    assert catalog_of(database) == {"platform/web": "active", "platform/api": "active"}
    assert discovery.retire_root(database, again.root.root_id)
    assert not discovery.retire_root(database, again.root.root_id)
    with database.connection() as conn:
        assert store.list_roots(conn) == []
    taken_up = add(database, site, f"gitlab:group:{site.server.url}/groups/platform")
    assert (taken_up.created, taken_up.root and taken_up.root.root_id) == (True, again.root.root_id)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gitlab:group:nowhere", "no such group"),
        ("gitlab:group:4711", "no such group"),
        ("gitlab:group:platform/api", "scm-sync repo add gitlab:"),
        ("gitlab:group:https://elsewhere.test/a", "[[gitlab]]"),
    ],
)
def test_what_is_no_group_is_refused_with_the_way_out(
    database: Database, site: Site, text: str, part: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        add(database, site, text)
    assert part in str(caught.value)
    with database.connection() as conn:
        assert store.list_roots(conn, retired=True) == []


def test_a_server_that_fails_makes_no_root(database: Database, site: Site) -> None:
    site.gitlab.faults.add("/groups/.*/projects", faults.server_error(), times=None)
    with pytest.raises(Transient):
        add(database, site)
    site.gitlab.faults.clear()
    revoked(site)
    with pytest.raises(ConfigurationError, match="revoked"):
        add(database, site)
    site.change(gitlab_url="")
    with pytest.raises(ConfigurationError, match="SCM_GITLAB_URL"):
        add(database, site)
    with database.connection() as conn:
        assert store.list_roots(conn, retired=True) == []


def test_a_root_is_found_by_number_and_by_every_name(database: Database, site: Site) -> None:
    add(database, site)
    add(database, site, "gitlab:membership")
    names = ["1", "gitlab:group:Platform", f"gitlab:group:{site.group.id}"]
    names += [f"gitlab:group:{site.server.url}/platform", f"gitlab:group:{site.server.url}/groups/platform"]
    for name in names:
        assert discovery.find_root(database, site.settings, name).root_id == 1
    for name in ("2", "gitlab:membership", f"gitlab:membership:{site.server.url}"):
        assert discovery.find_root(database, site.settings, name).root_id == 2
    for name in ("3", "gitlab:group:tools", "gitlab:group:https://h/platform"):
        with pytest.raises(ConfigurationError, match="no root"):
            discovery.find_root(database, Settings(), name)
