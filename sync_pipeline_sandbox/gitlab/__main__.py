"""``python -m sync_pipeline_sandbox.gitlab``: a small GitLab to try things on, until Ctrl-C.

Belongs here: the command line of the server. Tests and the demo use
:func:`sync_pipeline_sandbox.gitlab.serve`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, serve
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.git import GitError
from sync_pipeline_sandbox.gitlab.recorded import load_recorded


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted or ended; 0 then, 3 when something has to be set right first."""
    parser = argparse.ArgumentParser(
        prog="python -m sync_pipeline_sandbox.gitlab",
        description="A small GitLab on the loopback address. It prints its address and a token.",
    )
    parser.add_argument(
        "--repository", action="append", default=[], type=Path, help="a git repository to serve"
    )
    parser.add_argument("--recorded", type=Path, help="a folder with merge_requests.json to serve")
    parser.add_argument("--generate", type=int, default=0, help="make a project with so many merge requests")
    parser.add_argument("--port", type=int, default=0, help="port; 0 is a free one (default)")
    parser.add_argument("--prefix", default="", help="path the instance lives under, such as /gitlab")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that every answer takes at least")
    options = parser.parse_args(arguments)
    gitlab = GitLab()
    gitlab.behaviour.latency = options.latency
    group = gitlab.group("team1")
    user = gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    token = gitlab.token(user)
    try:
        for path in options.repository:
            gitlab.project(path.resolve().name.removesuffix(".git"), group=group, repository=path)
        if options.recorded:
            load_recorded(gitlab, options.recorded, group=group)
        if options.generate:
            generate(gitlab, group, merge_requests=options.generate)
        server = serve(gitlab, prefix=options.prefix, port=options.port)
    except GitError as error:
        print(f"sandbox: this is not a git repository: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 3
    for project in gitlab.projects.values():
        print(f"{server.url}/{project.full_path}  (project {project.id})")
    print(f"API {server.api}  token {token.secret}", flush=True)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with server:
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
