"""Encoding: ids equal the reference's, whatever the engine, the mode and the text."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_reference import HAS_STAGES, needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_mutations import FLAGS
from tokenlake.base import Ragged
from tokenlake.errors import ConfigError, EngineMismatchError, TokenizerError
from tokenlake.etl.tokenizers import (
    Encoder,
    ReferenceBackend,
    SpecialScan,
    TokenizerFiles,
)
from tokenlake.etl.tokenizers.allowlist import UnicodeGuard

BACKENDS = ("gigatoken", "tokenizers")
LONGEST_SAMPLE = 4096
"""Bytes of a text that are compared with the reference, at most."""


# tokenizers 1.0 does not load GPT-2's expression as a Split; Tokenlake has it written
# in another way.
LOADED = [name for name in sorted(samples.known()) if HAS_STAGES or name != "gpt-2"]


@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", LOADED)
def test_ids_equal_the_reference(name: str, mode: str) -> None:
    files, texts = samples.known()[name], samples.hard_texts()
    encoded = Encoder(files, engine="gigatoken", special_tokens_in_text=mode).encode(
        samples.large(texts)
    )
    assert samples.rows_of(encoded) == samples.reference_ids(
        files, texts, literal=mode == "literal"
    )
    assert encoded.offsets.dtype == np.int64 and encoded.ids.dtype == np.int32
    assert (
        encoded.ids.flags.c_contiguous
        and encoded.offsets[0] == 0
        and encoded.sampled > 0
    )


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece", "llama-3", "nfc"])
@settings(max_examples=15, deadline=None)
@given(texts=st.lists(st.text(max_size=80), max_size=8))
def test_ids_equal_the_reference_on_any_unicode(name: str, texts: list[str]) -> None:
    files = samples.known()[name]
    encoded = _encoder(name).encode(samples.large(texts))
    assert samples.rows_of(encoded) == samples.reference_ids(files, texts, literal=True)


_ENCODERS: dict[str, Encoder] = {}


def _encoder(name: str) -> Encoder:
    return _ENCODERS.setdefault(
        name, Encoder(samples.known()[name], engine="gigatoken")
    )


@pytest.mark.parametrize("engine", BACKENDS)
def test_special_tokens_in_text(engine: str) -> None:
    files = samples.sentencepiece()
    texts = samples.large(["a</s>b", "no markup", "<s><s> </s>", "</ s>", "x </s", ">"])
    literal = Encoder(files, engine=engine).encode(texts)
    control = Encoder(files, engine=engine, special_tokens_in_text="encode").encode(
        texts
    )
    fail = Encoder(files, engine=engine, special_tokens_in_text="fail").encode(texts)
    for encoded in (literal, control, fail):
        assert encoded.special_docs.tolist() == [0, 2]
        assert encoded.special_counts.tolist() == [1, 3] and encoded.special_tokens == 4
    assert not {0, 1, 2} & set(literal.ids.tolist())
    assert {1, 2} <= set(control.ids.tolist())
    assert samples.rows_of(fail) == samples.rows_of(literal)


@given(
    st.lists(
        st.lists(
            st.sampled_from(["<|a_1|>", "<|a_12|>", "<|", "a_1|>", "[b]", "é", " "]),
            max_size=6,
        ).map("".join)
    )
)
def test_hundreds_of_special_tokens_are_counted_as_a_few_are(texts: list[str]) -> None:
    few = SpecialScan(["<|a_1|>", "<|a_12|>", "[b]"])
    many = SpecialScan([*(f"<|a_{number}|>" for number in range(300)), "[b]"])
    rows, counts = many.count(samples.large(texts))
    assert dict(zip(rows.tolist(), counts.tolist(), strict=True)) == {
        row: times for row, text in enumerate(texts) if (times := few.times(text))
    }


def test_a_special_token_across_two_documents_is_none() -> None:
    encoded = Encoder(samples.sentencepiece(), engine="gigatoken").encode(
        samples.large(["a</", "s>b"])
    )
    assert encoded.special_tokens == 0 and not encoded.special_docs.size


@pytest.mark.parametrize("engine", BACKENDS)
def test_affixes_come_from_the_post_processor(engine: str) -> None:
    files = samples.sentencepiece()
    both = samples.template([("<s>", 1)], [("</s>", 2), ("<unk>", 0)])
    none = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": False,
        "use_regex": True,
    }
    bert = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}
    sequence = {"type": "Sequence", "processors": [none, both]}
    cases = [
        (files.spec["post_processor"], (1,), ()),
        (both, (1,), (2, 0)),
        (bert, (1,), (2,)),
    ]
    for processor, prefix, suffix in [
        *cases,
        (none, (), ()),
        (None, (), ()),
        (sequence, (1,), (2, 0)),
    ]:
        made = samples.changed(
            files,
            lambda spec, processor=processor: spec.update(post_processor=processor),
        )
        encoder = Encoder(made, engine=engine)
        assert (encoder.prefix, encoder.suffix) == (prefix, suffix)
        assert (prefix + suffix == ()) or encoder.encode(
            samples.large(["a"])
        ).ids.tolist()[0] not in prefix
    bare = Encoder(files, engine=engine, add_special_tokens=False)
    assert (bare.prefix, bare.suffix) == ((), ())


@needs_stages
def test_a_post_processor_that_does_not_wrap_is_refused() -> None:
    only_bos = [{"SpecialToken": {"id": "<s>", "type_id": 0}}]
    processor = {**samples.template([("<s>", 1)], []), "single": only_bos}
    files = samples.changed(
        samples.sentencepiece(), lambda spec: spec.update(post_processor=processor)
    )
    with pytest.raises(
        TokenizerError,
        match=r"post_processor \(TemplateProcessing\).*add_special_tokens: false",
    ):
        Encoder(files, engine="tokenizers")
    assert Encoder(files, engine="tokenizers", add_special_tokens=False).prefix == ()


@pytest.mark.parametrize(
    "files", [samples.byte_level(), samples.sentencepiece()], ids=["byte", "sp"]
)
@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"ok\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"caf\xe9"]
)
def test_invalid_utf8_never_reaches_an_engine(
    files: TokenizerFiles, data: bytes
) -> None:
    broken = pa.array([b"fine", data], pa.large_binary()).view(pa.large_string())
    with pytest.raises(TokenizerError, match="not valid UTF-8"):
        Encoder(files, engine="gigatoken").encode(broken)


def test_a_character_cut_between_two_rows_is_invalid() -> None:
    offsets, data = (
        pa.py_buffer(np.array([0, 1, 2], np.int64)),
        pa.py_buffer("\u00e9".encode()),
    )
    broken = pa.LargeStringArray.from_buffers(2, offsets, data)
    with pytest.raises(TokenizerError, match="not valid UTF-8"):
        Encoder(samples.byte_level(), engine="gigatoken").encode(broken)


@pytest.mark.parametrize("offsets", [[0, 3, 1], [0, 1, 9], [-1, 0, 1]])
def test_broken_offsets_never_reach_an_engine(offsets: list[int]) -> None:
    starts = np.array([0, 1, 3], np.int64)
    broken = pa.LargeStringArray.from_buffers(
        2, pa.py_buffer(starts), pa.py_buffer(b"abc")
    )
    starts[:] = offsets
    with pytest.raises(TokenizerError, match="offsets are broken"):
        Encoder(samples.byte_level(), engine="gigatoken").encode(broken)


@pytest.mark.parametrize(
    "text", [pa.array(["a", None], pa.large_string()), pa.array(["a"]), pa.array([1])]
)
def test_other_arrays_are_refused(text: pa.Array) -> None:
    with pytest.raises(TokenizerError, match="expected large_string without nulls"):
        Encoder(samples.byte_level(), engine="gigatoken").encode(text)


@pytest.mark.parametrize(
    "options",
    [{"engine": "gigatokn"}, {"special_tokens_in_text": "drop"}, {"sample_rate": 2}],
)
def test_unknown_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Encoder(samples.byte_level(), **{"engine": "gigatoken", **options})


def test_guarded_documents_go_to_the_reference_in_order() -> None:
    guarded = chr(UnicodeGuard(samples.byte_level()).ranges[0][0])
    texts = [
        f"{guarded} first",
        "plain",
        "",
        f"two {guarded}",
        guarded,
        "caf\u00e9",
        "last",
        f"x{guarded}",
    ]
    files = samples.byte_level()
    encoder = Encoder(files, engine="gigatoken", sample_rate=0)
    encoded = encoder.encode(samples.large(texts))
    assert encoded.guarded == 4
    assert samples.rows_of(encoded) == samples.reference_ids(files, texts, literal=True)
    everything = encoder.encode(samples.large([guarded, guarded]))
    assert everything.guarded == 2 and samples.rows_of(
        everything
    ) == samples.reference_ids(files, [guarded] * 2, literal=True)


def _holds(guard: UnicodeGuard, text: str) -> bool:
    return any(
        first <= ord(letter) <= last for letter in text for first, last in guard.ranges
    )


GUARDED = [
    chr(point)
    for bounds in UnicodeGuard(samples.known()["nfc"]).ranges
    for point in bounds
]


@pytest.mark.parametrize("name", ["byte-level", "nfc", "sentencepiece"])
@settings(deadline=None)
@given(texts=st.lists(st.one_of(st.text(), st.sampled_from(GUARDED)), max_size=20))
def test_the_guard_finds_the_same_rows_with_arrow_and_with_python(
    name: str, texts: list[str]
) -> None:
    guard, array = UnicodeGuard(samples.known()[name]), samples.large(texts)
    assert guard.rows(array).tolist() == [
        row for row, text in enumerate(texts) if _holds(guard, text)
    ]


MARKS = [
    chr(p)
    for p in range(0x80, 0x20000)
    if unicodedata.combining(chr(p)) or unicodedata.decomposition(chr(p))
]


@settings(max_examples=15, deadline=None)
@given(
    texts=st.lists(
        st.text(st.sampled_from([*MARKS, *GUARDED, *"aeA \n."]), max_size=6),
        max_size=30,
    )
)
def test_normalization_equals_the_references(texts: list[str]) -> None:
    encoded = _encoder("nfc").encode(samples.large(texts))
    assert samples.rows_of(encoded) == samples.reference_ids(
        samples.known()["nfc"], texts, literal=True
    )


class WrongEngine:
    """gigatoken with one id changed in every text that holds a word."""

    def __init__(self, encoder: Encoder, word: str) -> None:
        self._right, self._word = encoder._fast, word

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        made = self._right.encode(text)
        ids = made.ids.copy()
        for row, value in enumerate(text.to_pylist()):
            if self._word in value:
                ids[made.offsets[row + 1] - 1] += 1
        return Ragged(ids, made.offsets)


@pytest.mark.parametrize(
    "texts",
    [["word"] * 50, ["a long one: " + "word " * LONGEST_SAMPLE] * 3],
    ids=["short", "long"],
)
def test_sampling_condemns_a_wrong_engine(texts: list[str]) -> None:
    encoder = Encoder(samples.byte_level(), engine="gigatoken")
    encoder._fast = WrongEngine(encoder, "word")
    with pytest.raises(
        EngineMismatchError, match="differs from the reference 'tokenizers' from id"
    ) as caught:
        encoder.encode(samples.large(texts))
    assert (
        caught.value.details["engine"] == "gigatoken"
        and len(caught.value.details["text"]) <= LONGEST_SAMPLE
    )
    assert caught.value.details["expected"] != caught.value.details["got"]


def test_sampling_finds_a_rare_difference_in_the_long_run() -> None:
    encoder = Encoder(samples.byte_level(), engine="gigatoken")
    encoder._fast = WrongEngine(encoder, "rare")
    texts = samples.large(
        [("rare" if row % 20 == 0 else "word") + " text" * 40 for row in range(20_000)]
    )
    with pytest.raises(EngineMismatchError):
        for _ in range(10):
            encoder.encode(texts)


def test_sampling_is_bounded_and_repeatable() -> None:
    texts = samples.large(["some text of a few words " * 40] * 5000)
    counts = []
    for _ in range(2):
        encoder = Encoder(samples.byte_level(), engine="gigatoken", sample_rate=0.001)
        counts.append([encoder.encode(texts).sampled for _ in range(3)])
    assert counts[0] == counts[1]
    assert sum(counts[0]) <= 0.001 * 3 * 5000 + LONGEST_SAMPLE / 1000 + 1
    assert (
        Encoder(samples.byte_level(), engine="gigatoken", sample_rate=0)
        .encode(texts)
        .sampled
        == 0
    )


@pytest.mark.parametrize(
    "files", [samples.byte_level(), samples.sentencepiece()], ids=["byte", "sp"]
)
def test_decode_gives_the_text_back(files: TokenizerFiles) -> None:
    encoder = Encoder(files, engine="gigatoken")
    for text in (
        "Hello, world!",
        "caf\u00e9 \u4f60\u597d \U0001f600",
        "def f():\n    return 1",
    ):
        assert encoder.decode(encoder.encode(samples.large([text])).ids) == text


def test_the_reference_ignores_truncation_and_padding() -> None:
    padding = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
    }
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}
    truncation = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    files = samples.changed(
        samples.sentencepiece(),
        lambda spec: spec.update(padding=padding, truncation=truncation),
    )
    texts = ["a", "a longer text of many words"]
    for engine in BACKENDS:
        encoded = Encoder(files, engine=engine).encode(samples.large(texts))
        assert samples.rows_of(encoded) == samples.reference_ids(
            samples.sentencepiece(), texts, literal=True
        )


@pytest.mark.parametrize(
    ("name", "literal"),
    [
        *((name, True) for name in LOADED),
        ("byte-level", False),
        ("sentencepiece", False),
    ],
)
def test_the_reference_cuts_long_documents_without_changing_ids(
    name: str, literal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenlake.etl.tokenizers.backends.BATCH_BYTES", 50)
    files, text = samples.known()[name], "\n".join(samples.hard_texts())
    reference = ReferenceBackend(files, literal=literal)
    assert reference.cuts is not None
    assert len(list(reference.cuts.pieces(pa.py_buffer(text.encode()), 50))) > 200
    rows = reference.encode(
        samples.large(["short", text, "", text[:70], "x" * 200])
    ).rows()
    expected = samples.reference_ids(
        files, ["short", text, "", text[:70], "x" * 200], literal=literal
    )
    assert [row.tolist() for row in rows] == expected


def test_documents_of_other_tokenizers_are_never_cut() -> None:
    inside = samples.changed(
        samples.sentencepiece(),
        lambda spec: spec["model"]["vocab"].update({"a\u2581b": 99_999}),
    )
    lower = samples.changed(
        samples.byte_level(), lambda spec: spec.update(normalizer={"type": "Lowercase"})
    )
    spaced = {
        "id": 1200,
        "content": "a b",
        **dict.fromkeys(FLAGS, False),
        "special": True,
    }
    token = samples.changed(
        samples.byte_level(), lambda spec: spec["added_tokens"].append(spaced)
    )
    for files in (inside, lower):
        assert ReferenceBackend(files, literal=True).cuts is None
    assert ReferenceBackend(token, literal=False).cuts is None
    assert ReferenceBackend(token, literal=True).cuts is not None
