"""``scm-sync health``: the probe of a container or supervisor.

Belongs here: the command and its exit codes. What is looked at is in
:mod:`sync_pipeline.operations.liveness`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli.shared import AsJson, open_database, print_json, print_message, read_settings, say
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.exit_codes import FAILED, PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.settings import Settings


def health_command(
    part: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="scheduler|worker|reaper|location",
            help="Whether this loop or code location of the pool of the settings lives; without it only "
            "whether the database answers and is migrated.",
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
        bool,
        typer.Option("--assets", help="Check every asset: exit code 1 if one is unhealthy."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Answer the probe of a container or supervisor. Exit code 0: alive, 1: silent or unhealthy, 2: the
    database is away or not migrated."""
    from sync_pipeline.operations.liveness import Part, look

    settings = read_settings()
    if assets:
        if part is not None or max_age is not None or forget is not None:
            raise ConfigurationError("--assets cannot be combined with --for, --max-age or --forget")
        return _judge_assets(settings, as_json)
    if forget is not None:
        return _forget(forget)
    try:
        asked = None if part is None else Part(part)
    except ValueError:
        raise ConfigurationError(f"--for: {part!r} is none of {', '.join(Part)}") from None
    if asked is None and max_age is not None:
        raise ConfigurationError("--max-age needs --for: say whose tick it is about")
    found = look(settings, asked, max_age)
    code = FAILED if not found.ready else PARTIAL if found.alive is False else SUCCESS
    if as_json:
        print_json(
            {
                "for": part,
                "pool": settings.worker.pool,
                "ready": found.ready,
                "alive": found.alive,
                "age_seconds": None if found.age is None else round(found.age, 3),
                "said": found.summary,
                "exit_code": code,
            }
        )
    elif code:
        print_message(found.summary)
    else:
        say(found.summary)
    return code


def _judge_assets(settings: Settings, as_json: bool) -> int:
    """The verdicts of ``scm-sync status`` as a probe: a line and a remedy for each that needs a person."""
    from sync_pipeline.operations.status import UNHEALTHY, status

    with open_database(settings) as database:
        document = status(database, settings)
    unhealthy = [asset for asset in document["units"] if asset["verdict"] == UNHEALTHY]
    code = PARTIAL if unhealthy else SUCCESS
    if as_json:
        keys = ("spec", "path", "job_type", "verdict", "reasons", "remedies")
        print_json(
            {
                "assets": document["summary"]["units"],
                "unhealthy": [{key: asset[key] for key in keys} for asset in unhealthy],
                "exit_code": code,
            }
        )
        return code
    for asset in unhealthy:
        for reason, line in asset["reasons"].items():
            help_text = f"; {asset['remedies'][reason]}" if reason in asset["remedies"] else ""
            print_message(f"{asset['path']} {asset['job_type']}: {reason}: {line}{help_text}")
    if not unhealthy:
        say("no asset is unhealthy")
    return code


def _forget(name: str) -> int:
    from sync_pipeline.store import heartbeats

    with open_database(read_settings()) as database, database.connection() as conn:
        if not heartbeats.forget(conn, name):
            known = ", ".join(one.name for one in heartbeats.read(conn)) or "none"
            raise ConfigurationError(f"--forget: nothing of the name {name!r} ever ticked; there is: {known}")
    say(f"no tick of {name} is expected any more")
    return SUCCESS
