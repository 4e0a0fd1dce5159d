"""The job types as tables: where the rows of each are, and the statements that are made from that.

Belongs here: the table of each job type, its key, and the rows that a comparison counts. Does not belong
here: whole statements, which are with what they are for, and the columns of a table
(:mod:`sync_pipeline.facts.tables`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import LiteralString

from psycopg import sql

from sync_pipeline.core.model import JobType
from sync_pipeline.database.queries import queries
from sync_pipeline.facts.tables import RELEASES, Table


@dataclass(frozen=True, slots=True)
class Facts:
    """The rows of a job type, as parts of SQL.

    ``table`` has the asset's rows, and ``key`` is the natural key of one as text. ``named`` is the condition
    that a row ``t`` has the key of an entry ``q`` of quarantine. ``is_row`` is the condition that the entry
    is of a row. ``hidden`` is the condition that the server does not show everything of a row.

    ``compared`` has what a comparison asks the source for, ``time_column`` is the column of windows, and
    ``live`` the condition that a row counts. ``stored_at`` says when a row was last written. ``gone`` is what
    a tombstone sets beside.

    ``children`` are job types whose rows go with a row of this one. ``on_reset`` is what a reset of the
    watermark forgets beside the coverage: which details need not be read again.
    """

    table: LiteralString
    key: LiteralString
    time_column: LiteralString
    named: LiteralString
    is_row: LiteralString = "q.natural_key !~ '^(branch|tag|raw):'"
    hidden: LiteralString = "FALSE"
    compared: LiteralString = ""
    live: LiteralString = "deleted_at IS NULL"
    stored_at: LiteralString = "stored_at"
    gone: LiteralString = ""
    children: tuple[JobType, ...] = ()
    on_reset: LiteralString | None = None

    def parts(self) -> dict[str, sql.SQL]:
        """The parts by name."""
        texts = {one.name: getattr(self, one.name) for one in fields(self) if one.type == "LiteralString"}
        return {name: sql.SQL(text) for name, text in texts.items()} | {
            "compared": sql.SQL(self.compared or self.table)
        }


_SQL = queries("job_types")


LIST_TABLES: Mapping[JobType, Table] = {JobType.RELEASES: RELEASES}
"""The table of each job type whose rows are a flat list; they need no other declaration here."""


def _of_list(table: Table) -> Facts:
    key = table.key[0]
    return Facts(table.name, f"{key}::text", table.time_column, f"t.{key}::text = q.natural_key")


FACTS: Mapping[JobType, Facts] = {
    JobType.COMMITS: Facts(
        "scm.git_commits", "commit_sha", "ts", "t.commit_sha = q.natural_key", on_reset=_SQL["reset_tips"]
    ),
    JobType.MERGE_REQUESTS: Facts(
        "scm.mrs",
        "iid::text",
        "updated_at",
        "t.iid = substring(q.natural_key FROM '^[0-9]{1,18}$')::bigint",
        children=(JobType.REVIEWS,),
        on_reset=_SQL["reset_children"],
    ),
    JobType.REVIEWS: Facts(
        "scm.review_events",
        "mr_iid || ':' || source_event_id",
        "mr_updated_at",
        "t.mr_iid = substring(q.natural_key FROM '^([0-9]{1,18}):')::bigint"
        " AND t.source_event_id = substring(q.natural_key FROM '^[0-9]+:(.*)$')",
        # The number of events of a whole review in quarantine is unknown.
        is_row="q.natural_key ~ '^[0-9]+:(note|state|label|milestone):'",
        compared="scm.mr_reviews",
        live="replaced_id = 0",
        # A row that was missing before keeps the time since when.
        gone="missing_since = coalesce(missing_since, now()),",
        on_reset=_SQL["reset_reviews"],
    ),
    JobType.REVISIONS: Facts(
        "scm.svn_revisions",
        "rev_num::text",
        "rev_num",
        "t.rev_num = substring(q.natural_key FROM '^[0-9]{1,18}$')::bigint",
        hidden="visibility <> 'full'",
        stored_at="updated_at",
    ),
    **{job_type: _of_list(table) for job_type, table in LIST_TABLES.items()},
}


def for_each_job_type(template: LiteralString) -> Mapping[JobType, str]:
    """The statement of ``template`` for each job type, with the parts of :class:`Facts` for ``{table}``,
    ``{key}`` and so on. Braces of SQL are doubled."""
    return {one: sql.SQL(template).format(**facts.parts()).as_string() for one, facts in FACTS.items()}
