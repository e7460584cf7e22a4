"""Form of a schema of packed rows in Parquet.

It has the schema elements, the key-values and the metadata of the columns.
"""

from __future__ import annotations

import base64
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tokenlake.runtime.parquet.fields import ColumnMetaDataField, SchemaElementField
from tokenlake.runtime.parquet.pages import RLE
from tokenlake.runtime.parquet.thrift_writer import (
    BINARY,
    I32,
    I64,
    Fields,
    Written,
    write_thrift,
)

# Encodings of values.
PLAIN: Final = 0
RLE_DICTIONARY: Final = 8

# Parquet's numbers of codecs, repetitions and converted types.
_ZSTD: Final = 6
_REQUIRED: Final = 0
_REPEATED: Final = 2
_LIST: Final = 3

BOOL: Final = pa.bool_()
INT32: Final = pa.int32()
_TYPE_NUMBERS: Final[dict[Any, int]] = {BOOL: 0, INT32: 1, pa.int64(): 2}

# Types of the fields of Thrift structs, by field number.
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
    """Metadata that all column chunks of a leaf share.

    Attributes:
        values: Arrow type of the values.
        plain: Metadata of a chunk whose values are stored as they are.
        indices: Metadata of a chunk of indices into a dictionary.
    """

    values: pa.DataType
    plain: Fields
    indices: Fields


class ListColumn(NamedTuple):
    """Column of lists.

    Attributes:
        name: Name of the field.
        length: Length of each list; 0 if lists may have any length.
        leaves: Values of the lists, or fields of the structs that the values are.
    """

    name: str
    length: int
    leaves: tuple[LeafKind, ...]


class ParquetForm(NamedTuple):
    """Schema as the writer and the footer need it.

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
    """Return the Parquet form of a schema.

    It is computed once for the thousands of small shards that share it.

    Args:
        serialized: Schema as an Arrow IPC message. (A schema with metadata has no hash
            in pyarrow below 26.)
    """
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    # The elements are the tree of the schema, in depth-first order. The root comes
    # first.
    elements = [_element("schema", children=len(schema.names))]
    columns: list[ListColumn] = []
    for field in schema:
        # A list is a group that contains a repeated group of its values.
        list_type: Any = field.type
        value_type = list_type.value_type
        path = (field.name, "list", "element")
        elements.append(_element(field.name, _REQUIRED, children=1, is_list=True))
        elements.append(_element("list", _REPEATED, children=1))
        leaves: list[LeafKind] = []
        if pa.types.is_struct(value_type):
            # A struct is one more group, with a leaf for each field.
            elements.append(
                _element("element", _REQUIRED, children=value_type.num_fields)
            )
            for child in value_type:
                type_number = _TYPE_NUMBERS[child.type]
                elements.append(
                    _element(child.name, _REQUIRED, type_number=type_number)
                )
                leaves.append(_leaf_kind(child.type, (*path, child.name)))
        else:
            type_number = _TYPE_NUMBERS[value_type]
            elements.append(_element("element", _REQUIRED, type_number=type_number))
            leaves.append(_leaf_kind(value_type, path))
        list_length = 0
        if pa.types.is_fixed_size_list(list_type):
            list_length = list_type.list_size
        columns.append(ListColumn(field.name, list_length, tuple(leaves)))

    # Arrow's own schema is a key-value: with it Arrow reads lists of a fixed length as
    # such.
    key_values = {
        **(schema.metadata or {}),
        b"ARROW:schema": base64.b64encode(serialized),
    }
    return ParquetForm(
        columns=tuple(columns),
        elements=write_thrift([ELEMENT], elements),
        described=write_thrift(
            KEY_VALUES, [{1: key, 2: value} for key, value in key_values.items()]
        ),
    )


def _leaf_kind(values: pa.DataType, path: tuple[str, ...]) -> LeafKind:
    """Return the metadata of a leaf.

    Args:
        values: Arrow type of the values.
        path: Names from the column down to the leaf.
    """
    # Chunks that hold a dictionary differ only in their encodings.
    # Lists that are the same in every chunk are written once.
    path_bytes = write_thrift([BINARY], [name.encode() for name in path])

    def metadata(*encodings: int) -> Fields:
        return {
            ColumnMetaDataField.TYPE: _TYPE_NUMBERS[values],
            ColumnMetaDataField.ENCODINGS: write_thrift([I32], encodings),
            ColumnMetaDataField.PATH: path_bytes,
            ColumnMetaDataField.CODEC: _ZSTD,
        }

    return LeafKind(
        values, plain=metadata(PLAIN, RLE), indices=metadata(PLAIN, RLE, RLE_DICTIONARY)
    )


def _element(
    name: str,
    repetition: int | None = None,
    *,
    type_number: int | None = None,
    children: int = 0,
    is_list: bool = False,
) -> Fields:
    """Return an element of the schema. Fields that it does not have are left out.

    Args:
        name: Name of the column or group.
        repetition: Parquet's number for required or repeated; None for the root.
        type_number: Parquet's number of the values' type; None for a group.
        children: Number of elements directly in a group.
        is_list: True for a group that is a list.
    """
    # Numbers of fields must rise, so that they are added in this order.
    fields: dict[int, Any] = {}
    if type_number is not None:
        fields[SchemaElementField.TYPE] = type_number
    if repetition is not None:
        fields[SchemaElementField.REPETITION] = repetition
    fields[SchemaElementField.NAME] = name.encode()
    if children:
        fields[SchemaElementField.NUM_CHILDREN] = children
    if is_list:
        fields[SchemaElementField.CONVERTED_TYPE] = _LIST
        fields[SchemaElementField.LOGICAL_TYPE] = {3: {}}  # a list, without parameters
    return fields
