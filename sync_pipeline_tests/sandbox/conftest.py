"""The demo as a newcomer runs it: a real process, a database and a state folder of its own.

Belongs here: what the tests of the demo and of its data share. The demo takes seconds, so it runs once for
all tests of a process that only read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from sync_pipeline_tests.conftest import ENVIRONMENT, database_of
from sync_pipeline_tests.warm import Process, Starter

_MODULE = "sync_pipeline_sandbox.demo"


@dataclass
class Demo:
    """A place for demos, and what the first of them printed."""

    folder: Path
    url: str
    warm: Starter
    first: subprocess.CompletedProcess[str] | None = None

    def run(self) -> subprocess.CompletedProcess[str]:
        """``./dev demo --json``, to its end."""
        return self.warm.run(_MODULE, "--json", env=self._environment, cwd=self.folder, timeout=300)

    def start(self) -> Process:
        """``./dev demo``, whose output nobody reads."""
        with Path(os.devnull).open("w") as nowhere:
            return self.warm.start(
                _MODULE,
                env=self._environment,
                cwd=self.folder,
                stdout=nowhere.fileno(),
                stderr=nowhere.fileno(),
            )

    @property
    def address_file(self) -> Path:
        """The file that says how far the mock GitLab has come."""
        return self.folder / "state" / "samples" / "gitlab.json"

    @property
    def has_changed(self) -> bool:
        """Whether the sources have changed after the first sync."""
        return self.address_file.exists() and bool(json.loads(self.address_file.read_text())["changed"])

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as conn:
            return conn.execute(query.encode()).fetchall()

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SCM_DATABASE_URL": self.url,
            "SCM_ENVIRONMENT": ENVIRONMENT,
            "SCM_STATE_DIR": str(self.folder / "state"),
        }


@contextlib.contextmanager
def folder_for_demos(server_url: str, template: str, folder: Path, warm: Starter) -> Iterator[Demo]:
    """A place in which no demo has run."""
    name = sql.Identifier(f"scm_test_{secrets.token_hex(6)}")
    with psycopg.connect(server_url, autocommit=True) as conn:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        conn.execute(copy.format(name, sql.Identifier(template)))
        try:
            yield Demo(folder, database_of(server_url, name.as_string().strip('"')), warm)
        finally:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="session")
def demo(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory, warm: Starter
) -> Iterator[Demo]:
    """A place in which one demo has run. Tests only read it, or run a demo that changes no row."""
    with folder_for_demos(server_url, template, tmp_path_factory.mktemp("demo"), warm) as made:
        made.first = made.run()
        yield made
