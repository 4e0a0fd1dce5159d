"""Groups and projects through their lives: renamed, moved, archived, deleted, and the lists they are in."""

from __future__ import annotations

import requests

from sync_pipeline_sandbox.gitlab import GitLab, serve
from sync_pipeline_tests.sandbox.gitlab.conftest import Site


def test_an_old_path_redirects_to_the_id_with_the_same_route(site: Site) -> None:
    site.gitlab.rename_project(site.project, "app2")
    answer = site.get("/projects/team1%2Fapp1/repository/commits", per_page=2)
    wanted = f"{site.server.api}{site.at}/repository/commits?per_page=2"
    assert (answer.status_code, answer.headers["Location"]) == (301, wanted)
    assert answer.text == f"This resource has been moved permanently to {wanted}"
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert site.rows("/projects/Team1%2FAPP2")["id"] == site.project.id
    sent = {"PRIVATE-TOKEN": site.token.secret}
    written = site.http.put(f"{site.server.api}/projects/team1%2Fapp1", headers=sent)
    assert written.status_code == 405
    assert written.json() == {"message": "Non GET methods are not allowed for moved projects"}
    # Who may not see it learns nothing from the old path.
    stranger = site.gitlab.token(site.gitlab.user("stranger")).secret
    assert site.get("/projects/team1%2Fapp1", token=stranger).json() == {"message": "404 Project Not Found"}


def test_moved_and_renamed_groups_take_their_projects_along(site: Site) -> None:
    below = site.gitlab.group("sub", parent=site.group)
    site.gitlab.move_project(site.project, below)
    assert site.rows(site.at)["path_with_namespace"] == "team1/sub/app1"
    site.gitlab.rename_group(site.group, "team9")
    assert site.rows(site.at)["path_with_namespace"] == "team9/sub/app1"
    for old in ("team1%2Fapp1", "team1%2Fsub%2Fapp1"):
        assert site.get(f"/projects/{old}").status_code == 301


def test_group_lists_need_to_be_asked_for_subgroups(site: Site) -> None:
    gitlab = site.gitlab
    below = gitlab.group("deep", parent=gitlab.group("sub", parent=site.group))
    inner = gitlab.project("inner", group=below)
    elsewhere = gitlab.group("elsewhere")
    shared = gitlab.project("shared", group=elsewhere)
    shared.shared_with.append(site.group)

    def ids(**parameters: str) -> set[int]:
        return {row["id"] for row in site.rows("/groups/team1/projects", **parameters)}

    assert ids() == {site.project.id, shared.id}
    assert ids(include_subgroups="true") == {site.project.id, shared.id, inner.id}
    assert ids(with_shared="false") == {site.project.id}
    assert [row["full_path"] for row in site.rows("/groups/team1/subgroups")] == ["team1/sub"]
    descendants = {row["full_path"] for row in site.rows(f"/groups/{site.group.id}/descendant_groups")}
    assert descendants == {"team1/sub", "team1/sub/deep"}
    assert {row["id"] for row in site.rows("/projects", membership="true")} == {
        site.project.id,
        inner.id,
        shared.id,
    }


def test_an_embedded_list_of_projects_ends_at_a_hundred(site: Site) -> None:
    for number in range(120):
        site.gitlab.project(f"p{number}", group=site.group)
    assert len(site.rows("/groups/team1")["projects"]) == 100
    assert "projects" not in site.rows("/groups/team1", with_projects="false")
    assert site.get("/groups/team1/projects").headers["X-Total"] == "121"


def test_archived_projects_stay_readable_but_leave_the_groups_merge_requests(site: Site) -> None:
    site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    site.gitlab.archive(site.project)
    assert site.rows(site.at)["archived"] is True
    assert len(site.rows(f"{site.at}/merge_requests")) == 1
    assert site.rows("/groups/team1/merge_requests") == []
    assert len(site.rows("/groups/team1/merge_requests", non_archived="false")) == 1
    assert len(site.rows("/merge_requests", scope="all")) == 1
    assert site.rows("/projects", archived="false") == []


def test_deletion_is_marked_then_hidden_then_done(site: Site) -> None:
    site.gitlab.mark_for_deletion(site.project)
    assert site.rows(site.at)["marked_for_deletion_on"] == "2024-05-06"
    site.gitlab.mark_for_deletion(site.project, hidden=True)
    assert site.get(site.at).json() == {"message": "404 Project Not Found"}
    site.gitlab.restore(site.project)
    assert "marked_for_deletion_on" not in site.rows(site.at)
    site.gitlab.delete_group(site.group)
    assert site.get(site.at).status_code == 404
    assert site.get("/groups/team1").status_code == 404


