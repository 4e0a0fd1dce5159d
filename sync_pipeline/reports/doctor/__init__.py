"""``scm-sync doctor``: one look at everything that has to be right before anything can be synced.

Belongs here: the checks, their order, and their remedies. It changes nothing, but that an embedded server
that exists is started, as by every command. The caller brings the checks of Dagster, because nothing here
knows Dagster. The page about every check is ``docs/doctor.md``. Does not belong here: how the result looks.
"""

from sync_pipeline.reports.doctor.examination import DagsterChecks, document, examine, exit_code
from sync_pipeline.reports.doctor.findings import CHECKS, Finding, State, failed, ok, skipped, warning

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
