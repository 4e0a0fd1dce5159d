"""Fixtures that tests of faults share with those of the engine."""

from __future__ import annotations

from sync_pipeline_tests.sync.conftest import forge

__all__ = ["forge"]
