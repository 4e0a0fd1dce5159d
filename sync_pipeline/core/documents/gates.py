"""The documents of ``admin pauses``, ``admin breakers`` and ``admin limits``.

Belongs here: everything that holds requests or jobs back. Does not belong here: the jobs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from sync_pipeline.core.documents.common import Count, Share, Time
from sync_pipeline.core.model import BreakerScope, BreakerState, JobType

Positive = Annotated[int, Field(ge=1)]


class Pause(TypedDict):
    """scm-sync admin pause --json."""

    id: Positive
    scope: Literal["global", "instance", "tenant", "repository"]
    instance: str | None
    tenant: str | None
    repo: str | None
    job: JobType | None
    reason: str
    actor: str
    since: Time
    until: Time | None
    """Null: until it is resumed."""


class PauseList(TypedDict):
    """scm-sync admin pauses --json."""

    pauses: list[Pause]


class BreakerError(TypedDict):
    """A kind of error of the runs that opened a breaker."""

    code: str
    runs: Positive


class Breaker(TypedDict):
    """A circuit breaker."""

    scope: BreakerScope
    key: str
    state: BreakerState
    since: Time
    reason: str | None
    errors: list[BreakerError]
    """The three most frequent errors before it opened; empty where it is closed."""
    failure_rate: Share
    rate_limit_rate: Share
    timeout_rate: Share
    runs: Count
    judged_at: Time


class BreakerEvent(TypedDict):
    """A change of state."""

    scope: BreakerScope
    key: str
    old_state: BreakerState
    new_state: BreakerState
    reason: str
    actor: str
    created_at: Time


class BreakerThresholds(TypedDict):
    """When a breaker opens, by the settings of this shell: the share of errors, of at least so many runs."""

    failure_rate: float
    rate_limit_rate: float
    timeout_rate: float
    runs: Positive


class BreakerList(TypedDict):
    """scm-sync admin breakers --json. A scope without a breaker is closed. Rates are shares from 0 to 1."""

    enabled: bool
    """False: by the settings of this shell circuit breakers hold nothing back (cb_enabled)."""
    opens_at: BreakerThresholds
    breakers: list[Breaker]
    events: list[BreakerEvent]
    """The newest changes of state, newest first."""


class LimitEvent(TypedDict):
    """An action of a person."""

    created_at: Time
    instance: str
    action: Literal["pause", "resume", "reset"]
    until: Time | None
    actor: str
    reason: str


class Limit(TypedDict):
    """A shared rate limit."""

    instance: str
    endpoint_class: str
    """all: the whole GitLab; svn: the SVN server; else one kind of request."""
    paused: bool
    paused_until: Time | None
    pause_remaining_seconds: float | None
    lowered: bool
    """The rate is lower than that of the start for a while."""
    reason: str | None
    rate: float
    """Requests a second, as the latest request applied it."""
    full_rate: float
    """Requests a second at the start, by the settings of this shell."""
    max_rate: float
    """Most requests a second: by the settings of this shell, the announced limit and the latest refusal."""
    announced_rate: float | None
    """Requests a second that we take of the limit that the server announces."""
    rate_reason: str | None
    """Why the rate last changed."""
    burst: float
    available: Count
    """Requests that may be sent at once."""
    waiting: Count
    """Requests that wait."""
    sent: Count
    """Requests let through, ever."""
    turned_away: Count
    """Requests not sent because the wait was too long, ever."""
    refused: Count
    """Refusals of the server (429 and the like), ever."""
    refused_at: Time | None
    server_limit: int | None
    """The limit that the server last announced."""
    server_remaining: int | None


class LimitList(TypedDict):
    """scm-sync admin limits list --json; pause, resume and reset print those of the changed server."""

    limits: list[Limit]
    events: list[LimitEvent]
