"""Subversion as a source: the pysvn surface over the ``svn`` command, and the reader of revisions.

Belongs here: making a client from plain values. Does not belong here: settings and where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sync_pipeline.sources.svn.client import Client


def make_client(
    *,
    username: str = "",
    password: str = "",
    ca_file: str | Path | None = None,
    trust_failures: str = "",
    timeout: float = 120.0,
    max_answer_bytes: int = 2 * 1024**3,
    max_memory_bytes: int = 2 * 1024**3,
    aliases: Iterable[str] = (),
    svn_command: str = "svn",
) -> Client:
    """A client that asks nobody anything. ``timeout`` in seconds; ``password`` is kept in memory only."""
    client = Client(
        svn_command=svn_command,
        timeout=timeout,
        max_answer_bytes=max_answer_bytes,
        max_memory_bytes=max_memory_bytes,
        aliases=aliases,
        ca_file=ca_file,
        trust_failures=trust_failures,
    )
    client.set_default_username(username)
    client.set_default_password(password)
    return client
