"""All requests to a GitLab: safe HTTP for python-gitlab.

Belongs here: allowed addresses, headers, complete responses, retries, and counters. Does not belong here: the
meaning of a response (:mod:`sync_pipeline.sources.gitlab.responses`), paging
(:mod:`sync_pipeline.sources.gitlab.paging`), and settings.

An :class:`Instance` is one server with one credential, shared by the whole process; its connections are
pooled. A :class:`Client` serves one job and counts its requests. Each of its threads has its own session and
its own ``Gitlab`` of python-gitlab.
"""

from __future__ import annotations

import http.client
import logging
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, parse_qs, quote, urljoin, urlsplit, urlunsplit

import requests
import tenacity
import urllib3

from sync_pipeline.core import clock
from sync_pipeline.core.catalog import without_credentials
from sync_pipeline.core.errors import (
    AccessDenied,
    AnswerCut,
    AnswerStalled,
    Cancelled,
    ConfigurationError,
    Permanent,
    SyncError,
    Transient,
)
from sync_pipeline.core.model import Traffic
from sync_pipeline.sources.certificates import remedy
from sync_pipeline.sources.gitlab import bodies, responses
from sync_pipeline.sources.gitlab.connections import CancellableAdapter, cancellable
from sync_pipeline.sources.proxies import VARIABLES, proxy_for

if TYPE_CHECKING:
    import gitlab

_log = logging.getLogger(__name__)

