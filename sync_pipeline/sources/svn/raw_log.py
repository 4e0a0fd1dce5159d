"""The raw log of a web server, for the characters that the XML reader of svn changes.

Belongs here: the question for the log (a ``REPORT``), its answer, and which texts and paths in it hold a CR
or a TAB. Does not belong here: everything else of a log, which svn reads.

mod_dav_svn writes both characters as they are. An XML reader turns a CR into a line feed. In an attribute,
such as the source of a copy, it turns either into a space.
"""

from __future__ import annotations

import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import requests
from requests.auth import HTTPDigestAuth
from urllib3.exceptions import HTTPError

from sync_pipeline.core.errors import Cancelled
from sync_pipeline.sources.gitlab.connections import CancellableAdapter, cancellable
from sync_pipeline.sources.svn.response import raw_plain

_QUESTION = """<?xml version="1.0" encoding="utf-8"?>\
<S:log-report xmlns:S="svn:"><S:start-revision>{}</S:start-revision><S:end-revision>{}</S:end-revision>\
<S:discover-changed-paths/><S:all-revprops/><S:encode-binary-props/><S:path></S:path></S:log-report>"""

_END_OF_ITEM = b"</S:log-item>"
_ALTERED = re.compile(rb"\r|<[^<>]*[\t\r\n][^<>]*>")
_NUMBER = re.compile(rb"<D:version-name>([0-9]+)</D:version-name>")
_TEXT = re.compile(rb"<(D:comment|D:creator-displayname|S:revprop)([^>]*)>([^<]*)</")
_PATH = re.compile(rb"<S:(?:added|replaced|modified|deleted)-path([^>]*)>([^<]*)</")
_COPY = re.compile(rb'copyfrom-path="([^"]*)"')
_NAME = re.compile(rb'name="([^"]*)"')
_NAMES = {b"D:comment": "svn:log", b"D:creator-displayname": "svn:author"}
_BLOCK = 1 << 16
_MAX_ITEM_BYTES = 1 << 27
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0


@dataclass
class Altered:
    """The exact values of one revision that svn shows changed. They are ``texts`` by the name of the
    property, and the path and source of its copy by the shown path.
    """

    texts: dict[str, bytes] = field(default_factory=dict)
    paths: dict[str, tuple[str, str | None]] = field(default_factory=dict)


class RawLog:
    """Asks one server for raw logs. The login goes to the host and port of ``url`` only, no redirect is
    followed, and by Basic only where the server asks for that. ``timeout`` is the wall clock limit of a
    question in seconds, ``max_bytes`` the largest answer. ``cancelled`` is called every second or so while it
    waits for the network."""

    def __init__(
        self,
        url: str,
        *,
        username: str,
        password: str,
        ca_file: str | Path | None,
        timeout: float,
        max_bytes: int,
        cancelled: Callable[[], bool],
    ) -> None:
        # requests would send a user name of the URL to any server that answers.
        self._url = re.sub(r"(?<=://)[^/@]*@", "", url)
        self._login = (username, password) if username else None
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._cancelled = cancelled
        self._session = requests.Session()
        self._session.trust_env = False
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, CancellableAdapter())
        # The authorities that svn knows: those of the system, or the one file.
        self._session.verify = (
            str(authorities) if (authorities := ca_file or ssl.get_default_verify_paths().cafile) else True
        )

    def altered(self, first: int, end: int) -> Mapping[int, Altered] | None:
        """The revisions of ``[first, end)`` that svn shows otherwise than they are; None where the server
        does not let us look, or not now. Raises Cancelled."""
        deadline = time.monotonic() + self._timeout

        def go_on() -> None:
            if self._cancelled():
                raise Cancelled("the question for the raw log was cancelled")
            if time.monotonic() > deadline:
                raise TimeoutError

        try:
            with cancellable(go_on), self._ask(first, end) as response:
                if response.status_code != requests.codes.ok:
                    return None
                return dict(_items(self._blocks(response, go_on)))
        except (requests.RequestException, HTTPError, OSError, ValueError):
            return None

    def _ask(self, first: int, end: int) -> requests.Response:
        response = self._send(first, end, {})
        if response.status_code != requests.codes.unauthorized or self._login is None:
            return response
        response.close()
        schemes = {part.strip().split(" ")[0].lower() for part in _challenges(response)}
        if "digest" in schemes:
            try:
                return self._send(first, end, {}, HTTPDigestAuth(*self._login))
            except (KeyError, TypeError, AttributeError):
                # The challenge has no realm or no nonce.
                return response
        if "basic" not in schemes:
            return response
        login = b64encode(":".join(self._login).encode()).decode()
        return self._send(first, end, {"Authorization": f"Basic {login}"})

    def _send(
        self, first: int, end: int, headers: Mapping[str, str], auth: HTTPDigestAuth | None = None
    ) -> requests.Response:
        return self._session.request(
            "REPORT",
            self._url,
            data=_QUESTION.format(first, end - 1).encode(),
            headers={"Content-Type": "text/xml", **headers},
            auth=auth,
            allow_redirects=False,
            stream=True,
            timeout=(_CONNECT_SECONDS, min(_SILENCE_SECONDS, self._timeout)),
        )

    def _blocks(self, response: requests.Response, go_on: Callable[[], None]) -> Iterator[bytes]:
        size = 0
        for block in response.iter_content(_BLOCK):
            go_on()
            size += len(block)
            if size > self._max_bytes:
                raise ValueError("too long")
            yield block


def _challenges(response: requests.Response) -> list[str]:
    return response.headers.get("WWW-Authenticate", "").split(",")


def _items(blocks: Iterator[bytes]) -> Iterator[tuple[int, Altered]]:
    """Number and what is altered of each revision with anything. Raises ValueError where the answer is none
    or ends too early."""
    held = bytearray()
    begun = False
    for block in blocks:
        seen = max(0, len(held) - len(_END_OF_ITEM))
        held += block
        begun = begun or b"<S:log-report" in held
        end = held.rfind(_END_OF_ITEM, seen)
        if end >= 0 and begun:
            for item in bytes(held[:end]).split(_END_OF_ITEM):
                if _ALTERED.search(item):
                    yield from _altered(item)
            del held[: end + len(_END_OF_ITEM)]
        if len(held) > (_MAX_ITEM_BYTES if begun else _BLOCK):
            raise ValueError("no log, or a revision without an end")
    if not begun or not held.rstrip().endswith((b"</S:log-report>", b"<S:log-report/>")):
        raise ValueError("no whole log")


def _altered(item: bytes) -> Iterator[tuple[int, Altered]]:
    number = _NUMBER.search(item)
    if number is None:
        return
    found = Altered()
    for tag, attributes, text in _TEXT.findall(item):
        if b"\r" in text and b'encoding="base64"' not in attributes:
            name = _NAME.search(attributes)
            key = _NAMES.get(tag) or (raw_plain(name[1]).decode("utf-8", "replace") if name else "")
            found.texts[key] = raw_plain(text)
    for attributes, text in _PATH.findall(item):
        copied = _COPY.search(attributes)
        source = None if copied is None else copied[1]
        if b"\r" in text or (source is not None and re.search(rb"[\t\r\n]", source)):
            path = raw_plain(text).decode("utf-8", "backslashreplace")
            exact = None if source is None else raw_plain(source).decode("utf-8", "backslashreplace")
            found.paths[path.replace("\r\n", "\n").replace("\r", "\n")] = (path, exact)
    if found.texts or found.paths:
        yield int(number[1]), found
