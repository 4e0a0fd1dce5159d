"""GraphQL of GitLab: its queries, how one is sent, and what an answer means for the caller.

Belongs here: the text of each query, fields that older servers lack, and the errors of an answer with status
200. Does not belong here: the request itself (:mod:`sync_pipeline.sources.gitlab.transport`), and the rows
that an answer becomes (:mod:`sync_pipeline.sources.gitlab.batches`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sync_pipeline.core.errors import AccessDenied, AnswerCut, Permanent, SourceGone, Transient
from sync_pipeline.sources.gitlab.responses import short_message
from sync_pipeline.sources.gitlab.transport import Client

REFUSED = "graphql_refused"
"""Code of the error after which GraphQL is not used: it is not there, or the answer cannot be relied on."""

TOO_LARGE = "query_too_large"
"""Code of the error after which a query for less may work."""

PAGE = 100
"""Rows of one page of a list inside a merge request: GitLab's maximum."""

_NOTE = """
fragment note on Note {
  id body createdAt updatedAt system <internal> noteableType
  author { id username name }

  resolvable resolved resolvedAt resolvedBy { id username name }
  position { diffRefs { baseSha startSha headSha } oldPath newPath oldLine newLine positionType }
  discussion { id }
}
"""
_COMMITS = """nodes {
  sha title message authorName authorEmail authoredDate committerName committerEmail committedDate
} pageInfo { hasNextPage endCursor }"""
# Which user asks shows whether the token arrived: without it only public notes come.
_MERGE_REQUESTS = """\
query %s {
  currentUser { id }
  project(fullPath: $path) {
    id
    mergeRequests(iids: $iids) { nodes { id iid %s } }
  }
}
"""

BATCH = (
    _MERGE_REQUESTS
    % (
        "reviews($path: ID!, $iids: [String!], $count: Int)",
        """
      notes(first: $count) { nodes { ...note } pageInfo { hasNextPage endCursor } }
      approvedBy(first: 100) { nodes { id username name } pageInfo { hasNextPage } }
      <reviewers> <commits> <diffRefs>
      """,
    )
    + _NOTE
)
"""The first page of merge requests: ``iids`` of the project at ``path``, with ``count`` notes each."""

MORE_NOTES = (
    _MERGE_REQUESTS
    % (
        "notes($path: ID!, $iids: [String!], $count: Int, $after: String)",
        "notes(first: $count, after: $after) { nodes { ...note } pageInfo { hasNextPage endCursor } }",
    )
    + _NOTE
)
"""A further page of the notes of one merge request, ``after`` a cursor."""

MORE_COMMITS = _MERGE_REQUESTS % (
    "commits($path: ID!, $iids: [String!], $count: Int, $after: String)",
    f"commits(first: $count, after: $after) {{ {_COMMITS} }}",
)
"""A further page of the commits of one merge request, ``after`` a cursor."""

# Each part of a query as newer servers have it, and what older ones get instead.
_PARTS = {
    "internal": ("internal", "internal: confidential"),
    "reviewers": (
        "reviewers(first: 100) { nodes { id username name mergeRequestInteraction { reviewState } } "
        "pageInfo { hasNextPage } }",
        "",
    ),
    "commits": (f"commits(first: 100) {{ {_COMMITS} }}", ""),
    "diffRefs": ("diffRefs { baseSha startSha headSha }", ""),
}
_PART_OF_FIELD = {name: name for name in _PARTS} | {
    "mergeRequestInteraction": "reviewers",
    "reviewState": "reviewers",
}
OPTIONAL_FIELDS = frozenset(_PART_OF_FIELD)
"""The names of fields that a server may lack."""

_FIELD = re.compile(r"Field '(\w+)' doesn't exist on type '\w+'")
_LIMIT = re.compile(r"\b(complexity|depth|time(d)?[ -]?out)\b", re.IGNORECASE)
# Errors of one answer that may be smaller next time, and those of a server without this GraphQL.
_SMALLER = frozenset({"server_error", "timeout", "incomplete", "content_too_large"})
_NOT_THERE = frozenset({"not_json", "redirect", "blocked", "bad_request", "denied", "scope"})

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The ``data`` of an answer. ``failed`` are the paths of those parts that the server could not give."""

    data: Mapping[str, Any]
    failed: tuple[Path, ...] = ()


def ask(client: Client, query: str, variables: Mapping[str, Any]) -> QueryResult:
    """The answer to a query of this module. A field that the server does not have is left out, and for the
    whole process.

    Raises Transient with the code :data:`TOO_LARGE` and Permanent with the code :data:`REFUSED`. Other errors
    of the transport are raised as they are: the credential, the rate limit, the network, a request to stop.
    """
    instance = client.instance
    while True:
        unknown = instance.unknown_fields
        try:
            data = client.query(text_of(query, unknown), variables).data
        except (AccessDenied, Permanent, SourceGone, Transient) as error:
            if error.code in _SMALLER or isinstance(error, AnswerCut):
                raise Transient(str(error), code=TOO_LARGE) from None
            if error.code in _NOT_THERE or isinstance(error, SourceGone):
                raise Permanent(str(error), code=REFUSED) from None
            raise
        lacking = unknown_fields(data)
        if not lacking:
            return result_of(data, instance.token())
        if lacking <= unknown or not lacking <= OPTIONAL_FIELDS:
            names = short_message(", ".join(sorted(lacking)), instance.token())
            raise Permanent(f"the server does not know {names}", code=REFUSED)
        instance.unknown_fields = instance.unknown_fields | lacking


def text_of(query: str, unknown: Collection[str] = ()) -> str:
    """The text of a query for a server that does not know the fields ``unknown``."""
    lacking = {_PART_OF_FIELD[name] for name in unknown}
    for name, (new, old) in _PARTS.items():
        query = query.replace(f"<{name}>", old if name in lacking else new)
    return query


def unknown_fields(data: Any) -> frozenset[str]:
    """The names of fields for which the server refused a query, as far as it lists them."""
    found = set()
    for error in _errors(data):
        extensions = error.get("extensions")
        if isinstance(extensions, dict) and extensions.get("code") == "undefinedField":
            found.add(str(extensions.get("fieldName")))
        elif match := _FIELD.search(str(error.get("message"))):
            found.add(match[1])
    return frozenset(found)


def result_of(data: Any, *secrets: str) -> QueryResult:
    """The meaning of a response with status 200. Raises as :func:`ask` does, with the server's message but
    without ``secrets``."""
    content = data.get("data") if isinstance(data, dict) else None
    failed: list[Path] = []
    for error in _errors(data):
        message = short_message(str(error.get("message") or "an error without a message"), *secrets)
        if _LIMIT.search(message):
            raise Transient(message, code=TOO_LARGE)
        path = error.get("path")
        if not isinstance(path, list) or not isinstance(content, dict) or path[2:3] != ["nodes"]:
            raise Permanent(message, code=REFUSED)
        failed.append(tuple(path))
    if not isinstance(content, dict):
        raise Permanent("the answer has neither data nor errors", code=REFUSED)
    return QueryResult(content, tuple(failed))


def _errors(data: Any) -> list[Mapping[str, Any]]:
    errors = data.get("errors") if isinstance(data, dict) else None
    if errors is None:
        return []
    listed = errors if isinstance(errors, list) else [errors]
    return [one if isinstance(one, dict) else {"message": one} for one in listed]
