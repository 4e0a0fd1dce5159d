"""The benchmarks: the counts of their server are true, and their page tells figures and failures.

Belongs here: a small run of the comparison without peers, which need the package index.
"""

from __future__ import annotations

import pytest
import requests

from bench import comparison, peers
from bench.page import Grid, Section, replaced
from bench.server import Behaviour, Counted, Measured


def test_the_server_of_a_comparison_counts_what_it_is_asked_and_what_it_refuses() -> None:
    with Measured([20]) as measured:
        subject = measured.subjects[20]
        headers = {"PRIVATE-TOKEN": measured.token}
        at = f"{measured.url}/api/v4/projects/{subject.project}"
        measured.start(Behaviour("free"))
        assert requests.get(at, headers=headers, timeout=60).json()["path_with_namespace"] == subject.path
        assert measured.counted() == Counted(requests=1, refused=0, in_flight=1)
        measured.start(Behaviour("limited", limit=1))
        statuses = [requests.get(at, headers=headers, timeout=60).status_code for _ in range(9)]
        counted = measured.counted()
        assert (counted.requests, counted.refused) == (statuses.count(200), statuses.count(429))
        assert counted.refused


def test_our_reading_takes_part_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = next(one for one in peers.CONTESTANTS if one.package is None)
    monkeypatch.setattr(peers, "CONTESTANTS", [ours])
    results = peers.compete([peers.Round(Behaviour("0 ms"), 20, 20)])
    assert [result.error for result in results] == [None] * len(results)
    assert [result.missing for result in results] == [{}] * len(results)
    assert {kind for result in results for kind in result.rows} == {
        "merge_requests",
        "notes",
        "approvals",
    }
    assert all(result.counted.requests and result.cpu for result in results)


def test_a_peer_that_fails_is_named_and_the_others_are_shown() -> None:
    section = comparison.section(
        "peers",
        [
            peers.Result("dlt", "1.0", "", "0 ms", 20, error="pip: no such package"),
            peers.Result(
                "sync_pipeline", "", "complete", "0 ms", 20, 2.0, 1.0, 3.0, 80.0, Counted(100, 0, 4)
            ),
        ],
    )
    text = section.markdown()
    assert "| dlt 1.0 |  | 20 | failed: pip: no such package |" in text
    assert "| sync_pipeline | complete | 20 | 100 | 0 | 4 | 2.0 s | 3.0 s | 1.0 s | 10.0 ms | 80 MB |" in text


def test_budgets_are_compared_with_the_project_they_are_of() -> None:
    def result(who: str, what: str, seconds: float, requests: int) -> peers.Result:
        return peers.Result(who, "", what, "50 ms", 2_000, seconds, 1.0, None, 80.0, Counted(requests, 0, 4))

    results = [
        result("sync_pipeline", "complete", 50.0, 11_000),
        result("dlt", "merge requests and notes", 100.0, 2_020),
    ]
    text = comparison.section("peers", results).markdown()
    assert "| complete: requests | 11,000 | 11,200 | 10,200 |" in text
    assert "| complete, against dlt | 2.0 x as fast | 2 x as fast | 3 x as fast |" in text
    assert "| usable: requests | not measured | 200 |  |" in text


def test_writing_some_sections_leaves_the_others() -> None:
    def section(name: str, text: str) -> Section:
        return Section(name, [text], [Grid(["what"], [["figure"]])], [])

    page = replaced("", [section("svn", "first"), section("gitlab", "second")])
    page = replaced(page, [section("gitlab", "third")])
    assert "first" in page
    assert "second" not in page
    assert page.index("## gitlab") < page.index("third") < page.index("## svn")
