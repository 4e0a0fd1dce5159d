"""The checks of other servers: each GitLab, each SVN server, and their certificates.

Belongs here: at most four requests to a GitLab and one ``svn info`` to an SVN server, and the meaning of the
responses. Each is sent once with a short time-out. Does not belong here: how a request is sent.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from sync_pipeline.core import clock
from sync_pipeline.core.documents.gates import Limit
from sync_pipeline.core.errors import AccessDenied, ConfigurationError, SourceGone, SyncError
from sync_pipeline.core.formatting import age, counted
from sync_pipeline.core.model import Repository
from sync_pipeline.ledger.credentials import Stop
from sync_pipeline.reports.doctor.findings import (
    GITLAB_CHECKS,
    Finding,
    State,
    error_text,
    failed,
    ok,
    skipped,
    warning,
)
from sync_pipeline.settings import GitLabServer, Settings
from sync_pipeline.sources.certificates import remedy
from sync_pipeline.sources.gitlab.project import TokenInfo, get_token
from sync_pipeline.sources.gitlab.transport import Client, Feedback, Instance, Response, Unlimited
from sync_pipeline.sources.proxies import proxy_for
from sync_pipeline.sync.readers import svn_reader

CONNECT_SECONDS, ANSWER_SECONDS = 4.0, 5.0
EXPIRES_SOON = timedelta(days=14)
MAX_SKEW = timedelta(seconds=60)

_NEEDED_SCOPES = frozenset({"read_api", "api"})


# GitLab -------------------------------------------------------------------------------------------------


class _Limits(Unlimited):
    """Remembers what the answers say about the budget of requests; never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Feedback | None = None
        self.refused: Feedback | None = None

    def feedback(self, feedback: Feedback) -> None:
        """Learn from a response."""
        if feedback.status == 429:
            self.refused = feedback
        if feedback.remaining is not None and feedback.limit is not None:
            self.seen = feedback


