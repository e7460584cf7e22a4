"""Rows on their way from an input to text: as columns, or as Python objects, each made of the other when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.columns import columns_of, names_in

Row = dict[str, Any]


@final
class Rows:
    """n rows, never changed in place.

    Columnar inputs come as columns and JSON as objects; a step takes the form it works in, and what nobody asks
    for is never made. The two forms of JSON rows differ in one thing: a missing key is missing in an object, and
    null in the columns.
    """

    def __init__(
        self,
        columns: pa.RecordBatch | None = None,
        objects: list[Row] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Give either form, or both of the same rows.

        Args:
            names: the fields that columns are made of where only objects are given, None for all; objects may have
                further ones.
        """
        if columns is None and objects is None:
            raise TypeError("rows need columns or objects")
        self._columns, self._objects, self._names = columns, objects, names

    def __len__(self) -> int:
        return len(self._objects) if self._objects is not None else len(self.columns)

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows as columns; made of objects by the rules of :mod:`tokenlake.columns`."""
        if self._columns is None:
            assert self._objects is not None
            names = names_in(self._objects) if self._names is None else self._names
            self._columns = columns_of(self._objects, names)
        return self._columns

    @property
    def objects(self) -> list[Row]:
        """The rows as dicts (do not modify)."""
        if self._objects is None:
            assert self._columns is not None
            self._objects = self._columns.to_pylist()
        return self._objects

    @property
    def is_columnar(self) -> bool:
        """Whether columns are there already, so that a step that can use either form should use them."""
        return self._columns is not None

    @property
    def has_objects(self) -> bool:
        """Whether objects are there already."""
        return self._objects is not None

    def select(self, mask: npt.NDArray[np.bool_]) -> Self:
        """Return the rows where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        columns = None if self._columns is None else self._columns.filter(pa.array(mask))
        objects = None if self._objects is None else list(compress(self._objects, mask.tolist()))
        return type(self)(columns, objects, self._names)

    def values(self, path: str) -> Sequence[Any]:
        """Return the field `path` of every row as Python values, None where it is missing.

        A field that bears the whole dotted path as its name comes first: ``a.b`` is the field "a.b", else field "b"
        of "a".
        """
        if self._objects is None and self._columns is not None:
            name = path if path in self._columns.schema.names else path.split(".", 1)[0]
            if name not in self._columns.schema.names:
                return [None] * len(self)
            values: list[Any] = self._columns.column(name).to_pylist()
            return values if name == path else [_inside(value, path[len(name) + 1 :]) for value in values]
        if "." not in path:
            return [row.get(path) for row in self.objects]
        return [_inside(row, path) for row in self.objects]


def _inside(value: Any, path: str) -> Any:
    while isinstance(value, dict):
        if path in value:
            return value[path]
        name, dot, path = path.partition(".")
        if not dot:
            return None
        value = value.get(name)
    return None
