"""The schema page says what the database says."""

from __future__ import annotations

from pathlib import Path

from sync_pipeline.database.pool import Database
from sync_pipeline.database.queries import sql_folder
from sync_pipeline.facts.schema import FACT_TABLES, describe, fact_columns
from sync_pipeline_sandbox.schema_page import columns_document, page

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"


def test_the_schema_page_is_current(database: Database) -> None:
    with database.connection() as conn:
        assert PAGE.read_text() == page(describe(conn)), "run: ./dev generate"


def test_every_table_and_column_of_the_page_has_a_meaning(database: Database) -> None:
    with database.connection() as conn:
        tables = describe(conn)
    silent = [t.name for t in tables if not t.meaning]
    silent += [f"{t.name}.{c.name}" for t in tables for c in t.columns if not c.meaning]
    assert silent == []
    assert len(tables) > 15


def test_the_columns_of_the_facts_are_current(database: Database) -> None:
    with database.connection() as conn:
        assert (sql_folder() / "columns.json").read_text() == columns_document(describe(conn)), (
            "run: ./dev generate"
        )
    assert tuple(fact_columns()) == FACT_TABLES
