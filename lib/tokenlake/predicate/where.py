"""`where`: one SQL predicate over the fields of a record, as DuckDB understands it.

Names are those of the data, letter by letter: ``meta.lang`` is a field of the field "meta", and a field whose
own name has a dot is quoted (``"a.b"``). A type that does not fit is an error; TRY_CAST makes null of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.predicate.bounds import ColumnRange, holds_nowhere
from tokenlake.predicate.duck import engine
from tokenlake.predicate.expression import Path, parse

__all__ = ["ColumnRange", "Predicate"]


@final
class Predicate:
    """A predicate on records; a record for which it is null is left out, as in SQL's WHERE.

    Attributes:
        columns: the top-level fields that it looks at, sorted.
    """

    columns: tuple[str, ...]

    def __init__(self, sql: str) -> None:
        """Compile `sql`; what was compiled once in this process costs nothing.

        Raises:
            ConfigError: it is not one expression over fields, or not a pure function of a record.
        """
        self._expression = parse(sql)
        self.columns = self._expression.columns

    def mask(self, rows: pa.RecordBatch, *, missing_is_null: bool = False) -> npt.NDArray[np.bool_]:
        """Return bool[n], where the predicate is true.

        Args:
            rows: with the columns of the predicate, and perhaps others.
            missing_is_null: what `rows` lacks is null, as in JSON, where every block may have other fields.

        Raises:
            ConfigError: it cannot be evaluated on these columns.
        """
        wanted = self._columns_of(rows, missing_is_null)
        sql = self._expression.sql
        try:
            value = engine().evaluate(sql, wanted)
        except ConfigError as error:
            raise ConfigError(
                f"where: {sql!r} cannot be evaluated: {error}. The columns are {_types(wanted)}. Where types do not "
                "fit, TRY_CAST(field AS type) converts, and makes null of what cannot be converted.",
                where=sql,
            ) from error
        if pa.types.is_null(value.type):
            return np.zeros(len(rows), np.bool_)
        if not pa.types.is_boolean(value.type):
            raise ConfigError(
                f"where: {sql!r} is of type {value.type}, expected a condition that is true or false; "
                "compare it with something",
                where=sql,
            )
        kept: Any = value
        return kept.fill_null(False).to_numpy()

    def excludes(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """Say whether it surely holds for no record of a stretch with these column ranges."""
        return holds_nowhere(self._expression.tree, ranges)

    def _columns_of(self, rows: pa.RecordBatch, missing_is_null: bool) -> pa.RecordBatch:
        names: list[str] = rows.schema.names
        columns: dict[str, pa.Array[Any]] = {}
        for name in self.columns:
            if names.count(name) > 1:
                raise ConfigError(f"where: there are several columns {name!r}", where=self._expression.sql)
            if name not in names and not missing_is_null:
                raise self._unknown(name, names)
            columns[name] = rows.column(name) if name in names else pa.nulls(len(rows))
        if missing_is_null:
            for path in self._expression.paths:
                columns[path[0]] = _with_fields(columns[path[0]], path[1:])
        return pa.RecordBatch.from_pydict({name: _from_zero(column) for name, column in columns.items()})

    def _unknown(self, name: str, names: list[str]) -> ConfigError:
        folded = {each.lower(): each for each in names}
        near = [folded[each] for each in difflib.get_close_matches(name.lower(), folded, 3, cutoff=0.6)]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return ConfigError(
            f"where: {self._expression.sql!r} looks at {name!r}, which is no column.{hint} "
            f"The columns are {', '.join(names) or 'none'}.",
            where=self._expression.sql,
            near=near,
        )


def _with_fields(array: pa.Array[Any], path: Path) -> pa.Array[Any]:
    """Return structs that have the field at `path`, null where it is missing; other types as they are."""
    kind: Any = array.type
    if not path or not pa.types.is_struct(kind):
        return array
    structs: Any = array
    names = [kind.field(index).name for index in range(kind.num_fields)]
    children: list[Any] = [structs.field(index) for index in range(kind.num_fields)]
    found = [index for index, name in enumerate(names) if name.lower() == path[0].lower()]
    if found:
        child = _with_fields(children[found[0]], path[1:])
        if child is children[found[0]]:
            return array
        children[found[0]] = child
    else:
        names.append(path[0])
        children.append(pa.nulls(len(array)))
    return pa.StructArray.from_arrays(children, names=names, mask=structs.is_null())


def _from_zero(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return nested values without offsets into their buffers, which DuckDB does not take in structs."""
    if not pa.types.is_nested(array.type) or not _has_offset(array):
        return array
    nested: Any = array
    return nested.take(pa.array(np.arange(len(array))))


def _has_offset(array: Any) -> bool:
    kind: Any = array.type
    if array.offset or pa.types.is_map(kind) or pa.types.is_union(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_offset(array.field(index)) for index in range(kind.num_fields))
    return pa.types.is_nested(kind) and _has_offset(array.values)


def _types(rows: pa.RecordBatch) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in rows.schema)
