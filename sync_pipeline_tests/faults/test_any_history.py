"""Any history, with syncs, trouble, crashes, backfills and resets in any order, ends as the source has it.

Belongs here: random histories of GitLab and of SVN, driven by hypothesis, which prints the shortest one that
fails; what must hold after each step, and the comparison at the end. Some of what people do shows in no time
of update, and somebody damages the tables: comparisons name nothing else, and repairs heal all of it. Does
not belong here: a fault that can be told in a few lines; it has a test of its own.

Every run tries the same three, and ``--long`` twenty. This goes on until it is stopped:
``./dev test -k any_history --hypothesis-profile=long --hypothesis-seed=7``.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import LiteralString, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from psycopg import sql

from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.model import (
    BEGINNING,
    Counts,
    Depth,
    JobReport,
    JobType,
    Mode,
    RevisionWindow,
    TimeWindow,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox.gitlab import GitRepository, faults
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.builders import register_project, register_source, request
from sync_pipeline_tests.sources.truth import assert_equal
from sync_pipeline_tests.svn_fixtures import create_repository
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.sync.test_whole_repositories import stored

_STATES = {"opened": "open"}
_FAMILIES = ((JobType.COMMITS,), (JobType.MERGE_REQUESTS, JobType.REVIEWS))
_CHANCE = st.integers(0, 2**32).map(random.Random)

DEEDS = (
    *["push"] * 4, *["open"] * 3, *["comment"] * 5, "edit_note", "delete_note", "approve", "approve",
    "unapprove", "finish", "reopen", "label", "force", "delete_branch", "tag", "edit", "review", "reset",
    "old_commit",
)  # fmt: skip
SILENT_DEEDS = ("edit_in_silence", "unapprove_in_silence", "rewind", "delete_request")

PROJECT_TURNS = (
    *["work"] * 5,
    "sync",
    "sync",
    "sync",
    "sync_with_trouble",
    "backfill",
    "crash",
    "forget",
    "silence",
    "damage",
    "damage",
    "mend",
    "mend",
)
REPOSITORY_TURNS = (
    *["commit"] * 3,
    "edit_a_property",
    "sync",
    "sync",
    "backfill",
    "backfill",
    "crash",
    "forget",
    "damage",
    "damage",
    "mend",
    "mend",
)


# What both kinds have in common -----------------------------------------------------------------------------


class _Crash(BaseException):
    """Ends a run from inside, as nothing in it expects."""


def crashing(conn: Connection, after: int) -> Callable[..., None]:
    """A progress callback that, at the call after so many, cuts all connections to the database and ends the
    run in a way that nothing in it expects."""
    left = after

    def progress(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            raise _Crash

    return progress


@contextmanager
def crashes() -> Iterator[None]:
    """Around a run that :func:`crashing` may end."""
    with suppress(_Crash, SyncError):
        yield


def time_passes(conn: Connection) -> None:
    """Whatever waits for a time may go on: leases and claims of crashed runs are over, failed jobs and sweeps
    are due."""
    conn.execute("UPDATE scm.sync_watermarks SET swept_at = NULL")
    conn.execute("UPDATE scm.sync_jobs SET not_before = NULL WHERE status IN ('pending', 'failed')")
    conn.execute(
        "UPDATE scm.sync_jobs SET claim_expires_at = now() - interval '1 s' WHERE status = 'running'"
    )
    conn.execute("UPDATE scm.sync_locks SET expires_at = now() - interval '1 s' WHERE expires_at IS NOT NULL")
    conn.execute("DELETE FROM scm.sync_lock_waiters")
    conn.execute("UPDATE scm.deferred_fetches SET not_before = now() WHERE resolved_at IS NULL")


def nothing_contradicts(conn: Connection) -> None:
    """Coverage, watermarks, refs and ledger are what their events say."""
    assert integrity_checks.failures(conn) == {}


def reset(conn: Connection, repo_id: int, job_type: JobType) -> None:
    """A person's decision that nothing counts as complete."""
    watermarks.replace(conn, repo_id=repo_id, job_type=job_type, covered=(), actor="a person", reason="test")


