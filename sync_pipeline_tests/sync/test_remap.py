"""Facts that an older mapping left wrong become what today's mapping makes of their raw, without the source.

Belongs here: the command's work through the engine, on facts that a real reading stored and that the test
then spoils, column by column.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from sync_pipeline.core.errors import Cancelled, ConfigurationError
from sync_pipeline.core.model import Counts, JobReport, JobStatus, JobType, Mode, RunStatus
from sync_pipeline.database.pool import Database
from sync_pipeline.database.values import ESCAPED, payload
from sync_pipeline.facts import commits
from sync_pipeline.ledger import integrity_checks, jobs, leases, planning, repos
from sync_pipeline.reports import health
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab import graphql
from sync_pipeline.sources.gitlab.batches import number_of
from sync_pipeline.sources.gitlab.fields import commit
from sync_pipeline.sync import remap
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests import builders
from sync_pipeline_tests.faults.test_any_history import DEEDS, History
from sync_pipeline_tests.sync.conftest import START, Forge

COMMITS, MRS, REVIEWS = JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS
TYPES = (COMMITS, MRS, REVIEWS)
NASTY = "a\0b \ud83d \\u0041 \\\\ 'quoted' \N{PILE OF POO} \u202e"

# What the source alone can say, and what tells one version from another.
_KEPT = {
    "git_commits": {
        "repo_id",
        "commit_sha",
        "raw",
        "walk_id",
        "unreachable_since",
        "deleted_at",
        "parents_asked_at",
    },
    "mrs": {"repo_id", "iid", "raw", "children_head", "children_target", "read_at", "deleted_at"}
    | {"base_sha", "start_sha", "changes_count", "versions_read_at"},
    "mr_versions": {"repo_id", "mr_iid", "version_id", "raw"},
    "mr_commits": {"repo_id", "mr_iid", "position", "raw"},
    "review_events": {"repo_id", "mr_iid", "source_event_id", "origin", "raw", "discussion_id", "is_reply"}
    | {"missing_since", "deleted_at", "time_precision"},
}
_BOOKKEEPING = {"version", "batch_id", "first_seen_at", "stored_at", "replaced_id"}
_WRONG = {
    "text": "'spoiled'",
    "bigint": "-1",
    "boolean": "FALSE",
    "timestamp with time zone": "'1999-01-01'",
    "jsonb": """'[{"spoiled": true}]'""",
    "bytea": "'spoiled'",
}
_WRONG_COLUMNS = {
    "status": "'locked'",
    "parents": "'{spoiled}'",
    "labels": "'{spoiled}'",
    # How a raw is stored, and that statistics are owed, is no reading of it.
    "flags": "flags || '{spoiled}'",
    # Not where the raw does not say it.
    "additions": "CASE WHEN raw ? 'stats' THEN -1 END",
    "deletions": "CASE WHEN raw ? 'stats' THEN -1 END",
    "duplicate_of": "CASE WHEN missing_since IS NULL THEN 'spoiled' ELSE duplicate_of END",
}


def spoil(forge: Forge, *tables: str) -> None:
    """Give every column that is derived from the raw another value."""
    query = """
        SELECT column_name AS name, data_type AS type FROM information_schema.columns
         WHERE table_schema = 'scm' AND table_name = %(table)s AND is_generated = 'NEVER'
           AND is_identity = 'NO'"""
    for table in tables or _KEPT:
        columns = [
            sql.SQL("{} = {}").format(
                sql.Identifier(row["name"]), sql.SQL(_WRONG_COLUMNS.get(row["name"]) or _WRONG[row["type"]])
            )
            for row in forge.rows(query, table=table)
            if row["name"] not in _KEPT[table] | _BOOKKEEPING
        ]
        assert len(columns) >= 8
        forge.conn.execute(
            sql.SQL("UPDATE {} SET {}").format(sql.Identifier("scm", table), sql.SQL(", ").join(columns))
        )


def facts(forge: Forge, *, without: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table of facts, with the transaction that wrote it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for table in _KEPT:
        query = sql.SQL("SELECT *, xmin::text FROM {} ORDER BY 1, 2, 3").format(sql.Identifier("scm", table))
        rows = forge.conn.execute(query).fetchall()
        found[table] = [{k: v for k, v in row.items() if k not in without} for row in rows]
    return found


WRITTEN = {"version", "batch_id", "stored_at", "xmin"}


def remapped(forge: Forge, job_type: JobType, since: datetime | None = None, **how: Any) -> JobReport:
    """Derive facts anew, with settings that know no server at all."""
    repository = repos.get(forge.conn, forge.repo_id)
    request = remap.request(repository, job_type, since, actor="test", reason="test")
    return Syncer(forge.database, Settings(max_wait_seconds=5)).run(request, **how)


def estimate_of(forge: Forge, job_type: JobType, since: datetime | None = None) -> Counts:
    return remap.estimate(forge.database, repos.get(forge.conn, forge.repo_id), job_type, since)


def count(forge: Forge, table: str) -> int:
    return len(facts(forge)[table])


@pytest.fixture
def stored(forge: Forge) -> MergeRequest:
    """A synced project with something in every column, and texts that PostgreSQL cannot hold. Returns one of
    its two merge requests; nobody can ask its server any more."""
    gitlab, git = forge.gitlab, forge.git
    git.commit("main", "Base\n", files={"a": "1\n"}, date="1714000000 +0530")
    base = git.resolve("refs/heads/main")
    assert base is not None
    git.commit("topic", "Topic\n\nbody \\u0041\n", files={"b": "1\n2\n"}, parents=[base])
    git.commit("main", b"Gr\xfc\xdfe\n", files={"c": "1\n"}, date="-1 +0000")
    request = gitlab.open_merge_request(
        forge.project, title=NASTY, description=NASTY, source="topic", author=forge.user, draft=True
    )
    plain = gitlab.open_merge_request(forge.project, title="Plain", source="topic", author=None)
    gitlab.push(forge.project, "topic", "More\n", files={"b": "3\n"})
    thread = gitlab.comment(request, forge.other, NASTY, thread=True)
    gitlab.comment(request, forge.user, "a reply", reply_to=thread)
    refs = {"base_sha": base, "start_sha": base, "head_sha": request.row["sha"]}
    line = {"new_path": f"src/{NASTY}", "new_line": 7, "old_path": None, "old_line": None}
    place = refs | line | {"position_type": "text", "line_range": {"start": {"type": "new"}}}
    gitlab.comment(request, forge.other, "on a line", position=place)
    gitlab.resolve(request, thread, forge.user)
    gitlab.comment(plain, None, "by nobody", internal=True)
    forge.tick(minutes=1)
    gitlab.request_review(request, forge.user, forge.other)
    gitlab.assign(request, forge.user, forge.other)
    gitlab.approve(request, forge.other)
    gitlab.add_label(forge.project, request, forge.user, f"x {NASTY}")
    gitlab.set_milestone(request, forge.user, gitlab.milestone(forge.project, "v1"))
    forge.tick(minutes=1)
    gone = gitlab.comment(plain, forge.user, "gone soon")
    gitlab.merge(plain, forge.user)
    # Servers of old wrote both.
    gitlab.system_note(plain, forge.user, "merged", gitlab.clock.now())
    forge.tick()
    for report in (forge.commits(), *forge.both()):
        assert report.succeeded, report.error
    gitlab.delete_note(plain, gone, bump=True)
    forge.tick()
    assert forge.both()[1].counts.updated == 1
    with forge.conn.transaction():
        row = commit({"id": "ab" * 20, "parent_ids": ["cd" * 20], "message": NASTY, "author_name": NASTY})
        batch = jobs.next_batch(forge.conn)
        commits.store_commits(
            forge.conn, repo_id=forge.repo_id, batch_id=batch, rows=[row], deferred={row.sha}
        )
    forge.asked()
    return request


def test_what_an_older_mapping_left_becomes_what_a_reading_of_the_source_stores(
    forge: Forge, stored: MergeRequest
) -> None:
    before = facts(forge)
    for job_type in TYPES:
        assert remapped(forge, job_type).counts.changed == estimate_of(forge, job_type).changed == 0
    assert facts(forge) == before
    spoil(forge)
    spoiled = facts(forge)
    estimates = [estimate_of(forge, job_type) for job_type in TYPES]
    assert facts(forge) == spoiled
    reports = [remapped(forge, job_type) for job_type in TYPES]
    assert [report.error for report in reports] == [None] * 3
    assert [report.counts for report in reports] == estimates
    sizes = [count(forge, table) for table in ("git_commits", "mrs", "review_events")]
    assert [report.counts for report in reports] == [Counts(read=n, updated=n) for n in sizes]
    assert min(sizes) >= 2
    after = facts(forge)
    for table, rows in before.items():
        for old, new in zip(rows, after[table], strict=True):
            for column in old.keys() - WRITTEN:
                assert new[column] == old[column], (table, column)
            if "version" in old:
                assert new["version"] == old["version"] + 1
                assert new["stored_at"] > old["stored_at"]
    # Not even a version is raised by the second time, nor by the source.
    reports = [remapped(forge, job_type) for job_type in TYPES]
    assert [report.counts.changed for report in reports] == [0] * 3
    assert facts(forge) == after
    assert forge.asked() == []
    forge.other_settings()
    window = {"window": ("1990-01-01", "2025-01-01"), "reread": True}
    again = [forge.commits(Mode.BACKFILL, **window), *forge.both(Mode.BACKFILL, **window)]
    assert [report.counts.changed for report in again] == [0] * 3
    assert integrity_checks.failures(forge.conn) == {}


def test_what_raw_does_not_say_stays_as_it_is_stored(forge: Forge, stored: MergeRequest) -> None:
    forge.conn.execute("UPDATE scm.review_events SET discussion_id = 'kept', is_reply = NOT is_reply")
    forge.conn.execute("UPDATE scm.mrs SET base_sha = 'kept', start_sha = 'kept', changes_count = 'kept'")
    forge.conn.execute(
        "UPDATE scm.git_commits SET raw = raw - 'stats', additions = 4711, deletions = 0 WHERE raw ? 'stats'"
    )
    kept = facts(forge, without=WRITTEN | {"content_hash"})
    for job_type in TYPES:
        assert remapped(forge, job_type).counts.changed == 0
    assert facts(forge, without=WRITTEN | {"content_hash"}) == kept
    lines = forge.rows("SELECT DISTINCT additions FROM scm.git_commits ORDER BY 1")
    assert lines == [{"additions": 4711}, {"additions": None}]


def test_a_hash_of_other_things_is_no_new_version(forge: Forge, stored: MergeRequest) -> None:
    before = facts(forge, without={"xmin"})
    for table in ("git_commits", "mrs", "review_events"):
        forge.conn.execute(
            sql.SQL("UPDATE {} SET content_hash = 'older'").format(sql.Identifier("scm", table))
        )
    forge.conn.execute("UPDATE scm.mrs SET versions_hash = 'older', commits_hash = 'older'")
    for job_type in TYPES:
        assert remapped(forge, job_type).counts.changed == 0
    assert facts(forge, without={"xmin"}) == before


def test_a_changed_child_is_a_new_version_of_its_merge_request(forge: Forge, stored: MergeRequest) -> None:
    before = facts(forge, without={"xmin"})
    forge.conn.execute("UPDATE scm.mr_versions SET state = NULL WHERE mr_iid = 1")
    forge.conn.execute("UPDATE scm.mr_commits SET title = '?' WHERE mr_iid = 1 AND position = 2")
    assert estimate_of(forge, MRS) == Counts(read=2, updated=1, unchanged=1)
    assert remapped(forge, MRS).counts == Counts(read=2, updated=1, unchanged=1)
    after = facts(forge, without={"xmin"})
    for table in ("mr_versions", "mr_commits"):
        assert after[table] == before[table]
    assert [row["version"] for row in after["mrs"]] == [
        before["mrs"][0]["version"] + 1,
        before["mrs"][1]["version"],
    ]


def test_only_facts_from_a_time_on_and_those_without_one(forge: Forge, stored: MergeRequest) -> None:
    columns = {COMMITS: ("git_commits", "ts"), MRS: ("mrs", "updated_at"), REVIEWS: ("review_events", "ts")}
    forge.conn.execute(
        "UPDATE scm.review_events SET raw = raw - 'created_at', ts = NULL WHERE reviewer_id IS NULL"
    )
    for job_type, (table, column) in columns.items():
        name = sql.Identifier("scm", table)
        text = {"git_commits": "message", "mrs": "title", "review_events": "body"}[table]
        before = facts(forge, without=WRITTEN | {"content_hash", "flags"})[table]
        times = sorted({row[column] for row in before if row[column] is not None})
        since = times[len(times) // 2]
        forge.conn.execute(sql.SQL("UPDATE {} SET {} = 'spoiled'").format(name, sql.Identifier(text)))
        old = [row for row in before if row[column] is not None and row[column] < since]
        assert old
        report = remapped(forge, job_type, since)
        assert report.counts.read == report.counts.updated == len(before) - len(old)
        after = facts(forge, without=WRITTEN | {"content_hash", "flags"})[table]
        assert after == [row | {text: "spoiled"} if row in old else row for row in before]
        assert estimate_of(forge, job_type, since).changed == 0
        assert estimate_of(forge, job_type).updated == len(old)


def test_a_raw_that_cannot_be_read_is_quarantined_and_the_rest_goes_on(
    forge: Forge, stored: MergeRequest
) -> None:
    before = facts(forge)
    spoil(forge, "mrs", "mr_versions", "mr_commits", "git_commits", "review_events")
    spoiled = facts(forge, without={"xmin", "raw"})
    (event,) = forge.rows("SELECT source_event_id AS id FROM scm.review_events ORDER BY id LIMIT 1")
    sha = before["git_commits"][0]["commit_sha"]
    broken = Jsonb({"id": "no name", "password": "secret"})
    forge.conn.execute("UPDATE scm.git_commits SET raw = %s WHERE commit_sha = %s", (broken, sha))
    # One of another merge request, and one in a state that the table refuses.
    forge.conn.execute("UPDATE scm.mrs SET raw = jsonb_set(raw, '{iid}', '77') WHERE iid = 1")
    forge.conn.execute("""UPDATE scm.mrs SET raw = jsonb_set(raw, '{state}', '"odd"') WHERE iid = 2""")
    forge.conn.execute("ALTER TABLE scm.mrs ADD CHECK (status <> 'odd')")
    forge.conn.execute("UPDATE scm.review_events SET raw = '[]' WHERE source_event_id = %s", (event["id"],))
    reports = [remapped(forge, job_type) for job_type in TYPES]
    assert [report.job_status for report in reports] == [JobStatus.COMPLETED] * 3
    sizes = [count(forge, table) for table in ("git_commits", "mrs", "review_events")]
    assert [report.counts.read for report in reports] == sizes
    assert [report.counts.quarantined for report in reports] == [1, 2, 1]
    assert [report.counts.updated for report in reports] == [sizes[0] - 1, 0, sizes[2] - 1]
    after = facts(forge, without={"xmin", "raw"})
    assert after["mrs"] == spoiled["mrs"]
    assert after["mr_versions"] == spoiled["mr_versions"]
    for table, column, name in (
        ("git_commits", "commit_sha", sha),
        ("review_events", "source_event_id", event["id"]),
    ):
        for was, bad, now in zip(before[table], spoiled[table], after[table], strict=True):
            expected = bad if now[column] == name else was
            assert {k: v for k, v in now.items() if k not in WRITTEN} == {
                k: expected[k] for k in now.keys() - WRITTEN
            }
    query = "SELECT natural_key, reason, detail, payload FROM scm.quarantine WHERE resolved_at IS NULL"
    found = {row["natural_key"]: row for row in forge.rows(query)}
    reasons = {"unmappable", "unstorable"}
    assert {key: row["reason"] for key, row in found.items() if row["reason"] in reasons} == {
        f"raw:{sha}": "unmappable",
        "raw:1": "unmappable",
        "raw:2": "unstorable",
        f"raw:1:{event['id']}": "unmappable",
    }
    assert b"secret" not in found[f"raw:{sha}"]["payload"]
    assert "77" in found["raw:1"]["detail"]
    # A later mapping that can read them brings them back and empties quarantine.
    for table, key in (("git_commits", "git_commit_id"), ("mrs", "iid"), ("review_events", "id")):
        for row in before[table]:
            update = sql.SQL("UPDATE {} SET raw = %s WHERE {} = %s")
            forge.conn.execute(
                update.format(sql.Identifier("scm", table), sql.Identifier(key)),
                (Jsonb(row["raw"]), row[key]),
            )
    for job_type in TYPES:
        assert remapped(forge, job_type).counts.quarantined == 0
    last = facts(forge, without=WRITTEN)
    assert last == {
        t: [{k: v for k, v in row.items() if k not in WRITTEN} for row in rows] for t, rows in before.items()
    }
    assert not [row for row in forge.rows(query) if row["reason"] in reasons]


def test_a_child_that_cannot_be_read_keeps_its_set_and_nothing_else(
    forge: Forge, stored: MergeRequest
) -> None:
    forge.conn.execute("UPDATE scm.mr_versions SET raw = '{}', state = 'kept' WHERE mr_iid = 1")
    forge.conn.execute("UPDATE scm.mr_commits SET title = 'spoiled'")
    forge.conn.execute("UPDATE scm.mrs SET title = 'spoiled'")
    hashes = forge.rows("SELECT versions_hash FROM scm.mrs ORDER BY iid")
    report = remapped(forge, MRS)
    assert (report.counts.updated, report.counts.quarantined) == (2, 1)
    assert forge.rows("SELECT DISTINCT state FROM scm.mr_versions WHERE mr_iid = 1") == [{"state": "kept"}]
    assert forge.rows("SELECT versions_hash FROM scm.mrs ORDER BY iid") == hashes
    assert forge.rows("SELECT 1 FROM scm.mr_commits WHERE title = 'spoiled'") == []
    assert forge.rows("SELECT 1 FROM scm.mrs WHERE title = 'spoiled'") == []
    assert forge.rows("SELECT natural_key FROM scm.quarantine") == [{"natural_key": "raw:1:versions"}]


def test_a_fact_that_is_told_twice_is_counted_once(forge: Forge, stored: MergeRequest) -> None:
    query = """SELECT source_event_id AS id, event_type AS kind, duplicate_of FROM scm.review_events
                WHERE mr_iid = 2 AND (origin = 'state' OR body = 'merged') ORDER BY origin"""
    before = forge.rows(query)
    note, event = before
    assert (note["kind"], note["duplicate_of"], event["kind"]) == ("system", event["id"], "merge")
    forge.conn.execute(
        "UPDATE scm.review_events SET event_type = 'merge', duplicate_of = NULL WHERE mr_iid = 2"
    )
    remapped(forge, REVIEWS)
    assert forge.rows(query) == before
    # The twin cannot be read: what the note is does not change by that.
    forge.conn.execute("UPDATE scm.review_events SET raw = '{}' WHERE source_event_id = %s", (event["id"],))
    assert remapped(forge, REVIEWS).counts.quarantined == 1
    assert forge.rows(query) == before
    # The twin is gone: the note alone tells of it, as it would for a reading.
    forge.conn.execute(
        "UPDATE scm.review_events SET raw = jsonb_build_object('state', 'merged', 'id',"
        " split_part(source_event_id, ':', 2)::bigint), missing_since = now() WHERE source_event_id = %s",
        (event["id"],),
    )
    remapped(forge, REVIEWS)
    assert [(row["kind"], row["duplicate_of"]) for row in forge.rows(query)] == [
        ("merge", None),
        ("merge", None),
    ]


def in_the_shape_of_graphql(forge: Forge) -> None:
    """Give each stored note the node that GraphQL has of it as its raw."""
    client = Readers(forge.settings).gitlab(repos.get(forge.conn, forge.repo_id).instance)
    variables = {"path": forge.project.full_path, "iids": ["1", "2"], "count": 100}
    data = client.query(graphql.text_of(graphql.BATCH), variables).data
    nodes = [
        note for one in data["data"]["project"]["mergeRequests"]["nodes"] for note in one["notes"]["nodes"]
    ]
    for note in nodes:
        key = f"note:{number_of(note['id'])}"
        (row,) = forge.rows("SELECT flags FROM scm.review_events WHERE source_event_id = %(key)s", key=key)
        raw, _ = payload(note, escaped=ESCAPED in row["flags"])
        forge.conn.execute(
            "UPDATE scm.review_events SET raw = %s, time_precision = 'second' WHERE source_event_id = %s",
            (raw, key),
        )
    client.instance.close()


def test_both_shapes_of_a_note_become_the_same_row(forge: Forge, stored: MergeRequest) -> None:
    in_the_shape_of_graphql(forge)
    before = facts(forge, without=WRITTEN)
    assert remapped(forge, REVIEWS).counts.updated == 0
    forge.conn.execute("UPDATE scm.review_events SET body = 'spoiled', event_type = 'spoiled'")
    assert remapped(forge, REVIEWS).counts.updated == count(forge, "review_events")
    assert facts(forge, without=WRITTEN) == before
    assert forge.rows("SELECT FROM scm.review_events WHERE date_trunc('second', ts) <> ts")


def test_after_any_history_there_is_nothing_to_change(forge: Forge) -> None:
    chance = random.Random(100)
    history = History(forge)
    for _ in range(40):
        forge.tick(seconds=chance.choice([0, 1, 400]))
        history.step(chance.choice(DEEDS), chance)
        if chance.random() < 0.2:
            forge.commits()
            forge.both()
    forge.tick(hours=1)
    for _ in range(2):
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
        forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now()")
        forge.conn.execute("UPDATE scm.mr_reviews SET read_at = now() - interval '25 hours'")
        reports = [forge.commits(), *forge.both()]
        assert [report.error for report in reports] == [None] * 3
        forge.tick()
    before = facts(forge)
    for job_type in TYPES:
        report = remapped(forge, job_type)
        assert (report.counts.changed, report.counts.quarantined) == (0, 0)
    assert facts(forge) == before
    spoil(forge)
    for job_type in TYPES:
        remapped(forge, job_type)
    same = WRITTEN
    assert facts(forge, without=same) == {
        table: [{k: v for k, v in row.items() if k not in same} for row in rows]
        for table, rows in before.items()
    }


# The ledger ---------------------------------------------------------------------------------------------


def test_pages_are_batches_under_a_lease_that_others_may_have_in_between(
    forge: Forge, stored: MergeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remap, "BATCH_ROWS", 3)
    before = facts(forge, without=WRITTEN)
    spoil(forge)
    fences = "SELECT fence FROM scm.sync_locks WHERE repo_id = %(repo)s AND job_type = %(job)s"
    for job_type, table in ((COMMITS, "git_commits"), (MRS, "mrs"), (REVIEWS, "review_events")):
        seen: list[Counts] = []
        fence = forge.rows(fences, job=job_type)[0]["fence"]
        report = remapped(forge, job_type, progress=seen.append)
        assert report.run_status is RunStatus.COMPLETED
        rows = forge.rows("SELECT * FROM scm.sync_batches WHERE run_id = %(run)s", run=report.run_id)
        assert len(rows) == report.batches == len(seen) >= 2
        assert all(row["rows_read"] <= 3 and not row["covers"] for row in rows)
        assert sum(row["updated"] for row in rows) == report.counts.updated == count(forge, table)
        assert forge.rows(fences, job=job_type)[0]["fence"] > fence + 1
    assert facts(forge, without=WRITTEN) == before
    assert integrity_checks.failures(forge.conn) == {}


def test_it_covers_nothing_and_is_no_visit(forge: Forge, stored: MergeRequest) -> None:
    query = "SELECT * FROM scm.sync_watermarks WHERE repo_id = %(repo)s ORDER BY job_type"
    before = forge.rows(query)
    spoil(forge)
    for job_type in TYPES:
        assert remapped(forge, job_type).covered == ()
    assert forge.rows(query) == before


def test_two_at_once_do_it_once(forge: Forge, stored: MergeRequest) -> None:
    before = facts(forge, without=WRITTEN)
    spoil(forge)
    with ThreadPoolExecutor(4) as pool:
        since = [None, None, START - timedelta(days=9999), None]
        reports = list(pool.map(lambda one: remapped(forge, REVIEWS, one), since))
        reports += pool.map(lambda one: remapped(forge, one), (COMMITS, MRS))
    assert [report.error for report in reports] == [None] * 6
    assert facts(forge, without=WRITTEN) == before
    versions = forge.rows("SELECT version FROM scm.review_events WHERE missing_since IS NULL")
    assert {row["version"] for row in versions} == {2}


def test_live_syncing_goes_on_beside_it(
    forge: Forge, stored: MergeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was read before somebody else wrote is never written after it."""
    monkeypatch.setattr(remap, "BATCH_ROWS", 1)
    spoil(forge, "review_events")
    forge.conn.execute("UPDATE scm.mrs SET title = 'spoiled', author_id = NULL, labels = '{}'")
    forge.gitlab.edit(stored, title="Newer")
    forge.gitlab.comment(stored, forge.other, "Also new")
    forge.tick()
    with ThreadPoolExecutor(1) as pool:
        live: list[Future[tuple[JobReport, JobReport]]] = []

        def begin(_: Counts) -> None:
            if not live:
                live.append(pool.submit(forge.both))

        assert remapped(forge, REVIEWS, progress=begin).succeeded
        assert remapped(forge, MRS).succeeded
        assert [report.error for report in live[0].result()] == [None, None]
    assert forge.rows("SELECT title FROM scm.mrs WHERE iid = 1") == [{"title": "Newer"}]
    assert estimate_of(forge, REVIEWS).changed == estimate_of(forge, MRS).changed == 0
    forge.other_settings()
    again = forge.both(Mode.BACKFILL, window=("1990-01-01", "2025-01-01"), reread=True)
    assert [report.counts.changed for report in again] == [0, 0]


