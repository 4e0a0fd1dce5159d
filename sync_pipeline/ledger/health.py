"""The facts behind the health of each (repository, job type), and the verdict last shown.

Belongs here: the one query that gathers them, and ``scm.health``. Does not belong here: their evaluation
(:mod:`sync_pipeline.reports.health`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sync_pipeline.core.model import BEGINNING
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_multiranges
from sync_pipeline.database.rows import only_value
from sync_pipeline.ledger import jobs, servers

_SQL = queries("health")


def facts(conn: Connection, repo_ids: Sequence[int] | None = None, *, repairs: int) -> list[dict[str, Any]]:
    """The facts of these repositories, or of all. ``gap``, ``queued``, ``failed`` are windows, ``now`` is the
    database's clock; ``unrepaired`` are the differences from the source that ``repairs`` did not heal."""
    with conn.transaction():
        now = only_value(conn.execute(_SQL["now"]))
        params = {
            "repo_ids": None if repo_ids is None else list(repo_ids),
            "beginning": BEGINNING,
            "repairs": repairs,
            "given_up": list(jobs.GIVEN_UP),
        }
        rows = conn.execute(_SQL["facts"], params).fetchall()
        confirmed = {(one.instance, one.kind) for one in servers.failing(conn) if one.is_confirmed}
    for row in rows:
        if (row["instance"], row["kind"]) not in confirmed:
            row["server_code"] = row["server_error"] = row["server_since"] = None
        row["gap"] = from_multiranges(row.pop("gap_revs"), row.pop("gap_time"))
        row["queued"] = from_multiranges(row.pop("queued_revs"), row.pop("queued_time"))
        row["failed"] = from_multiranges(row.pop("failed_revs"), row.pop("failed_time"))
        row["now"] = now
        row["unreadable"] = row["unreadable"] or []
    return rows


def record_shown(
    conn: Connection, repo_id: int, job_type: str, *, passed: bool, reasons: Sequence[str]
) -> None:
    """Write down the verdict that Dagster is shown."""
    conn.execute(
        _SQL["shown"], {"repo_id": repo_id, "job_type": job_type, "passed": passed, "reasons": list(reasons)}
    )


def forget_shown(conn: Connection, repo_id: int, job_type: str) -> None:
    """Forget the verdict that Dagster was shown, so that it is reported again."""
    conn.execute(_SQL["hidden"], {"repo_id": repo_id, "job_type": job_type})
