"""Answers that are slow, cut, interim, of something else or refused for a while: nothing is taken for
complete, nothing hangs, and once the server answers again everything is there."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError, Transient
from sync_pipeline.core.model import JobReport, JobStatus, JobType, Mode
from sync_pipeline.ledger import watermarks
from sync_pipeline.scheduling import dispatch
from sync_pipeline.sources.gitlab import responses
from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sources.gitlab import servers
from sync_pipeline_tests.sources.gitlab.servers import (
    Clock,
    answer,
    kept_alive,
    overheard,
    scripted,
    silent,
)
from sync_pipeline_tests.sync.conftest import Forge

certificate = servers.certificate

TOKEN = "glpat-abcdefghijklmnopqrst"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_LONG = json.dumps([{"id": number} for number in range(50)]).encode()


def connect(url: str, cancelled: Callable[[], bool] = lambda: False, **options: Any) -> Client:
    return Instance(url, TOKEN, sleep=lambda _: None, **options).client(cancelled)


def failure(client: Client) -> SyncError:
    with pytest.raises(SyncError) as caught:
        client.get("/projects/1")
    assert TOKEN not in f"{caught.value!r} {caught.value.__context__!r}"
    assert "\n" not in str(caught.value)
    return caught.value


_DRIPPING = {
    "status": (b"", b"HTTP/1.1 200 OK" + b"K" * 1000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Long: " + b"y" * 1000),
    "body": (_HEAD + b"Content-Length: 1000\r\n\r\n", b" " * 1000),
    "chunks": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 200),
    "chunk size": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 1000),
    "compressed": (_HEAD + b"Content-Encoding: gzip\r\nContent-Length: 999\r\n\r\n", gzip.compress(_LONG)),
}


@pytest.mark.parametrize("part", _DRIPPING)
def test_a_server_that_sends_a_byte_now_and_then_meets_the_limit_of_an_answer(part: str) -> None:
    at_once, slowly = _DRIPPING[part]

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(at_once)
        for byte in slowly:
            link.sendall(bytes([byte]))
            time.sleep(0.01)

    with kept_alive(talk) as url:
        error = failure(connect(url, total_timeout=0.15, attempts=2))
    # Ten seconds later the answer would be whole, or the connection closed.
    assert error.code == "timeout"


def test_somebody_who_stops_does_not_wait_for_the_end_of_a_slow_answer() -> None:
    stop = threading.Event()

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(_HEAD + b"Content-Length: 10000\r\n\r\n")
        stop.set()
        for _ in range(10_000):
            link.sendall(b" ")
            time.sleep(0.01)

    started = time.monotonic()
    with kept_alive(talk) as url, pytest.raises(Cancelled):
        connect(url, stop.is_set).get("/projects/1")
    assert time.monotonic() - started < 60


@contextlib.contextmanager
def full() -> Iterator[str]:
    """The URL of a server whose queue of connections is full: nobody says no, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        address = listener.getsockname()
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(address)
        yield f"http://127.0.0.1:{address[1]}"


def stopped(url: str, ca_file: str | None = None, after: int = 4) -> None:
    """A request that asked ``after`` times whether to go on ends with Cancelled then, although the network
    may take an hour."""
    asked = itertools.count()
    client = connect(
        url,
        lambda: next(asked) >= after,
        ca_file=ca_file,
        connect_timeout=3600.0,
        read_timeout=3600.0,
        total_timeout=7200.0,
    )
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            client.get("/projects/1")
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60)
    assert [type(error) for error in ended] == [Cancelled]


@pytest.mark.parametrize("first_bytes", [b"", b"HTTP/1.1 200 O", _HEAD + b"Content-Length: 99\r\n\r\n["])
def test_somebody_who_stops_does_not_wait_for_a_server_that_says_nothing(first_bytes: bytes) -> None:
    with silent(first_bytes) as url:
        stopped(url)


def test_nor_where_it_is_silent_over_tls(certificate: tuple[str, str]) -> None:
    with silent(_HEAD, certificate) as url:
        stopped(url, certificate[0])


def test_nor_where_a_proxy_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent(b"") as url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        stopped("https://gitlab.example.test")


def test_nor_where_nobody_takes_the_connection() -> None:
    with full() as url:
        stopped(url, after=3)


