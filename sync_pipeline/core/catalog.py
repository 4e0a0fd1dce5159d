"""The catalog: names of repositories, properties that follow from an address, and the snapshot file.

Belongs here: repository specifications, URL normalisation, slugs and other properties derived from an
address, and the grid of revision blocks. Also the file that the code location loads, narrowed by
``SCM_ONLY``. Does not belong here: the catalog's rows (:mod:`sync_pipeline.ledger.repos`), visiting a source
and registering (:mod:`sync_pipeline.registry.registration`), Dagster.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes, urlsplit

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import FLEET, Kind, Lifecycle, Repository, RevisionWindow

BLOCK_REVISIONS = 1000
SNAPSHOT_VERSION = 2

_log = logging.getLogger(__name__)
_DAMAGED = "damaged_snapshot"
_DEFAULT_PORTS = {"svn": 3690, "svn+ssh": 22, "http": 80, "https": 443}
# Characters that svn leaves unescaped in a path; all others are written %XX.
_PATH_CHARACTERS = "!$&'()*+,-./:=@_~"
_SLUG_LENGTH = 64
_HOW = "write svn:<url>, gitlab:<id>, gitlab:<group>/<project> or gitlab:<url>"
_HOW_ROOT = "write gitlab:group:<path or id> or gitlab:membership"
# A segment of a path that GitLab allows.
_SEGMENT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.][A-Za-z0-9_.-]*")


# Blocks of revisions ------------------------------------------------------------------------------------


def block_of(revision: int) -> RevisionWindow:
    """The block that holds ``revision``: ``[1, 1001)``, ``[1001, 2001)``, ...; the first for revision 0."""
    first = max(revision - 1, 0) // BLOCK_REVISIONS * BLOCK_REVISIONS + 1
    return RevisionWindow(first, first + BLOCK_REVISIONS)


def blocks(window: RevisionWindow) -> Iterator[RevisionWindow]:
    """``window`` cut at the edges of the blocks, in order."""
    first = window.first
    while first < window.end:
        end = min(block_of(first).end, window.end)
        yield RevisionWindow(first, end)
        first = end


# Specifications -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """The name of a repository in commands. ``address`` is the normalised URL for SVN. For GitLab it is the
    project id (digits), the path, or a URL: ``<server>/<path>`` or ``<server>/projects/<id>``. Its text is
    ``svn:<url>`` or ``gitlab:<address>``.
    """

    kind: Kind
    address: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.address}"


@dataclass(frozen=True, slots=True)
class RootSpec:
    """The name of a discovery root in commands: a group with its subgroups, or the membership of the token's
    user.

    ``address`` is the id (digits) or path of the group, or its URL: ``<server>/<path>`` or
    ``<server>/groups/<id>``. For a membership it is the URL of the server, or empty if there is only one.
    """

    scope: str
    address: str

    def __str__(self) -> str:
        return f"gitlab:{self.scope}:{self.address}".rstrip(":")


def parse_spec(text: str) -> RepositorySpec:
    """The repository that ``text`` names. Raises ConfigurationError with one line for anything else; the line
    never repeats credentials."""
    kind, separator, address = text.strip().partition(":")
    shown = without_credentials(text.strip())
    if not shown:
        raise ConfigurationError(f"empty repository specification; {_HOW}")
    if not separator or kind.lower() not in (*Kind,):
        if kind.lower() in ("http", "https") and address.startswith("//"):
            raise ConfigurationError(
                f"{shown!r} does not say what is there; write gitlab:{shown} or svn:{shown}"
            )
        raise ConfigurationError(f"unknown repository specification {shown!r}; {_HOW}")
    if address.startswith("//"):
        written = shown if kind.lower() == Kind.SVN else shown.replace("gitlab:", "https:", 1)
        raise ConfigurationError(f"{shown!r} is a URL; write {kind.lower()}:{written}")
    if not address:
        raise ConfigurationError(f"{shown!r} names no repository; {_HOW}")
    if kind.lower() == Kind.SVN:
        if re.match(r"[^/]*//[^/@]*:[^/@]*/.*@", address, re.DOTALL):
            # A password with a slash looks like a port and a path.
            raise ConfigurationError(
                f"URL {shown!r} holds an @; leave credentials out and set SCM_SVN_USERNAME and "
                "SCM_SVN_PASSWORD, or write %40 for an @ of the path"
            )
        return RepositorySpec(Kind.SVN, normalise_url(address))
    if address.partition(":")[0].lower() in ("group", "membership"):
        raise ConfigurationError(f"{shown!r} is a discovery root; run: scm-sync root add {shown}")
    return RepositorySpec(Kind.GITLAB, _project(address))


def parse_root(text: str) -> RootSpec:
    """The discovery root that ``text`` names. Raises ConfigurationError as :func:`parse_spec`."""
    kind, _, rest = text.strip().partition(":")
    scope, _, address = rest.partition(":")
    scope, shown = scope.lower(), without_credentials(text.strip())
    if kind.lower() != Kind.GITLAB or scope not in ("group", "membership"):
        raise ConfigurationError(f"unknown discovery root {shown!r}; {_HOW_ROOT}")
    if scope == "membership":
        if address and "://" not in address:
            raise ConfigurationError(
                f"{shown!r}: {_HOW_ROOT}; with a server gitlab:membership:https://<host>"
            )
        return RootSpec(scope, _gitlab_url(address) if address else "")
    if "://" in address:
        return RootSpec(scope, _gitlab_url(address))
    path = address.strip("/")
    if _number(path) is None and not _is_path(path.split("/")):
        raise ConfigurationError(f"{shown!r} names no group; {_HOW_ROOT}")
    return RootSpec(scope, _number(path) or path)


def below(address: str, base: str) -> str | None:
    """The part of a GitLab URL below the server's ``base``: ``projects/<id>``, ``groups/<id>`` or a path;
    empty for the server itself. None if ``address`` is elsewhere.
    """
    if address.casefold() == base.casefold():
        return ""
    start = f"{base}/"
    return address[len(start) :] if address.casefold().startswith(start.casefold()) else None


def _project(address: str) -> str:
    if "://" in address:
        url = _gitlab_url(address)
        parts = url.partition("://")[2].split("/")[1:]
        if len(parts) < 2 or parts[-2:-1] == ["groups"]:
            raise ConfigurationError(
                f"{url} is no GitLab project; write gitlab:<server>/<group>/<project> or "
                "gitlab:<server>/projects/<id>"
            )
        return url
    path = address.strip("/")
    parts = path.split("/")
    if (number := _number(path)) is not None:
        return number
    if len(parts) < 2 or not _is_path(parts):
        group = f"; for a whole group run: scm-sync root add gitlab:group:{path}" if _is_path(parts) else ""
        raise ConfigurationError(
            f"{without_credentials(address)!r} is no GitLab project; "
            f"write gitlab:<id> or gitlab:<group>/<project>{group}"
        )
    return path


def _number(text: str) -> str | None:
    """``text`` as the number of a project or group, None if it is none."""
    return str(int(text)) if text.isascii() and text.isdigit() and int(text) > 0 else None


def _is_path(parts: Sequence[str]) -> bool:
    return all(_SEGMENT.fullmatch(part) for part in parts)


def _gitlab_url(url: str) -> str:
    """A GitLab URL as it is stored and compared. The text may come from the address bar, the clone button or
    the API.
    """
    shown = without_credentials(url)
    scheme, _, rest = url.strip().partition("://")
    scheme = scheme.lower()
    if scheme not in ("http", "https"):
        raise ConfigurationError(f"{shown!r} is no URL of a GitLab; write one that starts with https://")
    authority, _, path = rest.partition("/")
    host = _authority(scheme, authority, shown, "SCM_GITLAB_TOKEN")
    path = re.split(r"[?#]|/-/", f"/{path}", maxsplit=1)[0].replace("/api/v4/", "/")
    parts = [part for part in path.removesuffix("/-").removesuffix(".git").split("/") if part]
    if not _is_path(parts):
        raise ConfigurationError(f"{shown!r}: this is no path that a GitLab has; correct it")
    if parts and parts[-2:-1] in (["projects"], ["groups"]):
        parts[-1] = _number(parts[-1]) or parts[-1]
    return "/".join([f"{scheme}://{host}", *parts])


def normalise_url(url: str) -> str:
    """``url`` as it is stored and compared. Scheme and host are in lower case, and escapes as svn writes
    them. There is no default port, no ``.`` or ``..``, and no doubled or trailing slash. Raises
    ConfigurationError for credentials and for anything but an SVN URL.
    """
    shown = without_credentials(url)
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in url):
        raise ConfigurationError(f"URL {shown!r} has control characters; write it without")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or not (
        scheme in _DEFAULT_PORTS or scheme == "file" or re.fullmatch(r"svn\+\w+", scheme)
    ):
        raise ConfigurationError(
            f"{shown!r} is no SVN URL; write one that starts with svn://, svn+ssh://, http://, https:// or file:///"
        )
    # A question mark and a hash are ordinary characters of a path for svn.
    authority, slash, path = rest.partition("/")
    host = _authority(scheme, authority, shown, "SCM_SVN_USERNAME and SCM_SVN_PASSWORD")
    return f"{scheme}://{host}{_path(slash + path, shown)}"


def _authority(scheme: str, authority: str, shown: str, settings: str) -> str:
    """User, host and port of a URL; ``settings`` names the right settings for credentials."""
    user, at, address = authority.rpartition("@")
    if at and (":" in user or not scheme.startswith("svn+")):
        # Only a tunnel needs to be told a user name here, and never a password.
        raise ConfigurationError(f"URL {shown!r} holds credentials; leave them out and set {settings}")
    if scheme == "file":
        if address.lower() not in ("", "localhost"):
            raise ConfigurationError(f"URL {shown!r} names a host; write file:///absolute/path")
        return ""
    try:
        parts = urlsplit(f"//{address}")
        port, host = parts.port, parts.hostname or ""
        if ":" not in host:
            host = host.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        raise ConfigurationError(f"URL {shown!r} has a wrong host or port; correct it") from None
    if not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]+", host) or host.startswith("-"):
        # A host that starts with a dash would be an option to ssh.
        raise ConfigurationError(f"URL {shown!r} has a wrong or no host; correct it")
    if user.startswith("-"):
        raise ConfigurationError(f"URL {shown!r} has a wrong user name; correct it")
    host = f"[{host}]" if ":" in host else host
    suffix = f":{port}" if port is not None and port != _DEFAULT_PORTS.get(scheme) else ""
    return f"{user}{at}{host}{suffix}"


def _path(path: str, shown: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", path):
        raise ConfigurationError(f"URL {shown!r} has a % that starts no escape; write %25 for the character")
    kept: list[str] = []
    for segment in path.split("/"):
        # An escaped slash is never part of a name; svn itself reads it as a separator.
        for part in unquote_to_bytes(segment).split(b"/"):
            if part == b"..":
                if not kept:
                    raise ConfigurationError(f"URL {shown!r} leads above the root; correct the ..")
                kept.pop()
            elif part not in (b"", b"."):
                if any(byte < 32 or byte == 127 for byte in part):
                    raise ConfigurationError(f"URL {shown!r} has control characters; write it without")
                kept.append(quote(part, safe=_PATH_CHARACTERS))
    return "".join(f"/{part}" for part in kept)


def without_credentials(text: str) -> str:
    """``text`` for a message: everything before the last @ is removed, except kind and scheme."""
    return re.sub(r"^((?:svn|gitlab):)?(\w[\w+]*://)?.*@", r"\1\2***@", text, flags=re.DOTALL | re.IGNORECASE)


# Properties of an address -----------------------------------------------------------------------------------


LOCAL = "local"
"""The instance of repositories that are read from this machine's files."""


