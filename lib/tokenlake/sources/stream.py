"""An input as one stream of bytes, decompressed where it is compressed, and what its first bytes say it is.

A stream that breaks off or is corrupt is never read in part, and a file that is not what its name says is refused.
"""

from __future__ import annotations

import io
import re
from typing import Any, Final, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.errors import DamagedFileError
from tokenlake.sources.batch import Want
from tokenlake.sources.inputs import InputBytes, InputFile, InputReader, damaged

_HEAD: Final = 16
_SIGNATURES: Final[dict[str, re.Pattern[bytes]]] = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "bzip2": re.compile(rb"BZh[1-9](?:\x31\x41\x59\x26\x53\x59|\x17\x72\x45\x38\x50\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zip": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
    "Parquet": re.compile(rb"PAR1\x15"),
    "Arrow IPC": re.compile(rb"ARROW1\x00\x00|\xff\xff\xff\xff[\x00-\xff]{2}\x00\x00"),
}
_RENAME: Final = {
    "gzip": "name it with .gz at the end",
    "zstd": "name it with .zst at the end",
    "lz4": "name it with .lz4 at the end",
    "Parquet": "name it with .parquet at the end",
    "Arrow IPC": "name it with .arrow at the end",
}
FREE_BYTES: Final = 256 << 20  # so much a stream may unfold to, however small it is
_LOOK: Final = 64 << 10
_FEW: Final = 8  # control characters that may stand in any file: its records are judged one by one
_SHARE: Final = 20  # one in so many: UTF-16 has more, and so has anything compressed or compiled
_CONTROLS: Final = np.array([byte < 32 and byte not in b"\b\t\n\f\r\x1b" for byte in range(256)])
_CONVERT: Final = "expected UTF-8; convert it, for example with `iconv -f UTF-16 -t UTF-8`"
LOOK: Final = 4096  # bytes
SPACE: Final = b" \t\r\n\xef\xbb\xbf"  # white space of JSON, and a byte order mark


def kind_of(head: bytes) -> str | None:
    """Return the binary format that begins with `head` (16 bytes), None for any other."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(head)), None)


def check_plain(data: InputBytes) -> None:
    """Raise DamagedFileError if a file that is named as uncompressed text is something else."""
    if data.file.compression is None and data.file.facts.textual:
        kind = kind_of(data.pread(_HEAD, 0))
        if kind:
            raise damaged(
                data.file,
                f"its first bytes are those of {kind}, its name says {_named(data.file)}; {_advice(kind)}",
            )


def _check_compressed(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError unless `head` begins a stream of the compression that the extension says."""
    kind, named = kind_of(head), file.compression
    if kind == named:
        return
    if not head:
        what = f"it is empty, not even an empty {named} stream"
    elif kind is None:
        what = (
            f"it is no {named} stream, though its name says so; name it without that extension if it is plain"
        )
    else:
        what = f"its first bytes are those of {kind}, its name says {named}; {_advice(kind)}"
    raise damaged(file, what)


def _check_content(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError if what was decompressed is compressed once more; `head`: its first bytes."""
    kind = kind_of(head)
    if kind and file.facts.textual:
        raise damaged(
            file,
            f"what its {file.compression} stream holds is {kind}, its name says {_named(file)}; decompress it",
        )


def _named(file: InputFile) -> str:
    return f"uncompressed {file.format}" if file.compression is None else file.format


def _advice(kind: str) -> str:
    return _RENAME.get(kind, f"{kind} is not read; decompress it, or compress it with gzip, zstd or lz4")


@final
class ByteStream:
    """The bytes of a plain, gzip (all members), zstd or lz4 (all frames) file, read once from the beginning.

    Arrow's decompressor raises where a member is cut, where its checksum differs and where anything but
    another member follows; zstandard's own reader ends early in silence. What a stream unfolds to is
    bounded by the input's `max_expansion` times the stored bytes that were read of it.
    """

    def __init__(self, data: InputBytes) -> None:
        """Read `data`.

        Raises:
            DamagedFileError: a compressed file is not compressed, or otherwise than its extension says, or
                has no bytes at all.
        """
        self._file, self._data = data.file, data
        self._at, self._mark = 0, 0
        self._raw = InputReader(data)
        self._stream: Any = None
        if data.file.compression:
            _check_compressed(data.file, data.pread(_HEAD, 0))
            ahead = io.BufferedReader(self._raw, data.read_ahead)
            self._stream = pa.CompressedInputStream(pa.PythonFile(ahead, mode="r"), data.file.compression)

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end; DamagedFileError where the stream is broken."""
        if self._stream is None:
            data = self._data.pread(size, self._at)
            self._at += len(data)
            return data
        data = self._some(size)
        while len(data) < size and (more := self._some(size - len(data))):
            data += more
        return data

    def read_into(self, view: memoryview) -> int:
        """Fill `view`; return how many bytes came, fewer only at the end; errors as in :meth:`read`."""
        if self._stream is None:
            got = self._data.read_into(view, self._at)
            self._at += got
            return got
        at = 0
        while at < len(view) and (data := self._some(len(view) - at)):
            view[at : at + len(data)] = data
            at += len(data)
        return at

    def consumed(self) -> int:
        """Return how many stored bytes were read since the last call."""
        at = self._at if self._stream is None else self._raw.tell()
        self._mark, delta = at, at - self._mark
        return delta

    def _some(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            raise damaged(
                self._file,
                f"its {self._file.compression} stream is cut or corrupt between bytes {self._at} and "
                f"{self._at + size} of the decompressed data ({error})",
                offset=self._at,
            ) from error
        if not self._at:
            _check_content(self._file, data[:_HEAD])
        self._at += len(data)
        if self._at > FREE_BYTES and self._at > self._data.max_expansion * self._raw.tell():
            raise self._bomb()
        return data

    def _bomb(self) -> DamagedFileError:
        read = self._raw.tell()
        return damaged(
            self._file,
            f"{read} stored bytes unfold to {self._at} and more, more than source.max_expansion = "
            f"{self._data.max_expansion} times as many (it may be raised, if the content is meant to be "
            "so repetitive)",
            stored=read,
            unfolded=self._at,
        )


def check_column(file: InputFile, want: Want) -> None:
    """Raise DamagedFileError if another column than its one is wanted of a text file."""
    others = [name for name in want.names((want.plain,)) if name != want.plain]
    if others:
        raise damaged(file, f"it has no column {others[0]!r}; text files have one column, {want.plain!r}")


def check_text(data: InputBytes) -> None:
    """Raise DamagedFileError if the first 64 KiB of a file are UTF-16 or no text."""
    head = data.pread(_LOOK, 0) if data.file.compression is None else ByteStream(data).read(_LOOK)
    check_marks(data.file, head)
    controls = int(np.count_nonzero(_CONTROLS[np.frombuffer(head, np.uint8)]))
    if controls >= _FEW and controls * _SHARE >= len(head):
        raise damaged(
            data.file,
            f"it is not text: {controls} of its first {len(head)} bytes are control characters "
            f"({head.count(0)} of them NUL, as in UTF-16 or in binary files), {_CONVERT}",
        )


def check_marks(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError if a file begins with the byte order mark of UTF-16 or UTF-32."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        raise damaged(
            file,
            f"it begins with {head[:4].hex(' ')}, the byte order mark of UTF-16 or UTF-32, {_CONVERT}",
        )


def has_lines(head: bytes) -> bool:
    """Say whether a file that begins with `head` has an object on its first line, as far as that is seen."""
    line, newline, _ = head.lstrip(SPACE).partition(b"\n")
    if not line.startswith(b"{"):
        return False
    try:
        return not newline or isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False
