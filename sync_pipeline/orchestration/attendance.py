"""The fleet-wide asset check ``attendance``: whether everything that should tick ticks, and whether every
repository is taken by a living worker pool.

Belongs here: the check and when it is red. It is done with each run of the schedule ``reconcile``. What is
silent is said in :mod:`sync_pipeline.store.heartbeats`, what nobody takes in
:mod:`sync_pipeline.store.pools`. A daemon that does not run checks nothing: for that there is
``scm-sync health``.
"""

# Dagster looks at the annotations of checks itself, so they cannot be postponed here.

import dagster as dg

from sync_pipeline.operations.texts import age
from sync_pipeline.resources import PostgresResource
from sync_pipeline.store import heartbeats, pools

ATTENDANCE = "attendance"

_SHOWN = 50


def attendance_check(asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    """The check, shown at ``asset``."""

    @dg.asset_check(
        asset=asset,
        name=ATTENDANCE,
        description="Sensors, schedules and loops tick, and a living worker pool takes every repository.",
    )
    def attendance(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.database(max_size=1) as database, database.connection() as conn:
            silent = heartbeats.silent(conn)
            unserved = pools.unserved(conn)
        return dg.AssetCheckResult(
            passed=not silent and not unserved,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "silent": ", ".join(f"{one.name} for {age(one.age)}" for one in silent) or "nothing",
                "unserved": ", ".join(f"{one.spec} {one.job_type}" for one in unserved[:_SHOWN]) or "nothing",
            },
        )

    return attendance
