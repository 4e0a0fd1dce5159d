"""What real repositories do to readers: missing properties, odd bytes, odd names, copies, hidden and damaged
revisions, bad answers and servers that do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from sync_pipeline.core.errors import (
    AccessDenied,
    Cancelled,
    ConfigurationError,
    SourceGone,
    Transient,
    WindowTooHard,
)
from sync_pipeline.core.model import PathChange, RevisionPage, RevisionRow, RevisionWindow, Visibility
from sync_pipeline.sources.svn import Client
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_sandbox.svn_samples import growing
from sync_pipeline_tests.sources.truth import assert_equal
from sync_pipeline_tests.svn_fixtures import SvnRepository, SvnServers, free_port

Factory = Callable[..., SvnRepository]
DATE = "2020-01-02T03:04:05.678901Z"


def reader_of(url: str, prefix: str = "", **client: str | float) -> SvnReader:
    return SvnReader(
        Client(**client),  # type: ignore[arg-type]
        url,
        prefix,
        log_timeout=60,
        info_timeout=60,
        attempts=1,
    )


def read(reader: SvnReader, first: int, end: int) -> RevisionPage:
    (batch,) = reader.read(RevisionWindow(first, end))
    return batch


def rows_of(reader: SvnReader, end: int, first: int = 1) -> list[RevisionRow]:
    return list(read(reader, first, end).rows)


def one(batch: RevisionPage) -> RevisionRow:
    (row,) = batch.rows
    return row


def plain(number: int) -> bytes:
    """A dump of ``number`` revisions that each add a file."""
    writer = DumpWriter()
    for index in range(1, number + 1):
        writer.revision(f"m{index}", "dev", DATE).node(f"f{index}", text="x")
    return writer.dump()


# Properties


def test_missing_properties_are_none_and_empty_ones_are_empty(svn_repository: Factory) -> None:
    writer = DumpWriter().revision().node("a", text="x").revision("", "", DATE).node("b", text="y")
    rows = rows_of(reader_of(svn_repository(dump=writer.dump()).url), 3)
    assert [(r.author_raw, r.ts, r.message) for r in rows] == [
        (None, None, None),
        ("", datetime(2020, 1, 2, 3, 4, 5, 678901, UTC), ""),
    ]
    assert {r.visibility for r in rows} == {Visibility.FULL}


def test_a_bad_date_is_kept_raw(svn_repository: Factory) -> None:
    dump = DumpWriter().revision("m", "a", "yesterday").node("a", text="x").dump()
    row = one(read(reader_of(svn_repository(dump=dump).url), 1, 2))
    assert (row.ts, row.flags, row.raw) == (None, ("bad_date",), {"svn:date": b"yesterday"})


def test_control_characters_of_a_message_come_back_exactly(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("esc \x1b[1m and \x01", "de\x02v", DATE).node("a", text="x")
    writer.revision("a real ?\\027 of somebody", "dev", DATE).node("b", text="x")
    reader = reader_of(svn_repository(dump=writer.dump()).url)
    first, second = rows_of(reader, 3)
    assert (first.message, first.author_raw) == ("esc \x1b[1m and \x01", "de\x02v")
    assert first.flags == ("control_characters",)
    assert (second.message, second.flags) == ("a real ?\\027 of somebody", ())
    assert one(reader.read_single(1)).message == "esc \x1b[1m and \x01"


def test_invalid_utf8_in_a_message_is_flagged_and_kept_raw(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("fine", "dev", DATE).node("a", text="x")
    writer.revision(b"caf\xe9", b"J\xf6rg", DATE).node("b", text="x")
    writer.revision("also fine", "dev", DATE).node("c", text="x")
    reader = reader_of(svn_repository(dump=writer.dump()).url)
    fine, broken, also_fine = rows_of(reader, 4)
    for row in (broken, one(reader.read_single(2)), one(read(reader, 2, 3))):
        assert (row.message, row.author_raw) == ("caf\ufffd", "J\ufffdrg")
        assert row.flags == ("invalid_utf8",)
        assert row.raw == {"svn:log": b"caf\xe9", "svn:author": b"J\xf6rg"}
        assert [p.path for p in row.paths] == ["/b"]
    assert (fine.message, also_fine.message) == ("fine", "also fine")
    assert (fine.flags, also_fine.flags) == ((), ())


@pytest.mark.parametrize("way", ["file", "svn"])
def test_broken_revisions_cost_no_command_but_for_control_characters(
    way: str, svn_repository: Factory, svnserve: SvnServers
) -> None:
    """One command for 300 revisions, whatever bytes they hold; one more for each whose text svn replaced."""
    latin, replaced = set(range(7, 301, 5)), {50, 150}
    writer = DumpWriter()
    for number in range(1, 301):
        message = b"caf\xe9 \r\n %d" % number if number in latin else b"plain %d" % number
        writer.revision(message + b"\x02" * (number in replaced), "J\xfcrgen", DATE)
        writer.node(f"f{number}", text="x")
    repository = svn_repository(dump=writer.dump())
    reader = reader_of(repository.url if way == "file" else svnserve(repository).url(repository))
    batch = read(reader, 1, 301)
    rows = list(batch.rows)
    assert reader.calls == 1 + len(replaced)
    assert not batch.deferred
    assert [row.rev_num for row in rows if row.flags == ("invalid_utf8",)] == sorted(latin)
    assert {row.raw.get("svn:log") for row in rows} == {None, *(b"caf\xe9 \r\n %d" % n for n in latin)}
    assert [row.rev_num for row in rows if "\x02" in (row.message or "")] == sorted(replaced)
    assert [[p.path for p in row.paths] for row in rows] == [[f"/f{number}"] for number in range(1, 301)]


def test_other_revision_properties_are_kept(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("m", "dev", DATE, build_id=b"77", odd=b"\x01\xff").node("a", text="x")
    row = one(read(reader_of(svn_repository(dump=writer.dump()).url), 1, 2))
    assert row.revprops["build:id"] == "77"
    assert set(row.revprops) == {"build:id", "odd"}


def test_messages_that_look_like_a_log_stay_messages(svn_repository: Factory) -> None:
    message = "-" * 72 + "\nr5 | bob | 2020\n</msg></logentry></log>]]>&amp; <b>\ttab\rcr\r\nend\n"
    dump = DumpWriter().revision(message, "dev", DATE).node("a", text="x").dump()
    reader = reader_of(svn_repository(dump=dump).url)
    assert one(read(reader, 1, 2)).message == message
    assert one(reader.read_single(1)).message == message


# Paths


def test_odd_names_read_as_they_are(svn_repository: Factory) -> None:
    names = [
        "a@2x.png",
        "100%.txt",
        "%41",
        "mit leer zeichen",
        "ünï/日本",
        "q?x=1&y",
        "<tag>",
        "-x",
        "a'\"b",
        "#1",
        "a\\b",
    ]
    writer = DumpWriter().revision("m", "dev", DATE).directory("ünï")
    for name in names:
        writer.node(name, text="x")
    repository = svn_repository("odd @ 50% ünï #1", writer.dump())
    assert_equal(rows_of(reader_of(repository.url), 2), repository)
    raw = f"file://{repository.path}"
    assert reader_of(raw.replace("50%", "50%25")).visit().head == 1


@pytest.mark.parametrize("prefix", ["a@b", "100%", "mit leer", "日本"])
def test_a_prefix_with_an_odd_name_filters(prefix: str, svn_repository: Factory) -> None:
    writer = DumpWriter().revision("m", "dev", DATE).directory(prefix)
    writer.revision("other", "dev", DATE).directory("else")
    writer.revision("in", "dev", DATE).node(f"{prefix}/x", text="x")
    reader = reader_of(svn_repository(dump=writer.dump()).url, prefix)
    assert [row.rev_num for row in rows_of(reader, 4)] == [1, 3]


def test_control_characters_in_a_path_come_back_exactly(svn_repository: Factory) -> None:
    repository = svn_repository(dump=plain(1))
    repository.load(_node_only("odd\x01name"))
    reader = reader_of(repository.url)
    for row in (rows_of(reader, 3)[1], one(reader.read_single(2))):
        assert [p.path for p in row.paths] == ["/odd\x01name"]
        assert row.flags == ("control_characters",)
        assert row.message == "odd"


def _node_only(path: str) -> bytes:
    return DumpWriter().revision("odd", "dev", DATE).node(path, text="x").dump()


def test_replace_copy_delete_and_recreate(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("m", "dev", DATE).directory("a").node("a/f", text="1").directory("tags")
    writer.revision("tag", "dev", DATE).node("tags/one", kind="dir", copyfrom=(1, "a"))
    writer.revision("gone", "dev", DATE).node("a/f", "delete")
    writer.revision("back", "dev", DATE).node("a/f", text="2")
    writer.revision("replaced", "dev", DATE).node("a/f", "delete").node("a/f", copyfrom=(2, "tags/one/f"))
    writer.revision("renamed", "dev", DATE).node("b", kind="dir", copyfrom=(5, "a")).node("a", "delete")
    repository = svn_repository(dump=writer.dump())
    rows = rows_of(reader_of(repository.url), 7)
    assert_equal(rows, repository)
    assert list(rows[1].paths) == [PathChange("/tags/one", "A", "dir", "/a", 1, False, False)]
    (replaced,) = rows[4].paths
    assert (replaced.action, replaced.copyfrom_path, replaced.copyfrom_rev) == ("R", "/tags/one/f", 2)


def test_empty_and_property_only_revisions_count(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("nothing", "dev", DATE)
    writer.revision("d", "dev", DATE).directory("d")
    writer.revision("p", "dev", DATE).node("d", "change", kind="dir", props={b"x": b"1"})
    writer.revision("root", "dev", DATE).node("", "change", kind="dir", props={b"svn:ignore": b"*.o\n"})
    repository = svn_repository(dump=writer.dump())
    rows = rows_of(reader_of(repository.url), 5)
    assert_equal(rows, repository)
    assert [list(row.paths) for row in rows][::2] == [
        [],
        [PathChange("/d", "M", "dir", None, None, False, True)],
    ]


def test_a_prefix_keeps_what_concerns_it(svn_repository: Factory) -> None:
    writer = DumpWriter().revision("dirs", "dev", DATE).directory("p").directory("q")
    writer.revision("inside", "dev", DATE).directory("p/lib").node("p/lib/f", text="1").node("q/g", text="1")
    writer.revision("elsewhere", "dev", DATE).node("q/h", text="1").directory("p/library")
    writer.revision("props above", "dev", DATE).node("p", "change", kind="dir", props={b"x": b"1"})
    writer.revision("above gone", "dev", DATE).node("p", "delete")
    writer.revision("above back", "dev", DATE).node("p", kind="dir", copyfrom=(4, "p"))
    repository = svn_repository(dump=writer.dump())
    rows = rows_of(reader_of(repository.url, "p/lib"), 7)
    assert [(row.rev_num, [p.path for p in row.paths]) for row in rows] == [
        (1, ["/p"]),
        (2, ["/p/lib", "/p/lib/f"]),
        (5, ["/p"]),
        (6, ["/p"]),
    ]


# Access


AUTHZ = "[/]\n* = r\n[/secret]\n* =\n"


def test_hidden_and_partly_hidden_revisions_are_marked(svn_repository: Factory, svnserve: SvnServers) -> None:
    writer = DumpWriter().revision("dirs", "dev", DATE).directory("open").directory("secret")
    writer.revision("hidden", "dev", DATE).node("secret/a", text="x")
    writer.revision("half", "dev", DATE).node("secret/b", text="x").node("open/b", text="x")
    writer.revision("seen", "dev", DATE).node("open/c", text="x")
    repository = svn_repository(dump=writer.dump())
    url = svnserve(repository, authz=AUTHZ).url(repository)
    rows = rows_of(reader_of(url), 5)
    assert [row.visibility for row in rows] == [
        Visibility.PARTIAL,
        Visibility.HIDDEN,
        Visibility.PARTIAL,
        Visibility.FULL,
    ]
    assert (rows[1].author_raw, rows[1].ts, rows[1].message, list(rows[1].paths)) == (None, None, None, [])
    assert rows[2].author_raw == "dev"
    assert [p.path for p in rows[2].paths] == ["/open/b"]
    assert one(reader_of(url).read_single(2)).visibility is Visibility.HIDDEN
    assert [row.rev_num for row in rows_of(reader_of(url, "open"), 5)] == [1, 3, 4]


def test_a_hidden_root_is_denied(svn_repository: Factory, svnserve: SvnServers) -> None:
    repository = svn_repository(dump=plain(2))
    url = svnserve(repository, authz="[/]\n* =\n").url(repository)
    with pytest.raises(AccessDenied, match="refuses access"):
        reader_of(url).visit()
    with pytest.raises(AccessDenied):
        reader_of(url).read_single(1)


def test_a_password_is_used_and_a_wrong_or_missing_one_denied(
    svn_repository: Factory, svnserve: SvnServers
) -> None:
    repository = svn_repository(dump=plain(2))
    secret = "corr3ct horse 'battery\" staple"
    url = svnserve(repository, users={"ann": secret}, anonymous="none").url(repository)
    good = reader_of(url, username="ann", password=secret)
    assert good.visit().head == 2
    assert len(rows_of(good, 3)) == 2
    for login in ({}, {"username": "ann", "password": "hunter2-wrong"}, {"username": "ann"}):
        started = time.monotonic()
        with pytest.raises(AccessDenied) as caught:
            reader_of(url, **login).visit()
        assert time.monotonic() - started < 60
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


# Servers


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceGone, match="check the URL"):
        reader_of((tmp_path / "nothing").as_uri()).visit()
    with pytest.raises(Transient, match="cannot reach") as caught:
        reader_of(f"svn://user:hunter2@127.0.0.1:{free_port()}/r").visit()
    assert caught.value.code == "connection"
    assert "hunter2" not in str(caught.value)
    for bad in ("nosuch://host/r", "not a url"):
        with pytest.raises(ConfigurationError, match="check the URL"):
            reader_of(bad).visit()
    with pytest.raises(Transient):
        reader_of("svn://does-not-exist.invalid/r").visit()


def test_a_path_below_a_repository_that_is_not_there_is_gone(
    svn_repository: Factory, svnserve: SvnServers
) -> None:
    repository = svn_repository(dump=plain(1))
    with pytest.raises(SourceGone):
        reader_of(repository.url + "/nowhere").visit()
    with pytest.raises(SourceGone):
        reader_of(svnserve(repository).url(repository) + "-other").visit()


def test_a_server_that_never_answers_ends_at_the_limit(silent_server: int) -> None:
    url = f"svn://127.0.0.1:{silent_server}/r"
    reader = SvnReader(Client(), url, "", log_timeout=0.3, info_timeout=0.3)
    with pytest.raises(Transient) as info:
        reader.visit()
    assert info.value.code == "timeout"
    with pytest.raises(WindowTooHard) as log:
        read(reader, 1, 2)
    assert log.value.code == "timeout"
    with pytest.raises(Transient) as single:
        reader.read_single(1)
    assert single.value.code == "timeout"
    assert not isinstance(single.value, WindowTooHard)
    assert not [c for c in psutil.Process().children(recursive=True) if c.name() == "svn"]


def test_a_revision_beyond_head_is_transient(svn_repository: Factory) -> None:
    with pytest.raises(Transient) as caught:
        read(reader_of(svn_repository(dump=plain(2)).url), 1, 99)
    assert caught.value.code == "no_such_revision"


def test_cancel_becomes_cancelled(silent_server: int) -> None:
    client = Client()
    client.callback_cancel = lambda: True
    with pytest.raises(Cancelled):
        SvnReader(client, f"svn://127.0.0.1:{silent_server}/r", "", log_timeout=60, info_timeout=60).visit()


# Damaged revisions and bad answers


def test_a_damaged_revision_costs_only_itself(svn_repository: Factory, svnserve: SvnServers) -> None:
    repository = svn_repository(dump=plain(5))
    repository.damage(3)
    for url in (repository.url, svnserve(repository).url(repository)):
        reader = reader_of(url)
        with pytest.raises(WindowTooHard) as caught:
            read(reader, 1, 6)
        assert caught.value.code == "corrupt"
        assert [row.rev_num for row in rows_of(reader, 3)] == [1, 2]
        batch = reader.read_single(3)
        row = one(batch)
        assert (row.message, list(row.paths)) == ("m3", [])
        (fetch,) = batch.deferred
        assert (fetch.natural_key, fetch.detail) == ("3", "changed_paths")
        settled = reader.settle("3", "changed_paths")
        assert settled.covered is None
        assert settled.deferred[0].detail == "changed_paths"


def test_a_settled_deferred_fetch_is_gone(svn_repository: Factory) -> None:
    repository = svn_repository(dump=plain(3))
    whole = repository.revision_file(2).read_bytes()
    repository.damage(2)
    reader = reader_of(repository.url)
    assert reader.read_single(2).deferred
    repository.revision_file(2).write_bytes(whole)
    batch = reader.settle("2", "changed_paths")
    assert not batch.deferred
    assert [p.path for p in one(batch).paths] == ["/f2"]


HEADER = '<?xml version="1.0" encoding="UTF-8"?>\n<log>\n'
ENTRY = '<logentry\n   revision="{}">\n<msg>m</msg>\n</logentry>\n'


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (HEADER + ENTRY.format(1) + ENTRY.format(2), "truncated"),
        (HEADER + ENTRY.format(1) + '<logentry\n   revision="2">\n<msg>m', "truncated"),
        ("", "truncated"),
        (HEADER + ENTRY.format(1) + "</log>\n", "missing_revisions"),
        (HEADER + ENTRY.format(2) + ENTRY.format(1) + "</log>\n", "missing_revisions"),
        (HEADER + ENTRY.format(1) + ENTRY.format(2) + ENTRY.format(3) + "</log>\n", "missing_revisions"),
        (HEADER + "</log>\n", "missing_revisions"),
        (HEADER + ENTRY.format(1) + ENTRY.format(2).replace("</msg>", "") + "</log>\n", "malformed"),
        (HEADER + ENTRY.format(1) + ENTRY.format(2).replace(">m<", ">&bogus;<") + "</log>\n", "malformed"),
    ],
)
def test_a_bad_answer_stores_nothing(
    answer: str, code: str, fake_svn: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text(answer)
    reader = reader_of("svn://host/r", svn_command=fake_svn(f"cat '{tmp_path / 'answer'}'\n"))
    with pytest.raises(WindowTooHard) as caught:
        read(reader, 1, 3)
    assert caught.value.code == code


def test_a_revision_that_no_way_can_read_goes_to_quarantine(
    fake_svn: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text(HEADER + '<logentry\n   revision="7">\n<msg>half')
    (tmp_path / "other").write_text(HEADER + ENTRY.format(1) + "</log>\n")
    command = fake_svn(
        f'case "$*" in *"-r 1:1"*) cat "{tmp_path / "other"}";; *) cat "{tmp_path / "answer"}";; esac\n'
    )
    batch = reader_of("svn://host/r", svn_command=command).read_single(7)
    assert list(batch.rows) == []
    (row,) = batch.quarantined
    assert (row.natural_key, row.reason) == ("7", "unparseable")
    assert b"half" in row.payload
    # Where no other revision can be read either, the revision is not to blame.
    (tmp_path / "other").write_text("")
    with pytest.raises(Transient, match="answers no question"):
        reader_of("svn://host/r", svn_command=command).read_single(7)


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("svn: E170013: cannot\nsvn: E000111: Connection refused", Transient),
        ("svn: E175002: bad gateway", Transient),
        ("svn: E170013: x\nsvn: E120108: closed", Transient),
        ("svn: E215004: no more credentials", AccessDenied),
        ("svn: E220001: unreadable", AccessDenied),
    ],
)
def test_a_server_at_fault_never_quarantines(
    stderr: str, error: type[Exception], fake_svn: Callable[[str], str]
) -> None:
    command = fake_svn(f"cat >&2 <<'END'\n{stderr}\nEND\nexit 1\n")
    with pytest.raises(error) as caught:
        reader_of("svn://host/r", svn_command=command).read_single(3)
    assert not isinstance(caught.value, WindowTooHard)


def test_a_failed_second_look_keeps_the_text_and_owes_the_message(
    fake_svn: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text(HEADER + ENTRY.format(1).replace(">m<", ">x?\\027y<") + "</log>\n")
    command = fake_svn(
        f'case "$1" in log) cat "{tmp_path / "answer"}";; *) echo "svn: E175002: bad" >&2; exit 1;; esac\n'
    )
    batch = read(reader_of("svn://host/r", svn_command=command), 1, 2)
    assert one(batch).message == "x?\\027y"
    (fetch,) = batch.deferred
    assert (fetch.natural_key, fetch.detail) == ("1", "message")


def test_a_window_larger_than_allowed_is_too_hard(svn_repository: Factory) -> None:
    repository = svn_repository(dump=growing(40))
    reader = reader_of(repository.url, max_answer_bytes=20_000)
    with pytest.raises(WindowTooHard) as caught:
        read(reader, 1, 41)
    assert caught.value.code == "too_large"
    assert len(rows_of(reader, 5)) == 4


def test_no_revision_is_asked_for_an_empty_window(svn_repository: Factory) -> None:
    reader = reader_of(svn_repository().url)
    batch = read(reader, 1, 1)
    assert (list(batch.rows), batch.covered, reader.calls) == ([], RevisionWindow(1, 1), 0)


def test_a_lost_connection_is_tried_again_within_seconds_and_then_given_up(svn_repository: Factory) -> None:
    waits: list[float] = []
    refused = f"svn://127.0.0.1:{free_port()}/r"
    reader = SvnReader(Client(), refused, "", log_timeout=60, info_timeout=60, sleep=waits.append)
    with pytest.raises(Transient, match="cannot reach"):
        reader.visit()
    assert reader.calls == 3
    assert len(waits) == 2
    assert all(0.5 <= seconds <= 5 for seconds in waits)


def test_a_server_that_comes_back_in_between_is_read(svn_repository: Factory, svnserve: SvnServers) -> None:
    repository = svn_repository("back", plain(3))
    server = svnserve(repository)
    url = server.url(repository)
    server.stop()

    def restart(_: float) -> None:
        svnserve.restart(server)

    reader = SvnReader(Client(), url, "", log_timeout=60, info_timeout=60, sleep=restart)
    assert reader.visit().head == 3
    assert reader.calls == 2
