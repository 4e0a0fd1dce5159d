"""Connections that check repeatedly, while they wait for the network, whether to continue.

Belongs here: the adapter for requests and its parts. A network time-out limits one wait; a server that sends
a byte a second, in its headers or between two chunks, never reaches it. A process that has to stop has
seconds, not the minute of one wait. Does not belong here: the time limit of a response
(:mod:`sync_pipeline.sources.gitlab.transport`).
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

# Seconds between two checks whether to continue. A new connection attempt sends its first packet again, so it
# gets longer.
_READ_SLICE = 0.5
_CONNECT_SLICE = 3.0

_asked = threading.local()


@contextmanager
def cancellable(go_on: Callable[[], None]) -> Iterator[None]:
    """Call ``go_on`` repeatedly while this thread waits for the network in the block. ``go_on`` raises to
    stop the wait; a TimeoutError counts as one of the network.
    """
    before = getattr(_asked, "go_on", None)
    _asked.go_on = go_on
    try:
        yield
    finally:
        _asked.go_on = before


class CancellableAdapter(HTTPAdapter):
    """See :func:`cancellable`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As its parent, with our connections."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """As its parent, with our connections."""
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def pool(
        self, request: requests.PreparedRequest, verify: str | bool, proxies: Mapping[str, str]
    ) -> HTTPConnectionPool:
        """The connections to the server of ``request``; ``verify`` is a file of authorities, or True for the
        usual ones. Raises as requests does for an unusable proxy, and OSError where there is no such file.
        """
        pool: HTTPConnectionPool = self.get_connection_with_tls_context(request, verify, dict(proxies))  # type: ignore[assignment]
        self.cert_verify(pool, request.url, verify, None)  # type: ignore[no-untyped-call]
        return pool


class _Reading(io.RawIOBase):
    """The bytes of one response. ``raw`` keeps the socket open until the response is closed."""

    def __init__(self, sock: Any, raw: io.RawIOBase, go_on: Callable[[], None]) -> None:
        self._socket = sock
        self._raw = raw
        self._go_on = go_on

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """As its parent. Raises TimeoutError if nothing comes within the time-out of the socket."""
        longest: float | None = self._socket.gettimeout()
        started = time.monotonic()
        try:
            while True:
                self._go_on()
                left = _READ_SLICE if longest is None else longest - (time.monotonic() - started)
                self._socket.settimeout(max(min(left, _READ_SLICE), 0.001))
                try:
                    return int(self._socket.recv_into(buffer))
                except TimeoutError:
                    if left <= _READ_SLICE and longest is not None:
                        raise
        finally:
            self._socket.settimeout(longest)

    def close(self) -> None:
        super().close()
        self._raw.close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        go_on = getattr(_asked, "go_on", None)
        if go_on is not None:
            # Nothing is in the buffer yet.
            self.fp: Any = io.BufferedReader(_Reading(sock, self.fp.detach(), go_on))


def _connected(connect: Callable[[], socket.socket], connection: HTTPConnection) -> socket.socket:
    """The socket that ``connect`` returns within the time-out of ``connection``."""
    go_on = getattr(_asked, "go_on", None)
    longest = connection.timeout
    if go_on is None or not isinstance(longest, int | float):
        return connect()
    end = time.monotonic() + longest
    try:
        while True:
            go_on()
            left = end - time.monotonic()
            connection.timeout = max(min(left, _CONNECT_SLICE), 0.001)
            try:
                sock = connect()
            except ConnectTimeoutError as error:
                # A refused connection counts among them.
                if left <= _CONNECT_SLICE or isinstance(error, NewConnectionError):
                    raise
            else:
                sock.settimeout(longest)
                return sock
    finally:
        connection.timeout = longest


class _Plain(HTTPConnection):
    response_class = _Answer

    def _new_conn(self) -> socket.socket:
        return _connected(super()._new_conn, self)


class _Encrypted(HTTPSConnection):
    response_class = _Answer

    def _new_conn(self) -> socket.socket:
        return _connected(super()._new_conn, self)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


_POOLS = {"http": _PlainPool, "https": _EncryptedPool}
