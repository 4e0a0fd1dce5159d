"""Which reader serves a repository, with which settings.

Belongs here: the step from settings and a catalog row to a reader. Secrets go straight into the client.
"""

from __future__ import annotations

from collections.abc import Callable

from sync_pipeline.model import Repository
from sync_pipeline.settings import Settings
from sync_pipeline.sources.svn import make_client
from sync_pipeline.sources.svn.reader import SvnReader


def reader_factory(settings: Settings) -> Callable[[Repository, Callable[[], bool]], SvnReader]:
    """A function that makes the reader of a repository; its second argument tells whether to stop."""

    def make(repo: Repository, cancelled: Callable[[], bool]) -> SvnReader:
        return svn_reader(settings, repo.svn_root or repo.url, repo.svn_prefix, cancelled)

    return make


def svn_reader(
    settings: Settings,
    root_url: str,
    prefix: str = "",
    cancelled: Callable[[], bool] = lambda: False,
    *,
    attempts: int = 3,
) -> SvnReader:
    """The reader of everything below ``prefix`` of the repository at ``root_url``. It asks a server that
    cannot be reached ``attempts`` times."""
    client = make_client(
        username=settings.svn_username,
        password=settings.svn_password.get_secret_value(),
        ca_file=settings.ca_file,
        trust_failures=settings.svn_trust_failures,
        timeout=settings.svn_timeout,
        max_answer_bytes=settings.svn_max_answer_bytes,
    )
    client.callback_cancel = cancelled
    return SvnReader(
        client,
        root_url,
        prefix,
        log_timeout=settings.svn_log_timeout,
        info_timeout=settings.svn_info_timeout,
        attempts=attempts,
    )
