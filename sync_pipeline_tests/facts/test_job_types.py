"""The declarations of the job types agree with each other and with the table of the database."""

from __future__ import annotations

from sync_pipeline.core.job_types import DECLARED, FAMILY_OF, Family
from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Database
from sync_pipeline.facts.job_types import FACTS, LIST_TABLES
from sync_pipeline.sources.gitlab.lists import LISTS


def test_every_job_type_is_declared_once_in_each_layer(database: Database) -> None:
    assert set(DECLARED) == set(FACTS) == set(JobType)
    assert set(LISTS) == set(LIST_TABLES)
    assert {family for family in Family if family.job_types} == set(Family)
    with database.connection() as conn:
        rows = conn.execute("SELECT job_type, kind, family, by_time FROM scm.job_types ORDER BY job_type")
        stored = {row.pop("job_type"): row for row in map(dict, rows)}
    assert stored == {
        str(job_type): {
            "kind": str(one.kind),
            "family": str(FAMILY_OF[job_type]),
            "by_time": one.by_time,
        }
        for job_type, one in DECLARED.items()
    }
