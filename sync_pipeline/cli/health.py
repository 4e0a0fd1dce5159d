"""``scm-sync health``: the probe of a container or supervisor.

Belongs here: the command and its exit codes. Does not belong here: the probes themselves
(:mod:`sync_pipeline.reports.liveness`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.exit_codes import FAILED, PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.core.documents.installation import Probe


def health_command(
    part: Annotated[
        str | None,
        options.word(
            "--for",
            ("scheduler", "worker", "reaper", "location"),
            "Whether this loop or code location of the pool of the settings lives; without it only "
            "whether the database answers and is migrated.",
            "scheduler|worker|reaper|location",
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            "--max-age",
            min=1,
            max=31_536_000,
            metavar="SECONDS",
            help="How old the latest tick may be; default: three ticks, and at least two minutes.",
        ),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget", metavar="NAME", help="Expect no tick of NAME any more: it is gone for good."
        ),
    ] = None,
    assets: Annotated[
        bool, typer.Option("--assets", help="Check every asset: exit code 1 if one is unhealthy.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Answer the probe of a container or supervisor. Exit code 0: alive, 1: silent or unhealthy, 2: the
    database is away or not migrated."""
    if assets:
        if part is not None or max_age is not None or forget is not None:
            raise ConfigurationError("--assets cannot be combined with --for, --max-age or --forget")
        return output.print_document(_check_assets(), as_json, _print_assets)
    if forget is not None:
        return _remove(forget)
    if part is None and max_age is not None:
        raise ConfigurationError("--max-age needs --for: say whose tick it is about")
    return output.print_document(_probe(part, max_age), as_json, _print_probe)


def _probe(part: Any, max_age: float | None) -> Probe:
    from sync_pipeline.reports.liveness import Part, probe

    settings = shared.read_settings()
    found = probe(settings, None if part is None else Part(part), max_age)
    return {
        "for": part,
        "pool": settings.worker.pool,
        "ready": found.ready,
        "alive": found.alive,
        "age_seconds": None if found.age is None else round(found.age, 3),
        "said": found.summary,
        "exit_code": FAILED if not found.ready else PARTIAL if found.alive is False else SUCCESS,
    }


def _print_probe(document: Probe) -> None:
    show = output.print_message if document["exit_code"] else output.print_line
    show(document["said"])


def _check_assets() -> dict[str, Any]:
    """The verdicts of ``scm-sync status`` as a probe: a line and a remedy for each that needs a person."""
    from sync_pipeline.reports.status import UNHEALTHY, status

    with shared.settings_and_database() as (settings, database):
        document = status(database, settings)
    unhealthy = [asset for asset in document["units"] if asset["verdict"] == UNHEALTHY]
    keys = ("spec", "path", "job_type", "verdict", "reasons", "remedies")
    return {
        "assets": document["summary"]["units"],
        "usable": sum("usable" in asset["reasons"] for asset in document["units"]),
        "unhealthy": [{key: asset[key] for key in keys} for asset in unhealthy],
        "exit_code": PARTIAL if unhealthy else SUCCESS,
    }


def _print_assets(document: Mapping[str, Any]) -> None:
    for asset in document["unhealthy"]:
        for reason, line in asset["reasons"].items():
            remedy = f"; {asset['remedies'][reason]}" if reason in asset["remedies"] else ""
            output.print_message(f"{asset['path']} {asset['job_type']}: {reason}: {line}{remedy}")
    if not document["unhealthy"]:
        usable = document["usable"]
        later = f"; usable, not complete yet: {usable:,}, see scm-sync status" if usable else ""
        output.print_line(f"no asset is unhealthy{later}")


def _remove(name: str) -> int:
    from sync_pipeline.ledger import heartbeats

    with shared.settings_and_database() as (_, database), database.connection() as conn:
        if not heartbeats.delete(conn, name):
            known = ", ".join(one.name for one in heartbeats.read(conn)) or "none"
            raise ConfigurationError(f"--forget: nothing of the name {name!r} ever ticked; there is: {known}")
    output.print_line(f"no tick of {name} is expected any more")
    return SUCCESS
