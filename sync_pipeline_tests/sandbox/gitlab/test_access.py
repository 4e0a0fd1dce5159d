"""Who may read what, and the exact refusal."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from sync_pipeline_sandbox.gitlab import GUEST
from sync_pipeline_tests.sandbox.gitlab.conftest import Site

NOT_FOUND = {"message": "404 Project Not Found"}


def test_no_token_a_wrong_one_and_dead_ones(site: Site) -> None:
    gitlab = site.gitlab
    assert site.get(site.at, token=None).json() == NOT_FOUND
    assert site.get("/version", token=None).status_code == 401
    wrong = site.get(site.at, token="glpat-wrong")
    assert (wrong.status_code, wrong.json()) == (401, {"message": "401 Unauthorized"})
    expired = gitlab.token(site.user, expires_at=date(2024, 5, 6)).secret
    answer = site.get(site.at, token=expired)
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_token")
    assert answer.json()["error_description"].startswith("Token is expired.")
    gitlab.revoke(site.token)
    answer = site.get(site.at)
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_token")
    assert answer.json()["error_description"].startswith("Token was revoked.")
    gitlab.block_user(site.other)
    blocked = site.get(site.at, token=gitlab.token(site.other).secret)
    assert (blocked.status_code, blocked.json()["message"][:16]) == (403, "403 Forbidden - ")


def test_a_bearer_token_works_and_one_in_the_url_is_noted(site: Site) -> None:
    sent = {"Authorization": f"Bearer {site.token.secret}"}
    assert site.get(site.at, token=None, headers=sent).status_code == 200
    assert site.get(site.at, token=None, private_token=site.token.secret).status_code == 200
    bearer, in_url = site.gitlab.journal.entries
    assert (bearer.sent_secret, bearer.secret_in_url, bearer.token) == (True, False, "sync")
    assert in_url.secret_in_url
    assert site.token.secret not in repr(site.gitlab.journal.entries)


def test_too_few_scopes(site: Site) -> None:
    narrow = site.gitlab.token(site.user, scopes=("read_repository",)).secret
    answer = site.get(site.at, token=narrow)
    assert answer.status_code == 403
    assert (answer.json()["error"], answer.json()["scope"]) == ("insufficient_scope", "api read_api")
    assert "WWW-Authenticate" not in answer.headers
    assert site.get("/personal_access_tokens/self", token=narrow).json()["scopes"] == ["read_repository"]


def test_a_stranger_and_a_guest(site: Site) -> None:
    gitlab = site.gitlab
    request = gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    stranger = gitlab.user("stranger")
    secret = gitlab.token(stranger).secret
    assert site.get(site.at, token=secret).json() == NOT_FOUND
    assert site.get("/groups/team1", token=secret).json() == {"message": "404 Group Not Found"}
    gitlab.add_member(site.project, stranger, GUEST)
    shown = site.get(site.at, token=secret)
    assert shown.status_code == 200
    assert "default_branch" not in shown.json()
    for path in ("repository/commits", "merge_requests", f"merge_requests/{request.iid}"):
        refused = site.get(f"{site.at}/{path}", token=secret)
        assert (refused.status_code, refused.json()) == (403, {"message": "403 Forbidden"})
    gitlab.add_member(site.project, stranger, 0)
    assert site.get(site.at, token=secret).status_code == 404


def test_features_that_are_switched_off(site: Site) -> None:
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    site.gitlab.switch_feature(site.project, "merge_requests", "disabled")
    site.gitlab.switch_feature(site.project, "repository", "disabled")
    assert site.get(f"{site.at}/merge_requests").json() == {"message": "403 Forbidden"}
    assert site.get(f"{site.at}/merge_requests/{request.iid}").status_code == 403
    assert site.get(f"{site.at}/merge_requests/99").json() == {"message": "404 Not found"}
    assert site.get(f"{site.at}/repository/commits").json() == {"message": "404 Repository Not Found"}
    assert site.rows("/groups/team1/merge_requests") == []
    assert site.rows(site.at)["merge_requests_access_level"] == "disabled"


@pytest.mark.parametrize("child", ["versions", "notes", "discussions"])
def test_some_lists_of_a_public_project_need_a_user(site: Site, child: str) -> None:
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    site.project.visibility = "public"
    at = f"{site.at}/merge_requests/{request.iid}"
    assert site.get(at, token=None).status_code == 200
    answer = site.get(f"{at}/{child}", token=None)
    assert (answer.status_code, answer.json()) == (401, {"message": "401 Unauthorized"})


def test_unknown_routes_and_paid_ones(site: Site) -> None:
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    wanted: dict[str, Any] = {"error": "404 Not Found"}
    for path in ("/nope", "/projects/team1/app1", f"{site.at}/merge_requests/{request.iid}/approval_state"):
        answer = site.get(path)
        assert (answer.status_code, answer.json()) == (404, wanted)
        assert answer.text == '{"error":"404 Not Found"}'
    site.gitlab.behaviour.premium = True
    assert site.get(f"{site.at}/merge_requests/{request.iid}/approval_state").status_code == 200
