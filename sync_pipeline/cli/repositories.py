"""``scm-sync repo`` and ``scm-sync catalog``: which repositories are synced.

Belongs here: registering, listing, showing and retiring single repositories, and the snapshot of all of them.
Does not belong here: the groups and memberships that register by themselves (:mod:`sync_pipeline.cli.roots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.errors import ConfigurationError, SyncError
from sync_pipeline.core.exit_codes import FAILED, PARTIAL, SUCCESS
from sync_pipeline.core.formatting import counted

if TYPE_CHECKING:
    from sync_pipeline.core.model import Repository
    from sync_pipeline.registry.projects import Estimate
    from sync_pipeline.registry.registration import Registered
    from sync_pipeline.registry.relocation import Relocated

app = options.group(
    "The catalog: which repositories are synced.",
    examples=(
        "scm-sync repo add --dry-run gitlab:platform/api",
        "scm-sync repo add svn:https://svn.example.com/repos/tools",
        "scm-sync repo list",
    ),
)
catalog_app = options.group(
    "The snapshot from which Dagster loads the catalog.",
    examples=("scm-sync catalog export",),
)


_RETIRED = {
    "would_retire": "would be retired",
    "retired": "is retired; its rows and assets stay",
    "already_retired": "was retired before",
}
_RELOCATED = {
    "already_there": "is there already",
    "would_relocate": "would be relocated",
    "relocated": "is relocated; its rows, assets and coverage stay",
}


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
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Register repositories. One that is registered already stays as it is."""
    from sync_pipeline.core.catalog import parse_spec
    from sync_pipeline.registry import registration

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
    documents: list[dict[str, Any]] = []
    added: list[Repository] = []
    failures: list[SyncError] = []
    with shared.settings_and_database() as (settings, database):
        for entry, result in registration.add_listed(
            database,
            settings,
            entries,
            actor=shared.actor(),
            reader_factory=shared.visitor_for(settings, database),
            dry_run=dry_run,
            second_copy=second_copy,
        ):
            if isinstance(result, SyncError):
                failures.append(result)
                documents.append({"spec": entry.text, "result": "failed", "error": str(result)})
                if len(entries) > 1:
                    output.print_message(f"{entry.text}: {result}")
                continue
            documents.append(_registered_document(result))
            added += [result.repository] if result.repository else []
            if not as_json:
                output.print_line(_registered_line(result))
        if as_json and not (len(entries) == 1 and failures):
            output.print_json(documents[0] if file is None and len(entries) == 1 else documents)
        if not dry_run and registration.snapshot_lacks(settings.catalog_file, added):
            shared.after_catalog_change(settings, database)
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
        **({"estimate": _estimate_document(takes)} if takes else {}),
    }


def _estimate_document(takes: Estimate) -> dict[str, Any]:
    hours = {name: round(getattr(takes, name), 4) for name in ("hours", "usable_hours")}
    return asdict(takes) | hours


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
    older = f"{counted(len(result.history), 'older block')} {queued}"
    if result.path is not None:
        windows = counted(len(result.history), "window")
        older = f"{windows} of older merge requests and reviews {queued}"
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
    counts = (("merge requests", takes.merge_requests), ("commits", takes.commits))
    rows = ", ".join(
        f"{things} not counted" if number is None else f"{number:,} {things}" for things, number in counts
    )
    usable = f"{takes.usable_requests:,} requests, {_time(takes.usable_hours)} until usable"
    return f"{rows}: about {usable}; {takes.requests:,} requests, {_time(takes.hours)} until complete"


def _time(hours: float) -> str:
    minutes = hours * 60
    if minutes < 2:
        return "less than 2 minutes"
    return f"{hours:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes"


@app.command("list")
def repo_list(
    everything: options.Retired = False,
    as_json: options.AsJson = False,
) -> int:
    """List the catalog."""
    from sync_pipeline.ledger import discovery, repos
    from sync_pipeline.reports.status import accesses

    with shared.settings_and_database() as (settings, database), database.connection() as conn:
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
    return output.print_document(rows, as_json, _print_list)


def _print_list(rows: Sequence[Mapping[str, Any]]) -> None:
    where = ["instance"] if len({row["instance"] for row in rows}) > 1 else []
    columns = ("repo_id", "spec", "path", *where, "tenant", "slug", "access", "root", "lifecycle")
    output.print_rows(
        [{**{name: row[name] for name in columns}, "access": _access(row["access"])} for row in rows]
    )
    if not rows:
        output.print_line("no repositories; add one: scm-sync repo add <spec>", error=True)


def _access(states: Mapping[str, str]) -> str:
    """The states of all job types in one word where they agree."""
    if len(set(states.values())) <= 1:
        return next(iter(states.values()), "")
    return ", ".join(f"{job_type} {state}" for job_type, state in states.items())


