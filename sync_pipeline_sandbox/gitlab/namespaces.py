"""Groups, projects, people and tokens of the mock GitLab, and their changes.

Belongs here: the registries, and finding objects by id, path or old path. Also the changes that a test or
demo makes: rename, move, archive, disable, delete, and revoke a token. Merge requests are in
:mod:`sync_pipeline_sandbox.gitlab.control`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_sandbox.gitlab.records import (
    EXTERNAL,
    OWNER,
    Behaviour,
    Clock,
    Group,
    MergeRequest,
    Project,
    Row,
    Token,
    stamp,
)


class Namespaces:
    """Everything but merge requests. Every public method takes ``lock``, which the server takes too, so they
    may be called while it answers."""

    def __init__(self, behaviour: Behaviour | None = None, *, first_id: int = 1) -> None:
        """``first_id`` is the smallest id of everything made here; a large one finds ids cut to 32 bits or
        rounded as floating point."""
        self.lock = threading.RLock()
        self.behaviour = behaviour or Behaviour()
        self.clock = Clock()
        self.users: dict[int, Row] = {}
        self.admins: set[int] = set()
        self.tokens: dict[str, Token] = {}
        self.groups: dict[int, Group] = {}
        self.projects: dict[int, Project] = {}
        self.old_paths: dict[str, int] = {}
        """Project id by every path that a project once had."""
        self._next: defaultdict[str, int] = defaultdict(lambda: first_id)

    def next_id(self, kind: str) -> int:
        """A fresh id among things of one kind."""
        with self.lock:
            taken = self._next[kind]
            self._next[kind] = taken + 1
            return taken

    def continue_ids(self, first_id: int) -> None:
        """Let all ids from now on be at least ``first_id``."""
        with self.lock:
            later = {kind: max(number, first_id) for kind, number in self._next.items()}
            self._next = defaultdict(lambda: first_id, later)

    # --- People ---------------------------------------------------------------------------------------------

    def user(self, username: str, *, name: str | None = None, admin: bool = False, **fields: Any) -> Row:
        """Make a user; ``fields`` go over the row. The same row is in everything that mentions the user, so a
        change to it shows everywhere."""
        with self.lock:
            number = int(fields.get("id", self.next_id("user")))
            row: Row = {
                "id": number,
                "username": username,
                "public_email": "",
                "name": name or username.title(),
                "state": "active",
                "locked": False,
                "avatar_url": f"{EXTERNAL}/uploads/-/system/user/avatar/{number}/avatar.png",
                "web_url": f"{EXTERNAL}/{username}",
            } | fields
            self.users[number] = row
            if admin:
                self.admins.add(number)
            return row

    def ghost(self) -> Row:
        """The one user who stands for all deleted ones."""
        with self.lock:
            found = [row for row in self.users.values() if row["username"] == "ghost"]
            return found[0] if found else self.user("ghost", name="Ghost User")

    def delete_user(self, user: Row, *, leave_null: bool = False) -> None:
        """Delete a user: all that was theirs belongs to the ghost (or to nobody), and no ``updated_at``
        moves."""
        with self.lock:
            heir = None if leave_null else self.ghost()
            for project in self.projects.values():
                for request in project.merge_requests.values():
                    _replace_person(request, int(user["id"]), heir)
                for note in project.commit_notes:
                    if note.row["author"] is user:
                        note.row["author"] = heir
            self.users.pop(int(user["id"]), None)
            for token in self.tokens.values():
                token.revoked = token.revoked or token.user["id"] == user["id"]

    def block_user(self, user: Row) -> None:
        """Block a user; their tokens answer 403."""
        with self.lock:
            user["state"] = "blocked"

    def token(
        self,
        user: Row,
        *,
        secret: str | None = None,
        name: str = "sync",
        scopes: tuple[str, ...] = ("read_api",),
        expires_at: date | None = None,
    ) -> Token:
        """Make an access token. Without an expiry date it lasts a year."""
        with self.lock:
            number = self.next_id("token")
            now = self.clock.now()
            fresh = Token(
                secret=secret or f"glpat-sandbox-{number:08d}",
                id=number,
                user=user,
                name=name,
                scopes=scopes,
                created_at=now,
                expires_at=expires_at or (now + timedelta(days=365)).date(),
            )
            self.tokens[fresh.secret] = fresh
            return fresh

    def revoke(self, token: Token) -> None:
        """Revoke a token from the next request on."""
        with self.lock:
            token.revoked = True

    # --- Groups ---------------------------------------------------------------------------------------------

    def group(
        self, path: str, *, parent: Group | None = None, visibility: str = "private", kind: str = "group"
    ) -> Group:
        """Make a group, or with ``parent`` a subgroup."""
        with self.lock:
            fresh = Group(
                id=self.next_id("group"),
                name=path.title(),
                path=path,
                parent=parent,
                created_at=self.clock.now(),
                visibility=visibility,
                kind=kind,
            )
            self.groups[fresh.id] = fresh
            return fresh

    def add_member(self, namespace: Group | Project, user: Row, level: int) -> None:
        """Give a user a role in a group or project, or another one; ``level`` 0 takes it away."""
        with self.lock:
            if level:
                namespace.members[int(user["id"])] = level
            else:
                namespace.members.pop(int(user["id"]), None)

    def rename_group(self, group: Group, path: str) -> None:
        """Give a group another path; all projects below it move along."""
        with self.lock:
            below = [project for project in self.projects.values() if group in project.group.chain()]
            for project in below:
                self.old_paths[project.full_path.casefold()] = project.id
            group.path = path
            for project in below:
                self.old_paths.pop(project.full_path.casefold(), None)

    def delete_group(self, group: Group) -> None:
        """Delete a group with all that is below it."""
        with self.lock:
            for project in [one for one in self.projects.values() if group in one.group.chain()]:
                self.delete_project(project)
            for found in [one for one in self.groups.values() if group in one.chain()]:
                del self.groups[found.id]

    # --- Projects -------------------------------------------------------------------------------------------

    def project(
        self,
        path: str,
        *,
        group: Group,
        repository: GitRepository | Path | None = None,
        visibility: str = "private",
        project_id: int | None = None,
    ) -> Project:
        """Make a project over a git repository (or without one on disk)."""
        with self.lock:
            now = self.clock.now()
            git = GitRepository(repository) if isinstance(repository, Path) else repository
            fresh = Project(
                id=project_id if project_id is not None else self.next_id("project"),
                name=path,
                path=path,
                group=group,
                created_at=now,
                updated_at=now,
                last_activity_at=now,
                repository=git,
                default_branch=(git.head_branch() if git else None) or "main",
                visibility=visibility,
            )
            self.projects[fresh.id] = fresh
            self.old_paths.pop(fresh.full_path.casefold(), None)
            return fresh

    def rename_project(self, project: Project, path: str) -> None:
        """Give a project another path; the old one redirects."""
        self.move_project(project, project.group, path)

    def move_project(self, project: Project, group: Group, path: str | None = None) -> None:
        """Transfer a project to another group; the old path redirects."""
        with self.lock:
            self.old_paths[project.full_path.casefold()] = project.id
            project.group, project.path = group, path or project.path
            project.name = path or project.name
            self.old_paths.pop(project.full_path.casefold(), None)
            project.updated_at = self.clock.now()

    def archive(self, project: Project, archived: bool = True) -> None:
        """Archive a project or bring it back."""
        with self.lock:
            project.archived = archived
            project.updated_at = self.clock.now()

    def switch_feature(self, project: Project, feature: str, level: str) -> None:
        """Set ``repository`` or ``merge_requests`` to ``enabled``, ``private`` or ``disabled``."""
        with self.lock:
            setattr(project, f"{feature}_access_level", level)
            project.updated_at = self.clock.now()

    def mark_for_deletion(self, project: Project, *, hidden: bool = False) -> None:
        """Begin a delayed deletion: still readable and marked, or already hidden from readers."""
        with self.lock:
            project.marked_for_deletion_on = self.clock.now().date()
            project.pending_delete = hidden

    def restore(self, project: Project) -> None:
        """Take a delayed deletion back."""
        with self.lock:
            project.marked_for_deletion_on, project.pending_delete = None, False

    def delete_project(self, project: Project) -> None:
        """Delete a project for good."""
        with self.lock:
            self.projects.pop(project.id, None)
            for path in [path for path, number in self.old_paths.items() if number == project.id]:
                del self.old_paths[path]

    # --- Finding --------------------------------------------------------------------------------------------

    def find_project(self, key: str) -> tuple[Project | None, bool]:
        """A project by id or path, and whether the path is an old one. Paths ignore case."""
        with self.lock:
            if key.isdigit():
                return self.projects.get(int(key)), False
            wanted = key.casefold()
            for project in self.projects.values():
                if project.full_path.casefold() == wanted:
                    return project, False
            old = self.projects.get(self.old_paths.get(wanted, -1))
            return old, old is not None

    def find_group(self, key: str) -> Group | None:
        """A group by id or path."""
        with self.lock:
            if key.isdigit():
                return self.groups.get(int(key))
            return next(
                (one for one in self.groups.values() if one.full_path.casefold() == key.casefold()), None
            )

    def level(self, namespace: Group | Project, user: Row | None) -> int:
        """A user's access level in a place, with what groups above give; 0 is none."""
        if user is None:
            return 0
        number = int(user["id"])
        if number in self.admins:
            return OWNER
        groups = namespace.chain() if isinstance(namespace, Group) else namespace.group.chain()
        levels = [group.members.get(number, 0) for group in groups]
        if isinstance(namespace, Project):
            levels.append(namespace.members.get(number, 0))
            levels += [group.members.get(number, 0) for group in namespace.shared_with]
        return max(levels)

    def full_user(self, user: Row) -> Row:
        """The row of ``/user``: what one sees about oneself."""
        made = stamp(self.clock.now())
        email = f"{user['username']}@example.test"
        return user | {
            "created_at": made,
            "bio": "",
            "location": "",
            "linkedin": "",
            "twitter": "",
            "discord": "",
            "website_url": "",
            "organization": "",
            "job_title": "",
            "pronouns": None,
            "bot": False,
            "work_information": None,
            "followers": 0,
            "following": 0,
            "local_time": None,
            "last_sign_in_at": made,
            "confirmed_at": made,
            "last_activity_on": made[:10],
            "email": email,
            "theme_id": 1,
            "color_scheme_id": 1,
            "projects_limit": 100000,
            "current_sign_in_at": made,
            "identities": [],
            "can_create_group": True,
            "can_create_project": True,
            "two_factor_enabled": False,
            "external": False,
            "private_profile": False,
            "commit_email": email,
        }


def _replace_person(request: MergeRequest, number: int, heir: Row | None) -> None:
    """Put another person, or nobody, wherever one is named in a merge request and its children."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            if "username" in value and value.get("id") == number:
                return heir
            for key in value:
                value[key] = replaced(value[key])
        elif isinstance(value, list):
            value[:] = [one for one in map(replaced, value) if one is not None]
        return value

    replaced(request.row)
    replaced(request.detail)
    for note in request.notes:
        replaced(note.row)
    for rows in (request.state_events, request.label_events, request.milestone_events):
        replaced(rows)
    request.approved_by[:] = [one for one in request.approved_by if one["user"]["id"] != number]
    request.reviewers[:] = [one for one in request.reviewers if one["user"]["id"] != number]
