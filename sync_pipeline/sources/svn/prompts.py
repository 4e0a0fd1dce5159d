"""The questions of ``svn`` on its standard error, and the replies.

Belongs here: the servers that may get the password, and the reply to each question. Does not belong here:
running the command. svn follows redirects to any scheme, host and port. It sends a password of its command
line or its standard input to any server that asks for one. So svn is made to ask; its question names the
server, and only the servers that may get the password get a reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sync_pipeline.sources.svn.types import ClientError

AUTHENTICATION_FAILED = 215004
UNTRUSTED = 230001
RELOCATED = 175011
END_OF_INPUT = b""
"""The reply to a question that we know no answer to: the standard input ends."""

_PORTS = {"http": 80, "https": 443, "svn": 3690}

# A server chooses the names of realm and user, which may hold anything but a line end. The text has to match
# from its beginning to its end, so that no server can imitate the question of another one.
_LOCALE = r"(?:svn: warning: (?:cannot set|environment variable|please check) [^\n]*\n)*"
_PASSWORD = re.compile(
    _LOCALE + r"Authentication realm: <([^\n>]*)>[^\n]*\n(Password for '[^\n]*': |Username: )\Z"
)
_CERTIFICATE = re.compile(
    _LOCALE + r"Error validating server certificate for '([^\n']*)':\n(.*?)Certificate information:\n.*\? \Z",
    re.DOTALL,
)
_QUESTION = re.compile(r"[:?] \Z")
_FAILURES = {
    " - The certificate is not issued by a trusted authority": "unknown-ca",
    " - The certificate hostname does not match": "cn-mismatch",
    " - The certificate is not yet valid": "not-yet-valid",
    " - The certificate has expired": "expired",
    " - The certificate has an unknown error": "other",
}


class Server(NamedTuple):
    """The server of a login: a scheme, a host and a port. ``port`` is 0 where the scheme has no usual one."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = not self.port or self.port == _PORTS.get(self.scheme)
        return f"{self.scheme}://{host}" + ("" if usual else f":{self.port}")


def server_of(url: str) -> Server | None:
    """The server of a URL, which may end with a peg; None where it names none."""
    scheme, mark, rest = url.partition("://")
    server, slash, _ = rest.partition("/")
    if not slash:
        server = re.sub(r"@(?:[0-9]+|[A-Z]+|)\Z", "", server)
    match = re.match(r"(.*?)(?::([0-9]*))?\Z", server.rpartition("@")[2])
    if not mark or match is None or not match[1]:
        return None
    scheme = scheme.lower()
    return Server(scheme, match[1].strip("[]").lower(), int(match[2] or _PORTS.get(scheme, 0)))


class Prompts:
    """Answers the questions of one command. ``servers`` may get the password and may have certificates with
    the failures in ``trusted``."""

    def __init__(self, password: str, servers: Iterable[Server], trusted: Iterable[str] = ()) -> None:
        self._password = password
        self._servers = frozenset(servers)
        self._trusted = frozenset(trusted)
        self._answered: set[str] = set()

    def reply(self, text: str) -> bytes | None:
        """The reply to ``text``, which svn has written since the last reply; None while that is no question.
        Raises ClientError where svn must not go on: another server asks (``target`` is that server), the
        password is wrong, or the certificate is not trusted."""
        if match := _PASSWORD.search(text):
            self._check_server(match[1])
            if match[0] in self._answered or match[2] == "Username: ":
                raise _error("the server refuses the user name or the password", AUTHENTICATION_FAILED)
            self._answered.add(match[0])
            return self._password.encode() + b"\n"
        if match := _CERTIFICATE.search(text):
            self._check_server(match[1])
            lines = [line for line in match[2].splitlines() if line.startswith(" - ")]
            failures = set(map(_failure, lines))
            if not failures or not failures <= self._trusted:
                raise _error("the certificate of the server is not trusted", UNTRUSTED)
            return b"t\n"
        return END_OF_INPUT if _QUESTION.search(text) else None

    def _check_server(self, named: str) -> None:
        server = server_of(named)
        if server is None or server not in self._servers:
            raise ClientError(
                "redirected to another server",
                [("redirected to another server", RELOCATED)],
                target=str(server) if server else "",
            )


def _failure(line: str) -> str:
    return next((name for start, name in _FAILURES.items() if line.startswith(start)), "unknown")


def _error(message: str, code: int) -> ClientError:
    return ClientError(message, [(message, code)])
