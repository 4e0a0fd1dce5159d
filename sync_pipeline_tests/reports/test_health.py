"""When a (repository, job type) is healthy, and what is said when it is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import sync_pipeline
from sync_pipeline.core.errors import (
    AccessDenied,
    Cancelled,
    ConfigurationError,
    RowUnreadable,
    SourceGone,
    WindowTooHard,
)
from sync_pipeline.core.model import (
    BEGINNING,
    Access,
    JobRequest,
    JobType,
    Level,
    Lifecycle,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger.credentials import stop
from sync_pipeline.ledger.jobs import enqueue
from sync_pipeline.reports.health import (
    ANSWER_CODES,
    NOT_ASKED,
    Facts,
    HealthResult,
    Unreadable,
    evaluate,
    read,
    reason_of_failure,
    reason_of_server,
)
from sync_pipeline.reports.reasons import BLOCKERS, CATALOGUE, HealthReason, remedies, remedy, table
from sync_pipeline.reports.status import verdict_of
from sync_pipeline.scheduling.credentials import Credentials, in_force
from sync_pipeline.settings import Settings
from sync_pipeline.sources.svn.codes import Meaning
from sync_pipeline.sync.readers import Readers
from sync_pipeline_tests.builders import register_project

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
GOOD = Facts(
    repo_id=1,
    job_type=JobType.REVISIONS,
    lifecycle=Lifecycle.ACTIVE,
    access=Access.OK,
    access_detail=None,
    visited_at=NOW,
    verified_at=NOW - timedelta(minutes=59),
    watermark=11,
    head=10,
    gap=(),
    queued=(),
    hint_code=None,
    hint_error=None,
    failed=(),
    incremental_dead=False,
    last_error=None,
    quarantined=0,
    deferred_fetches=0,
    regressed=0,
)


def test_complete_and_fresh_is_healthy() -> None:
    health = evaluate(GOOD, NOW, HOUR)
    assert (health.passed, health.reasons, health.detail) == (True, (), {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verified_at": NOW - timedelta(minutes=61)}, HealthReason.STALE),
        ({"verified_at": None, "visited_at": None}, HealthReason.NEVER_SYNCED),
        ({"queued": (RevisionWindow(1, 5),)}, HealthReason.INCOMPLETE),
        ({"hint_code": "denied", "hint_error": "no"}, HealthReason.DENIED),
        ({"hint_code": "not_found", "hint_error": "no"}, HealthReason.GONE),
        ({"hint_code": "connection", "hint_error": "no"}, HealthReason.UNREACHABLE),
        ({"hint_code": "certificate", "hint_error": "no"}, HealthReason.UNREACHABLE),
        ({"hint_code": "timeout", "retry_code": "timeout"}, HealthReason.UNREACHABLE),
        ({"hint_code": "redirected"}, HealthReason.LOGIN_PAGE),
        ({"hint_code": "moved"}, HealthReason.MOVED),
        ({"hint_code": "out_of_memory"}, HealthReason.UNREACHABLE),
        ({"server_code": "configuration"}, HealthReason.UNREACHABLE),
        ({"server_code": "content_too_large"}, HealthReason.UNREACHABLE),
        ({"server_code": "connection"}, HealthReason.UNREACHABLE),
        ({"server_code": "timeout"}, HealthReason.UNREACHABLE),
        ({"server_code": "not_json"}, HealthReason.LOGIN_PAGE),
        ({"retry_code": "connection", "retry_error": "no"}, HealthReason.UNREACHABLE),
        ({"gap": (RevisionWindow(1, 5),)}, HealthReason.GAP),
        ({"failed": (RevisionWindow(1, 5),), "last_error": "too hard"}, HealthReason.FAILED_WINDOW),
        ({"incremental_dead": True}, HealthReason.FAILED_WINDOW),
        ({"quarantined": 2}, HealthReason.QUARANTINE),
        ({"deferred_fetches": 1}, HealthReason.DEFERRED_FETCH),
        ({"planned_stalled": True}, HealthReason.PLANNED_STALLED),
        ({"access": Access.DENIED}, HealthReason.DENIED),
        ({"access": Access.GONE}, HealthReason.GONE),
        ({"access": Access.REPLACED, "access_detail": "another UUID"}, HealthReason.REPLACED),
        ({"regressed": 3}, HealthReason.REGRESSED),
        ({"missing": 1, "extra": 2}, HealthReason.MISMATCH),
        ({"credential": "the token is expired; create a new one"}, HealthReason.CREDENTIAL),
        ({"access": Access.DISABLED, "credential": "the token is expired"}, HealthReason.CREDENTIAL),
    ],
)
def test_each_defect_fails_with_its_own_reason_and_a_line(
    changes: dict[str, Any], reason: HealthReason
) -> None:
    health = evaluate(replace(GOOD, **changes), NOW, HOUR)
    assert (health.passed, health.reasons) == (False, (reason,))
    assert health.detail[reason]


@pytest.mark.parametrize(
    "changes",
    [
        {"hint_code": "timeout"},
        {"retry_code": "timeout"},
        {"hint_code": "exception"},
        {"server_code": "exception"},
        {"retry_code": "window_too_hard"},
        {"retry_code": "rate_limit"},
    ],
)
def test_what_says_nothing_about_the_source_yet_is_no_reason(changes: dict[str, Any]) -> None:
    assert evaluate(replace(GOOD, **changes), NOW, HOUR).passed


def codes_of(module: Path) -> Iterator[str]:
    """The codes of errors that ``module`` raises with a word of its own."""
    tree = ast.parse(module.read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "code"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "code" for t in node.targets
        ):
            texts.append(node.value)
    for text in texts:
        # What an answer is compared with is no code: it has blanks.
        yield from (
            part.value
            for part in ast.walk(text)
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " not in part.value
        )


def test_every_code_that_a_look_may_fail_with_says_something_about_the_server_or_nothing() -> None:
    package = Path(sync_pipeline.__file__).parent
    modules = [*(package / "sources").rglob("*.py"), package / "sync" / "limiter.py"]
    codes = {code for module in modules for code in codes_of(module)}
    # Those that are the class's own, or that svn's numbers stand for.
    kinds = (AccessDenied, Cancelled, ConfigurationError, RowUnreadable, SourceGone, WindowTooHard)
    codes |= {kind.code for kind in kinds} | {str(meaning.value) for meaning in Meaning}
    codes -= {Meaning.BAD_URL.value}  # raised as ``configuration``
    assert {"no_route", "no_room", "content_too_large", "connection", "throttled"} <= codes
    places = {
        code: [reason_of_server(code) is not None, code in ANSWER_CODES, code in NOT_ASKED] for code in codes
    }
    assert {code: place for code, place in places.items() if sum(place) != 1} == {}


def test_the_page_has_the_catalogue() -> None:
    assert set(CATALOGUE) == set(HealthReason)
    page = (Path(__file__).resolve().parents[2] / "docs" / "health.md").read_text()
    assert table(CATALOGUE) in page, "paste what sync_pipeline.reports.reasons.table(CATALOGUE) returns"
    assert table(BLOCKERS) in page, "paste what sync_pipeline.reports.reasons.table(BLOCKERS) returns"


def test_a_remedy_is_that_of_the_kind_of_the_repository() -> None:
    assert remedy("gone", "svn:file:///srv/paint").startswith("scm-sync repo relocate svn:file:///srv/paint")
    assert remedy("gone", "gitlab:7").endswith("scm-sync repo retire gitlab:7 --reason ...")
    assert remedy("gone").startswith("SVN: scm-sync repo relocate SPEC")
    assert all(entry.remedy or (entry.svn and entry.gitlab) for entry in CATALOGUE.values())


def test_a_remedy_names_the_repository() -> None:
    assert (
        remedy("gap", "gitlab:7") == "scm-sync runner backfill --repo gitlab:7 reads exactly what is missing"
    )


def test_several_defects_are_all_named() -> None:
    health = evaluate(replace(GOOD, quarantined=1, access=Access.DENIED), NOW, HOUR)
    assert set(health.reasons) == {HealthReason.QUARANTINE, HealthReason.DENIED}


def test_a_retired_repository_is_not_blamed() -> None:
    retired = replace(GOOD, lifecycle=Lifecycle.RETIRED, access=Access.GONE, verified_at=None)
    assert evaluate(retired, NOW, HOUR).passed


def test_freshness_of_a_time_watermark_counts_too() -> None:
    assert evaluate(replace(GOOD, verified_at=None, watermark=NOW - timedelta(minutes=5)), NOW, HOUR).passed


def test_a_long_list_of_gaps_is_cut_and_counted() -> None:
    gaps = tuple(RevisionWindow(n, n + 1) for n in range(1, 100, 2))
    line = evaluate(replace(GOOD, gap=gaps), NOW, HOUR).detail[HealthReason.GAP]
    assert "45 more" in line
    assert "(50 revisions)" in line


@pytest.mark.parametrize("access", [Access.EMPTY, Access.ARCHIVED, Access.MOVED])
def test_states_that_hide_nothing_are_healthy(access: Access) -> None:
    assert evaluate(replace(GOOD, access=access), NOW, HOUR).passed


def test_what_a_project_has_switched_off_passes_and_is_told() -> None:
    off = replace(GOOD, access=Access.DISABLED, verified_at=None, queued=(RevisionWindow(1, 5),))
    health = evaluate(replace(off, access_detail="acme/app has reviews switched off"), NOW, HOUR)
    assert (health.passed, health.reasons) == (True, (HealthReason.DISABLED,))
    assert health.detail == {"disabled": "acme/app has reviews switched off"}
    assert evaluate(off, NOW, HOUR).detail[HealthReason.DISABLED]


def test_planned_fetches_are_a_note_and_the_asset_is_usable_until_they_are_read() -> None:
    health = evaluate(replace(GOOD, has_planned=True), NOW, HOUR)
    assert (health.passed, health.reasons) == (True, (HealthReason.USABLE,))
    assert "not complete" in health.detail[HealthReason.USABLE]
    waits = evaluate(replace(GOOD, has_planned=True, queued=(RevisionWindow(1, 5),)), NOW, HOUR)
    assert (waits.passed, verdict_of(waits)) == (False, "waiting")


def test_no_asset_is_called_complete_while_a_detail_is_missing() -> None:
    refused = Unreadable("approvals", NOW, "403")
    for changes in ({"has_planned": True}, {"deferred_fetches": 1}, {"unreadable": (refused,)}):
        assert replace(GOOD, **changes).level is Level.USABLE
    assert GOOD.level is Level.COMPLETE
    # A server without approvals has none that could be missing.
    assert replace(GOOD, unreadable=(replace(refused, is_unknown=True),)).level is Level.COMPLETE
    assert replace(GOOD, watermark=None, verified_at=None).level is None


def test_windows_of_time_are_told_without_the_year_1900() -> None:
    history = TimeWindow(BEGINNING, datetime(2024, 1, 1, tzinfo=UTC))
    line = evaluate(replace(GOOD, queued=(history,)), NOW, HOUR).detail[HealthReason.INCOMPLETE]
    assert line == "waits to be read: the beginning to 2024-01-01 00:00 UTC"


# On the database ------------------------------------------------------------------------------------------

COVERED = """
UPDATE scm.sync_watermarks SET covered_time = %(covered)s::tstzmultirange, verified_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
"""


def health_of(conn: Connection) -> list[HealthResult]:
    return read(conn, HOUR, Credentials(frozenset({"gitlab.example"}), {}, {}))


def reasons(conn: Connection, tokens: Credentials) -> dict[str, set[str]]:
    return {v.facts.job_type: set(v.health.reasons) for v in read(conn, HOUR, tokens)}


def test_gaps_and_queued_history_of_time_are_told_apart(database: Database) -> None:
    origin = datetime(2026, 1, 1, tzinfo=UTC)
    tokens = Credentials(frozenset({"gitlab.example"}), {}, {})
    with database.connection() as conn:
        repo_id = register_project(conn, "https://gitlab.example", 7, "acme/app", origin=origin)
        assert reasons(conn, tokens) == {
            "commits": {"never_synced", "incomplete"},  # the first incremental reads them all
            "merge_requests": {"never_synced", "gap"},
            "reviews": {"never_synced", "gap"},
        }
        for since, until in (
            (BEGINNING, datetime(2024, 1, 1, tzinfo=UTC)),
            (datetime(2024, 1, 1, tzinfo=UTC), origin),
        ):
            window = TimeWindow(since, until)
            enqueue(
                conn,
                JobRequest(
                    repo_id, JobType.REVIEWS, Mode.BACKFILL, Trigger.REGISTRATION, "a", "b", window=window
                ),
            )
        for job_type, covered in (
            ("commits", "{[1900-01-01 00:00+00, 2026-02-01 00:00+00)}"),
            ("merge_requests", "{[2025-01-01 00:00+00, 2026-02-01 00:00+00)}"),
            ("reviews", "{[2025-01-01 00:00+00, 2026-02-01 00:00+00)}"),
        ):
            conn.execute(COVERED, {"repo_id": repo_id, "job_type": job_type, "covered": covered})
        assert reasons(conn, tokens) == {
            "commits": set(),
            "merge_requests": {"gap"},
            "reviews": {"incomplete"},
        }
        gap = next(v for v in read(conn, HOUR, tokens) if v.facts.job_type == "merge_requests").facts.gap
        assert gap == (TimeWindow(BEGINNING, datetime(2025, 1, 1, tzinfo=UTC)),)


@pytest.mark.parametrize(
    ("created", "not_before", "read", "visited", "stalled"),
    [
        ("25 hours", "25 hours", None, "1 hour", True),
        ("25 hours", "25 hours", "25 hours", "1 hour", True),
        ("25 hours", "25 hours", "1 hour", "1 hour", False),
        ("23 hours", "23 hours", None, "1 hour", False),
        # Its time came an hour ago.
        ("25 hours", "1 hour", None, "1 hour", False),
        # No job ran: that has a reason of its own.
        ("25 hours", "25 hours", None, "25 hours", False),
    ],
)
def test_planned_fetches_are_stalled_when_none_was_read_for_a_day_although_jobs_ran(
    database: Database, created: str, not_before: str, read: str | None, visited: str, stalled: bool
) -> None:
    with database.connection() as conn:
        repo_id = register_project(conn, "https://gitlab.example", 7, "acme/app", origin=NOW)
        conn.execute("UPDATE scm.sync_watermarks SET visited_at = now() - %s::interval", (visited,))
        insert = (
            "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error,"
            " is_planned, created_at, not_before, resolved_at) VALUES (%s, 'reviews', %s, 'notes', '', TRUE,"
            " now() - %s::interval, now() - %s::interval, now() - %s::interval)"
        )
        conn.execute(insert, (repo_id, "1", created, not_before, None))
        if read is not None:
            conn.execute(insert, (repo_id, "2", created, not_before, read))
        found = {one.facts.job_type: one.facts for one in health_of(conn)}
    assert (found[JobType.REVIEWS].has_planned, found[JobType.REVIEWS].deferred_fetches) == (True, 0)
    assert found[JobType.REVIEWS].planned_stalled is stalled
    assert not found[JobType.MERGE_REQUESTS].has_planned


def test_a_refused_token_shows_until_another_one_is_in_force(database: Database) -> None:
    def tokens(conn: Connection, secret: str) -> Credentials:
        settings = Settings(gitlab_url="https://gitlab.example", gitlab_token=SecretStr(secret))
        return in_force(conn, Readers(settings))

    with database.connection() as conn:
        register_project(conn, "https://gitlab.example", 7, "acme/app", origin=NOW)
        refused = Readers(Settings(gitlab_url="https://gitlab.example", gitlab_token=SecretStr("old-token")))
        stop(conn, "gitlab.example", refused.fingerprint("gitlab.example"), "the token is expired")
        found = next(iter(read(conn, HOUR, tokens(conn, "old-token"))))
        assert found.health.detail["credential"] == "the token is expired"
        assert "credential" not in reasons(conn, tokens(conn, "new-token"))["commits"]
        elsewhere = in_force(conn, Readers(Settings(gitlab_url="https://other.example")))
        assert "credential" in reasons(conn, elsewhere)["commits"]
        lines = [v.health.detail["credential"] for v in read(conn, HOUR, elsewhere)]
        assert all(line.startswith("no GitLab is configured for gitlab.example") for line in lines)


@pytest.mark.parametrize(
    ("code", "mode", "is_tried_again", "reason"),
    [
        ("denied", Mode.INCREMENTAL, True, "denied"),
        ("scope", Mode.BACKFILL, True, "credential"),
        ("connection", Mode.INCREMENTAL, True, "unreachable"),
        ("timeout", Mode.INCREMENTAL, True, "waits_for_retry"),
        ("timeout", Mode.BACKFILL, True, "incomplete"),
        ("corrupt", Mode.BACKFILL, False, "failed_window"),
        ("database_full", Mode.INCREMENTAL, True, None),
        ("lease_held", Mode.BACKFILL, True, None),
    ],
)
def test_a_failed_job_leads_to_an_entry_of_the_catalogue(
    code: str, mode: Mode, is_tried_again: bool, reason: str | None
) -> None:
    found = reason_of_failure(code, mode, is_tried_again=is_tried_again)
    assert found == reason
    assert found is None or remedy(found)


def test_what_follows_from_lost_access_names_the_reason_to_remove_first() -> None:
    found = remedies(
        [HealthReason.DENIED, HealthReason.INCOMPLETE, HealthReason.NEVER_SYNCED, HealthReason.QUARANTINE],
        "gitlab:7",
    )
    assert found["incomplete"] == found["never_synced"] == "first remove the reason denied"
    assert found["denied"] == remedy(HealthReason.DENIED, "gitlab:7")
    assert found["quarantine"] == remedy(HealthReason.QUARANTINE, "gitlab:7")
    assert remedies([HealthReason.INCOMPLETE], "gitlab:7") == {
        "incomplete": remedy(HealthReason.INCOMPLETE, "gitlab:7")
    }
