"""Refs and commits over HTTP, compared with git itself."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sync_pipeline.core.errors import SourceGone, Transient
from sync_pipeline.core.gitlab_rows import CommitPage, CommitRow, RefKind
from sync_pipeline.core.model import TimeWindow
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import commit
from sync_pipeline.sources.gitlab.refs import RefReader
from sync_pipeline_sandbox.gitlab import GitRepository, faults
from sync_pipeline_tests.sources.gitlab.conftest import START, Site

SHA = "a" * 40


def reader(site: Site, **options: bool) -> CommitReader:
    return CommitReader(site.client, site.project.id, **options)


def read(site: Site, tip: str, covered: str | None = None) -> dict[str, CommitRow]:
    batches = list(reader(site).read_tip(tip, covered))
    assert [batch.complete for batch in batches][-1]
    return {row.sha: row for batch in batches for row in batch.rows}


def log(git: GitRepository, *revisions: str) -> list[str]:
    command = ["git", "-C", str(git.path), "log", "--format=%H", *revisions]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def many(git: GitRepository, branch: str, count: int, start: int = 0) -> str:
    """A straight line of small commits, made at once."""
    lines = []
    tip = git.resolve(f"refs/heads/{branch}")
    for number in range(start, start + count):
        message = f"Commit {number}\n".encode()
        lines.append(b"commit refs/heads/%s" % branch.encode())
        lines.append(b"committer User 1 <user1@example.test> %d +0200" % (1714000000 + 60 * number))
        lines.append(b"data %d\n%s" % (len(message), message))
        if tip and number == start:
            lines.append(b"from %s" % tip.encode())
        lines.append(b"M 100644 inline f\ndata 2\n%d\n" % (number % 10))
    command = ["git", "-C", str(git.path), "fast-import", "--quiet", "--force"]
    subprocess.run(command, input=b"\n".join(lines), check=True)
    found = git.resolve(f"refs/heads/{branch}")
    assert found is not None
    return found


# --- Refs -------------------------------------------------------------------------------------------------


def test_every_branch_and_tag_is_listed_with_its_commit(site: Site) -> None:
    first = site.git.commit("main", "One\n", files={"a": "1"})
    for number in range(205):
        site.git.set_ref(f"refs/heads/topic/{number:03}", first)
    site.git.tag("v1", first, message="first")
    site.git.tag("light", first)
    listing = RefReader(site.client, site.project.id).listing()
    branches = [ref for ref in listing.refs if ref.kind is RefKind.BRANCH]
    assert {ref.name for ref in branches} == {"main", *(f"topic/{number:03}" for number in range(205))}
    assert {ref.tip for ref in listing.refs} == {first}
    assert [ref.name for ref in branches if ref.is_default] == ["main"]
    tags = {ref.name: ref for ref in listing.refs if ref.kind is RefKind.TAG}
    assert tags["light"].target == first
    assert tags["v1"].target != first
    assert listing.date == START.replace(microsecond=0)


def test_a_branch_removed_between_two_pages_hides_no_other(site: Site) -> None:
    first = site.git.commit("main", "One\n")
    names = [f"topic/{number:03}" for number in range(150)]
    for name in names:
        site.git.set_ref(f"refs/heads/{name}", first)
    gone = faults.Do(lambda: site.git.set_ref("refs/heads/topic/000", None), after=True)
    site.gitlab.faults.add("/branches", gone)
    found = {ref.name for ref in RefReader(site.client, site.project.id).listing().refs}
    assert found >= {"main", *names[1:]}


def test_a_project_without_commits_has_no_refs(site: Site) -> None:
    assert RefReader(site.client, site.project.id).listing().refs == ()


# --- Commits ----------------------------------------------------------------------------------------------


def test_all_commits_are_read_whatever_their_dates_encodings_and_roots(site: Site) -> None:
    git = site.git
    for number in range(5):
        git.commit(
            "main",
            f"Plain {number}\n",
            files={"f": f"{number}\n" * number},
            date=f"{1714989731 + number} +0530",
        )
    git.commit("main", "Old on top\n", date="1000000000 +0000")
    git.commit("main", "Future\n", date="4733510400 +1359")
    git.commit("main", "Before the epoch\n", date="-86400 +0000")
    git.commit(
        "main", "Gr\xfc\xdfe\n".encode("latin-1"), encoding="ISO-8859-1", author="J\u00f6rg <j@example.test>"
    )
    git.commit("main", b"broken \xff\xfe bytes\n")
    other = git.commit("other-root", "Another root\n", parents=[], author_date="1500000000 -0700")
    main = git.resolve("main")
    assert main is not None
    merge = git.commit("main", "Merge\n", parents=[main, other])
    found = read(site, merge)
    assert sorted(found) == sorted(log(git, "--all"))
    assert found[merge].parents == (main, other)
    by_title = {row.title: row for row in found.values()}
    future = by_title["Future"]
    assert (future.committed_at.year, future.committed_raw[-6:]) == (2120, "+13:59")  # type: ignore[union-attr,index]
    assert by_title["Another root"].parents == ()
    assert by_title["Another root"].authored_at != by_title["Another root"].committed_at
    assert by_title["Plain 3"].additions == 3
    assert by_title["Plain 3"].deletions == 2
    assert "Gr\u00fc\u00dfe" in by_title


def test_a_walk_has_stable_pages_and_goes_on_at_any(site: Site) -> None:
    tip = many(site.git, "main", 250)
    whole = list(reader(site).read_tip(tip))
    assert [(batch.number, len(batch.rows), batch.next_number) for batch in whole[:3]] == [
        (1, 100, 2),
        (2, 100, 3),
        (3, 50, None),
    ]
    assert [batch.complete for batch in whole] == [False, False, True]
    many(site.git, "main", 7, 250)  # a push meanwhile moves nothing
    rest = list(reader(site).read_tip(tip, None, 2, tip_read=True))
    assert [row.sha for batch in rest for row in batch.rows] == [
        row.sha for batch in whole[1:] for row in batch.rows
    ]
    assert rest[-1].complete


def test_a_full_last_page_is_followed_by_an_empty_one(site: Site) -> None:
    tip = many(site.git, "main", 100)
    batches = list(reader(site).read_tip(tip))
    assert sum(len(batch.rows) for batch in batches) == 100
    assert batches[-1].complete


def test_a_push_costs_the_range_only(site: Site) -> None:
    old = many(site.git, "main", 120)
    site.git.commit("main", "Pushed late\n", date="1000000000 +0000")
    new = site.git.commit("main", "On top\n")
    (batch,) = reader(site).read_tip(new, old)
    assert sorted(row.title or "" for row in batch.rows) == ["On top", "Pushed late"]
    assert (batch.base, batch.complete) == (old, True)
    assert batch.rows[-1].committed_at is not None


def test_the_range_of_a_force_push_is_what_is_new(site: Site) -> None:
    base = site.git.commit("main", "Base\n")
    old = site.git.commit("main", "Old\n")
    new = site.git.commit("main", "Rewritten\n", parents=[base])
    (batch,) = reader(site).read_tip(new, old)
    assert [row.sha for row in batch.rows] == [new]
    assert batch.complete


@pytest.mark.parametrize("missing", [200, 404])
def test_a_covered_tip_that_the_server_no_longer_has_means_the_whole(site: Site, missing: int) -> None:
    site.gitlab.behaviour.missing_ref = missing
    tip = many(site.git, "main", 130)
    batches = list(reader(site).read_tip(tip, "b" * 40))
    assert sorted(row.sha for batch in batches for row in batch.rows) == sorted(log(site.git, tip))
    assert (batches[-1].complete, batches[-1].base) == (True, None)
    assert not any(batch.complete for batch in batches[:-1])


@pytest.mark.parametrize("missing", [200, 404])
def test_a_tip_that_the_server_does_not_have_is_said_so(site: Site, missing: int) -> None:
    site.gitlab.behaviour.missing_ref = missing
    known = site.git.commit("main", "One\n")
    for covered in (None, known):
        with pytest.raises(SourceGone) as caught:
            list(reader(site).read_tip(SHA, covered))
        assert caught.value.code == "no_commit"


def test_days_refresh_and_verify_nothing(site: Site) -> None:
    site.git.commit("main", "One\n", date="1714989731 +0000")
    site.git.commit("side", "Two\n", date="1714989732 +0000")
    batches = list(reader(site).read_days(TimeWindow(START.replace(hour=0), START.replace(hour=23))))
    assert {row.title for batch in batches for row in batch.rows} == {"One", "Two"}
    assert not any(batch.complete for batch in batches)


def _with_stats(fault: faults.Fault, site: Site) -> list[CommitPage]:
    tip = many(site.git, "main", 350)
    site.gitlab.faults.add("with_stats=true", fault, times=None)
    return list(reader(site).read_tip(tip))


def test_statistics_that_are_too_hard_are_deferred_and_the_commits_stored(site: Site) -> None:
    batches = _with_stats(faults.server_error(500), site)
    assert sum(len(batch.rows) for batch in batches) == 350
    assert batches[-1].complete
    fetches = [one for batch in batches for one in batch.deferred]
    assert len({one.natural_key for one in fetches}) == 350
    site.gitlab.faults.clear()
    settled = reader(site).settle(fetches[0].natural_key)
    assert settled.additions is not None


def test_a_page_that_fails_for_good_ends_the_walk_before_it_is_complete(site: Site) -> None:
    tip = many(site.git, "main", 350)
    # Not even in pieces.
    site.gitlab.faults.add(r"[?&]page=(3|2\d)(&|$)", faults.proxy_error(502), times=None)
    walk = reader(site).read_tip(tip)
    seen = [next(walk), next(walk)]
    with pytest.raises(Transient):
        next(walk)
    assert [batch.number for batch in seen] == [1, 2]
    assert not any(batch.complete for batch in seen)


def test_a_commit_that_is_none_is_quarantined_and_the_others_stored(site: Site) -> None:
    tip = site.git.commit("main", "One\n")
    good = {
        "id": tip,
        "parent_ids": [],
        "committed_date": "2021-01-01T24:00:00Z",
        "authored_date": "2021-01-01T00:00:00.1234567+02:00",
    }
    body = [{"id": "no sha"}, good | {"message": "a\x00b\ud800"}, "text"]
    site.gitlab.faults.add("/commits", faults.json_answer(200, body), times=None)
    (batch,) = reader(site).read_tip(tip)
    assert len(batch.quarantined) == 2
    (row,) = batch.rows
    assert (row.committed_at, row.committed_raw) == (None, "2021-01-01T24:00:00Z")
    assert row.authored_at is not None
    assert row.flags == ("bad_date", "control_characters", "invalid_unicode")
    assert batch.complete


@pytest.mark.parametrize(
    "text",
    ["2024-13-01T00:00:00Z", "2024-01-01T00:00:00+13:75", "2024-01-01", "", 5, "0001-01-01T00:00:00+14:00"],
)
def test_a_date_that_is_none_is_kept_as_it_is(text: object) -> None:
    row = commit({"id": SHA, "committed_date": text})
    assert row.committed_at is None
    assert "bad_date" in row.flags
    assert row.committed_raw == (text if isinstance(text, str) else None)


@pytest.mark.parametrize(
    ("parents", "flags"),
    [(None, ()), ("none", ("bad_type",)), ([SHA, 5], ("bad_type",)), ({}, ("bad_type",))],
)
def test_parents_that_the_source_does_not_say_are_unknown_and_not_none(
    parents: object, flags: tuple[str, ...]
) -> None:
    row = commit({"id": SHA, "parent_ids": parents})
    assert (row.parents, row.flags) == (None, flags)
    assert commit({"id": SHA}).parents is None
    assert commit({"id": SHA, "parent_ids": []}).parents == ()


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-06t10:00:00z",
        "2024-05-06T18:00:00+0800",
        "2024-05-06 10:00:00 UTC",
        "2024-05-06 06:00:00 -0400",
    ],
)
def test_a_date_may_be_written_as_rfc_3339_and_ruby_do(text: str) -> None:
    assert commit({"id": SHA, "committed_date": text}).committed_at == datetime(2024, 5, 6, 10, tzinfo=UTC)


def test_this_projects_own_history_is_read_as_git_tells_it(site: Site, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        pytest.skip("this is no git clone")
    clone = tmp_path / "own.git"
    command = ["git", "clone", "--quiet", "--bare", "--single-branch", str(root), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    site.project.repository = GitRepository(clone)
    site.git = site.project.repository
    tip = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    found = read(site, tip)
    form = "%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%B%x01"
    output = subprocess.run(
        ["git", "-C", str(clone), "log", f"--format={form}", tip], check=True, capture_output=True, text=True
    ).stdout
    entries = [entry.strip("\n").split("\x00") for entry in output.split("\x01") if entry.strip()]
    assert len(entries) == len(found)
    for sha, parents, an, ae, at, cn, ce, ct, body in entries:
        row = found[sha]
        assert (row.parents, row.author_name, row.author_email) == (tuple(parents.split()), an, ae)
        assert (row.committer_name, row.committer_email) == (cn, ce)
        assert row.authored_at is not None
        assert row.committed_at is not None
        assert (row.authored_at.timestamp(), row.committed_at.timestamp()) == (float(at), float(ct))
        assert (row.message or "").strip("\n") == body.strip("\n")
        assert row.additions is not None
