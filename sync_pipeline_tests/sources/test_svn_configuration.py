"""Private configuration folders of svn: what they hold, and that none stays behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.sources.svn import Client, configuration
from sync_pipeline.sources.svn.client import ClientError
from sync_pipeline_tests.sources.gitlab.servers import overheard

_HOLDS_ONE = """
import sys
from sync_pipeline.sources.svn.configuration import PrivateFolder
folder = PrivateFolder(None, None)
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, of this process and of those that it starts."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def _holder() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_process_that_is_killed_leaves_its_folder_to_the_next_one(place: Path) -> None:
    killed, left = _holder()
    alive, used = _holder()
    with killed, alive:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        old = time.time() - 3600
        for folder in (left, used):
            assert folder.is_dir()
            os.utime(folder, (old, old))
        own = configuration.PrivateFolder(None, None)
        assert not left.exists()
        assert used.is_dir()
        own.remove()
        alive.communicate()
    assert not own.path.exists()


def test_a_folder_that_was_just_made_or_has_no_lock_is_left_alone(place: Path) -> None:
    """Another process is about to lock the first. The second may be one of an earlier version."""
    new, foreign = place / "svn-config-new", place / "svn-config-foreign"
    for folder in (new, foreign):
        folder.mkdir()
    (new / "lock").touch()
    os.utime(foreign, (0, 0))
    configuration.PrivateFolder(None, None).remove()
    assert new.is_dir()
    assert foreign.is_dir()


def test_a_client_leaves_nothing_behind(place: Path, fake_svn: Callable[[str], str]) -> None:
    client = Client(svn_command=fake_svn("exit 1"))
    with pytest.raises(ClientError):
        client.info2("http://svn.example.test/x")
    assert len(list(place.glob("svn-config-*"))) == 1
    del client
    gc.collect()
    assert list(place.glob("svn-config-*")) == []


def test_a_web_server_is_reached_through_the_proxy_of_the_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overheard() as (port, heard):
        monkeypatch.setenv("HTTP_PROXY", f"http://jo:s3cret@127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "other.example.test")
        client = Client(timeout=20)
        with pytest.raises(ClientError):
            client.info2("http://svn.example.test/repo")
        assert heard[0].startswith(b"OPTIONS http://svn.example.test/repo HTTP/1.1")
        heard.clear()
        with pytest.raises(ClientError):
            client.info2("http://other.example.test/repo")
        assert heard == []


def test_the_login_of_a_proxy_is_on_no_command_line(
    place: Path, fake_svn: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_bytes = place / "first_bytes"
    monkeypatch.setenv("HTTPS_PROXY", "http://jo:s3%20cret@proxy.example.test:3128")
    command = fake_svn(
        f'echo "$@" > {first_bytes}; env >> {first_bytes}; cat "$3/servers" > {place}/servers; exit 1'
    )
    with pytest.raises(ClientError):
        Client(svn_command=command).info2("https://svn.example.test/x")
    assert "s3" not in first_bytes.read_text().replace("svn.example", "")
    assert (place / "servers").read_text().splitlines()[-4:] == [
        "http-proxy-host = proxy.example.test",
        "http-proxy-port = 3128",
        "http-proxy-username = jo",
        "http-proxy-password = s3 cret",
    ]


@pytest.mark.parametrize("proxy", ["socks5://p:1", "http://", "http://p:x", "http://a%0Ab:c@p:1"])
def test_a_proxy_that_svn_cannot_use_is_an_error_without_its_login(
    place: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigurationError) as caught:
        Client().info2("http://svn.example.test/x")
    assert "HTTP_PROXY" in str(caught.value)
    assert proxy not in str(caught.value)


def test_servers_that_are_no_web_servers_and_a_folder_of_the_user_use_no_proxy(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example.test:3128")
    assert configuration.svn_proxy("svn://svn.example.test/x") is None
    assert configuration.svn_proxy("file:///x") is None
    assert configuration.svn_proxy("http://svn.example.test/x") == "http://proxy.example.test:3128"
    (place / "servers").write_text("[global]\nhttp-proxy-host = proxy\n")
    monkeypatch.setattr(configuration, "SYSTEM", place)
    assert configuration.svn_proxy("http://svn.example.test/x") is None
