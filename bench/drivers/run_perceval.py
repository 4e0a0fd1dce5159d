"""Perceval reads merge requests with their notes, reactions and versions, and writes them to a file.

Arguments: address of the GitLab, token, path of the project, folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from perceval.backends.core.gitlab import GitLab

from bench.drivers.phases import phase


def main() -> None:
    """Fetch once."""
    server, token, path, folder = sys.argv[1:5]
    owner, _, repository = path.partition("/")

    output = Path(folder) / "items.jsonl"

    def work() -> None:
        backend = GitLab(
            owner=owner,
            repository=repository,
            api_token=token,
            base_url=server,
            # Without it a refusal ends the program. At 10, the default, it would wait at each request.
            sleep_for_rate=True,
            min_rate_to_sleep=1,
        )
        with output.open("w") as file:
            for item in backend.fetch(category="merge_request"):
                file.write(json.dumps(item) + "\n")

    def count() -> Mapping[str, int]:
        found = [json.loads(line)["data"] for line in output.read_text().splitlines()]
        notes = {note["id"] for one in found for note in one["notes_data"]}
        return {"merge_requests": len({one["id"] for one in found}), "notes": len(notes)}

    phase("merge requests, notes, versions", work, count)


if __name__ == "__main__":
    main()
