"""A file of JSON that is one object around the list of its records, as SQuAD has it: ``{"version": 1, "data": [...]}``.

The object is looked through once, at the speed of memory: where its members begin, and which of them are lists of
objects. One such list is the records. Of several nobody knows which is meant, so that they are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import orjson

from tokenlake.etl.sources.input_errors import unsuitable
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.json_borders import WINDOW_BYTES, BorderScanner

Read = Callable[[int], bytes]
"""Returns so many of the next bytes of a file, decompressed; fewer only at the end."""

_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_HEAD_BYTES: Final = 4096  # of a member: its key and the beginning of its value
_MOST_MEMBERS: Final = 10_000
_MEMBER: Final = re.compile(rb'\s*("(?:[^"\\]|\\.)*+")\s*:\s*', re.DOTALL)
_LIST_OF_OBJECTS: Final = re.compile(rb"\[\s*\{")
_RECORD_FIELDS: Final = frozenset(
    {"messages", "conversations", "conversation", "dialog", "dialogue", "turns"}
    | {"text", "content", "prompt", "instruction", "question", "chosen"}
)
"""Fields of a record: an object with one of them is a record itself."""


class Wrapper(NamedTuple):
    """An object around records.

    Attributes:
        keys: of the members that are lists of objects, in the file's order.
        starts: offset of the opening bracket of each list in the decompressed file.
        fields: keys of all members.
    """

    keys: tuple[str, ...]
    starts: tuple[int, ...]
    fields: tuple[str, ...]

    @property
    def is_record(self) -> bool:
        """Whether the object is rather a record than around records."""
        return not self.keys or not _RECORD_FIELDS.isdisjoint(self.fields)


def find_wrapper(read: Read) -> Wrapper | None:
    """Return what a file holds that is one object and nothing else; None for any other file.

    Args:
        read: of the file, from its beginning.

    Raises:
        DamagedFileError: its compressed stream is broken.
    """
    keys: list[str] = []
    starts: list[int] = []
    fields: list[str] = []
    for start, head in _members(read):
        if start < 0 or len(fields) == _MOST_MEMBERS:
            return None
        member = _MEMBER.match(head)
        if member is None:
            return None
        try:
            key = orjson.loads(member[1])
        except orjson.JSONDecodeError:
            return None
        fields.append(key)
        if _LIST_OF_OBJECTS.match(head, member.end()):
            keys.append(key)
            starts.append(start + member.end())
    return Wrapper(tuple(keys), tuple(starts), tuple(fields)) if fields else None


def _members(read: Read) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the first bytes of each member of the object that is the whole file.

    The last pair is (-1, b"") where the file is something else.
    """
    scanner = BorderScanner()
    window = read(WINDOW_BYTES)
    begin = window.removeprefix(_BOM).lstrip(_SPACE)
    if not begin.startswith(b"{"):
        yield -1, b""
        return
    offset = len(window) - len(begin) + 1
    window, head, start = begin[1:], b"", offset
    while window:
        borders = scanner.feed(window)
        ends = borders.commas.tolist()
        if borders.close is not None:
            ends.append(borders.close)
        at = 0
        for end in ends:
            yield start, head + window[at : min(end, at + _HEAD_BYTES)]
            at, head, start = end + 1, b"", offset + end + 1
        if borders.close is not None:
            is_object = window[borders.close : borders.close + 1] == b"}"
            if not is_object or not _ends(read, window[at:]):
                yield -1, b""
            return
        head += window[at : at + max(_HEAD_BYTES - len(head), 0)]
        offset += len(window)
        window = read(WINDOW_BYTES)
    yield -1, b""  # the file ends inside of it


def _ends(read: Read, rest: bytes) -> bool:
    """Return whether nothing but space is left of a file."""
    while rest:
        if rest.strip(_SPACE):
            return False
        rest = read(WINDOW_BYTES)
    return True


def start_of_records(file: InputFile, read: Read) -> int | None:
    """Return the offset of the list of records in a file that is one object around them; None for another file.

    Args:
        read: of the file, from its beginning.

    Raises:
        UnsuitableFileError: there are several such lists.
    """
    wrapper = find_wrapper(read)
    if wrapper is None or wrapper.is_record:
        return None
    if len(wrapper.keys) > 1:
        shown = ", ".join(map(repr, wrapper.keys[:20]))
        told = f"it is one object with several lists of objects ({shown}), and only one can be the records"
        raise unsuitable(file, told, "write each list to a file of its own")
    return wrapper.starts[0]
