"""Every exception of the project, grouped by the consequence for its caller.

Belongs here: the classes. The message is one line for a person: what happened and what to do. It never holds
a secret. ``code`` is a low-cardinality word that is stored, counted and matched instead of the text.
"""

from __future__ import annotations

from sync_pipeline.core.safe_text import visible


class SyncError(Exception):
    """The base class of our errors; the subclasses have the consequences."""

    code = "unknown"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        # It goes to terminals, logs and pages, and may quote a source.
        super().__init__(visible(message, keep="\n\t"))
        if code is not None:
            self.code = code


class ConfigurationError(SyncError):
    """The user or the installation has to change something before anything can work. Exit code 3. There may
    be several ``problems``, one line each.
    """

    code = "configuration"

    def __init__(self, message: str, *others: str, code: str | None = None) -> None:
        super().__init__("\n".join([message, *others]), code=code)
        self.problems = tuple(visible(one, keep="\n\t") for one in (message, *others))


class Permanent(SyncError):
    """A retry within seconds cannot help. The job is retried after minutes, because a proxy may have refused;
    then it is dead.
    """

    code = "permanent"


class AccessDenied(Permanent):
    """The source refuses us: wrong credentials or no permission."""

    code = "denied"

    @property
    def is_of_the_token(self) -> bool:
        """True if the token is rejected or lacks a right that everything needs. Then all requests with it
        fail, not only this one.
        """
        return self.code in ("credential", "scope")


class SourceGone(Permanent):
    """There is nothing at the address."""

    code = "not_found"


class SourceReplaced(Permanent):
    """Another repository answers at the known address. Nothing is written until a person decides."""

    code = "replaced"


class Transient(SyncError):
    """A retry may help. ``retry_after`` is the shortest wait in seconds that the source requested."""

    code = "transient"

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class AnswerStalled(Transient):
    """A response began and then stalled. A shorter response may arrive."""

    code = "timeout"


class AnswerCut(Transient):
    """A response began, and the connection broke before its end. A shorter response may arrive."""

    code = "connection"


class WindowTooHard(Transient):
    """The response for a window was unusable or too slow; a smaller window may work. Nothing was stored."""

    code = "window_too_hard"


class RowUnreadable(SyncError):
    """A single row cannot be read in any way; it goes to quarantine with ``payload`` as received."""

    code = "unreadable"

    def __init__(self, message: str, *, code: str | None = None, payload: bytes = b"") -> None:
        super().__init__(message, code=code)
        self.payload = payload


class LeaseLost(SyncError):
    """Another process has the right to write now, or ours expired. Nothing of the batch was written."""

    code = "lease_lost"


class ClaimLost(LeaseLost):
    """The job row belongs to another attempt now."""

    code = "claim_lost"


class WatermarkSet(ClaimLost):
    """A person set or reset the watermark while the attempt ran. The job itself is fine and runs again."""

    code = "watermark_set"


class LeaseHeld(SyncError):
    """Another process holds the lease or the job, and waiting for it took longer than the limit."""

    code = "lease_held"


class Cancelled(SyncError):
    """A person or a signal asked to stop; everything committed so far stays."""

    code = "cancelled"
