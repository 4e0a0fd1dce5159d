"""Whatever text, number or shape a server sends at whatever place: it spoils its own row at most."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from sync_pipeline.admin import quarantine
from sync_pipeline.admin.quarantine import Filter
from sync_pipeline.core.model import JobReport, Mode
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sync.conftest import Forge

_EVER = ("2000-01-01", "2030-01-01")
_LONG = "".join(random.Random(7).choices("abcdefghijklmnop\N{GREEK SMALL LETTER PI}", k=6000))
_NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    1e300,
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff\ud800",
    "\x1b[31m\x07\x85\u2028\u202e",
    "\\u0000 \\",
    "'; DROP TABLE scm.mrs; --",
    "%(repo_id)s {} %s",
    _LONG,
    [],
    {},
    [None],
    [[["deep"]]],
    {"a\0b": {"\ud800": ["\0"]}},
    {"x" * 5000: 1},
    "0000-00-00T00:00:00Z",
    "2024-02-30T00:00:00Z",
    "9999-12-31T23:59:59.999999-12:00",
    "0001-01-01T00:00:00+14:00",
    "infinity",
    "g" * 40,
    "A" * 40,
]


def history(forge: Forge) -> None:
    """Something of everything."""
    gitlab = forge.gitlab
    tip = None
    for number in range(6):
        tip = forge.git.commit(
            "main", f"Commit {number}\n\nText.", files={"a": f"{number}\n"}, parents=[tip] if tip else []
        )
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[str(tip)])
    forge.git.tag("v1", str(tip), message="One")
    milestone = gitlab.milestone(forge.project, "M1")
    for number in range(2):
        made = gitlab.open_merge_request(forge.project, title=f"{number}", source="topic", author=forge.user)
        gitlab.comment(made, forge.other, "Good")
        gitlab.approve(made, forge.other)
        gitlab.request_review(made, forge.user, forge.other)
        gitlab.assign(made, forge.user, forge.other)
        gitlab.add_label(forge.project, made, forge.user, "bug")
        gitlab.set_milestone(made, forge.user, milestone)
        forge.tick(minutes=1)
    gitlab.close(made, forge.user)
    forge.tick()


def sync(forge: Forge, *mode: Any, **other: Any) -> list[JobReport]:
    forge.conn.execute("UPDATE scm.sync_jobs SET not_before = NULL")
    return [forge.commits(*mode, **other), *forge.both(*mode, **other)]


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or index in it."""
    if isinstance(data, dict | list):
        for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
            yield data, key
            yield from places(value)


def spoilt(body: bytes, chance: random.Random) -> bytes:
    """An answer with up to ten values replaced, taken out, renamed or told twice."""
    data = json.loads(body)
    for _ in range(chance.choice([0, 1, 1, 3, 10])):
        spoil(data, chance)
    return json.dumps(data).encode()


def spoil(data: Any, chance: random.Random) -> None:
    # Another time or name would be another truth, not a broken one.
    found = [(owner, key) for owner, key in places(data) if key not in ("updated_at", "name", "iid")]
    if not found:
        return
    owner, key = chance.choice(found)
    match chance.randrange(4):
        case 0 if isinstance(owner, dict):
            del owner[key]
        case 1 if isinstance(owner, dict):
            owner[str(chance.choice(["a\0b", "\ud800", "", _LONG]))] = owner.pop(key)
        case 2 if isinstance(owner, list):
            owner.insert(key, owner[key])
        case _:
            owner[key] = chance.choice(_NASTY)


def counted(forge: Forge) -> list[int]:
    queries = (
        "SELECT count(*) AS n FROM scm.git_commits WHERE title LIKE 'Commit %%' OR title = 'Topic'",
        "SELECT count(*) AS n FROM scm.mrs WHERE title ~ '^[0-3]$'",
        "SELECT count(*) AS n FROM scm.review_events WHERE event_type = 'comment' AND body = 'Good'"
        "   AND missing_since IS NULL",
        "SELECT count(*) AS n FROM scm.mr_approvals WHERE closed_at IS NULL",
        "SELECT count(*) AS n FROM scm.refs WHERE deleted_at IS NULL",
    )
    return [forge.rows(query)[0]["n"] for query in queries]


@pytest.mark.parametrize("seed", range(2))
def test_any_value_at_any_place_spoils_its_own_row_at_most(forge: Forge, seed: int) -> None:
    """No defect, nothing that the database refuses of a whole page; and once the server is well, all is."""
    history(forge)
    chance = random.Random(seed)
    forge.gitlab.faults.add(
        rf"/projects/{forge.project.id}/", faults.Edited(lambda body: spoilt(body, chance)), times=None
    )
    for _ in range(3):
        for report in sync(forge):
            assert report.error_code not in ("exception", "database_refused"), (seed, report)
        forge.tick(hours=1)
        forge.conn.execute("UPDATE scm.mrs SET read_at = now() - interval '3 days'")
        forge.conn.execute("UPDATE scm.mr_reviews SET read_at = now() - interval '3 days'")
    forge.gitlab.faults.clear()
    forge.conn.execute(
        "UPDATE scm.sync_jobs SET status = 'dead', finished_at = now() WHERE status = 'failed'"
    )
    for mode in (Mode.INCREMENTAL, Mode.REPAIR):
        for report in sync(forge, mode, **({} if mode is Mode.INCREMENTAL else {"window": _EVER})):
            assert report.succeeded, (seed, report)
    done = quarantine.retry(forge.database, forge.syncer, Filter(), actor="test", reason="test")
    assert counted(forge) == [7, 2, 2, 2, 3], (seed, done)
    assert integrity_checks.failures(forge.conn) == {}


