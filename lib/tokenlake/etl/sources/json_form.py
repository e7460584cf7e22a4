"""Whether a file with the name of a JSON document holds JSON Lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from tokenlake.errors import TokenlakeError
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.formats import format_of
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.json_wrapper import find_wrapper
from tokenlake.etl.sources.opening import opened

SPACE: Final = b" \t\r\n\xef\xbb\xbf"
"""White space of JSON, and a byte order mark."""

# Most first lines end within, so that a file is seldom read further to find its form.
_HEAD_BYTES: Final = 4096


def as_it_begins(file: InputFile, options: Mapping[str, Any]) -> InputFile:
    """Return a file of the format ``json`` as ``jsonl`` if it holds lines.

    Any other file is returned as it is.

    It holds lines if an object stands on the first one, as far as that is seen, unless
    this object is the whole file and is around a list of records. A file that cannot be
    read is returned as it is: its reader raises the error.

    Args:
        file: The file.
        options: Options of the file system that a URL is on.
    """
    if file.format != "json":
        return file
    try:
        with opened(file, options) as data:
            first_bytes = _head(ByteStream(data))
            is_lines = _begins_with_line(file, first_bytes)
            if is_lines and _is_around_records(first_bytes, data):
                is_lines = False
    except TokenlakeError:
        return file
    return replace(file, format="jsonl") if is_lines else file


def _head(stream: ByteStream) -> bytes:
    """Return the first bytes of a file behind its white space, b"" without any."""
    while chunk := stream.read(_HEAD_BYTES):
        visible_bytes = chunk.lstrip(SPACE)
        if visible_bytes:
            return visible_bytes + stream.read(_HEAD_BYTES)
    return b""


def _begins_with_line(file: InputFile, head: bytes) -> bool:
    """Say whether a file of JSON seems to consist of lines.

    Args:
        file: The file.
        head: Its first bytes, without white space in front.
    """
    # The extension decides for lines, except that an array is never one.
    if format_of(file.path) == "jsonl" and not head.startswith(b"["):
        return True
    line, newline, _ = head.partition(b"\n")
    if not line.startswith(b"{"):
        return False
    # The only line is longer than the bytes that were read, or the whole file.
    if not newline:
        return True
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _is_around_records(head: bytes, data: InputBytes) -> bool:
    """Say whether a file is one object around a list of records.

    Args:
        head: First bytes of the file, without white space in front.
        data: The open file.
    """
    # More than one line: the object on the first one is not the whole file.
    _, _, second_line = head.partition(b"\n")
    if not head.startswith(b"{") or second_line.strip(SPACE):
        return False
    wrapper = find_wrapper(ByteStream(data).read)
    return wrapper is not None and not wrapper.is_record
