"""Real Subversion servers that refuse, redirect, break off and answer nonsense: nothing is lost, nothing is
invented, no password goes where it does not belong.

Belongs here: Apache with mod_dav_svn, and what stands between a server and us. How single odd revisions are
read is tested in :mod:`sync_pipeline_tests.sources.test_reader_nasty`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sync_pipeline.core.errors import AccessDenied, Permanent, SourceGone, SyncError, Transient
from sync_pipeline.core.model import (
    Access,
    JobStatus,
    JobType,
    Mode,
    Repository,
    RevisionPage,
    RevisionRow,
    RevisionWindow,
    Visibility,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline.settings import Settings
from sync_pipeline.sources.svn import Client
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers, svn_reader
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_sandbox.svn_samples import growing
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.faults import apache as web
from sync_pipeline_tests.faults.apache import PASSWORD, USER, Apache, Middleman
from sync_pipeline_tests.sources.gitlab.servers import kept_alive
from sync_pipeline_tests.sources.truth import assert_equal
from sync_pipeline_tests.svn_fixtures import SvnRepository, SvnServers, create_repository, free_port

apache = web.apache

DATE = "2020-01-02T03:04:05.678901Z"
SMALL = Settings(chunk_revisions=20, job_max_attempts=9)


class Impatient(Readers):
    """Readers that ask a server once and not again within seconds."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._own = settings

    def svn(self, repo: Repository, cancelled: Callable[[], bool]) -> SvnReader:
        return svn_reader(self._own, repo.svn_root or repo.url, repo.svn_prefix, cancelled, attempts=1)


def syncer(database: Database, settings: Settings) -> Syncer:
    return Syncer(database, settings, Impatient(settings))


def reader_of(url: str, **client: str | Path | list[str]) -> SvnReader:
    return SvnReader(Client(**client), url, "", log_timeout=20, info_timeout=20, attempts=1)  # type: ignore[arg-type]


def rows_of(reader: SvnReader, end: int) -> list[RevisionRow]:
    (batch,) = reader.read(RevisionWindow(1, end))
    return list(batch.rows)


def stored(conn: Connection) -> list[dict[str, object]]:
    """Everything that is known of revisions, but when and by which batch."""
    return conn.execute(
        "SELECT r.rev_num, r.author_raw, r.ts, r.message, r.visibility, r.flags, r.content_hash, p.path_no,"
        "       p.path, p.action, p.kind, p.copyfrom_path, p.copyfrom_rev, p.text_mods, p.prop_mods"
        "  FROM scm.svn_revisions AS r LEFT JOIN scm.svn_changed_paths AS p USING (repo_id, rev_num)"
        " ORDER BY r.rev_num, p.path_no"
    ).fetchall()


def number(conn: Connection, query: str) -> int:
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(next(iter(row.values())))


@pytest.fixture
def code(apache: Apache, tmp_path: Path) -> SvnRepository:
    """A repository of 40 revisions that Apache serves."""
    return apache.repository(tmp_path.name, growing(40, paths=3))


def nasty() -> bytes:
    writer = (
        DumpWriter().revision("m", "dev", DATE).directory("a b").directory("per%20cent").directory("at@2")
    )
    writer.revision("caf\xe9 \u4e16", "J\xfcrgen", DATE).node("a b/\u4e16\u754c#&<>\"'", text="x")
    writer.revision(None, None, None).node("at@2/x@3", text="x")
    writer.revision(b"latin \xe9", "dev", DATE).node("per%20cent/%41", text="x")
    writer.revision("esc \x1b ?\\027 end\r\n", "dev", DATE).node("f", text="x")
    writer.revision("", "", DATE).directory("empty")
    return writer.dump()


# What a healthy server says