def instance_of(url: str) -> str:
    """Key of the server: host with the port if it is not the default; ``local`` for file URLs."""
    if url.startswith("file://"):
        return LOCAL
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def aliases_for(kind: Kind, instance: str) -> Iterator[str]:
    """Aliases for a server, best first. The first that no other server has becomes the first part of the keys
    of its assets.

    Short ones come first: the first label of the host, or the kind on this machine. Then follow the port, the
    kind, more labels, and at last a number. ``instance`` is the server as :func:`instance_of` names it.
    """
    host, port = _host_and_port(instance)
    labels = [label for part in host.split(".") if (label := _plain(part))] or [str(kind)]
    if re.fullmatch(r"localhost|127(\.\d+){3}|\[::1\]", host):
        labels = [str(kind)]
    elif re.fullmatch(r"\d+(\.\d+){3}|\[.*\]", host):
        labels = ["_".join(labels)]
    elif labels[0] == "www" and len(labels) > 1:
        labels = labels[1:]
    first, whole = labels[0], "_".join(labels)
    found = [first]
    if port:
        found.append(f"{first}_{port}")
    if first not in kind and kind not in first:
        found.append(f"{first}_{kind}")
    found += ["_".join(labels[:count]) for count in range(2, len(labels) + 1)]
    found += [f"{whole}_{port}", f"{whole}_{port}_{kind}"] if port else [f"{whole}_{kind}"]
    found = [alias for alias in dict.fromkeys(found) if alias != FLEET]
    yield from found
    yield from (alias for number in count(2) if (alias := f"{whole}_{number}") not in found)