def damage(
    conn: Connection,
    repo_id: int,
    chance: random.Random,
    deeds: Sequence[tuple[LiteralString, LiteralString, LiteralString]],
) -> set[str]:
    """Do one of ``deeds`` (a table, what is set or DELETE, the key of a row) to a row behind everybody's
    back; returns the key."""
    table, deed, key = chance.choice(deeds)
    names = {"table": sql.Identifier("scm", table), "key": sql.SQL(key), "deed": sql.SQL(deed)}
    query = sql.SQL("SELECT ctid, {key} AS key FROM {table} WHERE repo_id = %(repo)s ORDER BY 2, 1")
    rows = conn.execute(query.format(**names), {"repo": repo_id}).fetchall()
    if not rows:
        return set()
    row = chance.choice(rows)
    change = "DELETE FROM {table}" if deed == "DELETE" else "UPDATE {table} SET {deed}"
    conn.execute(sql.SQL(change).format(**names) + sql.SQL(" WHERE ctid = %(ctid)s"), {"ctid": row["ctid"]})
    return {row["key"]}


def open_differences(conn: Connection, repo_id: int, job_type: JobType) -> dict[str, str]:
    """What comparisons found and nothing has closed: by key the kind, and the columns that differ."""
    query = (
        "SELECT natural_key, kind, fields FROM scm.discrepancies"
        " WHERE repo_id = %(repo)s AND job_type = %(job)s AND resolved_at IS NULL"
    )
    rows = conn.execute(query, {"repo": repo_id, "job": job_type})
    return {row["natural_key"]: " ".join([row["kind"], *row["fields"]]) for row in rows}


# How many histories a test tries: the first few of them in every run, more with --long.
HISTORIES = pytest.mark.parametrize("histories", [3, pytest.param(20, marks=pytest.mark.long)])