@pytest.mark.parametrize("way", ["svn", "http", "https", "login"])
def test_every_kind_of_server_tells_the_same(
    apache: Apache, tmp_path: Path, way: str, svnserve: SvnServers
) -> None:
    """Odd names, missing and broken properties: as they are on disk, over every protocol."""
    if way == "svn":
        repository = create_repository(tmp_path / "nasty").load(nasty())
        reader = reader_of(svnserve(repository).url(repository))
    else:
        repository = apache.repository(f"{tmp_path.name}-nasty", nasty())
        place, scheme = ("login", "http") if way == "login" else ("open", way)
        reader = reader_of(
            apache.url(f"{place}/{repository.path.name}", scheme=scheme),
            username=USER,
            password=PASSWORD,
            ca_file=apache.certificate,
        )
    direct = reader_of(repository.url)
    assert reader.visit().head == direct.visit().head == 6
    for revision in range(1, 7):
        theirs, ours = (_one(one, revision) for one in (reader, direct))
        # A missing message may have been hidden, for all that a network tells.
        assert theirs.visibility is (Visibility.PARTIAL if revision == 3 else Visibility.FULL)
        for field in ("author_raw", "ts", "message", "flags", "raw"):
            assert getattr(theirs, field) == getattr(ours, field), (revision, field)
        assert list(theirs.paths) == list(ours.paths)


def returns() -> bytes:
    """CR and TAB at every place that an XML reader changes, and beside them what looks the same."""
    writer = DumpWriter().revision("plain", "dev", DATE).directory("d")
    writer.node("d/tab\tname", text="x").node("d/tab name", text="x").node("cr\rname", text="x")
    writer.revision("ret\rurn\n", "d\rev", DATE, build_id=b"a\rb\r\nc").node("f", text="x")
    writer.revision("win\r\ndows <&>\r\n", "dev", DATE)
    writer.node("copied", copyfrom=(1, "d/tab\tname")).node("also", copyfrom=(1, "d/tab name"))
    writer.node("returned", copyfrom=(1, "cr\rname"))
    writer.revision("several\nlines", "dev", DATE).node("d/g", text="x")
    writer.revision(b"latin \xe9\r\n", "dev", DATE).node("d/h", text="x")
    writer.revision("both \x01 and\r", "dev", DATE).node("d/i", text="x")
    return writer.dump()


@pytest.mark.parametrize("way", ["http", "https", "login", "digest"])
def test_cr_and_tab_arrive_over_http_and_cost_one_question_more(
    apache: Apache, tmp_path: Path, way: str
) -> None:
    repository = apache.repository(f"{tmp_path.name}-cr", returns())
    place, scheme = (way, "http") if way in ("login", "digest") else ("open", way)
    reader = reader_of(
        apache.url(f"{place}/{repository.path.name}", scheme=scheme),
        username=USER,
        password=PASSWORD,
        ca_file=apache.certificate,
    )
    truth = rows_of(reader_of(repository.url), 7)
    assert [_plain(row) for row in rows_of(reader, 7)] == [_plain(row) for row in truth]
    assert truth[1].message == "ret\rurn\n"
    # The log, the raw one, and a look at the message with a control character.
    assert reader.calls == 3
    assert [_plain(one(reader.read_single(n))) for n in range(1, 7)] == [_plain(row) for row in truth]


def _plain(row: RevisionRow) -> tuple[object, ...]:
    paths = sorted(row.paths)
    return row.rev_num, row.author_raw, row.ts, row.message, row.flags, dict(row.revprops), row.raw, paths


def one(batch: RevisionPage) -> RevisionRow:
    (row,) = batch.rows
    return row


def test_single_lines_over_http_cost_no_question_more(apache: Apache, tmp_path: Path) -> None:
    writer = DumpWriter()
    for number in range(1, 31):
        writer.revision(f"m{number}", "dev", DATE).node(f"f {number}", text="x")
    repository = apache.repository(f"{tmp_path.name}-lines", writer.dump())
    reader = reader_of(apache.url(f"open/{repository.path.name}"))
    assert {row.flags for row in rows_of(reader, 31)} == {()}
    assert reader.calls == 1


def test_where_the_raw_log_cannot_be_had_the_doubt_is_flagged(
    apache: Apache, tmp_path: Path, database: Database
) -> None:
    """An exact row is not overwritten by one in doubt, and one in doubt is when it can be read for sure."""
    repository = apache.repository(f"{tmp_path.name}-doubt", returns())
    url = apache.url(f"open/{repository.path.name}")
    unsure = SMALL.model_copy(update={"svn_trust_failures": "other"})
    messages = "SELECT rev_num, message, flags FROM scm.svn_revisions ORDER BY 1"
    with database.connection() as conn:
        repo = register_source(conn, url)
        assert Syncer(database, unsure).run(request(repo)).succeeded
        doubted = {row["rev_num"]: (row["message"], row["flags"]) for row in conn.execute(messages)}
        assert doubted[1] == ("plain", ["paths_unsure"])
        assert doubted[2] == ("ret\nurn\n", ["line_ends_unsure"])
        assert doubted[3] == ("win\ndows <&>\n", ["line_ends_unsure", "paths_unsure"])
        for settings, updated in ((SMALL, 5), (unsure, 0)):
            window = request(repo, Mode.BACKFILL, window=(1, 7), reread=True)
            counts = Syncer(database, settings).run(window).counts
            assert (counts.updated, counts.regressed) == (updated, 0)
            rows = {row["rev_num"]: (row["message"], row["flags"]) for row in conn.execute(messages)}
            assert (rows[1], rows[2]) == (("plain", []), ("ret\rurn\n", []))


