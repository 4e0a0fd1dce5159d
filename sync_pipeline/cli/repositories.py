"""``scm-sync repo`` and ``scm-sync catalog``: which repositories are synced.

Belongs here: registering, listing, showing and retiring single repositories, and the snapshot of all of them.
Does not belong here: the groups and memberships that register by themselves (:mod:`sync_pipeline.cli.roots`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    RepoArgument,
    actor,
    after_catalog_change,
    group,
    open_database,
    print_facts,
    print_json,
    print_message,
    print_rows,
    read_settings,
    say,
    visitor_for,
)
from sync_pipeline.errors import ConfigurationError, SyncError
from sync_pipeline.exit_codes import FAILED, PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.model import Repository
    from sync_pipeline.operations.projects import Estimate
    from sync_pipeline.operations.registration import Registered

app = group(
    "The catalog: which repositories are synced.",
    examples=(
        "scm-sync repo add --dry-run gitlab:platform/api",
        "scm-sync repo add svn:https://svn.example.com/repos/tools",
        "scm-sync repo list",
    ),
)
catalog_app = group(
    "The snapshot from which Dagster loads the catalog.",
    examples=("scm-sync catalog export",),
)


@app.command("add")
def repo_add(
    specs: Annotated[
        list[str] | None,
        typer.Argument(metavar="SPEC", help="svn:<url> or gitlab:<id, path or url>", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="A repos.toml; see repos.example.toml.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            help="Owner; default: the first segment of a project's path, the server of an SVN repository.",
        ),
    ] = None,
    second_copy: Annotated[
        bool,
        typer.Option("--second-copy", help="Also an SVN repository that is known at another address."),
    ] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Register repositories. One that is registered already stays as it is."""
    from sync_pipeline.catalog import parse_spec
    from sync_pipeline.operations import registration

    if bool(specs) == (file is not None):
        raise ConfigurationError(
            "name repositories, such as svn:<url> or gitlab:<group>/<project>, or give --file repos.toml"
        )
    if file is not None and tenant is not None:
        raise ConfigurationError("--tenant goes with a SPEC; in the file write tenant = below its spec")
    if specs and len(specs) == 1:
        parse_spec(specs[0])  # the plain error of a single wrong one, before the database is needed
    entries = (
        registration.read_list(file)
        if file is not None
        else tuple(
            registration.listed(
                {"spec": spec, **({} if tenant is None else {"tenant": tenant})}, f"argument {number}"
            )
            for number, spec in enumerate(specs or (), 1)
        )
    )
    settings = read_settings()
    documents: list[dict[str, Any]] = []
    added: list[Repository] = []
    failures: list[SyncError] = []
    with open_database(settings) as database:
        for entry, result in registration.add_listed(
            database,
            settings,
            entries,
            actor=actor(),
            reader_factory=visitor_for(settings, database),
            dry_run=dry_run,
            second_copy=second_copy,
        ):
            if isinstance(result, SyncError):
                failures.append(result)
                documents.append({"spec": entry.text, "result": "failed", "error": str(result)})
                if len(entries) > 1:
                    print_message(f"{entry.text}: {result}", FAILED)
                continue
            documents.append(_registered_document(result))
            added += [result.repository] if result.repository else []
            if not as_json:
                say(_registered_line(result))
        if as_json and not (len(entries) == 1 and failures):
            print_json(documents[0] if file is None and len(entries) == 1 else documents)
        if not dry_run and registration.snapshot_lacks(settings.catalog_file, added):
            after_catalog_change(settings, database)
    if len(entries) == 1 and failures:
        raise failures[0]
    if not failures:
        return SUCCESS
    return FAILED if len(failures) == len(entries) else PARTIAL


def _registered_document(result: Registered) -> dict[str, Any]:
    if not result.created:
        outcome = "already_registered"
    else:
        outcome = "would_register" if result.dry_run else "taken_up_again" if result.again else "registered"
    document = {
        "spec": str(result.spec),
        "result": outcome,
        **(_repository_row(result.repository) if result.repository else {}),
        "origin": result.origin,
        **({"tenant_before": result.tenant_before} if result.tenant_before is not None else {}),
    }
    if result.path is None:
        return {**document, "head": result.head, "history_blocks": len(result.history)}
    takes = result.estimate
    return {
        **document,
        "path": result.path,
        "history_windows": [str(window) for window in result.history],
        **({"estimate": {**asdict(takes), "hours": round(takes.hours, 4)}} if takes else {}),
    }


