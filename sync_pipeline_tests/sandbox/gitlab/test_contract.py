"""The small GitLab against the reference material: its schemas, and the examples of every answer.

Belongs here: comparing shapes. Where the schemas are known to be wrong they are corrected here, each with the
reason that the reference gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from sync_pipeline_sandbox.gitlab.records import MergeRequest
from sync_pipeline_tests.sandbox.gitlab.conftest import Site

HEX = "a" * 40


@pytest.fixture
def reviewed(site: Site) -> MergeRequest:
    """A merge request with one of everything."""
    gitlab, user, other = site.gitlab, site.user, site.other
    request = gitlab.open_merge_request(
        site.project, author=user, source="feature/parser", title="Add parser", description="why"
    )
    position = {
        "base_sha": HEX,
        "start_sha": HEX,
        "head_sha": HEX,
        "old_path": "p.py",
        "new_path": "p.py",
        "position_type": "text",
        "old_line": None,
        "new_line": 2,
        "line_range": {end: _line() for end in ("start", "end")},
    }
    gitlab.comment(request, other, "looks fine")
    first = gitlab.comment(request, other, "rename this", position=position)
    gitlab.comment(request, user, "done", reply_to=first)
    gitlab.resolve(request, first, user)
    gitlab.comment(request, other, "not for guests", thread=True, internal=True)
    gitlab.request_review(request, user, other)
    gitlab.assign(request, user, user)
    gitlab.push(site.project, "feature/parser", "More\n", author=user)
    gitlab.approve(request, other)
    gitlab.add_label(site.project, request, user, "kind::feature")
    gitlab.set_milestone(request, user, gitlab.milestone(site.project, "m1"))
    gitlab.merge(request, other, merge_commit_sha=HEX)
    return request


def _line() -> dict[str, Any]:
    return {"line_code": "1_1_2", "type": "new", "old_line": None, "new_line": 2}


# --- Examples -----------------------------------------------------------------------------------------------


def differences(example: Any, answer: Any, at: str = "") -> Iterator[str]:
    """Where an answer has another shape than an example: keys, and types unless one of both is null. The
    order of keys and the values do not matter, of lists the first rows do."""
    if isinstance(example, dict) and isinstance(answer, dict):
        for key in example.keys() | answer.keys():
            if key not in answer:
                yield f"{at}.{key} is missing"
            elif key not in example:
                yield f"{at}.{key} is not in the example"
            else:
                yield from differences(example[key], answer[key], f"{at}.{key}")
    elif isinstance(example, list) and isinstance(answer, list):
        if example and not answer:
            yield f"{at} is empty"
        elif example:
            yield from differences(example[0], answer[0], f"{at}[]")
    elif example is not None and answer is not None and type(example) is not type(answer):
        yield f"{at} is {type(answer).__name__}, not {type(example).__name__}"


def test_answers_have_the_shape_of_the_examples(site: Site, reviewed: MergeRequest, reference: Path) -> None:
    sha = site.git.resolve("feature/parser")
    tip = site.git.resolve("main") or ""
    site.git.tag("v1.0.0", tip, message="first")
    site.gitlab.bulk_push_event(site.project, site.user, 12)
    site.gitlab.pushed(site.project, "gone", HEX, None, author=site.user)
    site.gitlab.pushed(site.project, "new", None, tip, author=site.user)
    at, mr = f"{site.at}/repository", f"{site.at}/merge_requests/{reviewed.iid}"
    notes = site.rows(f"{mr}/notes", sort="asc", per_page=100)
    threads = site.rows(f"{mr}/discussions", per_page=100)
    version = site.rows(f"{mr}/versions")[0]
    events = {
        (row["push_data"]["action"], row["push_data"]["ref_count"]): row
        for row in site.rows(f"{site.at}/events")
    }
    responses = {
        "approvals_ce": site.rows(f"{mr}/approvals"),
        "branch": site.rows(f"{at}/branches/feature%2Fparser"),
        "commit_detail": site.rows(f"{at}/commits/{sha}"),
        "commit_list_item": site.rows(f"{at}/commits")[0],
        "commit_list_item_with_stats": site.rows(f"{at}/commits", with_stats="true")[0],
        "commit_refs": site.rows(f"{at}/commits/{tip}/refs"),
        "compare": site.rows(f"{at}/compare", **{"from": "main", "to": "feature/parser"}),
        "diff": site.rows(f"{at}/commits/{tip}/diff")[0],
        "discussion": next(one for one in threads if len(one["notes"]) > 1),
        "discussion_individual": threads[0],
        "event_push": events["pushed", None],
        "event_push_bulk": events["pushed", 12],
        "event_push_new_branch": events["created", None],
        "event_push_removed_branch": events["removed", None],
        "group": site.rows("/groups/team1", with_projects="false"),
        "merge_request_detail": site.rows(mr),
        "merge_request_list_item": site.rows(f"{site.at}/merge_requests")[0],
        "merge_request_simple": site.rows(f"{site.at}/merge_requests", view="simple")[0],
        "metadata": site.rows("/metadata"),
        "mr_reviewers": site.rows(f"{mr}/reviewers"),
        "mr_version": version,
        "mr_version_full": site.rows(f"{mr}/versions/{version['id']}"),
        "namespace": site.rows(site.at)["namespace"],
        "note_comment": notes[0],
        "note_diff": notes[1],
        "note_reply": notes[2],
        "note_internal": notes[3],
        "note_system_approved": next(row for row in notes if row["body"].startswith("approved")),
        "personal_access_token_self": site.rows("/personal_access_tokens/self"),
        "project": site.rows(site.at),
        "resource_label_event": site.rows(f"{mr}/resource_label_events")[0],
        "resource_milestone_event": site.rows(f"{mr}/resource_milestone_events")[0],
        "resource_state_event": site.rows(f"{mr}/resource_state_events")[0],
        "tag": site.rows(f"{at}/tags")[0],
        "user_current": site.rows("/user"),
        "version": site.rows("/version"),
    }
    site.gitlab.behaviour.premium = True
    responses["approvals_premium"] = site.rows(f"{mr}/approvals")
    responses["merge_request_list_item_premium"] = site.rows(f"{site.at}/merge_requests")[0]
    fresh = site.gitlab.open_merge_request(site.project, author=site.user, source="x", fresh=True)
    site.gitlab.behaviour.premium = False
    site.gitlab.assign(fresh, site.user, site.user)
    site.gitlab.request_review(fresh, site.user, site.other)
    site.gitlab.add_label(site.project, fresh, site.user, "kind::feature")
    responses["merge_request_detail_fresh"] = site.rows(f"{site.at}/merge_requests/{fresh.iid}")
    wrong = {}
    for name, answer in responses.items():
        example = json.loads((reference / "examples" / f"{name}.json").read_text())
        if found := list(differences(example, answer)):
            wrong[name] = found
    assert wrong == {}


# --- Schemas ------------------------------------------------------------------------------------------------


def _registry(folder: Path) -> Registry[Any]:
    """All schemas by their place in the folder, with the known mistakes set right."""
    resources = []
    for path in folder.rglob("*.json"):
        # Python cannot compile this pattern of label_basic.json.
        schema = json.loads(path.read_text().replace("[0-9A-Fa-f]{3}{1,2}", "([0-9A-Fa-f]{3}){1,2}"))
        place = path.relative_to(folder).as_posix()
        match place.rsplit("/", 1)[-1]:
            case "notes.json":
                # Fields came later, and people are objects.
                schema["items"]["additionalProperties"] = True
                schema["items"]["properties"]["resolved_by"] = {}
            case "merge_request.json":
                # Null before the diff exists, and when the fork is gone.
                for key, kind in (
                    ("changes_count", "string"),
                    ("sha", "string"),
                    ("source_project_id", "integer"),
                ):
                    schema["properties"][key] = {"type": [kind, "null"]}
        resources.append((f"file:///{place}", Resource.from_contents(schema, default_specification=DRAFT7)))
    return Registry().with_resources(resources)


def test_answers_fit_the_schemas(site: Site, reviewed: MergeRequest, reference: Path) -> None:
    registry = _registry(reference / "schemas")
    mr = f"{site.at}/merge_requests/{reviewed.iid}"
    commits = f"{site.at}/repository/commits"
    checks = [
        ("branches.json", site.rows(f"{site.at}/repository/branches")),
        ("commits.json", site.rows(commits, all="true")),
        ("commits_with_stats.json", site.rows(commits, with_stats="true")),
        ("commit/detail.json", site.rows(f"{commits}/main")),
        ("merge_request.json", site.rows(mr)),
        ("merge_request.json", site.rows(f"{site.at}/merge_requests")[0]),
        ("merge_request_simple.json", site.rows(f"{site.at}/merge_requests", view="simple")[0]),
        ("metadata.json", site.rows("/metadata")),
        ("notes.json", site.rows(f"{mr}/notes", per_page=100)),
        ("user/basic.json", site.rows(mr)["author"]),
        ("label_basic.json", site.rows(f"{mr}/resource_label_events")[0]["label"]),
    ]
    for name, answer in checks:
        schema = {"$ref": f"file:///public_api/v4/{name}"}
        jsonschema.Draft7Validator(schema, registry=registry).validate(answer)
