"""The switches for trouble do what they say, on real connections."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime

import pytest
import requests

from sync_pipeline_sandbox.gitlab import RateLimit, faults
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.sandbox.gitlab.conftest import START, Site


@pytest.mark.parametrize(
    ("fault", "status", "text", "kind"),
    [
        (faults.throttled_text(), 429, "Retry later\n", "text/plain"),
        (faults.throttled_feature(), 429, '{"message":{"error":"This endpoint', "application/json"),
        (faults.throttled_json(), 429, '{"message":"429 Too Many Requests"}', "application/json"),
        (faults.server_error(503), 503, '{"message":"503 Service Unavailable"}', "application/json"),
        (faults.proxy_error(), 502, "<html>", "text/html"),
        (faults.login_page(), 200, "<!DOCTYPE html>", "text/html"),
        (faults.redirect("http://127.0.0.1:1/x"), 302, "<html>", "text/html"),
        (faults.resource_lock(), 409, '{"message":"409 Conflict', "application/json"),
    ],
)
def test_an_answer_is_given_instead_and_then_no_more(
    site: Site, fault: faults.CannedResponse, status: int, text: str, kind: str
) -> None:
    rule = site.gitlab.faults.add("/merge_requests", fault, skip=1)
    at = f"{site.at}/merge_requests"
    assert site.get(at).status_code == 200
    answer = site.get(at)
    assert (answer.status_code, answer.headers["Content-Type"].startswith(kind)) == (status, True)
    assert answer.text.startswith(text)
    assert site.get(at).status_code == 200
    assert (rule.seen, rule.struck) == (3, 1)
    assert site.get(site.at).status_code == 200
    assert site.gitlab.journal.by_status()[status] >= 1


@pytest.mark.parametrize(
    "fault",
    [faults.Reset(), faults.Reset(in_body=True), faults.Truncated(), faults.Truncated(keep=0.0)],
    ids=repr,
)
def test_a_connection_is_cut(site: Site, fault: faults.Fault) -> None:
    site.gitlab.faults.add("/projects", fault)
    with pytest.raises(requests.RequestException):
        site.get("/projects")
    assert site.get("/projects").status_code == 200


def test_a_shortened_body_can_be_a_whole_answer(site: Site) -> None:
    site.gitlab.faults.add("/projects", faults.Truncated(announced=False))
    answer = site.get("/projects")
    assert answer.status_code == 200
    with pytest.raises(requests.JSONDecodeError):
        answer.json()


def test_a_slow_answer_runs_into_a_time_out_while_others_go_on(site: Site) -> None:
    site.gitlab.faults.add("/projects$|/projects\\?", faults.Slow(3))
    site.gitlab.behaviour.latency = 0.02
    sent = {"PRIVATE-TOKEN": site.token.secret}
    with pytest.raises(requests.Timeout):
        requests.get(f"{site.server.api}/projects", headers=sent, timeout=0.2)
    with ThreadPoolExecutor(4) as pool:
        responses = list(
            pool.map(lambda _: requests.get(f"{site.server.api}{site.at}", headers=sent), range(8))
        )
    assert {answer.status_code for answer in responses} == {200}
    assert site.gitlab.journal.most_running > 1


def test_links_can_lead_to_another_host(site: Site) -> None:
    site.gitlab.faults.add("/merge_requests", faults.ForeignLink("http://evil.example:81"))
    answer = site.get(f"{site.at}/merge_requests")
    assert answer.headers["Link"].startswith("<http://evil.example:81/api/v4/projects/")
    site.gitlab.faults.add("/commits", faults.WithoutHeaders(("X-Next-Page", "X-Page")))
    assert "X-Next-Page" not in site.get(f"{site.at}/repository/commits").headers


def test_a_row_moves_between_two_pages(site: Site) -> None:
    large = generate(site.gitlab, site.group, merge_requests=6, notes=0)
    at = f"/projects/{large.id}/merge_requests"
    moved = next(iter(sorted(large.merge_requests.values(), key=lambda one: one.updated_at)))
    site.gitlab.faults.add(at, faults.Do(lambda: site.gitlab.touch(moved), after=True))
    seen: list[int] = []
    for page in (1, 2):
        seen += [
            row["iid"] for row in site.rows(at, order_by="updated_at", sort="asc", per_page=3, page=page)
        ]
    assert len(set(seen)) == 5, "one row is missed by page numbers alone"


def test_a_token_dies_in_the_middle(site: Site) -> None:
    kill = faults.Do(lambda: site.gitlab.revoke(site.token))
    site.gitlab.faults.add("page=2", kill)
    at = f"{site.at}/repository/commits"
    assert site.get(at, per_page=1).status_code == 200
    assert site.get(at, per_page=1, page=2).status_code == 401


def test_the_throttle_counts_in_fixed_windows(site: Site) -> None:
    site.gitlab.behaviour.rate_limit = RateLimit(limit=2, period=3600)
    responses = [site.get(site.at) for _ in range(3)]
    assert [answer.status_code for answer in responses] == [200, 200, 429]
    last = responses[-1]
    assert last.text == "Retry later\n"
    assert last.headers["RateLimit-Limit"] == "1"
    assert [answer.headers["RateLimit-Remaining"] for answer in responses] == ["1", "0", "0"]
    assert int(last.headers["Retry-After"]) == 3600 - int(START.timestamp()) % 3600
    site.tick(hours=1)
    assert site.get(site.at).status_code == 200
    site.gitlab.behaviour.rate_limit = RateLimit(limit=0, headers="never")
    bare = site.get(site.at)
    assert (bare.status_code, "Retry-After" in bare.headers) == (429, False)


def test_the_date_header_is_the_servers_clock(site: Site) -> None:
    assert parsedate_to_datetime(site.get(site.at).headers["Date"]) == START.replace(microsecond=0)


def test_an_unchanged_answer_is_304_by_its_tag(site: Site) -> None:
    tag = site.get(site.at).headers["ETag"]
    assert site.get(site.at, headers={"If-None-Match": tag}).status_code == 304


def test_changes_while_it_answers_are_safe(site: Site) -> None:
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            note = site.gitlab.comment(request, site.user, "x")
            site.gitlab.delete_note(request, note)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(30):
            site.rows(f"{site.at}/merge_requests/{request.iid}/discussions")
    finally:
        stop.set()
        changing.join()
