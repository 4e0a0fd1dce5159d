"""Rows as a source has them now, compared with those that are stored, value by value.

Belongs here: the comparison itself, which the database does, so that both sides have its types. Compared is
what would be stored with what is stored, never a hash that was kept: a row that was changed behind our back
has its old one. Left out are ``raw``, which holds what changes without meaning anything, and what is ours.
Does not belong here: reading a source, and what follows from a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from sync_pipeline.gitlab_rows import CommitRow, MergeRequestRow, Origin, ReviewSet
from sync_pipeline.model import (
    BEGINNING,
    JobType,
    PathChange,
    RevisionRow,
    RevisionWindow,
    Visibility,
    Window,
)
from sync_pipeline.store import commits, facts, merge_requests, reviews
from sync_pipeline.store.database import Connection
from sync_pipeline.store.raw import recordset
from sync_pipeline.store.tables import (
    COMMITS,
    MERGE_REQUEST_COMMITS,
    MERGE_REQUESTS,
    REVIEW_EVENTS,
    VERSIONS,
)

# Merge requests as the source has them, with the names of the columns that differ; NULL where none is stored.
# What only versions say is compared where it was read, and so are the sets of versions and commits. Servers
# give people and labels in any order.
_MERGE_REQUESTS = MERGE_REQUESTS.sql(
    """
WITH source AS (
    SELECT * FROM json_to_recordset(%(rows)s) AS s ({shown}, versions jsonb, commits jsonb)
), known AS (
    SELECT m.*,
           (SELECT coalesce(jsonb_agg(to_jsonb(v) - '{{repo_id,replaced_id,raw}}'::text[]
                                      ORDER BY v.version_id), '[]')
              FROM scm.mr_versions AS v
             WHERE v.repo_id = m.repo_id AND v.mr_iid = m.iid AND v.replaced_id = 0) AS versions,
           (SELECT coalesce(jsonb_agg(to_jsonb(c) - '{{repo_id,replaced_id,raw}}'::text[]
                                      ORDER BY c.position), '[]')
              FROM scm.mr_commits AS c
             WHERE c.repo_id = m.repo_id AND c.mr_iid = m.iid AND c.replaced_id = 0) AS commits
      FROM scm.mrs AS m
     WHERE m.repo_id = %(repo_id)s AND m.iid = ANY (%(iids)s) AND m.deleted_at IS NULL
), sides AS (
    SELECT s.iid, t.iid IS NULL AS missing, t.updated_at,
           to_jsonb(s) || jsonb_build_object(
               {lacking},
               'versions', coalesce(
                   (SELECT jsonb_agg(to_jsonb(v) ORDER BY v.version_id)
                      FROM jsonb_to_recordset(s.versions) AS v ({versions_shown})),
                   s.versions, t.versions),
               'commits', coalesce(
                   (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.position)
                      FROM jsonb_to_recordset(s.commits) AS c ({commits_shown})),
                   s.commits, t.commits)) AS source,
           to_jsonb(t) || jsonb_build_object({sorted}) AS stored
      FROM source AS s
      LEFT JOIN known AS t USING (iid)
)
SELECT iid, missing, updated_at,
       ARRAY(SELECT e.key FROM jsonb_each(source) AS e
              WHERE NOT missing AND e.value IS DISTINCT FROM stored -> e.key ORDER BY e.key) AS fields
  FROM sides
 ORDER BY iid
""",
    versions=VERSIONS,
    commits=MERGE_REQUEST_COMMITS,
)

# Which stored merge requests were last updated in a window.
_MERGE_REQUESTS_IN = """
SELECT iid, least(updated_at, '9999-01-01') AS updated_at FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
   AND (updated_at >= %(since)s OR %(from_beginning)s) AND (updated_at < %(until)s OR %(to_end)s)
"""

# Some that the source should have, to tell whether it shows any at all.
_OTHERS = """
SELECT iid FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND iid <> ALL (%(iids)s)
 ORDER BY iid DESC
 LIMIT %(limit)s
"""

# Of which merge requests a review is stored, by when they were updated at its reading; one without a reading
# by when its events happened.
_REVIEWS_IN = """
SELECT r.mr_iid AS iid, r.mr_updated_at AS updated_at
  FROM scm.mr_reviews AS r
 WHERE r.repo_id = %(repo_id)s AND r.replaced_id = 0
   AND r.mr_updated_at >= %(since)s AND r.mr_updated_at < %(until)s
   AND EXISTS (SELECT FROM scm.review_events AS e
                WHERE e.repo_id = r.repo_id AND e.mr_iid = r.mr_iid AND e.deleted_at IS NULL)
