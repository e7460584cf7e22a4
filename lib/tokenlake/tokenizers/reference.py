"""The reference engine: the `tokenizers` backend of a tokenizer.json; and a small BPE trained for demos and tests.

What the backend returns is by definition right. Truncation and padding that a tokenizer.json carries are switched off:
lengths are the pipeline's business and accounted there.

A long document is cut without changing its ids, so that memory stays bounded: the backend needs about 120 bytes for
each byte of a text, 24 GB for a document of 200 MB. In the forms of the allow-list there is a place where no token can
reach across: one space between two ASCII letters. Byte-level pre-tokenizers put a word's space before the word and
never look back; SentencePiece forms mark it as the word's first character, and where no piece of the vocabulary has the
mark inside, no merge crosses it. Other tokenizers get their documents whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError, MissingExtraError, TokenizerError
from tokenlake.ragged import Int32
from tokenlake.tokenizers.allowlist import objection
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TOKENIZER_JSON, TokenizerFiles

_BORDER: Final = re.compile(rb"[A-Za-z] [A-Za-z]")
_MARK_INSIDE: Final = re.compile("[^\u2581]\u2581")


@final
@dataclass(frozen=True, slots=True)
class CutRule:
    """Cut before the space of a border; drop it where the normalizer prepends one to every piece."""

    drop_space: bool

    def pieces(self, text: pa.Buffer, size: int) -> Iterator[str]:
        """Yield the pieces of a UTF-8 text, each `size` bytes or a little more."""
        view, start = memoryview(text), 0
        while start < len(view):
            found = _BORDER.search(view, start + size)
            stop = found.start() + 1 if found else len(view)
            yield str(view[start:stop], "utf-8")
            start = stop + (self.drop_space and found is not None)


def cut_rule(files: TokenizerFiles, *, literal: bool) -> CutRule | None:
    """Return how documents of a tokenizer can be cut, or None when they cannot."""
    spec = files.spec
    kept = [token["content"] for token in files.added_tokens if not (literal and token.get("special"))]
    if objection(files, literal=literal) is not None or any(" " in content for content in kept):
        return None
    if not spec["model"].get("byte_fallback"):
        return CutRule(drop_space=False)
    pre_tokenizer: dict[str, Any] = spec.get("pre_tokenizer") or {}
    normalizer: dict[str, Any] = spec.get("normalizer") or {}
    if not pre_tokenizer.get("split") and any(_MARK_INSIDE.search(token) for token in spec["model"]["vocab"]):
        return None
    return CutRule(drop_space=normalizer.get("type") == "Sequence")


# Encodings need ~120 times the text in memory: a batch of texts is this long, and a longer text is cut.
BATCH_BYTES: Final = 1 << 20
_AFFIX_PROBES: Final = ("a", "Hello world", " two  spaces", "1")


@contextmanager
def deliberate(what: str) -> Generator[None]:
    """Turn everything a Rust tokenizer raises, panics included, into a TokenizerError.

    A panic arrives as `pyo3_runtime.PanicException`, a BaseException that `except Exception` misses.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TokenizerError, MissingExtraError):
        raise
    except Exception as error:
        raise TokenizerError(f"{what}: {type(error).__name__}: {error}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: the tokenizer's Rust code panicked: {error}") from None


