"""A file of JSON that is one object around the list of its records.

SQuAD has it: ``{"version": 1, "data": [...]}``.

The object is scanned once, at the speed of memory, for the beginnings of its members,
and for those that are lists of objects. One such list is the records. If there are
several, nobody knows which one is meant, and they are refused by name.
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
"""Function that returns that many of the next bytes of a file, decompressed; fewer
only at the end.
"""

_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_HEAD_BYTES: Final = 4096  # of a member: its key and the beginning of its value
# An object of more members is a record, or a dictionary of records, which has no list.
_MAX_MEMBERS: Final = 10_000
_SHOWN_KEYS: Final = 20
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
        keys: Keys of the members that are lists of objects, in the file's order.
        starts: Offset of the opening bracket of each of these lists in the decompressed
            file.
        fields: Keys of all members.
    """

    keys: tuple[str, ...]
    starts: tuple[int, ...]
    fields: tuple[str, ...]

    @property
    def is_record(self) -> bool:
        """Whether the object is a record itself, not an object around records."""
        return not self.keys or not _RECORD_FIELDS.isdisjoint(self.fields)


class _NotOneObjectError(Exception):
    """The file is something else than one object. Never leaves this module."""


class _Member(NamedTuple):
    """One member of an object.

    Attributes:
        start: Offset of the member in the decompressed file.
        head: Its first bytes, at most 4 KiB.
    """

    start: int
    head: bytes


def find_wrapper(read: Read) -> Wrapper | None:
    """Return the object that is the whole file; None for any other file.

    Args:
        read: Function that reads the file, from its beginning.

    Raises:
        DamagedFileError: Its compressed stream is broken.
    """
    keys: list[str] = []
    starts: list[int] = []
    fields: list[str] = []
    try:
        for member in _members(read):
            key_and_colon = _MEMBER.match(member.head)
            # A key with no colon behind it within 4 KiB is not the beginning of a
            # member.
            if key_and_colon is None or len(fields) == _MAX_MEMBERS:
                return None
            key = orjson.loads(key_and_colon[1])
            fields.append(key)
            if _LIST_OF_OBJECTS.match(member.head, key_and_colon.end()):
                keys.append(key)
                starts.append(member.start + key_and_colon.end())
    except (_NotOneObjectError, orjson.JSONDecodeError):
        return None
    return Wrapper(tuple(keys), tuple(starts), tuple(fields))


def start_of_records(file: InputFile, read: Read) -> int | None:
    """Return the offset of the list of records in one object around them.

    It is None for any other file.

    Args:
        file: The file, for messages.
        read: Function that reads the file, from its beginning.

    Raises:
        UnsuitableFileError: The object has several such lists.
    """
    wrapper = find_wrapper(read)
    if wrapper is None or wrapper.is_record:
        return None
    if len(wrapper.keys) > 1:
        shown_keys = ", ".join(repr(key) for key in wrapper.keys[:_SHOWN_KEYS])
        raise unsuitable(
            file,
            f"it is one object with several lists of objects ({shown_keys}), of which only one can hold the records",
            "write each list to a separate file",
        )
    return wrapper.starts[0]


def _members(read: Read) -> Iterator[_Member]:
    """Yield each member of the object that is the whole file.

    Raises:
        _NotOneObjectError: The file is something else.
    """
    scanner = BorderScanner()
    window = read(WINDOW_BYTES)
    visible_bytes = window.removeprefix(_BOM).lstrip(_SPACE)
    if not visible_bytes.startswith(b"{"):
        raise _NotOneObjectError
    window_offset = len(window) - len(visible_bytes) + 1  # of the window in the file
    window = visible_bytes[1:]
    member_head = b""  # of a member that began in an earlier window
    member_start = window_offset  # of the member
    while window:
        # Commas end members. The closing brace ends the last one, and the file.
        borders = scanner.feed(window)
        ends = borders.commas.tolist()
        if borders.close is not None:
            ends.append(borders.close)
        window_position = 0  # in the window
        for member_end in ends:
            head_end = min(member_end, window_position + _HEAD_BYTES)
            member_head += window[window_position:head_end]
            yield _Member(member_start, member_head)
            window_position = member_end + 1
            member_head = b""
            member_start = window_offset + window_position
        if borders.close is not None:
            is_object = window[borders.close : borders.close + 1] == b"}"
            if not is_object or not _is_only_space(read, window[window_position:]):
                raise _NotOneObjectError
            return
        # The last member of the window continues in the next one.
        missing_bytes = max(_HEAD_BYTES - len(member_head), 0)
        member_head += window[window_position : window_position + missing_bytes]
        window_offset += len(window)
        window = read(WINDOW_BYTES)
    raise _NotOneObjectError  # the file ends inside of the object


def _is_only_space(read: Read, rest: bytes) -> bool:
    """Say whether nothing but white space is left of a file.

    Args:
        read: Function that reads the next bytes of the file.
        rest: Bytes that were read already.
    """
    while rest:
        if rest.strip(_SPACE):
            return False
        rest = read(WINDOW_BYTES)
    return True