def test_each_long_try_is_told_and_quick_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    """A byte a second, by a clock that the test holds: nobody waits for minutes without a word."""
    clock = Clock()

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(_HEAD + b"Content-Length: 1000\r\n\r\n")
        for _ in range(1000):
            clock.sleep(60.0)
            link.sendall(b" ")
            time.sleep(0.01)

    with kept_alive(talk) as url:
        instance = Instance(url, TOKEN, sleep=lambda _: None, monotonic=clock.monotonic, attempts=3)
        assert failure(instance.client()).code == "timeout"
        messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(messages) == 2
        assert "/projects/1: no answer in time; the answer began and then stopped; try 1" in messages[0]
        caplog.clear()
        assert failure(instance.client(patience=120.0)).code == "timeout"
        assert caplog.records == []
    with scripted(b"", answer([])) as server:
        assert connect(server.url).get("/projects/1").data == []
    assert [record.levelname for record in caplog.records if record.name.startswith("sync_pipeline")] == []


def test_an_interim_answer_is_not_taken_for_the_next_one() -> None:
    """The connection stays open, and the true answer lies in it when the next request is sent."""

    def talk(link: socket.socket, number: int) -> None:
        true = answer([{"id": number}]).replace(b"Connection: close\r\n", b"")
        link.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n" + true)

    with kept_alive(talk) as url:
        client = connect(url)
        for _ in range(3):
            error = failure(client)
            assert (type(error), error.code) == (Transient, "incomplete")


@pytest.mark.parametrize(
    ("variable", "proxy", "kind", "says"),
    [
        (
            "HTTP_PROXY",
            "http://127.0.0.1:9",
            Transient,
            "the proxy http://127.0.0.1:9 does not let us through",
        ),
        ("ALL_PROXY", "http://jo:s3cret-pw@127.0.0.1:9", Transient, "http://***@127.0.0.1:9"),
        ("HTTP_PROXY", "http://jo:s3cret/s3cret@127.0.0.1:9", ConfigurationError, "http://***@127.0.0.1:9"),
        ("HTTP_PROXY", "http://127.0.0.1:9/s3cret@127.0.0.1:9", Transient, "http://***@127.0.0.1:9"),
        ("http_proxy", "http://", ConfigurationError, "the proxy http:// cannot be used"),
        ("HTTP_PROXY", "socks5://127.0.0.1:9", ConfigurationError, "cannot be used"),
        ("HTTP_PROXY", "http://127.0.0.1:99999", ConfigurationError, "cannot be used"),
    ],
)
def test_a_proxy_that_does_not_work_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str, kind: type[SyncError], says: str
) -> None:
    with scripted(answer([])) as server:
        monkeypatch.setenv(variable, proxy)
        error = failure(connect(server.url))
        assert (type(error), server.asked) == (kind, [])
        assert says in str(error)
        assert "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY" in str(error)
        assert "s3cret" not in str(error)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert connect(server.url).get("/projects/1").data == []


@pytest.mark.parametrize("no_proxy", ["127.0.0.0/8", "::1,127.0.0.1", "127.0.0.1:{port}", "localhost, *"])
def test_what_no_proxy_names_is_asked_straight(monkeypatch: pytest.MonkeyPatch, no_proxy: str) -> None:
    with scripted(answer([])) as server:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", no_proxy.format(port=server.url.rpartition(":")[2]))
        assert connect(server.url).get("/projects/1").data == []


def test_a_network_of_ipv6_in_no_proxy_is_asked_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    with overheard(host="::1") as (port, heard):
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "::/8")
        assert failure(connect(f"http://[::1]:{port}", attempts=1)).code == "connection"
        assert [first_bytes.partition(b"\r\n")[0] for first_bytes in heard] == [
            b"GET /api/v4/projects/1 HTTP/1.1"
        ]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required", "503 No Route"])
def test_the_page_of_a_proxy_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, scheme: str, status: str
) -> None:
    with scripted(answer(b"<html>squid</html>", status, kind="html")) as proxy:
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", proxy.url.replace("://", "://jo:s3cret-pw@"))
        text = str(failure(connect(f"{scheme}://gitlab.example.test", attempts=1)))
    assert proxy.url.removeprefix("http://") in text
    assert "NO_PROXY" in text
    assert "s3cret" not in text
    assert status[:3] in text or "asks for credentials" in text


