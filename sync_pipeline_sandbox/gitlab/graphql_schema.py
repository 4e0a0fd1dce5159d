"""The GraphQL schema of the mock GitLab, and the cost of a query.

Belongs here: types, the declared cost of fields, and the numbers that GitLab limits: complexity and depth.
:mod:`sync_pipeline_sandbox.gitlab.graphql_reader` makes the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLField,
    GraphQLNamedType,
    GraphQLObjectType,
    GraphQLSchema,
    InlineFragmentNode,
    OperationDefinitionNode,
    SelectionSetNode,
    build_schema,
    get_named_type,
)
from graphql.execution.values import get_argument_values

PAGE_SIZE = 100

_SCHEMA = """
scalar Time
scalar NoteID
scalar DiscussionID

type Query {
  currentUser: CurrentUser
  project(fullPath: ID!): Project
  metadata: Metadata
  queryComplexity: QueryComplexity
}
type QueryComplexity { score: Int limit: Int }
type CurrentUser { id: ID! username: String! name: String! }
type Metadata { version: String! revision: String! enterprise: Boolean! }

type Project {
  id: ID!
  fullPath: ID!
  archived: Boolean
  mergeRequest(iid: String!): MergeRequest
  mergeRequests(
    iids: [String!], state: MergeRequestState, updatedAfter: Time, updatedBefore: Time,
    sort: MergeRequestSort = CREATED_DESC, after: String, first: Int
  ): MergeRequestConnection
}
type MergeRequestConnection {
  count: Int nodes: [MergeRequest] edges: [MergeRequestEdge] pageInfo: PageInfo!
}
type MergeRequestEdge { cursor: String! node: MergeRequest }
type PageInfo { hasNextPage: Boolean! hasPreviousPage: Boolean! startCursor: String endCursor: String }

enum MergeRequestState { opened closed merged locked all }
enum MergeRequestSort { CREATED_ASC CREATED_DESC UPDATED_ASC UPDATED_DESC }

type MergeRequest {
  id: ID!
  iid: String!
  projectId: Int!
  sourceProjectId: Int
  targetProjectId: Int!
  project: Project!
  title: String!
  description: String
  state: MergeRequestState!
  draft: Boolean!
  sourceBranch: String!
  targetBranch: String!
  createdAt: Time!
  updatedAt: Time!
  mergedAt: Time
  closedAt: Time
  preparedAt: Time
  mergeAfter: Time
  author: MergeRequestAuthor
  assignees(after: String, first: Int): MergeRequestAssigneeConnection
  reviewers(after: String, first: Int): MergeRequestReviewerConnection
  approved: Boolean!
  approvedBy(after: String, first: Int): UserConnection
  mergeUser: User
  diffHeadSha: String
  diffRefs: DiffRefs
  mergeCommitSha: String
  mergeStatusEnum: MergeStatus
  detailedMergeStatus: DetailedMergeStatus
  commitCount: Int
  commits(after: String, first: Int): CommitConnection
  labels(after: String, first: Int): LabelConnection
  milestone: Milestone
  userNotesCount: Int
  userDiscussionsCount: Int
  resolvableDiscussionsCount: Int
  resolvedDiscussionsCount: Int
  upvotes: Int!
  downvotes: Int!
  discussionLocked: Boolean!
  squash: Boolean!
  webUrl: String
  reference(full: Boolean = false): String!
  notes(after: String, first: Int): NoteConnection!
  discussions(after: String, first: Int): DiscussionConnection!
}
type DiffRefs { baseSha: String headSha: String! startSha: String! }
enum MergeStatus { UNCHECKED CHECKING CAN_BE_MERGED CANNOT_BE_MERGED CANNOT_BE_MERGED_RECHECK }
enum DetailedMergeStatus {
  UNCHECKED CHECKING MERGEABLE CONFLICT CI_MUST_PASS CI_STILL_RUNNING DISCUSSIONS_NOT_RESOLVED DRAFT_STATUS
  NOT_OPEN NOT_APPROVED BLOCKED_STATUS NEED_REBASE PREPARING REQUESTED_CHANGES
}

