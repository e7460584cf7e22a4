"""Takedowns: documents that a list (`exclude`) leaves out of a build.

A list has the columns ``file`` and ``position``. It names a file as the table ``documents`` does (the 64-bit identity,
also as text or as the float that pandas makes of it), or by its path, URL or name. An entry that matches no document is
reported: a takedown that removes nothing must not look like one that worked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tokenlake.base.threads import in_order
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.splits import by_file
from tokenlake.runtime.store.account import Account

Positions: TypeAlias = dict[int, list[int]]
"""File id to the positions that are left out, ascending."""

_NAMED: Final = 5
_ADVICE: Final = (
    "`file` is a path, a URL, a name or the identity that `documents` has; `position` is the row number, or in JSON "
    "Lines and lines of text the byte offset at which the line begins. `tokenlake sql` on NAME/documents shows both"
)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One list, matched with the files of all sources that name it.

    Attributes:
        path: of the list.
        positions: per source.
        seen: whether planning found a record of at least one entry: a file says so without being read whole.
        unmatched: a sentence for each entry that cannot match.
    """

    path: str
    positions: dict[str, Positions]
    seen: bool
    unmatched: tuple[str, ...]

    def notes(self) -> list[str]:
        """What a plan says of the entries that match nothing."""
        named = [f"exclude {self.path!r}: {line}" for line in self.unmatched[:_NAMED]]
        more = len(self.unmatched) - _NAMED
        return named + ([f"exclude {self.path!r}: {more} more entries match no document"] if more > 0 else [])

    def missed(self, accounts: Mapping[str, Account]) -> list[str]:
        """What a finished build says beyond the plan.

        Raises:
            ConfigError: the list left nothing out.
        """
        wanted = sum(len(each) for found in self.positions.values() for each in found.values())
        got = sum(accounts[source].filtered.get("excluded", 0) for source in self.positions)
        if got == wanted:
            return []
        if not got and not self.seen:
            raise _matches_nothing(self.path, "its positions are those of no record")
        return [
            f"exclude {self.path!r}: {wanted - got} of {wanted} entries left out no document: no record begins "
            "there, or it had been left out or found bad before"
        ]


def match_exclusions(
    sources: Iterable[ResolvedSource],
    ranges: Mapping[str, Iterable[Iterable[FileRange]]],
    threads: int,
) -> tuple[Exclusion, ...]:
    """Read the lists of all sources.

    Args:
        ranges: source name to its ranges, in groups.

    Raises:
        ConfigError: a list cannot be read, names a file ambiguously, or matches nothing.
        InputChangedError: an input is not what was listed.
    """
    users: dict[str, list[ResolvedSource]] = defaultdict(list)
    for source in sources:
        if source.exclude is not None:
            users[source.exclude].append(source)
    found = tuple(_match(path, each, ranges, threads) for path, each in users.items())
    for each in found:
        if each.unmatched and not any(each.positions.values()):
            raise _matches_nothing(each.path, "; ".join(each.unmatched[:_NAMED]))
    return found


def _matches_nothing(path: str, why: str) -> ConfigError:
    return ConfigError(f"exclude {path!r} matches no document: {why}. {_ADVICE}", file=path)


def of_unit(ranges: Iterable[FileRange], positions: Positions, passed: dict[int, int | None]) -> Positions:
    """Return what is left out of a unit: a takedown leaves every other unit alone.

    Args:
        passed: file id to the records before these ranges, kept up to date from unit to unit; None: unknown.
    """
    mine: dict[int, set[int]] = {}
    for part in ranges:
        if (wanted := positions.get(file := part.file.file_id)) is None:
            continue
        # The positions that the range can hold, [first, stop); stop None where only reading tells.
        first, stop, before = 0, None, passed.get(file, 0)
        if part.file.is_lines:  # positions are byte offsets
            first, stop = part.start, part.stop if part.file.compression is None else None
        elif part.records is not None and before is not None:
            first, stop = before, before + part.records
        passed[file] = stop if part.records is not None else None
        chosen = {each for each in wanted if stop is None or first <= each < stop}
        if chosen:
            mine.setdefault(file, set()).update(chosen)
    return {file: sorted(mine[file]) for file in sorted(mine)}


