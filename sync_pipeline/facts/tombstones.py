"""Tombstones: rows whose source is confirmed deleted are kept and marked.

Belongs here: marking them, by the keys that a comparison gave them. A tombstone is lifted by the module that
stores the row, when it comes back. When a deletion counts as confirmed is decided in
:mod:`sync_pipeline.policy.reconciliation`. Runs inside the caller's transaction, after the lease and the
claim were checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.facts import quarantine
from sync_pipeline.facts.job_types import FACTS, for_each_job_type

_MARK_DELETED = for_each_job_type("""
UPDATE {table} SET deleted_at = now(), {gone} batch_id = %(batch_id)s, version = version + 1,
       {stored_at} = now()
 WHERE repo_id = %(repo_id)s AND {key} = ANY (%(keys)s) AND deleted_at IS NULL
""")


_SQL = queries("tombstones")


def mark_deleted(
    conn: Connection, *, repo_id: int, job_type: JobType, batch_id: int, keys: Sequence[str]
) -> int:
    """Mark the rows with these keys as deleted now; returns how many were not before. Their deferred
    fetches end, and those of the review of a merge request."""
    if not keys:
        return 0
    params = {"repo_id": repo_id, "batch_id": batch_id, "keys": list(keys)}
    quarantine.settle_gone(conn, repo_id, [job_type, *FACTS[job_type].children], keys)
    return conn.execute(_MARK_DELETED[job_type], params).rowcount


def internal_notes(conn: Connection, repo_id: int, keys: Sequence[str]) -> set[str]:
    """Those of these review events that are notes which only members of the project see."""
    return {row["key"] for row in conn.execute(_SQL["internal"], {"repo_id": repo_id, "keys": list(keys)})}
