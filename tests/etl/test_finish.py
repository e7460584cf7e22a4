"""BOS and EOS around rendered documents, the bit that carries the loss mask, and the
stretches it comes from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.etl.packing import learned, marked, plain
from tokenlake.etl.tokenizers import Spans, byte_spans
from tokenlake.etl.unit import Finish, Fitted

tokens = st.tuples(st.integers(1, 6), st.booleans())
documents = st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=8)
affixes = st.sampled_from([(), (1,), (1, 3)])


@given(documents, affixes, st.sampled_from([(), (2,)]), st.sampled_from([None, 2, 5]))
def test_every_document_gets_what_it_lacks_and_nothing_twice(
    given_documents: list[list[tuple[int, bool]]],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    eos: int | None,
) -> None:
    flat = [token for document in given_documents for token in document]
    ids = marked(
        np.array([token for token, _ in flat], np.int32),
        np.array([bit for _, bit in flat]),
    )
    offsets = np.cumsum([0, *map(len, given_documents)])
    whole = Fitted(ids=ids, offsets=offsets, origin=np.arange(len(given_documents)))
    done = Finish(prefix, suffix, eos).apply(whole)
    expected = [
        _finished(document, prefix, suffix, eos) for document in given_documents
    ]
    got = list(zip(plain(done.ids).tolist(), learned(done.ids).tolist(), strict=True))
    assert [
        got[a:b] for a, b in zip(done.offsets, done.offsets[1:], strict=False)
    ] == expected
    assert done.bos + done.eos == len(got) - len(flat)
    if eos is not None:
        appended = (
            sum(len(e) - len(d) for e, d in zip(expected, given_documents, strict=True))
            - done.bos
        )
        assert done.eos == appended
        assert 0 <= done.eos_existing <= len(given_documents)


def _finished(
    document: list[tuple[int, bool]],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    eos: int | None,
) -> list[tuple[int, bool]]:
    ids = [token for token, _ in document]
    bit = document[-1][1]
    whole = list(document)
    if prefix and tuple(ids[: len(prefix)]) != prefix:
        whole = [(token, False) for token in prefix] + whole
    if suffix and tuple(ids[-len(suffix) :]) != suffix:
        whole += [(token, bit) for token in suffix]
    if eos is not None and whole[-1][0] != eos:
        whole.append((eos, bit))
    return whole


rows = st.lists(
    st.lists(st.integers(0, 40), max_size=6).map(
        lambda cuts: _pairs(sorted(set(cuts)))
    ),
    max_size=6,
)


def _pairs(cuts: list[int]) -> list[tuple[int, int]]:
    return [(cuts[at], cuts[at + 1]) for at in range(0, len(cuts) - 1, 2)]


@given(rows, st.data())
def test_spans_are_sliced_selected_and_joined_as_lists_are(
    given_rows: Any, data: st.DataObject
) -> None:
    spans = Spans.of(given_rows)
    assert _lists(spans) == given_rows
    first = data.draw(st.integers(0, len(given_rows)))
    last = data.draw(st.integers(first, len(given_rows)))
    assert _lists(spans.slice(first, last)) == given_rows[first:last]
    mask = data.draw(
        st.lists(st.booleans(), min_size=len(given_rows), max_size=len(given_rows))
    )
    chosen = [row for row, wanted in zip(given_rows, mask, strict=True) if wanted]
    assert _lists(spans.select(np.array(mask, np.bool_))) == chosen
    order = data.draw(st.permutations(range(len(given_rows))))
    assert _lists(spans.take(np.array(order, np.int64))) == [
        given_rows[at] for at in order
    ]
    assert (
        _lists(Spans.concat([spans.slice(0, first), spans.slice(first, len(spans))]))
        == given_rows
    )


def _lists(spans: Spans) -> list[list[tuple[int, int]]]:
    pairs = list(zip(spans.start.tolist(), spans.stop.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(spans.offsets, spans.offsets[1:], strict=False)]


@given(st.text(max_size=20), st.data())
def test_stretches_of_characters_become_stretches_of_bytes(
    text: str, data: st.DataObject
) -> None:
    cuts = data.draw(
        st.lists(st.integers(0, len(text)), max_size=6).map(
            lambda some: sorted(set(some))
        )
    )
    pairs = _pairs(cuts)
    whole = text.encode("utf-8", "surrogatepass")
    if whole.decode("utf-8", "replace") != text:
        return
    got = byte_spans(text, [*pairs, (len(text), len(text))])
    assert [whole[a:b].decode() for a, b in got] == [text[a:b] for a, b in pairs]
