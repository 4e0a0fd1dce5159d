"""A small parser of Subversion dump files (versions 2 and 3), written against the format's description only.

Belongs here: what a dump says about each revision, as the truth that tests compare with. Does not belong
here: anything that uses the code under test or the ``svn`` command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Node:
    """One node record: what a revision did to a path. ``text`` and ``props`` say whether the record carries
    content or a property block."""

    path: str
    action: str
    kind: str | None
    copyfrom_path: str | None
    copyfrom_rev: int | None
    text: bytes | None
    props: dict[bytes, bytes] | None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class DumpRevision:
    """One revision record with its properties as stored."""

    number: int
    props: dict[bytes, bytes]
    nodes: list[Node] = field(default_factory=list)

    def text_of(self, name: str) -> str | None:
        """A property as text, None where the revision does not have it."""
        value = self.props.get(name.encode())
        return None if value is None else value.decode("utf-8", "replace")


def parse(source: Path | bytes) -> list[DumpRevision]:
    """All revisions of a dump, revision 0 included where it is there."""
    data = source if isinstance(source, bytes) else source.read_bytes()
    revisions: list[DumpRevision] = []
    for headers, body in _records(data):
        if "Revision-number" in headers:
            revisions.append(DumpRevision(int(headers["Revision-number"]), _properties(body)))
        elif "Node-path" in headers:
            length = int(headers.get("Prop-content-length", 0))
            has_text = "Text-content-length" in headers
            source_rev = headers.get("Node-copyfrom-rev")
            revisions[-1].nodes.append(
                Node(
                    headers["Node-path"],
                    headers["Node-action"],
                    headers.get("Node-kind"),
                    headers.get("Node-copyfrom-path"),
                    None if source_rev is None else int(source_rev),
                    body[length:] if has_text else None,
                    _properties(body[:length]) if "Prop-content-length" in headers else None,
                    headers,
                )
            )
    return revisions


def _records(data: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    at = 0
    while at < len(data):
        if data[at : at + 1] == b"\n":
            at += 1
            continue
        headers: dict[str, str] = {}
        while True:
            end = data.index(b"\n", at)
            line, at = data[at:end], end + 1
            if not line:
                break
            name, _, value = line.partition(b": ")
            headers[name.decode()] = value.decode("utf-8", "surrogateescape")
            if at >= len(data):
                break
        length = int(headers.get("Content-length", 0))
        yield headers, data[at : at + length]
        at += length


def _properties(block: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(block):
        end = block.index(b"\n", at)
        kind, _, size = block[at:end].partition(b" ")
        at = end + 1
        if kind == b"PROPS-END":
            break
        key = block[at : at + int(size)]
        at += int(size) + 1
        if kind == b"D":
            continue
        end = block.index(b"\n", at)
        length = int(block[at:end].partition(b" ")[2])
        found[key] = block[end + 1 : end + 1 + length]
        at = end + 1 + length + 1
    return found