def _host_and_port(instance: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.*?)(?::(\d+))?", instance)
    assert found is not None
    return found[1], found[2] or ""


def slug_of(address: str, prefix: str = "") -> str:
    """The path of a repository as the second part of the keys of its assets: ``[a-z0-9_]``, and ``__`` for
    ``/``. ``address`` is the path of a GitLab project or the URL of an SVN repository, whose part below the
    repository root is ``prefix``. A ``file://`` URL loses the folders above the repository, a long path its
    first ones."""
    parts = _path_of(address).split("/")
    if address.startswith("file://"):
        parts = parts[-1 - len([part for part in prefix.split("/") if part]) :]
    plain = [part for part in map(_plain, parts) if part]
    while len(plain) > 1 and len("__".join(plain)) > _SLUG_LENGTH:
        del plain[0]
    return "__".join(plain)[-_SLUG_LENGTH:].strip("_") or "repository"


def slugs_for(slug: str, *numbers: int) -> Iterator[str]:
    """Slugs in the order in which they are tried: ``slug``, then with the first number, with the first two,
    and so on. At last a counter follows. The first slug that no other repository has is used.
    """
    yield slug
    for number in numbers:
        slug = f"{slug}_{number}"
        yield slug
    yield from (f"{slug}_{number}" for number in count(2))


