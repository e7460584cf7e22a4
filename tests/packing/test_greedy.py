"""Greedy packing loses nothing, pads only at the end, and knows where every token came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake.packing import greedy
from tokenlake.packing.greedy import GreedyPacker, join_documents, segments_of
from tokenlake.packing.segments import Packed


def _pack(
    lengths: list[int], seq_length: int, *, prefix=(7,), suffix=(9,), group_rows=3, chunk=4
) -> list[Packed]:
    packer = GreedyPacker(seq_length, group_rows=group_rows, prefix=prefix, suffix=suffix, pad_id=0)
    out: list[Packed] = []
    for first in range(0, len(lengths), chunk):
        part = np.array(lengths[first : first + chunk], np.int64)
        ids = np.concatenate([_document(first + i, n) for i, n in enumerate(part)])
        offsets = np.concatenate([[0], np.cumsum(part)])
        position = np.arange(first, first + len(part), dtype=np.int64) * 10
        out += packer.add(ids, offsets, np.full(len(part), 42, np.int64), position)
    out += packer.finish()
    return out


def _document(index: int, length: int) -> np.ndarray:
    return (np.arange(length, dtype=np.int32) + 1000 * (index + 1)).astype(np.int32)


def _walk(
    lengths: list[int], seq_length: int, prefix=(7,), suffix=(9,)
) -> tuple[list[int], list[list[tuple]]]:
    """The obvious, slow packer: one token at a time."""
    stream = [
        (token, index, at)
        for index, n in enumerate(lengths)
        for at, token in enumerate([*prefix, *_document(index, n).tolist(), *suffix])
    ]
    ids = [token for token, _, _ in stream] + [0] * (-len(stream) % seq_length)
    rows: list[list[tuple]] = []
    for first in range(0, len(stream), seq_length):
        pieces: list[list[int]] = []
        for _, index, at in stream[first : first + seq_length]:
            if pieces and pieces[-1][0] == index:
                pieces[-1][2] += 1
            else:
                pieces.append([index, at, 1])
        rows.append([tuple(piece) for piece in pieces])
    return ids, rows


def _unpack(packed: list[Packed]) -> tuple[list[int], list[list[tuple]]]:
    ids = [int(token) for part in packed for token in part.input_ids]
    rows = []
    for part in packed:
        assert (part.file == 42).all()
        for first, last in zip(part.row_offsets[:-1], part.row_offsets[1:], strict=True):
            columns = (
                part.position[first:last] // 10,
                part.start[first:last],
                part.segment_lengths[first:last],
            )
            rows.append([tuple(map(int, piece)) for piece in zip(*columns, strict=True)])
    return ids, rows


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 17), st.integers(1, 4), st.integers(1, 7))
def test_equals_the_token_by_token_walk(lengths, seq_length, group_rows, chunk):
    packed = _pack(lengths, seq_length, group_rows=group_rows, chunk=chunk)
    assert _unpack(packed) == _walk(lengths, seq_length)
    assert all(part.rows % group_rows == 0 for part in packed[:-1])


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 17), st.integers(3, 9))
@settings(max_examples=60)
def test_documents_longer_than_a_window_give_the_same_rows(lengths, seq_length, window):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "_WINDOW", window)
        assert _unpack(_pack(lengths, seq_length)) == _walk(lengths, seq_length)


def test_an_80_token_document_keeps_all_its_tokens_and_one_eos():
    packed = _pack([80], 8, prefix=(), suffix=(2,))
    ids = np.concatenate([part.input_ids for part in packed])
    assert ids[:80].tolist() == _document(0, 80).tolist()
    assert ids[80] == 2
    assert len(ids) == 88
    assert [part.pad for part in packed if part.pad] == [7]


def test_nothing_in_nothing_out():
    assert _pack([], 8) == []


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 20))
def test_segments_cover_every_token_exactly_once(lengths, seq_length):
    cut = segments_of(np.array(lengths, np.int64), seq_length)
    covered = [
        (int(d), int(s) + i)
        for d, s, n in zip(cut.document, cut.start, cut.length, strict=True)
        for i in range(n)
    ]
    assert covered == [(d, i) for d, n in enumerate(lengths) for i in range(n)]
    sums = np.add.reduceat(cut.length, cut.row_offsets[:-1])
    assert (sums[:-1] == seq_length).all()
    assert 0 < sums[-1] <= seq_length


@pytest.mark.parametrize(("prefix", "suffix"), [((), ()), ((1,), ()), ((), (2,)), ((1, 3), (2,))])
def test_join_puts_prefix_and_suffix_around_each_document(prefix, suffix):
    ids, offsets = np.arange(10, 16, dtype=np.int32), np.array([1, 3, 3, 6])
    joined = join_documents(ids, offsets, np.array(prefix, np.int32), np.array(suffix, np.int32))
    expected = [*prefix, 11, 12, *suffix, *prefix, *suffix, *prefix, 13, 14, 15, *suffix]
    assert joined.tolist() == expected
