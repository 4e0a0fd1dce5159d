"""Switches for faults: which fault, on which requests, how often.

Belongs here: the kinds of fault and the rules that choose one for a request.
:mod:`sync_pipeline_sandbox.gitlab.front` applies them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LOGIN_PAGE = (
    b"<!DOCTYPE html><html><head><title>Sign in</title></head><body><form>Sign in</form></body></html>"
)
BAD_GATEWAY = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(frozen=True, slots=True)
class CannedResponse:
    """Answer this instead."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Truncated:
    """Send part of the true body. ``announced`` keeps the full Content-Length and then cuts the connection;
    otherwise the shortened body is a complete HTTP answer with broken JSON."""

    keep: float = 0.5
    announced: bool = True


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection, before any byte or in the middle of the body."""

    in_body: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait this many seconds before the answer, and this many before each further tenth of the body."""

    seconds: float
    between: float = 0.0


@dataclass(frozen=True, slots=True)
class Stall:
    """Send so many bytes of the body, and of a longer one nothing more."""

    after: int


@dataclass(frozen=True, slots=True)
class ForeignLink:
    """Give the links in the Link header another scheme, host and port, such as ``http://127.0.0.1:1``."""

    base: str


@dataclass(frozen=True, slots=True)
class WithoutHeaders:
    """Leave headers out of the true answer."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Do:
    """Call a function, before the answer is made or after it was sent, and answer truly. For rows that move
    between two pages and tokens that die in the middle."""

    action: Callable[[], object]
    after: bool = False


@dataclass(frozen=True, slots=True)
class Poison:
    """Fail with status 500 if the real body matches a regular expression. It is a row that fails on every
    page.
    """

    pattern: bytes


@dataclass(frozen=True, slots=True)
class Edited:
    """Pass the true body through a function, from bytes to bytes, where the answer is a good one."""

    edit: Callable[[bytes], bytes]


Fault = (
    CannedResponse | Truncated | Reset | Slow | Stall | ForeignLink | WithoutHeaders | Do | Poison | Edited
)


@dataclass(slots=True)
class Rule:
    """A fault for requests whose target matches a regular expression; see :class:`.journal.LoggedRequest`.
    The first ``skip`` requests are spared, the next ``times`` fail (None: all from then on).
    """

    pattern: str
    fault: Fault
    times: int | None = 1
    skip: int = 0
    seen: int = 0
    struck: int = 0


class Faults:
    """All rules of one server. The first one that applies to a request strikes it."""

    def __init__(self) -> None:
        """No trouble at first."""
        self.rules: list[Rule] = []
        self._lock = threading.Lock()

    def add(self, pattern: str, fault: Fault, *, times: int | None = 1, skip: int = 0) -> Rule:
        """Add a rule and return it; its ``struck`` counts."""
        rule = Rule(pattern=pattern, fault=fault, times=times, skip=skip)
        with self._lock:
            self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self.rules.clear()

    def strike(self, target: str) -> Fault | None:
        """The fault for a request, counted; None when it is spared."""
        with self._lock:
            for rule in self.rules:
                if not re.search(rule.pattern, target):
                    continue
                rule.seen += 1
                if rule.seen > rule.skip and (rule.times is None or rule.struck < rule.times):
                    rule.struck += 1
                    return rule.fault
            return None


# --- Answers that real servers and the proxies before them give -----------------------------------------


def json_answer(status: int, body: Any, **headers: str) -> CannedResponse:
    """A JSON body; ``headers`` are written with underscores for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return CannedResponse(status, json.dumps(body, separators=(",", ":")).encode(), headers=named)


def throttled_text(
    *, retry_after: str | None = "1", headers: Mapping[str, str] | None = None, text: str = "Retry later\n"
) -> CannedResponse:
    """The plain-text 429 of the throttle before Rails; ``retry_after`` may be seconds, an HTTP date, nonsense
    or None."""
    more = dict(headers or {}) | ({"Retry-After": retry_after} if retry_after is not None else {})
    return CannedResponse(429, text.encode(), "text/plain", more)


def throttled_feature(retry_after: str | None = "60") -> CannedResponse:
    """The JSON 429 of a per-feature limiter, whose ``message`` is an object."""
    text = "This endpoint has been requested too many times. Try again later."
    headers = {"Retry_After": retry_after} if retry_after is not None else {}
    return json_answer(429, {"message": {"error": text}}, **headers)


def throttled_json(retry_after: str | None = "60") -> CannedResponse:
    """The JSON 429 of the API helpers."""
    headers = {"Retry_After": retry_after} if retry_after is not None else {}
    return json_answer(429, {"message": "429 Too Many Requests"}, **headers)


def server_error(status: int = 500) -> CannedResponse:
    """A JSON 5xx."""
    texts = {
        500: "Internal Server Error",
        503: "Service Unavailable",
        502: "Bad Gateway",
        504: "Gateway Timeout",
    }
    return json_answer(status, {"message": f"{status} {texts.get(status, 'Error')}"})


def proxy_error(status: int = 502) -> CannedResponse:
    """An HTML 5xx from a proxy."""
    return CannedResponse(status, BAD_GATEWAY, "text/html")


def login_page() -> CannedResponse:
    """A proxy's login page with status 200."""
    return CannedResponse(200, LOGIN_PAGE, "text/html; charset=utf-8")


def redirect(location: str, status: int = 302) -> CannedResponse:
    """A redirect, to another host for instance."""
    body = b'<html><body>You are being <a href="/">redirected</a>.</body></html>'
    return CannedResponse(status, body, "text/html", {"Location": location})


def resource_lock() -> CannedResponse:
    """The 409 that may be tried again."""
    return json_answer(409, {"message": "409 Conflict: Resource lock"})


def graphql_error(text: str = "Timeout on MergeRequest.notes", status: int = 200) -> CannedResponse:
    """A GraphQL answer that has an error and no data."""
    return json_answer(status, {"errors": [{"message": text}]})
