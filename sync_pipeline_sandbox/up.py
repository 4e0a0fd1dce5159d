"""Runs ``scm-sync up`` for ``./dev up``, with the demo's GitLab beside it if the demo has run.

Belongs here: only that. With a configured GitLab ``scm-sync up`` runs unchanged.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from sync_pipeline import cli
from sync_pipeline.core.errors import SyncError
from sync_pipeline.orchestration import ui
from sync_pipeline.settings import load_settings
from sync_pipeline_sandbox import sample_gitlab


def main() -> None:
    """Serve until Ctrl-C; ends the process with the exit code of ``scm-sync up``."""
    with ExitStack() as stack:
        try:
            settings = load_settings()
            folder = settings.state_dir / "samples"
            where = sample_gitlab.address(folder)
            # A shell that was told of the sample has no GitLab of its own.
            others = [server for server in settings.gitlab_servers() if where and server.url != where.url]
            if where is not None and not others and ui.running(settings) is None:
                stack.enter_context(sample_gitlab.start(folder))
                os.environ["SCM_GITLAB_URL"], os.environ["SCM_GITLAB_TOKEN"] = where.url, where.token
        except SyncError as error:
            # The command itself says it again where it matters.
            print(f"dev up: {error}", file=sys.stderr)
        cli.main(["up", *sys.argv[1:]])


if __name__ == "__main__":
    main()
