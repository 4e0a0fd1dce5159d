"""``scm-sync admin pause``, ``resume``, ``pauses``, ``breakers`` and ``breaker-reset``.

Belongs here: how a person names a place and a length of time, and how pauses and breakers look. Does not
belong here: what they do (:mod:`sync_pipeline.operations.pauses`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from sync_pipeline.cli.reports import place_of
from sync_pipeline.cli.shared import (
    NAMES,
    AsJson,
    actor,
    now,
    open_database,
    print_json,
    print_rows,
    read_settings,
    say,
    seconds_of,
)
from sync_pipeline.errors import ConfigurationError

Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with it.")]


def pause_command(
    reason: Why,
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="HOST", help="Everything at this server.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Everything of this tenant.")
    ] = None,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="SPEC", help=f"This repository: {NAMES}")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    job: Annotated[
        str | None, typer.Option("--job", metavar="TYPE", help="Only this job type of it.")
    ] = None,
    length: Annotated[
        str | None,
        typer.Option("--for", metavar="LENGTH", help="How long, such as 90s, 30m, 2h or 3d."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Until when, such as 2026-01-31T18:00Z."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pause a server, a tenant, a repository, or everything. Nothing new is started or claimed there; what is
    under way ends in its own time. Without --for and --until it holds until it is resumed."""
    from sync_pipeline.model import JobType
    from sync_pipeline.operations import pauses

    if sum((instance is not None, tenant is not None, repo is not None, everything)) != 1:
        raise ConfigurationError("give one of --instance, --tenant, --repo and --all")
    try:
        job_type = None if job is None else JobType.parse(job)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    place = pauses.Place(instance, tenant, repo, job_type)
    seconds = seconds_of(length, until, now())
    with open_database(read_settings()) as database:
        made = pauses.pause(database, place, seconds=seconds, actor=actor(), reason=reason)
    if as_json:
        print_json(made)
        return
    end = f"until {made['until']:%Y-%m-%d %H:%M:%S} UTC" if made["until"] else "until it is resumed"
    say(f"pause {made['id']}: {place_of(made)} is paused {end}")


def resume_command(
    pause: Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="Number of a pause.")],
    as_json: AsJson = False,
) -> None:
    """End a pause."""
    from sync_pipeline.operations import pauses

    with open_database(read_settings()) as database:
        pauses.resume(database, pause, actor=actor())
    if as_json:
        print_json({"id": pause, "ended": True})
    else:
        say(f"pause {pause} has ended")


def pauses_command(as_json: AsJson = False) -> None:
    """List what is paused."""
    from sync_pipeline.operations import pauses

    with open_database(read_settings()) as database:
        document = pauses.listing(database)
    if as_json:
        print_json(document)
        return
    print_rows(
        [
            {
                "id": one["id"],
                "paused": place_of(one),
                "until": one["until"] and f"{one['until']:%Y-%m-%d %H:%M:%S}",
                "since": f"{one['since']:%Y-%m-%d %H:%M:%S}",
                "by": one["actor"],
                "reason": one["reason"],
            }
            for one in document["pauses"]
        ]
    )
    if not document["pauses"]:
        say("nothing is paused")


def breakers_command(as_json: AsJson = False) -> None:
    """List the circuit breakers, their rates and last changes."""
    from sync_pipeline.operations import pauses

    settings = read_settings()
    with open_database(settings) as database:
        document = pauses.breaker_listing(database, settings)
    if as_json:
        print_json(document)
        return
    if not document["enabled"]:
        say("circuit breakers are switched off (cb_enabled is false): none of them holds anything back")
    opens_at = document["opens_at"]
    print_rows(
        [
            {
                "scope": one["scope"],
                "key": one["key"],
                "state": one["state"],
                "since": f"{one['since']:%Y-%m-%d %H:%M:%S}" if one["since"].year > 1970 else None,
                "failures": f"{one['failure_rate']:.0%}, opens at {opens_at['failure_rate']:.0%}",
                "rate limits": f"{one['rate_limit_rate']:.0%}, opens at {opens_at['rate_limit_rate']:.0%}",
                "time-outs": f"{one['timeout_rate']:.0%}, opens at {opens_at['timeout_rate']:.0%}",
                "runs": f"{one['runs']}, judged from {opens_at['runs']}",
                "reason": pauses.with_errors(one["reason"], one["errors"]),
            }
            for one in document["breakers"]
        ]
    )
    if not document["breakers"]:
        say("no breaker has been evaluated yet; all are closed")
    for event in document["events"]:
        say(
            f"{event['created_at']:%Y-%m-%d %H:%M:%S} {event['scope']} {event['key']}: "
            f"{event['old_state']} -> {event['new_state']} ({event['actor']}: {event['reason']})"
        )


def breaker_reset_command(
    reason: Why,
    scope: Annotated[str, typer.Option("--scope", metavar="SCOPE", help="global, instance, tenant or pool.")],
    key: Annotated[
        str, typer.Option("--key", metavar="NAME", help="The server, tenant or pool; nothing for global.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Close a breaker without waiting for its probes. One that is closed stays as it is. To keep something
    stopped, pause it: a pause has an end of its own, a breaker decides for itself."""
    from sync_pipeline.operations import pauses

    with open_database(read_settings()) as database:
        before = pauses.reset_breaker(database, scope, key, actor=actor(), reason=reason)
    if as_json:
        print_json({"scope": scope, "key": key, "state": "closed", "before": before})
    elif before == "closed":
        say(f"breaker {scope} {key}".rstrip() + " is closed already; nothing was changed")
    else:
        say(f"breaker {scope} {key}".rstrip() + f" is closed; it was {before}")
