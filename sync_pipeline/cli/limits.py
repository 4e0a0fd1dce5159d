"""``scm-sync admin limits``: the shared rate limits of the servers.

Belongs here: the commands, and how a limit looks to a person. Does not belong here: what they do
(:mod:`sync_pipeline.operations.limits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    actor,
    group,
    now,
    open_database,
    print_json,
    print_message,
    print_rows,
    read_settings,
    seconds_of,
)

app = group(
    "How much is sent to each server, summed over all processes.",
    examples=(
        "scm-sync admin limits list",
        "scm-sync admin limits pause --instance git.test --for 30m --reason backup",
    ),
)

Of = Annotated[
    str, typer.Option("--instance", metavar="HOST", help="The server, with its port if not the default.")
]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept with your name.")]


@app.command("list")
def limits_list(
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="HOST", help="Only of this server.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the limits of the servers that were asked so far. It shows which are paused or lowered, and what
    people did to them lately."""
    from sync_pipeline.operations import limits

    settings = read_settings()
    with open_database(settings) as database:
        _show(limits.listing(database, settings, instance), as_json)


@app.command("pause")
def limits_pause(
    instance: Of,
    reason: Why,
    length: Annotated[
        str | None, typer.Option("--for", metavar="LENGTH", help="How long: 90s, 30m, 2h or 1d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Until when; UTC without a zone.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send nothing to a server for a while. Runs that need it wait, or come back later by themselves."""
    from sync_pipeline.operations import limits

    end = _end(length, until)
    settings = read_settings()
    with open_database(settings) as database:
        _show(limits.pause(database, settings, instance, end, actor=actor(), reason=reason), as_json)


@app.command("resume")
def limits_resume(instance: Of, reason: Why, as_json: AsJson = False) -> None:
    """End every pause of a server, also one that it asked for itself."""
    from sync_pipeline.operations import limits

    settings = read_settings()
    with open_database(settings) as database:
        _show(limits.resume(database, settings, instance, actor=actor(), reason=reason), as_json)


@app.command("reset")
def limits_reset(instance: Of, reason: Why, as_json: AsJson = False) -> None:
    """End the pauses of a server and restore its full rate."""
    from sync_pipeline.operations import limits

    settings = read_settings()
    with open_database(settings) as database:
        _show(limits.reset(database, settings, instance, actor=actor(), reason=reason), as_json)


def _end(length: str | None, until: str | None) -> datetime:
    """When a pause ends. Raises ConfigurationError."""
    from sync_pipeline.errors import ConfigurationError

    moment = now()
    seconds = seconds_of(length, until, moment)
    if seconds is None:
        raise ConfigurationError("say when the pause ends: either --for or --until")
    return moment + timedelta(seconds=seconds)


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    limits: Sequence[Mapping[str, Any]] = document["limits"]
    print_rows([_row(one) for one in limits])
    if not limits:
        print_message("no server has been asked yet")
    for one in limits:
        whole = one["endpoint_class"] in ("all", "svn")
        if whole and not one["lowered"] and one["rate"] != one["full_rate"]:
            print_message(
                f"{one['instance']}: the last request was sent at {one['rate']:g} a second, the settings of "
                f"this shell say {one['full_rate']:g}; each process applies those that it was started with"
            )
    # Beside the table, whose columns scripts read.
    for one in document["events"]:
        until = "" if one["until"] is None else f" until {_moment(one['until'])}"
        what = f"{one['instance']}: {one['action']}{until}"
        print_message(f"{_moment(one['created_at'])} {what} by {one['actor']}: {one['reason']}")


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}"


def _row(one: Mapping[str, Any]) -> dict[str, object]:
    state = "lowered" if one["lowered"] else "open"
    if one["paused"]:
        state = f"paused until {_moment(one['paused_until'])}"
    return {
        "instance": one["instance"],
        "requests": one["endpoint_class"],
        "state": state,
        "a second": f"{one['rate']:g}",
        "setting of this shell": f"{one['full_rate']:g}",
        "available": one["available"],
        "waiting": one["waiting"],
        "sent": one["sent"],
        "turned away": one["turned_away"],
        "refused": one["refused"],
        "reason": one["reason"],
    }
