"""python-gitlab whose requests are as safe as ours.

Belongs here: the session of requests that python-gitlab sends through, and nothing of its own: each request
goes through :meth:`~sync_pipeline.sources.gitlab.transport.Client.send`. Does not belong here: our own
requests, which need no session.
"""

from __future__ import annotations

import io
from typing import Any

import gitlab
import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from sync_pipeline.sources.gitlab import bodies
from sync_pipeline.sources.gitlab.transport import Client, Request

# Headers of a request that its client decides.
_OURS = frozenset({"private-token", "cookie", "authorization"})
# The body is unpacked already.
_UNPACKED = frozenset({"content-encoding", "content-length", "transfer-encoding", "set-cookie"})


def python_gitlab(client: Client) -> gitlab.Gitlab:
    """python-gitlab for one thread. Its requests are counted for ``client`` and raise our exceptions."""
    return gitlab.Gitlab(
        client.instance.url,
        session=_Session(client),
        keep_base_url=True,
        retry_transient_errors=False,
        user_agent="sync_pipeline",
    )


class _Session(requests.Session):
    """A session that sends everything through a client, without cookies and credentials of its own."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.trust_env = False
        self.headers["Accept"] = "application/json"
        self.headers["Accept-Encoding"] = bodies.ENCODINGS
        for prefix in ("https://", "http://"):
            self.mount(prefix, _Adapter(client))


class _Adapter(BaseAdapter):
    """Sends a request of requests through a client."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """The response with status 2xx. Time-outs, authorities and proxies are those of the client."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OURS}
        answer = self._client.send(Request(request.method or "GET", request.url or "", headers, request.body))
        raw = urllib3.HTTPResponse(
            io.BytesIO(answer.body),
            {name: value for name, value in answer.headers.items() if name.lower() not in _UNPACKED},
            answer.status,
            reason=answer.reason,
            preload_content=False,
        )
        return HTTPAdapter().build_response(request, raw)

    def close(self) -> None:
        """The connections belong to the instance."""
