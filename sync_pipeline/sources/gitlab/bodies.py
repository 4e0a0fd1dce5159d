"""The body of an answer: all of it, unpacked, and no longer than allowed.

Belongs here: reading and unpacking in small steps, so that neither an endless body nor a small one that
unpacks to a huge one takes memory. Does not belong here: what the body means
(:mod:`sync_pipeline.sources.gitlab.responses`).
"""

from __future__ import annotations

import zlib

import urllib3

ENCODINGS = "gzip"
"""The packing that requests accept; this module unpacks no other."""

_READ_BYTES = 64 * 1024
# zlib reads both the gzip and the zlib format.
_ANY_FORMAT = 32 + zlib.MAX_WBITS


class TooLong(Exception):
    """The body is longer than allowed."""


def read(response: urllib3.BaseHTTPResponse, most: int) -> bytes:
    """The unpacked body. Raises TooLong where it is longer than ``most`` bytes, and as urllib3 does where it
    is cut off or cannot be unpacked; then no exception keeps the body in memory."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise urllib3.exceptions.DecodeError(f"packed as {encoding[:60]!r}, which was not accepted")
    unpacker = _Unpacker() if encoding not in ("", "identity") else None
    body = bytearray()
    try:
        while piece := response.read1(_READ_BYTES, decode_content=False):
            if unpacker is None:
                body += piece
            else:
                unpacker.add(piece, body, most)
            if len(body) > most:
                raise TooLong
        if unpacker is not None:
            unpacker.check_end()
        return bytes(body)
    finally:
        # The traceback of an exception holds this frame.
        body.clear()
        piece = b""


class _Unpacker:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_FORMAT)
        self._begun = False
        self._is_over = False

    def add(self, packed: bytes, body: bytearray, most: int) -> None:
        """Append what ``packed`` unpacks to, a little more than ``most`` bytes in total at the most."""
        while packed and not self._is_over and len(body) <= most:
            if self._stream.eof:
                # Another member may follow; anything else behind the end is ignored.
                self._is_over = not packed.startswith(b"\x1f")
                self._stream = zlib.decompressobj(_ANY_FORMAT)
                continue
            self._begun = True
            try:
                body += self._stream.decompress(packed, min(_READ_BYTES, most + 1 - len(body)))
            except zlib.error as error:
                raise urllib3.exceptions.DecodeError(str(error)) from None
            packed = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def check_end(self) -> None:
        """Raises DecodeError where the packed data is cut off."""
        if self._begun and not self._is_over and not self._stream.eof:
            raise urllib3.exceptions.DecodeError("the packed data is cut off")
