"""The GraphQL endpoint: its data, its limits and its trouble."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
import requests

from sync_pipeline_sandbox.gitlab import GUEST, RateLimit, faults
from sync_pipeline_sandbox.gitlab.records import MergeRequest, Row
from sync_pipeline_tests.sandbox.gitlab.conftest import Site

BATCH = """
query reviews($path: ID!, $iids: [String!]) {
  project(fullPath: $path) {
    id
    mergeRequests(iids: $iids, first: 100) {
      nodes {
        iid
        approvedBy { nodes { username } }
        reviewers { nodes { username mergeRequestInteraction { reviewState approved } } }
        commits { nodes { sha } }
        notes(first: 50) { nodes { id body createdAt noteableType } pageInfo { hasNextPage endCursor } }
      }
    }
  }
}
"""

# 15 fields of its own, commits, and notes with 15 fields.
WIDE = """
query($path: ID!, $iids: [String!], $first: Int, $notes: Int) {
  project(fullPath: $path) {
    id
    mergeRequests(ARGUMENTS, first: $first) {
      pageInfo { hasNextPage endCursor }
      nodes {
        id iid state draft createdAt updatedAt mergedAt closedAt
        author { username }
        approvedBy { nodes { username } }
        reviewers { nodes { username mergeRequestInteraction { reviewState approved } } }
        labels { nodes { title } }
        diffRefs { baseSha headSha startSha }
        mergeUser { username }
        milestone { id title }
        commits { nodes { sha } }
        notes(first: $notes) {
          pageInfo { hasNextPage endCursor }
          nodes {
            id body createdAt updatedAt system internal noteableType resolvable resolved resolvedAt
            author { id username name publicEmail }
            resolvedBy { username }
            discussion { id }
            systemNoteMetadata { action }
            position {
              diffRefs { baseSha headSha startSha }
              filePath oldPath newPath oldLine newLine positionType
            }
          }
        }
      }
    }
  }
  queryComplexity { score limit }
}
"""


def post(site: Site, query: str, token: str | None = "", **variables: Any) -> requests.Response:
    """Send a query. ``token`` empty is the site's own, None is none."""
    sent = {} if token is None else {"PRIVATE-TOKEN": token or site.token.secret}
    body = {"query": query, "variables": variables}
    return site.http.post(f"{site.server.url}/api/graphql", json=body, headers=sent, timeout=60)


def ask(site: Site, query: str, token: str | None = "", **variables: Any) -> Any:
    """The body of an answer with status 200."""
    answer = post(site, query, token, **variables)
    assert answer.status_code == 200, answer.text
    return answer.json()


def data(site: Site, query: str, token: str | None = "", **variables: Any) -> Any:
    """The data of an answer without errors."""
    answer = ask(site, query, token, **variables)
    assert "errors" not in answer, answer
    return answer["data"]


def message(answer: Any) -> str:
    """The only error of an answer that has no data."""
    (error,) = answer["errors"]
    assert "data" not in answer
    text: str = error["message"]
    return text


def opened(site: Site, source: str = "feature/parser") -> MergeRequest:
    """A merge request, a second old."""
    request = site.gitlab.open_merge_request(site.project, author=site.user, source=source)
    site.tick()
    return request


def one(site: Site, fields: str, token: str | None = "") -> Any:
    """Fields of the merge request 1."""
    query = f'query {{ project(fullPath: "team1/app1") {{ mergeRequest(iid: "1") {{ {fields} }} }} }}'
    return data(site, query, token)["project"]["mergeRequest"]


def listed(site: Site, arguments: str, fields: str = "nodes { iid }") -> Any:
    """A list of merge requests."""
    query = f'query {{ project(fullPath: "team1/app1") {{ mergeRequests({arguments}) {{ {fields} }} }} }}'
    return data(site, query)["project"]["mergeRequests"]


# --- Data -----------------------------------------------------------------------------------------------