def _plain(text: str) -> str:
    """``text`` in ``[a-z0-9_]``, without accents, and never with two ``_`` in a row."""
    ascii_only = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "_", ascii_only).strip("_")


def tenant_of(address: str) -> str:
    """Default owner: the first segment of a project's path, or the server of a Subversion repository (a URL).
    The folders of such a server (``repos``, ``srv``, ``tmp``) are no owners.
    """
    return instance_of(address) if "://" in address else address.partition("/")[0]


def path_of(repository: Repository) -> str:
    """The name of the repository in lists of the UI: the path of the project or of the SVN URL.

    The UI cuts a long text at its end, where the name is. A ``file://`` URL also loses the folders above the
    repository.
    """
    if repository.kind is not Kind.SVN:
        return repository.name
    path = _path_of(repository.url)
    if repository.url.startswith("file://"):
        above = _path_of(repository.svn_root or repository.url).rpartition("/")[0]
        path = path.removeprefix(f"{above}/")
    return path or repository.url


def _path_of(address: str) -> str:
    if "://" not in address:
        return address
    return unquote_to_bytes(address.partition("://")[2].partition("/")[2]).decode("utf-8", "replace")


def web_url_of(repository: Repository) -> str:
    """The page of a repository: that of a GitLab project by its latest path, else the URL."""
    if repository.kind is Kind.SVN or not repository.project_path:
        return repository.url
    return f"{repository.url.removesuffix(f'/projects/{repository.project_id}')}/{repository.project_path}"


def svn_prefix_of(url: str, root: str) -> str:
    """The part of ``url`` below the repository root, unescaped, without a slash at either end. Raises
    ConfigurationError if ``root`` is no ancestor of ``url``, as after a redirection."""
    base = normalise_url(root)
    if url != base and not url.startswith(f"{base}/"):
        raise ConfigurationError(f"the server says that {url} belongs to {base}; register that URL instead")
    try:
        return unquote_to_bytes(url[len(base) :]).decode("utf-8").strip("/")
    except UnicodeDecodeError:
        raise ConfigurationError(f"the path of {url} is not UTF-8; register {base} instead") from None


# The snapshot file --------------------------------------------------------------------------------------


@checked_dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class CatalogSnapshot:
    """The catalog as a code location sees it: every repository, the retired ones too, by ``repo_id``.

    ``head_rev`` is the largest SVN revision known at ``written_at`` (UTC; None for an empty catalog that was
    never written). ``history_start`` is the first day of the daily partitions, None while nothing is stored.
    """

    repositories: tuple[Repository, ...] = ()
    head_rev: int = 0
    written_at: datetime | None = None
    history_start: date | None = None
    version: int = SNAPSHOT_VERSION


_SNAPSHOTS = TypeAdapter(CatalogSnapshot)


def write_snapshot(
    path: Path,
    repositories: Iterable[Repository],
    *,
    head_rev: int,
    written_at: datetime,
    history_start: date | None = None,
) -> CatalogSnapshot:
    """Replace the file at ``path`` as a whole; a reader sees the old or the new one. ``written_at`` is aware.
    Raises ConfigurationError if it cannot be written."""
    ordered = tuple(sorted(repositories, key=lambda repository: repository.repo_id))
    snapshot = CatalogSnapshot(ordered, head_rev, written_at.astimezone(UTC), history_start)
    content = _SNAPSHOTS.dump_json(snapshot, indent=1)
    for target in (path, copy_of(path)):
        _replace(target, content)
    return snapshot


