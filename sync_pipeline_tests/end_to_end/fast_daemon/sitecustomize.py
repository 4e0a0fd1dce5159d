"""Makes the Dagster daemon of a test look for work every second instead of every thirty.

On PYTHONPATH of the environment under test only. The interval is a constant of Dagster's, so it is set before
the daemon reads it; nothing else is touched.
"""

import sys

if "dagster._daemon" in sys.orig_argv:
    import dagster._daemon.controller
    import dagster._daemon.sensor

    dagster._daemon.controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
    dagster._daemon.sensor.MIN_INTERVAL_LOOP_TIME = 1