@pytest.mark.parametrize("headers", [b"X-Long: " + b"y" * 2**20 + b"\r\n", b"X: y\r\n" * 200])
def test_headers_that_are_too_long_or_too_many_are_named(headers: bytes) -> None:
    with scripted(_HEAD + headers + b"Content-Length: 2\r\n\r\n[]") as server:
        error = failure(connect(server.url, attempts=1))
    assert error.code == "not_json"
    assert "header" in str(error)
    assert "broke" not in str(error)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://u:s3cret/s3cret@h/x, please", "see https://[redacted]@h/x, please"),
        ('{"a":"https://u:s3cret?s3cret@h","b":"c@d"}', '{"a":"https://[redacted]@h","b":"c@d"}'),
        ('{"a":"https://h:8443/x","b":"c@d"}', '{"a":"https://h:8443/x","b":"c@d"}'),
        ("https://h:8443/@types/x", "https://h:8443/@types/x"),
    ],
)
def test_a_password_that_is_not_escaped_is_no_part_of_a_message(text: str, shown: str) -> None:
    assert responses.redact(text) == shown


# Through the engine --------------------------------------------------------------------------------------


def history(forge: Forge) -> None:
    """Two commits and three merge requests with a note each."""
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    for number in range(3):
        made = forge.gitlab.open_merge_request(
            forge.project, title=f"{number}", source="topic", author=forge.user
        )
        forge.gitlab.comment(made, forge.other, "Good")
    forge.tick()


def sync(forge: Forge) -> list[JobReport]:
    """One visit of each job type, whatever earlier attempts said about when to come back."""
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    return [forge.commits(), *forge.both()]


_BROKEN: dict[str, faults.Fault] = {
    "login page": faults.login_page(),
    "bad gateway": faults.proxy_error(),
    "520": faults.CannedResponse(520, b"<html>Web server is returning an unknown error</html>", "text/html"),
    "object": faults.json_answer(200, {"message": "maintenance"}),
    "null": faults.json_answer(200, None),
    "cut": faults.Truncated(announced=True),
    "cut in silence": faults.Truncated(announced=False),
    "reset": faults.Reset(),
    "reset in the body": faults.Reset(in_body=True),
    "to another host": faults.redirect("http://127.0.0.1:9/api/v4/projects", 302),
    "404 of nginx": faults.CannedResponse(404, b"<html>nginx</html>", "text/html"),
    "403 of a gateway": faults.CannedResponse(403, b"Forbidden\n", "text/plain"),
    "throttled": faults.throttled_text(retry_after="7200"),
}


@pytest.mark.parametrize("kind", _BROKEN)
def test_a_broken_answer_is_no_empty_one(forge: Forge, kind: str) -> None:
    """Whatever comes in the place of the lists: nothing counts as read, no state is made of it, no attempt is
    the last one, and afterwards all is there."""
    history(forge)
    lists = r"/(branches|commits|merge_requests)\?"
    forge.gitlab.faults.add(lists, _BROKEN[kind], times=None)
    for report in sync(forge):
        assert report.job_status is JobStatus.FAILED, report
        assert report.covered == ()
        assert TOKEN not in (report.error or "")
    for job_type in (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS):
        row = watermarks.get(forge.conn, forge.repo_id, job_type)
        assert (row.watermark, row.verified_at, str(row.access)) == (None, None, "ok")
    assert forge.rows("SELECT 1 FROM scm.quarantine") == []
    forge.gitlab.faults.clear()
    assert all(report.succeeded for report in sync(forge))
    assert len(forge.rows("SELECT 1 FROM scm.git_commits")) == 2
    assert len(forge.rows("SELECT 1 FROM scm.mrs")) == 3
    assert len(forge.rows("SELECT 1 FROM scm.review_events WHERE event_type = 'comment'")) == 3


@pytest.mark.parametrize("status", [301, 302])
@pytest.mark.parametrize("detail", ["versions", "discussions", "approvals", "resource_label_events"])
def test_one_detail_that_is_redirected_stops_no_other(forge: Forge, status: int, detail: str) -> None:
    history(forge)
    if detail == "approvals":
        forge.gitlab.approve(forge.project.merge_requests[2], forge.other)
        forge.tick()
    elsewhere = faults.redirect("http://127.0.0.1:9/login", status)
    forge.gitlab.faults.add(f"/merge_requests/2/{detail}", elsewhere, times=None)
    assert all(report.succeeded for report in sync(forge))
    assert len(forge.rows("SELECT 1 FROM scm.mrs")) == 3
    deferred = "SELECT natural_key, last_error FROM scm.deferred_fetches WHERE resolved_at IS NULL"
    (one,) = forge.rows(deferred)
    assert one["natural_key"] == "2"
    assert "redirected to http://127.0.0.1:9/login" in one["last_error"]
    comments = "SELECT 1 FROM scm.review_events WHERE event_type = 'comment'"
    assert len(forge.rows(comments)) == (2 if detail == "discussions" else 3)
    access = forge.rows("SELECT DISTINCT access FROM scm.sync_watermarks")
    assert access == [{"access": "ok"}]
    forge.gitlab.faults.clear()
    forge.conn.execute("UPDATE scm.deferred_fetches SET not_before = now() - interval '1 second'")
    assert all(report.succeeded for report in sync(forge))
    assert forge.rows(deferred) == []
    assert len(forge.rows(comments)) == 3