type User {
  id: ID! username: String! name: String! publicEmail: String bot: Boolean! webUrl: String!
}
type MergeRequestAuthor {
  id: ID! username: String! name: String! publicEmail: String bot: Boolean! webUrl: String!
  mergeRequestInteraction: UserMergeRequestInteraction
}
type MergeRequestAssignee {
  id: ID! username: String! name: String! publicEmail: String bot: Boolean! webUrl: String!
  mergeRequestInteraction: UserMergeRequestInteraction
}
type MergeRequestReviewer {
  id: ID! username: String! name: String! publicEmail: String bot: Boolean! webUrl: String!
  mergeRequestInteraction: UserMergeRequestInteraction
}
type UserMergeRequestInteraction {
  canMerge: Boolean! canUpdate: Boolean! reviewState: MergeRequestReviewState
  reviewed: Boolean! approved: Boolean!
}
enum MergeRequestReviewState { UNREVIEWED REVIEWED REQUESTED_CHANGES APPROVED UNAPPROVED REVIEW_STARTED }

type Note {
  id: NoteID!
  body: String!
  author: User
  createdAt: Time!
  updatedAt: Time!
  lastEditedAt: Time
  system: Boolean!
  systemNoteIconName: String
  systemNoteMetadata: SystemNoteMetadata
  internal: Boolean
  confidential: Boolean
  imported: Boolean
  noteableType: String!
  noteableId: Int
  position: DiffPosition
  discussion: Discussion
  url: String
  resolvable: Boolean!
  resolved: Boolean!
  resolvedAt: Time
  resolvedBy: User
}
type SystemNoteMetadata { id: ID! action: String descriptionVersion: DescriptionVersion }
type DescriptionVersion { id: ID! }
type DiffPosition {
  diffRefs: DiffRefs! filePath: String! oldPath: String newPath: String oldLine: Int newLine: Int
  positionType: String!
}
type Discussion {
  id: DiscussionID!
  replyId: DiscussionID!
  createdAt: Time!
  notes(after: String, first: Int): NoteConnection!
  resolvable: Boolean!
  resolved: Boolean!
  resolvedAt: Time
  resolvedBy: User
}
type Commit {
  id: ID! sha: String! shortId: String! title: String message: String parentSha: String
  authoredDate: Time committedDate: Time authorName: String authorEmail: String
  committerName: String committerEmail: String author: User webUrl: String!
}
type Label { id: ID! title: String! color: String! }
type Milestone { id: ID! iid: ID! title: String! state: String! }

