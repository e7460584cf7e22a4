"""Binary formats, recognized by the first bytes of a file, and checked against its
name.
"""

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
    """Return the binary format that begins with `head` (16 bytes), None for any
    other.
    """
    for name, signature in _SIGNATURES.items():
        if signature.match(head):
            return name
    return None


def check_plain(data: InputBytes) -> None:
    """Raise UnsuitableFileError if a file that is named as uncompressed text is
    something else.
    """
    file = data.file
    if file.compression is not None or not file.facts.textual:
        return
    head = data.pread(HEAD_BYTES, 0)
    kind = kind_of(head)
    if kind is not None:
        raise _misnamed(file, kind, f"uncompressed {file.format}")
    check_records(file, head)


def check_compressed(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError unless `head` begins a stream of the compression that
    the extension says.
    """
    kind = kind_of(head)
    named = str(file.compression)
    if not head:
        raise damaged(file, f"it is empty, not even an empty {named} stream")
    if kind is None:
        problem = f"it is no {named} stream, although its name indicates it"
        raise unsuitable(file, problem, "remove that extension if it is not compressed")
    if kind != named:
        raise _misnamed(file, kind, named)


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
