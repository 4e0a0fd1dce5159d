"""Rows that tests need before they begin: registered repositories, revisions, requests.

Belongs here: builders used by more than one test module.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.model import (
    JobRequest,
    JobType,
    Mode,
    PathChange,
    RevisionRow,
    RevisionWindow,
    Trigger,
    Visibility,
)
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import repos, watermarks
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.project import ProjectInfo
from sync_pipeline.sync.readers import svn_reader

_REPO = """
INSERT INTO scm.repos (kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root)
VALUES ('svn', 'local', 'local', 'acme', %(slug)s, %(url)s, 'uuid-of-' || %(slug)s, %(url)s)
RETURNING repo_id
"""


def project_info(path: str | None, branch: str | None, *, archived: bool = False) -> ProjectInfo:
    """A project as a look at it shows it; the server may leave out its path and branch."""
    return ProjectInfo(12, path or "", None, branch, archived, False, None, None, None, {})


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


def register_source(
    conn: Connection,
    source: Path | str,
    *,
    origin: int = 1,
    prefix: str = "",
    instance: str = "local",
    tenant: str = "acme",
) -> int:
    """A real repository, by its place or URL, with its origin at the beginning; returns its repo_id."""
    url = source if isinstance(source, str) else source.resolve().as_uri()
    visit = svn_reader(Settings(), url).visit()
    repo = repos.insert_svn(
        conn,
        url=f"{url}/{prefix}".rstrip("/"),
        instance=instance,
        tenant=tenant,
        svn_uuid=visit.uuid,
        svn_root=visit.root,
        svn_prefix=prefix,
    )
    assert repo is not None
    watermarks.register(
        conn,
        repo_id=repo.repo_id,
        job_type=JobType.REVISIONS,
        origin_rev=origin,
        actor="test",
        reason="test",
    )
    return repo.repo_id


_PROJECT = """
INSERT INTO scm.repos (kind, instance, instance_slug, tenant, slug, url, project_id, project_path)
VALUES ('gitlab', %(instance)s, 'gitlab', 'acme', 'project_' || %(project_id)s,
        %(server)s || '/projects/' || %(project_id)s, %(project_id)s, %(path)s)
RETURNING repo_id
"""


def register_project(
    conn: Connection,
    server: str,
    project_id: int,
    path: str,
    *,
    origin: datetime,
    job_types: Sequence[JobType] = (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS),
) -> int:
    """A GitLab project by the URL of its server, with these job types; returns its repo_id."""
    values = {"server": server, "instance": instance_of(server), "project_id": project_id, "path": path}
    row = conn.execute(_PROJECT, values).fetchone()
    assert row is not None
    for job_type in job_types:
        watermarks.register(
            conn,
            repo_id=row["repo_id"],
            job_type=job_type,
            origin_time=origin,
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
