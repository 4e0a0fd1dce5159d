"""The specs of the assets in Dagster: key, group, description, links.

Belongs here: the specs of the assets and the links to the sources. Does not belong here: the step that fills
them.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import quote

import dagster as dg

from sync_pipeline.core import catalog
from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import FLEET, JobType, Kind, Lifecycle, Repository
from sync_pipeline.core.safe_text import code, markdown, visible
from sync_pipeline.facts.job_types import FACTS
from sync_pipeline.facts.schema import fact_columns
from sync_pipeline.ledger.pools import DEFAULT_POOL
from sync_pipeline.settings import Settings

TABLE_NAME = "dagster/table_name"
"""Metadata of an asset: the table that has its rows."""


def asset_key(repository: Repository, job_type: JobType) -> dg.AssetKey:
    """``[alias, path slug, job type]``; fixed at registration, or history would be lost."""
    return dg.AssetKey([repository.instance_slug, repository.slug, str(job_type)])


def fleet_key(name: str, settings: Settings) -> dg.AssetKey:
    """The key of an asset about everything that a code location has; two of them in one workspace must not
    share it."""
    pool = [] if settings.worker.pool == DEFAULT_POOL else [settings.worker.pool]
    return dg.AssetKey([FLEET, *pool, name])


def asset_spec(
    repository: Repository,
    job_type: JobType,
    partitions: dg.PartitionsDefinition,
    label: str,
    settings: Settings,
    *,
    with_columns: bool,
) -> dg.AssetSpec:
    """The spec of one (repository, job type). ``label`` is what its server is called now; ``with_columns`` it
    has those of its table."""
    content, table = DECLARED[job_type].content, FACTS[job_type].table
    retired = " Retired: no longer synced." if repository.lifecycle is Lifecycle.RETIRED else ""
    name = markdown(catalog.path_of(repository))
    return dg.AssetSpec(
        asset_key(repository, job_type),
        skippable=True,
        partitions_def=partitions,
        group_name=label,
        kinds={str(repository.kind), "postgres"},
        description=f"{name}: {content[:1].lower()}{content[1:]}, in {table}. "
        f"Server {label}, {code(repository.instance)}.{retired}",
        owners=owners(repository, settings),
        tags={"scm/lifecycle": str(repository.lifecycle)},
        metadata={
            "url": link(web_address(repository)),
            "repository": repository.spec,
            "repo_id": repository.repo_id,
            "tenant": repository.tenant,
            TABLE_NAME: table,
            **({"dagster/column_schema": column_schema(table)} if with_columns else {}),
        },
    )


def owners(repository: Repository, settings: Settings) -> tuple[str, ...]:
    """Who owns the assets of the repository, as Dagster writes it: those of the settings, or its tenant."""
    return settings.asset_owners or ((f"team:{visible(repository.tenant)}",) if repository.tenant else ())


@cache
def column_schema(table: str) -> dg.MetadataValue[Any]:
    """The columns of a table of facts; one object, whatever the number of assets that have it."""
    return dg.MetadataValue.table_schema(
        dg.TableSchema(
            [
                dg.TableColumn(
                    column.name,
                    column.type,
                    # The page reads it as Markdown, where <email> would be an element.
                    column.meaning.replace("<", "\\<"),
                    dg.TableColumnConstraints(nullable=not column.required),
                )
                for column in fact_columns()[table]
            ]
        )
    )


def web_address(repository: Repository) -> str:
    """Where a person looks at the repository. A GitLab project has its page at its path of the moment."""
    if repository.kind is Kind.SVN or not repository.project_path:
        return repository.url
    server = repository.url.removesuffix(f"/projects/{repository.project_id}")
    return f"{server}/{repository.project_path}"


def source_page(repository: Repository, job_type: JobType) -> str:
    """Where a person looks at what a job type reads."""
    return web_address(repository) + DECLARED[job_type].page


def link(url: str) -> dg.MetadataValue[Any]:
    """A link where a browser can follow it."""
    if not url.startswith("http"):
        return dg.MetadataValue.text(visible(url))
    return dg.MetadataValue.url(quote(url, safe="%/:?=&@+,;~!$'()*[]"))
