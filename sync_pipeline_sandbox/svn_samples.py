"""Real Subversion repositories of any size: the sample histories.

Belongs here: histories and how they become a repository. Deterministic: the same arguments give the same
repository except for its UUID.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sync_pipeline.core.child_environment import child_environment
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_sandbox.fsfs import FastRepository

_PEOPLE = ("ada", "björn", "chen", "dmitri", "esi")


def create(path: Path, dump: bytes | None = None) -> str:
    """Make a repository at ``path``, with the history of ``dump``, and return its ``file://`` URL.

    Loading makes several files a revision, so it happens in ``/dev/shm`` if the machine has that. The packed
    result is then moved. (Measured: 30 ms a revision on a slow disk, 3 to 5 ms in memory.)
    """
    memory = Path("/dev/shm")
    workshop = str(memory) if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="svn-sample-", dir=workshop) as folder:
        made = Path(folder) / "repository"
        _svnadmin("create", str(made))
        if dump is not None:
            flags = ("-q", "--no-flush-to-disk", "--bypass-prop-validation", "-M", "256")
            _svnadmin("load", *flags, str(made), stdin=dump)
            _svnadmin("pack", "-q", str(made))
        shutil.move(made, path)
    return path.resolve().as_uri()


def large(path: Path, revisions: int, paths: int = 8, *, huge: int = 0) -> str:
    """Make a repository of ``revisions`` revisions that each touch ``paths`` files, and return its URL. With
    ``huge`` the last revision adds that many files instead. Takes half a millisecond a revision.
    """
    few = [f"trunk/f{index}.txt" for index in range(paths)]
    many = [f"big-{index // 1000:03d}/file-{index:06d}.txt" for index in range(huge)]
    return write(
        path,
        (
            (
                many if huge and number == revisions else few,
                f"Change {number}\n\nWith <some> text & more of it\n",
                f"dev{number % 17}",
                f"2020-01-{number % 28 + 1:02d}T{number % 24:02d}:00:00.123456Z",
            )
            for number in range(1, revisions + 1)
        ),
    )


def write(path: Path, revisions: Iterable[tuple[Sequence[str], str, str, str]]) -> str:
    """Make a repository with these revisions, each as files, message, author and date, without loading
    them; returns its URL. Files are one folder deep, and each revision gives all of its files one content."""
    _svnadmin("create", "--compatible-version", "1.6", str(path))
    fast = FastRepository(path)
    for files, message, author, date in revisions:
        fast.revision(files, message=message, author=author, date=date)
    fast.finish()
    return path.resolve().as_uri()


def growing(revisions: int, paths: int = 8) -> bytes:
    """The dump of a history whose revisions change ``paths`` files each; every hundredth makes a tag."""
    writer = DumpWriter()
    made: set[str] = set()
    for number in range(1, revisions + 1):
        moment = datetime(2015, 3, 2, 8, 0, tzinfo=UTC) + timedelta(hours=number)
        date = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        author = _PEOPLE[number % len(_PEOPLE)]
        if number == 1:
            writer.revision("Set up the layout", author, date)
            for name in ("trunk", "branches", "tags"):
                writer.directory(name)
        elif number % 100 == 0:
            writer.revision(f"Tag {number}", author, date)
            writer.node(f"tags/v{number}", kind="dir", copyfrom=(number - 1, "trunk"))
        else:
            message = f"Change {number}: see issue #{number % 97}\n\nSecond paragraph."
            writer.revision(message, author, date)
            for index in range(paths):
                path = f"trunk/file{(number * 7 + index) % 60}.txt"
                writer.node(path, "change" if path in made else "add", text=f"{number} {index}\n")
                made.add(path)
    return writer.dump()


def odd() -> bytes:
    """The dump of a small history with odd revisions. It has copies, replacements, property changes, empty
    revisions, missing properties, dates that go backwards, and names in many scripts.
    """
    writer = DumpWriter()
    writer.revision("Layout", "ada", "2015-03-02T09:00:00.000000Z")
    for name in ("trunk", "branches", "tags"):
        writer.directory(name)
    message = "Namen in vielen Schriften\n" + "-" * 72 + "\nr5 | bob | not a header"
    writer.revision(message, "björn", "2015-03-02T10:00:00.000000Z")
    writer.node("trunk/naïve café.txt", text="é\n").node("trunk/a@2x.png", text=b"\x89PNG\x00")
    writer.node("trunk/100%.txt", text="%\n").directory("trunk/日本語")
    writer.revision("Branch", "chen", "2015-03-02T11:00:00.000000Z")
    writer.node("branches/next", kind="dir", copyfrom=(2, "trunk"))
    writer.revision("Ignore objects", "chen", "2015-03-02T12:00:00.000000Z")
    writer.node("branches/next", "change", kind="dir", props={b"svn:ignore": b"*.o\n"})
    writer.revision(date="2011-01-01T00:00:00.000000Z")
    writer.revision(
        "Clean up <&> 'quote' \"double\"",
        "ada",
        "2015-03-02T14:00:00.000000Z",
        review_by=b"esi",
        bugtraq="Nr. 7, fünf".encode(),
    )
    writer.node("trunk/100%.txt", "delete")
    writer.node("trunk/a@2x.png", "replace", text="new", copyfrom=(2, "trunk/a@2x.png"))
    writer.revision("Delete and bring back", "esi", "2015-03-02T15:00:00.000000Z")
    writer.node("trunk/日本語", "delete")
    writer.node("trunk/日本語", kind="dir", copyfrom=(2, "trunk/日本語"))
    writer.revision("Tag v1", "dmitri", "2015-03-02T16:00:00.000000Z")
    writer.node("tags/v1", kind="dir", copyfrom=(7, "trunk"))
    return writer.dump()


def set_message(path: Path, revision: int, message: str) -> None:
    """Edit the log message of a revision, as ``svn propset --revprop`` does where hooks allow it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(message.encode())
        file.flush()
        _svnadmin("setlog", "--bypass-hooks", "-r", str(revision), str(path), file.name)


def _svnadmin(*arguments: str, stdin: bytes = b"") -> None:
    done = subprocess.run(
        ["svnadmin", *arguments],
        input=stdin,
        capture_output=True,
        env=child_environment(LC_ALL="C.UTF-8"),
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"svnadmin {arguments[0]} failed: {done.stderr.decode(errors='replace')}")
