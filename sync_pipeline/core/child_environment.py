"""The environment of the programs that we start.

Belongs here: which variables a child process gets. Does not belong here: starting it. A child gets only the
variables that it needs, because other accounts may be able to read its environment. Passwords, tokens and
connection URLs are not passed on.

The code server, the daemon, the UI and the runs of ``scm-sync up`` are exceptions. They are this program
again and need its configuration (:mod:`sync_pipeline.orchestration.ui`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_ALWAYS = ("PATH", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

NETWORK = (
    *("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK"),
    *("KRB5CCNAME", "KRB5_CONFIG", "KRB5_CLIENT_KTNAME"),
    *("OPENSSL_CONF", "SSL_CERT_FILE", "SSL_CERT_DIR", "SASL_PATH", "SASL_CONF_PATH"),
)
"""Further variables for programs that log in at servers: agents, tickets, certificate authorities."""


def child_environment(also: Iterable[str] = (), **values: str) -> Mapping[str, str]:
    """The environment for a child process: the search path and the like, our variables named in ``also``, and
    ``values``."""
    inherited = {name: os.environ[name] for name in (*_ALWAYS, *also) if name in os.environ}
    return {**inherited, **values}
