"""Commits, branches, tags and comparisons: what the API says is what git has."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline_sandbox.gitlab import GitRepository
from sync_pipeline_sandbox.gitlab import git as sandbox_git
from sync_pipeline_tests.sandbox.gitlab.conftest import Site


def git(path: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(path), *arguments], check=True, capture_output=True
    ).stdout.decode()


def walk(site: Site, path: str, **parameters: Any) -> list[dict[str, Any]]:
    """All rows of a list, following X-Next-Page."""
    rows, page = [], "1"
    while page:
        answer = site.get(path, per_page=7, page=page, **parameters)
        assert answer.status_code == 200, answer.text
        rows += answer.json()
        page = answer.headers["X-Next-Page"]
    return rows


def test_commits_of_this_project_equal_git_log(site: Site) -> None:
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists() or git(here, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("this is no whole clone")
    own = site.gitlab.project("self", group=site.group, repository=here)
    tip = git(here, "rev-parse", "HEAD").strip()
    limit = 60
    answer = site.rows(
        f"/projects/{own.id}/repository/commits", ref_name=tip, per_page=limit, with_stats="true"
    )
    form = "%H%x1f%P%x1f%an%x1f%ae%x1f%cn%x1f%ce%x1f%at%x1f%ct%x1f%B%x1e"
    entries = git(here, "log", f"--max-count={limit}", f"--format={form}", tip).split("\x1e\n")[:-1]
    assert len(answer) == len(entries)
    for row, entry in zip(answer, entries, strict=True):
        sha, parents, *people, authored, committed, message = entry.split("\x1f")
        assert (row["id"], row["parent_ids"], row["short_id"]) == (sha, parents.split(), sha[:8])
        names = ("author_name", "author_email", "committer_name", "committer_email")
        assert [row[name] for name in names] == people
        assert row["message"].rstrip("\n") == message.rstrip("\n")
        assert row["title"] == message.split("\n")[0]
        assert row["created_at"] == row["committed_date"]
        assert int(authored) == _seconds(row["authored_date"])
        assert int(committed) == _seconds(row["committed_date"])
    shown = git(here, "show", "--numstat", "--format=", "-m", "--first-parent", tip).splitlines()
    added = sum(int(line.split("\t")[0]) for line in shown if line and line[0] != "-")
    assert answer[0]["stats"]["additions"] == added


def test_odd_commits_are_told_as_they_are(site: Site) -> None:
    repository = site.git
    latin = repository.commit("odd", "Caf\xe9\n".encode("latin-1"), parents=[], encoding="ISO-8859-1")
    broken = repository.commit("odd", b"bad \xff byte\n")
    future = repository.commit("odd", "Late\n", date="4733510400 +1359", author_date="100 -0730")
    old = repository.commit("odd", "Old on top\n", date="978307200 +0000")
    nameless = repository.write_commit(
        f"tree {git(repository.path, 'rev-parse', f'{old}^{{tree}}').strip()}\nparent {old}\n"
        "author  <> 99999999999999999999 +0000\ncommitter X <x@y> -86400 +0000\n\n".encode()
    )
    repository.set_ref("refs/heads/odd", nameless)
    rows = {row["id"]: row for row in walk(site, f"{site.at}/repository/commits", ref_name="odd")}
    assert set(rows) == {latin, broken, future, old, nameless}
    assert rows[latin]["message"] == "Café\n"
    assert rows[latin]["parent_ids"] == []
    assert rows[broken]["message"] == "bad � byte\n"
    assert rows[future]["committed_date"] == "2120-01-01T13:59:00.000+13:59"
    assert rows[future]["authored_date"] == "1969-12-31T16:31:40.000-07:30"
    assert rows[nameless]["author_name"] == ""
    assert rows[nameless]["title"] == "No commit message"
    assert site.get(f"{site.at}/repository/commits", ref_name="odd", with_stats="true").status_code == 200
    # A walk limited by date stops at the old one, as git's does.
    assert site.rows(f"{site.at}/repository/commits", ref_name=future, since="2100-01-01T00:00:00Z") != []
    assert site.rows(f"{site.at}/repository/commits", ref_name=old, since="2100-01-01T00:00:00Z") == []


def test_ranges_roots_and_all_refs(site: Site) -> None:
    repository = site.git
    before = repository.resolve("main")
    assert before is not None
    lone = repository.commit("island", "Another root\n", parents=[])
    new = repository.commit("main", "Merge\n", parents=[before, lone])
    at = f"{site.at}/repository/commits"
    assert {row["id"] for row in site.rows(at, ref_name=f"{before}..{new}")} == {new, lone}
    assert site.rows(at, ref_name=f"{new}..{before}") == []
    assert lone not in {row["id"] for row in site.rows(at, ref_name="main", first_parent="true")}
    every = {row["id"] for row in walk(site, at, all="true")}
    assert every == set(git(repository.path, "rev-list", "--all").split())
    assert site.rows(f"{at}/{new}/sequence") == {"count": 5}
    site.git.tag("v1", new)
    refs = site.get(f"{at}/{lone}/refs")
    assert {(row["type"], row["name"]) for row in refs.json()} == {
        ("branch", "island"),
        ("branch", "main"),
        ("tag", "v1"),
    }
    assert "X-Total" not in refs.headers


def test_since_and_until_include_their_ends(site: Site) -> None:
    rows = site.rows(f"{site.at}/repository/commits", ref_name="main")
    middle = rows[1]["committed_date"]
    found = site.rows(f"{site.at}/repository/commits", ref_name="main", since=middle, until=middle)
    assert [row["id"] for row in found] == [rows[1]["id"]]


def test_refs_that_name_nothing_answer_as_told(site: Site) -> None:
    at = f"{site.at}/repository/commits"
    assert site.rows(at, ref_name="nowhere") == []
    site.gitlab.behaviour.missing_ref = 404
    assert site.get(at, ref_name="nowhere").status_code == 404
    refused = site.get(at, ref_name="--output=x")
    assert (refused.status_code, refused.json()) == (400, {"message": "ref_name is invalid"})
    assert site.get(f"{at}/nowhere").json() == {"message": "404 Commit Not Found"}


def test_a_forced_push_orphans_commits_until_they_are_pruned(site: Site) -> None:
    old = site.git.resolve("feature/parser")
    new = site.git.commit("feature/parser", "Rewritten\n", parents=[site.git.resolve("main") or ""])
    at = f"{site.at}/repository/commits"
    assert site.rows(f"{at}/{old}")["id"] == old
    assert site.rows(f"{at}/{old}/refs") == []
    assert [row["id"] for row in site.rows(at, ref_name=f"{old}..{new}")] == [new]
    site.git.prune()
    assert site.get(f"{at}/{old}").status_code == 404
    assert site.rows(at, ref_name=f"{old}..{new}") == []


def test_branches_and_tags(site: Site) -> None:
    tip = site.git.resolve("main")
    assert tip is not None
    site.git.tag("v1.0.0", tip, message="first\n")
    site.git.tag("light", tip)
    branches = {row["name"]: row for row in site.rows(f"{site.at}/repository/branches")}
    assert set(branches) == {"feature/parser", "main"}
    assert (branches["main"]["default"], branches["main"]["commit"]["id"]) == (True, tip)
    assert branches["feature/parser"]["merged"] is False
    one = site.rows(f"{site.at}/repository/branches/feature%2Fparser")
    assert one == branches["feature/parser"]
    assert site.get(f"{site.at}/repository/branches/feature/parser").json() == {"error": "404 Not Found"}
    assert site.get(f"{site.at}/repository/branches/no").json() == {"message": "404 Branch Not Found"}
    assert site.get(f"{site.at}/repository/branches/a..b").json() == {
        "message": "The branch refname is invalid"
    }
    tags = {row["name"]: row for row in site.rows(f"{site.at}/repository/tags")}
    assert (tags["light"]["target"], tags["light"]["created_at"]) == (tip, None)
    annotated = tags["v1.0.0"]
    assert (annotated["message"], annotated["commit"]["id"]) == ("first", tip)
    assert annotated["target"] == git(site.git.path, "rev-parse", "v1.0.0").strip() != tip
    assert annotated["created_at"] == "2024-05-06T10:02:11.000+00:00"
    assert site.get(f"{site.at}/repository/tags/no").json() == {"message": "404 Tag Not Found"}


def test_comparisons_list_the_oldest_commit_first(site: Site) -> None:
    main = site.rows(f"{site.at}/repository/commits", ref_name="main")
    parameters: dict[str, Any] = {"from": main[2]["id"], "to": "main"}
    compared = site.rows(f"{site.at}/repository/compare", **parameters)
    assert [row["id"] for row in compared["commits"]] == [main[1]["id"], main[0]["id"]]
    assert compared["commit"]["id"] == main[0]["id"]
    assert [(row["new_path"], row["new_file"]) for row in compared["diffs"]] == [("README.md", False)]
    assert compared["diffs"][0]["diff"].startswith("@@ -1 +1,3 @@\n")
    parameters["from"] = "no"
    missing = site.get(f"{site.at}/repository/compare", **parameters)
    assert (missing.status_code, missing.json()) == (404, {"message": "404 Ref Not Found"})
    assert site.get(f"{site.at}/repository/compare", to="main").json() == {"error": "from is missing"}
    base = site.rows(f"{site.at}/repository/merge_base", **{"refs[]": ["main", "feature/parser"]})
    assert base["id"] == main[0]["id"]


def test_empty_and_absent_repositories(site: Site, tmp_path: Path) -> None:
    empty = site.gitlab.project(
        "empty", group=site.group, repository=GitRepository.create(tmp_path / "empty.git")
    )
    absent = site.gitlab.project("absent", group=site.group)
    assert site.rows(f"/projects/{empty.id}")["empty_repo"] is True
    assert site.rows(f"/projects/{empty.id}/repository/branches") == []
    assert site.rows(f"/projects/{empty.id}/repository/tags") == []
    assert site.rows(f"/projects/{empty.id}/repository/commits") == []
    site.gitlab.behaviour.empty_repository = 404
    for project in (empty, absent):
        answer = site.get(f"/projects/{project.id}/repository/commits")
        assert (answer.status_code, answer.json()) == (404, {"message": "404 Repository Not Found"})


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def test_git_is_asked_once_until_the_repository_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = sandbox_git._git

    def counted(path: Path, arguments: Sequence[str], stdin: bytes | None = None) -> bytes:
        asked.append(arguments[0])
        return run(path, arguments, stdin)

    monkeypatch.setattr(sandbox_git, "_git", counted)
    made = GitRepository.create(tmp_path / "kept.git")
    tip = made.commit("main", "One\n", files={"a": "1\n"})

    def names() -> tuple[list[str], int]:
        asked.clear()
        return [ref.name for ref in made.branches()], len(asked)

    assert [names(), names()] == [(["main"], 1), (["main"], 0)]
    made.set_ref("refs/heads/own", tip)
    assert names() == (["main", "own"], 1)
    git(made.path, "update-ref", "refs/heads/feature/other", tip)
    assert names() == (["feature/other", "main", "own"], 1)
    git(made.path, "pack-refs", "--all")
    git(made.path, "symbolic-ref", "HEAD", "refs/heads/own")
    assert (names()[1], made.head_branch()) == (1, "own")
    # Of a repository that others write to nothing is kept.
    opened = GitRepository(made.path)
    asked.clear()
    assert opened.branches() == opened.branches()
    assert len(asked) == 2
