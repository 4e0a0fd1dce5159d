"""Answers that are slow, cut, interim, of something else or refused for a while: nothing is taken for
complete, nothing hangs, and once the server answers again everything is there."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sync_pipeline.errors import Cancelled, ConfigurationError, SyncError, Transient
from sync_pipeline.model import JobReport, JobStatus, JobType, Mode
from sync_pipeline.sandbox.gitlab import faults
from sync_pipeline.sources.gitlab import answers
from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline.store import watermarks
from sync_pipeline_tests.sources.gitlab.servers import answer, scripted
from sync_pipeline_tests.sync.conftest import Forge

TOKEN = "glpat-abcdefghijklmnopqrst"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_LONG = json.dumps([{"id": number} for number in range(50)]).encode()


@contextlib.contextmanager
def kept_alive(talk: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """The URL of a server that keeps its connections; ``talk`` answers each request of one, which is
    counted."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def serve(link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            link.settimeout(10)
            number = 0
            while (data := link.recv(65536)) and not stopped.is_set():
                if b"\r\n\r\n" in data:
                    number += 1
                    talk(link, number)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                threading.Thread(target=serve, args=(link,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopped.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


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

    started = time.monotonic()
    with kept_alive(talk) as url:
        error = failure(connect(url, total_timeout=0.15, attempts=2))
    assert error.code == "timeout"
    assert time.monotonic() - started < 5


def test_somebody_who_stops_does_not_wait_for_the_end_of_a_slow_answer() -> None:
    stop = threading.Event()

    def talk(link: socket.socket, number: int) -> None:
        link.sendall(_HEAD + b"Content-Length: 1000\r\n\r\n")
        stop.set()
        for _ in range(1000):
            link.sendall(b" ")
            time.sleep(0.01)

    started = time.monotonic()
    with kept_alive(talk) as url, pytest.raises(Cancelled):
        connect(url, stop.is_set).get("/projects/1")
    assert time.monotonic() - started < 5


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
    assert answers.redact(text) == shown


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
    "520": faults.Answer(520, b"<html>Web server is returning an unknown error</html>", "text/html"),
    "object": faults.json_answer(200, {"message": "maintenance"}),
    "null": faults.json_answer(200, None),
    "cut": faults.Truncated(announced=True),
    "cut in silence": faults.Truncated(announced=False),
    "reset": faults.Reset(),
    "reset in the body": faults.Reset(in_body=True),
    "to another host": faults.redirect("http://127.0.0.1:9/api/v4/projects", 302),
    "404 of nginx": faults.Answer(404, b"<html>nginx</html>", "text/html"),
    "403 of a gateway": faults.Answer(403, b"Forbidden\n", "text/plain"),
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
    client = Instance(forge.server.url, forge.settings.gitlab_token.get_secret_value()).client()
    rows = client.get(f"/projects/{forge.project.id}/merge_requests").data
    for row in rows:
        row["title"] = f"caf@ {row['iid']}"
        row["upvotes"] = "#"
    body = json.dumps(rows).encode().replace(b"@", b"\xe9").replace(b'"#"', b"9" * 5000)
    forge.gitlab.faults.add(r"merge_requests\?", faults.Answer(200, body), times=1)
    first, second = forge.both()
    assert first.succeeded, first.error
    assert second.succeeded, second.error
    stored = forge.rows("SELECT iid, title, flags FROM scm.mrs ORDER BY iid")
    assert [row["title"] for row in stored] == [f"caf? {number}" for number in (1, 2, 3)]
    assert all({"invalid_unicode", "escaped"} <= set(row["flags"]) for row in stored)
    # As soon as the server says it well, the row is right.
    forge.both(Mode.REPAIR, window=("2024-01-01", "2025-01-01"))
    assert {row["title"] for row in forge.rows("SELECT title FROM scm.mrs")} == {"0", "1", "2"}
