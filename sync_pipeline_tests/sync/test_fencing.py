"""Every statement that a job can write, and that each is refused once the job belongs to somebody else.

Belongs here: the list of those statements, found in the code and held against :data:`STATEMENTS`, and jobs
that are overtaken or reset before each of their writes. Processes that are killed or stopped are in
:mod:`sync_pipeline_tests.faults.test_workers`.

A statement of a fact, of coverage, of a visit, of quarantine or of a deferred fetch is only reached through
``Attempt.fenced``, which checks the job, its lease and the watermark's generation first. The edges of the
ledger and of the leases carry the claim token or the fence in their own WHERE clause.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

import sync_pipeline
from sync_pipeline.core.model import JobReport, JobRequest, JobStatus, JobType, Mode, Trigger
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.queries import queries, sql_folder
from sync_pipeline.ledger import jobs, watermarks
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.faults.whole_state import differences, whole_state
from sync_pipeline_tests.svn_fixtures import large_repository
from sync_pipeline_tests.sync.conftest import Forge, Impatient

# Reached from the code of jobs through a fenced transaction.
FENCED = frozenset(
    [
        "quarantine.defer",
        "quarantine.quarantine",
        "quarantine.resolve",
        "quarantine.settle",
        "quarantine.settle_quarantine",
        "quarantine.settle_deferred",
        "commits.begin",
        "commits.complete",
        "commits.invalidate",
        "commits.flag_unreached",
        "commits.parents_asked",
        "commits.resolve",
        "commits.take_over",
        "commits.record_page",
        "commits._UPSERT",
        "credentials.clear",
        "credentials.stop",
        "svn_revisions.archive",
        "svn_revisions.archive_paths",
        "svn_revisions.copy_new_paths",
        "svn_revisions.copy_paths",
        "svn_revisions.copy_revisions",
        "svn_revisions.invalidate",
        "svn_revisions.drop_paths",
        "svn_revisions.hidden_since",
        "svn_revisions.insert_paths",
        "svn_revisions.resolve",
        "svn_revisions.upsert",
        "jobs.add_batch",
        "listed._INVALIDATE",
        "listed._UPSERT",
        "merge_requests.asked",
        "merge_requests.invalidate",
        "merge_requests.drop_commits",
        "merge_requests.drop_versions",
        "merge_requests.delete_unlisted",
        "merge_requests._INSERT_COMMITS",
        "merge_requests._INSERT_VERSIONS",
        "merge_requests.read",
        "merge_requests.replace",
        "merge_requests.restore",
        "merge_requests._UPSERT",
        "project_snapshots.put",
        "project_snapshots.used",
        "reconciliations.add",
        "reconciliations.deleted",
        "reconciliations.put",
        "reconciliations.resolve",
        "reconciliations.tried",
        "refs.cover",
        "refs.delete",
        "refs.events",
        "refs.record_move",
        "refs.mark",
        "refs.write",
        "remap.resolve",
        "remap._UPDATE",
        "remap._UPDATE_CHILDREN",
        "repos.created",
        "repos.event",
        "repos.seen",
        "reviews.asked",
        "reviews.close_approvals",
        "reviews.close_reviewers",
        "reviews.invalidate_events",
        "reviews.invalidate_readings",
        "reviews.hidden",
        "reviews.missing",
        "reviews.put_approvals",
        "reviews.put_reviewers",
        "reviews.put_seen_approvals",
        "reviews.reading",
        "reviews.replaced",
        "reviews.replace_approvals",
        "reviews.replace_events",
        "reviews.replace_reviewers",
        "reviews.restore_events",
        "reviews.restore",
        "reviews._RESTORE_PARTS",
        "reviews._UPSERT",
        "tombstones._MARK_DELETED",
        "unreadable.asked_merge_requests",
        "unreadable.asked_reviews",
        "unreadable.delete",
        "unreadable.postpone",
        "unreadable.readable",
        "unreadable.refused",
        "unreadable.settle",
        "watermarks.extend",
        "watermarks.record_scan",
        "watermarks.visited",
    ]
)

# Edges of the job ledger and of the leases: the statement itself names the claim token or the fence, or gives
# the right to write in the first place. The limit of requests and the kept configurations are shared
# by all and belong to no job.
EDGES = frozenset(
    [
        "configurations.keep",
        "jobs.give_up",
        "jobs.claim",
        "jobs.close_lost_runs",
        "jobs.end_lost",
        "jobs.enqueue",
        "jobs.finish",
        "jobs.finish_run",
        "jobs.join",
        "jobs.release_lease",
        "jobs.renew",
        "jobs.start_run",
        "leases.ensure",
        "leases.delete_waiters",
        "leases.release",
        "leases.renew",
        "leases.stop_waiting",
        "leases.take",
        "leases.wait",
        "rate_limits.acquire",
        "rate_limits.change",
        "rate_limits.create",
    ]
)

# Copies rows to temporary tables to compare them, and stores nothing.
STAGING = frozenset({"svn_revisions.changes"})

_PACKAGE = Path(sync_pipeline.__file__).parent
_WRITES = re.compile(r"\b(INSERT\s+INTO|UPDATE\s+[a-z_{]|DELETE\s+FROM|COPY\s+[a-z])")


# --- The list -----------------------------------------------------------------------------------------------


_STORE = ("database", "facts", "ledger")


@cache
def _trees(*folders: str) -> dict[str, ast.Module]:
    paths = [path for folder in folders for path in sorted((_PACKAGE / folder).glob("[a-z]*.py"))]
    assert len({path.stem for path in paths}) == len(paths), "two modules have one name"
    return {path.stem: ast.parse(path.read_text()) for path in paths}


def _names(tree: ast.AST) -> set[str]:
    """The names that ``tree`` uses. A statement of ``sql/queries`` is named ``sql NAME``."""
    keys = [
        n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript) and ast.unparse(n.value) == "_SQL"
    ]
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        f"sql {ast.literal_eval(key)}" for key in keys
    }


def _statements(module: str, tree: ast.Module) -> dict[str, set[str]]:
    """The module's statements and constants by name: which others each is made of; a statement is its own."""
    found: dict[str, set[str]] = {}
    if (sql_folder() / "queries" / f"{module}.sql").exists():
        for key, statement in queries(module).items():
            found[f"sql {key}"] = {f"sql {key}"} if _WRITES.search(statement) else set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            strings = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
            writes = any(isinstance(s, str) and _WRITES.search(s) for s in strings)
            names = _names(node.value)
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = names | ({target.id} if writes else set())
    return found


