"""One request: from the path and query to a project, and from rows to a response.

Belongs here: the parts that all routes share. They are the token, the parameters, finding the project, group
or merge request of a path with the right refusal, and writing JSON. The routes are in the modules
``routes_*``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from sync_pipeline_sandbox.gitlab import access, parameters, responses
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_sandbox.gitlab.paging import Page, Pager
from sync_pipeline_sandbox.gitlab.parameters import Parameter
from sync_pipeline_sandbox.gitlab.records import EXTERNAL, Group, MergeRequest, Project, Row, Token
from sync_pipeline_sandbox.gitlab.shapes import aged

_REQUEST_NAMES = ("merge_request_iid", "noteable_id", "eventable_id")


@dataclass(slots=True)
class Ask:
    """A request with what it resolved to. ``path`` has the decoded parts of the path, ``values`` all
    parameters with defaults."""

    gitlab: GitLab
    request: Request
    path: Mapping[str, str]
    values: dict[str, Any]
    token: Token | None

    @property
    def user(self) -> Row | None:
        """Who asks; None without a token."""
        return self.token.user if self.token else None

    def pager(self, **more: Any) -> Pager:
        """Paging of this request; ``more`` are further parameters that the server resolved."""
        route = self.request.scope["path"]
        behaviour = self.gitlab.behaviour
        values = dict(self.path) | self.values | more
        inside = route.removeprefix(self.request.scope.get("root_path", ""))
        return Pager(f"{EXTERNAL}{inside}", values, behaviour.total_limit, behaviour.max_offset)

    def project(self) -> Project:
        """The project in the path. Raises Refusal: 404 when there is none for this reader, 301 for an old
        path."""
        found, old = self.gitlab.find_project(self.path["id"])
        if found is None or not access.sees_project(self.gitlab, found, self.user):
            raise responses.not_found("Project")
        if old:
            raise responses.moved(self._location(found))
        return found

    def group(self) -> Group:
        """The group in the path. Raises Refusal (404) when there is none for this reader."""
        found = self.gitlab.find_group(self.path["id"])
        if found is None or found.kind != "group" or not access.sees_group(self.gitlab, found, self.user):
            raise responses.not_found("Group")
        return found

    def repository(self, project: Project) -> GitRepository:
        """The repository of a project. Raises Refusal when the reader may not, or there is none."""
        access.need_repository(self.gitlab, project, self.user)
        if project.repository is None:
            raise responses.not_found("Repository")
        return project.repository

    def merge_request(self, project: Project) -> MergeRequest:
        """The merge request in the path. Raises Refusal: 404 for an unknown iid, 403 where the reader may
        not."""
        key = next(self.path[name] for name in _REQUEST_NAMES if name in self.path)
        if not key.isdigit():
            name = next(name for name in _REQUEST_NAMES if name in self.path)
            raise responses.invalid(f"{name} is invalid")
        found = project.merge_requests.get(int(key))
        if found is None:
            raise responses.not_found()
        if not access.may(self.gitlab, project, self.user, "merge_requests"):
            raise responses.forbidden()
        return found

    def _location(self, project: Project) -> str:
        route: str = self.request.scope["path"].removeprefix(self.request.scope.get("root_path", ""))
        _, _, tail = route.removeprefix("/projects/").partition("/")
        query = self.request.url.query
        return (
            f"{EXTERNAL}/projects/{project.id}"
            + (f"/{tail}" if tail else "")
            + (f"?{query}" if query else "")
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One GET route. ``answer`` gives a JSON value or a page. ``needs_user``: 401 without a token, also where
    the project is public. ``scopes`` empty: any token will do. ``locked``: answer while nothing changes (not
    for those that wait for git)."""

    path: str
    answer: Callable[[Ask], Any]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs_user: bool = False
    scopes: tuple[str, ...] = access.API
    locked: bool = True

    async def __call__(self, gitlab: GitLab, request: Request) -> Response:
        """Answer a request."""
        return await run_in_threadpool(self._respond, gitlab, request)

    def _respond(self, gitlab: GitLab, request: Request) -> Response:
        base = request.scope["sandbox.base"]
        try:
            with gitlab.lock if self.locked else nullcontext():
                content, headers = self._content(gitlab, request)
        except responses.Refusal as refusal:
            return refused(refusal, base)
        return _response(request, content, headers, base)

    def _content(self, gitlab: GitLab, request: Request) -> tuple[bytes, Mapping[str, str]]:
        """The body and the headers of a good answer. Rows are shared with the control object, so they are
        bytes before the lock is given back."""
        token = access.authenticate(gitlab, request.scope["sandbox.secret"], self.scopes)
        path = {key: unquote(value) for key, value in request.path_params.items()}
        if request.method not in ("GET", "HEAD"):
            if "id" in path and self.path.startswith("/projects/{id}") and gitlab.find_project(path["id"])[1]:
                raise responses.moved_for_writes()
            raise responses.Refusal(405, {"error": "405 Not Allowed"})
        if self.needs_user and token is None:
            raise responses.unauthorized()
        values = parameters.read(request.query_params.multi_items(), self.parameters)
        value = self.answer(Ask(gitlab, request, path, values, token))
        rows, headers = (value.rows, value.headers) if isinstance(value, Page) else (value, {})
        return compact(aged(rows) if gitlab.behaviour.old else rows), headers


def refused(refusal: responses.Refusal, base: str) -> Response:
    """The answer of a refusal."""
    headers = {key: value.replace(EXTERNAL, base) for key, value in refusal.headers.items()}
    if isinstance(refusal.body, bytes):
        body = refusal.body.decode().replace(EXTERNAL, base)
        return Response(body, refusal.status, headers, "text/plain")
    return Response(compact(refusal.body), refusal.status, headers, "application/json")


def _response(request: Request, content: bytes, headers: Mapping[str, str], base: str) -> Response:
    content = with_addresses(content, base)
    etag = f'W/"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
    sent = {key: text.replace(EXTERNAL, base) for key, text in headers.items()} | {"ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(b"", 304, sent)
    return Response(content, 200, sent, "application/json")


def with_addresses(content: bytes, base: str) -> bytes:
    """A body with the server's own address; ``base`` is that of the REST API."""
    root = base.removesuffix("/api/v4")
    host = urlsplit(root).hostname or "localhost"
    content = content.replace(f"git@{EXTERNAL.split('://', 1)[1]}".encode(), f"git@{host}".encode())
    for address, real in ((f"{EXTERNAL}/api/v4", base), (EXTERNAL, root)):
        content = content.replace(address.encode(), real.encode())
    return content


def compact(value: Any) -> bytes:
    """A JSON value as the server writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", errors="replace")
