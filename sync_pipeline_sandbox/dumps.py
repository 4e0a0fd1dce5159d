"""Writes dump streams, from which ``svnadmin load`` makes repositories with any content.

Belongs here: the dump format, version 2. Does not belong here: sample histories, and large repositories,
whose loading would take minutes (:mod:`sync_pipeline_sandbox.fsfs`).
"""

from __future__ import annotations

from collections.abc import Mapping


class DumpWriter:
    """Writes a dump stream. Paths and texts may be bytes, so that anything can be put into a repository."""

    def __init__(self) -> None:
        self._parts: list[bytes] = [b"SVN-fs-dump-format-version: 2\n\n"]
        self.youngest = -1
        self.revision(date="2020-01-01T00:00:00.000000Z")

    def revision(
        self,
        message: str | bytes | None = None,
        author: str | bytes | None = None,
        date: str | bytes | None = None,
        **others: bytes,
    ) -> DumpWriter:
        """Begin the next revision; what is None is left out."""
        self.youngest += 1
        props = {b"svn:log": message, b"svn:author": author, b"svn:date": date}
        props.update({name.replace("_", ":").encode(): value for name, value in others.items()})
        block = _block({name: _bytes(value) for name, value in props.items() if value is not None})
        self._parts.append(
            b"Revision-number: %d\nProp-content-length: %d\nContent-length: %d\n\n%s\n"
            % (self.youngest, len(block), len(block), block)
        )
        return self

    def node(
        self,
        path: str | bytes,
        action: str = "add",
        *,
        kind: str | None = "file",
        text: str | bytes | None = None,
        props: Mapping[bytes, bytes] | None = None,
        copyfrom: tuple[int, str] | None = None,
    ) -> DumpWriter:
        """Add a node record to the revision: add, change, delete or replace."""
        lines = [b"Node-path: " + _bytes(path)]
        if kind is not None and action != "delete":
            lines.append(b"Node-kind: " + kind.encode())
        lines.append(b"Node-action: " + action.encode())
        if copyfrom is not None:
            lines.append(b"Node-copyfrom-rev: %d" % copyfrom[0])
            lines.append(b"Node-copyfrom-path: " + copyfrom[1].encode())
        block = b"" if props is None else _block(props)
        body = b"" if text is None else _bytes(text)
        if props is not None:
            lines.append(b"Prop-content-length: %d" % len(block))
        if text is not None:
            lines.append(b"Text-content-length: %d" % len(body))
        if props is not None or text is not None:
            lines.append(b"Content-length: %d" % (len(block) + len(body)))
        self._parts.append(b"\n".join(lines) + b"\n\n" + block + body + b"\n\n")
        return self

    def directory(self, path: str | bytes) -> DumpWriter:
        """Add an empty folder."""
        return self.node(path, kind="dir")

    def dump(self) -> bytes:
        """The stream."""
        return b"".join(self._parts)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _block(props: Mapping[bytes, bytes]) -> bytes:
    pairs = (b"K %d\n%s\nV %d\n%s\n" % (len(k), k, len(v), v) for k, v in props.items())
    return b"".join(pairs) + b"PROPS-END\n"
