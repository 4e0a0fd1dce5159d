"""Routes for commits, branches, tags and comparisons.

Belongs here: what git is asked for each of them and how the answer is paged. Running git is
:mod:`sync_pipeline_sandbox.gitlab.git`'s.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from sync_pipeline_sandbox.gitlab import responses
from sync_pipeline_sandbox.gitlab.endpoint import Ask, Endpoint
from sync_pipeline_sandbox.gitlab.git import GitError, GitRepository, Ref, committed_seconds
from sync_pipeline_sandbox.gitlab.paging import Page
from sync_pipeline_sandbox.gitlab.parameters import PAGING, Parameter, choice
from sync_pipeline_sandbox.gitlab.records import DEVELOPER, EXTERNAL, Project, Row
from sync_pipeline_sandbox.gitlab.shapes import merge_request_row, with_address

_FLAG = Parameter("bool", False)
_COMMITS: dict[str, Parameter] = {
    **PAGING,
    "ref_name": Parameter(),
    "all": _FLAG,
    "since": Parameter("time"),
    "until": Parameter("time"),
    "path": Parameter(),
    "author": Parameter(),
    "with_stats": _FLAG,
    "first_parent": _FLAG,
    "order": choice("default", "default", "topo"),
    "trailers": _FLAG,
}
_REFS: dict[str, Parameter] = {
    **PAGING,
    "search": Parameter(),
    "pagination": Parameter(),
    "page_token": Parameter(),
}
_BRANCHES = _REFS | {
    "sort": choice("name_asc", "name_asc", "updated_asc", "updated_desc"),
    "regex": Parameter(),
}
_TAGS = _REFS | {
    "order_by": choice("updated", "name", "updated", "version"),
    "sort": choice("desc", "asc", "desc"),
}
_COMPARE = {
    "from": Parameter(required=True),
    "to": Parameter(required=True),
    "straight": _FLAG,
    "from_project_id": Parameter("int"),
    "unidiff": _FLAG,
}


# --- Commits --------------------------------------------------------------------------------------------


def _commits(ask: Ask) -> Page:
    project, values, behaviour = ask.project(), ask.values, ask.gitlab.behaviour
    git, pager, ref = ask.repository(project), ask.pager(), ask.values["ref_name"]
    if ref is not None and (ref.startswith("-") or re.search(r"[\s\x00-\x1f\x7f]", ref)):
        raise responses.message(400, "ref_name is invalid")
    if git.is_empty():
        return _nothing(pager.unknown_length([]), behaviour.empty_repository, "Repository")
    options = [f"--skip={pager.start}", f"--max-count={pager.per_page}"]
    if values["since"]:
        options.append(f"--since={_moment(values['since'])}")
    if values["until"]:
        options.append(f"--until={_moment(values['until'])}")
    if values["author"]:
        options.append(f"--author={values['author']}")
    if values["first_parent"]:
        options.append("--first-parent")
    if values["order"] == "topo":
        options.append("--topo-order")
    revision = ref or project.default_branch
    if behaviour.names_before_ids:
        revision = "..".join(git.full_name(part) for part in revision.split(".."))
    revisions = ["--all"] if values["all"] else [revision]
    try:
        shas = git.shas(revisions, options, path=values["path"])
    except GitError:
        return _nothing(pager.unknown_length([]), behaviour.missing_ref, "Commit")
    if values["all"]:
        # Pages go from new to old, the rows within a page from old to new.
        shas.reverse()
    rows = with_address(project, git.commits(shas))
    if values["with_stats"]:
        stats = git.stats(shas)
        rows = [row | {"stats": stats.get(row["id"])} for row in rows]
    if values["trailers"]:
        rows = [row | _trailers(git, row["id"]) for row in rows]
    # Who names the server's choice names it in links, too.
    return ask.pager(ref_name=ref or (None if values["all"] else project.default_branch)).unknown_length(rows)


def _moment(bound: datetime) -> str:
    # Not --max-age and --min-age: they know 32 bits only.
    return f"@{max(0, int(bound.timestamp()))} +0000"


def _nothing(page: Page, status: int, what: str) -> Page:
    if status == 404:
        raise responses.not_found(what)
    return page


def _trailers(git: GitRepository, sha: str) -> Row:
    found = git.trailers(sha)
    return {"trailers": {key: values[-1] for key, values in found.items()}, "extended_trailers": found}


def _sha(ask: Ask, git: GitRepository) -> str:
    sha = git.resolve(ask.path["sha"])
    if sha is None:
        raise responses.not_found("Commit")
    return sha


def _one_commit(ask: Ask) -> Row:
    project = ask.project()
    git = ask.repository(project)
    sha = _sha(ask, git)
    row = with_address(project, git.commits([sha]))[0]
    if ask.values["stats"]:
        row["stats"] = git.stats([sha]).get(sha)
    return row | {"status": None, "project_id": project.id, "last_pipeline": None}


def _commit_diff(ask: Ask) -> Page:
    project = ask.project()
    git = ask.repository(project)
    sha = _sha(ask, git)
    return ask.pager().over(git.changes(sha), in_memory=True)


def _commit_refs(ask: Ask) -> Page:
    git = ask.repository(ask.project())
    sha, pager = _sha(ask, git), ask.pager()
    rows = []
    for kind, folder in (("branch", "heads"), ("tag", "tags")):
        if ask.values["type"] in (kind, "all"):
            rows += [{"type": kind, "name": name} for name in git.containing(sha, folder)]
    return pager.over(rows, totals=False)


def _sequence(ask: Ask) -> Row:
    git = ask.repository(ask.project())
    return {"count": len(git.shas([_sha(ask, git)]))}


def _requests_of_commit(ask: Ask) -> Page:
    project = ask.project()
    git = ask.repository(project)
    sha = _sha(ask, git)
    rows = []
    for request in list(project.merge_requests.values()):
        versions = [one for one in request.versions if one["base_commit_sha"]]
        if versions and sha in git.shas(
            [versions[-1]["head_commit_sha"], f"^{versions[-1]['base_commit_sha']}"]
        ):
            rows.append(merge_request_row(ask.gitlab, project, request))
    return ask.pager().over(rows)


# --- Branches and tags ----------------------------------------------------------------------------------


def _branches(ask: Ask) -> Page:
    project = ask.project()
    git = ask.repository(project)
    refs = _searched(git.branches(), ask.values["search"])
    if ask.values["regex"]:
        refs = [ref for ref in refs if re.search(ask.values["regex"], ref.name)]
    if ask.values["sort"] != "name_asc":
        refs = _by_time(git, refs, down=ask.values["sort"] == "updated_desc")
    page = _page_of_refs(ask, refs)
    return Page(_branch_rows(ask, project, git, page.rows), page.headers)


def _one_branch(ask: Ask) -> Row:
    project = ask.project()
    git, name = ask.repository(project), ask.path["branch"]
    if not git.is_legal_ref(name):
        raise responses.message(400, "The branch refname is invalid")
    found = [ref for ref in git.branches() if ref.name == name]
    if not found:
        raise responses.not_found("Branch")
    return _branch_rows(ask, project, git, found)[0]


def _branch_rows(ask: Ask, project: Project, git: GitRepository, refs: list[Ref]) -> list[Row]:
    commits = with_address(project, git.commits([ref.target for ref in refs]))
    default = git.resolve(f"refs/heads/{project.default_branch}")
    merged = git.merged_into(default) if default and refs else set()
    may_push = ask.gitlab.level(project, ask.user) >= DEVELOPER
    return [
        {
            "name": ref.name,
            "commit": commit,
            "merged": ref.name in merged and ref.name != project.default_branch,
            "protected": ref.name == project.default_branch,
            "developers_can_push": False,
            "developers_can_merge": False,
            "can_push": may_push,
            "default": ref.name == project.default_branch,
            "web_url": f"{EXTERNAL}/{project.full_path}/-/tree/{ref.name}",
        }
        for ref, commit in zip(refs, commits, strict=True)
    ]


def _tags(ask: Ask) -> Page:
    project = ask.project()
    git = ask.repository(project)
    refs = _searched(git.tags(), ask.values["search"])
    down = ask.values["sort"] == "desc"
    if ask.values["order_by"] == "updated":
        refs = _by_time(git, refs, down=down)
    elif down:
        refs.reverse()
    page = _page_of_refs(ask, refs)
    return Page(_tag_rows(project, git, page.rows), page.headers)


def _one_tag(ask: Ask) -> Row:
    project = ask.project()
    git, name = ask.repository(project), ask.path["tag"]
    if not git.is_legal_ref(name):
        raise responses.message(400, "The tag refname is invalid")
    found = [ref for ref in git.tags() if ref.name == name]
    if not found:
        raise responses.not_found("Tag")
    return _tag_rows(project, git, found)[0]


def _tag_rows(project: Project, git: GitRepository, refs: list[Ref]) -> list[Row]:
    shas = [ref.commit for ref in refs if ref.commit]
    commits = {row["id"]: row for row in with_address(project, git.commits(shas))}
    return [
        {
            "name": ref.name,
            "message": ref.message,
            "target": ref.target,
            "commit": commits.get(ref.commit or ""),
            "release": None,
            "protected": False,
            "created_at": ref.created_at,
        }
        for ref in refs
    ]


def _searched(refs: list[Ref], search: str | None) -> list[Ref]:
    if not search:
        return refs
    if search.startswith("^"):
        return [ref for ref in refs if ref.name.startswith(search[1:])]
    if search.endswith("$"):
        return [ref for ref in refs if ref.name.endswith(search[:-1])]
    return [ref for ref in refs if search in ref.name]


def _by_time(git: GitRepository, refs: list[Ref], *, down: bool) -> list[Ref]:
    shas = sorted({ref.commit for ref in refs if ref.commit})
    times = {row["id"]: committed_seconds(row) for row in git.commits(shas)}
    return sorted(refs, key=lambda ref: times.get(ref.commit or "", 0.0), reverse=down)


def _page_of_refs(ask: Ask, refs: list[Ref]) -> Page:
    pager, token = ask.pager(), ask.values["page_token"]
    if ask.values["pagination"] == "keyset":
        if token is not None:
            names = [ref.name for ref in refs]
            if token not in names:
                raise responses.message(422, "Invalid page token: refs/heads/" + token)
            refs = refs[names.index(token) + 1 :]
        return pager.keyset(refs, lambda ref: {"page_token": ref.name}, full_only=True)
    if pager.page == 1 and refs and ask.gitlab.behaviour.first_page_quirk:
        return pager.first_page(refs, len(refs))
    return pager.over(refs)


# --- Comparisons ----------------------------------------------------------------------------------------


def _compare(ask: Ask) -> Row:
    project = ask.project()
    git = ask.repository(project)
    other = ask.values["from_project_id"]
    if other is not None and other != project.id:
        text = f"Target project id:{other} is not a fork of project id:{project.id}"
        raise responses.message(400, text)
    old, new = git.resolve(ask.values["from"]), git.resolve(ask.values["to"])
    if old is None or new is None:
        raise responses.not_found("Ref")
    commits = with_address(project, git.commits(git.shas([new, f"^{old}"], ["--reverse"])))
    base = old if ask.values["straight"] else git.merge_base([old, new])
    dots = ".." if ask.values["straight"] else "..."
    return {
        "commit": commits[-1] if commits else None,
        "commits": commits,
        "diffs": git.diff(base, new) if base else [],
        "compare_timeout": False,
        "compare_same_ref": old == new,
        "web_url": f"{EXTERNAL}/{project.full_path}/-/compare/{old}{dots}{new}",
    }


def _merge_base(ask: Ask) -> Row:
    project = ask.project()
    git, refs = ask.repository(project), ask.values["refs"]
    if len(refs) < 2:
        raise responses.message(400, "Provide at least 2 refs, 1 provided")
    found: list[Any] = [git.resolve(ref) for ref in refs]
    unknown = [ref for ref, sha in zip(refs, found, strict=True) if sha is None]
    if unknown:
        raise responses.message(400, f"Could not find ref{'s' * (len(unknown) > 1)}: {', '.join(unknown)}")
    base = git.merge_base(found)
    if base is None:
        raise responses.not_found("Merge Base")
    return with_address(project, git.commits([base]))[0]


_TREE = "/projects/{id}/repository"
ENDPOINTS = (
    Endpoint(f"{_TREE}/commits", _commits, _COMMITS, locked=False),
    Endpoint(f"{_TREE}/commits/{{sha}}", _one_commit, {"stats": Parameter("bool", True)}, locked=False),
    Endpoint(f"{_TREE}/commits/{{sha}}/diff", _commit_diff, PAGING, locked=False),
    Endpoint(
        f"{_TREE}/commits/{{sha}}/refs",
        _commit_refs,
        PAGING | {"type": choice("all", "branch", "tag", "all")},
        locked=False,
    ),
    Endpoint(f"{_TREE}/commits/{{sha}}/sequence", _sequence, locked=False),
    Endpoint(f"{_TREE}/commits/{{sha}}/merge_requests", _requests_of_commit, PAGING, locked=False),
    Endpoint(f"{_TREE}/branches", _branches, _BRANCHES, locked=False),
    Endpoint(f"{_TREE}/branches/{{branch}}", _one_branch, locked=False),
    Endpoint(f"{_TREE}/tags", _tags, _TAGS, locked=False),
    Endpoint(f"{_TREE}/tags/{{tag}}", _one_tag, locked=False),
    Endpoint(f"{_TREE}/compare", _compare, _COMPARE, locked=False),
    Endpoint(f"{_TREE}/merge_base", _merge_base, {"refs": Parameter("texts", required=True)}, locked=False),
)
"""All routes of this module."""
