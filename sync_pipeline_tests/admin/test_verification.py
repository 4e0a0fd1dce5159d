"""The document of ``scm-sync admin verify``: over real syncs nothing disagrees, and the catalog is compared
with the file that the assets are made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sync_pipeline.admin.verification import verify
from sync_pipeline.cli import reports
from sync_pipeline.core.documents.quality import Verification
from sync_pipeline.core.model import Mode, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import integrity_checks
from sync_pipeline.registry import registration
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register, register_source, request
from sync_pipeline_tests.sync import conftest
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.test_schemas import validate

forge = conftest.forge
PAGE = Path(__file__).resolve().parents[2] / "docs" / "verify.md"


def checked(database: Database, settings: Settings) -> Verification:
    """The document, which is as its schema says."""
    document = verify(database, settings)
    validate(json.loads(json.dumps(document, default=str)), "admin-verify.json")
    return document


def failed(document: Verification) -> dict[str, list[Any]]:
    """The rows of the proofs that fail."""
    return {proof["name"]: proof["rows"] for proof in document["proofs"] if not proof["passed"]}


def test_after_real_syncs_nothing_disagrees_and_what_is_open_is_counted(forge: Forge, tmp_path: Path) -> None:
    """Live and backfill of every job type, with rows in quarantine and a source that goes away."""
    first = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[first])
    made = forge.gitlab.open_merge_request(forge.project, title="T", source="topic", author=forge.user)
    forge.gitlab.comment(made, forge.other, "Good")
    forge.tick()
    forge.conn.execute("ALTER TABLE scm.git_commits ADD CONSTRAINT no_base CHECK (title <> 'Base')")
    made.notes[0].row["id"] = None
    assert forge.commits().succeeded
    assert all(report.succeeded for report in forge.both())
    window = ("2024-01-01", "2024-02-01")
    assert all(r.succeeded for r in forge.both(Mode.BACKFILL, window=window, trigger=Trigger.RUNNER))
    source = svn_samples.large(tmp_path / "repository", 12, 2)
    repo = register_source(forge.conn, source, origin=7)
    syncer = Syncer(forge.database, forge.settings.model_copy(update={"chunk_revisions": 2}))
    assert syncer.run(request(repo)).succeeded
    assert syncer.run(request(repo, Mode.BACKFILL, window=(1, 7))).succeeded
    (tmp_path / "repository").rename(tmp_path / "away")
    assert not syncer.run(request(repo)).succeeded
    forge.conn.execute(
        "INSERT INTO scm.discrepancies (repo_id, job_type, natural_key, kind, reconciliation, found_at)"
        " VALUES (%(repo)s, 'reviews', '1:note:9', 'missing', 1, now() - interval '1 hour')",
        {"repo": forge.repo_id},
    )
    settings = forge.settings.model_copy(update={"state_dir": tmp_path / "state"})
    registration.export_catalog(forge.database, settings)

    document = checked(forge.database, settings)

    assert failed(document) == {}
    assert (document["passed"], document["exit_code"]) == (True, 0)
    found = {one["what"]: one for one in document["open"]}
    assert {what: one["open"] for what, one in found.items()} == {
        "discrepancies": 1,
        "obligations": 0,
        "quarantine": 2,
    }
    assert 3600 <= (found["discrepancies"]["oldest_seconds"] or 0) < 3700
    assert found["obligations"]["oldest_at"] is None
    assert next(iter(reports.open_lines(document))) == "discrepancies: 1 open, the oldest for 60 min"


def test_a_snapshot_that_is_another_catalog_is_told_by_repository(database: Database, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    assert failed(checked(database, settings)) == {}
    with database.connection() as conn:
        one, two = register(conn, "one"), register(conn, "two")
        (missing,) = failed(checked(database, settings))["catalog"]
        assert "catalog.json is missing; run: scm-sync catalog export" in missing["problem"]
        registration.export_catalog(database, settings)
        assert failed(checked(database, settings)) == {}
        three = register(conn, "three")
        conn.execute("UPDATE scm.repos SET lifecycle = 'retired', tenant = 'x' WHERE repo_id = %s", [one])
        conn.execute("DELETE FROM scm.sync_watermark_events WHERE repo_id = %s", [two])
        conn.execute("DELETE FROM scm.sync_watermarks WHERE repo_id = %s", [two])
        conn.execute("DELETE FROM scm.repos WHERE repo_id = %s", [two])
    document = checked(database, settings)
    assert (document["passed"], document["exit_code"]) == (False, 2)
    assert failed(document) == {
        "catalog": [
            {"repo_id": one, "spec": "svn:file:///srv/one", "problem": "other tenant, lifecycle"},
            {"repo_id": two, "spec": "svn:file:///srv/two", "problem": "not in the database"},
            {"repo_id": three, "spec": "svn:file:///srv/three", "problem": "not in the snapshot"},
        ]
    }
    settings.catalog_file.write_text("{")
    (damaged,) = failed(checked(database, settings))["catalog"]
    assert "is damaged" in damaged["problem"]


def test_the_page_says_what_each_proof_means() -> None:
    named = re.findall(r"(?m)^\| ([a-z]+) \|", PAGE.read_text())
    assert [name for name in named if name != "proof"] == sorted([*integrity_checks.names(), "catalog"])
