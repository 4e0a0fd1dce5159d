"""Merge requests and their reviews, as people change them."""

from __future__ import annotations

from pathlib import Path

from sync_pipeline_sandbox.gitlab import GitRepository
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.recorded import load_recorded
from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.sandbox.gitlab.conftest import Site


def opened(site: Site) -> tuple[MergeRequest, str]:
    """A merge request and its path."""
    request = site.gitlab.open_merge_request(site.project, author=site.user, source="feature/parser")
    site.tick()
    return request, f"{site.at}/merge_requests/{request.iid}"


def test_a_push_adds_a_version_and_a_forced_one_replaces_the_commits(site: Site) -> None:
    _, at = opened(site)
    first = site.rows(f"{at}/commits")
    assert [row["title"] for row in first] == ["Add parser"]
    site.gitlab.push(site.project, "feature/parser", "More\n", author=site.user)
    assert [row["title"] for row in site.rows(f"{at}/commits")] == ["More", "Add parser"]
    forced = site.gitlab.push(
        site.project, "feature/parser", "Anew\n", parents=[site.git.resolve("main") or ""], bump=False
    )
    versions = site.rows(f"{at}/versions")
    assert len(versions) == 3
    assert versions[0]["id"] > versions[1]["id"] > versions[2]["id"]
    assert versions[0]["head_commit_sha"] == forced == site.rows(at)["sha"]
    assert site.rows(at)["diff_refs"]["head_sha"] == forced
    assert [row["id"] for row in site.rows(f"{at}/commits")] == [forced]
    old = site.rows(f"{at}/versions/{versions[2]['id']}")
    assert [row["id"] for row in old["commits"]] == [first[0]["id"]]
    pushes = site.rows(f"{site.at}/events", action="pushed")
    assert pushes[0]["push_data"]["commit_to"] == forced


def test_a_merge_request_from_a_fork_brings_its_commits_along(site: Site, tmp_path: Path) -> None:
    gitlab = site.gitlab
    fork_git = GitRepository.create(tmp_path / "fork.git")
    fork_git.fetch(site.git, "main", "refs/heads/main")
    fork = gitlab.project("fork", group=gitlab.group("people"), repository=fork_git)
    gitlab.push(fork, "idea", "From outside\n", parents=[fork_git.resolve("main") or ""])
    request = gitlab.open_merge_request(site.project, author=site.other, source="idea", source_project=fork)
    at = f"{site.at}/merge_requests/{request.iid}"
    assert [row["title"] for row in site.rows(f"{at}/commits")] == ["From outside"]
    site.tick()
    head = gitlab.push(fork, "idea", "Again\n")
    row = site.rows(at)
    assert (row["sha"], row["source_project_id"], row["allow_collaboration"]) == (head, fork.id, False)
    assert row["updated_at"] == "2024-05-06T12:00:01.123Z"
    every = {commit["id"] for commit in site.rows(f"{site.at}/repository/commits", all="true")}
    assert head in every
    assert "idea" not in [branch["name"] for branch in site.rows(f"{site.at}/repository/branches")]
    gitlab.delete_branch(site.project, "feature/parser", author=site.user)
    assert site.rows(f"{site.at}/events")[0]["push_data"]["action"] == "removed"


def test_hidden_refs_hold_commits_and_the_list_of_all_shows_them(site: Site) -> None:
    base = site.git.resolve("main")
    assert base is not None
    made = {
        site.git.commit(name, f"{name}\n", parents=[base], date="1750000000 +0000")
        for name in ("request", "pipeline")
    }
    site.gitlab.open_merge_request(site.project, author=site.user, source="request")
    site.gitlab.run_pipeline(site.project, site.git.resolve("pipeline") or "")
    for name in ("request", "pipeline"):
        site.gitlab.delete_branch(site.project, name)
    site.git.prune()
    listed = [row["id"] for row in site.rows(f"{site.at}/repository/commits", all="true", per_page=100)]
    assert made < set(listed)
    # Within a page the oldest comes first.
    assert listed.index(base) < min(map(listed.index, made))
    assert made.isdisjoint(row["id"] for row in site.rows(f"{site.at}/repository/commits", per_page=100))
    commits = site.rows(f"{site.at}/merge_requests/1/commits")
    assert [row["parent_ids"] for row in commits] == [[]]


