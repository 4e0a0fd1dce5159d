"""The program as an installed wheel: no clone, an empty folder, its embedded database.

What it needs from elsewhere comes from the environment of the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from sync_pipeline import __version__
from sync_pipeline.runtime.environment import remove_server
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.end_to_end.conftest import commit

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Installed:
    """An environment that has the wheel, and the folder in which somebody works with it."""

    programs: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a shell that knows nothing of ours."""
        ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        variables = {name: value for name, value in os.environ.items() if name not in ours}
        return variables | {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str, expect: int = 0) -> str:
        """What a program of the environment prints."""
        done = subprocess.run(
            [self.programs / command[0], *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout if expect == 0 else done.stderr

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A program that goes on meanwhile."""
        return subprocess.Popen(
            [self.programs / command[0], *command[1:]],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    """The wheel of this tree in an environment of its own, and an empty folder."""

    def python(*arguments: str | Path) -> None:
        subprocess.run(
            [sys.executable, "-m", *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60
        )

    place, folder = tmp_path / "environment", tmp_path / "work"
    folder.mkdir()
    python("hatchling", "build", "-t", "wheel", "-d", tmp_path)
    python("venv", "--without-pip", place)
    (wheel,) = tmp_path.glob("*.whl")
    programs = place / "bin"
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    python("pip", "--python", programs / "python", "install", "-q", *offline, wheel)
    (packages,) = place.glob("lib/python*/site-packages")
    needed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("\n".join(sorted(needed)) + "\n")
    try:
        yield Installed(programs, folder)
    finally:
        remove_server(folder / ".state")


def test_a_wheel_does_everything_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    where = installed.run("python", "-c", "import sync_pipeline; print(sync_pipeline.__file__)")
    assert Path(where.strip()).is_relative_to(installed.programs.parent)
    assert installed.run("scm-sync", "--version") == f"scm-sync {__version__}\n"
    assert installed.run("python", "-m", "sync_pipeline", "--help").startswith("Usage: ")
    assert "0001.core" in installed.run("scm-sync", "db", "migrate")
    svn_samples.create(tmp_path / "odds", svn_samples.odd())
    spec = f"svn:{(tmp_path / 'odds').as_uri()}"
    missing = installed.run("scm-sync", "repo", "add", "--file", "repos.toml", expect=3)
    assert Path(missing.split(" copy ")[1].strip()).is_file()
    assert "HEAD r8" in installed.run("scm-sync", "repo", "add", spec)
    found = json.loads(installed.run("scm-sync", "runner", "incremental", "--repo", spec, "--json"))
    assert (found["status"], found["inserted"]) == ("success", 8)
    (installed.folder / ".state" / "catalog.json").unlink()
    installed.run("scm-sync", "catalog", "export")
    assert (installed.folder / ".state" / "catalog.json").is_file()

    commit(tmp_path / "odds", "news")
    page = installed.start("scm-sync", "up")
    try:
        execute = ("dagster", "job", "execute", "-m", "sync_pipeline.definitions", "-j", "sync_revisions")
        installed.run("python", "-m", *execute)
        url = json.loads(installed.run("scm-sync", "env", "--json"))["SCM_DATABASE_URL"]
        with psycopg.connect(url) as conn:
            assert conn.execute("SELECT max(rev_num), count(*) FROM scm.svn_revisions").fetchone() == (9, 9)
        assert page.stdout is not None
        assert page.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        page.send_signal(signal.SIGINT)
        page.communicate(timeout=60)
    # Nothing but the state folder was left behind.
    assert [path.name for path in installed.folder.iterdir()] == [".state"]
