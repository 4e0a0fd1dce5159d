"""Reads revisions of one repository and yields them as pages of rows.

Belongs here: one ``svn log`` per window, the consequence of a bad response, other ways to read a single
revision, the prefix filter, hidden revisions. Does not belong here: which window is read when, and the
database.

The log is always read at the repository root and pinned to the end of the window. A current path may not have
existed then. A repository registered below its root is a filter on the changed paths.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from sync_pipeline.core.errors import ConfigurationError, Permanent, SyncError, Transient, WindowTooHard
from sync_pipeline.core.model import (
    DeferredFetch,
    Page,
    PathChange,
    QuarantinedRow,
    RevisionPage,
    RevisionRow,
    RevisionWindow,
    Traffic,
    Visibility,
    Visit,
)
from sync_pipeline.sources.svn.client import Client
from sync_pipeline.sources.svn.codes import Meaning, codes_of, consequence, meaning, moved, safe_url
from sync_pipeline.sources.svn.process import OutputFile
from sync_pipeline.sources.svn.prompts import server_of
from sync_pipeline.sources.svn.raw_log import Altered
from sync_pipeline.sources.svn.response import LOSSY, CheckedLog, LogEntry, TolerantEntry, tolerant
from sync_pipeline.sources.svn.types import ClientError, PysvnInfo, moment, number

Answered = TypeVar("Answered")

PAYLOAD_CAP = 1 << 20
"""Most bytes of an unreadable answer that quarantine keeps."""

LINE_ENDS_UNSURE = "line_ends_unsure"
PATHS_UNSURE = "paths_unsure"
"""Flags of rows in which an XML reader may have replaced a CR or a TAB by a line feed or a space."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")

# The properties that svn writes as elements of their own, by name.
_TEXTS = {"svn:author": "author", "svn:log": "msg"}

# Errors that the revision causes, whatever proxy is in between.
_SURE = frozenset({Meaning.CORRUPT.value, "too_large"})

SCHEMES = re.compile(r"(https?|file|svn(\+[A-Za-z0-9]+)?)://")