def run_histories(machine: Callable[[], RuleBasedStateMachine], histories: int) -> None:
    """So many, or as many as the profile says; fixtures of the test serve all of them."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    many = settings.get_current_profile_name() == "long"
    chosen = settings(
        max_examples=100_000 if many else histories,
        stateful_step_count=40 if many else 25,
        # To shorten a failing history takes minutes.
        phases=list(Phase) if many else [Phase.explicit, Phase.generate],
        suppress_health_check=checks,
        deadline=None,
    )
    # It says that it wants a class; any factory will do.
    run_state_machine_as_test(cast(type[RuleBasedStateMachine], machine), settings=chosen)


# GitLab -----------------------------------------------------------------------------------------------------


class History:
    """People at work. Each step does one thing that may not be possible just now."""

    def __init__(self, forge: Forge) -> None:
        self.forge = forge
        self.gitlab = forge.gitlab
        self.chance = random.Random(0)
        self.number = 0
        # Numbers of merge requests and names of branches of which something changed in silence.
        self.unannounced: set[str] = set()
        forge.git.commit("main", "Begin\n", files={"a": "0\n"})

    def step(self, what: str, chance: random.Random) -> None:
        """Do one of :data:`DEEDS`, where it is possible."""
        self.chance = chance
        self.number += 1
        getattr(self, what)()

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
        self._moves(name)
        self.gitlab.push(self.forge.project, name, f"Push {self.number}\n", files=files, bump=bump)

    def old_commit(self) -> None:
        self.forge.git.commit(self._branch(), "Old\n", files={"o": str(self.number)}, date="1000000 +0000")

    def force(self) -> None:
        name, base = self._branch(), self.forge.git.resolve("refs/heads/main")
        assert base is not None
        sha = self.forge.git.commit(
            "tmp", f"Forced {self.number}\n", files={"z": str(self.number)}, parents=[base]
        )
        self._moves(name, back=True)
        self.forge.git.set_ref(f"refs/heads/{name}", sha)
        self.forge.git.set_ref("refs/heads/tmp", None)

    def delete_branch(self) -> None:
        if (name := self._branch()) != "main":
            self._moves(name, back=True)
            self.forge.git.set_ref(f"refs/heads/{name}", None)

    def rewind(self) -> None:
        name = self._branch()
        if parent := self.forge.git.resolve(f"refs/heads/{name}~1"):
            self._moves(name, back=True)
            self.forge.git.set_ref(f"refs/heads/{name}", parent)

    def _moves(self, name: str, *, back: bool = False) -> None:
        """Heads may move without a time of update; of refs only those are told that lead back or are gone."""
        if back:
            self.unannounced.add(f"branch:{name}")
        requests = self.forge.project.merge_requests
        self.unannounced |= {str(iid) for iid, one in requests.items() if one.row["source_branch"] == name}

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
            self.unannounced.add(str(request.iid))
            self.gitlab.edit_note(
                request, self.chance.choice(notes), "edited", bump=self.chance.random() < 0.5
            )

    def delete_note(self) -> None:
        if (request := self._request()) and (notes := [n for n in request.notes if not n.row["system"]]):
            self.unannounced.add(str(request.iid))
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

    def edit_in_silence(self) -> None:
        if request := self._request():
            self.unannounced.add(str(request.iid))
            self.gitlab.edit(request, title=f"Silent {self.number}", bump=False)

    def unapprove_in_silence(self) -> None:
        if request := self._request():
            self.unannounced.add(str(request.iid))
            request.approved_by.clear()

    def delete_request(self) -> None:
        if request := self._request():
            self.unannounced.add(str(request.iid))
            self.gitlab.delete_merge_request(self.forge.project, request)


# What somebody does to a row of a table, and by which key that is known.
_PROJECT_DAMAGE: tuple[tuple[LiteralString, LiteralString, LiteralString], ...] = (
    ("mrs", "DELETE", "iid::text"),
    ("mrs", "title = 'x', labels = '{}'", "iid::text"),
    ("mrs", "updated_at = updated_at - interval '1 day'", "iid::text"),
    ("mrs", "deleted_at = now()", "iid::text"),
    ("mr_versions", "DELETE", "mr_iid::text"),
    ("mr_commits", "message = 'x'", "mr_iid::text"),
    ("review_events", "DELETE", "mr_iid::text"),
    ("review_events", "body = 'x', updated_at = now()", "mr_iid::text"),
    ("review_events", "source_event_id = 'note:' || id", "mr_iid::text"),
    ("review_events", "deleted_at = now()", "mr_iid::text"),
    ("mr_reviews", "DELETE", "mr_iid::text"),
    ("mr_approvals", "DELETE", "mr_iid::text"),
    ("git_commits", "DELETE", "commit_sha"),
    ("git_commits", "message = 'x', committed_at = NULL", "commit_sha"),
    ("git_commits", "deleted_at = now()", "commit_sha"),
    ("refs", "DELETE", "kind || ':' || name"),
    ("refs", "is_protected = NOT is_protected", "kind || ':' || name"),
)


class GitLabMachine(RuleBasedStateMachine):
    """A project of its own on the server of the fixture."""

    def __init__(self, forge: Forge) -> None:
        super().__init__()
        group = forge.gitlab.group(f"team{len(forge.gitlab.groups)}")
        forge.gitlab.add_member(group, forge.user, 30)
        forge.gitlab.add_member(group, forge.other, 30)
        git = GitRepository.create(Path(f"{forge.git.path}.{group.id}.git"))
        project = forge.gitlab.project("app", group=group, repository=git)
        chosen = forge.settings.model_copy(
            update={"deletion_after_seconds": 0.0, "deletion_confirmations": 1}
        )
        self.forge = replace(forge, group=group, project=project, git=git, settings=chosen)
        self.history = History(self.forge)
        self.damaged: set[str] = set()
        self.only_comparing_shows_it = False

    @initialize(chance=_CHANCE, deeds=st.integers(5, 30))
    def begin(self, chance: random.Random, deeds: int) -> None:
        """There was work before anybody synced it, part of it older than the origin."""
        self._work(chance, deeds, hours=9)
        origin = self.forge.gitlab.clock.now() - timedelta(days=4)
        self.forge.repo_id = register_project(
            self.forge.conn, self.forge.server.url, self.forge.project.id, "team/app", origin=origin
        )

    @rule(turn=st.sampled_from(PROJECT_TURNS), chance=_CHANCE)
    def turn(self, turn: str, chance: random.Random) -> None:
        """One of the things below."""
        getattr(self, turn)(chance)

    def work(self, chance: random.Random) -> None:
        """People do something."""
        self._work(chance, chance.randint(1, 12), seconds=chance.choice((0, 1, 5, 400, 4000)))

    def _work(self, chance: random.Random, deeds: int, **pause: float) -> None:
        for deed in chance.choices(DEEDS, k=deeds):
            self.forge.tick(**pause)
            self.history.step(deed, chance)

    def sync(self, chance: random.Random) -> None:
        """What is new, of a family or of its last job type alone."""
        family = chance.choice(_FAMILIES)
        self._run(chance.choice((family, family[-1:])))

    def sync_with_trouble(self, chance: random.Random) -> None:
        """The server fails in the middle of it."""
        what = chance.choice((r"commits", r"discussions", r"merge_requests\?", r"branches", r"approvals"))
        times, skip = chance.choice((1, 6)), chance.choice((0, 2))
        self.forge.gitlab.faults.add(what, faults.server_error(), times=times, skip=skip)
        self._run(chance.choice(_FAMILIES))
        self.forge.gitlab.faults.clear()

    def backfill(self, chance: random.Random) -> None:
        """Some days of the past, in any order."""
        until = self.forge.gitlab.clock.now() - timedelta(days=chance.randint(0, 20))
        since = until - timedelta(days=chance.randint(1, 20))
        self._run(chance.choice(_FAMILIES), Mode.BACKFILL, window=TimeWindow(since, until))

    def crash(self, chance: random.Random) -> None:
        """The work is cut off between two batches or inside one."""
        requests = [self.forge.request(job_type) for job_type in chance.choice(_FAMILIES)]
        with crashes():
            progress = crashing(self.forge.conn, chance.randint(0, 2))
            self.forge.syncer.run_together(requests, progress=progress)
        self._check()

    def forget(self, chance: random.Random) -> None:
        """A person resets what counts as complete."""
        reset(self.forge.conn, self.forge.repo_id, chance.choice(chance.choice(_FAMILIES)))

    def silence(self, chance: random.Random) -> None:
        """People do what no time of update shows."""
        self.only_comparing_shows_it = True
        self.history.step(chance.choice(SILENT_DEEDS), chance)

    def damage(self, chance: random.Random) -> None:
        """Somebody changes a row behind our back."""
        self.only_comparing_shows_it = True
        self.damaged |= damage(self.forge.conn, self.forge.repo_id, chance, _PROJECT_DAMAGE)

    def mend(self, chance: random.Random) -> None:
        """Compare and heal, while the server may fail in the middle of it."""
        if chance.random() < 0.5:
            what = chance.choice(
                (r"commits", r"discussions", r"merge_requests[/?]", r"branches", r"approvals")
            )
            times, skip = chance.choice((1, 6)), chance.choice((0, 2, 5))
            self.forge.gitlab.faults.add(what, faults.server_error(), times=times, skip=skip)
        self._compare_and_repair(chance.choice(chance.choice(_FAMILIES)), chance.choice(list(Depth)))
        self.forge.gitlab.faults.clear()

    def _compare_and_repair(self, job_type: JobType, depth: Depth = Depth.DETAILS) -> bool:
        """Whether nothing differed."""
        forge = self.forge
        mark = watermarks.get(forge.conn, forge.repo_id, job_type).watermark
        if mark is None:
            return True
        assert isinstance(mark, datetime)
        window = TimeWindow(BEGINNING, mark)
        before = forge.state()
        probe = forge.syncer.run(forge.request(job_type, Mode.PROBE, window=window, depth=depth))
        assert forge.state() == before
        found = open_differences(forge.conn, forge.repo_id, job_type)
        for key, what in found.items():
            known = {key, key.partition(":")[0]} & (self.damaged | self.history.unannounced)
            assert known, f"{job_type} {key}: {what}"
        if found:
            forge.syncer.run(forge.request(job_type, Mode.REPAIR, only_differences=True, window=window))
        self._check()
        return probe.succeeded and not found

    def _run(
        self, job_types: Sequence[JobType], mode: Mode = Mode.INCREMENTAL, window: TimeWindow | None = None
    ) -> Sequence[JobReport]:
        requests = [self.forge.request(job_type, mode, window=window) for job_type in job_types]
        reports = self.forge.syncer.run_together(requests)
        self._check()
        return reports

    def _check(self) -> None:
        time_passes(self.forge.conn)
        self.forge.conn.execute("UPDATE scm.discrepancies SET repairs = 0")
        if not self.damaged:
            nothing_contradicts(self.forge.conn)
            _covered_is_stored(self.forge)

    def teardown(self) -> None:
        """A quiet day; then either everything that may change in silence is read once more, or it is compared
        and healed."""
        forge = self.forge
        if not forge.repo_id:
            return
        forge.tick(hours=1)
        for job_types in _FAMILIES:
            self._run(job_types)
            now = forge.gitlab.clock.now()
            for report in self._run(job_types, Mode.BACKFILL, TimeWindow(BEGINNING, now - timedelta(days=1))):
                assert report.error is None
        if not self.only_comparing_shows_it:
            self._a_quiet_day()
        for job_type in [job_type for job_types in _FAMILIES for job_type in job_types]:
            rounds = [self._compare_and_repair(job_type) for _ in range(3)]
            assert rounds[-1], open_differences(forge.conn, forge.repo_id, job_type)
        self.damaged.clear()
        self._check()
        _same_refs(forge)
        _same_merge_requests(forge)
        _same_reviews(forge, forge.project.merge_requests)

    def _a_quiet_day(self) -> None:
        forge = self.forge
        for _ in range(3):
            forge.conn.execute("UPDATE scm.mrs SET read_at = now() - interval '25 hours'")
            forge.conn.execute("UPDATE scm.mr_reviews SET read_at = now() - interval '25 hours'")
            reports = [report for job_types in _FAMILIES for report in self._run(job_types)]
            forge.tick()
        assert [report.error for report in reports] == [None] * 3
        _same_refs(forge)
        _same_merge_requests(forge)
        # Open ones exactly; of the others everything that told of itself by a time of update.
        requests = forge.project.merge_requests.items()
        _same_reviews(forge, [iid for iid, one in requests if one.row["state"] == "opened"])


@HISTORIES
def test_any_history_of_a_project_ends_as_the_source_has_it(forge: Forge, histories: int) -> None:
    run_histories(lambda: GitLabMachine(forge), histories)


def _covered_is_stored(forge: Forge) -> None:
    """What counts as complete is there, as new as the source had it when it was read."""
    for job_type, query in (
        (JobType.MERGE_REQUESTS, "SELECT iid, updated_at AS at FROM scm.mrs WHERE repo_id = %(repo)s"),
        (
            JobType.REVIEWS,
            "SELECT mr_iid AS iid, mr_updated_at AS at FROM scm.mr_reviews WHERE repo_id = %(repo)s",
        ),
    ):
        have = {row["iid"]: row["at"] for row in forge.rows(query)}
        covered = watermarks.get(forge.conn, forge.repo_id, job_type).covered
        for iid, one in forge.project.merge_requests.items():
            # The API tells milliseconds.
            updated_at = one.updated_at.replace(microsecond=one.updated_at.microsecond // 1000 * 1000)
            if any(isinstance(w, TimeWindow) and w.since <= updated_at < w.until for w in covered):
                assert have.get(iid) == updated_at, f"{job_type} of !{iid}, {updated_at}, covered: {covered}"


def _same_refs(forge: Forge) -> None:
    refs = [(r.name, r.commit) for r in [*forge.git.branches(), *forge.git.tags()]]
    query = "SELECT name, tip, covered_tip FROM scm.refs WHERE repo_id = %(repo)s AND deleted_at IS NULL"
    stored = forge.rows(query)
    assert sorted((r["name"], r["tip"]) for r in stored) == sorted(refs)
    assert all(r["covered_tip"] == r["tip"] for r in stored)
    reached = set(forge.git.shas([tip for _, tip in refs if tip]))
    query = (
        "SELECT commit_sha, unreachable_since FROM scm.git_commits"
        " WHERE repo_id = %(repo)s AND deleted_at IS NULL"
    )
    assert {c["commit_sha"] for c in forge.rows(query) if c["unreachable_since"] is None} == reached


def _same_merge_requests(forge: Forge) -> None:
    rows = forge.rows(
        "SELECT iid, title, status, head_sha, labels FROM scm.mrs"
        " WHERE repo_id = %(repo)s AND deleted_at IS NULL"
    )
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


def _same_reviews(forge: Forge, iids: Collection[int]) -> None:
    """Notes and approvals of these merge requests, exactly."""
    live = {iid: forge.project.merge_requests[iid] for iid in iids}
    query = """SELECT mr_iid, source_event_id, body, missing_since FROM scm.review_events
                WHERE repo_id = %(repo)s AND origin = 'note' AND deleted_at IS NULL"""
    events = [e for e in forge.rows(query) if e["mr_iid"] in live]
    assert {(e["mr_iid"], e["source_event_id"], e["body"]) for e in events if e["missing_since"] is None} == {
        (iid, f"note:{n.row['id']}", n.row["body"]) for iid, one in live.items() for n in one.notes
    }
    query = "SELECT mr_iid, username FROM scm.mr_approvals WHERE repo_id = %(repo)s AND closed_at IS NULL"
    given = {(a["mr_iid"], a["username"]) for a in forge.rows(query) if a["mr_iid"] in live}
    assert given == {(iid, u["user"]["username"]) for iid, one in live.items() for u in one.approved_by}


# SVN --------------------------------------------------------------------------------------------------------


_REPOSITORY_DAMAGE: tuple[tuple[LiteralString, LiteralString, LiteralString], ...] = (
    ("svn_revisions", "DELETE", "rev_num::text"),
    ("svn_revisions", "message = 'x', author_raw = NULL", "rev_num::text"),
    ("svn_revisions", "detail_level = 99, visibility = 'partial'", "rev_num::text"),
    ("svn_revisions", "deleted_at = now()", "rev_num::text"),
    ("svn_changed_paths", "DELETE", "rev_num::text"),
    ("svn_changed_paths", "action = 'D'", "rev_num::text"),
)


class SvnMachine(RuleBasedStateMachine):
    """A repository of its own, changed through ``svnmucc``."""

    def __init__(self, database: Database, conn: Connection, folder: Path) -> None:
        super().__init__()
        self.conn = conn
        self.repository = create_repository(folder / f"r{len(list(folder.iterdir()))}")
        self.files: dict[str, str] = {}
        self.repo_id = 0
        # Small, so that a handful of revisions are several chunks.
        chosen = Settings(
            chunk_revisions=3, fingerprint_revisions=2, sweep_recent_revisions=4, max_wait_seconds=5
        )
        self.syncer = Syncer(database, chosen)
        # Numbers of revisions that are not stored as they were read, or as they are.
        self.damaged: set[str] = set()
        self.edited: set[str] = set()

    @initialize(chance=_CHANCE, revisions=st.integers(0, 8), back=st.integers(0, 8))
    def begin(self, chance: random.Random, revisions: int, back: int) -> None:
        """Some revisions, and live syncing from one of them on."""
        for _ in range(revisions):
            self._commit(chance)
        origin = max(1, self.repository.youngest + 1 - back)
        self.repo_id = register_source(self.conn, self.repository.path, origin=origin)

    @rule(turn=st.sampled_from(REPOSITORY_TURNS), chance=_CHANCE)
    def turn(self, turn: str, chance: random.Random) -> None:
        """One of the things below."""
        getattr(self, turn)(chance)

    def commit(self, chance: random.Random) -> None:
        """Some revisions that add, change, copy, delete or replace."""
        for _ in range(chance.randint(1, 5)):
            self._commit(chance)

    def _commit(self, chance: random.Random) -> None:
        number = self.repository.youngest + 1
        source = self.repository.path / "text.tmp"
        source.write_text(f"{number}\n")
        some = chance.choice(sorted(self.files)) if self.files else ""
        fresh = chance.choice(["a", "b c", "d@2", "e%20", "ü", "-h"]) + str(number)
        deeds = [("put", str(source), fresh), ("mkdir", f"dir{number}")]
        if some:
            copy = ("cp", "HEAD", some, fresh)
            deeds += [copy, ("rm", some), ("mv", some, fresh), ("propset", "k", str(number), some)]
            if self.files[some] == "file":
                deeds.append(("put", str(source), some))
        deed = chance.choice(deeds)
        # A path of svnmucc is a URL, or relative to -U; a peg sign at the end keeps an @ a name.
        quoted = [part if part != some and part != fresh else part.replace("%", "%25") for part in deed]
        message = chance.choice(["work", "", "line\nline", "<&>]]>", "ü" * 40])
        command = ["svnmucc", "--non-interactive", "-u", chance.choice(["ann", "ö"]), "-m", message]
        subprocess.run([*command, "-U", self.repository.url, "--", *quoted], check=True, capture_output=True)
        if deed[0] in ("put", "cp", "mv"):
            self.files[deed[-1]] = self.files.get(some, "file") if deed[0] != "put" else "file"
        if deed[0] == "mkdir":
            self.files[deed[1]] = "dir"
        if deed[0] in ("rm", "mv"):
            del self.files[some]

    def edit_a_property(self, chance: random.Random) -> None:
        """A revision property is changed or removed behind everybody's back."""
        if not self.repository.youngest:
            return
        rev = chance.randint(1, self.repository.youngest)
        self.edited.add(str(rev))
        name = chance.choice(("svn:log", "svn:author", "other:key"))
        if chance.random() < 0.3:
            self.repository.delete_revprop(rev, name)
        else:
            self.repository.set_revprop(rev, name, f"edited {chance.randint(0, 99)}")

    def sync(self, _: random.Random) -> None:
        """What is new."""
        self._run(Mode.INCREMENTAL, None)

    def backfill(self, chance: random.Random) -> None:
        """Some revisions, in any order, also beyond HEAD."""
        first = chance.randint(1, 30)
        self._run(Mode.BACKFILL, (first, first + chance.randint(1, 12)), reread=chance.random() < 0.2)

    def crash(self, chance: random.Random) -> None:
        """The work is cut off between two batches or inside one."""
        first = chance.choice((None, chance.randint(1, 30)))
        window = None if first is None else (first, first + 9)
        wanted = request(self.repo_id, Mode.INCREMENTAL if window is None else Mode.BACKFILL, window=window)
        with crashes():
            self.syncer.run(wanted, progress=crashing(self.conn, chance.randint(0, 3)))
        self._check()

    def forget(self, _: random.Random) -> None:
        """A person resets what counts as complete."""
        reset(self.conn, self.repo_id, JobType.REVISIONS)

    def damage(self, chance: random.Random) -> None:
        """Somebody changes a row behind our back."""
        self.damaged |= damage(self.conn, self.repo_id, chance, _REPOSITORY_DAMAGE)

    def mend(self, chance: random.Random) -> None:
        """Compare and heal some revisions, while the repository may be away for one of both."""
        first = chance.randint(1, 30)
        self._compare_and_repair((first, first + chance.randint(1, 30)), chance.choice((None, None, 0, 1)))

    def _compare_and_repair(self, window: tuple[int, int], away: int | None = None) -> bool:
        """Whether nothing differed. The repository is ``away`` for the comparison (0) or the repair (1)."""
        modes = (
            {"mode": Mode.PROBE, "depth": Depth.DETAILS},
            {"mode": Mode.REPAIR, "only_differences": True},
        )
        other = self.repository.path.with_name(f"{self.repository.path.name}.away")
        for number, mode in enumerate(modes):
            if number == away:
                self.repository.path.rename(other)
            report = self.syncer.run(request(self.repo_id, window=window, **mode))  # type: ignore[arg-type]
            if number == away:
                other.rename(self.repository.path)
            else:
                assert report.error is None
            found = open_differences(self.conn, self.repo_id, JobType.REVISIONS)
            assert found.keys() <= self.damaged | self.edited, found
            if number == 0:
                differed = bool(found)
        self._check()
        return not differed

    def _run(self, mode: Mode, window: tuple[int, int] | None, reread: bool = False) -> JobReport:
        report = self.syncer.run(request(self.repo_id, mode, window=window, reread=reread))
        assert report.error is None
        self._check()
        return report

    def _check(self) -> None:
        time_passes(self.conn)
        self.conn.execute("UPDATE scm.discrepancies SET repairs = 0")
        if self.damaged:
            return
        nothing_contradicts(self.conn)
        row = watermarks.get(self.conn, self.repo_id, JobType.REVISIONS)
        covered = {rev for w in row.covered if isinstance(w, RevisionWindow) for rev in range(w.first, w.end)}
        have = self.conn.execute(
            "SELECT rev_num FROM scm.svn_revisions WHERE repo_id = %(repo)s", {"repo": self.repo_id}
        )
        assert covered <= {row["rev_num"] for row in have}

    def teardown(self) -> None:
        """What is new, what is missing, and the sweep once round all of it."""
        if not self.repo_id:
            return
        head = self.repository.youngest
        self._run(Mode.BACKFILL, (1, max(head, 1) + 1))
        if self.damaged:
            self._run(Mode.INCREMENTAL, None)
            assert self._compare_and_repair((1, head + 1)) or self._compare_and_repair((1, head + 1))
            self.damaged.clear()
        else:
            for _ in range(3):
                self._run(Mode.INCREMENTAL, None)
            assert self._compare_and_repair((1, max(head, 1) + 1))
        assert_equal(stored(self.conn, self.repo_id), self.repository)
        if head:
            again = self._run(Mode.BACKFILL, (1, head + 1), reread=True)
            assert again.counts == Counts(read=head, unchanged=head)


@HISTORIES
def test_any_history_of_a_repository_ends_as_the_source_has_it(
    database: Database, tmp_path: Path, histories: int
) -> None:
    with database.connection() as conn:
        run_histories(lambda: SvnMachine(database, conn, tmp_path), histories)