type UserConnection { nodes: [User] pageInfo: PageInfo! }
type MergeRequestAssigneeConnection { nodes: [MergeRequestAssignee] pageInfo: PageInfo! }
type MergeRequestReviewerConnection { nodes: [MergeRequestReviewer] pageInfo: PageInfo! }
type CommitConnection { nodes: [Commit] pageInfo: PageInfo! }
type LabelConnection { nodes: [Label] pageInfo: PageInfo! }
type NoteConnection { count: Int nodes: [Note] pageInfo: PageInfo! }
type DiscussionConnection { nodes: [Discussion] pageInfo: PageInfo! }
"""

LATE_FIELDS = frozenset(
    {
        "MergeRequest.detailedMergeStatus",
        "MergeRequest.mergeAfter",
        "MergeRequest.mergeUser",
        "MergeRequest.preparedAt",
        "MergeRequest.reviewers",
        "Note.imported",
        "Note.internal",
        "Note.systemNoteMetadata",
    }
)
"""The fields that an old server does not have."""
_DECLARED_COST = {
    "MergeRequest.mergedAt": 5,
    "MergeRequest.closedAt": 5,
    "MergeRequest.assignees": 5,
    "MergeRequest.reviewers": 5,
    "MergeRequest.labels": 5,
}
"""Cost of a field by type and name; 1 for those that are not here."""
_CALLS_GITALY = frozenset(
    {
        "MergeRequest.approved",
        "MergeRequest.diffHeadSha",
        "MergeRequest.detailedMergeStatus",
        "MergeRequest.commits",
        "Commit.title",
    }
)
_MULTIPLIED = frozenset({"Project.mergeRequests", "MergeRequest.notes"})
"""Connections that cost one percent more for each row of a page."""


@lru_cache(maxsize=16)
def schema(missing: frozenset[str] = frozenset()) -> GraphQLSchema:
    """The schema without the fields in ``missing``, each given as ``Type.field``."""
    built = build_schema(_SCHEMA)
    for name in missing:
        type_name, _, field_name = name.partition(".")
        owner = built.type_map[type_name]
        assert isinstance(owner, GraphQLObjectType)
        del owner.fields[field_name]
    return built


@dataclass(frozen=True, slots=True)
class Cost:
    """What a query costs before it runs. ``depth`` counts nested fields."""

    complexity: int
    depth: int


def cost(
    built: GraphQLSchema,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    variables: Mapping[str, Any],
) -> Cost:
    """The cost of a valid operation; ``variables`` are the coerced ones."""
    fragments = {
        node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)
    }
    root = built.query_type
    assert root is not None
    counter = _Counter(fragments, dict(variables))
    return Cost(
        counter.complexity(root, [operation.selection_set]), counter.depth(root, [operation.selection_set])
    )


@dataclass(frozen=True, slots=True)
class _Counter:
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: dict[str, Any]

    def complexity(self, owner: GraphQLNamedType, selections: Iterable[SelectionSetNode]) -> int:
        """The sum over the fields; a field that is named twice counts once."""
        if not isinstance(owner, GraphQLObjectType):
            return 0
        total = 0
        for nodes in self._fields(selections).values():
            definition = owner.fields.get(nodes[0].name.value)
            if definition is None:  # introspection
                continue
            children = [node.selection_set for node in nodes if node.selection_set]
            below = self.complexity(get_named_type(definition.type), children)
            total += self._own(f"{owner.name}.{nodes[0].name.value}", definition, nodes[0], below)
        return total

    def depth(self, owner: GraphQLNamedType, selections: Iterable[SelectionSetNode]) -> int:
        """The number of fields on the longest path."""
        if not isinstance(owner, GraphQLObjectType):
            return 0
        deepest = 0
        for nodes in self._fields(selections).values():
            definition = owner.fields.get(nodes[0].name.value)
            if definition is not None:
                children = [node.selection_set for node in nodes if node.selection_set]
                deepest = max(deepest, 1 + self.depth(get_named_type(definition.type), children))
        return deepest

    def _own(self, name: str, definition: GraphQLField, node: FieldNode, below: int) -> int:
        arguments = get_argument_values(definition, node, self.variables)
        total = below + _DECLARED_COST.get(name, 1)
        total += name in _CALLS_GITALY
        total += arguments.get("sort") is not None
        if name in _MULTIPLIED and "iids" not in arguments:
            rows = min(PAGE_SIZE, PAGE_SIZE if arguments.get("first") is None else arguments["first"])
            total += total * rows // 100
        return total

    def _fields(self, selections: Iterable[SelectionSetNode]) -> dict[str, list[FieldNode]]:
        """Fields by the name they get in the answer, those of fragments among them."""
        found: dict[str, list[FieldNode]] = {}
        waiting = list(selections)
        while waiting:
            for node in waiting.pop().selections:
                if isinstance(node, FieldNode):
                    found.setdefault((node.alias or node.name).value, []).append(node)
                elif isinstance(node, InlineFragmentNode):
                    waiting.append(node.selection_set)
                elif isinstance(node, FragmentSpreadNode):
                    waiting.append(self.fragments[node.name.value].selection_set)
        return found
