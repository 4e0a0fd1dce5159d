"""The server as a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from sync_pipeline_sandbox.gitlab import GitLab, GitRepository, Server

COMMAND = [sys.executable, "-m", "sync_pipeline_sandbox.gitlab"]
HERE = Path(__file__).resolve().parents[3]


def test_it_serves_a_repository_until_it_is_ended(tmp_path: Path) -> None:
    GitRepository.create(tmp_path / "app.git").commit("main", "First\n")
    command = [*COMMAND, "--repository", str(tmp_path / "app.git"), "--generate", "5", "--prefix", "/gitlab"]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            match = re.fullmatch(r"API (\S+)  token (\S+)\n", lines[2])
            assert match is not None, lines
            sent = {"PRIVATE-TOKEN": match[2]}
            rows = requests.get(f"{match[1]}/projects", headers=sent, timeout=120).json()
            assert {row["path_with_namespace"] for row in rows} == {"team1/large", "team1/app"}
            at = f"{match[1]}/projects/team1%2Fapp/repository/commits"
            assert requests.get(at, headers=sent, timeout=120).json()[0]["title"] == "First"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_it_serves_with_a_certificate_that_signs_itself(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there to make a certificate")
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made += ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    gitlab = GitLab()
    sent = {"PRIVATE-TOKEN": gitlab.token(gitlab.user("user1")).secret}
    with Server(gitlab, certificate=certificate, key=key) as server:
        assert server.url.startswith("https://")
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(f"{server.api}/version", headers=sent, timeout=120)
        answer = requests.get(f"{server.api}/version", headers=sent, timeout=120, verify=certificate)
        assert answer.status_code == 200


def test_a_folder_that_is_no_repository_is_one_line(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [*COMMAND, "--repository", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("sandbox: this is not a git repository: ")
    assert len(done.stderr.splitlines()) == 1
