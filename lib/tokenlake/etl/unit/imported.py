"""From records of token ids to documents, for a source whose tokens are made already.

1. The lists of a batch become one array of ids, with a mask of those that count toward
   the loss.
2. Records that cannot be used are bad ones: no list of integers, an id outside of the
   vocabulary, a mask of another length.
3. Padding is left out: ids where ``attention_mask`` or ``segment_ids`` is 0.
4. Documents end where their record ends, where the segment changes, and with the EOS
   rule ``split`` or ``none`` behind each EOS. With ``none`` that EOS is left out.

Everything works on flat arrays of the ids of all records.

Example: EOS is 0, the rule is ``none``, and a record is::

    input_ids       5 6 0 7 8 9 9
    attention_mask  1 1 1 1 1 0 0

Without padding it is ``5 6 0 7 8``. Documents begin at 5 and at 7, and are ``5 6`` and
``7 8`` without EOS. Two ids are counted as left out as padding, and one as a separator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Bools, Int32, Int64, offsets_of
from tokenlake.config.resolved import ResolvedTokens
from tokenlake.etl.packing.loss_marks import marked
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows

_COMPUTE: Final[Any] = pc
_ARROW: Final[Any] = pa
_IGNORED_LABEL: Final = -100
"""Label of an id that does not count toward the loss, as PyTorch and transformers
have it.
"""
# JSON knows no limit, but the column of ids has one.
_INT64_LIMIT: Final = 1 << 63
_LABELS: Final = "labels"
SEGMENTS: Final = "segment_ids"
"""Field that has a number for each document of a record, and 0 for padding."""
MASK_FIELDS: Final = ("attention_mask", SEGMENTS)
"""Fields that mark padding with 0."""

PADDING: Final = "padding"
"""Reason under which ids are counted that fill a record up."""
SEPARATORS: Final = "separators"
"""Reason under which ids of EOS are counted that only separated documents."""

Numbers: TypeAlias = npt.NDArray[Any]
LargeLists: TypeAlias = "pa.LargeListArray[Any]"


@final
@dataclass(frozen=True, slots=True)
class ImportedIds:
    """Documents of a batch of n records.

    Attributes:
        ids: Ids of m documents, marked with their loss if the source has a loss mask,
            large_list<int32>[m].
        origin: Index of the record of each document, ascending, int64[m].
        faults: Index of each record that cannot be used, and why.
        dropped: Reason -> number of ids that were left out.
    """

    ids: LargeLists
    origin: Int64
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])
    dropped: dict[str, int] = field(default_factory=dict[str, int])


def import_ids(rows: Rows, tokens: ResolvedTokens) -> ImportedIds:
    """Return the documents of records.

    Args:
        rows: Records with the fields of `tokens`.
        tokens: Form of the records, complete.
    """
    # 1. and 2. The lists of all fields, without the records that cannot be used.
    faults: dict[int, Fault] = {}
    lists = _usable_lists(rows, tokens, faults)
    is_usable = np.ones(len(rows), np.bool_)
    is_usable[list(faults)] = False
    usable_records = np.flatnonzero(is_usable)
    # 3. The ids that are no padding, and the record of each.
    id_lists = lists[tokens.field]
    content = id_lists.values
    record_of_id = np.repeat(np.arange(len(usable_records)), id_lists.lengths)
    is_content = _content_mask(lists, tokens)
    if is_content is not None:
        content = content[is_content]
        record_of_id = record_of_id[is_content]
    content = content.astype(np.int32)
    padding_count = len(id_lists.values) - len(content)
    # 4. Documents: the first id of each.
    segments = None
    if SEGMENTS in tokens.mask_fields:
        segments = lists[SEGMENTS].values[is_content]
    starts = np.flatnonzero(_begins_document(content, record_of_id, segments, tokens))
    offsets = np.append(starts, len(content))
    is_separator: Bools | None = None
    if tokens.eos == "none":
        is_separator = content == tokens.eos_token_id
    # Ids are marked after they were compared with EOS, which has no mark.
    if tokens.loss_field is not None:
        is_learned = _learned(lists[tokens.loss_field], tokens.loss_field)
        if is_content is not None:
            is_learned = is_learned[is_content]
        content = marked(content, is_learned)
    # 5. Leave the separators out; the ids behind them move forward.
    separator_count = 0
    if is_separator is not None:
        # The places of documents among the ids that stay.
        offsets = offsets_of((~is_separator).astype(np.int64))[offsets]
        content = content[~is_separator]
        separator_count = len(is_separator) - len(content)
    # 6. Records without any id stay as empty documents, so that they are counted.
    origin, offsets = _with_empty_records(
        record_of_id[starts], offsets, len(usable_records)
    )
    dropped: dict[str, int] = {}
    if padding_count:
        dropped[PADDING] = padding_count
    if separator_count:
        dropped[SEPARATORS] = separator_count
    return ImportedIds(
        ids=_ARROW.LargeListArray.from_arrays(
            _ARROW.array(offsets), _ARROW.array(content)
        ),
        origin=usable_records[origin],
        faults=faults,
        dropped=dropped,
    )


def _content_mask(lists: dict[str, _Lists], tokens: ResolvedTokens) -> Bools | None:
    """Return True for the ids that are no padding, bool[total].

    None if no field marks padding.
    """
    if not tokens.mask_fields:
        return None
    is_content = np.ones(len(lists[tokens.field].values), np.bool_)
    for mask_field in tokens.mask_fields:
        is_content &= lists[mask_field].values != 0
    return is_content


def _usable_lists(
    rows: Rows, tokens: ResolvedTokens, faults: dict[int, Fault]
) -> dict[str, _Lists]:
    """Return the lists of all fields, of the records that can be used.

    Args:
        rows: Records.
        tokens: Form of the records.
        faults: Index of a record -> why it cannot be used; it is filled.
    """
    lists: dict[str, _Lists] = {}
    for column in tokens.columns:
        lists[column] = _Lists.of(rows, column, faults)
    # The first fault of a record counts: a list that is none has a length of 0, too.
    id_lists = lists[tokens.field]
    _check_vocabulary(id_lists, tokens, faults)
    if tokens.row_length is not None:
        _check_rows(id_lists, tokens.row_length, faults)
    for column, values in lists.items():
        _check_lengths(column, values, id_lists, tokens.field, faults)
    if not faults:
        return lists
    is_usable = np.ones(len(rows), np.bool_)
    is_usable[list(faults)] = False
    return {column: values.select(is_usable) for column, values in lists.items()}


def no_rows(names: Sequence[str]) -> Rows:
    """Return no records of lists of ids."""
    no_ids: Any = _ARROW.array([], pa.large_list(pa.int32()))
    columns = [no_ids] * len(names)
    return Rows(_ARROW.RecordBatch.from_arrays(columns, names=list(names)))


def empty_texts(count: int) -> pa.LargeStringArray:
    """Return empty texts, for documents that come as ids."""
    offsets = _ARROW.py_buffer(np.zeros(count + 1, np.int64))
    return _ARROW.LargeStringArray.from_buffers(count, offsets, _ARROW.py_buffer(b""))


def ids_of(documents: LargeLists) -> tuple[Int32, Int64]:
    """Return the ids of documents, and their offsets; neither is copied.

    Returns:
        Ids, int32[total]; and where each document begins and the last one ends, int64[n
        + 1] from 0.
    """
    lists: Any = documents
    if not len(lists):
        return np.zeros(0, np.int32), np.zeros(1, np.int64)
    # A slice of an Arrow array has the offsets of the whole one, from its place on.
    offset_buffer = lists.buffers()[1]
    byte_offset = 8 * lists.offset
    offsets = np.frombuffer(offset_buffer, np.int64, len(lists) + 1, byte_offset)
    values: Int32 = lists.values.to_numpy()[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


@final
@dataclass(frozen=True, slots=True)
class _Lists:
    """Lists of integers of n records.

    Attributes:
        values: Numbers of all lists.
        offsets: Beginnings of the lists and the end of the last one, int64[n + 1] from 0.
    """

    values: Numbers
    offsets: Int64

    @property
    def lengths(self) -> Int64:
        """Number of values of each list, int64[n]."""
        return np.diff(self.offsets)

    def select(self, mask: Bools) -> _Lists:
        """Return the lists where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        lengths = self.lengths
        values = self.values[np.repeat(mask, lengths)]
        return _Lists(values, offsets_of(lengths[mask]))

    @classmethod
    def of(cls, rows: Rows, name: str, faults: dict[int, Fault]) -> _Lists:
        """Return a field of records as lists.

        A record without a list of integers gets an empty one, and a fault.

        Args:
            rows: Records.
            name: Name of the field.
            faults: Index -> fault, to which those of this field are added.
        """
        column: Any = None
        columns = rows.columns
        if name in columns.schema.names:
            column = columns.column(name)
        if column is not None and _holds_integers(column.type):
            return cls._of_column(column, name, faults)
        # Records of JSON that differ in their types, and records without the field.
        lists: list[list[int | None]] = []
        for index, row in enumerate(rows.objects):
            value: Any = row.get(name)
            if _is_list_of_integers(value):
                lists.append(value)  # a null in it has a fault of its own
                continue
            description = repr(value)[:80] if name in row else "no such field"
            detail = f"field {name!r} is {description}, expected a list of integers"
            faults.setdefault(index, Fault("no_ids", detail, name))
            lists.append([])
        column = _ARROW.array(lists, pa.large_list(pa.int64()))
        return cls._of_column(column, name, faults)

    @classmethod
    def _of_column(cls, column: Any, name: str, faults: dict[int, Fault]) -> _Lists:
        """Return a column of lists of integers."""
        # 1. A null has no list.
        lists: Any = column.cast(pa.large_list(column.type.value_type))
        is_null = lists.is_null().to_numpy(zero_copy_only=False)
        detail = f"field {name!r} is null, expected a list of integers"
        for row in np.flatnonzero(is_null).tolist():
            faults.setdefault(row, Fault("no_ids", detail, name))
        list_lengths = _COMPUTE.list_value_length(lists)
        lengths: Int64 = _COMPUTE.fill_null(list_lengths, 0).to_numpy()
        offsets = offsets_of(lengths)
        # 2. Nulls inside of lists become 0, so that the values are integers.
        values: Any = lists.flatten()
        if values.null_count:
            is_null_value = values.is_null().to_numpy(zero_copy_only=False)
            null_positions = np.flatnonzero(is_null_value)
            null_rows = np.searchsorted(offsets, null_positions, side="right") - 1
            # The first null of a record is its fault; the record is left out whole.
            for row, position in zip(null_rows, null_positions, strict=True):
                offset = int(position - offsets[row])
                fault = Fault(
                    "null_id",
                    f"field {name!r} is null at offset {offset}, expected an integer",
                    name,
                )
                faults.setdefault(int(row), fault)
            values = _COMPUTE.fill_null(values, 0)
        return cls(values.to_numpy(zero_copy_only=False), offsets)