class GitLabChecks:
    """The checks of a GitLab with the token in force. ``stop`` is the stored refusal of that token,
    ``unusual`` are its shared rate limits that are paused or lowered; ``now`` is our clock."""

    def __init__(
        self,
        server: GitLabServer,
        stop: Stop | None,
        unusual: Sequence[Limit] = (),
        now: Callable[[], datetime] = clock.now,
    ) -> None:
        self._server = server
        self._stop = stop
        self._unusual = unusual
        self._now = now
        self._found: dict[str, Finding] = {}
        self._limits = _Limits()

    def run(self) -> dict[str, Finding]:
        """A finding of each of :data:`GITLAB_CHECKS`."""
        quick = Instance(
            self._server.url,
            self._token(),
            ca_file=self._server.ca_file,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            total_timeout=ANSWER_SECONDS,
            attempts=1,
            limiter=self._limits,
        )
        with closing(quick):
            why_not = self._ask(quick.client())
        self._found.setdefault("gitlab_limits", self._check_limits())
        self._found.setdefault("gitlab_stop", self._check_stop())
        return {check: self._found.get(check, skipped(why_not)) for check in GITLAB_CHECKS}

    def _token(self) -> str:
        try:
            if token := self._server.token():
                return token
        except ConfigurationError as error:
            self._found["gitlab_token"] = failed(*error_text(error, "set the token"))
        else:
            self._found["gitlab_token"] = failed(
                "this shell has no token set",
                "set SCM_GITLAB_TOKEN, SCM_GITLAB_TOKEN_FILE, or the token of its [[gitlab]] table",
            )
        return ""

    def _ask(self, client: Client) -> str:
        """Send the requests; returns why the checks that have no finding then were skipped."""
        self._found["gitlab"] = ok(f"{self._server.url} answers")
        try:
            answer = _version(client)
        except AccessDenied as error:
            # GitLab knows us well enough to refuse us.
            self._refused(error)
            return "tells it only to a token that it accepts"
        except SyncError as error:
            if error.code == "rate_limit":
                return "not asked: it wants fewer requests"
            advice = "look at the server, and at the proxy in front of it"
            self._found["gitlab"] = failed(*error_text(error, advice))
            return "it cannot be asked"
        self._found["gitlab_version"] = _evaluate_version(answer)
        self._found["gitlab_clock"] = self._check_clock(answer.date)
        for check, ask in (("gitlab_token", self._check_token), ("gitlab_user", self._check_user)):
            try:
                self._found.setdefault(check, ask(client))
            except AccessDenied as error:
                self._refused(error)
            except SyncError as error:
                self._found.setdefault(check, warning(*error_text(error, "try again")))
        return "the token is refused"

    def _refused(self, error: AccessDenied) -> None:
        refusal = failed(*error_text(error, "create a token with scope read_api and set it"))
        self._found.setdefault("gitlab_token", refusal)

    def _check_clock(self, theirs: datetime | None) -> Finding:
        if theirs is None:
            return warning(
                "the answers have no Date; the clock of this machine is used instead of the server's",
                "let the proxy pass the header Date on",
            )
        skew = theirs - self._now()
        seconds = abs(skew.total_seconds())
        if abs(skew) > MAX_SKEW:
            way = "ahead of" if skew > timedelta() else "behind"
            return warning(
                f"its clock is {age(seconds)} {way} ours",
                "set both clocks by NTP; windows end by the server's clock",
            )
        # The header has whole seconds, and the answer takes its time.
        return ok(f"differs from ours by {seconds:.0f} s")

    def _check_token(self, client: Client) -> Finding:
        token = get_token(client)
        if token is None:
            return ok("accepted; of this kind the server tells no scopes")
        return evaluate_token(token, self._now().date())

    def _check_user(self, client: Client) -> Finding:
        data: Any = client.get("/user").data
        data = data if isinstance(data, dict) else {}
        traits = [f"{data.get('username', 'somebody without a name')}"]
        traits += ["a bot"] if data.get("bot") else []
        traits += ["external: sees only what it is a member of"] if data.get("external") else []
        traits += ["an administrator, more than is needed"] if data.get("is_admin") else []
        state = data.get("state", "active")
        if state != "active":
            return failed(f"{', '.join(traits)}, {state}", "use a token of an active user")
        return ok(", ".join(traits))

    def _check_limits(self) -> Finding:
        seen = self._limits.seen
        ask = "ask the administrator for a higher limit, or lower SCM_GITLAB_PARALLEL"
        if self._found["gitlab"].state is State.FAILED:
            return skipped("it cannot be asked")
        if self._limits.refused is not None:
            wait = self._limits.refused.retry_after
            until = "" if wait is None else f"; ask again in {wait:.0f} s"
            return warning(f"too many requests{until}", ask)
        announced = "none is announced"
        if seen is not None and seen.limit is not None and seen.remaining is not None:
            announced = f"{seen.remaining} of {seen.limit} requests left"
            if seen.remaining * 10 < seen.limit:
                return warning(announced, ask)
        for one in self._unusual:
            if not one["paused"] and not one["lowered"]:
                announced += (
                    f"; {one['rate']:g} requests a second are sent, {one['full_rate']:g} at the start"
                )
                announced += f": {one['rate_reason']}"
                continue
            slowed = f"{one['rate']:g} instead of {one['full_rate']:g} requests a second are sent"
            if one["paused"]:
                slowed = f"nothing is sent until {one['paused_until']}"
            reason = one["reason"] if one["paused"] else one["rate_reason"] or one["reason"]
            why = f": {reason}" if reason else ""
            return warning(f"{slowed}{why}", "wait, or see scm-sync admin limits list")
        return ok(announced)

    def _check_stop(self) -> Finding:
        stop = self._stop
        if stop is None:
            return ok("the token of this shell is not stopped")
        since = f"the token of this shell is stopped since {stop.stopped_at:%Y-%m-%d %H:%M} UTC"
        token = self._found.get("gitlab_token")
        if token is not None and token.state in (State.OK, State.WARNING):
            return warning(
                f"{since}, and accepted now",
                "wait for the next probe, within an hour, or run: scm-sync runner incremental --repo SPEC",
            )
        return failed(since, "set a token that the server accepts; it counts at once")


def _evaluate_version(answer: Response) -> Finding:
    data = answer.data if isinstance(answer.data, dict) else {}
    version = str(data.get("version") or "")[:40]
    if not version:
        return warning(
            "the answer has no version", "is this a GitLab? Check the URL and what is in front of it"
        )
    enterprise = data.get("enterprise", version.endswith("-ee"))
    return ok(f"{version}, {'Enterprise' if enterprise else 'Community'} Edition")


def _version(client: Client) -> Response:
    try:
        return client.get("/metadata")
    except SourceGone:
        return client.get("/version")  # before 15.2


