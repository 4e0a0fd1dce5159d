"""The catalog's rows: a place is registered once while it is active, and found by whatever names it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import psycopg
import pytest

from sync_pipeline.core.catalog import instance_of, parse_spec
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Kind, Lifecycle, Repository
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import repos
from sync_pipeline_tests import builders


def insert(conn: Connection, url: str = "svn://h/paint/trunk") -> Repository | None:
    return repos.insert_svn(
        conn,
        url=url,
        instance="h",
        tenant="paint",
        svn_uuid="a-uuid",
        svn_root="svn://h/paint",
        svn_prefix="trunk",
    )


def test_a_row_comes_back_as_the_repository_it_describes(database: Database) -> None:
    with database.connection() as conn:
        made = insert(conn)
        assert made is not None
        assert made == repos.get(conn, made.repo_id)
    assert made.kind is Kind.SVN
    assert made.lifecycle is Lifecycle.ACTIVE
    assert (made.instance_slug, made.slug) == ("h", "paint__trunk")
    assert made.spec == "svn:svn://h/paint/trunk"
    assert made.created_at.utcoffset() is not None


def test_a_place_is_registered_once_while_it_is_active(database: Database) -> None:
    with database.connection() as conn:
        first = insert(conn)
        assert first is not None
        assert insert(conn) is None
        assert repos.retire(conn, first.repo_id, "moved (me@host)")
        assert not repos.retire(conn, first.repo_id, "again")
        successor = insert(conn)
        assert successor is not None
        assert (first.slug, successor.slug) == ("paint__trunk", f"paint__trunk_{successor.repo_id}")
        found = repos.find(conn, parse_spec(first.spec))
        assert found is not None
        assert found.repo_id == successor.repo_id
        repos.retire(conn, successor.repo_id, "too")
        found = repos.find(conn, parse_spec(first.spec))
        assert found is not None
        assert found.repo_id == successor.repo_id
        assert repos.list_all(conn, retired=False) == []
        assert [r.repo_id for r in repos.list_all(conn)] == [first.repo_id, successor.repo_id]


def test_a_repository_is_found_by_specification_and_slug_and_nothing_else(database: Database) -> None:
    with database.connection() as conn:
        made = insert(conn)
        assert made is not None
        assert repos.find(conn, parse_spec("svn:svn://H/paint/trunk/")) == made
        assert repos.by_slug(conn, made.slug) == repos.by_slug(conn, f"h/{made.slug}") == made
        assert repos.by_slug(conn, f"g/{made.slug}") is None
        assert repos.find(conn, parse_spec("svn:svn://h/paint")) is None
        assert repos.find(conn, parse_spec("gitlab:1")) is None
        assert repos.by_slug(conn, "paint") is None
        with pytest.raises(ConfigurationError, match="no repository 999"):
            repos.get(conn, 999)


def insert_project(
    conn: Connection, project_id: int = 12, path: str = "a/b", server: str = "https://g/git", **other: Any
) -> Repository | None:
    values: dict[str, Any] = {"default_branch": "main", "tenant": "a"} | other
    instance = instance_of(server)
    return repos.insert_gitlab(
        conn,
        url=f"{server}/projects/{project_id}",
        instance=instance,
        project_id=project_id,
        project_path=path,
        **values,
    )


@pytest.mark.parametrize(
    "text", ["12", "a/b", "A/b", "https://g/git/projects/12", "https://g/git/a/B", "https://g/git/a/b.git"]
)
def test_a_gitlab_project_is_found_by_id_path_and_url(database: Database, text: str) -> None:
    with database.connection() as conn:
        made = insert_project(conn)
        assert made is not None
        insert_project(conn, 120, "a/bc")
        assert repos.find(conn, parse_spec(f"gitlab:{text}")) == made
        for other in ("gitlab:1", "gitlab:a/c", "gitlab:https://g/a/b", "gitlab:https://h/git/a/b"):
            assert repos.find(conn, parse_spec(other)) is None
    assert (made.spec, made.slug, made.default_branch) == ("gitlab:12", "a__b", "main")


def test_a_project_is_registered_once_while_it_is_active_whatever_its_path(database: Database) -> None:
    with database.connection() as conn:
        made = insert_project(conn)
        assert made is not None
        assert insert_project(conn, path="moved/away") is None
        assert repos.by_project(conn, "g", 12) == made
        other = insert_project(conn, server="https://h")
        assert other is not None
        with pytest.raises(ConfigurationError, match=r"https://g/git/projects/12 or .*https://h/projects/12"):
            repos.find(conn, parse_spec("gitlab:12"))
        with pytest.raises(ConfigurationError, match=r"write g/a__b \(g\) or h/a__b \(h\)"):
            repos.by_slug(conn, made.slug)
        repos.retire(conn, made.repo_id, "over")
        assert repos.find(conn, parse_spec("gitlab:12")) == other
        twin = insert_project(conn)
        assert twin is not None
        assert twin.slug == "a__b_12"
        repos.retire(conn, twin.repo_id, "over")
        third = insert_project(conn)
        assert third is not None
        assert third.slug == f"a__b_12_{third.repo_id}"


def test_a_retired_project_is_taken_up_again_by_its_number(database: Database) -> None:
    key: dict[str, Any] = {"instance": "g", "project_id": 12}
    with database.connection() as conn:
        made = insert_project(conn)
        assert made is not None
        assert repos.reactivate_gitlab(conn, **key) is None
        repos.retire(conn, made.repo_id, "by hand")
        assert repos.reactivate_gitlab(conn, **key, only_vanished=True) is None
        assert repos.reactivate_gitlab(conn, **key | {"instance": "h"}) is None
        assert repos.reactivate_gitlab(conn, **key) == made
        conn.execute("UPDATE scm.repos SET vanished_since = now()")
        repos.retire(conn, made.repo_id, "vanished", vanished=True)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _reactivate(database, key), range(4)))
    assert sum(one is not None for one in found) == 1


def _reactivate(database: Database, key: dict[str, Any]) -> Repository | None:
    with database.connection() as conn:
        return repos.reactivate_gitlab(conn, **key, only_vanished=True)


def test_a_look_writes_down_what_changed_and_nothing_else(database: Database) -> None:
    with database.connection() as conn:
        made = insert_project(conn)
        assert made is not None

        def record(path: str | None, branch: str | None, archived: bool = False) -> list[str]:
            info = builders.project_info(path, branch, archived=archived)
            return repos.record_project(conn, made.repo_id, info, actor="me")

        assert record("a/b", "main") == []
        assert record(None, None) == []
        assert record("c/b", "trunk", True) == ["moved", "tenant", "default_branch", "archived"]
        assert record("c/b", None, True) == []
        assert record("c/b", "trunk") == ["unarchived"]
        assert [(e["event"], e["old_value"], e["new_value"]) for e in repos.events(conn, made.repo_id)] == [
            ("moved", "a/b", "c/b"),
            ("tenant", "a", "c"),
            ("default_branch", "main", "trunk"),
            ("archived", None, None),
            ("unarchived", None, None),
        ]
        found = repos.get(conn, made.repo_id)
    assert (found.project_path, found.default_branch, found.slug) == ("c/b", "trunk", made.slug)


_COMMIT = """
INSERT INTO scm.git_commits (repo_id, commit_sha, parents, committed_at, raw, content_hash, batch_id)
VALUES (%(repo_id)s, encode(sha256(%(at)s::text::bytea), 'hex'), '{}', %(at)s::timestamptz, '{}', '', 1)
"""
_MERGE_REQUEST = """
INSERT INTO scm.mrs (repo_id, iid, gitlab_id, project_id, status, created_at, updated_at, raw, content_hash,
                     batch_id)
