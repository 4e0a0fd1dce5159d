"""dlt reads merge requests with their notes by its REST source, and stores them in PostgreSQL.

Arguments: address of the GitLab, token, project, URL of the database, folder, and ``parallelized`` or
``default``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import dlt
from dlt.sources.rest_api import rest_api_source

from bench.drivers.phases import phase


def main() -> None:
    """Run the pipeline once."""
    server, token, project, url, folder, how = sys.argv[1:7]
    at = f"projects/{project}/merge_requests"
    source = rest_api_source(
        {
            "client": {
                "base_url": f"{server}/api/v4/",
                "headers": {"PRIVATE-TOKEN": token},
                "paginator": "header_link",
            },
            "resource_defaults": {"write_disposition": "replace", "parallelized": how == "parallelized"},
            "resources": [
                {
                    "name": "merge_requests",
                    "primary_key": "id",
                    "endpoint": {
                        "path": at,
                        "params": {"state": "all", "scope": "all", "per_page": 100},
                    },
                },
                {
                    "name": "notes",
                    "primary_key": "id",
                    "endpoint": {
                        "path": at + "/{resources.merge_requests.iid}/notes",
                        "params": {"per_page": 100},
                    },
                },
            ],
        }
    )
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=folder,
        # It insists on a host and a password. The host in the query, which is a folder, wins over this one.
        destination=dlt.destinations.postgres(credentials=url.replace("@/", ":none@localhost/")),
        dataset_name="bench",
    )

    def count() -> Mapping[str, int]:
        with pipeline.sql_client() as client:
            return {
                kind: client.execute_sql(f"SELECT count(DISTINCT id) FROM {kind}")[0][0]  # noqa: S608
                for kind in ("merge_requests", "notes")
            }

    name = "merge requests and notes" + (", parallelized" if how == "parallelized" else "")
    phase(name, lambda: pipeline.run(source), count)


if __name__ == "__main__":
    main()
