"""A random history of a project with syncs in between, compared with the truth at its end.

Belongs here: nothing else. A seed that fails names itself; the same seed does the same again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sync_pipeline.model import JobType
from sync_pipeline.sandbox.gitlab import faults
from sync_pipeline.sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.sync.conftest import Forge

_STATES = {"opened": "open"}


class History:
    """People at work. Each step does one thing that may not be possible just now."""

    def __init__(self, forge: Forge, seed: int) -> None:
        self.forge = forge
        self.gitlab = forge.gitlab
        self.chance = random.Random(seed)
        self.number = 0
        forge.git.commit("main", "Begin\n", files={"a": "0\n"})
        self.steps: list[Callable[[], object]] = [
            *[self.push] * 4, *[self.open] * 3, *[self.comment] * 5, self.edit_note, self.delete_note,
            self.approve, self.approve, self.unapprove, self.finish, self.reopen, self.label, self.force,
            self.delete_branch, self.tag, self.edit, self.review, self.reset, self.old_commit,
        ]  # fmt: skip

    def step(self) -> None:
        """One random thing, a random time after the one before."""
        self.forge.tick(seconds=self.chance.choice([0, 0, 1, 5, 400, 4000]))
        self.number += 1
        self.chance.choice(self.steps)()

    def _branch(self) -> str:
        return self.chance.choice([ref.name for ref in self.forge.git.branches()])

    def _request(self, *states: str) -> MergeRequest | None:
        wanted = states or ("opened", "closed", "merged")
        found = [r for r in self.forge.project.merge_requests.values() if r.row["state"] in wanted]
        return self.chance.choice(found) if found else None

    def push(self) -> None:
        name, start = self._branch(), self.forge.git.resolve(f"refs/heads/{self._branch()}")
        if self.chance.random() < 0.3 and start is not None:
            self.forge.git.set_ref(f"refs/heads/b{self.number}", start)
            name = f"b{self.number}"
        bump = self.chance.random() < 0.5
        files = {f"f{self.number}": "x\n"}
        self.gitlab.push(self.forge.project, name, f"Push {self.number}\n", files=files, bump=bump)

    def old_commit(self) -> None:
        self.forge.git.commit(self._branch(), "Old\n", files={"o": str(self.number)}, date="1000000 +0000")

    def force(self) -> None:
        name, base = self._branch(), self.forge.git.resolve("refs/heads/main")
        assert base is not None
        sha = self.forge.git.commit(
            "tmp", f"Forced {self.number}\n", files={"z": str(self.number)}, parents=[base]
        )
        self.forge.git.set_ref(f"refs/heads/{name}", sha)
        self.forge.git.set_ref("refs/heads/tmp", None)

    def delete_branch(self) -> None:
        if (name := self._branch()) != "main":
            self.forge.git.set_ref(f"refs/heads/{name}", None)

    def tag(self) -> None:
        tip = self.forge.git.resolve(f"refs/heads/{self._branch()}")
        assert tip is not None
        self.forge.git.tag(f"t{self.number}", tip, message=self.chance.choice([None, "A tag\n"]))

    def open(self) -> None:
        self.gitlab.open_merge_request(
            self.forge.project, title=f"Request {self.number}", source=self._branch(), author=self.forge.user
        )

    def comment(self) -> None:
        if request := self._request():
            self.gitlab.comment(request, self.forge.other, f"Comment {self.number}")

    def edit_note(self) -> None:
        if (request := self._request()) and (notes := [n for n in request.notes if not n.row["system"]]):
            self.gitlab.edit_note(
                request, self.chance.choice(notes), "edited", bump=self.chance.random() < 0.5
            )

    def delete_note(self) -> None:
        if (request := self._request()) and (notes := [n for n in request.notes if not n.row["system"]]):
            self.gitlab.delete_note(request, self.chance.choice(notes), bump=self.chance.random() < 0.5)

    def approve(self) -> None:
        if request := self._request("opened"):
            self.gitlab.approve(request, self.chance.choice([self.forge.user, self.forge.other]))

    def unapprove(self) -> None:
        if (request := self._request("opened")) and request.approved_by:
            self.gitlab.unapprove(request, self.chance.choice([u["user"] for u in request.approved_by]))

    def reset(self) -> None:
        if request := self._request("opened"):
            self.gitlab.reset_approvals(request)

    def review(self) -> None:
        if request := self._request("opened"):
            self.gitlab.request_review(request, self.forge.user, self.forge.other)

    def finish(self) -> None:
        if request := self._request("opened"):
            self.chance.choice([self.gitlab.merge, self.gitlab.close])(request, self.forge.user)

    def reopen(self) -> None:
        if request := self._request("closed"):
            self.gitlab.reopen(request, self.forge.user)

    def label(self) -> None:
        if request := self._request():
            self.gitlab.add_label(self.forge.project, request, self.forge.user, self.chance.choice("abc"))

    def edit(self) -> None:
        if request := self._request():
            self.gitlab.edit(request, title=f"Title {self.number}")


def sync(forge: Forge, chance: random.Random) -> None:
    """A visit, sometimes with trouble in the middle of it, and sometimes of one job type only."""
    if chance.random() < 0.3:
        what = chance.choice([r"commits", r"discussions", r"merge_requests\?", r"branches", r"approvals"])
        forge.gitlab.faults.add(
            what, faults.server_error(), times=chance.choice([1, 6]), skip=chance.choice([0, 2])
        )
    job = chance.choice(["commits", "both", "both", "reviews"])
    if job == "commits":
        forge.commits()
    elif job == "both":
        forge.both()
    else:
        forge.syncer.run(forge.request(JobType.REVIEWS))
    forge.gitlab.faults.clear()
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL WHERE status = 'failed'")


@pytest.mark.parametrize("seed", range(3))
def test_any_history_ends_as_the_source_has_it(forge: Forge, seed: int) -> None:
    history = History(forge, seed)
    for _ in range(60):
        history.step()
        if history.chance.random() < 0.25:
            sync(forge, history.chance)
    # A quiet day, after which everything that may change in silence was read once more.
    forge.tick(hours=1)
    for _ in range(3):
        forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
        forge.conn.execute("UPDATE scm.obligations SET not_before = now()")
        forge.conn.execute("UPDATE scm.mrs SET read_at = now() - interval '25 hours'")
        forge.conn.execute("UPDATE scm.mr_reviews SET read_at = now() - interval '25 hours'")
        reports = [forge.commits(), *forge.both()]
        forge.tick()
    assert [report.error for report in reports] == [None] * 3
    _same_refs(forge)
    _same_merge_requests(forge)
    _same_reviews(forge)


def _same_refs(forge: Forge) -> None:
    refs = [(r.name, r.commit) for r in [*forge.git.branches(), *forge.git.tags()]]
    query = "SELECT name, tip, covered_tip FROM scm.refs WHERE repo_id = %(repo)s AND deleted_at IS NULL"
    stored = forge.rows(query)
    assert sorted((r["name"], r["tip"]) for r in stored) == sorted(refs)
    assert all(r["covered_tip"] == r["tip"] for r in stored)
    reached = set(forge.git.shas([tip for _, tip in refs if tip]))
    query = "SELECT commit_sha, unreachable_since FROM scm.git_commits WHERE repo_id = %(repo)s"
    assert {c["commit_sha"] for c in forge.rows(query) if c["unreachable_since"] is None} == reached


def _same_merge_requests(forge: Forge) -> None:
    rows = forge.rows("SELECT iid, title, status, head_sha, labels FROM scm.mrs WHERE repo_id = %(repo)s")
    assert {(r["iid"], r["title"], r["status"], r["head_sha"], tuple(sorted(r["labels"]))) for r in rows} == {
        (
            iid,
            one.row["title"],
            _STATES.get(one.row["state"], one.row["state"]),
            one.row["sha"],
            tuple(sorted(one.row["labels"])),
        )
        for iid, one in forge.project.merge_requests.items()
    }


def _same_reviews(forge: Forge) -> None:
    """Open ones exactly; of the others everything that told of itself by a time of update."""
    live = {iid: r for iid, r in forge.project.merge_requests.items() if r.row["state"] == "opened"}
    query = """SELECT mr_iid, source_event_id, body, missing_since FROM scm.review_events
                WHERE repo_id = %(repo)s AND origin = 'note'"""
    events = [e for e in forge.rows(query) if e["mr_iid"] in live]
    assert {(e["mr_iid"], e["source_event_id"], e["body"]) for e in events if e["missing_since"] is None} == {
        (iid, f"note:{n.row['id']}", n.row["body"]) for iid, one in live.items() for n in one.notes
    }
    query = "SELECT mr_iid, username FROM scm.mr_approvals WHERE repo_id = %(repo)s AND closed_at IS NULL"
    given = {(a["mr_iid"], a["username"]) for a in forge.rows(query) if a["mr_iid"] in live}
    assert given == {(iid, u["user"]["username"]) for iid, one in live.items() for u in one.approved_by}
