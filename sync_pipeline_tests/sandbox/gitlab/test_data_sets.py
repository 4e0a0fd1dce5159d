"""The data sets of the mock GitLab are what they say, and REST and GraphQL agree about them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline_sandbox.gitlab import data_sets
from sync_pipeline_sandbox.gitlab.records import MergeRequest, Project, Row
from sync_pipeline_tests.sandbox.gitlab.conftest import Site
from sync_pipeline_tests.sandbox.gitlab.test_graphql import data

QUERY = """
query one($path: ID!, $iid: String!) {
  project(fullPath: $path) {
    mergeRequest(iid: $iid) {
      FIELDS
    }
  }
}
"""
NOTE = """
  id body createdAt updatedAt system internal noteableType resolvable resolved resolvedAt
  author { username } resolvedBy { username } discussion { id } position { newPath newLine }
"""


@pytest.fixture
def build(site: Site, tmp_path: Path) -> Any:
    """A function from the name of a data set to its project."""

    def made(name: str) -> Project:
        return data_sets.build(name, site.gitlab, site.group, tmp_path)

    return made


def pages(site: Site, path: str, **parameters: Any) -> list[Row]:
    """All rows of a list by REST."""
    rows: list[Row] = []
    page = "1"
    while page:
        answer = site.get(path, page=page, per_page=100, **parameters)
        assert answer.status_code == 200, answer.text
        rows += answer.json()
        page = answer.headers["X-Next-Page"]
    return rows


def nodes(site: Site, project: Project, request: MergeRequest, name: str, fields: str) -> list[Row]:
    """All rows of a connection of a merge request."""
    rows: list[Row] = []
    after = ""
    while True:
        connection = f"{name}{after} {{ nodes {{ {fields} }} pageInfo {{ hasNextPage endCursor }} }}"
        answer = data(site, QUERY.replace("FIELDS", connection), path=project.full_path, iid=str(request.iid))
        found = answer["project"]["mergeRequest"][name]
        rows += found["nodes"]
        if not found["pageInfo"]["hasNextPage"]:
            return rows
        after = f'(after: "{found["pageInfo"]["endCursor"]}")'


def whole_seconds(time: str | None) -> str | None:
    """A time of REST as GraphQL has it."""
    return time and f"{time[:19]}Z"


def name_of(user: Row | None) -> Row | None:
    """A person of REST as the queries here have them."""
    return user and {"username": user["username"]}


@pytest.mark.parametrize("name", data_sets.DATA_SETS)
def test_rest_and_graphql_agree(site: Site, build: Any, name: str) -> None:
    before = site.gitlab.clock.fixed
    project = build(name)
    assert site.gitlab.clock.fixed == before
    assert project.merge_requests
    for request in project.merge_requests.values():
        at = f"/projects/{project.id}/merge_requests/{request.iid}"
        threads = {
            note["id"]: thread["id"]
            for thread in pages(site, f"{at}/discussions")
            for note in thread["notes"]
        }
        expected = [
            {
                "id": str(row["id"]),
                "body": row["body"],
                "createdAt": whole_seconds(row["created_at"]),
                "updatedAt": whole_seconds(row["updated_at"]),
                "system": row["system"],
                "internal": row["internal"],
                "noteableType": "MergeRequest",
                "resolvable": row["resolvable"],
                "resolved": bool(row.get("resolved")),
                "resolvedAt": whole_seconds(row.get("resolved_at")),
                "author": name_of(row["author"]),
                "resolvedBy": name_of(row.get("resolved_by")),
                "discussion": {"id": f"gid://gitlab/Discussion/{threads[row['id']]}"},
                "position": {"newPath": row["position"]["new_path"], "newLine": row["position"]["new_line"]}
                if row.get("position")
                else None,
            }
            for row in pages(site, f"{at}/notes", sort="asc")
        ]
        notes = nodes(site, project, request, "notes", NOTE)
        own = [note for note in notes if note["noteableType"] == "MergeRequest"]
        assert [note | {"id": note["id"].rpartition("/")[2]} for note in own] == expected
        approvers = [one["user"]["username"] for one in site.rows(f"{at}/approvals")["approved_by"]]
        assert [
            one["username"] for one in nodes(site, project, request, "approvedBy", "username")
        ] == approvers
        reviewers = nodes(
            site, project, request, "reviewers", "username mergeRequestInteraction { reviewState }"
        )
        assert [(one["username"], one["mergeRequestInteraction"]["reviewState"]) for one in reviewers] == [
            (one["user"]["username"], one["state"].upper()) for one in site.rows(f"{at}/reviewers")
        ]
        shas = [row["sha"] for row in nodes(site, project, request, "commits", "sha")]
        assert shas == [row["id"] for row in pages(site, f"{at}/commits")]


def test_threads_have_replies_and_resolved_and_moved_notes(build: Any) -> None:
    (request,) = build("threads").merge_requests.values()
    kinds = [note.row["type"] for note in request.notes]
    assert (kinds.count("DiffNote"), kinds.count("DiscussionNote"), None in kinds) == (4, 5, True)
    assert {note.row.get("resolved") for note in request.notes} == {None, False, True}
    positions = [note.row["position"] for note in request.notes if note.row.get("position")]
    assert all(position["line_range"] for position in positions)
    assert all(position["head_sha"] != request.row["sha"] for position in positions)


def test_deleted_users_are_the_ghost_or_null(build: Any) -> None:
    ghost, nobody, _ = build("deleted-users").merge_requests.values()
    for request, heir in ((ghost, "ghost"), (nobody, None)):
        author = request.notes[0].row["author"]
        assert (author and author["username"]) == heir
        assert len(request.approved_by) == len(request.reviewers) == 1


def test_a_note_on_a_commit_is_in_every_merge_request_with_the_commit(site: Site, build: Any) -> None:
    project = build("commit-notes")
    for request in project.merge_requests.values():
        notes = nodes(site, project, request, "notes", "body noteableType")
        found = [note["body"] for note in notes if note["noteableType"] == "Commit"]
        assert found == ["On its commit"]


def test_notes_and_commits_fill_pages(site: Site, build: Any) -> None:
    counts = [len(request.notes) for request in build("many-notes").merge_requests.values()]
    assert counts == [50, 51, 100, 101, 130]
    project = build("many-commits")
    long, fresh, same = project.merge_requests.values()
    assert len(nodes(site, project, long, "commits", "sha")) == data_sets.MANY_COMMITS
    assert (long.row["state"], fresh.versions, len(same.versions)) == ("opened", [], 1)


def test_approvals_have_a_note_or_none(build: Any) -> None:
    requests = build("approvals").merge_requests.values()
    approved, noted = {}, {}
    for request in requests:
        branch = request.row["source_branch"]
        approved[branch] = len(request.approved_by)
        noted[branch] = sum(
            note.row["system"] and note.row["body"] == "approved this merge request" for note in request.notes
        )
    assert approved == {
        "with-note": 2,
        "without-note": 2,
        "taken-back": 0,
        "again": 1,
        "reset": 0,
        "pushed": 1,
    }
    assert noted == {"with-note": 2, "without-note": 1, "taken-back": 1, "again": 3, "reset": 1, "pushed": 2}


def test_reviewers_are_in_all_states(build: Any) -> None:
    reviewed, other = build("reviewers").merge_requests.values()
    assert tuple(one["state"] for one in reviewed.reviewers) == data_sets.REVIEW_STATES
    assert other.reviewers == []


def test_events_name_labels_that_are_gone(site: Site, build: Any) -> None:
    project = build("events")
    changed, merged, quiet = project.merge_requests.values()
    assert [event["state"] for event in changed.state_events] == ["closed", "reopened"]
    assert [event["label"] is None for event in changed.label_events] == [False, True, False]
    assert [event["action"] for event in changed.milestone_events] == ["add", "remove", "add", "remove"]
    assert (len(merged.state_events), len(merged.milestone_events)) == (1, 1)
    assert quiet.state_events == quiet.label_events == quiet.milestone_events == []
    titles = [
        row["title"] for row in site.rows(f"/projects/{project.id}/milestones", include_ancestors="true")
    ]
    assert sorted(titles) == ["1.0", "2024"]


def test_forks_are_there_or_gone(build: Any) -> None:
    there, forced, gone = build("forks").merge_requests.values()
    assert there.row["source_project_id"] != there.row["target_project_id"]
    assert (len(forced.versions), gone.row["source_project_id"]) == (2, None)


def test_pushes_make_versions(build: Any) -> None:
    growing, deleted = build("pushes").merge_requests.values()
    heads = [version["head_commit_sha"] for version in growing.versions]
    assert (len(heads), len(set(heads)), len(deleted.versions)) == (4, 4, 1)
    assert len({version["start_commit_sha"] for version in growing.versions}) == 2


def test_large_ids_need_64_bits(build: Any) -> None:
    for request in build("large-ids").merge_requests.values():
        numbers = [request.id, *(note.row["id"] for note in request.notes), request.state_events[0]["id"]]
        assert min(numbers) >= data_sets.LARGE_ID


def test_edits_happen_within_one_second(build: Any) -> None:
    quick, slow = build("same-second").merge_requests.values()
    edited = [note.row for note in quick.notes if note.row["updated_at"] != note.row["created_at"]]
    assert len(edited) == 2
    assert all(row["updated_at"][:19] == row["created_at"][:19] for row in edited)
    (late,) = slow.notes
    assert late.row["updated_at"] > f"{slow.updated_at + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"
