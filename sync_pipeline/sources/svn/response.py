"""The response of ``svn log --xml``: checked as a whole first, then parsed entry by entry.

Belongs here: the check (closing tag, expected revisions, legal bytes), and the fast parser for checked
responses. Also the tolerant parser for a single entry with any bytes. Does not belong here: running the
command, and the consequence of a bad response.

Memory stays flat: the response remains in its file, and small entries are parsed in groups. The changed paths
of a large entry are a view that reads the file again on each iteration.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from lxml import etree

from sync_pipeline.core.errors import WindowTooHard
from sync_pipeline.sources.svn.process import OutputFile

T = TypeVar("T")
MakePath = Callable[[str, str, str | None, str | None, int | None, bool | None, bool | None], T]

BLOCK = 1 << 20
GROUP = 1 << 17
LARGE = 1 << 18

ILLEGAL = bytes(sorted(set(range(32)) - {9, 10, 13}))
"""Bytes that no XML document may hold."""

LOSSY = re.compile(rb"\?\\[0-9]{3}")
"""How svn writes a control character of a message or an author into XML."""

_ENTRY_TAG = re.compile(rb'<logentry\s[^>]*?revision="([0-9]+)"[^>]*>|</logentry>')
_ALTERABLE = re.compile(rb'<(?:msg|author|path|property)\b[^<>]*>[^<\n]*\n|copyfrom-path="[^" ]* ')
_BAD_ENTITY = re.compile(rb"&(?!amp;|lt;|gt;|quot;|apos;|#[0-9]{1,7};)")
_ENTRY = re.compile(
    r'<logentry\s+revision="([0-9]+)">\s*'
    r"(?:<author>([^<]*)</author>\s*)?"
    r"(?:<date>([^<]*)</date>\s*)?"
    r"(?:<paths>((?:\s*<path\s[^<]*</path>)*)\s*</paths>\s*)?"
    r"(?:<msg>([^<]*)</msg>\s*)?"
    r"</logentry>\s*"
)
_PATH = re.compile(r"<path\s([^>]*)>([^<]*)</path>")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_ENTITY = re.compile(r"&(?:#([0-9]+)|#x([0-9a-fA-F]+)|(\w+));")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_TRUTH: Mapping[str | None, bool] = {"true": True, "false": False}


class LogEntry(NamedTuple, Generic[T]):
    """One entry as the answer has it. Missing values are None; ``date`` is the server's text."""

    revision: int
    author: str | None
    date: str | None
    message: str | None
    paths: Iterable[T]
    revprops: Mapping[str, str]


