"""The segment cache gives the ids of `tokenizers`, whatever the vocabulary, the
text, and what it has met before.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.engine_builds import check_same_bytes
from tests.tokenizers.tokenizer_samples import SPACE
from tokenlake.etl.tokenizers import Encoder, TokenizerFiles, segments
from tokenlake.etl.tokenizers.segments import SegmentBackend

FORMS = sorted(
    name for name in samples.known() if name.startswith(("sentencepiece", "metaspace"))
)
# One to four bytes, white space, what the vocabulary lacks, and the mark itself.
LETTERS = "ab<0x>\n\té漢😀" + SPACE
MORE = LETTERS + " zß字\0"


def same_ids(engine: SegmentBackend, texts: list[str], *, literal: bool = True) -> None:
    made = engine.encode(samples.large(texts))
    assert (
        made.offsets.dtype == np.int64
        and made.ids.dtype == np.int32
        and made.offsets[-1] == len(made.ids)
    )
    assert [ids.tolist() for ids in made.rows()] == samples.reference_ids(
        engine.files, texts, literal=literal
    )


def tokenizer(form: str, picks: list[tuple[int, int]]) -> TokenizerFiles:
    """Return a tokenizer whose merges join tokens picked by number, each pair once."""
    base = samples.known()[form].spec["model"]["vocab"]
    tokens = list(LETTERS)
    merges: list[list[str]] = []
    for first, second in picks:
        left, right = tokens[first % len(tokens)], tokens[second % len(tokens)]
        if left + right not in tokens and not left.startswith("<0x"):
            merges.append([left, right])
            tokens.append(left + right)
    kept = [token for token in base if base[token] < 259]

    def change(spec: dict[str, Any]) -> None:
        vocab = {token: index for index, token in enumerate([*kept, *tokens])}
        spec["model"] |= {"vocab": vocab, "merges": merges}

    return samples.changed(samples.known()[form], change)


PICKS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40)


@settings(max_examples=40)
@given(st.sampled_from(FORMS), PICKS, st.lists(st.text(MORE, max_size=60), max_size=12))
def test_any_vocabulary_and_any_text(
    form: str, picks: list[tuple[int, int]], texts: list[str]
) -> None:
    engine = SegmentBackend(tokenizer(form, picks))
    same_ids(engine, texts)
    same_ids(engine, texts[::-1])  # all segments known


@pytest.mark.parametrize("form", FORMS)
def test_hard_texts(form: str) -> None:
    engine = SegmentBackend(samples.known()[form])
    same_ids(engine, list(samples.hard_texts()))
    same_ids(engine, list(samples.hard_texts()))


PARTED = st.lists(
    st.sampled_from([*"ab é漢\n<>", SPACE, "  ", "s>", "<s>", "</s>", "<unk>"]),
    max_size=12,
)


@settings(max_examples=60)
@given(st.sampled_from(FORMS), st.lists(PARTED.map("".join), max_size=8))
def test_added_tokens_part_a_text_and_none_reaches_over_two(
    form: str, texts: list[str]
) -> None:
    engine = SegmentBackend(samples.known()[form], literal=False)
    same_ids(engine, texts, literal=False)
    same_ids(engine, ["a<", "s>b", *texts[::-1]], literal=False)  # some segments known
    made = engine.encode(samples.large(["<s>", *texts, "x"]).slice(1, len(texts)))
    assert [ids.tolist() for ids in made.rows()] == samples.reference_ids(
        engine.files, texts, literal=False
    )


def test_segments_longer_than_are_merged_here() -> None:
    files = tokenizer(
        "sentencepiece",
        [(0, 0), (len(LETTERS), 1), (len(LETTERS), 0), (0, len(LETTERS))],
    )
    drawn = random.Random(3)
    sizes = (
        segments.LONGEST - 1,
        segments.LONGEST,
        segments.LONGEST + 1,
        5 * segments.LONGEST,
    )
    texts = ["".join(drawn.choices("ab", (9, 1), k=size)) for size in sizes]
    texts += ["a" * size for size in sizes]
    same_ids(SegmentBackend(files), [*texts, "ab", *texts])


def test_one_text_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_BYTES", 64)
    engine = SegmentBackend(samples.sentencepiece())
    long = "\n".join(samples.hard_texts())
    same_ids(engine, [long, "", long[:100], "", ""])
    same_ids(engine, ["", "", long + "x" * 300])


@pytest.mark.parametrize("engine", ["segments", "gigatoken"])
def test_threads_may_share_an_engine(engine: str) -> None:
    files = samples.sentencepiece()
    shared = Encoder(files, engine=engine)
    # Some few and some more than a few.
    texts = [list(samples.hard_texts()[at::97]) for at in range(8)]
    texts[::2] = [some * 3 for some in texts[::2]]
    with ThreadPoolExecutor(4) as threads:
        encoded = list(
            threads.map(lambda some: shared.encode(samples.large(some)), texts * 5)
        )
    expected = [samples.reference_ids(files, some, literal=True) for some in texts] * 5
    assert [samples.rows_of(batch) for batch in encoded] == expected


def test_a_full_table_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_BYTES", 256)
    monkeypatch.setattr(segments, "_SMALL", 256)
    monkeypatch.setattr(segments, "_LARGE", 2048)
    engine = SegmentBackend(samples.sentencepiece())
    drawn = random.Random(4)
    words = [
        "".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(1, 9)))
        for _ in range(4000)
    ]
    texts = [" ".join(words[at : at + 50]) for at in range(0, len(words), 50)]
    same_ids(engine, texts)
    same_ids(engine, texts)


def test_a_build_with_it_has_the_bytes_of_one_with_the_reference(
    tmp_path: Path,
) -> None:
    check_same_bytes("segments", samples.sentencepiece(), tmp_path)
