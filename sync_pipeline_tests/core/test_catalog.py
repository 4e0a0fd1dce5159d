"""The catalog without a database: names of repositories, what follows from them, the snapshot file."""

from __future__ import annotations

import itertools
import json
import re
import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Kind, Lifecycle, Repository, RevisionWindow

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
SECRET = "hunter2"


def repository(repo_id: int, url: str = "file:///srv/paint", **other: object) -> Repository:
    known = Repository(
        repo_id=repo_id,
        kind=Kind.SVN,
        instance="local",
        instance_slug="local",
        tenant="srv",
        slug=f"srv_paint_{repo_id}",
        url=url,
        lifecycle=Lifecycle.ACTIVE,
        created_at=NOW,
        svn_uuid="a-uuid",
        svn_root=url,
    )
    return replace(known, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("svn:svn://Host.Example.COM/repo/", "svn:svn://host.example.com/repo"),
        ("SVN:SVN://host:3690/repo", "svn:svn://host/repo"),
        ("svn:svn://host:3691/repo", "svn:svn://host:3691/repo"),
        ("svn:http://host:80//a///b/./c/../d", "svn:http://host/a/b/d"),
        ("svn:https://host:443/", "svn:https://host"),
        ("svn:https://host:80/", "svn:https://host:80"),
        ("svn:svn+ssh://me@host:22/srv/repo", "svn:svn+ssh://me@host/srv/repo"),
        ("svn:file:///srv/repo", "svn:file:///srv/repo"),
        ("svn:file://localhost/srv/repo", "svn:file:///srv/repo"),
        ("svn:file:///srv/a b/ü", "svn:file:///srv/a%20b/%C3%BC"),
        ("svn:file:///srv/%7ea%2fb", "svn:file:///srv/~a/b"),
        ("svn:file:///srv/a@b", "svn:file:///srv/a@b"),
        ("svn:file:///srv/what?#", "svn:file:///srv/what%3F%23"),
        ("svn:svn://[2001:DB8::1]:3690/repo", "svn:svn://[2001:db8::1]/repo"),
        ("  svn:file:///srv/repo\n", "svn:file:///srv/repo"),
        ("gitlab:0123", "gitlab:123"),
        ("gitlab:/group/sub/project/", "gitlab:group/sub/project"),
        ("gitlab:https://H.Example.com:443/group/project.git", "gitlab:https://h.example.com/group/project"),
        ("gitlab:http://h:8080/git/a/b/-/merge_requests/3?x=1#n", "gitlab:http://h:8080/git/a/b"),
        ("gitlab:https://h/api/v4/projects/012", "gitlab:https://h/projects/12"),
    ],
)
def test_one_repository_has_one_name(written: str, normal: str) -> None:
    assert str(catalog.parse_spec(written)) == normal
    assert str(catalog.parse_spec(normal)) == normal


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ("", "empty"),
        ("paint", "svn:<url>"),
        ("git:https://host/x", "svn:<url>"),
        ("https://host/repo", "write gitlab:https://host/repo or svn:https://host/repo"),
        ("svn://host/repo", "write svn:svn://host/repo"),
        ("svn:", "names no repository"),
        ("svn:host/repo", "svn+ssh://"),
        ("svn:ftp://host/repo", "svn+ssh://"),
        ("svn:http:///repo", "host"),
        ("svn:http://host:99999/repo", "port"),
        ("svn:http://host:x/repo", "port"),
        ("svn:svn+ssh://-oProxyCommand=x/repo", "host"),
        ("svn:svn+ssh://-o@host/repo", "user name"),
        ("svn:file://server/srv", "file:///absolute/path"),
        ("svn:http://host/a/../..", "above the root"),
        ("svn:http://host/a/%2e%2e/..", "above the root"),
        ("svn:http://host/100%", "%25"),
        ("svn:http://host/a\x00b", "control characters"),
        ("svn:http://host/a%0Ab", "control characters"),
        ("svn:http://host/\udcff", "control characters"),
        ("gitlab:", "names no repository"),
        ("gitlab:project", "scm-sync root add gitlab:group:project"),
        ("gitlab:group:platform", "scm-sync root add gitlab:group:platform"),
        ("gitlab://h/a/b", "write gitlab:https://h/a/b"),
        ("gitlab:https://h/group", "gitlab:<server>/projects/<id>"),
        ("gitlab:https://h/groups/12", "gitlab:<server>/projects/<id>"),
        ("gitlab:ftp://h/a/b", "starts with https://"),
        ("gitlab:https:///a/b", "host"),
        ("gitlab:https://h/a/../b", "no path that a GitLab has"),
        ("gitlab:a/..", "gitlab:<group>/<project>"),
        ("gitlab:0", "gitlab:<group>/<project>"),
        ("gitlab:a/../b c", "gitlab:<group>/<project>"),
    ],
)
def test_what_names_no_repository_is_refused_in_one_line(written: str, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        catalog.parse_spec(written)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("gitlab:group:/platform/tools/", "gitlab:group:platform/tools"),
        ("GitLab:Group:012", "gitlab:group:12"),
        ("gitlab:group:https://H/git/groups/platform/-/issues", "gitlab:group:https://h/git/groups/platform"),
        ("gitlab:membership", "gitlab:membership"),
        ("gitlab:membership:https://H:443/", "gitlab:membership:https://h"),
    ],
)
def test_one_root_has_one_name(written: str, normal: str) -> None:
    assert str(catalog.parse_root(written)) == normal
    assert str(catalog.parse_root(normal)) == normal


