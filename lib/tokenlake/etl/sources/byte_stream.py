"""The bytes of an input as one stream, decompressed.

A stream that breaks off or is corrupt is an error: its data are never used in part.
"""

from __future__ import annotations

import io
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.etl.sources.contents import HEAD_BYTES, check_records
from tokenlake.etl.sources.decompress import StreamReader
from tokenlake.etl.sources.file_signatures import (
    SIGNATURE_BYTES,
    check_compressed,
    kind_of,
)
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable

FREE_BYTES: Final = 256 << 20
"""Size in bytes that a stream may unfold to, however small it is."""


@final
class ByteStream:
    """The bytes of a file, plain or compressed, read once from the beginning.

    All members of gzip are read, all frames of zstd and lz4, all streams of bzip2 and
    xz. The decompressors raise if a member is cut, if its checksum differs, and if
    anything but another member follows; zstandard's own reader would end early in
    silence. The size of the decompressed data is bounded by the input's `max_expansion`
    times the stored bytes that were read for it.
    """

    def __init__(self, data: InputBytes) -> None:
        """Begin before the first byte.

        Args:
            data: The open file.

        Raises:
            DamagedFileError: A compressed file is not compressed, or otherwise than its
                extension says, or is empty.
        """
        self._file = data.file
        self._data = data
        self._offset = 0  # in the decompressed data
        self._counted = 0  # stored bytes that `consumed` has returned
        self._raw = data.as_file()
        self._stream: Any = None  # decompressor, None for a plain file
        # First decompressed bytes, which are checked and not returned yet; None: not
        # read yet.
        self._head: bytes | None = None
        compression = data.file.compression
        if compression:
            check_compressed(data.file, data.pread(SIGNATURE_BYTES, 0))
            buffered = io.BufferedReader(self._raw, data.read_ahead)
            if compression in ("bzip2", "xz"):
                self._stream = StreamReader(buffered, compression)
            else:
                self._stream = pa.CompressedInputStream(
                    pa.PythonFile(buffered, mode="r"), compression
                )

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end.

        Raises:
            DamagedFileError: The stream is broken.
            UnsuitableFileError: Its first bytes are those of another format than the
                name says.
        """
        if self._stream is None:
            data = self._data.pread(size, self._offset)
            self._offset += len(data)
            return data
        data = self._read_some(size)
        while len(data) < size:
            more = self._read_some(size - len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, view: memoryview) -> int:
        """Fill `view` and return the number of bytes read, fewer only at the end;
        errors as in :meth:`read`.
        """
        if self._stream is None:
            count = self._data.read_into(view, self._offset)
            self._offset += count
            return count
        filled = 0
        while filled < len(view):
            data = self._read_some(len(view) - filled)
            if not data:
                break
            view[filled : filled + len(data)] = data
            filled += len(data)
        return filled

    def consumed(self) -> int:
        """Return the number of stored bytes read since the last call."""
        stored = self._offset if self._stream is None else self._raw.tell()
        count = stored - self._counted
        self._counted = stored
        return count

    def _read_some(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes, none at the end."""
        if self._head is None:
            self._head = self._read_head()
        if self._head:
            data = self._head[:size]
            self._head = self._head[size:]
            return data
        return self._decompress(size)

    def _read_head(self) -> bytes:
        """Return the first decompressed bytes; UnsuitableFileError if they begin
        another format than the name says.
        """
        file = self._file
        head = b""
        while len(head) < HEAD_BYTES:
            more = self._decompress(HEAD_BYTES - len(head))
            if not more:
                break
            head += more
        if file.facts.textual:
            kind = kind_of(head)
            if kind is not None:
                problem = f"its {file.compression} stream contains {kind}, but its name indicates {file.format}"
                raise unsuitable(file, problem, "decompress it")
            check_records(file, head)
        return head

    def _decompress(self, size: int) -> bytes:
        """Return up to `size` bytes of the decompressor, none at the end;
        DamagedFileError if it is broken.
        """
        file = self._file
        try:
            data: bytes = self._stream.read(size)
        except (*StreamReader.errors, pa.ArrowException) as error:
            raise damaged(
                file,
                f"its {file.compression} stream is cut or corrupt between bytes {self._offset} and "
                f"{self._offset + size} of the decompressed data ({error})",
                offset=self._offset,
            ) from error
        self._offset += len(data)

        # A decompression bomb.
        stored = self._raw.tell()
        max_expansion = self._data.max_expansion
        if self._offset > FREE_BYTES and self._offset > max_expansion * stored:
            raise damaged(
                file,
                f"{stored} stored bytes decompress to {self._offset} and more, more than source.max_expansion = "
                f"{max_expansion} times as many (raise it if the content is really so repetitive)",
                stored=stored,
                unfolded=self._offset,
            )
        return data
