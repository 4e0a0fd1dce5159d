"""The GitLab of the demo: two projects with history, merge requests and reviews, the same at every start.

Belongs here: what the demo's server holds, and where it listens. ``./dev demo`` reads it, and ``./dev up``
starts it again beside the UI, so that what the demo registered goes on syncing. Run as a program it prints
what a shell has to export to ask it too.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sync_pipeline.errors import ConfigurationError, SyncError
from sync_pipeline.sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, serve
from sync_pipeline.sandbox.gitlab.records import Group, Project, Row
from sync_pipeline.settings import load_settings

GROUP = "demo"
PROJECTS = ("demo/engine", "demo/tools/lathe")
"""Paths of the projects; the second one is in a subgroup."""

_DAYS = 60
_FILE = "gitlab.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens, with which token, and when its history begins (UTC)."""

    port: int
    token: str
    since: datetime

    @property
    def url(self) -> str:
        """Address of the instance."""
        return f"http://127.0.0.1:{self.port}"


def place(folder: Path) -> Place | None:
    """The place that was chosen when the demo first ran in ``folder``; None if it never did."""
    try:
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return Place(int(found["port"]), str(found["token"]), datetime.fromisoformat(found["since"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{folder / _FILE} is damaged; delete it and run: ./dev demo") from None


def choose_place(folder: Path) -> Place:
    """The place of the server, chosen now if it was not before."""
    known = place(folder)
    if known is not None:
        return known
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    since = datetime.now(UTC).replace(hour=8, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS)
    fresh = Place(port, f"glpat-{secrets.token_hex(10)}", since)
    content = {"port": port, "token": fresh.token, "since": since.isoformat()}
    handle = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return fresh


def start(folder: Path) -> Server:
    """Serve the sample whose repositories are in ``folder``. Raises ConfigurationError where its port is
    taken."""
    where = choose_place(folder)
    try:
        return serve(build(folder, where), port=where.port)
    except OSError as error:
        raise ConfigurationError(
            f"the GitLab of the demo cannot listen on {where.url} ({error.strerror}); is ./dev up running? "
            f"Else delete {folder / _FILE}"
        ) from None


def build(folder: Path, where: Place) -> GitLab:
    """The control object with everything in it."""
    gitlab = GitLab(first_id=1001)
    gitlab.clock.fixed = where.since
    group = gitlab.group(GROUP)
    below = gitlab.group("tools", parent=group)
    people = [gitlab.user(name) for name in ("ada", "grace", "edsger", "barbara")]
    for person in people:
        gitlab.add_member(group, person, DEVELOPER)
    gitlab.token(people[0], secret=where.token)
    for home, path, count in ((group, "engine", 24), (below, "lathe", 9)):
        _project(gitlab, home, folder / f"{path}.git", path, count, people, where.since)
    gitlab.clock.fixed = None
    return gitlab


def _project(
    gitlab: GitLab, group: Group, folder: Path, path: str, count: int, people: list[Row], since: datetime
) -> None:
    git = _repository(folder, count, since)
    project = gitlab.project(path, group=group, repository=git)
    for number in range(count):
        gitlab.clock.fixed = since + timedelta(days=(_DAYS - 4) * number / count, minutes=number)
        _merge_request(gitlab, project, number, people, last=number >= count - 3)


def _repository(folder: Path, count: int, since: datetime) -> GitRepository:
    """A repository with a branch per merge request; kept from one start to the next."""
    if folder.exists():
        return GitRepository(folder)
    making = folder.with_suffix(".making")
    git = GitRepository.create(making)
    git.commit("main", "Begin\n", files={"README.md": "sample\n"}, date=_date(since, 0))
    for number in range(count):
        tip = git.resolve("refs/heads/main")
        assert tip is not None
        name = f"topic-{number + 1}"
        files = {f"part{number % 5}.txt": "".join(f"line {n}\n" for n in range(number + 3))}
        done = git.commit(
            name, f"Work on part {number + 1}\n", files=files, parents=[tip], date=_date(since, number)
        )
        if number < count - 3:
            text = f"Merge branch '{name}'\n"
            git.commit("main", text, files=files, parents=[tip, done], date=_date(since, number))
    main = git.resolve("refs/heads/main")
    assert main is not None
    git.tag("v1.0", main, message="First release\n", date=_date(since, count))
    making.rename(folder)
    return GitRepository(folder)


def _date(since: datetime, number: int) -> str:
    return f"{int((since + timedelta(hours=36 * number)).timestamp())} +0200"


def _merge_request(gitlab: GitLab, project: Project, number: int, people: list[Row], *, last: bool) -> None:
    author, reviewer = people[number % 4], people[(number + 1) % 4]
    request = gitlab.open_merge_request(
        project, title=f"Part {number + 1}", source=f"topic-{number + 1}", author=author
    )
    gitlab.add_label(project, request, author, "bug" if number % 3 else "feature")
    gitlab.request_review(request, author, reviewer)
    assert gitlab.clock.fixed is not None
    gitlab.clock.fixed += timedelta(hours=2 + number % 7)
    note = gitlab.comment(request, reviewer, f"Is line {number} needed?")
    gitlab.clock.fixed += timedelta(minutes=20)
    gitlab.comment(request, author, "It is; see the description.")
    if number % 2:
        gitlab.edit_note(request, note, f"Is line {number} still needed?", bump=True)
    if last:
        return
    gitlab.clock.fixed += timedelta(hours=1 + number % 5)
    gitlab.approve(request, reviewer)
    gitlab.clock.fixed += timedelta(minutes=5)
    if number % 8 == 5:
        gitlab.close(request, author)
    else:
        gitlab.merge(request, reviewer)


def main() -> int:
    """Print what a shell has to export to use ``scm-sync`` with the demo's GitLab while ``./dev up`` serves
    it; 3 before the demo has run."""
    try:
        where = place(load_settings().state_dir / "samples")
    except SyncError as error:
        print(f"sample_gitlab: {error}", file=sys.stderr)
        return 3
    if where is None:
        print("sample_gitlab: the demo has not run yet; run: ./dev demo", file=sys.stderr)
        return 3
    print(f"export SCM_GITLAB_URL={where.url} SCM_GITLAB_TOKEN={where.token}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
