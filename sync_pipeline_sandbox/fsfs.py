"""Writes the files of a large repository directly, in seconds where loading a dump takes minutes.

Belongs here: revisions in format 4 of FSFS, as the file ``structure`` of Subversion describes it, for files
one folder deep. Does not belong here: anything small enough for a dump. ``svnadmin verify`` accepts the
result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

SHARD = 1000


class FastRepository:
    """Appends revisions to an empty repository of format 4 (``svnadmin create --compatible-version 1.6``)."""

    def __init__(self, path: Path) -> None:
        self._db = path / "db"
        self._revision = 0
        self._nodes: dict[str, str] = {"": "0.0.r0/17"}
        self._counts: dict[str, int] = {"": 0}
        self._folders: dict[str, dict[str, str]] = {"": {}}

    def revision(self, files: Iterable[str], *, message: str, author: str, date: str) -> None:
        """Add or change each of ``files`` (``folder/name``); folders appear when they are first named."""
        self._revision += 1
        parts: list[bytes] = []
        changes: list[str] = []
        self._at = 0
        self._fresh = 0
        touched: dict[str, None] = {}

        def write(data: bytes) -> int:
            at = self._at
            parts.append(data)
            self._at += len(data)
            return at

        text = b"%d\n" % self._revision
        digest = hashlib.md5(text).hexdigest()
        at = write(b"PLAIN\n" + text + b"ENDREP\n")
        rep = f"{self._revision} {at} {len(text)} {len(text)} {digest}"
        for path in files:
            folder, _, name = path.partition("/")
            changes.append(self._node(path, "file", rep, write))
            self._folders.setdefault(folder, {})[name] = f"file {self._nodes[path]}"
            touched[folder] = None
        for folder in touched:
            changes.append(self._node(folder, "dir", self._listing(folder, write), write))
            self._folders[""][folder] = f"dir {self._nodes[folder]}"
        self._node("", "dir", self._listing("", write), write)
        root = int(self._nodes[""].rpartition("/")[2])
        changes_at = write("".join(reversed(changes)).encode())
        write(f"\n{root} {changes_at}\n".encode())
        props = {"svn:author": author, "svn:date": date, "svn:log": message}
        self._store("revs", b"".join(parts))
        self._store("revprops", _hash(props))

    def finish(self) -> None:
        """Make the revisions visible."""
        (self._db / "current").write_text(f"{self._revision}\n")

    def _node(self, path: str, kind: str, rep: str, write: Callable[[bytes], int]) -> str:
        before = self._nodes.get(path)
        if before is None:
            prefix = f"{_base36(self._fresh)}-{self._revision}.0"
            self._fresh += 1
        else:
            prefix = before.rpartition(".")[0]
        node = f"{prefix}.r{self._revision}/{self._at}"
        self._counts[path] = self._counts.get(path, -1) + 1
        lines = [f"id: {node}", f"type: {kind}"]
        if before is not None:
            lines.append(f"pred: {before}")
        lines += [f"count: {self._counts[path]}", f"text: {rep}", f"cpath: /{path}", "copyroot: 0 /", "", ""]
        write("\n".join(lines).encode())
        self._nodes[path] = node
        action = "modify" if before is not None else "add"
        text = "true" if kind == "file" else "false"
        if before is not None and kind == "dir":
            return ""  # only its entries changed, which is no change of the folder itself
        return f"{prefix}.t{self._revision - 1}-1 {action}-{kind} {text} false /{path}\n\n"

    def _listing(self, folder: str, write: Callable[[bytes], int]) -> str:
        data = _hash(self._folders[folder])
        at = write(b"PLAIN\n" + data + b"ENDREP\n")
        return f"{self._revision} {at} {len(data)} {len(data)} {hashlib.md5(data).hexdigest()}"

    def _store(self, kind: str, data: bytes) -> None:
        shard = self._db / kind / str(self._revision // SHARD)
        if self._revision % SHARD == 0:
            shard.mkdir(exist_ok=True)
        (shard / str(self._revision)).write_bytes(data)


def _hash(entries: dict[str, str]) -> bytes:
    pairs = ((name.encode(), value.encode()) for name, value in entries.items())
    return b"".join(b"K %d\n%s\nV %d\n%s\n" % (len(k), k, len(v), v) for k, v in pairs) + b"END\n"


def _base36(value: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while value or not text:
        value, rest = divmod(value, 36)
        text = digits[rest] + text
    return text
