"""Servers that are slow, silent or odd while the raw log is asked for."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable

import pytest

from sync_pipeline.core.errors import Cancelled
from sync_pipeline.sources.svn.raw_log import RawLog
from sync_pipeline_tests.sources.gitlab.servers import kept_alive, silent

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n"


def raw_log(url: str, *, timeout: float = 7200.0, cancelled: Callable[[], bool] = lambda: False) -> RawLog:
    return RawLog(
        url,
        username="ann",
        password="secret",
        ca_file=None,
        timeout=timeout,
        max_bytes=1 << 20,
        cancelled=cancelled,
    )


@pytest.mark.parametrize("first_bytes", [b"", HEAD[:9], HEAD + b"Content-Length: 99\r\n\r\n<"])
def test_somebody_who_stops_does_not_wait_for_a_silent_server(first_bytes: bytes) -> None:
    asked = itertools.count()
    ended: list[object] = []

    def ask(url: str) -> None:
        try:
            ended.append(raw_log(url, cancelled=lambda: next(asked) >= 4).altered(1, 2))
        except Cancelled as error:
            ended.append(type(error))

    with silent(first_bytes) as url:
        thread = threading.Thread(target=ask, args=(url,), daemon=True)
        thread.start()
        thread.join(50)
        assert ended == [Cancelled]


@pytest.mark.parametrize("begin", [HEAD + b"Content-Length: 1000\r\n\r\n", HEAD + b"X: "])
def test_a_server_that_sends_a_byte_now_and_then_meets_the_limit(begin: bytes) -> None:
    sent = itertools.count()
    seen = [0]

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(begin)
        for _ in range(1000):
            link.sendall(b" ")
            seen[0] = next(sent)
            time.sleep(0.01)

    with kept_alive(talk) as url:
        assert raw_log(url, timeout=0.15).altered(1, 2) is None
        assert seen[0] < 900


@pytest.mark.parametrize(
    "challenge", ['qop="auth"', 'realm="x"', 'realm="x", nonce', 'realm="x", nonce="y", qop']
)
def test_a_digest_challenge_without_its_parts_is_a_refusal(challenge: str) -> None:
    def talk(link: socket.socket, number: int) -> None:
        link.sendall(
            f"HTTP/1.1 401 No\r\nWWW-Authenticate: Digest {challenge}\r\nContent-Length: 0\r\n\r\n".encode()
        )

    with kept_alive(talk) as url:
        assert raw_log(url).altered(1, 2) is None
