"""Migrations protect a database from a wrong program, and a program from a wrong database."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database import migrations
from sync_pipeline.database.migrations import SchemaStatus


@pytest.fixture
def sql_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of migrations of the test's own, used instead of the project's."""
    folder = tmp_path / "with a [strange] name" / "migrations"
    folder.mkdir(parents=True)
    monkeypatch.setattr(migrations, "sql_folder", lambda: folder.parent)
    _write(folder, "0001.first", _MARKER, "DROP SCHEMA scm CASCADE;")
    return folder


_MARKER = """-- The marker table, which every set of migrations begins with.
CREATE SCHEMA scm;
CREATE TABLE scm.deployment (singleton boolean PRIMARY KEY DEFAULT TRUE, environment text NOT NULL);
"""


def _write(folder: Path, name: str, up: str, down: str = "SELECT 1;") -> None:
    (folder / f"{name}.sql").write_text(up)
    (folder / f"{name}.rollback.sql").write_text(down)


def _rows(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as conn:
        return conn.execute(query).fetchall()


def test_a_new_database_is_migrated_and_marked_once(empty_database_url: str) -> None:
    assert migrations.check(empty_database_url, "test").status is SchemaStatus.EMPTY
    applied = migrations.migrate(empty_database_url, "test")
    assert applied[0] == "0001.core"
    assert migrations.migrate(empty_database_url, "test") == []
    state = migrations.check(empty_database_url, "test")
    assert (state.status, state.environment, list(state.applied)) == ("up_to_date", "test", applied)
    migrations.require(empty_database_url, "test")


def test_checking_changes_nothing(empty_database_url: str) -> None:
    migrations.check(empty_database_url, "test")
    query = "SELECT nspname FROM pg_namespace WHERE nspname IN ('scm', 'identity', 'migrations')"
    assert _rows(empty_database_url, query) == []


def test_a_database_of_another_environment_is_refused_and_not_touched(database_url: str) -> None:
    for action in (migrations.migrate, migrations.require):
        with pytest.raises(ConfigurationError, match=r"marked for environment 'test'.*'production'"):
            action(database_url, "production")
    assert _rows(database_url, "SELECT environment FROM scm.deployment") == [("test",)]


def test_an_older_database_is_refused_with_the_remedy(empty_database_url: str, sql_files: Path) -> None:
    migrations.migrate(empty_database_url, "test")
    _write(sql_files, "0002.second", "CREATE TABLE scm.more (id int);", "DROP TABLE scm.more;")
    with pytest.raises(ConfigurationError, match=r"lacks migration 0002\.second; run: scm-sync db migrate"):
        migrations.require(empty_database_url, "test")
    assert migrations.migrate(empty_database_url, "test") == ["0002.second"]


def test_a_migration_of_the_same_name_and_another_content_is_refused_by_everything(
    empty_database_url: str, sql_files: Path
) -> None:
    """As two branches may have it."""
    _write(sql_files, "0002.second", "CREATE TABLE scm.more (id int);", "DROP TABLE scm.more;")
    migrations.migrate(empty_database_url, "test")
    _write(sql_files, "0002.second", "CREATE TABLE scm.more (id bigint);", "DROP TABLE scm.more;")
    state = migrations.check(empty_database_url, "test")
    assert (state.status, state.different) == (SchemaStatus.DIFFERENT, ("0002.second",))
    for action in (
        lambda: migrations.migrate(empty_database_url, "test"),
        lambda: migrations.require(empty_database_url, "test"),
        lambda: migrations.rollback(empty_database_url),
    ):
        with pytest.raises(ConfigurationError, match=r"0002\.second with another content") as caught:
            action()
        assert "\n" not in str(caught.value)
    # A better comment and other blanks make no other schema.
    text = "-- More.\n\nCREATE TABLE scm.more\r\n  (id int);\n"
    _write(sql_files, "0002.second", text, "DROP TABLE scm.more;")
    migrations.require(empty_database_url, "test")
    assert migrations.rollback(empty_database_url) == ["0002.second"]
    _write(sql_files, "0002.second", "CREATE TABLE scm.more (id bigint);", "DROP TABLE scm.more;")
    assert migrations.migrate(empty_database_url, "test") == ["0002.second"]


def test_a_database_of_an_earlier_version_has_its_contents_recorded_at_the_next_migration(
    empty_database_url: str, sql_files: Path
) -> None:
    migrations.migrate(empty_database_url, "test")
    with psycopg.connect(empty_database_url) as conn:
        conn.execute("DROP TABLE migrations.contents")
    migrations.require(empty_database_url, "test")
    assert migrations.migrate(empty_database_url, "test") == []
    _write(sql_files, "0001.first", _MARKER + "CREATE TABLE scm.x (id int);", "DROP SCHEMA scm CASCADE;")
    with pytest.raises(ConfigurationError, match="with another content"):
        migrations.require(empty_database_url, "test")


def test_a_newer_database_is_refused_by_everything(empty_database_url: str, sql_files: Path) -> None:
    _write(sql_files, "0002.second", "CREATE TABLE scm.more (id int);", "DROP TABLE scm.more;")
    migrations.migrate(empty_database_url, "test")
    (sql_files / "0002.second.sql").unlink()
    assert migrations.check(empty_database_url, "test").unknown == ("0002.second",)
    for action in (
        lambda: migrations.require(empty_database_url, "test"),
        lambda: migrations.migrate(empty_database_url, "test"),
        lambda: migrations.rollback(empty_database_url),
    ):
        with pytest.raises(ConfigurationError, match="does not know; install the newer program"):
            action()


def test_migrations_run_in_the_order_of_their_numbers(empty_database_url: str, sql_files: Path) -> None:
    for number in (5, 3, 4, 2):
        _write(sql_files, f"{number:04}.step", f"CREATE TABLE scm.step_{number} (id int);")
    names = ["0001.first", "0002.step", "0003.step", "0004.step", "0005.step"]
    assert migrations.migrate(empty_database_url, "test") == names
    assert migrations.rollback(empty_database_url, steps=2) == ["0005.step", "0004.step"]


def test_a_failing_migration_leaves_nothing_half_done(empty_database_url: str, sql_files: Path) -> None:
    _write(sql_files, "0002.bad", "CREATE TABLE scm.half (id int);\nSELECT 1 / 0;\n")
    with pytest.raises(ConfigurationError, match=r"0002\.bad failed and was undone: division by zero"):
        migrations.migrate(empty_database_url, "test")
    assert _rows(empty_database_url, "SELECT to_regclass('scm.half')") == [(None,)]
    state = migrations.check(empty_database_url, "test")
    assert (state.applied, state.pending) == (("0001.first",), ("0002.bad",))
    # Corrected, it goes through: nothing of the failure is in the way.
    _write(sql_files, "0002.bad", "CREATE TABLE scm.half (id int);")
    assert migrations.migrate(empty_database_url, "test") == ["0002.bad"]


def test_a_failing_rollback_leaves_nothing_half_done(empty_database_url: str, sql_files: Path) -> None:
    _write(sql_files, "0002.x", "CREATE TABLE scm.x (id int);", "DROP TABLE scm.x;\nDROP TABLE scm.absent;")
    migrations.migrate(empty_database_url, "test")
    with pytest.raises(ConfigurationError, match="was undone"):
        migrations.rollback(empty_database_url)
    assert migrations.check(empty_database_url, "test").status is SchemaStatus.UP_TO_DATE
    assert _rows(empty_database_url, "SELECT count(*) FROM scm.x") == [(0,)]


def test_sql_is_sent_as_it_is_written(
    empty_database_url: str, sql_files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _write(
        sql_files,
        "0002.texts",
        """-- 100 % of ; what %(may)s appear :here
CREATE FUNCTION scm.say(n int) RETURNS text LANGUAGE plpgsql AS $body$
BEGIN
    IF n > 0 THEN
        RETURN format('%s %% ; :n -- no comment', n);  -- a comment; with a semicolon
    END IF;
    RETURN $$quoted; twice$$;
END
$body$;
CREATE FUNCTION scm.atomic() RETURNS int LANGUAGE sql BEGIN ATOMIC
    SELECT 1;
    SELECT CASE WHEN TRUE THEN 2 ELSE 3 END;
END;
DO $$ BEGIN PERFORM scm.say(1); END $$;
SELECT scm.say(1);
""",
    )
    migrations.migrate(empty_database_url, "test")
    assert _rows(empty_database_url, "SELECT scm.say(7), scm.say(0), scm.atomic()") == [
        ("7 % ; :n -- no comment", "quoted; twice", 2)
    ]
    assert capfd.readouterr() == ("", "")


def test_two_at_once_apply_each_migration_once(empty_database_url: str, sql_files: Path) -> None:
    _write(sql_files, "0002.slow", "CREATE TABLE scm.slow (id int);\nSELECT pg_sleep(0.5);")
    program = (
        "import sys; from pathlib import Path; from sync_pipeline.database import migrations;"
        "migrations.sql_folder = lambda: Path(sys.argv[2]);"
        "print(migrations.migrate(sys.argv[1], 'test'))"
    )
    command = [sys.executable, "-W", "error", "-c", program, empty_database_url, str(sql_files.parent)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    # The lock is for one migration, so on a busy machine they may share the work.
    applied = [name for answer in answers for name in ast.literal_eval(answer)]
    assert sorted(applied) == ["0001.first", "0002.slow"]


def test_a_killed_migration_is_in_nobodys_way(empty_database_url: str, sql_files: Path) -> None:
    _write(sql_files, "0002.slow", "CREATE TABLE scm.slow (id int);\nSELECT pg_sleep(600);")
    program = (
        "import sys; from pathlib import Path; from sync_pipeline.database import migrations;"
        "migrations.sql_folder = lambda: Path(sys.argv[2]);"
        "migrations.migrate(sys.argv[1], 'test')"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, empty_database_url, str(sql_files.parent)])
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        asleep = (
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        )
        while not (found := conn.execute(asleep).fetchone()):
            assert killed.poll() is None
        killed.kill()
        killed.wait()
        # The server notices a dead client only when it next writes to it; a person would do the same.
        conn.execute("SELECT pg_terminate_backend(%(pid)s, 5000)", {"pid": found[0]})
    _write(sql_files, "0002.slow", "CREATE TABLE scm.slow (id int);")
    assert migrations.migrate(empty_database_url, "test") == ["0002.slow"]


def test_a_readers_open_transaction_is_named_and_nobody_waits_behind_the_migration(
    empty_database_url: str, sql_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations.migrate(empty_database_url, "test")
    _write(sql_files, "0002.column", "ALTER TABLE scm.deployment ADD COLUMN more int;")
    monkeypatch.setattr(migrations, "LOCK_TRIES", 2)
    with psycopg.connect(empty_database_url, application_name="a report") as reader:
        pid = reader.info.backend_pid
        reader.execute("SELECT * FROM scm.deployment -- of every month")
        with pytest.raises(ConfigurationError) as caught:
            migrations.migrate(empty_database_url, "test")
        # One that waited for the whole time would meet its own time-out here.
        with psycopg.connect(empty_database_url, options="-c lock_timeout=1000") as other:
            assert other.execute("SELECT environment FROM scm.deployment").fetchall() == [("test",)]
    message = str(caught.value)
    assert "migration 0002.column was undone, because another session keeps a lock" in message
    assert f"process {pid} (a report, idle in transaction, for " in message
    assert "SELECT * FROM scm.deployment -- of every month; wait for it" in message
    assert "\n" not in message
    assert migrations.migrate(empty_database_url, "test") == ["0002.column"]


def test_a_migration_gets_its_lock_once_the_reader_is_gone_and_lets_others_in_meanwhile(
    empty_database_url: str, sql_files: Path
) -> None:
    migrations.migrate(empty_database_url, "test")
    _write(sql_files, "0002.column", "ALTER TABLE scm.deployment ADD COLUMN more int;")
    with (
        psycopg.connect(empty_database_url) as reader,
        psycopg.connect(empty_database_url, autocommit=True) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        reader.execute("SELECT * FROM scm.deployment")
        migrated = threads.submit(migrations.migrate, empty_database_url, "test")
        waiting = (
            "SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database "
            "WHERE NOT granted AND mode = 'AccessExclusiveLock' AND datname = current_database()"
        )
        while not other.execute(waiting).fetchall():
            assert not migrated.done()
        # It queues behind the migration, which lets it through by itself.
        assert other.execute("SELECT environment FROM scm.deployment").fetchall() == [("test",)]
        assert not migrated.done()
        reader.commit()
        assert migrated.result() == ["0002.column"]


def test_a_database_that_became_another_environments_meanwhile_is_refused(
    empty_database_url: str, sql_files: Path
) -> None:
    """Both looked at an empty database; the one that comes second learns whose it is."""
    _write(sql_files, "0002.other", "INSERT INTO scm.deployment (environment) VALUES ('production');")
    with pytest.raises(ConfigurationError, match=r"marked for environment 'production'"):
        migrations.migrate(empty_database_url, "test")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is not a PostgreSQL URL"),
        ("postgresql://u:hunter2@127.0.0.1:1/x", r"127\.0\.0\.1:1/x does not answer"),
    ],
)
def test_a_wrong_url_is_one_line_without_the_password(url: str, message: str) -> None:
    for action in (migrations.migrate, migrations.check, migrations.require):
        with pytest.raises(ConfigurationError, match=message) as caught:
            action(url, "test")
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_two_that_create_the_same_schema_are_harmless(database_url: str) -> None:
    migrations.create_schema(database_url, "dagster")
    migrations.create_schema(database_url, "dagster")
    assert _rows(database_url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'dagster'") == [(1,)]


def test_a_rollback_that_fails_names_the_object_in_the_way_and_what_is_undone(
    empty_database_url: str,
) -> None:
    applied = migrations.migrate(empty_database_url, "test")
    newest = applied[-1]
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA bi")
        conn.execute("CREATE VIEW bi.waiting AS SELECT * FROM scm.obligations")
    with pytest.raises(ConfigurationError, match=rf"after {newest}.* was undone, rollback of .*bi\.waiting"):
        migrations.rollback(empty_database_url, len(applied) - applied.index("0012.words"))
    assert newest not in migrations.check(empty_database_url, "test").applied


def test_a_role_that_may_read_a_table_may_read_the_view_of_its_old_name(empty_database_url: str) -> None:
    applied = migrations.migrate(empty_database_url, "test")
    migrations.rollback(empty_database_url, len(applied) - applied.index("0012.words"))
    role = f"analyst_{os.getpid()}"
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
        conn.execute(sql.SQL("GRANT SELECT ON scm.obligations TO {}").format(sql.Identifier(role)))
        migrations.migrate(empty_database_url, "test")
        query = "SELECT has_table_privilege(%s, name, 'SELECT') FROM unnest(%s::text[]) AS name"
        found = conn.execute(
            query, (role, ["scm.obligations", "scm.deferred_fetches", "scm.sweeps"])
        ).fetchall()
        conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    assert found == [(True,), (True,), (False,)]
