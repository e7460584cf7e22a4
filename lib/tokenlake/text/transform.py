"""What a transform is: a function of a row that may drop it, and the same function of many rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.ragged import Bools, Int64
from tokenlake.sources.rows import Fault, Row, Rows, column_of

Array = Any  # an Arrow array: its stubs know neither its kinds nor the functions on them
RowFunction = Callable[[Row], Row | None]
Fields = tuple[str, ...] | None
"""Names of top-level fields, None for all there are."""

DROPPED: Final = "transform"
"""The reason under which rows are counted that a transform left out without naming one."""

_BATCH: Final[Any] = pa.RecordBatch
_ARROW: Final[Any] = pa
_SIMPLE: Final = (str, int, bool, float)
_MOST_INT: Final = 1 << 63


def _none() -> dict[str, int]:
    return {}


@final
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of n rows.

    Attributes:
        rows: the m rows that came out.
        origin: int64[m], ascending: the index of the row that each was made of; several may be of one.
        filtered: rows that nothing came out of on purpose, by reason.
        bad: rows that could not be used: (index, why), ascending.

    Every index from 0 to n - 1 is in `origin`, in `bad`, or counted in `filtered`, and only once among the three.
    """

    rows: Rows
    origin: Int64
    filtered: dict[str, int] = field(default_factory=_none)
    bad: tuple[tuple[int, Fault], ...] = ()


class Transform(ABC):
    """A function of a row: a dict, or None to leave the row out. Rows given in are never changed."""

    reason: str = DROPPED
    """Under which the rows are counted that this transform leaves out."""

    @abstractmethod
    def __call__(self, example: Row) -> Row | None:
        """Return the new row, or None.

        Raises:
            BadRecordError: the row cannot be used.
        """

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply the transform to many rows; equal to calling it on each, but faster where it works on columns.

        Objects come first: those of JSON say more than the columns made of them.
        """
        if not rows.has_objects:
            columns = rows.columns
            names = columns.schema.names
            outcome = self.on_columns(columns) if len(set(names)) == len(names) else None
            if outcome is not None:
                return outcome
        return one_by_one(self, rows, self.reason)

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Return what becomes of rows that are columns; None where these can only be done one by one."""
        return None

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the rows given in on which the fields `wanted` of those that come out depend.

        Fields that decide whether a row comes out are among them, and those that may make it a bad one.
        """
        return None

    def __repr__(self) -> str:
        shown = (f"{name.strip('_')}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __rshift__(self, after: RowFunction | ExpandTransform) -> ChainedTransform:
        """``a >> b``: first a, then b, where b may be any function of a row."""
        return ChainedTransform([self, after])

    def __rrshift__(self, before: RowFunction) -> ChainedTransform:
        return ChainedTransform([before, self])


class ExpandTransform(ABC):  # noqa: B024 - either of two methods makes it concrete
    """A function of a row that makes any number of rows of it: define `expand`, or `__call__` as a generator."""

    reason: str = DROPPED

    def __init_subclass__(cls) -> None:
        if cls.expand is ExpandTransform.expand and cls.__call__ is ExpandTransform.__call__:
            raise TypeError(f"{cls.__name__} defines neither expand nor __call__, and needs one of them")

    def __call__(self, example: Row) -> Iterator[Row]:
        """Return the rows made of `example`, none to leave it out."""
        return iter(self.expand(example))

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows made of `example`, none to leave it out."""
        return list(self(example))

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Expand many rows."""
        return _expanded(rows, self.expand, self.reason)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields it depends on; see :meth:`Transform.needs`."""
        return None

    def __rshift__(self, after: RowFunction | ExpandTransform) -> ChainedTransform:
        return ChainedTransform([self, after])

    def __rrshift__(self, before: RowFunction) -> ChainedTransform:
        return ChainedTransform([before, self])


Step = Transform | ExpandTransform | RowFunction


@final
class ChainedTransform(Transform):
    """Several steps, one after the other."""

    def __init__(self, transforms: Sequence[Step]) -> None:
        """Take the steps in order; chains among them are laid open."""
        steps: list[Step] = []
        for step in transforms:
            if not (isinstance(step, ExpandTransform) or callable(step)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"transforms: got {step!r}, must be a Transform or a function of a row")
            steps += step.steps if isinstance(step, ChainedTransform) else (step,)
        self.steps: Final[tuple[Step, ...]] = tuple(steps)

    def __call__(self, example: Row) -> Row | None:
        """Apply all steps to one row; a chain that expands rows has no single one to return.

        Raises:
            ConfigError: a step is an ExpandTransform; use :meth:`on_rows`, or `TransformedShardedSource`.
        """
        row: Row | None = example
        for step in self.steps:
            if isinstance(step, ExpandTransform):
                raise ConfigError(
                    f"{type(step).__name__} makes several rows of one, so this chain cannot be called on a row; use "
                    "on_rows, or put it into a TransformedShardedSource"
                )
            row = step(row)
            if row is None:
                return None
        return row

    def expand(self, example: Row) -> list[Row]:
        """Apply all steps to one row; return every row that comes out."""
        rows = [example]
        for step in self.steps:
            made: list[Row] = []
            for row in rows:
                if isinstance(step, ExpandTransform):
                    made += step.expand(row)
                elif (result := step(row)) is not None:
                    made.append(result)
            rows = made
        return rows

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply step by step, each to all rows; `origin` and `bad` count the rows given in."""
        outcome = StepOutcome(rows, np.arange(len(rows)))
        for step in self.steps:
            outcome = _then(outcome, _step(step, outcome.rows))
        return outcome

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the rows given in that decide those `wanted` at the end."""
        for step in reversed(self.steps):
            wanted = step.needs(wanted) if isinstance(step, Transform | ExpandTransform) else None
        return wanted


