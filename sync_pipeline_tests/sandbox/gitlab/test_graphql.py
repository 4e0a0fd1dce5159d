"""The GraphQL endpoint: its data, its limits and its trouble."""

from __future__ import annotations

from typing import Any

from sync_pipeline_sandbox.gitlab.records import MergeRequest
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


def ask(site: Site, query: str, token: str | None = "", **variables: Any) -> Any:
    """The body of an answer with status 200."""
    sent = {} if token is None else {"PRIVATE-TOKEN": token or site.token.secret}
    answer = site.http.post(
        f"{site.server.url}/api/graphql",
        json={"query": query, "variables": variables},
        headers=sent,
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def opened(site: Site, **more: Any) -> MergeRequest:
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser", **more)
    site.tick()
    return request


def test_a_batch_has_notes_approvers_reviewers_and_commits(site: Site) -> None:
    request = opened(site)
    site.gitlab.comment(request, site.other, "Why?")
    site.gitlab.request_review(request, site.user, site.other)
    site.gitlab.approve(request, site.other)
    answer = ask(site, BATCH, path=site.project.full_path, iids=["1", "99"])
    assert "errors" not in answer
    assert answer["data"]["project"]["id"] == f"gid://gitlab/Project/{site.project.id}"
    (row,) = answer["data"]["project"]["mergeRequests"]["nodes"]
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
    (entry,) = site.gitlab.journal.entries
    assert (entry.operation, entry.iids) == ("reviews", ("1", "99"))
    assert site.gitlab.journal.count("reviews iids=2") == 1
