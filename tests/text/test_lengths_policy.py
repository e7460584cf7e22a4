"""The policy of long documents: in a configuration, and its laws for documents with
loss marks and without.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers import tokenizer_samples as samples
from tokenlake import PipelineConfig
from tokenlake.config import ResolvedTokenizer, source_identity
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError
from tokenlake.etl.packing import LOSS, learned, marked, plain
from tokenlake.etl.text import SIDES, STRATEGIES, continuing_tokens, pieces
from tokenlake.etl.tokenizers import Encoder, TokenizerFiles
from tokenlake.etl.unit import Finish, Lengths

# ---- in a configuration: inheritance, contradictions, identity
# -------------------------------------------


def resolved(
    dataset: dict[str, Any] | None = None,
    *,
    pack: bool = False,
    truncation: bool | None = None,
    **tokenize: Any,
) -> Any:
    tokenizer = {"name_or_path": "t", "truncation": truncation}
    config = PipelineConfig.model_validate(
        {
            "name": "x",
            "datasets": [
                {
                    "name": "s",
                    "data_files": "f",
                    "tokenizer": tokenizer,
                    **(dataset or {}),
                }
            ],
            "tokenize": tokenize,
            "pack": {"enabled": pack},
        }
    )
    return resolve(config, {}).sources[0]


def policy_of(*args: Any, **options: Any) -> tuple[str, str, str]:
    tokenizer: ResolvedTokenizer = resolved(*args, **options).tokenizer
    return (
        tokenizer.long_documents,
        tokenizer.truncation_strategy,
        tokenizer.truncation_side,
    )


def test_every_strategy_of_the_library_can_be_configured():
    for strategy, side in product(STRATEGIES[1:], SIDES):
        options = {"truncation_strategy": strategy, "truncation_side": side}
        assert policy_of(**options) == ("truncate", strategy, side)
    with pytest.raises(
        ValueError, match="must be 'simple', 'word', 'sentence' or 'smart'"
    ):
        policy_of(truncation_strategy="none")
    with pytest.raises(ValueError, match="must be 'left' or 'right'"):
        policy_of(truncation_side="none")


def test_a_source_goes_before_the_stage():
    assert policy_of() == ("truncate", "simple", "right")
    assert policy_of(pack=True) == ("keep", "simple", "right")
    assert policy_of(long_documents="split") == ("split", "simple", "right")
    assert policy_of({"long_documents": "drop"}, long_documents="split")[0] == "drop"
    assert policy_of(truncation_strategy="word", truncation_side="left") == (
        "truncate",
        "word",
        "left",
    )
    found = policy_of(
        {"truncation_strategy": "smart"},
        truncation_strategy="word",
        truncation_side="left",
    )
    assert found == ("truncate", "smart", "left")


@pytest.mark.parametrize(
    ("truncation", "long_documents"),
    [
        (True, "truncate"),
        (False, "keep"),
        (False, "split"),
        (False, "drop"),
        (None, "drop"),
    ],
)
def test_what_agrees_is_allowed(truncation: bool | None, long_documents: str):
    assert (
        policy_of(truncation=truncation, long_documents=long_documents)[0]
        == long_documents
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"truncation": False, "long_documents": "truncate"},
            "tokenize.long_documents: 'truncate', but the tokenizer of 's' has truncation: false",
        ),
        (
            {"dataset": {"long_documents": "split"}, "truncation": True},
            "datasets.s.long_documents: 'split', but the tokenizer of 's' has truncation: true",
        ),
        (
            {"dataset": {"truncation_side": "left"}, "pack": True},
            r"datasets.s.truncation_side: set, but its long documents are not truncated \(keep\)",
        ),
        (
            {"truncation_strategy": "word", "pack": True},
            "tokenize.truncation_strategy: set, but no dataset's documents are truncated; write long_documents",
        ),
    ],
)
def test_what_contradicts_itself_or_does_nothing_is_an_error(
    options: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        resolved(**options)


def test_the_policy_is_identity_where_it_acts():
    def identity(**options: Any) -> dict[str, Any]:
        return source_identity(resolved(**options))["tokenizer"]

    kept = identity(pack=True)
    assert kept == {
        "add_special_tokens": True,
        "max_length": None,
        "special_tokens_in_text": "literal",
    }
    assert identity(pack=True, max_length=9) == kept
    distinct = [
        kept,
        identity(),
        identity(max_length=9),
        identity(truncation_strategy="word"),
        identity(truncation_side="left"),
        identity(long_documents="split"),
        identity(long_documents="drop"),
    ]
    assert all(one not in distinct[:at] for at, one in enumerate(distinct))
    assert identity(pack=True, long_documents="truncate") == identity()


# ---- applied to documents that are encoded
# ---------------------------------------------------------------

BOS, EOS = 1, 2


@cache
def files() -> TokenizerFiles:
    """Llama-2-style with BOS and EOS around a document."""
    around = samples.template([("<s>", BOS)], [("</s>", EOS)])
    return samples.changed(
        samples.sentencepiece(), lambda spec: spec.update(post_processor=around)
    )


@cache
def encoder() -> Encoder:
    return Encoder(files(), engine="tokenizers")


def policy(
    long_documents: str, max_length: int, side: str = "right"
) -> ResolvedTokenizer:
    options: dict[str, Any] = {
        "long_documents": long_documents,
        "truncation_side": side,
    }
    return ResolvedTokenizer(
        name_or_path="t",
        add_special_tokens=True,
        max_length=max_length,
        trust_remote_code=False,
        special_tokens_in_text="literal",
        engine="auto",
        **options,
    )


# Ids 3 to 258 are the bytes: 230 is 0xE3, 131 is 0x80, which continues a character.
TOKENS = st.sampled_from([300, 301, 400, 3 + 0xE3, 3 + 0x80, 3 + 0x81])
DOCUMENT = st.tuples(
    st.booleans(),
    st.lists(st.tuples(TOKENS, st.booleans()), max_size=14),
    st.booleans(),
)
CASE = {
    "documents": st.lists(DOCUMENT, max_size=6),
    "long_documents": st.sampled_from(["keep", "truncate", "split", "drop"]),
    "max_length": st.integers(3, 12),
    "side": st.sampled_from(["right", "left"]),
    "rendered": st.booleans(),
    "masked": st.booleans(),
}


def ragged(documents: list[Any], *, rendered: bool, masked: bool) -> tuple[Any, Any]:
    """Ids of documents, which spell some of their BOS and EOS themselves where they
    are rendered.
    """
    rows: list[list[int]] = []
    for head, body, tail in documents:
        row = [token | (LOSS if mark and masked else 0) for token, mark in body]
        rows.append(
            [
                *([BOS] if head and rendered else []),
                *row,
                *([EOS] if tail and rendered else []),
            ]
        )
    ids = np.array([token for row in rows for token in row], np.int32)
    return ids, np.cumsum([0, *map(len, rows)])


def rows_of(fitted: Any) -> list[list[int]]:
    return (
        [row.tolist() for row in np.split(fitted.ids, fitted.offsets[1:-1])]
        if len(fitted.origin)
        else []
    )


@given(**CASE)
@settings(max_examples=50, deadline=None)
def test_what_is_kept_fits_and_what_is_not_is_accounted(
    documents: list[Any],
    long_documents: str,
    max_length: int,
    side: str,
    rendered: bool,
    masked: bool,
):
    ids, offsets = ragged(documents, rendered=rendered, masked=masked)
    finish = Finish((BOS,), (EOS,), None) if rendered else None
    settings_ = policy(long_documents, max_length, side)
    fitted = Lengths(settings_, encoder(), finish, masked=masked).apply(ids, offsets)
    whole = [row.tolist() for row in np.split(ids, offsets[1:-1])] if documents else []
    found = rows_of(fitted)

    # Every token is kept or dropped, for a reason, and so is every document.
    assert len(fitted.ids) + sum(fitted.dropped.values()) == len(ids)
    gone = [row for rows in fitted.left_out.values() for row in rows.tolist()]
    assert sorted({*gone, *fitted.origin.tolist()}) == list(range(len(documents)))
    assert not set(gone) & set(fitted.origin.tolist())
    assert len(set(gone)) == len(gone)
    assert np.all(np.diff(fitted.origin) >= 0)

    def lacking(row: list[int]) -> int:
        if not rendered:
            return 2
        return (not row or row[0] & ~LOSS != BOS) + (not row or row[-1] & ~LOSS != EOS)

    long = {
        index
        for index, row in enumerate(whole)
        if len(row) and len(row) + lacking(row) > max_length
    }
    for index, row in enumerate(whole):
        mine = [found[at] for at in np.flatnonzero(fitted.origin == index)]
        if index not in long or long_documents == "keep":
            assert mine == [row]
        elif long_documents == "drop":
            assert mine == []
        elif long_documents == "truncate":
            assert len(mine) <= 1
            assert all(
                row[: len(kept)] == kept
                if side == "right"
                else row[-len(kept) :] == kept
                for kept in mine
            )
        elif not masked:
            assert [token for kept in mine for token in kept] == row
        assert long_documents == "keep" or all(
            len(kept) + lacking(kept) <= max_length for kept in mine
        )
    if long_documents == "split":
        assert set(fitted.dropped) <= {"nothing_to_learn"}


@given(**CASE)
@settings(max_examples=50, deadline=None)
def test_no_cut_leaves_a_document_without_what_it_taught(
    documents: list[Any],
    long_documents: str,
    max_length: int,
    side: str,
    rendered: bool,
    masked: bool,
):
    ids, offsets = ragged(documents, rendered=rendered, masked=True)
    finish = Finish((BOS,), (EOS,), None) if rendered else None
    fitted = Lengths(
        policy(long_documents, max_length, side), encoder(), finish, masked=True
    ).apply(ids, offsets)
    had = (
        [bool(learned(row).any()) for row in np.split(ids, offsets[1:-1])]
        if documents
        else []
    )
    for origin, row in zip(fitted.origin.tolist(), rows_of(fitted), strict=True):
        assert learned(np.array(row, np.int32)).any() or not had[origin]
    for row in fitted.left_out.get("nothing_to_learn", np.empty(0, np.int64)).tolist():
        assert had[row]


def test_a_prompt_that_fills_the_room_leaves_nothing_to_learn():
    answer = np.array([False] * 10 + [True] * 5)
    ids, offsets = marked(np.full(15, 300, np.int32), answer), np.array([0, 15])
    fitted = Lengths(policy("truncate", 10), encoder(), masked=True).apply(ids, offsets)
    assert (fitted.dropped, fitted.touched) == (
        {"truncated": 7, "nothing_to_learn": 8},
        {"long_documents_truncate": 1},
    )
    assert fitted.left_out["nothing_to_learn"].tolist() == [0]
    from_left = Lengths(policy("truncate", 10, "left"), encoder(), masked=True).apply(
        ids, offsets
    )
    assert learned(from_left.ids).tolist() == [False] * 3 + [True] * 5


def test_an_eos_after_an_answer_that_was_cut_off_is_not_learned():
    finish = Finish((BOS,), (EOS,), None)
    ids, offsets = marked(np.full(12, 300, np.int32)), np.array([0, 3, 12])
    fitted = Lengths(policy("truncate", 8), encoder(), finish, masked=True).apply(
        ids, offsets
    )
    assert fitted.ends is not None and fitted.ends.tolist() == [True, False]
    done = finish.apply(fitted)
    assert plain(done.ids[done.offsets[1:] - 1]).tolist() == [EOS, EOS]
    assert learned(done.ids[done.offsets[1:] - 1]).tolist() == [True, False]


@given(
    st.text(max_size=40),
    st.sampled_from([samples.byte_level(), samples.sentencepiece()]),
)
@settings(max_examples=50, deadline=None)
def test_a_token_goes_on_with_a_character_exactly_where_its_bytes_do(
    text: str, tokenizer: TokenizerFiles
):
    made = Encoder(tokenizer, engine="tokenizers")
    encoded, start, stop = made.encode_places(samples.large([text]))
    goes_on = continuing_tokens(tokenizer)[encoded.ids]
    # Tokens of one character share its place.
    shared = np.r_[False, start[1:] < stop[:-1]][: len(start)]
    assert goes_on.tolist() == shared.tolist()


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 9))
def test_pieces_are_as_long_as_can_be_and_cut_no_character_that_fits(
    goes_on: list[bool], most: int
):
    inside = np.array([False, *goes_on])
    begins = pieces(inside, 0, len(inside), most).tolist()
    edges = [*begins, len(inside)]
    for begin, end in pairwise(edges):
        assert 0 < end - begin <= most
        if end < len(inside):
            clean = [at for at in range(begin + 1, begin + most + 1) if not inside[at]]
            assert end == (max(clean) if clean else begin + most)


def test_other_tokenizers_have_no_halves_of_characters():
    words = samples.from_spec(
        {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": {"a": 0, "¡": 1}},
        }
    )
    assert not continuing_tokens(words).any()


@pytest.mark.parametrize("long_documents", ["keep", "truncate", "split", "drop"])
def test_no_documents_are_no_problem(long_documents: str):
    fitted = Lengths(policy(long_documents, 5), encoder()).apply(
        np.empty(0, np.int32), np.array([0, 0, 0])
    )
    assert fitted.offsets.tolist() == [0, 0, 0]
    assert fitted.without_empty().origin.tolist() == []
