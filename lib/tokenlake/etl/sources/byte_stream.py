"""The bytes of an input as one stream, decompressed.

A stream that breaks off or is corrupt is an error: its data are never used in part.
"""

from __future__ import annotations

import io
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.etl.sources.contents import HEAD_BYTES, check_records
from tokenlake.etl.sources.decompress import StreamReader
from tokenlake.etl.sources.file_signatures import SIGNATURE_BYTES, check_compressed, kind_of
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable

FREE_BYTES: Final = 256 << 20  # so much a stream may unfold to, however small it is


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
            check_compressed(data.file, data.pread(SIGNATURE_BYTES, 0))
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
