"""A tokenizer of somebody else cannot take the memory or the time of the process
that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builds import config_of
from tests.tokenizer_guard import hostile
from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.cli.app import main
from tokenlake.errors import TokenizerError
from tokenlake.etl import build_dataset
from tokenlake.etl.tokenizers import (
    TokenizerFiles,
    TokenizerManager,
    describe,
    load_tokenizer,
)
from tokenlake.runtime.loader import open as open_dataset
from tokenlake.runtime.tokenizer_guard import ProcessLimits


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound processes to less memory than usual, which is filled sooner."""
    monkeypatch.setattr(
        "tokenlake.runtime.tokenizer_guard.process.DEFAULT_LIMITS",
        ProcessLimits(memory=300 << 20),
    )


Change = Callable[[hostile.Spec], object]

# What changes in tokenizer.json, and what the error says of it.
REFUSED: dict[str, tuple[Change, str]] = {
    "an id of 2^31": (
        lambda spec: hostile.add_token(spec, id=1 << 31),
        r"added_tokens\[1\]\.id: got int 2147483648, expected an id from 0 to 2,147,483,647",
    ),
    "an id beyond 32 bits": (
        lambda spec: hostile.set_id(spec, 1 << 32),
        r"model\.vocab\[.*got int 4294967296",
    ),
    "an id beyond 64 bits": (
        lambda spec: hostile.set_id(spec, 1 << 70),
        r"model\.vocab\[.*expected an id",
    ),
    "a negative id": (
        lambda spec: hostile.set_id(spec, -1),
        r"model\.vocab\[.*got int -1",
    ),
    "an id that is a text": (
        lambda spec: hostile.set_id(spec, "7"),
        r"model\.vocab\[.*got str '7'",
    ),
    "an id that is a boolean": (
        lambda spec: hostile.set_id(spec, True),
        r"model\.vocab\[.*got bool True",
    ),
    "a fractional id": (
        lambda spec: hostile.add_token(spec, id=1.5),
        r"added_tokens\[1\]\.id: got float 1\.5",
    ),
    "a huge added token": (
        lambda spec: hostile.add_token(spec, content="x" * (50 << 20)),
        r"added_tokens\[1\]\.content: got 52,428,800 characters, expected at most 8,192",
    ),
    "an added token without content": (
        lambda spec: hostile.add_token(spec, content=None),
        r"added_tokens\[1\]\.content: got NoneType None, expected a text",
    ),
    "added tokens that are no array": (
        lambda spec: spec.update(added_tokens={}),
        "added_tokens: got dict",
    ),
    "no model": (
        lambda spec: spec.update(model=None),
        "model: got NoneType None, expected an object",
    ),
    "a vocabulary that is a text": (
        lambda spec: spec["model"].update(vocab="x"),
        "model.vocab: got str 'x'",
    ),
    "pieces without scores": (
        lambda spec: spec["model"].update(type="Unigram", vocab=[["a"]]),
        r"model\.vocab\[0\]: got list, expected a text and its score",
    ),
    "a normalizer that is an array": (
        lambda spec: spec.update(normalizer=[1]),
        "normalizer: got list, expected an object or null",
    ),
    "a post-processor with an id of 2^31": (
        lambda spec: spec.update(
            post_processor=samples.template([("<s>", 1 << 31)], [])
        ),
        "post_processor: ids: got int 2147483648",
    ),
    "a post-processor of 90,000 tokens": (
        lambda spec: spec.update(
            post_processor=samples.template([("<s>", 1)] * 90_000, [])
        ),
        "post_processor: got more values",
    ),
    "stages in stages": (
        lambda spec: spec.update(normalizer=_nested(40)),
        "normalizer: got deeper nested parts, expected at most 32 levels",
    ),
}


def _nested(levels: int) -> dict[str, Any]:
    stage: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(levels):
        stage = hostile.normalizers(stage)
    return stage


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_tokenizer_can_mean_is_refused_before_it_is_loaded(name: str) -> None:
    change, message = REFUSED[name]
    files = hostile.files_with(change)
    with pytest.raises(
        TokenizerError, match=f"^tokenizer 'byte-level': tokenizer.json: {message}"
    ):
        describe(files)
    with pytest.raises(TokenizerError, match=message):
        _ = files.vocab_size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eos_token": {}}, "eos_token: got an object without a content"),
        ({"eos_token": {"content": ["</s>"]}}, "eos_token: got list"),
        ({"eos_token": ["</s>"]}, "eos_token: got list"),
        ({"bos_token": 5}, "bos_token: got int 5"),
        ({"pad_token": False}, "pad_token: got bool False"),
        (
            {"eos_token": "x" * 1_000_000},
            "eos_token: got 1,000,000 characters, expected at most 8,192",
        ),
    ],
)
def test_a_named_token_that_is_no_text_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=f"tokenizer_config.json: {message}"):
        describe(hostile.files_with_config(**settings))


