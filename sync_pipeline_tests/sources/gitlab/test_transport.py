"""The transport: the token goes nowhere else, answers are whole, waits are the server's, errors are ours."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sync_pipeline.core.errors import (
    AccessDenied,
    Cancelled,
    ConfigurationError,
    Permanent,
    SourceGone,
    SyncError,
    Transient,
)
from sync_pipeline.sources.gitlab.paging import pages
from sync_pipeline.sources.gitlab.transport import (
    Client,
    Feedback,
    Instance,
    project_path,
    seconds_to_wait,
)
from sync_pipeline_tests.sources.gitlab import servers
from sync_pipeline_tests.sources.gitlab.servers import RESET, SILENCE, Clock, answer, overheard, scripted

certificate = servers.certificate

TOKEN = "glpat-abcdefghijklmnopqrst"
NOW = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)
OK = answer([{"id": 1}])


def connect(url: str, clock: Clock | None = None, **options: Any) -> Client:
    clock = clock or Clock()
    options = {"token": TOKEN, "now": lambda: NOW, "chance": lambda: 0.0, **options}
    return Instance(url, sleep=clock.sleep, monotonic=clock.monotonic, **options).client()


def failure(client: Client, path: str = "/projects/1/merge_requests") -> SyncError:
    with pytest.raises(SyncError) as caught:
        client.get(path)
    text = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert TOKEN not in text
    assert "\n" not in str(caught.value)
    return caught.value


# --- Where the token goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temp", "308 Perm"])
def test_a_redirect_to_another_host_is_refused_and_gets_nothing(status: str) -> None:
    with scripted(OK) as foreign:
        away = answer(b"", status, {"Location": f"{foreign.url}/api/v4/projects/1"}, kind="text")
        with scripted(away) as server:
            error = failure(connect(server.url))
        assert error.code == "redirect"
        assert isinstance(error, Permanent) == (status[:3] in ("301", "308"))
        assert foreign.asked == []
        assert len(server.asked) == 1


_ALL_30X = [f"{status} Elsewhere" for status in range(300, 309)]


@pytest.mark.parametrize("status", _ALL_30X)
@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{other}",
        "http://localhost:{other}",
        "http://localhost:{own}",
        "https://127.0.0.1:{own}",
        "https://127.0.0.1:{other}",
        "//127.0.0.1:{other}",
        "http://127.0.0.1:{own}@127.0.0.1:{other}",
        "http://127.0.0.1:{own}\\@127.0.0.1:{other}",
        "http://127.0.0.1:{other}#127.0.0.1:{own}",
    ],
)
def test_only_the_registered_scheme_host_and_port_hear_of_a_redirect(status: str, target: str) -> None:
    """Also where scheme, host or port alone differ."""
    with overheard() as (port, heard), scripted(b"", OK) as server:
        own = server.url.rpartition(":")[2]
        location = target.format(own=own, other=port) + "/api/v4/projects/1"
        server.responses[0] = answer(b"", status, {"Location": location}, kind="text")
        failure(connect(server.url, attempts=1))
        assert (heard, len(server.asked)) == ([], 1)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temp", "308 Perm"])
def test_the_same_host_by_https_is_another_server(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    """The ports are the standard ones, so a proxy stands for the network."""
    away = answer(b"", status, {"Location": "https://gitlab.example.test/api/v4/projects/1"}, kind="text")
    with scripted(away) as proxy, overheard() as (port, heard):
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        error = failure(connect("http://gitlab.example.test"))
        assert [one.target for one in proxy.asked] == [
            "http://gitlab.example.test/api/v4/projects/1/merge_requests"
        ]
        assert heard == []
    assert error.code == "redirect"
    assert "https://gitlab.example.test/api/v4/projects/1, where the token is not sent" in str(error)
    assert "set SCM_GITLAB_URL" in str(error)


def test_a_link_to_elsewhere_is_asked_of_the_registered_server() -> None:
    with overheard() as (port, heard), scripted(b"") as server:
        own = server.url.rpartition(":")[2]
        links = [
            f"http://127.0.0.1:{port}/api/v4/projects?page=2",
            f"https://127.0.0.1:{own}/api/v4/projects?page=3",
            f"http://localhost:{own}/api/v4/projects?page=4",
            f"//127.0.0.1:{port}/api/v4/projects?page=5",
        ]
        server.responses = [
            answer([{"id": number}], headers={"Link": f'<{link}>; rel="next"'})
            for number, link in enumerate(links)
        ] + [answer([])]
        found = list(pages(connect(server.url), "/projects"))
        assert [row["id"] for page in found for row in page.data] == [0, 1, 2, 3]
        assert [one.target.rpartition("page=")[2] for one in server.asked[1:]] == ["2", "3", "4", "5"]
        assert server.tokens == [TOKEN] * 5
        assert heard == []


def test_a_redirect_within_the_instance_is_followed_with_the_token() -> None:
    with scripted(b"", OK) as server:
        moved = f"{server.url}/api/v4/projects/101"
        server.responses[0] = answer(
            b"This resource has been moved permanently", "301 Moved", {"Location": moved}, kind="text"
        )
        found = connect(server.url).get("/projects/team1%2Fapp1")
        assert found.data == [{"id": 1}]
        assert [one.target for one in server.asked] == [
            "/api/v4/projects/team1%2Fapp1",
            "/api/v4/projects/101",
        ]
        assert server.tokens == [TOKEN, TOKEN]


@pytest.mark.parametrize(
    "location",
    [
        "/users/sign_in",
        "/other/api/v4/projects",
        "/gitlab/api/v4/../../steal",
        "/gitlab/api/%2e%2e/x",
        "//evil.test/x",
        "http://[",
    ],
)
def test_a_redirect_out_of_the_api_is_refused(location: str) -> None:
    with scripted(answer(b"", "302 Found", {"Location": location}, kind="text"), OK) as server:
        error = failure(connect(server.url + "/gitlab", attempts=1))
        assert error.code == "redirect"
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("instance", "url", "path"),
    [
        ("https://h/gitlab", "https://h/gitlab/api/v4/projects/1", "/projects/1"),
        ("https://h/gitlab", "https://H:443/gitlab/api/graphql", "graphql"),
        ("http://h", "http://H:80/api/v4/projects", "/projects"),
        ("http://h", "https://h/api/v4/projects", None),
        ("https://h", "http://h/api/v4/projects", None),
        ("http://h:8080", "https://h:8080/api/v4/projects", None),
        ("http://h:8080", "https://h/api/v4/projects", None),
        ("https://h", "https://h:444/api/v4/projects", None),
        ("https://h", "https://h.evil.test/api/v4/projects", None),
        ("https://h", "https://h@evil.test/api/v4/projects", None),
        ("https://h", "https://h\\@evil.test/api/v4/projects", None),
        ("https://h", "https://user@h/api/v4/projects", None),
        ("https://h/gitlab", "https://h/gitlab2/api/v4/projects", None),
        ("https://h/gitlab", "https://h/api/v4/projects", None),
        ("https://h", "https://h/api/v4/../../x", None),
        ("https://h", "https://h/api/v4/%2E%2e/x", None),
        ("https://h", "https://h:x/api/v4/projects", None),
        ("https://h", "/api/v4/projects", None),
    ],
)
def test_what_is_within_an_instance(instance: str, url: str, path: str | None) -> None:
    assert Instance(instance).api_path(url) == path


def test_an_endless_redirect_ends() -> None:
    loop = answer(b"", "302 Found", {"Location": "/api/v4/projects"}, kind="text")
    with scripted(loop) as server:
        assert failure(connect(server.url)).code == "redirect"
        assert len(server.asked) == 4


def test_a_foreign_address_is_refused_before_anything_is_sent() -> None:
    with scripted(OK) as foreign, scripted(OK) as server:
        client = connect(server.url)
        assert failure(client, f"{foreign.url}/api/v4/projects").code == "foreign_host"
        assert failure(client, f"{server.url}/elsewhere").code == "foreign_host"
        assert foreign.asked == server.asked == []


def test_python_gitlab_follows_no_foreign_link() -> None:
    with scripted(answer([{"id": 2}])) as foreign:
        link = {"Link": f'<{foreign.url}/api/v4/projects?page=2>; rel="next"', "X-Next-Page": "2"}
        with scripted(answer([{"id": 1}], headers=link), answer([{"id": 2}])) as server:
            projects = connect(server.url).api.projects.list(iterator=True)
            assert [project.id for project in projects] == [1, 2]
            assert server.tokens == [TOKEN, TOKEN]
        assert foreign.asked == []


def test_only_the_query_of_a_link_is_used() -> None:
    link = {
        "Link": '<https://evil.test/x?private_token=a&page=2&per_page=3>; rel="next", <x?page=1>; rel="first"'
    }
    with scripted(answer([], headers=link)) as server:
        assert connect(server.url).get("/projects").next_query == {"page": ["2"], "per_page": ["3"]}


def test_the_next_page_is_known_without_a_link_and_the_end_by_an_empty_header() -> None:
    with scripted(
        answer([], headers={"X-Next-Page": "7"}), answer([], headers={"X-Next-Page": ""})
    ) as server:
        client = connect(server.url)
        assert client.get("/projects").next_query == {"page": ["7"]}
        assert client.get("/projects").next_query is None


def test_no_cookie_is_kept_and_no_netrc_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with scripted(answer({}, headers={"Set-Cookie": "_gitlab_session=1; path=/"})) as server:
        client = connect(server.url)
        client.get("/projects/1")
        client.get("/projects/1")
        assert all("authorization" not in one.headers and "cookie" not in one.headers for one in server.asked)


def test_the_token_is_in_no_log_and_no_repr(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with scripted(answer({"message": f"401 for {TOKEN}"}, "401 Unauthorized")) as server:
        client = connect(server.url)
        error = failure(client)
    assert "[redacted]" in str(error)
    assert TOKEN not in caplog.text + repr(client) + repr(client.instance) + repr(client.traffic)


def test_a_sub_path_is_part_of_every_address() -> None:
    with scripted(OK) as server:
        client = connect(f"{server.url}/gitlab")
        client.get(project_path(7, "repository", "branches", "feature/a b#1"))
        assert server.asked[0].target == "/gitlab/api/v4/projects/7/repository/branches/feature%2Fa%20b%231"


def test_two_instances_keep_their_tokens_apart() -> None:
    with scripted(OK) as one, scripted(OK) as two:
        connect(one.url, token="first-token").get("/projects/1")
        connect(two.url, token="second-token").get("/projects/1")
        assert (one.tokens, two.tokens) == (["first-token"], ["second-token"])


# --- Whole answers ----------------------------------------------------------------------------------------

_CUT = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n[{"id": 1}'
_CHUNKS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK_CUT = _CHUNKS + b'b\r\n[{"id": 1},\r\n'
_NO_LENGTH_CUT = b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n[{"id": 1}, {"id'
_CHUNKED = _CHUNKS + b'5\r\n[{"id\r\n6\r\n": 1}]\r\n0\r\n\r\n'
_BAD_GZIP = answer(b"no gzip at all", headers={"Content-Encoding": "gzip"})
_CUT_GZIP = answer(gzip.compress(b"[]" + b" " * 9)[:-9], headers={"Content-Encoding": "gzip"})
_LOGIN = answer(b"<html>Please log in</html>", kind="html")
_CLOUDFLARE = answer(b"<html>520</html>", "520 Unknown", kind="html")
_BAD_GATEWAY = answer(b"<html>502</html>", "502 Bad Gateway", kind="html")
_LOCK = answer({"message": "409 Conflict: Resource lock"}, "409 Conflict")


@pytest.mark.parametrize(
    "broken",
    [
        _CUT,
        _CHUNK_CUT,
        _NO_LENGTH_CUT,
        _BAD_GZIP,
        _CUT_GZIP,
        _LOGIN,
        _CLOUDFLARE,
        _BAD_GATEWAY,
        _LOCK,
        RESET,
        b"",
        answer(b""),
    ],
    ids=[
        "cut",
        "chunk cut",
        "no length",
        "gzip",
        "gzip cut",
        "login",
        "520",
        "502",
        "lock",
        "reset",
        "closed",
        "empty",
    ],
)
def test_what_is_not_whole_is_asked_again(broken: bytes) -> None:
    clock = Clock()
    with scripted(broken, broken, OK) as server:
        client = connect(server.url, clock)
        assert client.get("/projects/1").data == [{"id": 1}]
        assert client.calls == 3
    assert sum(clock.slept) == client.traffic.waited == 1.5


def test_a_proxy_login_page_ends_in_one_clear_line() -> None:
    with scripted(_LOGIN) as server:
        error = failure(connect(server.url))
        assert len(server.asked) == 4
    assert isinstance(error, Transient)
    assert error.code == "not_json"
    assert "text/html instead of JSON" in str(error)
    assert "check the URL and the proxy" in str(error)


@pytest.mark.parametrize("compressed", [False, True])
def test_chunked_and_compressed_answers_are_read(compressed: bool) -> None:
    big = [{"id": number, "text": "x" * 1000} for number in range(500)]
    packed = answer(gzip.compress(json.dumps(big).encode()), headers={"Content-Encoding": "gzip"})
    with scripted(packed if compressed else _CHUNKED) as server:
        found = connect(server.url).get("/projects/1").data
    assert found == (big if compressed else [{"id": 1}])


def test_silence_is_a_timeout() -> None:
    with scripted(SILENCE) as server:
        client = connect(server.url, read_timeout=0.1, attempts=2)
        error = failure(client)
    assert (error.code, client.traffic.timeouts) == ("timeout", 2)


def test_a_slow_body_meets_the_wall_clock() -> None:
    """Every look at the clock is a second later: the body never pauses long enough for the read timeout."""
    ticks = iter(range(10_000))
    with scripted(answer([{"id": 1}] * 20_000)) as server:
        instance = Instance(
            server.url, TOKEN, total_timeout=0.5, attempts=1, monotonic=lambda: float(next(ticks))
        )
        error = failure(instance.client())
    assert error.code == "timeout"


_MB = 1024**2


def _packed(size: int, times: int = 1) -> bytes:
    """Zeros, packed as gzip; again and again where asked."""
    packer = zlib.compressobj(9, wbits=31)
    body = b"".join(packer.compress(bytes(_MB)) for _ in range(size // _MB)) + packer.flush()
    for _ in range(times - 1):
        body = gzip.compress(body)
    return answer(body, headers={"Content-Encoding": ", ".join(["gzip"] * times)})


@pytest.mark.parametrize(
    ("huge", "code"),
    [
        (answer(b"[" + b" " * 8 * _MB), "content_too_large"),
        (_CHUNKS + b"".join(b"100000\r\n" + b" " * _MB + b"\r\n" for _ in range(8)), "content_too_large"),
        (_packed(200 * _MB), "content_too_large"),
        (_packed(200 * _MB, 3), "connection"),
    ],
    ids=["long", "endless", "bomb", "bomb in a bomb"],
)
def test_a_huge_body_is_refused_and_takes_no_memory_across_tries(huge: bytes, code: str) -> None:
    """Each page is asked for again in smaller ones, while the exceptions of the earlier tries still live."""
    with scripted(huge) as server:
        client = connect(server.url, max_answer_bytes=_MB)
        failure(connect(server.url, max_answer_bytes=_MB, attempts=1))
        server.asked.clear()
        tracemalloc.start()
        try:
            with pytest.raises(SyncError) as caught:
                list(pages(client, "/projects/1/merge_requests"))
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(server.asked) >= 3
    assert caught.value.code == code
    assert held < _MB
    assert peak < 4 * _MB


def test_a_list_of_long_texts_is_read_in_smaller_pages() -> None:
    tens = [answer([{"id": 10 * page + row} for row in range(10)]) for page in range(10)]
    with scripted(
        answer(["x" * _MB]), *tens[:9], answer([{"id": 90}], headers={"X-Next-Page": ""})
    ) as server:
        found = [
            row["id"] for page in pages(connect(server.url, max_answer_bytes=_MB), "/x") for row in page.data
        ]
        assert found == list(range(91))
        assert [one.target for one in server.asked[:3]] == [
            "/api/v4/x?per_page=100",
            "/api/v4/x?per_page=10&page=1",
            "/api/v4/x?per_page=10&page=2",
        ]


def test_a_page_of_a_hundred_rows_takes_no_more_than_they_can_need() -> None:
    assert Instance("https://gitlab.example.com").max_answer_bytes <= 32 * _MB


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (gzip.compress(b'[{"id"') + gzip.compress(b": 1}]"), [{"id": 1}]),
        (gzip.compress(b"[]") + b"\0\0\0", []),
        (zlib.compress(b"[1]"), [1]),
    ],
    ids=["two members", "padded", "zlib"],
)
def test_every_form_of_packing_is_unpacked(body: bytes, data: Any) -> None:
    with scripted(answer(body, headers={"Content-Encoding": "gzip"})) as server:
        assert connect(server.url).get("/projects/1").data == data
        assert server.asked[0].headers["accept-encoding"] == "gzip"


def test_an_unreachable_server_is_transient() -> None:
    with scripted(OK) as server:
        url = server.url
    error = failure(connect(url, attempts=2))
    assert isinstance(error, Transient)
    assert error.code == "connection"


# --- Waiting ----------------------------------------------------------------------------------------------


def _throttled(**headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer(b"Retry later\n", "429 Too Many Requests", named, kind="text")


@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "7.5"}, 7.5),
        ({"Retry_After": "Mon, 06 May 2024 12:00:20 GMT", "Date": "Mon, 06 May 2024 12:00:00 GMT"}, 20.0),
        ({"Retry_After": "Mon, 06 May 2024 12:00:20 GMT"}, 20.0),
        ({"Retry_After": "Mon, 06 May 1999 12:00:20 GMT"}, 0.5),
        ({"Retry_After": "-5"}, 0.5),
        ({"Retry_After": "soon"}, 0.5),
        ({"Retry_After": "nan"}, 0.5),
        ({"RateLimit_Reset": str(int(NOW.timestamp()) + 30)}, 30.0),
        ({"RateLimit_Reset": str(int(NOW.timestamp()) * 1000 + 30_000)}, 30.0),
        ({"RateLimit_Reset": "30"}, 30.0),
        ({"RateLimit_ResetTime": "Mon, 06 May 2024 12:00:40 GMT"}, 40.0),
        ({"Retry_After": "5", "RateLimit_Reset": "55"}, 5.0),
        ({}, 0.5),
    ],
)
def test_the_wait_is_what_the_server_asks_for(headers: dict[str, str], least: float) -> None:
    clock = Clock()
    with scripted(_throttled(**headers), OK) as server:
        client = connect(server.url, clock)
        client.get("/projects/1")
    assert sum(clock.slept) == pytest.approx(least)
    assert client.traffic.rate_limited == 1


@pytest.mark.parametrize(
    ("asked", "wait"), [("1234", 1234.0), ("999999999", 3600.0), ("inf", 3600.0), ("1e300", 3600.0)]
)
def test_a_long_wait_is_left_to_the_caller_and_clamped(asked: str, wait: float) -> None:
    clock = Clock()
    with scripted(_throttled(Retry_After=asked)) as server:
        error = failure(connect(server.url, clock))
        assert len(server.asked) == 1
    assert isinstance(error, Transient)
    assert (error.code, error.retry_after, clock.slept) == ("rate_limit", wait, [])


def test_a_server_that_says_each_time_when_to_come_back_is_waited_for() -> None:
    """More often than a server that fails; but not for ever."""
    clock = Clock()
    with scripted(*[_throttled(Retry_After="2")] * 6, OK) as server:
        assert connect(server.url, clock).get("/projects/1").data == [{"id": 1}]
        assert len(server.asked) == 7
    clock = Clock()
    with scripted(_throttled(Retry_After="0")) as server:
        assert failure(connect(server.url, clock)).code == "rate_limit"
        assert len(server.asked) < 20
        assert 300 <= sum(clock.slept) < 400
    with scripted(_throttled()) as server:
        assert failure(connect(server.url)).code == "rate_limit"
        assert len(server.asked) == 4


def test_json_rate_limits_and_gateways_count_as_rate_limits() -> None:
    limited = [
        answer({"message": {"error": "This endpoint has been requested too many times."}}, "429 Too Many"),
        answer({"message": "429 Too Many Requests"}, "429 Too Many", {"Retry-After": "1"}),
        answer(
            {"message": "403 Forbidden"}, "403 Forbidden", {"RateLimit-Remaining": "0", "Retry-After": "1"}
        ),
    ]
    with scripted(*limited, OK) as server:
        client = connect(server.url)
        assert client.get("/projects/1").data
        assert client.calls == 4


def test_waits_grow_are_jittered_and_end() -> None:
    assert [seconds_to_wait(n, None, 60, 1.0) for n in (1, 2, 3, 9)] == [1, 2, 4, 60]
    assert seconds_to_wait(3, None, 60, 0.0) == 2
    assert 30 < seconds_to_wait(1, 30, 60, 0.5) < 35


def test_stopping_ends_a_wait() -> None:
    stop = threading.Event()
    with scripted(_throttled(Retry_After="50")) as server:
        instance = Instance(server.url, TOKEN, sleep=lambda _: stop.set())
        with pytest.raises(Cancelled):
            instance.client(stop.is_set).get("/projects/1")
        with pytest.raises(Cancelled):
            instance.client(stop.is_set).get("/projects/1")
        assert len(server.asked) == 1


def test_a_shared_limiter_is_asked_before_and_told_after_each_request() -> None:
    events: list[str | Feedback] = []

    class Limiter:
        def acquire(self, endpoint: str, go_on: Callable[[], None]) -> float:
            go_on()
            events.append(endpoint)
            return 0.5

        def feedback(self, feedback: Feedback) -> None:
            events.append(feedback)

    limits = {"RateLimit-Remaining": "41", "RateLimit-Limit": "60"}
    limits["RateLimit-Reset"] = "9"
    with scripted(_throttled(Retry_After="3"), answer([], headers=limits), RESET) as server:
        client = connect(server.url, limiter=Limiter(), attempts=2)
        client.get("/projects/1/merge_requests/7/notes")
        assert client.traffic.waited >= 3.0 + 2 * 0.5
        failure(client, "/groups/5/projects")
    notes, projects = "projects/merge_requests/notes", "groups/projects"
    assert events == [
        notes,
        Feedback(notes, 429, 3.0 - 3.0, 3.0),
        notes,
        Feedback(notes, 200, 0.0, None, 41, 60, 9.0),
        *[projects, Feedback(projects, None, 0.0)] * 2,
    ]


# --- Errors -----------------------------------------------------------------------------------------------

_SCOPE = {
    "error": "insufficient_scope",
    "error_description": "The request requires higher privileges",
    "scope": "api",
}
_CEILING = (
    "Offset pagination has a maximum allowed offset of 50000 for requests that return objects of type X."
)


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        ("401 Unauthorized", {"message": "401 Unauthorized"}, AccessDenied, "credential"),
        (
            "401 Unauthorized",
            {"error": "invalid_token", "error_description": "Token is expired."},
            AccessDenied,
            "credential",
        ),
        ("403 Forbidden", _SCOPE, AccessDenied, "scope"),
        ("403 Forbidden", {"message": "403 Forbidden"}, AccessDenied, "denied"),
        (
            "403 Forbidden",
            {"message": "403 Forbidden - Your account has been blocked."},
            AccessDenied,
            "denied",
        ),
        ("404 Not Found", {"message": "404 Project Not Found"}, SourceGone, "not_found"),
        ("404 Not Found", {"message": "404 Repository Not Found"}, SourceGone, "no_repository"),
        ("404 Not Found", {"message": "404 Not found"}, SourceGone, "no_object"),
        ("404 Not Found", {"error": "404 Not Found"}, SourceGone, "no_route"),
        ("400 Bad Request", {"error": "state does not have a valid value"}, Permanent, "bad_request"),
        ("405 Method Not Allowed", {"error": _CEILING}, Permanent, "paging_ceiling"),
        ("400 Bad Request", {"message": _CEILING}, Permanent, "paging_ceiling"),
        ("414 Too Long", {"message": ["a", {"b": ["c"]}]}, Permanent, "bad_request"),
    ],
)
def test_each_refusal_has_its_own_consequence(
    status: str, body: Any, kind: type[SyncError], code: str
) -> None:
    with scripted(answer(body, status)) as server:
        error = failure(connect(server.url))
        assert len(server.asked) == 1
    assert (type(error), error.code) == (kind, code)
    assert "/api/v4/projects/1/merge_requests" in str(error)


def test_a_blocked_address_is_no_matter_of_one_project() -> None:
    with scripted(answer(b"Forbidden\n", "403 Forbidden", kind="text")) as server:
        error = failure(connect(server.url))
        assert len(server.asked) == 1
    assert isinstance(error, Transient)
    assert error.code == "blocked"


def test_a_page_of_somebody_else_is_no_deletion() -> None:
    with scripted(answer(b"<html>nginx</html>", "404 Not Found", kind="html")) as server:
        error = failure(connect(server.url))
    assert not isinstance(error, SourceGone)
    assert error.code == "not_json"


def test_a_refused_token_is_not_sent_again_until_it_changes() -> None:
    tokens = ["old-token"]
    clock = Clock()
    denied = answer({"error": "invalid_token", "error_description": "Token was revoked."}, "401 Unauthorized")
    with scripted(denied, OK) as server:
        instance = Instance(server.url, lambda: tokens[-1], monotonic=clock.monotonic)
        for _ in range(3):
            error = failure(instance.client())
            assert (type(error), error.code) == (AccessDenied, "credential")
            assert "the token is revoked" in str(error)
        assert len(server.asked) == 1
        tokens.append("new-token")
        assert instance.client().get("/projects/1").data
        assert server.tokens == ["old-token", "new-token"]


def test_a_token_rotated_meanwhile_is_used_at_once() -> None:
    tokens = iter(["old-token"])
    with scripted(answer({"message": "401 Unauthorized"}, "401 Unauthorized"), OK) as server:
        assert connect(server.url, token=lambda: next(tokens, "new-token")).get("/projects/1").data
        assert server.tokens == ["old-token", "new-token"]


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "umläut-token"])
def test_a_token_that_cannot_be_one_is_named_without_being_shown(token: str) -> None:
    with scripted(OK) as server:
        with pytest.raises(ConfigurationError) as caught:
            connect(server.url, token=token).get("/projects/1")
        assert token not in str(caught.value)
        assert server.asked == []


# --- Certificates -----------------------------------------------------------------------------------------


def test_an_unknown_authority_is_permanent_and_one_file_makes_it_known(certificate: tuple[str, str]) -> None:
    with scripted(OK, certificate=certificate) as server:
        error = failure(connect(server.url))
        assert (type(error), error.code) == (Permanent, "certificate")
        assert "SCM_CA_FILE" in str(error)
        assert connect(server.url, ca_file=certificate[0]).get("/projects/1").data
        assert server.tokens == [TOKEN]


@pytest.mark.parametrize(
    ("name", "expired", "says"),
    [
        ("DNS:gitlab.example.test", False, "use the name that the certificate is for"),
        ("IP:127.0.0.1", True, "renew the certificate on the server"),
    ],
)
def test_a_certificate_that_is_wrong_says_what_is_wrong(
    tmp_path: Path, name: str, expired: bool, says: str
) -> None:
    """It is known, so SCM_CA_FILE would not help."""
    known = servers.self_signed(tmp_path, name, expired=expired)
    with scripted(OK, certificate=known) as server:
        error = failure(connect(server.url, ca_file=known[0]))
        assert (error.code, server.asked) == ("certificate", [])
        assert says in str(error)
        assert "SCM_CA_FILE" not in str(error)


def test_a_ca_file_that_is_none_is_a_matter_of_configuration(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigurationError):
        Instance("https://127.0.0.1:1", ca_file=tmp_path / "missing.pem")
    with scripted(OK) as server:
        https = server.url.replace("http://", "https://")
        error = failure(connect(https, ca_file=wrong))
    assert isinstance(error, ConfigurationError)


def test_threads_share_counters_and_limits() -> None:
    with scripted(OK) as server:
        client = connect(server.url)
        threads = [threading.Thread(target=client.get, args=("/projects/1",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.calls == len(server.asked) == 8
