"""The gate: gigatoken runs only where it was shown to be equal, and never against the evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tests.tokenizer_samples as samples
import tokenlake.tokenizers.gate as gate
from tests.tokenizer_samples import SPACE, Spec, changed, split_stage
from tokenlake.errors import ConfigError, EngineMismatchError, TokenizerError
from tokenlake.tokenizers import Encoder, TokenizerFiles, choose_engine
from tokenlake.tokenizers.allowlist import SPLIT_REGEXES, objection
from tokenlake.tokenizers.fast import GigatokenEngine
from tokenlake.tokenizers.reference import Reference

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s+"
)
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def pre(stage: Any) -> Callable[[Spec], object]:
    return lambda spec: spec.update(pre_tokenizer=stage)


def norm(stage: Any) -> Callable[[Spec], object]:
    return lambda spec: spec.update(normalizer=stage)


def model(**values: Any) -> Callable[[Spec], object]:
    return lambda spec: spec["model"].update(values)


def added(*tokens: dict[str, Any]) -> Callable[[Spec], object]:
    """Add tokens after the vocabulary's end."""

    def change(spec: Spec) -> None:
        first = len(spec["model"]["vocab"])
        spec["added_tokens"] = [
            *spec["added_tokens"],
            *({"id": first + i, **FLAGS, **t} for i, t in enumerate(tokens)),
        ]

    return change


def without(token: str) -> Callable[[Spec], object]:
    """Take a token out of the vocabulary, with its merges."""

    def change(spec: Spec) -> None:
        kept = [name for name in spec["model"]["vocab"] if name != token]
        spec["model"]["vocab"] = {name: i for i, name in enumerate(kept)}
        spec["model"]["merges"] = [
            m for m in spec["model"]["merges"] if token not in m and "".join(m) in kept
        ]
        spec["added_tokens"] = []
        spec["post_processor"] = None

    return change


def shuffled_ids(spec: Spec) -> None:
    """Give the merged tokens ids in another order than that of the merges."""
    vocab = spec["model"]["vocab"]
    fixed = {token: i for token, i in vocab.items() if i < 300}
    rest = sorted((token for token in vocab if token not in fixed), key=lambda token: token[::-1])
    spec["model"]["vocab"] = {**fixed, **{token: 300 + i for i, token in enumerate(rest)}}


def sequence(*stages: Spec) -> Spec:
    return {"type": "Sequence", "pretokenizers": list(stages)}


BYTE, SP = samples.byte_level, samples.sentencepiece
LEVEL = samples.BYTE_LEVEL
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
TAG = {"content": "<tag>"}
YES, NO = "gigatoken", "tokenizers"

