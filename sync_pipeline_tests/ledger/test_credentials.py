"""A refused token is remembered by its fingerprint until a server accepts it."""

from __future__ import annotations

from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import credentials


def test_a_stop_keeps_its_first_time_and_goes_when_the_token_is_accepted(database: Database) -> None:
    with database.connection() as conn:
        credentials.stop(conn, "gitlab.example.com", "0011", "401: renew the token")
        (first,) = credentials.stops(conn)
        credentials.stop(conn, "gitlab.example.com", "0011", "x" * 5000)
        credentials.stop(conn, "gitlab.example.com", "2233", "another token, refused as well")
        again, other = credentials.stops(conn)
        assert (again.stopped_at, len(again.reason)) == (first.stopped_at, 2000)
        assert again.last_seen_at > first.last_seen_at
        assert other.fingerprint == "2233"

        assert credentials.clear(conn, "gitlab.example.com", "0011")
        assert not credentials.clear(conn, "gitlab.example.com", "0011")
        assert [stop.fingerprint for stop in credentials.stops(conn)] == ["2233"]
