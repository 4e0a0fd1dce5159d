"""The layer before the routes: the journal, the throttle, the faults, the server's own clock.

Belongs here: everything that happens to a request or a response on every route, as nginx and Rack do it for
GitLab. Faults that cut or reset the connection need uvicorn, because they use its transport.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sync_pipeline_sandbox.gitlab import graphql_endpoint
from sync_pipeline_sandbox.gitlab.access import sent_secret
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.faults import (
    CannedResponse,
    Do,
    Edited,
    Fault,
    ForeignLink,
    Poison,
    Reset,
    Slow,
    Stall,
    Truncated,
    WithoutHeaders,
    server_error,
)
from sync_pipeline_sandbox.gitlab.journal import LoggedRequest

_SECRETS = re.compile(r"((?:private|access)_token=)[^&]*")


@dataclass(slots=True)
class _Reply:
    """A whole answer before it is sent."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def set(self, name: str, value: str) -> None:
        self.drop(name)
        self.headers.append((name.encode(), value.encode("latin-1", errors="replace")))

    def get(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.lower().encode()]
        return found[0].decode("latin-1") if found else None

    def drop(self, name: str) -> None:
        self.headers = [(key, value) for key, value in self.headers if key.lower() != name.lower().encode()]


class Front:
    """The ASGI application around the routes of one server."""

    def __init__(self, app: ASGIApp, gitlab: GitLab, prefix: str) -> None:
        """``prefix`` is the path the instance lives under, such as ``/gitlab``, or empty."""
        self.app, self.gitlab, self.prefix = app, gitlab, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; websockets and the like are passed on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = self._enter(scope)
        if scope["path"] == f"{self.prefix}{graphql_endpoint.PATH}":
            await _read_query(entry, scope, receive)
        self.gitlab.journal.begin(entry)
        try:
            await self._answer(entry, scope, receive, send)
        finally:
            self.gitlab.journal.end()

    def _enter(self, scope: Scope) -> LoggedRequest:
        """Prepare the scope, and the journal's entry for it."""
        # Routes match the path as sent: a decoded %2F would make other segments of it.
        scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("ascii", errors="replace")
        if self.gitlab.behaviour.decoding_proxy:
            scope["path"] = unquote(scope["path"])
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        secret, in_url = sent_secret(headers, parse_qsl(query))
        host = headers.get("host", "localhost")
        root = self.gitlab.behaviour.external_url or f"{scope['scheme']}://{host}"
        scope["sandbox.secret"] = secret
        scope["sandbox.base"] = f"{root.rstrip('/')}{self.prefix}/api/v4"
        token = self.gitlab.tokens.get(secret or "")
        entry = LoggedRequest(
            at=self.gitlab.clock.now(),
            method=scope["method"],
            path=scope["path"],
            query=_SECRETS.sub(r"\1[secret]", query),
            host=host,
            headers={
                key: value for key, value in headers.items() if key not in ("private-token", "authorization")
            },
            token=token.name if token else None,
            sent_secret=secret is not None,
            secret_in_url=in_url,
        )
        scope["sandbox.entry"] = entry
        return entry

    async def _answer(self, entry: LoggedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        if self.gitlab.behaviour.latency:
            await asyncio.sleep(self.gitlab.behaviour.latency)
        fault = self.gitlab.faults.strike(entry.target)
        entry.fault = type(fault).__name__ if fault else None
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Do) and not fault.after:
            await asyncio.to_thread(fault.action)
        if isinstance(fault, Reset) and not fault.in_body:
            _reset(send)
            return
        throttle = self._throttle(scope)
        if isinstance(fault, CannedResponse):
            reply = _made(fault)
        elif throttle is not None and throttle.exceeded:
            reply = _made(CannedResponse(429, b"Retry later\n", "text/plain"))
        else:
            reply = await _collect(self.app, scope, receive, entry)
        if throttle is not None and not isinstance(fault, CannedResponse):
            for name, value in throttle.headers:
                reply.set(name, value)
        if isinstance(fault, ForeignLink) and (link := reply.get("Link")):
            reply.set("Link", re.sub(r"<https?://[^/>]+", f"<{fault.base}", link))
        if isinstance(fault, Poison) and re.search(fault.pattern, reply.body):
            reply = _made(server_error())
        if isinstance(fault, Edited) and reply.status == 200:
            reply.body = fault.edit(reply.body)
            reply.set("Content-Length", str(len(reply.body)))
        if isinstance(fault, WithoutHeaders):
            for name in fault.names:
                reply.drop(name)
        if reply.get("Date") is None:
            reply.set("Date", format_datetime(self.gitlab.clock.now(), usegmt=True))
        entry.status = reply.status
        await _send(reply, fault, scope["method"], send)
        if isinstance(fault, Do) and fault.after:
            await asyncio.to_thread(fault.action)

    def _throttle(self, scope: Scope) -> _Throttle | None:
        limit = self.gitlab.behaviour.rate_limit
        if limit is None:
            return None
        now = int(self.gitlab.clock.now().timestamp())
        window = now // limit.period
        who = scope["sandbox.secret"] or (scope.get("client") or ("", 0))[0]
        limit.seen[who, window] = observed = limit.seen.get((who, window), 0) + 1
        reset = (window + 1) * limit.period
        exceeded = observed > limit.limit
        headers: list[tuple[str, str]] = []
        if limit.headers == "always" or (limit.headers == "429" and exceeded):
            headers += [
                ("RateLimit-Name", limit.name),
                # The limit is scaled to a minute and rounded up, the other two count in the real period.
                ("RateLimit-Limit", str(-(-limit.limit * 60 // limit.period))),
                ("RateLimit-Observed", str(observed)),
                ("RateLimit-Remaining", str(max(0, limit.limit - observed))),
                ("RateLimit-Reset", str(reset)),
            ]
        if exceeded and limit.headers != "never":
            headers.append(("Retry-After", str(reset - now)))
        return _Throttle(exceeded, headers)


async def _read_query(entry: LoggedRequest, scope: Scope, receive: Receive) -> None:
    """Read the body of a GraphQL request into the scope. The journal and the faults need it before the
    route does."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    scope["sandbox.query"] = query = graphql_endpoint.read_query(body)
    if query is not None:
        entry.operation, entry.iids = query.label, tuple(query.iids)


@dataclass(frozen=True, slots=True)
class _Throttle:
    exceeded: bool
    headers: Sequence[tuple[str, str]]


def _made(answer: CannedResponse) -> _Reply:
    reply = _Reply(answer.status, [], answer.body)
    reply.set("Content-Type", answer.content_type)
    reply.set("Content-Length", str(len(answer.body)))
    for name, value in answer.headers.items():
        reply.set(name, value)
    return reply


async def _collect(app: ASGIApp, scope: Scope, receive: Receive, entry: LoggedRequest) -> _Reply:
    """Let the routes answer into a reply instead of the connection."""
    reply = _Reply()

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = [(bytes(key), bytes(value)) for key, value in message.get("headers", [])]
        elif message["type"] == "http.response.body":
            reply.body += message.get("body", b"")

    try:
        await app(scope, receive, keep)
    except Exception:
        entry.crash = traceback.format_exc()
        return _made(server_error())
    return reply


async def _send(reply: _Reply, fault: Fault | None, method: str, send: Send) -> None:
    body = b"" if method == "HEAD" else reply.body
    if isinstance(fault, Truncated):
        body = body[: int(len(body) * fault.keep)]
        if not fault.announced:
            reply.set("Content-Length", str(len(body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    if isinstance(fault, Truncated) and fault.announced:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        _transport(send).close()
        return
    if isinstance(fault, Reset):
        await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        _reset(send)
        return
    if isinstance(fault, Stall) and len(body) > fault.after:
        await send({"type": "http.response.body", "body": body[: fault.after], "more_body": True})
        while not _transport(send).is_closing():
            await asyncio.sleep(0.02)
        return
    if isinstance(fault, Slow) and fault.between:
        step = max(1, len(body) // 10)
        for start in range(0, len(body), step):
            await send({"type": "http.response.body", "body": body[start : start + step], "more_body": True})
            await asyncio.sleep(fault.between)
        body = b""
    await send({"type": "http.response.body", "body": body})


def _transport(send: Send) -> Any:
    """The connection below ASGI, which has no word for cutting one: uvicorn's ``send`` is bound to it."""
    return getattr(send, "__self__").transport  # noqa: B009 - mypy knows only the callable


def _reset(send: Send) -> None:
    transport = _transport(send)
    # Without lingering, closing a socket resets the connection.
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    transport.abort()
