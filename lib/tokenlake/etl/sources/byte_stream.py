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
        # The first bytes tell a stream of this compression from a file that was only
        # named like one.
        if compression:
            check_compressed(data.file, data.pread(SIGNATURE_BYTES, 0))
            buffered = io.BufferedReader(self._raw, data.read_ahead)
            # The standard library reads the two formats that Arrow lacks, or reads
            # wrongly.
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
        # Plain bytes are read at their offset, without a stream in between.
        if self._stream is None:
            chunk = self._data.pread(size, self._offset)
            self._offset += len(chunk)
            return chunk
        # A decompressor returns fewer bytes than asked for at the end of a member or
        # frame.
        chunk = self._read_some(size)
        while len(chunk) < size:
            next_chunk = self._read_some(size - len(chunk))
            if not next_chunk:
                break
            chunk += next_chunk
        return chunk

    def read_into(self, view: memoryview) -> int:
        """Fill `view` and return the number of bytes read, fewer only at the end.

        Errors are those of :meth:`read`.
        """
        if self._stream is None:
            byte_count = self._data.read_into(view, self._offset)
            self._offset += byte_count
            return byte_count
        filled = 0
        while filled < len(view):
            chunk = self._read_some(len(view) - filled)
            if not chunk:
                break
            view[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        return filled

    def consumed(self) -> int:
        """Return the number of stored bytes read since the last call."""
        stored_bytes = self._offset if self._stream is None else self._raw.tell()
        new_bytes = stored_bytes - self._counted
        self._counted = stored_bytes
        return new_bytes

    def _read_some(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes, none at the end."""
        if self._head is None:
            self._head = self._read_head()
        if self._head:
            chunk = self._head[:size]
            self._head = self._head[size:]
            return chunk
        return self._decompress(size)

    def _read_head(self) -> bytes:
        """Return the first decompressed bytes, after a check that they fit the name.

        Raises:
            UnsuitableFileError: They begin another format than the name says.
        """
        file = self._file
        first_bytes = b""
        while len(first_bytes) < HEAD_BYTES:
            chunk = self._decompress(HEAD_BYTES - len(first_bytes))
            if not chunk:
                break
            first_bytes += chunk
        if file.facts.textual:
            binary_format = kind_of(first_bytes)
            if binary_format is not None:
                problem = (
                    f"its {file.compression} stream contains {binary_format}, "
                    f"but its name indicates {file.format}"
                )
                raise unsuitable(file, problem, "decompress it")
            check_records(file, first_bytes)
        return first_bytes

    def _decompress(self, size: int) -> bytes:
        """Return up to `size` bytes of the decompressor, none at the end.

        Raises:
            DamagedFileError: The stream is broken.
        """
        file = self._file
        try:
            chunk: bytes = self._stream.read(size)
        except (*StreamReader.errors, pa.ArrowException) as error:
            raise damaged(
                file,
                f"its {file.compression} stream is cut or corrupt between bytes {self._offset} and "
                f"{self._offset + size} of the decompressed data ({error})",
                offset=self._offset,
            ) from error
        self._offset += len(chunk)

        # A decompression bomb. Small files may unfold freely up to FREE_BYTES: text of
        # one repeated character has a ratio that is above any useful limit.
        stored_bytes = self._raw.tell()
        max_expansion = self._data.max_expansion
        if self._offset > FREE_BYTES and self._offset > max_expansion * stored_bytes:
            raise damaged(
                file,
                f"{stored_bytes} stored bytes decompress to {self._offset} and more, more than source.max_expansion = "
                f"{max_expansion} times as many (raise it if the content is really so repetitive)",
                stored=stored_bytes,
                unfolded=self._offset,
            )
        return chunk