UNION
SELECT e.mr_iid, min(e.ts)
  FROM scm.review_events AS e
 WHERE e.repo_id = %(repo_id)s AND e.deleted_at IS NULL AND e.ts >= %(since)s AND e.ts < %(until)s
   AND NOT EXISTS (SELECT FROM scm.mr_reviews AS r
                    WHERE r.repo_id = e.repo_id AND r.mr_iid = e.mr_iid AND r.replaced_id = 0
                      AND r.mr_updated_at > '-infinity')
 GROUP BY e.mr_iid
"""

# The events of some reviews as the source has them beside those that are stored, with the names of the
# columns that differ. Events that went missing at an earlier reading are there to be confirmed.
_EVENTS = REVIEW_EVENTS.sql("""
WITH source AS (
    SELECT * FROM json_to_recordset(%(rows)s) AS s ({shown})
), known AS (
    SELECT * FROM scm.review_events AS e
     WHERE e.repo_id = %(repo_id)s AND e.mr_iid = ANY (%(iids)s) AND e.deleted_at IS NULL
)
SELECT coalesce(s.mr_iid, e.mr_iid) AS iid, coalesce(s.source_event_id, e.source_event_id) AS event_id,
       coalesce(e.origin, s.origin) AS origin, coalesce(s.is_internal, e.is_internal) AS is_internal,
       greatest(s.ts, s.updated_at) AS happened_at, e.id IS NULL AS missing, s.mr_iid IS NULL AS extra,
       ARRAY(SELECT f.key FROM jsonb_each(to_jsonb(s)) AS f
              WHERE s.mr_iid IS NOT NULL AND e.id IS NOT NULL
                AND f.value IS DISTINCT FROM to_jsonb(e) -> f.key
              ORDER BY f.key)
       || CASE WHEN s.mr_iid IS NOT NULL AND e.missing_since IS NOT NULL THEN ARRAY['missing_since']
               ELSE '{{}}' END AS fields
  FROM source AS s
  FULL JOIN known AS e ON e.mr_iid = s.mr_iid AND e.source_event_id = s.source_event_id
 ORDER BY 1, 2
""")

# Who approves and who is asked, likewise. What the source does not tell is no difference.
_PEOPLE = """
WITH source AS (
    SELECT * FROM json_to_recordset(%(rows)s)
        AS s (mr_iid bigint, role text, person text, user_id bigint, username text, name text,
              at timestamptz, state text)
), known AS (
    SELECT mr_iid, 'approval' AS role, person, user_id, username, name, approved_at AS at,
           'approved_at' AS time_column, NULL AS state
      FROM scm.mr_approvals
     WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(approved)s) AND closed_at IS NULL
    UNION ALL
    SELECT mr_iid, 'reviewer', person, user_id, username, name, requested_at, 'requested_at', state
      FROM scm.mr_reviewers
     WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(asked)s) AND closed_at IS NULL
)
SELECT coalesce(s.mr_iid, k.mr_iid) AS iid, coalesce(s.role, k.role) AS role,
       coalesce(s.person, k.person) AS person, s.at AS happened_at,
       k.mr_iid IS NULL AS missing, s.mr_iid IS NULL AS extra,
       ARRAY(SELECT f.name
               FROM (VALUES (k.time_column, s.at::text, k.at::text), ('name', s.name, k.name),
                            ('state', s.state, k.state), ('user_id', s.user_id::text, k.user_id::text),
                            ('username', s.username, k.username))
                 AS f (name, source, stored)
              WHERE k.mr_iid IS NOT NULL AND f.source IS NOT NULL AND f.source IS DISTINCT FROM f.stored
              ORDER BY f.name) AS fields
  FROM source AS s
  FULL JOIN known AS k ON k.mr_iid = s.mr_iid AND k.role = s.role AND k.person = s.person
 ORDER BY 1, 2, 3