def _registered_line(result: Registered) -> str:
    spec = str(result.spec)
    if result.path and result.path != result.spec.address:
        spec += f" ({result.path})"
    repository, queued = result.repository, "to queue" if result.dry_run else "queued"
    if not result.created:
        line = f"{spec} is registered already" + (
            f" as repository {repository.repo_id}" if repository else ""
        )
        if repository is not None and result.tenant_before is not None:
            verb = "would become" if result.dry_run else "is now"
            line += f"; its tenant {verb} {repository.tenant} (was {result.tenant_before})"
        return line
    plural = "s" if len(result.history) != 1 else ""
    older = f"{len(result.history)} older block{plural} {queued}"
    if result.path is not None:
        older = f"{len(result.history)} window{plural} of older merge requests and reviews {queued}"
    if result.again and repository is not None:
        head = "" if result.head is None else f"HEAD r{result.head}, "
        return (
            f"{spec} is taken up again as repository {repository.repo_id}, with its rows and assets: "
            f"{head}{older}"
        )
    done = "would be registered" if repository is None else f"registered as repository {repository.repo_id}"
    if isinstance(result.origin, datetime):
        takes = f"; {_estimate_line(result.estimate)}" if result.estimate else ""
        return f"{spec} {done}: live from {result.origin:%Y-%m-%d}, {older}{takes}"
    return f"{spec} {done}: HEAD r{result.head}, live from r{result.origin}, {older}"


def _estimate_line(takes: Estimate) -> str:
    def counted(number: int | None, things: str) -> str:
        return f"{things} not counted" if number is None else f"{number:,} {things}"

    rows = f"{counted(takes.merge_requests, 'merge requests')}, {counted(takes.commits, 'commits')}"
    minutes = takes.hours * 60
    time = "less than 2 minutes"
    if minutes >= 2:
        time = f"{takes.hours:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes"
    return f"{rows}: about {takes.requests:,} requests, {time}"