def test_threads_resolution_edits_and_deletions(site: Site) -> None:
    request, at = opened(site)
    gitlab = site.gitlab
    first = gitlab.comment(request, site.user, "rename this", thread=True)
    single = gitlab.comment(request, site.user, "fine")
    reply = gitlab.comment(request, site.other, "done", reply_to=first)
    gitlab.resolve(request, first, site.other)
    before = site.rows(at)["updated_at"]
    site.tick()
    gitlab.edit_note(request, reply, "done now")
    assert site.rows(at)["updated_at"] == before
    threads = site.rows(f"{at}/discussions")
    assert [len(thread["notes"]) for thread in threads] == [2, 1]
    assert [thread["individual_note"] for thread in threads] == [False, True]
    assert threads[0]["notes"][1]["body"] == "done now"
    assert threads[0]["notes"][0]["resolved_by"]["username"] == "user2"
    assert "resolved" not in threads[1]["notes"][0]
    notes = site.rows(f"{at}/notes")
    assert [row["id"] for row in notes] == [reply.row["id"], single.row["id"], first.row["id"]]
    gitlab.delete_note(request, single)
    assert site.get(f"{at}/notes/{single.row['id']}").json() == {"message": "404 Note Not Found"}
    assert site.rows(at)["user_notes_count"] == 2


def test_approvals_are_current_and_history_is_in_notes(site: Site) -> None:
    request, at = opened(site)
    site.gitlab.request_review(request, site.user, site.other)
    site.gitlab.approve(request, site.other)
    site.gitlab.approve(request, site.user)
    shown = site.rows(f"{at}/approvals")
    assert (shown["approved"], shown["user_has_approved"], len(shown["approved_by"])) == (True, True, 2)
    assert shown["approved_by"][0]["approved_at"] == "2024-05-06T12:00:01.123Z"
    site.gitlab.unapprove(request, site.other)
    assert [one["user"]["username"] for one in site.rows(f"{at}/approvals")["approved_by"]] == ["user1"]
    assert site.rows(f"{at}/reviewers")[0]["state"] == "unapproved"
    bodies = [row["body"] for row in site.rows(f"{at}/notes", sort="asc", activity_filter="only_activity")]
    assert bodies == [
        "requested review from @user2",
        "approved this merge request",
        "approved this merge request",
        "unapproved this merge request",
    ]
    assert len(site.rows(f"{site.at}/merge_requests", **{"approved_by_ids[]": "Any"})) == 1
    assert site.rows(f"{site.at}/merge_requests", **{"approved_by_ids[]": "None"}) == []
    site.gitlab.behaviour.old = True
    assert "approved_at" not in site.rows(f"{at}/approvals")["approved_by"][0]
    assert not {"reviewers", "merge_user", "detailed_merge_status"} & site.rows(at).keys()


def test_states_labels_and_milestones_leave_events(site: Site) -> None:
    request, at = opened(site)
    gitlab, user = site.gitlab, site.user
    gitlab.close(request, user)
    gitlab.reopen(request, user)
    gitlab.merge(request, None)
    states = site.rows(f"{at}/resource_state_events")
    assert [(row["state"], row["user"] is None) for row in states] == [
        ("closed", False),
        ("reopened", False),
        ("merged", True),
    ]
    assert site.rows(f"{at}/resource_state_events/{states[0]['id']}") == states[0]
    assert {row["resource_id"] for row in states} == {request.id}
    gitlab.add_label(site.project, request, user, "kind::bug")
    gitlab.delete_label(site.project, "kind::bug")
    assert [row["label"] for row in site.rows(f"{at}/resource_label_events")] == [None]
    assert site.rows(at)["labels"] == []
    gitlab.set_milestone(request, user, gitlab.milestone(site.project, "m1"))
    gitlab.set_milestone(request, user, None)
    events = site.rows(f"{at}/resource_milestone_events")
    assert [row["action"] for row in events] == ["add", "remove"]


