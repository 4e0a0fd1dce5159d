"""The values of the pysvn surface: revisions, kinds, entries, the error.

Belongs here: plain values that read by attribute and by key, as in pysvn. Does not belong here: where they
come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, ClassVar


class _NamedKind(Enum):
    def __str__(self) -> str:
        return self.name


class opt_revision_kind(_NamedKind):
    """How a revision is named."""

    unspecified = 0
    number = 1
    date = 2
    head = 7


class node_kind(_NamedKind):
    """The kind of the object at a path."""

    none = 0
    file = 1
    dir = 2
    unknown = 3


def kind_of(name: str | None) -> node_kind:
    """The kind with this name in an answer of svn; ``unknown`` for every other name."""
    return getattr(node_kind, name) if name in ("file", "dir", "none") else node_kind.unknown


class diff_summarize_kind(_NamedKind):
    """The change of a path in a difference."""

    normal = 0
    added = 1
    modified = 2
    delete = 3


class depth(_NamedKind):
    """How deep an operation goes."""

    empty = 0
    files = 1
    immediates = 2
    infinity = 3


class Revision:
    """A revision by number, by date (seconds since the epoch), or ``head``."""

    __slots__ = ("date", "kind", "number")

    def __init__(self, kind: opt_revision_kind, value: float | None = None) -> None:
        self.kind = kind
        self.number = -1  # as Subversion says "no number"
        self.date: float | None = None
        if kind is opt_revision_kind.number:
            if value is None:
                raise TypeError("a revision of kind number needs its number")
            self.number = int(value)
        elif kind is opt_revision_kind.date:
            if value is None:
                raise TypeError("a revision of kind date needs seconds since the epoch")
            self.date = float(value)

    def argument(self) -> str:
        """How the command line writes it; empty where it is unspecified."""
        if self.kind is opt_revision_kind.number:
            return str(self.number)
        if self.kind is opt_revision_kind.date:
            return "{" + datetime.fromtimestamp(self.date or 0.0, UTC).isoformat() + "}"
        return "HEAD" if self.kind is opt_revision_kind.head else ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Revision):
            return NotImplemented
        return (self.kind, self.number, self.date) == (other.kind, other.number, other.date)

    def __hash__(self) -> int:
        return hash((self.kind, self.number, self.date))

    def __repr__(self) -> str:
        return f"<Revision kind={self.kind} {self.argument()}>"


def number(value: int) -> Revision:
    """The revision ``value``."""
    return Revision(opt_revision_kind.number, value)


class ByKey:
    """Attributes that also read as keys, as every value of pysvn does."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()

    def keys(self) -> tuple[str, ...]:
        """The names that can be read: ``_names``, or the fields of a dataclass."""
        return self._names or tuple(getattr(self, "__dataclass_fields__", ()))

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, name: str, default: Any = None) -> Any:
        """The value of ``name``, or ``default`` where there is no such name."""
        return getattr(self, name) if name in self.keys() else default

    def has_key(self, name: str) -> bool:
        """Whether ``name`` can be read."""
        return name in self

    def items(self) -> list[tuple[str, Any]]:
        """Names with their values."""
        return [(name, self[name]) for name in self.keys()]

    def values(self) -> list[Any]:
        """The values."""
        return [self[name] for name in self.keys()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(f'{k}={v!r}' for k, v in self.items())}>"


class PysvnLogChangedPath(ByKey):
    """One changed path of a log entry. ``kind``, ``text_mods`` and ``prop_mods`` are beyond pysvn."""

    _names: ClassVar[tuple[str, ...]] = (
        "path",
        "action",
        "copyfrom_path",
        "copyfrom_revision",
        "kind",
        "text_mods",
        "prop_mods",
    )
    __slots__ = _names

    def __init__(
        self,
        path: str,
        action: str,
        kind: str | None,
        copyfrom_path: str | None,
        copyfrom_rev: int | None,
        text_mods: bool | None,
        prop_mods: bool | None,
    ) -> None:
        self.path = path
        self.action = action
        self.kind = kind_of(kind)
        self.copyfrom_path = copyfrom_path
        self.copyfrom_revision = None if copyfrom_rev is None else number(copyfrom_rev)
        self.text_mods = text_mods
        self.prop_mods = prop_mods


