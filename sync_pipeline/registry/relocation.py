"""An SVN repository whose server has another address now.

Belongs here: the check of ``scm-sync repo relocate`` that the new address has the known repository, and the
change of the catalog. Does not belong here: registering (:mod:`sync_pipeline.registry.registration`), what
Dagster has to be told afterwards, printing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError, Permanent, WindowTooHard
from sync_pipeline.core.model import (
    Access,
    JobRequest,
    JobType,
    Kind,
    Lifecycle,
    Mode,
    Repository,
    Trigger,
    Visibility,
    Visit,
)
from sync_pipeline.database.pool import Database
from sync_pipeline.facts import svn_revisions
from sync_pipeline.ledger import jobs, repos, watermarks
from sync_pipeline.registry.registration import visit_source
from sync_pipeline.settings import Settings
from sync_pipeline.sync import identity
from sync_pipeline.sync.revisions import halves, runs
from sync_pipeline.sync.source import RevisionSource

_COMPARED = 20

SourceFactory = Callable[[str, str], RevisionSource]
"""Makes the reader of a URL and of the part below it that is registered."""


@dataclass(frozen=True, slots=True)
class Relocated:
    """The result of relocating; with ``dry_run``, what would change. ``repository`` is as it was before.
    ``compared``: how many stored revisions were compared with the new address. ``changed`` is False if the
    repository was there already. ``stays_replaced``: the state ``replaced`` stays until an incremental has
    read everything that is covered again."""

    repository: Repository
    url: str
    root: str
    head: int
    compared: int
    changed: bool
    dry_run: bool
    stays_replaced: bool = False


def relocate_repository(
    database: Database,
    settings: Settings,
    repository: Repository,
    url: str,
    *,
    reason: str,
    actor: str,
    source_of: SourceFactory,
    dry_run: bool = False,
) -> Relocated:
    """Give a repository its new address; its number, rows, assets and coverage stay. Raises
    ConfigurationError, and changes nothing, without a ``reason``, or where the address belongs to another
    repository of the catalog. So it does where another repository answers (UUID, registered part, HEAD,
    content of the stored revisions). Raises Transient if the new server does not answer now."""
    if not reason.strip():
        raise ConfigurationError("give the reason for the new address: --reason TEXT")
    if repository.kind is not Kind.SVN or repository.lifecycle is not Lifecycle.ACTIVE:
        raise ConfigurationError(
            f"{repository.spec} is no active SVN repository, so it cannot be relocated; see: "
            f"scm-sync repo show {repository.repo_id}"
        )
    spec = catalog.parse_spec(url if url.lower().startswith("svn:") and "://" in url[4:] else f"svn:{url}")
    # No connection is held while the network is used.
    visit = visit_source(spec.address, lambda address: source_of(address, ""))
    _check_visit(repository, spec.address, visit)
    with database.connection() as conn:
        known = repos.find(conn, spec)
        before = watermarks.get(conn, repository.repo_id, JobType.REVISIONS)
        stored = svn_revisions.fingerprints(
            conn, repository.repo_id, visit.head, max(settings.reconcile.fingerprint_revisions, _COMPARED)
        )
    if known is not None and known.repo_id != repository.repo_id and known.lifecycle is Lifecycle.ACTIVE:
        raise ConfigurationError(
            f"{spec} is repository {known.repo_id} already; retire that first: "
            f"scm-sync repo retire {known.repo_id} --reason TEXT"
        )
    if before.head_rev is not None and visit.head < before.head_rev:
        raise ConfigurationError(
            f"{spec.address} is older: its HEAD is r{visit.head}, and r{before.head_rev} was seen at "
            f"{repository.url}; bring it up to date first"
        )
    fingerprints = [identity.Fingerprint(**row) for row in stored]
    why = _compare(source_of(visit.root, repository.svn_prefix), fingerprints, spec.address)
    if why is not None:
        raise ConfigurationError(why)
    done = Relocated(
        repository,
        spec.address,
        visit.root,
        visit.head,
        compared=len(stored),
        changed=spec.address != repository.url,
        dry_run=dry_run,
        stays_replaced=before.access is Access.REPLACED,
    )
    if done.changed and not dry_run:
        _store(database, settings, done, reason.strip(), actor)
    return done


def _check_visit(repository: Repository, url: str, visit: Visit) -> None:
    if visit.uuid != repository.svn_uuid:
        raise ConfigurationError(
            f"{url} is another repository: its UUID is {visit.uuid}, and that of {repository.spec} is "
            f"{repository.svn_uuid}; register it: scm-sync repo add svn:{url}"
        )
    prefix = catalog.svn_prefix_of(url, visit.root)
    if prefix != repository.svn_prefix:
        raise ConfigurationError(
            f"{url} is the part {prefix or '/'!r} of its repository, and {repository.spec} the part "
            f"{repository.svn_prefix or '/'!r}; name the same part"
        )


def _compare(source: RevisionSource, stored: list[identity.Fingerprint], url: str) -> str | None:
    """Why the stored revisions are not those of ``source``, or None. A revision that is hidden, or cannot be
    read, says nothing."""
    seen: dict[int, identity.Fingerprint] = {}
    todo = runs(old.rev_num for old in stored)
    while todo:
        window = todo.pop()
        try:
            for batch in source.read(window):
                for row in batch.rows:
                    paths = svn_revisions.paths_hash(row.paths)
                    seen[row.rev_num] = identity.Fingerprint(row.rev_num, row.ts, paths, row.visibility)
        except WindowTooHard:
            todo += halves(window) if len(window) > 1 else []
        except Permanent as error:
            raise ConfigurationError(str(error), code=error.code) from error
    pairs = [(old, seen[old.rev_num]) for old in stored if old.rev_num in seen]
    pairs = [pair for pair in pairs if all(one.visibility is not Visibility.HIDDEN for one in pair)]
    if stored and not pairs:
        return f"no stored revision can be read at {url}; check the rights of SCM_SVN_USERNAME there"
    for old, new in pairs:
        if old.paths_hash != new.paths_hash:
            return (
                f"{url} has other content under r{old.rev_num} than what is stored: it is no copy of this "
                "repository, or SCM_SVN_USERNAME may not read the same there"
            )
    return None


def _store(database: Database, settings: Settings, done: Relocated, reason: str, actor: str) -> None:
    repo_id = done.repository.repo_id
    with database.connection() as conn, conn.transaction():
        if not repos.relocate_svn(
            conn,
            repo_id,
            old_url=done.repository.url,
            url=done.url,
            instance=catalog.instance_of(done.url),
            svn_root=done.root,
        ):
            raise ConfigurationError(
                f"{done.repository.spec} was changed meanwhile; look at it: scm-sync repo show {repo_id}"
            )
        repos.record_event(
            conn, repo_id, "moved", actor=actor, old=done.repository.url, new=done.url, reason=reason
        )
        jobs.enqueue(
            conn,
            JobRequest(
                repo_id=repo_id,
                job_type=JobType.REVISIONS,
                mode=Mode.INCREMENTAL,
                trigger=Trigger.REGISTRATION,
                actor=actor,
                reason=f"relocated: {reason}",
            ),
            max_attempts=settings.jobs.max_attempts,
        )
