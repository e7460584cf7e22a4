"""Numbered files of which some are missing, such as ``part-00003-of-00010.jsonl``.

A name that states its number and the number of all files says when a download or a copy
is incomplete. Files belong together if their folder, the rest of their names and the
stated count are equal:

1. Split each name into the text before the number, the number, the count and the text
   after it. Hashes that some writers append to each file are ignored.
2. Numbers begin at 1 if the count itself is among them, and at 0 if 0 is.
3. The missing numbers are the others below the count.

Example: ``part-00000-of-00003``, ``part-00002-of-00003`` and ``part-1999`` make one
group of 2 of 3 files. 0 is among them, so that number 1 is missing. ``part-1999`` states
no count, and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Final, final

_NUMBERED: Final = re.compile(
    r"(?P<before>(?:.*\D)?)(?P<number>\d{1,9})(?P<of>[-_.]?of[-_.]?)(?P<count>\d{1,9})(?!\d)(?P<after>.*)",
    re.IGNORECASE,
)
_HASH: Final = re.compile(r"^-[0-9a-f]{8,64}(?=\.|$)")
_WRITTEN_COUNT: Final = re.compile(r"of[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)

_YEARS: Final = range(1900, 2101)

_MOST_NAMED: Final = 3
"""Number of missing files that a note names."""


@final
@dataclass(frozen=True, slots=True)
class _Group:
    """Names that differ in their number alone.

    Attributes:
        before: Text before the number, the folder included.
        of: Text between the number and the count.
        count: Count as the names state it, with its zeros.
        after: Text after the count, without a hash.
    """

    before: str
    of: str
    count: str
    after: str

    def name_of(self, number: int, width: int) -> str:
        """Return the name of a file, without its folder and its ending.

        Args:
            number: Number of the file.
            width: Number of digits.
        """
        before = self.before.rpartition("/")[2]
        return f"{before}{number:0{width}d}{self.of}{self.count}"


def missing_numbers(paths: Iterable[str], entries: Sequence[str]) -> Iterator[str]:
    """Yield a note for each group of numbered files of which some are missing.

    Args:
        paths: Paths of all files of a source, with ``/``.
        entries: Its `data_files` as they were written. Files whose count an entry
            writes out without ``*`` were chosen by the user, and are not missing.
    """
    chosen_counts = _counts_written_out(entries)
    numbers_of_groups: dict[_Group, set[int]] = {}
    widths: dict[_Group, int] = {}
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        if match is None or int(match["count"]) in chosen_counts:
            continue
        after = _HASH.sub("", match["after"])
        group = _Group(match["before"], match["of"], match["count"], after)
        numbers_of_groups.setdefault(group, set()).add(int(match["number"]))
        width = len(match["number"])
        widths[group] = min(width, widths.get(group, width))

    for group, numbers in numbers_of_groups.items():
        # A single unpadded number, or several of a year, may be something else:
        # 1-of-2024 and 12-of-2024 are months.
        is_padded = widths[group] == len(group.count) > 1
        is_series = len(numbers) > 1 and int(group.count) not in _YEARS
        if is_padded or is_series:
            yield from _note_on(group, numbers, widths[group])


def _counts_written_out(entries: Sequence[str]) -> set[int]:
    """Return the counts that entries write out in names without ``*``."""
    counts: set[int] = set()
    for entry in entries:
        name = PurePosixPath(entry).name
        match = _WRITTEN_COUNT.search(name)
        if match is not None and "*" not in name:
            counts.add(int(match[1]))
    return counts


def _note_on(group: _Group, numbers: set[int], width: int) -> Iterator[str]:
    """Yield the note on a group; nothing if all of its files are there."""
    count = int(group.count)
    begin = 0
    if count in numbers:
        begin = 1
    expected = range(begin, begin + count)
    is_in_range = min(numbers) in expected and max(numbers) in expected
    if len(numbers) >= count or not is_in_range:
        return
    missing = (number for number in expected if number not in numbers)
    missing_count = count - len(numbers)
    names = [group.name_of(number, width) for number in islice(missing, _MOST_NAMED)]
    if missing_count == 1 and 0 not in numbers and count not in numbers:
        # Numbers from 1 to count - 1: the files may begin at 0 or at 1.
        names = [f"{names[0]} or {group.name_of(count, width)}"]
    hidden = missing_count - len(names)
    listed = ", ".join(names)
    if hidden > 0:
        listed += f" and {hidden:,} more"
    verb = "is" if missing_count == 1 else "are"
    yield f"{len(numbers):,} of {count:,} numbered files: {listed} {verb} missing"
