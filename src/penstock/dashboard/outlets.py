"""How the text of a stream is sent: as it is, or compressed. What many streams send is compressed once.

Each piece is compressed on its own and ends at a full byte, without the mark of the end. So pieces in any
order make one stream of gzip, and a browser has each event at once.
"""

from __future__ import annotations

import struct
import zlib
from functools import cached_property

from starlette.types import Send

__all__ = ["GzipOutlet", "Outlet", "Piece"]

# Of RFC 1952: no name, no time, an unknown system.
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
# An empty block that is the last one.
LAST_BLOCK = b"\x03\x00"
LEVEL = 6


class Piece:
    """A part of a stream: whole events or comments."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @cached_property
    def compressed(self) -> bytes:
        """Blocks of deflate that refer to nothing before them."""
        packer = zlib.compressobj(LEVEL, wbits=-zlib.MAX_WBITS)
        return packer.compress(self.text) + packer.flush(zlib.Z_SYNC_FLUSH)


class Outlet:
    """Sends pieces as they are."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, piece: Piece) -> int:
        """Send a piece; the bytes that it took."""
        return await self._pass(piece.text)

    async def end(self) -> None:
        """The stream ends as its client expects it."""
        await self._pass(b"", more=False)

    async def _pass(self, body: bytes, *, more: bool = True) -> int:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        return len(body)


class GzipOutlet(Outlet):
    """Sends pieces compressed. Keeps the checksum that ends the stream."""

    headers = ((b"content-encoding", b"gzip"),)

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self._sum = 0
        self._size = 0
        self._head = GZIP_HEAD

    async def send(self, piece: Piece) -> int:
        self._sum = zlib.crc32(piece.text, self._sum)
        self._size += len(piece.text)
        head, self._head = self._head, b""
        return await self._pass(head + piece.compressed)

    async def end(self) -> None:
        rest = LAST_BLOCK + struct.pack("<II", self._sum, self._size & 0xFFFFFFFF)
        await self._pass(self._head + rest, more=False)
