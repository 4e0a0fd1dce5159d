"""Roots and their listings: which are due, and when a repository was missed often and long enough."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import discovery, repos
from sync_pipeline.ledger.discovery import Missed, Root
from sync_pipeline_tests import builders

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def add(conn: Connection, group_id: int | None = 7, **other: Any) -> tuple[Root, bool]:
    values: dict[str, Any] = {
        "instance": "g",
        "scope": "group" if group_id else "membership",
        "group_id": group_id,
        "group_path": "platform" if group_id else None,
        "include": [],
        "exclude": [],
        "tenant": None,
    }
    return discovery.add_root(conn, **values | other)


def project(conn: Connection, number: int = 12) -> int:
    return builders.register_project(conn, "https://g", number, f"a/p{number}", origin=NOW)


def test_a_root_is_there_once_with_its_latest_patterns(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: _add(database, number), range(4)))
    assert sum(created for _, created in made) == 1
    with database.connection() as conn:
        (root,) = discovery.list_roots(conn)
        assert str(root) == "gitlab:group:platform"
        assert str(add(conn, None)[0]) == "gitlab:membership"
        assert discovery.retire_root(conn, root.root_id)
        assert [one.scope for one in discovery.list_roots(conn)] == ["membership"]
        again, created = add(conn, include=["a/*"], tenant="t")
        assert (again.root_id, created, again.include, again.tenant) == (root.root_id, True, ("a/*",), "t")
        with pytest.raises(ConfigurationError, match="scm-sync root list"):
            discovery.get_root(conn, 99)


def _add(database: Database, number: int) -> tuple[Root, bool]:
    with database.connection() as conn:
        return add(conn, exclude=[f"x{number}"])


def test_a_root_is_due_when_its_last_visit_is_long_ago_however_it_ended(database: Database) -> None:
    with database.connection() as conn:
        root, other = add(conn)[0], add(conn, None)[0]
        assert discovery.due_roots(conn, 60) == [root, other]
        discovery.record_visit(conn, root.root_id, error_code="denied", error="x" * 3000)
        assert discovery.due_roots(conn, 60) == [other]
        failed = discovery.get_root(conn, root.root_id)
        assert (failed.error_code, len(failed.error or ""), failed.completed_at) == ("denied", 2000, None)
        discovery.record_visit(conn, root.root_id, group_path="base")
        done = discovery.get_root(conn, root.root_id)
        assert (done.error_code, done.error, done.group_path) == (None, None, "base")
        assert done.completed_at == done.visited_at
        conn.execute("UPDATE scm.discovery_roots SET visited_at = visited_at - interval '1 minute'")
        assert [one.root_id for one in discovery.due_roots(conn, 60)] == [other.root_id, root.root_id]
        discovery.retire_root(conn, other.root_id)
        assert [one.root_id for one in discovery.due_roots(conn, 60)] == [root.root_id]


def test_a_repository_is_ripe_when_it_was_missed_often_and_long(database: Database) -> None:
    with database.connection() as conn:
        one, other = project(conn), project(conn, 13)

        def miss(confirmations: int, after: float) -> Missed:
            (missed,) = discovery.record_missed(conn, [one], confirmations=confirmations, after=after)
            return missed

        assert miss(2, 3600) == Missed(one, is_news=True, is_ripe=False)
        assert miss(2, 3600) == Missed(one, is_news=False, is_ripe=False)
        assert miss(9, 0).is_ripe is False
        conn.execute("UPDATE scm.repos SET vanished_since = now() - interval '2 hours'")
        assert miss(4, 3600).is_ripe is True
        assert sorted(discovery.record_seen(conn, [one, other])) == [one, other]
        assert discovery.record_seen(conn, [one, other]) == []
        assert miss(1, 0) == Missed(one, is_news=True, is_ripe=True)
        repos.retire(conn, one, "gone", vanished=True)
        assert discovery.record_missed(conn, [one], confirmations=1, after=0) == []
        assert discovery.record_seen(conn, [one]) == []


def test_a_listing_is_held_against_the_active_repository_of_each_project(database: Database) -> None:
    with database.connection() as conn:
        root = add(conn)[0]
        first = project(conn)
        assert not discovery.projects(conn, "g")[12].has_active_root
        discovery.adopt(conn, root.root_id, [first])
        repos.record_project(conn, first, builders.project_info("a/q", "main", archived=True), actor="me")
        known = discovery.projects(conn, "g")[12]
        assert (known.repo_id, known.root_id, known.project_path) == (first, root.root_id, "a/q")
        assert (known.is_archived, known.has_active_root, known.is_vanished) == (True, True, False)
        assert discovery.counts(conn) == {root.root_id: (1, 0)}
        assert discovery.roots_of_repositories(conn) == {first: root.root_id}
        discovery.leave(conn, first)
        assert discovery.projects(conn, "g")[12].root_id is None
        assert discovery.projects(conn, "h") == {}