def copy_of(path: Path) -> Path:
    """The second file with the same content; see :func:`load_snapshot`."""
    return path.with_name(f"{path.name}.copy")


def _replace(path: Path, content: bytes) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigurationError(
            f"the catalog snapshot {path} cannot be written: {error.strerror}; correct SCM_STATE_DIR"
        ) from None


def load_snapshot(path: Path) -> CatalogSnapshot:
    """As :func:`read_snapshot`. If the file is damaged, it returns the content of the copy and logs a line.
    Every run reads the file, so a damaged one would stop all of them.
    """
    try:
        return read_snapshot(path)
    except ConfigurationError as error:
        if error.code != _DAMAGED:
            raise
        with suppress(ConfigurationError):
            copy = read_snapshot(copy_of(path))
            if copy.written_at is not None:
                _log.warning("%s; its copy is in use meanwhile", error)
                return copy
        raise


def read_snapshot(path: Path) -> CatalogSnapshot:
    """The catalog in the file at ``path``; empty if there is none yet. Raises ConfigurationError that names
    the remedy if it is damaged or of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != SNAPSHOT_VERSION:
            raise ConfigurationError(
                f"the catalog snapshot {path} has version {content['version']!r}, this program reads "
                f"{SNAPSHOT_VERSION}; run: scm-sync catalog export"
            )
        return _SNAPSHOTS.validate_python(content)
    except FileNotFoundError:
        return CatalogSnapshot()
    except OSError as error:
        raise ConfigurationError(
            f"the catalog snapshot {path} cannot be read: {error.strerror}", code=_DAMAGED
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"the catalog snapshot {path} is damaged; run: scm-sync catalog export", code=_DAMAGED
        ) from None


def find(repositories: Iterable[Repository], spec: RepositorySpec) -> Repository | None:
    """The repository that ``spec`` names: the active one, else the one retired last. Raises
    ConfigurationError that lists the URLs if several servers have such a project.
    """
    found = [repository for repository in repositories if _is_named(repository, spec)]
    active = [repository for repository in found if repository.lifecycle is Lifecycle.ACTIVE]
    found = active or found
    if len({repository.instance for repository in found}) > 1:
        forms = sorted({f"gitlab:{repository.url}" for repository in found})
        raise ConfigurationError(
            f"{spec} is on several servers; write {' or '.join(forms)}", code="ambiguous_repository"
        )
    return max(found, key=lambda repository: repository.repo_id, default=None)


def _is_named(repository: Repository, spec: RepositorySpec) -> bool:
    if repository.kind is not spec.kind:
        return False
    if spec.kind is Kind.SVN:
        return repository.url == spec.address
    names = (str(repository.project_id), repository.project_path, repository.url, web_url_of(repository))
    # GitLab takes paths in any case.
    return spec.address.casefold() in [name.casefold() for name in names if name]


def narrow(snapshot: CatalogSnapshot, only: str) -> CatalogSnapshot:
    """``snapshot`` with the one repository that ``only`` names; all of it if ``only`` is empty. Raises
    ConfigurationError if the catalog does not have it."""
    if not only:
        return snapshot
    spec = parse_spec(only)
    repository = find(snapshot.repositories, spec)
    if repository is None:
        raise unknown_repository(spec, snapshot.repositories, "SCM_ONLY: ")
    return replace(snapshot, repositories=(repository,))


def unknown_repository(
    spec: RepositorySpec, repositories: Collection[Repository], where: str = ""
) -> ConfigurationError:
    """The refusal of a repository that the catalog does not have."""
    names = [repository.spec for repository in repositories]
    names += [f"gitlab:{repository.project_path}" for repository in repositories if repository.project_path]
    # A number that is alike is no likely slip.
    near = [] if spec.address.isdigit() else get_close_matches(str(spec), names, n=1, cutoff=0.8)
    advice = f"did you mean {near[0]}? Else" if near else "see scm-sync repo list, or"
    remedy = f"run: scm-sync repo add {spec}"
    if where:
        # The catalog snapshot of this machine can be older than the database.
        remedy += "; if it is registered already, run: scm-sync catalog export"
    return ConfigurationError(
        f"{where}the catalog has no {spec}; {advice} {remedy}", code="unknown_repository"
    )


def require_active(repository: Repository) -> Repository:
    """``repository``, unless it is retired. Raises ConfigurationError."""
    if repository.lifecycle is not Lifecycle.ACTIVE:
        raise ConfigurationError(
            f"{repository.spec} is retired; to sync it again run: scm-sync repo add {repository.spec}"
        )
    return repository
