"""``scm-sync root``: groups and memberships whose projects enter the catalog by themselves.

Belongs here: adding, listing, visiting and retiring roots, and how the changes of a visit look. Does not
belong here: single repositories (:mod:`sync_pipeline.cli.repositories`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.exit_codes import FAILED, PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.ledger.discovery import Root
    from sync_pipeline.registry.discovery import AddedRoot, Discovered

app = options.group(
    "Groups whose projects enter the catalog by themselves.",
    examples=(
        "scm-sync root add gitlab:group:platform --exclude 'platform/archive/*'",
        "scm-sync root list",
    ),
)

_CHANGES = {
    "registered": "registered",
    "returned": "taken up again",
    "moved": "moved",
    "vanished": "not listed any more",
    "left": "no longer in it but still there, they stay",
    "retired": "gone and retired",
}
_RETIRED = {
    "would_retire": "would be retired",
    "retired": "is retired; its repositories stay",
    "already_retired": "was retired before",
}


@app.command("add")
def root_add(
    spec: Annotated[
        str, typer.Argument(metavar="ROOT", help="gitlab:group:<path or id> or gitlab:membership.")
    ],
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="PATTERN", help="Only projects whose path matches; may be repeated."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="No projects whose path matches; wins."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", help="Owner of all of them; default: first segment of the path."
        ),
    ] = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Register all projects of a group or of the token's user. Those of subgroups belong to it, and those to
    come. Adding a root again replaces its patterns."""
    from sync_pipeline.core.catalog import parse_root
    from sync_pipeline.registry import discovery
    from sync_pipeline.sync.readers import Readers

    named = parse_root(spec)
    with shared.settings_and_database() as (settings, database):
        added = discovery.add_root(
            database,
            settings,
            named,
            include=include or (),
            exclude=exclude or (),
            tenant=tenant,
            actor=shared.actor(),
            client_of=Readers(settings, database).gitlab,
            dry_run=dry_run,
        )
        done = added.discovered
        if done is not None and done.changed:
            shared.after_catalog_change(settings, database)
    output.print_document(_added_document(added), as_json, lambda _: _print_added(added))
    return FAILED if done is not None and done.error is not None else SUCCESS


def _print_added(added: AddedRoot) -> None:
    if added.root is None:
        for path in added.would_register:
            output.print_line(path)
        count = len(added.would_register)
        output.print_line(f"{added.spec}: {added.listed} projects, {count} would be registered")
    elif added.discovered is not None:
        outcome = "added" if added.created else "was there and has the new patterns"
        line = _discovered_line(added.discovered)
        output.print_line(f"{added.root} {outcome} as root {added.root.root_id}: {line}")


@app.command("list")
def root_list(everything: options.Retired = False, as_json: options.AsJson = False) -> int:
    """List the roots and how their last visits went."""
    from sync_pipeline.ledger import discovery

    with shared.settings_and_database() as (_, database), database.connection() as conn:
        counts = discovery.counts(conn)
        rows = [
            _root_row(root, *counts.get(root.root_id, (0, 0)))
            for root in discovery.list_roots(conn, retired=everything)
        ]
    return output.print_document(rows, as_json, _print_roots)


def _print_roots(rows: list[dict[str, Any]]) -> None:
    columns = (
        "root_id",
        "root",
        "instance",
        "repositories",
        "vanished",
        "completed_at",
        "lifecycle",
        "error",
    )
    output.print_rows(
        [
            {name: row[name] for name in columns}
            | {"patterns": " ".join([*row["include"], *(f"not {pattern}" for pattern in row["exclude"])])}
            for row in rows
        ]
    )
    if not rows:
        output.print_line("no roots; add one: scm-sync root add gitlab:group:<path>", error=True)


@app.command("sync")
def root_sync(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROOT", help="Roots to visit; default: all.", show_default=False),
    ] = None,
    as_json: options.AsJson = False,
) -> int:
    """Visit roots now. This registers what is new, follows what moved, and retires what is gone."""
    from sync_pipeline.ledger import discovery as store
    from sync_pipeline.registry import discovery
    from sync_pipeline.sync.readers import Readers

    with shared.settings_and_database() as (settings, database):
        if names:
            roots = [discovery.find_root(database, settings, name) for name in names]
        else:
            with database.connection() as conn:
                roots = store.list_roots(conn)
        if retired := [root for root in roots if root.lifecycle == "retired"]:
            raise ConfigurationError(
                f"root {retired[0].root_id} is retired; take it up: scm-sync root add {retired[0]}"
            )
        client_of = Readers(settings, database).gitlab
        done = discovery.rediscover(database, settings, client_of, shared.actor(), roots=roots)
        if any(one.changed for one in done):
            shared.after_catalog_change(settings, database)
    if as_json:
        output.print_json([_discovered_document(one) for one in done])
    for one in done:
        if one.error is not None:
            output.print_message(f"{one.root}: {one.error}")
        elif not as_json:
            output.print_line(f"{one.root}: {_discovered_line(one)}")
    failed = sum(one.error is not None for one in done)
    return SUCCESS if not failed else FAILED if failed == len(done) else PARTIAL


@app.command("retire")
def root_retire(
    name: Annotated[
        str,
        typer.Argument(metavar="ROOT", help="A root_id, gitlab:group:<path or id> or gitlab:membership."),
    ],
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Visit a root no more. Its repositories stay in the catalog and are synced."""
    from sync_pipeline.registry import discovery

    with shared.settings_and_database() as (settings, database):
        root = discovery.find_root(database, settings, name)
        if dry_run:
            result = "would_retire" if root.lifecycle == "active" else "already_retired"
        else:
            result = "retired" if discovery.retire_root(database, root.root_id) else "already_retired"
    document = {"root_id": root.root_id, "root": str(root), "result": result}
    line = f"{root} {_RETIRED[result]}"
    return output.print_document(document, as_json, lambda _: output.print_line(line))


def _root_row(root: Root, repositories: int, vanished: int) -> dict[str, Any]:
    names = ("instance", "scope", "group_id", "include", "exclude", "tenant")
    return {
        "root_id": root.root_id,
        "root": str(root),
        **{name: getattr(root, name) for name in names},
        "repositories": repositories,
        "vanished": vanished,
        "lifecycle": str(root.lifecycle),
        "visited_at": root.visited_at,
        "completed_at": root.completed_at,
        "error": root.error,
    }


def _added_document(added: AddedRoot) -> dict[str, Any]:
    if added.root is None:
        return {
            "spec": added.spec,
            "result": "would_add",
            "listed": added.listed,
            "would_register": added.would_register,
        }
    return {
        "spec": added.spec,
        "result": "added" if added.created else "changed",
        **(_discovered_document(added.discovered) if added.discovered else {}),
    }


def _discovered_document(done: Discovered) -> dict[str, Any]:
    return {
        "root_id": done.root.root_id,
        "root": str(done.root),
        "listed": done.listed,
        "matching": done.matching,
        **{
            name: [{"repo_id": one.repo_id, "path": one.project_path} for one in getattr(done, name)]
            for name in _CHANGES
        },
        "error": None if done.error is None else str(done.error),
    }


def _discovered_line(done: Discovered) -> str:
    if done.error is not None:
        return str(done.error)
    news = [f"{len(found)} {text}" for name, text in _CHANGES.items() if (found := getattr(done, name))]
    return ", ".join([f"{done.listed} projects, {done.matching} match", *(news or ["nothing new"])])
