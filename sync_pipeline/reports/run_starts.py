"""Whether Dagster can start runs at all: a run that fails before it begins has no row in our ledger.

Belongs here: finding Dagster's tables. It loads no Dagster.
"""

from __future__ import annotations

import psycopg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database import diagnosis
from sync_pipeline.ledger.dagster_runs import RunStarts, run_starts
from sync_pipeline.runtime import environment
from sync_pipeline.settings import Settings

_SECONDS = 4


def read_starts(settings: Settings, database_url: str) -> RunStarts | None:
    """How the newest runs began; None where Dagster's tables are not there or cannot be read.
    ``database_url`` is that of our database."""
    own = settings.dagster_database_url
    try:
        url = environment.dagster_url(own) if own else None
        url = url or environment.dagster_url(database_url, environment.DAGSTER_SCHEMA)
        with diagnosis.connection(url.replace("+psycopg2", "", 1), _SECONDS) as conn:
            return run_starts(conn)
    except (ConfigurationError, psycopg.Error):
        return None
