"""The body of a response: complete, unpacked, and no longer than allowed.

Belongs here: reading and unpacking in small steps. So memory stays small for an endless body, and for one
that unpacks to a huge one. Does not belong here: the meaning of the body
(:mod:`sync_pipeline.sources.gitlab.responses`).
"""

from __future__ import annotations

import zlib

import urllib3

ENCODINGS = "gzip"
"""The content encodings that requests accept; this module unpacks no other."""

_READ_BYTES = 64 * 1024
# zlib reads both the gzip and the zlib format.
_ANY_FORMAT = 32 + zlib.MAX_WBITS


class TooLong(Exception):
    """The body is longer than allowed."""


def read(response: urllib3.BaseHTTPResponse, most: int) -> bytes:
    """The unpacked body. Raises TooLong if it is longer than ``most`` bytes. Raises as urllib3 does if it is
    truncated or cannot be unpacked. No exception keeps the body in memory.
    """
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
        """Append the unpacked ``packed``, up to a little more than ``most`` bytes in total."""
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
        """Raises DecodeError if the packed data is truncated."""
        if self._begun and not self._is_over and not self._stream.eof:
            raise urllib3.exceptions.DecodeError("the packed data is cut off")
