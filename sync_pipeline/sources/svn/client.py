"""The part of pysvn that a reader of remote repositories uses, over the ``svn`` command.

``import sync_pipeline.sources.svn.client as pysvn`` runs scripts written for that part. Belongs here: the
methods, their arguments and defaults, and how each becomes one command. Does not belong here: our rows, and
the consequence of a failure for a sync.

Beyond pysvn there are limits, ``calls``, and ``iter_log`` (the entries one by one, memory does not grow).
``log_answer`` is the checked response below it, and ``revprop_bytes`` is a revision property exactly as
stored.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from lxml import etree

from sync_pipeline.core.errors import Cancelled, WindowTooHard
from sync_pipeline.sources.svn import process
from sync_pipeline.sources.svn.configuration import SYSTEM, PrivateFolder, has_proxy, svn_proxy
from sync_pipeline.sources.svn.process import CommandLimits, CommandResult, OutputFile
from sync_pipeline.sources.svn.prompts import RELOCATED, UNTRUSTED, Prompts, Server, server_of
from sync_pipeline.sources.svn.raw_log import RawLog
from sync_pipeline.sources.svn.response import CheckedLog, property_bytes, raw_plain, raw_properties
from sync_pipeline.sources.svn.types import (
    ClientError,
    PysvnDiffSummary,
    PysvnInfo,
    PysvnList,
    PysvnLock,
    PysvnLog,
    PysvnLogChangedPath,
    Revision,
    depth,
    diff_summarize_kind,
    epoch,
    kind_of,
    node_kind,
    number,
    opt_revision_kind,
)

__all__ = [
    "SVN_DIRENT_ALL",
    "Client",
    "ClientError",
    "Revision",
    "depth",
    "diff_summarize_kind",
    "node_kind",
    "opt_revision_kind",
]

SVN_DIRENT_ALL = 0xFFFFFFFF

HEAD = Revision(opt_revision_kind.head)
UNSPECIFIED = Revision(opt_revision_kind.unspecified)
FIRST = number(0)

SSL_FAILURES = {
    0x00000001: "not-yet-valid",
    0x00000002: "expired",
    0x00000004: "cn-mismatch",
    0x00000008: "unknown-ca",
    0x40000000: "other",
}
"""The bits of pysvn's ``failures`` and their names in svn."""

LOGIN_CODES = frozenset({170001, 215000, 215001, 215002, 215004})
LOGIN_TRIES = 3
PROPERTY_NOT_FOUND = 200017

_ERROR_LINE = re.compile(r"^svn: (?:warning: )?[EW](\d{6}): ?(.*)$")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_PASSWORD = re.compile(r"^([^:/]+://[^:/@]*):[^/]*@")
_CONNECTED = re.compile(r"svn: E170013: Unable to connect to a repository at URL '(.*)'$")
_MOVED = re.compile(r"svn: E170011: Repository moved (?:permanently|temporarily) to '(.*)'")
_USER_INFO = re.compile(r"(?<=://)[^/\s@']*@")