class CheckedLog:
    """An answer that passed: where its entries are, and a way to read them.

    ``lossy`` are the entries, by their place, whose author or message may have lost control characters on the
    way. Entries with bytes that no XML document may hold are refused, or with ``lenient`` taken apart byte by
    byte: the tags around them are sound.
    """

    def __init__(self, file: OutputFile, *, nested: bool = False, lenient: bool = False) -> None:
        self._file = file
        self._nested = nested
        self._lenient = lenient
        self._broken: set[int] = set()
        self.revisions = array("q")
        self._starts = array("q")
        self._ends = array("q")
        self.lossy: set[int] = set()
        self._check()

    def __len__(self) -> int:
        return len(self.revisions)

    def _check(self) -> None:
        depth = 0
        balance = 0
        for start, block in self._file.blocks(0, self._file.size, BLOCK, b">"):
            refused = _refused(block)
            if refused is not None and not self._lenient:
                raise refused
            if _BAD_ENTITY.search(block):
                raise WindowTooHard("the answer is not well-formed", code="malformed")
            balance += _balance(block)
            # Taken in step with the tags: one look at each, however many there are.
            losses = (match.start() for match in LOSSY.finditer(block))
            loss = next(losses, len(block))
            at = 0
            for match in _ENTRY_TAG.finditer(block):
                if match[1] is None:
                    depth -= 1
                    if depth == 0:
                        self._ends.append(start + match.end())
                        if loss < match.start():
                            self.lossy.add(len(self.revisions) - 1)
                        while loss < match.start():
                            loss = next(losses, len(block))
                        if refused is not None and _refused(block[at : match.end()]) is not None:
                            self._broken.add(len(self._ends) - 1)
                        at = match.end()
                else:
                    if depth == 0:
                        self.revisions.append(int(match[1]))
                        self._starts.append(start + match.start())
                    depth += 1
            if loss < len(block) and self.revisions:
                self.lossy.add(len(self.revisions) - 1)
            if refused is not None and (outside := _refused(block[at:])) is not None:
                if not depth:
                    raise outside
                self._broken.add(len(self._starts) - 1)
        size = self._file.size
        if depth or not self._file.read(max(0, size - 64), size).rstrip().endswith((b"</log>", b"<log/>")):
            raise WindowTooHard("the answer ends before its closing tag", code="truncated")
        if balance:
            raise WindowTooHard("the answer is not well-formed", code="malformed")

    def expect(self, first: int, end: int) -> None:
        """Raise WindowTooHard unless the entries are exactly the revisions ``[first, end)`` in ascending
        order."""
        if self.revisions != array("q", range(first, end)):
            raise WindowTooHard(
                f"the answer should hold {end - first} revisions from r{first} on, but does not",
                code="missing_revisions",
            )

    def raw(self, index: int, cap: int) -> bytes:
        """The bytes of one entry, at most ``cap``."""
        return self._file.read(self._starts[index], min(self._ends[index], self._starts[index] + cap))

    @property
    def is_alterable(self) -> bool:
        """Whether an XML reader may have changed a CR or a TAB in it. It then has a text of several lines, or
        the source of a copy with a space.
        """
        blocks = self._file.blocks(0, self._file.size, BLOCK, b"</")
        return any(_ALTERABLE.search(block) for _, block in blocks)

    def apart(self, index: int) -> TolerantEntry:
        """One entry, byte by byte."""
        return _take_apart(self._file, self.revisions[index], self._starts[index], self._ends[index])

    def entries(self, make: MakePath[T]) -> Iterator[LogEntry[T]]:
        """All entries in order, paths built by ``make(path, action, kind, copyfrom_path, copyfrom_rev,
        text_mods, prop_mods)``."""
        for entry in self.lenient_entries(make):
            assert isinstance(entry, LogEntry)
            yield entry

    def lenient_entries(self, make: MakePath[T]) -> Iterator[LogEntry[T] | TolerantEntry]:
        """As :meth:`entries`; byte by byte where the bytes of one are no XML."""
        attributes: dict[str, tuple[Any, ...]] = {}
        index, count = 0, len(self.revisions)
        while index < count:
            start, end = self._starts[index], self._ends[index]
            if index in self._broken:
                yield self.apart(index)
                index += 1
                continue
            if end - start > LARGE and not self._nested:
                yield self._large(start, end, make, attributes)
                index += 1
                continue
            last = index + 1
            while last < count and self._ends[last] - start <= GROUP and last not in self._broken:
                last += 1
            text = self._file.read(start, self._ends[last - 1]).decode("utf-8")
            yield from _parse_group(text, make, attributes, nested=self._nested)
            index = last

    def _large(
        self, start: int, end: int, make: MakePath[T], attributes: dict[str, tuple[Any, ...]]
    ) -> LogEntry[T]:
        opening, closing = _outside(self._file, start, end)
        if not opening < closing < end:
            text = self._file.read(start, end).decode("utf-8")
            return next(iter(_parse_group(text, make, attributes, nested=False)))
        head = self._file.read(start, opening + len(b"<paths>"))
        tail = self._file.read(closing, end)
        (entry,) = _parse_group((head + tail).decode("utf-8"), make, attributes, nested=False)
        return entry._replace(paths=PathsView(self._file, opening + len(b"<paths>"), closing, make))


class PathsView(Generic[T]):
    """The changed paths of a large entry, read from the answer on each iteration."""

    __slots__ = ("_end", "_file", "_make", "_start")

    def __init__(self, file: OutputFile, start: int, end: int, make: MakePath[T]) -> None:
        self._file = file
        self._start = start
        self._end = end
        self._make = make

    def __iter__(self) -> Iterator[T]:
        attributes: dict[str, tuple[Any, ...]] = {}
        for _, block in self._file.blocks(self._start, self._end, GROUP, b"</path>"):
            yield from _parse_paths(block.decode("utf-8"), self._make, attributes)

    def __len__(self) -> int:
        blocks = self._file.blocks(self._start, self._end, GROUP, b"</path>")
        return sum(block.count(b"</path>") for _, block in blocks)

    def __getitem__(self, index: int) -> T:
        position = index if index >= 0 else len(self) + index
        for at, path in enumerate(self):
            if at == position:
                return path
        raise IndexError(index)


