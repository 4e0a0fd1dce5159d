"""The exit codes of every command, which ``docs/commands.md`` lists.

Belongs here: only the codes, so that processes and the ``exit_code`` of documents agree.
"""

from typing import Final

SUCCESS: Final = 0
PARTIAL: Final = 1
FAILED: Final = 2
CONFIGURATION: Final = 3
"""The user must correct something first; nothing was changed."""
INTERRUPTED: Final = 130
"""The code of a shell after SIGINT."""
CLOSED_PIPE: Final = 141
"""The code of a shell after SIGPIPE."""
