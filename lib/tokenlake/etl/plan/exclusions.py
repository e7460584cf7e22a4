"""Takedowns: documents that a list (`exclude`) leaves out of a build.

A list has the columns ``file`` and ``position``. It names a file as the table
``documents`` does (the 64-bit identity, also as text or as the float that pandas makes
of it), or by its path, URL or name. An entry that matches no document is reported: a
takedown that removes nothing must not look like one that worked.

1. Read the entries of each list, and find the input file that each entry names.
2. Look into each named file, as far as its footer or single bytes say it, for positions
   at which no record begins.
3. Divide the other positions among the units. A position of a file of lines is a byte
   offset, so that a unit takes those in its byte range. Any other position is a row
   number, so that a unit takes those between the number of records before it and after
   it. Where these numbers are unknown, every unit of the file takes all positions.
4. After the build, compare the number of records that were left out with the number of
   entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import pyarrow as pa

from tokenlake.base.threads import in_order
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.splits import by_file
from tokenlake.runtime.store.account import Account

Positions: TypeAlias = dict[int, list[int]]
"""Positions that are left out, ascending, by file id."""

RowsOfPositions: TypeAlias = dict[int, int]
"""Row of the list that names a position, by position."""

_MOST_SHOWN: Final = 5
"""Number of entries that a message names one by one."""

_ADVICE: Final = (
    "`file` is a path, a URL, a name or the identity in `documents`; `position` is the row index, or in JSON Lines "
    "and lines of text the byte offset of the line. `tokenlake sql` on NAME/documents shows both"
)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One list, matched with the files of all sources that name it.

    Attributes:
        path: Path of the list.
        positions: Positions that are left out, by source.
        seen: Whether planning knows that at least one entry names a record, without
            reading the inputs.
        unmatched: A sentence for each entry that cannot match a document.
    """

    path: str
    positions: dict[str, Positions]
    seen: bool
    unmatched: tuple[str, ...]

    def notes(self) -> list[str]:
        """Return the plan's notes on entries that match nothing."""
        notes = [
            f"exclude {self.path!r}: {reason}"
            for reason in self.unmatched[:_MOST_SHOWN]
        ]
        hidden = len(self.unmatched) - _MOST_SHOWN
        if hidden > 0:
            notes.append(
                f"exclude {self.path!r}: {hidden} more entries match no document"
            )
        return notes

    def missed(self, accounts: Mapping[str, Account]) -> list[str]:
        """Return notes on entries that left out no document, according to a finished
        build.

        Args:
            accounts: Account of each source.

        Raises:
            ConfigError: The list left nothing out.
        """
        wanted = 0
        left_out = 0
        for source, positions in self.positions.items():
            left_out += accounts[source].filtered.get("excluded", 0)
            for positions_of_file in positions.values():
                wanted += len(positions_of_file)
        if left_out == wanted:
            return []
        if left_out == 0 and not self.seen:
            raise _matches_nothing(self.path, "no record has these positions")
        return [
            f"exclude {self.path!r}: {wanted - left_out} of {wanted} entries left out no document: no record begins "
            "there, or it was already left out or bad"
        ]


def match_exclusions(
    sources: Iterable[ResolvedSource],
    ranges: Mapping[str, Iterable[Iterable[FileRange]]],
    threads: int,
) -> tuple[Exclusion, ...]:
    """Read the lists of all sources.

    Args:
        sources: Sources of the build.
        ranges: Ranges of each source's units, by source name.
        threads: Number of threads that look into input files.

    Raises:
        ConfigError: A list cannot be read, names a file ambiguously, or matches
            nothing.
        InputChangedError: An input is not what was listed.
    """
    sources_of_lists: dict[str, list[ResolvedSource]] = defaultdict(list)
    for source in sources:
        if source.exclude is not None:
            sources_of_lists[source.exclude].append(source)

    exclusions: list[Exclusion] = []
    for path, sources_of_list in sources_of_lists.items():
        exclusion = _match_list(path, sources_of_list, ranges, threads)
        if exclusion.unmatched and not any(exclusion.positions.values()):
            raise _matches_nothing(path, "; ".join(exclusion.unmatched[:_MOST_SHOWN]))
        exclusions.append(exclusion)
    return tuple(exclusions)


def _matches_nothing(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"exclude {path!r} matches no document: {reason}. {_ADVICE}", file=path
    )