def test_a_batch_has_notes_approvers_reviewers_and_commits(site: Site) -> None:
    request = opened(site)
    site.gitlab.comment(request, site.other, "Why?")
    site.gitlab.request_review(request, site.user, site.other)
    site.gitlab.approve(request, site.other)
    project = data(site, BATCH, path=site.project.full_path, iids=["1", "99"])["project"]
    assert project["id"] == f"gid://gitlab/Project/{site.project.id}"
    (row,) = project["mergeRequests"]["nodes"]
    notes = row["notes"]["nodes"]
    assert [note["body"] for note in notes] == [
        "Why?",
        "requested review from @user2",
        "approved this merge request",
    ]
    assert notes[0]["createdAt"] == "2024-05-06T12:00:01Z"
    assert row["approvedBy"]["nodes"] == [{"username": "user2"}]
    assert row["reviewers"]["nodes"] == [
        {"username": "user2", "mergeRequestInteraction": {"reviewState": "APPROVED", "approved": True}}
    ]
    assert row["commits"]["nodes"] == [{"sha": site.git.resolve("feature/parser")}]


def test_the_journal_counts_operations_and_merge_requests(site: Site) -> None:
    ask(site, BATCH, path="team1/app1", iids=["1", "99"])
    ask(site, "query { currentUser { id } metadata { version } }")
    named, unnamed = site.gitlab.journal.entries
    assert (named.route, named.operation, named.iids) == ("/api/graphql", "reviews", ("1", "99"))
    assert (unnamed.operation, unnamed.iids) == ("currentUser,metadata", ())
    assert site.gitlab.journal.count("/api/graphql.* reviews iids=2$") == 1


def test_fields_agree_with_rest(site: Site) -> None:
    request = opened(site)
    site.gitlab.add_label(site.project, request, site.user, "bug")
    site.gitlab.set_milestone(request, site.user, site.gitlab.milestone(site.project, "1.0"))
    site.gitlab.assign(request, site.user, site.other)
    site.gitlab.merge(request, site.other, merge_commit_sha="a" * 40)
    rest = site.rows(f"{site.at}/merge_requests/1")
    assert rest["updated_at"].endswith(".123Z")
    row = one(
        site,
        "id iid projectId project { fullPath archived } title state draft sourceBranch createdAt updatedAt "
        "mergedAt closedAt author { username } assignees { nodes { username } } mergeUser { username } "
        "diffHeadSha diffRefs { baseSha headSha startSha } mergeCommitSha detailedMergeStatus commitCount "
        "labels { nodes { title } } milestone { id title state } discussionLocked webUrl "
        "reference(full: true)",
    )
    refs = rest["diff_refs"]
    assert row == {
        "id": f"gid://gitlab/MergeRequest/{rest['id']}",
        "iid": "1",
        "projectId": rest["project_id"],
        "project": {"fullPath": "team1/app1", "archived": False},
        "title": rest["title"],
        "state": "merged",
        "draft": False,
        "sourceBranch": "feature/parser",
        "createdAt": "2024-05-06T12:00:00Z",
        "updatedAt": "2024-05-06T12:00:01Z",
        "mergedAt": "2024-05-06T12:00:01Z",
        "closedAt": None,
        "author": {"username": "user1"},
        "assignees": {"nodes": [{"username": "user2"}]},
        "mergeUser": {"username": "user2"},
        "diffHeadSha": rest["sha"],
        "diffRefs": {
            "baseSha": refs["base_sha"],
            "headSha": refs["head_sha"],
            "startSha": refs["start_sha"],
        },
        "mergeCommitSha": "a" * 40,
        "detailedMergeStatus": "NOT_OPEN",
        "commitCount": 1,
        "labels": {"nodes": [{"title": "bug"}]},
        "milestone": {
            "id": f"gid://gitlab/Milestone/{rest['milestone']['id']}",
            "title": "1.0",
            "state": "active",
        },
        "discussionLocked": False,
        "webUrl": rest["web_url"],
        "reference": "team1/app1!1",
    }


def test_only_note_rows_are_notes(site: Site) -> None:
    request = opened(site)
    site.gitlab.comment(request, site.other, "Why?")
    site.gitlab.add_label(site.project, request, site.user, "bug")
    site.gitlab.close(request, site.user)
    site.gitlab.set_milestone(request, site.user, site.gitlab.milestone(site.project, "1.0"))
    assert [note["body"] for note in one(site, "notes { nodes { body } }")["notes"]["nodes"]] == ["Why?"]


