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

from tokenlake.base.fingerprint import fingerprint
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
    """List of documents, matched with the files of all sources that name it.

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
        notes: list[str] = []
        for reason in self.unmatched[:_MOST_SHOWN]:
            notes.append(f"exclude {self.path!r}: {reason}")
        hidden_count = len(self.unmatched) - _MOST_SHOWN
        if hidden_count > 0:
            notes.append(
                f"exclude {self.path!r}: {hidden_count} more entries match no document"
            )
        return notes

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the manifest's record of the list for each source that names it.

        ``entries`` is the number of positions that may hold a document, and ``sha256``
        identifies them. The path of the list is left out: it belongs to a machine.
        """
        records: dict[str, dict[str, Any]] = {}
        for source, positions in self.positions.items():
            entry_count = 0
            positions_by_file: dict[str, list[int]] = {}
            for file_id, positions_of_file in positions.items():
                entry_count += len(positions_of_file)
                positions_by_file[str(file_id)] = positions_of_file
            records[source] = {
                "entries": entry_count,
                "sha256": fingerprint(positions_by_file),
            }
        return records

    def missed(self, accounts: Mapping[str, Account]) -> list[str]:
        """Return notes on entries that left out no document of a finished build.

        Args:
            accounts: Account of each source.

        Raises:
            ConfigError: The list left nothing out.
        """
        # The audit counts the records that were left out. It does not say which.
        entry_count = 0
        left_out = 0
        for source, positions in self.positions.items():
            left_out += accounts[source].filtered.get("excluded", 0)
            for positions_of_file in positions.values():
                entry_count += len(positions_of_file)
        if left_out == entry_count:
            return []
        if left_out == 0 and not self.seen:
            raise _matches_nothing(self.path, "no record has these positions")
        return [
            f"exclude {self.path!r}: {entry_count - left_out} of {entry_count} entries left out no document: no "
            "record begins there, or it was already left out or bad"
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
    # 1. A list that several sources name is read once.
    sources_of_lists: dict[str, list[ResolvedSource]] = defaultdict(list)
    for source in sources:
        if source.exclude is not None:
            sources_of_lists[source.exclude].append(source)

    # 2. A list must match something.
    exclusions: list[Exclusion] = []
    for path, sources_of_list in sources_of_lists.items():
        exclusion = _match_list(path, sources_of_list, ranges, threads)
        if exclusion.unmatched and not any(exclusion.positions.values()):
            raise _matches_nothing(path, "; ".join(exclusion.unmatched[:_MOST_SHOWN]))
        exclusions.append(exclusion)
    return tuple(exclusions)


def _matches_nothing(path: str, reason: str) -> ConfigError:
    """Return the error for a list that leaves nothing out."""
    return ConfigError(
        f"exclude {path!r} matches no document: {reason}. {_ADVICE}", file=path
    )


def of_unit(
    ranges: Iterable[FileRange], positions: Positions, passed: dict[int, int | None]
) -> Positions:
    """Return the positions that are left out of a unit.

    A takedown then changes no other unit.

    Args:
        ranges: Ranges of the unit.
        positions: Positions that are left out of the source.
        passed: Number of records before these ranges, by file id; None if it is
            unknown. It is updated for the next unit.
    """
    positions_of_unit: dict[int, set[int]] = {}
    for file_range in ranges:
        file_id = file_range.file.file_id
        excluded_positions = positions.get(file_id)
        if excluded_positions is None:
            continue
        # 1. The positions that the range can hold: from the first one on, and below the
        #    end if that is known.
        first_position = 0
        end_position = None
        records_before = passed.get(file_id, 0)
        if file_range.file.is_lines:
            first_position = file_range.start
            if file_range.file.compression is None:
                end_position = file_range.stop
        elif file_range.records is not None and records_before is not None:
            first_position = records_before
            end_position = records_before + file_range.records

        # 2. The number of records before the next range.
        passed[file_id] = None
        if file_range.records is not None:
            passed[file_id] = end_position
        # 3. The positions of the list among them. Two ranges of a file may both hold a
        #    position of which the number of records says nothing.
        for position in excluded_positions:
            is_in_range = end_position is None
            if end_position is not None:
                is_in_range = first_position <= position < end_position
            if is_in_range:
                positions_of_unit.setdefault(file_id, set()).add(position)
    ids = sorted(positions_of_unit)
    return {file_id: sorted(positions_of_unit[file_id]) for file_id in ids}


def _match_list(
    path: str,
    sources: Sequence[ResolvedSource],
    ranges: Mapping[str, Iterable[Iterable[FileRange]]],
    threads: int,
) -> Exclusion:
    """Return one list, matched with the files of its sources."""
    # 1. The file of each entry.
    files_of_sources: dict[str, _NamedFiles] = {}
    for source in sources:
        files_of_sources[source.name] = _NamedFiles(by_file(ranges[source.name]))
    entries, unmatched = _find_files(path, files_of_sources)

    # 2. Without the positions at which no record begins.
    has_known_record = False
    positions: dict[str, Positions] = {}
    for source in sources:
        named_files = entries[source.name]
        ranges_of_files = files_of_sources[source.name].ranges
        look = partial(_look_into_file, source)
        tasks: list[tuple[Sequence[FileRange], RowsOfPositions]] = []
        for file_id, rows in named_files.items():
            tasks.append((ranges_of_files[file_id], rows))
        findings = in_order(look, tasks, threads)
        positions[source.name] = {}
        for (file_id, rows), finding in zip(named_files.items(), findings, strict=True):
            for position, reason in finding.impossible.items():
                unmatched[rows[position]] = reason
            possible = sorted(rows.keys() - finding.impossible.keys())
            if possible:
                positions[source.name][file_id] = possible
                has_known_record |= finding.is_certain
    reasons = tuple(unmatched[row] for row in sorted(unmatched))
    return Exclusion(path, positions, has_known_record, reasons)


def _find_files(
    path: str, files_of_sources: Mapping[str, _NamedFiles]
) -> tuple[dict[str, dict[int, RowsOfPositions]], dict[int, str]]:
    """Find the file of each entry of a list.

    Returns:
        Positions of each file of each source, with the rows that name them; and a
        sentence for each row of the list that names no file or no number.
    """
    entries: dict[str, dict[int, RowsOfPositions]] = {}
    for source in files_of_sources:
        entries[source] = defaultdict(dict)
    unmatched: dict[int, str] = {}
    for row, (file, written_position) in enumerate(_read_entries(path)):
        # Several sources may read one file.
        file_ids: dict[str, int] = {}
        for source, files in files_of_sources.items():
            file_id = files.find(file, path)
            if file_id is not None:
                file_ids[source] = file_id
        position = _whole_number(written_position)
        if position is None:
            unmatched[row] = (
                f"row {row}: position {written_position!r} is not a whole number"
            )
        elif not file_ids:
            unmatched[row] = f"row {row}: file {file!r} is not an input file"
        else:
            # Of two rows with one entry, the first is named in messages.
            for source, file_id in file_ids.items():
                entries[source][file_id].setdefault(position, row)
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
    # 1. Positions at which no record begins. In compressed lines any may be one.
    ranges, rows = ranges_and_rows
    file = ranges[0].file
    if file.is_lines and file.compression is None:
        wrong_positions = _positions_inside_lines(source, file, rows)
        reason = "no line begins at this byte offset; in a file of lines, `position` is not the row index"
        is_certain = True
    else:
        record_count = _record_count(ranges)
        is_certain = record_count is not None
        wrong_positions: list[int] = []
        for position in rows:
            is_too_large = record_count is not None and position >= record_count
            if position < 0 or is_too_large:
                wrong_positions.append(position)
        reason = f"it has {record_count} records"
    if ranges[-1].rows is not None and file.is_lines:
        # The source has a limit of records, which may end before the position.
        is_certain = False

    # 2. A sentence for each.
    impossible: dict[int, str] = {}
    for position in wrong_positions:
        row = rows[position]
        impossible[position] = f"row {row}: {file.path} at {position}: {reason}"
    return _Finding(impossible, is_certain)


def _positions_inside_lines(
    source: ResolvedSource, file: InputFile, positions: Iterable[int]
) -> list[int]:
    """Return the byte offsets that do not follow a line feed: no line begins there."""
    with opened(file, source.storage_options) as content:

        def begins_line(position: int) -> bool:
            if not 0 <= position < file.size:
                return False
            return position == 0 or content.pread(1, position - 1) == b"\n"

        return [position for position in positions if not begins_line(position)]


def _record_count(ranges: Sequence[FileRange]) -> int | None:
    """Return the number of records of a file, None if it is unknown.

    Args:
        ranges: All ranges of the file.
    """
    file = ranges[0].file
    if file.format == "text" and not file.is_lines:
        return 1
    record_count = 0
    for file_range in ranges:
        records = file_range.records
        if file_range.rows is not None:
            records = file_range.rows
        if records is None:
            return None
        record_count += records
    return record_count


def _read_entries(path: str) -> Iterable[tuple[Any, Any]]:
    """Return the file and position of each row of a list."""
    try:
        # Only a build with a list needs the Parquet reader here.
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["file", "position"])
        files = table["file"].to_pylist()
        positions = table["position"].to_pylist()
        return zip(files, positions, strict=True)
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
    """Files of a source, by the names that people use.

    Args:
        files: Ranges of each file.

    Attributes:
        ranges: Ranges of each file, by file id.
    """

    def __init__(self, files: Iterable[Sequence[FileRange]]) -> None:
        self.ranges: dict[int, Sequence[FileRange]] = {}
        self._files_of_name: dict[str, list[InputFile]] = defaultdict(list)
        self._ids_of_floats: dict[float, int] = {}
        # pandas makes floats of a column of ids with missing values. A float has 53
        # bits of a 64-bit id, which is looked up by the float that it becomes.
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
        # A text is a path, a URL or a name; else it may be an id written as text.
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
        """Return the id of the file with a path, URL or name, None for no file.

        The whole path or URL comes first, then the end of a URL.

        Raises:
            ConfigError: Several files have the name.
        """
        file_name = value.removeprefix("file://").removeprefix("./")
        same_name = self._files_of_name.get(file_name.rpartition("/")[2], ())
        urls = {file_name, str(Path(file_name).absolute())}
        matches: list[InputFile] = []
        for file in same_name:
            if file.url in urls or file.path == file_name:
                matches.append(file)
        if not matches:
            url_end = f"/{file_name.removeprefix('/')}"
            matches = [file for file in same_name if file.url.endswith(url_end)]
        if len(matches) > 1:
            shown_urls = ", ".join(file.url for file in matches[:_MOST_SHOWN])
            raise ConfigError(
                f"exclude {path!r}: file {value!r} means {shown_urls}; write a longer part of the path",
                file=path,
            )
        if not matches:
            return None
        return matches[0].file_id
