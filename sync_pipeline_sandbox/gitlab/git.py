"""A git repository on disk, read and written through the ``git`` command.

Belongs here: what Gitaly does for GitLab, that is which commits, refs and differences there are, as the API
shows them. Commits are parsed from their raw objects, because git's own formats change dates and bytes that
are odd. No HTTP, no paging headers, no permissions. Reading never changes a repository; only the methods
under "Writing" do, and they are for repositories that :meth:`GitRepository.create` made.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sync_pipeline.core.child_environment import child_environment
from sync_pipeline_sandbox.gitlab.differences import parse_diff

_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
_PERSON = re.compile(rb"(?P<name>[^<]*?) ?<(?P<email>[^>]*)>(?: (?P<seconds>-?\d+) (?P<zone>[+-]\d+))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Commands that change nothing in a repository; and how much of what they say is kept.
_READING = frozenset({"cat-file", "diff", "for-each-ref", "log", "merge-base", "rev-list", "symbolic-ref"})
_MAX_CACHED_OUTPUTS = 1000
_KEPT_BYTES = 1 << 16
_CHANGING = ("", "packed-refs", "refs", "refs/heads", "refs/tags")
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


class GitError(Exception):
    """git refused; the text is its own first line."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag: its name without prefix, the object it points at, and its commit (None for a tag of a
    tree or blob). An annotated tag also has its message and time.
    """

    name: str
    target: str
    commit: str | None
    message: str
    created_at: str | None


class GitRepository:
    """One repository, bare or not, at a local path."""

    def __init__(self, path: Path) -> None:
        """Raises GitError when there is no repository at the path."""
        self.path = Path(path)
        self._own = False
        self._writes = 0
        self._outputs: tuple[tuple[int, ...], dict[tuple[object, ...], bytes]] = ((), {})
        _git(self.path, ["rev-parse", "--git-dir"])

    @classmethod
    def create(cls, path: Path, *, branch: str = "main") -> GitRepository:
        """Make an empty bare repository."""
        path.mkdir(parents=True, exist_ok=True)
        _git(path, ["init", "--quiet", "--bare", "--template=", f"--initial-branch={branch}"])
        made = cls(path)
        made._own = True
        return made

    # --- Reading --------------------------------------------------------------------------------------------

    def head_branch(self) -> str | None:
        """The branch HEAD names, whether or not it has a commit; None when HEAD is detached."""
        try:
            return self._run("symbolic-ref", "--short", "HEAD").decode().strip()
        except GitError:
            return None

    def is_empty(self) -> bool:
        """Whether there is no branch at all."""
        return not self._run("for-each-ref", "--count=1", "--format=x", "refs/heads")

    def resolve(self, revision: str) -> str | None:
        """The commit a name or sha stands for; None when there is none."""
        if not revision or revision.startswith("-") or "\n" in revision:
            return None
        forms = (f"refs/heads/{revision}", f"refs/tags/{revision}", revision)
        asked = "".join(f"{form}^{{commit}}\n" for form in forms).encode("utf-8", "surrogateescape")
        lines = self._run("cat-file", "--batch-check=%(objectname)", stdin=asked).split(b"\n")
        return next((line.decode() for line in lines if re.fullmatch(rb"[0-9a-f]{40,64}", line)), None)

    def full_name(self, revision: str) -> str:
        """The full name of the branch or tag of this name; else the revision as it is."""
        refs = {ref.name: f"refs/tags/{ref.name}" for ref in self.tags()}
        refs |= {ref.name: f"refs/heads/{ref.name}" for ref in self.branches()}
        return refs.get(revision, revision)

    def shas(
        self, revisions: Sequence[str], options: Sequence[str] = (), *, path: str | None = None
    ) -> list[str]:
        """The output of ``git rev-list``, in its order; ``--all`` alone means every ref. Raises GitError for
        an unknown name.
        """
        chosen = ["--all"] if list(revisions) == ["--all"] else ["--end-of-options", *revisions]
        return self._run("rev-list", *options, *chosen, "--", *([path] if path else [])).decode().split()

    def commits(self, shas: Sequence[str]) -> list[dict[str, Any]]:
        """Commit rows without ``web_url``, in the order given. Raises GitError for an unknown sha."""
        if not shas:
            return []
        raw = self._run("cat-file", "--batch", stdin="".join(f"{sha}\n" for sha in shas).encode())
        rows = []
        for sha in shas:
            head, _, raw = raw.partition(b"\n")
            words = head.split()
            if len(words) != 3:
                raise GitError(f"no commit {sha}")
            size = int(words[2])
            rows.append(parse_commit(words[0].decode(), raw[:size]))
            raw = raw[size + 1 :]
        return rows

    def stats(self, shas: Sequence[str]) -> dict[str, dict[str, int]]:
        """Added and deleted lines by sha, a merge against its first parent, a root against nothing."""
        if not shas:
            return {}
        text = self._run(
            "log",
            "--stdin",
            "--no-walk=unsorted",
            "--diff-merges=first-parent",
            "--numstat",
            "--format=%x01%H",
            stdin="".join(f"{sha}\n" for sha in shas).encode(),
        )
        found = {}
        for block in text.split(b"\x01")[1:]:
            sha, _, lines = block.partition(b"\n")
            counts = [line.split(b"\t", 2)[:2] for line in lines.splitlines() if line.count(b"\t") >= 2]
            additions = sum(int(added) for added, _ in counts if added != b"-")
            deletions = sum(int(deleted) for _, deleted in counts if deleted != b"-")
            found[sha.decode()] = {
                "additions": additions,
                "deletions": deletions,
                "total": additions + deletions,
            }
        return found

    def trailers(self, sha: str) -> dict[str, list[str]]:
        """The trailers of a message by key, each with all its values."""
        text = self._run("log", "-1", "--format=%(trailers:only,unfold)", "--end-of-options", sha, "--")
        found: dict[str, list[str]] = {}
        for line in text.decode(errors="replace").splitlines():
            key, separator, value = line.partition(":")
            if separator:
                found.setdefault(key, []).append(value.strip())
        return found

    def branches(self) -> list[Ref]:
        """All branches by name."""
        return self._refs("refs/heads/")

    def tags(self) -> list[Ref]:
        """All tags by name."""
        return self._refs("refs/tags/")

    def merged_into(self, revision: str) -> set[str]:
        """Names of the branches whose commits a revision has."""
        text = self._run("for-each-ref", f"--merged={revision}", "--format=%(refname:lstrip=2)", "refs/heads")
        return set(text.decode(errors="replace").split("\n")) - {""}

    def containing(self, sha: str, kind: str) -> list[str]:
        """Names of the refs below ``refs/<kind>/`` that contain a commit."""
        text = self._run("for-each-ref", f"--contains={sha}", "--format=%(refname:lstrip=2)", f"refs/{kind}")
        return [name for name in text.decode(errors="replace").split("\n") if name]

    def merge_base(self, revisions: Sequence[str]) -> str | None:
        """The best common ancestor; None when the histories have none."""
        try:
            return self._run("merge-base", "--octopus", *revisions).decode().strip() or None
        except GitError:
            return None

    def diff(self, old: str, new: str) -> list[dict[str, Any]]:
        """Diff rows between two commits or trees."""
        return parse_diff(self._run("diff", "--no-color", "--no-ext-diff", "-M", "--full-index", old, new))

    def changes(self, sha: str) -> list[dict[str, Any]]:
        """Diff rows of a commit against its first parent, or against nothing."""
        parents = self.commits([sha])[0]["parent_ids"]
        return self.diff(parents[0] if parents else EMPTY_TREE, sha)

    def is_legal_ref(self, name: str) -> bool:
        """Whether a branch or tag could have this name."""
        try:
            self._run("check-ref-format", f"refs/heads/{name}")
        except (GitError, ValueError):
            return False
        return not name.startswith("-")

    # --- Writing --------------------------------------------------------------------------------------------

    def commit(
        self,
        branch: str,
        message: str | bytes,
        *,
        files: Mapping[str, str | bytes] | None = None,
        parents: Sequence[str] | None = None,
        author: str = "User 1 <user1@example.test>",
        committer: str | None = None,
        date: str = "1714989731 +0200",
        author_date: str | None = None,
        encoding: str | None = None,
    ) -> str:
        """Put one commit on a branch, which is made when missing, and return its sha.

        ``parents`` None is the branch's tip; an empty one makes a root. Dates are ``<unix seconds> <zone>``.
        With other parents than the tip the branch is moved there, as a forced push does.
        """
        if parents is None:
            tip = self.resolve(f"refs/heads/{branch}")
            parents = [tip] if tip else []
        body = message.encode() if isinstance(message, str) else message
        # Without the reset fast-import builds on the branch's present tip.
        ref = f"refs/heads/{branch}".encode("utf-8", "surrogateescape")
        stream = [b"reset %s\n\ncommit %s\nmark :1\n" % (ref, ref)]
        stream.append(f"author {author} {author_date or date}\n".encode())
        stream.append(f"committer {committer or author} {date}\n".encode())
        if encoding:
            stream.append(f"encoding {encoding}\n".encode())
        stream.append(b"data %d\n%s\n" % (len(body), body))
        for position, parent in enumerate(parents):
            stream.append(f"{'merge' if position else 'from'} {parent}\n".encode())
        for name, content in (files or {}).items():
            data = content.encode() if isinstance(content, str) else content
            stream.append(b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(data), data))
        stream.append(b"\nget-mark :1\n")
        arguments = ("--quiet", "--force", "--date-format=raw-permissive")
        return self._run("fast-import", *arguments, stdin=b"".join(stream)).decode().strip()

    def fast_import(self, stream: bytes) -> None:
        """Load a stream of ``git fast-import``."""
        self._run("fast-import", "--quiet", "--force", stdin=stream)

    def import_history(self, stream: bytes, refs: Mapping[str, int]) -> list[str]:
        """Fill an empty repository from a stream of ``git fast-import`` whose marks are 1, 2, 3 and so on.

        Points ``refs``, marks by full name, at the commits, and returns the sha of each mark in order.
        """
        self._run("fast-import", "--quiet", "--export-marks=marks", stdin=stream)
        marks = dict(line.split() for line in (self.path / "marks").read_text().splitlines())
        shas = [marks[f":{number}"] for number in range(1, len(marks) + 1)]
        # git would write a file for each of thousands of refs, which takes ten times as long.
        packed = ["# pack-refs with: peeled fully-peeled sorted "]
        packed += [f"{shas[mark - 1]} {ref}" for ref, mark in sorted(refs.items())]
        (self.path / "packed-refs").write_text("\n".join(packed) + "\n")
        return shas

    def write_commit(self, raw: bytes) -> str:
        """Store the bytes of a commit object as they are, however odd, and return its sha."""
        command = ("hash-object", "-t", "commit", "-w", "--stdin", "--literally")
        return self._run(*command, stdin=raw).decode().strip()

    def set_ref(self, ref: str, sha: str | None) -> None:
        """Point a full ref name at an object, or delete it with None."""
        if sha is None:
            self._run("update-ref", "-d", ref)
        else:
            self._run("update-ref", ref, sha)

    def keep(self, refs: Mapping[str, str]) -> None:
        """Point full ref names at objects, all at once. GitLab keeps commits alive with refs that are neither
        branches nor tags: ``refs/merge-requests/*/head``, ``refs/keep-around/*``, ``refs/pipelines/*``."""
        lines = "".join(f"update {ref} {sha}\n" for ref, sha in refs.items())
        self._run("update-ref", "--stdin", stdin=lines.encode())

    def drop_hidden_cache(self) -> None:
        """Delete every ref that is neither a branch nor a tag."""
        for ref in self._run("for-each-ref", "--format=%(refname)").decode().split():
            if not ref.startswith(("refs/heads/", "refs/tags/")):
                self.set_ref(ref, None)

    def tag(self, name: str, sha: str, *, message: str | None = None, date: str = "1714989731 +0000") -> None:
        """Make a tag: annotated with a message, lightweight without."""
        target = sha
        if message is not None:
            raw = f"object {sha}\ntype commit\ntag {name}\n"
            raw += f"tagger User 1 <user1@example.test> {date}\n\n{message}"
            target = (
                self._run("hash-object", "-t", "tag", "-w", "--stdin", stdin=raw.encode()).decode().strip()
            )
        self.set_ref(f"refs/tags/{name}", target)

    def fetch(self, other: GitRepository, branch: str, ref: str) -> None:
        """Bring a branch of another repository in as a full ref name, as GitLab does with forks."""
        self._run("fetch", "--quiet", "--no-tags", str(other.path), f"+refs/heads/{branch}:{ref}")

    def prune(self) -> None:
        """Throw away every object that no ref reaches, as garbage collection does in time."""
        self._run("reflog", "expire", "--expire=now", "--all")
        self._run("gc", "--quiet", "--prune=now")

    # --- Helpers --------------------------------------------------------------------------------------------

    def _refs(self, prefix: str) -> list[Ref]:
        fields = ("refname", "objecttype", "objectname", "*objecttype", "*objectname", "taggerdate:raw")
        form = "%00".join(f"%({field})" for field in (*fields, "contents")) + "%00%00%00"
        text = self._run("for-each-ref", f"--format={form}", prefix)
        refs = []
        for entry in text.split(b"\0\0\0\n"):
            if not entry:
                continue
            name, kind, target, peeled_kind, peeled, date, message = entry.split(b"\0", 6)
            annotated = kind == b"tag"
            commit = peeled if annotated else target
            refs.append(
                Ref(
                    name=name.decode(errors="replace").removeprefix(prefix),
                    target=target.decode(),
                    commit=commit.decode() if b"commit" in (kind, peeled_kind) else None,
                    message=message.decode(errors="replace").rstrip("\n") if annotated else "",
                    created_at=_date(*date.split(b" ", 1)) if annotated and date else None,
                )
            )
        return refs

    def _run(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        """The output of git. It is cached for commands that only read, in repositories that only this object
        changes: starting git takes most of the time of a request.
        """
        if arguments[0] not in _READING:
            self._writes += 1
            try:
                return _git(self.path, arguments, stdin)
            finally:
                self._writes += 1
        if not self._own:
            return _git(self.path, arguments, stdin)
        state = self._state()
        kept_state, kept = self._outputs
        if kept_state != state or len(kept) > _MAX_CACHED_OUTPUTS:
            kept = {}
            self._outputs = (state, kept)
        question = (arguments, stdin)
        answer = kept.get(question)
        if answer is None:
            answer = _git(self.path, arguments, stdin)
            if len(answer) <= _KEPT_BYTES and self._state() == state:
                kept[question] = answer
        return answer

    def _state(self) -> tuple[int, ...]:
        """A value that changes with every change, by this object or by a ``git`` command on HEAD and refs."""
        paths = (self.path / name for name in _CHANGING)
        return (self._writes, *(path.stat().st_mtime_ns if path.exists() else 0 for path in paths))


def parse_commit(sha: str, raw: bytes) -> dict[str, Any]:
    """A raw commit object as a row. Text that is neither UTF-8 nor in its declared encoding has the broken
    bytes replaced; a date that cannot be read is the epoch."""
    head, _, body = raw.partition(b"\n\n")
    headers: dict[bytes, list[bytes]] = {}
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key:
            headers.setdefault(key, []).append(value)
    encoding = headers.get(b"encoding", [b"utf-8"])[0].decode("ascii", errors="replace")
    author = _person(headers.get(b"author", [b""])[0], encoding)
    committer = _person(headers.get(b"committer", [b""])[0], encoding)
    message = _text(body, encoding)
    return {
        "id": sha,
        "short_id": sha[:8],
        "created_at": committer[2],
        "parent_ids": [parent.decode() for parent in headers.get(b"parent", [])],
        "title": re.split(r"[\r\n]", message, maxsplit=1)[0] if message.strip() else "No commit message",
        "message": message,
        "author_name": author[0],
        "author_email": author[1],
        "authored_date": author[2],
        "committer_name": committer[0],
        "committer_email": committer[1],
        "committed_date": committer[2],
        "trailers": {},
        "extended_trailers": {},
    }


def committed_seconds(row: Mapping[str, Any]) -> float:
    """The committer's time of a commit row in seconds since the epoch."""
    return (datetime.fromisoformat(row["committed_date"]) - _EPOCH).total_seconds()


def _person(value: bytes, encoding: str) -> tuple[str, str, str]:
    match = _PERSON.match(value)
    if match is None:
        return "", "", _date(b"0", b"+0000")
    return (
        _text(match["name"], encoding),
        _text(match["email"], encoding),
        _date(match["seconds"] or b"0", match["zone"] or b"+0000"),
    )


def _text(value: bytes, encoding: str) -> str:
    for name in (encoding, "utf-8"):
        try:
            return value.decode(name)
        except (LookupError, UnicodeDecodeError):
            continue
    return value.decode("utf-8", errors="replace")


def _date(seconds: bytes, zone: bytes) -> str:
    try:
        number = int(zone[1:])
        offset = timedelta(hours=number // 100, minutes=number % 100) * (-1 if zone[:1] == b"-" else 1)
        moment = (_EPOCH + timedelta(seconds=int(seconds))).astimezone(timezone(offset))
    except (ValueError, OverflowError):
        moment = _EPOCH
    return moment.isoformat(timespec="milliseconds")


def _git(path: Path, arguments: Iterable[str], stdin: bytes | None = None) -> bytes:
    # A sample needs no disk: without the fsyncs a commit takes half of the time.
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "core.fsync=none", "-C", str(path), *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=child_environment(**_ENVIRONMENT),
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(lines[0] if lines else f"git ended with {done.returncode}")
    return done.stdout