def test_the_login_for_the_raw_log_goes_nowhere_else(apache: Apache) -> None:
    client = Client(username=USER, password=PASSWORD)
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode())
    with _Server(None) as other, _Server(f"http://127.0.0.1:{other.port}/x", asks=False) as front:
        for url in (f"http://localhost:{front.port}/x", apache.url("moved/x")):
            raw = client.raw_log(url)
            assert raw is not None
            assert raw.altered(1, 2) is None
    assert front.heard
    assert secret not in other.heard
    assert client.raw_log("svn://localhost/x") is None


def _one(reader: SvnReader, revision: int) -> RevisionRow:
    try:
        (batch,) = reader.read(RevisionWindow(revision, revision + 1))
    except SyncError:
        batch = reader.read_single(revision)
    (row,) = batch.rows
    return row


def test_a_path_that_apache_cannot_write_down_costs_only_its_own_revision(
    apache: Apache, tmp_path: Path, database: Database
) -> None:
    repository = apache.repository(tmp_path.name, growing(5))
    repository.load(DumpWriter().revision("odd", "dev", DATE).node("odd\x01name", text="x").dump())
    repository.load(DumpWriter().revision("after", "dev", DATE).node("after", text="x").dump())
    with database.connection() as conn:
        repo = register_source(conn, apache.url(f"open/{repository.path.name}"))
        assert Syncer(database, SMALL).run(request(repo)).succeeded
        assert number(conn, "SELECT count(*) FROM scm.svn_revisions") == 7
        assert number(conn, "SELECT count(*) FROM scm.quarantine") == 0
        odd = conn.execute("SELECT message, flags FROM scm.svn_revisions WHERE rev_num = 6").fetchone()
        deferred = conn.execute("SELECT natural_key, detail FROM scm.deferred_fetches").fetchall()
        assert odd == {"message": "odd", "flags": ["changed_paths_unread"]}
        assert deferred == [{"natural_key": "6", "detail": "changed_paths"}]


def test_hidden_and_half_hidden_revisions_are_marked_over_http_too(apache: Apache, tmp_path: Path) -> None:
    writer = DumpWriter().revision("dirs", "dev", DATE).directory("open").directory("secret")
    writer.revision("hidden", "dev", DATE).node("secret/a", text="x")
    writer.revision("half", "dev", DATE).node("secret/b", text="x").node("open/b", text="x")
    writer.revision("seen", "dev", DATE).node("open/c", text="x")
    name = tmp_path.name
    apache.repository(name, writer.dump())
    apache.allow(f"[/]\n* = r\n[{name}:/secret]\n* =\n")
    rows = rows_of(reader_of(apache.url(f"authz/{name}")), 5)
    partial, hidden, full = Visibility.PARTIAL, Visibility.HIDDEN, Visibility.FULL
    assert [row.visibility for row in rows] == [partial, hidden, partial, full]
    assert (rows[1].author_raw, rows[1].ts, rows[1].message, list(rows[1].paths)) == (None, None, None, [])
    assert [p.path for p in rows[2].paths] == ["/open/b"]
    apache.allow(f"[/]\n* =\n[{name}:/open]\n* = r\n")
    with pytest.raises(AccessDenied):
        reader_of(apache.url(f"authz/{name}")).visit()
    with pytest.raises(AccessDenied):
        reader_of(apache.url(f"authz/{name}")).read_single(1)


# Who may, and who is asked