class SvnReader:
    """Reads one repository. ``root_url`` is the repository root, ``prefix`` the part below it that is
    registered, without slashes at its ends, empty for everything. Timeouts are seconds of wall clock per
    svn command. A server that cannot be reached is asked ``attempts`` times within seconds; longer waits are
    the job ledger's.

    Visibility: over ``file://`` nothing is hidden. Elsewhere an entry without author, date, message and
    paths is HIDDEN, one without a message PARTIAL. A revision whose ``svn:log`` was removed looks exactly
    like a partly hidden one; the two cannot be told apart. A hidden revision yields no row with a prefix:
    nothing of what may be seen changed in it.
    """

    def __init__(
        self,
        client: Client,
        root_url: str,
        prefix: str,
        *,
        log_timeout: float,
        info_timeout: float,
        attempts: int = 3,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._attempts = attempts
        self._sleep = sleep
        self._root = root_url
        self._prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
        self._log_timeout = log_timeout
        self._info_timeout = info_timeout
        self._sees_all = root_url.startswith("file://")
        self._is_web = root_url.startswith(("http://", "https://"))
        self._raw_log = client.raw_log(root_url, timeout=log_timeout)

    @property
    def calls(self) -> int:
        """Number of svn commands run so far."""
        return self._client.calls

    @property
    def traffic(self) -> Traffic:
        """The commands so far, those that took too long, and the wait for leave to start them."""
        client = self._client
        return Traffic(client.calls, timeouts=client.timeouts, waited=client.waited)

    def visit(self) -> Visit:
        """UUID, root and youngest revision. Raises AccessDenied, SourceGone, Permanent (certificate, moved),
        Transient and ConfigurationError."""
        if not SCHEMES.match(self._root):
            raise ConfigurationError(
                f"{safe_url(self._root)} is no URL of a Subversion server; check the URL: it begins with "
                "http://, https://, svn://, svn+ssh:// or file://"
            )
        try:
            found = self._patiently(
                lambda: self._client.info2(self._root, recurse=False, timeout=self._info_timeout)
            )
        except ClientError as error:
            raise consequence(error, self._root) from None
        except WindowTooHard as error:
            raise Transient(f"{safe_url(self._root)} does not answer: {error}", code=error.code) from None
        if len(found) != 1:
            raise Transient(f"svn info said nothing about {safe_url(self._root)}", code="svn_failed")
        info = found[0][1]
        if not info.repos_UUID or not info.repos_root_URL:
            raise Transient(f"svn info said nothing about {safe_url(self._root)}", code="svn_failed")
        return Visit(uuid=info.repos_UUID, root=self._root_here(info), head=info.rev.number)

    def _root_here(self, info: PysvnInfo) -> str:
        """The root that svn found. Raises Permanent (moved) where a redirect led svn to another place; an
        alias of the server is none."""
        asked, found = server_of(self._root), server_of(info.URL)
        if asked is None or asked.scheme not in ("http", "https"):
            return info.repos_root_URL
        same_path = _path_of(info.URL) == _path_of(self._root)
        if found == asked and same_path:
            return info.repos_root_URL
        if found in self._client.aliases and same_path:
            return str(asked) + urlsplit(info.repos_root_URL).path
        raise moved(self._root, info.URL)

    def read(self, window: RevisionWindow) -> Iterator[RevisionPage]:
        """The revisions of ``window`` as one page whose rows are parsed as they are taken.

        Raises WindowTooHard if the response is unusable, too large, too slow, or has a damaged revision. Then
        a smaller window may work, and a single revision goes to :meth:`read_single`. Else as :meth:`visit`.
        """
        if not len(window):
            yield Page(window, (), window)
            return
        answer = self._log(window, paths=True)
        checked = CheckedLog(answer, lenient=True)
        checked.expect(window.first, window.end)
        altered = self._unaltered(window) if checked.is_alterable else {}
        exact, deferred = self._lossless(checked)
        rows = _Rows(self, checked, exact, altered)
        yield Page(window, rows, window, deferred=tuple(deferred))

    def read_single(self, rev_num: int) -> RevisionPage:
        """One hard revision: byte by byte, else without its paths, which are a deferred fetch, else as a
        quarantined row. Raises Transient, and the rest as :meth:`visit`, where the server and not the
        revision is at fault: it answers for no other revision either.
        """
        window = RevisionWindow(rev_num, rev_num + 1)
        payload = b""
        try:
            answer = self._log(window, paths=True)
            payload = answer.read(0, PAYLOAD_CAP)
            return self._tolerant_batch(window, answer, deferred=())
        except WindowTooHard as error:
            first = error
        try:
            answer = self._log(window, paths=False)
            payload = answer.read(0, PAYLOAD_CAP)
            fetch = DeferredFetch(str(rev_num), "changed_paths", f"{first.code}: {first}")
            return self._tolerant_batch(window, answer, deferred=(fetch,))
        except WindowTooHard as error:
            if error.code == "timeout":
                raise Transient(f"r{rev_num} of {safe_url(self._root)}: {error}", code="timeout") from None
            if error.code == Meaning.CONNECTION.value:
                # Under another code: the server is there for other revisions.
                raise Transient(f"r{rev_num} of {safe_url(self._root)}: {error}", code="svn_failed") from None
            if error.code not in _SURE and not self._can_read_logs(rev_num):
                raise Transient(
                    f"{safe_url(self._root)} answers no question for its log: {error}",
                    code=Meaning.CONNECTION.value,
                ) from None
            return Page(window, (), window, quarantined=(_quarantined(rev_num, error, payload),))

    def settle(self, natural_key: str, detail: str) -> RevisionPage:
        """Read the revision of a deferred fetch again. The page claims no coverage; what still cannot be read
        is deferred again. ``detail`` only names the fetch: the whole revision is read."""
        rev_num = int(natural_key)
        window = RevisionWindow(rev_num, rev_num + 1)
        try:
            (batch,) = self.read(window)
        except WindowTooHard:
            batch = self.read_single(rev_num)
        return Page(window, batch.rows, None, batch.quarantined, batch.deferred)

    def is_outside(self, rev_num: int) -> bool:
        """True if the revision, all of which may be seen, changed nothing below the prefix. Raises as
        :meth:`read`."""
        if not self._prefix:
            return False
        answer = self._log(RevisionWindow(rev_num, rev_num + 1), paths=True)
        checked = CheckedLog(answer, lenient=True)
        checked.expect(rev_num, rev_num + 1)
        rows = [self._whole_row(entry, {}) for entry in checked.lenient_entries(PathChange)]
        return all(self._inside(row.paths) is None and row.visibility is Visibility.FULL for row in rows)

    # One answer

    def _patiently(self, ask: Callable[[], Answered]) -> Answered:
        """The result of ``ask``; a lost or refused connection is retried after half a second or more."""
        return Retrying(
            retry=retry_if_exception(_lost_connection),
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential_jitter(multiplier=0.5, max=4.0, jitter=0.5),
            sleep=self._sleep,
            reraise=True,
        )(ask)

    def _log(self, window: RevisionWindow, *, paths: bool) -> OutputFile:
        try:
            return self._patiently(
                lambda: self._client.log_answer(
                    self._root,
                    number(window.first),
                    number(window.end - 1),
                    discover_changed_paths=paths,
                    strict_node_history=False,
                    peg_revision=number(window.end - 1),
                    timeout=self._log_timeout,
                )
            )
        except ClientError as error:
            what = meaning(error.codes)
            # Damage is certain. A proxy may cause everything else, so a window counts as the cause only while
            # another revision can be read.
            if what is Meaning.CORRUPT or (_may_be_hard(error) and self._can_read_logs(window.first)):
                raise _Hard(f"svn log failed on {window}: {codes_of(error)}", what) from None
            if what is Meaning.NOT_FOUND:
                # The front door was open a moment ago; the next look there tells whether it is gone.
                raise Transient(
                    f"{safe_url(self._root)} answers, but not to the question for its log"
                    f" ({codes_of(error)})",
                    code=what.value,
                ) from None
            raise consequence(error, self._root) from None

    def _can_read_logs(self, rev_num: int) -> bool:
        """Whether another revision than ``rev_num`` can be asked for: its log arrives, or only a real server
        can have refused it."""
        other = number(1 if rev_num > 1 else 2)
        try:
            answer = self._client.log_answer(
                self._root,
                other,
                other,
                strict_node_history=False,
                peg_revision=other,
                revprops=(),
                timeout=self._info_timeout,
            )
            CheckedLog(answer).expect(other.number, other.number + 1)
        except ClientError as error:
            return meaning(error.codes) in (Meaning.CORRUPT, Meaning.NO_SUCH_REVISION)
        except WindowTooHard:
            return False
        return True

    def _unaltered(self, window: RevisionWindow) -> Mapping[int, Altered] | None:
        """The texts and paths of the window that the XML reader of svn changed; None where that cannot be
        known. It changes answers of web servers only."""
        if self._raw_log is None:
            return None if self._is_web else {}
        self._client.permit()
        return self._raw_log.altered(window.first, window.end)

    def _mended(self, row: RevisionRow, altered: Mapping[int, Altered] | None) -> RevisionRow:
        """The row with the CR and TAB that an XML reader took, or flagged where it may have taken some."""
        if altered is None:
            return replace(row, flags=tuple(sorted({*row.flags, *_doubts(row)})))
        mine = altered.get(row.rev_num)
        if mine is None:
            return row
        flags, raw = set(row.flags), dict(row.raw)
        texts = {name: _exact(name, None, mine.texts, flags, raw) or "" for name in mine.texts}
        return replace(
            row,
            author_raw=texts.pop("svn:author", row.author_raw),
            message=texts.pop("svn:log", row.message),
            revprops={**row.revprops, **texts},
            paths=_Mended(row.paths, mine.paths) if mine.paths else row.paths,
            flags=tuple(sorted(flags)),
            raw=raw,
        )

    def _lossless(self, checked: CheckedLog) -> tuple[dict[int, dict[str, bytes]], list[DeferredFetch]]:
        """The exact properties of entries whose text looks as if svn had replaced control characters."""
        exact: dict[int, dict[str, bytes]] = {}
        deferred = []
        for index in sorted(checked.lossy):
            rev_num = checked.revisions[index]
            try:
                exact[rev_num] = self._reread(checked.apart(index))
            except (SyncError, ClientError) as error:
                failure = consequence(error, self._root) if isinstance(error, ClientError) else error
                if not isinstance(failure, Transient | Permanent):
                    raise failure from None
                deferred.append(DeferredFetch(str(rev_num), "message", f"{failure.code}: {failure}"))
        return exact, deferred

    def _reread(self, entry: TolerantEntry) -> dict[str, bytes]:
        """The exact properties of which svn may have replaced control characters."""
        found = {}
        for name, field in _TEXTS.items():
            if LOSSY.search(entry.fields.get(field, b"")):
                value = self._client.revprop_bytes(name, self._root, number(entry.revision))
                if value is not None:
                    found[name] = value
        return found

    def _row(
        self,
        entry: LogEntry[PathChange] | TolerantEntry,
        exact: dict[str, bytes],
        altered: Mapping[int, Altered] | None,
    ) -> RevisionRow | None:
        """The row of an entry; None where nothing of it concerns the prefix."""
        row = self._whole_row(entry, exact)
        if altered is None or entry.revision in altered:
            row = self._mended(row, altered)
        if not self._prefix:
            return row
        paths = self._inside(row.paths)
        return None if paths is None else replace(row, paths=paths)

    def _whole_row(self, entry: LogEntry[PathChange] | TolerantEntry, exact: dict[str, bytes]) -> RevisionRow:
        if isinstance(entry, TolerantEntry):
            return self._tolerant_row(entry, exact)
        flags: set[str] = set()
        raw: dict[str, bytes] = {}
        author = _exact("svn:author", entry.author, exact, flags, raw)
        message = _exact("svn:log", entry.message, exact, flags, raw)
        ts = moment(entry.date)
        if ts is None and entry.date is not None:
            flags.add("bad_date")
            raw["svn:date"] = entry.date.encode()
        return RevisionRow(
            entry.revision,
            author,
            ts,
            message,
            self._visibility(author, entry.date, message, entry.paths),
            entry.paths,
            tuple(sorted(flags)),
            entry.revprops,
            raw,
        )

    def _visibility(
        self, author: str | None, date: str | None, message: str | None, paths: Iterable[PathChange]
    ) -> Visibility:
        if self._sees_all or message is not None:
            return Visibility.FULL
        if author is None and date is None and next(iter(paths), None) is None:
            return Visibility.HIDDEN
        return Visibility.PARTIAL

    def _inside(self, paths: Iterable[PathChange]) -> Iterable[PathChange] | None:
        """The changed paths that concern the prefix; None where there are none of them."""
        if not self._prefix:
            return paths
        found: Iterable[PathChange]
        if isinstance(paths, list):
            found = [path for path in paths if self._concerns(path)]
        else:
            found = _Filtered(paths, self)
        return found if next(iter(found), None) is not None else None

    def _concerns(self, change: PathChange) -> bool:
        path = change.path
        if path == self._prefix or path.startswith(self._prefix + "/"):
            return True
        return change.action != "M" and self._prefix.startswith(path.rstrip("/") + "/")

    # A single hard revision

    def _tolerant_batch(
        self, window: RevisionWindow, answer: OutputFile, deferred: tuple[DeferredFetch, ...]
    ) -> RevisionPage:
        entry = tolerant(answer, window.first)
        exact: dict[str, bytes] = {}
        deferred_messages: list[DeferredFetch] = []
        try:
            exact = self._reread(entry)
        except ClientError as error:
            if meaning(error.codes) not in (Meaning.CORRUPT, Meaning.UNKNOWN):
                deferred_messages.append(DeferredFetch(str(window.first), "message", codes_of(error)))
        except WindowTooHard as error:
            deferred_messages.append(DeferredFetch(str(window.first), "message", f"{error.code}: {error}"))
        altered = self._unaltered(window)
        # Without its paths it is unknown whether the revision concerns the prefix, so it stays.
        if deferred:
            row: RevisionRow | None = self._mended(self._tolerant_row(entry, exact), altered)
        else:
            row = self._row(entry, exact, altered)
        rows = () if row is None else (row,)
        return Page(window, rows, window, deferred=(*deferred, *deferred_messages))

    def _tolerant_row(self, entry: TolerantEntry, exact: dict[str, bytes]) -> RevisionRow:
        flags: set[str] = set()
        raw: dict[str, bytes] = {}
        paths = _TolerantChanges(entry)
        for path in paths:
            if CONTROL.search(path.path) or CONTROL.search(path.copyfrom_path or ""):
                flags.add("control_characters")
            if paths.mended:
                flags.add("invalid_utf8")
        shown = {name: entry.fields[field] for name, field in _TEXTS.items() if field in entry.fields}
        texts = {name: _exact(name, None, shown | exact, flags, raw) for name in _TEXTS}
        date = entry.fields.get("date")
        date_text = None if date is None else date.decode("utf-8", "replace")
        ts = moment(date_text)
        if date is not None and ts is None:
            flags.add("bad_date")
            raw["svn:date"] = date
        others = {}
        for name, value in entry.properties.items():
            others[name] = _exact(name, None, {name: value}, flags, raw) or ""
        return RevisionRow(
            entry.revision,
            texts["svn:author"],
            ts,
            texts["svn:log"],
            self._visibility(texts["svn:author"], date_text, texts["svn:log"], paths),
            paths,
            tuple(sorted(flags)),
            others,
            raw,
        )


def _quarantined(rev_num: int, error: WindowTooHard, payload: bytes) -> QuarantinedRow:
    reason = error.code if error.code in _SURE else "unparseable"
    return QuarantinedRow(str(rev_num), reason, str(error), payload)


def _may_be_hard(error: ClientError) -> bool:
    """Whether the revisions of the window may be the cause, so that a smaller window or another way of
    reading may work.

    That is so if svn failed on the response, if the response broke off, or for a code that the table does not
    have. Without any reason (a killed process) they are not the cause.
    """
    what = meaning(error.codes)
    if what is Meaning.UNKNOWN:
        return any(error.codes)
    return what in (Meaning.MALFORMED, Meaning.CONNECTION, Meaning.NOT_FOUND)


class _Hard(WindowTooHard):
    """svn itself failed on something in the window."""

    def __init__(self, message: str, what: Meaning) -> None:
        super().__init__(message, code=what.value)


class _Rows:
    """The rows of a judged answer; may be iterated any number of times, each time parsed anew."""

    def __init__(
        self,
        reader: SvnReader,
        checked: CheckedLog,
        exact: dict[int, dict[str, bytes]],
        altered: Mapping[int, Altered] | None,
    ) -> None:
        self._reader = reader
        self._checked = checked
        self._exact = exact
        self._altered = altered

    def __iter__(self) -> Iterator[RevisionRow]:
        for entry in self._checked.lenient_entries(PathChange):
            row = self._reader._row(entry, self._exact.get(entry.revision, {}), self._altered)
            if row is not None:
                yield row


class _Filtered:
    """The changed paths of a large revision that concern the prefix."""

    def __init__(self, paths: Iterable[PathChange], reader: SvnReader) -> None:
        self._paths = paths
        self._reader = reader

    def __iter__(self) -> Iterator[PathChange]:
        return (path for path in self._paths if self._reader._concerns(path))


class _Mended:
    """The changed paths with those in ``exact`` as they are."""

    def __init__(self, paths: Iterable[PathChange], exact: Mapping[str, tuple[str, str | None]]) -> None:
        self._paths = paths
        self._exact = exact

    def __iter__(self) -> Iterator[PathChange]:
        for path in self._paths:
            found = self._exact.get(path.path)
            yield path if found is None else path._replace(path=found[0], copyfrom_path=found[1])


def _doubts(row: RevisionRow) -> Iterator[str]:
    """The flags of a row that an XML reader may have changed."""
    texts = (row.author_raw, row.message, *row.revprops.values())
    if any(text is not None and "\n" in text for text in texts):
        yield LINE_ENDS_UNSURE
    if any("\n" in path.path or " " in (path.copyfrom_path or "") for path in row.paths):
        yield PATHS_UNSURE


class _TolerantChanges:
    """The changed paths of a tolerantly read entry. Control characters come out as they are; bytes that are
    no UTF-8 as ``\\xNN``, so that two paths stay two, and ``mended`` is then true."""

    def __init__(self, entry: TolerantEntry) -> None:
        self._entry = entry
        self.mended = False

    def _text(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.mended = True
            return data.decode("utf-8", "backslashreplace")

    def __iter__(self) -> Iterator[PathChange]:
        truth = {b"true": True, b"false": False}
        for path, named in self._entry.paths:
            source = named.get("copyfrom-path")
            revision = named.get("copyfrom-rev")
            yield PathChange(
                self._text(path),
                named.get("action", b"").decode("ascii", "replace"),
                named.get("kind", b"").decode("ascii", "replace") or None,
                None if source is None else self._text(source),
                int(revision) if revision else None,
                truth.get(named.get("text-mods", b"")),
                truth.get(named.get("prop-mods", b"")),
            )


def _exact(
    name: str, shown: str | None, exact: dict[str, bytes], flags: set[str], raw: dict[str, bytes]
) -> str | None:
    """The text of property ``name`` from its bytes, with what had to be mended in ``flags`` and ``raw``."""
    data = exact.get(name)
    if data is None:
        return shown
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        flags.add("invalid_utf8")
        raw[name] = data
        text = data.decode("utf-8", "replace")
    if CONTROL.search(text):
        flags.add("control_characters")
    return text


def _path_of(url: str) -> str:
    return unquote(urlsplit(url).path).strip("/")


def _lost_connection(error: BaseException) -> bool:
    return isinstance(error, ClientError) and meaning(error.codes) is Meaning.CONNECTION
