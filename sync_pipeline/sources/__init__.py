"""Readers of the outside world: they yield batches of rows of :mod:`sync_pipeline.core.model`.

Belongs here: one package per kind of server. Does not belong here: the database, Dagster, decisions about
when something is read.
"""
