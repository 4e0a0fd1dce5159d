"""The shared rate limits as a person sees and changes them.

Belongs here: the documents of ``scm-sync admin limits``, which ``docs/rate-limits.md`` describes key by key,
and of the limits in ``scm-sync status``. Does not belong here: how a limit changes
(:mod:`sync_pipeline.policy.rate_limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial

from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.documents.common import from_row
from sync_pipeline.core.documents.gates import Limit, LimitEvent, LimitList
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import given_reason, plain_mark, some
from sync_pipeline.core.model import Bucket
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.ledger import rate_limits as store
from sync_pipeline.policy import rate_limits as policy
from sync_pipeline.policy.rate_limits import RateLimits
from sync_pipeline.settings import Settings
from sync_pipeline.sync.limiter import gitlab_limits, svn_limits, tenant_limits

LONGEST_PAUSE = timedelta(days=365)
# Of what people did to the limits, the newest.
_EVENTS = 20


def listing(database: Database, settings: Settings, instance: str | None = None) -> LimitList:
    """Every limit, or those of one server, as they are now, and what people did to them lately. Raises
    ConfigurationError for an unknown server."""
    with database.connection() as conn:
        if instance is not None:
            _buckets_of(conn, settings, instance)
        return _document(conn, settings, instance)


def unusual(conn: Connection, settings: Settings) -> list[Limit]:
    """The limits that are paused or lowered, and those whose rate was found or is announced by the server."""
    return [
        one
        for one in _limits(conn, settings)
        if one["paused"] or one["lowered"] or (one["rate_reason"] and one["rate"] != one["full_rate"])
    ]


def pause(
    database: Database, settings: Settings, instance: str, until: datetime, *, actor: str, reason: str
) -> LimitList:
    """Send nothing to a server before ``until``, from any process; returns its limits. A pause that lasts
    longer stays. Raises ConfigurationError for an unknown server and for a moment that is past or too far
    away."""
    note = _note("paused", actor, reason)

    def decide(_: RateLimits, bucket: Bucket, now: datetime) -> Bucket:
        if until <= now:
            raise ConfigurationError(
                f"the pause would have ended at {until:%Y-%m-%d %H:%M:%S} UTC; it is past"
            )
        if until > now + LONGEST_PAUSE:
            raise ConfigurationError("a pause lasts 365 days at most; retire what is no longer to be read")
        return policy.paused(bucket, now, until, note)

    with database.connection() as conn, conn.transaction():
        _change(conn, settings, instance, _buckets_of(conn, settings, instance), decide)
        store.note(conn, instance, "pause", actor=actor, reason=given_reason(reason), until=until)
        return _document(conn, settings, instance)


def resume(database: Database, settings: Settings, instance: str, *, actor: str, reason: str) -> LimitList:
    """End every pause of a server, the one that it asked for as well."""
    note = _note("resumed", actor, reason)
    with database.connection() as conn, conn.transaction():
        buckets = _all_buckets_of(conn, settings, instance)
        _change(conn, settings, instance, buckets, lambda _, old, now: policy.resumed(old, now, note))
        store.note(conn, instance, "resume", actor=actor, reason=given_reason(reason), until=None)
        return _document(conn, settings, instance)


def reset(database: Database, settings: Settings, instance: str, *, actor: str, reason: str) -> LimitList:
    """End every pause of a server and ask it at the rate of the settings again."""
    note = _note("reset", actor, reason)
    with database.connection() as conn, conn.transaction():
        buckets = _all_buckets_of(conn, settings, instance)
        _change(conn, settings, instance, buckets, lambda new, old, now: policy.restored(old, new, now, note))
        store.note(conn, instance, "reset", actor=actor, reason=given_reason(reason), until=None)
        return _document(conn, settings, instance)


def _note(done: str, actor: str, reason: str) -> str:
    return f"{done} by {actor}: {given_reason(reason)}"


def _change(
    conn: Connection,
    settings: Settings,
    instance: str,
    buckets: Iterable[str],
    decide: Callable[[RateLimits, Bucket, datetime], Bucket],
) -> None:
    for bucket in sorted(buckets):
        limits = limits_of(settings, bucket)
        store.change(conn, instance, bucket, partial(decide, limits), rate=limits.rate, tokens=limits.burst)


def _document(conn: Connection, settings: Settings, instance: str | None) -> LimitList:
    events = store.events(conn, instance, _EVENTS)
    return {
        "limits": [one for one in _limits(conn, settings) if instance in (None, one["instance"])],
        "events": [from_row(LimitEvent, one) for one in events],
    }


def _buckets_of(conn: Connection, settings: Settings, instance: str) -> set[str]:
    """The buckets of a whole server: one each if it is a GitLab and an SVN server."""
    known = store.servers(conn) | {(instance_of(s.url), store.ALL) for s in settings.gitlab_servers()}
    known |= {(x.instance, x.endpoint_class) for x in store.listed(conn) if x.endpoint_class in _WHOLE}
    buckets = {bucket for name, bucket in known if name == instance}
    if not buckets:
        raise ConfigurationError(f"there is no server {instance}; {_advice(instance, {n for n, _ in known})}")
    return buckets


def _all_buckets_of(conn: Connection, settings: Settings, instance: str) -> set[str]:
    """The buckets of a server, with those of single kinds of requests."""
    whole = _buckets_of(conn, settings, instance)
    return whole | {one.endpoint_class for one in store.listed(conn) if one.instance == instance}


_WHOLE = frozenset({store.ALL, store.SVN})


def _advice(instance: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(instance, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"write one of: {some(names)}" if names else "no repository is registered yet"


def limits_of(settings: Settings, endpoint_class: str) -> RateLimits:
    """The limits of the settings for this bucket."""
    if store.is_of_tenant(endpoint_class):
        return tenant_limits(settings)
    return svn_limits(settings) if endpoint_class == store.SVN else gitlab_limits(settings)


def _limits(conn: Connection, settings: Settings) -> list[Limit]:
    now = database_time(conn)
    return [_limit(one, limits_of(settings, one.endpoint_class), now) for one in store.listed(conn)]


def _limit(one: store.Listed, limits: RateLimits, now: datetime) -> Limit:
    # Each process applies its own settings: what others send shows in the bucket, not in those of this shell.
    stored, was_lowered, is_found = one.bucket.rate, one.bucket.changed_at, one.bucket.tuned_at
    usual = max(limits.rate, stored) if was_lowered else stored
    of_others = replace(limits, rate=limits.rate if is_found else usual, max_rate=max(limits.ceiling, stored))
    bucket = policy.at(one.bucket, of_others, now)
    paused = policy.is_paused(bucket, now)
    until = bucket.paused_until if paused else None
    is_refused = was_lowered is not None and (bucket.changed_at is not None or stored > limits.rate)
    return {
        "instance": one.instance,
        "endpoint_class": one.endpoint_class,
        "paused": paused,
        "paused_until": plain_mark(until),
        "pause_remaining_seconds": None if until is None else round((until - now).total_seconds(), 3),
        "lowered": is_refused or (bucket.tuned_at is not None and bucket.rate < limits.rate),
        "reason": bucket.pause_reason,
        "rate": round(bucket.rate, 3),
        "full_rate": limits.rate,
        "max_rate": round(policy.top(bucket, limits, now), 3),
        "announced_rate": None if bucket.announced_rate is None else round(bucket.announced_rate, 3),
        "rate_reason": bucket.rate_reason,
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