@app.command("list")
def repo_list(
    everything: Annotated[bool, typer.Option("--all", help="The retired ones too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the catalog."""
    from sync_pipeline.operations.status import accesses
    from sync_pipeline.store import discovery, repos

    settings = read_settings()
    with open_database(settings) as database, database.connection() as conn:
        repositories = repos.list_all(conn, retired=everything)
        roots = discovery.roots_of_repositories(conn)
        states: dict[int, dict[str, str]] = {}
        for (repo_id, job_type), access in sorted(accesses(conn, settings, repositories).items()):
            states.setdefault(repo_id, {})[job_type] = access["state"]
        rows = [
            {
                **_repository_row(repository),
                "access": states.get(repository.repo_id, {}),
                "root": roots.get(repository.repo_id),
            }
            for repository in repositories
        ]
    if as_json:
        print_json(rows)
    elif rows:
        where = ["instance"] if len({row["instance"] for row in rows}) > 1 else []
        shown = ("repo_id", "spec", "path", *where, "tenant", "slug", "access", "root", "lifecycle")
        print_rows(
            [{**{name: row[name] for name in shown}, "access": _access(row["access"])} for row in rows]
        )
    else:
        say("no repositories; add one: scm-sync repo add <spec>", error=True)


def _access(states: Mapping[str, str]) -> str:
    """The states of all job types in one word where they agree."""
    if len(set(states.values())) <= 1:
        return next(iter(states.values()), "")
    return ", ".join(f"{job_type} {state}" for job_type, state in states.items())


@app.command("show")
def repo_show(
    repo: RepoArgument,
    as_json: AsJson = False,
) -> None:
    """Show one repository and what of it is complete."""
    from sync_pipeline.job_types import JOB_TYPES_OF_KIND
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.operations.status import accesses
    from sync_pipeline.store import discovery, repos, watermarks

    settings = read_settings()
    with open_database(settings) as database:
        repository = find_repository(database, repo)
        with database.connection() as conn:
            access = accesses(conn, settings, [repository])
            root = discovery.roots_of_repositories(conn).get(repository.repo_id)
            events = repos.events(conn, repository.repo_id)
            known = [
                watermarks.get(conn, repository.repo_id, job_type)
                for job_type in JOB_TYPES_OF_KIND[repository.kind]
            ]
    facts = {**_repository_row(repository), "root": root}
    job_types = [
        {
            "job_type": str(row.job_type),
            "origin": row.origin,
            "watermark": row.watermark,
            "covered": [str(window) for window in row.covered],
            "head_rev": row.head_rev,
            "verified_at": row.verified_at,
            "access": access[repository.repo_id, str(row.job_type)]["state"],
            "access_detail": access[repository.repo_id, str(row.job_type)]["detail"],
        }
        for row in known
    ]
    if as_json:
        print_json({**facts, "job_types": job_types, "events": events})
        return
    print_facts({name: value for name, value in facts.items() if value not in (None, "")})
    say()
    print_rows([{**row, "covered": ", ".join(map(str, row["covered"]))} for row in job_types])
    if events:
        say()
        print_rows(events)


@app.command("retire")
def repo_retire(
    repo: RepoArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded with your name.")
    ],
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Stop syncing a repository. Its rows, assets and history stay."""
    from sync_pipeline.model import Lifecycle
    from sync_pipeline.operations import registration

    settings = read_settings()
    with open_database(settings) as database:
        repository = registration.find_repository(database, repo)
        active = repository.lifecycle is Lifecycle.ACTIVE
        if dry_run:
            result = "would_retire" if active else "already_retired"
        elif registration.retire_repository(database, repository.repo_id, reason=reason, actor=actor()):
            result = "retired"
            after_catalog_change(settings, database)
        else:
            result = "already_retired"
    if as_json:
        print_json({"spec": repository.spec, "repo_id": repository.repo_id, "result": result})
    else:
        words = {
            "would_retire": "would be retired",
            "retired": "is retired; its rows and assets stay",
            "already_retired": "was retired before",
        }
        say(f"{repository.spec} {words[result]}")


@app.command("relocate")
def repo_relocate(
    repo: RepoArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="The new address of the same SVN repository.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded with your name.")
    ],
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Give an SVN repository a new address. Its rows, assets and coverage stay."""
    from sync_pipeline.catalog import instance_of
    from sync_pipeline.operations import registration, relocation
    from sync_pipeline.sync.limiter import svn_limiter
    from sync_pipeline.sync.readers import svn_reader
    from sync_pipeline.sync.source import RevisionSource

    settings = read_settings()
    with open_database(settings) as database:

        def source_of(address: str, prefix: str) -> RevisionSource:
            limiter = svn_limiter(database, settings, instance_of(address))
            return svn_reader(settings, address, prefix, limiter=limiter)

        done = relocation.relocate_repository(
            database,
            settings,
            registration.find_repository(database, repo),
            url,
            reason=reason,
            actor=actor(),
            source_of=source_of,
            dry_run=dry_run,
        )
        if done.changed and not dry_run:
            after_catalog_change(settings, database)
    result = "already_there" if not done.changed else "would_relocate" if dry_run else "relocated"
    if as_json:
        print_json(
            {
                "repo_id": done.repository.repo_id,
                "result": result,
                "old_url": done.repository.url,
                "url": done.url,
                "svn_uuid": done.repository.svn_uuid,
                "head": done.head,
                "revisions_compared": done.compared,
            }
        )
        return
    words = {
        "already_there": "is there already",
        "would_relocate": "would be relocated",
        "relocated": "is relocated; its rows, assets and coverage stay",
    }
    compared = (
        f"{done.compared} stored revisions are the same" if done.compared else "no revision is stored yet"
    )
    say(f"repository {done.repository.repo_id} {words[result]}: {done.url}, HEAD r{done.head}, {compared}")
    if done.stays_replaced:
        say(
            "its state stays 'replaced' until all stored revisions are compared: "
            f"scm-sync runner incremental --repo {done.repository.repo_id}"
        )


def _repository_row(repository: Repository) -> dict[str, Any]:
    from sync_pipeline.catalog import web_url_of

    return {
        "repo_id": repository.repo_id,
        "spec": repository.spec,
        "kind": str(repository.kind),
        "instance": repository.instance,
        "tenant": repository.tenant,
        "slug": repository.slug,
        "asset_prefix": f"{repository.instance_slug}/{repository.slug}",
        "lifecycle": str(repository.lifecycle),
        "path": repository.project_path,
        "url": web_url_of(repository),
        "default_branch": repository.default_branch,
        "svn_uuid": repository.svn_uuid,
        "svn_root": repository.svn_root,
        "svn_prefix": repository.svn_prefix,
        "created_at": repository.created_at.isoformat(),
    }


@catalog_app.command("export")
def catalog_export(as_json: AsJson = False) -> None:
    """Write the snapshot file, from which Dagster loads. A fresh machine needs it first."""
    from sync_pipeline.operations.registration import export_catalog

    settings = read_settings()
    with open_database(settings) as database:
        snapshot = export_catalog(database, settings)
    if as_json:
        print_json(
            {
                "path": settings.catalog_file,
                "repositories": len(snapshot.repositories),
                "head_rev": snapshot.head_rev,
                "written_at": snapshot.written_at,
            }
        )
    else:
        from sync_pipeline.operations.formatting import counted

        count = counted(len(snapshot.repositories), "repository", "repositories")
        say(f"{count} written to {settings.catalog_file}")