def _match(
    path: str,
    sources: Sequence[ResolvedSource],
    ranges: Mapping[str, Iterable[Iterable[FileRange]]],
    threads: int,
) -> Exclusion:
    known = {source.name: _Files(by_file(ranges[source.name])) for source in sources}
    asked: dict[str, dict[int, dict[int, int]]] = {name: defaultdict(dict) for name in known}
    unmatched: dict[int, str] = {}
    for row, (file, position) in enumerate(_entries(path)):
        at, places = _whole(position), {name: files.named(file, path) for name, files in known.items()}
        if at is None:
            unmatched[row] = f"row {row}: position {position!r} is no whole number"
        elif all(place is None for place in places.values()):
            unmatched[row] = f"row {row}: file {file!r} is no input file"
        else:
            for name, place in places.items():
                if place is not None:
                    asked[name][place].setdefault(at, row)
    seen = False
    positions: dict[str, Positions] = {}
    for source in sources:
        rows, parts = asked[source.name], known[source.name].ranges
        judge = partial(_impossible, source)
        judged = in_order(judge, [(parts[file], rows[file]) for file in rows], threads)
        positions[source.name] = {}
        for file, (wrong, certain) in zip(rows, judged, strict=True):
            unmatched |= {rows[file][at]: why for at, why in wrong.items()}
            if left := sorted(rows[file].keys() - wrong.keys()):
                positions[source.name][file] = left
                seen |= certain
    return Exclusion(path, positions, seen, tuple(unmatched[row] for row in sorted(unmatched)))


def _impossible(
    source: ResolvedSource, asked: tuple[Sequence[FileRange], Mapping[int, int]]
) -> tuple[dict[int, str], bool]:
    """Return the positions at which a file has no record, each with a sentence, and whether all others have one."""
    parts, rows = asked
    file, last = parts[0].file, parts[-1]
    if file.is_lines and file.compression is None:
        with opened(file, source.storage_options) as data:
            wrong = [at for at in rows if not 0 <= at < file.size or (at and data.pread(1, at - 1) != b"\n")]
        why, certain = "no line begins at this byte; a row number is no position in a file of lines", True
    else:
        counts = [part.records if part.rows is None else part.rows for part in parts]
        known = [count for count in counts if count is not None]
        certain = len(known) == len(counts)
        count = sum(known) if certain else None
        if file.format == "text" and not file.is_lines:
            count, certain = 1, True
        wrong = [at for at in rows if at < 0 or (count is not None and at >= count)]
        why = f"it has {count} records"
    limited = last.rows is not None and file.is_lines
    return {at: f"row {rows[at]}: {file.path} at {at}: {why}" for at in wrong}, certain and not limited


def _entries(path: str) -> Iterable[tuple[Any, Any]]:
    try:
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["file", "position"])
        return zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True)
    except FileNotFoundError:
        raise ConfigError(f"exclude {path!r} does not exist", file=path) from None
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ConfigError(
            f"exclude {path!r} is not a Parquet file with the columns `file` and `position`: {error}. {_ADVICE}",
            file=path,
        ) from error


def _whole(value: Any) -> int | None:
    """Return a position or an identity as a number, None for what is none; pandas makes floats beside NaN."""
    try:
        number = int(value)
        return number if isinstance(value, str) or number == value else None
    except (TypeError, ValueError, OverflowError):
        return None


class _Files:
    """The files of a source, and the names that a person has for them."""

    def __init__(self, parts: Iterable[Sequence[FileRange]]) -> None:
        self.ranges = {each[0].file.file_id: each for each in parts}
        self._by_name: dict[str, list[InputFile]] = defaultdict(list)
        for each in self.ranges.values():
            self._by_name[each[0].file.url.rpartition("/")[2]].append(each[0].file)
        self._rounded = {float(file): file for file in self.ranges}

    def named(self, value: Any, path: str) -> int | None:
        """Return the id of the file that an entry means, None for a file that is not there.

        Raises:
            ConfigError: the entry means several files.
        """
        if isinstance(value, str) and (found := self._of_text(value, path)) is not None:
            return found
        if isinstance(value, float):
            return self._rounded.get(value)
        number = _whole(value)
        if number is None:
            return None
        number -= (number >= 1 << 63) << 64  # as unsigned
        return number if number in self.ranges else None

    def _of_text(self, value: str, path: str) -> int | None:
        text = value.removeprefix("file://").removeprefix("./")
        exact = {text, str(Path(text).absolute())}
        maybe = self._by_name.get(text.rpartition("/")[2], ())
        found = [file for file in maybe if file.url in exact or file.path == text]
        found = found or [file for file in maybe if file.url.endswith(f"/{text.removeprefix('/')}")]
        if len(found) > 1:
            names = ", ".join(file.url for file in found[:_NAMED])
            raise ConfigError(
                f"exclude {path!r}: file {value!r} means {names}; write more of the path", file=path
            )
        return found[0].file_id if found else None
