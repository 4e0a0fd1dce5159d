"""``POST /api/graphql`` of the mock GitLab: one query, its checks and its answer.

Belongs here: reading the request, GitLab's limits, and errors in GitLab's words. The schema is in
:mod:`sync_pipeline_sandbox.gitlab.graphql_schema`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from graphql import (
    ASTValidationRule,
    DocumentNode,
    ExecutionResult,
    FieldNode,
    FieldsOnCorrectTypeRule,
    GraphQLError,
    OperationDefinitionNode,
    ValidationRule,
    execute,
    get_operation_ast,
    parse,
    specified_rules,
    validate,
)
from graphql.execution.values import get_variable_values
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from sync_pipeline_sandbox.gitlab import access, responses
from sync_pipeline_sandbox.gitlab.control import GitLab
from sync_pipeline_sandbox.gitlab.endpoint import compact, refused, with_addresses
from sync_pipeline_sandbox.gitlab.graphql_reader import Reader
from sync_pipeline_sandbox.gitlab.graphql_schema import LATE_FIELDS, cost, schema
from sync_pipeline_sandbox.gitlab.records import Row

PATH = "/api/graphql"
MAX_CHARACTERS = 10_000
_MAX_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Query:
    """The body of a request. ``document`` is None where the text is no GraphQL; ``error`` has the reason."""

    text: str
    variables: Row
    name: str | None = None
    document: DocumentNode | None = None
    error: GraphQLError | None = None

    @property
    def operation(self) -> OperationDefinitionNode | None:
        """The operation to run; None where the text has none, or several and no name."""
        return get_operation_ast(self.document, self.name) if self.document else None

    @property
    def label(self) -> str:
        """The operation's name, else the names of its fields, for the journal."""
        operation = self.operation
        if operation is None:
            return ""
        if operation.name is not None:
            return operation.name.value
        fields = [node for node in operation.selection_set.selections if isinstance(node, FieldNode)]
        return ",".join(node.name.value for node in fields)

    @property
    def iids(self) -> list[str]:
        """The merge requests in its variables: those in ``iids`` and ``iid``."""
        several, one = self.variables.get("iids"), self.variables.get("iid")
        found = several if isinstance(several, list) else []
        return [str(iid) for iid in [*found, *([one] if one is not None else [])]]


def read_query(body: bytes) -> Query | None:
    """The query in a body; None where the body is no JSON object with a query."""
    try:
        sent = json.loads(body)
    except ValueError:
        return None
    if not isinstance(sent, dict) or not isinstance(sent.get("query"), str):
        return None
    text, variables, name = sent["query"], sent.get("variables") or {}, sent.get("operationName") or None
    if not isinstance(variables, dict) or len(text) > MAX_CHARACTERS:
        return Query(text, {})
    try:
        return Query(text, variables, name, parse(text))
    except GraphQLError as error:
        return Query(text, variables, name, None, error)


async def answer(gitlab: GitLab, request: Request) -> Response:
    """Answer a request. Its body was read before and is in the scope."""
    if request.method != "POST" or not gitlab.behaviour.graphql.enabled:
        return refused(responses.no_route(), "")
    return await run_in_threadpool(_respond, gitlab, request)


def _respond(gitlab: GitLab, request: Request) -> Response:
    query: Query | None = request.scope["sandbox.query"]
    try:
        token = access.authenticate(gitlab, request.scope["sandbox.secret"])
    except responses.Refusal as refusal:
        blocked = isinstance(refusal.body, dict) and "blocked" in str(refusal.body.get("message"))
        text = "API not accessible for user" if blocked else "Invalid token"
        return _sent(request, _failure(text), 403 if blocked else 401)
    if query is None:
        return _sent(request, _failure("Unexpected end of document"), 400)
    with gitlab.lock:
        content = _content(gitlab, query, token.user if token else None)
        return _sent(request, content)


def _sent(request: Request, content: Row, status: int = 200) -> Response:
    body = with_addresses(compact(content), request.scope["sandbox.base"])
    return Response(body, status, media_type="application/json")


def _failure(text: str) -> Row:
    return {"errors": [{"message": text}]}


def _content(gitlab: GitLab, query: Query, user: Row | None) -> Row:
    """The answer: ``data`` where the query ran, ``errors`` where something went wrong, or both."""
    if len(query.text) > MAX_CHARACTERS:
        return _failure("Query too large")
    if query.error is not None:
        return {"errors": [query.error.formatted]}
    document, operation = query.document, query.operation
    if document is None or operation is None:
        return _failure("No query string was present")
    behaviour = gitlab.behaviour
    built = schema(behaviour.graphql.missing_fields | (LATE_FIELDS if behaviour.old else frozenset()))
    if errors := validate(built, document, _RULES, max_errors=_MAX_ERRORS):
        return {"errors": [error.formatted for error in errors[:_MAX_ERRORS]]}
    variables = get_variable_values(built, operation.variable_definitions, query.variables)
    if isinstance(variables, list):
        return {"errors": [error.formatted for error in variables]}
    limit, max_depth = _limits(gitlab, user)
    found = cost(built, document, operation, variables)
    if found.complexity > limit:
        return _failure(
            f"Query has complexity of {found.complexity}, which exceeds max complexity of {limit}"
        )
    if found.depth > max_depth:
        return _failure(f"Query has depth of {found.depth}, which exceeds max depth of {max_depth}")
    reader = Reader(gitlab, user, found, limit)
    result = execute(
        built,
        document,
        reader.root(),
        variable_values=query.variables,
        operation_name=query.name,
        is_awaitable=lambda _: False,
    )
    assert isinstance(result, ExecutionResult)
    return _formatted(result)


def _formatted(result: ExecutionResult) -> Row:
    content: Row = {"data": result.data}
    if result.errors:
        content["errors"] = [error.formatted for error in result.errors]
    return content


def _limits(gitlab: GitLab, user: Row | None) -> tuple[int, int]:
    """The complexity and the depth that a reader may use."""
    lowered = gitlab.behaviour.graphql.max_complexity
    if user is None:
        return lowered or 200, 15
    return lowered or (300 if access.is_admin(gitlab, user) else 250), 20


class _FieldsExist(ValidationRule):
    """Refuses unknown fields in GitLab's words."""

    def enter_field(self, node: FieldNode, _key: Any, _parent: Any, _path: Any, ancestors: Any) -> None:
        owner, name = self.context.get_parent_type(), node.name.value
        if owner is None or self.context.get_field_def() is not None:
            return
        fields = [one for one in ancestors if isinstance(one, FieldNode)]
        path = ["query", *((one.alias or one.name).value for one in fields), name]
        self.report_error(
            GraphQLError(
                f"Field '{name}' doesn't exist on type '{owner.name}'",
                node,
                path=path,
                extensions={"code": "undefinedField", "typeName": owner.name, "fieldName": name},
            )
        )


_RULES: list[type[ASTValidationRule]] = [
    _FieldsExist,
    *(rule for rule in specified_rules if rule is not FieldsOnCorrectTypeRule),
]
