"""tap-gitlab reads the commits of a project. Its messages go to a file; nothing loads them into a database.

Arguments: address of the GitLab, token, project, folder. The tap knows one GitLab only, so its address is set
from outside.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import singer
from singer import metadata
from tap_gitlab.client import Client
from tap_gitlab.discover import discover
from tap_gitlab.sync import sync

from bench.drivers.phases import phase


def main() -> None:
    """Run the tap once."""
    server, token, project, folder = sys.argv[1:5]
    config = {
        "private_token": token,
        "start_date": "2000-01-01T00:00:00Z",
        "groups": "",
        "projects": project,
    }
    output = Path(folder) / "messages.jsonl"

    def work() -> None:
        client = Client(config)
        client.base_url = f"{server}/api/v4"
        with output.open("w") as file, contextlib.redirect_stdout(file):
            catalog = discover()
            for entry in catalog.streams:
                chosen = metadata.to_map(entry.metadata)
                selected = entry.tap_stream_id in ("projects", "commits")
                chosen = metadata.write(chosen, (), "selected", selected)
                entry.metadata = metadata.to_list(chosen)
            with client:
                sync(client=client, config=config, catalog=singer.Catalog(catalog.streams), state={})

    def count() -> Mapping[str, int]:
        messages = [json.loads(line) for line in output.read_text().splitlines()]
        commits = {
            one["record"]["id"] for one in messages if one.get("stream") == "commits" and "record" in one
        }
        return {"commits": len(commits)}

    phase("commits", work, count)


if __name__ == "__main__":
    main()