# name: (tokenizer, change, engine for literal, engine for encode)
MUTATIONS: dict[str, tuple[Callable[[], TokenizerFiles], Callable[[Spec], object], str, str]] = {
    "unchanged byte-level": (BYTE, lambda spec: None, YES, YES),
    "unchanged sentencepiece": (SP, lambda spec: None, YES, YES),
    "no model type": (BYTE, lambda spec: spec["model"].pop("type"), YES, YES),
    "merges as strings": (
        BYTE,
        lambda s: s["model"].update(merges=[" ".join(m) for m in s["model"]["merges"]]),
        YES,
        YES,
    ),
    "ids not in merge order": (BYTE, shuffled_ids, YES, YES),
    "ignore_merges": (BYTE, model(ignore_merges=True), YES, YES),
    "ignore_merges, fewer merges": (
        BYTE,
        lambda s: s["model"].update(ignore_merges=True, merges=s["model"]["merges"][::2]),
        YES,
        YES,
    ),
    "fewer merges": (BYTE, lambda s: s["model"].update(merges=s["model"]["merges"][::3]), YES, YES),
    "llama-3 split": (BYTE, pre(split_stage(SPLIT_REGEXES["llama-3"])), YES, YES),
    "qwen-2 split, nfc": (BYTE, lambda s: s.update(samples.known()["nfc"].spec), YES, YES),
    "o200k split": (BYTE, pre(split_stage(SPLIT_REGEXES["o200k"])), YES, YES),
    "a plain added token": (BYTE, added(TAG), YES, YES),
    "two plain added tokens": (SP, added(TAG, {"content": "<other>"}), YES, YES),
    "metaspace": (SP, lambda s: s.update(pre_tokenizer=METASPACE, normalizer=None), YES, YES),
    "replace only": (SP, norm(REPLACE), YES, YES),
    "truncation inside": (
        BYTE,
        lambda s: s.update(
            truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        ),
        YES,
        YES,
    ),
    "null pre-tokenizer": (BYTE, pre(None), NO, NO),
    "byte-level without regex": (BYTE, pre({**LEVEL, "use_regex": False}), NO, NO),
    "prefix space": (BYTE, pre({**LEVEL, "add_prefix_space": True}), NO, NO),
    "digits stage": (BYTE, pre(sequence({"type": "Digits", "individual_digits": True}, LEVEL)), NO, NO),
    "punctuation stage": (
        BYTE,
        pre(sequence({"type": "Punctuation", "behavior": "Isolated"}, LEVEL)),
        NO,
        NO,
    ),
    "whitespace stage": (BYTE, pre({"type": "Whitespace"}), NO, NO),
    "split removed": (BYTE, pre(split_stage(SPLIT_REGEXES["llama-3"], behavior="Removed")), NO, NO),
    "split contiguous": (BYTE, pre(split_stage(SPLIT_REGEXES["gpt-2"], behavior="Contiguous")), NO, NO),
    "split merged": (BYTE, pre(split_stage(SPLIT_REGEXES["gpt-2"], behavior="MergedWithNext")), NO, NO),
    "split inverted": (BYTE, pre(split_stage(SPLIT_REGEXES["gpt-2"], invert=True)), NO, NO),
    "split, then gpt-2 again": (
        BYTE,
        pre(sequence(split_stage(SPLIT_REGEXES["llama-3"])["pretokenizers"][0], LEVEL)),
        NO,
        NO,
    ),
    "unknown regex": (BYTE, pre(split_stage(r"\p{L}+|\s+|.")), NO, NO),
    "cl100k regex": (BYTE, pre(split_stage(CL100K)), NO, NO),
    "split on a string": (BYTE, pre(split_stage("", pattern={"String": " "})), NO, NO),
    "lowercase": (BYTE, norm({"type": "Lowercase"}), NO, NO),
    "nfkc": (BYTE, norm({"type": "NFKC"}), NO, NO),
    "nested nfc": (BYTE, norm({"type": "Sequence", "normalizers": [{"type": "NFC"}]}), NO, NO),
    "missing byte token": (BYTE, without("\u0109"), NO, NO),
    "missing fallback token": (SP, without("<0x0A>"), NO, NO),
    "end_of_word_suffix": (BYTE, model(end_of_word_suffix="</w>", merges=[]), NO, NO),
    "continuing_subword_prefix": (BYTE, model(continuing_subword_prefix="##", merges=[]), NO, NO),
    "merge twice": (BYTE, lambda s: s["model"]["merges"].insert(0, s["model"]["merges"][-1]), NO, NO),
    "special: lstrip": (BYTE, added({**TAG, "special": True, "lstrip": True}), YES, NO),
    "plain: lstrip": (BYTE, added({**TAG, "lstrip": True}), NO, NO),
    "plain: rstrip": (BYTE, added({**TAG, "rstrip": True}), NO, NO),
    "plain: single_word": (BYTE, added({"content": "word", "single_word": True}), NO, NO),
    "plain: normalized": (SP, added({"content": "two words", "normalized": True}), NO, NO),
    "overlapping tokens": (BYTE, added({"content": "<|a|>"}, {"content": "|><"}), NO, NO),
    "a token inside another": (BYTE, added({"content": "aa"}, {"content": "baab"}), NO, NO),
    "a token overlapping itself": (BYTE, added({"content": "aba"}), NO, NO),
    "a plain token inside a special one": (BYTE, added({"content": "endof"}), NO, NO),
    "a token that nfc could make": (
        lambda: samples.known()["nfc"],
        added({"content": "K"}),
        NO,
        NO,
    ),
    "a gap before an added token": (BYTE, added({**TAG, "id": 5000}), NO, NO),
    "an added token with a used id": (BYTE, added({**TAG, "id": 7}), NO, NO),
    "an added token with a wrong id": (BYTE, added({"content": "th", "id": 5000}), NO, NO),
    "nfc with a tag": (lambda: samples.known()["nfc"], added(TAG), YES, YES),
    "metaspace beside a normalizer": (SP, pre(METASPACE), NO, NO),
    "metaspace, other mark": (
        SP,
        lambda s: s.update(pre_tokenizer={**METASPACE, "replacement": "_"}, normalizer=None),
        NO,
        NO,
    ),
    "normalizers swapped": (SP, norm({"type": "Sequence", "normalizers": [REPLACE, PREPEND]}), NO, NO),
    "strip": (
        SP,
        norm(
            {
                "type": "Sequence",
                "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True}, REPLACE],
            }
        ),
        NO,
        NO,
    ),
    "null normalizer": (SP, norm(None), NO, NO),
    "byte fallback with byte-level": (BYTE, model(byte_fallback=True), NO, NO),
    "doubling post-processor": (
        BYTE,
        lambda s: s.update(
            post_processor={
                **samples.template([], []),
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
            }
        ),
        NO,
        NO,
    ),
}
TEXTS = (
    *samples.hard_texts()[::4],
    "a <tag> b<tag>",
    "word words sword  word",
    "aaba baab abababa two words twowords",
    "<|a|><|a|>",
    "endof <|endoftext|> endoftext",
    "x\nyz\ttab A\u030a \u212b ; \u037e",
    "UPPER lower MiXed",
    "## </w>",
)


