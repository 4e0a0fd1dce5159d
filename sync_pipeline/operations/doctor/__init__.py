"""``scm-sync doctor``: one look at everything that has to be right before anything can be synced.

Belongs here: what is checked, in which order, what it means and what to do about it. It changes nothing, but
that an embedded server that exists is started, as by every command. What is known about Dagster is asked of a
function that the caller brings, because nothing here knows Dagster. The page about every check is
``docs/doctor.md``. Does not belong here: how the result is shown.
"""

from sync_pipeline.operations.doctor.examination import DagsterChecks, document, examine, exit_code
from sync_pipeline.operations.doctor.findings import CHECKS, Finding, State, failed, ok, skipped, warning

__all__ = [
    "CHECKS",
    "DagsterChecks",
    "Finding",
    "State",
    "document",
    "examine",
    "exit_code",
    "failed",
    "ok",
    "skipped",
    "warning",
]
