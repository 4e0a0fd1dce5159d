"""Dagster's tables in PostgreSQL, as ``dagster.yaml`` names them.

Belongs here: opening them, and one line instead of 200 where that fails in a command of ``dagster``. Every
process of Dagster imports this module before anything else of ours, so it stays small.
"""

from __future__ import annotations

import os
from typing import Any

from dagster_postgres import DagsterPostgresStorage

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.orchestration.console import end_command, is_command
from sync_pipeline.orchestration.dagster_internals import ConfigurableClassData
from sync_pipeline.orchestration.storage import explained_storage

_VARIABLE = "SCM_DAGSTER_STORAGE_URL"
_PATIENCE_SECONDS = 10


class PostgresStorage(DagsterPostgresStorage):
    """The storage of ``dagster-postgres`` at the URL in SCM_DAGSTER_STORAGE_URL, which ``scm-sync env``
    prints. A command that cannot open it ends with one line and exit code 3."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """No keys: the URL comes from the environment."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> PostgresStorage:
        """Open the tables, and make them where they are missing. Raises ConfigurationError where the variable
        is not set."""
        try:
            url = os.environ.get(_VARIABLE)
            if not url:
                raise ConfigurationError(f'{_VARIABLE} is not set; run first: eval "$(scm-sync env)"')
            if not is_command():
                return cls(url, inst_data=inst_data)
            _check_server(url)
            with explained_storage():
                return cls(url, inst_data=inst_data)
        except ConfigurationError as error:
            if not is_command():
                raise
            end_command(error.problems)


def _check_server(url: str) -> None:
    """Raise ConfigurationError at once where no server answers: Dagster tries for a quarter of a minute and
    prints each of its failures."""
    from sync_pipeline.database import diagnosis

    with diagnosis.connection(url.replace("+psycopg2", "", 1), _PATIENCE_SECONDS, _VARIABLE):
        pass