@pytest.mark.parametrize("written", ["", "gitlab:12", "svn:group:a", "gitlab:group:", "gitlab:membership:me"])
def test_what_names_no_root_is_refused_with_the_forms(written: str) -> None:
    with pytest.raises(ConfigurationError, match="write gitlab:group:<path or id> or gitlab:membership"):
        catalog.parse_root(written)


@pytest.mark.parametrize(
    "written",
    [
        f"svn:https://me:{SECRET}@host/repo",
        f"svn:https://{SECRET}@host/repo",
        f"svn:svn+ssh://me:{SECRET}@host/repo",
        f"svn:https://me:{SECRET}/x@host/repo",
        f"svn:https://me:12/{SECRET}@host/repo",
        f"svn:svn+ssh://me:12/{SECRET}@host/repo",
        f"gitlab:https://me:12/{SECRET}@host/group/project",
        f"svn:me:{SECRET}@host/repo",
        f"https://me:{SECRET}@host/repo",
        f"svn://me:{SECRET}@host/repo",
        f"gitlab:https://oauth2:{SECRET}@host/repo",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        catalog.parse_spec(written)
    assert SECRET not in str(caught.value)


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1), max_size=4))
def test_a_normal_url_stays_as_it_is(segments: list[str]) -> None:
    try:
        once = catalog.normalise_url("svn://host/" + "/".join(segments))
    except ConfigurationError:
        return
    assert catalog.normalise_url(once) == once
    assert once.isascii()


@pytest.mark.parametrize(
    ("url", "instance", "slug"),
    [
        ("file:///srv/Paint-Shop", "local", "paint_shop"),
        ("svn://svn.example.com/a/b.c", "svn.example.com", "a__b_c"),
        ("svn://svn.example.com:3691", "svn.example.com:3691", "repository"),
        ("svn+ssh://me@h/%C3%BCber/Stra%C3%9Fe", "h", "uber__strasse"),
        ("http://h/%E6%97%A5/x", "h", "x"),
        ("http://h/%E6%97%A5", "h", "repository"),
    ],
)
def test_names_follow_from_the_address(url: str, instance: str, slug: str) -> None:
    assert catalog.instance_of(url) == instance
    # Folders such as repos or tmp own nothing.
    assert catalog.tenant_of(url) == instance
    assert catalog.slug_of(url) == slug


def test_names_of_a_project_follow_from_its_path() -> None:
    assert catalog.tenant_of("Platform/tools/api.v2") == "Platform"
    assert catalog.slug_of("Platform/tools/api.v2") == "platform__tools__api_v2"
    assert catalog.slug_of("a/b__c/_d-") == "a__b_c__d", "two underscores are a slash and nothing else"


