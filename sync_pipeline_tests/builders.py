"""Rows for tests that need a registered repository or a revision without a real source behind it.

Belongs here: builders used by more than one test module. Tests of readers use real repositories instead.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sync_pipeline.model import (
    JobRequest,
    JobType,
    Mode,
    PathChange,
    RevisionRow,
    RevisionWindow,
    Trigger,
    Visibility,
)
from sync_pipeline.store import watermarks
from sync_pipeline.store.database import Connection

_REPO = """
INSERT INTO scm.repos (kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root)
VALUES ('svn', 'local', 'local', 'acme', %(slug)s, %(url)s, 'uuid-of-' || %(slug)s, %(url)s)
RETURNING repo_id
"""


def register(conn: Connection, slug: str = "paint", *, origin: int = 1, head: int | None = None) -> int:
    """A registered SVN repository without a server; returns its repo_id."""
    row = conn.execute(_REPO, {"slug": slug, "url": f"file:///srv/{slug}"}).fetchone()
    assert row is not None
    watermarks.register(
        conn,
        repo_id=row["repo_id"],
        job_type=JobType.REVISIONS,
        origin_rev=origin,
        head_rev=head,
        actor="test",
        reason="test",
    )
    return int(row["repo_id"])


def change(path: str, action: str = "M", **other: Any) -> PathChange:
    """A changed path of a file."""
    values: dict[str, Any] = {
        "kind": "file",
        "copyfrom_path": None,
        "copyfrom_rev": None,
        "text_mods": True,
        "prop_mods": False,
    }
    return PathChange(path=path, action=action, **(values | other))


def revision(number: int, message: str | None = "work", **other: Any) -> RevisionRow:
    """A fully visible revision with two changed paths."""
    values: dict[str, Any] = {
        "author_raw": "jo",
        "ts": datetime(2020, 1, 1, tzinfo=UTC),
        "visibility": Visibility.FULL,
        "paths": (change(f"/trunk/{number}", "A"), change("/trunk/common")),
    }
    return RevisionRow(rev_num=number, message=message, **(values | other))


def request(repo_id: int, mode: Mode = Mode.INCREMENTAL, **other: Any) -> JobRequest:
    """A request of a test for the revisions of a repository."""
    values: dict[str, Any] = {"trigger": Trigger.RUNNER, "actor": "test", "reason": "test"}
    window = other.pop("window", None)
    if isinstance(window, tuple):
        window = RevisionWindow(*window)
    return JobRequest(repo_id, JobType.REVISIONS, mode, window=window, **(values | other))