Params = Mapping[str, str | int | Sequence[str | int]]
"""Query parameters. Booleans are written ``"true"``."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_HOPS = 3
# Seconds for which a rejected token is not sent again: repeated refusals get the address banned.
_REFUSED_SECONDS = 60.0
# Total seconds that one request waits for a server that repeatedly sends Retry-After.
_MAX_REFUSED_SECONDS = 300.0
# Seconds after which a failed try is logged.
_LONG_TRY = 5.0
# Rows that are requested at once after a response with more of them stalled.
_FEW_ROWS = 10
# Errors that a retry within seconds cannot fix.
_NOT_AGAIN = frozenset({"blocked", "redirect", "throttled", "database_down"})
# Errors after which the same query is sent again. After others its caller asks for less.
_QUERY_AGAIN = frozenset({"connection", "rate_limit"})


@dataclass(frozen=True, slots=True)
class Feedback:
    """The load that one response shows. ``status`` is None without a response; ``seconds`` is the age of the
    request. ``retry_after`` is the wait that the server requests, in seconds. ``remaining`` and ``limit`` are
    the server's values for the next ``reset`` seconds.
    """

    endpoint: str
    status: int | None
    seconds: float
    retry_after: float | None = None
    remaining: int | None = None
    limit: int | None = None
    reset: float | None = None


class RateLimiter(Protocol):
    """A rate limit shared with other processes that use the same server."""

    def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
        """Wait until a request of this endpoint class may be sent, and return the seconds of the wait; or
        raise Transient. ``go_on`` is called during the wait, and raises to stop it.
        """
        ...

    def feedback(self, feedback: Feedback) -> None:
        """Learn from a response."""
        ...


class Unlimited:
    """A limiter that never waits."""

    def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
        """May be sent."""
        return 0.0

    def feedback(self, feedback: Feedback) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, slots=True)
class Response:
    """A parsed response. ``next_query`` requests the next page, None at the end. ``date`` is the server's
    clock (UTC, whole seconds), and ``total`` the number of rows of the whole list. Both are None if the
    server did not send them.
    """

    data: Any
    next_query: Mapping[str, Sequence[str]] | None
    date: datetime | None
    total: int | None = None


def project_path(project_id: int, *segments: str | int) -> str:
    """The API path of something in a project. Numeric ids survive renames and proxies that decode ``%2F``."""
    return "/".join([f"/projects/{project_id:d}", *(quote(str(segment), safe="") for segment in segments)])


def base_url(url: str) -> str:
    """``url`` of an instance without a trailing slash or ``/api/v4``. Raises ConfigurationError."""
    shown = without_credentials(url.strip())
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"{shown} is no URL; write it like https://gitlab.example.com") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigurationError(f"{shown} is no URL of a GitLab; write it like https://gitlab.example.com")
    if "@" in parts.netloc or "@" in parts.path:
        raise ConfigurationError(f"{shown}: no credentials in the URL; set the token on its own")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"{shown}: the URL of an instance has no ? and no #")
    path = parts.path.rstrip("/").removesuffix("/api/v4").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class Instance:
    """One GitLab server and one credential. Safe to share between threads.

    ``token`` is called at every request, so that a rotated credential is used at once; an empty one sends no
    token. Times are seconds. ``connect_timeout`` and ``read_timeout`` are for one wait on the network,
    ``total_timeout`` for one whole response, and ``longest_wait`` for one wait before a retry. A longer wait
    is raised as Transient with ``retry_after``.

    ``max_answer_bytes`` is the longest unpacked response. GitLab limits a text to 1 MB, and longer pages are
    read in smaller ones. ``unknown_fields`` are the names of GraphQL fields that the server does not have.
    Raises ConfigurationError for an unusable URL.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str] = "",
        *,
        ca_file: str | Path | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        total_timeout: float = 180.0,
        attempts: int = 4,
        longest_wait: float = 60.0,
        max_answer_bytes: int = 32 * 1024**2,
        limiter: RateLimiter | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = clock.now,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.url = base_url(url)
        self._parts = urlsplit(self.url)
        self._token = token if callable(token) else lambda: token
        self.ca_file = None if ca_file is None else str(ca_file)
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigurationError(f"there is no file {self.ca_file}; set SCM_CA_FILE to a PEM file")
        self.connect_timeout = connect_timeout
        self.read_timeout = read_timeout
        self.total_timeout = total_timeout
        self.attempts = attempts
        self.longest_wait = longest_wait
        self.max_answer_bytes = max_answer_bytes
        self.limiter: RateLimiter = limiter or Unlimited()
        self.sleep = sleep
        self.monotonic = monotonic
        self.now = now
        self.chance = chance
        self.unknown_fields: frozenset[str] = frozenset()
        self.adapter = CancellableAdapter(pool_connections=4, pool_maxsize=32, max_retries=0)
        self._refused: tuple[str, float, str] | None = None

    def __repr__(self) -> str:
        return f"Instance({self.url!r})"

    def client(
        self, cancelled: Callable[[], bool] = lambda: False, *, patience: float | None = None
    ) -> Client:
        """A client for one job; ``cancelled`` says whether to stop. With ``patience`` each request is sent
        once, and its response may take that many seconds: for optional requests.
        """
        return Client(self, cancelled, patience)

    def close(self) -> None:
        """Close the pooled connections."""
        self.adapter.close()

    def token(self) -> str:
        """The token in force. Raises ConfigurationError if it cannot be a token, AccessDenied if the server
        rejected it a moment ago.
        """
        token = self._token().strip()
        if not re.fullmatch(r"[!-~]*", token):
            raise ConfigurationError(
                "the GitLab token holds a blank or a character that no token has; set it anew"
            )
        refused = self._refused
        if refused and refused[0] == token and self.monotonic() < refused[1]:
            raise AccessDenied(refused[2], code="credential")
        return token

    def refuse(self, token: str, message: str) -> None:
        """Remember that the server does not accept ``token``."""
        if token:
            self._refused = (token, self.monotonic() + _REFUSED_SECONDS, message)

    def api_path(self, url: str) -> str | None:
        """The part of ``url`` after the API's base (``/api/v4`` or ``/api``); None if ``url`` is not below it
        on this server.
        """
        try:
            parts = urlsplit(url)
            here = _origin(parts) == _origin(self._parts)
        except ValueError:
            return None
        base = f"{self._parts.path}/api/"
        # A proxy may resolve dots after our check.
        dots = any(segment in (".", "..") for segment in parts.path.lower().replace("%2e", ".").split("/"))
        if not here or not parts.path.startswith(base) or parts.username is not None or dots:
            return None
        return parts.path.removeprefix(base).removeprefix("v4")


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class Client:
    """Sends the requests of one job. Several threads may use it at once.

    ``per_page`` is how many rows of a list by time are requested at once: a multiple of ten, and at most 100,
    GitLab's limit. ``max_rows`` is 100, and 10 or 1 after a response with more rows stalled. ``limiter`` is
    that of the instance until another one is set. Without ``only_reads_json`` a request that changes
    something is sent once, and responses may be files or empty.
    """

    def __init__(
        self, instance: Instance, cancelled: Callable[[], bool], patience: float | None = None
    ) -> None:
        self.instance = instance
        hurry = float("inf") if patience is None else patience
        self.attempts = instance.attempts if patience is None else 1
        self.timeout = min(instance.connect_timeout, hurry), min(instance.read_timeout, hurry)
        self.total_timeout = min(instance.total_timeout, hurry)
        self.per_page = 100
        self.limiter = instance.limiter
        self.max_rows = 100
        self.only_reads_json = True
        self.traffic = Traffic()
        self._cancelled = cancelled
        self._local = threading.local()
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """Requests sent so far, redirects and repeats included."""
        return self.traffic.calls

    @property
    def api(self) -> gitlab.Gitlab:
        """python-gitlab for this thread. Its requests are as safe as ours and raise our exceptions."""
        api: gitlab.Gitlab | None = getattr(self._local, "api", None)
        if api is None:
            import gitlab  # takes a while, and not every process talks to a GitLab

            self._local.session = _Session(self)
            api = gitlab.Gitlab(
                self.instance.url,
                ssl_verify=self.instance.ca_file or True,
                session=self._local.session,
                keep_base_url=True,
                retry_transient_errors=False,
                user_agent="sync_pipeline",
            )
            self._local.api = api
        return api

    def get(self, path: str, params: Params | None = None) -> Response:
        """The response to one GET of ``path`` (below ``/api/v4``, see :func:`project_path`).

        Raises AccessDenied, SourceGone (not found *this once*), Permanent, Transient (after the short waits),
        ConfigurationError or Cancelled. After a response with many rows stalled, later requests for as many
        rows raise AnswerStalled at once. Otherwise each would wait for the time-out again.
        """
        query = {
            name: value if isinstance(value, str | int) else list(value)
            for name, value in (params or {}).items()
        }
        count = _rows_of(query)
        if count > self.max_rows:
            raise AnswerStalled(f"GET {path}: answers with more than {self.max_rows} rows stalled before")
        try:
            response = self.api.http_request("get", path, query_data=query, obey_rate_limit=False)
        except AnswerStalled:
            self.max_rows = min(self.max_rows, _FEW_ROWS if count > _FEW_ROWS else 1)
            raise
        data = response.json()
        following = _next_query(response.headers)
        if following is None:
            following = _assumed_query(response.headers, data, query)
        total = response.headers.get("X-Total", "").strip()
        date = responses.http_date(response.headers.get("Date"))
        # No list has more rows than fit into 18 digits.
        return Response(data, following, date, int(total) if re.fullmatch(r"[0-9]{1,18}", total) else None)

    def query(self, text: str, variables: Mapping[str, Any]) -> Response:
        """The response to one GraphQL query, which only reads; ``data`` is as received, errors included.

        Raises as :meth:`get` does, and AnswerCut if the connection broke during the response. A query is sent
        again only after a refused connection or too many requests. The caller repeats one that is too slow in
        smaller parts.
        """
        url = f"{self.instance.url}/api/graphql"
        response = self.api.session.post(url, json={"query": text, "variables": dict(variables)})
        return Response(response.json(), None, responses.http_date(response.headers.get("Date")))

    def check_cancelled(self) -> None:
        """Raises Cancelled after a request to stop."""
        if self._cancelled():
            raise Cancelled("stopped on request; everything stored so far stays")

    def count(self, traffic: Traffic) -> None:
        """Add to what was sent so far."""
        with self._lock:
            self.traffic += traffic

    def pause(self, seconds: float) -> None:
        """Wait, unless there is a request to stop."""
        self.count(Traffic(waited=seconds))
        while seconds > 0:
            self.check_cancelled()
            self.instance.sleep(min(seconds, 1.0))
            seconds -= 1.0


