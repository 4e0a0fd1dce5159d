"""Tokens that end, rights that are taken away, names that others get: nothing is deleted for it, nothing is
mixed, nothing counts as read, and everything goes on once it is put right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from pydantic import SecretStr

from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.model import Access, JobStatus, JobType
from sync_pipeline.ledger import repos, watermarks
from sync_pipeline.settings import Settings
from sync_pipeline.sync.readers import Readers, svn_reader
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, faults
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.faults import apache as web
from sync_pipeline_tests.faults.apache import Apache
from sync_pipeline_tests.sources.gitlab.servers import overheard
from sync_pipeline_tests.sync.conftest import START, Forge

apache = web.apache

COMMITS, MR, REVIEWS = JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS
ALL = (COMMITS, MR, REVIEWS)
GUEST = 10


def open_one(forge: Forge, title: str = "One") -> None:
    """A merge request with a note, from a branch with a commit more."""
    main = forge.git.resolve("main")
    base = forge.git.commit(
        "main", f"Base of {title}\n", files={title: "1\n"}, parents=[main] if main else []
    )
    forge.git.commit(title, f"{title}\n", files={f"{title}2": "1\n"}, parents=[base])
    made = forge.gitlab.open_merge_request(forge.project, title=title, source=title, author=forge.user)
    forge.gitlab.comment(made, forge.other, "Good")
    forge.tick()


def facts(forge: Forge) -> dict[str, int]:
    (row,) = forge.rows("""
        SELECT (SELECT count(*) FROM scm.git_commits WHERE repo_id = %(repo)s AND deleted_at IS NULL
                   AND unreachable_since IS NULL) AS commits,
               (SELECT count(*) FROM scm.mrs WHERE repo_id = %(repo)s AND deleted_at IS NULL) AS mrs,
               (SELECT count(*) FROM scm.review_events WHERE repo_id = %(repo)s AND deleted_at IS NULL
                   AND missing_since IS NULL) AS events,
               (SELECT count(*) FROM scm.refs WHERE repo_id = %(repo)s AND deleted_at IS NULL) AS refs
    """)
    return row


def state(forge: Forge) -> dict[JobType, tuple[object, object]]:
    rows = {job_type: watermarks.get(forge.conn, forge.repo_id, job_type) for job_type in ALL}
    return {job_type: (row.watermark, row.verified_at) for job_type, row in rows.items()}


def again(forge: Forge) -> None:
    """Nobody waits for the next attempt."""
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL WHERE status = 'failed'")


def end_by_date(forge: Forge) -> None:
    forge.tick(days=400)


def end_by_hand(forge: Forge) -> None:
    for token in forge.gitlab.tokens.values():
        forge.gitlab.revoke(token)


@pytest.mark.parametrize(("end", "word"), [(end_by_date, "expired"), (end_by_hand, "revoked")])
def test_a_token_that_ends_says_how_and_takes_nothing_with_it(
    forge: Forge, end: Callable[[Forge], None], word: str
) -> None:
    open_one(forge)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    before, known = facts(forge), state(forge)
    end(forge)
    forge.asked()
    for report in (forge.commits(), *forge.both(), forge.commits()):
        assert (report.job_status, report.error_code) == (JobStatus.PENDING, "credential")
        assert f"the token is {word}" in (report.error or "")
    # A refused token is not sent again and again: that gets an address banned.
    assert len(forge.asked()) == 1
    (stop,) = forge.rows("SELECT reason FROM scm.revoked_credentials")
    assert word in stop["reason"]
    assert forge.rows("SELECT 1 FROM scm.sync_jobs WHERE status IN ('failed', 'dead')") == []
    assert (facts(forge), state(forge)) == (before, known)
    fresh = forge.gitlab.token(forge.user)
    forge.other_settings(gitlab_token=SecretStr(fresh.secret))
    open_one(forge, "Two")
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    assert facts(forge)["mrs"] == before["mrs"] + 1


def test_a_server_that_sends_everybody_elsewhere_is_moved_until_it_answers_itself(forge: Forge) -> None:
    open_one(forge)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    before, known = facts(forge), state(forge)
    with overheard() as (port, heard):
        target = f"http://127.0.0.1:{port}/api/v4/projects/1"
        forge.gitlab.faults.add(".", faults.redirect(target, 301), times=None)
        for report in (forge.commits(), *forge.both()):
            assert not report.succeeded
            assert f"redirected to {target}" in (report.error or "")
        assert heard == []
    for job_type in ALL:
        row = watermarks.get(forge.conn, forge.repo_id, job_type)
        assert row.access is Access.MOVED
        assert target in (row.access_detail or "")
    assert (facts(forge), state(forge)) == (before, known)
    forge.gitlab.faults.clear()
    again(forge)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    for job_type in ALL:
        assert watermarks.get(forge.conn, forge.repo_id, job_type).access is Access.OK


def test_rights_that_are_taken_away_delete_nothing_and_move_nothing(forge: Forge) -> None:
    """The project is still there to be seen, but its code and merge requests are not."""
    open_one(forge)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    before, known = facts(forge), state(forge)
    forge.gitlab.add_member(forge.group, forge.user, GUEST)
    open_one(forge, "Two")
    for report in (forge.commits(), *forge.both()):
        assert (report.job_status, report.error_code) == (JobStatus.DEAD, "denied")
        assert "the role Reporter" in (report.error or "")
    for job_type in ALL:
        assert watermarks.get(forge.conn, forge.repo_id, job_type).access is Access.DENIED
    assert (facts(forge), state(forge)) == (before, known)
    forge.gitlab.add_member(forge.group, forge.user, DEVELOPER)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    assert facts(forge)["mrs"] == before["mrs"] + 1
    assert facts(forge)["commits"] == before["commits"] + 2
    assert {watermarks.get(forge.conn, forge.repo_id, one).access for one in ALL} == {Access.OK}


def test_lost_membership_looks_like_a_deletion_and_is_none(forge: Forge) -> None:
    """GitLab answers 404 to whoever may not see a private project."""
    open_one(forge)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    before, known = facts(forge), state(forge)
    forge.gitlab.add_member(forge.group, forge.user, 0)
    for _ in range(4):
        forge.commits()
        forge.both()
        again(forge)
    assert watermarks.get(forge.conn, forge.repo_id, MR).access is Access.GONE
    assert (facts(forge), state(forge)) == (before, known)
    assert repos.get(forge.conn, forge.repo_id).lifecycle == "active"
    forge.gitlab.add_member(forge.group, forge.user, DEVELOPER)
    open_one(forge, "Two")
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    assert facts(forge)["mrs"] == before["mrs"] + 1


def test_a_name_that_another_project_got_mixes_nothing(forge: Forge) -> None:
    """The old project moves away or is deleted, and a new one takes its path: rows follow the number."""
    open_one(forge)
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    before = facts(forge)
    forge.gitlab.rename_project(forge.project, "elsewhere")
    git = GitRepository.create(forge.git.path.with_name("other.git"))
    git.commit("main", "Another history\n", files={"z": "1\n"})
    other = forge.gitlab.project("app1", group=forge.group, repository=git)
    forge.tick()
    assert all(report.succeeded for report in (forge.commits(), *forge.both()))
    assert facts(forge) == before
    assert repos.get(forge.conn, forge.repo_id).project_path == "team1/elsewhere"
    second = register_project(
        forge.conn, forge.server.url, other.id, "team1/app1", origin=START - timedelta(days=30)
    )
    assert second != forge.repo_id
    assert forge.commits(repo_id=second).succeeded
    assert facts(forge) == before
    titles = forge.rows("SELECT title FROM scm.git_commits WHERE repo_id = %(second)s", second=second)
    assert [row["title"] for row in titles] == ["Another history"]
    # And deleted for good, the name taken once more.
    forge.gitlab.delete_project(forge.project)
    third = forge.gitlab.project("elsewhere", group=forge.group, repository=git)
    assert third.id != forge.project.id
    for _ in range(3):
        assert not forge.commits().succeeded
        again(forge)
    assert watermarks.get(forge.conn, forge.repo_id, COMMITS).access is Access.GONE
    assert facts(forge) == before


def test_one_file_of_authorities_serves_gitlab_and_subversion(apache: Apache) -> None:
    apache.repository("shared")
    gitlab = GitLab()
    user = gitlab.user("user1")
    project = gitlab.project("app1", group=gitlab.group("team1"))
    gitlab.add_member(project, user, DEVELOPER)
    token = SecretStr(gitlab.token(user).secret)
    certificate, key = str(apache.certificate), str(apache.root / "key.pem")
    with Server(gitlab, certificate=certificate, key=key) as server:
        url = server.url.replace("127.0.0.1", "localhost")

        def ask_servers(settings: Settings) -> list[object]:
            """What both servers say, or why they cannot be asked."""
            readers = Readers(settings)
            (instance,) = readers.gitlab_instances()
            found: list[object] = []
            for read in (
                lambda: readers.gitlab(instance).get(f"/projects/{project.id}").data["id"],
                lambda: svn_reader(settings, apache.url("open/shared", scheme="https")).visit().head,
            ):
                try:
                    found.append(read())
                except SyncError as error:
                    found.append((error.code, "set SCM_CA_FILE" in str(error)))
            return found

        assert ask_servers(Settings(gitlab_url=url, gitlab_token=token)) == [("certificate", True)] * 2
        trusting = Settings(gitlab_url=url, gitlab_token=token, ca_file=apache.certificate)
        assert ask_servers(trusting) == [project.id, 0]
