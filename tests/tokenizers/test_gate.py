"""The gate: gigatoken runs only where it was shown to be equal, and never against
the evidence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.builds import config_of
from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_mutations import model, norm, pre
from tests.tokenizers.tokenizer_samples import changed, choose_engine, split_stage
from tokenlake.errors import (
    ConfigError,
    EngineMismatchError,
    MissingExtraError,
    TokenizerError,
)
from tokenlake.etl import build_dataset
from tokenlake.etl.tokenizers import (
    Encoder,
    ReferenceBackend,
    TokenizerFiles,
    backends,
    gate,
    objection,
)

# About which engine is chosen, and why, beside `tokenizers` before 1.0.
pytestmark = needs_stages

BYTE = samples.byte_level
GigatokenBackend = backends.GigatokenBackend


def test_a_request_for_gigatoken_is_refused_with_the_reason() -> None:
    files = changed(BYTE(), pre(None))
    with pytest.raises(
        TokenizerError,
        match="tokenizer_backend: gigatoken was requested, but the pre_tokenizer is missing",
    ):
        choose_engine(files, "gigatoken")
    assert choose_engine(BYTE(), "gigatoken").engine == "gigatoken"


def test_a_request_for_the_reference_is_granted() -> None:
    assert choose_engine(BYTE(), "tokenizers").engine == "tokenizers"


def test_segments_are_for_large_builds_of_sentencepiece_tokenizers() -> None:
    large = gate.SEGMENTS_FROM
    assert choose_engine(samples.sentencepiece(), size=large - 1).engine == "gigatoken"
    assert choose_engine(samples.sentencepiece(), size=large).engine == "segments"
    assert choose_engine(samples.sentencepiece(), "segments").engine == "segments"
    assert choose_engine(BYTE(), size=large).engine == "gigatoken"
    with pytest.raises(
        TokenizerError,
        match="tokenizer_backend: segments was requested, but it is not in the style of SentencePiece",
    ):
        choose_engine(BYTE(), "segments")


def test_where_segments_cannot_run_gigatoken_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tokenlake.etl.tokenizers.segment_kernels", None)
    monkeypatch.delattr("tokenlake.etl.tokenizers.segment_kernels", raising=False)
    assert (
        choose_engine(samples.sentencepiece(), size=gate.SEGMENTS_FROM).engine
        == "gigatoken"
    )
    with pytest.raises(
        MissingExtraError,
        match=r"'segments' needs its packages: pip install 'tokenlake\[etl\]'",
    ):
        choose_engine(samples.sentencepiece(), "segments")


def test_unknown_requests_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="'auto', 'words', 'segments', 'gigatoken', 'tokenizers'"
    ):
        choose_engine(BYTE(), "fast")
    with pytest.raises(ConfigError, match="special_tokens_in_text"):
        choose_engine(BYTE(), "auto", "drop")


class OtherEngine:
    """gigatoken on another tokenizer: right for many texts, wrong for some."""

    def __init__(
        self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False
    ) -> None:
        other = changed(
            files,
            lambda spec: spec["model"].update(merges=spec["model"]["merges"][:-40]),
        )
        self._backend = GigatokenBackend(other, literal=literal)

    def encode(self, text: pa.LargeStringArray) -> Any:
        return self._backend.encode(text)


def test_the_probe_condemns_a_wrong_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = samples.training_texts()
    monkeypatch.setattr(backends, "GigatokenBackend", OtherEngine)
    with pytest.raises(EngineMismatchError):
        choose_engine(BYTE(), "gigatoken", "literal", documents)
    choice = choose_engine(BYTE(), "auto", "literal", documents)
    assert (
        choice.engine == "tokenizers" and "differs from the reference" in choice.reason
    )


def test_a_difference_in_the_documents_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WrongOnOneWord(OtherEngine):
        def __init__(
            self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False
        ) -> None:
            self._backend = GigatokenBackend(files, literal=literal)

        def encode(self, text: pa.LargeStringArray) -> Any:
            return self._backend.encode(pc.replace_substring(text, "zzqx", "zzxq"))

    monkeypatch.setattr(backends, "GigatokenBackend", WrongOnOneWord)
    assert choose_engine(BYTE()).engine == "gigatoken"
    assert (
        choose_engine(BYTE(), sample_texts=["fine", "has zzqx inside"]).engine
        == "tokenizers"
    )


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
def test_a_bad_regex_is_a_tokenizer_error(
    regex: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = changed(BYTE(), pre(split_stage(regex)))
    with pytest.raises(TokenizerError):
        choose_engine(files)
    with pytest.raises(TokenizerError):
        Encoder(files, engine="tokenizers")


BACKTRACKING = r"(a+)+$"
EVIL = {
    "pre-tokenizer": pre(split_stage(BACKTRACKING)),
    "normalizer": norm(
        {"type": "Replace", "pattern": {"Regex": BACKTRACKING}, "content": "x"}
    ),
}


@pytest.mark.parametrize("where", EVIL)
def test_a_regex_that_backtracks_without_end_is_a_tokenizer_error(
    where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = changed(BYTE(), EVIL[where])
    assert choose_engine(files).engine == "tokenizers"
    text = samples.large(["a" * 40 + "!"])
    encoder = Encoder(files, engine="tokenizers")
    for encode in (encoder.encode, encoder.encode_places):
        with pytest.raises(TokenizerError, match=r"panicked.*retry-limit"):
            encode(text)
    assert len(encoder.encode(samples.large(["words"])).ids)


def test_a_regex_that_panics_in_a_worker_ends_the_build_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    samples.save(changed(BYTE(), EVIL["pre-tokenizer"]), tmp_path / "tokenizer")
    rows = ["words of a text", "a" * 40 + "!"]
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in rows)
    )
    config = config_of(tmp_path, tmp_path / "in.jsonl", tmp_path / "tokenizer", pack=16)
    with pytest.raises(TokenizerError, match=r"panicked.*retry-limit"):
        build_dataset(config, workers=1)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"{}", b'{"model": {}}', b'{"model": 3}', b"\xff"],
)
def test_a_broken_json_is_a_tokenizer_error(data: bytes) -> None:
    with pytest.raises(TokenizerError):
        choose_engine(TokenizerFiles(name="broken", files={"tokenizer.json": data}))


def test_a_panic_while_encoding_is_a_tokenizer_error() -> None:
    class Panicking:
        def encode(self, *_: Any, **__: Any) -> None:
            raise type("PanicException", (BaseException,), {})("index out of bounds")

    reference = ReferenceBackend(BYTE())
    reference._library = Panicking()
    with pytest.raises(TokenizerError, match="panicked: index out of bounds"):
        reference.encode(samples.large(["a"]))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_swallowed(interrupt: type[BaseException]) -> None:
    class Interrupted:
        def encode(self, *_: Any, **__: Any) -> None:
            raise interrupt

    reference = ReferenceBackend(BYTE())
    reference._library = Interrupted()
    with pytest.raises(interrupt):
        reference.encode(samples.large(["a"]))


def test_every_known_form_is_allowed_and_nothing_is_with_an_unknown_key() -> None:
    for name, files in samples.known().items():
        assert objection(files, literal=True) is None, name
        assert objection(files, literal=False) is None, name
        spec = json.loads(files.json_bytes)
        stage = spec["pre_tokenizer"] or spec["normalizer"]
        for part in (spec, spec["model"], spec["added_tokens"][0], stage):
            part["new_option"] = True
            assert objection(samples.from_spec(spec), literal=True) is not None, name
            del part["new_option"]
