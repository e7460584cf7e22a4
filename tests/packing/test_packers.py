"""A packer's rows depend on the documents alone: not on how they came, nor on how
many at a time.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import promise
from tokenlake.config import ResolvedPack
from tokenlake.etl.packing import STRATEGIES, Packed, Packer, open_packer

BOS, EOS, PAD, FILE = 7, 9, 0, 42


@dataclass(frozen=True)
class Stream:
    """Documents, some of which are further pieces of the one before, and how to pack
    them.
    """

    lengths: list[int]
    again: list[bool]
    seq_length: int
    window: int
    limit: int | None
    key: int | None

    def opened(self, strategy: str, group_rows: int = 3, **options: int) -> Packer:
        pack = ResolvedPack(
            width=self.seq_length,
            strategy=strategy,
            window_tokens=self.window,
            num_packers=3,
            max_segments=self.limit,
        )
        around: dict[str, Any] = {
            "prefix": (BOS,),
            "suffix": (EOS,),
            "shuffle_key": self.key,
        } | options
        return open_packer(
            pack, group_tokens=group_rows * self.seq_length, pad_id=PAD, **around
        )

    def document(self, index: int) -> npt.NDArray[np.int32]:
        return np.arange(self.lengths[index], dtype=np.int32) + 1000 * (index + 1)

    def whole(self) -> list[list[int]]:
        """Every document with its further pieces, BOS and EOS around each of them."""
        found: list[list[int]] = []
        for index, again in enumerate(self.again):
            piece = [BOS, *self.document(index).tolist(), EOS]
            if again:
                found[-1] += piece
            else:
                found.append(piece)
        return found

    def numbers(self) -> list[int]:
        return (np.cumsum(~np.array(self.again, np.bool_)) - 1).tolist()

    def packed(
        self, strategy: str, together: int, group_rows: int = 3, **options: int
    ) -> list[Packed]:
        """Give so many documents at a time; 0: each of them in windows of five ids."""
        packer = self.opened(strategy, group_rows, **options)
        out = list(
            self._long(packer) if not together else self._together(packer, together)
        )
        return [*out, *packer.finish()]

    def _together(self, packer: Packer, together: int) -> Iterator[Packed]:
        first, numbers = 0, self.numbers()
        while first < len(self.lengths):
            last = min(first + together, len(self.lengths))
            # Pieces of a document come together.
            while last < len(self.lengths) and self.again[last]:
                last += 1
            documents = [self.document(index) for index in range(first, last)]
            offsets = np.concatenate([[0], np.cumsum(self.lengths[first:last])])
            where = np.full(last - first, FILE), np.array(numbers[first:last]) * 10
            yield from packer.add(
                np.concatenate(documents),
                offsets,
                *where,
                np.array(self.again[first:last]),
            )
            first = last

    def _long(self, packer: Packer) -> Iterator[Packed]:
        start = 0
        for index, number in enumerate(self.numbers()):
            start = start if self.again[index] else 0
            ids = self.document(index)
            windows = (ids[at : at + 5] for at in range(0, len(ids), 5))
            yield from packer.add_long(windows, FILE, number * 10, start)
            start += len(ids) + 2


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    lengths = draw(
        st.lists(st.one_of(st.integers(0, 12), st.integers(0, 70)), max_size=25)
    )
    again = [
        False,
        *(draw(st.sampled_from([False, False, True])) for _ in lengths[1:]),
    ][: len(lengths)]
    return Stream(
        lengths,
        again,
        seq_length=draw(st.integers(1, 17)),
        window=draw(st.integers(1, 120)),
        limit=draw(st.sampled_from([None, None, 1, 3])),
        key=draw(st.sampled_from([None, 0, 5])),
    )


def documents_of(packed: list[Packed]) -> list[list[int]]:
    """Put documents together from their pieces, which must follow one another
    without gaps.
    """
    pieces: dict[int, list[tuple[int, list[int]]]] = {}
    for part in packed:
        for begin, length, position, start in zip(
            part.begins, part.segment_lengths, part.position, part.start, strict=True
        ):
            found = part.input_ids[begin : begin + length].tolist()
            pieces.setdefault(int(position) // 10, []).append((int(start), found))
    whole: list[list[int]] = []
    for number in sorted(pieces):
        joined: list[int] = []
        for start, ids in sorted(pieces[number]):
            assert start == len(joined)
            joined += ids
        whole.append(joined)
    return whole


@promise(155)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(stream=streams(), group_rows=st.integers(1, 4))
@settings(max_examples=25)
def test_rows_hold_every_document_whole_and_padding_is_all_that_is_left(
    strategy: str, stream: Stream, group_rows: int
) -> None:
    packed = stream.packed(strategy, 4, group_rows)
    assert documents_of(packed) == stream.whole()
    assert all(part.rows % group_rows == 0 for part in packed[:-1])
    for part in packed:
        rows = part.input_ids.reshape(part.rows, stream.seq_length)
        filled = np.arange(stream.seq_length) < part.row_lengths[:, None]
        assert (rows[~filled] == PAD).all()
        assert part.pad == int((~filled).sum())
        assert stream.limit is None or (np.diff(part.row_offsets) <= stream.limit).all()
        assert (part.file == FILE).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(stream=streams())
@settings(max_examples=25)
def test_how_documents_come_changes_nothing(strategy: str, stream: Stream) -> None:
    ways = [stream.packed(strategy, together) for together in (1, 4, 1000, 0)]
    rows = [
        [(part.rows, part.input_ids.tolist(), part.start.tolist()) for part in way]
        for way in ways
    ]
    assert [sum(part.rows for part in way) for way in ways] == [
        sum(part.rows for part in ways[0])
    ] * 4
    flat = [
        [
            value
            for part in way
            for value in zip(part.position.tolist(), part.start.tolist(), strict=True)
        ]
        for way in ways
    ]
    ids = [[token for _, tokens, _ in way for token in tokens] for way in rows]
    assert ids[0] == ids[1] == ids[2] == ids[3]
    assert flat[0] == flat[1] == flat[2] == flat[3]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(stream=streams())
@settings(max_examples=20)
def test_pieces_that_end_a_document_end_with_eos(strategy: str, stream: Stream) -> None:
    ending = 0
    for part in stream.packed(strategy, 4):
        last = (part.begins + part.segment_lengths)[part.ends] - 1
        assert (part.input_ids[last] == EOS).all()
        assert (part.input_ids[part.begins[part.start == 0]] == BOS).all()
        ending += int(part.ends.sum())
    windowed = (
        strategy != "greedy" or stream.limit is not None or stream.key is not None
    )
    assert ending == len(stream.lengths) if windowed else ending <= len(stream.lengths)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_windows_hold_documents_together_and_shuffle_whole_rows_among_themselves(
    strategy: str,
) -> None:
    plain = Stream(
        [6] * 40, [False] * 40, seq_length=8, window=64, limit=None, key=None
    )
    mixed = Stream([6] * 40, [False] * 40, seq_length=8, window=64, limit=None, key=3)
    ordered, shuffled = (
        [
            row
            for part in stream.packed(strategy, 7)
            for row in part.input_ids.reshape(-1, 8).tolist()
        ]
        for stream in (plain, mixed)
    )
    assert shuffled != ordered
    for first in range(0, 40, 8):
        assert sorted(shuffled[first : first + 8]) == ordered[first : first + 8]


def test_the_order_of_shuffled_rows_is_pinned() -> None:
    stream = Stream([6] * 12, [False] * 12, seq_length=8, window=48, limit=None, key=3)
    (packed,) = stream.packed("best_fit", 12, group_rows=100)
    assert (packed.position // 10).tolist() == [5, 3, 0, 2, 1, 4, 9, 10, 8, 6, 11, 7]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_long_document_comes_out_in_rows_while_it_still_comes_in(
    strategy: str,
) -> None:
    pack = ResolvedPack(width=8, strategy=strategy, window_tokens=32)
    packer = open_packer(pack, group_tokens=16, pad_id=PAD, shuffle_key=1)
    drawn: list[int] = []

    def windows() -> Iterator[npt.NDArray[np.int32]]:
        for number in range(1000):
            drawn.append(number)
            yield np.full(8, number, np.int32)

    first = next(iter(packer.add_long(windows(), FILE, 0)))
    assert first.rows == 2
    assert len(drawn) < 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_is_that_of_a_window_however_long_the_stream_is(strategy: str) -> None:
    window, length = 1 << 16, 100
    offsets = np.arange(0, 4001, length)
    ids, where = np.ones(4000, np.int32), np.zeros(len(offsets) - 1, np.int64)

    def peak(tokens: int) -> int:
        pack = ResolvedPack(width=512, strategy=strategy, window_tokens=window)
        packer = open_packer(pack, group_tokens=8 * 512, pad_id=PAD, shuffle_key=1)
        tracemalloc.start()
        for _ in range(tokens // len(ids)):
            for _packed in packer.add(ids, offsets, where, where):
                pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(window)  # what the first call alone needs
    short, long = peak(4 * window), peak(20 * window)
    assert long < 1.1 * short
    assert short < 8 * 4 * window


@given(stream=streams(), together=st.integers(3, 40))
@settings(max_examples=60)
def test_greedy_rows_equal_the_token_by_token_walk_and_long_documents_come_in_parts(
    stream: Stream, together: int
) -> None:
    plain = replace(stream, limit=None, key=None, again=[False] * len(stream.lengths))
    packed = plain.packed("greedy", 4, copied_tokens=together)
    tokens = [token for document in plain.whole() for token in document]
    padding = -len(tokens) % plain.seq_length
    assert [int(token) for part in packed for token in part.input_ids] == tokens + [
        PAD
    ] * padding
    places = [
        (number, at)
        for number, document in enumerate(plain.whole())
        for at in range(len(document))
    ]
    rows = [
        places[at : at + plain.seq_length]
        for at in range(0, len(places), plain.seq_length)
    ]
    expected = [
        at
        for row in rows
        for at in sorted({n: (n, a) for n, a in reversed(row)}.values())
    ]
    found = [
        (int(position) // 10, int(start))
        for part in packed
        for position, start in zip(part.position, part.start, strict=True)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("prefix", "suffix"), [((), ()), ((1,), ()), ((), (2,)), ((1, 3), (2,))]
)
def test_prefix_and_suffix_are_put_around_each_document(
    prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> None:
    ids, offsets = np.arange(10, 16, dtype=np.int32), np.array([1, 3, 3, 6])
    packer = open_packer(
        ResolvedPack(width=1), group_tokens=1, pad_id=PAD, prefix=prefix, suffix=suffix
    )
    file, position = np.full(3, FILE), np.arange(3)
    packed = [*packer.add(ids, offsets, file, position), *packer.finish()]
    expected = [
        *prefix,
        11,
        12,
        *suffix,
        *prefix,
        *suffix,
        *prefix,
        13,
        14,
        15,
        *suffix,
    ]
    assert [token for part in packed for token in part.input_ids.tolist()] == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_document_of_80_tokens_keeps_them_all_and_its_eos_in_rows_of_8(
    strategy: str,
) -> None:
    pack = ResolvedPack(width=8, strategy=strategy)
    packer = open_packer(pack, group_tokens=32, suffix=(2,), pad_id=PAD)
    ids = np.arange(100, 180, dtype=np.int32)
    out = [
        *packer.add(ids, np.array([0, 80]), np.array([FILE]), np.array([0])),
        *packer.finish(),
    ]
    assert documents_of(out) == [[*ids.tolist(), 2]]
    assert sum(part.rows for part in out) == 11
    assert sum(part.pad for part in out) == 7
