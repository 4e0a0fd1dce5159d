"""The requests to the mock GitLab: one entry per request, in order, with counts for tests.

Belongs here: the record of requests and of the positions of secrets. It never keeps a token, only its name.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True)
class LoggedRequest:
    """One request. ``route`` is the matched template, such as ``/projects/{id}/merge_requests``, or None.
    ``token`` is the name of its known token, ``sent_secret`` whether it had any.
    """

    at: datetime
    method: str
    path: str
    query: str
    host: str
    headers: dict[str, str]
    route: str | None = None
    token: str | None = None
    sent_secret: bool = False
    secret_in_url: bool = False
    status: int | None = None
    """Status sent; None when the connection was cut before one was."""
    operation: str = ""
    """Name of the GraphQL operation, or of its fields where it has none; empty for REST."""
    iids: tuple[str, ...] = ()
    """The merge requests in the variables of a GraphQL query."""
    fault: str | None = None
    """Name of the fault that struck."""
    crash: str | None = None
    """Traceback of a mistake in the sandbox itself, which answers 500."""

    @property
    def target(self) -> str:
        """The text that patterns of faults and counts match: path and query. GraphQL adds the operation and
        the number of merge requests, such as ``/api/graphql? reviews iids=50``."""
        more = f" {self.operation} iids={len(self.iids)}" if self.operation else ""
        return f"{self.path}?{self.query}{more}"


@dataclass(slots=True)
class Journal:
    """All requests since the start or the last :meth:`clear`."""

    entries: list[LoggedRequest] = field(default_factory=list)
    running: int = 0
    """Requests being answered right now."""
    most_running: int = 0
    """The most that were answered side by side."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, entry: LoggedRequest) -> None:
        """Note that a request came in."""
        with self._lock:
            self.entries.append(entry)
            self.running += 1
            self.most_running = max(self.most_running, self.running)

    def end(self) -> None:
        """Note that a request was answered."""
        with self._lock:
            self.running -= 1

    def matching(self, pattern: str = "") -> list[LoggedRequest]:
        """Entries whose target matches a regular expression."""
        return [one for one in list(self.entries) if re.search(pattern, one.target)]

    def count(self, pattern: str = "") -> int:
        """Number of requests whose target matches a regular expression."""
        return len(self.matching(pattern))

    def by_route(self) -> Counter[str]:
        """Requests by route template; those that matched none under their path."""
        return Counter(one.route or one.path for one in list(self.entries))

    def by_status(self) -> Counter[int]:
        """Requests by status, 0 for a cut connection."""
        return Counter(one.status or 0 for one in list(self.entries))

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self.entries.clear()
            self.most_running = self.running