def test_a_certificate_that_nobody_signed_needs_the_bundle(apache: Apache, code: SvnRepository) -> None:
    url = apache.url(f"open/{code.path.name}", scheme="https")
    with pytest.raises(SyncError, match="SCM_CA_FILE") as caught:
        reader_of(url).visit()
    assert caught.value.code == "certificate"
    assert reader_of(url, ca_file=apache.certificate).visit().head == 40
    assert reader_of(url, trust_failures="unknown-ca").visit().head == 40
    # Right authority, wrong name: the bundle is no reason to believe that.
    with pytest.raises(SyncError) as caught:
        reader_of(url.replace("localhost", "127.0.0.1"), ca_file=apache.certificate).visit()
    assert caught.value.code == "certificate"


@pytest.mark.parametrize(
    ("path", "kind", "code_", "line"),
    [
        ("login/{}", AccessDenied, "denied", "SCM_SVN_PASSWORD"),
        ("open/{}-other", SourceGone, "not_found", "check the URL"),
        ("", Transient, "connection", "no Subversion server"),
        ("login-page/{}", Transient, "redirected", "to http://localhost.*/open/.*login or maintenance page"),
        ("circle", Transient, "redirected", "redirects elsewhere"),
        ("stranger", SyncError, "moved", "has moved to http://127.0.0.1.*scm-sync repo relocate"),
    ],
)
def test_a_closed_front_door_is_said_in_one_line(
    apache: Apache, code: SvnRepository, path: str, kind: type[SyncError], code_: str, line: str
) -> None:
    for login in ({}, {"username": USER, "password": "hunter2-wrong"}):
        with pytest.raises(kind, match=line) as caught:
            reader_of(apache.url(path.format(code.path.name)), **login).visit()
        assert caught.value.code == code_
        assert "\n" not in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("login", [{}, {"username": USER, "password": PASSWORD}], ids=["nobody", "ann"])
def test_a_moved_repository_says_where_it_is(
    apache: Apache, code: SvnRepository, database: Database, login: dict[str, str]
) -> None:
    """svn follows a permanent redirect, and the other place answers. That is no visit of what we know."""
    settings = SMALL.model_copy(
        update={
            f"svn_{name}": SecretStr(text) if name == "password" else text for name, text in login.items()
        }
    )
    here, there = (apache.url(f"{place}/{code.path.name}") for place in ("moved", "open"))
    with database.connection() as conn:
        repo_id = register_source(conn, code.path)
        conn.execute("UPDATE scm.repos SET url = %s, svn_root = %s", (here, here))
    report = syncer(database, settings).run(request(repo_id))
    assert (report.job_status, report.error_code) == (JobStatus.FAILED, "moved")
    assert report.error is not None
    assert f"{here} has moved to {there}; " in report.error
    with database.connection() as conn:
        found = watermarks.get(conn, repo_id, JobType.REVISIONS)
        assert (found.access, found.access_detail) == (Access.MOVED, report.error)
        assert stored(conn) == []


@pytest.mark.parametrize("how", ["port", "host", "plain", "path"])
def test_a_redirect_gets_the_password_only_where_it_is_for(apache: Apache, how: str) -> None:
    """Servers at both ends write down what they are told. The first one asks for the login and redirects only
    whoever has it; so does the second."""
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode())
    with ExitStack() as stack:
        target = stack.enter_context(_Server(None))
        hosts = {"host": "127.0.0.1"}
        to = f"http://{hosts.get(how, 'localhost')}:{target.port}/there"
        tls = apache if how == "plain" else None
        first = stack.enter_context(_Server("/there" if how == "path" else to, tls=tls))
        url = f"{'https' if tls else 'http'}://localhost:{first.port}/here"
        login: dict[str, Any] = {"username": USER, "password": PASSWORD, "ca_file": apache.certificate}
        with pytest.raises(SyncError) as caught:
            reader_of(url, **login).visit()
        assert secret in first.heard
        assert secret not in target.heard
        if how == "path":
            # The login is right, so the server asks for it there as well, and gets it.
            assert b" /there" in first.heard
            return
        assert b" /there" in target.heard
        assert caught.value.code == "moved"
        assert f"has moved to {to.removesuffix('/there')}" in str(caught.value)
        with pytest.raises(SyncError):
            reader_of(url, **login, aliases=[to.removesuffix("/there")]).visit()
        assert secret in target.heard


