"""Connections that ask, before each piece of an answer that they read, whether to go on.

Belongs here: the adapter for requests and what it needs below it. A time-out of the network is for one wait;
a server that sends a byte a second, in its headers or between two chunks, never meets it. Does not belong
here: how long an answer may take (:mod:`sync_pipeline.sources.gitlab.transport`).
"""

from __future__ import annotations

import http.client
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_asked = threading.local()


@contextmanager
def asking(go_on: Callable[[], None]) -> Iterator[None]:
    """What this thread reads in the block, it reads after a call of ``go_on``, which raises to stop it; a
    TimeoutError counts as one of the network."""
    before = getattr(_asked, "go_on", None)
    _asked.go_on = go_on
    try:
        yield
    finally:
        _asked.go_on = before


class AskingAdapter(HTTPAdapter):
    """See :func:`asking`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As its parent, with our connections."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """As its parent, with our connections."""
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager


class _Reading(io.RawIOBase):
    """The bytes of one answer."""

    def __init__(self, raw: io.RawIOBase, go_on: Callable[[], None]) -> None:
        self._raw = raw
        self._go_on = go_on

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._go_on()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        super().close()
        self._raw.close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        go_on = getattr(_asked, "go_on", None)
        if go_on is not None:
            # Nothing is in the buffer yet.
            self.fp: Any = io.BufferedReader(_Reading(self.fp.detach(), go_on))


class _Plain(HTTPConnection):
    response_class = _Answer


class _Encrypted(HTTPSConnection):
    response_class = _Answer


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


_POOLS = {"http": _PlainPool, "https": _EncryptedPool}