def _rows_of(query: Mapping[str, Any]) -> int:
    """How many rows ``query`` requests at once."""
    asked = query.get("per_page", 1)
    text = str(asked[0] if isinstance(asked, list) and asked else asked)
    return int(text) if text.isdecimal() else 1


def _next_query(headers: Mapping[str, str]) -> Mapping[str, Sequence[str]] | None:
    """The query of the next page. Host and path of the link come from the server's configuration and are not
    used."""
    for link in requests.utils.parse_header_links(headers.get("Link", "")):
        if "next" in link.get("rel", "").split():
            named = parse_qs(link["url"].partition("?")[2].partition("#")[0], keep_blank_values=True)
            # Never in a URL, because URLs are logged.
            return {k: v for k, v in named.items() if k not in ("private_token", "access_token")}
    page = headers.get("X-Next-Page", "").strip()
    return {"page": [page]} if page.isdigit() else None


def _assumed_query(
    headers: Mapping[str, str], data: Any, query: Mapping[str, Any]
) -> Mapping[str, Sequence[str]] | None:
    """The query of the next page if a proxy removed the paging headers: after a full page there may be
    another one.
    """
    if "Link" in headers or "X-Next-Page" in headers or "pagination" in query or "per_page" not in query:
        return None
    if not isinstance(data, list) or len(data) < int(query["per_page"]):
        return None
    page = query.get("page", 1)
    return {"page": [str(int(page[0] if isinstance(page, list) else page) + 1)]}


