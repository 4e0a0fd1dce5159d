"""Whether our own records agree with each other, as one document.

Belongs here: the document of ``scm-sync admin verify``, which ``docs/verify.md`` describes. Also the one
check that reads more than the database: it compares the catalog with the file from which Dagster makes its
assets. It asks no source. Does not belong here: the other checks, which are queries
(:mod:`sync_pipeline.ledger.integrity_checks`), and comparing with a source (reconciliation)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sync_pipeline import __version__
from sync_pipeline.core import catalog, exit_codes
from sync_pipeline.core.documents.quality import Verification
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Repository
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.ledger import integrity_checks, repos
from sync_pipeline.ledger.integrity_checks import SHOWN_ROWS, IntegrityCheck
from sync_pipeline.settings import Settings

CATALOG = "catalog"
"""Name of the check that compares the catalog with the assets."""

_ABOUT_CATALOG = "Repositories that Dagster's catalog snapshot does not have as the database has them."

Document = dict[str, Any]


def verify(database: Database, settings: Settings) -> Verification:
    """Run every check. ``exit_code`` is 0 if all pass, 2 if not; open records make no check fail."""
    with database.connection() as conn:
        found = [*integrity_checks.integrity_checks(conn), _catalog(conn, settings)]
        waiting = integrity_checks.open_records(conn)
        now = database_time(conn)
    found.sort(key=lambda check: check.name)
    passed = not any(check.total for check in found)
    return {
        "version": __version__,
        "generated_at": now.isoformat(),
        "environment": settings.environment,
        "passed": passed,
        "proofs": [
            {
                "name": check.name,
                "about": check.about,
                "passed": check.total == 0,
                "disagreeing": check.total,
                "rows": check.rows,
            }
            for check in found
        ],
        "open": [
            {
                "what": row["what"],
                "open": row["open"],
                "oldest_at": row["oldest_at"] and row["oldest_at"].isoformat(),
                "oldest_seconds": row["oldest_at"]
                and max(0.0, round((now - row["oldest_at"]).total_seconds(), 3)),
            }
            for row in waiting
        ],
        "exit_code": exit_codes.SUCCESS if passed else exit_codes.FAILED,
    }


def _catalog(conn: Connection, settings: Settings) -> IntegrityCheck:
    """The catalog against the snapshot file. A catalog change in this very moment is waited for."""
    with conn.transaction():
        repos.lock_snapshot(conn)
        known = repos.list_all(conn)
        try:
            snapshot = catalog.read_snapshot(settings.catalog_file)
        except ConfigurationError as error:
            return IntegrityCheck(CATALOG, _ABOUT_CATALOG, max(1, len(known)), [{"problem": str(error)}])
    if snapshot.written_at is None and known:
        missing = f"{settings.catalog_file} is missing; run: scm-sync catalog export"
        return IntegrityCheck(CATALOG, _ABOUT_CATALOG, len(known), [{"problem": missing}])
    rows = list(differences(known, snapshot.repositories))
    return IntegrityCheck(CATALOG, _ABOUT_CATALOG, len(rows), rows[:SHOWN_ROWS])


def differences(database: Iterable[Repository], snapshot: Iterable[Repository]) -> Iterable[Document]:
    """The repositories that differ between the database and a snapshot, a row each."""
    ours = {repository.repo_id: repository for repository in database}
    theirs = {repository.repo_id: repository for repository in snapshot}
    for repo_id in sorted({*ours, *theirs}):
        here, there = ours.get(repo_id), theirs.get(repo_id)
        if here == there:
            continue
        if here is None or there is None:
            one = here or there
            assert one is not None
            where = "the database" if here is None else "the snapshot"
            yield {"repo_id": repo_id, "spec": one.spec, "problem": f"not in {where}"}
        else:
            yield {
                "repo_id": repo_id,
                "spec": here.spec,
                "problem": f"other {_fields(asdict(here), asdict(there))}",
            }


def _fields(here: Mapping[str, object], there: Mapping[str, object]) -> str:
    return ", ".join(name for name, value in here.items() if value != there[name])