def test_a_web_server_cannot_send_svn_to_files_tunnels_and_other_protocols(
    apache: Apache, code: SvnRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ntouch '{tmp_path}/called'\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("SVN_SSH", str(tmp_path / "ssh"))
    for to in (code.url, "svn+ssh://localhost/r", f"svn://localhost:{apache.stranger}/r"):
        with _Server(to, asks=False) as server:
            url = f"http://localhost:{server.port}/here"
            with pytest.raises(SyncError, match="has moved to") as caught:
                reader_of(url, username=USER, password=PASSWORD).visit()
        assert caught.value.code == "moved"
    assert not (tmp_path / "called").exists()


def test_an_alias_of_the_server_is_followed(apache: Apache, code: SvnRepository) -> None:
    """The server answers under another host name, with the login; the repository keeps its address."""
    to = f"http://127.0.0.1:{apache.http}/login/{code.path.name}"
    with _Server(to, asks=False) as server:
        url = f"http://localhost:{server.port}/login/{code.path.name}"
        login = {"username": USER, "password": PASSWORD}
        with pytest.raises(SyncError, match=f"has moved to http://127.0.0.1:{apache.http}"):
            reader_of(url, **login).visit()
        reader = reader_of(url, **login, aliases=[f"http://127.0.0.1:{apache.http}"])
        visit = reader.visit()
        assert (visit.root, visit.head) == (url, 40)
        assert len(rows_of(reader, 41)) == 40


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_alias_that_is_down_is_no_move(scheme: str) -> None:
    to = f"{scheme}://127.0.0.1:{free_port()}"
    with _Server(f"{to}/here", asks=False) as server:
        url = f"http://ann@localhost:{server.port}"
        with pytest.raises(Transient, match="cannot reach") as caught:
            reader_of(f"{url}/here", aliases=[to]).visit()
        assert caught.value.code == "connection"
        for here, aliases in ((f"{url}/here", []), (f"{url}/other", [to])):
            with pytest.raises(Permanent, match=f"has moved to {to}/here"):
                reader_of(here, aliases=aliases).visit()


@pytest.mark.parametrize(
    ("words", "code_"),
    [
        ("see http://help.example/svn", "connection"),
        ("E170013: Unable to connect to a repository at URL 'http://help.example/x'", "connection"),
        ("no\nsvn: E170013: Unable to connect to a repository at URL 'http://help.example/x'", "connection"),
        ("no\nsvn: E170011: Repository moved permanently to 'http://help.example/x'", "redirected"),
    ],
)
def test_an_address_in_the_words_of_a_server_is_no_move(words: str, code_: str) -> None:
    namespaces = 'xmlns:D="DAV:" xmlns:m="http://apache.org/dav/xmlns"'
    text = f'<m:human-readable errcode="175002">{words}</m:human-readable>'
    body = f'<?xml version="1.0"?><D:error {namespaces}>{text}</D:error>'.encode()
    head = f'HTTP/1.1 500 X\r\nContent-Type: text/xml; charset="utf-8"\r\nContent-Length: {len(body)}\r\n\r\n'

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(head.encode() + body)

    with kept_alive(talk) as url, pytest.raises(Transient) as caught:
        reader_of(f"{url}/here").visit()
    assert caught.value.code == code_
    assert "help.example" not in str(caught.value)


def test_a_certificate_is_accepted_for_its_own_server_only(apache: Apache, code: SvnRepository) -> None:
    url = apache.url(f"login/{code.path.name}", scheme="https")
    login = {"username": USER, "password": PASSWORD}
    assert reader_of(url, **login, trust_failures="unknown-ca").visit().head == 40
    for refused in ({}, {"trust_failures": "expired"}):
        with pytest.raises(SyncError, match="SCM_CA_FILE") as caught:
            reader_of(url, **login, **refused).visit()
        assert caught.value.code == "certificate"
    with pytest.raises(SyncError) as caught:
        reader_of(url.replace("localhost", "127.0.0.1"), **login, trust_failures="unknown-ca").visit()
    assert caught.value.code == "certificate"
    with _Server(url, asks=False) as server:
        here = f"http://localhost:{server.port}/login/{code.path.name}"
        with pytest.raises(SyncError) as caught:
            reader_of(here, **login, trust_failures="unknown-ca").visit()
    assert caught.value.code == "moved"


class _Server:
    """A web server that writes down what it is told. It asks for a login and redirects whoever shows one to
    ``to``; without ``to`` it goes on asking."""

    def __init__(self, to: str | None, *, asks: bool = True, tls: Apache | None = None) -> None:
        self.heard = b""
        self._to, self._asks = to, asks
        self._listener: socket.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.root / "key.pem")
            self._listener = context.wrap_socket(self._listener, server_side=True)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> _Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except ssl.SSLError:
                continue
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                asked = client.recv(1 << 16)
                self.heard += asked
                status, header = "401 Unauthorized", 'WWW-Authenticate: Basic realm="Code > x: "'
                if self._to is not None and (not self._asks or b"Authorization:" in asked):
                    status, header = "301 Moved Permanently", f"Location: {self._to}"
                end = "Content-Length: 0\r\nConnection: close\r\n\r\n"
                client.sendall(f"HTTP/1.1 {status}\r\n{header}\r\n{end}".encode())


