"""GitLab as a source: one safe transport, and readers of refs, commits, merge requests and reviews.

Belongs here: one module per thing that is read. Does not belong here: settings and where they come from.
"""
