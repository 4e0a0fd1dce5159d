"""Serving the small GitLab over real HTTP, in a thread of this process.

Belongs here: starting uvicorn on a free port and stopping it. The command line is ``__main__``.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import Any

import uvicorn

from sync_pipeline_sandbox.gitlab.app import build_app
from sync_pipeline_sandbox.gitlab.control import GitLab


def settings(gitlab: GitLab, prefix: str) -> uvicorn.Config:
    """How uvicorn serves it: silent, with the server's own Date header, one process."""
    return uvicorn.Config(
        build_app(gitlab, prefix=prefix),
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        lifespan="off",
        http="h11",
        loop="asyncio",
        ws="none",
        timeout_graceful_shutdown=1,
    )


class Server:
    """A running server: ``url`` is the instance's address, with the prefix and without ``/api/v4``. Use it
    as a context manager, or call :meth:`stop`."""

    def __init__(
        self,
        gitlab: GitLab,
        *,
        prefix: str = "",
        port: int = 0,
        certificate: str | None = None,
        key: str | None = None,
    ) -> None:
        """Start serving on the loopback address; port 0 is a free one. With ``certificate`` and ``key``
        (paths of PEM files) over TLS. Raises OSError when the port is taken."""
        config = settings(gitlab, prefix)
        if certificate is not None:
            config.ssl_certfile, config.ssl_keyfile = certificate, key
        self.gitlab = gitlab
        # asyncio switches Nagle's delay off only where the protocol is named.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self._socket.listen(128)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}{prefix}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="small-gitlab", daemon=True)
        self._thread.start()
        # Requests that come before it has started wait in the listening socket.
        deadline = time.monotonic() + 30
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self._socket.close()
                raise OSError("the small GitLab did not start")
            time.sleep(0.005)

    @property
    def api(self) -> str:
        """Address of the REST API."""
        return f"{self.url}/api/v4"

    def stop(self) -> None:
        """Stop serving; requests that are being answered get a second."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(serve_to_the_end(self._server, self._socket))

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


async def serve_to_the_end(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until ``should_exit`` is set, and finish every connection before the loop ends.

    uvicorn leaves connections that came or went at the last moment, and Python complains about them much
    later.
    """
    transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
    protocol = server.config

    def remember(*args: Any, **kwargs: Any) -> Any:
        made = connect(*args, **kwargs)
        accept = made.connection_made

        def connection_made(transport: asyncio.BaseTransport) -> None:
            transports.add(transport)
            accept(transport)

        made.connection_made = connection_made  # type: ignore[method-assign]
        return made

    if not protocol.loaded:
        protocol.load()
    connect = protocol.http_protocol_class
    protocol.http_protocol_class = remember  # type: ignore[assignment]
    await server.serve(sockets=[listener])
    for _ in range(3):
        for transport in list(transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await asyncio.sleep(0)


def serve(gitlab: GitLab, *, prefix: str = "", port: int = 0) -> Server:
    """Serve a control object in a thread; see :class:`Server`."""
    return Server(gitlab, prefix=prefix, port=port)
