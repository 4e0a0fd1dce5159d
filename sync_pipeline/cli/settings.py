"""``scm-sync settings``.

Belongs here: the command and how its table looks. Does not belong here: what may be shown of a setting
(:mod:`sync_pipeline.reports.configuration`).
"""

from __future__ import annotations

from sync_pipeline.cli.options import AsJson
from sync_pipeline.cli.output import print_json, print_rows


def settings_command(as_json: AsJson = False) -> None:
    """Show every setting, its value and where that comes from. Of a secret it shows whether it is set."""
    from sync_pipeline.reports import configuration
    from sync_pipeline.settings import explained_settings

    document = configuration.document(*explained_settings())
    if as_json:
        print_json(document)
        return
    print_rows(
        [
            {
                "setting": one["name"],
                "value": _text(one["value"]),
                "from": f"{one['origin']}: {one['given_by']}" if one["given_by"] else one["origin"],
            }
            for one in document["settings"]
        ]
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list):
        return ", ".join(str(item["url"]) if isinstance(item, dict) else str(item) for item in value)
    return "" if value is None else str(value)
