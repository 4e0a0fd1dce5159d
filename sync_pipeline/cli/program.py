"""``scm-sync``: the command line.

Belongs here: commands and options, how results are printed, exit codes, and one clear line for every error.
Does not belong here: what a command does; each calls one or two functions of ``operations`` or
``orchestration``. They are imported inside the commands, so that ``--help`` answers at once.

Exit codes: 0 all well, 1 partly failed, 2 failed, 3 configuration or usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import getpass
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline import __version__
from sync_pipeline.errors import Cancelled, ConfigurationError, SyncError

if TYPE_CHECKING:
    from sync_pipeline.model import Counts, JobReport, JobType, Repository, Window
    from sync_pipeline.operations.discovery import AddedRoot, Discovered
    from sync_pipeline.operations.doctor import DagsterChecks, Finding
    from sync_pipeline.operations.projects import Estimate
    from sync_pipeline.operations.registration import ReaderFactory, Registered, Visitor
    from sync_pipeline.operations.runner import Bounds
    from sync_pipeline.settings import Settings
    from sync_pipeline.store.database import Database
    from sync_pipeline.store.discovery import Root

SUCCESS, PARTIAL, FAILED, CONFIGURATION, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 3, 130, 141

Row = Mapping[str, object]


def _group(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        no_args_is_help=False,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


app = _group("A complete, provable copy of source-control activity in PostgreSQL.")
db_app = _group("The database: its schema and the embedded server.")
repo_app = _group("The catalog: which repositories are synced.")
root_app = _group("Groups and memberships whose projects enter the catalog by themselves.")
catalog_app = _group("The snapshot from which Dagster loads the catalog.")
watermark_app = _group("What counts as complete, and a person's decisions about it.")
runner_app = _group("Sync one repository now, in this process.")
repair_app = _group("Mend what is stored.")
app.add_typer(db_app, name="db")
app.add_typer(repo_app, name="repo")
app.add_typer(root_app, name="root")
app.add_typer(catalog_app, name="catalog")
app.add_typer(watermark_app, name="watermark")
app.add_typer(runner_app, name="runner")
app.add_typer(repair_app, name="repair")

_NAMES = "svn:<url>, gitlab:<id, path or url>, a repo_id or a slug."
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")]
Repo = Annotated[str, typer.Option("--repo", metavar="SPEC", help=_NAMES)]
Job = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="TYPE",
        help="Job type; default: all of the repository, where one is needed the first.",
    ),
]


# The program --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for the life of the process)
    # Whoever ends us politely gets what Ctrl-C gets: a stop between two batches and the job given back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Of all logs only our own warnings belong between our lines.
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("sync_pipeline").addHandler(_Warnings(logging.WARNING))
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_closed()
    except OSError as error:
        code = _complain(f"the output cannot be written: {error.strerror}", FAILED)
        _pipe_closed()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error is one line on stderr."""
    command = typer.main.get_command(app)
    try:
        # Not through the command's own main(), which has its own mind about interruptions and closed pipes.
        with command.make_context("scm-sync", list(arguments)) as context:
            return int(command.invoke(context) or SUCCESS)
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        return _pipe_closed()
    except Exception as error:
        return _explain(error)
    except KeyboardInterrupt:
        return _complain("interrupted; what was committed stays", INTERRUPTED)


class _Warnings(logging.Handler):
    """Warnings of our modules, each as one line without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        _complain(f"{record.levelname.lower()}: {record.getMessage()}", SUCCESS)


def _explain(error: Exception) -> int:
    if os.environ.get("SCM_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    if isinstance(error, Cancelled):
        return _complain(str(error), INTERRUPTED)
    if isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC:
        return _complain("the output cannot be written: no space left on device", FAILED)
    if isinstance(error, SyncError):
        return _complain(str(error), CONFIGURATION if isinstance(error, ConfigurationError) else FAILED)
    if isinstance(error, typer.Abort):
        return _complain("interrupted; nothing was changed", INTERRUPTED)
    # Usage errors of the option parser have a message for people; their class moved between its versions.
    if callable(format_message := getattr(error, "format_message", None)):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "scm-sync"
        return _complain(f"{format_message().rstrip('.')}; see: {command} --help", CONFIGURATION)
    return _complain(
        f"unexpected {type(error).__name__}: {error}; run scm-sync --debug for the traceback", FAILED
    )


def _complain(message: str, code: int) -> int:
    """One line on stderr, without what may be a password in a URL."""
    line = re.sub(r"(://[^\s/:@]*):[^\s/@]*@", r"\1:***@", " ".join(message.split()))
    with suppress(BrokenPipeError):
        print(f"scm-sync: {line}", file=sys.stderr)
    return code


def _pipe_closed() -> int:
    """The reader of our output went away, as ``head`` does; the exit code is that of SIGPIPE."""
    # The interpreter would complain when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"scm-sync {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a setting for this command; may be repeated."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["SCM_DEBUG"] = "1"
    for assignment in assignments or []:
        name, separator, value = assignment.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not separator or not re.fullmatch(r"[a-z0-9_]+", name):
            raise ConfigurationError("--set: write NAME=VALUE, such as --set chunk_revisions=500")
        from sync_pipeline.settings import SECRETS, Settings

        if name not in Settings.model_fields:
            near = get_close_matches(name.removeprefix("scm_"), Settings.model_fields, 1)
            hint = f"did you mean {near[0]}?" if near else "see docs/settings.md"
            raise ConfigurationError(f"--set {name}: there is no such setting; {hint}")
        if name in SECRETS:
            raise ConfigurationError(
                f"--set {name}: a command line is seen by everybody; use the environment or the file"
            )
        # Through the environment it also reaches the processes that this command starts.
        os.environ[f"SCM_{name.upper()}"] = value


# What commands share ------------------------------------------------------------------------------------


def _settings() -> Settings:
    from sync_pipeline.settings import load_settings

    return load_settings()


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    """The migrated database that the settings name; the embedded one is started."""
    from sync_pipeline.operations import environment
    from sync_pipeline.store import migrations
    from sync_pipeline.store.database import Database

    url = environment.resolve_urls(settings).database_url
    migrations.require(url, settings.environment)
    with Database(url) as database:
        yield database


def _visitor(settings: Settings) -> ReaderFactory:
    def visitor(url: str) -> Visitor:
        from sync_pipeline.sync.readers import svn_reader

        return svn_reader(settings, url)

    return visitor


def _actor() -> str:
    """Who runs the command, for the ledger: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, default=str, ensure_ascii=False))


