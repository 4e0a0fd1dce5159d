"""The application: all routes of the small GitLab under one path, behind its front.

Belongs here: putting the parts together, and the pages that are not the API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from sync_pipeline_sandbox.gitlab import (
    graphql_endpoint,
    responses,
    routes_merge_requests,
    routes_namespaces,
    routes_repository,
)
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.endpoint import Endpoint, refused
from sync_pipeline_sandbox.gitlab.faults import LOGIN_PAGE
from sync_pipeline_sandbox.gitlab.front import Front

ENDPOINTS = (*routes_namespaces.ENDPOINTS, *routes_repository.ENDPOINTS, *routes_merge_requests.ENDPOINTS)
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def build_app(gitlab: GitLab, *, prefix: str = "") -> ASGIApp:
    """An ASGI application for a control object. ``prefix`` is the path the instance lives under (a relative
    URL root such as ``/gitlab``)."""
    routes = [_route(gitlab, endpoint) for endpoint in ENDPOINTS]
    api = Mount(f"{prefix}/api/v4", routes=routes)
    graphql = Route(f"{prefix}{graphql_endpoint.PATH}", _graphql(gitlab), methods=_METHODS)
    sign_in = Route(f"{prefix}/users/sign_in", lambda _: HTMLResponse(LOGIN_PAGE))
    elsewhere = Route("/{rest:path}", _elsewhere(prefix), methods=_METHODS)
    app = Starlette(routes=[api, graphql, sign_in, elsewhere], exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    return Front(app, gitlab, prefix)


def _route(gitlab: GitLab, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        request.scope["sandbox.entry"].route = endpoint.path
        return await endpoint(gitlab, request)

    return Route(endpoint.path, answer, methods=_METHODS)


def _graphql(gitlab: GitLab) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        request.scope["sandbox.entry"].route = graphql_endpoint.PATH
        return await graphql_endpoint.answer(gitlab, request)

    return answer


def _elsewhere(prefix: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.url.path.startswith(f"{prefix}/api/"):
            return refused(responses.no_route(), "")
        if request.url.path.startswith(f"{prefix}/"):
            return RedirectResponse(f"{prefix}/users/sign_in", 302)
        return HTMLResponse("<html><head><title>404 Not Found</title></head></html>", 404)

    return answer


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return refused(responses.no_route(), "") if status == 404 else PlainTextResponse(str(error), status)