class _NoLogin(requests.auth.AuthBase):
    """Prevents requests from reading credentials in ``~/.netrc``."""

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        return r


class _Session(requests.Session):
    """A session that checks, completes, retries and counts every request; it raises our exceptions."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._instance = client.instance
        self.auth = _NoLogin()
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for prefix in ("https://", "http://"):
            self.mount(prefix, self._instance.adapter)
        self.headers["Accept"] = "application/json"
        self.headers["Accept-Encoding"] = bodies.ENCODINGS

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """Send ``request`` with its redirects and retries, and return a response with status 2xx."""
        monotonic = self._instance.monotonic
        started = monotonic()
        failures = 0
        # A change whose answer got lost may have happened.
        is_change = not self._client.only_reads_json and request.method not in ("GET", "HEAD")
        attempts = 1 if is_change else self._client.attempts
        again = self._again if request.method in ("GET", "HEAD") else self._query_again

        def is_over(state: tenacity.RetryCallState) -> bool:
            nonlocal failures
            error = state.outcome.exception() if state.outcome else None
            if self._client.attempts > 1 and _has_retry_after(error):
                # A short Retry-After each time is no failure.
                return state.idle_for >= _MAX_REFUSED_SECONDS
            failures += 1
            return failures >= attempts

        def log_retry(state: tenacity.RetryCallState) -> None:
            nonlocal started
            error = state.outcome.exception() if state.outcome else None
            # Long tries are warnings, for a person who waits; quick ones are not.
            level = logging.WARNING if monotonic() - started >= _LONG_TRY else logging.INFO
            _log.log(
                level,
                "%s; try %d after %.0f s, the next one in %.0f s",
                error,
                state.attempt_number,
                monotonic() - started,
                state.upcoming_sleep,
            )
            started = monotonic() + state.upcoming_sleep

        retrying = tenacity.Retrying(
            stop=is_over,
            wait=self._wait,
            retry=tenacity.retry_if_exception(again),
            sleep=self._client.pause,
            before_sleep=log_retry,
            reraise=True,
        )
        return retrying(self._follow, request, kwargs)

    def _again(self, error: BaseException) -> bool:
        if not isinstance(error, Transient) or error.code in _NOT_AGAIN:
            return False
        return (error.retry_after or 0.0) <= self._instance.longest_wait

    def _query_again(self, error: BaseException) -> bool:
        is_cut = isinstance(error, AnswerCut)
        return self._again(error) and not is_cut and getattr(error, "code", None) in _QUERY_AGAIN

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = getattr(error, "retry_after", None)
        return seconds_to_wait(
            state.attempt_number, asked, self._instance.longest_wait, self._instance.chance()
        )

    def _follow(self, request: requests.PreparedRequest, kwargs: Mapping[str, Any]) -> requests.Response:
        """One attempt: the request and the redirects within the instance."""
        renewed = False
        hops = 0
        while True:
            path = self._instance.api_path(request.url or "")
            if path is None:
                raise Permanent(
                    f"{_shown(request)} is not below {self._instance.url}/api; no request goes there",
                    code="foreign_host",
                )
            token = self._instance.token()
            response, body = self._once(request, responses.endpoint_class(path), token, kwargs)
            status = response.status_code
            if status in _REDIRECTS:
                hops += 1
                request = self._redirected(request, response, hops)
                continue
            if status >= 300:
                error = responses.error_from(
                    status,
                    response.headers,
                    body,
                    _shown(request),
                    self._instance.now(),
                    token,
                    proxy=_shown_proxy(request),
                )
                if status == 401 and responses.error_message(body):
                    self._instance.refuse(token, str(error))
                    if not renewed and self._is_renewed(token):
                        renewed = True
                        continue
                raise error
            return self._checked(request, response, body)

    def _is_renewed(self, refused: str) -> bool:
        """Whether the current token differs from the rejected one."""
        try:
            return self._instance.token() != refused
        except SyncError:
            return False

    def _redirected(
        self, request: requests.PreparedRequest, response: requests.Response, hops: int
    ) -> requests.PreparedRequest:
        """The request that follows a redirect; raises if it leads away from the instance's API."""
        target = _joined(request.url or "", response.headers.get("Location", ""))
        shown = responses.redact(target.partition("?")[0]) or "no URL"
        same_method = request.method == "GET" or response.status_code in (307, 308)
        if hops <= _MAX_HOPS and same_method and self._instance.api_path(target) is not None:
            following = request.copy()
            # Written as the sender parses it; the next round checks it again.
            with suppress(requests.RequestException):
                following.prepare_url(target, None)
                return following
        message = (
            f"{_shown(request)}: redirected to {shown}, where the token is not sent; if GitLab is there now, "
            "set SCM_GITLAB_URL, or the url of its [[gitlab]] table, to that server"
        )
        if response.status_code in (301, 308):
            raise Permanent(message, code="redirect")
        raise Transient(message, code="redirect")

    def _once(
        self, request: requests.PreparedRequest, endpoint: str, token: str, kwargs: Mapping[str, Any]
    ) -> tuple[requests.Response, bytes]:
        """Send once and read the whole body. Network errors are raised as ours, without the request that
        holds the token.
        """
        instance, client = self._instance, self._client
        client.check_cancelled()
        client.count(Traffic(waited=client.limiter.acquire(endpoint, client.check_cancelled)))
        request.headers.pop("PRIVATE-TOKEN", None)
        if token:
            request.headers["PRIVATE-TOKEN"] = token
        started = instance.monotonic()
        client.count(Traffic(calls=1))
        failure: SyncError | None = None
        response: requests.Response | None = None
        body = b""

        def go_on() -> None:
            client.check_cancelled()
            if instance.monotonic() - started > client.total_timeout:
                raise TimeoutError

        try:
            with cancellable(go_on):
                response = instance.adapter.send(
                    request,
                    stream=True,
                    timeout=client.timeout,
                    verify=instance.ca_file or kwargs.get("verify") or True,
                    proxies=_proxies(request),
                )
                body = self._body(request, response)
        except SyncError as error:
            failure = error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            failure = _network_error(error, _shown(request), _shown_proxy(request))
        seconds = instance.monotonic() - started
        if failure is not None:
            if response is not None:
                response.close()
            client.count(Traffic(timeouts=int(failure.code == "timeout")))
            if response is not None and failure.code == "timeout":
                failure = AnswerStalled(f"{failure}; the answer began and then stopped")
            elif response is not None and failure.code == "connection":
                failure = AnswerCut(str(failure))
            client.limiter.feedback(Feedback(endpoint, None, seconds))
            raise failure
        assert response is not None
        self._learn(endpoint, response, seconds)
        return response, body

    def _learn(self, endpoint: str, response: requests.Response, seconds: float) -> None:
        headers, now = response.headers, self._instance.now()
        asked = None
        # Only with these words a 503 is about the load; else the server is being restarted.
        if response.status_code >= 400 and (response.status_code != 503 or "Retry-After" in headers):
            asked = responses.retry_after_seconds(headers, now)
        if response.status_code == 429:
            self._client.count(Traffic(rate_limited=1))
        remaining = responses.whole(headers.get("RateLimit-Remaining"))
        limit = responses.whole(headers.get("RateLimit-Limit"))
        self._client.limiter.feedback(
            Feedback(
                endpoint,
                response.status_code,
                seconds,
                asked,
                remaining,
                limit,
                responses.reset_seconds(headers, now),
            )
        )

    def _body(self, request: requests.PreparedRequest, response: requests.Response) -> bytes:
        """The whole body; urllib3 raises for a wrong length."""
        if response.status_code < 200:
            # The real response follows, and would be taken for that of the next request.
            raise Transient(
                f"{_shown(request)}: an interim answer ({response.status_code}), which nobody asked for",
                code="incomplete",
            )
        most = self._instance.max_answer_bytes
        try:
            body = bodies.read(response.raw, most)
        except bodies.TooLong:
            raise Permanent(
                f"{_shown(request)}: the answer is longer than {most} bytes", code="content_too_large"
            ) from None
        response.raw.release_conn()
        return body

    def _checked(
        self, request: requests.PreparedRequest, response: requests.Response, body: bytes
    ) -> requests.Response:
        """``response`` with its body, if that is complete JSON or the client accepts files."""
        kind = response.headers.get("Content-Type", "").lower()
        if not self._client.only_reads_json and "json" not in kind and "html" not in kind:
            response._content = body
            response._content_consumed = True  # type: ignore[attr-defined]
            return response
        if not responses.is_json(response.headers):
            raise responses.not_json(
                _shown(request), response.headers, response.status_code, _shown_proxy(request)
            )
        try:
            data = responses.parsed(body)
        except ValueError:
            raise Transient(
                f"{_shown(request)}: the answer is broken or cut off", code="incomplete"
            ) from None
        response._content = body
        response.json = lambda **_: data  # type: ignore[method-assign]  # parsed once, here
        return response


