"""``scm-sync admin``: what a person looks after.

Belongs here: quarantine shown and retried, and the proofs over our own records. Does not belong here: what a
document says (:mod:`sync_pipeline.admin.quarantine`, :mod:`sync_pipeline.admin.verification`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from sync_pipeline.admin.quarantine import Filter
    from sync_pipeline.database.pool import Database

app = options.group(
    "Pauses, breakers, jobs, limits, quarantine and our own records.",
    examples=(
        "scm-sync admin pause --instance git.example.com --for 2h --reason upgrade",
        "scm-sync admin breakers",
        "scm-sync admin jobs list --status dead",
    ),
)
quarantine_app = options.group(
    "Rows of the sources that could not be stored.",
    examples=(
        "scm-sync admin quarantine list --repo gitlab:platform/api",
        "scm-sync admin quarantine retry 12 13 --reason 'proxy mended'",
    ),
)
app.add_typer(quarantine_app, name="quarantine")


@app.command("verify")
def admin_verify(as_json: options.AsJson = False) -> int:
    """Prove that our own records agree with each other. These are coverage with its events and batches, runs
    with their batches, jobs with their runs, leases, refs, and the catalog with the assets. Exit code 2 if
    they do not."""
    from sync_pipeline.admin import verification

    with shared.settings_and_database() as (settings, database):
        document = verification.verify(database, settings)
    return output.print_document(document, as_json, _print_verification)


def _print_verification(document: Mapping[str, Any]) -> None:
    from sync_pipeline.cli import reports

    for proof in document["proofs"]:
        output.print_line(reports.proof_line(proof))
        output.print_rows(proof["rows"])
    for line in reports.open_lines(document):
        output.print_line(line)


@quarantine_app.command("list")
def quarantine_list(
    repo: options.OfRepo = None,
    job: options.OfJob = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="WORD", help="Only with this reason, such as unstorable."),
    ] = None,
    resolved: Annotated[
        bool, typer.Option("--all", help="Also entries that have left quarantine, because they were stored.")
    ] = False,
    limit: Annotated[int, options.limit("The latest met, so many.")] = 50,
    as_json: options.AsJson = False,
) -> int:
    """List what could not be stored, the latest met first."""
    from sync_pipeline.admin import quarantine

    with shared.settings_and_database() as (_, database):
        wanted = _filter(database, repo, job_type=job, reason=reason, resolved=resolved)
        document = quarantine.listing(database, wanted, limit)
    return output.print_document(document, as_json, lambda found: _print_entries(found, resolved))


def _print_entries(document: Mapping[str, Any], resolved: bool) -> None:
    entries = document["entries"]
    columns = ["id", "repo", "job", "key", "reason", "seen", "last_seen_at", "detail"]
    columns += ["resolved_at"] if resolved else []
    output.print_rows([{name: entry[name] for name in columns} for entry in entries])
    if not entries:
        output.print_message("no matching row is in quarantine")
    elif len(entries) < document["total"]:
        output.print_message(f"{len(entries)} of {document['total']} entries are shown; see --limit")


@quarantine_app.command("show")
def quarantine_show(
    entry: Annotated[int, typer.Argument(metavar="ID", min=1, max=options.MAX_ID, help="Id of an entry.")],
    as_json: options.AsJson = False,
) -> int:
    """Show an entry with the row as it was received. Characters that a terminal might obey are escaped."""
    from sync_pipeline.admin import quarantine

    with shared.settings_and_database() as (_, database):
        document = quarantine.shown(database, entry)
    return output.print_document(document, as_json, _print_entry)


def _print_entry(document: Mapping[str, Any]) -> None:
    apart = ("payload", "payload_base64", "how")
    facts = {name: value for name, value in document.items() if name not in apart}
    facts["window"] = " to ".join(str(end) for end in (document["window"] or {}).values()) or None
    output.print_facts({**facts, "retry": document["how"]})
    output.print_raw(f"\n{document['payload']}\n")


@quarantine_app.command("retry")
def quarantine_retry(
    entries: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID", min=1, max=options.MAX_ID, help="Entries by their ids."),
    ] = None,
    repo: options.OfRepo = None,
    job: options.OfJob = None,
    only_reason: Annotated[
        str | None, typer.Option("--only", metavar="WORD", help="Only entries with this reason.")
    ] = None,
    reason: options.Reason = "scm-sync admin quarantine retry",
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Ask the source again for these rows and store them. Name entries, or a repository for all of its
    entries. Exit code 0: none is left, 1: some are, 2: all are."""
    from sync_pipeline.admin import quarantine
    from sync_pipeline.sync.engine import Syncer

    if not entries and repo is None:
        raise ConfigurationError("name entries by their ids, or a repository with --repo")
    with shared.settings_and_database() as (settings, database):
        ids = tuple(entries) if entries else None
        wanted = _filter(database, repo, ids=ids, job_type=job, reason=only_reason)
        if dry_run:
            document = quarantine.plan(database, wanted)
        else:
            with shared.stopped_politely() as cancel:
                syncer = Syncer(database, settings)
                document = quarantine.retry(
                    database, syncer, wanted, actor=shared.actor(), reason=reason, cancel=cancel
                )
    return output.print_document(document, as_json, _print_retry)


def _print_retry(document: Mapping[str, Any]) -> None:
    columns = ("id", "repo", "job", "key", *(("how",) if document["dry_run"] else ("outcome", "detail")))
    output.print_rows([{name: one[name] for name in columns} for one in document["entries"]])
    if not document["entries"]:
        output.print_line("no matching row is in quarantine")
    for one in document["jobs"]:
        if one.get("error"):
            output.print_message(f"{one['repo']} {one['job']}: {one['error']}")


def _filter(database: Database, repo: str | None, **wanted: Any) -> Filter:
    from sync_pipeline.admin.quarantine import Filter
    from sync_pipeline.registry.registration import find_repository

    return Filter(repository=None if repo is None else find_repository(database, repo), **wanted)
