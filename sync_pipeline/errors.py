"""Every exception of the project, grouped by what the one who catches it has to do.

Belongs here: the classes. The message is one line for a person: what is wrong and what to do. It never holds
a secret. ``code`` is a low-cardinality word that is stored, counted and matched on instead of the text.
"""

from __future__ import annotations

from sync_pipeline.safe_text import visible


class SyncError(Exception):
    """Something of ours went wrong; see the subclasses for what follows."""

    code = "unknown"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        # It goes to terminals, logs and pages, and may quote a source.
        super().__init__(visible(message, keep="\n\t"))
        if code is not None:
            self.code = code


class ConfigurationError(SyncError):
    """The user or the installation has to change something before anything can work. Exit code 3. There may
    be several ``problems``, each a line of its own."""

    code = "configuration"

    def __init__(self, message: str, *others: str, code: str | None = None) -> None:
        super().__init__("\n".join([message, *others]), code=code)
        self.problems = tuple(visible(one, keep="\n\t") for one in (message, *others))


class Permanent(SyncError):
    """A retry within seconds cannot help. The job is tried again after minutes, because a proxy in between
    may have refused; then it is dead."""

    code = "permanent"


class AccessDenied(Permanent):
    """The source refuses us: wrong credentials or no permission."""

    code = "denied"

    @property
    def is_of_the_token(self) -> bool:
        """True if it is the token that is refused or may not do what we need: then everything is refused that
        is asked with it, not only what was asked for."""
        return self.code in ("credential", "scope")


class SourceGone(Permanent):
    """There is nothing at the address any more, or never was."""

    code = "not_found"


class SourceReplaced(Permanent):
    """Another repository answers at the known address. Nothing is written until a person decides."""

    code = "replaced"


class Transient(SyncError):
    """A retry may help. ``retry_after`` is the shortest wait in seconds that the source asked for."""

    code = "transient"

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class AnswerStalled(Transient):
    """An answer began and then nothing more of it came. A shorter answer may arrive."""

    code = "timeout"


class WindowTooHard(Transient):
    """The answer for a window was unusable or too slow; a smaller one may work. Nothing was stored."""

    code = "window_too_hard"


class RowUnreadable(SyncError):
    """A single row cannot be read in any way; it goes to quarantine with ``payload`` as received."""

    code = "unreadable"

    def __init__(self, message: str, *, code: str | None = None, payload: bytes = b"") -> None:
        super().__init__(message, code=code)
        self.payload = payload


class LeaseLost(SyncError):
    """Somebody else holds the right to write now, or ours ran out. Nothing of the batch was written."""

    code = "lease_lost"


class ClaimLost(LeaseLost):
    """The job row belongs to another attempt now."""

    code = "claim_lost"


class WatermarkSet(ClaimLost):
    """A person set or reset the watermark while the attempt ran. The job itself is fine and runs again."""

    code = "watermark_set"


class LeaseHeld(SyncError):
    """The lease or the job is held by somebody else and waiting for it took longer than the limit."""

    code = "lease_held"


class Cancelled(SyncError):
    """Somebody asked to stop; everything committed so far stays."""

    code = "cancelled"
