"""Any history of merge requests, read in any way and with any trouble of GraphQL, ends as REST has it.

Belongs here: random histories, by seed, of what people do between visits and what fails in the visits. At the
end, all planned details are read, and the rows are compared with a whole reading from nothing by REST.
Changes that no time of update shows are repaired first. Does not belong here: damage to the tables, and
crashes; :mod:`sync_pipeline_tests.faults.test_any_history` has them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from sync_pipeline.core.model import BEGINNING, Depth, JobType, Mode, TimeWindow, Trigger
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline.policy import levels
from sync_pipeline_sandbox.gitlab import DEVELOPER, faults
from sync_pipeline_sandbox.gitlab.records import GraphQL, Group, MergeRequest, Project
from sync_pipeline_tests.sync.conftest import Forge

MR, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
_FORGET = """
TRUNCATE scm.mrs, scm.mr_versions, scm.mr_commits, scm.mr_reviews, scm.review_events, scm.mr_approvals,
         scm.mr_reviewers, scm.deferred_fetches, scm.quarantine, scm.unreadable_details
"""
_OPEN = """
SELECT job_type, natural_key, detail, is_planned, last_error
  FROM scm.deferred_fetches WHERE resolved_at IS NULL
"""
_MISSING = """
SELECT source_event_id FROM scm.review_events
 WHERE repo_id = %(repo)s AND deleted_at IS NULL AND missing_since IS NOT NULL
"""
# Parts of reviews that are called complete, and are of another time than the row or not at full precision.
_CLAIMED = """
SELECT r.mr_iid, e.source_event_id
  FROM scm.mr_reviews AS r
  JOIN scm.review_events AS e ON e.repo_id = r.repo_id AND e.mr_iid = r.mr_iid AND e.replaced_id = 0
 WHERE r.repo_id = %(repo)s AND r.replaced_id = 0 AND 'note' = ANY (r.whole) AND e.time_precision = 'second'
   AND e.deleted_at IS NULL AND e.missing_since IS NULL
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS d
                    WHERE d.repo_id = r.repo_id AND d.job_type = 'reviews' AND d.detail = 'notes'
                      AND d.natural_key = r.mr_iid::text AND d.resolved_at IS NULL)
