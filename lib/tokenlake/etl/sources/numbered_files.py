"""Numbered files of which some are missing, such as ``part-00003-of-00010.jsonl``.

A name that states its number and the number of all files says when a download or a copy
is incomplete:

1. Split each name into the text before the number, the number, the count and the text
   after it. Hashes that some writers append to each file are ignored.
2. Files whose names are otherwise equal make a set. A set may be spread over folders:
   its folders are taken together if no number is in two of them. Otherwise each folder
   has a set of its own.
3. Numbers begin at 1 if the count itself is among them, and otherwise at 0.
4. The missing numbers are the others of the count.

Example: ``part-00000-of-00003``, ``part-00002-of-00003`` and ``part-1999`` make one
set of 2 of 3 files. 3 is not among them, so that number 1 is missing. ``part-1999``
states no count, and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Final, TypeAlias, final

_NUMBERED: Final = re.compile(
    r"(?P<before>(?:.*\D)?)(?P<number>\d{1,9})(?P<of>[-_.]?of[-_.]?)(?P<count>\d{1,9})(?!\d)(?P<after>.*)",
    re.IGNORECASE,
)
_HASH: Final = re.compile(r"^-[0-9a-f]{8,64}(?=\.|$)")
_WRITTEN_COUNT: Final = re.compile(r"of[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)

_YEARS: Final = range(1900, 2101)

_MOST_NAMED: Final = 3
"""Number of missing files that a note names."""
_MOST_NOTES: Final = 5
"""Number of sets with missing files that have a note each."""

Numbers: TypeAlias = set[int]
"""Numbers of the files of a set that are there."""


@final
@dataclass(frozen=True, slots=True)
class _Form:
    """The parts of a name that all files of a set share.

    Attributes:
        before: Text before the number, without the folder.
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
        return f"{self.before}{number:0{width}d}{self.of}{self.count}"


def missing_numbers(paths: Iterable[str], entries: Sequence[str]) -> list[str]:
    """Return a note for each set of numbered files of which some are missing, for the
    first ones of many sets.

    Args:
        paths: Paths of all files of a source, with ``/``.
        entries: Its `data_files` as they were written. Files whose count an entry
            writes out without ``*`` were chosen by the user, and are not missing.
    """
    chosen_counts = _counts_written_out(entries)
    folders_of_forms: dict[_Form, dict[str, Numbers]] = {}
    widths: dict[_Form, int] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        match = _NUMBERED.fullmatch(name)
        if match is None or int(match["count"]) in chosen_counts:
            continue
        after = _HASH.sub("", match["after"])
        form = _Form(match["before"], match["of"], match["count"], after)
        folders = folders_of_forms.setdefault(form, {})
        folders.setdefault(folder, set()).add(int(match["number"]))
        width = len(match["number"])
        widths[form] = min(width, widths.get(form, width))

    notes: list[str] = []
    for form, folders in folders_of_forms.items():
        for folder, numbers in _sets_of(folders).items():
            if _is_series(form, numbers, widths[form]):
                notes += _note_on(form, folder, numbers, widths[form])
    hidden = len(notes) - _MOST_NOTES
    if hidden > 0:
        notes[_MOST_NOTES:] = [f"{hidden:,} more sets of numbered files are incomplete"]
    return notes


def _counts_written_out(entries: Sequence[str]) -> set[int]:
    """Return the counts that entries write out in names without ``*``."""
    counts: set[int] = set()
    for entry in entries:
        name = PurePosixPath(entry).name
        match = _WRITTEN_COUNT.search(name)
        if match is not None and "*" not in name:
            counts.add(int(match[1]))
    return counts


def _sets_of(folders: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Return the sets that folders with equal names hold, by folder; one set that is
    spread over all of them is under "" (step 2).
    """
    together: Numbers = set().union(*folders.values())
    if len(together) == sum(len(numbers) for numbers in folders.values()):
        return {"": together}
    return dict(folders)


def _is_series(form: _Form, numbers: Numbers, width: int) -> bool:
    """Return whether numbers are probably those of files: a single unpadded number, or
    several of a year, may be something else, such as the month 12-of-2024.
    """
    is_padded = width == len(form.count) > 1
    has_several = len(numbers) > 1 and int(form.count) not in _YEARS
    return is_padded or has_several


def _note_on(form: _Form, folder: str, numbers: Numbers, width: int) -> Iterator[str]:
    """Yield the note on a set; nothing if all of its files are there."""
    count = int(form.count)
    begin = 0
    if count in numbers:
        begin = 1
    expected = range(begin, begin + count)
    is_in_range = min(numbers) in expected and max(numbers) in expected
    if len(numbers) >= count or not is_in_range:
        return
    missing = (number for number in expected if number not in numbers)
    missing_count = count - len(numbers)
    names = [form.name_of(number, width) for number in islice(missing, _MOST_NAMED)]
    if missing_count == 1 and 0 not in numbers and count not in numbers:
        # Numbers from 1 to count - 1: the files may begin at 0 or at 1.
        names = [f"{names[0]} or {form.name_of(count, width)}"]
    listed = ", ".join(names)
    hidden = missing_count - len(names)
    if hidden > 0:
        listed += f" and {hidden:,} more"
    place = f" in {folder}" if folder else ""
    verb = "is" if missing_count == 1 else "are"
    yield f"{len(numbers):,} of {count:,} numbered files{place}: {listed} {verb} missing"
