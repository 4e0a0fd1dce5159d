"""The meaning of Subversion's numeric codes: one table, and the exception for each meaning.

Belongs here: codes (svn_error_codes.h, APR's ranges, errno) and their consequence. Does not belong here:
matching on the text of a message, which depends on locale and version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from urllib.parse import urlsplit

from sync_pipeline.core.errors import (
    AccessDenied,
    Cancelled,
    ConfigurationError,
    Permanent,
    SourceGone,
    SyncError,
    Transient,
)
from sync_pipeline.sources.svn.types import ClientError


class Meaning(Enum):
    """The meaning of a failure of svn, strongest first: of several codes the first one here decides."""

    CANCELLED = "cancelled"
    NO_ROOM = "no_room"
    CERTIFICATE = "certificate"
    DENIED = "denied"
    MOVED = "moved"
    REDIRECTED = "redirected"
    NO_SUCH_REVISION = "no_such_revision"
    NOT_FOUND = "not_found"
    CORRUPT = "corrupt"
    MALFORMED = "malformed"
    BAD_URL = "bad_url"
    CONNECTION = "connection"
    UNKNOWN = "svn_failed"


MEANINGS: dict[int, tuple[str, Meaning]] = {
    200015: ("SVN_ERR_CANCELLED", Meaning.CANCELLED),
    11: ("EAGAIN", Meaning.NO_ROOM),
    12: ("ENOMEM", Meaning.NO_ROOM),
    23: ("ENFILE", Meaning.NO_ROOM),
    24: ("EMFILE", Meaning.NO_ROOM),
    27: ("EFBIG", Meaning.NO_ROOM),
    28: ("ENOSPC", Meaning.NO_ROOM),
    122: ("EDQUOT", Meaning.NO_ROOM),
    230001: ("SVN_ERR_RA_SERF_SSL_CERT_UNTRUSTED", Meaning.CERTIFICATE),
    170001: ("SVN_ERR_RA_NOT_AUTHORIZED", Meaning.DENIED),
    170002: ("SVN_ERR_RA_UNKNOWN_AUTH", Meaning.DENIED),
    175013: ("SVN_ERR_RA_DAV_FORBIDDEN", Meaning.DENIED),
    210007: ("SVN_ERR_RA_SVN_NO_MECHANISMS", Meaning.DENIED),
    215000: ("SVN_ERR_AUTHN_CREDS_UNAVAILABLE", Meaning.DENIED),
    215001: ("SVN_ERR_AUTHN_NO_PROVIDER", Meaning.DENIED),
    215002: ("SVN_ERR_AUTHN_PROVIDERS_EXHAUSTED", Meaning.DENIED),
    215004: ("SVN_ERR_AUTHN_FAILED", Meaning.DENIED),
    220000: ("SVN_ERR_AUTHZ_ROOT_UNREADABLE", Meaning.DENIED),
    220001: ("SVN_ERR_AUTHZ_UNREADABLE", Meaning.DENIED),
    220002: ("SVN_ERR_AUTHZ_PARTIALLY_READABLE", Meaning.DENIED),
    13: ("EACCES", Meaning.DENIED),
    175011: ("SVN_ERR_RA_DAV_RELOCATED", Meaning.MOVED),
    170011: ("SVN_ERR_RA_SESSION_URL_MISMATCH", Meaning.REDIRECTED),
    195019: ("SVN_ERR_CLIENT_CYCLE_DETECTED", Meaning.REDIRECTED),
    160006: ("SVN_ERR_FS_NO_SUCH_REVISION", Meaning.NO_SUCH_REVISION),
    195002: ("SVN_ERR_CLIENT_BAD_REVISION", Meaning.NO_SUCH_REVISION),
    160013: ("SVN_ERR_FS_NOT_FOUND", Meaning.NOT_FOUND),
    170000: ("SVN_ERR_RA_ILLEGAL_URL", Meaning.NOT_FOUND),
    175007: ("SVN_ERR_RA_DAV_PATH_NOT_FOUND", Meaning.NOT_FOUND),
    180000: ("SVN_ERR_RA_LOCAL_REPOS_NOT_FOUND", Meaning.NOT_FOUND),
    180001: ("SVN_ERR_RA_LOCAL_REPOS_OPEN_FAILED", Meaning.NOT_FOUND),
    210005: ("SVN_ERR_RA_SVN_REPOS_NOT_FOUND", Meaning.NOT_FOUND),
    140000: ("SVN_ERR_STREAM_UNEXPECTED_EOF", Meaning.CORRUPT),
    140001: ("SVN_ERR_STREAM_MALFORMED_DATA", Meaning.CORRUPT),
    140002: ("SVN_ERR_STREAM_UNRECOGNIZED_DATA", Meaning.CORRUPT),
    160000: ("SVN_ERR_FS_GENERAL", Meaning.CORRUPT),
    160004: ("SVN_ERR_FS_CORRUPT", Meaning.CORRUPT),
    160009: ("SVN_ERR_FS_NO_SUCH_REPRESENTATION", Meaning.CORRUPT),
    160014: ("SVN_ERR_FS_ID_NOT_FOUND", Meaning.CORRUPT),
    160015: ("SVN_ERR_FS_NOT_ID", Meaning.CORRUPT),
    160051: ("SVN_ERR_FS_PACKED_REVPROP_READ_FAILURE", Meaning.CORRUPT),
    160053: ("SVN_ERR_FS_MALFORMED_TXN_ID", Meaning.CORRUPT),
    160054: ("SVN_ERR_FS_INDEX_CORRUPTION", Meaning.CORRUPT),
    160055: ("SVN_ERR_FS_INDEX_REVISION", Meaning.CORRUPT),
    160056: ("SVN_ERR_FS_INDEX_OVERFLOW", Meaning.CORRUPT),
    160057: ("SVN_ERR_FS_CONTAINER_INDEX", Meaning.CORRUPT),
    160058: ("SVN_ERR_FS_INDEX_INCONSISTENT", Meaning.CORRUPT),
    160062: ("SVN_ERR_FS_MALFORMED_NODEREV_ID", Meaning.CORRUPT),
    160063: ("SVN_ERR_FS_INVALID_GENERATION", Meaning.CORRUPT),
    160064: ("SVN_ERR_FS_CORRUPT_REVPROP_MANIFEST", Meaning.CORRUPT),
    160065: ("SVN_ERR_FS_CORRUPT_PROPLIST", Meaning.CORRUPT),
    185000: ("SVN_ERR_SVNDIFF_INVALID_HEADER", Meaning.CORRUPT),
    185001: ("SVN_ERR_SVNDIFF_CORRUPT_WINDOW", Meaning.CORRUPT),
    185004: ("SVN_ERR_SVNDIFF_UNEXPECTED_END", Meaning.CORRUPT),
    185005: ("SVN_ERR_SVNDIFF_INVALID_COMPRESSED_DATA", Meaning.CORRUPT),
    200002: ("SVN_ERR_MALFORMED_FILE", Meaning.CORRUPT),
    200003: ("SVN_ERR_INCOMPLETE_DATA", Meaning.CORRUPT),
    200014: ("SVN_ERR_CHECKSUM_MISMATCH", Meaning.CORRUPT),
    200041: ("SVN_ERR_CORRUPT_PACKED_DATA", Meaning.CORRUPT),
    235000: ("SVN_ERR_ASSERTION_FAIL", Meaning.CORRUPT),
    130002: ("SVN_ERR_XML_UNKNOWN_ENCODING", Meaning.MALFORMED),
    130003: ("SVN_ERR_XML_MALFORMED", Meaning.MALFORMED),
    130005: ("SVN_ERR_XML_UNEXPECTED_ELEMENT", Meaning.MALFORMED),
    175009: ("SVN_ERR_RA_DAV_MALFORMED_DATA", Meaning.MALFORMED),
    125002: ("SVN_ERR_BAD_URL", Meaning.BAD_URL),
    125010: ("SVN_ERR_BAD_SERVER_SPECIFICATION", Meaning.BAD_URL),
    155007: ("SVN_ERR_WC_NOT_WORKING_COPY", Meaning.BAD_URL),
    200009: ("SVN_ERR_ILLEGAL_TARGET", Meaning.BAD_URL),
    200047: ("SVN_ERR_CANONICALIZATION_FAILED", Meaning.BAD_URL),
    205000: ("SVN_ERR_CL_ARG_PARSING_ERROR", Meaning.BAD_URL),
    170003: ("SVN_ERR_RA_NOT_IMPLEMENTED", Meaning.BAD_URL),
    170012: ("SVN_ERR_RA_CANNOT_CREATE_TUNNEL", Meaning.CONNECTION),
    170013: ("SVN_ERR_RA_CANNOT_CREATE_SESSION", Meaning.CONNECTION),
    175002: ("SVN_ERR_RA_DAV_REQUEST_FAILED", Meaning.CONNECTION),
    175003: ("SVN_ERR_RA_DAV_OPTIONS_REQ_FAILED", Meaning.CONNECTION),
    175010: ("SVN_ERR_RA_DAV_RESPONSE_HEADER_BADNESS", Meaning.CONNECTION),
    175012: ("SVN_ERR_RA_DAV_CONN_TIMEOUT", Meaning.CONNECTION),
    175014: ("SVN_ERR_RA_DAV_PRECONDITION_FAILED", Meaning.CONNECTION),
    175015: ("SVN_ERR_RA_DAV_METHOD_NOT_ALLOWED", Meaning.CONNECTION),
    210002: ("SVN_ERR_RA_SVN_CONNECTION_CLOSED", Meaning.CONNECTION),
    210003: ("SVN_ERR_RA_SVN_IO_ERROR", Meaning.CONNECTION),
    210004: ("SVN_ERR_RA_SVN_MALFORMED_DATA", Meaning.CONNECTION),
    230003: ("SVN_ERR_RA_SERF_WRAPPED_ERROR", Meaning.CONNECTION),
    230004: ("SVN_ERR_RA_SERF_STREAM_BUCKET_READ_ERROR", Meaning.CONNECTION),
    32: ("EPIPE", Meaning.CONNECTION),
    101: ("ENETUNREACH", Meaning.CONNECTION),
    104: ("ECONNRESET", Meaning.CONNECTION),
    110: ("ETIMEDOUT", Meaning.CONNECTION),
    111: ("ECONNREFUSED", Meaning.CONNECTION),
    113: ("EHOSTUNREACH", Meaning.CONNECTION),
}

NO_SUBVERSION = 175003
"""A web server answers, but not the way Subversion's does."""