def of_unit(
    ranges: Iterable[FileRange], positions: Positions, passed: dict[int, int | None]
) -> Positions:
    """Return the positions that are left out of a unit: a takedown changes no other
    unit.

    Args:
        ranges: Ranges of the unit.
        positions: Positions that are left out of the source.
        passed: Number of records before these ranges, by file id; None where it is
            unknown. Updated, so that the next unit can be passed.
    """
    positions_of_unit: dict[int, set[int]] = {}
    for part in ranges:
        file_id = part.file.file_id
        wanted = positions.get(file_id)
        if wanted is None:
            continue
        # The range can hold positions from `first` on, and below `stop` where that is
        # not None.
        first = 0
        stop = None
        records_before = passed.get(file_id, 0)
        if part.file.is_lines:
            first = part.start
            if part.file.compression is None:
                stop = part.stop
        elif part.records is not None and records_before is not None:
            first = records_before
            stop = records_before + part.records

        passed[file_id] = None
        if part.records is not None:
            passed[file_id] = stop
        chosen = {
            position for position in wanted if stop is None or first <= position < stop
        }
        if chosen:
            positions_of_unit.setdefault(file_id, set()).update(chosen)
    return {
        file_id: sorted(positions_of_unit[file_id])
        for file_id in sorted(positions_of_unit)
    }


def _match_list(
    path: str,
    sources: Sequence[ResolvedSource],
    ranges: Mapping[str, Iterable[Iterable[FileRange]]],
    threads: int,
) -> Exclusion:
    """Return one list, matched with the files of its sources."""
    files_of_sources = {
        source.name: _NamedFiles(by_file(ranges[source.name])) for source in sources
    }
    entries, unmatched = _find_files(path, files_of_sources)

    has_known_record = False
    positions: dict[str, Positions] = {}
    for source in sources:
        named_files = entries[source.name]
        ranges_of_files = files_of_sources[source.name].ranges
        look = partial(_look_into_file, source)
        tasks = [
            (ranges_of_files[file_id], rows) for file_id, rows in named_files.items()
        ]
        findings = in_order(look, tasks, threads)
        positions[source.name] = {}
        for (file_id, rows), finding in zip(named_files.items(), findings, strict=True):
            for position, reason in finding.impossible.items():
                unmatched[rows[position]] = reason
            possible = sorted(rows.keys() - finding.impossible.keys())
            if possible:
                positions[source.name][file_id] = possible
                has_known_record |= finding.is_certain
    return Exclusion(
        path,
        positions,
        has_known_record,
        tuple(unmatched[row] for row in sorted(unmatched)),
    )


def _find_files(
    path: str, files_of_sources: Mapping[str, _NamedFiles]
) -> tuple[dict[str, dict[int, RowsOfPositions]], dict[int, str]]:
    """Find the file of each entry of a list.

    Returns:
        Positions of each file of each source, with the rows that name them; and a
        sentence for each row of the list that names no file or no number.
    """
    entries: dict[str, dict[int, RowsOfPositions]] = {
        name: defaultdict(dict) for name in files_of_sources
    }
    unmatched: dict[int, str] = {}
    for row, (file, written_position) in enumerate(_read_entries(path)):
        file_ids: dict[str, int] = {}
        for name, files in files_of_sources.items():
            file_id = files.find(file, path)
            if file_id is not None:
                file_ids[name] = file_id
        position = _whole_number(written_position)
        if position is None:
            unmatched[row] = (
                f"row {row}: position {written_position!r} is not a whole number"
            )
        elif not file_ids:
            unmatched[row] = f"row {row}: file {file!r} is not an input file"
        else:
            for name, file_id in file_ids.items():
                entries[name][file_id].setdefault(position, row)
    return entries, unmatched


@final
@dataclass(frozen=True, slots=True)
class _Finding:
    """Result of a look into one file.

    Attributes:
        impossible: A sentence for each position at which no record begins.
        is_certain: Whether a record begins at all other positions.
    """

    impossible: dict[int, str]
    is_certain: bool


