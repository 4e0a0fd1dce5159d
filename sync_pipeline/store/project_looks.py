"""The latest look at each GitLab project: ``scm.project_looks``.

Belongs here: keeping a look for the other job types of the project, whose visits follow in other processes a
moment later. Does not belong here: looking (:mod:`sync_pipeline.sources.gitlab.project`), and what follows
from a look (:mod:`sync_pipeline.sync.project`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.model import JobType
from sync_pipeline.store import raw as raws
from sync_pipeline.store.database import Connection

# A look that is recent enough, with the same token, and that none of these job types has used. A token that
# was refused since then is tried anew.
_RECENT = """
SELECT raw, escaped, server_date, looked_at FROM scm.project_looks
 WHERE repo_id = %(repo_id)s AND fingerprint = %(fingerprint)s AND NOT job_types && %(job_types)s::text[]
   AND looked_at > clock_timestamp() - make_interval(secs => %(seconds)s)
   AND NOT EXISTS (SELECT FROM scm.credential_stops WHERE fingerprint = %(fingerprint)s)
"""

_PUT = """
INSERT INTO scm.project_looks (repo_id, fingerprint, job_types, raw, escaped, server_date, looked_at)
VALUES (%(repo_id)s, %(fingerprint)s, %(job_types)s, %(raw)s, %(escaped)s, %(server_date)s, %(looked_at)s)
ON CONFLICT (repo_id) DO UPDATE
   SET fingerprint = EXCLUDED.fingerprint, job_types = EXCLUDED.job_types, raw = EXCLUDED.raw,
       escaped = EXCLUDED.escaped, server_date = EXCLUDED.server_date, looked_at = EXCLUDED.looked_at
"""

_USED = """
UPDATE scm.project_looks SET job_types = job_types || %(job_types)s::text[]
 WHERE repo_id = %(repo_id)s AND looked_at = %(looked_at)s
"""


@dataclass(frozen=True, slots=True)
class StoredLook:
    """The result of a look: the project as the server gave it, without its secrets, and the clocks of server
    and database at the look (UTC)."""

    raw: Mapping[str, Any]
    server_date: datetime | None
    looked_at: datetime


def recent(
    conn: Connection, repo_id: int, fingerprint: str, job_types: Collection[JobType], *, seconds: float
) -> StoredLook | None:
    """The latest look with this token, if it is younger than ``seconds`` and serves ``job_types`` for the
    first time. None where the token is stopped."""
    params = {
        "repo_id": repo_id,
        "fingerprint": fingerprint,
        "job_types": [str(one) for one in job_types],
        "seconds": seconds,
    }
    row = conn.execute(_RECENT, params).fetchone()
    if row is None:
        return None
    return StoredLook(raws.restored(row["raw"], row["escaped"]), row["server_date"], row["looked_at"])


def put(
    conn: Connection, repo_id: int, fingerprint: str, job_types: Collection[JobType], look: StoredLook
) -> None:
    """Keep a look that ``job_types`` have used."""
    stored, escaped = raws.payload(look.raw)
    conn.execute(
        _PUT,
        {
            "repo_id": repo_id,
            "fingerprint": fingerprint,
            "job_types": [str(one) for one in job_types],
            "raw": stored,
            "escaped": escaped,
            "server_date": look.server_date,
            "looked_at": look.looked_at,
        },
    )


def used(conn: Connection, repo_id: int, job_types: Collection[JobType], look: StoredLook) -> None:
    """These job types have used the look; the next visit of each looks anew."""
    params = {"repo_id": repo_id, "job_types": [str(one) for one in job_types], "looked_at": look.looked_at}
    conn.execute(_USED, params)
