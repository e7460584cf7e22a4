"""Numbers of the fields in the Thrift structs of Parquet.

They are those of ``parquet.thrift`` in the format's repository.

Each class has the fields of a struct that :mod:`tokenlake.runtime.parquet.writer`
writes.
"""

from __future__ import annotations

from typing import Final, final


@final
class FileMetaDataField:
    """Footer of a file."""

    VERSION: Final = 1
    SCHEMA: Final = 2
    NUM_ROWS: Final = 3
    ROW_GROUPS: Final = 4
    KEY_VALUES: Final = 5
    CREATED_BY: Final = 6


@final
class SchemaElementField:
    """Element of the schema: a column, or a group of columns."""

    TYPE: Final = 1
    REPETITION: Final = 3
    NAME: Final = 4
    NUM_CHILDREN: Final = 5
    CONVERTED_TYPE: Final = 6
    LOGICAL_TYPE: Final = 10


@final
class RowGroupField:
    """Row group."""

    COLUMNS: Final = 1
    UNCOMPRESSED_SIZE: Final = 2
    NUM_ROWS: Final = 3
    COMPRESSED_SIZE: Final = 6


@final
class ColumnChunkField:
    """Column chunk: a deprecated offset, and its metadata."""

    FILE_OFFSET: Final = 2
    META_DATA: Final = 3


@final
class ColumnMetaDataField:
    """Metadata of a column chunk."""

    TYPE: Final = 1
    ENCODINGS: Final = 2
    PATH: Final = 3
    CODEC: Final = 4
    NUM_VALUES: Final = 5
    UNCOMPRESSED_SIZE: Final = 6
    COMPRESSED_SIZE: Final = 7
    DATA_PAGE_OFFSET: Final = 9
    DICTIONARY_PAGE_OFFSET: Final = 11


@final
class PageHeaderField:
    """Header of a page."""

    TYPE: Final = 1
    UNCOMPRESSED_SIZE: Final = 2
    COMPRESSED_SIZE: Final = 3
    CRC: Final = 4
    DATA_PAGE: Final = 5
    DICTIONARY_PAGE: Final = 7


@final
class DataPageHeaderField:
    """Part of a header that only data pages have."""

    NUM_VALUES: Final = 1
    ENCODING: Final = 2
    DEFINITION_LEVELS: Final = 3
    REPETITION_LEVELS: Final = 4


@final
class DictionaryPageHeaderField:
    """Part of a header that only dictionary pages have."""

    NUM_VALUES: Final = 1
    ENCODING: Final = 2
