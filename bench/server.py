"""``python -m bench.server``: the mock GitLab of a comparison, in a process of its own.

Belongs here: the projects that everybody reads, the behaviours of the server, and its counts. Each line
of its input is a command, which it answers with a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, serve
from sync_pipeline_sandbox.gitlab.records import RateLimit
from sync_pipeline_sandbox.gitlab.world import Truth, build_world


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the server answers: seconds of latency, and at most so many requests a second (None: any)."""

    name: str
    latency: float = 0.0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The requests to the server since the last :meth:`Measured.start`.

    ``refused`` of the ``requests`` were answered 429. ``in_flight`` is the most that were answered at once.
    """

    requests: int
    refused: int
    in_flight: int

    def plus(self, other: Counted) -> Counted:
        """The counts of two phases together."""
        most = max(self.in_flight, other.in_flight)
        return Counted(self.requests + other.requests, self.refused + other.refused, most)


@dataclass(frozen=True, slots=True)
class Subject:
    """A project to read: its number and path, and how many rows it has."""

    project: int
    path: str
    truth: Truth


class Measured:
    """The running server, seen from the benchmark. Use it as a context manager."""

    def __init__(self, sizes: list[int]) -> None:
        """Start it with a project of each size. Raises RuntimeError if it does not start."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.server", *map(str, sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started = self._answer()
        self.url: str = started["url"]
        self.token: str = started["token"]
        self.subjects = {
            size: Subject(found["project"], found["path"], Truth(**found["truth"]))
            for size, found in zip(sizes, started["subjects"], strict=True)
        }

    def start(self, behaviour: Behaviour) -> None:
        """Behave like this from now on, and forget all counts."""
        self._ask({"behave": asdict(behaviour)})

    def counted(self) -> Counted:
        """The requests since the last start or count; it begins to count anew."""
        return Counted(**self._ask({"count": True}))

    def change(self, project: int) -> None:
        """Comment on a merge request of the project, and push to its branch ``develop``."""
        self._ask({"change": project})

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the mock GitLab of the benchmark ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Measured:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It closes the pipes and waits: the server ends with its input.
        self._process.__exit__(kind, error, trace)


def main() -> int:
    """Serve a project of each size in the arguments until the input ends."""
    gitlab = GitLab()
    group, reader = gitlab.group("team1"), gitlab.user("reader")
    gitlab.add_member(group, reader, DEVELOPER)
    token = gitlab.token(reader)
    with tempfile.TemporaryDirectory(prefix="scm-bench-world-") as folder:
        worlds = [
            build_world(gitlab, group, Path(folder), merge_requests=int(size), path=f"world-{size}")
            for size in sys.argv[1:]
        ]
        subjects = [
            {"project": one.project.id, "path": one.project.full_path, "truth": asdict(one.truth)}
            for one in worlds
        ]
        with serve(gitlab) as server:
            _say({"url": server.url, "token": token.secret, "subjects": subjects})
            for line in sys.stdin:
                _say(_obey(gitlab, json.loads(line)))
    return 0


def _obey(gitlab: GitLab, command: dict[str, Any]) -> dict[str, int]:
    """Change a project, or change the behaviour and begin to count anew. Gives the counts so far."""
    journal = gitlab.journal
    refused = journal.by_status()[429]
    counted = Counted(journal.count() - refused, refused, journal.most_running)
    if "change" in command:
        project = gitlab.projects[command["change"]]
        gitlab.comment(project.merge_requests[7], None, "one more")
        gitlab.push(project, "develop")
    else:
        journal.clear()
    if "behave" in command:
        behaviour = Behaviour(**command["behave"])
        gitlab.behaviour.latency = behaviour.latency
        limit = behaviour.limit
        gitlab.behaviour.rate_limit = None if limit is None else RateLimit(limit, period=1)
    return asdict(counted)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