"""

# Of which merge requests the list alone shows that the stored review is not as the source has it: never read,
# read as of another update, another number of comments, or events that are waited for to come back.
_REVIEWS_DIFFER = """
SELECT s.iid
  FROM json_to_recordset(%(rows)s)
    AS s (iid bigint, gitlab_id bigint, updated_at timestamptz, user_notes_count bigint)
  LEFT JOIN scm.mr_reviews AS r ON r.repo_id = %(repo_id)s AND r.mr_iid = s.iid AND r.replaced_id = 0
 WHERE r.mr_updated_at IS DISTINCT FROM s.updated_at OR r.gitlab_id <> s.gitlab_id
    OR EXISTS (SELECT FROM scm.review_events AS e
                WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.iid AND e.deleted_at IS NULL
                  AND e.missing_since IS NOT NULL)
    OR (s.user_notes_count IS NOT NULL
        AND s.user_notes_count <> (SELECT count(*) FROM scm.review_events AS e
                                    WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.iid
                                      AND e.origin = 'note' AND NOT e.is_system AND e.deleted_at IS NULL))
"""

_HIDDEN_NOTES = """
SELECT mr_iid, hidden_notes FROM scm.mr_reviews
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND hidden_notes > 0
"""

# Commits as the source has them, with the names of the columns that differ. Numbers of lines and parents that
# the source does not give are no difference. Nor is a stored row whose parents are still to be read.
_COMMITS = COMMITS.sql("""
WITH source AS (
    SELECT * FROM json_to_recordset(%(rows)s) AS s ({shown})
), known AS (
    SELECT * FROM scm.git_commits AS c
     WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s) AND c.deleted_at IS NULL
)
SELECT s.commit_sha AS sha, t.commit_sha IS NULL AS missing,
       ARRAY(SELECT f.key FROM jsonb_each(to_jsonb(s) || jsonb_build_object({lacking})) AS f
              WHERE t.parents IS NOT NULL AND f.key <> 'flags'
                AND f.value IS DISTINCT FROM to_jsonb(t) -> f.key
              ORDER BY f.key) AS fields
  FROM source AS s
  LEFT JOIN known AS t USING (commit_sha)
 ORDER BY s.commit_sha
""")

# Which stored commits were committed in a window; its first and last part hold also what has no date and what
# lies before and after all that can be covered.
_COMMITS_IN = """
SELECT commit_sha AS sha, ts, unreachable_since IS NOT NULL AS unreachable FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
   AND ((ts >= %(since)s AND ts < %(until)s)
        OR (%(from_beginning)s AND (ts IS NULL OR ts < %(since)s))
        OR (%(to_end)s AND ts >= %(until)s))
 ORDER BY commit_sha
"""

# Commits that are not stored, or only as tombstones, and that a stored one or a covered ref names. Lost is
# what a complete walk has stored once: that is missed whatever refs reach.
_UNSTORED = """
SELECT n.sha, bool_or(n.walked)
              AND NOT EXISTS (SELECT FROM scm.git_commits AS o
                               WHERE o.repo_id = %(repo_id)s AND o.commit_sha = n.sha) AS lost
  FROM (SELECT covered_tip AS sha, FALSE AS walked FROM scm.refs
         WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND covered_tip IS NOT NULL
        UNION ALL
        SELECT p.sha, w.completed_at IS NOT NULL AND c.deleted_at IS NULL
          FROM scm.git_commits AS c
          LEFT JOIN scm.ref_walks AS w USING (walk_id)
         CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
         WHERE c.repo_id = %(repo_id)s) AS n
 WHERE NOT EXISTS (SELECT FROM scm.git_commits AS o
                    WHERE o.repo_id = %(repo_id)s AND o.commit_sha = n.sha AND o.deleted_at IS NULL)
 GROUP BY n.sha
"""

# Those of the others that lie in what is covered: an interrupted walk leaves others.
_COVERED = """
WITH RECURSIVE reached (sha) AS (
    SELECT covered_tip FROM scm.refs
     WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND covered_tip IS NOT NULL
    UNION
    SELECT p.sha
      FROM reached AS r
     CROSS JOIN LATERAL (SELECT c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = r.sha LIMIT 1) AS c
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
)
SELECT sha FROM reached WHERE sha = ANY (%(shas)s) ORDER BY sha
"""

# What is stored of some revisions; their paths are compared by a hash over the rows themselves.
_REVISIONS_IN = """
SELECT rev_num, author_raw, ts, message, visibility, path_count, flags, meta_json, richness, paths_hash
  FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s AND deleted_at IS NULL
