"""The settings: typed groups, their names outside the program, and where their values come from.

Belongs here: the groups (one class each, in the module of their subject) and their model. Also reading
environment, file and command line, and the page ``docs/settings.md``. Does not belong here: the use of a
setting beyond its one-line meaning, and connecting to anything.

In the program a setting has a path, such as ``settings.breaker.min_samples``. Outside it has one flat name,
``cb_min_samples``, which gives the variable, the key of the file and the name for ``--set``.
"""

from __future__ import annotations

from sync_pipeline.settings.files import config_file, project_root
from sync_pipeline.settings.given import Given, Origin
from sync_pipeline.settings.loading import explained_settings, load_settings
from sync_pipeline.settings.model import FIELDS, SECRETS, SWITCHES, Settings, meanings
from sync_pipeline.settings.servers import GitLabServer, GitLabTable, SvnTable

__all__ = [
    "FIELDS",
    "SECRETS",
    "SWITCHES",
    "GitLabServer",
    "GitLabTable",
    "Given",
    "Origin",
    "Settings",
    "SvnTable",
    "config_file",
    "explained_settings",
    "load_settings",
    "meanings",
    "project_root",
]