def test_a_part_of_a_repository_in_a_folder_is_called_by_repository_and_part() -> None:
    assert catalog.slug_of("file:///srv/svn/paint/branches/1.x", "branches/1.x") == "paint__branches__1_x"
    assert catalog.slug_of("file:///srv/svn/paint", "") == "paint"


def test_repositories_below_several_roots_of_one_server_have_different_slugs() -> None:
    urls = ("https://h/svn/paint", "https://h/old/paint", "https://h/svn/paint/trunk")
    assert [catalog.slug_of(url) for url in urls] == ["svn__paint", "old__paint", "svn__paint__trunk"]


def test_a_very_long_path_keeps_its_end_in_the_slug() -> None:
    slug = catalog.slug_of("svn://h/" + "very/" * 30 + "last")
    assert (slug[:6], slug[-6:], len(slug) <= 64) == ("very__", "__last", True)
    assert catalog.slug_of("svn://h/a/" + "x" * 5000) == "x" * 64


def test_a_slug_gets_numbers_only_as_far_as_it_has_to() -> None:
    assert list(islice(catalog.slugs_for("a_b", 12, 3), 5)) == [
        "a_b",
        "a_b_12",
        "a_b_12_3",
        "a_b_12_3_2",
        "a_b_12_3_3",
    ]


@pytest.mark.parametrize(
    ("kind", "instance", "aliases"),
    [
        ("gitlab", "gitlab.com", ["gitlab", "gitlab_com", "gitlab_com_gitlab", "gitlab_com_2"]),
        ("gitlab", "git.acme.com", ["git", "git_acme", "git_acme_com"]),
        ("gitlab", "code.acme.com:8443", ["code", "code_8443", "code_gitlab", "code_acme"]),
        ("svn", "www.acme.com", ["acme", "acme_svn", "acme_com"]),
        ("gitlab", "127.0.0.1:38721", ["gitlab", "gitlab_38721", "gitlab_38721_gitlab", "gitlab_2"]),
        ("svn", "[::1]:80", ["svn", "svn_80"]),
        ("svn", "localhost", ["svn", "svn_svn"]),
        ("svn", "10.1.2.3", ["10_1_2_3", "10_1_2_3_svn"]),
        ("svn", "[fe80::1]:3691", ["fe80_1", "fe80_1_3691"]),
        ("svn", "local", ["local", "local_svn", "local_2"]),
        ("svn", "fleet.acme.com", ["fleet_svn", "fleet_acme"]),
        ("svn", "_", ["svn", "svn_svn", "svn_2"]),
    ],
)
def test_the_alias_of_a_server_is_short_and_from_its_host(
    kind: str, instance: str, aliases: list[str]
) -> None:
    assert list(islice(catalog.aliases_for(Kind(kind), instance), len(aliases))) == aliases


@given(st.from_regex(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", fullmatch=True), st.sampled_from(Kind))
def test_every_host_has_aliases_that_dagster_takes(instance: str, kind: Kind) -> None:
    aliases = list(islice(catalog.aliases_for(kind, instance), 20))
    assert len(set(aliases)) == 20
    assert "fleet" not in aliases
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", alias) for alias in aliases)


def test_the_prefix_is_what_lies_below_the_root() -> None:
    assert catalog.svn_prefix_of("svn://h/r", "svn://h/r") == ""
    assert catalog.svn_prefix_of("svn://h/r/trunk/a%20b", "svn://h/r") == "trunk/a b"
    with pytest.raises(ConfigurationError, match="register that URL instead"):
        catalog.svn_prefix_of("svn://h/rest", "svn://h/r")


@pytest.mark.parametrize(
    ("revision", "block"), [(0, (1, 1001)), (1, (1, 1001)), (1000, (1, 1001)), (1001, (1001, 2001))]
)
def test_blocks_have_a_thousand_revisions_from_one(revision: int, block: tuple[int, int]) -> None:
    assert catalog.block_of(revision) == RevisionWindow(*block)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_window_is_cut_at_the_edges_of_blocks(first: int, length: int) -> None:
    window = RevisionWindow(first + 1, first + 1 + length)
    pieces = list(catalog.blocks(window))
    assert sum(map(len, pieces)) == length
    assert all(catalog.block_of(p.first) == catalog.block_of(p.end - 1) for p in pieces)
    assert all(a.end == b.first for a, b in itertools.pairwise(pieces))


def test_a_snapshot_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state" / "catalog.json"
    entries = [repository(2, "svn://h/ü"), repository(1, lifecycle=Lifecycle.RETIRED)]
    day = date(2011, 2, 3)
    written = catalog.write_snapshot(path, entries, head_rev=1001, written_at=NOW, history_start=day)
    assert catalog.read_snapshot(path) == written
    assert written.history_start == day
    assert [entry.repo_id for entry in written.repositories] == [1, 2]
    assert path.stat().st_mode & 0o777 == 0o644


def test_without_a_file_the_catalog_is_empty(tmp_path: Path) -> None:
    assert catalog.read_snapshot(tmp_path / "absent.json") == catalog.CatalogSnapshot()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: {**content, "version": 1},
        lambda content: {**content, "version": 99},
        lambda content: {**content, "history_start": "soon"},
        lambda content: {**content, "repositories": [{"repo_id": 1}]},
        lambda content: {**content, "repositories": [{**content["repositories"][0], "more": 1}]},
        lambda content: [],
        lambda content: {},
    ],
)
def test_a_foreign_snapshot_is_refused_with_the_remedy(tmp_path: Path, change) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "catalog.json"
    catalog.write_snapshot(path, [repository(1)], head_rev=1, written_at=NOW)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigurationError, match="scm-sync catalog export"):
        catalog.read_snapshot(path)


