"""The pictures of the tutorial, taken from the running UI by a headless Chromium.

Belongs here: which pages, and how one is taken. Run ``./dev demo`` and ``./dev up`` first, then
``.venv/bin/python -m sync_pipeline_sandbox.screenshots``; the Debian package is ``chromium``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sync_pipeline.core import catalog
from sync_pipeline.core.child_environment import child_environment
from sync_pipeline.core.errors import ConfigurationError, SyncError
from sync_pipeline.core.model import Kind
from sync_pipeline.orchestration import ui
from sync_pipeline.settings import Settings, load_settings, project_root

FOLDER = project_root() / "docs" / "tutorial"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SIZE = "1600,1000"
# Milliseconds that a page gets to ask for its data and to draw.
_PATIENCE = 20_000


def pages(settings: Settings) -> Mapping[str, str]:
    """File name and path of each page. Raises ConfigurationError before the demo has run."""
    repositories = catalog.read_snapshot(settings.catalog_file).repositories
    gitlab = next((r for r in repositories if r.kind is Kind.GITLAB), None)
    svn = next((r for r in repositories if r.kind is Kind.SVN), None)
    if gitlab is None or svn is None:
        raise ConfigurationError("the demo's repositories are not there; run: ./dev demo")
    of_gitlab, of_svn = (f"assets/{r.instance_slug}/{r.slug}" for r in (gitlab, svn))
    return {
        "catalog": "assets",
        "partitions": f"{of_gitlab}/merge_requests?view=partitions",
        "asset": f"{of_gitlab}/commits?view=overview",
        "check": f"{of_svn}/revisions?view=checks",
        "runs": "runs",
    }


def take(browser: str, address: str, file: Path) -> None:
    """One picture. Raises ConfigurationError where the browser does not make it."""
    with tempfile.TemporaryDirectory(prefix="scm-chromium-") as profile:
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--user-data-dir={profile}",
            f"--window-size={_SIZE}",
            f"--virtual-time-budget={_PATIENCE}",
            f"--screenshot={file}",
            address,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            env=child_environment(["HOME"]),
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode != 0 or not file.is_file():
        raise ConfigurationError(f"{browser} made no picture of {file.stem}; is it the whole package?")


def main() -> int:
    """Take every picture; 0 when all were, 3 when something has to be set right first."""
    try:
        settings = load_settings()
        browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
        if browser is None:
            raise ConfigurationError("there is no Chromium; on Debian: apt-get install chromium")
        there = ui.running(settings)
        if there is None:
            raise ConfigurationError("the UI does not run; start it with: ./dev up")
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, path in pages(settings).items():
            mark = "&" if "?" in path else "?"
            take(browser, f"{there.url}/{path}{mark}token={ui.token(settings)}", FOLDER / f"{name}.png")
            print(FOLDER / f"{name}.png")
    except SyncError as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