def _print_rows(rows: Sequence[Row]) -> None:
    """A table on a terminal; elsewhere plain lines, columns parted by tabs, with a header."""
    if not rows:
        return
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    if not sys.stdout.isatty():
        for line in [list(rows[0]), *cells]:
            print("\t".join(re.sub(r"\s", " ", cell) for cell in line))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*rows[0])
    for line in cells:
        table.add_row(*map(Text, line))
    Console().print(table)


def _print_facts(facts: Row) -> None:
    """One fact a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {'' if value is None else value}")


# env ----------------------------------------------------------------------------------------------------


@app.command("env")
def env_command(as_json: AsJson = False) -> None:
    """Print what a shell needs: eval "$(scm-sync env)"."""
    from sync_pipeline.operations import environment

    variables = environment.environment_variables(_settings())
    if as_json:
        _print_json(variables)
    else:
        print(environment.shell_exports(variables), end="")


# db -----------------------------------------------------------------------------------------------------


@db_app.command("migrate")
def db_migrate(as_json: AsJson = False, dry_run: DryRun = False) -> None:
    """Bring the schema up to date."""
    from sync_pipeline.operations import environment
    from sync_pipeline.store import migrations

    settings = _settings()
    url = environment.resolve_urls(settings).database_url
    if dry_run:
        state = migrations.check(url, settings.environment)
        if state.status in (migrations.SchemaStatus.TOO_NEW, migrations.SchemaStatus.WRONG_ENVIRONMENT):
            raise ConfigurationError(state.problem)
        names = list(state.pending)
    else:
        names = migrations.migrate(url, settings.environment)
    _print_migrations("would apply" if dry_run else "applied", names, as_json)


@db_app.command("check")
def db_check(as_json: AsJson = False) -> None:
    """Say whether the schema fits this program; exit code 3 if not."""
    from sync_pipeline.operations import environment
    from sync_pipeline.store import migrations

    settings = _settings()
    state = migrations.check(environment.resolve_urls(settings).database_url, settings.environment)
    fits = state.status is migrations.SchemaStatus.UP_TO_DATE
    if as_json:
        _print_json(
            {
                "status": str(state.status),
                "problem": state.problem or None,
                "pending": state.pending,
                "unknown": state.unknown,
            }
        )
    elif fits:
        print("the schema is up to date")
    if not fits:
        raise ConfigurationError(state.problem)


@db_app.command("verify")
def db_verify(as_json: AsJson = False) -> int:
    """Prove that the records agree with each other: coverage with its events, runs with their batches,
    revisions with their paths; exit code 2 if not."""
    from sync_pipeline.store import proofs

    with _database(_settings()) as database, database.connection() as conn:
        found = proofs.failures(conn)
    if as_json:
        _print_json({"passed": not found, "proofs": proofs.names(), "failures": found})
    else:
        for name in proofs.names():
            print(f"{name}: {f'{len(found[name])} rows disagree' if name in found else 'all is well'}")
            _print_rows(found.get(name, [])[:20])
    return FAILED if found else SUCCESS


@db_app.command("rollback")
def db_rollback(
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many migrations to undo.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Undo the newest migrations; their tables and rows are gone afterwards."""
    from sync_pipeline.operations import environment
    from sync_pipeline.store import migrations

    settings = _settings()
    url = environment.resolve_urls(settings).database_url
    state = migrations.check(url, settings.environment)
    if state.status is migrations.SchemaStatus.WRONG_ENVIRONMENT:
        raise ConfigurationError(state.problem)
    names = list(reversed(state.applied))[:steps]
    if not dry_run:
        if names and not yes and sys.stdin.isatty():
            typer.confirm(f"Undo {', '.join(names)} and delete what is in its tables?", abort=True, err=True)
        names = migrations.rollback(url, steps)
    _print_migrations("would undo" if dry_run else "undid", names, as_json)


def _print_migrations(what: str, names: Sequence[str], as_json: bool) -> None:
    if as_json:
        _print_json({what.replace(" ", "_"): names})
    else:
        print(f"{what} {', '.join(names)}" if names else "nothing to do")


@db_app.command("start")
def db_start(as_json: AsJson = False) -> None:
    """Start the embedded server, unless it runs, and print its URL."""
    from sync_pipeline.operations import environment

    url = environment.ensure_server(_embedded(_settings()))
    if as_json:
        _print_json({"database_url": url})
    else:
        print(url)


