"""Collate functions: examples become padded batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import torch

from tokenlake.base.checks import require_one_of
from tokenlake.base.columns import IGNORED
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text.truncation import SIDES, Side
from tokenlake.etl.tokenizers.files import files_of
from tokenlake.rowwise.batches import Filling, batch_of

Batch = dict[str, torch.Tensor]
PaddingTo = Literal["longest", "max_length"]
_PADDINGS: Final = ("longest", "max_length")
_TYPES: Final = {"int32": torch.int32, "int64": torch.int64}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Collate:
    """Makes a batch of examples: ids are filled with `pad_token_id`, masks with 0, labels with -100. Picklable.

    Attributes:
        padding: to the longest example, or all to `max_length`.
        max_length: most ids of an example; None: any number.
        labels_from_ids: examples without labels get their ids as labels; where ``attention_mask`` is 0, an example is
            padding, and its labels are -100.
        labels_apart: labels are sequences of their own, padded by themselves to `max_target_length` at most.
        integers: tensor to its type, and at the same time which tensors a batch has; None: all, int64.
    """

    pad_token_id: int
    padding: PaddingTo = "longest"
    padding_side: Side = "right"
    max_length: int | None = None
    pad_to_multiple_of: int = 1
    labels_from_ids: bool = False
    labels_apart: bool = False
    max_target_length: int | None = None
    integers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        require_one_of("padding", self.padding, _PADDINGS)
        require_one_of("padding_side", self.padding_side, SIDES)
        for name in ("max_length", "max_target_length", "pad_to_multiple_of"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: got {value}, must be a positive number")
        if self.padding == "max_length" and self.max_length is None:
            raise ConfigError("max_length: missing; padding 'max_length' needs it")

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> Batch:
        """Return (n, width) tensors of n examples, whose fields are lists or arrays of one dimension.

        Raises:
            BadRecordError: examples have different fields, or one is longer than allowed.
        """
        rows = [
            {name: each.numpy() if isinstance(each, torch.Tensor) else each for name, each in example.items()}
            for example in examples
        ]
        if self.labels_from_ids:
            rows = [_with_labels(row) for row in rows]
        labels = [{"labels": row.pop("labels")} for row in rows] if self.labels_apart else []
        batch = self._padded(rows, self.max_length)
        if labels:
            batch |= self._padded(labels, self.max_target_length)
        chosen = self.integers or dict.fromkeys(batch, "int64")
        return {name: torch.as_tensor(batch[name], dtype=_TYPES[kind]) for name, kind in chosen.items()}

    def _padded(self, rows: list[dict[str, Any]], most: int | None) -> dict[str, Any]:
        for at, row in enumerate(rows):
            for name, value in row.items():
                if most is not None and np.ndim(value) and len(value) > most:
                    why = f"{name!r} has {len(value)} values, at most {most} are allowed"
                    told = f"example {at} of the batch: {why}; truncate it, or raise max_length"
                    raise BadRecordError(told, row=at, field_path=name, expected=most, got=len(value))
        width = most if self.padding == "max_length" and most is not None else 0
        return batch_of(rows, Filling(self.pad_token_id, self.padding_side, width, self.pad_to_multiple_of))


def _with_labels(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example with labels, its ids where it has none, and without loss on its own padding.

    The mask alone says what is padding: a tokenizer may pad with EOS, which is learned at the end of a text.
    """
    labels = np.array(row.get("labels", row["input_ids"]))
    mask = row.get("attention_mask")
    if mask is not None:
        labels[np.asarray(mask) == 0] = IGNORED
    return {**row, "labels": labels}


def create_collate_fn(tokenizer: Any, **options: Any) -> Collate:
    """Return a function that pads the fields of examples to one length.

    Args:
        tokenizer: an id to pad with, or a tokenizer (Hub id, path, object) that names one.
        options: of :class:`Collate`: padding, padding_side, max_length, pad_to_multiple_of, integers.

    Raises:
        ConfigError: the tokenizer names neither padding nor EOS, or an option is wrong.
    """
    if not isinstance(tokenizer, int):
        files = files_of(tokenizer)
        if files.fill_id is None:
            why = "names neither a padding nor an EOS token; give the id to pad with"
            raise ConfigError(f"tokenizer {files.name!r}: {why}")
        tokenizer = files.fill_id
    return Collate(pad_token_id=tokenizer, **options)


def create_causal_lm_collate(tokenizer: Any, **options: Any) -> Collate:
    """Return a :func:`create_collate_fn` for next-token loss.

    Examples without labels learn all their ids. Padding bears no loss, neither what is added here nor what an example
    has already, where its ``attention_mask`` is 0.
    """
    return create_collate_fn(tokenizer, labels_from_ids=True, **options)


def create_seq2seq_collate(tokenizer: Any, **options: Any) -> Collate:
    """Return a function for encoder and decoder: `labels` have a length of their own (`max_target_length` at most)."""
    return create_collate_fn(tokenizer, labels_apart=True, **options)
