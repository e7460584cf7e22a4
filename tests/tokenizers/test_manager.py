"""TokenizerManager: exact ids, cut, padded and masked as asked for; hashes of what a
tokenizer is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import promise
from tests.tokenizer_reference import (
    ReferenceTokenizer,
    import_transformers,
    needs_stages,
    open_backend,
)
from tests.tokenizers.tokenizer_samples import (
    byte_level,
    changed,
    from_spec,
    hard_texts,
    save,
    sentencepiece,
)
from tokenlake.config import TokenizerConfig
from tokenlake.easydel import compute_tokenizer_hash
from tokenlake.errors import ConfigError, SourceNotFoundError, TokenizerError
from tokenlake.etl.tokenizers import TokenizerFiles, TokenizerManager

MANAGER = TokenizerManager()
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=8
)


def config(**options: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"name_or_path": "-"} | options)


def reference(files: TokenizerFiles) -> ReferenceTokenizer:
    """The backend as the library means it: special tokens' strings in a text are
    text.
    """
    return ReferenceTokenizer(files.json_bytes, literal=True)


def limited(files: TokenizerFiles, truncation: Any, padding: Any) -> ReferenceTokenizer:
    """The backend with the truncation and padding of a tokenizer.json."""
    specification = {**files.spec, "truncation": truncation, "padding": padding}
    return ReferenceTokenizer(
        json.dumps(specification).encode(), literal=True, keeps_limits=True
    )


@pytest.fixture(scope="module")
def manager() -> TokenizerManager:
    return TokenizerManager()


@pytest.mark.parametrize(
    "files", [byte_level(), sentencepiece()], ids=["byte-level", "sentencepiece"]
)
def test_ids_are_the_references(manager: TokenizerManager, files: TokenizerFiles):
    texts = list(hard_texts())
    expected = [encoding.ids for encoding in reference(files).encode_batch(texts)]
    made = manager.tokenize_batch(files, texts, config(truncation=False))
    assert made["input_ids"] == expected
    assert made["attention_mask"] == [[1] * len(ids) for ids in expected]


@promise(170, 171, 172)
@settings(max_examples=30)
@given(
    TEXTS,
    st.integers(2, 12),
    st.sampled_from([False, "do_not_pad", "longest", "max_length"]),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
def test_cutting_and_padding_are_those_of_the_backend(
    texts, max_length, padding, truncation, special
):
    files = sentencepiece()
    limit = {
        "direction": "Right",
        "max_length": max_length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    strategies = {"longest": "BatchLongest", "max_length": {"Fixed": max_length}}
    filler = {
        "strategy": strategies.get(padding),
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 2,
        "pad_type_id": 0,
        "pad_token": "</s>",
    }
    backend = limited(
        files,
        truncation=None if truncation is False else limit,
        padding=filler if padding in strategies else None,
    )
    expected = backend.encode_batch(texts, add_special_tokens=special)
    options = config(
        max_length=max_length,
        padding=padding,
        truncation=truncation,
        add_special_tokens=special,
    )
    made = MANAGER.tokenize_batch(files, texts, options)
    assert made["input_ids"] == [encoding.ids for encoding in expected]
    assert made["attention_mask"] == [encoding.attention_mask for encoding in expected]


def test_arrays_without_padding_are_a_list(manager: TokenizerManager):
    made = manager.tokenize_batch(byte_level(), ["a", "bc de"], return_tensors="np")
    assert [row.dtype for row in made["input_ids"]] == [np.int32, np.int32]


def test_padding_goes_where_the_tokenizer_wants_it(manager: TokenizerManager):
    left = from_spec(
        byte_level().spec, config={"eos_token": "<|endoftext|>", "padding_side": "left"}
    )
    made = manager.tokenize_batch(left, ["a", "a b c d"], config(padding="longest"))
    assert made["attention_mask"][0][-1] == 1
    assert made["attention_mask"][0][0] == 0
    assert made["input_ids"][0][0] == left.eos_id
    made = manager.tokenize_batch(
        left, ["a", "a b c d"], config(padding="longest", padding_side="right")
    )
    assert made["attention_mask"][0][0] == 1


def test_one_text_is_a_row_of_a_batch(manager: TokenizerManager):
    one = manager.tokenize_text(
        sentencepiece(), "Hello world", config(padding="max_length", max_length=9)
    )
    batch = manager.tokenize_batch(
        sentencepiece(), ["Hello world"], config(padding="max_length", max_length=9)
    )
    assert one == {
        "input_ids": batch["input_ids"][0],
        "attention_mask": batch["attention_mask"][0],
    }
    assert len(one["input_ids"]) == 9


def test_max_length_without_room_is_an_error(manager: TokenizerManager):
    with pytest.raises(
        ConfigError, match=r"max_length: 1 leaves no room .* 1 special token"
    ):
        manager.tokenize_text(sentencepiece(), "a", config(max_length=1))


@promise(173)
def test_the_mask_is_left_out_where_it_is_not_wanted(manager: TokenizerManager):
    assert list(
        manager.tokenize_text(byte_level(), "a", config(return_attention_mask=False))
    ) == ["input_ids"]


def test_no_padding_token_and_no_eos_is_an_error_only_where_rows_are_padded(
    manager: TokenizerManager,
):
    bare = from_spec(byte_level().spec, name="bare")
    assert manager.tokenize_text(bare, "a b")["input_ids"]
    with pytest.raises(
        TokenizerError, match="'bare': it has neither a padding nor an EOS token"
    ):
        manager.tokenize_batch(bare, ["a"], config(padding="longest"))


def test_no_texts_are_no_rows(manager: TokenizerManager):
    assert manager.tokenize_batch(byte_level(), []) == {
        "input_ids": [],
        "attention_mask": [],
    }
    padded = manager.tokenize_batch(
        byte_level(), [], config(padding="longest"), return_tensors="np"
    )
    assert padded["input_ids"].shape == (0, 0)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "got one text, must be a list"),
        (["a", None], r"texts\[1\]: got NoneType"),
        (["a", "\ud800"], "half of a surrogate pair"),
    ],
)
def test_what_is_no_text_is_refused(
    manager: TokenizerManager, texts: object, message: str
):
    with pytest.raises(ConfigError, match=message):
        manager.tokenize_batch(byte_level(), texts)  # pyright: ignore[reportArgumentType]


def test_a_tokenizer_is_loaded_once_until_its_files_change(
    manager: TokenizerManager, tmp_path: Path
):
    save(byte_level(), tmp_path)
    first = manager.get_tokenizer(str(tmp_path))
    assert manager.get_tokenizer(str(tmp_path)) is first
    save(sentencepiece(), tmp_path)
    assert manager.get_tokenizer(str(tmp_path)) is not first
    assert manager.tokenize_text(str(tmp_path), "a")["input_ids"][0] == 1


def test_its_own_configuration_counts(manager: TokenizerManager, tmp_path: Path):
    save(byte_level(), tmp_path)
    loaded = manager.get_tokenizer(
        TokenizerConfig(name_or_path=str(tmp_path), max_length=3)
    )
    assert len(manager.tokenize_text(loaded, "a b c d e f")["input_ids"]) == 3


@needs_stages
def test_an_object_of_tokenizers_is_a_tokenizer(manager: TokenizerManager):
    files = sentencepiece()
    backend = open_backend(files.json_bytes)
    assert manager.tokenize_batch(backend, ["Hello world"]) == manager.tokenize_batch(
        files, ["Hello world"]
    )


def test_an_object_of_transformers_is_a_tokenizer(manager: TokenizerManager):
    transformers = import_transformers()
    files = sentencepiece()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=open_backend(files.json_bytes),
        eos_token="</s>",
        bos_token="<s>",
    )
    expected = manager.tokenize_batch(
        files, ["Hello world", "a"], config(padding="longest")
    )
    assert (
        manager.tokenize_batch(fast, ["Hello world", "a"], config(padding="longest"))
        == expected
    )


def test_anything_else_is_no_tokenizer(manager: TokenizerManager):
    with pytest.raises(ConfigError, match="got a int, must be a Hub id"):
        manager.get_tokenizer(3)
    with pytest.raises(SourceNotFoundError):
        manager.get_tokenizer("./no/such/directory")
    with pytest.raises(ConfigError, match="return_tensors: got 'pt'"):
        manager.tokenize_text(byte_level(), "a", return_tensors="pt")


def test_the_hash_is_of_content_and_not_of_the_name(tmp_path: Path):
    save(byte_level(), tmp_path / "a")
    save(byte_level(), tmp_path / "b")
    save(
        changed(byte_level(), lambda spec: spec.update(normalizer={"type": "NFC"})),
        tmp_path / "c",
    )
    hashes = {name: compute_tokenizer_hash(str(tmp_path / name)) for name in "abc"}
    assert hashes["a"] == hashes["b"] != hashes["c"]
    assert len(hashes["a"]) == 64
    assert (
        compute_tokenizer_hash(TokenizerManager().get_tokenizer(str(tmp_path / "a")))
        == hashes["a"]
    )


def test_the_hash_sees_changed_settings(tmp_path: Path):
    save(byte_level(), tmp_path)
    before = compute_tokenizer_hash(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "x": 1})
    )
    assert compute_tokenizer_hash(tmp_path) != before
