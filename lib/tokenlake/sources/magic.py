"""What the first bytes of a file say it is, where that is not what its name says."""

from __future__ import annotations

import re
from typing import Final

from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged

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
    "Parquet": "name it with .parquet at the end",
    "Arrow IPC": "name it with .arrow at the end",
}
_TEXTUAL: Final = frozenset({"jsonl", "json", "csv", "tsv", "text"})


def kind_of(head: bytes) -> str | None:
    """Return the binary format that begins with `head` (16 bytes), None for any other."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(head)), None)


def check_plain(data: InputBytes) -> None:
    """Raise DamagedFileError if a file that is named as uncompressed text is something else."""
    if data.file.compression is None and data.file.format in _TEXTUAL:
        kind = kind_of(data.pread(_HEAD, 0))
        if kind:
            raise damaged(
                data.file,
                f"its first bytes are those of {kind}, its name says {_named(data.file)}; {_mend(kind)}",
            )


def check_compressed(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError unless `head` begins a stream of the compression that the extension says."""
    kind, named = kind_of(head), file.compression
    if not head:
        raise damaged(file, f"it is empty, not even an empty {named} stream")
    if kind is None:
        raise damaged(
            file,
            f"it is no {named} stream, though its name says so; name it without that extension if it is plain",
        )
    if kind != named:
        raise damaged(file, f"its first bytes are those of {kind}, its name says {named}; {_mend(kind)}")


def check_content(file: InputFile, head: bytes) -> None:
    """Raise DamagedFileError if what was decompressed is compressed once more; `head`: its first bytes."""
    kind = kind_of(head)
    if kind and file.format in _TEXTUAL:
        raise damaged(
            file,
            f"what its {file.compression} stream holds is {kind}, its name says {_named(file)}; decompress it",
        )


def _named(file: InputFile) -> str:
    return f"uncompressed {file.format}" if file.compression is None else file.format


def _mend(kind: str) -> str:
    return _RENAME.get(kind, f"{kind} is not read; decompress it, or compress it with gzip or zstd")