@db_app.command("stop")
def db_stop() -> None:
    """Stop the embedded server; its data stays."""
    from sync_pipeline.operations import environment

    environment.stop_server(_embedded(_settings()))


def _embedded(settings: Settings) -> Path:
    from sync_pipeline.operations import environment

    if settings.database_url not in ("", environment.embedded_url(settings.state_dir)):
        raise ConfigurationError(
            "SCM_DATABASE_URL names a server of yours; unset it to use the embedded one, or start yours"
        )
    return settings.state_dir


# repo ---------------------------------------------------------------------------------------------------


@repo_app.command("add")
def repo_add(
    specs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC]...", help="svn:<url> or gitlab:<id, path or url>", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="A repos.toml; see repos.example.toml.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Owner; default: first segment of the path.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Register repositories; one that is registered already stays as it is."""
    from sync_pipeline.catalog import parse_spec
    from sync_pipeline.operations import registration

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
    settings = _settings()
    documents: list[dict[str, Any]] = []
    added: list[Repository] = []
    failures: list[SyncError] = []
    with _database(settings) as database:
        for entry, result in registration.add_listed(
            database,
            settings,
            entries,
            actor=_actor(),
            reader_factory=_visitor(settings),
            dry_run=dry_run,
        ):
            if isinstance(result, SyncError):
                failures.append(result)
                documents.append({"spec": entry.text, "result": "failed", "error": str(result)})
                if len(entries) > 1:
                    _complain(f"{entry.text}: {result}", FAILED)
                continue
            documents.append(_registered_document(result))
            added += [result.repository] if result.repository else []
            if not as_json:
                print(_registered_line(result))
        if as_json and not (len(entries) == 1 and failures):
            _print_json(documents[0] if file is None and len(entries) == 1 else documents)
        if not dry_run and registration.snapshot_lacks(settings.catalog_file, added):
            _after_catalog_change(settings, database)
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
    }
    if result.path is None:
        return {**document, "head": result.head, "history_blocks": len(result.history)}
    takes = result.estimate
    return {
        **document,
        "path": result.path,
        "history_windows": [str(window) for window in result.history],
        **({"estimate": asdict(takes)} if takes else {}),
    }


def _registered_line(result: Registered) -> str:
    spec = str(result.spec)
    if result.path and result.path != result.spec.address:
        spec += f" ({result.path})"
    repository, queued = result.repository, "to queue" if result.dry_run else "queued"
    if not result.created:
        return f"{spec} is registered already" + (
            f" as repository {repository.repo_id}" if repository else ""
        )
    older = f"{len(result.history)} older blocks {queued}"
    if result.path is not None:
        plural = "s" if len(result.history) != 1 else ""
        older = f"{len(result.history)} window{plural} of older merge requests and reviews {queued}"
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
    def counted(number: int | None, things: str) -> str:
        return f"{things} not counted" if number is None else f"{number:,} {things}"

    rows = f"{counted(takes.merge_requests, 'merge requests')}, {counted(takes.commits, 'commits')}"
    minutes = takes.hours * 60
    time = "less than 2 minutes"
    if minutes >= 2:
        time = f"{takes.hours:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes"
    return f"{rows}: about {takes.requests:,} requests, {time}"


@repo_app.command("list")
def repo_list(
    everything: Annotated[bool, typer.Option("--all", help="The retired ones too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the catalog."""
    from sync_pipeline.store import discovery, repos

    with _database(_settings()) as database, database.connection() as conn:
        roots, access = discovery.roots_of_repositories(conn), repos.access(conn)
        rows = [
            {
                **_repository_row(repository),
                "access": access.get(repository.repo_id, {}),
                "root": roots.get(repository.repo_id),
            }
            for repository in repos.list_all(conn, retired=everything)
        ]
    if as_json:
        _print_json(rows)
    elif rows:
        shown = ("repo_id", "spec", "path", "tenant", "slug", "access", "root", "lifecycle")
        _print_rows(
            [{**{name: row[name] for name in shown}, "access": _access(row["access"])} for row in rows]
        )
    else:
        print("no repositories; add one: scm-sync repo add <spec>", file=sys.stderr)


def _access(states: Mapping[str, str]) -> str:
    """The states of all job types in one word where they agree."""
    if len(set(states.values())) <= 1:
        return next(iter(states.values()), "")
    return ", ".join(f"{job_type} {state}" for job_type, state in states.items())


@repo_app.command("show")
def repo_show(
    repo: Annotated[str, typer.Argument(metavar="SPEC", help=_NAMES)],
    as_json: AsJson = False,
) -> None:
    """Show one repository and what of it is complete."""
    from sync_pipeline.model import JOB_TYPES_OF_KIND
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.store import discovery, repos, watermarks

    with _database(_settings()) as database:
        repository = find_repository(database, repo)
        with database.connection() as conn:
            root = discovery.roots_of_repositories(conn).get(repository.repo_id)
            events = repos.events(conn, repository.repo_id)
            known = [
                watermarks.get(conn, repository.repo_id, job_type)
                for job_type in JOB_TYPES_OF_KIND[repository.kind]
            ]
    facts = {**_repository_row(repository), "root": root}
    job_types = [
        {
            "job_type": str(row.job_type),
            "origin": row.origin,
            "watermark": row.watermark,
            "covered": [str(window) for window in row.covered],
            "head_rev": row.head_rev,
            "verified_at": row.verified_at,
            "access": str(row.access),
            "access_detail": row.access_detail,
        }
        for row in known
    ]
    if as_json:
        _print_json({**facts, "job_types": job_types, "events": events})
        return
    _print_facts({name: value for name, value in facts.items() if value not in (None, "")})
    print()
    _print_rows([{**row, "covered": ", ".join(map(str, row["covered"]))} for row in job_types])  # type: ignore[arg-type]
    if events:
        print()
        _print_rows(events)


