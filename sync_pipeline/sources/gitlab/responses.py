"""The meaning of a GitLab response: waits, error bodies, the consequence of a status.

Belongs here: pure functions from status, headers and body to seconds, texts and exceptions, and the removal
of secrets from texts. Does not belong here: sending anything (:mod:`sync_pipeline.sources.gitlab.transport`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sync_pipeline.core.errors import (
    AccessDenied,
    ConfigurationError,
    Permanent,
    SourceGone,
    SyncError,
    Transient,
)
from sync_pipeline.sources.proxies import VARIABLES

LONGEST_RETRY_AFTER = 3600.0
"""Seconds: a server that requests a longer wait is tried again after this."""

# An identifier follows these words of a path; it is not part of the endpoint class.
_COLLECTIONS = frozenset(
    {
        "projects",
        "groups",
        "users",
        "namespaces",
        "merge_requests",
        "commits",
        "branches",
        "tags",
        "versions",
        "discussions",
        "notes",
    }
)
_SECRETS = (
    re.compile(r"\b(?:gl[a-z]{1,8}-|GR1348941)[A-Za-z0-9_.\-]{8,}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{6,}"),
    re.compile(
        r"""(?ix) (["']?\b(?:private[-_]token|job[-_]token|access[-_]token|refresh[-_]token|authorization
        |password|client_secret|token)["']?\s*[=:]\s*["']?) [^\s&"',;<>]+"""
    ),
    # The credentials of a URL. A text after a colon that is no port is a password. The scheme is not matched,
    # and the length is limited: otherwise the time would grow with the square of the length.
    re.compile(
        r"""(?ix) (://)
        (?: [^/\s@?\#:]* : (?! [0-9]* (?:[/?\#\s"'<>]|$)) [^\s"'<>]{0,256} | [^/\s@?\#]+ ) @"""
    ),
)

# Characters that terminals and databases do not accept.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def redact(text: str, *secrets: str) -> str:
    """``text`` without the given secrets and without everything that looks like a token, a password or the
    credentials of a URL.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[redacted]")
    text = _SECRETS[0].sub("[redacted]", text)
    text = _SECRETS[1].sub(r"\1 [redacted]", text)
    text = _SECRETS[2].sub(r"\1[redacted]", text)
    return _SECRETS[3].sub(r"\1[redacted]@", text)


def endpoint_class(path: str) -> str:
    """The words of an API path without identifiers, such as ``projects/merge_requests/notes``: the unit of a
    rate limit. ``path`` begins after the API's base.
    """
    words: list[str] = []
    identifier = False
    for segment in path.strip("/").split("/"):
        if identifier:
            identifier = False
            continue
        words.append(segment)
        identifier = segment in _COLLECTIONS
    return "/".join(words)


def http_date(text: str | None) -> datetime | None:
    """A date of an HTTP header in UTC; None if it is missing or invalid."""
    if not text:
        return None
    try:
        value = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """The wait that the server requests, in seconds from 0 to an hour; None if it requests none.

    ``Retry-After`` is a number of seconds or a date. Without it the end of the rate limit's window counts.
    Dates are compared with the response's own ``Date``; ``now`` is for responses without one.
    """
    now = http_date(headers.get("Date")) or now
    asked = headers.get("Retry-After", "").strip()
    seconds = _number(asked)
    if seconds is None and (until := http_date(asked)):
        seconds = (until - now).total_seconds()
    if seconds is None:
        return reset_seconds(headers, now)
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def reset_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until the rate limit is reset, from 0 to an hour; None if the server does not say. ``now`` as
    in :func:`retry_after_seconds`.
    """
    now = http_date(headers.get("Date")) or now
    seconds = _number(headers.get("RateLimit-Reset", ""))
    if seconds is not None:
        # GitLab sends seconds since the epoch, other gateways milliseconds since it or a number of seconds.
        seconds = seconds / 1000 if seconds > 1e11 else seconds
        seconds = seconds - now.timestamp() if seconds > 1e8 else seconds
    elif until := http_date(headers.get("RateLimit-ResetTime")):
        seconds = (until - now).total_seconds()
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def whole(text: str | None) -> int | None:
    """A header as a whole number; None if it is none."""
    try:
        return int(text) if text else None
    except ValueError:
        return None


def parsed(body: bytes) -> Any:
    """``body`` as JSON. Invalid UTF-8 becomes lone surrogates, and numbers with thousands of digits become
    infinite, so that they affect only their own value. Raises ValueError if it is no JSON.
    """
    try:
        try:
            return json.loads(body)
        except json.JSONDecodeError:
            raise
        except ValueError:
            text = body.decode("utf-8-sig", "surrogateescape")
            return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # Python converts no more than 4,300 digits
        return float(digits)


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether the content type of the response is JSON."""
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def error_message(body: bytes, *secrets: str) -> str:
    """The message of an error body, as one short line without ``secrets``; empty if there is none."""
    try:
        data = parsed(body)
    except ValueError:
        return ""
    if not isinstance(data, dict):
        return _line(data, secrets)
    parts = [_line(data.get("message") or data.get("error") or data.get("errors"), secrets)]
    parts.append(_line(data.get("error_description"), secrets))
    return ": ".join(part for part in parts if part)


def _line(value: Any, secrets: Collection[str]) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        value = "; ".join(f"{key}: {_line(item, secrets)}" for key, item in value.items())
    elif isinstance(value, list):
        value = "; ".join(_line(item, secrets) for item in value)
    return short_message(str(value), *secrets)


def short_message(text: str, *secrets: str) -> str:
    """At most 200 printable characters of ``text``, without secrets as :func:`redact` removes them. A secret
    is removed before the text is cut, so that no part of it stays."""
    return " ".join(_UNPRINTABLE.sub(" ", redact(text, *secrets)).split())[:200]


def error_from(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    where: str,
    now: datetime,
    *secrets: str,
    proxy: str | None = None,
) -> SyncError:
    """The exception for a response with status 300 or more. ``where`` is the request without its query.
    ``secrets`` are removed from the server's message. ``proxy`` is the proxy of the request, which may have
    sent a response that is not JSON.
    """
    words = error_message(body, *secrets)
    known = bool(words)
    tail = f" ({words})" if known else ""
    lower = words.lower()
    behind = "" if known else _behind(proxy)
    wait = retry_after_seconds(headers, now)
    if status == 429 or (status == 403 and headers.get("RateLimit-Remaining", "").strip() == "0"):
        return Transient(
            f"{where}: too many requests{tail}; it is asked again later", code="rate_limit", retry_after=wait
        )
    if "offset pagination" in lower and "maximum" in lower:
        return Permanent(
            f"{where}: the list is longer than page numbers reach{tail}; read it in smaller windows",
            code="paging_ceiling",
        )
    if status == 401:
        if not known:
            return Transient(
                f"{where}: something in front of GitLab asks for a login (401, no JSON); check the proxy and "
                f"the URL{behind}",
                code="blocked",
                retry_after=wait,
            )
        why = next((word for word in ("expired", "revoked") if word in lower), None)
        advice = f"the token is {why}" if why else "the token is missing or wrong"
        return AccessDenied(
            f"{where}: {advice}{tail}; create a new one with scope read_api and set it", code="credential"
        )
    if status == 403:
        if "insufficient_scope" in lower:
            return AccessDenied(
                f"{where}: the token lacks a scope{tail}; create one with scope read_api", code="scope"
            )
        if not known:
            return Transient(
                f"{where}: refused before GitLab was asked (403, no JSON): this address is blocked or a "
                f"gateway is in between; ask the administrator{behind}",
                code="blocked",
                retry_after=wait,
            )
        return AccessDenied(
            f"{where}: refused{tail}; the feature is disabled there or the token's user needs at least the "
            "role Reporter",
            code="denied",
        )
    if status == 404 and known:
        # GitLab does not distinguish "does not exist" from "may not be seen".
        code = {
            "404 project not found": "not_found",
            "404 group not found": "not_found",
            "404 repository not found": "no_repository",
            "404 tree not found": "no_repository",
        }.get(lower, "no_route" if _is_no_route(body) else "no_object")
        return SourceGone(
            f"{where}: not found{tail}; it does not exist, or the token's user may not see it", code=code
        )
    if status in (408, 409, 425) or status >= 500:
        code = "timeout" if status in (408, 504) else "server_error"
        return Transient(
            f"{where}: the server failed with status {status}{tail}{behind}", code=code, retry_after=wait
        )
    if status == 407:
        which = "a proxy" if proxy is None else f"the proxy {proxy}"
        return ConfigurationError(
            f"{where}: {which} asks for credentials; set them in HTTP_PROXY or HTTPS_PROXY, or name the host "
            "in NO_PROXY"
        )
    if not known:
        return not_json(where, headers, status, proxy)
    return Permanent(f"{where}: refused with status {status}{tail}", code="bad_request")


def _is_no_route(body: bytes) -> bool:
    data = parsed(body)
    return isinstance(data, dict) and "message" not in data and data.get("error") == "404 Not Found"


def _behind(proxy: str | None) -> str:
    return "" if proxy is None else f"; it may come from the proxy {proxy}: {VARIABLES}"


def not_json(where: str, headers: Mapping[str, str], status: int, proxy: str | None = None) -> Transient:
    """The error for a page for people, such as a proxy's login or a maintenance page; ``proxy`` as for
    :func:`error_from`.
    """
    kind = headers.get("Content-Type", "").partition(";")[0].strip()[:60] or "no content type"
    return Transient(
        f"{where}: status {status} with {kind} instead of JSON: no GitLab API, or a login or error page "
        f"of a proxy; check the URL and the proxy{_behind(proxy)}",
        code="not_json",
    )
