"""The reference engine: the `tokenizers` backend of a tokenizer.json.

What it returns is by definition right. Truncation and padding that a tokenizer.json carries are switched
off: lengths are the pipeline's business and accounted there.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.cuts import CutRule, cut_rule
from tokenlake.tokenizers.files import TokenizerFiles

if TYPE_CHECKING:
    import numpy.typing as npt

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
class Reference:
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

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Return the ids of every text, without anything the post-processor adds."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding"):
            return [
                np.array(encoding.ids, np.int32)
                for batch in in_batches(texts)
                for encoding in self._backend.encode_batch_fast(batch, add_special_tokens=False)
            ]

    def encode_arrow(self, text: pa.LargeStringArray) -> list[npt.NDArray[np.int32]]:
        """Return the ids of every row; only one batch becomes Python strings at a time."""
        starts, _ = string_buffers(text)
        rows: list[npt.NDArray[np.int32]] = []
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

    def _encode_long(self, rule: CutRule, text: pa.Buffer) -> npt.NDArray[np.int32]:
        ids = [self.encode([piece])[0] for piece in rule.pieces(text, BATCH_BYTES)]
        return np.concatenate(ids)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
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