class Client:
    """A client of Subversion servers; one per thread, as in pysvn.

    ``config_dir``: Subversion's configuration folder; empty for a private one, removed with the client. With
    a private one web servers are reached through the proxies of HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
    ``password`` is kept in memory only.
    ``timeout``: wall clock limit of one command in seconds, unless a method takes its own.
    ``max_answer_bytes``: the largest answer of one command. ``ca_file``: PEM file with certificate
    authorities. ``trust_failures``: certificate failures to accept, as svn names them, separated by commas.
    ``max_memory_bytes``: the largest address space of one command (on Linux). ``aliases``: URLs of other
    servers that may get the password when the server of the URL redirects there.

    Every method raises ClientError when svn refuses, and WindowTooHard (codes ``timeout``, ``too_large`` and
    ``out_of_memory``) when a limit is reached. It raises Transient (code ``no_room``) when this machine is
    full, and ConfigurationError when svn is not installed. Only the scheme, host and port of the URL, and the
    aliases, get the password.
    """

    def __init__(
        self,
        config_dir: str = "",
        *,
        username: str = "",
        password: str = "",
        svn_command: str = "svn",
        timeout: float = 120.0,
        max_answer_bytes: int = 2 * 1024**3,
        max_memory_bytes: int = 2 * 1024**3,
        ca_file: str | Path | None = None,
        trust_failures: str = "",
        aliases: Iterable[str] = (),
    ) -> None:
        self.calls = 0
        self.timeouts = 0
        self.waited = 0.0
        # Asked before each command: returns when it may be started, and how many seconds that took. It is
        # given what to call while it waits.
        self.callback_permit: Callable[[Callable[[], None]], float] | None = None
        self.timeout = timeout
        self.max_answer_bytes = max_answer_bytes
        self.max_memory_bytes = max_memory_bytes
        self.aliases = frozenset(filter(None, map(server_of, aliases)))
        self.exception_style = 1
        self.callback_get_login: Callable[[str, str, bool], tuple[Any, str, str, Any]] | None = None
        self.callback_ssl_server_trust_prompt: Callable[[dict[str, Any]], tuple[Any, int, Any]] | None = None
        self.callback_cancel: Callable[[], Any] | None = None
        self.callback_notify: Callable[..., Any] | None = None
        self._svn = svn_command
        self._config_dir = config_dir
        # Private folders, by the proxy that they name.
        self._folders: dict[str | None, PrivateFolder] = {}
        self._ca_file = ca_file
        self._trust = trust_failures
        self._username = username
        self._password = password or None
        self._keep_login = False
        self._busy = threading.Lock()

    def __repr__(self) -> str:
        return f"<Client {self._svn}>"

    # Settings

    def set_default_username(self, username: str) -> None:
        """The user name for servers that ask for one; empty for none."""
        self._username = username

    def set_default_password(self, password: str) -> None:
        """The password for servers that ask for one; empty for none. It reaches svn by standard input
        only."""
        self._password = password or None

    def set_auth_cache(self, enable: bool) -> None:
        """Whether svn may store logins and accepted certificates in its configuration folder; off at
        first."""
        self._keep_login = bool(enable)

    def set_interactive(self, enable: bool) -> None:
        """Has no effect, and exists because pysvn has it: svn never asks on a terminal here."""

    def get_default_username(self) -> str:
        """The user name that was set."""
        return self._username

    def get_auth_cache(self) -> bool:
        """Whether svn may store logins."""
        return self._keep_login

    def get_interactive(self) -> bool:
        """Always False."""
        return False

    # Reading

    def log(self, url_or_path: str, *arguments: Any, **named: Any) -> list[PysvnLog]:
        """The log entries from ``revision_start`` to ``revision_end``, in that order. The arguments are
        those of :meth:`log_answer`."""
        return list(self.iter_log(url_or_path, *arguments, **named))

    def iter_log(self, url_or_path: str, *arguments: Any, **named: Any) -> Iterator[PysvnLog]:
        """The entries of ``log``, one by one. The whole response is checked before the first entry is
        yielded; a bad one raises WindowTooHard.
        """
        answer = self.log_answer(url_or_path, *arguments, **named)
        nested = bool(named.get("include_merged_revisions", any(arguments[6:7])))
        for entry in CheckedLog(answer, nested=nested).entries(PysvnLogChangedPath):
            yield PysvnLog(*entry)

    def log_answer(
        self,
        url_or_path: str,
        revision_start: Revision = HEAD,
        revision_end: Revision = FIRST,
        discover_changed_paths: bool = False,
        strict_node_history: bool = True,
        limit: int = 0,
        peg_revision: Revision = UNSPECIFIED,
        include_merged_revisions: bool = False,
        revprops: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> OutputFile:
        """The answer of ``svn log --xml`` as a file, exit status checked, content not judged yet."""
        arguments = ["log", "--xml", "-r", _range(revision_start, revision_end)]
        if discover_changed_paths:
            arguments.append("-v")
        if strict_node_history:
            arguments.append("--stop-on-copy")
        if limit:
            arguments += ["-l", str(limit)]
        if include_merged_revisions:
            arguments.append("-g")
        if revprops is None:
            arguments.append("--with-all-revprops")
        elif not revprops:
            arguments.append("--with-no-revprops")
        for name in revprops or ():
            arguments += ["--with-revprop", name]
        return self._run([*arguments, "--", target(url_or_path, peg_revision)], timeout=timeout).file

    def info2(
        self,
        url_or_path: str,
        revision: Revision = UNSPECIFIED,
        peg_revision: Revision = UNSPECIFIED,
        recurse: bool = True,
        *,
        timeout: float | None = None,
    ) -> list[tuple[str, PysvnInfo]]:
        """Kind, revision and last change of a path and, with ``recurse``, of everything below it."""
        arguments = ["info", "--xml", *(["-R"] if recurse else []), *_revision(revision)]
        answer = self._run([*arguments, "--", target(url_or_path, peg_revision)], timeout=timeout)
        result = []
        for entry in _xml(answer).iterfind("entry"):
            result.append((str(entry.get("path", "")), _info(entry)))
        return result

    def list(
        self,
        url_or_path: str,
        peg_revision: Revision = UNSPECIFIED,
        revision: Revision = UNSPECIFIED,
        recurse: bool = False,
        dirent_fields: int = SVN_DIRENT_ALL,
        fetch_locks: bool = False,
    ) -> Any:
        """The path itself and what is in it, as (entry, lock). ``has_props`` is None: the command does not
        say."""
        ((_, top),) = self.info2(url_or_path, revision, peg_revision, recurse=False)
        base = top.URL
        inside = unquote(base[len(top.repos_root_URL) :]) or "/"
        result = [
            (
                PysvnList(
                    path=base,
                    repos_path=inside,
                    kind=top.kind,
                    size=top.size or 0,
                    created_rev=top.last_changed_rev,
                    time=top.last_changed_date,
                    last_author=top.last_changed_author,
                    has_props=None,
                ),
                top.lock,
            )
        ]
        if top.kind is not node_kind.dir:
            return result
        arguments = ["list", "--xml", *(["-R"] if recurse else []), *(["-v"] if fetch_locks else [])]
        answer = self._run([*arguments, *_revision(revision), "--", target(url_or_path, peg_revision)])
        for entry in _xml(answer).iterfind("list/entry"):
            name = entry.findtext("name", "")
            commit = entry.find("commit")
            result.append(
                (
                    PysvnList(
                        path=f"{base}/{quote(name)}",
                        repos_path=f"{inside.rstrip('/')}/{name}",
                        kind=kind_of(entry.get("kind")),
                        size=int(entry.findtext("size", "0")),
                        created_rev=_number_of(commit),
                        time=epoch(_find_text(commit, "date")),
                        last_author=_find_text(commit, "author"),
                        has_props=None,
                    ),
                    _lock(entry.find("lock")),
                )
            )
        return result

    def propget(
        self,
        prop_name: str,
        url_or_path: str,
        revision: Revision = UNSPECIFIED,
        recurse: bool = False,
        peg_revision: Revision = UNSPECIFIED,
    ) -> dict[str, str | bytes]:
        """The property of the path (and of everything below it) by URL; a value that is no UTF-8 is bytes."""
        arguments = ["propget", "--xml", *(["-R"] if recurse else []), *_revision(revision), "--", prop_name]
        try:
            answer = self._run([*arguments, target(url_or_path, peg_revision)])
        except ClientError as error:
            if PROPERTY_NOT_FOUND in error.codes:
                return {}
            raise
        found = {}
        for element in _xml(answer).iterfind("target"):
            value = element.find("property")
            if value is not None:
                found[str(element.get("path", ""))] = _text_or_bytes(property_bytes(value))
        return found

    def revprop_bytes(
        self, prop_name: str, url: str, revision: Revision = HEAD, *, timeout: float | None = None
    ) -> bytes | None:
        """The value of a revision property exactly as stored; None where the revision does not have it."""
        # Only the XML form is exact: plain output changes line ends and invalid UTF-8. No peg is read here,
        # so the bare URL is the safe target even with an "@" in it.
        arguments = ["propget", "--revprop", "--xml", "-r", revision.argument(), "--", prop_name]
        try:
            answer = self._run([*arguments, as_url(url)], timeout=timeout)
        except ClientError as error:
            if PROPERTY_NOT_FOUND in error.codes:
                return None
            raise
        return next(iter(raw_properties(answer.file.read(0, answer.file.size))), ("", None))[1]

    def revpropget(
        self, prop_name: str, url: str, revision: Revision = HEAD
    ) -> tuple[Revision, str | bytes | None]:
        """The revision and the value of one of its properties; a value that is no UTF-8 is bytes."""
        value = self.revprop_bytes(prop_name, url, revision)
        return self._pinned(url, revision), None if value is None else _text_or_bytes(value)

    def revproplist(self, url: str, revision: Revision = HEAD) -> tuple[Revision, dict[str, str | bytes]]:
        """The revision and all its properties; a value that is no UTF-8 is bytes."""
        # Only names: svn mends the values of this list and refuses some of them.
        answer = self._run(["proplist", "--revprop", "--xml", "-r", revision.argument(), "--", as_url(url)])
        data = answer.file.read(0, answer.file.size)
        at = re.search(rb'<revprops\s+rev="([0-9]+)"', data)
        pinned = number(int(at[1])) if at else self._pinned(url, revision)
        found: dict[str, str | bytes] = {}
        for name in re.findall(rb'<property\s+name="([^"]*)"', data):
            key = raw_plain(name).decode("utf-8", "replace")
            value = self.revprop_bytes(key, url, pinned)
            if value is not None:
                found[key] = _text_or_bytes(value)
        return pinned, found

    def diff_summarize(
        self,
        url_or_path1: str,
        revision1: Revision = HEAD,
        url_or_path2: str | None = None,
        revision2: Revision = HEAD,
        recurse: bool = True,
        ignore_ancestry: bool = False,
    ) -> Any:
        """The differences between two trees, as a list of summaries with paths relative to the first."""
        other = url_or_path1 if url_or_path2 is None else url_or_path2
        arguments = ["diff", "--summarize", "--xml"]
        if not recurse:
            arguments += ["--depth", "files"]
        if not ignore_ancestry:
            arguments.append("--notice-ancestry")
        arguments += ["--old", target(url_or_path1, revision1), "--new", target(other, revision2)]
        kinds = {
            "added": diff_summarize_kind.added,
            "modified": diff_summarize_kind.modified,
            "deleted": diff_summarize_kind.delete,
        }
        base = as_url(url_or_path1).rstrip("/")
        return [
            PysvnDiffSummary(
                path=_relative(path.text or "", base),
                summarize_kind=kinds.get(path.get("item", ""), diff_summarize_kind.normal),
                prop_changed=path.get("props") not in (None, "none"),
                node_kind=kind_of(path.get("kind")),
            )
            for path in _xml(self._run(arguments)).iterfind("paths/path")
        ]

    def cat(self, url_or_path: str, revision: Revision = HEAD, peg_revision: Revision = UNSPECIFIED) -> bytes:
        """The bytes of a file."""
        answer = self._run(["cat", *_revision(revision), "--", target(url_or_path, peg_revision)])
        return answer.file.read(0, answer.file.size)

    def raw_log(self, url: str, *, timeout: float | None = None) -> RawLog | None:
        """A reader of raw logs from the web server of ``url``. None where ``url`` has no web server, or svn
        may reach it by settings of its own: a proxy, trusted certificate failures, a configuration folder."""
        server = server_of(url)
        if server is None or server.scheme not in ("http", "https"):
            return None
        if self._trust or self._config_dir or has_proxy(SYSTEM) or svn_proxy(as_url(url)) is not None:
            return None
        return RawLog(
            as_url(url),
            username=self._username,
            password=self._password or "",
            ca_file=self._ca_file,
            timeout=self.timeout if timeout is None else timeout,
            max_bytes=self.max_answer_bytes,
            cancelled=self._cancelled,
        )

    def permit(self) -> None:
        """Wait for leave to ask the server something, and count it. Raises Cancelled."""
        if self.callback_permit is not None:
            self.waited += self.callback_permit(self._go_on)
        self.calls += 1

    # One command

    def _pinned(self, url: str, revision: Revision) -> Revision:
        if revision.kind is opt_revision_kind.number:
            return revision
        ((_, info),) = self.info2(url, revision, recurse=False)
        return number(info.rev.number)

    def _run(self, arguments: Sequence[str], *, timeout: float | None = None) -> CommandResult:
        """Run one svn command; ask the callbacks and run it again when it wants a login or doubts a
        certificate."""
        if not self._busy.acquire(blocking=False):
            raise ClientError("client in use on another thread", [("client in use on another thread", 0)])
        try:
            tries = 0
            while True:
                try:
                    answer = self._once(arguments, timeout)
                    if answer.status == 0:
                        return answer
                    error = _client_error(answer, arguments[-1], self.aliases)
                except ClientError as refused:
                    error = refused
                tries += 1
                if tries > LOGIN_TRIES or not self._may_try_again(error, arguments[-1]):
                    raise error
        finally:
            self._busy.release()

    def _once(self, arguments: Sequence[str], timeout: float | None) -> CommandResult:
        command = [arguments[0], "--config-dir", self._configuration(arguments[-1])]
        if not self._keep_login:
            command.append("--no-auth-cache")
        if self._username:
            command += ["--username", self._username]
        reply = None
        if self._password is not None:
            command.append("--force-interactive")
            reply = self._prompts(self._password, arguments[-1]).reply
        else:
            command.append("--non-interactive")
            if self._trust:
                command.append(f"--trust-server-cert-failures={self._trust}")
        try:
            self.permit()
            return process.run(
                self._svn,
                [*command, *arguments[1:]],
                limits=CommandLimits(
                    self.timeout if timeout is None else timeout, self.max_answer_bytes, self.max_memory_bytes
                ),
                environment=process.environment(tunnel=not arguments[-1].startswith("http")),
                reply=reply,
                cancelled=self._cancelled if self.callback_cancel is not None else None,
            )
        except Cancelled:
            raise ClientError(
                "The operation was interrupted", [("The operation was interrupted", 200015)]
            ) from None
        except WindowTooHard as error:
            self.timeouts += error.code == "timeout"
            raise

    def _go_on(self) -> None:
        if self._cancelled():
            raise Cancelled("svn was not started because the work was cancelled")

    def _prompts(self, password: str, where: str) -> Prompts:
        """Replies to svn's questions. Only the server of ``where`` and its aliases get the password."""
        server = server_of(where)
        servers = {server, *self.aliases} if server else set()
        return Prompts(password, servers, self._trust.split(","))

    def _cancelled(self) -> bool:
        return self.callback_cancel is not None and bool(self.callback_cancel())

    def _may_try_again(self, error: ClientError, where: str) -> bool:
        if UNTRUSTED in error.codes and self.callback_ssl_server_trust_prompt is not None and not self._trust:
            return self._ask_trust(self.callback_ssl_server_trust_prompt, where)
        if error.codes & LOGIN_CODES and self.callback_get_login is not None:
            known, username, password, _ = self.callback_get_login(where, self._username, False)
            if known:
                self._username, self._password = username, password
            return bool(known)
        return False

    def _ask_trust(self, ask: Callable[[dict[str, Any]], tuple[Any, int, Any]], where: str) -> bool:
        server = server_of(where)
        # The command does not say which failures there are, so the caller is asked about all of them.
        facts = {
            "failures": sum(SSL_FAILURES),
            "hostname": server.host if server else "",
            "realm": where,
            "finger_print": "",
            "valid_from": "",
            "valid_until": "",
            "issuer_dname": "",
        }
        trusted, accepted, _ = ask(facts)
        if trusted:
            self._trust = ",".join(name for bit, name in SSL_FAILURES.items() if accepted & bit)
        return bool(trusted and self._trust)

    def _configuration(self, where: str) -> str:
        if self._config_dir:
            return self._config_dir
        proxy = svn_proxy(where)
        if proxy not in self._folders:
            try:
                folder = PrivateFolder(self._ca_file, proxy)
            except OSError as error:
                raise process.no_room(error) from None
            weakref.finalize(self, folder.remove)
            self._folders[proxy] = folder
        return str(self._folders[proxy].path)


def as_url(url_or_path: str) -> str:
    """The URL as svn wants it: everything percent-encoded that has to be; a path of the file system as it
    is. A password in a URL is left out: it would be on the command line."""
    if not _URL.match(url_or_path):
        return url_or_path
    scheme, _, rest = _PASSWORD.sub(r"\1@", url_or_path).partition("://")
    encoded = quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", rest), safe="/%@:!$&'()*+,;=~[]-._")
    return f"{scheme}://{encoded}"


def target(url_or_path: str, peg: Revision = UNSPECIFIED) -> str:
    """A target for the command line; it always ends with a peg, so that an ``@`` in the name means
    nothing."""
    return f"{as_url(url_or_path)}@{peg.argument()}"


def _range(start: Revision, end: Revision) -> str:
    return f"{start.argument() or 'HEAD'}:{end.argument() or '0'}"


def _revision(revision: Revision) -> Sequence[str]:
    text = revision.argument()
    return ["-r", text] if text else []


def _client_error(answer: CommandResult, where: str, aliases: Collection[Server]) -> ClientError:
    lines = _USER_INFO.sub("", answer.stderr).splitlines()
    errors = [(match[2], int(match[1])) for match in map(_ERROR_LINE.match, lines) if match]
    first = next((line for line in lines if line.startswith("svn: E")), "")
    target, relocated = _redirected(first, where, aliases)
    if relocated:
        # svn has no code of its own for that.
        errors.append(("redirected", RELOCATED))
    if not errors:
        errors = [(f"svn ended with exit status {answer.status}", 0)]
    return ClientError("\n".join(message for message, _ in errors), errors, target=target)


def _redirected(line: str, where: str, aliases: Collection[Server]) -> tuple[str, bool]:
    """The target of a redirect, empty if there was none, and whether that is another repository than
    ``where``.

    It is another one if the server is another one and no alias, or if svn connected to it under another path.
    ``line`` is svn's first error: later ones may have the words of a server.
    """
    server = server_of(where)
    if server is None or server.scheme not in ("http", "https"):
        return "", False
    if match := _CONNECTED.match(line):
        same_path = _parts(match[1]) in (_parts(where), _parts(_without_peg(where)))
        stayed = server_of(match[1] + "/") in {server, *aliases} and same_path
        return ("", False) if stayed else (match[1], True)
    if match := _MOVED.match(line):
        return match[1], server_of(match[1] + "/") not in {server, *aliases}
    return "", False


def _parts(url: str) -> Sequence[str]:
    """The names that the path of ``url`` consists of."""
    return [name for name in unquote(url.partition("://")[2]).split("/")[1:] if name]


def _without_peg(where: str) -> str:
    return as_url(where).rpartition("@")[0] if "@" in where.rpartition("/")[2] else where


def _xml(answer: CommandResult) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True, recover=True)
    try:
        found = etree.fromstring(answer.file.read(0, answer.file.size), parser)
    except etree.XMLSyntaxError:
        found = None
    if found is None:
        raise ClientError("svn answered no XML", [("svn answered no XML", 0)])
    return found


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _find_text(element: Any, name: str) -> str | None:
    found = None if element is None else element.findtext(name)
    return None if found is None else str(found)