CASES = [(name, True) for name in MUTATIONS] + [
    (name, False) for name in MUTATIONS if any(word in name for word in ("token", "unchanged", ":", "nfc"))
]


@pytest.mark.parametrize(("name", "literal"), CASES)
def test_the_chosen_engine_equals_the_reference(name: str, literal: bool) -> None:
    make, change, for_literal, for_encode = MUTATIONS[name]
    files = changed(make(), change)
    mode = "literal" if literal else "encode"
    choice = choose_engine(files, "auto", mode)
    assert choice.engine == (for_literal if literal else for_encode), choice.reason
    encoder = Encoder(files, engine=choice.engine, special_tokens_in_text=mode)
    encoded = encoder.encode(samples.large(TEXTS))
    cuts = encoded.offsets.tolist()
    got = [encoded.ids[start:stop].tolist() for start, stop in pairwise(cuts)]
    assert got == samples.reference_ids(files, TEXTS, literal=literal)


def test_other_models_go_to_the_reference() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    word_piece = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0, False))
    word_level = Tokenizer(models.WordLevel({"[UNK]": 0, "ab": 1}, unk_token="[UNK]"))
    for backend in (word_piece, unigram, word_level):
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        files = TokenizerFiles(name="other", files={"tokenizer.json": backend.to_str().encode()})
        choice = choose_engine(files)
        assert choice.engine == "tokenizers" and "only BPE" in choice.reason
        encoded = Encoder(files, engine="tokenizers").encode(samples.large(["ab a", "b"]))
        assert encoded.ids.tolist() == [
            i for ids in samples.reference_ids(files, ["ab a", "b"], literal=True) for i in ids
        ]


def test_a_request_for_gigatoken_is_refused_with_the_reason() -> None:
    files = changed(BYTE(), pre(None))
    with pytest.raises(TokenizerError, match="'gigatoken' is requested, but the pre_tokenizer is missing"):
        choose_engine(files, "gigatoken")
    assert choose_engine(BYTE(), "gigatoken").engine == "gigatoken"


def test_a_request_for_the_reference_is_granted() -> None:
    assert choose_engine(BYTE(), "tokenizers").engine == "tokenizers"


def test_unknown_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="'auto', 'gigatoken', 'tokenizers'"):
        choose_engine(BYTE(), "fast")
    with pytest.raises(ConfigError, match="special_tokens_in_text"):
        choose_engine(BYTE(), "auto", "drop")