"""

_PATHS_IN = """
SELECT rev_num, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods
  FROM scm.svn_changed_paths
 WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s
 ORDER BY rev_num, path_no
"""

# How many rows a comparison of a window would ask for, about; reviews by their merge requests.
_COUNT_REVISIONS = """
SELECT count(*) AS rows FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num >= %(start)s AND rev_num < %(end)s AND deleted_at IS NULL
"""
_COUNT_COMMITS = """
SELECT count(*) AS rows FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND ts >= %(start)s AND ts < %(end)s AND deleted_at IS NULL
"""
_COUNT_MERGE_REQUESTS = """
SELECT count(*) AS rows FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND updated_at >= %(start)s AND updated_at < %(end)s AND deleted_at IS NULL
"""
_COUNT_REVIEWS = """
SELECT count(*) AS rows FROM scm.mr_reviews
 WHERE repo_id = %(repo_id)s AND replaced_id = 0 AND mr_updated_at >= %(start)s AND mr_updated_at < %(end)s
"""
_COUNT = {
    JobType.REVISIONS: _COUNT_REVISIONS,
    JobType.COMMITS: _COUNT_COMMITS,
    JobType.MERGE_REQUESTS: _COUNT_MERGE_REQUESTS,
    JobType.REVIEWS: _COUNT_REVIEWS,
}


# Origins whose events tell what some notes tell too, and what such a note is then.
_STRUCTURED = frozenset({Origin.STATE, Origin.LABEL, Origin.MILESTONE})
_TOLD_BY_EVENTS = frozenset({"event_type", "duplicate_of"})


@dataclass(frozen=True, slots=True)
class ComparedRevisions:
    """Revisions of a window beside the stored ones: how many there are of each, those that are ``missing``
    here or ``extra``, and of those that differ the columns, ``paths`` for their changed paths. ``poorer`` are
    those of which the source shows less than is stored: access was reduced, and nothing is known of them."""

    expected: int
    stored: int
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    changed: dict[int, tuple[str, ...]]
    poorer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ComparedCommit:
    """A commit of the source beside the stored one. ``missing``: there is none. ``fields`` are the columns
    whose values differ."""

    sha: str
    missing: bool
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A stored commit: when it was committed (UTC), and whether no branch and no tag reaches it."""

    ts: datetime | None
    unreachable: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A merge request of the source beside the stored one. ``missing``: there is none. ``fields`` are the
    columns whose values differ; ``updated_at`` is that of the stored one."""

    iid: int
    missing: bool
    updated_at: datetime | None
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A part of a review: an event, an approval or a reviewer, by its ``natural_key``. ``missing``: it is not
    stored; ``extra``: the source does not have it. ``happened_at`` is the source's time of it, None where it
    has none."""

    iid: int
    natural_key: str
    missing: bool
    extra: bool
    fields: tuple[str, ...]
    happened_at: datetime | None
    origin: Origin | None = None
    is_internal: bool = False


def compare_merge_requests(conn: Connection, repo_id: int, rows: Iterable[MergeRequestRow]) -> list[Compared]:
    """Merge requests as the source has them, each beside the stored one. A tombstone counts as not stored."""
    once = {row.iid: row for row in rows}
    if not once:
        return []
    columns = []
    for row in once.values():
        children = merge_requests.Children(row)
        columns.append(
            merge_requests.columns(row, children)
            | {"versions": _without_raw(children.versions), "commits": _without_raw(children.commits)}
        )
    params = {"repo_id": repo_id, "iids": list(once), "rows": recordset(columns)}
    return [
        Compared(row["iid"], row["missing"], row["updated_at"], tuple(row["fields"]))
        for row in conn.execute(_MERGE_REQUESTS, params)
    ]


