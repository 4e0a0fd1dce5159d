"""The environment: servers start at any path, survive being killed, and stay out of each other's way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.runtime import environment
from sync_pipeline.settings import load_settings

StateFolder = Callable[[str], Path]


@pytest.fixture
def state_folder(run_folder: Path) -> Iterator[StateFolder]:
    """Makes state folders whose servers and data are gone after the test."""
    base = run_folder / f"environment-{os.getpid()}"
    made: list[Path] = []

    def make(name: str) -> Path:
        made.append(base / name)
        made[-1].mkdir(parents=True)
        return made[-1]

    yield make
    for folder in made:
        environment.remove_server(folder)
    shutil.rmtree(base, ignore_errors=True)


def _ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(query).fetchone()
        return row and row[0]


def _postmaster(url: str) -> psutil.Process:
    """The server process behind a URL."""
    folder = Path(str(_ask(url, "SHOW data_directory")))
    return psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))


def _start(folder: Path) -> str:
    return environment.ensure_server(folder, durable=False)


def test_no_process_of_the_server_has_our_secrets(
    state_folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCM_SVN_PASSWORD", "SCM_GITLAB_TOKEN", "SCM_DATABASE_URL", "PGPASSWORD", "VAULT_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    url = _start(state_folder("secrets"))
    with psycopg.connect(url):
        server = _postmaster(url)
        seen = []
        for process in (server, *server.children(recursive=True)):
            # A worker of the server may end in this moment.
            with suppress(psutil.NoSuchProcess):
                seen.append(process.environ())
    assert len(seen) > 3
    assert not [name for one in seen for name, value in one.items() if "hunter2" in value]


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "a space, a 'quote' and a \"comma\": 100 % $(touch /dev/shm/x) `x` \\ end",
        "ünïcode",
        "long/" + "x" * 100,
    ],
    ids=["plain", "marks", "unicode", "long"],
)
def test_the_server_starts_at_any_path(state_folder: StateFolder, name: str) -> None:
    url = _start(state_folder(name))
    assert _ask(url, "SELECT current_database() || current_setting('server_encoding')") == "scmUTF8"


def test_only_the_owner_of_its_socket_folder_can_reach_the_server(state_folder: StateFolder) -> None:
    url = _start(state_folder("closed"))
    assert _ask(url, "SHOW listen_addresses") == ""
    folder = Path(str(_ask(url, "SHOW unix_socket_directories")))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_starting_again_and_stopping_again_are_harmless(state_folder: StateFolder) -> None:
    folder = state_folder("twice")
    url = _start(folder)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE TABLE kept (id int)")
    before = _postmaster(url).pid
    assert _start(folder) == url
    assert _postmaster(url).pid == before
    environment.stop_server(folder)
    environment.stop_server(folder)
    assert _start(folder) == url
    assert _ask(url, "SELECT count(*) FROM kept") == 0


def test_two_that_start_at_once_get_the_same_server(state_folder: StateFolder) -> None:
    folder = state_folder("race")
    program = (
        "import sys; from pathlib import Path; from sync_pipeline.runtime import environment;"
        "print(environment.ensure_server(Path(sys.argv[1]), durable=False))"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(folder)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    urls = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert len(urls) == 1
    assert _ask(urls.pop(), "SELECT 1") == 1


def test_two_clones_have_servers_of_their_own(state_folder: StateFolder) -> None:
    urls = [_start(state_folder(name)) for name in ("one", "two")]
    assert _postmaster(urls[0]) != _postmaster(urls[1])


def test_a_copied_state_folder_does_not_share_the_server(state_folder: StateFolder) -> None:
    original, copy = state_folder("original"), state_folder("copy")
    first = _start(original)
    # What `cp -a` of a clone does while its server runs; the data itself is copied only where it is inside.
    subprocess.run(["cp", "-a", f"{original}/.", str(copy)], check=True, stderr=subprocess.DEVNULL)
    second = _start(copy)
    assert _postmaster(first) != _postmaster(second)


def test_a_killed_server_starts_again_with_its_data(state_folder: StateFolder) -> None:
    folder = state_folder("killed")
    url = environment.ensure_server(folder)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE TABLE kept (id int)")
    _postmaster(url).send_signal(signal.SIGKILL)
    assert environment.ensure_server(folder) == url
    assert _ask(url, "SELECT count(*) FROM kept") == 0


def test_a_leftover_process_number_of_somebody_else_is_no_server(state_folder: StateFolder) -> None:
    folder = state_folder("stale")
    url = _start(folder)
    pid_file = Path(str(_ask(url, "SHOW data_directory"))) / "postmaster.pid"
    text = pid_file.read_text()
    environment.stop_server(folder)
    # The number in a leftover file belongs to another process by now: to this one.
    pid_file.write_text("\n".join([str(os.getpid()), *text.splitlines()[1:]]) + "\n")
    assert _ask(_start(folder), "SELECT 1") == 1


def test_an_interrupted_first_start_is_repeated(state_folder: StateFolder) -> None:
    folder = state_folder("interrupted")
    url = _start(folder)
    data = Path(str(_ask(url, "SHOW data_directory")))
    environment.stop_server(folder)
    shutil.rmtree(data)
    (data.parent / "data.new").mkdir()
    (data.parent / "data.new" / "PG_VERSION").write_text("18\n")
    assert _ask(_start(folder), "SELECT 1") == 1


def test_a_moved_state_folder_keeps_its_data(state_folder: StateFolder) -> None:
    folder, new_name = state_folder("before"), state_folder("after")
    with psycopg.connect(_start(folder), autocommit=True) as conn:
        conn.execute("CREATE TABLE kept (id int)")
    environment.stop_server(folder)
    new_name.rmdir()
    folder.rename(new_name)
    assert _ask(_start(new_name), "SELECT count(*) FROM kept") == 0


def test_the_server_keeps_what_it_confirmed_unless_the_data_is_fleeting(state_folder: StateFolder) -> None:
    assert _ask(environment.ensure_server(state_folder("durable")), "SHOW fsync") == "on"


def test_the_users_postgresql_settings_do_not_matter(
    state_folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGDATA": "/nowhere", "PGPORT": "6543", "PGHOST": "nowhere"}.items():
        monkeypatch.setenv(name, value)
    assert _ask(_start(state_folder("undisturbed")), "SELECT 1") == 1


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot write to .*/file/state: Not a directory"):
        environment.ensure_server(tmp_path / "file" / "state")


def test_a_server_that_refuses_connections_is_not_waited_for(state_folder: StateFolder) -> None:
    folder = state_folder("refusing")
    url = _start(folder)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        with pytest.raises(ConfigurationError, match=r"refuses connections: .*not currently accepting.*log"):
            _start(folder)
        conn.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
    assert _start(folder) == url


# --- URLs and variables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "start", "parts"),
    [
        ("postgresql://u:p%40s@h:7/d", "postgresql+psycopg2://u:p%40s@h:7/d?", []),
        ("postgres://[::1]:7/d", "postgresql+psycopg2://[::1]:7/d?", []),
        ("host=/a/b dbname=d user=u", "postgresql+psycopg2://u@/d?", ["host=%2Fa%2Fb"]),
        ("postgresql+psycopg2://h/d?connect_timeout=3", "postgresql+psycopg2://h/d?", ["connect_timeout=3"]),
        ("postgresql://h/d?options=-cfoo%3D1", "postgresql+psycopg2://h/d?", ["options=-cfoo%3D1"]),
    ],
)
def test_dagster_gets_its_driver_time_outs_and_schema(url: str, start: str, parts: list[str]) -> None:
    made = environment.dagster_url(url, "dagster")
    assert made.startswith(start)
    for part in (*parts, "connect_timeout=", "keepalives_idle=", "-csearch_path%3Ddagster"):
        assert part in made
    assert "search_path" not in environment.dagster_url(url)


def test_a_malformed_url_for_dagster_is_one_line_without_it() -> None:
    with pytest.raises(ConfigurationError, match="not a PostgreSQL URL") as caught:
        environment.dagster_url("postgresql://u:hunter2@h:x y/d")
    assert "hunter2" not in str(caught.value)


def test_a_users_database_replaces_the_embedded_server(database_url: str, tmp_path: Path) -> None:
    settings = load_settings(database_url=database_url, state_dir=tmp_path)
    urls = environment.resolve_urls(settings)
    assert urls.database_url == database_url
    assert _ask(database_url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'dagster'") == 1
    assert not (tmp_path / "postgresql").exists()
    assert environment.embedded_url(tmp_path) is None


def test_dagster_can_have_a_database_of_its_own(database_url: str, tmp_path: Path) -> None:
    settings = load_settings(
        database_url=database_url, dagster_database_url="postgresql://h/own", state_dir=tmp_path
    )
    assert environment.resolve_urls(settings).dagster_url.startswith("postgresql+psycopg2://h/own?")
    assert _ask(database_url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'dagster'") == 0


def test_the_url_that_a_shell_remembers_starts_the_stopped_server(state_folder: StateFolder) -> None:
    folder = state_folder("remembered")
    url = _start(folder)
    environment.stop_server(folder)
    settings = load_settings(database_url=url, state_dir=folder)
    assert _ask(environment.resolve_urls(settings).database_url, "SELECT 1") == 1


def test_a_shell_with_another_state_folder_has_another_database(
    state_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.delenv("SCM_DATABASE_URL", raising=False)
    exported: dict[str, str] = {}
    urls = []
    for name in ("demo", "own"):
        folder = state_folder(name)
        _start(folder)
        monkeypatch.setenv("SCM_STATE_DIR", str(folder))
        exported = environment.environment_variables(load_settings())
        os.environ.update(exported)
        urls.append(exported["SCM_DATABASE_URL"])
    assert len(set(urls)) == 2
    assert exported["SCM_EMBEDDED_DATABASE_URL"] == urls[1]


def test_a_shell_that_evaluates_the_exports_has_working_psql_and_dagster(
    database_url: str, tmp_path: Path
) -> None:
    state = tmp_path / "it's here"
    settings = load_settings(database_url=database_url, state_dir=state)
    exports = environment.shell_exports(environment.environment_variables(settings))
    commands = """
        psql "$SCM_DATABASE_URL" -Atc "SELECT environment FROM scm.deployment" &&
        dagster instance info && command -v pytest"""
    script = "".join([exports, commands])
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "test"
    assert f"$DAGSTER_HOME: {state / 'dagster'}" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{Path(sys.executable).parent / 'pytest'}"
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'dagster' AND tablename = 'runs'"
    assert _ask(database_url, tables) == 1
    # Nothing of Dagster's is anywhere else.
    assert _ask(database_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0


def test_dagster_home_follows_the_project_file(tmp_path: Path) -> None:
    settings = load_settings(state_dir=tmp_path / "state")
    home = environment.dagster_home(settings)
    (home / "dagster.yaml").unlink()
    (home / "dagster.yaml").write_text("an older copy")
    assert (environment.dagster_home(settings) / "dagster.yaml").read_text() == environment.config_file(
        "dagster.yaml"
    ).read_text()
