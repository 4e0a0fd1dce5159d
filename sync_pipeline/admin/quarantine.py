"""Quarantine for people: the entries, their payloads, and another try to store them.

Belongs here: the documents of ``scm-sync admin quarantine``, which ``docs/quarantine.md`` describes, how a
payload is shown, and which jobs a retry makes. Does not belong here: how rows are read again
(:mod:`sync_pipeline.sync.retry`), and how a document looks on a terminal.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sync_pipeline import __version__
from sync_pipeline.core import catalog, exit_codes
from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.formatting import plain_window
from sync_pipeline.core.model import JobReport, JobRequest, JobType, Repository
from sync_pipeline.core.safe_text import visible
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.facts import quarantine
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.ledger import repos
from sync_pipeline.sync import remap
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.retry import RAW
from sync_pipeline.sync.retry import request as retry_request

STORED, GONE, REMAINS, FAILED = "stored", "gone", "remains", "failed"
"""The outcome of an entry: stored, no longer at the source, in quarantine again, or not tried to the end."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries are meant: those that fit everything that is set. ``resolved``: also those that have
    left quarantine."""

    ids: tuple[int, ...] | None = None
    repository: Repository | None = None
    job_type: JobType | None = None
    reason: str | None = None
    resolved: bool = False


def listing(database: Database, wanted: Filter, limit: int) -> Document:
    """The entries that fit, the latest met first, at most ``limit``, and how many there are."""
    with database.connection() as conn:
        found, total = _find(conn, wanted, limit)
        known = _repositories(conn)
        now = database_time(conn)
    return {
        "version": __version__,
        "generated_at": now.isoformat(),
        "total": total,
        "entries": [_plain(entry, known) for entry in found],
    }


def shown(database: Database, quarantine_id: int) -> Document:
    """One entry with its payload. Raises ConfigurationError where there is none."""
    with database.connection() as conn:
        found, _ = _find(conn, Filter(ids=(quarantine_id,), resolved=True), None)
        known = _repositories(conn)
        payload = quarantine.payload_of(conn, quarantine_id)
    if not found:
        raise _unknown([quarantine_id])
    return _plain(found[0], known) | {
        "how": how(found[0]),
        "payload": readable(payload),
        "payload_base64": b64encode(payload).decode("ascii"),
    }


def readable(payload: bytes) -> str:
    r"""A payload as a harmless text for a terminal. JSON is indented. Invalid UTF-8 and invisible characters
    are written as ``\xe9``, ``\x1b`` or ``\u202e``. Lines and tabs stay.
    """
    text = payload.decode("utf-8", "backslashreplace")
    # An answer of svn, or JSON that was cut, stays as it is.
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2)
    return visible(text, keep="\n\t")


def how(entry: QuarantineEntry) -> str:
    """In what way a retry reads the row of an entry again, in words."""
    if entry.natural_key.startswith(RAW):
        return "derive the rows of the repository anew from their stored raw"
    return _HOW.get(entry.job_type, _how_of_list)(entry)


def _how_of_list(entry: QuarantineEntry) -> str:
    return f"read the whole list of {entry.job_type.replace('_', ' ')} again"


def _how_of_revision(entry: QuarantineEntry) -> str:
    return f"read r{entry.natural_key} again"


def _how_of_commit(entry: QuarantineEntry) -> str:
    key, _, rest = entry.natural_key.partition(":")
    if key in ("branch", "tag"):
        return "list branches and tags again"
    return f"read all that {key} leads to again" if rest else f"ask for commit {key}"


def _how_of_merge_request(entry: QuarantineEntry) -> str:
    key = entry.natural_key.partition(":")[0]
    if not (key.isascii() and key.isdigit()):
        return "read the window in which it was met again"
    what = "the review of merge request" if entry.job_type is JobType.REVIEWS else "merge request"
    return f"read {what} !{key} again"


_HOW: Mapping[JobType, Callable[[QuarantineEntry], str]] = {
    JobType.REVISIONS: _how_of_revision,
    JobType.COMMITS: _how_of_commit,
    JobType.MERGE_REQUESTS: _how_of_merge_request,
    JobType.REVIEWS: _how_of_merge_request,
}


def plan(database: Database, wanted: Filter) -> Document:
    """The plan of :func:`retry`; nothing is changed. Raises ConfigurationError as that does."""
    entries, known = _chosen(database, wanted)
    rows = [_plain(entry, known) | {"how": how(entry)} for entry in entries]
    groups = _groups(entries)
    return {
        "dry_run": True,
        "entries": rows,
        "jobs": [
            {
                "repo": known[some[0].repo_id].spec,
                "job": str(some[0].job_type),
                "entries": len(some),
                "from_raw": some[0].natural_key.startswith(RAW),
            }
            for some in groups
        ],
        "summary": {"entries": len(rows)},
        "exit_code": exit_codes.SUCCESS,
    }


def retry(
    database: Database,
    syncer: Syncer,
    wanted: Filter,
    *,
    actor: str,
    reason: str,
    cancel: threading.Event | None = None,
) -> Document:
    """Try to store the entries that fit again: one job of mode ``repair`` for each (repository, job type),
    with ``actor`` and ``reason`` in the ledger. An entry whose row is stored, or is no longer there, leaves
    quarantine; else it stays, met once more.

    The document's ``exit_code`` is 0 where none is left, 1 where some are, 2 where all are. Raises
    ConfigurationError for entries that do not exist or are of a retired repository, Cancelled after
    ``cancel`` was set.
    """
    entries, known = _chosen(database, wanted)
    jobs: list[Document] = []
    errors: dict[int, str] = {}
    for some in _groups(entries):
        first, error = some[0], None
        try:
            request = _request(database, known[first.repo_id], some, actor, reason)
            report = syncer.run(request, cancel=cancel)
        except Cancelled:
            raise
        except SyncError as failure:
            error = str(failure)
            jobs.append(_refused_job(known[first.repo_id], first.job_type, failure))
        else:
            error = None if report.succeeded else report.error or "the job did not succeed"
            jobs.append(_job(known[first.repo_id], report))
        if error is not None:
            errors |= {entry.quarantine_id: error for entry in some}
    with database.connection() as conn:
        ids = tuple(entry.quarantine_id for entry in entries)
        after, _ = _find(conn, Filter(ids=ids, resolved=True), None)
    now = {entry.quarantine_id: entry for entry in after}
    rows = []
    for entry in entries:
        current, error = now.get(entry.quarantine_id, entry), errors.get(entry.quarantine_id)
        outcome = _outcome(current, error is not None)
        rows.append(
            _plain(current, known) | {"outcome": outcome, "error": error if outcome == FAILED else None}
        )
    counts = {name: sum(row["outcome"] == name for row in rows) for name in (STORED, GONE, REMAINS, FAILED)}
    done = counts[STORED] + counts[GONE]
    code = exit_codes.SUCCESS if done == len(rows) else exit_codes.PARTIAL if done else exit_codes.FAILED
    return {
        "dry_run": False,
        "entries": rows,
        "jobs": jobs,
        "summary": {"entries": len(rows), **counts},
        "exit_code": code,
    }


def _outcome(entry: QuarantineEntry, failed: bool) -> str:
    if entry.resolved_at is None:
        return FAILED if failed else REMAINS
    return GONE if entry.detail.startswith(quarantine.GONE) else STORED


def _request(
    database: Database, repository: Repository, entries: Sequence[QuarantineEntry], actor: str, reason: str
) -> JobRequest:
    first = entries[0]
    if first.natural_key.startswith(RAW):
        return remap.request(repository, first.job_type, None, actor=actor, reason=reason)
    with database.connection() as conn:
        return retry_request(conn, entries, actor=actor, reason=reason)


_COUNTS = ("read", "inserted", "updated", "unchanged", "quarantined")


def _job(repository: Repository, report: JobReport) -> Document:
    return {
        "repo": repository.spec,
        "job": str(report.job_type),
        "job_id": str(report.job_id),
        "run_id": str(report.run_id) if report.run_id else None,
        "status": str(report.job_status),
        "error_code": report.error_code,
        "error": report.error,
        **{name: getattr(report.counts, name) for name in _COUNTS},
        "calls": report.calls,
    }


def _refused_job(repository: Repository, job_type: JobType, error: SyncError) -> Document:
    """A job that could not be made."""
    job = {"repo": repository.spec, "job": str(job_type), "job_id": None, "run_id": None, "status": None}
    return job | {"error_code": error.code, "error": str(error)} | dict.fromkeys((*_COUNTS, "calls"), 0)


def _chosen(database: Database, wanted: Filter) -> tuple[list[QuarantineEntry], dict[int, Repository]]:
    """The open entries to be retried. Raises ConfigurationError where one that is named does not exist, has
    left quarantine, or is of a repository that is no longer synced."""
    with database.connection() as conn:
        entries, _ = _find(conn, wanted, None)
        known = _repositories(conn)
        if wanted.ids is not None:
            there, _ = _find(conn, Filter(ids=wanted.ids, resolved=True), None)
            if missing := sorted(set(wanted.ids) - {entry.quarantine_id for entry in there}):
                raise _unknown(missing)
            if done := [entry.quarantine_id for entry in there if entry.resolved_at is not None]:
                raise ConfigurationError(
                    f"{_named(sorted(done))} left quarantine already; see: scm-sync admin quarantine list"
                )
    for entry in entries:
        if not entry.natural_key.startswith(RAW):
            catalog.require_active(known[entry.repo_id])
    return sorted(entries, key=lambda entry: entry.quarantine_id), known


def _groups(entries: Sequence[QuarantineEntry]) -> list[list[QuarantineEntry]]:
    """The entries of each asset, for one job each. Entries of stored raws have separate groups."""
    found: dict[tuple[int, JobType, bool], list[QuarantineEntry]] = {}
    for entry in entries:
        key = entry.repo_id, entry.job_type, entry.natural_key.startswith(RAW)
        found.setdefault(key, []).append(entry)
    return list(found.values())


def _find(conn: Connection, wanted: Filter, limit: int | None) -> tuple[list[QuarantineEntry], int]:
    return quarantine.entries(
        conn,
        ids=wanted.ids,
        repo_id=None if wanted.repository is None else wanted.repository.repo_id,
        job_type=wanted.job_type,
        reason=wanted.reason,
        resolved=wanted.resolved,
        limit=limit,
    )


def _repositories(conn: Connection) -> dict[int, Repository]:
    return {one.repo_id: one for one in repos.list_all(conn)}


def _unknown(ids: Sequence[int]) -> ConfigurationError:
    return ConfigurationError(
        f"quarantine has no {_named(ids)}; see: scm-sync admin quarantine list --all", code="unknown_entry"
    )


def _named(ids: Sequence[int]) -> str:
    return f"{'entry' if len(ids) == 1 else 'entries'} {', '.join(map(str, ids))}"


def _plain(entry: QuarantineEntry, known: dict[int, Repository]) -> Document:
    return {
        "id": entry.quarantine_id,
        "repo_id": entry.repo_id,
        "repo": known[entry.repo_id].spec,
        "job": str(entry.job_type),
        "key": entry.natural_key,
        "reason": entry.reason,
        "detail": entry.detail,
        "seen": entry.seen,
        "first_seen_at": entry.created_at.isoformat(),
        "last_seen_at": entry.last_seen_at.isoformat(),
        "resolved_at": entry.resolved_at.isoformat() if entry.resolved_at else None,
        "batch_id": entry.batch_id,
        "run_id": str(entry.run_id) if entry.run_id else None,
        "window": plain_window(entry.window),
        "payload_bytes": entry.payload_bytes,
    }
