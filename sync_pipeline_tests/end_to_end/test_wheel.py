"""The program as an installed wheel: no clone, an empty folder, its embedded database.

What it needs from elsewhere comes from the environment of the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sync_pipeline import __version__
from sync_pipeline.runtime.environment import remove_server
from sync_pipeline_sandbox import svn_samples

pytestmark = pytest.mark.xdist_group("wheel")
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Installed:
    """An environment that has the wheel, and the folder in which somebody works with it."""

    programs: Path
    packages: Path
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The wheel of this tree in an environment of its own, and an empty folder."""
    tmp_path = tmp_path_factory.mktemp("wheel")

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
        yield Installed(programs, packages, folder)
    finally:
        remove_server(folder / ".state")


def test_a_wheel_works_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    assert installed.run("scm-sync", "--version") == f"scm-sync {__version__}\n"
    assert "0001.core" in installed.run("scm-sync", "db", "migrate")
    svn_samples.create(tmp_path / "odds", svn_samples.odd())
    spec = f"svn:{(tmp_path / 'odds').as_uri()}"
    missing = installed.run("scm-sync", "repo", "add", "--file", "repos.toml", expect=3)
    assert Path(missing.split(" copy ")[1].strip()).is_file()
    assert "HEAD r8" in installed.run("scm-sync", "repo", "add", spec)
    # It loads the code location and executes the Dagster job in this process, with the packaged dagster.yaml.
    found = json.loads(installed.run("scm-sync", "runner", "incremental", "--repo", spec, "--json"))
    assert (found["status"], found["inserted"]) == ("success", 8)
    # Nothing but the state folder was left behind.
    assert [path.name for path in installed.folder.iterdir()] == [".state"]


def test_a_wheel_has_every_file_that_a_clone_runs_with(installed: Installed) -> None:
    found = {str(path.relative_to(installed.packages)) for path in installed.packages.rglob("*")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "sync_pipeline").rglob("*.py")}
    assert modules - found == set()
    names = {Path(path).name for path in found}
    files = [*(ROOT / "sql").rglob("*.sql"), *(ROOT / "sql").glob("*.json"), *ROOT.glob("*.yaml")]
    assert {path.name for path in files} - names == set()
    assert not {path for path in found if path.startswith(("sync_pipeline_tests", "sync_pipeline_sandbox"))}
    # Every module is imported from there, page and daemon as well.
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    program += "; import sync_pipeline; print(sync_pipeline.__file__)"
    dotted = [path.removesuffix(".py").replace("/", ".") for path in modules if "__" not in path]
    where = installed.run("python", "-c", program, *sorted(dotted))
    assert Path(where.strip()).is_relative_to(installed.packages)