def test_notes_on_commits_of_the_merge_request_are_among_its_notes(site: Site) -> None:
    request = opened(site)
    head, main = site.git.resolve("feature/parser") or "", site.git.resolve("main") or ""
    site.gitlab.comment_on_commit(site.project, head, site.other, "On the commit")
    site.gitlab.comment_on_commit(site.project, main, site.other, "Elsewhere")
    site.gitlab.comment(request, site.other, "On the request")
    notes = one(site, "notes { nodes { body noteableType noteableId } }")["notes"]["nodes"]
    assert notes == [
        {"body": "On the commit", "noteableType": "Commit", "noteableId": None},
        {"body": "On the request", "noteableType": "MergeRequest", "noteableId": request.id},
    ]
    assert [note["body"] for note in site.rows(f"{site.at}/merge_requests/1/notes")] == ["On the request"]


def test_threads_are_discussions_and_resolved_says_nothing_where_it_cannot_be(site: Site) -> None:
    request = opened(site)
    position: Row = {"base_sha": "b", "start_sha": "s", "head_sha": "h", "position_type": "text"}
    position |= {"old_path": "p.py", "new_path": "q.py", "old_line": None, "new_line": 2, "line_range": {}}
    first = site.gitlab.comment(request, site.other, "Here?", position=position)
    reply = site.gitlab.comment(request, site.user, "Yes.", reply_to=first)
    site.gitlab.resolve(request, first, site.user)
    single = site.gitlab.comment(request, site.other, "Nice")
    fields = "id resolvable resolved resolvedAt resolvedBy { username }"
    row = one(
        site,
        f"discussions {{ nodes {{ {fields} notes {{ nodes {{ id discussion {{ id }} }} }} }} }} "
        f"notes {{ nodes {{ {fields} position {{ filePath newLine oldLine diffRefs {{ headSha }} }} }} }} "
        "userDiscussionsCount resolvableDiscussionsCount resolvedDiscussionsCount",
    )
    done = {
        "resolvable": True,
        "resolved": True,
        "resolvedAt": "2024-05-06T12:00:01Z",
        "resolvedBy": {"username": "user1"},
    }
    undone = {"resolvable": False, "resolved": False, "resolvedAt": None, "resolvedBy": None}
    threads = row["discussions"]["nodes"]
    assert [thread["id"].rpartition("/")[2] for thread in threads] == [
        first.discussion_id,
        single.discussion_id,
    ]
    assert [note["id"].rpartition("/")[2] for note in threads[0]["notes"]["nodes"]] == [
        str(first.row["id"]),
        str(reply.row["id"]),
    ]
    assert threads[0]["notes"]["nodes"][1]["discussion"] == {"id": threads[0]["id"]}
    assert (threads[0].items() >= done.items(), threads[1].items() >= undone.items()) == (True, True)
    notes = row["notes"]["nodes"]
    assert notes[0].items() >= done.items()
    assert notes[0]["position"] == {
        "filePath": "q.py",
        "newLine": 2,
        "oldLine": None,
        "diffRefs": {"headSha": "h"},
    }
    assert notes[2].items() >= undone.items()
    counts = [row[f"{name}DiscussionsCount"] for name in ("user", "resolvable", "resolved")]
    assert counts == [2, 1, 1]


def _numbers(rows: list[Row]) -> list[str]:
    return [row["id"].rpartition("/")[2] for row in rows]


def test_an_internal_note_is_shown_to_reporters_only(site: Site) -> None:
    request = opened(site)
    site.gitlab.comment(request, site.other, "Between us", internal=True)
    site.gitlab.comment(request, site.other, "For all")
    site.project.visibility = "public"
    fields = "notes { nodes { body internal } }"
    assert len(one(site, fields)["notes"]["nodes"]) == 2
    guest = site.gitlab.user("guest")
    site.gitlab.add_member(site.project, guest, GUEST)
    for token in (site.gitlab.token(guest).secret, None):
        assert one(site, fields, token)["notes"]["nodes"] == [{"body": "For all", "internal": False}]


def test_system_notes_have_an_action_where_it_is_known(site: Site) -> None:
    request = opened(site)
    site.gitlab.approve(request, site.other)
    site.gitlab.system_note(request, site.user, "did something odd", site.gitlab.clock.now())
    site.gitlab.comment(request, site.other, "approved this merge request")
    notes = one(site, "notes { nodes { system systemNoteMetadata { action } } }")["notes"]["nodes"]
    assert notes == [
        {"system": True, "systemNoteMetadata": {"action": "approved"}},
        {"system": True, "systemNoteMetadata": None},
        {"system": False, "systemNoteMetadata": None},
    ]