@pytest.mark.parametrize("content", [b"", b'{"version": 2, "repos', b"\xff\xfe"])
def test_a_torn_snapshot_is_refused_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "catalog.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="scm-sync catalog export"):
        catalog.read_snapshot(path)


@pytest.mark.parametrize("content", [b"", b'{"version": 2, "repos', b"\xff\xfe", b"[]"])
def test_a_damaged_snapshot_is_replaced_by_its_copy_until_it_is_written_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "catalog.json"
    written = catalog.write_snapshot(path, [repository(1)], head_rev=1, written_at=NOW)
    path.write_bytes(content)
    assert catalog.load_snapshot(path) == written
    assert "scm-sync catalog export; its copy is in use meanwhile" in caplog.text
    catalog.copy_of(path).write_bytes(content)
    with pytest.raises(ConfigurationError, match="scm-sync catalog export"):
        catalog.load_snapshot(path)
    catalog.copy_of(path).unlink()
    with pytest.raises(ConfigurationError, match="scm-sync catalog export"):
        catalog.load_snapshot(path)
    catalog.write_snapshot(path, [repository(2)], head_rev=1, written_at=NOW)
    assert catalog.load_snapshot(path).repositories == (repository(2),)
    # What another version wrote is no damage.
    path.write_text('{"version": 1}')
    with pytest.raises(ConfigurationError, match="has version 1"):
        catalog.load_snapshot(path)


def test_a_snapshot_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    path.mkdir()
    with pytest.raises(ConfigurationError, match="SCM_STATE_DIR"):
        catalog.write_snapshot(path, [], head_rev=0, written_at=NOW)
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    few, many = [repository(1)], [repository(number) for number in range(1, 300)]
    catalog.write_snapshot(path, few, head_rev=1, written_at=NOW)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for entries in (many, few):
                catalog.write_snapshot(path, entries, head_rev=1, written_at=NOW)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        sizes = {len(catalog.read_snapshot(path).repositories) for _ in range(50)}
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert sizes <= {len(few), len(many)}


def test_only_narrows_to_one_repository() -> None:
    snapshot = catalog.CatalogSnapshot((repository(1), repository(2, "svn://h/other")), head_rev=5)
    assert catalog.narrow(snapshot, "") is snapshot
    narrowed = catalog.narrow(snapshot, "svn:svn://H/other/")
    assert [entry.repo_id for entry in narrowed.repositories] == [2]
    assert narrowed.head_rev == 5
    with pytest.raises(
        ConfigurationError, match=r"SCM_ONLY: .*svn:svn://h/othr; did you mean svn:svn://h/other"
    ):
        catalog.narrow(snapshot, "svn:svn://h/othr")
    with pytest.raises(ConfigurationError, match="SCM_ONLY: ") as refused:
        catalog.narrow(snapshot, "gitlab:nope/x")
    assert str(refused.value).endswith(
        "run: scm-sync repo add gitlab:nope/x; if it is registered already, run: scm-sync catalog export"
    )


