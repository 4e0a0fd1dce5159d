"""Costs of the catalog in Dagster: loading the code location, and a run that finds nothing new.

Belongs here: an empty location against one with many repositories of either kind, and our idle run against a
Dagster job that does nothing. Each is a process of its own, as a run is.
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.measure import Figure, process
from sync_pipeline.core.catalog import parse_spec, write_snapshot
from sync_pipeline.core.model import JobType, Kind, Lifecycle, Mode, Repository
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration.catalog_changes import after_catalog_change
from sync_pipeline.orchestration.run import execute
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.runtime.environment import environment_variables, remove_server
from sync_pipeline.settings import Settings
from sync_pipeline.sync.readers import svn_reader
from sync_pipeline_sandbox import svn_samples

_WHEN = datetime(2024, 1, 1, tzinfo=UTC)

_LOAD = """
import dagster, time, json
started = time.perf_counter()
from sync_pipeline.definitions import defs
defs.get_repository_def().get_all_jobs()
print(json.dumps(time.perf_counter() - started))
"""

_NOOP = """
import dagster as dg

@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a"]))
def nothing() -> None: ...

defs = dg.Definitions([nothing], jobs=[dg.define_asset_job("noop", [nothing])],
                      executor=dg.in_process_executor)
"""


def figures(repositories: int) -> list[Figure]:
    """The load of a large catalog and the price of an idle run."""
    with tempfile.TemporaryDirectory(prefix="scm-bench-") as folder:
        catalogs: dict[str, list[Repository]] = {
            "empty": [],
            "SVN": [_svn(number) for number in range(1, repositories + 1)],
            "GitLab": [_project(number) for number in range(1, repositories + 1)],
        }
        loads: dict[str, float] = {}
        for name, content in catalogs.items():
            state = Path(folder) / name
            state.mkdir()
            write_snapshot(
                Settings(state_dir=state).catalog_file,
                content,
                head_rev=5000,
                written_at=_WHEN,
                history_start=_WHEN.date(),
            )
            loads[name] = _load(state)
        idle, noop = _idle(Path(folder) / "idle")
    return [
        *(
            Figure(
                f"code location with {repositories:,} {name} repositories",
                "an empty one",
                loads[name],
                loads["empty"],
                "s",
                "at most 5",
            )
            for name in ("SVN", "GitLab")
        ),
        Figure("an idle run, over a no-op run", "", idle - noop, None, "s", "at most 3 s"),
    ]


def _svn(number: int) -> Repository:
    return Repository(
        repo_id=number,
        kind=Kind.SVN,
        instance="svn.example.org",
        instance_slug="svn_example_org",
        tenant="acme",
        slug=f"repository_{number}",
        url=f"https://svn.example.org/repository_{number}",
        lifecycle=Lifecycle.ACTIVE,
        created_at=_WHEN,
        svn_uuid=f"uuid-{number}",
        svn_root=f"https://svn.example.org/repository_{number}",
    )


def _project(number: int) -> Repository:
    return Repository(
        repo_id=number,
        kind=Kind.GITLAB,
        instance="gitlab.example.org",
        instance_slug="gitlab_example_org",
        tenant="acme",
        slug=f"acme_project_{number}_{number}",
        url=f"https://gitlab.example.org/projects/{number}",
        lifecycle=Lifecycle.ACTIVE,
        created_at=_WHEN,
        project_id=number,
        project_path=f"acme/project_{number}",
        default_branch="main",
    )


def _load(state: Path) -> float:
    environment = {"SCM_STATE_DIR": str(state), "PYTHONWARNINGS": "ignore"}
    taken = [float(json.loads(process(["-c", _LOAD], environment).output.splitlines()[-1])) for _ in range(3)]
    return sorted(taken)[1]


def _idle(state: Path) -> tuple[float, float]:
    state.mkdir()
    settings = Settings(state_dir=state)
    address = svn_samples.large(state / "sample", 20)
    try:
        variables = dict(environment_variables(settings))
        migrations.migrate(variables["SCM_DATABASE_URL"], settings.environment)
        with Database(variables["SCM_DATABASE_URL"]) as database:
            added = add_repository(
                database,
                settings,
                parse_spec(f"svn:{address}"),
                actor="bench",
                reader_factory=lambda url: svn_reader(settings, url),
            )
            after_catalog_change(settings, database)
            assert added.repository is not None
            execute(
                settings,
                repo_ids=[added.repository.repo_id],
                job_types=[JobType.REVISIONS],
                mode=Mode.INCREMENTAL,
                actor="bench",
                reason="bench",
            )
        noop = state / "noop.py"
        noop.write_text(_NOOP)
        quiet = variables | {"PYTHONWARNINGS": "ignore"}
        execute_job = ["-m", "dagster", "job", "execute"]
        ours = [*execute_job, "-m", "sync_pipeline.definitions", "-j", "sync_revisions"]
        theirs = [*execute_job, "-f", str(noop), "-j", "noop", "--tags", '{"dagster/partition": "a"}']
        taken = {
            name: sorted(process(command, quiet).seconds for _ in range(3))[1]
            for name, command in (("ours", ours), ("theirs", theirs))
        }
        return taken["ours"], taken["theirs"]
    finally:
        remove_server(state)
