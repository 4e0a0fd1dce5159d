"""Virtual environments of the peers, each installed from the package index that pip is set up for.

Belongs here: making them once below ``.venv-bench``. A peer needs other versions of packages than we do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parents[1] / ".venv-bench"


class NotInstalled(Exception):
    """A peer could not be installed; the text is the last line of pip."""


def installed(requirement: str, module: str) -> Path:
    """The Python of an environment that has this requirement; it is made when it is missing.

    Raises NotInstalled.
    """
    folder = ENVIRONMENTS / module
    python = folder / "bin" / "python"
    # The stamp is written last, so that an interrupted installation is repeated.
    stamp = folder / "requirement.txt"
    if stamp.exists() and stamp.read_text() == requirement:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement])
    stamp.write_text(requirement)
    return python


def version(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return _run([str(python), "-c", code, package]).strip()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        raise NotInstalled(lines[-1] if lines else f"pip ended with {done.returncode}")
    return done.stdout
