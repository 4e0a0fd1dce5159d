"""Real Subversion repositories of any size, made by loading a generated dump.

Belongs here: writing the dump format (version 2) and the sample histories. Deterministic: the same arguments
give the same repository except for its UUID.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

_EPOCH = datetime(2015, 3, 2, 8, 0, tzinfo=UTC)
_PEOPLE = ("ada", "björn", "chen", "dmitri", "esi")


@dataclass(frozen=True, slots=True)
class Node:
    """One changed path: ``action`` is add, change, delete or replace; ``kind`` file or dir (None: delete).
    ``copyfrom`` is (revision, path). ``content`` is given for files that are added or changed."""

    path: str
    action: str
    kind: str | None = "file"
    content: bytes | None = None
    props: dict[str, bytes] | None = None
    copyfrom: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision; a property that is None is left out."""

    nodes: Iterable[Node]
    author: str | None = "ada"
    message: str | None = ""
    date: datetime | None = None
    props: dict[str, bytes] = field(default_factory=dict)


def _props(properties: dict[str, bytes]) -> bytes:
    parts = []
    for name, value in properties.items():
        key = name.encode()
        parts.append(b"K %d\n%s\nV %d\n%s\n" % (len(key), key, len(value), value))
    return b"".join(parts) + b"PROPS-END\n"


def _node(node: Node) -> bytes:
    head = [f"Node-path: {node.path}\n".encode()]
    if node.kind is not None:
        head.append(f"Node-kind: {node.kind}\n".encode())
    head.append(f"Node-action: {node.action}\n".encode())
    if node.copyfrom is not None:
        revision, path = node.copyfrom
        head.append(f"Node-copyfrom-rev: {revision}\nNode-copyfrom-path: {path}\n".encode())
    props = _props(node.props) if node.props is not None else b""
    if props:
        head.append(b"Prop-content-length: %d\n" % len(props))
    if node.content is not None:
        head.append(b"Text-content-length: %d\n" % len(node.content))
    body = props + (node.content or b"")
    if body:
        head.append(b"Content-length: %d\n" % len(body))
    return b"".join(head) + b"\n" + body + b"\n\n"


def dump(revisions: Iterable[Revision]) -> Iterator[bytes]:
    """The dump stream of a history that starts at revision 1, piece by piece."""
    yield b"SVN-fs-dump-format-version: 2\n\n"
    yield b"Revision-number: 0\nProp-content-length: 10\nContent-length: 10\n\nPROPS-END\n\n"
    for number, revision in enumerate(revisions, start=1):
        props = dict(revision.props)
        if revision.author is not None:
            props["svn:author"] = revision.author.encode()
        if revision.message is not None:
            props["svn:log"] = revision.message.encode()
        moment = revision.date or _EPOCH + timedelta(hours=number)
        props["svn:date"] = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
        block = _props(props)
        yield b"Revision-number: %d\nProp-content-length: %d\nContent-length: %d\n\n" % (
            number,
            len(block),
            len(block),
        )
        yield block + b"\n"
        for node in revision.nodes:
            yield _node(node)


def create(path: Path, revisions: Iterable[Revision]) -> str:
    """Make a repository at ``path`` with this history and return its ``file://`` URL.

    Loading makes several files a revision, so it happens in memory where the machine has ``/dev/shm``; the
    packed result is then moved (measured: 30 ms a revision on a slow disk, 3 to 5 ms in memory).
    """
    memory = Path("/dev/shm")
    workshop = str(memory) if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="svn-sample-", dir=workshop) as folder:
        made = Path(folder) / "repository"
        subprocess.run(["svnadmin", "create", str(made)], check=True, stdin=subprocess.DEVNULL)
        command = ["svnadmin", "load", "-q", "--no-flush-to-disk", "--bypass-prop-validation", "-M", "256"]
        loader = subprocess.Popen([*command, str(made)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert loader.stdin is not None
        with loader.stdin as stream:
            for piece in dump(revisions):
                stream.write(piece)
        if loader.wait() != 0:
            raise RuntimeError(f"svnadmin load into {made} failed")
        subprocess.run(["svnadmin", "pack", "-q", str(made)], check=True, stdin=subprocess.DEVNULL)
        shutil.move(made, path)
    return path.resolve().as_uri()


def growing(revisions: int, paths: int = 8) -> Iterator[Revision]:
    """A history of ``revisions`` revisions that change ``paths`` files each; every hundredth is tagged."""
    folders = [Node(name, "add", "dir") for name in ("trunk", "branches", "tags")]
    yield Revision(folders, message="Set up the layout")
    made: set[str] = set()
    for number in range(2, revisions + 1):
        author = _PEOPLE[number % len(_PEOPLE)]
        if number % 100 == 0:
            tag = Node(f"tags/v{number}", "add", "dir", copyfrom=(number - 1, "trunk"))
            yield Revision([tag], author, f"Tag {number}")
            continue
        nodes = []
        for module in range(paths):
            path = f"trunk/file{(number * 7 + module) % 60}.txt"
            action = "change" if path in made else "add"
            made.add(path)
            nodes.append(Node(path, action, content=f"{number} {module}\n".encode()))
        yield Revision(nodes, author, f"Change {number}: see issue #{number % 97}\n\nSecond paragraph.")


def wide(paths: int) -> Iterator[Revision]:
    """A history with one ordinary revision, one that adds ``paths`` files at once, and one more."""
    yield Revision([Node("trunk", "add", "dir")], message="Set up")
    yield Revision(
        [Node(f"trunk/generated-file-number-{n:07d}.txt", "add", content=b"") for n in range(paths)],
        message="Import everything",
    )
    yield Revision([Node("trunk/readme.txt", "add", content=b"hello\n")], message="Describe it")


def odd() -> Iterator[Revision]:
    """A small history with what real ones hold: copies, replacements, property changes, empty revisions,
    missing properties, dates that go backwards, names in many scripts."""
    yield Revision([Node(n, "add", "dir") for n in ("trunk", "branches", "tags")], message="Layout")
    yield Revision(
        [
            Node("trunk/naïve café.txt", "add", content="é\n".encode()),
            Node("trunk/a@2x.png", "add", content=b"\x89PNG\x00"),
            Node("trunk/100%.txt", "add", content=b"%\n"),
            Node("trunk/日本語", "add", "dir"),
        ],
        "björn",
        "Namen in vielen Schriften\n" + "-" * 72 + "\nr5 | bob | not a header",
    )
    yield Revision([Node("branches/next", "add", "dir", copyfrom=(2, "trunk"))], "chen", "Branch")
    yield Revision(
        [Node("branches/next", "change", "dir", props={"svn:ignore": b"*.o\n"})], "chen", "Ignore objects"
    )
    yield Revision([], None, None, datetime(2011, 1, 1, tzinfo=UTC))
    yield Revision(
        [
            Node("trunk/100%.txt", "delete", None),
            Node("trunk/a@2x.png", "replace", content=b"new", copyfrom=(2, "trunk/a@2x.png")),
        ],
        message="Clean up <&> 'quote' \"double\"",
        props={"review:by": b"esi", "bugtraq": "Nr. 7, fünf".encode()},
    )
    yield Revision(
        [
            Node("trunk/日本語", "delete", None),
            Node("trunk/日本語", "add", "dir", copyfrom=(2, "trunk/日本語")),
        ],
        "esi",
        "Delete and bring back",
    )
    yield Revision([Node("tags/v1", "add", "dir", copyfrom=(7, "trunk"))], "dmitri", "Tag v1")
