"""Whether a file is text in UTF-8 at all, and asked for the one column that text has."""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.want import Want

_LOOK: Final = 64 << 10
_FEW: Final = 8  # control characters that may stand in any file: its records are judged one by one
_SHARE: Final = 20  # one in so many: UTF-16 has more, and so has anything compressed or compiled
_CONTROLS: Final = np.array([byte < 32 and byte not in b"\b\t\n\f\r\x1b" for byte in range(256)])
_CONVERT: Final = "expected UTF-8; convert it, for example with `iconv -f UTF-16 -t UTF-8`"


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