def test_rows_that_are_odd_spoil_no_others(site: Site) -> None:
    request = opened(site)
    odd, good = site.gitlab.comment(request, site.other, "Odd"), site.gitlab.comment(request, None, "Good")
    odd.row |= {"created_at": "yesterday", "position": {"new_path": "p.py"}}
    del odd.row["author"]
    fields = "notes { nodes { id body createdAt author { username } position { newPath } } }"
    rows = one(site, fields)["notes"]["nodes"]
    assert [(row["createdAt"], row["author"], row["position"]) for row in rows] == [
        ("yesterday", None, None),
        ("2024-05-06T12:00:01Z", None, None),
    ]
    good.row["body"] = None
    query = 'query { project(fullPath: "team1/app1") { mergeRequest(iid: "1") { FIELDS } } }'
    answer = ask(site, query.replace("FIELDS", fields))
    nodes = answer["data"]["project"]["mergeRequest"]["notes"]["nodes"]
    assert [node and node["body"] for node in nodes] == ["Odd", None]
    assert len(answer["errors"]) == 1


def test_people_who_are_gone_are_null(site: Site) -> None:
    request = opened(site)
    site.gitlab.comment(request, site.other, "Bye")
    site.gitlab.approve(request, site.other)
    site.gitlab.delete_user(site.other, leave_null=True)
    row = one(site, "approvedBy { nodes { username } } notes { nodes { author { username } } }")
    assert row["approvedBy"]["nodes"] == []
    assert row["notes"]["nodes"][0] == {"author": None}


# --- Paging ---------------------------------------------------------------------------------------------


def test_a_list_pages_by_a_cursor_that_fits_its_order_only(site: Site) -> None:
    for _ in range(5):
        opened(site)
    site.gitlab.touch(site.project.merge_requests[1])
    seen, after, fields = [], "", "count nodes { iid } pageInfo { hasNextPage endCursor }"
    while True:
        page = listed(site, f"sort: UPDATED_ASC, first: 2{after}", fields)
        seen += [row["iid"] for row in page["nodes"]]
        assert page["count"] == 5
        cursor = page["pageInfo"]["endCursor"]
        after = f', after: "{cursor}"'
        if not page["pageInfo"]["hasNextPage"]:
            break
    assert seen == ["2", "3", "4", "5", "1"]
    assert [row["iid"] for row in listed(site, "first: 2")["nodes"]] == ["5", "4"]
    query = 'query { project(fullPath: "team1/app1") { mergeRequests(after: AFTER) { count } } }'
    for wrong in (cursor, "nonsense", "MQ=="):
        answer = ask(site, query.replace("AFTER", f'"{wrong}"'))
        assert answer["data"]["project"] == {"mergeRequests": None}
        assert answer["errors"][0]["message"] == "Please provide a valid cursor"


def test_no_page_is_longer_than_a_hundred(site: Site) -> None:
    request = opened(site)
    for number in range(130):
        site.gitlab.comment(request, site.other, str(number))
    fields = "nodes { body } pageInfo { hasNextPage endCursor }"
    first = one(site, f"notes(first: 5000) {{ {fields} }}")["notes"]
    assert (len(first["nodes"]), first["pageInfo"]["hasNextPage"]) == (100, True)
    rest = one(site, f'notes(after: "{first["pageInfo"]["endCursor"]}") {{ {fields} }}')["notes"]
    assert [int(note["body"]) for note in first["nodes"] + rest["nodes"]] == list(range(130))
    assert rest["pageInfo"]["hasNextPage"] is False


def test_filters_of_a_list(site: Site) -> None:
    first, second = opened(site), opened(site)
    site.gitlab.close(second, site.user)
    shown = [
        [row["iid"] for row in listed(site, arguments)["nodes"]]
        for arguments in (
            "iids: []",
            'iids: ["1", "7"]',
            "state: closed",
            "state: all",
            f'updatedAfter: "{second.updated_at.isoformat()}"',
            f'updatedBefore: "{first.updated_at.isoformat()}"',
        )
    ]
    assert shown == [[], ["1"], ["2"], ["2", "1"], ["2"], ["1"]]


