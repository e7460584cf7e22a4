"""Small tokenizers and texts that need neither a Hub nor shared data."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import random
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.tokenizer_files import SPACE, template, train_sentencepiece
from tests.tokenizer_reference import ReferenceTokenizer, open_backend
from tokenlake.etl.tokenizers import (
    SPLIT_REGEXES,
    Encoded,
    TokenizerFiles,
    choose_encoder,
    train_bpe,
)
from tokenlake.etl.tokenizers.fingerprint import adversarial_texts

__all__ = ["SPACE", "template"]

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": True,
}
Spec = dict[str, Any]


def save(files: TokenizerFiles, folder: Path) -> Path:
    """Write a tokenizer's files into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.files.items():
        (folder / name).write_bytes(data)
    return folder


@functools.cache
def training_texts() -> tuple[str, ...]:
    """Return English, code and some other scripts, about 200 kB."""
    source = [
        inspect.getsource(module) for module in (argparse, random, textwrap, json)
    ]
    foreign = [
        "Der Fluß fließt über die Brücke. ",
        "Ça coûte déjà 3 €. ",
        "Привет, мир! ",
    ]
    foreign += ["你好，世界。", "שלום عالم "]
    return (*"\n".join(source).split("\n\n"), *(text * 5 for text in foreign))


@functools.cache
def byte_level() -> TokenizerFiles:
    """Return a GPT-2-style tokenizer with one special token."""
    return train_bpe(training_texts(), 1200, name="byte-level")


@functools.cache
def sentencepiece() -> TokenizerFiles:
    """Return a Llama-2-style tokenizer: byte fallback, no pre-tokenizer, BOS by the
    post-processor.
    """
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": {"content": "<unk>"},
        "pad_token": None,
    }
    return from_spec(
        train_sentencepiece(training_texts(), 900), name="sentencepiece", config=config
    )


def split_stage(regex: str, **changes: Any) -> Spec:
    """Return the pre-tokenizer of Llama 3, Qwen and GPT-4o: a Split, then ByteLevel
    without its own regex.
    """
    split = {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
        **changes,
    }
    return {
        "type": "Sequence",
        "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}],
    }


def from_spec(
    spec: Spec, *, name: str = "test", config: Spec | None = None
) -> TokenizerFiles:
    """Return a tokenizer of a parsed tokenizer.json."""
    files = {"tokenizer.json": json.dumps(spec, ensure_ascii=False).encode()}
    if config is not None:
        files["tokenizer_config.json"] = json.dumps(config).encode()
    return TokenizerFiles(name=name, files=files)


def changed(files: TokenizerFiles, change: Callable[[Spec], object]) -> TokenizerFiles:
    """Return a tokenizer with a changed tokenizer.json."""
    spec = json.loads(files.json_bytes)
    change(spec)
    return TokenizerFiles(
        name=files.name,
        files={
            **files.files,
            "tokenizer.json": json.dumps(spec, ensure_ascii=False).encode(),
        },
    )


@functools.cache
def known() -> dict[str, TokenizerFiles]:
    """Return a tokenizer of every form that the gate lets gigatoken run."""
    metaspace = {"type": "Metaspace", "replacement": SPACE}
    made = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}
    for name, regex in SPLIT_REGEXES.items():
        stage = split_stage(regex)
        made[name] = changed(
            byte_level(), lambda spec, stage=stage: spec.update(pre_tokenizer=stage)
        )
    made["nfc"] = changed(
        made["qwen-2"], lambda spec: spec.update(normalizer={"type": "NFC"})
    )
    for scheme in ("first", "always", "never"):
        for split in (True, False):
            stage = {**metaspace, "prepend_scheme": scheme, "split": split}
            made[f"metaspace-{scheme}-{split}"] = changed(
                sentencepiece(),
                lambda spec, stage=stage: spec.update(
                    pre_tokenizer=stage, normalizer=None
                ),
            )
    return made


@functools.cache
def hard_texts() -> tuple[str, ...]:
    """Return adversarial texts, prose, code, other scripts and special tokens'
    strings.
    """
    specials = [
        "a</s>b </s> <s><s>",
        "<|endoftext|>",
        "x<|endoftext|><|endoftext|> y",
        "<unk>",
        " <s> ",
        "</s",
    ]
    some = training_texts()[::5]
    return (*adversarial_texts(), *some, *specials, "\n\n".join(some))


def choose_engine(*asked: Any, **options: Any):
    """Return the engine that the gate chooses, and why."""
    return choose_encoder(*asked, **options, add_special_tokens=False)[0]


def reference_ids(
    files: TokenizerFiles, texts: list[str] | tuple[str, ...], *, literal: bool
) -> list[list[int]]:
    """Return the ids by `tokenizers` alone, without a line of Tokenlake's code."""
    encodings = reference(files.json_bytes, literal).encode_batch(
        texts, add_special_tokens=False
    )
    return [encoding.ids for encoding in encodings]


@functools.lru_cache(maxsize=8)
def reference(tokenizer_json: bytes, literal: bool) -> ReferenceTokenizer:
    """Return `tokenizers` itself, without truncation and padding."""
    return ReferenceTokenizer(tokenizer_json, literal=literal)


def rows_of(encoded: Encoded) -> list[list[int]]:
    """Return the ids of each text of a batch."""
    return [
        encoded.ids[start:stop].tolist()
        for start, stop in pairwise(encoded.offsets.tolist())
    ]


def large(texts: list[str] | tuple[str, ...]) -> pa.LargeStringArray:
    """Return texts as Arrow."""
    return pa.array(list(texts), pa.large_string())


def backend_with(**stages: Spec) -> Any:
    """Return a `tokenizers.Tokenizer` with these stages and a model that knows no
    text.
    """
    model = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
    return open_backend(
        json.dumps({"version": "1.0", "model": model, **stages}).encode()
    )
