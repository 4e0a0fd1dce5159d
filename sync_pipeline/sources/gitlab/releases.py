"""Releases: the parser of a row of their list.

Belongs here: the fields of a release. Does not belong here: reading the list
(:mod:`sync_pipeline.sources.gitlab.lists`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sync_pipeline.core.errors import RowUnreadable
from sync_pipeline.core.gitlab_rows import ReleaseRow
from sync_pipeline.sources.gitlab.fields import Fields, payload


def release(data: Any) -> ReleaseRow:
    """A release. Raises RowUnreadable where it has no tag: GitLab leaves it out for a token that may not see
    the repository."""
    fields = Fields(data)
    tag = fields.text("tag_name")
    if not tag:
        raise RowUnreadable(
            "the release has no tag_name; the token needs at least the role Reporter", payload=payload(data)
        )
    assets = Fields(fields.object("assets") or {})
    return ReleaseRow(
        tag=tag,
        name=fields.text("name"),
        description=fields.text("description"),
        commit_sha=Fields(fields.object("commit") or {}).sha("id"),
        created_at=fields.moment("created_at"),
        released_at=fields.moment("released_at"),
        author=fields.person("author"),
        milestones=tuple(title for one in _objects(fields, "milestones") if (title := one.text("title"))),
        assets_count=assets.integer("count"),
        asset_links=tuple(
            {
                "id": one.integer("id"),
                "name": one.text("name"),
                "url": one.text("url"),
                "type": one.text("link_type"),
            }
            for one in _objects(assets, "links")
        ),
        flags=fields.sorted_flags(),
        raw=fields.data,
    )


def _objects(fields: Fields, name: str) -> Iterator[Fields]:
    return (Fields(one) for one in fields.items(name) if isinstance(one, dict))
