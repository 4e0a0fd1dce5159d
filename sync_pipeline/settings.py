"""Every setting of the program: name, type, default, unit.

Belongs here: the model, where values come from, and the refusal of unknown names. Precedence: command line,
environment (``SCM_<NAME>``), TOML file (``SCM_CONFIG``), default. ``docs/settings.md`` is generated from it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """All settings. Durations are seconds, sizes are bytes, unless the description says otherwise."""

    model_config = SettingsConfigDict(env_prefix="SCM_", extra="forbid", frozen=True)

    database_url: str = Field("", description="PostgreSQL URL; empty starts the embedded server.")
    dagster_database_url: str = Field("", description="PostgreSQL URL of Dagster's own tables; empty: schema dagster of the same database.")
    environment: str = Field("development", description="Must match the marker row of the database.")
    state_dir: Path = Field(Path(".state"), description="Folder for the embedded server, DAGSTER_HOME and the catalog snapshot.")
    only: str = Field("", description="Load this one repository specification only (for CI).")

    svn_username: str = Field("", description="User name for every SVN server.")
    svn_password: SecretStr = Field(SecretStr(""), description="Password for every SVN server.")
    svn_info_timeout: float = Field(60.0, gt=0, description="Wall clock limit of svn info.")
    svn_log_timeout: float = Field(300.0, gt=0, description="Wall clock limit of svn log for one window.")
    svn_timeout: float = Field(120.0, gt=0, description="Wall clock limit of every other svn command.")
    svn_max_answer_bytes: int = Field(2 * 1024**3, gt=0, description="Largest answer of one svn command; a larger one halves the window.")
    svn_ca_file: Path | None = Field(None, description="PEM file with the certificate authorities of private servers.")
    svn_trust_failures: str = Field("", description="Certificate failures to accept, as svn names them: unknown-ca,cn-mismatch,expired,not-yet-valid,other.")

    chunk_revisions: int = Field(1000, ge=1, le=100_000, description="Revisions of a chunk.")
    fingerprint_revisions: int = Field(5, ge=1, le=100, description="Stored revisions compared with the source at every visit.")
    sweep_recent_revisions: int = Field(100, ge=0, description="Newest revisions re-read by each sweep for edited properties.")
    sweep_interval: float = Field(3600.0, gt=0, description="Shortest time between two sweeps of a repository.")
    job_max_attempts: int = Field(3, ge=1, description="Attempts at a job before it is dead.")
    claim_length: float = Field(300.0, gt=0, description="Length of the claim on a job.")
    claim_renew: float = Field(60.0, gt=0, description="How often the claim is renewed.")
    lease_length: float = Field(60.0, gt=0, description="Length of the lease of a (repository, job type).")
    lease_renew: float = Field(15.0, gt=0, description="How often the lease is renewed.")
    wait_limit: float = Field(600.0, ge=0, description="Longest wait for a lease or a job that somebody else holds.")
    parallel_repositories: int = Field(4, ge=1, le=64, description="Repositories synced side by side in one run.")

    sync_interval: float = Field(300.0, gt=0, description="A repository is due when its last visit is older.")
    max_jobs_per_tick: int = Field(100, ge=1, description="Jobs that one scheduler tick may start.")
    max_queued_runs: int = Field(10, ge=1, description="The scheduler holds back while so many Dagster runs wait.")
    changes_per_tick: int = Field(20, ge=1, description="SVN repositories that one tick of the changes sensor looks at.")
    changes_time_limit: float = Field(3.0, gt=0, description="Wall clock limit of one tick of the changes sensor.")
    stale_after: float = Field(3600.0, gt=0, description="The health check fails when freshness is older.")