class PysvnLog(ByKey):
    """One entry of a log. A value that the revision does not have, or hides, is None.

    ``date`` is in seconds since the epoch, ``date_text`` as the server wrote it. ``changed_paths`` may be
    iterated any number of times; of a huge revision it is read from the answer anew each time.
    """

    _names: ClassVar[tuple[str, ...]] = ("author", "date", "message", "revision", "changed_paths", "revprops")
    __slots__ = ("_revprops", "author", "changed_paths", "date_text", "message", "revision")

    def __init__(
        self,
        revision: int,
        author: str | None,
        date_text: str | None,
        message: str | None,
        changed_paths: Iterable[PysvnLogChangedPath],
        revprops: Mapping[str, str],
    ) -> None:
        self.revision = number(revision)
        self.author = author
        self.date_text = date_text
        self.message = message
        self.changed_paths = changed_paths
        self._revprops = revprops

    @property
    def date(self) -> float | None:
        """Seconds since the epoch; None where it is missing or no date."""
        return epoch(self.date_text)

    @property
    def revprops(self) -> dict[str, str]:
        """All revision properties that came with the entry."""
        standard = {"svn:author": self.author, "svn:date": self.date_text, "svn:log": self.message}
        return {**self._revprops, **{name: value for name, value in standard.items() if value is not None}}


@dataclass(frozen=True, repr=False)
class PysvnLock(ByKey):
    """A lock on a path; dates in seconds since the epoch."""

    token: str | None
    owner: str | None
    comment: str | None
    creation_date: float | None
    expiration_date: float | None


@dataclass(frozen=True, repr=False)
class PysvnInfo(ByKey):
    """The result of ``info2`` for a path; ``last_changed_date`` in seconds since the epoch, ``size`` in
    bytes.
    """

    URL: str
    rev: Revision
    kind: node_kind
    repos_root_URL: str
    repos_UUID: str
    last_changed_rev: Revision | None
    last_changed_date: float | None
    last_changed_author: str | None
    lock: PysvnLock | None
    size: int | None


@dataclass(frozen=True, repr=False)
class PysvnList(ByKey):
    """The result of ``list`` for a path; ``time`` in seconds since the epoch, ``size`` in bytes.
    ``has_props`` is None: the command does not tell.
    """

    path: str
    repos_path: str
    kind: node_kind
    size: int
    created_rev: Revision | None
    time: float | None
    last_author: str | None
    has_props: bool | None


@dataclass(frozen=True, repr=False)
class PysvnDiffSummary(ByKey):
    """The result of ``diff_summarize`` for a path."""

    path: str
    summarize_kind: diff_summarize_kind
    prop_changed: bool
    node_kind: node_kind


class ClientError(Exception):
    """svn refused: ``args`` are the message and a list of (message, numeric code of Subversion). ``target``
    is where the server sent svn, as far as that is known."""

    def __init__(self, message: str, errors: Sequence[tuple[str, int]] = (), *, target: str = "") -> None:
        super().__init__(message, list(errors))
        self.target = target

    @property
    def codes(self) -> frozenset[int]:
        """The numeric codes of Subversion and of the operating system."""
        return frozenset(code for _, code in self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


def moment(text: str | None) -> datetime | None:
    """A date as Subversion writes it, as an aware UTC datetime; None where it is missing or no such date."""
    if not text:
        return None
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    if value.tzinfo is UTC:
        return value
    try:
        return None if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        return None


def epoch(text: str | None) -> float | None:
    """A date as Subversion writes it, as seconds since the epoch; None where it is missing or no such
    date."""
    value = moment(text)
    return None if value is None else value.timestamp()