def doubled(body: bytes) -> bytes:
    """A list in which every row comes twice, and the same within each of them."""

    def twice(data: Any) -> Any:
        if isinstance(data, list):
            return [twice(one) for one in data for _ in range(2)]
        if isinstance(data, dict):
            return {key: value if key == "parent_ids" else twice(value) for key, value in data.items()}
        return data

    return json.dumps(twice(json.loads(body))).encode()


def test_a_row_that_comes_twice_on_one_page_is_one_row(forge: Forge) -> None:
    history(forge)
    forge.gitlab.faults.add(rf"/projects/{forge.project.id}/", faults.Edited(doubled), times=None)
    for report in sync(forge):
        assert report.succeeded, report.error
    assert counted(forge) == [7, 2, 2, 2, 3]
    assert forge.rows("SELECT 1 FROM scm.quarantine") == []
    once = tables(forge)
    forge.gitlab.faults.clear()
    assert all(report.succeeded for report in sync(forge, Mode.REPAIR, window=_EVER))
    assert tables(forge) == once


def tables(forge: Forge) -> dict[str, int]:
    """How many rows there are of what hangs on others."""
    (row,) = forge.rows("""
        SELECT (SELECT count(*) FROM scm.mr_commits) AS commits,
               (SELECT count(*) FROM scm.mr_versions) AS versions,
               (SELECT count(*) FROM scm.review_events) AS events,
               (SELECT count(*) FROM scm.mr_reviewers) AS reviewers,
               (SELECT count(*) FROM scm.mr_approvals) AS approvals
    """)
    return row


def test_long_texts_and_large_numbers_are_stored_as_they_are(forge: Forge) -> None:
    """Titles of a megabyte, names longer than an index takes, numbers up to the last one of 64 bits; the
    first one behind that is set aside, and only that."""
    gitlab = forge.gitlab
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    made = gitlab.open_merge_request(forge.project, title="x", source="topic", author=forge.user)
    wide, long = "\N{PILE OF POO}" * 250_000, _LONG * 50
    made.row.update(title=wide, description=long, source_branch=long, labels=["a,b", long, "c\0d"])
    last, behind = gitlab.comment(made, forge.user, long), gitlab.comment(made, forge.user, "Behind")
    last.row["id"], behind.row["id"] = 2**63 - 1, 2**63
    gitlab.approve(made, forge.other)
    nobody = {"id": None, "username": _LONG, "name": long}
    forge.gitlab.faults.add(
        "/approvals",
        faults.Edited(
            lambda body: json.dumps({"approved_by": [{"user": nobody}, {"user": nobody}]}).encode()
        ),
        times=None,
    )
    forge.tick()
    first, second = forge.both()
    assert first.succeeded, first.error
    assert second.succeeded, second.error
    (stored,) = forge.rows("SELECT title, description, source_branch, labels, flags FROM scm.mrs")
    assert (stored["title"], stored["description"], stored["source_branch"]) == (wide, long, long)
    assert stored["labels"][:2] == ["a,b", long]
    (note,) = forge.rows(
        "SELECT body FROM scm.review_events WHERE source_event_id = 'note:9223372036854775807'"
    )
    assert note["body"] == long
    assert [row["username"] for row in forge.rows("SELECT username FROM scm.mr_approvals")] == [_LONG]
    (quarantined_row,) = forge.rows("SELECT natural_key, reason, detail FROM scm.quarantine")
    assert quarantined_row == {
        "natural_key": "1:note:9223372036854775808",
        "reason": "unreadable",
        "detail": "the row has no usable id",
    }


def test_one_row_in_five_hundred_that_cannot_be_stored_costs_one_row(forge: Forge) -> None:
    lines = [
        b"commit refs/heads/main\ncommitter U <u@x> %d +0000\ndata %d\nNumber %d\n"
        b"M 100644 inline f\ndata %d\n%d\n" % (1714000000 + n, len(f"Number {n}"), n, len(str(n)), n)
        for n in range(500)
    ]
    subprocess.run(
        ["git", "-C", str(forge.git.path), "fast-import", "--quiet"], input=b"\n".join(lines), check=True
    )
    forge.conn.execute("ALTER TABLE scm.git_commits ADD CHECK (message <> 'Number 250')")
    report = forge.commits()
    assert report.succeeded, report.error
    assert (report.counts.inserted, report.counts.quarantined) == (499, 1)
    (quarantined_row,) = forge.rows("SELECT reason, detail, payload, batch_id FROM scm.quarantine")
    assert quarantined_row["reason"] == "unstorable"
    assert json.loads(bytes(quarantined_row["payload"]))["message"] == "Number 250"
    assert forge.rows(
        "SELECT 1 FROM scm.sync_batches WHERE batch_id = %(batch)s", batch=quarantined_row["batch_id"]
    )
