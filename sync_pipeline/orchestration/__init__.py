"""Dagster only: assets, partitions, jobs, sensors, the guarded web page; no source and no SQL.

Everything here translates: run tags to requests for the engine, its reports to materializations, the plan to
run requests. :mod:`sync_pipeline.policy` decides when work is due, and :mod:`sync_pipeline.sync` does it.
"""
