"""A script written for pysvn runs on the client, with pysvn's names, arguments and values."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import sync_pipeline.sources.svn.client as pysvn
from sync_pipeline.core.errors import ConfigurationError, WindowTooHard
from sync_pipeline.sources.svn import Client
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_sandbox.svn_samples import growing
from sync_pipeline_tests.svn_fixtures import SvnRepository, SvnServers

Factory = Callable[..., SvnRepository]
DATE = "2020-01-02T03:04:05.500000Z"


def at(number: int) -> pysvn.Revision:
    return pysvn.Revision(pysvn.opt_revision_kind.number, number)


@pytest.fixture
def repository(svn_repository: Factory) -> SvnRepository:
    writer = DumpWriter().revision("dirs", "ann", DATE).directory("trunk").directory("tags")
    writer.node(
        "trunk/a.txt", text=b"one\n\x00\xff", props={b"svn:mime-type": b"text/plain", b"own": b"\xff\x01"}
    )
    writer.revision("change", "bob", DATE).node("trunk/a.txt", "change", text="two\n")
    writer.revision("copy", None, DATE).node("tags/v1", kind="dir", copyfrom=(2, "trunk"))
    writer.revision("gone", "ann", DATE).node("trunk/a.txt", "delete").directory("trunk/sub dir")
    return svn_repository(dump=writer.dump())


def test_a_script_for_pysvn_runs(repository: SvnRepository) -> None:
    client = pysvn.Client()
    client.exception_style = 1
    client.set_interactive(False)
    client.set_auth_cache(False)
    url = repository.url

    logs = client.log(url, discover_changed_paths=True, strict_node_history=False)
    assert [log.revision.number for log in logs] == [4, 3, 2, 1]
    assert logs[1]["author"] is None
    assert logs[1]["message"] == "copy"
    assert logs[1]["date"] == pytest.approx(1577934245.5)
    (copied,) = logs[1]["changed_paths"]
    assert (copied["path"], copied["action"], copied.copyfrom_path) == ("/tags/v1", "A", "/trunk")
    assert copied["copyfrom_revision"].number == 2
    assert copied.kind is pysvn.node_kind.dir
    assert logs[0].revprops["svn:author"] == "ann"
    assert set(logs[0].keys()) >= {"author", "date", "message", "revision", "changed_paths"}
    assert [log.revision.number for log in client.log(url + "/tags/v1", limit=1)] == [3]
    assert client.log(url, at(1), at(2))[0].changed_paths == []

    ((path, info),) = client.info2(url + "/trunk", recurse=False)
    assert (path, info.URL, info.kind) == ("trunk", url + "/trunk", pysvn.node_kind.dir)
    assert (info.repos_root_URL, info.repos_UUID) == (url, repository.uuid)
    assert (info["rev"], info.last_changed_rev, info.last_changed_author) == (at(4), at(4), "ann")
    assert info.lock is None
    assert len(client.info2(url)) == 6

    names = [(entry.repos_path, entry.kind, lock) for entry, lock in client.list(url + "/trunk")]
    assert names == [("/trunk", pysvn.node_kind.dir, None), ("/trunk/sub dir", pysvn.node_kind.dir, None)]
    ((_, _), (entry, _)) = client.list(url + "/trunk", revision=at(2), peg_revision=at(2))
    assert (entry.size, entry.created_rev.number, entry.last_author) == (4, 2, "bob")

    changes = client.diff_summarize(url, at(2), url, at(4))
    assert {(c.path, c.summarize_kind, c.node_kind) for c in changes} >= {
        ("trunk/a.txt", pysvn.diff_summarize_kind.delete, pysvn.node_kind.file),
        ("trunk/sub dir", pysvn.diff_summarize_kind.added, pysvn.node_kind.dir),
    }
    (change,) = client.diff_summarize(url, at(1), url, at(2))
    assert (change.summarize_kind, change.prop_changed) == (pysvn.diff_summarize_kind.modified, False)

    file = url + "/trunk/a.txt"
    assert client.cat(file, at(1), at(1)) == b"one\n\x00\xff"
    assert client.cat(url + "/tags/v1/a.txt") == b"two\n"
    assert client.propget("svn:mime-type", file, at(2), peg_revision=at(2)) == {file: "text/plain"}
    assert client.propget("own", file, at(2), peg_revision=at(2)) == {file: b"\xff\x01"}
    assert client.propget("none", url) == {}
    assert client.revpropget("svn:log", url) == (at(4), "gone")
    assert client.revpropget("svn:author", url, at(3)) == (at(3), None)
    revision, properties = client.revproplist(url, at(3))
    assert (revision.number, properties) == (3, {"svn:date": DATE, "svn:log": "copy"})


def test_an_error_has_subversions_codes(tmp_path: Path) -> None:
    client = pysvn.Client()
    with pytest.raises(pysvn.ClientError) as caught:
        client.info2((tmp_path / "none").as_uri())
    message, errors = caught.value.args
    assert str(caught.value) == message
    assert [code for _, code in errors] == [170013, 180001]


def test_revision_properties_are_exact(svn_repository: Factory) -> None:
    value = b" caf\xe9 \x1b\r\n?\\027 &<> \n\n"
    url = svn_repository(dump=DumpWriter().revision(value, b"J\xf6rg", DATE).dump()).url
    client = pysvn.Client()
    assert client.revprop_bytes("svn:log", url, at(1)) == value
    assert client.revprop_bytes("svn:author", url, at(1)) == b"J\xf6rg"
    assert client.revproplist(url, at(1))[1] == {"svn:log": value, "svn:author": b"J\xf6rg", "svn:date": DATE}


def test_a_repository_with_an_at_sign_reads_everywhere(svn_repository: Factory) -> None:
    dump = DumpWriter().revision("m", "a", DATE).node("x@1", text="x", props={b"p": b"v"}).dump()
    url = svn_repository("r@2", dump).url
    client = pysvn.Client()
    assert client.cat(url + "/x@1") == b"x"
    assert client.revpropget("svn:log", url)[1] == "m"
    assert client.log(url + "/x@1")[0].message == "m"
    assert list(client.propget("p", url + "/x@1").values()) == ["v"]
    assert client.diff_summarize(url, at(0), url, at(1))[0].path == "x@1"
    assert [entry.repos_path for entry, _ in client.list(url)] == ["/", "/x@1"]


def test_merged_revisions_are_left_out_unless_asked_for(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("1", "a", DATE).directory("trunk")
    writer.revision("2", "a", DATE).node("branch", kind="dir", copyfrom=(1, "trunk"))
    writer.revision("3", "a", DATE).node("branch/f", text="x")
    writer.revision("4", "a", DATE)
    writer.node("trunk", "change", kind="dir", props={b"svn:mergeinfo": b"/branch:2-3"})
    writer.node("trunk/f", copyfrom=(3, "branch/f"))
    url = svn_repository(dump=writer.dump()).url
    client = pysvn.Client()
    numbers = [entry.revision.number for entry in client.log(url + "/trunk")]
    assert numbers == [4, 1]
    merged = client.log(url + "/trunk", include_merged_revisions=True, discover_changed_paths=True)
    assert [entry.revision.number for entry in merged] == [4, 3, 2, 1]
    assert [path.path for path in merged[1].changed_paths] == ["/branch/f"]


def test_the_login_callback_is_asked_when_the_server_refuses(
    repository: SvnRepository, svnserve: SvnServers
) -> None:
    url = svnserve(repository, users={"ann": "s3cret"}, anonymous="none").url(repository)
    responses = iter([(True, "ann", "wrong", False), (True, "ann", "s3cret", False)])
    client = pysvn.Client()
    client.callback_get_login = lambda realm, username, may_save: next(responses)
    assert client.info2(url, recurse=False)[0][1].rev.number == 4
    refusing = pysvn.Client()
    refusing.callback_get_login = lambda realm, username, may_save: (False, "", "", False)
    with pytest.raises(pysvn.ClientError):
        refusing.info2(url)


def test_the_certificate_callback_decides(fake_svn: Callable[[str], str]) -> None:
    command = fake_svn(
        'case "$*" in *--trust-server-cert-failures=unknown-ca*) echo ok; exit 0;; esac\n'
        'echo "svn: E230001: untrusted" >&2; exit 1\n'
    )
    asked = []
    client = pysvn.Client(svn_command=command)

    def trust(facts: dict[str, object]) -> tuple[bool, int, bool]:
        asked.append(facts["hostname"])
        return True, 8, False

    client.callback_ssl_server_trust_prompt = trust
    assert client.cat("https://svn.example.org/r/f") == b"ok\n"
    assert asked == ["svn.example.org"]
    with pytest.raises(pysvn.ClientError):
        pysvn.Client(svn_command=command).cat("https://svn.example.org/r/f")


def test_cancel_is_asked_while_svn_runs_and_ends_its_whole_group(fake_svn: Callable[[str], str]) -> None:
    client = pysvn.Client(svn_command=fake_svn("sleep 98 & sleep 98\n"))
    seen: list[int] = []

    def cancel() -> bool:
        seen.extend(p.pid for p in psutil.Process().children(recursive=True) if "98" in p.cmdline())
        return len(set(seen)) >= 2

    client.callback_cancel = cancel
    with pytest.raises(pysvn.ClientError) as caught:
        client.cat("svn://host/r")
    assert caught.value.args[1][0][1] == 200015
    assert_gone(set(seen))


def test_an_interrupt_ends_the_whole_group(fake_svn: Callable[[str], str]) -> None:
    client = pysvn.Client(svn_command=fake_svn("sleep 97 & sleep 97\n"))
    seen: list[int] = []

    def interrupt() -> bool:
        seen.extend(p.pid for p in psutil.Process().children(recursive=True) if "97" in p.cmdline())
        if len(set(seen)) >= 2:
            raise KeyboardInterrupt
        return False

    client.callback_cancel = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.cat("svn://host/r")
    assert_gone(set(seen))


def test_the_limit_ends_the_whole_group(fake_svn: Callable[[str], str], tmp_path: Path) -> None:
    note = tmp_path / "pids"
    client = pysvn.Client(svn_command=fake_svn(f"sleep 96 & echo $! > '{note}'; sleep 96\n"), timeout=0.5)
    with pytest.raises(WindowTooHard) as caught:
        client.cat("svn://host/r")
    assert caught.value.code == "timeout"
    assert_gone({int(note.read_text())})


def assert_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        alive = [
            p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE
        ]
        if not alive:
            return
        time.sleep(0.01)
    pytest.fail(f"still there: {alive}")


def test_an_endless_answer_is_stopped(fake_svn: Callable[[str], str]) -> None:
    client = pysvn.Client(svn_command=fake_svn("exec cat /dev/zero\n"), max_answer_bytes=1_000_000)
    with pytest.raises(WindowTooHard) as caught:
        client.cat("svn://host/r")
    assert caught.value.code == "too_large"


SECRETS = (
    *("SCM_SVN_PASSWORD", "SCM_GITLAB_TOKEN", "SCM_DATABASE_URL", "SCM_DAGSTER_DATABASE_URL"),
    *("PGPASSWORD", "VAULT_TOKEN"),
)


def test_the_command_sees_no_secret_no_terminal_and_its_own_world(
    fake_svn: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("SVN_SSH", "ssh -p 22")
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2 secret")
    (tmp_path / "question").write_text(
        "Authentication realm: <https://svn.example.org:443> Code\nPassword for 'ann': "
    )
    command = fake_svn(
        'tr "\\0" " " < /proc/$$/cmdline; env\n'
        f"case \"$*\" in *--force-interactive*) cat '{tmp_path}/question' >&2; read -r told; esac\n"
        'echo "stdin:$told"\n'
    )
    client = Client(svn_command=command, username="ann", password="hunter2 secret")
    seen = client.cat("https://svn.example.org/r/f").decode()
    head, _, given = seen.partition("stdin:")
    assert "hunter2" not in head
    assert given.startswith("hunter2 secret\n")
    for word in (
        "--force-interactive",
        "--no-auth-cache",
        "--config-dir",
        "--username ann",
    ):
        assert word in head
    for line in ("LC_ALL=C.UTF-8\n", "LANGUAGE=\n", "SSH_ASKPASS_REQUIRE=never\n", "SVN_SSH=false\n"):
        assert line in head
    assert "hunter2" not in repr(client)
    plain = Client(svn_command=command).cat("svn+ssh://svn.example.org/r/f").decode()
    assert "stdin:\n" in plain
    assert "--non-interactive" in plain
    assert "SVN_SSH=ssh -p 22 -o BatchMode=yes\n" in plain
    assert "hunter2" not in plain


def test_no_secret_is_in_the_process_list_of_a_real_command(silent_server: int) -> None:
    client = Client(username="ann", password="hunter2", timeout=20)
    url = f"svn://ann:hunter2@127.0.0.1:{silent_server}/r"
    seen: list[str] = []

    def is_cancelled() -> bool:
        seen.extend(" ".join(p.cmdline()) for p in psutil.Process().children() if p.name() == "svn")
        return any("--username ann" in line for line in seen)

    client.callback_cancel = is_cancelled
    with pytest.raises(pysvn.ClientError) as caught:
        client.info2(url)
    assert not [line for line in seen if "hunter2" in line]
    assert "hunter2" not in str(caught.value.args)


def test_the_private_configuration_goes_with_the_client(repository: SvnRepository, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    client = Client(ca_file=authority)
    client.info2(repository.url, recurse=False)
    folder = Path(client._configuration(repository.url))
    assert f"ssl-authority-files = {authority}" in (folder / "servers").read_text()
    assert not list(folder.glob("auth/*/*"))
    del client
    assert not folder.exists()


def test_a_command_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="install the package subversion"):
        pysvn.Client(svn_command="no-such-svn").info2("file:///x")


def test_a_client_used_from_a_second_thread_refuses(fake_svn: Callable[[str], str], tmp_path: Path) -> None:
    client = pysvn.Client(svn_command=fake_svn(f"cat < '{tmp_path / 'gate'}'\n"))
    os.mkfifo(tmp_path / "gate")
    worker = threading.Thread(target=lambda: client.cat("svn://host/r"))
    worker.start()
    while not client.calls:
        time.sleep(0.001)
    with pytest.raises(pysvn.ClientError, match="another thread"):
        client.cat("svn://host/r")
    (tmp_path / "gate").write_text("x")
    worker.join(60)


def test_open_files_do_not_pile_up(svn_repository: Factory) -> None:
    url = svn_repository(dump=growing(3)).url
    client = pysvn.Client()
    client.log(url)
    before = psutil.Process().num_fds()
    for _ in range(5):
        assert len(list(client.iter_log(url, discover_changed_paths=True))) == 3
    assert psutil.Process().num_fds() <= before