def seconds_to_wait(attempt: int, asked: float | None, longest: float, chance: float) -> float:
    """Seconds after failed attempt number ``attempt`` (from 1): 1, 2, 4, ... up to ``longest``, at random
    down to half of it. The wait that the server ``asked`` for is the minimum, with a little on top, because
    all clients are released at the same instant. ``chance`` is from 0 to 1.
    """
    grown = min(2.0 ** (attempt - 1), longest) * (0.5 + chance / 2)
    return grown if asked is None else max(grown, asked + min(0.1 * asked + 0.1, 5.0) * chance)


def _has_retry_after(error: BaseException | None) -> bool:
    return isinstance(error, Transient) and error.code == "rate_limit" and error.retry_after is not None


def _shown(request: requests.PreparedRequest) -> str:
    """The request for a message: without its query."""
    url = request.url or ""
    return f"{request.method} {responses.redact(url.partition('?')[0])}"


def _joined(url: str, location: str) -> str:
    """The target of ``location`` from ``url``; empty if it is no URL."""
    try:
        return urljoin(url, location)
    except ValueError:
        return ""


def _proxies(request: requests.PreparedRequest) -> dict[str, str]:
    """The proxy of a request in the form of requests."""
    proxy = proxy_for(request.url or "")
    return {} if proxy is None else {"all": proxy}


