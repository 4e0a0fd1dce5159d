"""Costs of the shared rate limit per request.

Belongs here: the time of one token on the embedded server, with one process and with many threads at one
server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.measure import Figure, seconds
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.policy.rate_limits import RateLimits
from sync_pipeline.runtime.environment import ensure_server, remove_server
from sync_pipeline.sync.limiter import SharedLimiter

THREADS = 8
PERMITS = 400


def figures() -> list[Figure]:
    """Milliseconds of a permit, against the least statement that a pool can send."""
    with tempfile.TemporaryDirectory(prefix="scm-bench-") as folder:
        url = ensure_server(Path(folder))
        try:
            migrations.migrate(url, "development")
            with Database(url, max_size=THREADS) as database:
                return _measure(database)
        finally:
            remove_server(Path(folder))


def _measure(database: Database) -> list[Figure]:
    limiter = SharedLimiter(database, "git.example", RateLimits(100_000.0, 100_000), max_wait=60.0)

    def permit() -> None:
        limiter.acquire("projects", lambda: None)

    def least() -> None:
        with database.connection() as conn:
            conn.execute("SELECT 1")

    def repeated(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(PERMITS):
                work()

        return run

    permit()
    alone = seconds(repeated(permit), runs=3) / PERMITS * 1000
    bare = seconds(repeated(least), runs=3) / PERMITS * 1000
    with ThreadPoolExecutor(THREADS) as pool:
        many = seconds(lambda: list(pool.map(lambda _: repeated(permit)(), range(THREADS))))
    return [
        Figure("a permit of the shared rate limit", "SELECT 1", alone, bare, "ms", ""),
        Figure(
            f"permits a second, {THREADS} threads at one server", "", THREADS * PERMITS / many, None, "", ""
        ),
    ]
