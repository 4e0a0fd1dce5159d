"""The exit codes of every command, which ``docs/commands.md`` lists.

Belongs here: only they, so that whoever ends a process and whoever writes an ``exit_code`` into a document
mean the same.
"""

from typing import Final

SUCCESS: Final = 0
PARTIAL: Final = 1
FAILED: Final = 2
CONFIGURATION: Final = 3
"""Something has to be set right first; nothing was touched."""
INTERRUPTED: Final = 130
"""As a shell has it after SIGINT."""
CLOSED_PIPE: Final = 141
"""As a shell has it after SIGPIPE."""
