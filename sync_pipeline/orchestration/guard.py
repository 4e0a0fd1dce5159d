"""What stands before the Dagster web page, which itself asks nobody who they are.

Belongs here: an ASGI application that lets through only who has the token, and only what a foreign page in
the same browser could not have sent. Dagster runs a mutation that arrives by GET, from any origin: here a GET
reads or is refused. Does not belong here: starting a server.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_PARAMETER = "token"
TOKEN_HEADER = "x-scm-token"
SESSION_SECONDS = 7 * 24 * 3600
"""How long a browser gets in with its cookie; after that it needs the token again."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_NO_TOKEN = 401
# What a person sees who opens a bookmark without the cookie, as after another start of the browser or of us.
_HOW_TO_GET_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>scm-sync</title></head>
<body>
<h1>This page needs its token</h1>
<p>Open the address that <code>scm-sync up</code> or <code>scm-sync ui</code> printed when it started, with
the token at its end. This browser then gets in for a week, and bookmarks without the token work.</p>
<p>The token is in the file <code>ui.token</code> of the state folder. A second <code>scm-sync up</code>
prints the command that shows the address.</p>
</body></html>
"""
# A query longer than this is no query of a person's browser.
_LONGEST_QUERY = 200_000


class Guard:
    """Wraps the page ``app``. ``token`` is the secret, ``port`` and ``host`` where it listens, ``now`` the
    clock in seconds.

    Behind a loopback address only loopback names are answered, so that no foreign name can be made to point
    here. The cookie is named after the port: cookies do not tell ports apart, and two clones may run. A
    browser sends it to every port of the host for the same reason, so it is not the token: it is the end of
    the session and a signature made with the token, and only this guard accepts it, until then.
    """

    def __init__(
        self, app: App, *, token: str, host: str, port: int, now: Callable[[], float] = time.time
    ) -> None:
        self._app = app
        self._token = token
        self._now = now
        self._cookie = f"scm_ui_{port}"
        self._hosts: frozenset[str] | None = None
        if host in ("127.0.0.1", "localhost", "::1"):
            self._hosts = frozenset(f"{name}:{port}" for name in _LOOPBACK)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a connection through, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = _Headers(scope["headers"])
        websocket = scope["type"] == "websocket"
        method = "GET" if websocket else str(scope["method"])
        refused = self._refuse(scope, headers, method, websocket)
        if refused is not None:
            status, line = refused
            if websocket:
                await _close(receive, send)
            elif status == _NO_TOKEN and "text/html" in ",".join(headers.all("accept")).lower():
                await _answer(
                    send, status, _HOW_TO_GET_IN, [("content-security-policy", "default-src 'none'")], "html"
                )
            else:
                await _answer(send, status, line)
            return
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if method == "GET" and not websocket and TOKEN_PARAMETER in given:
            await self._welcome(scope, send)
            return
        await self._app(scope, receive, send)

    def _refuse(
        self, scope: Scope, headers: _Headers, method: str, websocket: bool
    ) -> tuple[int, str] | None:
        host = headers.one("host")
        if host is None or (self._hosts is not None and host.lower() not in self._hosts):
            return 421, "this address is not served here"
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        origin = headers.one("origin")
        safe = method in _READING and not websocket
        if not safe and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "this request comes from another page"
        if headers.one("sec-fetch-site") in ("cross-site", "same-site") and not safe:
            return 403, "this request comes from another page"
        link = [value for name, value in query if name == TOKEN_PARAMETER]
        tokens = (*self._tokens(headers), *(link if safe else ()))
        if not any(map(self._matches, tokens)) and not any(map(self._in_session, self._cookies(headers))):
            return _NO_TOKEN, "open the address that scm-sync printed, with its token"
        if (
            method in ("GET", "HEAD")
            and not websocket
            and str(scope["path"]).rstrip("/").endswith("/graphql")
        ):
            texts = [value for name, value in query if name == "query"]
            if any(not _only_reads(text) for text in texts):
                return 405, "a GET reads; send this with POST"
        return None

    def _cookies(self, headers: _Headers) -> Iterable[str]:
        for value in headers.all("cookie"):
            for part in value.split(";"):
                name, _, content = part.strip().partition("=")
                if name == self._cookie:
                    yield content

    def _tokens(self, headers: _Headers) -> Iterable[str]:
        yield from headers.all(TOKEN_HEADER)
        for value in headers.all("authorization"):
            scheme, _, content = value.partition(" ")
            if scheme.lower() == "bearer":
                yield content.strip()

    def _matches(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self._token.encode())

    def _session(self, end: int) -> str:
        """The cookie of a session that lasts until ``end``, in seconds since 1970."""
        text = f"{self._cookie} {end}"
        return f"{end}.{hmac.new(self._token.encode(), text.encode(), 'sha256').hexdigest()}"

    def _in_session(self, cookie: str) -> bool:
        end = cookie.partition(".")[0]
        # Digits of other scripts and very long numbers are none of ours.
        if not (end.isascii() and end.isdigit() and len(end) <= 12):
            return False
        return self._now() < int(end) and hmac.compare_digest(
            cookie.encode(), self._session(int(end)).encode()
        )

    async def _welcome(self, scope: Scope, send: Send) -> None:
        """The first visit: begin a session and take the token out of the address."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in query if name != TOKEN_PARAMETER])
        # Two slashes at the start would name another host.
        path = "/" + quote(str(scope["path"]).lstrip("/"), safe="/:@!$&'()*+,;=-._~")
        session = self._session(int(self._now()) + SESSION_SECONDS)
        cookie = f"{self._cookie}={session}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict"
        headers = [
            ("location", f"{path}?{rest}" if rest else path),
            ("set-cookie", cookie),
            ("referrer-policy", "no-referrer"),
        ]
        await _answer(send, 303, "", headers)


class _Headers:
    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._raw if key == name]

    def one(self, name: str) -> str | None:
        """The header's only value; two that differ are none, since nobody knows which one counts."""
        values = set(self.all(name))
        return values.pop() if len(values) == 1 else None


def _only_reads(text: str) -> bool:
    """True if a GraphQL document has nothing but queries. What cannot be parsed may be anything."""
    if len(text) > _LONGEST_QUERY:
        return False
    try:
        document = parse(text)
    except (GraphQLError, RecursionError):
        return False
    return all(
        node.operation is OperationType.QUERY
        for node in document.definitions
        if isinstance(node, OperationDefinitionNode)
    )


async def _answer(
    send: Send, status: int, line: str, headers: Iterable[tuple[str, str]] = (), form: str = "plain"
) -> None:
    body = f"{line}\n".encode() if line else b""
    given = [
        ("content-type", f"text/{form}; charset=utf-8"),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
        *headers,
    ]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _close(receive: Receive, send: Send) -> None:
    """Refuse a websocket: closed before it is accepted, it becomes a plain 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})
