"""Updates of Dagster after a change of the catalog.

Belongs here: the snapshot file, the missing partitions, and the reload of a running code location. Importing
the code location reads the file only, so a change shows after these updates.
"""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request

import dagster as dg

from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration import code_server, ui
from sync_pipeline.orchestration.instance import dagster_environment
from sync_pipeline.orchestration.partitions import ensure_blocks
from sync_pipeline.registry.registration import export_catalog
from sync_pipeline.settings import Settings

_log = logging.getLogger(__name__)

_MUTATION = """
mutation Reload($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) { __typename }
}
"""


def after_catalog_change(settings: Settings, database: Database) -> None:
    """Export the snapshot, append missing partitions, and reload the code location where one runs.

    The catalog itself is right already; a location that cannot be reloaded is a warning, not a failure.
    """
    snapshot = export_catalog(database, settings)
    with dagster_environment(settings), dg.DagsterInstance.get() as instance:
        ensure_blocks(instance, database, snapshot.head_rev)
    there = ui.running(settings)
    if there is None:
        return
    try:
        if there.code_server is not None:
            if not code_server.reload(there.code_server):
                _log.warning("%s is still loading the change, and shows it when that is done", there.url)
        else:
            _reload_page(there.url, ui.token(settings))
    except Exception as error:
        _log.warning("%s was not reloaded (%s); press Reload in its Deployment tab", there.url, error)


def _reload_page(url: str, token: str) -> None:
    body = json.dumps({"query": _MUTATION, "variables": {"name": code_server.LOCATION_NAME}}).encode()
    request = urllib.request.Request(
        f"{url}/graphql",
        data=body,
        headers={"content-type": "application/json", "authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=code_server.RELOAD_SECONDS) as answer:
        found = json.load(answer)["data"]["reloadRepositoryLocation"]["__typename"]
    if found != "WorkspaceLocationEntry":
        raise RuntimeError(f"Dagster answered {found}")
