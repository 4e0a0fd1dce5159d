"""Pages: the headers that a reader follows, and the traps in them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.sandbox.gitlab.conftest import Site


def links(header: str) -> dict[str, str]:
    """The links of a header by relation, in order."""
    return {rel: url for url, rel in re.findall(r'<([^>]+)>; rel="(\w+)"', header)}


def test_a_page_in_the_middle_has_every_header(site: Site) -> None:
    large = generate(site.gitlab, site.group, merge_requests=8, notes=0)
    at = f"/projects/{large.id}/merge_requests"
    answer = site.get(at, per_page=3, page=2, order_by="updated_at", sort="asc")
    wanted = {"X-Per-Page": "3", "X-Page": "2", "X-Next-Page": "3", "X-Prev-Page": "1", "X-Total": "8"}
    assert {name: answer.headers[name] for name in wanted} == wanted
    assert answer.headers["X-Total-Pages"] == "3"
    found = links(answer.headers["Link"])
    assert list(found) == ["prev", "next", "first", "last"]
    query = parse_qsl(urlsplit(found["next"]).query)
    assert query == sorted(query)
    assert {"id": str(large.id), "page": "3", "per_page": "3", "state": "all", "sort": "asc"}.items() <= dict(
        query
    ).items()


def test_the_ends_send_empty_headers_and_an_empty_list_has_one_page(site: Site) -> None:
    answer = site.get(f"{site.at}/merge_requests")
    assert answer.json() == []
    assert (answer.headers["X-Next-Page"], answer.headers["X-Prev-Page"]) == ("", "")
    assert (answer.headers["X-Total"], answer.headers["X-Total-Pages"]) == ("0", "1")
    assert list(links(answer.headers["Link"])) == ["first", "last"]


def test_totals_go_above_the_limit_and_always_for_commits(site: Site) -> None:
    site.gitlab.behaviour.total_limit = 7
    large = generate(site.gitlab, site.group, merge_requests=8, notes=0)
    for path in (f"/projects/{large.id}/merge_requests", f"{site.at}/repository/commits"):
        answer = site.get(path, per_page=2)
        assert "X-Total" not in answer.headers
        assert "X-Total-Pages" not in answer.headers
        assert list(links(answer.headers["Link"])) == ["next", "first"]
        assert answer.headers["X-Next-Page"] == "2"


def test_a_full_last_page_of_commits_announces_an_empty_one(site: Site) -> None:
    assert site.get(f"{site.at}/repository/commits", per_page=3).headers["X-Next-Page"] == "2"
    last = site.get(f"{site.at}/repository/commits", per_page=3, page=2)
    assert last.json() == []
    assert "next" not in links(last.headers["Link"])


def test_the_first_page_of_branches_always_announces_a_second(site: Site) -> None:
    first = site.get(f"{site.at}/repository/branches", per_page=2)
    assert (len(first.json()), first.headers["X-Next-Page"], first.headers["X-Total-Pages"]) == (2, "2", "2")
    second = site.get(f"{site.at}/repository/branches", per_page=2, page=2)
    assert (second.json(), second.headers["X-Next-Page"]) == ([], "")


def test_branches_by_keyset_link_while_pages_are_full(site: Site) -> None:
    at = f"{site.at}/repository/branches"
    first = site.get(at, pagination="keyset", per_page=1)
    assert "X-Page" not in first.headers
    token = dict(parse_qsl(urlsplit(links(first.headers["Link"])["next"]).query))["page_token"]
    assert token == "feature/parser"
    second = site.get(at, pagination="keyset", per_page=1, page_token=token)
    assert [row["name"] for row in second.json()] == ["main"]
    last = site.get(at, pagination="keyset", per_page=1, page_token="main")
    assert (last.json(), "Link" in last.headers) == ([], False)


def test_projects_by_keyset_end_with_an_empty_page(site: Site) -> None:
    for number in range(3):
        site.gitlab.project(f"more{number}", group=site.group)
    seen, after = [], 0
    for _ in range(9):
        answer = site.get(
            "/projects", pagination="keyset", order_by="id", sort="asc", per_page=2, id_after=after
        )
        if not answer.json():
            assert "Link" not in answer.headers
            break
        seen += [row["id"] for row in answer.json()]
        after = int(dict(parse_qsl(urlsplit(links(answer.headers["Link"])["next"]).query))["id_after"])
    assert seen == sorted(site.gitlab.projects)


def test_limits_of_both_kinds_of_paging(site: Site) -> None:
    answer = site.get("/projects", page=501, per_page=100)
    assert answer.status_code == 405
    assert "maximum allowed offset of 50000" in answer.json()["error"]
    assert "type Project" in answer.json()["error"]
    answer = site.get("/projects", pagination="keyset", order_by="name")
    assert answer.status_code == 405
    assert answer.json() == {"error": "Keyset pagination is not yet available for this type of request"}
    # Merge requests have no ceiling and never look at ``pagination``.
    assert site.get(f"{site.at}/merge_requests", page=501, per_page=100, pagination="keyset").json() == []


def test_pages_are_cut_before_what_a_reader_may_not_see_is_taken_out(site: Site) -> None:
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    for number in range(4):
        site.gitlab.comment(request, site.user, f"note {number}", internal=number in (1, 2), thread=True)
    site.gitlab.switch_feature(site.project, "merge_requests", "enabled")
    site.project.visibility = "public"
    stranger = site.gitlab.token(site.gitlab.user("stranger")).secret
    at = f"{site.at}/merge_requests/{request.iid}"
    for kind in ("notes", "discussions"):
        sizes = []
        for page in (1, 2):
            parameters: dict[str, Any] = {"sort": "asc"} if kind == "notes" else {}
            answer = site.get(f"{at}/{kind}", token=stranger, per_page=2, page=page, **parameters)
            sizes.append(len(answer.json()))
            assert answer.headers["X-Next-Page"] == ("2" if page == 1 else "")
            assert answer.headers["X-Total"] == "4"
        assert sizes == [1, 1]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"per_page": "0"}, "per_page has a value not allowed"),
        ({"page": "x"}, "page is invalid"),
        ({"state": "open"}, "state does not have a valid value"),
        ({"updated_after": "yesterday"}, "updated_after is invalid"),
    ],
)
def test_bad_values_of_known_parameters_are_refused(
    site: Site, parameters: dict[str, Any], text: str
) -> None:
    answer = site.get(f"{site.at}/merge_requests", **parameters)
    assert (answer.status_code, answer.json()) == (400, {"error": text})


def test_unknown_parameters_are_ignored_and_large_pages_cut(site: Site) -> None:
    answer = site.get(f"{site.at}/merge_requests", stat="open", per_page=500)
    assert (answer.status_code, answer.headers["X-Per-Page"]) == (200, "100")


def test_links_come_from_the_servers_configuration(site: Site) -> None:
    site.gitlab.behaviour.external_url = "https://gitlab.example.test"
    answer = site.get(f"{site.at}/merge_requests")
    assert links(answer.headers["Link"])["first"].startswith("https://gitlab.example.test/api/v4/projects/")
