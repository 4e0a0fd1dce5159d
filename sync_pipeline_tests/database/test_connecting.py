"""Connecting: a URL is either understood or not shown, and a server that cannot be used says why."""

from __future__ import annotations

import contextlib
import secrets

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import ConnectionPool

from sync_pipeline.cli.shared import open_database
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database import diagnosis, migrations, pool
from sync_pipeline.database.connecting import describe, parse
from sync_pipeline.database.pool import Database
from sync_pipeline.runtime import environment
from sync_pipeline.settings import load_settings
from sync_pipeline_tests.conftest import ENVIRONMENT
from sync_pipeline_tests.faults import poolers
from sync_pipeline_tests.faults.poolers import Pooler

pooler = poolers.pooler

# Characters that end a part of a URL, in a password that nobody escaped.
PASSWORDS = (
    "MARKa/MARKb",
    "MARKa@MARKb",
    "MARKa@MARKb/MARKc",
    "MARKa/MARKb@MARKc",
    "12/MARKb",
    "12/MARKb@MARKc",
    "12/MARKb?MARKc",
    "12@MARKb/MARKc@MARKd",
    "MARKa:12/MARKb",
    "MARKa%MARKb",
    "MARKa MARKb/x",
    "[MARKa/MARKb]",
)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    "form", ["postgresql://u:{}@127.0.0.1:1/x", "postgres://{}@127.0.0.1/x?sslmode=disable"]
)
def test_a_url_whose_password_is_not_escaped_is_refused_and_not_shown(password: str, form: str) -> None:
    url = form.format(password)
    assert "MARK" not in describe(url)
    for action in (
        lambda: parse(url),
        lambda: Database(url),
        lambda: migrations.check(url, "test"),
        lambda: diagnosis.inspect(url, 2),
        lambda: environment.dagster_url(url, "dagster"),
    ):
        with pytest.raises(ConfigurationError, match=r"SCM_DATABASE_URL .*/ as %2F, @ as %40") as caught:
            action()
        assert "MARK" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "text",
    [
        "host=127.0.0.1 password=a MARKb port=1",
        "host=127.0.0.1 password='a'MARKb' port=1",
        "host=127.0.0.1 port=MARK",
        "host=u:MARK@127.0.0.1 port=1",
        "u:MARK@127.0.0.1",
        "mysql://u:MARK@127.0.0.1/x",
    ],
)
def test_pairs_that_cannot_be_read_are_not_shown(text: str) -> None:
    assert describe(text) == "(not a PostgreSQL URL)"
    with pytest.raises(ConfigurationError, match=r"^SCM_DAGSTER_DATABASE_URL is not") as caught:
        environment.dagster_url(text)
    assert "MARK" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:a%2Fb%40c@db.example.com:6000/scm", "db.example.com:6000/scm"),
        ("postgresql://u:a:b?c#d@db/scm", "db:5432/scm"),
        ("postgresql://u@[2001:db8::1]:5433/scm", "2001:db8::1:5433/scm"),
        ("postgresql://a:1,b:2/scm?target_session_attrs=any", "a,b:1,2/scm"),
        ("postgresql://postgres@/scm?host=/run/my%20sockets&port=5432", "/run/my sockets:5432/scm"),
        ("host=/tmp dbname=scm password='it\\'s /@:'", "/tmp:5432/scm"),
        ("host=h dbname=postgresql://u:MARK@h/x", "h:5432/..."),
        ("dbname=scm hostaddr=10.0.0.1", "10.0.0.1:5432/scm"),
        ("", "local socket:5432/"),
    ],
)
def test_what_can_be_read_is_shown_without_user_and_password(url: str, shown: str) -> None:
    assert describe(url) == shown


