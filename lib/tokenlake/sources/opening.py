"""Opening an input, making sure that it is, and stays, the file that was planned; and its bytes as one stream.

A stream that breaks off or is corrupt is never read in part, and a file that is not what its name says is refused.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Final, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.cache.disk import DiskCache, default_folder
from tokenlake.config.values import parse_size
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.sources.contents import HEAD_BYTES, check_records, encoding_of
from tokenlake.sources.decompress import StreamReader
from tokenlake.sources.formats import COMPRESSION_ENDINGS, format_of
from tokenlake.sources.input_bytes import InputBytes, LocalBytes
from tokenlake.sources.input_errors import damaged, unsuitable
from tokenlake.sources.inputs import InputFile, is_hub_url
from tokenlake.sources.json_wrapper import find_wrapper

VARIABLE: Final = "TOKENLAKE_REMOTE_CACHE"
"""Bytes of blocks that are kept, such as 20GB; not set: none."""

SPACE: Final = b" \t\r\n\xef\xbb\xbf"  # white space of JSON, and a byte order mark
_BLOCK: Final = 4 << 20
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
_ENDINGS: Final[dict[str, str]] = {**COMPRESSION_ENDINGS, "Parquet": ".parquet", "Arrow IPC": ".arrow"}
FREE_BYTES: Final = 256 << 20  # so much a stream may unfold to, however small it is
_LOOK: Final = 64 << 10
_SHORT_LOOK: Final = 4096
_FEW: Final = 8  # control characters that may stand in any file: its records are judged one by one
_SHARE: Final = 20  # one in so many: UTF-16 has more, and so has anything compressed or compiled
_CONTROLS: Final = np.array([byte < 32 and byte not in b"\b\t\n\f\r\x1b" for byte in range(256)])


@contextmanager
def opened(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> Generator[InputBytes]:
    """Yield the bytes of `file`; it must be as planned before and after it is read.

    Args:
        storage_options: options of the file system that a URL is on; credentials may be references.

    Raises:
        InputChangedError: it is gone, or not what was planned (a local file: inode, size, mtime and
            ctime; an object: size and version token).
        SourceError: it cannot be reached, after retries.
        ConfigError: :data:`VARIABLE` holds no size.
    """
    data = LocalBytes(file) if file.is_local else _remote(file, storage_options or {})
    try:
        yield data
        data.check_unchanged()
    finally:
        data.close()


def _remote(file: InputFile, storage_options: Mapping[str, Any]) -> InputBytes:
    """Open an object; its blocks are kept, and taken from there, where configuration or environment ask for it."""
    kept = file.kept_bytes
    if kept is None and (asked := os.environ.get(VARIABLE)):
        try:
            kept = parse_size(asked)
        except ConfigError as error:
            raise ConfigError(f"{VARIABLE}: {error}") from error
    # fsspec and asyncio take a sixth of a worker's start, and builds from local files need neither.
    if is_hub_url(file.url):
        from tokenlake.sources.hub_repo import HubBytes as Bytes
    else:
        from tokenlake.sources.remote import RemoteBytes as Bytes
    data = Bytes(file, storage_options)
    return data if kept is None else KeptBytes(data, _blocks(str(default_folder() / "remote"), kept))


@cache
def _blocks(folder: str, size: int) -> DiskCache:
    return DiskCache(folder, max_bytes=size)


@final
class KeptBytes(InputBytes):
    """Another input, of which blocks are kept; usable from threads, one read at a time."""

    def __init__(self, data: InputBytes, kept: DiskCache) -> None:
        self.file, self._data, self._kept = data.file, data, kept
        self._lock = threading.Lock()
        self._latest = -1, b""  # records are smaller than blocks

    def read_into(self, view: memoryview, offset: int) -> int:
        at = 0
        with self._lock:
            while at < len(view):
                number, start = divmod(offset + at, _BLOCK)
                if self._latest[0] != number:
                    self._latest = number, self._read(number)
                some = self._latest[1][start : start + len(view) - at]
                if not some:
                    break
                view[at : at + len(some)] = some
                at += len(some)
        return at

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        self._data.expect(stretches, columns)

    def check_unchanged(self) -> None:
        self._data.check_unchanged()

    def close(self) -> None:
        self._data.close()

    def _read(self, number: int) -> bytes:
        file, start = self.file, number * _BLOCK
        size = min(_BLOCK, file.size - start)
        if size <= 0:
            return b""
        key = f"{file.url}\n{file.size}\n{file.token}\n{number}"
        found = self._kept.get(key)
        if found is not None and isinstance(found[0], bytes) and len(found[0]) == size:
            return found[0]
        data = self._data.pread(size, start)
        if len(data) == size:
            self._kept.put(key, data)
        return data


@final
class ByteStream:
    """The bytes of a file, plain or compressed, read once from the beginning.

    Of gzip all members are read, of zstd and lz4 all frames, of bzip2 and xz all streams. The decompressors raise
    where a member is cut, where its checksum differs and where anything but another member follows; zstandard's own
    reader ends early in silence. What a stream unfolds to is bounded by the input's `max_expansion` times the stored
    bytes that were read of it.
    """

    def __init__(self, data: InputBytes) -> None:
        """Read `data`.

        Raises:
            DamagedFileError: a compressed file is not compressed, or otherwise than its extension says, or
                has no bytes at all.
        """
        self._file, self._data = data.file, data
        self._at, self._mark = 0, 0
        self._raw = data.as_file()
        self._stream: Any = None
        self._head: bytes | None = None  # decompressed bytes that were looked at, and not given out yet
        if data.file.compression:
            _check_compressed(data.file, data.pread(_HEAD, 0))
            ahead = io.BufferedReader(self._raw, data.read_ahead)
            if data.file.compression in ("bzip2", "xz"):
                self._stream = StreamReader(ahead, data.file.compression)
            else:
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
        """Return up to `size` decompressed bytes, none at the end."""
        if self._head is None:
            self._head = self._checked_head()
        if self._head:
            data = self._head[:size]
            self._head = self._head[size:]
            return data
        return self._decompressed(size)

    def _checked_head(self) -> bytes:
        """Return the first decompressed bytes.

        Raises:
            UnsuitableFileError: they begin another format than the name says.
        """
        file = self._file
        head = b""
        while len(head) < HEAD_BYTES and (more := self._decompressed(HEAD_BYTES - len(head))):
            head += more
        if file.facts.textual:
            if kind := kind_of(head):
                told = f"what its {file.compression} stream holds is {kind}, its name says {file.format}"
                raise unsuitable(file, told, "decompress it")
            check_records(file, head)
        return head

    def _decompressed(self, size: int) -> bytes:
        file = self._file
        try:
            data: bytes = self._stream.read(size)
        except (*StreamReader.errors, pa.ArrowException) as error:
            raise damaged(
                file,
                f"its {file.compression} stream is cut or corrupt between bytes {self._at} and "
                f"{self._at + size} of the decompressed data ({error})",
                offset=self._at,
            ) from error
        self._at += len(data)
        stored, most = self._raw.tell(), self._data.max_expansion
        if self._at > FREE_BYTES and self._at > most * stored:
            raise damaged(
                file,
                f"{stored} stored bytes unfold to {self._at} and more, more than source.max_expansion = {most} times "
                "as many (it may be raised, if the content is meant to be so repetitive)",
                stored=stored,
                unfolded=self._at,
            )
        return data


def kind_of(head: bytes) -> str | None:
    """Return the binary format that begins with `head` (16 bytes), None for any other."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(head)), None)