def _refused(data: bytes) -> WindowTooHard | None:
    """Why no XML document may hold ``data``; None where one may."""
    if len(data.translate(None, ILLEGAL)) != len(data):
        return WindowTooHard("the answer holds control characters", code="control_characters")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return WindowTooHard("the answer holds invalid UTF-8", code="invalid_utf8")
    if "\ufffe" in text or "\uffff" in text:
        return WindowTooHard("the answer holds characters that XML forbids", code="control_characters")
    return None


def _balance(block: bytes) -> int:
    """How many elements are opened but not closed in ``block``; zero over a whole well-formed answer. Text
    and attributes never hold a bare angle bracket, svn escapes both."""
    closing = block.count(b"</")
    return block.count(b"<") - block.count(b"<?") - 2 * closing - block.count(b"/>")


def _parse_group(
    text: str, make: MakePath[T], attributes: dict[str, tuple[Any, ...]], *, nested: bool
) -> Iterator[LogEntry[T]]:
    position = 0
    while position < len(text):
        match = _ENTRY.match(text, position)
        if match is None:  # other properties, nesting or an unusual form: the general way
            yield from _parse_general(text[position:], make, nested=nested)
            return
        position = match.end()
        revision, author, date, paths, message = match.groups()
        yield LogEntry(
            int(revision),
            _plain(author),
            date,
            _plain(message),
            list(_parse_paths(paths, make, attributes)) if paths else [],
            {},
        )


def _parse_paths(text: str, make: MakePath[T], attributes: dict[str, tuple[Any, ...]]) -> Iterator[T]:
    """The ``<path>`` elements of ``text``. ``attributes`` remembers the few forms in which attributes
    come."""
    for match in _PATH.finditer(text):
        named, path = match.groups()
        values = attributes.get(named)
        if values is None:
            values = _attributes(named)
            if values[1] is None and values[2] is None:
                attributes[named] = values
        action, from_path, from_rev, kind, text_mods, prop_mods = values
        path = (_plain(path) or "") if "&" in path or "\r" in path else path
        yield make(path, action, kind, from_path, from_rev, text_mods, prop_mods)


def _attributes(text: str) -> tuple[Any, ...]:
    found: dict[str, str | None] = dict(_ATTRIBUTE.findall(text))
    found["copyfrom-path"] = _plain(found.get("copyfrom-path"))
    return _values(found.get)


def _values(get: Callable[[str], str | None]) -> tuple[Any, ...]:
    """The arguments of a changed path behind its name, from its attributes."""
    revision = get("copyfrom-rev")
    return (
        get("action") or "",
        get("copyfrom-path"),
        int(revision) if revision else None,
        get("kind") or None,
        _TRUTH.get(get("text-mods")),
        _TRUTH.get(get("prop-mods")),
    )


def _plain(text: str | None) -> str | None:
    """Character data without entities, line ends as XML reads them."""
    if text is None:
        return None
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ENTITY.sub(_entity, text) if "&" in text else text


def _entity(match: re.Match[str]) -> str:
    decimal, hexadecimal, name = match.groups()
    if decimal or hexadecimal:
        return chr(int(decimal) if decimal else int(hexadecimal, 16))
    return _NAMED.get(name, match[0])


def _parse_general(text: str, make: MakePath[T], *, nested: bool) -> Iterator[LogEntry[T]]:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)
    try:
        root = etree.fromstring(f"<log>{text}</log>".encode(), parser)
    except etree.XMLSyntaxError:
        raise WindowTooHard("the answer is not well-formed", code="malformed") from None
    for element in root.iter("logentry") if nested else root.iterchildren("logentry"):
        properties = element.find("revprops")
        yield LogEntry(
            int(element.get("revision", "")),
            _text(element.find("author")),
            _text(element.find("date")),
            _text(element.find("msg")),
            [
                make(path.text or "", action, kind, from_path, from_rev, text_mods, prop_mods)
                for path in element.iterfind("paths/path")
                for action, from_path, from_rev, kind, text_mods, prop_mods in [_values(path.get)]
            ],
            {} if properties is None else {p.get("name", ""): property_value(p) for p in properties},
        )


