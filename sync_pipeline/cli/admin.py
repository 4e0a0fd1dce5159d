"""``scm-sync admin``: what a person looks after.

Belongs here: quarantine shown and retried, and the proofs over our own records. Does not belong here: what a
document says (:mod:`sync_pipeline.operations.quarantine`, :mod:`sync_pipeline.operations.verification`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    NAMES,
    AsJson,
    DryRun,
    actor,
    group,
    open_database,
    print_facts,
    print_json,
    print_message,
    print_raw,
    print_rows,
    read_settings,
    say,
    stopped_politely,
)

if TYPE_CHECKING:
    from sync_pipeline.operations.quarantine import Filter
    from sync_pipeline.store.database import Database

_LARGEST = 2**63 - 1

app = group(
    "Pauses, breakers, jobs, limits, quarantine and our own records.",
    examples=(
        "scm-sync admin pause --instance git.example.com --for 2h --reason upgrade",
        "scm-sync admin breakers",
        "scm-sync admin jobs list --status dead",
    ),
)
quarantine_app = group(
    "Rows of the sources that could not be stored.",
    examples=(
        "scm-sync admin quarantine list --repo gitlab:platform/api",
        "scm-sync admin quarantine retry 12 13 --reason 'proxy mended'",
    ),
)
app.add_typer(quarantine_app, name="quarantine")

OfRepo = Annotated[str | None, typer.Option("--repo", metavar="SPEC", help=f"Only of this one: {NAMES}")]
OfJob = Annotated[str | None, typer.Option("--job", metavar="TYPE", help="Only of this job type.")]
OfReason = Annotated[
    str | None, typer.Option("--reason", metavar="WORD", help="Only with this reason, such as unstorable.")
]


@app.command("verify")
def admin_verify(as_json: AsJson = False) -> int:
    """Prove that our own records agree with each other. These are coverage with its events and batches, runs
    with their batches, jobs with their runs, leases, refs, and the catalog with the assets. Exit code 2 if
    they do not."""
    from sync_pipeline.cli import reports
    from sync_pipeline.operations import verification

    settings = read_settings()
    with open_database(settings) as database:
        document = verification.verify(database, settings)
    if as_json:
        print_json(document)
    else:
        for proof in document["proofs"]:
            say(reports.proof_line(proof))
            print_rows(proof["rows"])
        for line in reports.open_lines(document):
            say(line)
    return int(document["exit_code"])


@quarantine_app.command("list")
def quarantine_list(
    repo: OfRepo = None,
    job: OfJob = None,
    reason: OfReason = None,
    resolved: Annotated[
        bool, typer.Option("--all", help="Also entries that have left quarantine, because they were stored.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The latest met, so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what could not be stored, the latest met first."""
    from sync_pipeline.operations import quarantine

    with open_database(read_settings()) as database:
        wanted = _filter(database, None, repo, job, reason, resolved=resolved)
        document = quarantine.listing(database, wanted, limit)
    if as_json:
        print_json(document)
        return
    entries: Sequence[Mapping[str, Any]] = document["entries"]
    columns: tuple[str, ...] = ("id", "repo", "job", "key", "reason", "seen", "last_seen_at", "detail")
    if resolved:
        columns = (*columns, "resolved_at")
    print_rows([{name: entry[name] for name in columns} for entry in entries])
    if not entries:
        print_message("nothing of it is in quarantine")
    elif len(entries) < document["total"]:
        print_message(f"{len(entries)} of {document['total']} entries are shown; see --limit")


@quarantine_app.command("show")
def quarantine_show(
    entry: Annotated[int, typer.Argument(metavar="ID", min=1, max=_LARGEST, help="Id of an entry.")],
    as_json: AsJson = False,
) -> None:
    """Show an entry with the row as it was received. What a terminal might obey is written out."""
    from sync_pipeline.operations import quarantine

    with open_database(read_settings()) as database:
        document = quarantine.shown(database, entry)
    if as_json:
        print_json(document)
        return
    payload = document.pop("payload")
    del document["payload_base64"]
    document["window"] = " to ".join(str(end) for end in (document["window"] or {}).values()) or None
    document["retry"] = document.pop("how")
    print_facts(document)
    print_raw(f"\n{payload}\n")


@quarantine_app.command("retry")
def quarantine_retry(
    entries: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID]...", min=1, max=_LARGEST, help="Entries by their ids."),
    ] = None,
    repo: OfRepo = None,
    job: OfJob = None,
    only_reason: Annotated[
        str | None, typer.Option("--only", metavar="WORD", help="Only entries with this reason.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why you retry; it is recorded with your name.")
    ] = "scm-sync admin quarantine retry",
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Ask the source again for these rows and store them. Name entries, or a repository for all of its
    entries. Exit code 0: none is left, 1: some are, 2: all are."""
    from sync_pipeline.errors import ConfigurationError
    from sync_pipeline.operations import quarantine
    from sync_pipeline.sync.engine import Syncer

    if not entries and repo is None:
        raise ConfigurationError("name entries by their ids, or a repository with --repo")
    settings = read_settings()
    with open_database(settings) as database:
        wanted = _filter(database, tuple(entries) if entries else None, repo, job, only_reason)
        if dry_run:
            document = quarantine.plan(database, wanted)
        else:
            with stopped_politely() as cancel:
                document = quarantine.retry(
                    database,
                    Syncer(database, settings),
                    wanted,
                    actor=actor(),
                    reason=reason,
                    cancel=cancel,
                )
    code = int(document["exit_code"])
    if as_json:
        print_json(document)
        return code
    told = (
        ("id", "repo", "job", "key", "how") if dry_run else ("id", "repo", "job", "key", "outcome", "detail")
    )
    print_rows([{name: one[name] for name in told} for one in document["entries"]])
    if not document["entries"]:
        say("nothing of it is in quarantine")
    for one in document["jobs"]:
        if not dry_run and one["error"]:
            print_message(f"{one['repo']} {one['job']}: {one['error']}", code)
    return code


def _filter(
    database: Database,
    ids: tuple[int, ...] | None,
    repo: str | None,
    job: str | None,
    reason: str | None,
    *,
    resolved: bool = False,
) -> Filter:
    from sync_pipeline.errors import ConfigurationError
    from sync_pipeline.model import JobType
    from sync_pipeline.operations.quarantine import Filter
    from sync_pipeline.operations.registration import find_repository

    try:
        job_type = None if job is None else JobType.parse(job)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    repository = None if repo is None else find_repository(database, repo)
    return Filter(ids, repository, job_type, reason, resolved)
