"""Reading a range of an input: the format's reader, the predicate, the limit, and the policy for bad records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import Int64s, no_text, select
from tokenlake.config.formats import FORMATS, Format
from tokenlake.sources.batch import (
    ALL,
    BLOCK_BYTES,
    PLAIN,
    BadLine,
    BadRecord,
    Parsed,
    ReadBatch,
    RowBatch,
    TextBatch,
    Want,
    refuse,
)
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

_NOTHING: Final = np.zeros(0, np.int64)
_B = TypeVar("_B", bound=ReadBatch)


def reader_of(format_: Format) -> Reader:
    """Return the reader of a format."""
    module, name = FORMATS[
        format_
    ].reader  # by name: what one format needs is no burden to a worker that reads another
    return getattr(import_module(f"tokenlake.sources.{module}"), name)


def read_range(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = (),
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[TextBatch]:
    """Read the texts of a range in batches of about 16 MB, in file order, in bounded memory.

    Under the policy ``quarantine`` bad records come in the batches' `bad`. The `bytes_read` of all
    batches sum up to ``part.weight``; a batch may be empty.

    Args:
        columns: top-level fields beside the text, None for all.
        block_bytes: how much is read at a time, of a file without row groups or batches.

    Raises:
        BadRecordError: a record is bad and the policy is ``fail``.
        DamagedFileError: the file cannot be trusted as a whole, whatever the policy.
        InputChangedError: the file is not, or does not stay, what was planned.
        ConfigError: `where` cannot be evaluated on the source's columns.
    """

    def batch(it: Parsed, account: dict[str, Any]) -> TextBatch:
        text = no_text() if it.text is None else it.text
        return TextBatch(text=text, table=_only(it.rows, columns), all_fields=columns is None, **account)

    return _read(part, source, columns, batch, text=True, block_bytes=block_bytes)


def read_rows(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = ALL,
    *,
    if_there: bool = False,
    plain: str = PLAIN,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RowBatch]:
    """Read whole records of a range, without a look at their text; otherwise like :func:`read_range`.

    Args:
        columns: top-level fields, None for all.
        if_there: columns that an input lacks are left out, instead of being an error.
        plain: what the one column of plain text is called.
        block_bytes: how much is read at a time, of a file without row groups or batches.
    """

    def batch(it: Parsed, account: dict[str, Any]) -> RowBatch:
        return RowBatch(table=_only(it.rows, columns), all_fields=columns is None, **account)

    more: dict[str, Any] = {"if_there": if_there, "plain": plain, "block_bytes": block_bytes}
    return _read(part, source, columns, batch, **more)


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
    columns: tuple[str, ...] | None,
    batch: Callable[[Parsed, dict[str, Any]], _B],
    *,
    text: bool = False,
    **more: Any,
) -> Iterator[_B]:
    """Take the blocks of a range through limit, predicate and policy; `more` are further wishes."""
    predicate = Predicate(source.where) if source.where else None
    if columns is not None and predicate is not None:
        columns = tuple(dict.fromkeys((*columns, *predicate.columns)))
    want = Want(
        text=source.content_field if text else None,
        columns=columns,
        max_record_bytes=source.max_record_bytes,
        delimiter=source.delimiter,
        **more,
    )
    left, unread = part.rows, part.weight
    with opened(part.file, source.storage_options) as data:
        data.max_expansion = source.max_expansion
        check_plain(data)
        blocks = reader_of(part.file.format)(part, data, want, predicate)
        policy = _Policy(part, data, source)

        def following() -> _B | None:
            nonlocal left, unread
            parsed = None if left == 0 else next(blocks, None)
            if parsed is None:
                return None
            if left is not None:
                parsed = _first(parsed, left, unread)
                left -= _records(parsed)
            unread -= parsed.bytes_read
            parsed, left_out = _met(parsed, predicate)
            return batch(*policy.judged(parsed, left_out))

        # No reference to a block stays here: it can hold a text of 200 MB, which only its consumer keeps alive.
        yield from iter(following, None)
    if unread > 0:
        nothing = Parsed(text=None, positions=_NOTHING, bad=(), bytes_read=unread)
        yield batch(nothing, {"file": part.file, "positions": _NOTHING, "bytes_read": unread})


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


def _met(parsed: Parsed, predicate: Predicate | None) -> tuple[Parsed, Int64s]:
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

    def judged(self, parsed: Parsed, left_out: Int64s) -> tuple[Parsed, dict[str, Any]]:
        """Return the good records of a block, and the account of all of them; BadRecordError if one may not be bad."""
        bad = parsed.bad
        if parsed.doubtful:
            bad = tuple(sorted(bad + parsed.doubtful, key=lambda line: line.position))
            doubtful = [line.position for line in parsed.doubtful]
            parsed = _selected(parsed, ~np.isin(parsed.positions, doubtful))
        records = tuple(map(self._record, bad))
        self._numbers.pass_over(parsed.lines)
        if records and self._fail:
            raise refuse(records[0], self._part.file)
        return parsed, {
            "file": self._part.file,
            "positions": parsed.positions,
            "bytes_read": parsed.bytes_read,
            "bad": records,
            "filtered": _without_zeros({"where": len(left_out)}),
            "left_out": left_out,
            "skipped": _without_zeros(parsed.skipped),
            "normalized": _without_zeros(parsed.normalized),
        }

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
