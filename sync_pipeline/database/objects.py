"""Compares the objects of the schema with those that the migrations make.

Belongs here: the list of tables, columns, functions, constraints, indexes, views and triggers, and which of
them are lost or different. The schema has all migrations (:mod:`sync_pipeline.database.migrations`); a person
dropped or changed something later.

``sql/objects.json`` holds the list as the migrations make it. ``./dev generate`` writes it; a test
keeps it current.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries, sql_folder

Objects = Mapping[str, Mapping[str, str]]
"""By kind and name, what an object is. Kinds are in the order in which their objects can be made. Names of
constraints and triggers are those of their table and their own."""


_SQL = queries("objects")


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is ``missing`` or ``different``, and the SQL that restores it."""

    kind: str
    name: str
    state: str
    statement: str

    @property
    def problem(self) -> str:
        """The damage in one line, without the remedy."""
        return f"{self.kind} {self.name} is {self.state}"


def read(conn: Connection) -> dict[str, dict[str, str]]:
    """The objects of the database."""
    found: dict[str, dict[str, str]] = {}
    with conn.transaction():
        conn.execute(_SQL["no_search_path"])
        for row in conn.execute(_SQL["objects"], {}):
            found.setdefault(row["kind"], {})[row["name"]] = row["definition"]
    return found


def expected() -> Objects:
    """The objects that the migrations of this program make."""
    known: Objects = json.loads((sql_folder() / "objects.json").read_text(encoding="utf-8"))
    return known


def document(found: Objects) -> str:
    """The text of ``sql/objects.json``."""
    return json.dumps(found, indent=1) + "\n"


def check(conn: Connection) -> list[Damage]:
    """The lost or different objects of a database that has all migrations."""
    return damages(expected(), read(conn))


def damages(wanted: Objects, found: Objects) -> list[Damage]:
    """The objects of ``wanted`` that are lost or different, in the order in which they can be restored.

    Additional objects are no damage. A lost table is one damage: its columns and indexes come back
    with it, from a backup.
    """
    lost = [name for name in wanted["table"] if name not in found.get("table", {})]
    result = [
        Damage("table", name, "missing", _RESTORE_TABLE.format(name.partition(".")[2])) for name in lost
    ]
    for kind, objects in wanted.items():
        there = found.get(kind, {})
        for name, definition in objects.items():
            parts = _parts(kind, name, definition)
            if kind in ("table", "query") or there.get(name) == definition or parts["table"] in lost:
                continue
            if kind == "view":
                parts["query"] = wanted["query"][name]
                parts["view"] = parts["query"].removeprefix("CREATE ").partition(f" {name} ")[0]
            state, statements = ("different", _REMAKE) if name in there else ("missing", _MAKE)
            result.append(Damage(kind, name, state, statements.get(kind, "{definition};").format(**parts)))
    return result


_RESTORE_TABLE = "-- It comes back from a backup: pg_restore --table={} <backup>"
_MAKE = {
    "column": "ALTER TABLE {table} ADD COLUMN {own} {definition};",
    "default": "ALTER TABLE {table} ALTER COLUMN {own} SET DEFAULT {definition};",
    "not null": "ALTER TABLE {table} ALTER COLUMN {own} SET NOT NULL;",
    "constraint": "ALTER TABLE {table} ADD CONSTRAINT {own} {definition};",
    "foreign key": "ALTER TABLE {table} ADD CONSTRAINT {own} {definition};",
    "view": "{query};",
}
_REMAKE = _MAKE | {
    "column": "ALTER TABLE {table} ALTER COLUMN {own} TYPE {definition};",
    "constraint": "ALTER TABLE {table} DROP CONSTRAINT {own}; " + _MAKE["constraint"],
    "foreign key": "ALTER TABLE {table} DROP CONSTRAINT {own}; " + _MAKE["foreign key"],
    "trigger": "DROP TRIGGER {own} ON {table}; {definition};",
    "index": "DROP INDEX {name}; {definition};",
    "view": "DROP {view} {name}; {query};",
}


def _parts(kind: str, name: str, definition: str) -> dict[str, str]:
    """The parts of a statement about an object: its ``table``, empty where it has none, and its ``own`` name
    within the table."""
    table, own = "", name
    match kind:
        case "column" | "default" | "not null":
            table, _, own = name.rpartition(".")
        case "constraint" | "foreign key" | "trigger":
            table, _, own = name.partition(" ")
        case "index":
            table = definition.partition(" ON ")[2].partition(" ")[0]
    return {"table": table, "own": own, "name": name, "definition": definition.rstrip()}
