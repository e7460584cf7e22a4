"""Record batches out of Arrow messages whose bytes are handed in one by one, checked before Arrow sees them."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tokenlake.reading.bombs import Bomb, check_unfolded
from tokenlake.sources.arrow.layout import all_numbers, column_buffers, decoded_bytes
from tokenlake.sources.arrow.messages import BATCH, Message
from tokenlake.sources.arrow.slices import sliced_texts
from tokenlake.sources.columnar.records import as_text, check_names, pick, text_path
from tokenlake.sources.columnar.unfolding import plain_type, sizes_unfolded, unfolded
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.want import Want

MAX_BATCH_BYTES: Final = 1 << 30
SLICED_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 16 << 20
_COMPUTE: Final[Any] = pc
_IPC: Final[Any] = pyarrow.ipc


@final
class _Feed(io.RawIOBase):
    """A stream that holds what was put in, and hands it out without a copy where it is asked for as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[memoryview] = deque()

    def put(self, data: Any) -> None:
        if len(data):
            self._parts.append(memoryview(data))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> Any:
        if not self._parts:
            return b""
        part = self._parts.popleft()
        if len(part) > size:
            self._parts.appendleft(part[size:])
        return part[:size]


@final
class BatchDecoder:
    """The columns that are wanted of the batches of one Arrow file or stream.

    Attributes:
        schema: of the whole file.
        text: where the text is, () where none is wanted.
        names: the columns that are wanted as rows.
    """

    def __init__(self, file: InputFile, schema_message: bytes, want: Want) -> None:
        """Begin with the message of the schema, the length in front of it included.

        Raises:
            DamagedFileError: a wanted column is missing or there twice, or the text is not one of strings.
            ArrowException: this is no schema.
        """
        self.schema: pa.Schema = _IPC.read_schema(pa.py_buffer(schema_message))
        names: list[str] = self.schema.names
        self.names: tuple[str, ...] = want.names(names)
        check_names(file, names, self.names)
        self.text: tuple[str, ...] = text_path(file, self.schema, want.text) if want.text is not None else ()
        self._included = [at for at, name in enumerate(names) if name in (*self.names, *self.text[:1])]
        fields = [self.schema.field(at) for at in self._included]
        self._plain = pa.schema(
            [pa.field(field.name, plain_type(field.type), field.nullable) for field in fields]
        )
        self._feed, self._reader = _Feed(), None
        self._feed.put(schema_message)

    def wanted(self, message: Message) -> list[int]:
        """Return the numbers of the buffers that are read of a batch; of a dictionary all."""
        if message.kind != BATCH:
            return list(range(len(message.buffers)))
        columns = column_buffers(self.schema, message)
        return all_numbers([columns[at] for at in self._included])

    def sliceable(self, message: Message) -> bool:
        """Say whether nothing but a large column of plain strings is wanted of a batch that is not compressed."""
        if message.compressed or self.names or len(self.text) != 1 or message.kind != BATCH:
            return False
        size = sum(message.buffers[number][1] for number in self.wanted(message))
        return size > SLICED_BYTES and (
            pa.types.is_string(self._kind) or pa.types.is_large_string(self._kind)
        )

    def slices(self, message: Message, pread: Callable[[int, int], bytes]) -> Iterator[pa.LargeStringArray]:
        """Yield the texts of a batch that is sliceable; `pread` reads from its body."""
        buffers = [message.buffers[number] for number in self.wanted(message)]
        large = pa.types.is_large_string(self._kind)
        return sliced_texts(pread, buffers, message.rows, large=large)

    @property
    def _kind(self) -> Any:
        return self.schema.field(self.text[0]).type

    def check(self, message: Message, pread: Callable[[int, int], bytes]) -> None:
        """Raise Bomb if the wanted part of a message takes too much; `pread` reads from its body."""
        size = decoded_bytes(message, self.wanted(message), pread)
        if size > MAX_BATCH_BYTES:
            raise Bomb(
                f"a batch takes {size} bytes in memory, more than {MAX_BATCH_BYTES}; "
                "write the file with fewer rows in a batch"
            )
        check_unfolded(8 * message.rows, message.body)

    def add_dictionary(self, metadata: bytes, body: Any) -> None:
        """Note the message of a dictionary, its length in front of it included."""
        self._feed.put(metadata)
        self._feed.put(body)

    def decode(self, metadata: bytes, body: Any) -> pa.RecordBatch:
        """Return the wanted columns of a batch, their offsets checked.

        Raises:
            ArrowException: the message, or something in the batch, does not hold together.
        """
        if not self._included:
            raise ValueError("nothing is wanted of the batches")
        self.add_dictionary(metadata, body)
        batch: pa.RecordBatch = self._opened().read_next_batch()
        batch.validate()
        for column in batch.columns:
            _validate(column)
        return batch

    def _opened(self) -> Any:
        if self._reader is None:
            options = _IPC.IpcReadOptions(included_fields=self._included, use_threads=False)
            self._reader = _IPC.open_stream(pa.PythonFile(self._feed, mode="r"), options=options)
        return self._reader

    def texts(self, batch: pa.RecordBatch) -> Iterator[pa.LargeStringArray]:
        """Yield the texts of a batch in pieces of about 16 MB."""
        column = pick(batch, self.text)
        if pa.types.is_dictionary(column.type):
            sizes = sizes_unfolded(column)
        else:
            sizes = _COMPUTE.binary_length(_viewless(column)).fill_null(0).to_numpy(zero_copy_only=False)
        start, taken = 0, 0
        for row, size in enumerate(sizes.tolist()) if sizes.sum() > _PIECE_BYTES else ():
            if taken and taken + size > _PIECE_BYTES:
                yield as_text(column.slice(start, row - start))
                start, taken = row, 0
            taken += size
        yield as_text(column.slice(start))

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.LargeStringArray | None]]:
        """Yield (wanted columns, text if it is wanted) in pieces of about 16 MB."""
        pieces = max(1, -(-batch.nbytes // _PIECE_BYTES))
        size = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, size):
            for piece in unfolded(batch.slice(start, size), self._plain):
                text = as_text(pick(piece, self.text)) if self.text else None
                yield piece.select(list(self.names)), text


def _viewless(column: Any) -> Any:
    return column.cast(pa.large_string(), safe=False) if pa.types.is_string_view(column.type) else column


def _validate(column: Any) -> None:
    """Check all offsets and indices of a column; whether strings are UTF-8 is another matter."""
    # A view of nulls inside of lists or structs has the wrong length (Arrow 26), and would look like damage.
    seen = column if _holds_nulls(column.type) else column.view(_as_bytes(column.type))
    seen.validate(full=True)


def _holds_nulls(kind: Any) -> bool:
    """Say whether a type has the type of nulls anywhere inside."""
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_null(kind) or any(map(_holds_nulls, inside))


def _as_bytes(kind: Any) -> Any:
    """Return the type with the layout of `kind` in which strings are mere bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _as_bytes(kind.storage_type)
    plain = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _as_bytes(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([_field_as_bytes(kind.field(at)) for at in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_as_bytes(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field), kind.list_size)
    return pa.list_(_field_as_bytes(kind.value_field)) if pa.types.is_list(kind) else kind


def _field_as_bytes(field: Any) -> Any:
    return field.with_type(_as_bytes(field.type))
