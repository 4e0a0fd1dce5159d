"""Stored facts of GitLab derived anew from the objects they came from, by today's mapping.

Belongs here: what one attempt at that does.
"""

from __future__ import annotations

from sync_pipeline.sync.attempt import Attempt


class RemapWork:
    """Derives the facts of one job type anew."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def run(self) -> None:
        """See :class:`sync_pipeline.sync.attempt.Work`."""
