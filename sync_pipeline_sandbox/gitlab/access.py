"""The user of a request, and their rights.

Belongs here: tokens, scopes, roles and features, and the refusal for each missing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sync_pipeline_sandbox.gitlab import responses
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.records import OWNER, REPORTER, Group, Note, Project, Row, Token

API = ("api", "read_api")


def sent_secret(headers: Mapping[str, str], query: Iterable[tuple[str, str]]) -> tuple[str | None, bool]:
    """The secret a request carries, and whether it is in the URL, where it does not belong."""
    if secret := headers.get("private-token"):
        return secret, False
    kind, _, secret = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret:
        return secret.strip(), False
    in_url = [value for name, value in query if name in ("private_token", "access_token")]
    return (in_url[0], True) if in_url else (None, False)


def authenticate(gitlab: GitLab, secret: str | None, scopes: tuple[str, ...] = API) -> Token | None:
    """The token of a request; None without one. No ``scopes`` means that any will do. Raises Refusal."""
    if secret is None:
        return None
    token = gitlab.tokens.get(secret)
    if token is None:
        raise responses.unauthorized()
    if token.revoked:
        raise responses.token_revoked()
    if token.expires_at is not None and token.expires_at <= gitlab.clock.now().date():
        raise responses.token_expired()
    if scopes and not set(token.scopes) & set(scopes):
        raise responses.insufficient_scope(" ".join(scopes))
    if token.user["state"] == "blocked":
        raise responses.forbidden("Your account has been blocked.")
    return token


def sees_project(gitlab: GitLab, project: Project, user: Row | None) -> bool:
    """Whether a project exists for this reader."""
    if project.pending_delete:
        return False
    open_to = {"public": True, "internal": user is not None}.get(project.visibility, False)
    return open_to or gitlab.level(project, user) > 0


def sees_group(gitlab: GitLab, group: Group, user: Row | None) -> bool:
    """Whether a group exists for this reader: public, or a member of it, of one above or of something
    below."""
    open_to = {"public": True, "internal": user is not None}.get(group.visibility, False)
    if open_to or gitlab.level(group, user) > 0:
        return True
    below = (other for other in gitlab.groups.values() if group in other.chain())
    projects = (one for one in gitlab.projects.values() if group in one.group.chain())
    return any(gitlab.level(other, user) for other in below) or any(
        gitlab.level(one, user) and sees_project(gitlab, one, user) for one in projects
    )


def may(gitlab: GitLab, project: Project, user: Row | None, feature: str) -> bool:
    """Whether a reader may use ``repository`` or ``merge_requests`` of a project they see."""
    setting = getattr(project, f"{feature}_access_level")
    level = gitlab.level(project, user)
    if setting == "disabled" or (setting == "private" and level == 0):
        return False
    return level >= REPORTER or (project.visibility != "private" and (setting == "enabled" or level > 0))


def need_repository(gitlab: GitLab, project: Project, user: Row | None) -> None:
    """Raises Refusal when a reader may not read code: 404 when it is switched off for them, 403 when their
    role is too low."""
    if may(gitlab, project, user, "repository"):
        return
    setting, level = project.repository_access_level, gitlab.level(project, user)
    if setting == "disabled" or (setting == "private" and level == 0):
        raise responses.not_found("Repository")
    raise responses.forbidden()


def sees_note(gitlab: GitLab, project: Project, user: Row | None, note: Note) -> bool:
    """Whether a reader sees a note; internal ones need a reporter, or their author."""
    if not (note.row.get("internal") or note.row.get("confidential")):
        return True
    author = note.row.get("author")
    own = user is not None and author is not None and author["id"] == user["id"]
    return own or gitlab.level(project, user) >= REPORTER


def is_admin(gitlab: GitLab, user: Row | None) -> bool:
    """Whether a user administers the instance."""
    return user is not None and int(user["id"]) in gitlab.admins


__all__ = [
    "API",
    "OWNER",
    "authenticate",
    "is_admin",
    "may",
    "need_repository",
    "sees_group",
    "sees_note",
    "sees_project",
    "sent_secret",
]