def _text(element: Any) -> str | None:
    return None if element is None else element.text or ""


def property_bytes(element: Any) -> bytes:
    """The value of a ``<property>`` element as it is in the repository."""
    text = element.text or ""
    return base64.b64decode(text) if element.get("encoding") == "base64" else text.encode()


def property_value(element: Any) -> str:
    """The value of a ``<property>`` element as text; bytes that are not UTF-8 are replaced."""
    return property_bytes(element).decode("utf-8", "replace")


# The tolerant parser: one entry with any bytes.

_RAW_FIELD = re.compile(rb"<(author|date|msg)>([^<]*)</\1>")
_RAW_PATH = re.compile(rb"<path\s([^>]*)>([^<]*)</path>")
_RAW_PROPERTY = re.compile(rb"<property\s([^>]*)>([^<]*)</property>")
_ATTRIBUTE_BYTES = re.compile(rb'([\w-]+)="([^"]*)"')


class TolerantEntry(NamedTuple):
    """One entry taken apart byte by byte: ``fields`` has author, date and msg where they are there."""

    revision: int
    fields: Mapping[str, bytes]
    paths: Iterable[tuple[bytes, Mapping[str, bytes]]]
    properties: Mapping[str, bytes]


def tolerant(file: OutputFile, revision: int) -> TolerantEntry:
    """The only entry of an answer that the judgement refused. Raises WindowTooHard when it is cut off or of
    another revision."""
    size = file.size
    if not file.read(max(0, size - 64), size).rstrip().endswith(b"</log>"):
        raise WindowTooHard("the answer ends before its closing tag", code="truncated")
    found: list[int] = []
    for _, block in file.blocks(0, size, BLOCK, b">"):
        found += [int(match[1]) for match in _ENTRY_TAG.finditer(block) if match[1]]
    if found != [revision]:
        raise WindowTooHard(f"the answer does not hold exactly r{revision}", code="missing_revisions")
    return _take_apart(file, revision, 0, size)


def _take_apart(file: OutputFile, revision: int, start: int, end: int) -> TolerantEntry:
    # Around the paths there is one message at most, so it is read whole.
    opening, closing = _outside(file, start, end)
    outside = file.read(start, opening) + file.read(closing, end)
    fields = {match[1].decode(): raw_plain(match[2]) for match in _RAW_FIELD.finditer(outside)}
    properties = dict(raw_properties(outside))
    return TolerantEntry(revision, fields, _TolerantPaths(file, opening, closing), properties)


def raw_properties(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and exact value of each ``<property>`` in ``data``."""
    for match in _RAW_PROPERTY.finditer(data):
        named = dict(_ATTRIBUTE_BYTES.findall(match[1]))
        encoded = named.get(b"encoding") == b"base64"
        name = raw_plain(named.get(b"name", b"")).decode("utf-8", "replace")
        yield name, base64.b64decode(match[2]) if encoded else raw_plain(match[2])


def _outside(file: OutputFile, start: int, end: int) -> tuple[int, int]:
    opening = closing = end
    for position, block in file.blocks(start, end, BLOCK, b">"):
        if opening == end and (at := block.find(b"<paths>")) >= 0:
            opening = position + at
        if (at := block.find(b"</paths>")) >= 0:
            closing = position + at
            break
    return opening, closing


class _TolerantPaths:
    def __init__(self, file: OutputFile, start: int, end: int) -> None:
        self._file = file
        self._start = start
        self._end = end

    def __iter__(self) -> Iterator[tuple[bytes, Mapping[str, bytes]]]:
        for _, block in self._file.blocks(self._start, self._end, GROUP, b"</path>"):
            for match in _RAW_PATH.finditer(block):
                named = {key.decode(): raw_plain(value) for key, value in _ATTRIBUTE_BYTES.findall(match[1])}
                yield raw_plain(match[2]), named


def raw_plain(data: bytes) -> bytes:
    """Character data without entities, every other byte as it was."""
    if b"&" not in data:
        return data
    return re.sub(rb"&(?:#([0-9]{1,7})|(\w+));", _raw_entity, data)


def _raw_entity(match: re.Match[bytes]) -> bytes:
    if match[1]:
        code = int(match[1])
        return chr(code).encode() if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else match[0]
    plain = _NAMED.get(match[2].decode("ascii", "replace"))
    return match[0] if plain is None else plain.encode()