def test_stopped_in_the_middle_it_keeps_what_was_committed_and_is_repeated(
    forge: Forge, stored: MergeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remap, "BATCH_ROWS", 2)
    before = facts(forge, without=WRITTEN)
    spoil(forge, "review_events")
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        remapped(forge, REVIEWS, cancel=cancel, progress=lambda _: cancel.set())
    left = estimate_of(forge, REVIEWS)
    assert 0 < left.unchanged < left.read
    (job,) = forge.rows("SELECT status, last_error_code AS code FROM scm.sync_jobs WHERE from_raw")
    assert job == {"status": "dead", "code": "cancelled"}
    assert remapped(forge, REVIEWS).counts.updated == left.updated
    assert facts(forge, without=WRITTEN) == before


def test_after_a_crash_nobody_reads_the_source_in_its_name(forge: Forge, stored: MergeRequest) -> None:
    request = remap.request(repos.get(forge.conn, forge.repo_id), MRS, None, actor="test", reason="test")

    def seen() -> tuple[Any, ...]:
        snapshot = planning.snapshot(forge.conn, sample_seconds=60, newest=10, burst=1)
        waiting = planning.waiting_requests(
            forge.conn,
            repo_ids=[forge.repo_id],
            mode=Mode.REPAIR,
            window=request.window,
        )
        result = health.read(
            forge.conn, timedelta(days=9999), Credentials(frozenset(), {}, {}), [forge.repo_id]
        )
        return snapshot.jobs, waiting, [(one.health, one.facts.queued) for one in result]

    nothing = seen()
    assert nothing[:2] == ([], [])
    job_id = jobs.enqueue(forge.conn, request, max_attempts=1)
    assert seen() == nothing
    claim = jobs.claim(
        forge.conn, job_id, worker="gone", process="other machine", length=300, dagster_run_id=None
    )
    assert claim is not None
    lease = leases.acquire(
        forge.conn,
        repo_id=forge.repo_id,
        job_type=MRS,
        waiter=claim.token,
        who="gone",
        priority=1,
        length=300,
    )
    assert lease is not None
    assert seen() == nothing
    forge.conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = now() - interval '1 s' WHERE from_raw")
    assert seen() == nothing
    # Live syncing clears it away and is not held up.
    assert forge.syncer.run(forge.request(MRS)).succeeded
    (job,) = forge.rows("SELECT status, last_error_code AS code FROM scm.sync_jobs WHERE from_raw")
    assert job == {"status": "dead", "code": "worker_lost"}
    assert seen()[:2] == nothing[:2]
    spoil(forge, "mrs")
    assert remapped(forge, MRS).counts.updated == 2


