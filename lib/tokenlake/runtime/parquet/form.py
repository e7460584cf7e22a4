"""The form in which Parquet has a schema of packed rows: its elements, key-values, and the facts of each column."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tokenlake.runtime.parquet.fields import ColumnMetaDataField, SchemaElementField
from tokenlake.runtime.parquet.pages import RLE
from tokenlake.runtime.parquet.thrift_writer import BINARY, I32, I64, Fields, Written, write_thrift

PLAIN: Final = 0

RLE_DICTIONARY: Final = 8

_ZSTD: Final = 6
_REQUIRED: Final = 0
_REPEATED: Final = 2
_LIST: Final = 3
BOOL: Final = pa.bool_()
INT32: Final = pa.int32()
_TYPES: Final[dict[Any, int]] = {BOOL: 0, INT32: 1, pa.int64(): 2}

ELEMENT: Final[Written] = {1: I32, 3: I32, 4: BINARY, 5: I32, 6: I32, 10: {3: {}}}
FACTS: Final[dict[int, Written]] = {
    1: I32,
    2: [I32],
    3: [BINARY],
    4: I32,
    **dict.fromkeys((5, 6, 7, 9, 11), I64),
}

KEY_VALUES: Final[Written] = [{1: BINARY, 2: BINARY}]


class LeafKind(NamedTuple):
    """The common facts of all column chunks of a leaf.

    Attributes:
        values: Arrow type of the values.
        plain: Metadata of a chunk whose values are stored as they are.
        indices: Metadata of a chunk of indices into a dictionary.
    """

    values: pa.DataType
    plain: Fields
    indices: Fields


class ListColumn(NamedTuple):
    """A column of lists.

    Attributes:
        name: Name of the field.
        length: Length of each list; 0: any.
        leaves: The values, or the fields of the structs that the values are.
    """

    name: str
    length: int
    leaves: tuple[LeafKind, ...]


class ParquetForm(NamedTuple):
    """A schema as the writer needs it, and as the footer has it.

    Attributes:
        columns: Columns in order.
        elements: Schema elements of Parquet, as written Thrift.
        described: Key-values of the file, as written Thrift.
    """

    columns: tuple[ListColumn, ...]
    elements: bytes
    described: bytes


@cache
def parquet_form(serialized: bytes) -> ParquetForm:
    """Return the Parquet form of a schema, computed once for the thousands of small shards that share it.

    Args:
        serialized: the schema as an Arrow IPC message. A schema with metadata has no hash in pyarrow below 26.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    elements, columns = [_element("schema", children=len(schema.names))], list[ListColumn]()
    for field in schema:
        # A list is a group of a repeated group of its values.
        kind: Any = field.type
        held, path = kind.value_type, (field.name, "list", "element")
        elements.append(_element(field.name, _REQUIRED, children=1, is_list=True))
        elements.append(_element("list", _REPEATED, children=1))
        if pa.types.is_struct(held):
            elements.append(_element("element", _REQUIRED, children=held.num_fields))
            leaves = [(each.type, (*path, each.name)) for each in held]
        else:
            leaves = [(held, path)]
        elements += [_element(names[-1], _REQUIRED, kind=_TYPES[values]) for values, names in leaves]
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else 0
        columns.append(ListColumn(field.name, length, tuple(_leaf_kind(*leaf) for leaf in leaves)))
    described = {**(schema.metadata or {}), b"ARROW:schema": base64.b64encode(serialized)}
    return ParquetForm(
        columns=tuple(columns),
        elements=write_thrift([ELEMENT], elements),
        described=write_thrift(KEY_VALUES, [{1: key, 2: value} for key, value in described.items()]),
    )


def _leaf_kind(values: pa.DataType, path: tuple[str, ...]) -> LeafKind:
    # Lists that are the same in every chunk are written once.
    names = write_thrift([BINARY], [name.encode() for name in path])

    def metadata(*encodings: int) -> Fields:
        return {
            ColumnMetaDataField.TYPE: _TYPES[values],
            ColumnMetaDataField.ENCODINGS: write_thrift([I32], encodings),
            ColumnMetaDataField.PATH: names,
            ColumnMetaDataField.CODEC: _ZSTD,
        }

    return LeafKind(values, plain=metadata(PLAIN, RLE), indices=metadata(PLAIN, RLE, RLE_DICTIONARY))


def _element(
    name: str,
    repetition: int | None = None,
    *,
    kind: int | None = None,
    children: int = 0,
    is_list: bool = False,
) -> Fields:
    """Return an element of the schema; fields that it does not have are left out."""
    fields: dict[int, Any] = {}
    if kind is not None:
        fields[SchemaElementField.TYPE] = kind
    if repetition is not None:
        fields[SchemaElementField.REPETITION] = repetition
    fields[SchemaElementField.NAME] = name.encode()
    if children:
        fields[SchemaElementField.NUM_CHILDREN] = children
    if is_list:
        fields[SchemaElementField.CONVERTED_TYPE] = _LIST
        fields[SchemaElementField.LOGICAL_TYPE] = {3: {}}  # a list, without parameters
    return fields
