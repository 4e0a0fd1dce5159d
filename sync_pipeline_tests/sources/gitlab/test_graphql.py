"""GraphQL queries: how they are sent, and what each kind of answer means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sync_pipeline.core.errors import AccessDenied, AnswerCut, Permanent, SyncError, Transient
from sync_pipeline.sources.gitlab import graphql
from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline_tests.sources.gitlab.servers import RESET, Clock, Script, answer, scripted

VARIABLES = {"path": "team1/app1", "iids": ["1"], "count": 50}
DATA = {"project": {"id": "gid://gitlab/Project/1"}}
OK = answer({"data": DATA})
UNKNOWN = {"code": "undefinedField", "typeName": "Note"}


def connect(script: Script, clock: Clock | None = None) -> Client:
    clock = clock or Clock()
    return Instance(
        script.url,
        "glpat-abcdefghijklmnopqrst",
        sleep=clock.sleep,
        monotonic=clock.monotonic,
        chance=lambda: 0.0,
    ).client()


def ask(client: Client) -> graphql.QueryResult:
    return graphql.ask(client, graphql.BATCH, VARIABLES)


def failure(*responses: bytes) -> tuple[SyncError, Script]:
    with scripted(*responses) as script, pytest.raises(SyncError) as caught:
        ask(connect(script))
    return caught.value, script


def refused(message: str, **other: Any) -> bytes:
    return answer({"errors": [{"message": message, **other}]})


def test_a_query_is_posted_with_the_token_and_its_variables() -> None:
    with scripted(OK) as script:
        client = connect(script)
        assert ask(client) == graphql.QueryResult(DATA)
    (sent,) = script.asked
    assert (sent.method, sent.target) == ("POST", "/api/graphql")
    assert sent.headers["private-token"] == "glpat-abcdefghijklmnopqrst"
    body = json.loads(sent.body)
    assert body == {"query": graphql.text_of(graphql.BATCH), "variables": VARIABLES}
    assert client.calls == 1


@pytest.mark.parametrize("query", [graphql.BATCH, graphql.MORE_NOTES, graphql.MORE_COMMITS])
@pytest.mark.parametrize("unknown", [(), tuple(graphql.OPTIONAL_FIELDS)])
def test_each_query_is_shorter_than_gitlab_allows(query: str, unknown: tuple[str, ...]) -> None:
    text = graphql.text_of(query, unknown)
    assert len(text) < 10_000
    assert "<" not in text


def test_a_query_is_sent_again_after_a_refused_connection() -> None:
    with scripted(RESET, OK) as script:
        assert ask(connect(script)).data == DATA
    assert len(script.asked) == 2


def test_a_query_waits_as_long_as_the_rate_limit_says() -> None:
    clock = Clock()
    limited = answer(b"Retry later", "429 Too Many Requests", {"Retry-After": "7"}, kind="text")
    with scripted(limited, OK) as script:
        assert ask(connect(script, clock)).data == DATA
    assert sum(clock.slept) >= 7


def test_a_rate_limit_that_lasts_and_a_dead_network_are_no_reason_against_graphql() -> None:
    limited = answer(b"Retry later", "429 Too Many Requests", {"Retry-After": "900"}, kind="text")
    error, _ = failure(limited)
    assert (type(error), error.code) == (Transient, "rate_limit")
    error, _ = failure(RESET)
    assert (type(error), error.code) == (Transient, "connection")


def test_a_rejected_token_is_an_error_of_the_credential() -> None:
    error, _ = failure(answer({"errors": [{"message": "Invalid token"}]}, "401 Unauthorized"))
    assert isinstance(error, AccessDenied)
    assert error.code == "credential"


@pytest.mark.parametrize(
    "response",
    [
        refused("Query has complexity of 300, which exceeds max complexity of 250"),
        refused("Timeout on MergeRequest.notes"),
        answer({"data": DATA, "errors": [{"message": "Timeout on Project.id", "path": ["project", "id"]}]}),
        answer(b"<html>504</html>", "504 Gateway Time-out", kind="html"),
        answer({"message": "500 Internal Server Error"}, "500 Internal Server Error"),
        answer(b'{"data": {"project": ', kind="json"),
        OK[:-5],
    ],
    ids=["complexity", "time", "time in part", "gateway", "server error", "broken", "cut off"],
)
def test_an_answer_that_may_work_for_less_is_asked_once_and_called_too_large(response: bytes) -> None:
    error, script = failure(response)
    assert (type(error), error.code) == (Transient, graphql.TOO_LARGE)
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    "response",
    [
        answer({"error": "404 Not Found"}, "404 Not Found"),
        answer(b"<html>Not found</html>", "404 Not Found", kind="html"),
        answer({"message": "403 Forbidden"}, "403 Forbidden"),
        answer(b"<html>Blocked</html>", "403 Forbidden", kind="html"),
        answer(b"<html>Sign in</html>", kind="html"),
        answer({"error": "insufficient_scope"}, "403 Forbidden"),
        answer(b"", "302 Found", {"Location": "https://elsewhere.example.com/"}),
        answer([]),
        answer({}),
        answer({"data": None}),
        answer({"data": [1]}),
        refused("Internal server error"),
        answer({"data": DATA, "errors": [{"message": "No", "path": ["project"]}]}),
        answer({"data": DATA, "errors": ["No"]}),
        refused("Field 'notes' doesn't exist on type 'MergeRequest'"),
    ],
)
def test_a_server_without_usable_graphql_is_told_by_its_code(response: bytes) -> None:
    error, script = failure(response)
    assert isinstance(error, Permanent)
    assert error.code == graphql.REFUSED
    assert len(script.asked) == 1


def test_an_error_of_one_node_leaves_the_others() -> None:
    path = ["project", "mergeRequests", "nodes", 3, "commits"]
    with scripted(answer({"data": DATA, "errors": [{"message": "Gitaly", "path": path}]})) as script:
        assert ask(connect(script)) == graphql.QueryResult(DATA, (tuple(path),))


def test_a_field_that_the_server_lacks_is_left_out_once_and_for_all() -> None:
    lacking = answer(
        {
            "errors": [
                {"message": "Field 'internal' doesn't exist on type 'Note'"},
                {"message": "unknown", "extensions": UNKNOWN | {"fieldName": "reviewState"}},
            ]
        }
    )
    with scripted(lacking, OK) as script:
        client = connect(script)
        ask(client)
        ask(client.instance.client())
    texts = [json.loads(one.body)["query"] for one in script.asked]
    assert texts[1] == texts[2] == graphql.text_of(graphql.BATCH, {"internal", "reviewState"})
    assert "internal: confidential" in texts[1]
    assert "reviewers" not in texts[1]


def test_a_field_that_the_server_lacks_in_every_form_is_a_refusal() -> None:
    lacking = [
        refused("unknown", extensions=UNKNOWN | {"fieldName": name}) for name in ("internal", "confidential")
    ]
    error, script = failure(*lacking)
    assert error.code == graphql.REFUSED
    assert len(script.asked) == 2


def test_an_answer_that_is_cut_off_differs_from_a_server_that_cannot_be_reached() -> None:
    with scripted(OK[:-5]) as script, pytest.raises(AnswerCut):
        connect(script).query("query { currentUser { id } }", {})