# --- What a reader may not see --------------------------------------------------------------------------


def test_a_project_that_is_missing_or_hidden_is_null_without_an_error(site: Site) -> None:
    opened(site)
    stranger = site.gitlab.token(site.gitlab.user("stranger")).secret
    for path, token in (("team1/none", ""), ("team1/app1", stranger), ("team1/app1", None), ("101", "")):
        assert data(site, BATCH, token, path=path, iids=["1"]) == {"project": None}
    assert one(site, "iid") == {"iid": "1"}
    query = 'query { project(fullPath: "TEAM1/app1") { mergeRequest(iid: "x") { iid } } }'
    assert data(site, query) == {"project": {"mergeRequest": None}}


def test_merge_requests_that_a_reader_may_not_use_are_left_out(site: Site) -> None:
    opened(site)
    site.gitlab.switch_feature(site.project, "merge_requests", "disabled")
    assert one(site, "iid") is None
    assert listed(site, "first: 5", "count nodes { iid }") == {"count": 0, "nodes": []}


def test_an_old_path_leads_nowhere_or_to_another_project(site: Site) -> None:
    opened(site)
    site.gitlab.rename_project(site.project, "renamed")
    assert data(site, BATCH, path="team1/app1", iids=["1"]) == {"project": None}
    other = site.gitlab.project("app1", group=site.group)
    answer = data(site, BATCH, path="team1/app1", iids=["1"])
    assert answer["project"] == {
        "id": f"gid://gitlab/Project/{other.id}",
        "mergeRequests": {"nodes": []},
    }


def test_a_bad_token_is_refused_and_no_token_sees_public_data(site: Site) -> None:
    opened(site)
    narrow = site.gitlab.token(site.user, scopes=("read_repository",)).secret
    expired = site.gitlab.token(site.user, expires_at=date(2024, 5, 6)).secret
    for token in ("glpat-wrong", narrow, expired):
        answer = post(site, "query { currentUser { id } }", token)
        assert (answer.status_code, answer.json()) == (401, {"errors": [{"message": "Invalid token"}]})
    site.gitlab.block_user(site.other)
    blocked = post(site, "query { currentUser { id } }", site.gitlab.token(site.other).secret)
    assert (blocked.status_code, message(blocked.json())) == (403, "API not accessible for user")
    query = "query { currentUser { username } metadata { version enterprise } }"
    assert data(site, query, None) == {"currentUser": None, "metadata": None}
    assert data(site, query)["currentUser"] == {"username": "user1"}
    assert data(site, query)["metadata"] == {"version": "17.11.2-ee", "enterprise": True}
    site.project.visibility = "public"
    assert one(site, "iid", None) == {"iid": "1"}


# --- Limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "first", "scores"),
    [
        ("sort: UPDATED_ASC", 50, [156, 173, 201]),
        ("sort: UPDATED_ASC", 100, [207, 229, 267]),
        ("iids: $iids", 100, [106, 117, 136]),
    ],
)
def test_complexity_is_computed_as_gitlab_does(
    site: Site, arguments: str, first: int, scores: list[int]
) -> None:
    site.gitlab.admins.add(int(site.user["id"]))
    query = WIDE.replace("ARGUMENTS", arguments)
    # Variables that a query does not use are refused.
    query = query if "$iids" in arguments else query.replace("$iids: [String!], ", "")
    found = [
        data(site, query, path="team1/app1", iids=["1"], first=first, notes=notes)["queryComplexity"]
        for notes in (20, 50, 100)
    ]
    assert found == [{"score": score, "limit": 300} for score in scores]


def test_a_query_that_is_too_complex_always_fails(site: Site) -> None:
    query = WIDE.replace("ARGUMENTS", "sort: UPDATED_ASC").replace("$iids: [String!], ", "")
    sent: dict[str, Any] = {"path": "team1/none", "first": 100, "notes": 100}
    text = "Query has complexity of 267, which exceeds max complexity of"
    assert message(ask(site, query, **sent)) == f"{text} 250"
    assert message(ask(site, query, None, **sent)) == f"{text} 200"
    site.gitlab.behaviour.graphql.max_complexity = 100
    assert message(ask(site, query, **sent)) == f"{text} 100"
    assert data(site, "query { queryComplexity { score limit } }")["queryComplexity"] == {
        "score": 3,
        "limit": 100,
    }


