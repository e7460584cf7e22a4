"""Transforms: functions of a row that may drop it, and of many rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int64
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows, column_of

Example = Row
"""One row, as transforms take it."""
# An Arrow array; its stubs know neither its types nor the functions on them.
Array = Any
Column = pa.LargeStringArray
RowFunction = Callable[[Row], Row | None]
Fields = tuple[str, ...] | None
"""Names of top-level fields; None for all."""
Faults = tuple[tuple[int, Fault], ...]
"""(index, fault) of rows that cannot be used, ascending."""

DROPPED: Final = "transform"
"""Reason under which rows are counted that a transform left out without naming one."""

# Number of existing fields that an error lists.
_SHOWN_FIELDS: Final = 12
_SIMPLE_TYPES: Final = frozenset[type[Any]]((str, int, bool, float))
"""Types whose values a column gives back as they are."""
_INT64_LIMIT: Final = 1 << 63


@final
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step on n rows.

    Every index from 0 to n - 1 is in `origin`, in `bad`, or counted in `filtered`, and
    in only one of the three.

    Attributes:
        rows: The m new rows.
        origin: int64[m], ascending: index of the row that each was made of; several may
            be made of one.
        filtered: Number of rows that were left out on purpose, by reason.
        bad: Faults of the rows that could not be used.
    """

    rows: Rows
    origin: Int64
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    bad: Faults = ()


