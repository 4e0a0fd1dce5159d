"""Registering and retiring: all or nothing, once, and harmless when repeated."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.catalog import RepositorySpec, parse_spec, read_snapshot
from sync_pipeline.core.errors import AccessDenied, ConfigurationError, SourceGone, SyncError, Transient
from sync_pipeline.core.model import JobType, Lifecycle, RevisionWindow, TimeWindow, Visit
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import integrity_checks, jobs, repos, watermarks
from sync_pipeline.policy.history import HISTORY_PRIORITY
from sync_pipeline.registry import registration
from sync_pipeline.registry.registration import Registered
from sync_pipeline.settings import Settings, SvnTable
from sync_pipeline_sandbox.gitlab import GUEST, Server, faults
from sync_pipeline_sandbox.gitlab.git import GitRepository
from sync_pipeline_tests.gitlab_site import Site

ROOT = "svn://h/paint"
SPEC = parse_spec(f"svn:{ROOT}")


class Door:
    """A front door with a known HEAD, where a real repository of that many revisions would be slow."""

    def __init__(self, head: int = 0, *, root: str = ROOT, error: SyncError | None = None) -> None:
        self.answer = Visit(f"uuid of {root}", root, head)
        self.error = error

    def visit(self) -> Visit:
        if self.error:
            raise self.error
        return self.answer


def add(database: Database, head: int = 0, spec: RepositorySpec = SPEC, **options: Any) -> Registered:
    root = options.pop("root", spec.address)
    error = options.pop("error", None)
    return registration.add_repository(
        database,
        options.pop("settings", Settings()),
        spec,
        actor="me@host",
        reader_factory=lambda url: Door(head, root=root, error=error),
        **options,
    )


def count(database: Database, table: str) -> int:
    queries = {
        "repos": "SELECT count(*) AS n FROM scm.repos",
        "watermarks": "SELECT count(*) AS n FROM scm.sync_watermarks",
        "events": "SELECT count(*) AS n FROM scm.sync_watermark_events",
        "jobs": "SELECT count(*) AS n FROM scm.sync_jobs",
    }
    with database.connection() as conn:
        row = conn.execute(queries[table]).fetchone()
        assert row is not None
        return int(row["n"])


def counts(database: Database) -> list[int]:
    return [count(database, table) for table in ("repos", "watermarks", "events", "jobs")]


@pytest.mark.parametrize("is_retired", [False, True])
def test_who_registers_while_somebody_else_does_finds_it_registered(
    database: Database, is_retired: bool
) -> None:
    if is_retired:
        retired = add(database).repository
        assert retired is not None
        registration.retire_repository(database, retired.repo_id, reason="test", actor="me@host")

    class Overtaken(Door):
        def visit(self) -> Visit:
            add(database)
            return super().visit()

    found = registration.add_repository(
        database, Settings(), SPEC, actor="me@host", reader_factory=lambda url: Overtaken(root=url)
    )
    assert (found.created, found.repository is not None) == (False, True)
    assert count(database, "repos") == 1


@pytest.mark.parametrize(
    ("head", "origin", "history"),
    [(0, 1, []), (1000, 1, []), (1001, 1001, [(1, 1001)]), (2500, 2001, [(1, 1001), (1001, 2001)])],
)
def test_live_syncing_begins_with_the_block_of_head_and_older_blocks_are_queued(
    database: Database, head: int, origin: int, history: list[tuple[int, int]]
) -> None:
    done = add(database, head)
    assert done.created
    assert done.repository is not None
    assert (done.head, done.origin) == (head, origin)
    assert done.history == tuple(RevisionWindow(*block) for block in history)
    with database.connection() as conn:
        row = watermarks.get(conn, done.repository.repo_id, JobType.REVISIONS)
        queued = conn.execute(
            "SELECT lower(revs) AS first, upper(revs) AS end, mode, trigger, priority, status, actor"
            "  FROM scm.sync_jobs ORDER BY revs"
        ).fetchall()
        assert integrity_checks.failures(conn) == {}
    assert (row.origin, row.head_rev, row.covered) == (origin, head, ())
    assert [(job["first"], job["end"]) for job in queued] == history
    for job in queued:
        assert (job["mode"], job["trigger"], job["status"]) == ("backfill", "registration", "pending")
        assert (job["priority"], job["actor"]) == (HISTORY_PRIORITY, "me@host")
    assert count(database, "events") == 1


def test_what_the_catalog_knows_follows_from_address_and_visit(database: Database) -> None:
    spec = parse_spec("svn:svn://H:3691/paint/Trunk%20A")
    repository = add(database, spec=spec, root="svn://h:3691/paint").repository
    assert repository is not None
    assert (repository.instance, repository.instance_slug) == ("h:3691", "h")
    assert (repository.tenant, repository.slug) == ("h:3691", "paint__trunk_a")
    assert (repository.svn_root, repository.svn_prefix) == ("svn://h:3691/paint", "Trunk A")
    assert repository.svn_uuid == "uuid of svn://h:3691/paint"
    assert add(database, spec=parse_spec("svn:svn://h/x"), tenant="owner").repository.tenant == "owner"  # type: ignore[union-attr]


def test_registering_again_changes_nothing_and_needs_no_source(database: Database) -> None:
    first = add(database, 2500)
    before = counts(database)
    again = add(database, error=Transient("the server is down"))
    assert not again.created
    assert again.repository == first.repository
    assert counts(database) == before


def test_of_many_at_once_one_registers(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: add(database, 1500), range(4)))
    assert sum(result.created for result in done) == 1
    assert len({result.repository.repo_id for result in done if result.repository}) == 1
    assert counts(database) == [1, 1, 1, 1]


def test_a_dry_run_writes_nothing(database: Database) -> None:
    plan = add(database, 2500, dry_run=True)
    assert (plan.created, plan.repository, plan.origin, len(plan.history)) == (True, None, 2001, 2)
    assert counts(database) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (AccessDenied("wrong password for svn://h"), ConfigurationError),
        (SourceGone("there is no repository at svn://h"), ConfigurationError),
        (Transient("svn://h does not answer"), Transient),
    ],
)
def test_a_source_that_refuses_leaves_no_trace(
    database: Database, error: SyncError, seen: type[SyncError]
) -> None:
    with pytest.raises(seen, match=str(error)) as caught:
        add(database, error=error)
    assert caught.value.code == error.code
    assert counts(database) == [0, 0, 0, 0]


def test_a_failure_after_the_row_takes_the_row_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(jobs, "enqueue", broken)
    with pytest.raises(RuntimeError):
        add(database, 1500)
    assert counts(database) == [0, 0, 0, 0]


def test_a_retired_repository_keeps_its_row_and_loses_its_waiting_jobs(database: Database) -> None:
    repository = add(database, 2500).repository
    assert repository is not None
    retire: Callable[[], bool] = lambda: registration.retire_repository(  # noqa: E731
        database, repository.repo_id, reason=" moved ", actor="me@host"
    )
    assert retire()
    assert not retire()
    found = registration.find_repository(database, repository.spec)
    assert found.lifecycle is Lifecycle.RETIRED
    with database.connection() as conn:
        states = conn.execute("SELECT DISTINCT status, last_error FROM scm.sync_jobs").fetchall()
        row = conn.execute("SELECT retired_reason FROM scm.repos").fetchone()
    assert row == {"retired_reason": "moved (me@host)"}
    assert [state["status"] for state in states] == ["dead"]
    assert "moved" in states[0]["last_error"]
    assert counts(database) == [1, 1, 1, 2]
    again = add(database, 2500)
    assert again.again
    assert again.repository == repository
    assert again.history == (RevisionWindow(1, 1001), RevisionWindow(1001, 2001))


def test_another_repository_at_the_place_of_a_retired_one_is_a_new_one(database: Database) -> None:
    repository = add(database).repository
    assert repository is not None
    with database.connection() as conn:
        conn.execute("UPDATE scm.repos SET svn_uuid = 'of the one before'")
    registration.retire_repository(database, repository.repo_id, reason="replaced", actor="me@host")
    successor = add(database)
    assert successor.repository is not None
    assert not successor.again
    assert successor.repository.repo_id != repository.repo_id


def test_retiring_needs_a_reason(database: Database) -> None:
    repository = add(database).repository
    assert repository is not None
    with pytest.raises(ConfigurationError, match="--reason"):
        registration.retire_repository(database, repository.repo_id, reason=" ", actor="me@host")


def test_a_repository_is_found_by_specification_number_and_slug(database: Database) -> None:
    repository = add(database).repository
    assert repository is not None
    for text in (repository.spec, str(repository.repo_id), "paint", "h/paint"):
        assert registration.find_repository(database, text) == repository
    for text, part in [("svn:svn://h/pain", f"did you mean {repository.spec}"), ("99", "99"), ("x", "'x'")]:
        with pytest.raises(ConfigurationError, match=part):
            registration.find_repository(database, text)


def test_the_name_of_a_server_is_its_alias_and_one_that_another_server_has_is_refused(
    database: Database, site: Site
) -> None:
    given = site.settings.model_copy(
        update={
            "gitlab_name": "main",
            "svn": (SvnTable(url="svn://h", name="old"), SvnTable(url="svn://g", name="main")),
        }
    )
    site = replace(site, settings=given)
    project = add_project(database, site).repository
    assert project is not None
    assert (project.instance_slug, project.slug) == ("main", "platform__api")
    paint = add(database, settings=given).repository
    assert paint is not None
    assert (paint.instance_slug, paint.slug) == ("old", "paint")
    for dry_run in (True, False):
        with pytest.raises(
            ConfigurationError, match="'main' of the svn server g is in the asset keys of the "
        ):
            add(database, spec=parse_spec("svn:svn://g/glue"), settings=given, dry_run=dry_run)
    site.change(gitlab_name="old")
    assert add_project(database, site, dry_run=True).created is False, "it is registered, whatever the name"
    with database.connection() as conn:
        assert len(repos.list_all(conn)) == 2


def test_the_snapshot_holds_the_catalog_with_the_retired_ones(database: Database, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    path = settings.catalog_file
    repository = add(database, 1500).repository
    assert repository is not None
    assert registration.snapshot_lacks(path, [repository])
    written = registration.export_catalog(database, settings)
    assert not registration.snapshot_lacks(path, [repository])
    assert written == read_snapshot(path)
    assert written.repositories == (repository,)
    assert written.head_rev == 1500
    registration.retire_repository(database, repository.repo_id, reason="x", actor="y")
    with database.connection() as conn:
        assert [event["event"] for event in repos.events(conn, repository.repo_id)] == [
            "registered",
            "retired",
        ]
        conn.execute("UPDATE scm.deployment SET history_start = '2011-02-03'")
    assert registration.export_catalog(database, settings).history_start == date(2011, 2, 3)
    assert [entry.lifecycle for entry in read_snapshot(path).repositories] == [Lifecycle.RETIRED]
    path.write_text("torn")
    assert registration.snapshot_lacks(path, [])


def test_a_list_registers_the_good_ones_and_names_the_bad(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "repos.toml"
    path.write_text(
        """
        [[repository]]
        spec = "svn:svn://h/a"
        tenant = "t"
        [[repository]]
        spec = "nonsense"
        [[repository]]
        spec = "svn:svn://h/b"
        branch = "x"
        [[repository]]
        tenant = "t"
        [[repository]]
        spec = 5
        [[repository]]
        spec = "svn:svn://h/a"
        """
    )
    results = [
        result
        for _, result in registration.add_listed(
            database,
            Settings(),
            registration.read_list(path),
            actor="me@host",
            reader_factory=lambda url: Door(root=url),
        )
    ]
    first, last = results[0], results[-1]
    assert isinstance(first, Registered)
    assert first.created
    assert first.repository is not None
    assert first.repository.tenant == "t"
    assert isinstance(last, Registered)
    assert not last.created
    for result, part in zip(results[1:-1], ["nonsense", "branch", "no spec", "spec has to be"], strict=True):
        assert isinstance(result, ConfigurationError)
        assert part in str(result)
    assert count(database, "repos") == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "lists nothing"),
        ("repository = 5", "lists nothing"),
        ("[[repo]]\nspec = 'x'", "unknown key repo"),
        ("[[repository]\n", "line 1, column 13"),
    ],
)
def test_a_list_that_is_none_is_refused_as_a_whole(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "repos.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        registration.read_list(path)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_example_list_is_valid() -> None:
    example = Path(registration.__file__).parent.parent.parent / "repos.example.toml"
    assert [entry.problem for entry in registration.read_list(example)] == [None] * 4


# GitLab ---------------------------------------------------------------------------------------------------


def add_project(database: Database, site: Site, text: str = "", **options: Any) -> Registered:
    return registration.add_repository(
        database,
        site.settings,
        parse_spec(text or f"gitlab:{site.project.id}"),
        actor="me@host",
        reader_factory=lambda url: Door(),
        client_of=site.client_of,
        **options,
    )


def queued(database: Database) -> list[tuple[str, str, str]]:
    """Job type, first and last day of every waiting job, as they would be started."""
    with database.connection() as conn:
        rows = conn.execute(
            "SELECT job_type, lower(period)::date AS since, upper(period)::date AS until, mode, trigger"
            "  FROM scm.sync_jobs WHERE status = 'pending' ORDER BY job_type, priority, created_at, period"
        ).fetchall()
    assert {(row["mode"], row["trigger"]) for row in rows} <= {("backfill", "registration")}
    return [(row["job_type"], str(row["since"]), str(row["until"])) for row in rows]


@pytest.mark.parametrize("form", ["{id}", "platform/api", "Platform/API", "{url}/platform/api/-/issues"])
def test_a_project_is_registered_under_its_number_with_all_of_its_history(
    database: Database, site: Site, form: str
) -> None:
    site.project.created_at = datetime(2023, 2, 3, tzinfo=UTC)
    old = site.gitlab.open_merge_request(site.project, author=site.user)
    old.created_at = datetime(2021, 12, 31, 23, tzinfo=UTC)  # imports are older than their project
    number = site.project.id
    done = add_project(database, site, f"gitlab:{form.format(id=number, url=site.server.url)}")
    repository = done.repository
    assert repository is not None
    assert (repository.project_id, repository.project_path) == (number, "platform/api")
    assert repository.url == f"{site.server.url}/projects/{number}"
    assert (repository.instance, repository.tenant) == (site.instance, "platform")
    assert (repository.slug, repository.spec) == ("platform__api", f"gitlab:{number}")
    assert repository.default_branch == "main"
    assert done.origin == datetime(2024, 4, 6, tzinfo=UTC)
    # First what is 90 days old at most, then the years.
    years = [("2024-02-06", "2024-04-06"), ("2024-01-01", "2024-02-06")]
    years += [("2023-01-01", "2024-01-01"), ("2022-01-01", "2023-01-01")]
    years += [("1900-01-01", "2022-01-01")]
    wanted = [(job_type, *year) for job_type in ("merge_requests", "reviews") for year in years]
    assert queued(database) == wanted
    assert [
        (str(w.since.date()), str(w.until.date())) for w in done.history if isinstance(w, TimeWindow)
    ] == years
    with database.connection() as conn:
        for job_type in (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS):
            row = watermarks.get(conn, repository.repo_id, job_type)
            assert (row.origin, row.covered) == (done.origin, ())
        assert integrity_checks.failures(conn) == {}
        assert [event["event"] for event in repos.events(conn, repository.repo_id)] == ["registered"]


def test_registering_a_project_again_changes_nothing(database: Database, site: Site) -> None:
    first = add_project(database, site)
    before = counts(database)
    site.gitlab.journal.clear()
    assert add_project(database, site).repository == first.repository
    assert site.asked() == []  # its number is enough
    site.gitlab.rename_project(site.project, "moved")
    for path in ("platform/api", "platform/moved"):
        again = add_project(database, site, f"gitlab:{path}")
        assert (again.created, again.repository) == (False, first.repository)
    assert counts(database) == before
    # Where the old path leads to another project by now, that one is meant.
    other = site.gitlab.project("api", group=site.group)
    newcomer = add_project(database, site, "gitlab:platform/api")
    assert newcomer.created
    assert newcomer.repository is not None
    assert newcomer.repository.project_id == other.id


def test_of_many_who_register_a_project_at_once_one_does(database: Database, site: Site) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: add_project(database, site), range(4)))
    assert sum(result.created for result in done) == 1
    assert len({result.repository.repo_id for result in done if result.repository}) == 1
    assert count(database, "repos") == 1


def test_a_dry_run_tells_what_reading_a_project_takes(database: Database, site: Site, tmp_path: Path) -> None:
    git = GitRepository.create(tmp_path / "api.git")
    for number in range(3):
        git.commit("main", f"Commit {number}\n")
    site.project.repository = git
    for _ in range(4):
        site.gitlab.open_merge_request(site.project, author=site.user)
    plan = add_project(database, site, dry_run=True)
    assert (plan.created, plan.repository, plan.path) == (True, None, "platform/api")
    assert plan.estimate is not None
    assert (plan.estimate.merge_requests, plan.estimate.commits) == (4, 3)
    assert plan.estimate.requests == (3 + 1) + (1 + 1 + 5) + (1 + 1 + 18)
    assert plan.estimate.usable_requests == (3 + 1) + (1 + 1) + (1 + 1 + 1)
    assert 0 < plan.estimate.usable_hours < plan.estimate.hours
    assert [str(window.since.date()) for window in plan.history if isinstance(window, TimeWindow)] == [
        "1900-01-01"
    ]
    site.gitlab.behaviour.total_limit = 2  # without totals the newest number counts
    site.gitlab.delete_merge_request(site.project, site.project.merge_requests[1])
    fewer = add_project(database, site, dry_run=True).estimate
    assert fewer is not None
    assert fewer.merge_requests == 4
    site.gitlab.switch_feature(site.project, "merge_requests", "disabled")
    site.group.members[int(site.user["id"])] = GUEST
    guest = add_project(database, site, dry_run=True).estimate
    assert guest is not None
    assert guest.commits is None
    assert counts(database) == [0, 0, 0, 0]


def test_a_retired_project_is_taken_up_again_under_its_number(database: Database, site: Site) -> None:
    first = add_project(database, site).repository
    assert first is not None
    registration.retire_repository(database, first.repo_id, reason="over", actor="me@host")
    assert queued(database) == []
    site.gitlab.rename_project(site.project, "moved")
    site.gitlab.archive(site.project)
    done = add_project(database, site, "gitlab:platform/moved")
    assert done.again
    assert done.repository is not None
    assert (done.repository.repo_id, done.repository.slug) == (first.repo_id, first.slug)
    assert done.repository.project_path == "platform/moved"
    assert [entry[0] for entry in queued(database)] == ["merge_requests", "reviews"]
    with database.connection() as conn:
        events = [event["event"] for event in repos.events(conn, first.repo_id)]
    assert events == ["registered", "retired", "reactivated", "moved", "archived"]


def wrong_token(site: Site) -> None:
    site.change(gitlab_token=Settings(gitlab_token="glpat-wrong").gitlab.token)


def revoked(site: Site) -> None:
    for token in site.gitlab.tokens.values():
        token.revoked = True


def expired(site: Site) -> None:
    for token in site.gitlab.tokens.values():
        token.expires_at = date(2024, 1, 1)


def narrow_scope(site: Site) -> None:
    for token in site.gitlab.tokens.values():
        token.scopes = ("read_user", "read_repository")


def no_membership(site: Site) -> None:
    site.gitlab.add_member(site.group, site.user, 0)


def no_token(site: Site) -> None:
    site.change(gitlab_token=Settings().gitlab.token)


def login_page(site: Site) -> None:
    site.gitlab.faults.add("/projects/", faults.login_page(), times=None)


def login_elsewhere(site: Site) -> None:
    site.gitlab.faults.add("/projects/", faults.redirect("http://login.test/"), times=None)


def another_api(site: Site) -> None:
    site.gitlab.faults.add("/projects/", faults.json_answer(404, {"detail": "Not Found"}), times=None)


def decoding_proxy(site: Site) -> None:
    site.gitlab.behaviour.decoding_proxy = True


def no_project_in_it(site: Site) -> None:
    site.gitlab.faults.add("/projects/", faults.json_answer(200, {"ok": True}), times=None)


def wrong_folder(site: Site) -> None:
    site.change(gitlab_url=site.server.url.removesuffix("/git"))


@pytest.mark.parametrize(
    ("prepare", "spec", "parts"),
    [
        (wrong_token, "gitlab:platform/api", ["the token is missing or wrong", "read_api"]),
        (revoked, "gitlab:platform/api", ["the token is revoked"]),
        (expired, "gitlab:platform/api", ["the token is expired"]),
        (narrow_scope, "gitlab:platform/api", ["'sync' has the scope read_user", "with scope read_api"]),
        (no_membership, "gitlab:platform/api", ["no project platform/api", "membership"]),
        (no_token, "gitlab:platform/api", ["without a token"]),
        (lambda _: None, "gitlab:platform/unknown", ["no project platform/unknown"]),
        (lambda _: None, "gitlab:4711", ["no project 4711"]),
        (lambda _: None, "gitlab:platform/tools", ["scm-sync root add gitlab:group:platform/tools"]),
        (lambda _: None, "gitlab:https://elsewhere.test/a/b", ["elsewhere.test", "[[gitlab]]"]),
        (login_page, "gitlab:platform/api", ["login or error page"]),
        (login_elsewhere, "gitlab:platform/api", ["redirected to http://login.test/"]),
        (another_api, "gitlab:platform/api", ["no GitLab API"]),
        (decoding_proxy, "gitlab:platform/api", ["no API of a GitLab", "by its number"]),
        (no_project_in_it, "gitlab:platform/api", ["no GitLab says"]),
        (wrong_folder, "gitlab:platform/api", ["no GitLab API"]),
    ],
)
def test_what_cannot_be_registered_is_refused_with_the_way_out(
    database: Database, site: Site, prepare: Callable[[Site], None], spec: str, parts: list[str]
) -> None:
    site.gitlab.group("tools", parent=site.group)
    prepare(site)
    with pytest.raises(ConfigurationError) as caught:
        add_project(database, site, spec)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert not any(secret in message for secret in [*site.gitlab.tokens, "glpat-wrong"])
    assert counts(database) == [0, 0, 0, 0]


def test_without_a_server_the_settings_to_set_are_named(database: Database, site: Site) -> None:
    site.change(gitlab_url="")
    with pytest.raises(ConfigurationError, match="SCM_GITLAB_URL and SCM_GITLAB_TOKEN"):
        add_project(database, site)


def test_of_several_servers_one_has_to_be_named(database: Database, site: Site) -> None:
    there = Settings(gitlab=[{"url": "https://there.test/sub"}]).gitlab.tables
    site.change(gitlab=there)
    for address, forms in [
        ("12", f"gitlab:{site.server.url}/projects/12 or gitlab:https://there.test/sub/projects/12"),
        ("a/b", f"gitlab:{site.server.url}/a/b or gitlab:https://there.test/sub/a/b"),
    ]:
        with pytest.raises(ConfigurationError) as caught:
            add_project(database, site, f"gitlab:{address}")
        assert forms in str(caught.value)
    assert add_project(database, site, f"gitlab:{site.server.url}/projects/{site.project.id}").created


def test_a_certificate_that_nobody_vouches_for_is_refused_until_it_is_trusted(
    database: Database, site: Site, tmp_path: Path
) -> None:
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", pem], check=True, capture_output=True)
    with Server(site.gitlab, certificate=str(pem), key=str(key)) as secure:
        site.change(gitlab_url=secure.url)
        text = "gitlab:platform/api"
        with pytest.raises(ConfigurationError, match="SCM_CA_FILE"):
            registration.add_repository(
                database,
                site.settings,
                parse_spec(text),
                actor="me@host",
                reader_factory=lambda url: Door(),
                client_of=site.client_of,
            )
        site.change(ca_file=pem)
        assert add_project(database, site, text).created


def test_a_server_that_does_not_answer_now_is_asked_again_later(database: Database, site: Site) -> None:
    site.gitlab.faults.add("/projects/", faults.proxy_error(503), times=None)
    with pytest.raises(Transient):
        add_project(database, site)
    assert counts(database) == [0, 0, 0, 0]
