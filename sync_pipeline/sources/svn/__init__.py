"""Subversion as a source: the pysvn surface over the ``svn`` command, and the reader of revisions.

Belongs here: making a client from plain values. Does not belong here: settings and where they come from.
"""

from sync_pipeline.sources.svn.client import Client

__all__ = ["Client"]
