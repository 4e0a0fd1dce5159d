"""The house: rules about the tree itself that no single module can keep, such as comments on every table."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import psycopg
import pytest
import yaml

from sync_pipeline import __version__
from sync_pipeline.database import migrations
from sync_pipeline.database.queries import queries
from sync_pipeline.orchestration import code_server, dagster_internals
from sync_pipeline.runtime import environment
from sync_pipeline.settings import load_settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    ROOT / "sync_pipeline",
    ROOT / "sync_pipeline_sandbox",
    ROOT / "sync_pipeline_tests",
    ROOT / "bench",
)
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py") if path.stat().st_size)

_UNCOMMENTED = """
-- Tables, views, materialized views and their columns that say nothing about themselves.
SELECT c.oid::regclass::text || coalesce('.' || a.attname, '')
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT 0 AS attnum, NULL AS attname
    UNION ALL
    SELECT attnum, attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
) AS a
WHERE n.nspname IN ('scm', 'identity') AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND coalesce(col_description(c.oid, a.attnum), '') = ''
    AND (a.attnum > 0 OR coalesce(obj_description(c.oid, 'pg_class'), '') = '')
ORDER BY 1
"""

_UNCOMMENTED_OTHERS = """
-- Functions and schemas without a comment.
SELECT p.oid::regprocedure::text FROM pg_proc AS p
WHERE p.pronamespace::regnamespace::text IN ('scm', 'identity') AND obj_description(p.oid, 'pg_proc') IS NULL
UNION ALL
SELECT nspname FROM pg_namespace
WHERE nspname IN ('scm', 'identity', 'migrations') AND obj_description(oid, 'pg_namespace') IS NULL
"""

# A string that begins like a query, after comments; prose that shows one to a person is none.
_SQL = re.compile(
    r"(\s|--.*\n)*(SELECT\s.+\sFROM|WITH\s.+\sAS\s*\(|INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+[\w.]+\s+SET|CREATE\s)",
    re.S,
)


@functools.cache
def tree(path: Path) -> ast.Module:
    """The module at ``path``, parsed once for all tests of this file."""
    return ast.parse(path.read_text())


def test_every_table_column_and_function_has_a_comment(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        silent = conn.execute(_UNCOMMENTED).fetchall() + conn.execute(_UNCOMMENTED_OTHERS).fetchall()
    assert silent == []


def test_down_and_up_again_gives_the_same_schema(empty_database_url: str) -> None:
    applied = migrations.migrate(empty_database_url, "test")
    states = [_dump(empty_database_url)]
    for _ in applied:
        assert len(migrations.rollback(empty_database_url)) == 1
    empty = _dump(empty_database_url)
    assert "CREATE TABLE" not in empty
    assert "CREATE SCHEMA" not in empty
    migrations.migrate(empty_database_url, "test")
    states.append(_dump(empty_database_url))
    assert states[0] == states[1]


def _dump(url: str) -> str:
    """The schema as SQL, without yoyo's own and without the random words that pg_dump puts around it."""
    command = ["pg_dump", "--schema-only", "--exclude-schema=migrations", f"--dbname={url}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return "\n".join(line for line in text.splitlines() if not line.startswith("\\"))


def test_migrations_are_numbered_without_gaps_and_each_has_its_rollback() -> None:
    names = sorted(path.name for path in (ROOT / "sql" / "migrations").iterdir())
    ups = [name for name in names if not name.endswith(".rollback.sql")]
    assert all(re.fullmatch(r"\d{4}\.[a-z0-9_]+\.sql", name) for name in ups)
    assert [int(name[:4]) for name in ups] == list(range(1, len(ups) + 1))
    assert [name for name in names if name not in ups] == [
        name.removesuffix(".sql") + ".rollback.sql" for name in ups
    ]


def test_every_module_says_what_belongs_in_it() -> None:
    """Lists every module whose docstring is missing, too short or no sentence."""
    offenders = []
    for path in MODULES:
        text = ast.get_docstring(tree(path)) or ""
        if len(text.split()) < 4 or not text.rstrip().endswith("."):
            offenders.append(str(path.relative_to(ROOT)))
    assert len(MODULES) > 300
    assert offenders == []


def test_sql_is_only_in_the_packages_of_the_database() -> None:
    offenders = []
    for path in (ROOT / "sync_pipeline").rglob("*.py"):
        if path.parent.name in ("database", "facts", "ledger"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value):
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert offenders == []


def test_private_names_of_dagster_are_imported_in_one_module() -> None:
    """So that an upgrade of Dagster is checked in one place, which has the reason for each name."""
    private = re.compile(r"dagster\w*\._|dagster_(shared|webserver\.webserver|postgres\.utils)")
    users = set()
    for path in (ROOT / "sync_pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(private.match(name) for name in names):
                users.add(path.stem)
    assert users == {"dagster_internals"}


def test_every_private_name_of_dagster_that_is_loaded_later_is_there_and_used() -> None:
    names = [name for names in dagster_internals._LOADED_AT_FIRST_USE.values() for name in names]
    texts = [path.read_text() for path in (ROOT / "sync_pipeline").rglob("*.py")]
    for name in names:
        assert getattr(dagster_internals, name) is not None
        assert sum(re.search(rf"\b{name}\b", text) is not None for text in texts) > 1, name
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = dagster_internals.absent


def test_every_statement_is_used_by_its_module_and_says_what_it_is_for() -> None:
    files = sorted((ROOT / "sql" / "queries").glob("*.sql"))
    assert len(files) > 20
    for file in files:
        (module,) = (
            path
            for path in (ROOT / "sync_pipeline").rglob(f"{file.stem}.py")
            if "_SQL = " in path.read_text()
        )
        used = set(re.findall(r'_SQL\["(\w+)"\]', module.read_text()))
        assert used == set(queries(file.stem)), file.name
        silent = re.findall(r"^-- name: (\w+)\n(?!-- )", file.read_text(), re.MULTILINE)
        assert silent == [], file.name


def test_every_child_process_gets_an_environment_of_its_own() -> None:
    """Else it inherits our secrets. The processes of ``scm-sync up`` are this program again."""
    starts = re.compile(r"(subprocess\.(run|Popen|call|check_call|check_output)|popen|os\.(system|popen))\Z")
    offenders = []
    for path in (ROOT / "sync_pipeline").rglob("*.py"):
        if path.name == "ui.py":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and starts.search(ast.unparse(node.func)):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if "os.environ" in given.get("env", "os.environ") and None not in given:
                    offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert offenders == []


def test_only_the_clock_asks_the_machine_for_the_time() -> None:
    """A test can then hold the clock, and nothing depends on the hour in which the tests run."""
    asks = re.compile(r"(datetime\.(now|utcnow|today)|date\.today|time\.(time|time_ns|localtime|gmtime))\Z")
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "sync_pipeline").rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and asks.search(ast.unparse(node.func)) and path.name != "clock.py"
    ]
    assert offenders == []


