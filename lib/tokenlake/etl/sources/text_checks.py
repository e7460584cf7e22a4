"""Checks that a file is text in UTF-8."""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.contents import HEAD_BYTES, encoding_of
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import unsuitable
from tokenlake.etl.sources.inputs import InputFile

_CHECKED_BYTES: Final = 64 << 10

# A few control characters may stand in any file: its records are judged one by one.
_FEW_CONTROLS: Final = 8
# UTF-16 has more control characters, and so has anything compressed or compiled.
_BYTES_PER_CONTROL: Final = 20
_IS_CONTROL: Final = np.array(
    [byte < 32 and byte not in b"\b\t\n\f\r\x1b" for byte in range(256)]
)


def check_text(data: InputBytes) -> None:
    """Raise UnsuitableFileError if the first 64 KiB of a file are UTF-16 or no text."""
    if data.file.compression is None:
        first_bytes = data.pread(_CHECKED_BYTES, 0)
    else:
        first_bytes = ByteStream(data).read(_CHECKED_BYTES)
    check_marks(data.file, first_bytes)
    control_count = int(
        np.count_nonzero(_IS_CONTROL[np.frombuffer(first_bytes, np.uint8)])
    )
    if control_count >= _FEW_CONTROLS and control_count * _BYTES_PER_CONTROL >= len(
        first_bytes
    ):
        problem = (
            f"it is not text: {control_count} of its first {len(first_bytes)} bytes are control characters "
            f"({first_bytes.count(0)} of them NUL, as in UTF-16 or in binary files), expected UTF-8"
        )
        raise unsuitable(
            data.file,
            problem,
            "convert it, for example with `iconv -f UTF-16 -t UTF-8 OLD > NEW`",
        )


def check_marks(file: InputFile, head: bytes) -> None:
    """Raise UnsuitableFileError if a file is encoded in UTF-16 or UTF-32."""
    encoding = encoding_of(head[:HEAD_BYTES])
    if encoding is not None:
        problem = f"it begins with {head[:4].hex(' ')} and is encoded in {encoding}, expected UTF-8"
        raise unsuitable(
            file,
            problem,
            f"convert it, for example with `iconv -f {encoding} -t UTF-8 OLD > NEW`",
        )
