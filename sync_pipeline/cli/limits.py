"""``scm-sync admin limits``: the shared rate limits of the servers.

Belongs here: the commands, and how a limit looks to a person. Does not belong here: what they do
(:mod:`sync_pipeline.admin.limits`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import second

if TYPE_CHECKING:
    from sync_pipeline.core.documents.gates import Limit, LimitList

app = options.group(
    "How much is sent to each server, summed over all processes.",
    examples=(
        "scm-sync admin limits list",
        "scm-sync admin limits pause --instance git.test --for 30m --reason backup",
    ),
)

Server = Annotated[
    str, typer.Option("--instance", metavar="HOST", help="The server, with its port if not the default.")
]


@app.command("list")
def limits_list(instance: options.OfInstance = None, as_json: options.AsJson = False) -> int:
    """List the limits of the servers that were asked so far. It shows which are paused or lowered, which rate
    was found and why, and what people did to them lately."""
    from sync_pipeline.admin import limits

    with shared.settings_and_database() as (settings, database):
        document = limits.listing(database, settings, instance)
    return output.print_document(document, as_json, _print)


@app.command("pause")
def limits_pause(
    instance: Server,
    reason: options.Reason,
    length: options.PauseLength = None,
    until: options.PauseEnd = None,
    as_json: options.AsJson = False,
) -> int:
    """Send nothing to a server for a while. Runs that need it wait, or come back later by themselves."""
    from sync_pipeline.admin import limits

    moment = clock.now()
    seconds = options.seconds_of(length, until, moment)
    if seconds is None:
        raise ConfigurationError("say when the pause ends: either --for or --until")
    end = moment + timedelta(seconds=seconds)
    with shared.settings_and_database() as (settings, database):
        document = limits.pause(database, settings, instance, end, actor=shared.actor(), reason=reason)
    return output.print_document(document, as_json, _print)


@app.command("resume")
def limits_resume(instance: Server, reason: options.Reason, as_json: options.AsJson = False) -> int:
    """End every pause of a server, also one that it asked for itself."""
    from sync_pipeline.admin import limits

    with shared.settings_and_database() as (settings, database):
        document = limits.resume(database, settings, instance, actor=shared.actor(), reason=reason)
    return output.print_document(document, as_json, _print)


@app.command("reset")
def limits_reset(instance: Server, reason: options.Reason, as_json: options.AsJson = False) -> int:
    """End the pauses of a server and restore its full rate."""
    from sync_pipeline.admin import limits

    with shared.settings_and_database() as (settings, database):
        document = limits.reset(database, settings, instance, actor=shared.actor(), reason=reason)
    return output.print_document(document, as_json, _print)


def _print(document: LimitList) -> None:
    limits = document["limits"]
    output.print_rows([_row(one) for one in limits])
    if not limits:
        output.print_message("no server has been asked yet")
    for one in limits:
        whole = one["endpoint_class"] in ("all", "svn")
        if whole and not one["lowered"] and not one["rate_reason"] and one["rate"] != one["full_rate"]:
            output.print_message(
                f"{one['instance']}: the last request was sent at {one['rate']:g} a second, the settings of "
                f"this shell say {one['full_rate']:g}; each process applies those that it was started with"
            )
    # Beside the table, whose columns scripts read.
    for event in document["events"]:
        until = "" if event["until"] is None else f" until {second(event['until'])}"
        what = f"{event['instance']}: {event['action']}{until}"
        output.print_message(f"{second(event['created_at'])} {what} by {event['actor']}: {event['reason']}")


def _row(one: Limit) -> output.Row:
    state = "lowered" if one["lowered"] else "open"
    if not one["lowered"] and one["rate_reason"] and one["rate"] != one["full_rate"]:
        state = "found"
    if one["paused_until"] is not None:
        state = f"paused until {second(one['paused_until'])}"
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
        "at most": f"{one['max_rate']:g}",
        "reason of the rate": one["rate_reason"],
    }