def _is_list_of_integers(value: Any) -> bool:
    """Return whether a value of JSON is a list of integers and nulls."""
    if not isinstance(value, list):
        return False
    items = cast("list[Any]", value)
    return all(item is None or _is_integer(item) for item in items)


def _is_integer(value: Any) -> bool:
    """Return whether a value of JSON is an integer of 64 bits; true and false are none."""
    return type(value) is int and -_INT64_LIMIT <= value < _INT64_LIMIT


def _holds_integers(column_type: Any) -> bool:
    """Return whether a column holds lists of integers, or of true and false."""
    types = pa.types
    is_list = types.is_list(column_type) or types.is_large_list(column_type)
    if not is_list and not types.is_fixed_size_list(column_type):
        return False
    # Masks may be lists of true and false.
    value_type = column_type.value_type
    return types.is_integer(value_type) or types.is_boolean(value_type)


def _check_vocabulary(
    ids: _Lists, tokens: ResolvedTokens, faults: dict[int, Fault]
) -> None:
    """Add a fault for each record with an id that the tokenizer does not have."""
    is_unknown = (ids.values < 0) | (ids.values >= tokens.vocab_size)
    if not is_unknown.any():
        return
    # Of each record the first such id is named.
    positions = np.flatnonzero(is_unknown)
    record_of_position = np.searchsorted(ids.offsets, positions, side="right") - 1
    records, first_indices = np.unique(record_of_position, return_index=True)
    first_positions = positions[first_indices].tolist()
    for record, position in zip(records.tolist(), first_positions, strict=True):
        offset = position - int(ids.offsets[record])
        fault = Fault(
            "unknown_id",
            f"id {int(ids.values[position])} at offset {offset} of its ids is not in the vocabulary of the tokenizer, "
            f"which has ids 0 to {tokens.vocab_size - 1}",
            tokens.field,
        )
        faults.setdefault(record, fault)


