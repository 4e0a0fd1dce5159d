"""The documents that commands print with ``--json``, as types.

Belongs here: the keys of each document, their types, and a sentence below those that need one. The schemas in
``docs/schemas`` are generated from these classes (``./dev generate``). Does not belong here: the values.
"""
