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

SPACE: Final = b" \t\r\n\xef\xbb\xbf"  # white space of JSON, and a byte order mark

_SHORT_LOOK: Final = 4096


def as_it_begins(file: InputFile, options: Mapping[str, Any]) -> InputFile:
    """Return a file of the format ``json`` as ``jsonl`` where it holds lines; one that cannot be read as it is.

    It holds lines where an object stands on the first one, as far as that is seen, unless this object is the whole file
    and is around a list of records.
    """
    if file.format != "json":
        return file
    head = b""
    try:
        with opened(file, options) as data:
            stream = ByteStream(data)
            while not head and (some := stream.read(_SHORT_LOOK)):
                if head := some.lstrip(SPACE):
                    head += stream.read(_SHORT_LOOK)
            is_lines = _begins_with_line(file, head) and not _is_around_records(head, data)
    except TokenlakeError:  # who reads it will say so
        return file
    return replace(file, format="jsonl") if is_lines else file


def _begins_with_line(file: InputFile, head: bytes) -> bool:
    """Return whether a file of JSON that begins with `head` (no space before it) seems to be one of lines."""
    if format_of(file.path) == "jsonl" and not head.startswith(b"["):
        return True
    line, newline, _ = head.partition(b"\n")
    if not line.startswith(b"{"):
        return False
    if not newline:
        return True
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _is_around_records(head: bytes, data: InputBytes) -> bool:
    """Return whether a file that begins with an object is that object alone, around a list of records."""
    _, _, following = head.partition(b"\n")
    if not head.startswith(b"{") or following.strip(SPACE):  # a second line
        return False
    wrapper = find_wrapper(ByteStream(data).read)
    return wrapper is not None and not wrapper.is_record
