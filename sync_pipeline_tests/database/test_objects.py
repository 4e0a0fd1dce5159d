"""What a person dropped or changed in the schema is found, with the statement that restores it."""

from __future__ import annotations

from typing import LiteralString

import pytest

from sync_pipeline.database import objects
from sync_pipeline.database.pool import Database
from sync_pipeline.database.queries import sql_folder


def test_the_list_of_objects_is_current(database: Database) -> None:
    with database.connection() as conn:
        assert (sql_folder() / "objects.json").read_text() == objects.document(objects.read(conn)), (
            "run: ./dev generate"
        )
    kinds = "table, column, default, not null, function, constraint, foreign key, view, query, index, trigger"
    assert list(objects.expected()) == kinds.split(", ")


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DROP INDEX scm.sync_jobs_one_active", ["index scm.sync_jobs_one_active is missing"]),
        (
            "DROP INDEX scm.sync_jobs_one_active;"
            "CREATE UNIQUE INDEX sync_jobs_one_active ON scm.sync_jobs (job_id) WHERE status = 'pending'",
            ["index scm.sync_jobs_one_active is different"],
        ),
        (
            "DROP TRIGGER sync_jobs_keep_unfinished ON scm.sync_jobs",
            ["trigger scm.sync_jobs sync_jobs_keep_unfinished is missing"],
        ),
        (
            "ALTER TABLE scm.sync_jobs DISABLE TRIGGER sync_jobs_keep_unfinished",
            ["trigger scm.sync_jobs sync_jobs_keep_unfinished is different"],
        ),
        (
            "CREATE OR REPLACE FUNCTION scm.refuse_update() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RETURN NEW; END'",
            ["function scm.refuse_update() is different"],
        ),
        (
            "ALTER TABLE scm.sync_locks DROP CONSTRAINT sync_locks_lock_id_fence_key",
            ["constraint scm.sync_locks sync_locks_lock_id_fence_key is missing"],
        ),
        (
            "ALTER TABLE scm.sync_jobs DROP CONSTRAINT sync_jobs_repo_id_fkey;"
            "ALTER TABLE scm.sync_jobs ADD CONSTRAINT sync_jobs_repo_id_fkey FOREIGN KEY (repo_id)"
            " REFERENCES scm.repos NOT VALID",
            ["foreign key scm.sync_jobs sync_jobs_repo_id_fkey is different"],
        ),
        (
            "ALTER TABLE scm.job_events DROP COLUMN actor",
            ["column scm.job_events.actor is missing", "not null scm.job_events.actor is missing"],
        ),
        (
            "ALTER TABLE scm.sync_jobs ALTER priority TYPE bigint",
            ["column scm.sync_jobs.priority is different"],
        ),
        ("ALTER TABLE scm.sync_locks ALTER fence DROP DEFAULT", ["default scm.sync_locks.fence is missing"]),
        (
            "ALTER TABLE scm.sync_locks ALTER fence DROP NOT NULL",
            ["not null scm.sync_locks.fence is missing"],
        ),
        ("DROP VIEW scm.v_facts", ["view scm.v_facts is missing"]),
        # What somebody added is theirs.
        ("CREATE INDEX mine ON scm.mrs (title); ALTER TABLE scm.mrs ADD mine int", []),
    ],
)
def test_what_is_lost_or_changed_is_named_and_its_statement_restores_it(
    database: Database, statement: LiteralString, found: list[str]
) -> None:
    wanted = objects.expected()
    with database.connection() as conn:
        assert objects.damages(wanted, objects.read(conn)) == []
        conn.execute(statement)
        damages = objects.damages(wanted, objects.read(conn))
        assert [one.problem for one in damages] == found
        for one in damages:
            conn.execute(one.statement.encode())
        assert objects.damages(wanted, objects.read(conn)) == []


def test_a_lost_table_is_one_line(database: Database) -> None:
    with database.connection() as conn:
        conn.execute("DROP TABLE scm.job_events")
        (damage,) = objects.check(conn)
    assert damage.problem == "table scm.job_events is missing"
    assert damage.statement.startswith("-- It comes back from a backup: pg_restore --table=job_events")


# Generated or used by a view, or names of commits, whose digits sort alike everywhere.
_SORTED_AS_THE_DATABASE_DOES = {
    "identity.accounts.account_name",
    "identity.accounts.account_type",
    "scm.git_commits.commit_sha",
    "scm.mr_commits.commit_sha",
    "scm.mrs.mr_id",
    "scm.ref_walks.covered",
    "scm.ref_walks.tip",
}


def test_keys_of_text_sort_by_bytes(database: Database) -> None:
    """Indexes on them survive an upgrade of the operating system: write COLLATE "C" behind their type."""
    query = """
    SELECT DISTINCT a.attrelid::regclass || '.' || a.attname AS name
      FROM pg_index AS i
      JOIN pg_class AS c ON c.oid = i.indrelid
      JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
     WHERE c.relnamespace IN ('scm'::regnamespace, 'identity'::regnamespace)
       AND a.attcollation = 'pg_catalog."default"'::regcollation
    """
    with database.connection() as conn:
        found = {row["name"] for row in conn.execute(query)}
    assert found == _SORTED_AS_THE_DATABASE_DOES
