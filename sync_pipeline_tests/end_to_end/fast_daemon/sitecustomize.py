"""Makes the Dagster of a test quick: its daemon looks for work every second instead of every thirty, and its
runs are forked from a process that has imported Dagster and our modules, instead of each importing them anew.

On PYTHONPATH of the environment under test only. The intervals and the way to start a process are constants
of Dagster's, so they are set before it reads them; nothing else is touched.
"""

import sys

if "dagster._daemon" in sys.orig_argv:
    import dagster._daemon.controller
    import dagster._daemon.sensor

    dagster._daemon.controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
    dagster._daemon.sensor.MIN_INTERVAL_LOOP_TIME = 1

if sys.orig_argv[2:5] == ["dagster", "api", "grpc"]:
    import multiprocessing

    given = multiprocessing.get_context

    def forked(method: str | None = None) -> multiprocessing.context.BaseContext:
        return given("forkserver" if method == "spawn" else method)

    # All that the definitions import; not the definitions, which read the catalog.
    multiprocessing.set_forkserver_preload(
        [
            "dagster",
            "dagster._cli",
            "dagster._grpc.server",
            "dagster_postgres",
            "sqlalchemy.dialects.postgresql.psycopg2",
            "sync_pipeline.orchestration.build",
            "sync_pipeline.sync.engine",
        ]
    )
    multiprocessing.get_context = forked  # type: ignore[assignment]