def _look_into_file(
    source: ResolvedSource, ranges_and_rows: tuple[Sequence[FileRange], RowsOfPositions]
) -> _Finding:
    """Find positions at which a file has no record, without reading the whole file.

    Args:
        source: Source of the file.
        ranges_and_rows: All ranges of the file, and the rows of the list that name its
            positions.
    """
    ranges, rows = ranges_and_rows
    file = ranges[0].file
    if file.is_lines and file.compression is None:
        wrong = _positions_inside_lines(source, file, rows)
        reason = "no line begins at this byte offset; in a file of lines, `position` is not the row index"
        is_certain = True
    else:
        count = _record_count(ranges)
        is_certain = count is not None
        wrong = [
            position
            for position in rows
            if position < 0 or (count is not None and position >= count)
        ]
        reason = f"it has {count} records"
    if ranges[-1].rows is not None and file.is_lines:
        # The source has a limit of records, which may end before the position.
        is_certain = False
    impossible = {
        position: f"row {rows[position]}: {file.path} at {position}: {reason}"
        for position in wrong
    }
    return _Finding(impossible, is_certain)


def _positions_inside_lines(
    source: ResolvedSource, file: InputFile, positions: Iterable[int]
) -> list[int]:
    """Return the byte offsets at which no line of a file begins: those not after a
    line feed.
    """
    with opened(file, source.storage_options) as data:

        def begins_line(position: int) -> bool:
            if not 0 <= position < file.size:
                return False
            return position == 0 or data.pread(1, position - 1) == b"\n"

        return [position for position in positions if not begins_line(position)]


def _record_count(ranges: Sequence[FileRange]) -> int | None:
    """Return the number of records of a file, given all its ranges; None where it is
    unknown.
    """
    file = ranges[0].file
    if file.format == "text" and not file.is_lines:
        return 1
    total = 0
    for part in ranges:
        records = part.records
        if part.rows is not None:
            records = part.rows
        if records is None:
            return None
        total += records
    return total


def _read_entries(path: str) -> Iterable[tuple[Any, Any]]:
    """Return the file and position of each row of a list."""
    try:
        # Only a build with a list needs the Parquet reader here.
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["file", "position"])
        return zip(
            table["file"].to_pylist(), table["position"].to_pylist(), strict=True
        )
    except FileNotFoundError:
        raise ConfigError(f"exclude {path!r} does not exist", file=path) from None
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ConfigError(
            f"exclude {path!r} is not a Parquet file with the columns `file` and `position`: {error}. {_ADVICE}",
            file=path,
        ) from error


def _whole_number(value: Any) -> int | None:
    """Return a position or an identity as an integer, None for any other value.

    A column of numbers with missing values is one of floats in pandas.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if isinstance(value, str) or number == value:
        return number
    return None


@final
class _NamedFiles:
    """The files of a source, found by the names that people use.

    Args:
        files: Ranges of each file.

    Attributes:
        ranges: Ranges of each file, by file id.
    """

    def __init__(self, files: Iterable[Sequence[FileRange]]) -> None:
        self.ranges: dict[int, Sequence[FileRange]] = {}
        self._files_of_name: dict[str, list[InputFile]] = defaultdict(list)
        self._ids_of_floats: dict[float, int] = {}
        for ranges in files:
            file = ranges[0].file
            self.ranges[file.file_id] = ranges
            self._files_of_name[file.url.rpartition("/")[2]].append(file)
            self._ids_of_floats[float(file.file_id)] = file.file_id

    def find(self, value: Any, path: str) -> int | None:
        """Return the id of the file that an entry names, None where it is no input.

        Args:
            value: Cell of the column ``file``.
            path: Path of the list, for messages.

        Raises:
            ConfigError: The entry names several files.
        """
        if isinstance(value, str):
            file_id = self._find_by_name(value, path)
            if file_id is not None:
                return file_id
        if isinstance(value, float):
            return self._ids_of_floats.get(value)
        number = _whole_number(value)
        if number is None:
            return None
        if number >= 1 << 63:
            # The identity was written as an unsigned number.
            number -= 1 << 64
        if number in self.ranges:
            return number
        return None

    def _find_by_name(self, value: str, path: str) -> int | None:
        """Return the id of the file with this path or URL, else of the one whose URL
        ends with it.
        """
        text = value.removeprefix("file://").removeprefix("./")
        same_name = self._files_of_name.get(text.rpartition("/")[2], ())
        urls = {text, str(Path(text).absolute())}
        matches = [file for file in same_name if file.url in urls or file.path == text]
        if not matches:
            end = f"/{text.removeprefix('/')}"
            matches = [file for file in same_name if file.url.endswith(end)]
        if len(matches) > 1:
            names = ", ".join(file.url for file in matches[:_MOST_SHOWN])
            raise ConfigError(
                f"exclude {path!r}: file {value!r} means {names}; write a longer part of the path",
                file=path,
            )
        if not matches:
            return None
        return matches[0].file_id