"""


class Office:
    """People at work on merge requests. Each deed does one thing, if it is possible just now."""

    def __init__(self, forge: Forge, chance: random.Random) -> None:
        self.forge = forge
        self.gitlab = forge.gitlab
        self.chance = chance
        self.number = 0
        self.is_silent = False
        self.people = [forge.user, forge.other, forge.gitlab.user("user3")]
        self.gitlab.add_member(forge.group, self.people[2], DEVELOPER)
        self.milestones: list[Any] = []
        forge.git.commit("main", "Begin\n", files={"a": "0\n"})
        forge.git.commit("dev", "Dev\n", files={"dev": "0\n"}, parents=[self.tip("main")])

    def tip(self, branch: str) -> str:
        sha = self.forge.git.resolve(f"refs/heads/{branch}")
        assert sha is not None
        return sha

    def deeds(self) -> list[str]:
        return sorted(name[3:] for name in dir(self) if name.startswith("do_"))

    def step(self, deed: str) -> None:
        self.number += 1
        getattr(self, f"do_{deed}")()

    def one(self, *states: str) -> MergeRequest | None:
        found = [
            one
            for one in self.forge.project.merge_requests.values()
            if not states or one.row["state"] in states
        ]
        return self.chance.choice(found) if found else None

    def who(self) -> Any:
        return self.chance.choice(self.people)

    def notes(self, request: MergeRequest) -> list[Any]:
        return [note for note in request.notes if not note.row["system"]]

    def do_open(self) -> None:
        branch = f"b{self.number}"
        base = self.tip(self.chance.choice(["main", "dev"]))
        self.forge.git.commit(branch, f"Work {self.number}\n", files={branch: "1\n"}, parents=[base])
        target = self.chance.choice(["main", "main", "dev"])
        self.gitlab.open_merge_request(
            self.forge.project, title=branch, source=branch, target=target, author=self.who()
        )

    def place(self) -> Project | Group:
        places: list[Project | Group] = [self.forge.project, self.forge.group]
        return self.chance.choice(places)

    def do_comment(self) -> None:
        if request := self.one():
            notes = self.notes(request)
            self.gitlab.comment(
                request,
                self.who(),
                f"Comment {self.number}",
                thread=self.chance.random() < 0.4,
                reply_to=self.chance.choice(notes) if notes and self.chance.random() < 0.3 else None,
                internal=self.chance.random() < 0.2,
            )

    def do_comment_on_a_line(self) -> None:
        if (request := self.one()) and request.versions:
            newest = request.versions[-1]
            position = {
                "base_sha": newest["base_commit_sha"],
                "start_sha": newest["start_commit_sha"],
                "head_sha": newest["head_commit_sha"],
                "old_path": "a",
                "new_path": "a",
                "position_type": "text",
                "old_line": None,
                "new_line": 1,
                "line_range": {"start": {"line_code": "x", "new_line": 1}, "end": {"line_code": "y"}},
            }
            self.gitlab.comment(request, self.who(), f"Line {self.number}", position=position)

    def do_edit_note(self) -> None:
        if (request := self.one()) and (notes := self.notes(request)):
            self.gitlab.edit_note(request, self.chance.choice(notes), self.chance.choice("xyz"), bump=True)

    def do_delete_note(self) -> None:
        if (request := self.one()) and (notes := self.notes(request)):
            self.gitlab.delete_note(request, self.chance.choice(notes), bump=True)

    def do_resolve(self) -> None:
        request = self.one()
        notes = [note for note in request.notes if note.row.get("resolvable")] if request else []
        if request and notes:
            note = self.chance.choice(notes)
            self.gitlab.resolve(request, note, self.who(), resolved=not note.row["resolved"])

    def do_approve(self) -> None:
        if request := self.one("opened"):
            who = self.who()
            if all(one["user"] is not who for one in request.approved_by):
                self.gitlab.approve(request, who)

    def do_unapprove(self) -> None:
        if (request := self.one("opened")) and request.approved_by:
            self.gitlab.unapprove(request, self.chance.choice(request.approved_by)["user"])

    def do_push(self) -> None:
        if request := self.one("opened"):
            branch = request.row["source_branch"]
            self.gitlab.push(
                self.forge.project, branch, f"Push {self.number}\n", files={f"p{self.number}": "1\n"}
            )
            if self.chance.random() < 0.5:
                self.gitlab.reset_approvals(request)

    def do_push_there_and_back(self) -> None:
        """The head is the same as before, after two pushes."""
        if request := self.one("opened"):
            branch, project = request.row["source_branch"], self.forge.project
            before = self.tip(branch)
            after = self.gitlab.push(project, branch, f"Oops {self.number}\n", files={"oops": "1\n"})
            self.forge.git.set_ref(f"refs/heads/{branch}", before)
            self.gitlab.pushed(project, branch, after, before)

    def do_label(self) -> None:
        if request := self.one():
            name = self.chance.choice("abc")
            change = self.gitlab.remove_label if name in request.row["labels"] else self.gitlab.add_label
            change(self.forge.project, request, self.who(), name)

    def do_delete_label(self) -> None:
        if names := list(self.forge.project.labels):
            self.is_silent = True
            self.gitlab.delete_label(self.forge.project, self.chance.choice(names))

    def do_milestone(self) -> None:
        if request := self.one():
            place = self.place()
            if not place.milestones or self.chance.random() < 0.3:
                self.gitlab.milestone(place, f"M{self.number}")
            chosen = self.chance.choice([None, *place.milestones])
            self.gitlab.set_milestone(request, self.who(), chosen)

    def do_delete_milestone(self) -> None:
        place = self.place()
        if place.milestones:
            self.is_silent = True
            self.gitlab.delete_milestone(place, self.chance.choice(place.milestones))

    def do_ask_reviewer(self) -> None:
        if request := self.one("opened"):
            who = self.who()
            if all(one["user"] is not who for one in request.reviewers):
                self.gitlab.request_review(request, self.forge.user, who)

    def do_withdraw_reviewer(self) -> None:
        if (request := self.one()) and request.reviewers:
            who = self.chance.choice(request.reviewers)["user"]
            self.gitlab.remove_reviewer(request, self.forge.user, who)
            if self.chance.random() < 0.5:
                self.forge.tick(seconds=self.chance.choice([0, 0.2, 30]))
                self.gitlab.request_review(request, self.forge.user, who)

    def do_review_state(self) -> None:
        if (request := self.one()) and request.reviewers:
            who = self.chance.choice(request.reviewers)["user"]
            self.gitlab.set_review_state(request, who, self.chance.choice(["reviewed", "requested_changes"]))
            self.gitlab.touch(request)

    def do_retarget(self) -> None:
        if request := self.one("opened"):
            self._retarget(request)
            if self.chance.random() < 0.4:
                self._retarget(request)

    def _retarget(self, request: MergeRequest) -> None:
        target = "dev" if request.row["target_branch"] == "main" else "main"
        self.gitlab.retarget(self.forge.project, request, self.forge.user, target)

    def do_force_push_target(self) -> None:
        target = self.chance.choice(["main", "dev"])
        self.forge.git.commit("tmp", f"Forced {self.number}\n", files={"z": str(self.number)})
        self._move_target(target, self.tip("tmp"))
        self.forge.git.set_ref("refs/heads/tmp", None)

    def do_target_receives_a_commit(self) -> None:
        """The source of one is pushed into the target: the server compares all of them again."""
        if request := self.one("opened"):
            self._move_target(request.row["target_branch"], self.tip(request.row["source_branch"]))

    def _move_target(self, target: str, sha: str) -> None:
        self.forge.git.set_ref(f"refs/heads/{target}", sha)
        for request in self.forge.project.merge_requests.values():
            if request.row["state"] == "opened" and request.row["target_branch"] == target:
                self.gitlab.compare(self.forge.project, request)

    def do_finish(self) -> None:
        if request := self.one("opened"):
            how = self.chance.choice(["merge", "squash", "close"])
            if how == "close":
                self.gitlab.close(request, self.who())
                return
            if how == "squash":
                self.gitlab.edit(request, squash=True, squash_commit_sha=self.tip("main"))
            self.gitlab.merge(request, self.who(), merge_commit_sha=self.tip("main"))

    def do_reopen(self) -> None:
        if request := self.one("closed"):
            self.gitlab.reopen(request, self.who())

    def do_close_and_reopen(self) -> None:
        if request := self.one("opened"):
            self.gitlab.close(request, self.who())
            self.gitlab.reopen(request, self.who())

    def do_edit(self) -> None:
        if request := self.one():
            self.gitlab.edit(request, title=f"Title {self.number}", draft=self.chance.random() < 0.5)

    def do_delete_request(self) -> None:
        if (request := self.one()) and self.chance.random() < 0.4:
            self.is_silent = True
            self.gitlab.delete_merge_request(self.forge.project, request)
            if self.chance.random() < 0.5:
                # A restored server gives the number to another one.
                branch = f"b{self.number}"
                self.forge.git.commit(branch, "Again\n", files={branch: "2\n"}, parents=[self.tip("main")])
                self.gitlab.open_merge_request(
                    self.forge.project, title="Other", source=branch, author=self.who(), iid=request.iid
                )

    def do_move_project(self) -> None:
        self.gitlab.rename_project(self.forge.project, f"app{self.number}")


def _trouble(forge: Forge, chance: random.Random) -> str:
    """One kind of trouble with GraphQL or REST for the next visit."""
    graphql = forge.gitlab.behaviour.graphql
    iids = list(forge.project.merge_requests)
    some = set(chance.sample(iids, k=min(len(iids), chance.randint(1, 3))))
    names = ("notes", "approvedBy", "reviewers", "commits", "diffRefs")
    skip = chance.randint(0, 2)
    path = "/api/graphql"

    def fault(one: Any, times: int | None = None, where: str = path) -> Callable[[], object]:
        return lambda: forge.gitlab.faults.add(where, one, times=times, skip=skip)

    def other_project(body: bytes) -> bytes:
        return body.replace(b"gid://gitlab/Project/", b"gid://gitlab/Project/9")

    kinds: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "no_graphql": lambda: setattr(graphql, "enabled", False),
        "null_rows": lambda: graphql.null_rows.update(some),
        "null_fields": lambda: graphql.null_fields.update({iid: (chance.choice(names),) for iid in some}),
        "failing_fields": lambda: graphql.failing_fields.update(
            {iid: (chance.choice(names),) for iid in some}
        ),
        "complexity": lambda: setattr(graphql, "max_complexity", chance.choice([40, 90, 150])),
        "timeout": lambda: setattr(graphql, "max_rows", chance.choice([1, 2])),
        "no_route": fault(faults.json_answer(404, {"error": "404 Not Found"})),
        "error": fault(faults.graphql_error()),
        "truncated": fault(faults.Truncated(announced=chance.random() < 0.5), 1),
        "429": fault(faults.throttled_json("1"), 1),
        "other_project": fault(faults.Edited(other_project)),
        "rest": fault(
            faults.server_error(),
            chance.choice([1, 6]),
            chance.choice(["discussions", "versions", "resource_", "approvals", "reviewers", r"requests\?"]),
        ),
    }
    name = chance.choice(list(kinds))
    kinds[name]()
    return name


class Scenario:
    """One random history with its visits; ``log`` is what happened."""

    def __init__(self, forge: Forge, seed: int) -> None:
        self.forge = forge
        self.chance = random.Random(seed)
        self.office = Office(forge, self.chance)
        self.log: list[str] = []
        forge.other_settings(deletion_after_seconds=0.0, deletion_confirmations=1)

    def run(self) -> None:
        for _ in range(self.chance.randint(3, 8)):
            self.office.step("open")
        self.work(self.chance.randint(0, 30))
        for _ in range(self.chance.randint(3, 7)):
            self.visit()
            self.work(self.chance.randint(1, 12))
        self.finish()

    def work(self, many: int) -> None:
        pause = self.chance.choice([0.0, 0.1, 1.0, 20.0, 400.0])
        for deed in self.chance.choices(self.office.deeds(), k=many):
            self.forge.tick(seconds=pause)
            self.log.append(deed)
            self.office.step(deed)

    def visit(self) -> None:
        forge, chance = self.forge, self.chance
        forge.tick(seconds=chance.choice([0, 1, 100, 5000]))
        forge.other_settings(gitlab_graphql=chance.random() < 0.75)
        trouble = _trouble(forge, chance)
        how = chance.choice(
            ["sensor"] * 4
            + ["runner", "only_deferred", "backfill", "repair", "reconcile", "mrs", "reviews", "commits"]
        )
        now = forge.gitlab.clock.now()
        window = TimeWindow(now - timedelta(hours=chance.choice([1, 200])), now - timedelta(seconds=61))
        self.log.append(f"<{how} {trouble} graphql={forge.settings.gitlab.graphql}>")
        if chance.random() < 0.3:
            self.time_passes()
        members = dict(forge.group.members)
        if chance.random() < 0.15:
            # The token does not see internal notes.
            self.log.append("<as a guest>")
            forge.project.visibility = "public"
            forge.group.members.clear()
        if how == "sensor":
            forge.both()
        elif how == "runner":
            forge.both(trigger=Trigger.RUNNER)
        elif how == "only_deferred":
            forge.both(Mode.REPAIR, only_deferred=True)
        elif how == "backfill":
            forge.both(Mode.BACKFILL, window=window)
        elif how == "repair":
            forge.both(Mode.REPAIR, window=window)
        elif how == "reconcile":
            self.heal(chance.choice(list(Depth)))
        elif how == "commits":
            forge.commits()
        else:
            forge.syncer.run(forge.request(MR if how == "mrs" else REVIEWS))
        forge.group.members.update(members)
        forge.gitlab.faults.clear()
        forge.gitlab.behaviour.graphql = GraphQL()
        self.check()

    def time_passes(self) -> None:
        conn = self.forge.conn
        conn.execute("UPDATE scm.deferred_fetches SET not_before = now() WHERE resolved_at IS NULL")
        conn.execute("UPDATE scm.sync_jobs SET not_before = NULL WHERE status IN ('pending', 'failed')")
        conn.execute("UPDATE scm.discrepancies SET repairs = 0")

    def heal(self, depth: Depth) -> int:
        """Compare and repair; returns how many differences were found."""
        forge, found = self.forge, 0
        for job_type in (MR, REVIEWS):
            mark = watermarks.get(forge.conn, forge.repo_id, job_type).watermark
            if not isinstance(mark, datetime):
                continue
            window = TimeWindow(BEGINNING, mark)
            forge.syncer.run(forge.request(job_type, Mode.PROBE, window=window, depth=depth))
            found += len(
                forge.rows(
                    "SELECT 1 FROM scm.discrepancies WHERE job_type = %(job)s AND resolved_at IS NULL",
                    job=job_type,
                )
            )
            forge.syncer.run(forge.request(job_type, Mode.REPAIR, only_differences=True, window=window))
        return found

    def with_log(self, what: object) -> str:
        return f"{what}\nLOG {' '.join(self.log)}"

    def open_differences(self) -> list[dict[str, Any]]:
        return self.forge.rows(
            "SELECT job_type, natural_key, kind, fields FROM scm.discrepancies WHERE resolved_at IS NULL"
        )

    def check(self) -> None:
        """Nothing claims more than was read."""
        forge = self.forge
        assert integrity_checks.failures(forge.conn) == {}
        assert forge.rows(_CLAIMED) == [], self.log
        for job_type, query in (
            (MR, "SELECT iid, updated_at AS at FROM scm.mrs WHERE repo_id = %(repo)s AND replaced_id = 0"),
            (
                REVIEWS,
                "SELECT mr_iid AS iid, mr_updated_at AS at FROM scm.mr_reviews"
                " WHERE repo_id = %(repo)s AND replaced_id = 0",
            ),
        ):
            have = {row["iid"]: row["at"] for row in forge.rows(query)}
            covered = watermarks.get(forge.conn, forge.repo_id, job_type).covered
            for iid, one in forge.project.merge_requests.items():
                at = one.updated_at.replace(microsecond=one.updated_at.microsecond // 1000 * 1000)
                if any(isinstance(part, TimeWindow) and part.since <= at < part.until for part in covered):
                    assert have.get(iid) == at, f"{job_type} of !{iid} {self.log}"

    def finish(self) -> None:
        forge = self.forge
        forge.other_settings(gitlab_graphql=self.chance.random() < 0.75)
        self.log.append(f"<end graphql={forge.settings.gitlab.graphql} silent={self.office.is_silent}>")
        forge.tick(hours=2)
        now = forge.gitlab.clock.now()
        everything = TimeWindow(BEGINNING, now - timedelta(hours=1))
        for _ in range(2):
            for report in forge.both():
                assert report.succeeded, report.error
            for report in forge.both(Mode.BACKFILL, window=everything):
                assert report.succeeded, report.error
            self.time_passes()
            forge.tick()
        if self.office.is_silent:
            for _ in range(3):
                found = self.heal(Depth.DETAILS)
                self.time_passes()
            assert not found, self.with_log(self.open_differences())
        for report in forge.both(Mode.REPAIR, only_deferred=True, trigger=Trigger.RUNNER):
            assert report.succeeded, report.error
        self.check()
        left = forge.rows(_OPEN)
        assert left == [], self.with_log(left)
        stored = state(forge)
        truth = by_rest(forge)
        for name, rows in truth.items():
            assert stored[name] == rows, self.with_log(difference(name, stored[name], rows))


def difference(name: str, have: list[Any], want: list[Any]) -> str:
    extra = [row for row in have if row not in want]
    lacking = [row for row in want if row not in have]
    lines = [f"{name}: {len(extra)} extra, {len(lacking)} lacking"]
    if extra and lacking and len(extra) == len(lacking):
        for one, other in zip(extra, lacking, strict=True):
            lines.append(
                str({k: (v, other[k]) for k, v in one.items() if v != other[k]})
                + str({k: one.get(k) for k in ("iid", "mr_iid", "source_event_id", "body") if k in one})
            )
    else:
        lines += [f"extra {row}" for row in extra] + [f"lacking {row}" for row in lacking]
    return "\n".join(lines)


def state(forge: Forge) -> dict[str, list[dict[str, Any]]]:
    """The live rows of live merge requests, without events that are missing."""
    missing = {row["source_event_id"] for row in forge.rows(_MISSING)}
    found = forge.state()
    live = {row["iid"] for row in found["mrs"]}
    return {
        name: [
            row
            for row in rows
            if row["replaced_id"] == 0
            and (name == "mrs" or row["mr_iid"] in live)
            and row.get("source_event_id") not in missing
        ]
        for name, rows in found.items()
        if name not in ("git_commits", "refs")
    }


def by_rest(forge: Forge) -> dict[str, list[dict[str, Any]]]:
    """A whole reading from nothing, by REST, that skips nothing."""
    forge.conn.execute(_FORGET)
    for job_type in (MR, REVIEWS):
        watermarks.replace(
            forge.conn, repo_id=forge.repo_id, job_type=job_type, covered=(), actor="ann", reason="test"
        )
    forge.other_settings(gitlab_graphql=False)
    forge.tick()
    window = TimeWindow(BEGINNING, forge.gitlab.clock.now() - timedelta(seconds=61))
    for report in forge.both(Mode.REPAIR, window=window):
        assert report.succeeded, report.error
    return state(forge)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))]
)
def test_any_history_of_reviews_ends_as_rest_has_it(
    forge: Forge, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of the histories have large pages: usable first, and the rest planned.
    monkeypatch.setattr(levels, "AT_ONCE", 0 if seed % 2 else 3)
    Scenario(forge, seed).run()