def _imports(tree: ast.Module) -> dict[str, str]:
    """What each imported name of a store module stands for, as ``module`` or ``module.name``."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        package, _, module = node.module.removeprefix("sync_pipeline.").partition(".")
        if package in _STORE:
            prefix = f"{module}." if module else ""
            found |= {one.asname or one.name: f"{prefix}{one.name}" for one in node.names}
    return found


def _named(node: ast.AST, imports: dict[str, str], module: str | None) -> str | None:
    """``module.function`` of the store that an expression names."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imports:
        return f"{imports[node.value.id]}.{node.attr}"
    if isinstance(node, ast.Name):
        return imports.get(node.id) or (f"{module}.{node.id}" if module else None)
    return None


@cache
def _writes_of_functions() -> dict[str, set[str]]:
    """By ``module.function`` of the store: every writing statement that it can reach."""
    direct: dict[str, set[str]] = {}
    calls: dict[str, set[str]] = {}
    for module, tree in _trees(*_STORE).items():
        statements, imports = _statements(module, tree), _imports(tree)
        writing = {name for name, made_of in statements.items() if name in made_of}
        for node in tree.body:
            functions = node.body if isinstance(node, ast.ClassDef) else [node]
            for function in functions:
                if not isinstance(function, ast.FunctionDef):
                    continue
                name = f"{module}.{node.name if isinstance(node, ast.ClassDef) else function.name}"
                used = _names(function)
                parts = {part for n in used & statements.keys() for part in (n, *statements[n])}
                direct.setdefault(name, set()).update(
                    f"{module}.{part.removeprefix('sql ')}" for part in parts & writing
                )
                called = {n.func for n in ast.walk(function) if isinstance(n, ast.Call)}
                named = {_named(n, imports, module if n in called else None) for n in ast.walk(function)}
                calls.setdefault(name, set()).update(one for one in named if one)
    while True:
        before = sum(map(len, direct.values()))
        for name, others in calls.items():
            for one in others:
                direct[name] |= direct.get(one, set())
        if sum(map(len, direct.values())) == before:
            return direct


