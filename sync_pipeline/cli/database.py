"""``scm-sync db``: the database as such.

Belongs here: its schema and the embedded server. Does not belong here: what
the rows mean.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from sync_pipeline.settings import Settings

app = options.group(
    "The database: its schema and the embedded server.",
    examples=(
        "scm-sync db migrate",
        "scm-sync db check",
    ),
)


@app.command("migrate")
def db_migrate(as_json: options.AsJson = False, dry_run: options.DryRun = False) -> None:
    """Bring the schema up to date."""
    from sync_pipeline.database import migrations

    settings, url = _settings_and_url()
    if dry_run:
        state = migrations.check(url, settings.environment)
        status = migrations.SchemaStatus
        if state.status not in (status.UP_TO_DATE, status.EMPTY, status.TOO_OLD):
            raise ConfigurationError(state.problem)
        names = list(state.pending)
    else:
        names = migrations.migrate(url, settings.environment)
    _print_migrations("would apply" if dry_run else "applied", names, as_json)


@app.command("check")
@app.command("status", help="The same as check.")
def db_check(as_json: options.AsJson = False) -> None:
    """Check that the schema is complete and fits this program. Exit code 3 if not.

    Prints the SQL that restores lost or changed indexes, constraints, triggers, functions and columns; psql
    can run it.
    """
    from sync_pipeline.database import migrations, objects
    from sync_pipeline.database.pool import Database

    settings, url = _settings_and_url()
    state = migrations.check(url, settings.environment)
    fits = state.status is migrations.SchemaStatus.UP_TO_DATE
    damages = []
    if fits:
        with Database(url, max_size=1) as database, database.connection() as conn:
            damages = objects.check(conn)
    if as_json:
        output.print_json(
            {
                "status": str(state.status),
                "problem": state.problem or None,
                "pending": state.pending,
                "unknown": state.unknown,
                "damages": [asdict(damage) for damage in damages],
            }
        )
    elif damages:
        for damage in damages:
            # For psql: the statements are those of our migrations, and keep their lines.
            output.print_raw(f"-- {damage.problem}\n{damage.statement}\n")
    elif fits:
        output.print_line("the schema is up to date, and every object is as migrated")
    if damages:
        shown = "; ".join(damage.problem for damage in damages[:3])
        more = f" and {len(damages) - 3} more" if len(damages) > 3 else ""
        raise ConfigurationError(f"{shown}{more}; check the printed statements, then run them with psql")
    if not fits:
        raise ConfigurationError(state.problem)


@app.command("rollback")
def db_rollback(
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many migrations to undo.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> None:
    """Undo the newest migrations, with their tables and rows."""
    from sync_pipeline.database import migrations

    settings, url = _settings_and_url()
    state = migrations.check(url, settings.environment)
    if state.status is migrations.SchemaStatus.WRONG_ENVIRONMENT:
        raise ConfigurationError(state.problem)
    names = list(reversed(state.applied))[:steps]
    if not dry_run:
        if names and not yes and sys.stdin.isatty():
            typer.confirm(f"Undo {', '.join(names)} and delete what is in its tables?", abort=True, err=True)
        names = migrations.rollback(url, steps)
    _print_migrations("would undo" if dry_run else "undid", names, as_json)


def _settings_and_url() -> tuple[Settings, str]:
    """The settings, and the URL of the database that they name; the embedded server is started."""
    from sync_pipeline.runtime import environment

    settings = shared.read_settings()
    return settings, environment.resolve_urls(settings).database_url


def _print_migrations(what: str, names: Sequence[str], as_json: bool) -> None:
    line = f"{what} {', '.join(names)}" if names else "nothing to do"
    document = {what.replace(" ", "_"): names}
    output.print_document(document, as_json, lambda _: output.print_line(line))


@app.command("start")
def db_start(as_json: options.AsJson = False) -> None:
    """Start the embedded server, unless it runs, and print its URL."""
    from sync_pipeline.runtime import environment

    url = environment.ensure_server(_embedded(shared.read_settings()))
    output.print_document({"database_url": url}, as_json, lambda _: output.print_line(url))


@app.command("stop")
def db_stop() -> None:
    """Stop the embedded server; its data stays."""
    from sync_pipeline.runtime import environment

    environment.stop_server(_embedded(shared.read_settings()))
    output.print_line("the embedded server is stopped")


def _embedded(settings: Settings) -> Path:
    from sync_pipeline.runtime import environment

    if settings.database_url not in ("", environment.embedded_url(settings.state_dir)):
        raise ConfigurationError(
            "SCM_DATABASE_URL names a server of yours; unset it to use the embedded one, or start yours"
        )
    return settings.state_dir
