"""The catalog's rows: a place is registered once while it is active, and found by whatever names it."""

from __future__ import annotations

import psycopg
import pytest

from sync_pipeline.catalog import parse_spec
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Kind, Lifecycle, Repository
from sync_pipeline.store import repos
from sync_pipeline.store.database import Connection, Database


def insert(conn: Connection, url: str = "svn://h/paint/trunk") -> Repository | None:
    return repos.insert_svn(
        conn,
        url=url,
        instance="h",
        instance_slug="h",
        tenant="paint",
        slug_stem="paint_trunk",
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
    assert made.slug == f"paint_trunk_{made.repo_id}"
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
        assert successor.slug != first.slug
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
        assert repos.by_slug(conn, made.slug) == made
        assert repos.find(conn, parse_spec("svn:svn://h/paint")) is None
        assert repos.find(conn, parse_spec("gitlab:1")) is None
        assert repos.by_slug(conn, "paint") is None
        with pytest.raises(ConfigurationError, match="no repository 999"):
            repos.get(conn, 999)


def test_a_gitlab_project_is_found_by_id_and_path(database: Database) -> None:
    with database.connection() as conn:
        conn.execute(
            """INSERT INTO scm.repos
                      (kind, instance, instance_slug, tenant, slug, url, project_id, project_path)
               VALUES ('gitlab', 'g', 'g', 'a', 'a_b_1', 'https://g/a/b', 12, 'a/b')"""
        )
        by_id, by_path = (repos.find(conn, parse_spec(text)) for text in ("gitlab:12", "gitlab:a/b"))
    assert by_id is not None
    assert by_id == by_path
    assert by_id.spec == "gitlab:12"


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
        conn.execute("INSERT INTO scm.sync_hints (repo_id, head_rev) VALUES (%s, 7)", [made.repo_id])
        assert repos.head_revision(conn) == 7


def test_a_slug_that_dagster_cannot_name_is_refused_by_the_table(database: Database) -> None:
    with database.connection() as conn, pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(
            """INSERT INTO scm.repos (kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root)
               VALUES ('svn', 'g', 'g', 'a', 'a-b', 'svn://g', 'u', 'svn://g')"""
        )
