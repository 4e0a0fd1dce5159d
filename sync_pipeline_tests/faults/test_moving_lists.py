"""Lists that move, spoil or lie while they are read: every row arrives, and what cannot is named."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest

from sync_pipeline.core.model import JobType, Mode, TimeWindow
from sync_pipeline.ledger import watermarks
from sync_pipeline.settings import GitLabServer
from sync_pipeline.sources.gitlab.transport import Instance
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sync.conftest import START, Forge
from sync_pipeline_tests.sync.test_merge_request_trouble import due_now, make, unread_for_days

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_STORED = "SELECT iid, title FROM scm.mrs WHERE repo_id = %(repo)s ORDER BY iid"
_READ = "SELECT mr_iid FROM scm.mr_reviews WHERE repo_id = %(repo)s ORDER BY mr_iid"
_QUARANTINED = """
SELECT job_type, natural_key, reason FROM scm.quarantine WHERE resolved_at IS NULL
 ORDER BY job_type, natural_key
"""
_DEFERRED = """
SELECT job_type, natural_key, detail FROM scm.deferred_fetches WHERE resolved_at IS NULL
 ORDER BY job_type, natural_key, detail
"""


def titles(forge: Forge) -> list[str]:
    return [row["title"] for row in forge.rows(_STORED)]


def spoil(forge: Forge, *numbers: int, where: str = r"merge_requests") -> None:
    """Pages and answers with these merge requests fail; their titles are their numbers."""
    some = b"|".join(b"%d" % number for number in numbers)
    forge.gitlab.faults.add(where, faults.Poison(rb'"title":"(%s)"' % some), times=None)


# What the server still gives of the bad row: itself, at least its number, or nothing.
_GIVES = {"alone": r"merge_requests\?(?!.*view=simple)", "number": r"merge_requests(/|\?(?!.*view=simple))"}
_GIVES["nothing"] = "merge_requests"


@pytest.mark.parametrize(
    ("bad", "gives"),
    [((0,), "nothing"), ((12, 13), "alone"), ((12, 13), "number"), ((12, 13), "nothing"), ((23,), "nothing")],
    ids=str,
)
def test_a_row_that_spoils_every_page_it_is_on_holds_up_no_other(
    forge: Forge, bad: tuple[int, ...], gives: str
) -> None:
    made = make(forge, 24)
    spoil(forge, *bad, where=_GIVES[gives])
    reports = forge.both()
    assert all(report.succeeded for report in reports), [report.error for report in reports]
    left = [] if gives == "alone" else list(bad)
    assert titles(forge) == [str(n) for n in range(24) if n not in left]
    keys = {r["natural_key"] for r in forge.rows(_QUARANTINED)}
    assert {r["natural_key"] for r in forge.rows(_DEFERRED)} == keys
    if gives == "number":
        assert keys == {str(n + 1) for n in bad}
    else:
        assert len(keys) == (gives == "nothing")
    assert {r["reason"] for r in forge.rows(_QUARANTINED)} <= {"unlisted"}
    for job_type in (MR, REVIEWS):
        assert watermarks.get(forge.conn, forge.repo_id, job_type).watermark is not None
    # What happens meanwhile arrives, visit for visit.
    for number in range(2):
        forge.tick(minutes=1)
        forge.gitlab.edit(made[20], title=f"Edited {number}")
        forge.tick(minutes=2)
        reports = forge.both()
        assert all(report.succeeded for report in reports), [report.error for report in reports]
        assert f"Edited {number}" in titles(forge)
    forge.gitlab.faults.clear()
    for _ in range(2):
        due_now(forge)
        forge.tick()
        assert all(report.succeeded for report in forge.both())
    assert forge.rows(_DEFERRED) == []
    assert forge.rows(_QUARANTINED) == []
    assert len(titles(forge)) == 24
    assert [r["mr_iid"] for r in forge.rows(_READ)] == list(range(1, 25))
    # What came by itself is no other version than what comes in the list.
    for report in forge.both(Mode.BACKFILL, window=("1990-01-01", "2024-05-07"), reread=True):
        assert report.counts.changed == 0


class OfAWeakLink(Readers):
    """Readers that wait half a second for the rest of an answer, and request once."""

    def connect(self, server: GitLabServer) -> Instance:
        return Instance(server.url, server.token, sleep=lambda _: None, read_timeout=0.5, attempts=1)


def test_a_link_on_which_long_answers_stall_brings_row_after_row(forge: Forge) -> None:
    """Not even pages of ten arrive, but rows do, so each run makes progress."""
    made = make(forge, 24)
    for number in range(14):
        forge.gitlab.comment(made[0], forge.other, f"Comment {number}. " + 40 * "x")
    forge.tick()
    stall = forge.gitlab.faults.add("", faults.Stall(3000), times=None)
    forge.syncer = Syncer(forge.database, forge.settings, OfAWeakLink(forge.settings))
    for report in (*forge.both(), forge.commits()):
        assert report.succeeded, report.error
    assert stall.struck
    assert titles(forge) == [str(n) for n in range(24)]
    comments = "SELECT FROM scm.review_events WHERE event_type = 'comment' AND missing_since IS NULL"
    assert len(forge.rows(comments)) == 14
    assert forge.rows(_QUARANTINED) == forge.rows(_DEFERRED) == []
    # It is not a time-out for each page.
    forge.asked()
    forge.tick()
    assert all(report.traffic.timeouts <= 4 for report in forge.both())


def test_a_server_whose_answers_all_stall_ends_the_job_soon(forge: Forge) -> None:
    make(forge, 3)
    forge.gitlab.faults.add(r"merge_requests\?", faults.Stall(10), times=None)
    forge.syncer = Syncer(forge.database, forge.settings, OfAWeakLink(forge.settings))
    for report in forge.both():
        assert (str(report.job_status), report.error_code) == ("failed", "timeout")
    assert forge.rows(_QUARANTINED) == forge.rows(_DEFERRED) == []
    assert len(forge.asked("merge_requests")) <= 6


def test_the_daily_look_gets_round_a_bad_row_too(forge: Forge) -> None:
    make(forge, 12)
    forge.both()
    unread_for_days(forge)
    spoil(forge, 5)
    forge.tick()
    reports = forge.both()
    assert all(report.succeeded for report in reports), [report.error for report in reports]
    unread = "SELECT iid FROM scm.mrs WHERE read_at < now() - interval '1 day'"
    assert forge.rows(unread) == []  # it waits for the next day
    assert {tuple(r.values()) for r in forge.rows(_QUARANTINED)} == {
        ("merge_requests", "6", "unlisted"),
        ("reviews", "6", "unlisted"),
    }
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    forge.both()
    assert forge.rows(_QUARANTINED) == forge.rows(_DEFERRED) == []


def test_rows_that_move_while_a_page_is_read_in_pieces_arrive(forge: Forge) -> None:
    made = make(forge, 45)
    spoil(forge, 7)
    for step in range(4):
        edit = faults.Do(partial(forge.gitlab.edit, made[step], title=f"Moved {step}"))
        forge.gitlab.faults.rules.insert(0, faults.Rule(r"per_page=10&", edit, times=1, skip=step * 2 + 1))
    forge.other_settings(overlap_seconds=0)
    for _ in range(3):
        reports = forge.both()
        assert all(report.succeeded for report in reports), [report.error for report in reports]
        forge.tick()
    assert titles(forge) == [f"Moved {n}" if n < 4 else str(n) for n in range(45) if n != 7]


@pytest.mark.parametrize("counts", [True, False])
def test_merge_requests_of_one_time_arrive_in_whatever_order_they_come(forge: Forge, counts: bool) -> None:
    forge.gitlab.behaviour.unstable_ties = True
    forge.gitlab.behaviour.total_limit = 10_000 if counts else 0
    made = []
    for number in range(105):
        forge.tick(seconds=1)
        made.append(
            forge.gitlab.open_merge_request(forge.project, title=f"{number}", source="x", author=forge.user)
        )
    for request in made:
        forge.gitlab.touch(request, START)
    forge.tick()
    forge.gitlab.edit(made[7], title="Newer")
    forge.tick()
    for _ in range(2):
        report = forge.syncer.run(forge.request(MR))
        assert report.succeeded, report.error
        assert titles(forge) == [str(n) if n != 7 else "Newer" for n in range(105)]
        forge.tick()


def test_a_list_that_never_ends_is_an_error_and_covers_nothing(forge: Forge) -> None:
    make(forge, 2)
    endless = faults.json_answer(200, [], X_Next_Page="2")
    forge.gitlab.faults.add(r"merge_requests\?", endless, times=None)
    for report in forge.both():
        assert (str(report.job_status), report.error_code) == ("failed", "paging_loop")
    assert watermarks.get(forge.conn, forge.repo_id, MR).covered == ()


def test_a_page_that_comes_under_every_number_is_deferred_for_its_own_merge_request(forge: Forge) -> None:
    bad, good = make(forge, 2)
    for request in (bad, good):
        forge.gitlab.comment(request, forge.other, "Hello")
    forge.tick()
    note = {"id": 1, "body": "Hello", "system": False}
    thread = {"id": "a" * 40, "individual_note": True, "notes": [note]}
    where = rf"merge_requests/{bad.iid}/discussions\?"
    for number in range(2, 6):
        forge.gitlab.faults.add(where, faults.json_answer(200, [thread], X_Next_Page=str(number)))
    reports = forge.both()
    assert all(report.succeeded for report in reports), [report.error for report in reports]
    assert [tuple(r.values()) for r in forge.rows(_DEFERRED)] == [("reviews", str(bad.iid), "notes")]
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    forge.both()
    assert forge.rows(_DEFERRED) == []
    there = "SELECT FROM scm.review_events WHERE event_type = 'comment' AND missing_since IS NULL"
    assert len(forge.rows(there)) == 2


@pytest.mark.parametrize("what", ["merge_requests", "commits"])
def test_a_list_that_is_the_same_page_for_ever_is_an_error_and_not_covered(forge: Forge, what: str) -> None:
    (request,) = make(forge, 1)
    tip = forge.git.resolve("refs/heads/main")
    row = {"id": request.id, "iid": request.iid, "project_id": 1, "state": "opened"}
    rows = {"merge_requests": row | {"updated_at": "2024-05-06T12:00:01.000Z"}, "commits": {"id": tip}}
    again = faults.json_answer(200, [rows[what]], X_Next_Page="2")
    forge.gitlab.faults.add(rf"/{what}\?", again, times=None)
    for report in forge.both() if what == "merge_requests" else [forge.commits()]:
        assert (str(report.job_status), report.error_code) == ("failed", "paging_loop")
    job_type = MR if what == "merge_requests" else JobType.COMMITS
    # What comes before the time at which the list begins to repeat itself is whole.
    for one in watermarks.get(forge.conn, forge.repo_id, job_type).covered:
        assert isinstance(one, TimeWindow)
        assert one.until < datetime(2024, 5, 6, 12, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("page", [r"/discussions\?", r"/resource_label_events\?", r"/notes\?|/discussions\?"])
def test_one_note_or_event_that_cannot_be_given_hides_no_other(forge: Forge, page: str) -> None:
    (request,) = make(forge, 1)
    for number in range(14):
        forge.gitlab.comment(request, forge.other, f"Comment {number}.")
        forge.gitlab.add_label(forge.project, request, forge.user, f"label-{number}.")
    forge.tick()
    forge.gitlab.faults.add(page, faults.Poison(rb"(Comment |label-)6\."), times=None)
    reports = forge.both()
    assert all(report.succeeded for report in reports), [report.error for report in reports]
    kinds = "SELECT event_type, count(*) AS n FROM scm.review_events GROUP BY 1"
    counted = {r["event_type"]: r["n"] for r in forge.rows(kinds)}
    detail = "label_events" if "label" in page else "notes"
    comments = 13 if "/notes" in page else 14
    assert counted == {"comment": comments, "label": 13 if detail == "label_events" else 14}
    deferred = [tuple(r.values()) for r in forge.rows(_DEFERRED)]
    assert deferred == ([("reviews", "1", detail)] if 13 in counted.values() else [])
    forge.gitlab.faults.clear()
    due_now(forge)
    forge.tick()
    forge.both()
    assert {r["event_type"]: r["n"] for r in forge.rows(kinds)} == {"comment": 14, "label": 14}
    assert forge.rows(_DEFERRED) == []