def test_statistics_are_for_reporters_who_ask(site: Site) -> None:
    assert "statistics" not in site.rows(site.at)
    commits = len(site.rows(f"{site.at}/repository/commits", per_page=100))
    assert site.rows(site.at, statistics="true")["statistics"]["commit_count"] == commits
    stranger = site.gitlab.token(site.gitlab.user("stranger")).secret
    site.project.visibility = "public"
    assert "statistics" not in site.get(site.at, token=stranger, statistics="true").json()


def test_last_activity_is_a_filter_and_an_order(site: Site) -> None:
    site.tick(hours=2)
    late = site.gitlab.project("late", group=site.group)
    rows = site.rows("/projects", order_by="last_activity_at", sort="desc")
    assert [row["id"] for row in rows] == [late.id, site.project.id]
    found = site.rows("/projects", last_activity_after="2024-05-06T13:00:00Z")
    assert [row["id"] for row in found] == [late.id]


def test_an_instance_under_a_path(site: Site) -> None:
    with serve(site.gitlab, prefix="/gitlab") as below:
        sent = {"PRIVATE-TOKEN": site.token.secret}
        answer = requests.get(f"{below.api}{site.at}/merge_requests", headers=sent, timeout=120)
        assert f"<{below.url}/api/v4/projects/" in answer.headers["Link"]
        row = requests.get(f"{below.api}{site.at}", headers=sent, timeout=120).json()
        assert row["web_url"] == f"{below.url}/team1/app1"
        root = below.url.removesuffix("/gitlab")
        outside = requests.get(f"{root}/api/v4/version", headers=sent, timeout=120)
        assert (outside.status_code, outside.headers["Content-Type"][:9]) == (404, "text/html")
        page = requests.get(f"{below.url}/team1/app1", timeout=120)
        assert (page.status_code, page.headers["Content-Type"][:9]) == (200, "text/html")


def test_a_proxy_that_decodes_paths_breaks_all_but_numeric_ids(site: Site) -> None:
    site.gitlab.behaviour.decoding_proxy = True
    assert site.get("/projects/team1%2Fapp1").json() == {"error": "404 Not Found"}
    assert site.get(site.at).status_code == 200


def test_large_ids_stay_exact() -> None:
    gitlab = GitLab(first_id=2**53 + 1)
    user = gitlab.user("root", admin=True)
    project = gitlab.project("app", group=gitlab.group("team"))
    with serve(gitlab) as server:
        sent = {"PRIVATE-TOKEN": gitlab.token(user).secret}
        row = requests.get(f"{server.api}/projects/{project.id}", headers=sent, timeout=120).json()
        assert row["id"] == 2**53 + 1


def test_milestones_of_a_project_and_of_the_groups_above(site: Site) -> None:
    gitlab = site.gitlab
    inner = gitlab.group("inner", parent=site.group)
    project = gitlab.project("app2", group=inner)
    at = f"/projects/{project.id}/milestones"
    assert site.rows(at, include_ancestors="true") == []
    outer = gitlab.milestone(site.group, "2024")
    own = gitlab.milestone(project, "1.0")
    gitlab.close_milestone(own)
    assert [row["title"] for row in site.rows(at)] == ["1.0"]
    assert [row["title"] for row in site.rows(at, include_ancestors="true")] == ["1.0", "2024"]
    assert [row["title"] for row in site.rows(at, include_ancestors="true", state="active")] == ["2024"]
    assert site.rows(f"/groups/{inner.id}/milestones") == []
    (row,) = site.rows(f"/groups/{inner.id}/milestones", include_ancestors="true")
    assert (row["group_id"], "project_id" in row) == (site.group.id, False)
    assert row["web_url"] == f"{site.server.url}/groups/team1/-/milestones/{outer['id']}"
    stranger = gitlab.token(gitlab.user("stranger")).secret
    assert site.get(at, token=stranger).status_code == 404


def test_a_milestone_is_deleted_with_its_events(site: Site) -> None:
    request = site.gitlab.open_merge_request(site.project, author=site.user)
    milestone = site.gitlab.milestone(site.project, "1.0")
    site.gitlab.set_milestone(request, site.user, milestone)
    before = request.updated_at
    site.tick()
    site.gitlab.delete_milestone(site.project, milestone)
    at = f"{site.at}/merge_requests/{request.iid}"
    assert site.rows(at)["milestone"] is None
    assert site.rows(f"{at}/resource_milestone_events") == []
    assert (site.rows(f"{site.at}/milestones"), request.updated_at) == ([], before)