class RowStep(ABC):
    """A step on rows.

    It is a :class:`Transform` of a row into one, or an :class:`ExpandTransform` into
    several.
    """

    reason: str = DROPPED
    """Reason under which rows are counted that this step leaves out."""

    @abstractmethod
    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows made of `example`, none to leave it out.

        The step never changes `example` itself.

        Raises:
            BadRecordError: The row cannot be used.
        """

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply the step to many rows; equal to expanding each."""
        results, bad = called(self.expand, rows.objects)
        # A bad row has no result. One that is left out has an empty one.
        new_rows: list[Row] = []
        counts = np.zeros(len(results), np.int64)
        for index, result in enumerate(results):
            if result is not None:
                new_rows += result
                counts[index] = len(result)
        origin = np.repeat(np.arange(len(results)), counts)
        left_out = int((counts == 0).sum()) - len(bad)
        filtered = _counted(self.reason, left_out)
        return StepOutcome(Rows(objects=new_rows), origin, filtered, bad)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the input rows on which the wanted fields depend.

        Fields that decide whether a row is left out, or is bad, are among them.

        Args:
            wanted: Fields of the new rows that are wanted; None for all.
        """
        return None

    def __repr__(self) -> str:
        arguments: list[str] = []
        for attribute, value in vars(self).items():
            arguments.append(f"{attribute.strip('_')}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __rshift__(self, after: RowFunction | RowStep) -> ChainedTransform:
        """Return ``a >> b``: first a, then b; either may be any function of a row."""
        return ChainedTransform([self, after])

    def __rrshift__(self, before: RowFunction) -> ChainedTransform:
        return ChainedTransform([before, self])


class Transform(RowStep):
    """A function of a row that returns a dict, or None to leave the row out.

    Input rows are never changed.

    Example:
        >>> import tokenlake
        >>> class Lower(tokenlake.Transform):
        ...     def __call__(self, example):
        ...         return {**example, "text": example["text"].lower()}
        >>> Lower()({"text": "A"})
        {'text': 'a'}
    """

    @abstractmethod
    def __call__(self, example: Row) -> Row | None:
        """Return the new row, or None to leave the row out.

        Raises:
            BadRecordError: The row cannot be used.
        """

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the new row alone, or nothing.

        Raises:
            ConfigError: The transform returned neither a dict nor None.
        """
        result = self(example)
        if result is None:
            return ()
        if isinstance(result, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            return (result,)
        raise ConfigError(
            f"a transform returned {type(result).__name__}, must be a dict, or None, which leaves the row out"
        )

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply the transform to many rows.

        The result equals that of calling it on each, but comes faster where it works on
        columns.
        """
        columns = plain_columns(rows)
        if columns is not None:
            outcome = self.on_columns(columns)
            if outcome is not None:
                return outcome
        return super().on_rows(rows)

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Apply the transform to columns; None where it works row by row alone."""
        return None


class FieldTransform(Transform):
    """A transform that names the fields it reads.

    A row that lacks a required field is bad.

    Args:
        reads: Fields that it reads; None for any.
        makes: Fields that it makes or removes, so that the input's are not in the new
            rows.
        requires: Fields that every row must have.
    """

    def __init__(
        self,
        reads: Fields = (),
        makes: Sequence[str] = (),
        requires: Sequence[str] = (),
    ) -> None:
        self._reads = reads
        self._makes = frozenset(makes)
        self._requires = tuple(requires)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the wanted fields that are not made here, and those that it reads."""
        return needed(wanted, self._reads, self._makes)

    def fault(self, names: Row | list[str]) -> Fault | None:
        """Return the fault (``missing_field``) of a row; None where it can be used.

        Args:
            names: Row, or the names of its fields.
        """
        missing_fields = [field for field in self._requires if field not in names]
        if not missing_fields:
            return None
        noun = "field" if len(missing_fields) == 1 else "fields"
        missing_names = ", ".join(map(repr, missing_fields))
        first_names = list(names)[:_SHOWN_FIELDS]
        existing_names = ", ".join(map(repr, first_names)) or "no fields"
        detail = f"{type(self).__name__}: the row has no {noun} {missing_names}; it has {existing_names}"
        return Fault("missing_field", detail)

    def __call__(self, example: Row) -> Row:
        """Return the new row.

        Raises:
            BadRecordError: The row lacks a required field.
        """
        fault = self.fault(example)
        if fault:
            raise BadRecordError(fault.detail, reason=fault.reason)
        return self.of_row(example)

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Apply the transform to columns; None where it works row by row alone."""
        # A column that is missing is missing in every row.
        fault = self.fault(columns.schema.names)
        if fault:
            bad = tuple((index, fault) for index in range(columns.num_rows))
            return StepOutcome(Rows(objects=[]), np.zeros(0, np.int64), bad=bad)
        new_columns = self.of_columns(columns)
        if new_columns is None:
            return None
        return changed(new_columns, columns.num_rows)

    @abstractmethod
    def of_row(self, row: Row) -> Row:
        """Return the new row of a row that has the required fields."""

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the new columns of rows that have the required fields.

        None where they are made row by row.
        """
        return None


class ExpandTransform(RowStep):
    """A function of a row that returns any number of rows.

    Define `expand`, or `__call__` as a generator.

    Example:
        >>> import tokenlake
        >>> class Lines(tokenlake.ExpandTransform):
        ...     def expand(self, example):
        ...         return [{"text": line} for line in example["text"].splitlines()]
        >>> Lines().expand({"text": "a\\nb"})
        [{'text': 'a'}, {'text': 'b'}]
    """

    def __init_subclass__(cls) -> None:
        # Each is defined by the other: a class with neither would call itself forever.
        has_expand = cls.expand is not ExpandTransform.expand
        has_call = cls.__call__ is not ExpandTransform.__call__
        if not has_expand and not has_call:
            raise TypeError(
                f"{cls.__name__} defines neither expand nor __call__, and needs one of them"
            )

    def __call__(self, example: Row) -> Iterator[Row]:
        """Return the rows made of `example`, none to leave it out."""
        return iter(self.expand(example))

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows made of `example`, none to leave it out."""
        return list(self(example))


@final
class MapTransform(Transform):
    """A function of a row as a step; it returns a row, or None to leave the row out.

    Args:
        fn: Function of a row.

    Example:
        >>> import tokenlake
        >>> tokenlake.MapTransform(lambda row: {"n": row["n"] + 1})({"n": 1})
        {'n': 2}
    """

    def __init__(self, fn: RowFunction) -> None:
        self._fn = fn

    def __call__(self, example: Row) -> Row | None:
        """Call the function."""
        return self._fn(example)


@final
class ChainedTransform(Transform):
    """Several steps, one after the other.

    Args:
        transforms: Steps or functions of a row, in order; the steps of chains among
            them are taken one by one.

    Raises:
        ConfigError: One is neither a step nor a function.

    Example:
        >>> import tokenlake
        >>> chain = tokenlake.ChainedTransform([tokenlake.DropFields(["id"]), lambda row: {**row, "n": 1}])
        >>> chain({"id": 7, "text": "a"})
        {'text': 'a', 'n': 1}
    """

    def __init__(self, transforms: Sequence[RowStep | RowFunction]) -> None:
        # Chains are flattened, so that each step gets columns where it can.
        steps: list[RowStep] = []
        for transform in transforms:
            if isinstance(transform, ChainedTransform):
                steps += transform.steps
            elif isinstance(transform, RowStep):
                steps.append(transform)
            elif callable(transform):  # pyright: ignore[reportUnnecessaryComparison]
                steps.append(MapTransform(transform))
            else:
                raise ConfigError(
                    f"transforms: got {transform!r}, must be a Transform or a function of a row"
                )
        self.steps: Final[tuple[RowStep, ...]] = tuple(steps)

    def __call__(self, example: Row) -> Row | None:
        """Apply all steps to one row.

        A chain that expands rows has no single row to return.

        Raises:
            ConfigError: A step is an ExpandTransform; use :meth:`on_rows`, or
                `TransformedShardedSource`.
        """
        for step in self.steps:
            if isinstance(step, ExpandTransform):
                raise ConfigError(
                    f"{type(step).__name__} returns several rows for one, so this chain cannot be called with a row; "
                    "use on_rows, or put it into a TransformedShardedSource"
                )
        return next(iter(self.expand(example)), None)

    def expand(self, example: Row) -> Sequence[Row]:
        """Return all rows that the steps make of one row."""
        rows: list[Row] = [example]
        for step in self.steps:
            new_rows: list[Row] = []
            for row in rows:
                new_rows += step.expand(row)
            rows = new_rows
        return rows

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Apply each step to all rows.

        `origin` and `bad` hold indices of the input rows.
        """
        outcome = StepOutcome(rows, np.arange(len(rows)))
        for step in self.steps:
            outcome = _combined(outcome, step.on_rows(outcome.rows))
        return outcome

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the input rows on which the wanted fields depend.

        `wanted` are fields of the last step's rows.
        """
        # The fields that a step needs are wanted of the step before it.
        field_names = wanted
        for step in reversed(self.steps):
            field_names = step.needs(field_names)
        return field_names


def plain_columns(rows: Rows) -> pa.RecordBatch | None:
    """Return the columns of rows that a step should take as columns.

    None for rows to be taken as objects.

    Objects come first: those of JSON hold more than the columns made of them.
    """
    if rows.has_objects:
        return None
    # An object has one value for a name: columns of one name cannot become objects.
    names = rows.columns.schema.names
    if len(set(names)) < len(names):
        return None
    return rows.columns


def needed(wanted: Fields, reads: Fields, makes: Collection[str] = ()) -> Fields:
    """Return the input fields that a step needs.

    Args:
        wanted: Fields of the new rows that are wanted.
        reads: Fields that the step reads.
        makes: Fields that the step makes or removes.
    """
    if wanted is None or reads is None:
        return None
    passed_on = [name for name in wanted if name not in makes]
    return tuple(dict.fromkeys([*passed_on, *reads]))


def fault_of(error: BadRecordError) -> Fault:
    """Return the fault of a record that raised an error."""
    reason = str(error.details.get("reason", DROPPED))
    return Fault(reason, str(error), error.field_path or "")


def called(
    function: Callable[[Any], Any], values: Iterable[Any]
) -> tuple[list[Any], Faults]:
    """Call a function on each value.

    Returns:
        Results, None for bad values; and the faults of these.
    """
    results: list[Any] = []
    bad: list[tuple[int, Fault]] = []
    for index, value in enumerate(values):
        try:
            results.append(function(value))
        except BadRecordError as error:
            results.append(None)
            bad.append((index, fault_of(error)))
    return results, tuple(bad)


# ---- outcomes ------------------------------------------------------------------------


def _combined(first: StepOutcome, second: StepOutcome) -> StepOutcome:
    """Return the outcome of two steps, the second applied to the rows of the first.

    A row that the first step expanded counts as filtered or bad at most once, and only
    if nothing is left of it: the rows that it became were never rows of the input.
    """
    # An expanded row has its index several times.
    is_expanded = len(first.origin) > 1 and not (np.diff(first.origin) > 0).all()
    if is_expanded:
        bad, filtered = _faults_of_expanded(first, second)
    else:
        bad: list[tuple[int, Fault]] = []
        for index, fault in second.bad:
            bad.append((int(first.origin[index]), fault))
        filtered = _added(first.filtered, second.filtered)
    # Indices of the second step are those of the first one's rows.
    origin = first.origin[second.origin]
    all_bad = sorted([*first.bad, *bad], key=itemgetter(0))
    return StepOutcome(second.rows, origin, filtered, tuple(all_bad))


def _faults_of_expanded(
    first: StepOutcome, second: StepOutcome
) -> tuple[list[tuple[int, Fault]], dict[str, int]]:
    """Return the bad input rows and the counts of filtered ones.

    The first step expanded rows.
    """
    remaining_rows = set(first.origin[second.origin].tolist())
    bad: dict[int, Fault] = {}
    for index, fault in second.bad:
        row = int(first.origin[index])
        if row not in remaining_rows:
            bad.setdefault(row, fault)
    # The second step counts by one reason where it leaves rows out.
    filtered_rows = set(first.origin.tolist()) - remaining_rows - bad.keys()
    reason = next(iter(second.filtered), DROPPED)
    filtered = _counted(reason, len(filtered_rows))
    return list(bad.items()), _added(first.filtered, filtered)


def _added(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """Return the sums of two counts by reason."""
    sums = dict(left)
    for reason, count in right.items():
        sums[reason] = sums.get(reason, 0) + count
    return sums


def _counted(reason: str, count: int) -> dict[str, int]:
    """Return the count of rows that were left out, empty where none was."""
    if not count:
        return {}
    return {reason: count}


def changed(columns: pa.RecordBatch, rows: int) -> StepOutcome:
    """Return the outcome of a step that made one row of each of `rows` rows.

    Args:
        columns: New columns; there may be none.
        rows: Number of rows.
    """
    origin = np.arange(rows)
    # Without columns the number of rows would be lost.
    if not columns.num_columns:
        return StepOutcome(Rows(objects=[{} for _ in range(rows)]), origin)
    return StepOutcome(Rows(columns), origin)


def kept(rows: Rows, keep: Bools, reason: str, bad: Faults = ()) -> StepOutcome:
    """Return the outcome of a filter.

    Args:
        rows: Rows.
        keep: bool[n]: False for rows that are left out, and for bad ones.
        reason: Reason under which rows are counted that are left out.
        bad: Faults of bad rows.
    """
    origin = np.flatnonzero(keep)
    left_out = len(rows) - len(origin) - len(bad)
    return StepOutcome(rows.select(keep), origin, _counted(reason, left_out), bad)


# ---- columns -------------------------------------------------------------------------


def with_column(columns: pa.RecordBatch, name: str, values: Array) -> pa.RecordBatch:
    """Return columns with `values` under a name.

    They are put in the place of a column of that name, or become the last.
    """
    batch: Any = columns
    column_index = columns.schema.get_field_index(name)
    if column_index < 0:
        return batch.append_column(name, values)
    return batch.set_column(column_index, name, values)


def column_or_none(values: Sequence[Any]) -> Array | None:
    """Return values as a column that gives back equal values of the same types.

    None where no column does.
    """
    value_types = frozenset[type[Any]](map(type, values)) - {type(None)}
    if len(value_types) > 1 or not value_types <= _SIMPLE_TYPES:
        return None
    # Arrow would make floats of larger integers, or raise.
    if int in value_types and not all(_is_int64(value) for value in values):
        return None
    try:
        return column_of(values)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None


def _is_int64(value: int | None) -> bool:
    return value is None or -_INT64_LIMIT <= value < _INT64_LIMIT