_REFUSALS = {
    **{f"{status} JSON": faults.json_answer(status, {"error": "Bad Request"}) for status in (400, 413)},
    **{
        f"{status} HTML": faults.CannedResponse(status, b"<html>squid</html>", "text/html")
        for status in (400, 401, 403, 404, 411, 431)
    },
    "403 JSON": faults.json_answer(403, {"message": "Forbidden"}),
}


@pytest.mark.parametrize("kind", _REFUSALS)
def test_a_refusal_of_a_moment_costs_live_syncing_minutes_and_history_nothing(
    forge: Forge, kind: str
) -> None:
    """As something in between may send for a moment."""
    history(forge)
    assert all(report.succeeded for report in sync(forge))
    forge.gitlab.faults.add(r"/(branches|merge_requests)\?", _REFUSALS[kind], times=None)
    assert not any(report.succeeded for report in sync(forge))
    window = ("2001-01-01", "2001-01-02")
    backfill = forge.both(Mode.BACKFILL, window=window)
    assert {report.job_status for report in backfill} == {JobStatus.FAILED}
    assert forge.rows("SELECT 1 FROM scm.revoked_credentials") == []
    found = dispatch.dispatch(forge.database, forge.settings, dry_run=True)
    assert found.plan is not None
    live = [one for one in found.plan.decisions if one.mode is Mode.INCREMENTAL]
    assert len(live) == 3
    assert all(one.until and found.now and one.until - found.now <= timedelta(minutes=6) for one in live)
    forge.gitlab.faults.clear()
    assert all(report.succeeded for report in sync(forge))
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    assert all(report.succeeded for report in forge.both(Mode.BACKFILL, window=window))


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [("600", 590, 700), ("999999999999", 3590, 4000), ("-5", 0, 120), ("soon", 0, 120)],
)
def test_how_long_a_server_wants_to_be_left_alone_is_kept_by_the_ledger(
    forge: Forge, asked: str, least: int, most: int
) -> None:
    history(forge)
    forge.gitlab.faults.add("/commits", faults.throttled_text(retry_after=asked), times=None)
    report = forge.commits()
    assert (report.job_status, report.error_code) == (JobStatus.FAILED, "rate_limit")
    (job,) = forge.rows(
        "SELECT extract(epoch FROM not_before - now())::float8 AS wait, attempts, max_attempts"
        "  FROM scm.sync_jobs"
    )
    assert least <= job["wait"] <= most
    assert job["attempts"] < job["max_attempts"]


def test_bytes_and_numbers_that_are_none_spoil_their_own_value_only(forge: Forge) -> None:
    """Not UTF-8, thousands of digits: JSON says no to the whole page, and 100 rows would never be stored."""
    history(forge)
    client = Instance(forge.server.url, forge.settings.gitlab.token.get_secret_value()).client()
    rows = client.get(f"/projects/{forge.project.id}/merge_requests").data
    for row in rows:
        row["title"] = f"caf@ {row['iid']}"
        row["upvotes"] = "#"
    body = json.dumps(rows).encode().replace(b"@", b"\xe9").replace(b'"#"', b"9" * 5000)
    forge.gitlab.faults.add(r"merge_requests\?", faults.CannedResponse(200, body), times=1)
    first, second = forge.both()
    assert first.succeeded, first.error
    assert second.succeeded, second.error
    stored = forge.rows("SELECT iid, title, flags FROM scm.mrs ORDER BY iid")
    assert [row["title"] for row in stored] == [f"caf\ufffd {number}" for number in (1, 2, 3)]
    assert all({"invalid_unicode", "escaped"} <= set(row["flags"]) for row in stored)
    # As soon as the server says it well, the row is right.
    forge.both(Mode.REPAIR, window=("2024-01-01", "2025-01-01"))
    assert {row["title"] for row in forge.rows("SELECT title FROM scm.mrs")} == {"0", "1", "2"}