def evaluate_token(token: TokenInfo, today: date) -> Finding:
    """Whether a token may do what we need, and for how long."""
    scopes = ", ".join(token.scopes) or "none"
    until = "never expires" if token.expires_at is None else f"until {token.expires_at}"
    seen = f"scopes {scopes}; {until}"
    renew = "create a new one with scope read_api and set it"
    if not _NEEDED_SCOPES & set(token.scopes):
        return failed(seen, renew)
    if token.expires_at is not None and token.expires_at - today <= EXPIRES_SOON:
        days = (token.expires_at - today).days
        when = f"in {days} days" if days > 1 else "within a day" if days > 0 else "today"
        return warning(f"{seen}, {when}", renew)
    return ok(seen)


def unconfigured_gitlab(repositories: int, problem: str) -> dict[str, Finding]:
    """A GitLab that registered repositories need and the settings do not name."""
    seen, _, remedy = problem.partition("; ")
    needed = counted(repositories, "registered repository", "registered repositories")
    seen = f"{seen} in this shell, which {needed} need{'s' if repositories == 1 else ''}"
    found = dict.fromkeys(GITLAB_CHECKS, skipped("it is not configured"))
    return found | {"gitlab": failed(seen, remedy)}


# SVN ----------------------------------------------------------------------------------------------------


def svn_server(settings: Settings, repository: Repository) -> Finding:
    """One ``svn info`` of one repository of a server: is it reachable, and does it let us in."""
    if shutil.which("svn") is None:
        return skipped("there is no svn command to ask with")
    quick = settings.model_copy(
        update={"svn_info_timeout_seconds": min(ANSWER_SECONDS, settings.svn.info_timeout_seconds)}
    )
    reader = svn_reader(quick, repository.svn_root or repository.url, repository.svn_prefix, attempts=1)
    try:
        visit = reader.visit()
    except SyncError as error:
        return failed(*error_text(error, "look at the server"))
    user = f" as {settings.svn.username}" if settings.svn.username else ""
    return ok(f"{visit.root} answers{user}, HEAD r{visit.head}")


# Certificates -------------------------------------------------------------------------------------------


def certificate(
    url: str,
    *,
    ca_file: Path | None,
    system: bool = False,
    accepted: str = "",
    now: Callable[[], datetime] = clock.now,
) -> Finding:
    """The certificate of the server of ``url``. ``ca_file`` are the authorities to trust, with ``system``
    beside those of the machine, as svn does; ``accepted`` are failures that the settings accept. Plain HTTP
    is worth a warning, because a credential travels by it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        if _is_here(host):
            return skipped("plain http on this machine")
        return warning("plain http: the credential can be read on its way", "use https")
    if proxy_for(url) is not None:
        return skipped("behind a proxy; the requests check it")
    try:
        context = ssl.create_default_context(cafile=None if system else _authorities(ca_file))
        if system and ca_file is not None:
            context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError):
        return failed("the CA file cannot be used", "set SCM_CA_FILE to a PEM file")
    try:
        with (
            socket.create_connection((host, parts.port or 443), timeout=CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return _valid(secure.getpeercert() or {}, now())
    except ssl.SSLCertVerificationError as error:
        why = f"not trusted: {error.verify_message}"
        if accepted:
            return warning(f"{why}; SCM_SVN_TRUST_FAILURES accepts {accepted}", remedy(error))
        return failed(why, remedy(error))
    except (OSError, UnicodeError):
        return skipped("no TLS connection to look at it")


def _valid(shown: Mapping[str, Any], now: datetime) -> Finding:
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
    issuer = {key: value for part in shown.get("issuer", ()) for key, value in part}
    by = issuer.get("organizationName") or issuer.get("commonName") or "somebody without a name"
    seen = f"trusted, by {by}, until {until:%Y-%m-%d}"
    if until - now <= EXPIRES_SOON:
        return warning(seen, "renew the certificate on the server")
    return ok(seen)


def _authorities(ca_file: Path | None) -> str | None:
    """The same file as requests takes."""
    if ca_file is not None:
        return str(ca_file)
    return (
        os.environ.get("REQUESTS_CA_BUNDLE")
        or os.environ.get("CURL_CA_BUNDLE")
        or requests.utils.DEFAULT_CA_BUNDLE_PATH
    )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