def test_no_two_locks_of_the_database_have_the_same_number() -> None:
    """Else two that have nothing to do with each other wait for each other."""
    numbers = [
        number
        for path in (ROOT / "sync_pipeline").rglob("*.py")
        for number in re.findall(r"^_\w*LOCK = (0x\w+)$", path.read_text(), re.MULTILINE)
    ]
    assert len(numbers) == len(set(numbers)) > 4


def test_the_wheel_has_everything_that_the_program_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    package = tmp_path / "site" / "sync_pipeline"
    for path in (ROOT / "sql").rglob("*.*"):
        assert (package / "_sql" / path.relative_to(ROOT / "sql")).read_bytes() == path.read_bytes()
    # The program finds them there, away from the source tree.
    program = (
        "from sync_pipeline.database import migrations; from sync_pipeline.runtime import environment;"
        "print(migrations.sql_folder(), environment.config_file('dagster.yaml'),"
        " environment.config_file('workspace.yaml'), environment.config_file('repos.example.toml'),"
        " sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "site",
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        str(package / "_sql"),
        str(package / "_config" / "dagster.yaml"),
        str(package / "_config" / "workspace.yaml"),
        str(package / "_config" / "repos.example.toml"),
    ]


def test_the_changelog_tells_of_this_version() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == __version__
    assert versions == sorted(
        versions, key=lambda text: [int(part) for part in text.split(".")], reverse=True
    )
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]


def test_dagster_accepts_its_configuration(database_url: str, tmp_path: Path) -> None:
    settings = load_settings(database_url=database_url, state_dir=tmp_path / "state")
    program = """if True:
        from dagster import DagsterInstance
        with DagsterInstance.get() as instance:
            queue = instance.get_concurrency_config().run_queue_config
            pools = instance.get_concurrency_config().pool_config
            limits = {limit["key"]: limit["limit"] for limit in queue.tag_concurrency_limits}
            assert limits["dagster/backfill"] * 2 <= min(queue.max_concurrent_runs, pools.default_pool_limit)
            assert pools.pool_granularity.value == "op"
            assert instance.run_monitoring_enabled and instance.run_monitoring_max_runtime_seconds > 0
            assert not instance.run_retries_enabled and not instance.telemetry_enabled
            assert instance.get_runs_count() == 0
    """
    variables = environment.environment_variables(settings)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_code_location_has_one_name() -> None:
    """Dagster keeps the state of sensors and schedules by it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    (location,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    names = {project["code_location_name"], location["python_module"]["location_name"]}
    assert names == {code_server.LOCATION_NAME}


def test_scripts_can_be_run() -> None:
    for name in ("dev", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111
    subprocess.run(["/bin/sh", "-n", str(ROOT / "dev")], check=True)


def test_constraints_are_names_and_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.!+]+", line) for line in lines)


def _prose(page: Path) -> str:
    """The text of ``page`` without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def _anchors(page: Path) -> set[str]:
    """The names that GitLab and GitHub give the headings of ``page``."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_to_files_and_headings_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            name, _, heading = link.partition("#")
            target = page.parent / name if name else page
            if "://" in link or (target.exists() and (not heading or heading in _anchors(target))):
                continue
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_each_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("[a-z]*.md") if f"({page.name})" not in index] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize(("name", "at_least"), [("faults", 40), ("scheduling", 15)])
def test_a_page_that_names_tests_names_those_that_exist(name: str, at_least: int) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", page)
    assert len(named) > at_least
    for file, test in named:
        assert f"def {test}(" in (ROOT / "sync_pipeline_tests" / file).read_text() if test else True, test
        assert (ROOT / "sync_pipeline_tests" / file).exists(), file


@pytest.mark.xdist_group("house")
def test_tests_of_a_group_stay_in_one_worker(request: pytest.FixtureRequest) -> None:
    """Else each worker starts a daemon of its own, and everything else waits for them."""
    if hasattr(request.config, "workerinput") and request.config.getoption("loadgroup"):
        assert request.node.nodeid.endswith("@house")
