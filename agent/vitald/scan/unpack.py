"""
A saved log as plain bytes: unpacks gzip, bzip2, xz and zstd, and converts UTF-16 to UTF-8.

Memory is bounded for any file: decompressors produce one chunk at a time, and a file that expands
too much is not read to its end. zstd is unpacked by the program of that name, because Python has no
decoder for it before 3.14.
"""

from __future__ import annotations

import codecs
import io
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 1 << 18
_XZ_MEMORY = 1 << 28
# A log is seldom compressed by more than 200; a decompression bomb by 1000 (gzip) and more
_BOMB_BYTES, _BOMB_RATIO = 1 << 28, 400
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF8_BOM = b"\xef\xbb\xbf"
_BOMS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_SAMPLE = 4096


class CannotUnpack(Exception):
    """Nothing of the file can be read; the message has the next step."""


class _Decoder(Protocol):
    """Decompresses one stream: the common interface of bz2, lzma and (wrapped) zlib."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Unpacked(io.RawIOBase):
    """The unpacked bytes as a stream. `trouble`, at its end: why the file was not read completely;
    empty if it was.
    """

    def __init__(self, source: BinaryIO) -> None:
        self.trouble = ""
        self._source = (
            io.BufferedReader(source, _CHUNK) if isinstance(source, io.RawIOBase) else source
        )
        head = self._read_packed(_CHUNK)
        form = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
        raw = self._read_chunks(head)
        if form == "zstd":
            raw = self._unpack_zstd(raw)
        elif form:
            raw = self._unpack_stream(raw, form)
        self._pieces = self._convert_to_utf8(self._limit_size(raw) if form else raw)
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        size = min(len(view), len(self._left))
        view[:size], self._left = self._left[:size], self._left[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            closing = getattr(self._pieces, "close", None)
            if closing is not None:
                closing()
        super().close()

    def _read_packed(self, size: int) -> bytes:
        return (
            self._source.read1(size)
            if isinstance(self._source, io.BufferedReader)
            else self._source.read(size)
        )

    def _read_chunks(self, head: bytes) -> Iterator[bytes]:
        self._taken = 0
        while head:
            self._taken += len(head)
            yield head
            head = self._read_packed(_CHUNK)

    def _limit_size(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        given = 0
        for piece in pieces:
            given += len(piece)
            if given > _BOMB_BYTES and given > self._taken * _BOMB_RATIO:
                self.trouble = (
                    f"it unpacks to more than {_BOMB_RATIO} times its size: what follows was not"
                    " read"
                )
                break
            yield piece
        closing = getattr(pieces, "close", None)
        if closing is not None:
            closing()

    def _unpack_stream(self, packed: Iterator[bytes], form: str) -> Iterator[bytes]:
        import bz2
        import lzma
        import zlib

        decoders: dict[str, Callable[[], _Decoder]] = {
            "gzip": _Gzip,
            "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY),
            "bzip2": bz2.BZ2Decompressor,
        }
        magic = next(magic for magic, name in _MAGIC.items() if name == form)
        decoder = decoders[form]()
        data = b""
        try:
            while True:
                if decoder.eof:  # another stream may follow, in concatenated rotated logs
                    data = decoder.unused_data
                    while not (data := data.lstrip(b"\0")):  # streams may be padded with zeros
                        data = next(packed, b"")
                        if not data:
                            return
                    if not data.startswith(magic[: len(data)]):
                        self.trouble = f"bytes that are not {form} follow: they were not read"
                        return
                    decoder = decoders[form]()
                elif decoder.needs_input:
                    data = next(packed, b"")
                    if not data:
                        self.trouble = f"the {form} file is cut short: what followed is not here"
                        return
                else:
                    data = b""
                if piece := decoder.decompress(data, _CHUNK):
                    yield piece
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            self.trouble = f"the {form} file is damaged ({error}): what follows was not read"

    def _unpack_zstd(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        program = shutil.which("zstd")
        if program is None:
            raise CannotUnpack(
                "to read a zstd file the program zstd is needed: apt-get install zstd, or unpack"
                " the file elsewhere"
            )
        return self._pipe_program([program, "-dcq"], packed)

    def _pipe_program(self, command: list[str], packed: Iterator[bytes]) -> Iterator[bytes]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert (
            process.stdin is not None and process.stdout is not None and process.stderr is not None
        )
        feeder = threading.Thread(target=_feed_program, args=(process.stdin, packed), daemon=True)
        feeder.start()
        ended = False
        try:
            while piece := process.stdout.read(_CHUNK):
                yield piece
            ended = True
        finally:
            if not ended:
                process.kill()
            message = process.stderr.read(4096).decode("utf-8", "replace").strip()
            process.stdout.close()
            process.stderr.close()
            if process.wait() and ended:
                self.trouble = f"the zstd file is damaged ({message}): what follows was not read"

    def _convert_to_utf8(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        head = b""
        for piece in pieces:
            head += piece
            if len(head) >= _SAMPLE:
                break
        encoding = _detect_encoding(head)
        if not encoding:
            yield head.removeprefix(_UTF8_BOM)
            yield from pieces
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield decoder.decode(head).removeprefix("\ufeff").encode("utf-8", "replace")
        for piece in pieces:
            yield decoder.decode(piece).encode("utf-8", "replace")


class _Gzip:
    """zlib's decoder with the interface of bz2's: it keeps the input that it has not used yet."""

    def __init__(self) -> None:
        import zlib

        self._decoder = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        out = self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)
        self.needs_input = not self._decoder.unconsumed_tail and len(out) < max_length
        return out


def _feed_program(into: io.BufferedWriter | BinaryIO, pieces: Iterator[bytes]) -> None:
    with suppress(OSError):  # it ended early: its exit code is reported
        for piece in pieces:
            into.write(piece)
    with suppress(OSError):
        into.close()


def _detect_encoding(head: bytes) -> str:
    """UTF-16, by its byte order mark or because every other byte is zero; otherwise empty."""
    marked = _BOMS.get(head[:2])
    if marked is not None:
        return marked
    sample = head[:_SAMPLE]
    half = len(sample) // 2
    if half >= 8 and sample[1::2].count(0) > half * 0.9 and sample[::2].count(0) < half * 0.1:
        return "utf-16-le"
    if half >= 8 and sample[::2].count(0) > half * 0.9 and sample[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return ""