def test_the_active_repository_of_a_place_goes_before_its_retired_ones() -> None:
    retired = Lifecycle.RETIRED
    entries = [repository(1, lifecycle=retired), repository(2), repository(3, lifecycle=retired)]
    spec = catalog.parse_spec("svn:file:///srv/paint")
    found = catalog.find(entries, spec)
    assert found is not None
    assert found.repo_id == 2
    found = catalog.find([entries[0], entries[2]], spec)
    assert found is not None
    assert found.repo_id == 3


def project(repo_id: int, base: str = "https://g/git", **other: object) -> Repository:
    values: dict[str, object] = {"project_id": 12, "project_path": "a/b", "svn_uuid": None, "svn_root": None}
    values |= {"kind": Kind.GITLAB, "instance": catalog.instance_of(base)} | other
    return repository(repo_id, f"{base}/projects/{values['project_id']}", **values)


@pytest.mark.parametrize(
    "text",
    ["12", "a/b", "A/B", "https://g/git/a/b", "https://G/git/A/b.git", "https://g/git/projects/12"],
)
def test_a_gitlab_project_is_found_by_id_path_and_url(text: str) -> None:
    known = project(1)
    entries = [project(2, project_id=13, project_path="a/c"), known]
    assert catalog.find(entries, catalog.parse_spec(f"gitlab:{text}")) is known
    assert catalog.narrow(catalog.CatalogSnapshot(tuple(entries)), f"gitlab:{text}").repositories == (known,)
    for other in ("gitlab:14", "gitlab:a/d", "gitlab:https://h/git/a/b", "gitlab:https://g/a/b"):
        assert catalog.find(entries, catalog.parse_spec(other)) is None
    with pytest.raises(ConfigurationError, match=r"SCM_ONLY: .*did you mean gitlab:a/b"):
        catalog.narrow(catalog.CatalogSnapshot((known,)), "gitlab:a/bb")


def test_a_project_of_several_servers_has_to_be_named_by_its_url() -> None:
    here, there = project(1), project(2, "https://h")
    for text in ("gitlab:12", "gitlab:a/b"):
        with pytest.raises(ConfigurationError) as caught:
            catalog.find([here, there], catalog.parse_spec(text))
        assert f"gitlab:{here.url} or gitlab:{there.url}" in str(caught.value)
    assert catalog.find([here, there], catalog.parse_spec(f"gitlab:{there.url}")) is there
    retired = replace(here, lifecycle=Lifecycle.RETIRED)
    assert catalog.find([retired, there], catalog.parse_spec("gitlab:12")) is there


def test_the_page_of_a_project_is_at_its_latest_path() -> None:
    assert catalog.web_url_of(project(1)) == "https://g/git/a/b"
    assert catalog.web_url_of(repository(1)) == "file:///srv/paint"


def test_what_lies_below_a_server() -> None:
    assert catalog.below("https://g/git/a/b", "https://g/git") == "a/b"
    assert catalog.below("https://g/git", "https://g/git") == ""
    assert catalog.below("https://g/github/a", "https://g/git") is None


@pytest.mark.parametrize(
    ("url", "root", "path"),
    [
        (
            "https://svn.example.com/repos/long%20name/trunk",
            "https://svn.example.com/repos",
            "repos/long name/trunk",
        ),
        ("svn://svn.example.com", "svn://svn.example.com", "svn://svn.example.com"),
        ("file:///srv/svn/paint/trunk", "file:///srv/svn/paint", "paint/trunk"),
        ("file:///srv/svn/paint", None, "paint"),
    ],
)
def test_lists_call_an_svn_repository_by_its_path(url: str, root: str | None, path: str) -> None:
    repository = Repository(
        repo_id=1,
        kind=Kind.SVN,
        instance="svn.example.com",
        instance_slug="svn",
        tenant="acme",
        slug="paint",
        url=url,
        lifecycle=Lifecycle.ACTIVE,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        svn_root=root,
    )
    assert catalog.path_of(repository) == path
