"""Two worker pools over one database, and a repository that neither takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sync_pipeline.cli import reports
from sync_pipeline.core.catalog import instance_of
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import heartbeats, pools
from sync_pipeline.reports.doctor import local
from sync_pipeline.reports.doctor.findings import State
from sync_pipeline.reports.status import status
from sync_pipeline.scheduling import dispatch
from sync_pipeline.scheduling.worker import Worker
from sync_pipeline.settings import Settings
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.svn_fixtures import SvnRepository, SvnServers


def test_two_pools_never_touch_each_others_repositories(
    database: Database, svn_repository: Callable[..., SvnRepository], svnserve: SvnServers
) -> None:
    near, far, nobodys = (svn_repository(name) for name in ("near", "far", "nobodys"))
    for repository in (near, far, nobodys):
        repository.commit_file("trunk")
    url = svnserve(far).url(far)
    server = instance_of(url)
    with database.connection() as conn:
        ids = {
            "near": register_source(conn, near.path),
            "far": register_source(conn, url, instance=server, tenant="acme"),
            "nobodys": register_source(conn, nobodys.path, tenant="other"),
        }
    names = {repo_id: name for name, repo_id in ids.items()}

    def pool(name: str, **allowed: Any) -> Settings:
        return Settings(worker_pool=name, worker_poll_interval=1, **allowed)

    office = pool("office", worker_instance_allowlist=("local",), worker_tenant_allowlist=("acme",))
    factory = pool("factory", worker_instance_allowlist=(server,))

    def rows(query: str) -> list[dict[str, Any]]:
        with database.connection() as conn:
            return conn.execute(query).fetchall()

    # Each plans its own, although both see everything.
    for settings, mine in ((office, "near"), (factory, "far")):
        found = dispatch.dispatch(database, settings)
        assert [names[decision.repo_id] for decision in found.started] == [mine]
        assert found.plan is not None
        reasons = {names[d.repo_id]: str(d.reason) for d in found.plan.decisions if not d.chosen}
        assert reasons["nobodys"] == "other_pool"
    # Something of the third one waits, as a person or a pool that is gone may have left it.
    with database.connection() as conn:
        conn.execute(
            "INSERT INTO scm.sync_jobs (repo_id, job_type, mode, trigger, actor, reason, generation,"
            " dispatched_at, code_version)"
            " SELECT repo_id, job_type, 'incremental', 'worker', 't', 't', generation, now(), '0'"
            " FROM scm.sync_watermarks WHERE repo_id = %(repo_id)s",
            {"repo_id": ids["nobodys"]},
        )
    done: dict[str, list[str]] = {"office": [], "factory": []}

    def work(settings: Settings) -> None:
        def record(report: Any) -> None:
            done[settings.worker.pool].append(names[report.repo_id])

        Worker(database, settings, print_report=record).run(threading.Event(), once=True)

    threads = [threading.Thread(target=work, args=(settings,)) for settings in (office, factory)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == {"office": ["near"], "factory": ["far"]}
    assert {names[row["repo_id"]] for row in rows("SELECT repo_id FROM scm.sync_runs")} == {"near", "far"}
    [waiting] = rows("SELECT repo_id, attempts FROM scm.sync_jobs WHERE status = 'pending'")
    assert (names[waiting["repo_id"]], waiting["attempts"]) == ("nobodys", 0)

    # It is told everywhere, until a pool takes it.
    document = status(database, office)
    assert [one["name"] for one in document["pools"]] == ["factory", "office"]
    unserved = {"spec": f"svn:{nobodys.url}", "job_type": "revisions", "instance": "local", "tenant": "other"}
    assert document["unserved"] == [unserved]
    lines = list(reports.status_liveness(document))
    assert "worker pool office: of local; of tenants acme" in lines
    assert f"no running worker pool accepts svn:{nobodys.url} revisions (local, other)" in lines
    with database.connection() as conn:
        finding = local.pools(pools.alive(conn), pools.unserved(conn))
        assert (finding.state, nobodys.url in finding.seen) == (State.WARNING, True)
        assert {one.name for one in heartbeats.read(conn)} == {"worker@office", "worker@factory"}
        pools.seen(conn, "rest", instances=(), tenants=("other",), job_types=())
        assert pools.unserved(conn) == []
        # A pool that is not heard of any more takes nothing.
        conn.execute("UPDATE scm.worker_pools SET seen_at = now() - interval '1 hour' WHERE name = 'factory'")
        assert [one.instance for one in pools.unserved(conn)] == [server]
