"""``scm-sync root``: groups and memberships whose projects enter the catalog by themselves.

Belongs here: adding, listing, visiting and retiring roots, and how what a visit changed is told. Does not
belong here: single repositories (:mod:`sync_pipeline.cli.repositories`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    actor,
    after_catalog_change,
    group,
    open_database,
    print_json,
    print_message,
    print_rows,
    read_settings,
    say,
)
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.exit_codes import FAILED, PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.operations.discovery import AddedRoot, Discovered
    from sync_pipeline.store.discovery import Root

app = group(
    "Groups whose projects enter the catalog by themselves.",
    examples=(
        "scm-sync root add gitlab:group:platform --exclude 'platform/archive/*'",
        "scm-sync root list",
    ),
)

RootName = Annotated[
    str, typer.Argument(metavar="ROOT", help="A root_id, gitlab:group:<path or id> or gitlab:membership.")
]


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
        str | None, typer.Option("--tenant", help="Owner of all of them; default: first segment of the path.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Register all projects of a group or of the token's user. Those of subgroups belong to it, and those to
    come. Adding a root again replaces its patterns."""
    from sync_pipeline.catalog import parse_root
    from sync_pipeline.operations import discovery
    from sync_pipeline.sync.readers import Readers

    named = parse_root(spec)
    settings = read_settings()
    with open_database(settings) as database:
        added = discovery.add_root(
            database,
            settings,
            named,
            include=include or (),
            exclude=exclude or (),
            tenant=tenant,
            actor=actor(),
            client_of=Readers(settings, database).gitlab,
            dry_run=dry_run,
        )
        done = added.discovered
        if done is not None and done.changed:
            after_catalog_change(settings, database)
    if as_json:
        print_json(_added_document(added))
    elif added.root is None:
        for path in added.would_register:
            say(path)
        say(f"{added.spec}: {added.listed} projects, {len(added.would_register)} would be registered")
    elif done is not None:
        outcome = "added" if added.created else "was there and has the new patterns"
        say(f"{added.root} {outcome} as root {added.root.root_id}: {_discovered_line(done)}")
    return FAILED if done is not None and done.error is not None else SUCCESS


@app.command("list")
def root_list(
    everything: Annotated[bool, typer.Option("--all", help="The retired ones too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the roots and how their last visits went."""
    from sync_pipeline.store import discovery

    with open_database(read_settings()) as database, database.connection() as conn:
        counts = discovery.counts(conn)
        rows = [
            _root_row(root, *counts.get(root.root_id, (0, 0)))
            for root in discovery.list_roots(conn, retired=everything)
        ]
    if as_json:
        print_json(rows)
    elif rows:
        shown = (
            "root_id",
            "root",
            "instance",
            "repositories",
            "vanished",
            "completed_at",
            "lifecycle",
            "error",
        )
        patterns = [
            " ".join([*row["include"], *(f"not {pattern}" for pattern in row["exclude"])]) for row in rows
        ]
        print_rows(
            [
                {**{name: row[name] for name in shown}, "patterns": text}
                for row, text in zip(rows, patterns, strict=True)
            ]
        )
    else:
        say("no roots; add one: scm-sync root add gitlab:group:<path>", error=True)


@app.command("sync")
def root_sync(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROOT]...", help="Roots to visit; default: all.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Visit roots now. This registers what is new, follows what moved, and retires what is gone."""
    from sync_pipeline.operations import discovery
    from sync_pipeline.store import discovery as store
    from sync_pipeline.sync.readers import Readers

    settings = read_settings()
    with open_database(settings) as database:
        if names:
            roots = [discovery.find_root(database, settings, name) for name in names]
        else:
            with database.connection() as conn:
                roots = store.list_roots(conn)
        if retired := [root for root in roots if root.lifecycle == "retired"]:
            raise ConfigurationError(
                f"root {retired[0].root_id} is retired; take it up: scm-sync root add {retired[0]}"
            )
        done = discovery.rediscover(
            database, settings, Readers(settings, database).gitlab, actor(), roots=roots
        )
        if any(one.changed for one in done):
            after_catalog_change(settings, database)
    if as_json:
        print_json([_discovered_document(one) for one in done])
    for one in done:
        if one.error is not None:
            print_message(f"{one.root}: {one.error}", FAILED)
        elif not as_json:
            say(f"{one.root}: {_discovered_line(one)}")
    failed = sum(one.error is not None for one in done)
    return SUCCESS if not failed else FAILED if failed == len(done) else PARTIAL


@app.command("retire")
def root_retire(name: RootName, as_json: AsJson = False, dry_run: DryRun = False) -> None:
    """Visit a root no more. Its repositories stay in the catalog and are synced."""
    from sync_pipeline.operations import discovery

    settings = read_settings()
    with open_database(settings) as database:
        root = discovery.find_root(database, settings, name)
        if dry_run:
            result = "would_retire" if root.lifecycle == "active" else "already_retired"
        else:
            retired = discovery.retire_root(database, root.root_id)
            result = "retired" if retired else "already_retired"
    if as_json:
        print_json({"root_id": root.root_id, "root": str(root), "result": result})
    else:
        words = {
            "would_retire": "would be retired",
            "retired": "is retired; its repositories stay",
            "already_retired": "was retired before",
        }
        say(f"{root} {words[result]}")


def _root_row(root: Root, repositories: int, vanished: int) -> dict[str, Any]:
    return {
        "root_id": root.root_id,
        "root": str(root),
        "instance": root.instance,
        "scope": root.scope,
        "group_id": root.group_id,
        "include": root.include,
        "exclude": root.exclude,
        "tenant": root.tenant,
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
            for name in ("registered", "returned", "moved", "vanished", "left", "retired")
        },
        "error": None if done.error is None else str(done.error),
    }


def _discovered_line(done: Discovered) -> str:
    if done.error is not None:
        return str(done.error)
    words = {
        "registered": "registered",
        "returned": "taken up again",
        "moved": "moved",
        "vanished": "not listed any more",
        "left": "no longer in it but still there, they stay",
        "retired": "gone and retired",
    }
    news = [f"{len(found)} {text}" for name, text in words.items() if (found := getattr(done, name))]
    return ", ".join([f"{done.listed} projects, {done.matching} match", *(news or ["nothing new"])])
