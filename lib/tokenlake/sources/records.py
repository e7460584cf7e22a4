"""Reading a range of an input: the format's reader, the predicate, the limit, and the policy for bad records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import no_text, select
from tokenlake.sources.batch import (
    ALL,
    PLAIN,
    BadLine,
    BadRecord,
    Parsed,
    ReadBatch,
    RowBatch,
    TextBatch,
    TextRowBatch,
    Want,
    refuse,
    rows_wanted,
    text_wanted,
)
from tokenlake.sources.formats import Format
from tokenlake.sources.inputs import FileRange, InputBytes
from tokenlake.sources.lines import LineNumbers
from tokenlake.sources.opening import opened
from tokenlake.sources.rows import Rows
from tokenlake.sources.stream import check_plain
from tokenlake.sources.where import Predicate

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Reader = Callable[[FileRange, InputBytes, Want, Predicate | None], Iterator[Parsed]]
"""Reads the records of a range in file order in bounded memory.

The predicate is a hint for formats with statistics: they may leave out stretches in which it holds
nowhere, counting the records as ``skipped["pruned"]``. Records are never left out one by one here.
"""

# By name: what one format needs is no burden to a worker that reads another.
_HOMES: Final[dict[Format, tuple[str, str]]] = {
    "jsonl": ("tokenlake.sources.json", "read_jsonl"),
    "json": ("tokenlake.sources.json_array", "read_json_array"),
    "parquet": ("tokenlake.sources.parquet", "read_parquet"),
    "arrow": ("tokenlake.sources.arrow", "read_arrow"),
    "csv": ("tokenlake.sources.csv", "read_csv"),
    "tsv": ("tokenlake.sources.csv", "read_csv"),
    "text": ("tokenlake.sources.text", "read_text"),
}
_NOTHING: Final = np.zeros(0, np.int64)
_B = TypeVar("_B", bound=ReadBatch)


def reader_of(format_: Format) -> Reader:
    """Return the reader of a format."""
    module, name = _HOMES[format_]
    return getattr(import_module(module), name)


def read_range(part: FileRange, source: ResolvedSource) -> Iterator[TextBatch]:
    """Read the texts of a range in batches of about 16 MB, in file order, in bounded memory.

    Under the policy ``quarantine`` bad records come in the batches' `bad`. The `bytes_read` of all
    batches sum up to ``part.weight``; a batch may be empty.

    Raises:
        BadRecordError: a record is bad and the policy is ``fail``.
        DamagedFileError: the file cannot be trusted as a whole, whatever the policy.
        InputChangedError: the file is not, or does not stay, what was planned.
        ConfigError: `where` cannot be evaluated on the source's columns.
    """
    predicate = _predicate(source)
    want = text_wanted(source, predicate.columns if predicate else ())
    yield from _read(part, source, want, predicate, lambda it, account: TextBatch(text=_text(it), **account))


def read_rows(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = ALL,
    *,
    if_there: bool = False,
    plain: str = PLAIN,
) -> Iterator[RowBatch]:
    """Read whole records of a range, without a look at their text; otherwise like :func:`read_range`.

    Args:
        columns: top-level fields, None for all.
        if_there: columns that an input lacks are left out, instead of being an error.
        plain: what the one column of plain text is called.
    """
    predicate = _predicate(source)
    want = replace(rows_wanted(source, _with(columns, predicate)), if_there=if_there, plain=plain)

    def batch(it: Parsed, account: dict[str, Any]) -> RowBatch:
        return RowBatch(table=_only(it.rows, columns), all_fields=columns is None, **account)

    yield from _read(part, source, want, predicate, batch)


def read_texts(
    part: FileRange, source: ResolvedSource, columns: tuple[str, ...] | None = ALL
) -> Iterator[TextRowBatch]:
    """Read the texts of a range with fields beside them; otherwise like :func:`read_range`.

    Args:
        columns: top-level fields, None for all.
    """
    predicate = _predicate(source)
    want = text_wanted(source, _with(columns, predicate))

    def batch(it: Parsed, account: dict[str, Any]) -> TextRowBatch:
        return TextRowBatch(text=_text(it), table=_only(it.rows, columns), **account)

    yield from _read(part, source, want, predicate, batch)


def _predicate(source: ResolvedSource) -> Predicate | None:
    return Predicate(source.where) if source.where else None


def _with(columns: tuple[str, ...] | None, predicate: Predicate | None) -> tuple[str, ...] | None:
    """Return `columns` and those that the predicate looks at."""
    if columns is None or predicate is None:
        return columns
    return tuple(dict.fromkeys((*columns, *predicate.columns)))


def _text(parsed: Parsed) -> pa.LargeStringArray:
    return no_text() if parsed.text is None else parsed.text


def _only(rows: Rows | None, columns: tuple[str, ...] | None) -> Rows:
    """Leave out what only the predicate asked for."""
    if rows is None:
        return Rows(pa.RecordBatch.from_pydict({}))
    if columns is None:
        return rows
    if rows.has_objects:
        return Rows(objects=rows.objects, names=columns)
    there: list[str] = rows.columns.schema.names
    return Rows(rows.columns.select([name for name in columns if name in there]))


def _read(
    part: FileRange,
    source: ResolvedSource,
    want: Want,
    predicate: Predicate | None,
    batch: Callable[[Parsed, dict[str, Any]], _B],
) -> Iterator[_B]:
    with opened(part.file, source.storage_options) as data:
        data.max_expansion = source.max_expansion
        check_plain(data)
        blocks = reader_of(part.file.format)(part, data, want, predicate)
        taken = _Blocks(part, blocks, predicate, _Policy(part, data, source), batch)
        yield from iter(taken.next, None)
    if taken.unread > 0:
        nothing = Parsed(text=None, positions=_NOTHING, bad=(), bytes_read=taken.unread)
        yield batch(nothing, {"file": part.file, "positions": _NOTHING, "bytes_read": taken.unread})


@final
class _Blocks(Generic[_B]):
    """The blocks of a range on their way through limit, predicate and policy.

    No reference to a block stays here: it can hold a text of 200 MB, which only its consumer keeps alive.

    Attributes:
        unread: what is left of the range's weight.
    """

    def __init__(
        self,
        part: FileRange,
        blocks: Iterator[Parsed],
        predicate: Predicate | None,
        policy: _Policy,
        batch: Callable[[Parsed, dict[str, Any]], _B],
    ) -> None:
        self._file, self._blocks, self._predicate, self._policy = part.file, blocks, predicate, policy
        self._batch, self._left = batch, part.rows
        self.unread = part.weight

    def next(self) -> _B | None:
        """Return the next block as a batch, None where there is no more."""
        parsed = None if self._left == 0 else next(self._blocks, None)
        if parsed is None:
            return None
        if self._left is not None:
            parsed = _first(parsed, self._left, self.unread)
            self._left -= _records(parsed)
        self.unread -= parsed.bytes_read
        parsed, left_out = _met(parsed, self._predicate)
        bad = parsed.bad
        if parsed.doubtful:
            bad = tuple(sorted(parsed.bad + parsed.doubtful, key=lambda line: line.position))
            doubtful = [line.position for line in parsed.doubtful]
            parsed = _selected(parsed, ~np.isin(parsed.positions, doubtful))
        return self._batch(
            parsed,
            {
                "file": self._file,
                "positions": parsed.positions,
                "bytes_read": parsed.bytes_read,
                "bad": self._policy.judge(bad, parsed.lines),
                "filtered": _without_zeros({"where": len(left_out)}),
                "left_out": left_out,
                "skipped": _without_zeros(parsed.skipped),
                "normalized": _without_zeros(parsed.normalized),
            },
        )


def _records(parsed: Parsed) -> int:
    """How many records a block stands for: good, bad, and those that were not looked at."""
    return len(parsed) + len(parsed.bad) + sum(parsed.skipped.values())


def _first(parsed: Parsed, count: int, weight: int) -> Parsed:
    """Return the first `count` records, good or bad, which weigh at most `weight`; skipped ones come first."""
    parsed = replace(parsed, bytes_read=min(parsed.bytes_read, weight))
    if parsed.skipped:
        over = max(0, sum(parsed.skipped.values()) - count)
        parsed = replace(parsed, skipped={key: max(0, n - over) for key, n in parsed.skipped.items()})
        count -= sum(parsed.skipped.values())
    places = np.concatenate([parsed.positions, np.array([bad.position for bad in parsed.bad], np.int64)])
    if len(places) <= count:
        return parsed
    end = int(np.sort(places)[count])
    kept = _selected(parsed, parsed.positions < end)
    return replace(kept, bad=tuple(bad for bad in parsed.bad if bad.position < end))


def _selected(parsed: Parsed, keep: npt.NDArray[np.bool_]) -> Parsed:
    """Return the records where `keep` is true; what could not be read as a record stays."""
    if keep.all():
        return parsed
    chosen = set(parsed.positions[keep].tolist())
    return replace(
        parsed,
        text=None if parsed.text is None else select(parsed.text, keep),
        rows=None if parsed.rows is None else parsed.rows.select(keep),
        positions=parsed.positions[keep],
        doubtful=tuple(bad for bad in parsed.doubtful if bad.position in chosen),
    )


def _met(parsed: Parsed, predicate: Predicate | None) -> tuple[Parsed, npt.NDArray[np.int64]]:
    """Return the records that meet the predicate, and the positions of those that do not.

    Those that it cannot judge are doubtful.
    """
    if predicate is None or parsed.rows is None or not len(parsed):
        return parsed, _NOTHING
    verdicts = predicate.judge(parsed.rows)
    stays = verdicts.mask.copy()
    stays[list(verdicts.faults)] = True
    kept = _selected(parsed, stays)
    failed = {int(parsed.positions[index]): fault for index, fault in verdicts.faults.items()}
    if failed:
        others = [line for line in kept.doubtful if line.position not in failed]
        bad = [parsed.as_bad(position, fault) for position, fault in failed.items()]
        kept = replace(kept, doubtful=(*others, *bad))
    return kept, parsed.positions[~stays]


def _without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


@final
class _Policy:
    """What becomes of bad records: the first ends the reading, or they are set aside."""

    def __init__(self, part: FileRange, data: InputBytes, source: ResolvedSource) -> None:
        self._part = part
        self._fail = source.on_bad_record == "fail"
        self._numbers = LineNumbers(part, data, always=self._fail)

    def judge(self, lines: tuple[BadLine, ...], passed: int) -> tuple[BadRecord, ...]:
        bad = tuple(self._record(line) for line in lines)
        self._numbers.pass_over(passed)
        if bad and self._fail:
            raise refuse(bad[0], self._part.file)
        return bad

    def _record(self, line: BadLine) -> BadRecord:
        return BadRecord(
            file=self._part.file.path,
            file_id=self._part.file.file_id,
            position=line.position,
            line=None if line.line is None else self._numbers.number(line.line, line.position),
            reason=line.fault.reason,
            detail=line.fault.detail,
            raw=line.raw,
        )
