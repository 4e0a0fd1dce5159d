"""GitLab as a source: one safe transport, and readers of refs, commits, merge requests and reviews.

Belongs here: one module for each kind of object. Does not belong here: settings.
"""