def _uses() -> Iterator[tuple[str, str, bool]]:
    """What the code of jobs uses of the store and what writes: where, the function, whether it is fenced."""
    writes = _writes_of_functions()
    for module, tree in _trees("sync").items():
        imports = _imports(tree)
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            name = _named(node, imports, None)
            if not isinstance(node, ast.expr) or name is None or name in STAGING:
                continue
            if not writes.get(name) or isinstance(parents[node], ast.Attribute):
                continue
            call = parents[node]
            fenced = False
            if isinstance(call, ast.Call) and call.func is node and call.args:
                fenced = _is_fenced(call.args[0], parents)
            yield f"{module}:{node.lineno}", name, fenced


def _is_fenced(argument: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """True if the connection is that of a fenced transaction: one of ``Attempt.fenced``, or that of a batch,
    which only ``open_batch`` makes."""
    opener = "fenced"
    if isinstance(argument, ast.Attribute) and argument.attr == "conn":
        argument, opener = argument.value, "open_batch"
    if not isinstance(argument, ast.Name):
        return False
    node: ast.AST | None = argument
    while node is not None:
        node = parents.get(node)
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == argument.id:
                    call = item.context_expr
                    return isinstance(call, ast.Call) and opener in ast.dump(call.func)
        if isinstance(node, ast.FunctionDef):
            for one in node.args.args:
                if one.arg == argument.id:
                    is_batch = isinstance(one.annotation, ast.Name) and one.annotation.id == "Batch"
                    return is_batch or node.name in _GIVEN_FENCED
    return False


# Methods that are only called with the connection of a fenced transaction.
_GIVEN_FENCED = frozenset({"_record_access"})


def test_every_statement_that_a_job_can_write_is_listed_and_fenced() -> None:
    writes = _writes_of_functions()
    fenced: set[str] = set()
    free: dict[str, set[str]] = {}
    for location, name, is_fenced in _uses():
        if is_fenced:
            fenced |= writes[name]
        else:
            for statement in writes[name]:
                free.setdefault(statement, set()).add(f"{name} at {location}")
    unlisted = {name: where for name, where in free.items() if name not in EDGES}
    assert unlisted == {}, "written outside Attempt.fenced; fence it, or show below why it fences itself"
    assert fenced - EDGES == FENCED, "the list of what jobs write has changed; add or remove the statement"


# --- Each of them refused -----------------------------------------------------------------------------------

Event = Callable[[Connection], None]

# What belongs to no job: the shared limit of requests, and the wish for a lease, which ends by itself.
_SHARED = {"sync_rate_limits", "sync_lock_waiters"}
# How an attempt ends that is still the owner of its job.
_LEDGER = {"sync_jobs", "sync_runs", "sync_locks"}

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'scm' ORDER BY tablename"
_RUNNING = "SELECT job_id FROM scm.sync_jobs WHERE status = 'running' ORDER BY job_id"
_RUN_OUT = """
UPDATE scm.sync_jobs SET claim_expires_at = clock_timestamp() - interval '1 second' WHERE job_id = %(job_id)s
"""


class Interrupted(Database):
    """A database in which ``event`` happens just before its user takes a connection for the ``at``-th time
    while ``running`` jobs are at work. ``after`` is every table as the event left it, None if it
    never came."""

    def __init__(self, url: str, event: Event, at: int, running: int) -> None:
        super().__init__(url)
        self.after: dict[str, list[str]] | None = None
        self._event = event
        self._left = at
        self._running = running
        self._other = Database(url)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """See :meth:`sync_pipeline.database.pool.Database.connection`."""
        with self._other.connection() as conn:
            if self.after is None and len(conn.execute(_RUNNING).fetchall()) == self._running:
                self._left -= 1
                if self._left < 0:
                    self._event(conn)
                    self.after = everything(conn)
        with super().connection() as conn:
            yield conn

    def close(self) -> None:
        """Close both pools."""
        super().close()
        self._other.close()


def everything(conn: Connection) -> dict[str, list[str]]:
    """Every row of every table, as text."""
    rows: dict[str, list[str]] = {}
    for table in [row["tablename"] for row in conn.execute(_TABLES)]:
        if table not in _SHARED:
            query = sql.SQL("SELECT t::text AS row FROM {} AS t ORDER BY 1").format(
                sql.Identifier("scm", table)
            )
            rows[table] = [row["row"] for row in conn.execute(query)]
    return rows


def overtake(conn: Connection) -> None:
    """Another worker takes every running job over, whose claims ran out."""
    for row in conn.execute(_RUNNING).fetchall():
        conn.execute(_RUN_OUT, row)
        taken = jobs.claim(
            conn, row["job_id"], worker="other", process="other", length=600, dagster_run_id=None
        )
        assert taken is not None


def reset(conn: Connection) -> None:
    """A person resets every watermark."""
    for row in conn.execute("SELECT repo_id, job_type FROM scm.sync_watermarks").fetchall():
        asset = {"repo_id": row["repo_id"], "job_type": JobType(row["job_type"])}
        watermarks.replace(conn, covered=(), actor="ann", reason="test", **asset)


def forget(conn: Connection) -> None:
    """Whoever works on something goes away, and everything is to be read and scanned again."""
    conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = '-infinity' WHERE status = 'running'")
    conn.execute("UPDATE scm.sync_jobs SET max_attempts = attempts + 10")
    conn.execute("UPDATE scm.sync_watermarks SET swept_at = NULL")
    reset(conn)


def state(conn: Connection) -> dict[str, list[Any]]:
    """What is stored and claimed of the source, whatever how often it was reset."""
    found = whole_state(conn)
    for row in found["sync_watermarks"]:
        del row["generation"], row["sweep_rev"]
    return found


def check_each_step(
    url: str,
    work: Callable[[Database], list[JobReport]],
    event: Event,
    running: int,
    undisturbed: dict[str, list[Any]],
) -> int:
    """Do ``work`` again and again, each time with ``event`` one step later, until it comes to its end before
    the event. Nothing is written after any of them. Returns the number of steps."""
    at = 0
    while True:
        interrupted = Interrupted(url, event, at, running)
        with interrupted, Database(url) as database, database.connection() as conn:
            forget(conn)
            reports = work(interrupted)
            if interrupted.after is None:
                assert [report.error for report in reports if not report.succeeded] == []
                assert differences(undisturbed, state(conn)) == []
                return at
            now = everything(conn)
            allowed = set() if event is overtake else _LEDGER
            changed = [table for table in now if now[table] != interrupted.after[table]]
            assert set(changed) - allowed == set(), f"step {at}"
            codes = {report.error_code for report in reports}
            if event is reset:
                assert codes == {"watermark_set"}, f"step {at}"
                assert {report.job_status for report in reports} == {JobStatus.PENDING}, f"step {at}"
            else:
                assert codes <= {"claim_lost", "lease_lost"}, f"step {at}"
        at += 1


@pytest.mark.parametrize("event", [overtake, reset], ids=["a take-over", "a reset"])
@pytest.mark.parametrize("what", ["revisions", "commits", "merge requests"])
def test_nothing_is_written_after(
    what: str, event: Event, request: pytest.FixtureRequest, database_url: str, tmp_path: Path
) -> None:
    work: Callable[[Database], list[JobReport]]
    if what == "revisions":
        repository = large_repository(tmp_path / "repository", 7)
        with Database(database_url) as database, database.connection() as conn:
            repo_id = register_source(conn, repository.url)
        asked = JobRequest(repo_id, JobType.REVISIONS, Mode.INCREMENTAL, Trigger.SENSOR, "t", "t")
        settings = Settings(chunk_revisions=3)

        def work(database: Database) -> list[JobReport]:
            return [Syncer(database, settings).run(asked)]
    else:
        forge: Forge = request.getfixturevalue("forge")
        forge.git.commit("main", "Base\n", files={"a": "1\n"})
        base = forge.git.resolve("refs/heads/main")
        assert base is not None
        forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
        opened = forge.gitlab.open_merge_request(
            forge.project, title="Topic", source="topic", author=forge.user
        )
        forge.gitlab.comment(opened, forge.other, "Looks good")
        forge.gitlab.approve(opened, forge.other)
        forge.tick()
        types = (JobType.COMMITS,) if what == "commits" else (JobType.MERGE_REQUESTS, JobType.REVIEWS)

        def work(database: Database) -> list[JobReport]:
            syncer = Syncer(database, forge.settings, Impatient(forge.settings))
            return syncer.run_together([forge.request(one) for one in types])

    with Database(database_url) as database, database.connection() as conn:
        assert all(report.succeeded for report in work(database))
        undisturbed = state(conn)
    assert check_each_step(database_url, work, event, 2 if what == "merge requests" else 1, undisturbed) > 10