def test_a_lease_that_somebody_holds_leaves_no_job_behind(forge: Forge, stored: MergeRequest) -> None:
    with forge.conn.transaction():
        forge.conn.execute(
            "UPDATE scm.sync_locks SET locked_by = 'me', holder = gen_random_uuid(),"
            " expires_at = now() + interval '1 hour', locked_at = now(), lease_seconds = 60"
        )
    request = remap.request(repos.get(forge.conn, forge.repo_id), MRS, None, actor="test", reason="test")
    report = Syncer(forge.database, Settings(max_wait_seconds=0.2)).run(request)
    assert (report.job_status, report.error_code) == (JobStatus.DEAD, "lease_held")
    assert forge.rows("SELECT 1 FROM scm.sync_jobs WHERE status NOT IN ('completed', 'dead')") == []


# What it is for -----------------------------------------------------------------------------------------


def test_a_retired_repository_is_derived_anew_too(forge: Forge, stored: MergeRequest) -> None:
    repos.retire(forge.conn, forge.repo_id, "test")
    spoil(forge, "mrs")
    assert remapped(forge, MRS).counts.updated == 2


def test_a_repository_without_facts_is_done_at_once(forge: Forge) -> None:
    for job_type in TYPES:
        report = remapped(forge, job_type)
        assert (report.job_status, report.run_status) == (JobStatus.COMPLETED, RunStatus.NO_DATA)
        assert estimate_of(forge, job_type) == Counts()


def test_svn_keeps_no_raw(database: Database) -> None:
    with database.connection() as conn:
        repository = repos.get(conn, builders.register(conn))
    with pytest.raises(ConfigurationError, match="only facts of GitLab"):
        remap.request(repository, JobType.REVISIONS, None, actor="test", reason="test")
    with pytest.raises(ConfigurationError, match="only facts of GitLab"):
        remap.estimate(database, repository, JobType.REVISIONS, datetime(2020, 1, 1, tzinfo=UTC))
