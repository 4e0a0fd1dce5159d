"""Revisions of Subversion against what is stored of them: named exactly, healed, and never by mistake."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from sync_pipeline.core.model import Depth, JobReport, JobType, Mode, Repository, RevisionWindow
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks, watermarks
from sync_pipeline.settings import Settings
from sync_pipeline.sources.svn import Client
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_tests.builders import register_source, request
from sync_pipeline_tests.sources.truth import assert_equal
from sync_pipeline_tests.svn_fixtures import SvnRepository, SvnServers, create_repository
from sync_pipeline_tests.sync.test_whole_repositories import stored

HEAD = 11
_REVISIONS = (
    "SELECT rev_num, author_raw, ts, message, visibility, detail_level, path_count, flags, meta_json,"
    " paths_hash FROM scm.svn_revisions WHERE repo_id = %(repo)s AND deleted_at IS NULL ORDER BY rev_num"
)
_PATHS = (
    "SELECT p.* FROM scm.svn_changed_paths AS p JOIN scm.svn_revisions AS r USING (repo_id, rev_num)"
    " WHERE repo_id = %(repo)s AND r.deleted_at IS NULL ORDER BY rev_num, path_no"
)


def history() -> bytes:
    """Eleven revisions with every kind of oddity; the fifth is outside of ``trunk``."""
    day = "2020-01-{:02d}T03:04:05.678901Z"
    writer = DumpWriter().revision("layout", "ann", day.format(1)).directory("trunk").directory("side")
    writer.revision("one\n\ntwo", "ann", day.format(2)).node("trunk/a", text="1").node("trunk/b", text="1")
    writer.revision("three", "bob", day.format(3)).node("trunk/a", "change", text="2")
    writer.node("trunk/c d", kind="dir", props={b"k": b"v"})
    writer.revision("four", "bob", day.format(4), other_key=b"value", other_raw=b"\xff")
    writer.node("trunk/b", "delete").node("trunk/e", copyfrom=(3, "trunk/a"))
    writer.revision("five", "ann", day.format(5)).node("side/x", text="x").node("side/y", text="x")
    writer.revision(None, None, None).node("trunk/f", text="x")
    writer.revision("", "", day.format(7)).node("trunk/f", "replace", text="y")
    writer.revision(b"latin \xe9 \x1b", "J\xfcrgen", day.format(8)).node("trunk/\u4e16\u754c#&<>", text="x")
    writer.revision("later", "ann", "1969-12-31T23:59:59.000000Z").node("trunk/g", text="x")
    writer.revision("empty", "ann", day.format(10))
    writer.revision("last", "ann", "2120-01-01T00:00:00.000001Z").node("trunk/g", "change", text="2")
    return writer.dump()


class Impatient(Readers):
    """Readers that ask a server once, by whatever command."""

    def __init__(self, settings: Settings, command: str) -> None:
        super().__init__(settings)
        self._command = command

    def svn(self, repo: Repository, cancelled: Callable[[], bool]) -> SvnReader:
        client = Client(svn_command=self._command)
        root = repo.svn_root or repo.url
        return SvnReader(client, root, repo.svn_prefix, log_timeout=20, info_timeout=20, attempts=1)


@dataclass
class Proof:
    """Comparisons and repairs of one repository."""

    database: Database
    conn: Connection
    repository: SvnRepository
    settings: Settings = field(
        default_factory=lambda: Settings(
            chunk_revisions=4,
            deletion_confirmations=1,
            deletion_after_seconds=0,
            max_wait_seconds=5,
            sweep_recent_revisions=0,
        )
    )
    repo_id: int = 0
    command: str = "svn"

    def register(self, url: str | None = None, prefix: str = "") -> None:
        """Register the repository and sync all of it."""
        self.repo_id = register_source(self.conn, url or self.repository.url, prefix=prefix)
        assert self.sync().succeeded

    @property
    def syncer(self) -> Syncer:
        """Whoever works, in a process that starts anew."""
        return Syncer(self.database, self.settings, Impatient(self.settings, self.command))

    def sync(self) -> JobReport:
        """Read what is new."""
        return self.syncer.run(request(self.repo_id))

    def probe(self, first: int = 1, end: int = HEAD + 1, **other: Any) -> JobReport:
        """Compare a window."""
        other = {"window": (first, end), "depth": Depth.DETAILS} | other
        return self.syncer.run(request(self.repo_id, Mode.PROBE, **other))

    def found(self, **other: Any) -> dict[str, str]:
        """What a comparison shows as open: by key the kind, and the columns that differ."""
        report = self.probe(**other)
        assert report.succeeded, report.error
        return self.open()

    def open(self) -> dict[str, str]:
        """The open differences."""
        rows = self.rows(
            "SELECT natural_key, kind, fields FROM scm.discrepancies"
            " WHERE repo_id = %(repo)s AND resolved_at IS NULL"
        )
        return {row["natural_key"]: " ".join([row["kind"], *row["fields"]]) for row in rows}

    def repair_differences(self) -> JobReport:
        """Heal what is open, as far as the source lets us."""
        window = RevisionWindow(1, 2**40)
        return self.syncer.run(request(self.repo_id, Mode.REPAIR, only_differences=True, window=window))

    def result(self) -> dict[str, Any]:
        """The latest result."""
        return self.rows("SELECT * FROM scm.reconciliations ORDER BY reconciliation_id DESC LIMIT 1")[0]

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query; ``%(repo)s`` is the repository."""
        return self.conn.execute(query, {"repo": self.repo_id}).fetchall()

    def state(self) -> list[dict[str, Any]]:
        """All that a reader of the tables sees."""
        return self.rows(_REVISIONS) + self.rows(_PATHS)

    def everything(self) -> list[Any]:
        """Every value of every fact, with versions, tombstones and what is open."""
        tables = (
            "svn_revisions", "svn_changed_paths", "svn_revision_versions", "quarantine", "obligations",
            "discrepancies",
        )  # fmt: skip
        query = sql.SQL("SELECT * FROM scm.{} ORDER BY 1, 2, 3")
        return [self.conn.execute(query.format(sql.Identifier(one))).fetchall() for one in tables]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of :func:`history`; copy it before changing it."""
    return create_repository(tmp_path_factory.mktemp("history") / "repository").load(history()).path


@pytest.fixture
def fresh(made: Path, tmp_path: Path, database: Database) -> Iterator[Proof]:
    """A repository that nobody registered yet."""
    path = tmp_path / "repositories" / "repository"
    shutil.copytree(made, path)
    with database.connection() as conn:
        yield Proof(database, conn, SvnRepository(path))


@pytest.fixture
def proof(fresh: Proof) -> Proof:
    """A repository, all of it synced."""
    fresh.register()
    return fresh


@pytest.mark.parametrize("way", ["file", "svn", "prefix"])
def test_what_is_stored_as_the_source_has_it_shows_no_difference(
    fresh: Proof, way: str, svnserve: SvnServers
) -> None:
    url = svnserve(fresh.repository).url(fresh.repository) if way == "svn" else fresh.repository.url
    fresh.register(url, "trunk" if way == "prefix" else "")
    assert fresh.found() == {}
    result = fresh.result()
    number = HEAD - 2 if way == "prefix" else HEAD
    assert (result["status"], result["expected"], result["stored"]) == ("clean", number, number)
    assert (result["unreadable"], result["newer"], result["revs"].upper) == (0, 0, HEAD + 1)


# Behind the back of the tables ---------------------------------------------------------------------------

_TAMPERED = {
    "revisions taken away": (
        "WITH r AS (DELETE FROM scm.svn_revisions WHERE rev_num IN (4, 5, 11) RETURNING rev_num) "
        "DELETE FROM scm.svn_changed_paths AS p USING r WHERE p.rev_num = r.rev_num",
        {"4": "missing", "5": "missing", "11": "missing"},
    ),
    "a revision taken away while its paths stay": (
        "DELETE FROM scm.svn_revisions WHERE rev_num = 4",
        {"4": "missing"},
    ),
    "a whole chunk taken away while its paths stay": (
        "DELETE FROM scm.svn_revisions WHERE rev_num BETWEEN 1 AND 4",
        {"1": "missing", "2": "missing", "3": "missing", "4": "missing"},
    ),
    "texts, a person and a time changed": (
        "UPDATE scm.svn_revisions SET message = message || ' ', author_raw = NULL, "
        "ts = ts + interval '1 microsecond' WHERE rev_num = 2",
        {"2": "changed author_raw message ts"},
    ),
    "texts and a time made up": (
        "UPDATE scm.svn_revisions SET message = '', author_raw = '', ts = '2020-01-01Z' WHERE rev_num = 6",
        {"6": "changed author_raw message ts"},
    ),
    "less visible": (
        "UPDATE scm.svn_revisions SET visibility = 'hidden' WHERE rev_num = 3",
        {"3": "changed detail_level visibility"},
    ),
    "said to be poorer and richer than it is": (
        "UPDATE scm.svn_revisions SET detail_level = (CASE WHEN rev_num = 3 THEN 0 ELSE 99 END) "
        "WHERE rev_num IN (3, 5)",
        {"3": "changed detail_level", "5": "changed detail_level"},
    ),
    "other properties and flags": (
        "UPDATE scm.svn_revisions SET meta_json = jsonb_set(meta_json, '{revprops,other:key}', '\"x\"'), "
        "flags = '{nul}' WHERE rev_num = 4",
        {"4": "changed flags meta_json"},
    ),
    "flagged as unread": (
        "UPDATE scm.svn_revisions SET flags = '{changed_paths_unread}' WHERE rev_num = 4",
        {"4": "changed detail_level flags"},
    ),
    "paths taken away, changed and made up": (
        "WITH a AS (DELETE FROM scm.svn_changed_paths WHERE rev_num = 2 AND path_no = 1 RETURNING 1), "
        "b AS (UPDATE scm.svn_changed_paths SET action = 'M', copyfrom_path = NULL WHERE rev_num = 4 "
        "RETURNING 1) INSERT INTO scm.svn_changed_paths "
        "SELECT repo_id, 10, 1, '/made/up', 'A', kind, NULL, NULL, text_mods, prop_mods "
        "FROM scm.svn_changed_paths WHERE rev_num = 5 AND path_no = 1",
        {"2": "changed paths", "4": "changed paths", "10": "changed paths"},
    ),
    "another number and another hash of paths": (
        "UPDATE scm.svn_revisions SET path_count = 7, paths_hash = '' WHERE rev_num = 5",
        {"5": "changed path_count paths_hash"},
    ),
    "tombstones of what is there": (
        "UPDATE scm.svn_revisions SET deleted_at = now() WHERE rev_num IN (1, 10)",
        {"1": "missing", "10": "missing"},
    ),
}


@pytest.mark.parametrize("what", list(_TAMPERED))
def test_what_was_done_behind_the_back_of_the_tables_is_named_and_healed(proof: Proof, what: str) -> None:
    query, expected = _TAMPERED[what]
    before = proof.state()
    proof.conn.execute(query)
    assert proof.found() == expected
    result = proof.result()
    assert result["status"] == "mismatch"
    kinds = [kind.split()[0] for kind in expected.values()]
    assert [result[kind] for kind in ("missing", "changed", "extra")] == [
        kinds.count(kind) for kind in ("missing", "changed", "extra")
    ]
    assert proof.repair_differences().succeeded
    assert proof.found() == {}
    assert proof.result()["status"] == "clean"
    assert proof.state() == before
    assert proof.rows("SELECT FROM scm.quarantine") == []
    assert integrity_checks.failures(proof.conn) == {}


@pytest.mark.parametrize("reread", ["backfill", "sweep"])
def test_a_revision_whose_paths_stayed_is_mended_by_whoever_reads_it_next(proof: Proof, reread: str) -> None:
    before = proof.state()
    proof.conn.execute("DELETE FROM scm.svn_revisions WHERE rev_num BETWEEN 1 AND 6")
    if reread == "backfill":
        window = (1, HEAD + 1)
        report = proof.syncer.run(request(proof.repo_id, Mode.BACKFILL, window=window, reread=True))
    else:
        proof.conn.execute("UPDATE scm.sync_watermarks SET swept_at = NULL, sweep_rev = 1")
        report = proof.sync()
    assert report.succeeded, report.error
    assert proof.state() == before
    assert proof.rows("SELECT FROM scm.quarantine") == []


def test_a_made_up_revision_outside_of_what_is_registered_becomes_a_tombstone(fresh: Proof) -> None:
    fresh.register(prefix="trunk")
    before = fresh.state()
    fresh.conn.execute(
        "INSERT INTO scm.svn_revisions (repo_id, rev_num, author_raw, ts, message, visibility, detail_level, "
        "path_count, flags, meta_json, content_hash, paths_hash, batch_id) "
        "SELECT repo_id, 5, author_raw, ts, message, visibility, detail_level, path_count, flags, meta_json, "
        "content_hash, paths_hash, batch_id FROM scm.svn_revisions WHERE rev_num = 3"
    )
    fresh.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num = 8")
    assert fresh.found() == {"5": "extra", "8": "changed message"}
    assert fresh.repair_differences().succeeded
    assert fresh.found() == {}
    assert fresh.state() == before
    outcomes = fresh.rows("SELECT natural_key, outcome FROM scm.discrepancies ORDER BY discrepancy_id")
    assert [tuple(row.values()) for row in outcomes] == [("5", "deleted"), ("8", "healed")]


# At the source -------------------------------------------------------------------------------------------


def test_edited_and_deleted_properties_are_named_and_read_and_the_earlier_version_is_kept(
    proof: Proof,
) -> None:
    before = {row["rev_num"]: row for row in proof.state() if "message" in row}
    proof.repository.set_revprop(2, "svn:log", "another text")
    proof.repository.set_revprop(3, "svn:author", "eve")
    proof.repository.set_revprop(3, "svn:date", "1999-09-09T09:09:09.000009Z")
    proof.repository.delete_revprop(4, "other:key")
    proof.repository.delete_revprop(7, "svn:date")
    proof.repository.delete_revprop(HEAD, "svn:log")
    proof.repository.set_revprop(6, "other:new", "new")
    changed = {
        "2": "changed message",
        "3": "changed author_raw ts",
        "4": "changed meta_json",
        "6": "changed meta_json",
        "7": "changed ts",
        str(HEAD): "changed message",
    }
    assert proof.found() == changed
    assert proof.repair_differences().succeeded
    assert proof.found() == {}
    assert_equal(stored(proof.conn, proof.repo_id), proof.repository)
    versions = proof.rows(
        "SELECT rev_num, version, author_raw, ts, message, meta_json"
        " FROM scm.svn_revision_versions ORDER BY 1"
    )
    assert [str(row["rev_num"]) for row in versions] == sorted(changed, key=int)
    for row in versions:
        assert row.pop("version") == 1
        assert row == {name: before[row["rev_num"]][name] for name in row}
    # Nothing was in the way of a healthy row, and a second repair has nothing to do.
    assert proof.repair_differences().counts.changed == 0


_OPEN = "[/]\n* = r\n"
_CLOSED = {
    "hidden": "[/]\n* = r\n[/trunk]\n* =\n",
    "half hidden": "[/]\n* = r\n[/trunk/a]\n* =\n[/trunk/g]\n* =\n",
    "everything denied": "[/]\n* =\n",
}


@pytest.mark.parametrize("what", list(_CLOSED))
@pytest.mark.parametrize("prefix", ["", "trunk"])
def test_reduced_access_is_no_difference_and_makes_no_tombstone(
    fresh: Proof, svnserve: SvnServers, what: str, prefix: str
) -> None:
    server = svnserve(fresh.repository, authz=_OPEN)
    fresh.register(server.url(fresh.repository), prefix)
    before = fresh.everything()
    (fresh.repository.path / "conf" / "authz").write_text(_CLOSED[what])
    report = fresh.probe()
    result = fresh.result()
    if what == "everything denied":
        assert not report.succeeded
        assert (result["status"], result["expected"]) == ("inconclusive", 0)
        assert "denied" in result["detail"]
    else:
        assert report.succeeded
        assert result["status"] == "clean"
        assert result["unreadable"] > 0
    fresh.repair_differences()
    assert fresh.everything() == before
    # What can be seen again is compared again, and what was damaged meanwhile is found and healed then.
    fresh.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num IN (3, 8)")
    hidden = fresh.found() if report.succeeded else {}
    assert set(hidden) <= {"3", "8"}
    (fresh.repository.path / "conf" / "authz").write_text(_OPEN)
    assert fresh.found() == {"3": "changed message", "8": "changed message"}
    assert fresh.repair_differences().succeeded
    assert fresh.found() == {}
    assert fresh.result()["unreadable"] == 0


def test_hidden_revisions_are_compared_as_what_they_are_and_read_once_they_can_be_seen(
    fresh: Proof, svnserve: SvnServers
) -> None:
    server = svnserve(fresh.repository, authz=_CLOSED["hidden"])
    fresh.register(server.url(fresh.repository))
    assert fresh.found() == {}
    fresh.conn.execute("UPDATE scm.svn_revisions SET message = 'made up' WHERE rev_num = 3")
    assert fresh.found() == {"3": "changed message"}
    assert fresh.repair_differences().succeeded
    assert fresh.found() == {}
    (fresh.repository.path / "conf" / "authz").write_text(_OPEN)
    assert {"2", "3", "4"} <= set(fresh.found())
    assert fresh.repair_differences().succeeded
    assert fresh.found() == {}
    assert_equal(stored(fresh.conn, fresh.repo_id), fresh.repository)


# What cannot be read -------------------------------------------------------------------------------------


def test_a_damaged_revision_keeps_nobody_from_comparing_the_others(fresh: Proof) -> None:
    file = fresh.repository.revision_file(3)
    good = file.read_bytes()
    fresh.repository.damage(3)
    fresh.register()
    # The first one was unreadable already when it was synced; the second one is only now.
    first = fresh.state()
    assert fresh.found() == {}
    assert (fresh.result()["status"], fresh.result()["unreadable"]) == ("clean", 0)
    later = fresh.repository.revision_file(7)
    good_later = later.read_bytes()
    fresh.repository.damage(7)
    fresh.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num IN (2, 4, 8)")
    damaged = dict.fromkeys(("2", "4", "8"), "changed message")
    assert fresh.found() == damaged
    assert fresh.result()["unreadable"] == 1
    assert fresh.repair_differences().succeeded
    assert fresh.found() == {}
    assert fresh.state() == first
    file.write_bytes(good)
    later.write_bytes(good_later)
    assert fresh.found() == {"3": "changed flags path_count paths"}
    assert fresh.repair_differences().succeeded
    assert fresh.found() == {}
    assert_equal(stored(fresh.conn, fresh.repo_id), fresh.repository)


def test_a_difference_that_can_no_longer_be_looked_at_stays_open(fresh: Proof, svnserve: SvnServers) -> None:
    server = svnserve(fresh.repository, authz=_OPEN)
    fresh.register(server.url(fresh.repository))
    fresh.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num IN (3, 8, 9)")
    open_ones = dict.fromkeys(("3", "8", "9"), "changed message")
    assert fresh.found() == open_ones
    (fresh.repository.path / "conf" / "authz").write_text(_CLOSED["hidden"])
    fresh.repository.damage(9)
    assert fresh.found() == open_ones
    assert {row["looks"] for row in fresh.rows("SELECT looks FROM scm.discrepancies")} == {1}


def test_a_revision_that_the_database_refuses_counts_as_unreadable(proof: Proof) -> None:
    """It is set aside, not missing."""
    proof.conn.execute(
        "CREATE FUNCTION scm.refuse_it() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN IF NEW.rev_num = 12 THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END$$;"
        "CREATE TRIGGER refuse_it BEFORE INSERT ON scm.svn_revisions FOR EACH ROW"
        " EXECUTE FUNCTION scm.refuse_it()"
    )
    proof.repository.commit_file("trunk/h")
    assert proof.sync().succeeded
    assert [row["natural_key"] for row in proof.rows("SELECT natural_key FROM scm.quarantine")] == ["12"]
    assert proof.found(end=13) == {}
    assert (proof.result()["status"], proof.result()["unreadable"]) == ("clean", 1)
    assert (proof.result()["expected"], proof.result()["stored"]) == (HEAD + 1, HEAD)


def _roll_back(proof: Proof) -> None:
    shutil.rmtree(proof.repository.path)
    create_repository(proof.repository.path).load(history().split(b"Revision-number: 9\n")[0])
    _same_uuid(proof)


def _replace(proof: Proof) -> None:
    shutil.rmtree(proof.repository.path)
    create_repository(proof.repository.path).load(history())


def _same_uuid(proof: Proof) -> None:
    (uuid,) = (row["svn_uuid"] for row in proof.rows("SELECT svn_uuid FROM scm.repos"))
    (proof.repository.path / "db" / "uuid").write_text(f"{uuid}\n{uuid}\n")


def _rewrite(proof: Proof) -> None:
    """The same numbers, other revisions."""
    shutil.rmtree(proof.repository.path)
    writer = DumpWriter()
    for number in range(HEAD):
        writer.revision("other", "eve", f"2021-05-06T07:08:{number:02d}.000000Z").node(f"n{number}", text="x")
    create_repository(proof.repository.path).load(writer.dump())
    _same_uuid(proof)


_TROUBLE: dict[str, Callable[[Proof], object]] = {
    "rolled back": _roll_back,
    "replaced": _replace,
    "rewritten": _rewrite,
    "away": lambda proof: shutil.rmtree(proof.repository.path),
    "half there": lambda proof: shutil.rmtree(proof.repository.path / "db"),
}


@pytest.mark.parametrize("what", list(_TROUBLE))
def test_of_a_repository_that_is_another_one_or_away_nothing_is_concluded(proof: Proof, what: str) -> None:
    proof.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num = 3")
    assert proof.found() == {"3": "changed message"}
    before = proof.everything()
    _TROUBLE[what](proof)
    report = proof.probe()
    assert not report.succeeded
    result = proof.result()
    assert (result["status"], result["revs"].lower, result["revs"].upper) == ("inconclusive", 1, HEAD + 1)
    assert result["detail"].startswith(report.error_code)
    assert not proof.repair_differences().succeeded
    assert proof.everything() == before


def test_a_server_that_breaks_off_in_the_middle_settles_what_it_showed_and_nothing_else(
    proof: Proof, fake_svn: Callable[[str], str]
) -> None:
    proof.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num IN (2, 11)")
    assert set(proof.found()) == {"2", "11"}
    proof.conn.execute("UPDATE scm.svn_revisions SET message = 'y' WHERE rev_num = 7")
    before = proof.state()
    # Half an answer, cut off in the middle of an element, for every log of the last chunk.
    real = shutil.which("svn")
    body = (
        'case "$*" in *"-r 9:"*|*"-r 10:"*|*"-r 11:"*|*--with-no-revprops*)'
        f' {real} "$@" | head -c 60; exit 0;; esac\nexec {real} "$@"\n'
    )
    proof.command = fake_svn(body)
    report = proof.probe()
    assert not report.succeeded
    assert not proof.repair_differences().succeeded
    assert {row["repairs"] for row in proof.rows("SELECT repairs FROM scm.discrepancies")} == {0}
    assert [row for row in proof.state() if row["rev_num"] > 8] == [
        row for row in before if row["rev_num"] > 8
    ]
    rows = proof.rows(
        "SELECT revs, status, changed FROM scm.reconciliations ORDER BY reconciliation_id DESC LIMIT 2"
    )
    parts = {(row["revs"].lower, row["revs"].upper): (row["status"], row["changed"]) for row in rows}
    assert parts == {(1, 9): ("mismatch", 2), (9, HEAD + 1): ("inconclusive", 0)}
    assert set(proof.open()) == {"2", "7", "11"}


# Which window ---------------------------------------------------------------------------------------------


def test_only_what_is_covered_is_compared(proof: Proof) -> None:
    assert proof.probe(HEAD + 1, HEAD + 100).succeeded
    result = proof.result()
    assert (result["status"], result["detail"]) == ("inconclusive", "nothing of it has been read yet")
    proof.repository.commit_file("trunk/h")
    proof.repository.commit_file("trunk/i")
    assert proof.found(end=HEAD + 100) == {}
    assert (proof.result()["status"], proof.result()["revs"].upper) == ("clean", HEAD + 1)
    # A gap is no mismatch, and of what was read before it was forgotten nothing is said.
    watermarks.replace(
        proof.conn,
        repo_id=proof.repo_id,
        job_type=JobType.REVISIONS,
        covered=(RevisionWindow(1, 3), RevisionWindow(8, HEAD + 1)),
        actor="test",
        reason="test",
    )
    proof.conn.execute("DELETE FROM scm.svn_revisions WHERE rev_num BETWEEN 2 AND 8")
    assert proof.found(end=HEAD + 100) == {"2": "missing", "8": "missing"}
    rows = proof.rows("SELECT revs FROM scm.reconciliations ORDER BY reconciliation_id DESC LIMIT 2")
    assert [(row["revs"].lower, row["revs"].upper) for row in rows] == [(8, HEAD + 1), (1, 3)]


def test_a_comparison_of_a_part_says_nothing_about_the_rest(proof: Proof) -> None:
    proof.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num IN (2, 7)")
    assert proof.found(first=5) == {"7": "changed message"}
    assert proof.found(end=5) == {"2": "changed message", "7": "changed message"}
    proof.conn.execute("UPDATE scm.svn_revisions SET message = '' WHERE rev_num = 7")
    assert set(proof.found(end=7)) == {"2", "7"}
    assert set(proof.found(first=7, end=8)) == {"2"}


def test_a_comparison_whose_commands_are_used_up_says_how_far_it_got_and_the_next_one_goes_on(
    proof: Proof,
) -> None:
    proof.conn.execute("UPDATE scm.svn_revisions SET message = 'x' WHERE rev_num IN (2, 6, 11)")
    first = 1
    reached = []
    while first <= HEAD:
        assert proof.probe(first, max_calls=1).succeeded
        assert proof.result()["revs"].lower == first
        first = proof.result()["revs"].upper
        reached.append(first)
        assert set(proof.open()) == {str(rev) for rev in (2, 6, 11) if rev < first}
    # One of the chunks holds a revision that is read in another way, and is halved until that is found.
    assert reached[0] == 5
    assert reached[-1] == HEAD + 1