SELECT %(repo_id)s, count(*) + 1, 1, 12, 'open', %(at)s::timestamptz, now(), '{}', '', 1 FROM scm.mrs
"""


def test_the_history_starts_with_the_oldest_fact_and_only_moves_earlier(database: Database) -> None:
    floor = date(2000, 1, 1)
    with database.connection() as conn:
        made = insert_project(conn)
        assert made is not None

        def start(query: str, at: str) -> date | None:
            conn.execute(query, {"repo_id": made.repo_id, "at": at})
            return repos.history_start(conn, floor)

        assert repos.history_start(conn, floor) is None
        assert start(_COMMIT, "2120-01-01T00:00Z") is None
        assert start(_COMMIT, "1999-12-31T23:59Z") is None
        assert start(_COMMIT, "2015-06-01T02:00+03:00") == date(2015, 5, 31)
        assert start(_MERGE_REQUEST, "2013-02-02T23:59Z") == date(2013, 2, 2)
        assert start(_MERGE_REQUEST, "2014-02-02T00:00Z") == date(2013, 2, 2)
        conn.execute("DELETE FROM scm.mrs")
        assert repos.history_start(conn, date(2016, 1, 1)) == date(2013, 2, 2)
        assert repos.history_start(conn, date(1990, 1, 1)) == date(1999, 12, 31)


def test_a_very_long_url_can_be_registered(database: Database) -> None:
    url = "svn://h/" + "x" * 5000
    with database.connection() as conn:
        made = insert(conn, url)
        assert made is not None
        assert insert(conn, url) is None
        assert repos.find(conn, parse_spec(f"svn:{url}")) == made


def test_only_a_retired_repository_that_is_the_same_one_is_taken_up_again(database: Database) -> None:
    with database.connection() as conn:
        made = insert(conn)
        assert made is not None
        same = {"url": made.url, "svn_uuid": str(made.svn_uuid), "svn_root": str(made.svn_root)}
        assert repos.reactivate_svn(conn, **same) is None
        repos.retire(conn, made.repo_id, "test")
        assert repos.reactivate_svn(conn, **same | {"svn_uuid": "another"}) is None
        assert repos.reactivate_svn(conn, **same) == made


def test_the_largest_known_head_comes_from_visits_and_hints(database: Database) -> None:
    with database.connection() as conn:
        assert repos.head_revision(conn) == 0
        made = insert(conn)
        assert made is not None
        conn.execute("INSERT INTO scm.change_hints (repo_id, head_rev) VALUES (%s, 7)", [made.repo_id])
        assert repos.head_revision(conn) == 7


def test_a_slug_that_dagster_cannot_name_is_refused_by_the_table(database: Database) -> None:
    with database.connection() as conn, pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(
            """INSERT INTO scm.repos (kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root)
               VALUES ('svn', 'g', 'g', 'a', 'a-b', 'svn://g', 'u', 'svn://g')"""
        )


# Names of assets -----------------------------------------------------------------------------------------


def keys(conn: Connection) -> list[str]:
    """The first two parts of the keys of the assets, in the order of registration."""
    return [f"{one.instance_slug}/{one.slug}" for one in repos.list_all(conn)]


@pytest.mark.parametrize("paths", [("t/a-b", "t/a_b"), ("t/a_b", "t/a-b")])
def test_of_two_paths_with_the_same_slug_the_later_one_gets_its_number(
    database: Database, paths: tuple[str, str]
) -> None:
    with database.connection() as conn:
        for number, path in enumerate(paths, 12):
            insert_project(conn, number, path)
        assert keys(conn) == ["g/t__a_b", "g/t__a_b_13"]


def test_a_renamed_project_keeps_its_slug_from_the_next_one_at_its_path(database: Database) -> None:
    with database.connection() as conn:
        first = insert_project(conn, 12, "t/a-b")
        assert first is not None
        repos.record_project(conn, first.repo_id, builders.project_info("t/c", None), actor="rediscovery")
        insert_project(conn, 13, "t/a-b")
        insert_project(conn, 14, "t/c")
        assert keys(conn) == ["g/t__a_b", "g/t__a_b_13", "g/t__c"]


def test_a_slug_that_looks_like_another_one_with_its_number_collides_with_nothing(database: Database) -> None:
    with database.connection() as conn:
        insert_project(conn, 12, "t/a-b")
        insert_project(conn, 99, "t/a-b-13")
        made = insert_project(conn, 13, "t/a_b")
        assert made is not None
        assert keys(conn) == ["g/t__a_b", "g/t__a_b_13", f"g/t__a_b_13_{made.repo_id}"]


def test_projects_registered_at_once_never_share_a_slug_or_split_a_server(database: Database) -> None:
    def register(number: int) -> Repository | None:
        with database.connection() as conn, conn.transaction():
            return insert_project(conn, number, f"t/a{'-' * number}b")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(register, range(1, 13)))
    assert None not in made
    with database.connection() as conn:
        found = keys(conn)
    assert len(set(found)) == 12
    assert all(key.startswith("g/t__a_b") for key in found)


def test_servers_on_one_host_with_different_ports_have_aliases_of_their_own(database: Database) -> None:
    with database.connection() as conn:
        for server in ("https://git.acme.com", "https://git.acme.com:8443", "http://git.acme.com:81/path"):
            insert_project(conn, server=server)
        assert keys(conn) == ["git/a__b", "git_8443/a__b", "git_81/a__b"]


def test_a_gitlab_and_an_svn_server_on_one_host_have_aliases_of_their_own(database: Database) -> None:
    with database.connection() as conn:
        insert_project(conn, server="https://h")
        insert(conn)
        insert(conn, "svn://h/glue")
        assert keys(conn) == ["h/a__b", "h_svn/paint__trunk", "h_svn/glue"]


def test_the_alias_is_the_name_of_the_server_and_stays_when_the_name_changes(database: Database) -> None:
    with database.connection() as conn:
        insert_project(conn, 1, "a/b", name="main")
        insert_project(conn, 2, "a/c", name="other")
        insert_project(conn, 3, "a/d")
        assert keys(conn) == ["main/a__b", "main/a__c", "main/a__d"]


def test_a_name_that_is_in_the_keys_of_another_server_is_refused_with_what_to_do(database: Database) -> None:
    with database.connection() as conn:
        insert_project(conn, name="main")
        with pytest.raises(ConfigurationError) as refused:
            insert_project(conn, server="https://h", name="main")
        assert str(refused.value) == (
            "the name 'main' of the gitlab server h is in the asset keys of the gitlab server g; "
            "give h another name"
        )
        insert_project(conn, server="https://h", name="second")
        assert keys(conn) == ["main/a__b", "second/a__b"]


def relocate(conn: Connection, repository: Repository | None, url: str) -> None:
    assert repository is not None
    instance = instance_of(url)
    assert repos.relocate_svn(
        conn, repository.repo_id, old_url=repository.url, url=url, instance=instance, svn_root=url
    )
    repos.record_event(conn, repository.repo_id, "moved", actor="me", old=repository.url, new=url)


def insert_svn(conn: Connection, *urls: str) -> None:
    for url in urls:
        repos.insert_svn(
            conn, url=url, instance=instance_of(url), tenant="t", svn_uuid="u", svn_root=url, svn_prefix=""
        )


def test_a_repository_that_was_relocated_brings_no_alias_along(database: Database) -> None:
    with database.connection() as conn:
        moved, _, near = insert(conn), insert(conn, "svn://h/glue"), insert(conn, "svn://h/far/iron")
        relocate(conn, near, "svn://h/near/iron")
        relocate(conn, moved, "svn://new/paint")
        insert_svn(conn, "svn://new/wood", "svn://h/steel", "svn://new/tin")
        assert keys(conn)[3:] == ["new/wood", "h/steel", "new/tin"]


def test_all_that_moved_to_another_host_stays_below_its_alias(database: Database) -> None:
    with database.connection() as conn:
        relocate(conn, insert(conn), "svn+ssh://me@new/paint")
        insert_svn(conn, "svn+ssh://me@new/tin", "svn://h/glue")
        assert keys(conn)[1:] == ["h/tin", "h_svn/glue"]
