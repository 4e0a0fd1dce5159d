"""How reviews change the tables and what they count: events that change, go missing and return; sets."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import psycopg
import pytest

from sync_pipeline.core.gitlab_rows import (
    ApprovalRow,
    MergeRequestRow,
    Origin,
    Person,
    ReviewerRow,
    ReviewEventRow,
    ReviewSet,
)
from sync_pipeline.core.model import Counts, DeferredFetch, JobType, QuarantinedRow
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import merge_requests, quarantine, reviews
from sync_pipeline_tests.facts.gitlab_facts import (
    BIG,
    JO,
    KIM,
    START,
    event,
    later,
    merge_request,
    project,
    review,
)

REVIEWS = JobType.REVIEWS
_batches = count(1)


def store(
    conn: Connection, repo: int, *sets: ReviewSet, batch: int | None = None, updated_at: datetime = START
) -> Counts:
    with conn.transaction():
        return reviews.store_reviews(
            conn,
            repo_id=repo,
            batch_id=batch or next(_batches),
            sets=[replace(one, mr_updated_at=updated_at) for one in sets],
        )


def heads(*iids: int) -> list[MergeRequestRow]:
    return [merge_request(iid, head_sha=None) for iid in iids]


def everything(conn: Connection) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for query in (
        "SELECT *, xmin::text FROM scm.review_events ORDER BY id",
        "SELECT *, xmin::text FROM scm.mr_approvals ORDER BY approval_id",
        "SELECT *, xmin::text FROM scm.mr_reviewers ORDER BY reviewer_id",
    ):
        rows += conn.execute(query).fetchall()
    return rows


def one(conn: Connection, event_id: str) -> dict[str, Any]:
    row = conn.execute(
        "SELECT * FROM scm.review_events WHERE source_event_id = %s ORDER BY mr_iid", (event_id,)
    ).fetchone()
    assert row is not None
    return row


def missing(conn: Connection) -> set[str]:
    rows = conn.execute("SELECT source_event_id FROM scm.review_events WHERE missing_since IS NOT NULL")
    return {row["source_event_id"] for row in rows}


def open_set(conn: Connection, table: str) -> list[tuple[Any, ...]]:
    queries = {
        "approvals": "SELECT person, approved_at, time_source FROM scm.mr_approvals"
        " WHERE closed_at IS NULL ORDER BY person",
        "reviewers": "SELECT person, state, requested_at FROM scm.mr_reviewers"
        " WHERE closed_at IS NULL ORDER BY person",
    }
    return [tuple(row.values()) for row in conn.execute(queries[table])]


def test_the_same_reviews_again_change_nothing_at_all(database: Database) -> None:
    first = review(
        event(1),
        event(2, Origin.STATE),
        event(2, Origin.LABEL),
        approvals=(ApprovalRow(JO, START, "approval"),),
        reviewers=(ReviewerRow(KIM, "unreviewed", START),),
    )
    with database.connection() as conn:
        repo, other = project(conn), project(conn, 43)
        assert store(conn, repo, first, review(iid=2)) == Counts(read=3, inserted=3)
        before = everything(conn)
        twice = replace(first, events=(*first.events, *first.events))
        assert store(conn, repo, first, review(iid=2), twice) == Counts(read=3, unchanged=3)
        assert everything(conn) == before
        assert store(conn, other, first) == Counts(read=3, inserted=3)
        assert (reviews.count_events(conn, repo), reviews.count_events(conn, other)) == (3, 3)
        assert store(conn, repo) == Counts()


def test_every_field_is_stored_with_64_bit_numbers_and_nasty_texts(database: Database) -> None:
    row = event(
        BIG,
        iid=BIG,
        actor=Person(BIG, "jo\0", None),
        occurred_at=None,
        updated_at=None,
        body="half \udc00 and \0",
        is_internal=True,
        resolvable=True,
        resolved=True,
        resolved_by=KIM,
        resolved_at=later(3),
        position={"new_path": "a\\b\0", "new_line": BIG},
        details={"added": ["x\ud800"]},
        duplicate_of="state:9",
        flags=("control_characters",),
        raw={"body": "\0", "token": "secret"},
    )
    with database.connection() as conn:
        repo = project(conn)
        for expected in (Counts(read=1, inserted=1), Counts(read=1, unchanged=1)):
            assert store(conn, repo, review(row, iid=BIG)) == expected
        stored = one(conn, f"note:{BIG}")
        wanted = {
            "mr_id": f"{repo}:{BIG}",
            "reviewer_id": BIG,
            "reviewer_username": "jo\N{SYMBOL FOR NULL}",
            "ts": None,
            "body": "half \N{REPLACEMENT CHARACTER} and \N{SYMBOL FOR NULL}",
            "is_internal": True,
            "resolved_by_username": "kim",
            "resolved_at": later(3),
            "position": {"new_path": "a\\\\b\\u0000", "new_line": BIG},
            "details": {"added": ["x\\ud800"]},
            "duplicate_of": "state:9",
            "flags": ["control_characters", "escaped"],
            "raw": {"body": "\\u0000", "token": "[redacted]"},
        }
        assert {name: stored[name] for name in wanted} == wanted


def test_an_edit_is_an_update_and_an_older_copy_changes_nothing(database: Database) -> None:
    edited = event(1, body="edited", updated_at=later(5), raw={"body": "edited"})
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, review(event(1)))
        late = next(_batches)
        assert store(conn, repo, review(edited)) == Counts(read=1, updated=1)
        before = everything(conn)
        assert store(conn, repo, review(event(1))) == Counts(read=1, unchanged=1)
        late_set = review(replace(edited, body="late"), event(2))
        assert store(conn, repo, late_set, batch=late) == Counts(read=2, inserted=1, unchanged=1)
        assert everything(conn)[:1] == before
        # A later version of this program reads the same note better.
        assert store(conn, repo, review(replace(edited, kind="mention"), event(2))) == Counts(
            read=2, updated=1, unchanged=1
        )
        stored = one(conn, "note:1")
        assert [stored[c] for c in ("body", "event_type", "version")] == ["edited", "mention", 3]


def test_what_a_whole_reading_no_longer_shows_is_marked_until_it_returns(database: Database) -> None:
    everything_read = review(event(1), event(2), event(1, Origin.LABEL), event(2, Origin.STATE))
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, everything_read, review(*everything_read.events, iid=2))
        partly = review(event(1), whole=frozenset({Origin.NOTE}))
        assert store(conn, repo, partly) == Counts(read=2, updated=1, unchanged=1)
        assert missing(conn) == {"note:2"}
        assert store(conn, repo, partly) == Counts(read=1, unchanged=1)
        # An older copy of it does not bring its old text back, but itself.
        conn.execute("UPDATE scm.review_events SET body = 'newer', updated_at = %s", (later(9),))
        assert store(conn, repo, review(event(1), event(2), whole=frozenset())) == Counts(
            read=2, updated=1, unchanged=1
        )
        assert (missing(conn), one(conn, "note:2")["body"]) == (set(), "newer")
        assert store(conn, repo, review()) == Counts(read=4, updated=4)
        assert store(conn, repo, everything_read) == Counts(read=4, updated=4)
        assert (missing(conn), reviews.count_events(conn, repo)) == (set(), 8)


def test_what_cannot_be_read_or_is_an_earlier_look_does_not_go_missing(database: Database) -> None:
    bad = QuarantinedRow("1:note:2", "unreadable", "no text", b"{}")
    nameless = QuarantinedRow("1:label:None", "unreadable", "no id", b"{}")
    with database.connection() as conn:
        repo = project(conn)
        late = next(_batches)
        store(conn, repo, review(event(1), event(2), event(3, Origin.LABEL), event(4, Origin.STATE)))
        conn.execute("UPDATE scm.review_events SET batch_id = 0")
        store(conn, repo, review(event(1), quarantined=(bad, nameless)))
        assert missing(conn) == {"state:4"}
        assert store(conn, repo, review(approvals=(ApprovalRow(JO, None, None),)), batch=late) == Counts()
        assert (missing(conn), open_set(conn, "approvals")) == ({"state:4"}, [])


def test_approvals_are_a_set_of_which_what_is_taken_away_is_closed(database: Database) -> None:
    jo, kim = ApprovalRow(JO, later(1), "approval"), ApprovalRow(KIM, None, None)
    gone = Person(None, "gone\0", None)
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, review(approvals=(jo, kim)), review(iid=2, approvals=(jo,)))
        assert store(conn, repo, review(approvals=None)) == Counts()
        known = replace(kim, approved_at=later(2), time_source="note")
        assert store(conn, repo, review(approvals=(jo, known, known))) == Counts(read=1, updated=1)
        renamed = replace(kim, person=replace(KIM, username="kimberly"))
        assert store(conn, repo, review(approvals=(jo, renamed))) == Counts(read=1, updated=1)
        assert store(conn, repo, review(approvals=(renamed, ApprovalRow(gone, None, None)))) == Counts(
            read=2, updated=2
        )
        assert open_set(conn, "approvals") == [
            ("7", later(1), "approval"),  # of the other merge request
            ("8", later(2), "note"),
            ("gone\N{SYMBOL FOR NULL}", None, None),
        ]
        again = ApprovalRow(JO, later(9), "approval")
        assert store(conn, repo, review(approvals=(again,))) == Counts(read=3, updated=3)
        history = conn.execute(
            "SELECT person, approved_at, closed_at IS NULL AS open, username FROM scm.mr_approvals"
            " WHERE mr_iid = 1 ORDER BY approval_id"
        ).fetchall()
        assert [tuple(row.values()) for row in history] == [
            ("7", later(1), False, "jo"),
            ("8", later(2), False, "kimberly"),
            ("gone\N{SYMBOL FOR NULL}", None, False, "gone\N{SYMBOL FOR NULL}"),
            ("7", later(9), True, "jo"),
        ]


def test_reviewers_are_a_set_with_a_state_that_is_never_blanked(database: Database) -> None:
    asked = ReviewerRow(KIM, "unreviewed", later(1))
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, review())
        assert store(conn, repo, review(reviewers=(asked,))) == Counts(read=1, updated=1)
        done = ReviewerRow(KIM, "approved", None)
        assert store(conn, repo, review(reviewers=(done,))) == Counts(read=1, updated=1)
        assert store(conn, repo, review(reviewers=(replace(done, state=None),))) == Counts()
        assert store(conn, repo, review(reviewers=None)) == Counts()
        assert open_set(conn, "reviewers") == [("8", "approved", later(1))]
        assert store(conn, repo, review(reviewers=())) == Counts(read=1, updated=1)
        assert open_set(conn, "reviewers") == []


def test_a_review_is_complete_when_all_of_it_was_read_and_nothing_is_deferred(database: Database) -> None:
    deferred = DeferredFetch("1", "notes", "timed out")
    details = ["notes", "state_events", "label_events", "milestone_events", "approvals", "reviewers"]
    with database.connection() as conn:
        repo = project(conn)
        for key in ("1", "1:note:1", "1:note:2"):
            bad = QuarantinedRow(key, "unstorable", "refused", b"x")
            quarantine.quarantine(conn, repo_id=repo, job_type=REVIEWS, batch_id=1, rows=[bad])
        all_deferred = [DeferredFetch("1", detail, "x") for detail in details]
        quarantine.defer(conn, repo_id=repo, job_type=REVIEWS, fetches=all_deferred)
        half = review(event(1), whole=frozenset(Origin) - {Origin.NOTE}, reviewers=None, deferred=(deferred,))
        store(conn, repo, half, review(iid=2, approvals=None), review(iid=3, reviewers=None))
        assert {due.detail for due in quarantine.due(conn, repo, REVIEWS, 9)} == {"notes", "reviewers"}
        unresolved = "SELECT natural_key FROM scm.quarantine WHERE resolved_at IS NULL"
        assert conn.execute(unresolved).fetchall() == [{"natural_key": "1:note:2"}]
        assert reviews.reviews_as_of(conn, repo, heads(1, 2, 3, 4)) == {3: START}
        store(conn, repo, review(event(1)), review(iid=2), updated_at=later(7))
        assert reviews.reviews_as_of(conn, repo, heads(1, 2, 3)) == {1: later(7), 2: later(7), 3: START}
        store(conn, repo, review(event(1)), updated_at=later(2))
        assert reviews.reviews_as_of(conn, repo, heads(1)) == {1: later(7)}
        quarantine.defer(conn, repo_id=repo, job_type=REVIEWS, fetches=[deferred])
        assert reviews.reviews_as_of(conn, repo, heads(1)) == {}


def test_an_event_that_postgresql_refuses_leaves_nothing_behind(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            store(conn, repo, review(event(1), event(2, actor=Person(2**63, "jo", None))))
        assert everything(conn) == []
        assert reviews.reviews_as_of(conn, repo, heads(1)) == {}


def test_the_sweep_takes_open_merge_requests_whose_review_is_oldest(database: Database) -> None:
    day = timedelta(days=1)
    with database.connection() as conn:
        repo = project(conn)
        rows = [merge_request(n) for n in range(1, 6)] + [merge_request(6, state="merged")]
        merge_requests.store_merge_requests(conn, repo_id=repo, batch_id=next(_batches), rows=rows)
        store(conn, repo, *(review(iid=n) for n in (1, 2, 3, 6)))
        assert reviews.stale_reviews(conn, repo, day, 10) == []
        conn.execute(
            "UPDATE scm.mr_reviews SET read_at = now() - make_interval(hours => 50 - mr_iid::integer)"
        )
        conn.execute("UPDATE scm.mr_reviews SET read_at = now() WHERE mr_iid = 2")
        conn.execute("UPDATE scm.mrs SET first_seen_at = now() - interval '2 days' WHERE iid <> 5")
        assert reviews.stale_reviews(conn, repo, day, 10) == [1, 4, 3]
        assert reviews.stale_reviews(conn, repo, day, 1) == [1]


# --- Times in whole seconds -------------------------------------------------------------------------------


def in_seconds(number: int, **other: Any) -> ReviewEventRow:
    """A note as GraphQL gives it."""
    row = event(number, **other)
    times = {name: getattr(row, name) for name in ("occurred_at", "updated_at", "resolved_at")}
    cut = {name: time and time.replace(microsecond=0) for name, time in times.items()}
    return replace(row, time_precision="second", **cut)


def seen(*events: ReviewEventRow) -> ReviewSet:
    """A usable review: nothing of it is complete."""
    return replace(review(*events), whole=frozenset(), approvals=None, reviewers=None)


def stored_notes(conn: Connection, repo: int) -> dict[str, Any]:
    return dict(reviews.stored_reviews(conn, repo, [merge_request(1)])[1].notes)


def test_a_note_in_seconds_that_is_stored_in_milliseconds_is_the_same(database: Database) -> None:
    precise = START.replace(microsecond=123_000)
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, review(event(1, occurred_at=precise, updated_at=precise)))
        notes = stored_notes(conn, repo)
        assert reviews.changed_notes([in_seconds(1)], notes) == ()
        edited = in_seconds(1, body="Edited", updated_at=later(1))
        (changed,) = reviews.changed_notes([edited], notes)
        assert changed.occurred_at == precise


def test_seconds_never_replace_milliseconds_of_the_same_second(database: Database) -> None:
    precise = START.replace(microsecond=123_000)
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, review(event(1, occurred_at=precise, updated_at=precise)))
        before = everything(conn)
        store(conn, repo, seen(in_seconds(1, body="Edited within the second")))
        assert everything(conn) == before
        store(conn, repo, seen(in_seconds(1, body="Edited later", updated_at=later(1))))
        (row,) = conn.execute("SELECT body, time_precision FROM scm.review_events").fetchall()
        assert tuple(row.values()) == ("Edited later", "second")
        # Milliseconds replace seconds, also of equal content.
        store(conn, repo, review(event(1, body="Edited later", updated_at=later(1))))
        (row,) = conn.execute("SELECT body, time_precision FROM scm.review_events").fetchall()
        assert tuple(row.values()) == ("Edited later", "millisecond")


def test_what_graphql_does_not_show_is_neither_missing_nor_closed(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        approved = (ApprovalRow(JO, START, "approval"),)
        asked = (ReviewerRow(KIM, "unreviewed", START),)
        store(conn, repo, replace(review(event(1)), approvals=approved, reviewers=asked))
        shown = replace(
            seen(in_seconds(2)),
            approvals=(ApprovalRow(KIM, None, None), ApprovalRow(JO, later(9), "note")),
            reviewers=(),
            seen=frozenset({"approvals", "reviewers"}),
        )
        store(conn, repo, shown)
        query = "SELECT source_event_id FROM scm.review_events WHERE missing_since IS NULL ORDER BY 1"
        assert [row["source_event_id"] for row in conn.execute(query)] == ["note:1", "note:2"]
        open_ones = "SELECT username, approved_at FROM scm.mr_approvals WHERE closed_at IS NULL ORDER BY 1"
        found = {row["username"]: row["approved_at"] for row in conn.execute(open_ones)}
        assert found == {JO.username: START, KIM.username: None}
        assert conn.execute("SELECT 1 FROM scm.mr_reviewers WHERE closed_at IS NULL").rowcount == 1
        (row,) = conn.execute("SELECT whole FROM scm.mr_reviews").fetchall()
        assert row["whole"] == []


def test_a_partial_reading_adds_to_the_reading_of_the_same_update(database: Database) -> None:
    with database.connection() as conn:
        repo = project(conn)
        store(conn, repo, replace(review(), approvals=None, reviewers=None, whole=frozenset({Origin.NOTE})))
        part = replace(
            review(), approvals=None, reviewers=None, whole=frozenset({Origin.LABEL}), partial=True
        )
        store(conn, repo, part)
        whole = "SELECT whole FROM scm.mr_reviews"
        assert [row["whole"] for row in conn.execute(whole)] == [["label", "note"]]
        # That of another update starts anew.
        store(conn, repo, part, updated_at=later(5))
        assert [row["whole"] for row in conn.execute(whole)] == [["label"]]
