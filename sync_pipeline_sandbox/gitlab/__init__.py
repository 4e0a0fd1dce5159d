"""A small GitLab that speaks the REST contract over real git repositories, recorded and generated data.

Belongs here: the names that tests and the demo use. :class:`GitLab` is the whole state and changes it,
:func:`serve` answers for it over HTTP, :mod:`.faults` has the switches for trouble. Nothing here is imported
by the product itself.
"""

from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_sandbox.gitlab.records import (
    DEVELOPER,
    GUEST,
    MAINTAINER,
    OWNER,
    REPORTER,
    Behaviour,
    GraphQL,
    RateLimit,
)
from sync_pipeline_sandbox.gitlab.server import Server, serve

__all__ = [
    "DEVELOPER",
    "GUEST",
    "MAINTAINER",
    "OWNER",
    "REPORTER",
    "Behaviour",
    "GitLab",
    "GitRepository",
    "GraphQL",
    "RateLimit",
    "Server",
    "serve",
]