class OtherEngine:
    """gigatoken on another tokenizer: right for many texts, wrong for some."""

    def __init__(self, files: TokenizerFiles, *, literal: bool = True) -> None:
        other = changed(files, lambda spec: spec["model"].update(merges=spec["model"]["merges"][:-40]))
        self._engine = GigatokenEngine(other, literal=literal)

    def encode(self, text: pa.LargeStringArray) -> Any:
        return self._engine.encode(text)


def test_the_probe_condemns_a_wrong_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = samples.training_texts()
    monkeypatch.setattr(gate, "GigatokenEngine", OtherEngine)
    with pytest.raises(EngineMismatchError):
        choose_engine(BYTE(), "gigatoken", "literal", documents)
    choice = choose_engine(BYTE(), "auto", "literal", documents)
    assert choice.engine == "tokenizers" and "differs from the reference" in choice.reason


def test_a_difference_in_the_documents_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongOnOneWord(OtherEngine):
        def __init__(self, files: TokenizerFiles, *, literal: bool = True) -> None:
            self._engine = GigatokenEngine(files, literal=literal)

        def encode(self, text: pa.LargeStringArray) -> Any:
            return self._engine.encode(pc.replace_substring(text, "zzqx", "zzxq"))

    monkeypatch.setattr(gate, "GigatokenEngine", WrongOnOneWord)
    assert choose_engine(BYTE()).engine == "gigatoken"
    assert choose_engine(BYTE(), sample_texts=["fine", "has zzqx inside"]).engine == "tokenizers"


def test_the_probe_is_bounded() -> None:
    texts = list(gate._bounded(["x" * 10_000_000] * 3))
    assert sum(map(len, texts)) <= gate.SAMPLE_BYTES and len(texts) == 3
    many = list(gate._bounded(["y" * 100_000] * 10_000))
    assert sum(map(len, many)) <= gate.SAMPLE_BYTES and len(many) > 100


def test_dropout_is_refused_because_ids_would_be_random() -> None:
    files = changed(BYTE(), model(dropout=0.1))
    with pytest.raises(TokenizerError, match=r"model\.dropout is 0\.1.*Set it to null"):
        choose_engine(files)
    assert choose_engine(changed(BYTE(), model(dropout=None))).engine == "gigatoken"


@pytest.mark.parametrize("regex", ["(?<=a", "[", "*", "(", "a{99999999}"])
def test_a_bad_regex_is_a_tokenizer_error(regex: str, capfd: pytest.CaptureFixture[str]) -> None:
    files = changed(BYTE(), pre(split_stage(regex)))
    with pytest.raises(TokenizerError):
        choose_engine(files)
    with pytest.raises(TokenizerError):
        Encoder(files, engine="tokenizers")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"{}", b'{"model": {}}', b'{"model": 3}', b"\xff"]
)
def test_a_broken_json_is_a_tokenizer_error(data: bytes) -> None:
    with pytest.raises(TokenizerError):
        choose_engine(TokenizerFiles(name="broken", files={"tokenizer.json": data}))


def test_a_panic_while_encoding_is_a_tokenizer_error() -> None:
    class Panicking:
        def encode_batch_fast(self, *_: Any, **__: Any) -> None:
            raise type("PanicException", (BaseException,), {})("index out of bounds")

    reference = Reference(BYTE())
    reference._backend = Panicking()
    with pytest.raises(TokenizerError, match="panicked: index out of bounds"):
        reference.encode(["a"])


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_swallowed(interrupt: type[BaseException]) -> None:
    class Interrupted:
        def encode_batch_fast(self, *_: Any, **__: Any) -> None:
            raise interrupt

    reference = Reference(BYTE())
    reference._backend = Interrupted()
    with pytest.raises(interrupt):
        reference.encode(["a"])


def test_every_known_form_is_allowed_and_nothing_is_with_an_unknown_key() -> None:
    for name, files in samples.known().items():
        assert objection(files, literal=True) is None, name
        assert objection(files, literal=False) is None, name
        spec = json.loads(files.json_bytes)
        for part in (
            spec,
            spec["model"],
            spec["added_tokens"][0],
            spec["pre_tokenizer"] or spec["normalizer"],
        ):
            part["new_option"] = True
            assert objection(samples.from_spec(spec), literal=True) is not None, name
            del part["new_option"]