def test_a_field_named_twice_or_in_a_fragment_counts_once(site: Site) -> None:
    plain = "query { queryComplexity { score } currentUser { id username } }"
    twice = (
        "query { queryComplexity { score } currentUser { id } ...more }"
        "fragment more on Query { currentUser { id ... on CurrentUser { username } } }"
    )
    assert data(site, plain) == data(site, twice)
    assert data(site, plain)["queryComplexity"] == {"score": 5}


def test_a_query_that_is_too_deep_fails(site: Site) -> None:
    opened(site)
    site.project.visibility = "public"

    def nested(times: int) -> str:
        inner = "id"
        for _ in range(times):
            inner = f'project {{ mergeRequest(iid: "1") {{ {inner} }} }}'
        return f'query {{ project(fullPath: "team1/app1") {{ mergeRequest(iid: "1") {{ {inner} }} }} }}'

    assert "errors" not in ask(site, nested(8))
    assert message(ask(site, nested(9))) == "Query has depth of 21, which exceeds max depth of 20"
    assert "errors" not in ask(site, nested(6), None)
    assert message(ask(site, nested(7), None)) == "Query has depth of 17, which exceeds max depth of 15"


def test_a_query_text_that_is_too_long_fails(site: Site) -> None:
    query = "query { currentUser { id } }"
    assert "data" in ask(site, query.ljust(10_000))
    assert message(ask(site, query.ljust(10_001))) == "Query too large"


def test_an_unknown_field_fails_the_whole_query_with_its_code(site: Site) -> None:
    query = 'query { project(fullPath: "team1/app1") { all: mergeRequests { nodes { iid lineRange } } } }'
    answer = ask(site, query)
    assert message(answer) == "Field 'lineRange' doesn't exist on type 'MergeRequest'"
    assert answer["errors"][0]["extensions"] == {
        "code": "undefinedField",
        "typeName": "MergeRequest",
        "fieldName": "lineRange",
    }
    assert answer["errors"][0]["path"] == ["query", "project", "all", "nodes", "lineRange"]
    many = ask(site, f"query {{ {' '.join(f'a{number}' for number in range(9))} }}")
    assert len(many["errors"]) == 5


def test_an_older_server_lacks_fields(site: Site) -> None:
    opened(site)
    site.gitlab.behaviour.graphql.missing_fields = frozenset({"Note.imported", "MergeRequest.mergeAfter"})
    answer = ask(site, 'query { project(fullPath: 1) { mergeRequest(iid: "1") { mergeAfter } } }')
    assert answer["errors"][0]["extensions"]["fieldName"] == "mergeAfter"
    assert one(site, "iid notes { nodes { internal } }")["iid"] == "1"
    fields = data(site, 'query { __type(name: "Note") { fields { name } } }')["__type"]["fields"]
    names = {field["name"] for field in fields}
    assert ("imported" in names, "internal" in names) == (False, True)


def test_an_old_server_lacks_what_came_late(site: Site) -> None:
    request = opened(site)
    site.gitlab.comment(request, site.other, "Between us", internal=True)
    site.gitlab.behaviour.old = True
    query = 'query { project(fullPath: "team1/app1") { mergeRequest(iid: "1") { FIELD } } }'
    for field in ("reviewers { nodes { id } }", "notes { nodes { internal } }"):
        assert ask(site, query.replace("FIELD", field))["errors"][0]["extensions"]["code"] == "undefinedField"
    assert one(site, "notes { nodes { confidential } }")["notes"]["nodes"] == [{"confidential": True}]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"variables": {}}'])
def test_a_body_that_is_no_query_is_refused(site: Site, body: bytes) -> None:
    sent = {"PRIVATE-TOKEN": site.token.secret}
    answer = site.http.post(f"{site.server.url}/api/graphql", data=body, headers=sent, timeout=60)
    assert (answer.status_code, list(answer.json())) == (400, ["errors"])