def test_deleted_people_become_the_ghost_or_nobody(site: Site) -> None:
    request, at = opened(site)
    site.gitlab.comment(request, site.other, "remark")
    before = site.rows(at)["updated_at"]
    site.tick()
    site.gitlab.delete_user(site.other)
    assert site.rows(f"{at}/notes")[0]["author"]["username"] == "ghost"
    assert site.rows(at)["updated_at"] == before
    site.gitlab.delete_user(site.gitlab.ghost(), leave_null=True)
    assert site.rows(f"{at}/notes")[0]["author"] is None


def test_a_fresh_merge_request_has_no_diff_yet(site: Site) -> None:
    request = site.gitlab.open_merge_request(
        site.project, author=site.user, source="feature/parser", fresh=True
    )
    row = site.rows(f"{site.at}/merge_requests/{request.iid}")
    assert (row["changes_count"], row["diff_refs"], row["sha"]) == (None, None, None)
    assert row["detailed_merge_status"] == "preparing"


def test_scope_and_state_have_the_defaults_of_their_list(site: Site) -> None:
    opened(site)
    assert len(site.rows("/merge_requests")) == 1
    as_other = site.gitlab.token(site.other).secret
    assert site.get("/merge_requests", token=as_other).json() == []
    assert len(site.get("/merge_requests", token=as_other, scope="all").json()) == 1
    assert site.get("/merge_requests", token=None).status_code == 401
    assert site.get("/merge_requests", token=None, scope="all").json() == []
    simple = site.rows(f"{site.at}/merge_requests", view="simple")[0]
    assert len(simple) == 9


def test_time_filters_are_inclusive_and_know_microseconds(site: Site) -> None:
    request, _ = opened(site)
    at = f"{site.at}/merge_requests"
    shown = site.rows(at)[0]["updated_at"]
    assert shown == "2024-05-06T12:00:00.123Z"
    exact = request.updated_at.isoformat()
    assert len(site.rows(at, updated_after=exact, updated_before=exact)) == 1
    # The value shown is cut to milliseconds: as an upper bound it misses its own row.
    assert len(site.rows(at, updated_after=shown)) == 1
    assert site.rows(at, updated_before=shown) == []


def test_generated_merge_requests_are_many_nasty_and_repeatable(site: Site) -> None:
    large = generate(site.gitlab, site.group, merge_requests=600, notes=1, tie=250)
    times = [request.updated_at for request in large.merge_requests.values()]
    assert max(times.count(one) for one in set(times)) >= 250
    rows = [request.row for request in large.merge_requests.values()]
    assert any(row["author"] is None for row in rows)
    assert any(row["source_project_id"] is None for row in rows)
    assert {row["state"] for row in rows} == {"merged", "opened", "closed", "locked"}
    assert any(row["state"] == "merged" and row["merged_at"] is None for row in rows)
    seen: list[int] = []
    at, page = f"/projects/{large.id}/merge_requests", "1"
    while page:
        answer = site.get(at, order_by="updated_at", sort="asc", per_page=100, page=page)
        seen += [row["iid"] for row in answer.json()]
        page = answer.headers["X-Next-Page"]
    assert sorted(seen) == list(range(1, 601))
    first, again = large.merge_requests, type(site.gitlab)(first_id=101)
    twin = generate(again, again.group("g"), merge_requests=600, notes=1, tie=250).merge_requests
    assert [one.row["title"] for one in first.values()] == [one.row["title"] for one in twin.values()]
    assert [one.updated_at for one in first.values()] == [one.updated_at for one in twin.values()]
    some = large.merge_requests[1]
    assert site.rows(f"{at}/1/commits")[0]["id"] == some.row["sha"]


def test_recorded_data_arrives_whole(site: Site, recorded: Path) -> None:
    project = load_recorded(site.gitlab, recorded, group=site.group)
    at = f"/projects/{project.id}/merge_requests"
    rows = site.rows(at, per_page=100)
    originals = [request.row for request in project.merge_requests.values()]
    assert len(rows) == 16
    by_id = {row["id"]: row for row in rows}
    assert all(by_id[row["id"]].items() >= row.items() for row in originals)
    notes = [note for row in rows for note in site.rows(f"{at}/{row['iid']}/notes", per_page=100)]
    assert len(notes) == 26
    assert sum(note["system"] for note in notes) == 22
