"""Binary formats, recognized by first bytes of a file and checked against its name."""

from __future__ import annotations

import re
from typing import Final

from tokenlake.etl.sources.contents import HEAD_BYTES, check_records
from tokenlake.etl.sources.formats import COMPRESSION_ENDINGS
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.inputs import InputFile

SIGNATURE_BYTES: Final = 16
"""Number of bytes by which a binary format is recognized."""
# Each pattern is as long as the magic bytes of its format allow: text must not look
# like a compressed stream by chance.
_SIGNATURES: Final[dict[str, re.Pattern[bytes]]] = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "bzip2": re.compile(
        rb"BZh[1-9](?:\x31\x41\x59\x26\x53\x59|\x17\x72\x45\x38\x50\x90)"
    ),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zip": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
    "Parquet": re.compile(rb"PAR1\x15"),
    "Arrow IPC": re.compile(rb"ARROW1\x00\x00|\xff\xff\xff\xff[\x00-\xff]{2}\x00\x00"),
}
_ENDINGS: Final[dict[str, str]] = {
    **COMPRESSION_ENDINGS,
    "Parquet": ".parquet",
    "Arrow IPC": ".arrow",
}


def kind_of(head: bytes) -> str | None:
    """Return the binary format that begins with `head` (16 bytes), None for any other."""
    for format_name, signature in _SIGNATURES.items():
        if signature.match(head):
            return format_name
    return None


def check_plain(data: InputBytes) -> None:
    """Check that a file named as uncompressed text is text.

    Raises:
        UnsuitableFileError: Its first bytes are those of something else.
    """
    file = data.file
    if file.compression is not None or not file.facts.textual:
        return
    first_bytes = data.pread(HEAD_BYTES, 0)
    binary_format = kind_of(first_bytes)
    if binary_format is not None:
        raise _misnamed(file, binary_format, f"uncompressed {file.format}")
    check_records(file, first_bytes)


def check_compressed(file: InputFile, head: bytes) -> None:
    """Check that a file begins with a stream of the compression in its name.

    Raises:
        DamagedFileError: The file is empty.
        UnsuitableFileError: It begins with something else.
    """
    binary_format = kind_of(head)
    named_compression = str(file.compression)
    if not head:
        raise damaged(
            file, f"it is empty, not even an empty {named_compression} stream"
        )
    if binary_format is None:
        problem = f"it is no {named_compression} stream, although its name indicates it"
        raise unsuitable(file, problem, "remove that extension if it is not compressed")
    if binary_format != named_compression:
        raise _misnamed(file, binary_format, named_compression)


def _misnamed(file: InputFile, kind: str, named: str) -> Exception:
    """Return the error for a file of one binary format under the name of another one.

    Args:
        file: The file.
        kind: Format of its first bytes.
        named: Format that its name says.
    """
    advice = f"decompress it, or compress it with gzip, zstd, lz4, bzip2 or xz: {kind} is not read"
    if kind in _ENDINGS:
        advice = f"name it with {_ENDINGS[kind]} at the end"
    return unsuitable(
        file, f"its first bytes are those of {kind}, its name says {named}", advice
    )