@final
class ReferenceEngine:
    """`tokenizers.Tokenizer` of a tokenizer.json, with ids as numpy arrays.

    Args:
        files: the tokenizer.
        literal: special-token strings inside a text are plain text (`encode_special_tokens=True`); False lets
            them become their control ids, the default of `tokenizers`.
        threads: let the backend use all cores; the process-wide `TOKENIZERS_PARALLELISM` wins if it is set.

    Raises:
        TokenizerError: the json cannot be loaded, or its ids would be random (BPE dropout).
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False) -> None:
        self.files = files
        self._literal = literal
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads else "false")
        self._backend: Any = _load(files)
        dropout = files.spec["model"].get("dropout")
        if dropout:
            raise TokenizerError(
                f"tokenizer {files.name!r}: model.dropout is {dropout}, so equal texts get different ids; "
                "expected null. Set it to null in tokenizer.json",
                tokenizer=files.name,
            )
        self._backend.encode_special_tokens = literal

    @property
    def backend(self) -> Any:
        """The `tokenizers.Tokenizer` itself."""
        return self._backend

    def encode(self, texts: Sequence[str]) -> list[Int32]:
        """Return the ids of every text, without anything the post-processor adds."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding"):
            return [
                np.array(encoding.ids, np.int32)
                for batch in in_batches(texts)
                for encoding in self._backend.encode_batch_fast(batch, add_special_tokens=False)
            ]

    def encode_arrow(self, text: pa.LargeStringArray) -> list[Int32]:
        """Return the ids of every row; only one batch becomes Python strings at a time."""
        starts, _ = string_buffers(text)
        rows: list[Int32] = []
        first = 0
        while first < len(text):
            last = int(np.searchsorted(starts, int(starts[first]) + BATCH_BYTES, "right")) - 1
            last = min(max(last, first + 1), len(text))
            if starts[last] - starts[first] > BATCH_BYTES and self._cuts is not None:
                rows.append(self._encode_long(self._cuts, text[first].as_buffer()))
            else:
                rows += self.encode(cast("list[str]", text.slice(first, last - first).to_pylist()))
            first = last
        return rows

    @cached_property
    def _cuts(self) -> CutRule | None:
        return cut_rule(self.files, literal=self._literal)

    def _encode_long(self, rule: CutRule, text: pa.Buffer) -> Int32:
        ids = [self.encode([piece])[0] for piece in rule.pieces(text, BATCH_BYTES)]
        return np.concatenate(ids)

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of `ids`, special tokens included."""
        with deliberate(f"tokenizer {self.files.name!r}: decoding"):
            return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what the post-processor puts before and after a document's own ids (BOS, EOS, CLS ...).

        Raises:
            TokenizerError: the post-processor does more than wrap a document.
        """
        found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        for text in _AFFIX_PROBES:
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                encoding = self._backend.encode(text, add_special_tokens=True)
                bare: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            if not bare and not encoding.ids:  # nothing to learn from a text without ids
                continue
            around = _around(encoding.ids, bare, encoding.special_tokens_mask)
            if around is None or around != (found or around):
                raise self._not_a_wrapper(text)
            found = around
        return found or ((), ())

    def _not_a_wrapper(self, text: str) -> TokenizerError:
        post_processor: dict[str, Any] = self.files.spec.get("post_processor") or {}
        return TokenizerError(
            f"tokenizer {self.files.name!r}: its post_processor ({post_processor.get('type')}) does more "
            f"than put fixed ids around the ids of {text!r}; expected a prefix and a suffix. "
            "Use add_special_tokens: false",
            tokenizer=self.files.name,
        )


def _load(files: TokenizerFiles) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("tokenizing needs tokenizers: pip install 'tokenlake[etl]'") from error
    with deliberate(f"tokenizer {files.name!r}: tokenizer.json cannot be loaded"):
        backend = tokenizers.Tokenizer.from_buffer(files.json_bytes)
        backend.no_truncation()
        backend.no_padding()
        return backend


def _around(
    ids: list[int], bare: list[int], mask: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return what lies before and after `bare` inside `ids`; `mask` is 1 for the post-processor's ids."""
    starts = range(len(ids) - len(bare) + 1) if bare else range(0)
    fits = [i for i in starts if ids[i : i + len(bare)] == bare]
    if not fits:
        return None
    start = next((i for i in fits if not any(mask[i : i + len(bare)])), fits[0])
    return tuple(ids[:start]), tuple(ids[start + len(bare) :])


def in_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts, :data:`BATCH_BYTES` characters or a text at a time."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


END_OF_TEXT: Final = "<|endoftext|>"
_BYTES: Final = 256


def train_bpe(texts: Iterable[str], vocab_size: int = 4096, *, name: str = "trained-bpe") -> TokenizerFiles:
    """Train a GPT-2-style byte-level BPE with the special token ``<|endoftext|>`` (BOS and EOS).

    Args:
        texts: the training text, consumed once.
        vocab_size: at least 257; the result may be smaller when the text has too few distinct words.
        name: the tokenizer's name in messages.

    Returns:
        A tokenizer that every engine can run; equal texts give equal files.

    Raises:
        ConfigError: `vocab_size` is too small.
    """
    if vocab_size <= _BYTES:
        raise ConfigError(
            f"vocab_size is {vocab_size}, expected at least {_BYTES + 1}: 256 bytes and {END_OF_TEXT}"
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError as error:
        raise MissingExtraError(
            "training a tokenizer needs tokenizers: pip install 'tokenlake[etl]'"
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with deliberate("training a tokenizer"):
        tokenizer.train_from_iterator(iter(texts), trainer)
    return TokenizerFiles(name=name, files=_files(tokenizer.to_str()))


def _files(tokenizer_json: str) -> dict[str, bytes]:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    return {
        TOKENIZER_JSON: tokenizer_json.encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
