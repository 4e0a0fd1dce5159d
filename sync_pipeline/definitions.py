"""The definitions that ``dagster -m sync_pipeline.definitions`` loads, built by the module ``build``."""

from __future__ import annotations

from sync_pipeline.orchestration.build import load_defs

defs = load_defs()
