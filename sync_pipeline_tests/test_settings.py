"""Settings: precedence, and refusals that name the key, the problem and the way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobType, Kind
from sync_pipeline.settings import (
    FIELDS,
    Origin,
    Settings,
    explained_settings,
    files,
    given,
    load_settings,
)
from sync_pipeline.settings.given import PROFILES
from sync_pipeline_sandbox import settings_page

SECRET = "hunter2-never-shown"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and environment, so that no file of the clone is in force and nothing else."""
    for name in [name for name in os.environ if name.startswith("SCM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    return tmp_path


def config(folder: Path, text: str) -> Path:
    path = folder / "sync_pipeline.toml"
    path.write_text(text)
    return path


def refusals(**overrides: object) -> tuple[str, ...]:
    """Every problem, a line each."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**overrides)
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return caught.value.problems


def refusal(**overrides: object) -> str:
    """The only problem."""
    (problem,) = refusals(**overrides)
    return problem


def test_command_line_wins_over_environment_over_file_over_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().chunks.revisions == 1000
    config(folder, "chunk_revisions = 300\nsync_interval = 7")
    assert load_settings().chunks.revisions == 300
    monkeypatch.setenv("SCM_CHUNK_REVISIONS", "200")
    assert load_settings().chunks.revisions == 200
    assert load_settings(chunk_revisions=100, sync_interval_seconds=None).chunks.revisions == 100
    assert load_settings().scheduler.sync_interval_seconds == 7


def test_scm_config_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, "chunk_revisions = 300")
    (folder / "other.toml").write_text("chunk_revisions = 400")
    monkeypatch.setenv("SCM_CONFIG", str(folder / "other.toml"))
    assert load_settings().chunks.revisions == 400
    monkeypatch.setenv("SCM_CONFIG", str(folder / "absent.toml"))
    assert "absent.toml" in refusal()


@pytest.mark.parametrize(
    ("interval", "stale"), [("300", 3600), ("1800", 3600), ("3600", 7200), ("1e4", 20_000)]
)
def test_a_longer_interval_alone_moves_when_a_copy_is_stale(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interval: str, stale: float
) -> None:
    monkeypatch.setenv("SCM_SCHEDULER_CURSOR_AGE_THRESHOLD_SECONDS", interval)
    assert load_settings().scheduler.stale_after_seconds == stale


def test_what_would_be_due_and_stale_at_once_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_SYNC_INTERVAL_SECONDS", "3600")
    monkeypatch.setenv("SCM_STALE_AFTER_SECONDS", "3600")
    assert refusal() == (
        "stale_after_seconds (3600) must be at least twice sync_interval_seconds (3600), or what is on "
        "time is called stale; "
        "see SCM_STALE_AFTER_SECONDS and SCM_SYNC_INTERVAL_SECONDS"
    )


def test_a_byte_order_mark_is_no_part_of_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sync_pipeline.toml").write_bytes(b"\xef\xbb\xbfchunk_revisions = 300\n")
    (folder / "token").write_bytes(b"\xef\xbb\xbfglpat-x\r\n")
    monkeypatch.setenv("SCM_GITLAB_URL", "https://git.test")
    monkeypatch.setenv("SCM_GITLAB_TOKEN_FILE", str(folder / "token"))
    settings = load_settings()
    assert settings.chunks.revisions == 300
    (server,) = settings.gitlab_servers()
    assert server.token() == "glpat-x"


def test_the_database_url_goes_before_that_of_other_tools(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTGRES_DSN", "postgresql://db.test/other")
    monkeypatch.setenv("SCM_DATABASE_URL", "postgresql://db.test/scm")
    assert load_settings().database_url == "postgresql://db.test/scm"


def test_the_url_that_env_wrote_for_the_embedded_server_pins_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCM_DATABASE_URL", "SCM_EMBEDDED_DATABASE_URL"):
        monkeypatch.setenv(name, "postgresql:///scm?host=/tmp/demo")
    assert load_settings().database_url == ""
    monkeypatch.setenv("SCM_DATABASE_URL", "postgresql://db.test/scm")
    assert load_settings().database_url == "postgresql://db.test/scm"


# What the system that this one replaces is configured with: variable, value, setting, what it becomes.
OF_THE_REPLACED_SYSTEM: list[tuple[str, str, str, object]] = [
    ("POSTGRES_DSN", "postgresql://ann@db.test/scm", "database_url", "postgresql://ann@db.test/scm"),
    ("ENGRAM_SCM_SYNC_ENABLED", "false", "sync_enabled", False),
    ("SCM_SCHEDULER_GLOBAL_CONCURRENCY", "21", "scheduler_global_concurrency", 21),
    ("SCM_SCHEDULER_MAX_RUNNING", "11", "scheduler_max_running", 11),
    ("SCM_SCHEDULER_PER_INSTANCE_CONCURRENCY", "5", "scheduler_per_instance_concurrency", 5),
    ("SCM_SCHEDULER_PER_TENANT_CONCURRENCY", "3", "scheduler_per_tenant_concurrency", 3),
    ("SCM_SCHEDULER_SCAN_INTERVAL_SECONDS", "31", "sensor_interval_seconds", 31),
    ("SCM_SCHEDULER_MAX_ENQUEUE_PER_SCAN", "101", "scheduler_max_enqueue_per_scan", 101),
    ("SCM_SCHEDULER_ERROR_BUDGET_THRESHOLD", "0.4", "scheduler_error_budget_threshold", 0.4),
    ("SCM_SCHEDULER_PAUSE_DURATION_SECONDS", "301", "scheduler_pause_duration_seconds", 301),
    ("SCM_SCHEDULER_CURSOR_AGE_THRESHOLD_SECONDS", "3601", "sync_interval_seconds", 3601),
    ("SCM_SCHEDULER_BACKFILL_REPAIR_WINDOW_HOURS", "25", "scheduler_backfill_repair_window_hours", 25),
    ("SCM_SCHEDULER_MAX_BACKFILL_WINDOW_HOURS", "169", "scheduler_max_backfill_window_hours", 169),
    ("SCM_SCHEDULER_ENABLE_TENANT_FAIRNESS", "false", "scheduler_enable_tenant_fairness", False),
    ("SCM_SCHEDULER_TENANT_FAIRNESS_MAX_PER_ROUND", "2", "scheduler_tenant_fairness_max_per_round", 2),
    ("SCM_SCHEDULER_MVP_MODE_ENABLED", "true", "scheduler_mvp_mode_enabled", True),
    (
        "SCM_SCHEDULER_MVP_JOB_TYPE_ALLOWLIST",
        "commits, mrs",
        "scheduler_mvp_job_type_allowlist",
        (JobType.COMMITS, JobType.MERGE_REQUESTS),
    ),
    ("SCM_SCHEDULER_LOG_LEVEL", "INFO", "log_level", "info"),
    ("SCM_WORKER_LEASE_SECONDS", "600", "claim_seconds", 600),
    ("SCM_WORKER_RENEW_INTERVAL_SECONDS", "61", "claim_renew_seconds", 61),
    ("SCM_WORKER_MAX_RENEW_FAILURES", "4", "worker_max_renew_failures", 4),
    ("SCM_WORKER_POLL_INTERVAL", "11", "worker_poll_interval", 11),
    ("SCM_WORKER_PARALLELISM", "2", "parallel_repositories", 2),
    ("SCM_WORKER_BATCH_SIZE", "50", "chunk_rows", 50),
    ("SCM_WORKER_LOCK_TIMEOUT", "299", "max_wait_seconds", 299),
    (
        "SCM_WORKER_INSTANCE_ALLOWLIST",
        "Git.Example.com:443, svn:81",
        "worker_instance_allowlist",
        ("git.example.com", "svn:81"),
    ),
    (
        "SCM_WORKER_TENANT_ALLOWLIST",
        "tenant-vip-001,tenant-vip-002",
        "worker_tenant_allowlist",
        ("tenant-vip-001", "tenant-vip-002"),
    ),
    ("SCM_REAPER_INTERVAL_SECONDS", "62", "reaper_interval_seconds", 62),
    ("SCM_REAPER_JOB_GRACE_SECONDS", "63", "reaper_job_grace_seconds", 63),
    ("SCM_REAPER_LOCK_GRACE_SECONDS", "121", "reaper_lock_grace_seconds", 121),
    ("SCM_CB_FAILURE_RATE_THRESHOLD", "0.5", "cb_failure_rate_threshold", 0.5),
    ("SCM_CB_RATE_LIMIT_THRESHOLD", "0.3", "cb_rate_limit_threshold", 0.3),
    ("SCM_CB_TIMEOUT_RATE_THRESHOLD", "0.3", "cb_timeout_rate_threshold", 0.3),
    ("SCM_CB_MIN_SAMPLES", "10", "cb_min_samples", 10),
    ("SCM_CB_ENABLE_SMOOTHING", "false", "cb_enable_smoothing", False),
    ("SCM_CB_SMOOTHING_ALPHA", "0.3", "cb_smoothing_alpha", 0.3),
    ("SCM_CB_WINDOW_COUNT", "22", "cb_window_count", 22),
    ("SCM_CB_WINDOW_MINUTES", "33", "cb_window_minutes", 33),
    ("SCM_CB_OPEN_DURATION_SECONDS", "180", "cb_open_duration_seconds", 180),
    ("SCM_CB_HALF_OPEN_MAX_REQUESTS", "4", "cb_half_open_max_requests", 4),
    ("SCM_CB_RECOVERY_SUCCESS_COUNT", "3", "cb_recovery_success_count", 3),
    ("SCM_CB_DEGRADED_BATCH_SIZE", "12", "cb_degraded_batch_size", 12),
    ("SCM_CB_BACKFILL_ONLY_MODE", "false", "cb_backfill_only_mode", False),
    ("SCM_CB_PROBE_JOB_TYPES_ALLOWLIST", "all", "cb_probe_job_types_allowlist", ()),
    ("SCM_GITLAB_POSTGRES_RATE_LIMIT_ENABLED", "true", "gitlab_postgres_rate_limit_enabled", True),
    ("SCM_GITLAB_POSTGRES_RATE_LIMIT_RATE", "5.0", "gitlab_postgres_rate_limit_rate", 5),
    ("SCM_GITLAB_POSTGRES_RATE_LIMIT_BURST", "10", "gitlab_postgres_rate_limit_burst", 10),
    ("GITLAB_URL", "https://gitlab.example.com", "gitlab_url", "https://gitlab.example.com"),
    ("GITLAB_TOKEN", SECRET, "gitlab_token", SecretStr(SECRET)),
    ("SVN_USERNAME", "svn_user", "svn_username", "svn_user"),
    ("SVN_PASSWORD", SECRET, "svn_password", SecretStr(SECRET)),
]


def test_the_environment_of_the_replaced_system_goes_on_below_our_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value, _, _ in OF_THE_REPLACED_SYSTEM:
        monkeypatch.setenv(variable, value)
    loaded = load_settings()
    for variable, _, name, becomes in OF_THE_REPLACED_SYSTEM:
        assert loaded.by_name()[name] == becomes, variable
    for name, value in (("SVN_USERNAME", "new"), ("CLAIM_SECONDS", "700"), ("SYNC_ENABLED", "true")):
        monkeypatch.setenv(f"SCM_{name}", value)
    monkeypatch.setenv("GITLAB_PRIVATE_TOKEN", "not this one")
    loaded = load_settings()
    assert (loaded.svn.username, loaded.jobs.claim_seconds, loaded.scheduler.enabled) == ("new", 700, True)
    assert loaded.gitlab.token.get_secret_value() == SECRET


def test_the_file_of_the_replaced_system_goes_on(folder: Path) -> None:
    config(
        folder,
        f"""
        chunk_revisions = 300
        scheduler_max_enqueue_per_scan = 7
        [scm]
        log_level = "error"
        [scm.scheduler]
        global_concurrency = 21
        max_running = 11
        scan_interval_seconds = 31
        cursor_age_threshold_seconds = 3601
        enable_tenant_fairness = false
        mvp_job_type_allowlist = ["mrs", "commits"]
        [scm.worker]
        lease_seconds = 301
        renew_interval_seconds = 61
        tenant_allowlist = "a, b"
        [scm.reaper]
        job_grace_seconds = 63
        [scm.circuit_breaker]
        smoothing_alpha = 0.3
        backfill_only_mode = false
        probe_job_types_allowlist = []
        [scm.degradation]
        max_batch_size = 400
        base_sleep_seconds = 2
        [scm.gitlab]
        url = "https://gitlab.example.com/"
        token = "{SECRET}"
        postgres_rate_limit_burst = 9
        [scm.gitlab.rate_limit]
        rate = 4.5
        [scm.backfill]
        repair_window_hours = 48
        """,
    )
    loaded = load_settings()
    expected = {
        "chunk_revisions": 300,
        "log_level": "error",
        "scheduler_max_enqueue_per_scan": 7,
        "scheduler_global_concurrency": 21,
        "scheduler_max_running": 11,
        "sensor_interval_seconds": 31,
        "sync_interval_seconds": 3601,
        "scheduler_enable_tenant_fairness": False,
        "scheduler_mvp_job_type_allowlist": (JobType.MERGE_REQUESTS, JobType.COMMITS),
        "claim_seconds": 301,
        "claim_renew_seconds": 61,
        "worker_tenant_allowlist": ("a", "b"),
        "reaper_job_grace_seconds": 63,
        "cb_smoothing_alpha": 0.3,
        "cb_backfill_only_mode": False,
        "cb_probe_job_types_allowlist": (),
        "degradation_max_batch_size": 400,
        "degradation_base_sleep_seconds": 2,
        "gitlab_url": "https://gitlab.example.com",
        "gitlab_token": SecretStr(SECRET),
        "gitlab_postgres_rate_limit_burst": 9,
        "gitlab_postgres_rate_limit_rate": 4.5,
        "scheduler_backfill_repair_window_hours": 48,
    }
    values = loaded.by_name()
    assert {name: values[name] for name in expected} == expected


def test_a_profile_lies_below_everything_that_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, "profile = 'medium'\n[scm.scheduler]\nmax_running = 9")
    monkeypatch.setenv("SCM_WORKER_PARALLELISM", "3")
    loaded = load_settings(cb_min_samples=6)
    assert (loaded.scheduler.global_concurrency, loaded.scheduler.per_instance_concurrency) == (20, 5)
    assert (loaded.scheduler.max_running, loaded.jobs.parallel_repositories, loaded.breaker.min_samples) == (
        9,
        3,
        6,
    )
    monkeypatch.setenv("SCM_PROFILE", "Large")
    loaded, found = explained_settings()
    assert (loaded.jobs.claim_seconds, loaded.scheduler.max_running) == (600, 9)
    assert {name: (found[name].origin, found[name].name) for name in ("profile", "claim_seconds")} == {
        "profile": (Origin.ENVIRONMENT, "SCM_PROFILE"),
        "claim_seconds": (Origin.PROFILE, "the profile large"),
    }
    monkeypatch.setenv("SCM_PROFILE", "small")  # which hands out less than the file lets run
    assert refusal() == (
        "scheduler_max_running (9) must be at most scheduler_global_concurrency (5), or so many never run; "
        "see the profile small and scm.scheduler.max_running in "
        f"{folder / 'sync_pipeline.toml'}"
    )
    for profile in PROFILES:
        assert load_settings(profile=profile, scheduler_max_running=1).profile == profile


def test_a_pool_has_a_table_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(
        folder,
        """
        [scm.worker]
        parallelism = 1
        poll_interval = 5
        [scm.worker.pools.prod]
        instance_allowlist = ["gitlab.prod.example.com"]
        parallelism = 4
        [scm.worker.pools.vip]
        tenant_allowlist = ["one", "two"]
        job_types = "commits"
        """,
    )
    assert load_settings().jobs.parallel_repositories == 1
    prod = load_settings(worker_pool="prod")
    assert (prod.worker.instance_allowlist, prod.worker.tenant_allowlist) == (
        ("gitlab.prod.example.com",),
        (),
    )
    assert (prod.jobs.parallel_repositories, prod.worker.poll_interval) == (4, 5)
    monkeypatch.setenv("SCM_WORKER_POOL", "vip")
    monkeypatch.setenv("SCM_WORKER_TENANT_ALLOWLIST", "three")
    vip = load_settings()
    assert (vip.worker.tenant_allowlist, vip.worker.job_type_allowlist) == (("three",), (JobType.COMMITS,))
    monkeypatch.setenv("SCM_WORKER_POOL", "prd")
    assert "there is no [scm.worker.pools.prd]" in refusal()
    assert refusal().endswith("did you mean prod?")


def test_every_problem_is_told_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(
        folder,
        f"""
        svn_password = ["{SECRET}"]
        chunk_revisions = 0
        [scm.scheduler]
        max_runing = 1
        [scm.worker.pools.a]
        tenants = ["x"]
        [[gitlab]]
        url = "https://h"
        tokn = "{SECRET}"
        """,
    )
    for name, value in {
        "SCM_SYNC_INTERVL": "1",
        "SCM_STALE_AFTER_SECONDS": "soon",
        "SCM_LEASE_RENEW_SECONDS": "60",
        "SCM_CLAIM_SECONDS": "no",  # nothing is said about claim_renew_seconds, which may be right
        "SCM_WORKER_RENEW_INTERVAL_SECONDS": "400",
        "SCM_CB_RECOVERY_SUCCESS_COUNT": "9",
        "SCM_CLAIM_MAX_TENANTS_PER_ROUND": "5",
    }.items():
        monkeypatch.setenv(name, value)
    assert [problem.partition(";")[0] for problem in refusals()] == [
        f"unknown setting scm.scheduler.max_runing in {path}",
        "SCM_CLAIM_MAX_TENANTS_PER_ROUND: every tenant has its turn in each round",
        "unknown setting SCM_SYNC_INTERVL in the environment",
        f"unknown setting scm.worker.pools.a.tenants in {path}",
        f"[[gitlab]] number 1 in {path}: tokn: unknown key",
        f"svn_password in {path}: input should be a valid string",
        f"chunk_revisions in {path}: input should be greater than or equal to 1, not 0",
        "SCM_CLAIM_SECONDS: input should be a valid number, unable to parse string as a number, not 'no'",
        "SCM_STALE_AFTER_SECONDS: input should be a valid number, unable to parse string as a number, "
        "not 'soon'",
        "lease_renew_seconds (60) must be less than lease_seconds (60), or the lease is lost",
        "cb_recovery_success_count (9) must be at most cb_half_open_max_requests (3), or a circuit breaker "
        "never closes",
    ]


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCM_CHUNK_REVISIONS", "SCM_CA_FILE", "SCM_CONFIG", "SVN_PASSWORD", "GITLAB_TOKEN"):
        monkeypatch.setenv(name, "")
    assert load_settings() == load_settings(chunk_revisions=1000)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("SCM_CHUNK_REVISION", "1", ["SCM_CHUNK_REVISION", "did you mean SCM_CHUNK_REVISIONS?"]),
        ("SCM_NOTHING_LIKE_IT", "1", ["SCM_NOTHING_LIKE_IT", "docs/settings.md lists the known ones"]),
        ("SCM_DAGSTER_DATABASE_URI", "1", ["did you mean SCM_DAGSTER_DATABASE_URL?"]),
        ("SCM_CHUNK_REVISIONS", "many", ["SCM_CHUNK_REVISIONS", "integer", "'many'"]),
        ("SCM_CHUNK_REVISIONS", "0", ["SCM_CHUNK_REVISIONS", "greater than or equal to 1"]),
        (
            "SCM_SENSOR_INTERVAL_SECONDS",
            str(10**30),
            ["SCM_SENSOR_INTERVAL_SECONDS", "less than or equal to 86400"],
        ),
        ("SCM_SYNC_INTERVAL_SECONDS", "nan", ["SCM_SYNC_INTERVAL_SECONDS", "finite"]),
        ("SCM_SYNC_INTERVAL_SECONDS", "inf", ["SCM_SYNC_INTERVAL_SECONDS", "finite"]),
        ("SCM_CA_FILE", "/absent.pem", ["SCM_CA_FILE", "/absent.pem"]),
        ("SCM_SVN_TRUST_FAILURES", "expired,all", ["SCM_SVN_TRUST_FAILURES", "'all'", "unknown-ca"]),
        ("SCM_GITLAB", "[]", ["unknown setting SCM_GITLAB ", "did you mean"]),
        ("SCM_GITLAB_PARALLEL", "65", ["SCM_GITLAB_PARALLEL", "less than or equal to 64"]),
        ("SCM_GITLAB_URL", "gitlab.example.com", ["SCM_GITLAB_URL", "https://gitlab.example.com"]),
        ("SCM_GITLAB_URL", "https://h/a?x=1", ["SCM_GITLAB_URL", "without ?"]),
        ("SCM_HISTORY_FLOOR", "2999-01-01", ["SCM_HISTORY_FLOOR", "to today"]),
        ("SCM_HISTORY_FLOOR", "soon", ["SCM_HISTORY_FLOOR", "date"]),
        (
            "SCM_LEASE_RENEW_SECONDS",
            "60",
            ["lease_renew_seconds (60) must be less than lease_seconds", "see SCM_LEASE_RENEW_SECONDS"],
        ),
        ("SCM_WORKER_JOB_TYPE_ALLOWLIST", "commit", ["SCM_WORKER_JOB_TYPE_ALLOWLIST", "'commit'", "mrs"]),
        ("SCM_WORKER_INSTANCE_ALLOWLIST", "https://h/", ["SCM_WORKER_INSTANCE_ALLOWLIST", "hosts only"]),
        ("SCM_SYNC_ENABLED", "maybe", ["SCM_SYNC_ENABLED", "boolean", "'maybe'"]),
        ("SCM_PROFILE", "huge", ["SCM_PROFILE", "'small', 'medium' or 'large'", "'huge'"]),
        ("SCM_WORKER_LEASE_SECONDS", "x", ["SCM_WORKER_LEASE_SECONDS", "number"]),
        ("SCM_SCHEDULER_MAX_RUNING", "1", ["did you mean SCM_SCHEDULER_MAX_RUNNING?"]),
        ("SCM_GITLAB_TOKEN_EXEC", "cat", ["SCM_GITLAB_TOKEN_EXEC: ", "SCM_GITLAB_TOKEN_FILE"]),
    ],
)
def test_a_wrong_variable_is_named_with_the_way_out(
    name: str, value: str, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    message = refusal()
    for part in parts:
        assert part in message


def test_variables_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCM_DEBUG", "SCM_DAGSTER_HOST", "SCM_TEST_ANYTHING"):
        monkeypatch.setenv(name, "1")
    load_settings()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("chunk_revisions 5", ["line 1, column 17"]),
        ("only = 'x'\nchunk_revisions = [1,\n", ["line 2, column 22"]),
        ("chunk_revision = 5", ["unknown setting chunk_revision in", "did you mean chunk_revisions?"]),
        ("[sxm]\nonly = 'x'", ["unknown setting sxm in", "docs/settings.md lists the known ones"]),
        ("scm = 5", ["scm in", "write [scm] and its keys below"]),
        ("[scm.shceduler]\nmax_running = 1", ["unknown setting scm.shceduler in", "mean scm.scheduler?"]),
        ("[scm.scheduler]\nMAX_RUNNING = 1", ["unknown setting scm.scheduler.MAX_RUNNING in"]),
        ("scheduler_max_running = 1\n[scm.scheduler]\nmax_running = 1", ["are the same setting; keep one"]),
        ("sensor_interval_seconds = 1\n[scm.scheduler]\nscan_interval_seconds = 1", ["are the same setting"]),
        ("[scm.worker]\nlease_seconds = true", ["scm.worker.lease_seconds in", "true and false"]),
        ("[scm.gitlab.instances.a]\nurl = 'x'", ["[scm.gitlab.instances] in", "[[gitlab]]"]),
        ("[scm.gitlab]\nrate_limit_enabled = true", ["rate_limit_enabled in", "POSTGRES_RATE_LIMIT_ENABLED"]),
        ("[scm.worker]\npools = 5", ["write [scm.worker.pools.<name>]"]),
        ("[scm.worker.pools.a]\nparalelism = 2", ["scm.worker.pools.a.paralelism in", "parallelism?"]),
        ("worker_job_type_allowlist = 5", ["worker_job_type_allowlist in", "write a list of texts"]),
        ("worker_tenant_allowlist = ['a', ' ']", ["worker_tenant_allowlist in", "is empty"]),
        ("asset_owners = 'platform, team:x'", ["asset_owners in", "like ann@example.com or team:platform"]),
        ("asset_owners = 'team:'", ["asset_owners in", "like ann@example.com or team:platform"]),
        ("chunk_revisions = 'many'", ["chunk_revisions in", "integer"]),
        ("chunk_revisions = true", ["chunk_revisions in", "true and false"]),
        ("chunk_revisions = {a = 1}", ["chunk_revisions in", "integer"]),
        ("gitlab = 'x'", ["gitlab in", "write [[gitlab]]"]),
        ("[[gitlab]]\ntoken = 'a'", ["[[gitlab]] number 1 in", "url: field required"]),
        ("[[gitlab]]\nurl = 'https://h'\ntokn = 'a'", ["number 1 in", "tokn: unknown key", "token?"]),
        ("[[gitlab]]\nurl = 'https://h'\ntoken = 'a'\ntoken_env = 'B'", ["number 1 in", "one of token"]),
        ("[[gitlab]]\nurl = 'https://h'\n[[gitlab]]\nurl = 'https://H:443/b'", ["h is configured as two"]),
        ("[[gitlab]]\nurl = 'https://h'\nname = 'fleet'", ["number 1 in", "name: fleet is the name of"]),
        ("[[gitlab]]\nurl = 'https://h'\nname = 'Main-EU'", ["name: write at most 32", "like main or"]),
        ("[[gitlab]]\nurl = 'https://h'\nname = 'a__b'", ["name: write at most 32 characters"]),
        (f"[[gitlab]]\nurl = 'https://h'\nname = '{'a' * 33}'", ["name: write at most 32 characters"]),
        (
            "[[gitlab]]\nurl = 'https://h'\nname = 'x'\n[[gitlab]]\nurl = 'https://g'\nname = 'x'",
            ["https://h and https://g have the same name 'x'; give each server a name of its own"],
        ),
        (
            "[[gitlab]]\nurl = 'https://h'\nname = 'x'\n[[svn]]\nurl = 'https://h'\nname = 'x'",
            ["https://h and https://h have the same name 'x'"],
        ),
        ("svn = 'x'", ["svn in", "write [[svn]]"]),
        ("[[svn]]\nurl = 'https://h'", ["[[svn]] number 1 in", "name: field required"]),
        ("[[svn]]\nurl = 'https://h/repos'\nname = 'x'", ["url: write the server only"]),
        ("[[svn]]\nurl = 'https://h'\nname = 'x'\nnmae = 'y'", ["nmae: unknown key", "name?"]),
        (
            "[[svn]]\nurl = 'svn://h'\nname = 'x'\n[[svn]]\nurl = 'https://H:443'\nname = 'y'",
            ["h has two [[svn]] tables; keep one of them"],
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, parts: list[str], folder: Path) -> None:
    path = config(folder, text)
    message = refusal()
    for part in parts if "two GitLab" in message else [str(path), *parts]:
        assert part in message


def test_a_file_that_is_not_utf8_is_refused_with_the_line(folder: Path) -> None:
    (folder / "sync_pipeline.toml").write_bytes(b"# fine\nonly = '\xff'\n")
    assert "line 2 is not UTF-8" in refusal()


def test_no_refusal_repeats_a_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, f"svn_password = ['{SECRET}']\ndatabase_url = ['postgresql://u:{SECRET}@h/d']")
    message = "".join(refusals())
    assert SECRET not in message
    assert "database_url" in message


def test_the_text_of_the_settings_holds_no_secret(folder: Path) -> None:
    config(folder, f"[[gitlab]]\nurl = 'https://two'\ntoken = '{SECRET}'")
    loaded = load_settings(
        svn_password=SECRET,
        database_url=f"postgresql://u:{SECRET}@h/d",
        gitlab_url="https://one",
        gitlab_token=SECRET,
    )
    assert [server.token() for server in loaded.gitlab_servers()] == [SECRET, SECRET]
    assert SECRET not in repr(loaded) + repr(loaded.gitlab_servers())


# GitLab servers -----------------------------------------------------------------------------------------


def test_there_is_no_gitlab_unless_one_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", SECRET)  # of another tool: it is sent nowhere
    assert load_settings().gitlab_servers() == ()


def test_a_server_has_the_name_that_it_was_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(
        folder,
        """
        [[gitlab]]
        url = "https://two:8443/code"
        name = "eu"
        [[svn]]
        url = "svn+ssh://two:22"
        name = "old_2"
        [[svn]]
        url = "file:///"
        name = "files"
        """,
    )
    monkeypatch.setenv("SCM_GITLAB_URL", "https://one")
    monkeypatch.setenv("SCM_GITLAB_NAME", "main")
    loaded = load_settings()
    names = [loaded.server_name(Kind.GITLAB, instance) for instance in ("one", "two:8443", "two", "local")]
    assert names == ["main", "eu", "", ""]
    assert [loaded.server_name(Kind.SVN, instance) for instance in ("two", "local", "one")] == [
        "old_2",
        "files",
        "",
    ]


def test_each_server_has_its_own_token_and_authorities(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "all.pem").touch()
    (folder / "four.pem").touch()
    (folder / "third").write_text(" three\n")
    config(
        folder,
        f"""
        ca_file = "{folder}/all.pem"
        gitlab_url = "HTTPS://One.example.com:443/code/api/v4/"
        [[gitlab]]
        url = "http://two:8080"
        token_env = "TWO"
        [[gitlab]]
        url = "https://three"
        token_file = "third"
        [[gitlab]]
        url = "https://four/"
        token = "four"
        ca_file = "{folder}/four.pem"
        """,
    )
    monkeypatch.setenv("GITLAB_TOKEN", " one\r\n")
    monkeypatch.setenv("GITLAB_PRIVATE_TOKEN", "not this one")
    monkeypatch.setenv("TWO", "two")
    servers = load_settings().gitlab_servers()
    assert [(server.url, server.token(), server.ca_file and server.ca_file.name) for server in servers] == [
        ("https://one.example.com/code", "one", "all.pem"),
        ("http://two:8080", "two", "all.pem"),
        ("https://three", "three", "all.pem"),
        ("https://four", "four", "four.pem"),
    ]


def test_a_rotated_token_is_used_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, "[[gitlab]]\nurl = 'https://two'\ntoken_env = 'TWO'")
    monkeypatch.setenv("GITLAB_TOKEN", "of another tool")  # does not go with a token file
    one, two = load_settings(gitlab_url="https://one", gitlab_token_file="token").gitlab_servers()
    for text in ("first", "second"):
        (folder / "token").write_text(f"{text}\n")
        monkeypatch.setenv("TWO", text)
        assert (one.token(), two.token()) == (text, text)
    for bad in (f"{SECRET} {SECRET}", f"{SECRET}\u00e9", ""):
        (folder / "token").write_text(bad)
        monkeypatch.setenv("TWO", bad)
        for server, name in ((one, "token"), (two, "TWO")):
            with pytest.raises(ConfigurationError, match=name) as caught:
                server.token()
            assert SECRET not in str(caught.value)
    (folder / "token").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        one.token()


@pytest.mark.parametrize("name", ["SCM_GITLAB_TOKEN", "GITLAB_TOKEN", "GITLAB_PRIVATE_TOKEN"])
@pytest.mark.parametrize("bad", [f"{SECRET} {SECRET}", f"{SECRET}\u00e9", f"{SECRET}\n{SECRET}"])
def test_what_cannot_be_a_token_is_refused_unseen(
    name: str, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, bad)
    message = refusal()
    assert message.startswith(f"{name}: the token holds a blank")
    assert SECRET not in message


@pytest.mark.parametrize(
    "text",
    [
        f"gitlab_url = 'https://u:{SECRET}@h'",
        f"gitlab_url = 'https://u:12/{SECRET}@h'",
        f"gitlab_url = 'https://u:{SECRET}/x@h'",
        f"gitlab_token = ['{SECRET}']",
        f"gitlab_token = '{SECRET}'\ngitlab_token_file = 'f'",
        f"gitlab = '{SECRET}'",
        f"[gitlab]\ntoken = '{SECRET}'",
        f"[[gitlab]]\ntoken = '{SECRET}'",
        f"[[gitlab]]\nurl = 'https://h'\ntoken = '{SECRET}'\nca_file = 'none.pem'",
        f"[[gitlab]]\nurl = 'https://u:{SECRET}@h'",
        f"[[gitlab]]\nurl = 'https://h'\ntoken = '{SECRET}'\ntoken_file = 'f'",
    ],
)
def test_no_refusal_of_a_server_repeats_its_token(text: str, folder: Path) -> None:
    config(folder, text)
    assert SECRET not in "".join(refusals())


def test_what_set_has_set_is_of_the_command_line_even_when_it_is_empty(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(folder, "only = 'gitlab:1'")
    monkeypatch.setenv("SCM_SET", "only,chunk_rows")
    monkeypatch.setenv("SCM_ONLY", "")
    monkeypatch.setenv("SCM_CHUNK_ROWS", "x")
    assert refusal().startswith("--set chunk_rows: ")
    monkeypatch.setenv("SCM_CHUNK_ROWS", "5")
    loaded, found = explained_settings()
    assert (loaded.only, found["only"].origin) == ("", Origin.COMMAND_LINE)


def test_a_wrong_override_is_named_as_the_option() -> None:
    assert refusal(chunk_revisions="x").startswith("--chunk-revisions: ")
    assert "did you mean chunk_revisions?" in refusal(chunk_revision=1)


def test_the_state_folder_is_absolute(folder: Path) -> None:
    assert load_settings().state_dir == folder / ".state"
    assert load_settings(state_dir="/srv/state").catalog_file == Path("/srv/state/catalog.json")


def test_the_generated_page_is_current() -> None:
    written = Path(__file__).parent.parent / "docs" / "settings.md"
    assert written.read_text() == settings_page.document(), "run: ./dev generate"


def test_an_earlier_name_is_accepted_with_a_line_that_names_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = config(folder, "deletion_after = 4\n[scm.svn]\ninfo_timeout = 7")
    monkeypatch.setenv("SCM_VANISHED_LOOKS", "5")
    given._warn.cache_clear()
    for _ in range(2):
        loaded = load_settings()
    assert (loaded.reconcile.deletion_after_seconds, loaded.discovery.missing_confirmations) == (4, 5)
    assert loaded.svn.info_timeout_seconds == 7
    assert sorted(caplog.messages) == [
        "SCM_VANISHED_LOOKS has a new name: missing_confirmations, variable SCM_MISSING_CONFIRMATIONS",
        f"deletion_after in {path} has a new name: deletion_after_seconds, "
        "variable SCM_DELETION_AFTER_SECONDS",
        f"scm.svn.info_timeout in {path} has a new name: svn_info_timeout_seconds, "
        "variable SCM_SVN_INFO_TIMEOUT_SECONDS",
    ]
    # A child process leaves it to its parent.
    caplog.clear()
    given._warn.cache_clear()
    monkeypatch.setenv(given.RENAMED_LOGGED, "1")
    assert load_settings().discovery.missing_confirmations == 5
    assert caplog.messages == []
    monkeypatch.setenv("SCM_VANISHED_LOOKS", "none")
    assert refusal().startswith("SCM_VANISHED_LOOKS: input should be a valid integer")
    monkeypatch.setenv("SCM_MISSING_CONFIRMATIONS", "6")  # the new name goes first
    monkeypatch.delenv(given.RENAMED_LOGGED)
    for _ in range(2):
        assert load_settings().discovery.missing_confirmations == 6
    assert "SCM_VANISHED_LOOKS is ignored, because SCM_MISSING_CONFIRMATIONS is set as well; remove it" in (
        caplog.messages
    )
    assert len([line for line in caplog.messages if "is ignored" in line]) == 1


def test_every_earlier_name_stands_for_a_setting() -> None:
    assert set(given.RENAMED.values()) <= set(FIELDS)
    assert not set(given.RENAMED) & set(map(given.variable_of, FIELDS))


def test_settings_are_copied_by_flat_name() -> None:
    copy = Settings(chunk_rows=5).model_copy(update={"cb_enabled": False, "only": "gitlab:1"})
    assert (copy.chunks.rows, copy.breaker.enabled, copy.only) == (5, False, "gitlab:1")
    assert copy.switched_off.keys() == {"cb_enabled"}
    with pytest.raises(KeyError):
        copy.model_copy(update={"breaker": None})
    with pytest.raises(ValueError, match="chunk_row"):
        Settings(chunk_row=5)


@pytest.mark.parametrize(
    "bad",
    [
        "gitlab.example.com",
        "ftp://host",
        "https://",
        "https://me:secret1@host",
        "https://h/?a=b",
        "https://h:99999",
    ],
)
def test_a_bad_address_of_a_gitlab_is_refused_without_its_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setenv("SCM_GITLAB_URL", bad)
    line = refusal()
    assert line.startswith("SCM_GITLAB_URL: ")
    assert "secret1" not in line