def one_by_one(function: RowFunction, rows: Rows, reason: str = DROPPED) -> StepOutcome:
    """Call a function of a row on each; a BadRecordError makes a bad row."""

    def expand(row: Row) -> Sequence[Row]:
        result = function(row)
        if isinstance(result, dict):
            return (result,)
        if result is None:
            return ()
        raise ConfigError(
            f"a transform returned {type(result).__name__}, must be a dict, or None, which leaves the row out"
        )

    return _expanded(rows, expand, reason)


def fault_of(error: BadRecordError) -> Fault:
    """Return why the record of an error cannot be used."""
    return Fault(str(error.details.get("reason", DROPPED)), str(error))


def _step(step: Step, rows: Rows) -> StepOutcome:
    if isinstance(step, Transform | ExpandTransform):
        return step.on_rows(rows)
    return one_by_one(step, rows)


def called(
    function: Callable[[Any], Any], values: Iterable[Any]
) -> tuple[list[Any], tuple[tuple[int, Fault], ...]]:
    """Call a function on each value: return the results, None for bad ones, and (index, why) of these."""
    made: list[Any] = []
    bad: list[tuple[int, Fault]] = []
    for index, value in enumerate(values):
        try:
            made.append(function(value))
        except BadRecordError as error:
            made.append(None)
            bad.append((index, fault_of(error)))
    return made, tuple(bad)


def _expanded(rows: Rows, expand: Callable[[Row], Sequence[Row]], reason: str) -> StepOutcome:
    results, bad = called(expand, rows.objects)
    sizes = np.array([0 if result is None else len(result) for result in results], np.int64)
    origin = np.repeat(np.arange(len(results)), sizes)
    left_out = int((sizes == 0).sum()) - len(bad)
    made = [row for result in results if result is not None for row in result]
    return StepOutcome(Rows(objects=made), origin, {reason: left_out} if left_out else {}, bad)


def _then(first: StepOutcome, second: StepOutcome) -> StepOutcome:
    """Join two outcomes, the second of the rows of the first.

    A row that was expanded before counts as filtered or bad only by the first of what it became: the others were
    never rows of the input.
    """
    leads = np.ones(len(first.origin), np.bool_)
    leads[1:] = np.diff(first.origin) > 0
    if leads.all():
        bad = [(int(first.origin[index]), fault) for index, fault in second.bad]
        filtered = _sum(first.filtered, second.filtered)
    else:
        bad, filtered = _of_expanded(first, second)
    return StepOutcome(
        second.rows,
        first.origin[second.origin],
        filtered,
        tuple(sorted([*first.bad, *bad], key=lambda item: item[0])),
    )


def _of_expanded(first: StepOutcome, second: StepOutcome) -> tuple[list[tuple[int, Fault]], dict[str, int]]:
    """Judge the rows of which nothing is left, though something was."""
    left = set(first.origin[second.origin].tolist())
    bad: dict[int, Fault] = {}
    for index, fault in second.bad:
        row = int(first.origin[index])
        if row not in left:
            bad.setdefault(row, fault)
    gone = len(set(first.origin.tolist()) - left - bad.keys())
    reason = next(iter(second.filtered), DROPPED)
    return list(bad.items()), _sum(first.filtered, {reason: gone} if gone else {})


def _sum(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}


def changed(columns: pa.RecordBatch, rows: int) -> StepOutcome:
    """Return the outcome of `rows` rows that all became one: `columns`, which may be none at all."""
    made = Rows(columns) if columns.num_columns else Rows(objects=[{} for _ in range(rows)])
    return StepOutcome(made, np.arange(rows))


def kept(rows: Rows, keep: Bools, reason: str, bad: tuple[tuple[int, Fault], ...] = ()) -> StepOutcome:
    """Return the outcome of a filter: `keep` (bool[n]) is false for rows left out, and for bad ones."""
    origin = np.flatnonzero(keep)
    left_out = len(rows) - len(origin) - len(bad)
    return StepOutcome(rows.select(keep), origin, {reason: left_out} if left_out else {}, bad)


def all_bad(rows: int, fault: Fault) -> StepOutcome:
    """Return the outcome of rows none of which can be used, for one reason."""
    bad = tuple((index, fault) for index in range(rows))
    return StepOutcome(Rows(objects=[]), np.zeros(0, np.int64), bad=bad)


def with_column(columns: pa.RecordBatch, name: str, values: Array) -> pa.RecordBatch:
    """Return `columns` with `values` under `name`: in the place of a column of that name, else as the last."""
    arrays: list[Array] = list(columns.columns)
    fields: list[Any] = list(columns.schema)
    field = _ARROW.field(name, values.type)
    at: int = columns.schema.get_field_index(name)
    if at < 0:
        fields, arrays = [*fields, field], [*arrays, values]
    else:
        fields[at], arrays[at] = field, values
    return _BATCH.from_arrays(arrays, schema=_ARROW.schema(fields))


def column_or_none(values: Sequence[Any]) -> Array | None:
    """Return values of one simple kind, or null, as a column that gives the same values back; else None."""
    kinds = frozenset[type[Any]](map(type, values)) - {type(None)}
    if len(kinds) > 1 or not kinds <= frozenset[type[Any]](_SIMPLE):
        return None
    if int in kinds and not all(-_MOST_INT <= value < _MOST_INT for value in values if value is not None):
        return None
    try:
        return column_of(values)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
