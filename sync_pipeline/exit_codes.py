"""The exit codes of every command, which ``docs/commands.md`` lists.

Belongs here: only the codes, so that processes and the ``exit_code`` of documents agree.
"""

SUCCESS = 0
PARTIAL = 1
FAILED = 2
CONFIGURATION = 3
"""Something has to be corrected first; nothing was touched."""
INTERRUPTED = 130
"""The code of a shell after SIGINT."""
CLOSED_PIPE = 141
"""The code of a shell after SIGPIPE."""
