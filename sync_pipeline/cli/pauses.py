"""``scm-sync admin pause``, ``resume``, ``pauses``, ``breakers`` and ``breaker-reset``.

Belongs here: how a person names the subject and the length of a pause, and how pauses and breakers look. Does
not belong here: what they do (:mod:`sync_pipeline.admin.pauses`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.cli.reports import pause_subject
from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import second

if TYPE_CHECKING:
    from sync_pipeline.core.documents.gates import BreakerList, Pause, PauseList


def pause_command(
    reason: options.Reason,
    instance: options.OfInstance = None,
    tenant: options.OfTenant = None,
    repo: options.OfRepo = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    job: options.OfJob = None,
    length: options.PauseLength = None,
    until: options.PauseEnd = None,
    as_json: options.AsJson = False,
) -> int:
    """Pause a server, a tenant, a repository, or everything. Nothing new is started or claimed there; what is
    under way ends in its own time. Without --for and --until it holds until it is resumed."""
    from sync_pipeline.admin import pauses

    if sum((instance is not None, tenant is not None, repo is not None, everything)) != 1:
        raise ConfigurationError("give one of --instance, --tenant, --repo and --all")
    target = pauses.PauseTarget(instance, tenant, repo, job)
    seconds = options.seconds_of(length, until, clock.now())
    with shared.settings_and_database() as (_, database):
        document = pauses.pause(database, target, seconds=seconds, actor=shared.actor(), reason=reason)
    return output.print_document(document, as_json, _print_pause)


def _print_pause(document: Pause) -> None:
    end = f"until {second(document['until'])} UTC" if document["until"] else "until it is resumed"
    output.print_line(f"pause {document['id']}: {pause_subject(document)} is paused {end}")


def resume_command(
    pause: Annotated[int, typer.Argument(metavar="ID", min=1, max=options.MAX_ID, help="Number of a pause.")],
    as_json: options.AsJson = False,
) -> int:
    """End a pause."""
    from sync_pipeline.admin import pauses

    with shared.settings_and_database() as (_, database):
        pauses.resume(database, pause, actor=shared.actor())
    return output.print_document(
        {"id": pause, "ended": True}, as_json, lambda _: output.print_line(f"pause {pause} has ended")
    )


def pauses_command(as_json: options.AsJson = False) -> int:
    """List what is paused."""
    from sync_pipeline.admin import pauses

    with shared.settings_and_database() as (_, database):
        document = pauses.listing(database)
    return output.print_document(document, as_json, _print_pauses)


def _print_pauses(document: PauseList) -> None:
    output.print_rows(
        [
            {
                "id": one["id"],
                "paused": pause_subject(one),
                "until": one["until"] and second(one["until"]),
                "since": second(one["since"]),
                "by": one["actor"],
                "reason": one["reason"],
            }
            for one in document["pauses"]
        ]
    )
    if not document["pauses"]:
        output.print_line("nothing is paused")


def breakers_command(as_json: options.AsJson = False) -> int:
    """List the circuit breakers, their rates and last changes."""
    from sync_pipeline.admin import pauses

    with shared.settings_and_database() as (settings, database):
        document = pauses.breaker_listing(database, settings)
    return output.print_document(document, as_json, _print_breakers)


def _print_breakers(document: BreakerList) -> None:
    from sync_pipeline.admin import pauses

    if not document["enabled"]:
        output.print_line("circuit breakers are switched off (cb_enabled is false): they hold nothing back")
    opens_at = document["opens_at"]
    output.print_rows(
        [
            {
                "scope": one["scope"],
                "key": one["key"],
                "state": one["state"],
                "since": since if (since := second(one["since"])) > "1971" else None,
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
        output.print_line("no breaker has been evaluated yet; all are closed")
    for event in document["events"]:
        output.print_line(
            f"{second(event['created_at'])} {event['scope']} {event['key']}: "
            f"{event['old_state']} -> {event['new_state']} ({event['actor']}: {event['reason']})"
        )


def breaker_reset_command(
    reason: options.Reason,
    scope: Annotated[str, typer.Option("--scope", metavar="SCOPE", help="global, instance, tenant or pool.")],
    key: Annotated[
        str, typer.Option("--key", metavar="NAME", help="The server, tenant or pool; nothing for global.")
    ] = "",
    as_json: options.AsJson = False,
) -> int:
    """Close a breaker without waiting for its probes. One that is closed stays as it is. To keep something
    stopped, pause it: a pause has an end of its own, a breaker decides for itself."""
    from sync_pipeline.admin import pauses

    with shared.settings_and_database() as (_, database):
        before = pauses.reset_breaker(database, scope, key, actor=shared.actor(), reason=reason)
    name = f"breaker {scope} {key}".rstrip()
    line = f"{name} is closed; it was {before}"
    if before == "closed":
        line = f"{name} is closed already; nothing was changed"
    document = {"scope": scope, "key": key, "state": "closed", "before": before}
    return output.print_document(document, as_json, lambda _: output.print_line(line))
