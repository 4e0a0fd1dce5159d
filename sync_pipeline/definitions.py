"""A doorway: the definitions that ``dagster -m sync_pipeline.definitions`` loads. Everything is in build."""

from __future__ import annotations

from sync_pipeline.orchestration.build import load_defs

defs = load_defs()