def _check_rows(ids: _Lists, row_length: int, faults: dict[int, Fault]) -> None:
    """Add a fault for each record that is longer than a packed row.

    A shorter one is padded, as its files had it.
    """
    for record in np.flatnonzero(ids.lengths > row_length).tolist():
        fault = Fault(
            "longer_than_row",
            f"the record has {int(ids.lengths[record])} ids, expected at most {row_length}, the length of packed rows "
            "(pack.seq_length)",
        )
        faults.setdefault(record, fault)


def _check_lengths(
    name: str, lists: _Lists, ids: _Lists, id_field: str, faults: dict[int, Fault]
) -> None:
    """Add a fault for each record with a mask of another length than its ids."""
    for record in np.flatnonzero(lists.lengths != ids.lengths).tolist():
        fault = Fault(
            "other_length",
            f"field {name!r} has {int(lists.lengths[record])} values, expected {int(ids.lengths[record])}, one for "
            f"each id of {id_field!r}",
            name,
        )
        faults.setdefault(record, fault)


def _begins_document(
    ids: Int32, record_of_id: Int64, segments: Numbers | None, tokens: ResolvedTokens
) -> Bools:
    """Return True for the first id of each document, bool[total].

    Args:
        ids: Ids of all records without their padding, int32[total].
        record_of_id: Record of each id, ascending, int64[total].
        segments: Number of the document of each id within its record, integers[total];
            None if records have none.
        tokens: Form of the records.
    """
    is_first = np.ones(len(ids), np.bool_)
    # A document never crosses records.
    is_first[1:] = record_of_id[1:] != record_of_id[:-1]
    if tokens.eos in ("split", "none"):
        is_first[1:] |= ids[:-1] == tokens.eos_token_id
    if segments is not None:
        is_first[1:] |= segments[1:] != segments[:-1]
    return is_first


def _learned(mask: _Lists, mask_field: str) -> Bools:
    """Return True for ids that count toward the loss, bool[total]."""
    if mask_field == _LABELS:
        return mask.values != _IGNORED_LABEL
    return mask.values != 0


def _with_empty_records(
    origin: Int64, offsets: Int64, count: int
) -> tuple[Int64, Int64]:
    """Return documents with an empty one for each record that has no ids.

    Args:
        origin: Record of each of m documents, ascending, int64[m].
        offsets: Beginnings of the documents and the end of the last one, int64[m + 1].
        count: Number of records.
    """
    empty_records = np.setdiff1d(np.arange(count), origin)
    if not len(empty_records):
        return origin, offsets
    # An empty document begins and ends where the next one begins.
    insert_indices = np.searchsorted(origin, empty_records)
    new_origin = np.insert(origin, insert_indices, empty_records)
    new_offsets = np.insert(offsets, insert_indices, offsets[insert_indices])
    return new_origin, new_offsets
