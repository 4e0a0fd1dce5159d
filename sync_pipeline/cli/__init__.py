"""``scm-sync``: the command line.

Belongs here: commands and options, how results are printed, exit codes, and one clear line for every error.
Does not belong here: the work of a command; each calls one or two functions of another package. They are
imported inside the commands, so that ``--help`` answers at once.

The command line as a whole is :mod:`sync_pipeline.cli.program`; there is one module per command group, and
what they have in common is in :mod:`sync_pipeline.cli.shared`.

Exit codes: 0 all well, 1 partly failed, 2 failed, 3 configuration or usage, 130 interrupted.
"""

from sync_pipeline.cli.program import main, run

__all__ = ["main", "run"]
