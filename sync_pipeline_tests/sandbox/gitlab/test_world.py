"""The project of the benchmarks: its counts are exact, and it is the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, serve
from sync_pipeline_sandbox.gitlab.world import Truth, build_world


def every(base: str, headers: dict[str, str], path: str, **parameters: str) -> list[dict[str, object]]:
    """All rows of a list."""
    rows: list[dict[str, object]] = []
    page = "1"
    while page:
        answer = requests.get(
            f"{base}{path}",
            params={"per_page": "100", "page": page, **parameters},
            headers=headers,
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        rows += answer.json()
        page = answer.headers["X-Next-Page"]
    return rows


def test_two_thousand_merge_requests_are_the_world_of_the_budgets() -> None:
    assert Truth.of(2_000) == Truth(
        merge_requests=2_000,
        notes=10_000,
        approvals=1_450,
        approved_merge_requests=1_100,
        reviewed_merge_requests=1_333,
        commits=4_026,
        branches=303,
        tags=12,
    )


def test_the_server_gives_exactly_the_promised_rows(tmp_path: Path) -> None:
    gitlab = GitLab()
    group, user = gitlab.group("team1"), gitlab.user("reader")
    gitlab.add_member(group, user, DEVELOPER)
    headers = {"PRIVATE-TOKEN": gitlab.token(user).secret}
    world = build_world(gitlab, group, tmp_path, merge_requests=40)
    truth = world.truth
    with serve(gitlab) as server:
        at = f"{server.api}/projects/{world.project.id}"
        requests_ = every(at, headers, "/merge_requests", state="all")
        assert len(requests_) == truth.merge_requests == 40
        shown = {commit["id"] for commit in every(at, headers, "/repository/commits", all="true")}
        assert len(shown) == truth.commits
        branches = every(at, headers, "/repository/branches")
        assert len(branches) == truth.branches
        # The branches that are not merged are the hard part of reading commits.
        assert sum(not branch["merged"] for branch in branches) == truth.branches - 3 + 1
        notes, approvals, approved = 0, 0, 0
        for row in requests_:
            one = f"/merge_requests/{row['iid']}"
            notes += len(every(at, headers, f"{one}/notes"))
            people = requests.get(f"{at}{one}/approvals", headers=headers, timeout=60).json()["approved_by"]
            approvals += len(people)
            approved += bool(people)
            commits = every(at, headers, f"{one}/commits")
            assert commits[0]["id"] == row["sha"]
            assert {commit["id"] for commit in commits} <= shown
            assert row["milestone"] is None
        assert (notes, approvals, approved) == (truth.notes, truth.approvals, truth.approved_merge_requests)
        assert sum(bool(row["reviewers"]) for row in requests_) == truth.reviewed_merge_requests
        assert {row["state"] for row in requests_} == {"merged", "opened", "closed"}


def test_the_world_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def contents(name: str, seed: int) -> tuple[object, ...]:
        gitlab = GitLab()
        world = build_world(gitlab, gitlab.group("team1"), tmp_path / name, merge_requests=40, seed=seed)
        git = world.project.repository
        assert git is not None
        return (git.branches(), git.tags(), list(map(str, world.project.merge_requests.values())))

    assert contents("one", 1) == contents("two", 1)
    assert contents("three", 2) != contents("one again", 1)


def test_a_world_that_is_too_small_for_its_counts_is_refused(tmp_path: Path) -> None:
    gitlab = GitLab()
    with pytest.raises(ValueError, match="at least 20"):
        build_world(gitlab, gitlab.group("team1"), tmp_path, merge_requests=19)