def _number_of(commit: Any) -> Revision | None:
    return None if commit is None else number(int(commit.get("revision")))


def _lock(element: Any) -> PysvnLock | None:
    if element is None:
        return None
    return PysvnLock(
        token=_find_text(element, "token"),
        owner=_find_text(element, "owner"),
        comment=_find_text(element, "comment"),
        creation_date=epoch(_find_text(element, "created")),
        expiration_date=epoch(_find_text(element, "expires")),
    )


def _info(entry: Any) -> PysvnInfo:
    commit = entry.find("commit")
    size = entry.get("size")
    return PysvnInfo(
        URL=entry.findtext("url", ""),
        rev=number(int(entry.get("revision", "0"))),
        kind=kind_of(entry.get("kind")),
        repos_root_URL=entry.findtext("repository/root", ""),
        repos_UUID=entry.findtext("repository/uuid", ""),
        last_changed_rev=_number_of(commit),
        last_changed_date=epoch(_find_text(commit, "date")),
        last_changed_author=_find_text(commit, "author"),
        lock=_lock(entry.find("lock")),
        size=None if size is None else int(size),
    )


def _relative(url: str, base: str) -> str:
    shown, inside = unquote(url), unquote(base)
    return (shown[len(inside) :] if shown.startswith(inside) else shown).lstrip("/")
