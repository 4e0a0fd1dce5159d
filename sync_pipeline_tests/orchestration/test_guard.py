"""Who gets through to the Dagster page, over real HTTP."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from sync_pipeline.orchestration import ui
from sync_pipeline.orchestration.guard import SESSION_SECONDS, Guard
from sync_pipeline.settings import Settings

TOKEN = "correct-horse"
MUTATION = quote("mutation { terminateRuns { __typename } }")
QUERY = quote("{ version }")


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers whatever reaches it, so that a refusal can only be the guard's."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"through"})


class Clock:
    """Seconds since 1970, as the guard sees them."""

    def __init__(self) -> None:
        self.seconds = 1_900_000_000.0

    def __call__(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Site:
    port: int
    clock: Clock

    def ask(self, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host="Host" in given)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    @property
    def cookie(self) -> str:
        """What a browser sends after its first visit."""
        answer = self.ask("GET", f"/?token={TOKEN}")
        return (answer.getheader("set-cookie") or "").split(";")[0]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def shake_hands(self, **headers: str) -> int:
        return self.ask(
            "GET",
            "/graphql",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
            Sec_WebSocket_Version="13",
            **headers,
        ).status


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    listener = ui._listen("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    clock = Clock()
    guard = Guard(page, token=TOKEN, host="127.0.0.1", port=port, now=clock)
    server = uvicorn.Server(
        uvicorn.Config(guard, log_level="error", access_log=False, lifespan="off", ws="websockets-sansio")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield Site(port, clock)
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    "path", ["/", "/graphql", "/logs/a.out", "/report_asset_materialization/x", f"/graphql?query={QUERY}"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS"])
def test_nobody_gets_in_without_the_token(site: Site, method: str, path: str) -> None:
    assert site.ask(method, path).status == 401
    assert site.ask(method, path, Cookie=f"scm_ui_{site.port}=wrong").status == 401


def test_a_bookmark_without_the_cookie_says_how_to_get_in(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    connection.request("GET", "/runs/1", headers={"Accept": "text/html,*/*;q=0.8"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (401, "text/html; charset=utf-8")
    text = answer.read().decode()
    connection.close()
    assert "scm-sync up" in text
    assert TOKEN not in text
    # A script gets the plain line.
    assert site.ask("GET", "/runs/1").getheader("content-type") == "text/plain; charset=utf-8"


def test_the_first_visit_becomes_a_cookie_that_scripts_and_other_sites_never_get(site: Site) -> None:
    answer = site.ask("GET", f"/runs?token={TOKEN}&a=b%20c")
    assert answer.status == 303
    assert answer.getheader("location") == "/runs?a=b+c"
    cookie = answer.getheader("set-cookie") or ""
    assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
    assert site.ask("GET", "/runs", Cookie=cookie.split(";")[0]).status == 200


def test_the_cookie_is_not_the_token_and_ends(site: Site) -> None:
    answer = site.ask("GET", f"/?token={TOKEN}")
    whole = answer.getheader("set-cookie") or ""
    assert TOKEN not in whole
    assert f"Max-Age={SESSION_SECONDS}" in whole
    cookie = whole.split(";")[0]
    name, _, value = cookie.partition("=")
    end, _, signature = value.partition(".")
    # Nobody makes a session last longer, takes it to another port or sends the token in its place.
    for forged in (f"{int(end) + 1}.{signature}", f"{end}.", f"{end}", f"{'9' * 5000}.{signature}", TOKEN):
        assert site.ask("GET", "/", Cookie=f"{name}={forged}").status == 401
    other = Guard(page, token=TOKEN, host="127.0.0.1", port=site.port + 1, now=site.clock)
    assert not other._in_session(value)
    # It is no token either.
    assert site.ask("GET", "/", Authorization=f"Bearer {value}").status == 401
    before = site.clock.seconds
    try:
        site.clock.seconds = before + SESSION_SECONDS - 1
        assert site.ask("GET", "/", Cookie=cookie).status == 200
        site.clock.seconds = before + SESSION_SECONDS
        assert site.ask("GET", "/", Cookie=cookie).status == 401
    finally:
        site.clock.seconds = before


def test_a_link_cannot_lead_elsewhere(site: Site) -> None:
    answer = site.ask("GET", f"//evil.example/?token={TOKEN}")
    assert answer.getheader("location") == "/evil.example/"


@pytest.mark.parametrize("header", [{"Authorization": f"Bearer {TOKEN}"}, {"X_SCM_Token": TOKEN}])
def test_scripts_send_the_token_as_a_header(site: Site, header: dict[str, str]) -> None:
    assert site.ask("POST", "/graphql", **header).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/graphql", "/graphql/"])
def test_a_get_never_changes_anything(site: Site, method: str, path: str) -> None:
    assert site.ask(method, f"{path}?query={QUERY}", Cookie=site.cookie).status == 200
    for text in (
        MUTATION,
        quote("query A { version } mutation B { x }"),
        quote("subscription { x }"),
        quote("not graphql {{"),
        f"{QUERY}&query={MUTATION}",
    ):
        assert site.ask(method, f"{path}?query={text}", Cookie=site.cookie).status == 405


def test_another_page_in_the_same_browser_cannot_post(site: Site) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{site.port + 1}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert site.ask("POST", "/graphql", Cookie=site.cookie, **headers).status == 403
    assert site.ask("POST", "/graphql", Cookie=site.cookie, Origin=site.origin).status == 200


def test_a_foreign_name_for_this_address_is_not_served(site: Site) -> None:
    assert site.ask("GET", "/", Cookie=site.cookie, Host=f"evil.example:{site.port}").status == 421
    assert site.ask("GET", "/", Cookie=site.cookie, Host=f"localhost:{site.port}").status == 200


def test_a_websocket_needs_token_and_own_origin(site: Site) -> None:
    assert site.shake_hands(Cookie=site.cookie, Origin=site.origin) == 101
    assert site.shake_hands(Cookie=site.cookie, Origin="https://evil.example") == 403
    assert site.shake_hands(Origin=site.origin) == 403


def test_the_token_is_readable_by_its_owner_only_and_stays(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state")
    secret = ui.token(settings)
    assert len(secret) >= 32
    assert ui.token(settings) == secret
    assert (settings.state_dir / "ui.token").stat().st_mode & 0o077 == 0


def test_a_note_of_a_process_that_ended_is_not_believed(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    note = {"url": "http://127.0.0.1:1", "pid": 1, "started": 1.0, "code_server": None}
    (tmp_path / "ui.json").write_text(json.dumps(note))
    assert ui.running(settings) is None