CONNECTION_RANGES = (range(120_000, 121_000), range(670_000, 671_000), range(730_000, 731_000))
"""Codes of serf, of name resolution and of Windows sockets."""

_ORDER = list(Meaning)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\s]")

# How Apache says that there is no repository of this name below its folder of repositories.
_NO_REPOSITORY = frozenset({2, 170013})


def meaning(codes: Iterable[int]) -> Meaning:
    """The meaning of these codes together."""
    codes = frozenset(codes)
    found = [Meaning.NOT_FOUND if codes >= _NO_REPOSITORY else Meaning.UNKNOWN]
    for code in codes:
        if code in MEANINGS:
            found.append(MEANINGS[code][1])
        elif any(code in numbers for numbers in CONNECTION_RANGES):
            found.append(Meaning.CONNECTION)
    return min(found, key=_ORDER.index)


def safe_url(url: str) -> str:
    """``url`` without user name, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else url


def moved(url: str, target: str) -> Permanent:
    """The error where the server of ``url`` redirects to ``target``, which may be unknown."""
    return Permanent(
        f"{safe_url(url)} has moved{_to(target)}; if that is right, use that address: scm-sync repo relocate",
        code=Meaning.MOVED.value,
    )


def _to(target: str) -> str:
    """The target of a redirect for a line of text; it comes from the server."""
    return f" to {_CONTROL.sub('?', safe_url(target))[:200]}" if target else ""


_CONSEQUENCES: dict[Meaning, tuple[type[SyncError], str]] = {
    Meaning.CANCELLED: (Cancelled, "reading {where} was cancelled"),
    Meaning.NO_ROOM: (
        Transient,
        "svn ran out of room while it read {where} ({codes}); make room for temporary files, open files or "
        "memory on this machine or on the server, or raise SCM_SVN_MAX_MEMORY_BYTES",
    ),
    Meaning.CERTIFICATE: (
        Permanent,
        "the certificate of {where} is not trusted ({codes}); set SCM_CA_FILE to the PEM file of its "
        "authority",
    ),
    Meaning.DENIED: (
        AccessDenied,
        "{where} refuses access ({codes}); check SCM_SVN_USERNAME and SCM_SVN_PASSWORD, and that this user "
        "may read the repository root",
    ),
    Meaning.REDIRECTED: (
        Transient,
        "{where} redirects elsewhere{target} ({codes}); is there a login or maintenance page in front of it?",
    ),
    Meaning.NO_SUCH_REVISION: (
        Transient,
        "{where} does not have the revision that was asked for ({codes}); look at the repository again",
    ),
    Meaning.NOT_FOUND: (SourceGone, "there is no repository at {where} ({codes}); check the URL"),
    Meaning.CORRUPT: (Permanent, "{where} is damaged ({codes}); run svnadmin verify on the server"),
    Meaning.MALFORMED: (
        Transient,
        "{where} answers something that is not Subversion's ({codes}); is there a proxy or a login page in "
        "front of it?",
    ),
    Meaning.BAD_URL: (ConfigurationError, "{where} is not a URL that svn can read ({codes}); check the URL"),
    Meaning.CONNECTION: (Transient, "cannot reach {where} ({codes}); check host, port and network"),
    Meaning.UNKNOWN: (Transient, "svn failed on {where} ({codes})"),
}
# These errors keep the code of their class.
_PLAIN = (Meaning.CANCELLED, Meaning.DENIED, Meaning.NOT_FOUND, Meaning.BAD_URL)


def codes_of(error: ClientError) -> str:
    """The codes of an error for a person, such as ``E170013/E120171``."""
    return "/".join(f"E{code:06d}" for _, code in error.args[1])


def consequence(error: ClientError, url: str) -> SyncError:
    """The exception to raise for a failed read of ``url``. Its message is one line without secrets."""
    what = meaning(error.codes)
    if what is Meaning.MOVED:
        return moved(url, error.target)
    kind, text = _CONSEQUENCES[what]
    if what is Meaning.CONNECTION and NO_SUBVERSION in error.codes:
        text = "there is no Subversion server at {where} ({codes}); check the URL"
    line = text.format(where=safe_url(url), codes=codes_of(error) or "no code", target=_to(error.target))
    return kind(line, code=None if what in _PLAIN else what.value)
