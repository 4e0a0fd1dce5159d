"""The surroundings in which this process uses Dagster: environment variables and warnings.

Belongs here: context managers that each user of a Dagster instance needs. Does not belong here: runs
(:mod:`sync_pipeline.orchestration.run`), the web page (:mod:`sync_pipeline.orchestration.ui`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dagster import BetaWarning, PreviewWarning, SupersessionWarning

from sync_pipeline.orchestration.processes import variables_set
from sync_pipeline.runtime.environment import environment_variables
from sync_pipeline.settings import Settings


@contextmanager
def quiet_dagster() -> Iterator[None]:
    """Hide Dagster's warnings about its own API, which are one line per asset, and no others."""
    with warnings.catch_warnings():
        for category in (BetaWarning, PreviewWarning, SupersessionWarning):
            warnings.simplefilter("ignore", category)
        # Dagster calls this itself for every nested resource.
        warnings.filterwarnings("ignore", "InitResourceContext.dagster_run", DeprecationWarning)
        yield


@contextmanager
def dagster_environment(settings: Settings) -> Iterator[Mapping[str, str]]:
    """The variables that Dagster reads, in force for the length of the block."""
    variables = environment_variables(settings)
    with variables_set(variables):
        yield variables
