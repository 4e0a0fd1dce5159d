"""The column lists of GitLab's fact tables: they are those of the database, and hashes stay as they were."""

from __future__ import annotations

import pytest

from sync_pipeline.database.pool import Database
from sync_pipeline.facts import commits, merge_requests, reviews, tables
from sync_pipeline_tests.facts.gitlab_facts import commit, event, whole

_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, NULL) AS type
  FROM pg_attribute AS a
 WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND a.attgenerated = '' AND a.attidentity = ''
"""

# Columns that say when and how a row was stored, and not what the source said.
_OURS = {
    "repo_id",
    "batch_id",
    "version",
    "first_seen_at",
    "stored_at",
    "deleted_at",
    "missing_since",
    "replaced_id",
    "read_at",
    "id",
    "walk_id",
    "unreachable_since",
    "parents_asked_at",
    "children_head",
    "children_target",
    "versions_read_at",
}


@pytest.mark.parametrize(
    "table",
    [
        tables.COMMITS,
        tables.MERGE_REQUESTS,
        tables.VERSIONS,
        tables.MERGE_REQUEST_COMMITS,
        tables.REVIEW_EVENTS,
    ],
    ids=lambda table: table.name,
)
def test_each_column_of_the_source_is_listed_with_its_type(database: Database, table: tables.Table) -> None:
    with database.connection() as conn:
        rows = conn.execute(_COLUMNS, {"table": table.name})
        stored = {row["name"]: row["type"] for row in rows if row["name"] not in _OURS}
    listed = dict(part.split(" ", 1) for part in table.sql("{types}").split(", "))
    names = {"timestamptz": "timestamp with time zone"}
    assert {name: names.get(kind, kind) for name, kind in listed.items()} == stored


def test_a_statement_names_every_column_where_the_template_asks_for_it() -> None:
    table = tables.Table(
        "scm.things",
        (
            tables.Column("name", "text", lambda row: row),
            tables.Column("labels", "text[]", lambda row: (), unordered=True),
            tables.Column("size", "bigint", lambda row: None, optional=True),
        ),
        key=("number",),
        given=(("number", "bigint"),),
        hashes=("content_hash",),
    )
    assert table.sql("{columns}") == "number, name, labels, size, flags, raw, content_hash"
    assert table.sql("{names} {group}") == "number, name, labels, size, flags number"
    assert table.sql("{shown}") == "number bigint, name text, labels text[], size bigint, flags text[]"
    assert table.sql("{excluded}") == "name = EXCLUDED.name, labels = EXCLUDED.labels, flags = EXCLUDED.flags"
    assert table.sql("{mapped}") == "name = s.name, labels = s.labels, size = s.size, flags = s.flags"
    assert table.sql("'{{}}' {table} {same_key}") == "'{}' scm.things t.number = s.number"


def test_a_row_is_compared_as_the_table_holds_it() -> None:
    table = tables.MERGE_REQUESTS
    row = whole(5, labels=("b", "a"), title="nul \0", base_sha=None)
    source = table.values(row) | {"flags": [], "raw": {}}
    stored = source | {"labels": ["a", "b"], "title": "nul \N{SYMBOL FOR NULL}", "base_sha": "abc"}
    assert table.differing(source, stored) == ()
    assert table.differing(source, stored | {"title": "x", "flags": ["y"], "raw": None}) == (
        "flags",
        "title",
    )


def test_hashes_stay_as_they_are_stored() -> None:
    """Another hash of the same content would write every stored row again at its next reading."""
    row = whole(5, labels=("b", "a"), milestone="m", description="text\0")
    children = merge_requests.Children(row)
    hashes = [
        merge_requests.columns(row, children)["content_hash"],
        children.versions_hash,
        children.commits_hash,
        reviews.columns(event(3, details={"z": 1}, flags=("bad_date",)))["content_hash"],
        commits.columns(commit("a", "b", "c", web_url="w"))["content_hash"],
    ]
    assert [value.hex()[:16] for value in hashes if value] == [
        "ef7d0cc4f125e97f",
        "eb64c32a166a752d",
        "ba6c8da913dcfcf5",
        "f45fe29f9dca908f",
        "073cf0704d201f5a",
    ]