def check_plain(data: InputBytes) -> None:
    """Raise UnsuitableFileError if a file that is named as uncompressed text is something else."""
    file = data.file
    if file.compression is not None or not file.facts.textual:
        return
    head = data.pread(HEAD_BYTES, 0)
    if kind := kind_of(head):
        raise _misnamed(file, kind, f"uncompressed {file.format}")
    check_records(file, head)


def _check_compressed(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError unless `head` begins a stream of the compression that the extension says."""
    kind, named = kind_of(head), str(file.compression)
    if not head:
        raise damaged(file, f"it is empty, not even an empty {named} stream")
    if kind is None:
        told = f"it is no {named} stream, though its name says so"
        raise unsuitable(file, told, "name it without that extension, if it is plain")
    if kind != named:
        raise _misnamed(file, kind, named)


def _misnamed(file: InputFile, kind: str, named: str) -> Exception:
    advice = f"decompress it, or compress it with gzip, zstd, lz4, bzip2 or xz: {kind} is not read"
    if kind in _ENDINGS:
        advice = f"name it with {_ENDINGS[kind]} at the end"
    return unsuitable(file, f"its first bytes are those of {kind}, its name says {named}", advice)


def check_text(data: InputBytes) -> None:
    """Raise UnsuitableFileError if the first 64 KiB of a file are UTF-16 or no text."""
    head = data.pread(_LOOK, 0) if data.file.compression is None else ByteStream(data).read(_LOOK)
    check_marks(data.file, head)
    controls = int(np.count_nonzero(_CONTROLS[np.frombuffer(head, np.uint8)]))
    if controls >= _FEW and controls * _SHARE >= len(head):
        told = (
            f"it is not text: {controls} of its first {len(head)} bytes are control characters "
            f"({head.count(0)} of them NUL, as in UTF-16 or in binary files), expected UTF-8"
        )
        raise unsuitable(data.file, told, "convert it, for example with `iconv -f UTF-16 -t UTF-8 OLD > NEW`")


def check_marks(file: InputFile, head: bytes) -> None:
    """Raise UnsuitableFileError if a file is encoded in UTF-16 or UTF-32."""
    if encoding := encoding_of(head[:HEAD_BYTES]):
        told = f"it begins with {head[:4].hex(' ')} and is encoded in {encoding}, expected UTF-8"
        raise unsuitable(file, told, f"convert it, for example with `iconv -f {encoding} -t UTF-8 OLD > NEW`")


def as_it_begins(file: InputFile, options: Mapping[str, Any]) -> InputFile:
    """Return a file of the format ``json`` as ``jsonl`` where it holds lines; one that cannot be read as it is.

    It holds lines where an object stands on the first one, as far as that is seen, unless this object is the whole file
    and is around a list of records.
    """
    if file.format != "json":
        return file
    head = b""
    try:
        with opened(file, options) as data:
            stream = ByteStream(data)
            while not head and (some := stream.read(_SHORT_LOOK)):
                if head := some.lstrip(SPACE):
                    head += stream.read(_SHORT_LOOK)
            is_lines = _begins_with_line(file, head) and not _is_around_records(head, data)
    except TokenlakeError:  # who reads it will say so
        return file
    return replace(file, format="jsonl") if is_lines else file


def _begins_with_line(file: InputFile, head: bytes) -> bool:
    """Return whether a file of JSON that begins with `head` (no space before it) seems to be one of lines."""
    if format_of(file.path) == "jsonl" and not head.startswith(b"["):
        return True
    line, newline, _ = head.partition(b"\n")
    if not line.startswith(b"{"):
        return False
    if not newline:
        return True
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _is_around_records(head: bytes, data: InputBytes) -> bool:
    """Return whether a file that begins with an object is that object alone, around a list of records."""
    _, _, following = head.partition(b"\n")
    if not head.startswith(b"{") or following.strip(SPACE):  # a second line
        return False
    wrapper = find_wrapper(ByteStream(data).read)
    return wrapper is not None and not wrapper.is_record