def test_a_named_token_may_be_null_and_an_object_with_content() -> None:
    files = hostile.files_with_config(
        bos_token=None, eos_token={"content": "<|endoftext|>", "lstrip": False}
    )
    assert files.bos_token is None
    assert files.eos_id == 0


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"model":' * 2000 + b"1" + b"}" * 2000]
)
def test_a_file_that_is_nested_too_deep_is_refused(data: bytes) -> None:
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json is (nested too deeply|not valid JSON)"
    ):
        describe(TokenizerFiles(name="deep", files={"tokenizer.json": data}))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(10 << 30)  # no bytes on the disk
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(
            TokenizerError,
            match=r"tokenizer\.json has 10,737,418,240 bytes, expected at most",
        ):
            load_tokenizer(name)


def test_a_file_of_millions_of_arrays_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokenlake.runtime.tokenizer_guard.shape.MAX_CONTAINERS", 1000)
    files = TokenizerFiles(
        name="arrays", files={"tokenizer.json": b"[" + b"[]," * 1000 + b"[]]"}
    )
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json has 1,002 arrays and objects"
    ):
        _ = files.spec


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (hostile.growing_normalizer, "(encoding|loading) took more than .* of memory"),
        pytest.param(
            hostile.growing_pre_tokenizer,
            "encoding took more than .* of (memory|a processor)",
            marks=needs_stages,  # 1.0 does not load it
        ),
        (hostile.long_prepend, "(encoding|loading) took more than .* of memory"),
    ],
)
def test_a_tokenizer_that_grows_text_ends_a_process_of_its_own(
    change: Change, message: str
) -> None:
    with pytest.raises(
        TokenizerError, match=f"^tokenizer 'byte-level': tokenizer.json: {message}"
    ):
        describe(hostile.files_with(change))


@pytest.mark.usefixtures("little_memory")
def test_planning_says_it_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.save(hostile.files_with(hostile.growing_normalizer), tmp_path / "tokenizer")
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "words"}\n')
    config = tmp_path / "set.json"
    config.write_text(
        json.dumps(config_of(tmp_path, data, tmp_path / "tokenizer", pack=16))
    )
    assert main(["plan", str(config)]) == 1
    captured = capsys.readouterr()
    assert (
        "It runs in a bounded process, because its normalizer or pre_tokenizer may make"
        in captured.err
    )
    assert "Traceback" not in captured.err


@pytest.mark.usefixtures("little_memory")
def test_the_manager_says_it_for_the_text_that_grows() -> None:
    grow = {"type": "Replace", "pattern": {"String": "Q"}, "content": "Q" * 1000}
    files = hostile.files_with(
        lambda spec: spec.update(normalizer=hostile.normalizers(*[grow] * 4))
    )
    manager = TokenizerManager()
    loaded = manager.get_tokenizer(files)
    plain = samples.byte_level()
    assert (
        manager.tokenize_text(loaded, "words")["input_ids"]
        == (manager.tokenize_text(plain, "words")["input_ids"])
    )
    with pytest.raises(TokenizerError, match=r"encoding took more than .* of memory"):
        manager.tokenize_text(loaded, "Q")
    # The process is replaced.
    assert manager.tokenize_text(loaded, "words")["input_ids"]


@needs_stages
@pytest.mark.usefixtures("little_memory")
def test_decoding_a_version_is_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.save(hostile.files_with(hostile.growing_decoder), tmp_path / "tokenizer")
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "a cat and a hat"}\n' * 4)
    config = config_of(tmp_path, data, tmp_path / "tokenizer", pack=16)
    result = build_dataset(config, workers=1)
    with pytest.raises(
        TokenizerError,
        match=r"set@v1.*decoding took more than .* of memory.*its decoder",
    ):
        open_dataset(result.path).decode(0)
    store = str(Path(result.path).parents[1])
    assert main(["peek", "set", "--store", store]) == 1
    assert "decoding took more than" in capsys.readouterr().err
