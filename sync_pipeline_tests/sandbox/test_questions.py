"""The questions of ``docs/questions.md`` have the answers that they should have on the demo's data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline_tests.sandbox.conftest import Demo

pytestmark = pytest.mark.xdist_group("demo")

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "questions.md"
_QUESTION = re.compile(r"^## (\d+)\. (.+?)$.*?^```sql\n(.*?)^```$", re.M | re.S)

QUERIES: Mapping[int, str] = {
    int(number): query for number, _, query in _QUESTION.findall(_PAGE.read_text(encoding="utf-8"))
}


def answer(demo: Demo, number: int) -> list[dict[str, Any]]:
    """The rows of a question."""
    rows = demo.rows(QUERIES[number])
    assert rows
    return rows


def test_there_are_twelve_questions_with_a_query_each() -> None:
    assert list(QUERIES) == list(range(1, 13))


def test_lead_time(demo: Demo) -> None:
    rows = {row["project_path"]: row for row in answer(demo, 1)}
    assert {path: row["merged"] for path, row in rows.items()} == {"demo/engine": 19, "demo/tools/lathe": 8}
    for row in rows.values():
        assert timedelta(hours=2) < row["median"] < row["longest"] < timedelta(days=3)


def test_review_turnaround(demo: Demo) -> None:
    rows = answer(demo, 2)
    # All but the merge request that nobody has looked at yet.
    assert sum(row["first_answers"] for row in rows) == 33
    assert {row["reviewer_username"] for row in rows} == {"ada", "bjorn", "chen", "dmitri", "esi", "grace"}
    assert (rows[0]["reviewer_username"], rows[0]["median"]) == ("ada", timedelta(hours=3))
    slowest = max(rows, key=lambda row: row["slowest"])
    assert (slowest["reviewer_username"], slowest["slowest"]) == ("esi", timedelta(days=2))


def test_force_pushes(demo: Demo) -> None:
    [row] = answer(demo, 3)
    assert (row["branch"], row["title"]) == ("smooth-the-acceleration", "Smooth the acceleration")
    assert row["old_tip"] != row["new_tip"]


def test_who_reviews_whom(demo: Demo) -> None:
    rows = answer(demo, 4)
    pairs = {(row["author"], row["reviewer"]): row["merge_requests"] for row in rows}
    assert sum(pairs.values()) == 33
    assert pairs["Grace Okafor", "Ada Lindqvist"] >= 1
    assert all(author != reviewer for author, reviewer in pairs)
    assert len(pairs) == 18


def test_stale_merge_requests(demo: Demo) -> None:
    [row] = answer(demo, 5)
    assert (row["title"], row["days_open"]) == ("Replace the filter of the encoder", 60)


def test_bulk_changes(demo: Demo) -> None:
    found = [(row["source_type"], row["bulk_reason"]) for row in answer(demo, 6)]
    assert sorted(found) == [("git", "over_1000_lines"), ("svn", "over_100_paths"), ("svn", "over_100_paths")]


def test_activity_per_person_over_both_sources(demo: Demo) -> None:
    rows = answer(demo, 7)
    assert [row["display_name"] for row in rows] == [
        "Ada Lindqvist",
        "Björn Haugen",
        "Chen Wei",
        "Dmitri Sokolov",
        "Esi Mensah",
        "Grace Okafor",
    ]
    for row in rows:
        assert min(row[name] for name in ("commits", "revisions", "merge_requests", "review_events")) >= 3


def test_commits_per_week(demo: Demo) -> None:
    rows = answer(demo, 8)
    assert len(rows) in (12, 13)
    assert [row["week"] for row in rows] == sorted({row["week"] for row in rows})
    assert all(row["svn"] for row in rows)
    assert 45 <= sum(row["git"] for row in rows) <= 60


def test_withdrawn_approvals(demo: Demo) -> None:
    [row] = answer(demo, 9)
    assert (row["title"], row["reviewer_name"]) == ("Smooth the acceleration", "Grace Okafor")
    assert row["approved_at"] < row["withdrawn_at"]


def test_resolved_threads(demo: Demo) -> None:
    rows = {row["project_path"]: (row["threads"], row["resolved"]) for row in answer(demo, 10)}
    assert rows == {"demo/engine": (8, 7), "demo/tools/lathe": (3, 2)}


def test_edited_messages(demo: Demo) -> None:
    [row] = answer(demo, 11)
    assert row["url"].endswith("/atlas")
    assert (row["rev_num"], row["before"]) == (396, "Correct the scale of sheet 12")
    assert row["now"].startswith("Correct the scale of sheet 21\n")


def test_denied_repositories(demo: Demo) -> None:
    rows = answer(demo, 12)
    assert [(row["repository"], row["job_type"]) for row in rows] == [
        ("finance/payroll", job_type) for job_type in ("commits", "merge_requests", "reviews")
    ]
    assert all("403" in row["access_detail"] for row in rows)
