"""Shapes of columns: types of JSON values and Arrow columns, merged over many.

Two records ``{"a": 1}`` and ``{"a": 2.5, "b": "x"}`` merge into the columns ``a:
double`` and ``b: string``, of which ``b`` is nullable, because a record lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast, final

import pyarrow as pa

from tokenlake.base.arrays import STRINGS
from tokenlake.runtime.column_types import is_list

# Fields of a struct that are shown; JSON objects used as dictionaries have thousands.
_SHOWN_FIELDS: Final = 12
# Keys of a turn, in the two forms of conversations that chat templates know.
_CHAT_KEYS: Final = (frozenset({"role", "content"}), frozenset({"from", "value"}))


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """Type of the values of a column.

    Attributes:
        kind: ``string``, ``int64``, ``struct`` and so on; ``null`` if no value was
            seen, ``mixed`` if values of several types were.
        fields: Names and shapes of a struct's fields, in order.
        item: Shape of a list's values.
        nullable: True if a value may be null or missing by the schema; without a
            schema, if one was.
    """

    kind: str
    fields: tuple[tuple[str, Shape], ...] = ()
    item: Shape | None = None
    nullable: bool = False

    def __str__(self) -> str:
        """Return the type as text: ``list<struct<role: string, content: string>>``."""
        if self.item is not None:
            return f"{self.kind}<{self.item}>"
        if self.kind != "struct":
            return self.kind
        fields = [f"{name}: {shape}" for name, shape in self.fields[:_SHOWN_FIELDS]]
        hidden_count = len(self.fields) - len(fields)
        if hidden_count:
            fields.append(f"{hidden_count} more")
        return f"struct<{', '.join(fields)}>"

    @property
    def is_text(self) -> bool:
        """True if the values are strings."""
        return self.kind == "string"

    @property
    def is_chat(self) -> bool:
        """True if the values are lists of turns.

        A turn is an object with `role` and `content`, or with `from` and `value`.
        """
        if self.item is None:
            return False
        names = set(dict(self.item.fields))
        return any(keys <= names for keys in _CHAT_KEYS)


NULL: Final = Shape("null", nullable=True)
"""Shape of a value that is missing or null."""


def shape_of_type(kind: pa.DataType, nullable: bool = True) -> Shape:
    """Return the shape of an Arrow type, without encodings and widths of offsets."""
    arrow_type: Any = kind  # the stubs leave the types inside types open
    types: Any = pa.types
    # Dictionaries and extensions are ways of storing other types.
    if types.is_dictionary(kind):
        return shape_of_type(arrow_type.value_type, nullable)
    if isinstance(kind, pa.BaseExtensionType):
        return shape_of_type(arrow_type.storage_type, nullable)
    if types.is_struct(kind):
        fields: list[tuple[str, Shape]] = []
        for index in range(arrow_type.num_fields):
            field = arrow_type.field(index)
            fields.append((field.name, shape_of_type(field.type, field.nullable)))
        return Shape("struct", fields=tuple(fields), nullable=nullable)
    if is_list(kind):
        item = shape_of_type(arrow_type.value_type)
        return Shape("list", item=item, nullable=nullable)
    if kind in STRINGS:
        return Shape("string", nullable=nullable)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind)
    if is_binary or types.is_binary_view(kind):
        return Shape("binary", nullable=nullable)
    return Shape(str(kind), nullable=nullable)


def shape_of_value(value: object) -> Shape:
    """Return the shape of one JSON value."""
    if value is None:
        return NULL
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        fields: list[tuple[str, Shape]] = []
        for name, item in entries.items():
            fields.append((name, shape_of_value(item)))
        return Shape("struct", fields=tuple(fields))
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return Shape("list", item=merged(shape_of_value(item) for item in items))
    # A bool is an int in Python, so that it is tested first.
    if isinstance(value, bool):
        return Shape("bool")
    if isinstance(value, int):
        return Shape("int64")
    if isinstance(value, float):
        return Shape("double")
    return Shape("string")


def merged(shapes: Iterable[Shape]) -> Shape:
    """Return the shape of values of all these shapes, whatever their order.

    It is :data:`NULL` if there are none.
    """
    # Nulls make the shape nullable and have no other effect.
    nullable = False
    typed_shapes: list[Shape] = []
    for shape in shapes:
        nullable = nullable or shape.nullable
        if shape.kind != "null":
            typed_shapes.append(shape)
    if not typed_shapes:
        return NULL
    # Integers are numbers, too; every other pair of types is a mixture.
    kinds = {shape.kind for shape in typed_shapes}
    if kinds == {"int64", "double"}:
        return Shape("double", nullable=nullable)
    if len(kinds) > 1:
        return Shape("mixed", nullable=nullable)
    # Structs and lists are merged by their contents.
    if kinds == {"struct"}:
        structs = [dict(shape.fields) for shape in typed_shapes]
        return Shape("struct", fields=_fields(structs), nullable=nullable)
    if kinds == {"list"}:
        items = [shape.item for shape in typed_shapes if shape.item is not None]
        return Shape("list", item=merged(items), nullable=nullable)
    return replace(typed_shapes[0], nullable=nullable)


def _fields(structs: list[dict[str, Shape]]) -> tuple[tuple[str, Shape], ...]:
    """Return the merged fields of structs, in the order of their first occurrence.

    A field that a struct lacks is null in it.
    """
    names: dict[str, None] = {}
    for struct in structs:
        names.update(dict.fromkeys(struct))
    fields: list[tuple[str, Shape]] = []
    for name in names:
        shape = merged(struct.get(name, NULL) for struct in structs)
        fields.append((name, shape))
    return tuple(fields)


def merged_columns(tables: Iterable[Mapping[str, Shape]]) -> dict[str, Shape]:
    """Return the columns of several tables; one that a table lacks is nullable."""
    structs: list[dict[str, Shape]] = []
    for table in tables:
        structs.append(dict(table))
    return dict(_fields(structs))