# Servers and what stands in front of them, while they work


def _page(status: str, body: bytes = b"<html>Please log in.</html>") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


FAULTS: list[tuple[str, str, bytes, int]] = [
    ("a login page", "answer", _page("200 OK"), 0),
    ("not found", "answer", _page("404 Not Found"), 0),
    ("method refused", "answer", _page("405 Method Not Allowed"), 0),
    ("too many", "answer", _page("429 Too Many Requests"), 0),
    ("an error", "answer", _page("500 Internal Server Error"), 0),
    ("a gateway", "answer", _page("504 Gateway Timeout"), 0),
    ("an empty log", "answer", _page("200 OK", b"<S:log-report xmlns:S='svn:'/>"), 0),
    ("broken off", "cut", b"", 60),
    ("a reset", "reset", b"", 0),
    ("silence", "stall", b"", 0),
]


@pytest.mark.parametrize(
    ("server", "fault", "page", "after"),
    [
        pytest.param(server, *how, id=f"{name} ({server})")
        for name, *how in FAULTS
        for server in ("http", "svn")
        # A page is what a web server answers.
        if server == "http" or how[0] != "answer"
    ],
)
def test_an_answer_that_is_none_is_no_answer(
    apache: Apache,
    code: SvnRepository,
    svnserve: SvnServers,
    database: Database,
    server: str,
    fault: str,
    page: bytes,
    after: int,
) -> None:
    """The front door is open, but questions for the log are not answered: nothing is stored, set aside or
    covered, no attempt after the fault is gone is in vain, and then everything is there."""
    upstream, path = apache.http, f"open/{code.path.name}"
    if server == "svn":
        serving = svnserve(code)
        upstream, path = serving.port, code.path.name
    with Middleman(upstream, fault, page, after) as between, database.connection() as conn:
        url = f"{server}://localhost:{between.port}/{path}"
        repo = register_source(conn, url)
        impatient = SMALL.model_copy(update={"svn_log_timeout_seconds": 0.4 if fault == "stall" else 20.0})
        report = syncer(database, impatient).run(request(repo))
        assert report.job_status is JobStatus.FAILED, report
        assert "\n" not in (report.error or "")
        assert report.counts.read == 0
        assert number(conn, "SELECT count(*) FROM scm.svn_revisions") == 0
        assert number(conn, "SELECT count(*) FROM scm.quarantine") == 0
        assert number(conn, "SELECT count(*) FROM scm.deferred_fetches") == 0
        assert number(conn, "SELECT count(*) FROM scm.sync_watermarks WHERE isempty(covered_revs)") == 1
        assert between.logs < 60
        between.fault = ""
        assert syncer(database, SMALL).run(request(repo)).counts.inserted == 40
        assert integrity_checks.failures(conn) == {}
    assert_equal(rows_of(reader_of(code.url), 41), code)
    with database.connection() as conn:
        assert [row["rev_num"] for row in stored(conn) if row["path_no"] == 1] == list(range(1, 41))


@pytest.mark.parametrize("server", ["http", "svn"])
def test_a_server_whose_long_answers_break_off_is_read_in_short_ones(
    apache: Apache,
    code: SvnRepository,
    svnserve: SvnServers,
    database: Database,
    server: str,
) -> None:
    """What a proxy with a time limit does, or a server that cannot hold a large log."""
    upstream, path = apache.http, f"open/{code.path.name}"
    if server == "svn":
        serving = svnserve(code)
        upstream, path = serving.port, code.path.name
    with Middleman(upstream, "cut", b"", 4000) as between, database.connection() as conn:
        repo = register_source(conn, f"{server}://localhost:{between.port}/{path}")
        report = syncer(database, Settings(chunk_revisions=40)).run(request(repo))
        assert (report.succeeded, report.counts.inserted) == (True, 40), report
        assert number(conn, "SELECT count(*) FROM scm.deferred_fetches") == 0


