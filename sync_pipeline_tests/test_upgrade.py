"""Upgrades: a database of an earlier version keeps every row and goes on, and programs that run meanwhile
stop politely.

``fixtures/upgrade/0001.sql`` holds what version 0.1.0 left: *paint* with its live revisions, a backfill of
r1..r40 and the pending one of its first block; *odds* with a log message that was edited after it was read;
*worn* with a damaged revision whose paths are owed; *away* with a revision in quarantine and a failed job;
*old*, retired. The tests build the same repositories again and give them the UUIDs that the database knows.

``fixtures/upgrade/0006.sql`` holds what version 0.5.0 left: a GitLab project with commits, merge requests,
their reviews, an approval that was withdrawn, a pending backfill; and twelve Subversion revisions.

``fixtures/upgrade/0007.sql`` holds what version 0.6.0 left: the same of a project that was renamed. It has a
merge request whose number another one has now, and an internal note that a later token does not see. Of the
Subversion revisions one has an earlier version. A server does not answer, and *ann* tried a job again.

``fixtures/upgrade/0011.sql`` holds what version 0.7.0 left: the same kind of project and repository, with
configurations of jobs, positions of batches, approvals that GitLab did not give, the results of three
comparisons, a paused rate limit and a paused repository.

``fixtures/upgrade/0014.sql`` holds what version 0.8.0 left: a project and two Subversion repositories, one of
them with a damaged revision. It has a merge request and its review in quarantine, and details that were not
read. A backfill was given up and one waits. A group is registered for discovery.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from sync_pipeline import __version__
from sync_pipeline.core.catalog import CatalogSnapshot
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobStatus, JobType, Kind, Mode
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import integrity_checks, repos
from sync_pipeline.orchestration.build import build_defs
from sync_pipeline.registry import projects
from sync_pipeline.settings import GitLabTable, Settings, SvnTable
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.conftest import ENVIRONMENT
from sync_pipeline_tests.end_to_end.conftest import commit
from sync_pipeline_tests.warm import Starter

DUMPS = Path(__file__).parent / "fixtures" / "upgrade"
FACTS = ("svn_revisions", "svn_changed_paths", "svn_revision_versions")
ACTIVE = ("paint", "odds", "worn", "away")

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """The folder that the repositories of the dump are in now."""
    folder = tmp_path / "samples"
    folder.mkdir()
    return folder


@pytest.fixture
def old_url(empty_database_url: str, samples: Path) -> str:
    """A database as version 0.1.0 left it."""
    text = (DUMPS / "0001.sql").read_text(encoding="utf-8")
    restore(empty_database_url, text.replace("file:///srv/samples", samples.as_uri()))
    return empty_database_url


def restore(url: str, dump: str) -> None:
    """Fill an empty database with a dump."""
    with psycopg.connect(url, autocommit=True) as conn:
        # Roles belong to the server and not to a dump of the database.
        conn.execute(
            "DO $$ BEGIN CREATE ROLE scm_reader NOLOGIN;"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
        conn.execute(dump.encode())


@pytest.fixture
def upgraded(old_url: str, samples: Path) -> Iterator[Database]:
    """The same, migrated, with the repositories in their places."""
    migrations.migrate(old_url, ENVIRONMENT)
    svn_samples.large(samples / "paint", 1020, 2)
    svn_samples.create(samples / "odds", svn_samples.odd())
    svn_samples.create(samples / "worn", svn_samples.growing(20, paths=2))
    svn_samples.create(samples / "away", svn_samples.growing(5, paths=1))
    message = samples / "message"
    message.write_text("Clean up, said better")
    subprocess.run(["svnadmin", "setrevprop", samples / "odds", "-r", "6", "svn:log", message], check=True)
    damaged = samples / "worn" / "db" / "revs" / "0" / "17"
    damaged.chmod(0o644)
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    with Database(old_url) as database:
        for name, repo in rows_of(database, "SELECT url, svn_uuid FROM scm.repos WHERE lifecycle = 'active'"):
            subprocess.run(["svnadmin", "setuuid", samples / Path(name).name, repo], check=True)
        yield database


def rows_of(database: Database, query: str, **values: Any) -> list[tuple[Any, ...]]:
    """The rows of a query, as tuples."""
    with database.connection() as conn:
        return [tuple(row.values()) for row in conn.execute(query, values)]


def migrations_of_this_version() -> list[str]:
    """The ids of all migrations, in order."""
    folder = Path(__file__).parents[1] / "sql" / "migrations"
    return sorted(path.stem for path in folder.glob("*.sql") if not path.stem.endswith(".rollback"))


def contents(url: str) -> Rows:
    """Every row of every table of ours."""
    tables = "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' AND relnamespace IN"
    tables += " ('scm'::regnamespace, 'identity'::regnamespace) ORDER BY 1"
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as conn:
        names = [row["name"] for row in conn.execute(tables)]
        return {name: conn.execute(f"TABLE {name}".encode()).fetchall() for name in names}


def described(rows: list[dict[str, Any]], columns: set[str]) -> list[str]:
    """Rows in a form and order to compare, of these columns only."""
    return sorted(str({name: row[name] for name in sorted(columns)}) for row in rows)


def schema(url: str) -> list[str]:
    """The schema as SQL, without yoyo's own and without the random words that pg_dump puts around it."""
    command = ["pg_dump", "--schema-only", "--exclude-schema=migrations", f"--dbname={url}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [line for line in text.splitlines() if not line.startswith("\\")]


def test_a_database_of_an_earlier_version_migrates_and_loses_nothing(old_url: str, database_url: str) -> None:
    before = contents(old_url)
    filled = {name.removeprefix("scm.") for name, rows in before.items() if rows}
    assert filled >= {
        *FACTS,
        "repos",
        "sync_jobs",
        "sync_runs",
        "sync_batches",
        "sync_watermarks",
        "obligations",
    }
    assert {job["status"] for job in before["scm.sync_jobs"]} == {"pending", "completed", "failed"}
    with pytest.raises(ConfigurationError, match=r"lacks migration 0002\.gitlab; run: scm-sync db migrate"):
        migrations.require(old_url, ENVIRONMENT)
    assert migrate_and_compare(old_url, before, database_url)[0] == "0002.gitlab"


_FILLED = {"git_commits", "refs", "mrs", "mr_commits", "mr_versions", "review_events", "mr_approvals"}


_FILLED_BY_0007 = {*_FILLED, "svn_path_versions", "server_failures", "job_events"}
_FILLED_BY_0011 = {
    "configurations",
    "rate_limit_events",
    "discrepancies",
    "reconciliations",
    "obligations",
    "pauses",
}

_FILLED_BY_0014 = {
    *_FILLED_BY_0007,
    "configurations",
    "deferred_fetches",
    "discovery_roots",
    "discrepancies",
    "pauses",
    "quarantine",
    "svn_revision_versions",
    "worker_pools",
}


@pytest.mark.parametrize(
    ("dump", "filled"),
    [
        ("0006", {*_FILLED, "sync_watermark_events"}),
        ("0007", _FILLED_BY_0007),
        ("0011", _FILLED_BY_0007 | _FILLED_BY_0011),
        ("0014", _FILLED_BY_0014),
    ],
)
def test_a_database_of_a_later_version_migrates_and_loses_nothing(
    empty_database_url: str, database_url: str, dump: str, filled: set[str]
) -> None:
    restore(empty_database_url, (DUMPS / f"{dump}.sql").read_text(encoding="utf-8"))
    before = contents(empty_database_url)
    assert {name.removeprefix("scm.") for name, rows in before.items() if rows} >= filled
    applied = migrate_and_compare(empty_database_url, before, database_url)
    assert applied == [name for name in migrations_of_this_version() if name[:4] > dump]
    with Database(empty_database_url) as database, database.connection() as conn:
        assert integrity_checks.failures(conn) == {}


def test_what_people_did_to_jobs_says_after_an_upgrade_what_the_jobs_were(empty_database_url: str) -> None:
    restore(empty_database_url, (DUMPS / "0007.sql").read_text(encoding="utf-8"))
    migrations.migrate(empty_database_url, ENVIRONMENT)
    with Database(empty_database_url) as database:
        query = 'SELECT repo_id, job_type, mode, "window", actor FROM scm.job_events'
        period = '["2019-01-01 00:00:00+00","2020-01-01 00:00:00+00")'
        assert rows_of(database, query) == [(1, "commits", "backfill", period, "ann")]


def test_an_upgrade_switches_no_optional_job_type_on_and_one_can_be_added_after_it(
    empty_database_url: str,
) -> None:
    restore(empty_database_url, (DUMPS / "0014.sql").read_text(encoding="utf-8"))
    migrations.migrate(empty_database_url, ENVIRONMENT)
    query = "SELECT count(*) FROM scm.sync_watermarks WHERE job_type = 'releases'"
    with Database(empty_database_url) as database, database.connection() as conn:
        assert {one.optional_job_types for one in repos.list_all(conn)} == {()}
        assert rows_of(database, query) == [(0,)]
        every = [one.repo_id for one in repos.list_all(conn)]
        added = projects.add_job_types(conn, every, [JobType.RELEASES], actor="ann")
        assert [one.kind for one in added] == [Kind.GITLAB]
        assert rows_of(database, query) == [(1,)]
        assert integrity_checks.failures(conn) == {}


NAMES = {
    "0001.sql": {
        *(f"local/{name}/revisions" for name in ("paint_1", "odds_2", "worn_3", "away_4", "old_5")),
        "local_revisions",
        "changes_local",
    },
    "0006.sql": {
        *(f"gitlab/project_1000/{job_type}" for job_type in ("commits", "merge_requests", "reviews")),
        "local/repository_2/revisions",
        *("gitlab_commits", "gitlab_merge_requests", "local_revisions", "changes_gitlab", "changes_local"),
    },
}
"""Keys of assets, names of ops and sensors as the versions that left the dumps had them."""


@pytest.mark.parametrize("dump", NAMES)
def test_everything_by_which_dagster_keeps_state_has_its_name_after_an_upgrade(
    dump: str, empty_database_url: str
) -> None:
    restore(empty_database_url, (DUMPS / dump).read_text(encoding="utf-8"))
    migrations.migrate(empty_database_url, ENVIRONMENT)
    with Database(empty_database_url) as database, database.connection() as conn:
        settings = Settings(
            gitlab=(GitLabTable(url="http://gitlab.example.com/gitlab", name="main"),),
            svn=(SvnTable(url="file:///", name="files"),),
        )
        location = build_defs(
            settings=settings, snapshot=CatalogSnapshot(tuple(repos.list_all(conn))), only=""
        ).get_repository_def()
        for project_id, path in ((1001, "team1/app-2"), (1000_000, "team1/app.2")):
            repos.insert_gitlab(
                conn,
                url=f"http://gitlab.example.com/gitlab/projects/{project_id}",
                instance="gitlab.example.com",
                tenant="acme",
                project_id=project_id,
                project_path=path,
                default_branch=None,
                name="main",
            )
        later = [f"{one.instance_slug}/{one.slug}" for one in repos.list_all(conn)[-2:]]
    assets = {key for key in location.assets_defs_by_key if key.path[0] != "fleet"}
    found = {key.to_user_string() for key in assets}
    found |= {location.assets_defs_by_key[key].op.name for key in assets}
    found |= {sensor.name for sensor in location.sensor_defs} - {"scheduler", "reaper"}
    assert found == NAMES[dump]
    # A server stays below one alias, whatever its repositories are called.
    alias = "gitlab" if dump == "0006.sql" else "main"
    assert later == [f"{alias}/team1__app_2", f"{alias}/team1__app_2_1000000"]


RENAMED_TABLES = {
    "scm.obligations": "scm.deferred_fetches",
    "scm.sync_hints": "scm.change_hints",
    "scm.credential_stops": "scm.revoked_credentials",
    "scm.tenants_served": "scm.tenant_fairness",
    "scm.sweeps": "scm.reconcile_progress",
    "scm.project_looks": "scm.project_snapshots",
}
RENAMED_COLUMNS = {
    "obligation_id": "deferred_fetch_id",
    "heals": "only_differences",
    "planned_at": "dispatched_at",
    "richness": "detail_level",
    "poorer": "regressed",
    "owed": "deferred",
    "vanished_looks": "missing_confirmations",
}


def migrate_and_compare(url: str, before: Rows, new_url: str) -> list[str]:
    """Migrate the database at ``url``: no row of ``before`` changes, and its schema is that of the new one at
    ``new_url``. Returns the migrations that were applied."""
    applied = migrations.migrate(url, ENVIRONMENT)
    migrations.require(url, ENVIRONMENT)
    after = contents(url)
    for name, rows in before.items():
        kept = [{RENAMED_COLUMNS.get(column, column): value for column, value in row.items()} for row in rows]
        columns = set(kept[0]) if kept else set()
        found = described(after[RENAMED_TABLES.get(name, name)], columns)
        if name == "scm.job_types":
            # A version may bring job types; those of before stay.
            found = [row for row in found if row in described(kept, columns)]
        assert found == described(kept, columns), name
    assert schema(url) == schema(new_url), "it is now as if it had been new"
    return list(applied)


def test_after_an_upgrade_nothing_is_read_as_changed_and_what_was_missing_arrives(
    upgraded: Database, samples: Path
) -> None:
    repos = {
        str(url).rpartition("/")[2]: repo_id
        for url, repo_id in rows_of(upgraded, "SELECT url, repo_id FROM scm.repos")
    }
    before = contents(upgraded.url)
    syncer = Syncer(upgraded, Settings(sweep_interval_seconds=0.001))
    for name in ACTIVE:
        report = syncer.run(request(repos[name]))
        assert report.succeeded, report.error
        # The sweep stores the revision that the earlier version had to set aside.
        assert report.counts.changed == (name == "away"), name
    assert rows_of(upgraded, "SELECT 1 FROM scm.quarantine WHERE resolved_at IS NULL") == []
    after = contents(upgraded.url)
    for table in (f"scm.{name}" for name in FACTS):
        columns = set(before[table][0])
        assert set(described(before[table], columns)) <= set(described(after[table], columns)), table
    # The job that the earlier version queued is the one that is done now.
    [(queued,)] = rows_of(upgraded, "SELECT job_id FROM scm.sync_jobs WHERE status = 'pending'")
    report = syncer.run(request(repos["paint"], Mode.BACKFILL, window=(1, 1001)))
    assert (report.job_id, report.job_status) == (queued, JobStatus.COMPLETED)
    assert report.counts.inserted == 960
    for name in ACTIVE[:2]:
        commit(samples / name, "news")
        assert syncer.run(request(repos[name])).counts.inserted == 1
    versions = rows_of(upgraded, "SELECT DISTINCT code_version FROM scm.sync_runs ORDER BY 1")
    assert versions == [("0.1.0",), (__version__,)]
    covered = dict(rows_of(upgraded, "SELECT repo_id, covered_revs::text FROM scm.sync_watermarks"))
    assert covered[repos["paint"]] == "{[1,1022)}"
    with upgraded.connection() as conn:
        assert integrity_checks.failures(conn) == {}


# A migration while jobs run ------------------------------------------------------------------------------

_LATER = """#!/bin/sh
# Stands before svn, which gets no variables of ours. In front of the third log somebody migrates the database
# to a later version.
folder={folder}
case " $* " in *" log "*)
    echo log >>"$folder/logs"
    if [ "$(wc -l <"$folder/logs")" -eq 3 ] && mkdir "$folder/later" 2>/dev/null; then
        psql -q -v ON_ERROR_STOP=1 -f "$folder/later.sql" {url} || exit 1
    fi ;;
esac
PATH={path} exec svn "$@"
"""


def test_a_job_outlives_a_migration_and_the_next_one_is_refused(
    database: Database, tmp_path: Path, warm: Starter
) -> None:
    svn_samples.large(tmp_path / "repository", 5000, 1)
    with database.connection() as conn:
        repo_id = register_source(conn, tmp_path / "repository")
    tables = [name for name in contents(database.url) if name.startswith("scm.")]
    later = [f"ALTER TABLE {name} ADD COLUMN later text;" for name in tables]
    later += ["INSERT INTO migrations._yoyo_migration VALUES ('x', '9999.later', now() + interval '1 day');"]
    (tmp_path / "later.sql").write_text("\n".join(["BEGIN;", *later, "COMMIT;"]))
    programs = tmp_path / "bin"
    programs.mkdir()
    values = {"folder": str(tmp_path), "url": database.url, "path": os.environ["PATH"]}
    (programs / "svn").write_text(
        _LATER.format(**{name: shlex.quote(value) for name, value in values.items()})
    )
    (programs / "svn").chmod(0o755)
    variables = {
        **os.environ,
        "SCM_DATABASE_URL": database.url,
        "SCM_ENVIRONMENT": ENVIRONMENT,
        "SCM_STATE_DIR": str(tmp_path / "state"),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    command = ("runner", "backfill", "--repo", str(repo_id), "--start-rev", "1", "--json")
    done = warm.run("sync_pipeline", *command, env=variables, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "the database has migration 9999.later, which this program does not know" in done.stderr
    # Whatever was begun is complete; what was not begun is not touched.
    ended = rows_of(
        database,
        "SELECT status, count(*), sum(attempts)::int FROM scm.sync_jobs GROUP BY status",
    )
    assert ended == [("completed", 3, 3)]
    assert rows_of(database, "SELECT count(*) FROM scm.svn_revisions") == [(3000,)]
    assert rows_of(database, "SELECT status, count(*) FROM scm.sync_runs GROUP BY status") == [
        ("completed", 3)
    ]
