"""The programs that are compared, each in a process of its own, the peers in environments of theirs.

Belongs here: one module for each program. It imports :mod:`bench.drivers.phases` and the program only.
"""
