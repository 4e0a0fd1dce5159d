"""When a visit that changed nothing moves the watermark.

Belongs here: the rule that keeps idle repositories from writing an event of coverage at every visit. Their
freshness is the time of the visit (verified at), which costs no event.
"""

from __future__ import annotations

from datetime import datetime, timedelta

_LONGEST = timedelta(hours=1)


def is_worth_an_event(watermark: object, until: datetime) -> bool:
    """True if coverage that ends at ``watermark`` is extended to ``until`` although no row changed.

    That is so the first time, once an hour, and when a day (UTC) closes. Both times are the source's clock.
    """
    if not isinstance(watermark, datetime):
        return True
    return until - watermark >= _LONGEST or (until > watermark and until.date() != watermark.date())
