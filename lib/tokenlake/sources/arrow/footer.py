"""Arrow IPC files as a whole: which batches they have, and how many rows stand before each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from tokenlake.sources.arrow.messages import (
    BATCH,
    FEATHER_V1,
    MAGIC,
    Block,
    FileBlocks,
    Message,
    file_blocks,
    parse_message,
    read_metadata,
)
from tokenlake.sources.columnar.access import Pread, reading
from tokenlake.sources.columnar.windows import Windows
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.opening import opened


def is_file(data: InputBytes) -> bool:
    """Say whether an input has the file format, not the stream format; its first bytes tell.

    Raises:
        DamagedFileError: it is empty, or an old Feather file.
    """
    if not data.file.size:
        raise damaged(data.file, "it is empty, not even an Arrow file of no rows")
    if data.file.compression:
        return False
    head = data.pread(len(MAGIC), 0)
    if head.startswith(FEATHER_V1):
        raise damaged(data.file, "it is a Feather file of version 1; write it anew with pyarrow.feather")
    return head == MAGIC


def batch_sizes(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> list[int] | None:
    """Return the bytes of every record batch of an Arrow file, None for a stream; only the footer is read."""
    with opened(file, storage_options) as data:
        return [block.size for block in read_footer(data).batches] if is_file(data) else None


def read_footer(data: InputBytes) -> FileBlocks:
    """Return what the footer of an Arrow file lists; DamagedFileError if it cannot be read."""
    with reading(data.file, "its footer"):
        return file_blocks(data.pread, data.file.size)


def batch_starts(data: InputBytes) -> list[int]:
    """Return the number of the first row of every record batch of an Arrow file, and behind them that of rows.

    Raises:
        DamagedFileError: the file is cut or corrupt.
    """
    pread = data.pread if data.file.is_local else Windows(data).pread
    blocks = read_footer(data).batches
    rows = [batch_message(data.file, pread, blocks, at).rows for at in range(len(blocks))]
    return list(accumulate(rows, initial=0))


def batch_message(file: InputFile, pread: Pread, blocks: list[Block], at: int) -> Message:
    """Return what the metadata of the batch numbered `at` says; DamagedFileError if it cannot be read."""
    with reading(file, f"record batch {at}"):
        message = parse_message(read_metadata(pread, blocks[at]))
        if message.kind != BATCH or message.body > blocks[at].body:
            raise ValueError(f"at byte {blocks[at].offset} there is no batch of {blocks[at].body} bytes")
        return message
