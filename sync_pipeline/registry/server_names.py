"""Names of servers: their alias in the keys of assets, and their present name in the settings.

Belongs here: the label of a server, and names that belong to another server already. Does not belong here:
choosing the alias of a new server (:mod:`sync_pipeline.ledger.repos`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Kind, Repository
from sync_pipeline.ledger.repos import name_taken
from sync_pipeline.settings import Settings

_Server = tuple[Kind, str]


def labels(repositories: Sequence[Repository], settings: Settings) -> dict[int, str]:
    """The name of each repository's server, by ``repo_id``: its name in the settings, else its alias. A name
    that is the alias of another server would mix the two, so it is not used.
    """
    owners = _owners(repositories)
    found = {}
    for repository in repositories:
        server = repository.kind, repository.instance
        name = settings.server_names.get(server)
        is_free = name is not None and server in owners.get(name, {server})
        found[repository.repo_id] = name if name and is_free else repository.instance_slug
    return found


def conflicts(repositories: Sequence[Repository], settings: Settings) -> Iterator[ConfigurationError]:
    """A refusal for each server whose name is the alias of another one."""
    owners = _owners(repositories)
    for server, name in settings.server_names.items():
        others = owners.get(name, {server})
        if server not in others:
            yield name_taken(name, server, min(others))


def _owners(repositories: Sequence[Repository]) -> dict[str, set[_Server]]:
    owners: dict[str, set[_Server]] = {}
    for repository in repositories:
        owners.setdefault(repository.instance_slug, set()).add((repository.kind, repository.instance))
    return owners
