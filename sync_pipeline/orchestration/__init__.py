"""Dagster only: assets, partitions, jobs, sensors, the guarded web page; no source and no SQL.

Everything here translates: from run tags to a request for the engine, from its reports to materializations,
from the plan to run requests. What is due is decided in :mod:`sync_pipeline.policy`, what is done in
:mod:`sync_pipeline.sync`.
"""
