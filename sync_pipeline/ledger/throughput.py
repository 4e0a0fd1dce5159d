"""How fast a source was read lately, as the ledger has it.

Belongs here: one query over finished runs. What is expected of a plan is in
:mod:`sync_pipeline.reports.plans`.
"""

from __future__ import annotations

from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row

_SQL = queries("throughput")


def seconds_per_row(conn: Connection, repo_id: int, job_type: JobType) -> float | None:
    """Seconds that a row of this job type took in the largest runs of the last 30 days; None if none was."""
    row = only_row(conn.execute(_SQL["pace"], {"repo_id": repo_id, "job_type": str(job_type)}))
    found: float | None = row["seconds_per_row"]
    return found
