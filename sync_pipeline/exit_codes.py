"""The exit codes of every command, which ``docs/commands.md`` lists.

Belongs here: only they, so that whoever ends a process and whoever writes an ``exit_code`` into a document
mean the same.
"""

SUCCESS = 0
PARTIAL = 1
FAILED = 2
CONFIGURATION = 3
"""Something has to be set right first; nothing was touched."""
INTERRUPTED = 130
"""As a shell has it after SIGINT."""
CLOSED_PIPE = 141
"""As a shell has it after SIGPIPE."""