@repo_app.command("retire")
def repo_retire(
    repo: Annotated[str, typer.Argument(metavar="SPEC", help=_NAMES)],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded with your name.")],
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Stop syncing a repository. Its rows, assets and history stay."""
    from sync_pipeline.model import Lifecycle
    from sync_pipeline.operations import registration

    settings = _settings()
    with _database(settings) as database:
        repository = registration.find_repository(database, repo)
        active = repository.lifecycle is Lifecycle.ACTIVE
        if dry_run:
            result = "would_retire" if active else "already_retired"
        elif registration.retire_repository(database, repository.repo_id, reason=reason, actor=_actor()):
            result = "retired"
            _after_catalog_change(settings, database)
        else:
            result = "already_retired"
    if as_json:
        _print_json({"spec": repository.spec, "repo_id": repository.repo_id, "result": result})
    else:
        words = {
            "would_retire": "would be retired",
            "retired": "is retired; its rows and assets stay",
            "already_retired": "was retired before",
        }
        print(f"{repository.spec} {words[result]}")


def _repository_row(repository: Repository) -> dict[str, Any]:
    from sync_pipeline.catalog import web_url_of

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


# root ---------------------------------------------------------------------------------------------------

RootName = Annotated[
    str, typer.Argument(metavar="ROOT", help="A root_id, gitlab:group:<path or id> or gitlab:membership.")
]


@root_app.command("add")
def root_add(
    spec: Annotated[
        str, typer.Argument(metavar="ROOT", help="gitlab:group:<path or id> or gitlab:membership.")
    ],
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="PATTERN", help="Only projects whose path matches; may be repeated."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="No projects whose path matches; wins."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Owner of all of them; default: first segment of the path.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Register every project of a group with its subgroups, or of the token's user, and those to come. Adding
    a root again replaces its patterns."""
    from sync_pipeline.catalog import parse_root
    from sync_pipeline.operations import discovery
    from sync_pipeline.sync.readers import Readers

    named = parse_root(spec)
    settings = _settings()
    with _database(settings) as database:
        added = discovery.add_root(
            database,
            settings,
            named,
            include=include or (),
            exclude=exclude or (),
            tenant=tenant,
            actor=_actor(),
            client_of=Readers(settings).gitlab,
            dry_run=dry_run,
        )
        done = added.discovered
        if done is not None and done.changed:
            _after_catalog_change(settings, database)
    if as_json:
        _print_json(_added_document(added))
    elif added.root is None:
        for path in added.would_register:
            print(path)
        print(f"{added.spec}: {added.listed} projects, {len(added.would_register)} would be registered")
    elif done is not None:
        outcome = "added" if added.created else "was there and has the new patterns"
        print(f"{added.root} {outcome} as root {added.root.root_id}: {_discovered_line(done)}")
    return FAILED if done is not None and done.error is not None else SUCCESS


@root_app.command("list")
def root_list(
    everything: Annotated[bool, typer.Option("--all", help="The retired ones too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the roots and how their last visits went."""
    from sync_pipeline.store import discovery

    with _database(_settings()) as database, database.connection() as conn:
        counts = discovery.counts(conn)
        rows = [
            _root_row(root, *counts.get(root.root_id, (0, 0)))
            for root in discovery.list_roots(conn, retired=everything)
        ]
    if as_json:
        _print_json(rows)
    elif rows:
        shown = (
            "root_id",
            "root",
            "instance",
            "repositories",
            "vanished",
            "completed_at",
            "lifecycle",
            "error",
        )
        patterns = [
            " ".join([*row["include"], *(f"not {pattern}" for pattern in row["exclude"])]) for row in rows
        ]
        _print_rows(
            [
                {**{name: row[name] for name in shown}, "patterns": text}
                for row, text in zip(rows, patterns, strict=True)
            ]
        )
    else:
        print("no roots; add one: scm-sync root add gitlab:group:<path>", file=sys.stderr)


@root_app.command("sync")
def root_sync(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROOT]...", help="Roots to visit; default: all.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Visit roots now: register what is new, follow what moved, retire what is gone."""
    from sync_pipeline.operations import discovery
    from sync_pipeline.store import discovery as store
    from sync_pipeline.sync.readers import Readers

    settings = _settings()
    with _database(settings) as database:
        if names:
            roots = [discovery.find_root(database, settings, name) for name in names]
        else:
            with database.connection() as conn:
                roots = store.list_roots(conn)
        if retired := [root for root in roots if root.lifecycle == "retired"]:
            raise ConfigurationError(
                f"root {retired[0].root_id} is retired; take it up: scm-sync root add {retired[0]}"
            )
        done = discovery.rediscover(database, settings, Readers(settings).gitlab, _actor(), roots=roots)
        if any(one.changed for one in done):
            _after_catalog_change(settings, database)
    if as_json:
        _print_json([_discovered_document(one) for one in done])
    for one in done:
        if one.error is not None:
            _complain(f"{one.root}: {one.error}", FAILED)
        elif not as_json:
            print(f"{one.root}: {_discovered_line(one)}")
    failed = sum(one.error is not None for one in done)
    return SUCCESS if not failed else FAILED if failed == len(done) else PARTIAL


@root_app.command("retire")
def root_retire(name: RootName, as_json: AsJson = False, dry_run: DryRun = False) -> None:
    """Visit a root no more. Its repositories stay in the catalog and are synced."""
    from sync_pipeline.operations import discovery

    settings = _settings()
    with _database(settings) as database:
        root = discovery.find_root(database, settings, name)
        if dry_run:
            result = "would_retire" if root.lifecycle == "active" else "already_retired"
        else:
            retired = discovery.retire_root(database, root.root_id)
            result = "retired" if retired else "already_retired"
    if as_json:
        _print_json({"root_id": root.root_id, "root": str(root), "result": result})
    else:
        words = {
            "would_retire": "would be retired",
            "retired": "is retired; its repositories stay",
            "already_retired": "was retired before",
        }
        print(f"{root} {words[result]}")


def _root_row(root: Root, repositories: int, vanished: int) -> dict[str, Any]:
    return {
        "root_id": root.root_id,
        "root": str(root),
        "instance": root.instance,
        "scope": root.scope,
        "group_id": root.group_id,
        "include": root.include,
        "exclude": root.exclude,
        "tenant": root.tenant,
        "repositories": repositories,
        "vanished": vanished,
        "lifecycle": str(root.lifecycle),
        "visited_at": root.visited_at,
        "completed_at": root.completed_at,
        "error": root.error,
    }


def _added_document(added: AddedRoot) -> dict[str, Any]:
    if added.root is None:
        return {
            "spec": added.spec,
            "result": "would_add",
            "listed": added.listed,
            "would_register": added.would_register,
        }
    return {
        "spec": added.spec,
        "result": "added" if added.created else "changed",
        **(_discovered_document(added.discovered) if added.discovered else {}),
    }


def _discovered_document(done: Discovered) -> dict[str, Any]:
    return {
        "root_id": done.root.root_id,
        "root": str(done.root),
        "listed": done.listed,
        "matching": done.matching,
        **{
            name: [{"repo_id": one.repo_id, "path": one.project_path} for one in getattr(done, name)]
            for name in ("registered", "returned", "moved", "vanished", "left", "retired")
        },
        "error": None if done.error is None else str(done.error),
    }


def _discovered_line(done: Discovered) -> str:
    if done.error is not None:
        return str(done.error)
    words = {
        "registered": "registered",
        "returned": "taken up again",
        "moved": "moved",
        "vanished": "not listed any more",
        "left": "no longer in it but still there, they stay",
        "retired": "gone and retired",
    }
    news = [f"{len(found)} {text}" for name, text in words.items() if (found := getattr(done, name))]
    return ", ".join([f"{done.listed} projects, {done.matching} match", *(news or ["nothing new"])])


def _after_catalog_change(settings: Settings, database: Database) -> None:
    """Write the snapshot and tell Dagster; the catalog itself is already right."""
    from sync_pipeline.orchestration.catalog_changes import after_catalog_change

    after_catalog_change(settings, database)


# catalog ------------------------------------------------------------------------------------------------


@watermark_app.command("reset")
def watermark_reset(
    repo: Annotated[str, typer.Argument(metavar="SPEC", help=_NAMES)],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded with your name.")],
    job: Job = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Count nothing as complete any more, so that everything is read and compared again. Rows stay; jobs
    that run at this moment can write no more."""
    _set_coverage(repo, job, None, reason, as_json=as_json, dry_run=dry_run)


@watermark_app.command("set")
def watermark_set(
    repo: Annotated[str, typer.Argument(metavar="SPEC", help=_NAMES)],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded with your name.")],
    start_rev: Annotated[int | None, typer.Option("--start-rev", help="SVN: first revision.")] = None,
    end_rev: Annotated[int | None, typer.Option("--end-rev", help="SVN: last revision, included.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="GitLab: start.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="GitLab: end, not included.")
    ] = None,
    job: Job = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Count exactly this window as complete; what lies outside is read again."""
    from sync_pipeline.operations.runner import Bounds

    bounds = Bounds(start_rev=start_rev, end_rev=end_rev, since=since, until=until)
    _set_coverage(repo, job, bounds, reason, as_json=as_json, dry_run=dry_run)


@watermark_app.command("events")
def watermark_events(
    repo: Annotated[str, typer.Argument(metavar="SPEC", help=_NAMES)],
    job: Job = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show how the coverage came to be what it is: every change with actor, reason and run."""
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.operations.runner import job_types_for
    from sync_pipeline.store import watermarks

    with _database(_settings()) as database:
        repository = find_repository(database, repo)
        with database.connection() as conn:
            rows = [
                {"job_type": str(job_type), **row}
                for job_type in job_types_for(repository, job)
                for row in watermarks.events(conn, repository.repo_id, job_type, limit)
            ]
    rows = sorted(rows, key=lambda row: row["event_id"], reverse=True)[:limit]
    if as_json:
        _print_json(rows)
    else:
        _print_rows(rows)


def _set_coverage(
    repo: str,
    job: str | None,
    bounds: Bounds | None,
    reason: str,
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    from sync_pipeline.operations import runner
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.store import watermarks

    with _database(_settings()) as database:
        repository = find_repository(database, repo)
        job_type = runner.job_type_for(repository, job)
        with database.connection() as conn:
            before = watermarks.get(conn, repository.repo_id, job_type)
            covered: tuple[Window, ...] = ()
            if bounds is not None:
                covered = (
                    runner.coverage_to_set(repository, job_type, bounds, before.head_rev or 0, _now()),
                )
            if not dry_run:
                watermarks.replace(
                    conn,
                    repo_id=repository.repo_id,
                    job_type=job_type,
                    covered=covered,
                    actor=_actor(),
                    reason=reason,
                )
                after = watermarks.get(conn, repository.repo_id, job_type)
    document = {
        "spec": repository.spec,
        "job_type": str(job_type),
        "covered_before": [str(window) for window in before.covered],
        "covered_after": [str(window) for window in covered],
        "watermark_before": before.watermark,
        "watermark_after": None if dry_run else after.watermark,
        "dry_run": dry_run,
    }
    if as_json:
        _print_json(document)
    else:
        shown = {
            name: ", ".join(v) or "nothing" if isinstance(v, list) else v for name, v in document.items()
        }
        _print_facts(shown)


@catalog_app.command("export")
def catalog_export(as_json: AsJson = False) -> None:
    """Write the snapshot file; a fresh machine needs it before Dagster can load."""
    from sync_pipeline.operations.registration import export_catalog

    settings = _settings()
    with _database(settings) as database:
        snapshot = export_catalog(database, settings)
    if as_json:
        _print_json(
            {
                "path": settings.catalog_file,
                "repositories": len(snapshot.repositories),
                "head_rev": snapshot.head_rev,
                "written_at": snapshot.written_at,
            }
        )
    else:
        print(f"{len(snapshot.repositories)} repositories written to {settings.catalog_file}")


# runner -------------------------------------------------------------------------------------------------


@runner_app.command("incremental")
def runner_incremental(repo: Repo, job: Job = None, as_json: AsJson = False) -> int:
    """Sync what is new, up to the end of the source."""
    from sync_pipeline.model import Mode
    from sync_pipeline.operations import registration, runner
    from sync_pipeline.policy.families import by_family

    settings = _settings()
    with _database(settings) as database:
        repository = _active(registration.find_repository(database, repo))
    wanted = runner.job_types_for(repository, job)
    _need_server(settings, repository)
    documents = []
    for _, job_types in by_family(wanted):
        started_at = _now()
        reports = _execute(
            settings,
            repo_ids=[repository.repo_id],
            job_types=job_types,
            mode=Mode.INCREMENTAL,
            windows=None,
            update_watermark=False,
            as_json=as_json,
        )
        documents += [
            runner.incremental_document(
                repository,
                job_type,
                [report for report in reports if report.job_type is job_type],
                started_at=started_at,
                finished_at=_now(),
            )
            for job_type in job_types
        ]
    return _finish_runner(runner.together(documents), as_json)


@runner_app.command("backfill")
def runner_backfill(
    repo: Repo,
    job: Job = None,
    start_rev: Annotated[int | None, typer.Option("--start-rev", help="SVN: first revision.")] = None,
    end_rev: Annotated[int | None, typer.Option("--end-rev", help="SVN: last revision, included.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="GitLab: start; UTC without a zone.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="GitLab: end, not included.")
    ] = None,
    last_days: Annotated[
        int | None, typer.Option("--last-days", metavar="N", help="GitLab: from N days ago until now.")
    ] = None,
    last_hours: Annotated[
        int | None, typer.Option("--last-hours", metavar="N", help="GitLab: from N hours ago until now.")
    ] = None,
    update_watermark: Annotated[
        bool,
        typer.Option("--update-watermark", help="Let live syncing count from the start of this window."),
    ] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Sync a range of revisions or of time; without bounds everything that is missing up to now."""
    from sync_pipeline.operations import registration, runner
    from sync_pipeline.store import watermarks

    bounds = runner.Bounds(start_rev, end_rev, since, until, last_days, last_hours)
    settings = _settings()
    with _database(settings) as database:
        repository = _active(registration.find_repository(database, repo))
        wanted = runner.job_types_for(repository, job)
        runner.check_bounds(repository, bounds)
        window, head = _backfill_window(settings, repository, bounds)
        with database.connection() as conn:
            plans = {
                job_type: runner.plan_backfill(
                    window, watermarks.missing(conn, repository.repo_id, job_type, window)
                )
                for job_type in wanted
            }
        if dry_run:
            document = runner.together(
                [
                    runner.plan_document(repository, job_type, window, head, plan)
                    for job_type, plan in plans.items()
                ]
            )
            if as_json:
                _print_json(document)
            else:
                for one in document.get("jobs", [document]):
                    _print_plan(one)
            return SUCCESS
        only_missing = not bounds.given and not update_watermark
        windows = {
            job_type: runner.windows_to_read(window, plan, only_missing) for job_type, plan in plans.items()
        }
        documents = _backfill(settings, database, repository, windows, update_watermark, as_json)
    return _finish_runner(runner.together(documents), as_json)


def _backfill_window(settings: Settings, repository: Repository, bounds: Bounds) -> tuple[Window, int | None]:
    """The window that is meant, and HEAD, for which SVN has to be asked."""
    from sync_pipeline.model import Kind
    from sync_pipeline.operations import registration, runner

    if repository.kind is not Kind.SVN:
        window = runner.time_window(bounds, _now())
        _need_server(settings, repository)
        return window, None
    start_rev, end_rev = bounds.start_rev, bounds.end_rev
    # A wrong order is told before the source is asked.
    runner.backfill_window(start_rev, end_rev, head=max(start_rev or 1, end_rev or 1))
    head = registration.visit_source(repository.url, _visitor(settings)).head
    return runner.backfill_window(start_rev, end_rev, head), head


def _backfill(
    settings: Settings,
    database: Database,
    repository: Repository,
    windows: Mapping[JobType, Sequence[Window]],
    update_watermark: bool,
    as_json: bool,
) -> list[dict[str, Any]]:
    """Read the windows of each job type; those that are read together and miss the same go in one run."""
    from sync_pipeline.model import Mode
    from sync_pipeline.operations import runner
    from sync_pipeline.policy.windows import hull
    from sync_pipeline.store import watermarks

    documents: list[dict[str, Any]] = []
    for job_types in runner.read_together(windows):
        todo = windows[job_types[0]]
        with database.connection() as conn:
            before = {j: watermarks.get(conn, repository.repo_id, j) for j in job_types}
        started_at = _now()
        reports: list[JobReport] = []
        if todo:
            reports = _execute(
                settings,
                repo_ids=[repository.repo_id],
                job_types=job_types,
                mode=Mode.BACKFILL,
                windows=todo,
                update_watermark=update_watermark,
                as_json=as_json,
            )
        for job_type in job_types:
            with database.connection() as conn:
                after = watermarks.get(conn, repository.repo_id, job_type)
            was = before[job_type]
            documents.append(
                runner.backfill_document(
                    repository,
                    job_type,
                    [report for report in reports if report.job_type is job_type],
                    window=hull(todo),
                    watermark_updated=(was.origin, was.watermark) != (after.origin, after.watermark),
                    started_at=started_at,
                    finished_at=_now(),
                )
            )
    return documents


def _need_server(settings: Settings, repository: Repository) -> None:
    """Refuse early what cannot be read because the settings have no server or no token for it."""
    from sync_pipeline.model import Kind
    from sync_pipeline.sync.readers import Readers

    if repository.kind is Kind.GITLAB:
        Readers(settings).fingerprint(repository.instance)


def _active(repository: Repository) -> Repository:
    from sync_pipeline.model import Lifecycle

    if repository.lifecycle is not Lifecycle.ACTIVE:
        raise ConfigurationError(
            f"{repository.spec} is retired; to sync it again run: scm-sync repo add {repository.spec}"
        )
    return repository


def _now() -> datetime:
    return datetime.now(UTC)


def _execute(settings: Settings, *, as_json: bool, **what: Any) -> list[JobReport]:
    """Run the asset job in this process, with a progress line on a terminal."""
    from sync_pipeline.orchestration.run import execute

    reason = f"scm-sync runner {what['mode']}"
    with _progress(as_json, "new or changed") as show:
        return execute(settings, **what, actor=_actor(), reason=reason, progress=show)


@contextmanager
def _progress(as_json: bool, changed: str) -> Iterator[Callable[[Counts], None] | None]:
    """Shows counts on a terminal as they grow, and what ``changed`` says of those that count as such; None
    where nobody looks."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting")

        def show(counts: Counts) -> None:
            bar.update(line, description=f"{counts.read} rows read, {counts.changed} {changed}")

        yield show


def _finish_runner(document: Mapping[str, Any], as_json: bool) -> int:
    code = int(document["exit_code"])
    if as_json:
        _print_json(document)
    for one in document.get("jobs", [document]):
        if not as_json:
            what = f"{one['repo']} {one['job']} {one['phase']}: {one['status']}"
            if "total_chunks" in one:
                what += f", {one['success_chunks']} of {one['total_chunks']} chunks"
            print(f"{what}; {one['message']}")
        if one["exit_code"] and one["error"]:
            _complain(f"{one['repo']} {one['job']}: {one['error']}", code)
    return code


def _print_plan(document: Mapping[str, Any]) -> None:
    revisions = document["head"] is not None
    _print_rows([_plan_row(chunk, revisions) for chunk in document["chunks"]])
    if revisions:
        missing = f"{document['missing_items']} revisions in {document['missing_chunks']} blocks"
        print(f"{missing} are missing; HEAD is r{document['head']}")
    else:
        missing = f"{document['missing_days']:g} days in {document['missing_chunks']} stretches"
        print(f"{document['repo']} {document['job']}: {missing} are missing")


def _plan_row(chunk: Mapping[str, Any], revisions: bool) -> Row:
    window = chunk["window"]
    if not revisions:
        row = {"chunk": chunk["chunk_index"], "since": window["since"], "until": window["until"]}
        return row | {"state": chunk["state"]}
    return {
        "chunk": chunk["chunk_index"],
        "revisions": f"r{window['start_rev']}..r{window['end_rev']}",
        "state": chunk["state"],
        "missing": sum(gap["end_rev"] - gap["start_rev"] + 1 for gap in chunk["missing"]),
    }


# repair -------------------------------------------------------------------------------------------------


@repair_app.command("remap")
def repair_remap(
    repo: Repo,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="TYPE", help="Job type; default: all of the repository."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only facts whose time at the source is this or later, and those without one; UTC without a "
            "zone. Default: all.",
        ),
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Derive stored facts of GitLab anew from their raw, by today's reading of it; asks no server."""
    from sync_pipeline.operations import registration, runner
    from sync_pipeline.sync import remap

    settings = _settings()
    with _database(settings) as database:
        repository = registration.find_repository(database, repo)
        remap.require_raw(repository)
        wanted = runner.job_types_for(repository, job)
        start = None if since is None else runner.time_window(runner.Bounds(since=since), _now()).since
        derive = _would_remap if dry_run else _remap
        documents = [derive(settings, database, repository, one, start, as_json) for one in wanted]
    document = runner.together(documents)
    if not dry_run:
        return _finish_runner(document, as_json)
    if as_json:
        _print_json(document)
    else:
        for one in documents:
            rest = f", {one['rows_unreadable']} cannot be read" if one["rows_unreadable"] else ""
            what = f"{one['rows_to_change']} of {one['rows_read']} rows would change"
            print(f"{one['repo']} {one['job']}: {what}{rest}")
    return SUCCESS


def _remap(
    settings: Settings,
    database: Database,
    repository: Repository,
    job_type: JobType,
    since: datetime | None,
    as_json: bool,
) -> dict[str, Any]:
    from sync_pipeline.operations import runner
    from sync_pipeline.sync import remap
    from sync_pipeline.sync.engine import Syncer

    reason = "scm-sync repair remap"
    request = remap.request(repository, job_type, since, actor=_actor(), reason=reason)
    started_at = _now()
    with _progress(as_json, "changed") as show, _stopped_politely() as cancel:
        report = Syncer(database, settings).run(request, cancel=cancel, progress=show)
    return runner.remap_document(
        repository, job_type, report, since=since, started_at=started_at, finished_at=_now()
    )


def _would_remap(
    settings: Settings,
    database: Database,
    repository: Repository,
    job_type: JobType,
    since: datetime | None,
    as_json: bool,
) -> dict[str, Any]:
    from sync_pipeline.operations import runner
    from sync_pipeline.sync import remap

    with _progress(as_json, "would change") as show, _stopped_politely() as cancel:
        counts = remap.look_ahead(database, repository, job_type, since, cancel=cancel, progress=show)
    return runner.remap_plan_document(repository, job_type, counts, since=since)


@contextmanager
def _stopped_politely() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, for work that looks at it between two steps; the second one ends
    the work where it is."""
    cancel = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: object) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    for number in before:
        signal.signal(number, stop)
    try:
        yield cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Dagster ------------------------------------------------------------------------------------------------


Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="For viewers: nothing can be started.")]


@app.command("ui")
def ui_command(host: Host = "127.0.0.1", port: Port = 0, read_only: ReadOnly = False) -> None:
    """Serve the Dagster UI behind a token."""
    settings = _settings()
    with _database(settings):
        pass  # one clear line now instead of a page full of errors later
    from sync_pipeline.orchestration import ui

    ui.serve(settings, host=host, port=port, read_only=read_only)


@app.command("up")
def up_command(host: Host = "127.0.0.1", port: Port = 0, read_only: ReadOnly = False) -> None:
    """Serve the Dagster UI and run the daemon with its sensors."""
    settings = _settings()
    with _database(settings):
        pass
    from sync_pipeline.orchestration import ui

    ui.up(settings, host=host, port=port, read_only=read_only)


# Reports ------------------------------------------------------------------------------------------------


@app.command("doctor")
def doctor_command(as_json: AsJson = False) -> int:
    """Check everything that has to be right, with a remedy for what is not; exit code 0 all is well,
    1 warnings, 2 failures."""
    from sync_pipeline.cli import reports
    from sync_pipeline.operations import doctor
    from sync_pipeline.orchestration.diagnosis import dagster_checks

    document = doctor.document(_examined(dagster_checks, quiet=as_json or not sys.stderr.isatty()))
    if as_json:
        _print_json(document)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(reports.doctor_table(document))
        print(reports.doctor_summary(document))
    else:
        _print_rows(reports.doctor_rows(document))
    return int(document["exit_code"])


def _examined(dagster_checks: DagsterChecks, *, quiet: bool) -> list[Finding]:
    """What the doctor finds; on a terminal it says meanwhile what it waits for."""
    from sync_pipeline.operations import doctor

    if quiet:
        return list(doctor.examine(dagster_checks))
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("looking") as line:

        def show(waiting: Sequence[str]) -> None:
            line.update(escape(f"looking at {', '.join(dict.fromkeys(waiting))}"))

        return list(doctor.examine(dagster_checks, show))


@app.command("status")
def status_command(
    repo: Annotated[str | None, typer.Option("--repo", metavar="SPEC", help=_NAMES)] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="TYPE", help="Job type; default: all of them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how complete and how fresh each (repository, job type) is, the worst first."""
    from sync_pipeline.cli import reports
    from sync_pipeline.model import JobType
    from sync_pipeline.operations import runner, status
    from sync_pipeline.operations.registration import find_repository

    settings = _settings()
    job_types: tuple[JobType, ...] | None = None
    try:
        job_types = None if job is None else (JobType.parse(job),)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    with _database(settings) as database:
        repository = None if repo is None else find_repository(database, repo)
        if repository is not None and job is not None:
            job_types = runner.job_types_for(repository, job)  # refuses one that it does not have
        document = status.status(database, settings, repository, job_types)
    if as_json:
        _print_json(document)
        return
    if not document["units"]:
        print("no repositories; add one: scm-sync repo add <spec>", file=sys.stderr)
        return
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(reports.status_table(document))
        for line in reports.status_explanations(document):
            print(line)
    else:
        _print_rows(reports.status_rows(document))
    print(reports.status_summary(document))
