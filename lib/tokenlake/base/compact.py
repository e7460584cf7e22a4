"""Many small values in little memory: the files and the ranges of a plan.

There may be millions of them.

::

    files = CompactTuple(InputFile, found)     # some 70 bytes each in place of 700
    first = files[0]                           # a new object at each access: equal, not the same
    some = files[1000:2000]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar, final, overload

import msgspec
import pyarrow as pa

from tokenlake.base.typed_json import converted, decoder

T = TypeVar("T")

_ARROW: Final[Any] = pa
_CODEC: Final[Any] = _ARROW.Codec("zstd", compression_level=1)
_BLOCK: Final = 256
"""Number of values that are packed, and unpacked, together."""


@final
class CompactTuple(Sequence[T]):
    """A tuple whose values are kept in compressed blocks, and are unpacked on access.

    Args:
        kind: Type of the values: a frozen dataclass, a NamedTuple or a tuple of these,
            of plain values.
        values: Values, which are read one after the other, so that they are never all
            in memory.
    """

    __slots__ = ("_blocks", "_kind", "_last", "_length")
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, kind: type[T], values: Iterable[T] = ()) -> None:
        self._kind: Any = list[kind]
        self._blocks: list[tuple[int, bytes]] = []
        self._length = 0
        self._last: tuple[int, list[T]] = (-1, [])
        iterator = iter(values)
        while block := list(islice(iterator, _BLOCK)):
            self._blocks.append(_packed(block))
            self._length += len(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for number in range(len(self._blocks)):
            yield from self._block(number)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        position = range(self._length)[index]
        if not isinstance(position, int):
            return tuple(self._values_at(position))
        # Neighbours are read one after the other: the last block stays unpacked.
        block_number, block = self._last
        if block_number != position // _BLOCK:
            block_number = position // _BLOCK
            block = self._block(block_number)
            self._last = (block_number, block)
        return block[position % _BLOCK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompactTuple | tuple | list):
            return False
        return tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return f"CompactTuple({tuple(self)!r})"

    def _values_at(self, positions: range) -> Iterator[T]:
        """Yield the values at positions; each block is unpacked once."""
        block_number = -1
        block: list[T] = []
        for position in positions:
            if position // _BLOCK != block_number:
                block_number = position // _BLOCK
                block = self._block(block_number)
            yield block[position % _BLOCK]

    def _block(self, number: int) -> list[T]:
        """Return the values of a block."""
        json_size, compressed = self._blocks[number]
        json_bytes = _CODEC.decompress(
            compressed, decompressed_size=json_size, asbytes=True
        )
        # msgspec refuses halves of surrogate pairs, which Python's own module reads.
        try:
            return decoder(self._kind).decode(json_bytes)
        except msgspec.DecodeError:
            return converted(json.loads(json_bytes), self._kind)


def _packed(values: list[Any]) -> tuple[int, bytes]:
    """Return the size of values as JSON, and the compressed JSON."""
    try:
        json_bytes = msgspec.json.encode(values)
    except UnicodeEncodeError:  # the name of a file may be no UTF-8
        json_bytes = json.dumps(msgspec.to_builtins(values)).encode()
    return len(json_bytes), _CODEC.compress(json_bytes, asbytes=True)