def _without_raw(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if rows is None:
        return None
    return [{name: value for name, value in row.items() if name != "raw"} for row in rows]


def merge_requests_in(
    conn: Connection,
    repo_id: int,
    since: datetime,
    until: datetime,
    *,
    of_reviews: bool = False,
    to_end: bool = False,
) -> dict[int, datetime]:
    """The numbers of the stored merge requests that were last updated in a window, with that time; with
    ``of_reviews`` of those whose review is stored. One from the beginning holds also those before it, and
    with ``to_end`` it holds also those after it, unless they are of reviews."""
    query = _REVIEWS_IN if of_reviews else _MERGE_REQUESTS_IN
    params = {"repo_id": repo_id, "since": since, "until": until}
    rows = conn.execute(query, params | {"from_beginning": since <= BEGINNING, "to_end": to_end})
    return {row["iid"]: row["updated_at"] for row in rows}


def other_merge_requests(conn: Connection, repo_id: int, iids: Sequence[int], limit: int) -> list[int]:
    """At most ``limit`` stored merge requests that are not among ``iids``, the newest."""
    rows = conn.execute(_OTHERS, {"repo_id": repo_id, "iids": list(iids), "limit": limit})
    return [row["iid"] for row in rows]


def reviews_that_differ(conn: Connection, repo_id: int, rows: Sequence[MergeRequestRow]) -> set[int]:
    """Of which of these merge requests the list alone shows that the stored review is another one."""
    listed = recordset(
        {
            "iid": row.iid,
            "gitlab_id": row.mr_id,
            "updated_at": row.updated_at,
            "user_notes_count": row.user_notes_count,
        }
        for row in rows
    )
    return {row["iid"] for row in conn.execute(_REVIEWS_DIFFER, {"repo_id": repo_id, "rows": listed})}


def hidden_notes(conn: Connection, repo_id: int, iids: Collection[int]) -> dict[int, int]:
    """How many comments of these merge requests the token may not see, as far as that is known."""
    rows = conn.execute(_HIDDEN_NOTES, {"repo_id": repo_id, "iids": list(iids)})
    return {row["mr_iid"]: row["hidden_notes"] for row in rows}


def compare_reviews(
    conn: Connection, repo_id: int, sets: Sequence[ReviewSet], gone: Collection[int] = ()
) -> list[ComparedPart]:
    """The parts of reviews as the source has them, each beside the stored one; those of merge requests that
    are ``gone`` are all extra. Of an origin or a set that was not read to its end nothing is extra, nor is
    what could not be read; and which note tells what an event tells is known only with all events."""
    found = reviews.with_discussions(conn, repo_id, sets)
    whole = {(one.mr_iid, origin) for one in found for origin in reviews.complete_origins(one)}
    whole |= {(iid, origin) for iid in gone for origin in Origin}
    unreadable = {row.natural_key for one in found for row in one.quarantined}
    partly = {one.mr_iid for one in found if not one.whole.issuperset(_STRUCTURED)}
    iids = [*(one.mr_iid for one in found), *gone]
    if not iids:
        return []
    events = recordset(reviews.columns(row) for one in found for row in one.events)
    parts = [
        ComparedPart(
            row["iid"],
            f"{row['iid']}:{row['event_id']}",
            row["missing"],
            row["extra"],
            tuple(name for name in row["fields"] if row["iid"] not in partly or name not in _TOLD_BY_EVENTS),
            row["happened_at"],
            Origin(row["origin"]),
            row["is_internal"],
        )
        for row in conn.execute(_EVENTS, {"repo_id": repo_id, "iids": iids, "rows": events})
        if not row["extra"] or (row["iid"], Origin(row["origin"])) in whole
    ]
    approvals, reviewers = reviews.approvals_of(found), reviews.reviewers_of(found)
    # Who is listed twice is one, the later, as where they are stored.
    people = {
        (row["mr_iid"], role, row["person"]): {
            "mr_iid": row["mr_iid"],
            "role": role,
            "person": row["person"],
            "user_id": row["user_id"],
            "username": row["username"],
            "name": row["name"],
            "at": row.get("approved_at", row.get("requested_at")),
            "state": row.get("state"),
        }
        for role, some in (("approval", approvals), ("reviewer", reviewers))
        for _, rows in some
        for row in rows
    }
    params = {
        "repo_id": repo_id,
        "rows": recordset(people.values()),
        "approved": [*(iid for iid, _ in approvals), *gone],
        "asked": [*(iid for iid, _ in reviewers), *gone],
    }
    parts += [
        ComparedPart(
            row["iid"],
            f"{row['iid']}:{row['role']}:{row['person']}",
            row["missing"],
            row["extra"],
            tuple(row["fields"]),
            row["happened_at"],
        )
        for row in conn.execute(_PEOPLE, params)
    ]
    return [part for part in parts if part.natural_key not in unreadable]


def compare_commits(conn: Connection, repo_id: int, rows: Iterable[CommitRow]) -> list[ComparedCommit]:
    """Commits as the source has them, each beside the stored one. A tombstone counts as not stored."""
    once = {row.sha: row for row in rows}
    if not once:
        return []
    params = {
        "repo_id": repo_id,
        "shas": list(once),
        "rows": recordset(commits.columns(row) for row in once.values()),
    }
    return [
        ComparedCommit(row["sha"], row["missing"], tuple(row["fields"]))
        for row in conn.execute(_COMMITS, params)
    ]


def commits_in(
    conn: Connection, repo_id: int, since: datetime, until: datetime, *, to_end: bool
) -> dict[str, StoredCommit]:
    """The stored commits that were committed in a window. One from the beginning holds also those before it
    and those without a date; with ``to_end`` it holds also those after it."""
    params = {
        "repo_id": repo_id,
        "since": since,
        "until": until,
        "from_beginning": since <= BEGINNING,
        "to_end": to_end,
    }
    return {
        row["sha"]: StoredCommit(row["ts"], row["unreachable"]) for row in conn.execute(_COMMITS_IN, params)
    }


def unstored_commits(conn: Connection, repo_id: int) -> list[str]:
    """Commits in the history of covered refs that are not stored, or only as tombstones, as far as stored
    ones lead there; and any other that was read once."""
    named = conn.execute(_UNSTORED, {"repo_id": repo_id}).fetchall()
    lost = {row["sha"] for row in named if row["lost"]}
    others = [row["sha"] for row in named if not row["lost"]]
    if others:
        rows = conn.execute(_COVERED, {"repo_id": repo_id, "shas": others})
        lost.update(row["sha"] for row in rows)
    return sorted(lost)


def compare_revisions(
    conn: Connection, repo_id: int, window: RevisionWindow, rows: Iterable[RevisionRow]
) -> ComparedRevisions:
    """The revisions of ``window`` as the source has them beside those that are stored. ``rows`` is consumed
    once, and memory does not grow with the number of paths."""
    params = {"repo_id": repo_id, "first": window.first, "end": window.end}
    stored = {row["rev_num"]: row for row in conn.execute(_REVISIONS_IN, params)}
    hashes: dict[int, bytes] = {}
    with conn.transaction(), conn.cursor(name="paths") as cursor:
        cursor.itersize = 5000
        for rev_num, paths in groupby(cursor.execute(_PATHS_IN, params), itemgetter("rev_num")):
            hashes[rev_num] = facts.paths_hash(
                PathChange(**{name: value for name, value in path.items() if name != "rev_num"})
                for path in paths
            )
    nothing = facts.paths_hash(())
    expected = 0
    missing: list[int] = []
    poorer: list[int] = []
    seen: set[int] = set()
    changed: dict[int, tuple[str, ...]] = {}
    for row in rows:
        expected += 1
        seen.add(row.rev_num)
        count, digest = facts.counted_paths(row.paths)
        known = stored.get(row.rev_num)
        if known is None:
            missing.append(row.rev_num)
            continue
        # What is noted of it beside follows from these, and later looks rely on that.
        richness = facts.detail_level_of(Visibility(known["visibility"]), known["flags"])
        if facts.detail_level(row) < richness:
            poorer.append(row.rev_num)
        else:
            source = facts.columns(row, count)
            fields = [name for name, value in source.items() if known[name] != value]
            if hashes.get(row.rev_num, nothing) != digest:
                fields.append("paths")
            elif known["paths_hash"] != digest:
                fields.append("paths_hash")
            if known["richness"] != richness:
                fields.append("richness")
            if fields:
                changed[row.rev_num] = tuple(sorted(fields))
    extra = tuple(sorted(stored.keys() - seen))
    return ComparedRevisions(expected, len(stored), tuple(missing), extra, changed, tuple(poorer))


def count_in(conn: Connection, repo_id: int, job_type: JobType, window: Window) -> int:
    """How many revisions, commits or merge requests of ``window`` are stored."""
    start, end = (
        (window.first, window.end) if isinstance(window, RevisionWindow) else (window.since, window.until)
    )
    row = conn.execute(_COUNT[job_type], {"repo_id": repo_id, "start": start, "end": end}).fetchone()
    assert row is not None
    return int(row["rows"])
