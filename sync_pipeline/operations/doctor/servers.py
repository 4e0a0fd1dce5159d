"""The checks of the servers of others: each GitLab, each SVN server, and their certificates.

Belongs here: at most four requests to a GitLab and one ``svn info`` to an SVN server, each asked once and not
for long, and what the answers mean. Does not belong here: how a request is sent.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from sync_pipeline.errors import AccessDenied, ConfigurationError, SourceGone, SyncError
from sync_pipeline.model import Repository
from sync_pipeline.operations.doctor.findings import Finding, State, error_text, failed, ok, skipped, warning
from sync_pipeline.operations.formatting import age, counted
from sync_pipeline.settings import GitLabServer, Settings
from sync_pipeline.sources.certificates import remedy
from sync_pipeline.sources.gitlab.project import TokenInfo, get_token
from sync_pipeline.sources.gitlab.transport import Client, Feedback, Instance, Response
from sync_pipeline.sources.proxies import proxy_for
from sync_pipeline.store.credentials import Stop
from sync_pipeline.sync.readers import svn_reader

GITLAB_CHECKS = (
    "gitlab",
    "gitlab_version",
    "gitlab_token",
    "gitlab_user",
    "gitlab_stop",
    "gitlab_clock",
    "gitlab_limits",
)

CONNECT_SECONDS, ANSWER_SECONDS = 4.0, 5.0
EXPIRES_SOON = timedelta(days=14)
LARGEST_SKEW = timedelta(seconds=60)

_NEEDED_SCOPES = frozenset({"read_api", "api"})


# GitLab -------------------------------------------------------------------------------------------------


class _Limits:
    """Remembers what the answers say about the budget of requests; never waits."""

    def __init__(self) -> None:
        self.seen: Feedback | None = None
        self.refused: Feedback | None = None

    def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
        """May be sent."""
        return 0.0

    def feedback(self, feedback: Feedback) -> None:
        """Learn from an answer."""
        if feedback.status == 429:
            self.refused = feedback
        if feedback.remaining is not None and feedback.limit is not None:
            self.seen = feedback


class GitLabLook:
    """One look at a GitLab with the token in force. ``stop`` is what is written down about that token,
    ``hindered`` are its shared rate limits that are paused or lowered; ``now`` is our clock."""

    def __init__(
        self,
        instance: str,
        server: GitLabServer,
        stop: Stop | None,
        hindered: Sequence[Mapping[str, Any]] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._subject = instance
        self._server = server
        self._stop = stop
        self._hindered = hindered
        self._now = now
        self._found: dict[str, Finding] = {}
        self._limits = _Limits()

    def look(self) -> list[Finding]:
        """What each check of :data:`GITLAB_CHECKS` finds."""
        token = self._token()
        quick = Instance(
            self._server.url,
            token or "",
            ca_file=self._server.ca_file,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            total_timeout=ANSWER_SECONDS,
            attempts=1,
            limiter=self._limits,
        )
        try:
            self._ask(quick.client())
        finally:
            quick.close()
        self._say(self._about_limits())
        self._say(self._about_stop())
        return [self._found[check] for check in GITLAB_CHECKS]

    def _say(self, finding: Finding) -> None:
        self._found.setdefault(finding.check, finding)

    def _skip(self, why: str) -> None:
        for check in GITLAB_CHECKS[1:]:
            if check not in ("gitlab_stop", "gitlab_limits"):
                self._say(skipped(check, why, self._subject))

    def _token(self) -> str | None:
        try:
            token = self._server.token()
        except ConfigurationError as error:
            self._say(failed("gitlab_token", *error_text(error, "set the token"), self._subject))
            return None
        if not token:
            self._say(
                failed(
                    "gitlab_token",
                    "this shell has no token set",
                    "set SCM_GITLAB_TOKEN, SCM_GITLAB_TOKEN_FILE, or the token of its [[gitlab]] table",
                    self._subject,
                )
            )
        return token or None

    def _ask(self, client: Client) -> None:
        try:
            answer = _version(client)
        except AccessDenied as error:
            # GitLab knows us well enough to refuse us.
            self._say(ok("gitlab", f"{self._server.url} answers", self._subject))
            self._refused(error)
            self._skip("tells it only to a token that it accepts")
            return
        except SyncError as error:
            if error.code == "rate_limit":
                self._say(ok("gitlab", f"{self._server.url} answers", self._subject))
                self._skip("not asked: it wants fewer requests")
                return
            seen, remedy = error_text(error, "look at the server, and at the proxy in front of it")
            self._say(failed("gitlab", seen, remedy, self._subject))
            self._skip("it cannot be asked")
            return
        self._say(ok("gitlab", f"{self._server.url} answers", self._subject))
        self._say(self._about_version(answer))
        self._say(self._about_clock(answer.date))
        for check, ask in (("gitlab_token", self._about_token), ("gitlab_user", self._about_user)):
            try:
                self._say(ask(client))
            except AccessDenied as error:
                self._refused(error)
            except SyncError as error:
                self._say(warning(check, *error_text(error, "try again"), self._subject))
        self._skip("the token is refused")

    def _refused(self, error: AccessDenied) -> None:
        seen, remedy = error_text(error, "create a token with scope read_api and set it")
        self._say(failed("gitlab_token", seen, remedy, self._subject))

    def _about_version(self, answer: Response) -> Finding:
        data = answer.data if isinstance(answer.data, dict) else {}
        version = str(data.get("version") or "")[:40]
        if not version:
            return warning(
                "gitlab_version",
                "the answer has no version",
                "is this a GitLab? Check the URL and what is in front of it",
                self._subject,
            )
        enterprise = data.get("enterprise", version.endswith("-ee"))
        edition = "Enterprise Edition" if enterprise else "Community Edition"
        return ok("gitlab_version", f"{version}, {edition}", self._subject)

    def _about_clock(self, theirs: datetime | None) -> Finding:
        if theirs is None:
            return warning(
                "gitlab_clock",
                "the answers have no Date; the clock of this machine is used instead of the server's",
                "let the proxy pass the header Date on",
                self._subject,
            )
        skew = theirs - self._now()
        seconds = abs(skew.total_seconds())
        if abs(skew) > LARGEST_SKEW:
            way = "ahead of" if skew > timedelta() else "behind"
            return warning(
                "gitlab_clock",
                f"its clock is {age(seconds)} {way} ours",
                "set both clocks by NTP; windows end by the server's clock",
                self._subject,
            )
        # The header has whole seconds, and the answer takes its time.
        return ok("gitlab_clock", f"differs from ours by {seconds:.0f} s", self._subject)

    def _about_token(self, client: Client) -> Finding:
        token = get_token(client)
        if token is None:
            return ok("gitlab_token", "accepted; of this kind the server tells no scopes", self._subject)
        return evaluate_token(token, self._now().date(), self._subject)

    def _about_user(self, client: Client) -> Finding:
        data: Any = client.get("/user").data
        data = data if isinstance(data, dict) else {}
        traits = [f"{data.get('username', 'somebody without a name')}"]
        traits += ["a bot"] if data.get("bot") else []
        traits += ["external: sees only what it is a member of"] if data.get("external") else []
        traits += ["an administrator, more than is needed"] if data.get("is_admin") else []
        state = data.get("state", "active")
        if state != "active":
            return failed(
                "gitlab_user", f"{', '.join(traits)}, {state}", "use a token of an active user", self._subject
            )
        return ok("gitlab_user", ", ".join(traits), self._subject)

    def _about_limits(self) -> Finding:
        name, seen = "gitlab_limits", self._limits.seen
        ask = "ask the administrator for a higher limit, or read with fewer at a time (SCM_GITLAB_PARALLEL)"
        if self._found["gitlab"].state is State.FAILED:
            return skipped(name, "it cannot be asked", self._subject)
        if self._limits.refused is not None:
            wait = self._limits.refused.retry_after
            until = "" if wait is None else f"; ask again in {wait:.0f} s"
            return warning(name, f"too many requests{until}", ask, self._subject)
        told_limits = "none is announced"
        if seen is not None and seen.limit is not None and seen.remaining is not None:
            told_limits = f"{seen.remaining} of {seen.limit} requests left"
            if seen.remaining * 10 < seen.limit:
                return warning(name, told_limits, ask, self._subject)
        for one in self._hindered:
            what = f"{one['rate']:g} instead of {one['full_rate']:g} requests a second are sent"
            if one["paused"]:
                what = f"nothing is sent until {one['paused_until']}"
            why = f": {one['reason']}" if one["reason"] else ""
            remedy = "wait, or see scm-sync admin limits list"
            return warning(name, f"{what}{why}", remedy, self._subject)
        return ok(name, told_limits, self._subject)

    def _about_stop(self) -> Finding:
        name, stop = "gitlab_stop", self._stop
        if stop is None:
            return ok(name, "the token of this shell is not stopped", self._subject)
        since = f"the token of this shell is stopped since {stop.stopped_at:%Y-%m-%d %H:%M} UTC"
        if self._found["gitlab_token"].state in (State.OK, State.WARNING):
            return warning(
                name,
                f"{since}, and accepted now",
                "wait for the next probe, within an hour, or run: scm-sync runner incremental --repo SPEC",
                self._subject,
            )
        return failed(name, since, "set a token that the server accepts; it counts at once", self._subject)


def _version(client: Client) -> Response:
    try:
        return client.get("/metadata")
    except SourceGone:
        return client.get("/version")  # before 15.2


def evaluate_token(token: TokenInfo, today: date, subject: str) -> Finding:
    """Whether a token may do what we need, and for how long."""
    scopes = ", ".join(token.scopes) or "none"
    until = "never expires" if token.expires_at is None else f"until {token.expires_at}"
    seen = f"scopes {scopes}; {until}"
    renew = "create a new one with scope read_api and set it"
    if not _NEEDED_SCOPES & set(token.scopes):
        return failed("gitlab_token", seen, renew, subject)
    if token.expires_at is not None and token.expires_at - today <= EXPIRES_SOON:
        days = (token.expires_at - today).days
        when = f"in {days} days" if days > 1 else "within a day" if days > 0 else "today"
        return warning("gitlab_token", f"{seen}, {when}", renew, subject)
    return ok("gitlab_token", seen, subject)


def unconfigured_gitlab(instance: str, repositories: int, problem: str) -> list[Finding]:
    """A GitLab that registered repositories need and the settings do not name."""
    seen, _, remedy = problem.partition("; ")
    needed = counted(repositories, "registered repository", "registered repositories")
    seen = f"{seen} in this shell, which {needed} need{'s' if repositories == 1 else ''}"
    return [
        failed("gitlab", seen, remedy, instance),
        *(skipped(check, "it is not configured", instance) for check in GITLAB_CHECKS[1:]),
    ]


# SVN ----------------------------------------------------------------------------------------------------


def svn_server(settings: Settings, repository: Repository) -> list[Finding]:
    """One ``svn info`` of one repository of a server: is it reachable, and does it let us in."""
    if shutil.which("svn") is None:
        return [skipped("svn_server", "there is no svn command to ask with", repository.instance)]
    quick = settings.model_copy(
        update={"svn_info_timeout_seconds": min(ANSWER_SECONDS, settings.svn.info_timeout_seconds)}
    )
    reader = svn_reader(quick, repository.svn_root or repository.url, repository.svn_prefix, attempts=1)
    try:
        visit = reader.visit()
    except SyncError as error:
        seen, remedy = error_text(error, "look at the server")
        return [failed("svn_server", seen, remedy, repository.instance)]
    user = f" as {settings.svn.username}" if settings.svn.username else ""
    return [ok("svn_server", f"{visit.root} answers{user}, HEAD r{visit.head}", repository.instance)]


# Certificates -------------------------------------------------------------------------------------------


def certificate(
    url: str,
    subject: str,
    *,
    ca_file: Path | None,
    system: bool = False,
    accepted: str = "",
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Finding]:
    """The certificate of the server of ``url``. ``ca_file`` are the authorities to trust, with ``system``
    beside those of the machine, as svn does; ``accepted`` are failures that the settings accept. Plain HTTP
    is worth a warning, because a credential travels by it."""
    name = "certificate"
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        if _is_here(host):
            return [skipped(name, "plain http on this machine", subject)]
        return [
            warning(name, "plain http: the credential can be read on its way", "use https", subject),
        ]
    if proxy_for(url) is not None:
        return [skipped(name, "behind a proxy; the requests check it", subject)]
    try:
        context = ssl.create_default_context(cafile=None if system else _authorities(ca_file))
        if system and ca_file is not None:
            context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError):
        return [failed(name, "the CA file cannot be used", "set SCM_CA_FILE to a PEM file", subject)]
    try:
        with (
            socket.create_connection((host, parts.port or 443), timeout=CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return [_valid(secure.getpeercert() or {}, subject, now())]
    except ssl.SSLCertVerificationError as error:
        why = f"not trusted: {error.verify_message}"
        if accepted:
            return [
                warning(name, f"{why}; SCM_SVN_TRUST_FAILURES accepts {accepted}", remedy(error), subject)
            ]
        return [failed(name, why, remedy(error), subject)]
    except (OSError, UnicodeError):
        return [skipped(name, "no TLS connection to look at it", subject)]


def _valid(shown: Mapping[str, Any], subject: str, now: datetime) -> Finding:
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
    issuer = {key: value for part in shown.get("issuer", ()) for key, value in part}
    by = issuer.get("organizationName") or issuer.get("commonName") or "somebody without a name"
    seen = f"trusted, by {by}, until {until:%Y-%m-%d}"
    if until - now <= EXPIRES_SOON:
        return warning("certificate", seen, "renew the certificate on the server", subject)
    return ok("certificate", seen, subject)


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
