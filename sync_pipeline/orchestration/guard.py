"""The guard of the Dagster web page, which has no login of its own.

Belongs here: an ASGI application that accepts only requests with the token. It refuses those that a foreign
page in the same browser may have sent. Dagster runs a mutation that arrives by GET, from any origin: here a
GET reads or is refused. Does not belong here: starting a server.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_PARAMETER = "token"
TOKEN_HEADER = "x-scm-token"
SESSION_SECONDS = 7 * 24 * 3600
"""How long a browser gets in with its cookie; after that it needs the token again."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_NO_TOKEN = 401
# The page for a bookmark without the cookie, such as after a restart of the browser or of the guard.
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
    """Wraps the page ``app``. ``token`` is the secret, ``port`` and ``host`` are its address, ``now`` is the
    clock in seconds.

    On a loopback address only loopback names are accepted, so that no foreign name can point here. The cookie
    has the port in its name: cookies do not distinguish ports, and two clones may run. For the same reason a
    browser sends it to every port of the host. So it is not the token, but the end of the session and a
    signature made with the token. Only this guard accepts it, until then.
    """

    def __init__(
        self, app: ASGIApp, *, token: str, host: str, port: int, now: Callable[[], float] = time.time
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
        headers = Headers(scope=scope)
        websocket = scope["type"] == "websocket"
        method = "GET" if websocket else str(scope["method"])
        refused = self._refuse(scope, headers, method, websocket)
        if refused is not None:
            status, line = refused
            if websocket:
                await _close(receive, send)
            elif status == _NO_TOKEN and "text/html" in ",".join(headers.getlist("accept")).lower():
                policy = {"content-security-policy": "default-src 'none'"}
                await _response(status, _HOW_TO_GET_IN, policy, "text/html")(scope, receive, send)
            else:
                await _response(status, f"{line}\n")(scope, receive, send)
            return
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if method == "GET" and not websocket and TOKEN_PARAMETER in given:
            await self._welcome(scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refuse(self, scope: Scope, headers: Headers, method: str, websocket: bool) -> tuple[int, str] | None:
        host = _only(headers, "host")
        if host is None or (self._hosts is not None and host.lower() not in self._hosts):
            return 421, "this address is not served here"
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        origin = _only(headers, "origin")
        safe = method in _READING and not websocket
        if not safe and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "this request comes from another page"
        if _only(headers, "sec-fetch-site") in ("cross-site", "same-site") and not safe:
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

    def _cookies(self, headers: Headers) -> Iterable[str]:
        for value in headers.getlist("cookie"):
            for part in value.split(";"):
                name, _, content = part.strip().partition("=")
                if name == self._cookie:
                    yield content

    def _tokens(self, headers: Headers) -> Iterable[str]:
        yield from headers.getlist(TOKEN_HEADER)
        for value in headers.getlist("authorization"):
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

    def _welcome(self, scope: Scope) -> Response:
        """The first visit: begin a session and take the token out of the address."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in query if name != TOKEN_PARAMETER])
        # Two slashes at the start would name another host.
        path = "/" + quote(str(scope["path"]).lstrip("/"), safe="/:@!$&'()*+,;=-._~")
        session = self._session(int(self._now()) + SESSION_SECONDS)
        cookie = f"{self._cookie}={session}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict"
        headers = {
            "location": f"{path}?{rest}" if rest else path,
            "set-cookie": cookie,
            "referrer-policy": "no-referrer",
        }
        return _response(303, "", headers)


def _only(headers: Headers, name: str) -> str | None:
    """The only value of a header; None where two of them differ, because it is unknown which one counts."""
    values = set(headers.getlist(name))
    return values.pop() if len(values) == 1 else None


def _only_reads(text: str) -> bool:
    """True if a GraphQL document has only queries. An invalid document may contain anything."""
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


def _response(
    status: int, text: str, headers: Mapping[str, str] | None = None, kind: str = "text/plain"
) -> Response:
    return Response(text, status, {"cache-control": "no-store", **(headers or {})}, kind)


async def _close(receive: Receive, send: Send) -> None:
    """Refuse a websocket: closed before it is accepted, it becomes a plain 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})