@app.command("show")
def repo_show(
    repo: options.RepoArgument,
    as_json: options.AsJson = False,
) -> int:
    """Show one repository and what of it is complete."""
    from sync_pipeline.core.job_types import JOB_TYPES_OF_KIND
    from sync_pipeline.ledger import discovery, repos, watermarks
    from sync_pipeline.registry.registration import find_repository
    from sync_pipeline.reports.status import accesses

    with shared.settings_and_database() as (settings, database):
        repository = find_repository(database, repo)
        with database.connection() as conn:
            access = accesses(conn, settings, [repository])
            root = discovery.roots_of_repositories(conn).get(repository.repo_id)
            events = repos.events(conn, repository.repo_id)
            known = [
                watermarks.get(conn, repository.repo_id, job_type)
                for job_type in JOB_TYPES_OF_KIND[repository.kind]
            ]
    document = {**_repository_row(repository), "root": root}
    document["job_types"] = [
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
    return output.print_document({**document, "events": events}, as_json, _print_repository)


def _print_repository(document: Mapping[str, Any]) -> None:
    facts = {name: value for name, value in document.items() if not isinstance(value, list)}
    output.print_facts({name: value for name, value in facts.items() if value not in (None, "")})
    output.print_line()
    output.print_rows([{**row, "covered": ", ".join(row["covered"])} for row in document["job_types"]])
    if document["events"]:
        output.print_line()
        output.print_rows(document["events"])


@app.command("retire")
def repo_retire(
    repo: options.RepoArgument,
    reason: options.Reason,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Stop syncing a repository. Its rows, assets and history stay."""
    from sync_pipeline.core.model import Lifecycle
    from sync_pipeline.registry import registration

    with shared.settings_and_database() as (settings, database):
        repository = registration.find_repository(database, repo)
        active = repository.lifecycle is Lifecycle.ACTIVE
        if dry_run:
            result = "would_retire" if active else "already_retired"
        elif registration.retire_repository(
            database, repository.repo_id, reason=reason, actor=shared.actor()
        ):
            result = "retired"
            shared.after_catalog_change(settings, database)
        else:
            result = "already_retired"
    document = {"spec": repository.spec, "repo_id": repository.repo_id, "result": result}
    line = f"{repository.spec} {_RETIRED[result]}"
    return output.print_document(document, as_json, lambda _: output.print_line(line))


@app.command("relocate")
def repo_relocate(
    repo: options.RepoArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="The new address of the same SVN repository.")],
    reason: options.Reason,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Give an SVN repository a new address. Its rows, assets and coverage stay."""
    from sync_pipeline.core.catalog import instance_of
    from sync_pipeline.registry import registration, relocation
    from sync_pipeline.sync.limiter import svn_limiter
    from sync_pipeline.sync.readers import svn_reader
    from sync_pipeline.sync.source import RevisionSource

    with shared.settings_and_database() as (settings, database):

        def source_of(address: str, prefix: str) -> RevisionSource:
            limiter = svn_limiter(database, settings, instance_of(address))
            return svn_reader(settings, address, prefix, limiter=limiter)

        done = relocation.relocate_repository(
            database,
            settings,
            registration.find_repository(database, repo),
            url,
            reason=reason,
            actor=shared.actor(),
            source_of=source_of,
            dry_run=dry_run,
        )
        if done.changed and not dry_run:
            shared.after_catalog_change(settings, database)
    result = "already_there" if not done.changed else "would_relocate" if dry_run else "relocated"
    document = {
        "repo_id": done.repository.repo_id,
        "result": result,
        "old_url": done.repository.url,
        "url": done.url,
        "svn_uuid": done.repository.svn_uuid,
        "head": done.head,
        "revisions_compared": done.compared,
    }
    return output.print_document(document, as_json, lambda _: _print_relocated(done, result))


def _print_relocated(done: Relocated, result: str) -> None:
    compared = (
        f"{done.compared} stored revisions are the same" if done.compared else "no revision is stored yet"
    )
    name = f"repository {done.repository.repo_id}"
    output.print_line(f"{name} {_RELOCATED[result]}: {done.url}, HEAD r{done.head}, {compared}")
    if done.stays_replaced:
        output.print_line(
            "its state stays 'replaced' until all stored revisions are compared: "
            f"scm-sync runner incremental --repo {done.repository.repo_id}"
        )


def _repository_row(repository: Repository) -> dict[str, Any]:
    from sync_pipeline.core.catalog import web_url_of

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
def catalog_export(as_json: options.AsJson = False) -> int:
    """Write the snapshot file, from which Dagster loads. A fresh machine needs it first."""
    from sync_pipeline.registry.registration import export_catalog

    with shared.settings_and_database() as (settings, database):
        snapshot = export_catalog(database, settings)
    document = {
        "path": settings.catalog_file,
        "repositories": len(snapshot.repositories),
        "head_rev": snapshot.head_rev,
        "written_at": snapshot.written_at,
    }
    count = counted(len(snapshot.repositories), "repository", "repositories")
    line = f"{count} written to {settings.catalog_file}"
    return output.print_document(document, as_json, lambda _: output.print_line(line))
