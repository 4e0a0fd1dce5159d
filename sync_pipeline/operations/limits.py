"""The shared rate limits as a person sees and changes them.

Belongs here: the documents of ``scm-sync admin limits``, which ``docs/rate-limits.md`` describes key by key,
and of the limits in ``scm-sync status``. Does not belong here: how a limit changes
(:mod:`sync_pipeline.policy.rate_limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

from sync_pipeline.catalog import instance_of
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Bucket
from sync_pipeline.operations.formatting import plain_mark, some
from sync_pipeline.policy import rate_limits as policy
from sync_pipeline.policy.rate_limits import RateLimits
from sync_pipeline.settings import Settings
from sync_pipeline.store import rate_limits as store
from sync_pipeline.store.database import Connection, Database, database_time
from sync_pipeline.sync.limiter import gitlab_limits, svn_limits, tenant_limits

LONGEST_PAUSE = timedelta(days=365)
# Of what people did to the limits, the newest.
_EVENTS = 20

Document = dict[str, Any]


def listing(database: Database, settings: Settings, instance: str | None = None) -> Document:
    """Every limit, or those of one server, as they are now, and what people did to them lately. Raises
    ConfigurationError for a server that nobody knows."""
    with database.connection() as conn:
        if instance is not None:
            _buckets_of(conn, settings, instance)
        return _document(conn, settings, instance)


def hindered(conn: Connection, settings: Settings) -> list[Document]:
    """The limits that are paused or lowered."""
    return [one for one in _limits(conn, settings) if one["paused"] or one["lowered"]]


def pause(
    database: Database, settings: Settings, instance: str, until: datetime, *, actor: str, reason: str
) -> Document:
    """Send nothing to a server before ``until``, whoever runs; returns its limits. A pause that lasts longer
    stays. Raises ConfigurationError for a server that nobody knows and for a moment that is past or too far
    away."""

    def decide(bucket: Bucket, _: RateLimits, now: datetime) -> Bucket:
        if until <= now:
            raise ConfigurationError(
                f"the pause would have ended at {until:%Y-%m-%d %H:%M:%S} UTC; it is past"
            )
        if until > now + LONGEST_PAUSE:
            raise ConfigurationError("a pause lasts 365 days at most; retire what is no longer to be read")
        return policy.paused(bucket, now, until, _note("paused", actor, reason))

    by = _By("pause", actor, reason, until)
    return _change(database, settings, instance, decide, by)


def resume(database: Database, settings: Settings, instance: str, *, actor: str, reason: str) -> Document:
    """End every pause of a server, the one that it asked for as well."""
    note = _note("resumed", actor, reason)
    return _change(
        database,
        settings,
        instance,
        lambda bucket, _, now: policy.resumed(bucket, now, note),
        _By("resume", actor, reason),
        whole=False,
    )


def reset(database: Database, settings: Settings, instance: str, *, actor: str, reason: str) -> Document:
    """End every pause of a server and ask it at the rate of the settings again."""
    note = _note("reset", actor, reason)
    return _change(
        database,
        settings,
        instance,
        lambda bucket, limits, now: policy.restored(bucket, limits, now, note),
        _By("reset", actor, reason),
        whole=False,
    )


@dataclass(frozen=True, slots=True)
class _By:
    """What a person does to the limits of a server: who, and why. ``until`` is the end of a pause."""

    action: str
    actor: str
    reason: str
    until: datetime | None = None


def _note(what: str, actor: str, reason: str) -> str:
    words = " ".join(reason.split())
    if not words:
        raise ConfigurationError("--reason: say why, in a few words")
    return f"{what} by {actor}: {words}"


def _change(
    database: Database,
    settings: Settings,
    instance: str,
    decide: Callable[[Bucket, RateLimits, datetime], Bucket],
    by: _By,
    *,
    whole: bool = True,
) -> Document:
    """Change the buckets of a server: that of the ``whole`` server, or those of kinds of requests too. The
    event is written with the change."""
    with database.connection() as conn, conn.transaction():
        buckets = _buckets_of(conn, settings, instance)
        if not whole:
            buckets |= {one.endpoint_class for one in store.listed(conn) if one.instance == instance}
        for bucket in sorted(buckets):
            limits = limits_of(settings, bucket)

            def changed(old: Bucket, now: datetime, limits: RateLimits = limits) -> Bucket:
                return decide(old, limits, now)

            store.change(conn, instance, bucket, changed, rate=limits.rate, tokens=limits.burst)
        reason = " ".join(by.reason.split())
        store.note(conn, instance, by.action, actor=by.actor, reason=reason, until=by.until)
        return _document(conn, settings, instance)


def _document(conn: Connection, settings: Settings, instance: str | None) -> Document:
    events = store.events(conn, instance, _EVENTS)
    times = ("created_at", "until")
    return {
        "limits": [one for one in _limits(conn, settings) if instance in (None, one["instance"])],
        "events": [one | {name: plain_mark(one[name]) for name in times} for one in events],
    }


def _buckets_of(conn: Connection, settings: Settings, instance: str) -> set[str]:
    """The buckets of a whole server: one each if it is a GitLab and an SVN server."""
    known = store.servers(conn) | {(instance_of(s.url), store.ALL) for s in settings.gitlab_servers()}
    known |= {(x.instance, x.endpoint_class) for x in store.listed(conn) if x.endpoint_class in _WHOLE}
    buckets = {bucket for name, bucket in known if name == instance}
    if not buckets:
        raise ConfigurationError(f"there is no server {instance}; {_advice(instance, {n for n, _ in known})}")
    return buckets


_WHOLE = frozenset({store.ALL, store.SVN})


def _advice(instance: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(instance, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"write one of: {some(names)}" if names else "no repository is registered yet"


def limits_of(settings: Settings, endpoint_class: str) -> RateLimits:
    """What the settings allow to those who take from this bucket."""
    if store.is_of_tenant(endpoint_class):
        return tenant_limits(settings)
    return svn_limits(settings) if endpoint_class == store.SVN else gitlab_limits(settings)


def _limits(conn: Connection, settings: Settings) -> list[Document]:
    now = database_time(conn)
    return [_limit(one, limits_of(settings, one.endpoint_class), now) for one in store.listed(conn)]


def _limit(one: store.Listed, limits: RateLimits, now: datetime) -> Document:
    # Each process applies its own settings: what others send shows in the bucket, not in those of this shell.
    stored, was_lowered = one.bucket.rate, one.bucket.changed_at is not None
    usual = max(limits.rate, stored) if was_lowered else stored
    bucket = policy.at(one.bucket, RateLimits(usual, limits.burst), now)
    paused = policy.is_paused(bucket, now)
    until = bucket.paused_until if paused else None
    return {
        "instance": one.instance,
        "endpoint_class": one.endpoint_class,
        "paused": paused,
        "paused_until": plain_mark(until),
        "pause_remaining_seconds": None if until is None else round((until - now).total_seconds(), 3),
        "lowered": was_lowered and (bucket.changed_at is not None or stored > limits.rate),
        "reason": bucket.pause_reason,
        "rate": round(bucket.rate, 3),
        "full_rate": limits.rate,
        "burst": limits.burst,
        "available": max(0, int(bucket.tokens)),
        "waiting": max(0, -int(bucket.tokens)),
        "sent": one.consumed,
        "turned_away": one.rejected,
        "refused": one.limited,
        "refused_at": plain_mark(bucket.last_429_at),
        "server_limit": bucket.server_limit,
        "server_remaining": bucket.server_remaining,
    }