@pytest.mark.parametrize("server", ["http", "svn"])
def test_a_link_on_which_long_answers_stall_is_read_in_short_ones(
    apache: Apache,
    code: SvnRepository,
    svnserve: SvnServers,
    database: Database,
    server: str,
) -> None:
    """A job gets through to answers that are short enough, and asks for no longer ones again."""
    upstream, path = apache.http, f"open/{code.path.name}"
    if server == "svn":
        serving = svnserve(code)
        upstream, path = serving.port, code.path.name
    with Middleman(upstream, "stall", b"", 3000) as between, database.connection() as conn:
        repo = register_source(conn, f"{server}://localhost:{between.port}/{path}")
        weak = Settings(chunk_revisions=1000, svn_log_timeout_seconds=1.0)
        report = syncer(database, weak).run(request(repo))
        assert (report.succeeded, report.counts.inserted) == (True, 40), report
        assert report.traffic.timeouts <= 6
        assert number(conn, "SELECT count(*) FROM scm.deferred_fetches") == 0


def test_a_message_without_an_end_meets_the_limit_of_memory(
    apache: Apache, code: SvnRepository, database: Database
) -> None:
    """svn keeps a whole message in memory before it writes any of it. Nothing is stored or set aside, because
    no revision can be read; afterwards everything comes."""
    begin = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nConnection: close\r\n\r\n"
        b'<S:log-report xmlns:S="svn:" xmlns:D="DAV:"><S:log-item>'
        b"<D:version-name>1</D:version-name><D:comment>"
    )
    with Middleman(apache.http) as middle:
        settings = Settings(svn_max_memory_bytes=256 * 1024**2, chunk_revisions=2, job_max_attempts=9)
        with database.connection() as conn:
            repo_id = register_source(conn, apache.url(f"open/{code.path.name}", port=middle.port))
        middle.fault, middle.page = "endless", begin
        report = syncer(database, settings).run(request(repo_id))
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "connection")
        assert "raise SCM_SVN_MAX_MEMORY_BYTES" in str(report.error)
        with database.connection() as conn:
            assert stored(conn) == []
            assert number(conn, "SELECT count(*) FROM scm.quarantine") == 0
        middle.fault = ""
        report = syncer(database, settings).run(request(repo_id))
        assert (report.job_status, report.counts.inserted) == (JobStatus.COMPLETED, 40)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB for temporary files."""
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_for_answers_costs_no_revision(
    tiny: Path, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = create_repository(tmp_path / "repository").load(growing(40, paths=3))
    monkeypatch.setattr("tempfile.tempdir", str(tiny))
    with database.connection() as conn:
        repo = register_source(conn, repository.path)
        for left in (16384, 4096, 0):  # for the answer, for its first lines, for nothing
            with (tiny / "rest").open("wb") as file, contextlib.suppress(OSError):
                file.write(b"\0" * (65536 - 4096 - left))
                file.flush()
                file.write(b"\0" * (4096 if left == 0 else 0))
            report = Syncer(database, SMALL).run(request(repo))
            assert (report.job_status, report.error_code) == (JobStatus.FAILED, "no_room"), (left, report)
            assert number(conn, "SELECT count(*) FROM scm.quarantine") == 0
        (tiny / "rest").unlink()
        Syncer(database, SMALL).run(request(repo))
        assert number(conn, "SELECT count(*) FROM scm.svn_revisions") == 40


@pytest.mark.parametrize("reason", ["E000028: No space left on device", "E000024: Too many open files"])
def test_a_server_that_is_full_costs_no_revision(
    fake_svn: Callable[[str], str], tmp_path: Path, reason: str
) -> None:
    command = fake_svn(f"echo '<log>'; echo \"svn: {reason}\" >&2; exit 1")
    url = create_repository(tmp_path / "repository").load(growing(2)).url
    reader = SvnReader(Client(svn_command=command), url, "", log_timeout=9, info_timeout=9, attempts=1)
    for ask in (lambda: list(reader.read(RevisionWindow(1, 3))), lambda: reader.read_single(1)):
        with pytest.raises(Transient) as caught:
            ask()
        assert caught.value.code == "no_room"