def test_text_that_is_no_graphql_is_an_error_with_status_200(site: Site) -> None:
    assert message(ask(site, "query { project(")).startswith("Syntax Error")
    assert message(ask(site, BATCH, iids=["1"])).startswith("Variable '$path'")
    assert message(ask(site, "fragment f on Query { currentUser { id } }"))


# --- Trouble --------------------------------------------------------------------------------------------


def test_a_server_without_graphql_answers_404(site: Site) -> None:
    site.gitlab.behaviour.graphql.enabled = False
    answer = post(site, "query { currentUser { id } }")
    assert (answer.status_code, answer.json()) == (404, {"error": "404 Not Found"})


def test_rows_and_fields_can_be_null_without_an_error(site: Site) -> None:
    for _ in range(3):
        opened(site)
    trouble = site.gitlab.behaviour.graphql
    trouble.null_rows.add(2)
    trouble.null_fields[3] = ("approvedBy", "commits")
    nodes = data(site, BATCH, path="team1/app1", iids=["1", "2", "3"])["project"]["mergeRequests"]["nodes"]
    assert [node and node["iid"] for node in nodes] == ["3", None, "1"]
    assert (nodes[0]["approvedBy"], nodes[0]["commits"]) == (None, None)


def test_a_field_can_fail_for_one_row_only(site: Site) -> None:
    for _ in range(3):
        opened(site)
    site.gitlab.behaviour.graphql.failing_fields |= {1: ("commits",), 2: ("notes",)}
    answer = ask(site, BATCH, path="team1/app1", iids=["1", "2", "3"])
    nodes = answer["data"]["project"]["mergeRequests"]["nodes"]
    assert [node and node["commits"] is not None for node in nodes] == [True, None, False]
    at = ["project", "mergeRequests", "nodes"]
    assert sorted(error["path"] for error in answer["errors"]) == [[*at, 1, "notes"], [*at, 2, "commits"]]
    assert all("Gitaly" in error["message"] for error in answer["errors"])


def test_a_batch_that_is_too_large_runs_into_the_time_limit(site: Site) -> None:
    for _ in range(3):
        opened(site)
    site.gitlab.behaviour.graphql.max_rows = 2
    answer = ask(site, BATCH, path="team1/app1", iids=["1", "2", "3"])
    assert answer["data"]["project"]["mergeRequests"] is None
    assert [error["message"] for error in answer["errors"]] == ["Timeout on Project.mergeRequests"]
    assert (
        len(data(site, BATCH, path="team1/app1", iids=["1", "2"])["project"]["mergeRequests"]["nodes"]) == 2
    )


def test_faults_strike_by_operation_and_from_a_request_on(site: Site) -> None:
    opened(site)
    sent: dict[str, Any] = {"path": "team1/app1", "iids": ["1"]}
    site.gitlab.faults.add("graphql.* reviews iids=1$", faults.Truncated(announced=False), skip=1)
    refused = site.gitlab.faults.add("graphql", faults.graphql_error(status=403), times=None, skip=2)
    assert one(site, "iid") == {"iid": "1"}
    assert post(site, BATCH, **sent).status_code == 200
    with pytest.raises(requests.JSONDecodeError):
        post(site, BATCH, **sent).json()
    assert [post(site, BATCH, **sent).status_code for _ in range(2)] == [403, 403]
    assert refused.struck == 2
    assert site.get(site.at).status_code == 200


def test_the_throttle_counts_graphql_requests(site: Site) -> None:
    site.gitlab.behaviour.rate_limit = RateLimit(limit=1, period=3600)
    assert post(site, "query { currentUser { id } }").status_code == 200
    answer = post(site, "query { currentUser { id } }")
    assert (answer.status_code, answer.text) == (429, "Retry later\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_numbers_of_64_bits_fit_into_ids_but_not_into_integers(site: Site) -> None:
    number = 2**53 + 1
    project = site.gitlab.project("big", group=site.group, project_id=number)
    site.gitlab.open_merge_request(project, author=site.user)
    query = 'query { project(fullPath: "team1/big") { id mergeRequest(iid: "1") { projectId } } }'
    answer = ask(site, query)
    assert answer["data"]["project"] == {"id": f"gid://gitlab/Project/{number}", "mergeRequest": None}
    assert answer["errors"][0]["path"] == ["project", "mergeRequest", "projectId"]