def _shown_proxy(request: requests.PreparedRequest) -> str | None:
    """The proxy of a request for a message; None without a proxy."""
    proxy = proxy_for(request.url or "")
    return None if proxy is None else without_credentials(proxy)


def _network_error(error: BaseException, where: str, proxy: str | None) -> SyncError:
    """Our exception for an error of requests, urllib3 or the system during sending or reading; ``proxy`` is
    the proxy of the request.
    """
    chain: list[BaseException] = []
    current: Any = error
    while isinstance(current, BaseException) and current not in chain:
        chain.append(current)
        reason = getattr(current, "reason", None)
        inner = [item for item in current.args if isinstance(item, BaseException)]
        current = reason if isinstance(reason, BaseException) else next(iter(inner), current.__cause__)

    def met(*kinds: type[BaseException]) -> bool:
        return any(isinstance(item, kinds) for item in chain)

    untrusted = next((item for item in chain if isinstance(item, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        return Permanent(
            f"{where}: the certificate is not trusted ({untrusted.verify_message.rstrip('.')}); "
            f"{remedy(untrusted)}",
            code="certificate",
        )
    names = " ".join(str(item) for item in chain)
    if "PEM" in names or "CA certificate bundle" in names or "CERTIFICATE_OR_CRL" in names:
        return ConfigurationError("the CA file cannot be used; set SCM_CA_FILE to a PEM file")
    behind = "" if proxy is None else f" through the proxy {proxy}"
    # urllib3 counts a refused connection among the timeouts.
    refused = met(urllib3.exceptions.NewConnectionError, ConnectionError)
    if not refused and met(requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
        return Transient(f"{where}: no answer in time{behind}", code="timeout")
    no_url = (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, UnicodeError)
    if proxy is not None and met(*no_url, requests.exceptions.InvalidProxyURL):
        return ConfigurationError(f"{where}: the proxy {proxy} cannot be used; {VARIABLES}")
    if met(*no_url):
        return ConfigurationError(f"{where}: this is no URL; check it")
    if met(requests.exceptions.ProxyError, urllib3.exceptions.ProxyError):
        refusal = re.search(r"Tunnel connection failed: (\d+[^'\")]*)", names)
        answered = f" ({responses.redact(refusal[1].strip())[:80]})" if refusal else ""
        return Transient(
            f"{where}: the proxy {proxy} does not let us through{answered}; {VARIABLES}", code="connection"
        )
    if met(http.client.LineTooLong) or "got more than" in names:
        return Transient(
            f"{where}: the response has a header line of more than 64 kB or over 100 header lines, which "
            f"GitLab never sends{behind}; check the proxies between here and the server",
            code="not_json",
        )
    invalid = (urllib3.exceptions.InvalidHeader, requests.exceptions.InvalidHeader)
    if met(urllib3.exceptions.ProtocolError, urllib3.exceptions.DecodeError, *invalid):
        return Transient(
            f"{where}: the connection broke before the answer was whole{behind}", code="connection"
        )
    return Transient(f"{where}: cannot be reached{behind}; check host, port and network", code="connection")
