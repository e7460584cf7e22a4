"""Transforms: functions of a row that may drop it, and of many rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Bools, Int64
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows, column_of

Example = Row
"""One row, as transforms take it."""
Array = Any  # an Arrow array: its stubs know neither its kinds nor the functions on them
Column = pa.LargeStringArray
RowFunction = Callable[[Row], Row | None]
Fields = tuple[str, ...] | None
"""Names of top-level fields, None for all there are."""
Faults = tuple[tuple[int, Fault], ...]
"""Rows that cannot be used: (index, why), ascending."""

DROPPED: Final = "transform"
"""The reason under which rows are counted that a transform left out without naming one."""

_COMPUTE: Final[Any] = pc
_SIMPLE: Final = (str, int, bool, float)
_MOST_INT: Final = 1 << 63


@final
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of n rows.

    Attributes:
        rows: the m rows that came out.
        origin: int64[m], ascending: the index of the row that each was made of; several may be of one.
        filtered: rows that nothing came out of on purpose, by reason.
        bad: rows that could not be used.

    Every index from 0 to n - 1 is in `origin`, in `bad`, or counted in `filtered`, and only once among the three.
    """

    rows: Rows
    origin: Int64
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    bad: Faults = ()


class RowStep(ABC):
    """One of two kinds of steps: a :class:`Transform` of a row, or an :class:`ExpandTransform` into several."""

    reason: str = DROPPED
    """Under which the rows are counted that this step leaves out."""

    @abstractmethod
    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows made of `example`, none to leave it out; it is never changed itself.

        Raises:
            BadRecordError: the row cannot be used.
        """

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply the step to many rows; equal to expanding each."""
        results, bad = called(self.expand, rows.objects)
        sizes = np.array([0 if result is None else len(result) for result in results], np.int64)
        left_out = int((sizes == 0).sum()) - len(bad)
        made = [row for result in results if result is not None for row in result]
        origin = np.repeat(np.arange(len(results)), sizes)
        return StepOutcome(Rows(objects=made), origin, {self.reason: left_out} if left_out else {}, bad)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the rows given in on which the fields `wanted` of those that come out depend.

        Fields that decide whether a row comes out are among them, and those that may make it a bad one.
        """
        return None

    def __repr__(self) -> str:
        shown = (f"{name.strip('_')}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __rshift__(self, after: RowFunction | RowStep) -> ChainedTransform:
        """``a >> b``: first a, then b, where either may be any function of a row."""
        return ChainedTransform([self, after])

    def __rrshift__(self, before: RowFunction) -> ChainedTransform:
        return ChainedTransform([before, self])


class Transform(RowStep):
    """A function of a row: a dict, or None to leave the row out. Rows given in are never changed."""

    @abstractmethod
    def __call__(self, example: Row) -> Row | None:
        """Return the new row, or None.

        Raises:
            BadRecordError: the row cannot be used.
        """

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the new row alone, or none; ConfigError where the function returned something else."""
        result = self(example)
        if result is None:
            return ()
        if isinstance(result, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            return (result,)
        raise ConfigError(
            f"a transform returned {type(result).__name__}, must be a dict, or None, which leaves the row out"
        )

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply the transform to many rows; equal to calling it on each, but faster where it works on columns."""
        columns = plain_columns(rows)
        outcome = None if columns is None else self.on_columns(columns)
        return super().on_rows(rows) if outcome is None else outcome

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Return what becomes of rows that are columns; None where these can only be done one by one."""
        return None


class FieldTransform(Transform):
    """A transform that names the fields it looks at; a row that lacks one of those it requires is bad.

    Args:
        reads: the fields that it looks at, None for any.
        makes: the fields that do not come through it: made by it, or taken away.
        requires: the fields that every row must have.
    """

    def __init__(self, reads: Fields = (), makes: Sequence[str] = (), requires: Sequence[str] = ()) -> None:
        self._reads, self._makes, self._requires = reads, frozenset(makes), tuple(requires)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return what is wanted and not made here, and what it looks at."""
        return needed(wanted, self._reads, self._makes)

    def fault(self, names: Row | list[str]) -> Fault | None:
        """Return why a row with the fields `names` cannot be used (``missing_field``), None where it can."""
        lacking = [field for field in self._requires if field not in names]
        if not lacking:
            return None
        told = f"field{'s' * (len(lacking) > 1)} {', '.join(map(repr, lacking))}"
        has = ", ".join(map(repr, list(names)[:12])) or "no fields"
        return Fault("missing_field", f"{type(self).__name__}: the row has no {told}; it has {has}")

    def __call__(self, example: Row) -> Row:
        """Return the new row; BadRecordError where it lacks a field that it must have."""
        fault = self.fault(example)
        if fault:
            raise BadRecordError(fault.detail, reason=fault.reason)
        return self.of_row(example)

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Apply the transform to columns; None where it can only be done row by row."""
        fault = self.fault(columns.schema.names)
        if fault:
            bad = tuple((index, fault) for index in range(columns.num_rows))
            return StepOutcome(Rows(objects=[]), np.zeros(0, np.int64), bad=bad)
        made = self.of_columns(columns)
        return None if made is None else changed(made, columns.num_rows)

    @abstractmethod
    def of_row(self, row: Row) -> Row:
        """Return the new row of one that has the fields required."""

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the new columns of rows that have the fields required, None where they are made row by row."""
        return None


class ExpandTransform(RowStep):
    """A function of a row that makes any number of rows of it: define `expand`, or `__call__` as a generator."""

    def __init_subclass__(cls) -> None:
        if cls.expand is ExpandTransform.expand and cls.__call__ is ExpandTransform.__call__:
            raise TypeError(f"{cls.__name__} defines neither expand nor __call__, and needs one of them")

    def __call__(self, example: Row) -> Iterator[Row]:
        """Return the rows made of `example`, none to leave it out."""
        return iter(self.expand(example))

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows made of `example`, none to leave it out."""
        return list(self(example))


@final
class MapTransform(Transform):
    """A function of a row as a step; None as its result leaves the row out."""

    def __init__(self, fn: RowFunction) -> None:
        self._fn = fn

    def __call__(self, example: Row) -> Row | None:
        """Call the function."""
        return self._fn(example)


@final
class ChainedTransform(Transform):
    """Several steps, one after the other."""

    def __init__(self, transforms: Sequence[RowStep | RowFunction]) -> None:
        """Take the steps in order; chains among them are laid open."""
        steps: list[RowStep] = []
        for step in transforms:
            if not (isinstance(step, RowStep) or callable(step)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"transforms: got {step!r}, must be a Transform or a function of a row")
            step = step if isinstance(step, RowStep) else MapTransform(step)
            steps += step.steps if isinstance(step, ChainedTransform) else (step,)
        self.steps: Final[tuple[RowStep, ...]] = tuple(steps)

    def __call__(self, example: Row) -> Row | None:
        """Apply all steps to one row; a chain that expands rows has no single one to return.

        Raises:
            ConfigError: a step is an ExpandTransform; use :meth:`on_rows`, or `TransformedShardedSource`.
        """
        for step in self.steps:
            if isinstance(step, ExpandTransform):
                raise ConfigError(
                    f"{type(step).__name__} makes several rows of one, so this chain cannot be called on a row; use "
                    "on_rows, or put it into a TransformedShardedSource"
                )
        return next(iter(self.expand(example)), None)

    def expand(self, example: Row) -> Sequence[Row]:
        """Apply all steps to one row; return every row that comes out."""
        rows: list[Row] = [example]
        for step in self.steps:
            rows = [made for row in rows for made in step.expand(row)]
        return rows

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply step by step, each to all rows; `origin` and `bad` count the rows given in."""
        outcome = StepOutcome(rows, np.arange(len(rows)))
        for step in self.steps:
            outcome = _then(outcome, step.on_rows(outcome.rows))
        return outcome

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the rows given in that decide those `wanted` at the end."""
        for step in reversed(self.steps):
            wanted = step.needs(wanted)
        return wanted


def plain_columns(rows: Rows) -> pa.RecordBatch | None:
    """Return the columns of rows that a step should take as columns; None for those to be taken as objects.

    Objects come first: those of JSON say more than the columns made of them.
    """
    if rows.has_objects:
        return None
    names = rows.columns.schema.names
    return rows.columns if len(set(names)) == len(names) else None


def needed(wanted: Fields, reads: Fields, makes: Collection[str] = ()) -> Fields:
    """Return the fields that a step needs that looks at `reads`, and makes or takes away `makes`."""
    if wanted is None or reads is None:
        return None
    return tuple(dict.fromkeys([*(name for name in wanted if name not in makes), *reads]))


def fault_of(error: BadRecordError) -> Fault:
    """Return why the record of an error cannot be used."""
    return Fault(str(error.details.get("reason", DROPPED)), str(error), error.field_path or "")


def called(function: Callable[[Any], Any], values: Iterable[Any]) -> tuple[list[Any], Faults]:
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


def kept(rows: Rows, keep: Bools, reason: str, bad: Faults = ()) -> StepOutcome:
    """Return the outcome of a filter: `keep` (bool[n]) is false for rows left out, and for bad ones."""
    origin = np.flatnonzero(keep)
    left_out = len(rows) - len(origin) - len(bad)
    return StepOutcome(rows.select(keep), origin, {reason: left_out} if left_out else {}, bad)


def with_column(columns: pa.RecordBatch, name: str, values: Array) -> pa.RecordBatch:
    """Return `columns` with `values` under `name`: in the place of a column of that name, else as the last."""
    batch: Any = columns
    at = columns.schema.get_field_index(name)
    return batch.append_column(name, values) if at < 0 else batch.set_column(at, name, values)


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
