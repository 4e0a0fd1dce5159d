"""The completeness statement: every key of its page, every kind of unknown, and sums that are right in every
group."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from sync_pipeline.cli import reports
from sync_pipeline.core.model import Mode
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.reports.completeness import completeness
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register_project, register_source, request
from sync_pipeline_tests.facts.gitlab_facts import sha
from sync_pipeline_tests.reports.test_status import keys
from sync_pipeline_tests.sync import conftest
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.test_schemas import validate

forge = conftest.forge
PAGE = Path(__file__).resolve().parents[2] / "docs" / "completeness.md"


def stated(database: Database) -> dict[str, Any]:
    """The document, which is as its schema says and sums up right."""
    document: dict[str, Any] = json.loads(json.dumps(completeness(database, Settings())))
    validate(document, "completeness.json")
    for groups in ("instances", "tenants", "job_types", "groups"):
        for name in ("units", "expected", "stored", "missing", "extra", "changed", "deleted"):
            assert sum(one[name] for one in document[groups]) == document["total"][name]
        for name in ("denied", "never_read", "hidden", "quarantined", "owed", "planned"):
            there = sum(one["unknown"][name] for one in document[groups])
            assert there == document["total"]["unknown"][name]
        assert all(one["complete"] for one in document[groups]) == document["total"]["complete"]
    return document


def of(document: dict[str, Any], job_type: str) -> dict[str, Any]:
    """What is said of a job type."""
    (found,) = [one for one in document["job_types"] if one["job_type"] == job_type]
    return dict(found)


@pytest.fixture
def fleet(forge: Forge, tmp_path: Path) -> Forge:
    """A project and an SVN repository of 12 revisions, read to the end."""
    git = forge.git
    first = git.commit("main", "Base\n", files={"a": "1\n"})
    git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[first])
    for number in range(2):
        made = forge.gitlab.open_merge_request(forge.project, source="topic", author=forge.user)
        forge.gitlab.comment(made, forge.other, f"Remark {number}")
    forge.tick()
    window = ("1900-01-01", "2024-05-01")
    assert forge.commits().succeeded
    assert all(report.succeeded for report in forge.both())
    assert all(report.succeeded for report in forge.both(Mode.BACKFILL, window=window))
    repo = register_source(forge.conn, svn_samples.large(tmp_path / "repository", 12, 1))
    assert Syncer(forge.database, forge.settings).run(request(repo)).succeeded
    return forge


def change(conn: Connection, statements: str, **values: Any) -> None:
    """Run statements, parted by semicolons."""
    for one in statements.split(";"):
        conn.execute(sql.SQL(one), values)


def test_what_was_read_to_the_end_is_complete_and_retired_ones_are_left_out(fleet: Forge) -> None:
    document = stated(fleet.database)
    total = document["total"]
    assert (total["complete"], total["repositories"], total["units"]) == (True, 2, 4), document
    assert {one["job_type"]: (one["expected"], one["stored"]) for one in document["job_types"]} == {
        "commits": (2, 2),
        "merge_requests": (2, 2),
        "reviews": (2, 2),
        "revisions": (12, 12),
    }
    assert total["verified"] == {"units": 0, "rows": 0, "share": 0.0, "oldest_at": None}
    assert [(one["instance"], one["tenant"]) for one in document["groups"]][-1] == ("local", "acme")
    fleet.conn.execute("UPDATE scm.repos SET lifecycle = 'retired' WHERE kind = 'svn'")
    left = stated(fleet.database)
    assert (left["retired_repositories"], left["total"]["stored"], left["total"]["units"]) == (1, 6, 3)
    assert (
        reports.completeness_summary(left)
        == "nothing is known to be missing; 0% of the rows were compared with the sources lately; "
        "1 retired repository left out"
    )


def test_every_kind_of_difference_and_of_unknown_is_told_where_it_is(fleet: Forge) -> None:
    change(
        fleet.conn,
        """
        UPDATE scm.sync_watermarks SET access = 'denied' WHERE job_type = 'commits';
        INSERT INTO scm.discrepancies (repo_id, job_type, natural_key, kind, reconciliation)
        SELECT %(repo)s, 'commits', key, kind, 1
          FROM (VALUES (%(absent)s, 'missing'), (%(stored)s, 'extra'), ('branch:main', 'missing'),
                       (%(topic)s, 'changed')) AS v (key, kind);
        INSERT INTO scm.discrepancies (repo_id, job_type, natural_key, kind, reconciliation, resolved_at,
                                       outcome)
        VALUES (%(repo)s, 'commits', 'branch:old', 'extra', 1, now(), 'returned');
        INSERT INTO scm.quarantine (repo_id, job_type, natural_key, reason, detail, payload)
        SELECT %(repo)s, job_type, key, 'unreadable', '', ''
          FROM (VALUES ('commits', %(absent)s), ('commits', %(unread)s), ('commits', 'tag:v1'),
                       ('merge_requests', '1'), ('merge_requests', '?'), ('merge_requests', 'raw:1'),
                       ('reviews', '2'), ('reviews', '1:note:999'), ('reviews', '1:' || %(note)s))
            AS v (job_type, key);
        INSERT INTO scm.quarantine (repo_id, job_type, natural_key, reason, detail, payload, resolved_at)
        VALUES (%(repo)s, 'commits', 'tag:old', 'unreadable', '', '', now());
        INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error)
        VALUES (%(repo)s, 'merge_requests', '1', 'versions', 'timeout');
        UPDATE scm.mrs SET deleted_at = now() WHERE iid = 2;
        UPDATE scm.sync_watermarks SET covered_time = covered_time - '{[2020-01-01,2020-02-01)}'
         WHERE job_type = 'reviews';
        UPDATE scm.svn_revisions SET visibility = 'hidden' WHERE rev_num = 2;
        UPDATE scm.svn_revisions SET visibility = 'partial' WHERE rev_num IN (3, 4);
        UPDATE scm.sync_watermarks SET covered_revs = '{[1,3),[5,7),[9,11)}' WHERE head_rev = 12;
        INSERT INTO scm.quarantine (repo_id, job_type, natural_key, reason, detail, payload)
        SELECT repo_id, 'revisions', key, 'corrupt', '', ''
          FROM scm.repos, (VALUES ('7'), ('99')) AS v (key) WHERE kind = 'svn'
        """,
        repo=fleet.repo_id,
        absent=sha("absent"),
        unread=sha("unread"),
        stored=str(fleet.git.resolve("main")),
        topic=str(fleet.git.resolve("topic")),
        note=fleet.rows("SELECT source_event_id FROM scm.review_events WHERE mr_iid = 1")[0][
            "source_event_id"
        ],
    )
    document = stated(fleet.database)
    assert not document["total"]["complete"]
    counted = ("expected", "stored", "missing", "extra", "changed", "deleted")
    assert {one["job_type"]: [one[name] for name in counted] for one in document["job_types"]} == {
        "commits": [3, 2, 1, 1, 2, 0],
        "merge_requests": [2, 1, 0, 0, 0, 1],
        "reviews": [3, 2, 0, 0, 0, 0],
        "revisions": [13, 12, 0, 0, 0, 0],
    }
    names = ("denied", "never_read", "hidden", "quarantined", "owed", "planned", "unreadable")
    nothing = dict.fromkeys(names, 0)
    covered = {"units": 0, "windows": 0, "revisions": 0}
    assert {one["job_type"]: one["unknown"] for one in document["job_types"]} == {
        "commits": nothing | {"denied": 1, "quarantined": 3, "uncovered": covered},
        "merge_requests": nothing | {"quarantined": 3, "owed": 1, "uncovered": covered},
        "reviews": nothing | {"quarantined": 3, "uncovered": covered | {"units": 1, "windows": 1}},
        "revisions": nothing
        | {"quarantined": 2, "hidden": 3, "uncovered": {"units": 1, "windows": 3, "revisions": 6}},
    }
    assert (
        reports.completeness_summary(document)
        == "rows are missing, or parts are not known: 1 missing, 1 extra, 2 changed, 1 denied, 3 hidden, "
        "11 quarantined, 1 owed, 2 uncovered, 6 uncovered revisions; 0% of the rows were compared with the "
        "sources lately"
    )


def test_usable_is_never_called_complete_and_planned_fetches_are_told_from_failed_ones(fleet: Forge) -> None:
    whole = stated(fleet.database)
    assert (whole["total"]["levels"], of(whole, "reviews")["levels"]["complete"]) == (
        {"usable": 0, "complete": 4},
        1,
    )
    [mark] = fleet.rows(
        "SELECT min(watermark_time) AS at FROM scm.sync_watermarks"
        " WHERE job_type IN ('merge_requests', 'reviews')"
    )
    assert whole["total"]["complete_until"] == mark["at"].isoformat()
    fleet.conn.execute(
        "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error, is_planned,"
        " row_updated_at) SELECT repo_id, 'reviews', iid::text, 'notes', '', TRUE, updated_at FROM scm.mrs"
    )
    document = stated(fleet.database)
    assert not document["total"]["complete"]
    assert document["total"]["levels"] == {"usable": 1, "complete": 3}
    assert of(document, "reviews")["unknown"]["planned"] == 2
    assert of(document, "reviews")["unknown"]["owed"] == 0
    first = fleet.rows("SELECT min(updated_at) AS at FROM scm.mrs")[0]["at"]
    assert document["total"]["complete_until"] == first.isoformat()
    assert of(document, "reviews")["complete_until"] == first.isoformat()
    assert reports.completeness_summary(document).startswith("usable, not complete: 2 planned fetches wait; ")
    titles = [str(one.header) for one in reports.completeness_table(document, "job_type").columns]
    assert titles[-2] == "every detail before", "a title such as complete until would promise a time to come"
    # A failed fetch counts as such. Of one without a merge request no time is known.
    fleet.conn.execute("UPDATE scm.deferred_fetches SET is_planned = FALSE, row_updated_at = NULL")
    failed = of(stated(fleet.database), "reviews")
    assert (failed["unknown"]["owed"], failed["unknown"]["planned"]) == (2, 0)
    assert (failed["levels"]["usable"], failed["complete_until"]) == (1, first.isoformat())
    fleet.conn.execute("UPDATE scm.deferred_fetches SET natural_key = '99' WHERE natural_key = '2'")
    assert of(stated(fleet.database), "reviews")["complete_until"] is None


def test_nothing_is_complete_until_a_time_before_which_windows_are_missing(fleet: Forge) -> None:
    gap = "{[2020-01-01,2020-02-01)}"
    fleet.conn.execute("UPDATE scm.sync_watermarks SET covered_time = covered_time - %s", (gap,))
    assert stated(fleet.database)["total"]["complete_until"] is None


def test_what_cannot_be_read_at_all_is_told_by_its_units(fleet: Forge) -> None:
    conn = fleet.conn
    change(
        conn,
        """
        UPDATE scm.sync_watermarks SET access = 'disabled', access_detail = 'off', covered_time = '{}',
               verified_at = NULL WHERE job_type = 'merge_requests';
        UPDATE scm.sync_watermarks SET covered_revs = '{}', verified_at = NULL WHERE head_rev = 12
        """,
    )
    document = stated(fleet.database)
    never = {"units": 0, "windows": 0, "revisions": 12}
    assert of(document, "revisions")["unknown"]["never_read"] == 1
    assert of(document, "revisions")["unknown"]["uncovered"] == never
    assert (of(document, "merge_requests")["disabled"], document["total"]["disabled"]) == (1, 1)
    assert of(document, "merge_requests")["complete"]
    change(
        conn,
        "INSERT INTO scm.revoked_credentials (instance, fingerprint, reason)"
        " SELECT instance, 'abc', 'refused' FROM scm.repos WHERE kind = 'gitlab';"
        "UPDATE scm.sync_watermarks SET access = 'replaced' WHERE job_type = 'revisions'",
    )
    assert stated(fleet.database)["total"]["unknown"]["denied"] == 4


def test_what_was_compared_within_two_rounds_is_verified(fleet: Forge) -> None:
    fleet.conn.execute(
        "INSERT INTO scm.reconcile_progress (repo_id, job_type, round_ended_at)"
        " SELECT repo_id, job_type, now() - make_interval(days => CASE job_type WHEN 'commits' THEN 59"
        " WHEN 'revisions' THEN 61 WHEN 'reviews' THEN 1 END) FROM scm.sync_watermarks"
    )
    document = stated(fleet.database)
    assert (document["total"]["verified"]["units"], document["total"]["verified"]["rows"]) == (2, 4)
    assert document["total"]["verified"]["share"] == round(4 / 18, 4)
    oldest = datetime.fromisoformat(document["total"]["verified"]["oldest_at"])
    assert timedelta(days=61) <= datetime.now(UTC) - oldest < timedelta(days=62)
    assert of(document, "merge_requests")["verified"]["oldest_at"] is None


def test_a_fleet_of_nothing_is_a_statement_too(database: Database) -> None:
    document = stated(database)
    assert (document["total"]["units"], document["total"]["verified"]["share"]) == (0, None)
    assert reports.completeness_summary(document) == "no repositories"
    with database.connection() as conn:
        register_project(conn, "https://git.test", 7, "platform/api", origin=datetime(2024, 5, 1, tzinfo=UTC))
    document = stated(database)
    assert (document["total"]["complete"], document["total"]["unknown"]["never_read"]) == (False, 3)
    assert [row["job_type"] for row in reports.completeness_rows(document, "job_type")][-1] == "total"
    assert reports.completeness_table(document, "tenant").row_count == 2


def test_the_page_names_every_key(database: Database) -> None:
    with database.connection() as conn:
        register_project(conn, "https://git.test", 7, "platform/api", origin=datetime(2024, 5, 1, tzinfo=UTC))
    named = set(re.findall(r"(?m)^\| `([^`]+)` \|", PAGE.read_text()))
    lists = ("instances", "tenants", "job_types", "groups", "unreadable")
    below = tuple(f"{name}[]." for name in lists)
    found = {key for key in keys(stated(database)) if not key.startswith(below)}
    assert named == found - {*lists}