# Why there is no connection -----------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["migrate", "check", "look", "pool"])
def test_a_server_that_refuses_says_why(database_url: str, server_url: str, action: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(server_url, autocommit=True) as conn:
        closed = "ALTER DATABASE {} ALLOW_CONNECTIONS false"
        conn.execute(sql.SQL(closed).format(sql.Identifier(str(name))))
    with pytest.raises(ConfigurationError) as caught:
        use(database_url, action)
    assert "refuses connections: database" in str(caught.value)
    assert "is not currently accepting connections; see the log of the server" in str(caught.value)
    assert caught.value.code == "database_down"


def test_a_server_without_room_is_told_from_one_that_is_away(database_url: str) -> None:
    name = f"narrow_{secrets.token_hex(4)}"
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 1").format(sql.Identifier(name)))
        conn.execute(sql.SQL("GRANT USAGE ON SCHEMA scm TO {}").format(sql.Identifier(name)))
        try:
            url = psycopg.conninfo.make_conninfo(database_url, user=name)
            with Database(url, max_size=4, timeout=1.0) as database, database.connection():
                with pytest.raises(ConfigurationError, match="has no free connection; raise") as caught:
                    database.connection().__enter__()
                assert caught.value.code == "database_down"
                # The next one does not wait, and hears the same.
                with pytest.raises(ConfigurationError, match="has no free connection; raise"):
                    database.connection().__enter__()
        finally:
            conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_pool_whose_connections_are_all_in_use_is_no_outage(database_url: str) -> None:
    with Database(database_url, max_size=2, timeout=0.5) as database:
        with database.connection(), database.connection() as second:
            with pytest.raises(ConfigurationError, match="all 2 connections of this process") as caught:
                database.connection().__enter__()
            assert caught.value.code == "database_busy"
            assert "does not answer" not in str(caught.value)
            assert second.execute("SELECT 1 AS n").fetchone() == {"n": 1}
        with database.connection(), database.connection():
            pass


def test_the_pool_of_a_command_has_room_for_every_repository_that_it_works_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database_url)
    settings = load_settings(environment=ENVIRONMENT, parallel_repositories=12)
    with open_database(settings) as database, contextlib.ExitStack() as stack:
        held = [stack.enter_context(database.connection()) for _ in range(2 * 12 + 2)]
        assert len(set(map(id, held))) == 26


def test_options_of_the_url_are_kept(database_url: str) -> None:
    url = psycopg.conninfo.make_conninfo(database_url, options="-c work_mem=5MB -c lock_timeout=1")
    with Database(url) as database, database.connection() as conn:
        shown = [conn.execute(f"SHOW {name}").fetchone() for name in ("work_mem", "lock_timeout", "timezone")]
    assert shown == [{"work_mem": "5MB"}, {"lock_timeout": "1min"}, {"TimeZone": "UTC"}]


# Poolers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", ["", "options"])
@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("action", ["migrate", "check", "look", "pool"])
def test_a_pooler_in_between_is_one_line_that_names_the_way(
    pooler: Pooler, database_url: str, mode: str, ignored: str, action: str
) -> None:
    """Time limits of statements would vanish, temporary tables would be another client's, and Dagster's
    tables would end up in another schema."""
    url = pooler(database_url, mode=mode, ignored=ignored)
    with pytest.raises(ConfigurationError) as caught:
        use(url, action, seconds=30)
    assert "is behind a connection pooler such as PgBouncer" in str(caught.value)
    assert "name the PostgreSQL server itself in SCM_DATABASE_URL" in str(caught.value)
    assert caught.value.code == "configuration"
    # Nothing of the attempt stays behind on a connection of the pooler.
    with psycopg.connect(database_url) as conn:
        assert conn.execute("SELECT * FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []


def test_the_tables_of_dagster_may_be_behind_a_pooler(pooler: Pooler, database_url: str) -> None:
    url = pooler(database_url)
    assert diagnosis.inspect(url, 30, "SCM_DAGSTER_DATABASE_URL").has_scm
    with psycopg.connect(url, autocommit=True) as conn:
        assert conn.execute("SHOW statement_timeout").fetchone() == ("0",)


def use(url: str, action: str, seconds: int = 4) -> None:
    """Reach the server in one of the ways of the program, which may take so long."""
    match action:
        case "migrate":
            migrations.migrate(url, ENVIRONMENT)
        case "check":
            migrations.check(url, ENVIRONMENT)
        case "look":
            diagnosis.inspect(url, seconds)
        case _:
            with Database(url, timeout=seconds) as database, database.connection():
                pass


def test_a_connection_that_was_used_a_moment_ago_is_taken_without_a_question_unless_it_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    check = ConnectionPool.check_connection

    def counted(conn: psycopg.Connection[object]) -> None:
        asked.append(conn.info.backend_pid)
        check(conn)

    with database.connection():
        pass
    monkeypatch.setattr(ConnectionPool, "check_connection", staticmethod(counted))
    found = set()
    for _ in range(3):
        with database.connection() as conn:
            found.add(conn.info.backend_pid)
    assert (len(found), asked) == (1, [])
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [*found])
    with database.connection() as conn:
        assert conn.execute("SELECT 1 AS n").fetchone() == {"n": 1}
        assert conn.info.backend_pid not in found
    assert asked[0] in found
    asked.clear()
    monkeypatch.setattr(pool, "_TRUSTED_SECONDS", 0.0)
    with database.connection() as conn:
        assert asked == [conn.info.backend_pid]
