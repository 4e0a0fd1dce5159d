"""Servers for the tests of the GitLab source: one that says exactly the bytes it was told to, one for an app.

Belongs here: starting and stopping, and what was asked. Does not belong here: what a GitLab would say.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp

from sync_pipeline_sandbox.gitlab.server import serve_to_the_end

RESET = b"(reset)"
SILENCE = b"(silence)"


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """A server whose ``responses`` are sent in order, the last one again and again."""

    url: str
    responses: list[bytes]
    asked: list[Asked] = field(default_factory=list)

    @property
    def tokens(self) -> list[str | None]:
        """The token of each request."""
        return [one.headers.get("private-token") for one in self.asked]


def answer(
    body: Any = None, status: str = "200 OK", headers: Mapping[str, str] | None = None, *, kind: str = "json"
) -> bytes:
    """A whole answer; ``body`` is written as JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    types = {"json": "application/json", "html": "text/html; charset=utf-8", "text": "text/plain"}
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {types[kind]}", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + data


@contextlib.contextmanager
def scripted(*responses: bytes, certificate: tuple[str, str] | None = None) -> Iterator[Script]:
    """A server that sends ``responses`` and closes after each; over TLS with a certificate and key."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if certificate else "http"
    script = Script(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", list(responses))
    over = threading.Event()
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)

    def serve() -> None:
        count = 0
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                link = context.wrap_socket(connection, server_side=True) if context else connection
                with link:
                    if (one := _request(link)) is None:
                        continue
                    script.asked.append(one)
                    data = script.responses[min(count, len(script.responses) - 1)]
                    count += 1
                    if data == SILENCE:
                        link.recv(1)
                    elif data == RESET:
                        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        link.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


@contextlib.contextmanager
def overheard(port: int = 0, host: str = "127.0.0.1") -> Iterator[tuple[int, list[bytes]]]:
    """The port of a listener that answers nothing, and the first bytes of each connection to it, whatever
    protocol they are of."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    heard: list[bytes] = []

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                with link:
                    link.settimeout(5)
                    heard.append(link.recv(65536))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


@contextlib.contextmanager
def kept_alive(
    talk: Callable[[socket.socket, int], None], certificate: tuple[str, str] | None = None
) -> Iterator[str]:
    """The URL of a server that keeps its connections; ``talk`` answers each request of one, which is
    counted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate:
        context.load_cert_chain(*certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            plain.settimeout(10)
            link = stack.enter_context(plain)
            if certificate:
                link = stack.enter_context(context.wrap_socket(plain, server_side=True))
            number = 0
            while (data := link.recv(65536)) and not over.is_set():
                if b"\r\n\r\n" in data:
                    number += 1
                    talk(link, number)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                threading.Thread(target=serve, args=(link,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


@contextlib.contextmanager
def silent(
    first_bytes: bytes, certificate: tuple[str, str] | None = None, *, asked: list[int] | None = None
) -> Iterator[str]:
    """The URL of a server that says this and then nothing more; ``asked`` grows with each request."""
    over = threading.Event()

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(first_bytes)
        if asked is not None:
            asked.append(number)
        over.wait(600)

    with kept_alive(talk, certificate) as url:
        try:
            yield url
        finally:
            over.set()


def _request(link: socket.socket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = link.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += link.recv(65536)
    method, target, _ = first.split(" ")
    return Asked(method, target, headers, body)


@contextlib.contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """The URL of ``app``, served over HTTP by a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(serve_to_the_end(server, listener)), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


class Clock:
    """A clock that moves only by the sleeping of the one it was given to."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Time goes by."""
        self.slept.append(seconds)
        self.seconds += seconds

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self.seconds


Sleep = Callable[[float], None]


def self_signed(folder: Path, name: str = "IP:127.0.0.1", *, expired: bool = False) -> tuple[str, str]:
    """Files with a certificate for ``name`` that nobody else vouches for, and with its key."""
    pem, key = folder / "server.pem", folder / "server.key"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=test", "-addext", f"subjectAltName={name}", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", pem], check=True, capture_output=True)
    if expired:
        signed = ["openssl", "x509", "-in", str(pem), "-signkey", str(key), "-days", "-1"]
        pem = folder / "expired.pem"
        subprocess.run([*signed, "-out", pem], check=True, capture_output=True)
    return str(pem), str(key)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """See :func:`self_signed`."""
    return self_signed(tmp_path_factory.mktemp("certificate"))
