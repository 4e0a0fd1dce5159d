"""Which tokens are stopped that are in force now.

Belongs here: comparing what servers refused with what the settings hold at this moment, so that a renewed
token counts at once. Does not belong here: what follows for the plan and for the health of a repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sync_pipeline.core.errors import AccessDenied, ConfigurationError, SyncError
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import credentials as store
from sync_pipeline.ledger.credentials import Stop
from sync_pipeline.sync.readers import Readers, not_configured


@dataclass(frozen=True, slots=True)
class Credentials:
    """The tokens in force: ``stopped`` by instance, and ``unusable``, which says of each configured instance
    why there is no token to send."""

    instances: frozenset[str]
    stopped: Mapping[str, Stop]
    unusable: Mapping[str, str]

    def has_token(self, instance: str) -> bool:
        """True if the settings name the server and its token can be read, whatever the server says to it."""
        return instance in self.instances and instance not in self.unusable

    def problem(self, instance: str) -> str | None:
        """Why nothing can be read from a GitLab server at this moment, as one line; None if it can."""
        if instance not in self.instances:
            return not_configured(instance)
        stop = self.stopped.get(instance)
        return stop.reason if stop is not None else self.unusable.get(instance)


def in_force(conn: Connection, readers: Readers) -> Credentials:
    """The state of the tokens that the settings hold now."""
    fingerprints: dict[str, str] = {}
    unusable: dict[str, str] = {}
    for instance in readers.gitlab_instances():
        try:
            fingerprints[instance] = readers.fingerprint(instance)
        except ConfigurationError as error:
            unusable[instance] = str(error)
    stopped = {
        stop.instance: stop
        for stop in store.stops(conn)
        if fingerprints.get(stop.instance) == stop.fingerprint
    }
    return Credentials(frozenset(readers.gitlab_instances()), stopped, unusable)


def note(conn: Connection, readers: Readers, instance: str, error: SyncError) -> None:
    """Stop the token in force if ``error`` says that the server refuses it: one that sees a refused token too
    often bans the address."""
    if isinstance(error, AccessDenied) and error.is_of_the_token:
        store.stop(conn, instance, readers.fingerprint(instance), str(error))
