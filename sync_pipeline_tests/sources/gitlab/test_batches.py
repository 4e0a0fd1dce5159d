"""Merge requests in batches by GraphQL: the reviews of REST, and a step down where that is not sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sync_pipeline.core.errors import AccessDenied, RowUnreadable, Transient
from sync_pipeline.core.gitlab_rows import MergeRequestRow, Origin, Person, ReviewEventRow, ReviewSet
from sync_pipeline.core.model import TimeWindow
from sync_pipeline.sources.gitlab import graphql
from sync_pipeline.sources.gitlab.batches import (
    MAX_SIZE,
    BatchReader,
    BatchReview,
    is_of_graphql,
    note_of,
    number_of,
)
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader
from sync_pipeline.sources.gitlab.reviews import ReviewReader
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.records import MergeRequest, Project
from sync_pipeline_tests.sources.gitlab.conftest import Site

ALL = TimeWindow(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
GRAPHQL = "/api/graphql"


def rows(site: Site, project: Project | None = None) -> list[MergeRequestRow]:
    reader = MergeRequestReader(site.client, (project or site.project).id)
    return [row for page in reader.read(ALL) for row in page.rows]


def reader_of(site: Site, project: Project | None = None, *, parallel: int = 2) -> BatchReader:
    project = project or site.project
    return BatchReader(site.client, project.id, project.full_path, parallel=parallel)


def queries(site: Site) -> list[int]:
    """The number of merge requests of each query so far."""
    return [len(one.iids) for one in site.gitlab.journal.matching(GRAPHQL)]


@pytest.fixture
def opened(site: Site) -> MergeRequest:
    """A merge request of ``feature`` with one commit."""
    site.git.commit("main", "One\n", files={"a": "1\n"})
    main = site.git.resolve("main")
    assert main is not None
    site.git.commit("feature", "Two\n", files={"b": "2\n"}, parents=[main])
    site.tick()
    return site.gitlab.open_merge_request(site.project, author=site.user, title="Add b")


def only(site: Site) -> BatchReview:
    (row,) = rows(site)
    reader = reader_of(site)
    (found,) = reader.read([row]).values()
    assert reader.stepped_down is None
    return found


def _cut(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(microsecond=0)


def in_seconds(event: ReviewEventRow) -> ReviewEventRow:
    """A note of REST without that which GraphQL does not have."""
    position = event.position and {k: v for k, v in event.position.items() if k != "line_range"}
    return replace(
        event,
        occurred_at=_cut(event.occurred_at),
        updated_at=_cut(event.updated_at),
        resolved_at=_cut(event.resolved_at),
        position=position,
        time_precision="second",
        raw={},
    )


def as_by_rest(site: Site, row: MergeRequestRow) -> list[ReviewEventRow]:
    (found,) = ReviewReader(site.client, site.project.id).read([row])
    notes = [one for one in found.events if one.origin is Origin.NOTE]
    return sorted(map(in_seconds, notes), key=lambda one: (str(one.occurred_at), one.number))


# --- The rows --------------------------------------------------------------------------------------------


def test_notes_are_those_of_rest_in_whole_seconds(site: Site, opened: MergeRequest) -> None:
    gitlab = site.gitlab
    first = gitlab.comment(opened, site.user, "A thread", thread=True)
    gitlab.comment(opened, site.other, "Alone")
    site.tick(milliseconds=300)
    gitlab.comment(opened, site.other, "A reply", reply_to=first)
    gitlab.resolve(opened, first, site.other)
    refs = opened.detail["diff_refs"]
    line = {"position_type": "text", "old_path": "b", "new_path": "b", "old_line": None, "new_line": 1}
    gitlab.comment(opened, site.user, "On a line", position={**refs, **line})
    gitlab.comment(opened, site.user, "Hidden", internal=True)
    gitlab.request_review(opened, site.user, site.other)
    gitlab.approve(opened, site.other)
    gitlab.system_note(opened, site.user, "changed title from **{-a-}** to **{+b+}**", gitlab.clock.now())
    site.tick()
    edited = gitlab.comment(opened, site.user, "Later")
    gitlab.edit_note(opened, edited, "Edited")
    (row,) = rows(site)
    found = only(site).review
    assert [replace(one, raw={}) for one in found.events] == as_by_rest(site, row)
    assert found.whole == {Origin.NOTE}
    assert {one.kind for one in found.events} >= {"comment", "code_comment", "approve", "title"}
    assert [one.body for one in found.events if one.is_reply] == ["A reply"]
    assert all(is_of_graphql(one.raw) for one in found.events)
    assert (found.mr_updated_at, found.mr_id) == (row.updated_at, row.mr_id)
    assert found.notes_hidden == 0


def test_approvals_have_the_time_of_their_note_and_reviewers_their_state(
    site: Site, opened: MergeRequest
) -> None:
    site.gitlab.request_review(opened, site.user, site.other)
    site.tick()
    site.gitlab.approve(opened, site.other)
    found = only(site).review
    other = Person(site.other["id"], site.other["username"], site.other["name"])
    assert found.approvals is not None
    assert found.reviewers is not None
    (approval,), (reviewer,) = found.approvals, found.reviewers
    assert (approval.person, approval.time_source) == (other, "note")
    assert approval.approved_at == site.gitlab.clock.now().replace(microsecond=0)
    assert (reviewer.person, reviewer.state, reviewer.requested_at) == (other, "approved", None)


def test_an_approval_that_was_taken_back_is_none(site: Site, opened: MergeRequest) -> None:
    site.gitlab.approve(opened, site.other)
    site.gitlab.unapprove(opened, site.other)
    assert only(site).review.approvals == ()


def test_commits_are_newest_first_and_the_newest_version_is_named(site: Site, opened: MergeRequest) -> None:
    site.git.commit("feature", "Three\n", files={"c": "3\n"})
    site.gitlab.push(site.project, "feature")
    (row,) = rows(site)
    found = only(site)
    whole, _ = MergeRequestReader(site.client, site.project.id).settle(1)
    assert whole.commits is not None
    assert found.commit_shas == tuple(one.sha for one in whole.commits)
    assert found.commit_shas[0] == row.head_sha
    assert found.diff_refs == (whole.base_sha, whole.start_sha, row.head_sha)


def test_commits_of_another_head_are_not_those_of_the_row(site: Site, opened: MergeRequest) -> None:
    (row,) = rows(site)
    site.git.commit("feature", "Three\n", files={"c": "3\n"})
    site.gitlab.push(site.project, "feature")
    (found,) = reader_of(site).read([row]).values()
    assert found.commit_shas is None


def test_notes_on_commits_are_left_out(site: Site, opened: MergeRequest) -> None:
    site.gitlab.comment(opened, site.user, "Mine")
    site.gitlab.comment_on_commit(site.project, site.git.resolve("feature") or "", site.user, "On the commit")
    assert [one.body for one in only(site).review.events] == ["Mine"]
    assert "On the commit" in str(site.client.query(graphql.text_of(graphql.BATCH), variables(site)).data)


def variables(site: Site) -> dict[str, Any]:
    return {"path": site.project.full_path, "iids": ["1"], "count": 50}


def test_a_long_review_is_read_to_its_end(site: Site, opened: MergeRequest) -> None:
    for number in range(130):
        site.gitlab.comment(opened, site.user, f"Note {number}")
    (row,) = rows(site)
    found = only(site).review
    assert [one.body for one in found.events] == [f"Note {number}" for number in range(130)]
    assert site.gitlab.journal.count("reviews iids=1") == 1
    assert site.gitlab.journal.count("notes iids=1") == 1
    assert [replace(one, raw={}) for one in found.events] == as_by_rest(site, row)


def test_a_long_list_of_commits_is_read_to_its_end(site: Site, opened: MergeRequest) -> None:
    version = opened.versions[-1]
    (commit,) = site.git.commits([opened.row["sha"]])
    listed = [commit["id"], *(f"{number:040x}" for number in range(129))]
    opened.commits[version["id"]] = [commit | {"id": sha} for sha in listed]
    assert only(site).commit_shas == tuple(listed)
    assert site.gitlab.journal.count("commits iids=1") == 1


# --- Requests --------------------------------------------------------------------------------------------


@pytest.fixture
def hundred(site: Site) -> Project:
    """A project with a hundred merge requests that have notes."""
    return generate(site.gitlab, site.group, merge_requests=100, notes=3)


def test_a_page_of_a_hundred_takes_two_requests(site: Site, hundred: Project) -> None:
    listed = rows(site, hundred)
    found = reader_of(site, hundred).read(listed)
    assert found.keys() == {row.iid for row in listed}
    assert queries(site) == [MAX_SIZE, MAX_SIZE]


def test_queries_stay_below_the_limits_of_every_server(site: Site, opened: MergeRequest) -> None:
    more = variables(site) | {"after": None}
    for query in (graphql.BATCH, graphql.MORE_NOTES, graphql.MORE_COMMITS):
        text = graphql.text_of(query)
        measured = text.replace("currentUser { id }", "currentUser { id } queryComplexity { score }", 1)
        sent = variables(site) if query == graphql.BATCH else more | {"count": graphql.PAGE}
        data = site.client.query(measured, sent).data
        assert "errors" not in data
        assert data["data"]["queryComplexity"]["score"] <= 200


def test_a_time_limit_halves_the_queries_until_they_work(site: Site, hundred: Project) -> None:
    site.gitlab.behaviour.graphql.max_rows = 12
    listed = rows(site, hundred)
    reader = reader_of(site, hundred, parallel=1)
    assert reader.read(listed).keys() == {row.iid for row in listed}
    assert reader.stepped_down is None
    sizes = queries(site)
    assert sizes[:3] == [50, 25, 12]
    assert len(sizes) < 14


def test_queries_grow_again_after_the_trouble(site: Site, hundred: Project) -> None:
    reader = reader_of(site, hundred, parallel=1)
    site.gitlab.faults.add(GRAPHQL, faults.graphql_error(), times=3)
    listed = rows(site, hundred)
    reader.read(listed)
    assert queries(site)[:4] == [50, 25, 12, 6]
    reader.read(listed)
    assert 12 <= queries(site)[-2] < MAX_SIZE


def test_a_lower_limit_of_complexity_is_met_with_fewer_notes(site: Site, hundred: Project) -> None:
    cheap = graphql.text_of(graphql.BATCH).replace("{ id }", "{ id } queryComplexity { score }", 1)
    listed = rows(site, hundred)
    sent = {"path": hundred.full_path, "iids": ["1"], "count": 12}
    score = site.client.query(cheap, sent).data["data"]["queryComplexity"]["score"]
    site.gitlab.behaviour.graphql.max_complexity = score
    reader = reader_of(site, hundred, parallel=1)
    assert reader.read(listed).keys() == {row.iid for row in listed}
    assert reader.stepped_down is None


def test_one_merge_request_that_always_fails_is_left_out_alone(site: Site, hundred: Project) -> None:
    poisoned = hundred.merge_requests[37]
    site.gitlab.comment(poisoned, site.user, "Poison")
    site.gitlab.faults.add(GRAPHQL, faults.Poison(b"Poison"), times=None)
    listed = rows(site, hundred)
    reader = reader_of(site, hundred)
    assert reader.read(listed).keys() == {row.iid for row in listed} - {37}
    assert reader.stepped_down is None


# --- Stepping down ---------------------------------------------------------------------------------------


def replaced(site: Site, project: Project) -> None:
    project.id += 10**6


def no_graphql(site: Site, project: Project) -> None:
    site.gitlab.behaviour.graphql.enabled = False


def too_little(site: Site, project: Project) -> None:
    site.gitlab.behaviour.graphql.max_complexity = 5


def broken(site: Site, project: Project) -> None:
    site.gitlab.faults.add(GRAPHQL, faults.Truncated(announced=True), times=None)


def login_page(site: Site, project: Project) -> None:
    page = faults.CannedResponse(200, faults.LOGIN_PAGE, "text/html")
    site.gitlab.faults.add(GRAPHQL, page, times=None)


def lost_header(site: Site, project: Project) -> None:
    def edit(body: bytes) -> bytes:
        user = b'"currentUser":{"id":"gid://gitlab/User/%d"}' % site.user["id"]
        assert user in body
        return body.replace(user, b'"currentUser":null')

    site.gitlab.faults.add(GRAPHQL, faults.Edited(edit), times=None)


def renamed(site: Site, project: Project) -> None:
    site.gitlab.rename_project(project, "elsewhere")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (no_graphql, "404"),
        (too_little, "complexity"),
        (broken, "queries for one merge request fail too"),
        (login_page, "text/html"),
        (lost_header, "as if there was no token"),
        (renamed, "does not show the project"),
    ],
)
def test_a_server_that_cannot_be_used_is_left_to_rest(
    site: Site, hundred: Project, trouble: Callable[[Site, Project], None], reason: str
) -> None:
    reader = reader_of(site, hundred)
    listed = rows(site, hundred)
    trouble(site, hundred)
    assert reader.read(listed) == {}
    assert reader.stepped_down is not None
    assert reader.stepped_down.startswith("GraphQL is not used: ")
    assert reason in reader.stepped_down
    assert "\n" not in reader.stepped_down
    asked = len(queries(site))
    assert reader.read(listed) == {}
    assert len(queries(site)) == asked


def test_another_project_under_the_path_gives_no_row(site: Site, hundred: Project) -> None:
    reader = BatchReader(site.client, hundred.id + 1, hundred.full_path, parallel=2)
    assert reader.read(rows(site, hundred)) == {}
    assert reader.stepped_down is not None
    assert f"is project {hundred.id} there" in reader.stepped_down


def test_a_refusal_half_way_keeps_what_came(site: Site, hundred: Project) -> None:
    site.gitlab.faults.add(GRAPHQL, faults.graphql_error("No"), times=None, skip=1)
    reader = reader_of(site, hundred, parallel=1)
    assert len(reader.read(rows(site, hundred))) == MAX_SIZE
    assert reader.stepped_down == "GraphQL is not used: No"


def test_a_rejected_token_and_a_lasting_rate_limit_are_raised(site: Site, opened: MergeRequest) -> None:
    listed = rows(site)
    limited = faults.CannedResponse(429, b"Retry later", "text/plain", {"Retry-After": "900"})
    site.gitlab.faults.add(GRAPHQL, limited)
    reader = reader_of(site)
    with pytest.raises(Transient) as caught:
        reader.read(listed)
    assert caught.value.code == "rate_limit"
    site.gitlab.faults.add(GRAPHQL, faults.graphql_error("Invalid token", 401))
    with pytest.raises(AccessDenied):
        reader.read(listed)
    assert reader.stepped_down is None


# --- Answers in part -------------------------------------------------------------------------------------


def test_a_merge_request_that_is_null_or_missing_is_only_left_out(site: Site, hundred: Project) -> None:
    site.gitlab.behaviour.graphql.null_rows = {7}
    listed = rows(site, hundred)
    unknown = replace(listed[0], iid=5000, mr_id=1)
    reader = reader_of(site, hundred)
    assert reader.read([*listed, unknown]).keys() == {row.iid for row in listed} - {7}
    assert reader.stepped_down is None


def test_another_merge_request_with_the_number_is_left_out(site: Site, opened: MergeRequest) -> None:
    (row,) = rows(site)
    assert reader_of(site).read([replace(row, mr_id=row.mr_id + 1)]) == {}


@pytest.mark.parametrize("kind", ["null_fields", "failing_fields"])
def test_a_part_that_fails_is_missing_alone(site: Site, hundred: Project, kind: str) -> None:
    trouble = {1: ("notes",), 2: ("approvedBy",), 3: ("reviewers",), 4: ("commits",), 5: ("diffRefs",)}
    setattr(site.gitlab.behaviour.graphql, kind, trouble)
    listed = rows(site, hundred)
    found = reader_of(site, hundred).read(listed)
    assert 6 in found
    whole: Mapping[int, ReviewSet] = {iid: one.review for iid, one in found.items()}
    assert found.keys() >= {2, 3, 4, 5}
    assert 1 not in found
    assert [iid for iid, one in whole.items() if one.approvals is None] == [2]
    assert [iid for iid, one in whole.items() if one.reviewers is None] == [3]
    assert 4 in [iid for iid, one in found.items() if one.commit_shas is None]
    assert 5 in [iid for iid, one in found.items() if one.diff_refs is None]


def test_a_review_whose_next_page_fails_is_left_out(site: Site, opened: MergeRequest) -> None:
    for number in range(60):
        site.gitlab.comment(opened, site.user, f"Note {number}")
    site.gitlab.faults.add("notes iids=1", faults.graphql_error(), times=None)
    reader = reader_of(site)
    assert reader.read(rows(site)) == {}
    assert reader.stepped_down is None


def test_a_server_without_new_fields_gives_the_rest(site: Site, opened: MergeRequest) -> None:
    site.gitlab.behaviour.graphql.missing_fields = frozenset(
        {"MergeRequest.reviewers", "MergeRequest.commits", "MergeRequest.diffRefs"}
    )
    site.gitlab.comment(opened, site.user, "Why?")
    found = only(site)
    assert [one.body for one in found.review.events] == ["Why?"]
    assert (found.review.reviewers, found.commit_shas, found.diff_refs) == (None, None, None)
    # The next job of the process knows it.
    only(site)
    assert queries(site) == [1, 1, 1]


def test_a_server_that_cannot_tell_internal_notes_is_left_to_rest(site: Site, opened: MergeRequest) -> None:
    site.gitlab.behaviour.graphql.missing_fields = frozenset({"Note.internal"})
    reader = reader_of(site)
    assert reader.read(rows(site)) == {}
    assert reader.stepped_down == "GraphQL is not used: the server does not know confidential"


# --- Single notes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("gid://gitlab/Note/9001", 9001),
        ("gid://gitlab/DiffNote/9", 9),
        ("9", 9),
        (9, 9),
        ("gid://gitlab/Note/", None),
        ("gid://gitlab/Note/x", None),
        (f"gid://gitlab/Note/{10**30}", None),
        (None, None),
    ],
)
def test_the_number_of_a_global_id(text: object, number: int | None) -> None:
    assert number_of(text) == number


def test_a_note_in_the_shape_of_rest_is_read_as_before() -> None:
    raw = {"id": 7, "body": "x", "created_at": "2024-05-06T12:00:00.123Z", "resolvable": False}
    row = note_of(raw, 1, "abc", True)
    assert (row.number, row.time_precision, row.is_reply) == (7, "millisecond", True)
    assert row.raw is raw


def test_a_note_that_cannot_be_resolved_is_neither_resolved_nor_open() -> None:
    raw = {"id": "gid://gitlab/Note/7", "resolvable": False, "resolved": False}
    assert note_of(raw, 1, None, False).resolved is None
    raw |= {"resolvable": True}
    assert note_of(raw, 1, None, False).resolved is False


def test_a_note_without_a_number_cannot_be_read() -> None:
    with pytest.raises(RowUnreadable):
        note_of({"id": "gid://gitlab/Note/x"}, 1, None, False)


def test_odd_texts_are_flagged_as_by_rest() -> None:
    row = note_of({"id": "gid://gitlab/Note/7", "body": "a\x00b", "createdAt": "soon"}, 1, None, False)
    assert row.flags == ("bad_date", "control_characters")
