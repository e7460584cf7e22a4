"""Documents that are left out: by a list (`exclude`), or held out of training (`eval`).

A list (takedowns) has files and positions. It names files as ``documents`` does (the 64-bit identity, also as text or
as pandas' float), or as people do (path, URL, name). An entry that matches no document is told, never passed over: a
takedown that does nothing looks like one that was done.

Each document has a draw, a hash of its identity, and is held out where the draw is below a threshold. The first version
whose configuration says `eval: 500` looks where the records of its inputs are, and takes as threshold what 500 of them
are below. A later version takes the threshold over. So whatever is added, or built again, a document that was held out
once is held out in every version that is planned after that; of documents that are added a like share joins it.

A larger number later raises the threshold; a smaller one would bring documents back to training, and is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
import pyarrow as pa

from tokenlake import numbers
from tokenlake.arrays import Int64
from tokenlake.config.resolved import ResolvedHeldOut, ResolvedSource
from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.etl.plan.unit_size import unit_size_of
from tokenlake.sources.inputs import FileRange, InputFile, OnProgress, ProgressMeter
from tokenlake.sources.opening import opened
from tokenlake.sources.splits import by_file, positions_of
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.ledger import Account
from tokenlake.store.manifest import Manifest
from tokenlake.threads import in_order
from tokenlake.typed_json import converted

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Precedent:
    """The version that a plan is to be equal to, where a version is planned again.

    Attributes:
        version: what versions from there on hold out says nothing; None: all count.
        inputs: (source, path) of the input files that are planned with, whatever others there are by now; None: all.
        held_out: source to what the version holds out.
        unit_size: number of input bytes of a unit; None: not known.
    """

    version: int | None = None
    inputs: frozenset[tuple[str, str]] | None = None
    held_out: Mapping[str, ResolvedHeldOut]
    unit_size: int | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Precedent:
        """Return what a committed version says."""
        inputs = frozenset((file.source, file.path) for file in manifest.inputs)
        return cls(
            version=manifest.version,
            inputs=inputs,
            held_out=held_out_by(manifest),
            unit_size=unit_size_of(manifest),
        )


def held_out_by(manifest: Manifest) -> dict[str, ResolvedHeldOut]:
    """Return what the texts that a version was made of hold out: source to documents."""
    sources: Mapping[str, Any] = manifest.config.get("sources", {})
    stated = {name: source["eval"] for name, source in sources.items() if "eval" in source}
    return {name: converted(facts, ResolvedHeldOut) for name, facts in stated.items()}


@final
class EarlierSets:
    """What the versions of a dataset hold out, the newest ones first.

    Args:
        dataset: in a store at this address, which need not be there.
        before: versions from there on do not count; None: all do.
    """

    def __init__(self, address: StoreAddress, dataset: str, before: int | None) -> None:
        self._address, self._dataset, self._before = address, dataset, before

    @cached_property
    def _stated(self) -> Callable[[int], dict[str, ResolvedHeldOut]]:
        """What a version says; each manifest is read once."""
        catalog = Catalog(open_store(self._address))
        return cache(lambda version: held_out_by(catalog.manifest(self._dataset, version)))

    @cached_property
    def _versions(self) -> list[int]:
        with suppress(NotFoundError):
            infos = Catalog(open_store(self._address)).versions(self._dataset)
            return [
                info.version
                for info in reversed(infos)
                if info.committed and (self._before is None or info.version < self._before)
            ]
        return []

    def of(self, source: str) -> tuple[str, ResolvedHeldOut] | None:
        """Return the newest version that holds out documents of a source, and which; None where none does.

        Raises:
            IntegrityError: the manifest of a version that may say so is damaged.
        """
        stated = ((version, self._stated(version).get(source)) for version in self._versions)
        named = ((f"{self._dataset}@v{version}", found) for version, found in stated if found is not None)
        return next(named, None)


def hold_out(
    source: ResolvedSource,
    asked: ResolvedHeldOut,
    parts: Sequence[Sequence[FileRange]],
    excluded: Positions,
    earlier: EarlierSets,
    *,
    threads: int = 2,
    on_progress: OnProgress | None = None,
) -> tuple[ResolvedHeldOut, str]:
    """Return what is held out of a source, with its threshold, and a note on it.

    Args:
        parts: the ranges of each of its files.
        excluded: file to the positions of documents that are left out.

    Raises:
        ConfigError: an earlier version holds out more, or there are no records but these.
        SourceError: an input cannot be read.
    """
    version, before = earlier.of(source.name) or ("", None)
    if before is not None and before.count > asked.count:
        raise ConfigError(
            f"datasets.{source.name}.eval: {asked.count}, but {version} holds out {before.count}, and what was held "
            f"out once is never trained on; expected {before.count} or more",
            source=source.name,
            expected=before.count,
            got=asked.count,
        )
    if before is not None and before.count == asked.count:
        return replace(asked, below=before.below), (
            f"{source.name}: what {version} holds out stays held out ({asked.split}); of documents that were added "
            "since, a like share joins it"
        )
    meter = ProgressMeter("counting", len(parts), sum(p.weight for each in parts for p in each), on_progress)

    def least_of(whole: Sequence[FileRange]) -> tuple[int, Int64]:
        found = _least(source, whole, excluded, asked.count)
        meter.add(1, sum(part.weight for part in whole))
        return found

    total, draws = 0, np.zeros(0, np.int64)
    for records, some in in_order(least_of, [whole for whole in parts if whole], threads):
        total, draws = total + records, _smallest(np.concatenate([draws, some]), asked.count)
    if total <= asked.count:
        raise ConfigError(
            f"datasets.{source.name}.eval: {asked.count}, but the source has {numbers.plural(total, 'record')}; "
            "expected fewer than that, so that something is left to train on",
            source=source.name,
            expected=total - 1,
            got=asked.count,
        )
    below = max(int(draws.max()) + 1, 0 if before is None else before.below or 0)
    note = f"{source.name}: {asked.count} of {total} records are held out ({asked.split}), in all versions from here on"
    return replace(asked, below=below), note


def _least(
    source: ResolvedSource, whole: Sequence[FileRange], excluded: Positions, count: int
) -> tuple[int, Int64]:
    """Return how many records a file has, and the `count` smallest of their draws, int64[<= count]."""
    from tokenlake.etl.unit.text import held_out_draws, kept  # and with it all that builds units

    total, draws, file = 0, np.zeros(0, np.int64), whole[0].file.file_id
    for positions in positions_of(whole, source):
        if gone := excluded.get(file):
            positions = positions[kept(positions, gone)]
        some = held_out_draws(np.full(len(positions), file, np.int64), positions)
        total, draws = total + len(positions), _smallest(np.concatenate([draws, some]), count)
    return total, draws


def _smallest(draws: Int64, count: int) -> Int64:
    return draws if len(draws) <= count else np.partition(draws, count - 1)[:count]
