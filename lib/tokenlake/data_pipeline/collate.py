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
    """Collate function: ids are padded with `pad_token_id`, labels with -100.

    Masks are padded with 0. It is picklable.

    Attributes:
        pad_token_id: Token that pads ids.
        padding: Width of a batch: ``longest`` example, or ``max_length``.
        padding_side: Side of the padding.
        max_length: Maximum number of ids of an example. None for no limit.
        pad_to_multiple_of: Factor of the width of a batch.
        labels_from_ids: Whether examples without labels get their ids as labels. Labels
            are -100 where ``attention_mask`` is 0, because an example is padding there.
        labels_apart: Whether labels are separate sequences, padded by themselves.
        max_target_length: Maximum number of labels, if they are separate sequences.
            None for no limit.
        integers: Tensors of a batch, by name, and their types. None for all tensors, as
            int64.
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
        # Checked here, so that a wrong option fails before the first batch.
        require_one_of("padding", self.padding, _PADDINGS)
        require_one_of("padding_side", self.padding_side, SIDES)
        for option_name in ("max_length", "max_target_length", "pad_to_multiple_of"):
            option_value = getattr(self, option_name)
            if option_value is not None and option_value < 1:
                raise ConfigError(
                    f"{option_name}: got {option_value}, must be a positive number"
                )
        if self.padding == "max_length" and self.max_length is None:
            raise ConfigError("max_length: missing; padding 'max_length' needs it")

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> Batch:
        """Return tensors of shape (n, width) for n examples.

        Fields of an example are lists or arrays of one dimension.

        Raises:
            BadRecordError: Examples have different fields, or one is longer than
                allowed.
        """
        rows = [_with_arrays(example) for example in examples]
        if self.labels_from_ids:
            rows = [_with_labels(row) for row in rows]
        # Labels of another length than the ids are a batch of their own.
        labels: list[dict[str, Any]] = []
        if self.labels_apart:
            labels = [{"labels": row.pop("labels")} for row in rows]
        batch = self._padded(rows, self.max_length)
        if labels:
            batch |= self._padded(labels, self.max_target_length)
        # Only the tensors that are named reach the trainer, in their types.
        integers = self.integers or dict.fromkeys(batch, "int64")
        tensors: Batch = {}
        for tensor_name, integer_type in integers.items():
            tensors[tensor_name] = torch.as_tensor(
                batch[tensor_name], dtype=_TYPES[integer_type]
            )
        return tensors

    def _padded(
        self, rows: list[dict[str, Any]], max_values: int | None
    ) -> dict[str, Any]:
        """Return rows as a batch.

        Raises:
            BadRecordError: A field has more than `max_values` values.
        """
        # A scalar has no length, and cannot be too long.
        for example_index, row in enumerate(rows):
            for field_name, field_values in row.items():
                if max_values is None or not np.ndim(field_values):
                    continue
                if len(field_values) > max_values:
                    raise BadRecordError(
                        f"example {example_index} of the batch: {field_name!r} has {len(field_values)} values, "
                        f"at most {max_values} are allowed; truncate it, or raise max_length",
                        row=example_index,
                        field_path=field_name,
                        expected=max_values,
                        got=len(field_values),
                    )
        width = 0  # that of the longest example
        if self.padding == "max_length" and max_values is not None:
            width = max_values
        filling = Filling(
            self.pad_token_id, self.padding_side, width, self.pad_to_multiple_of
        )
        return batch_of(rows, filling)


def _with_arrays(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example with its tensors as arrays."""
    row: dict[str, Any] = {}
    for field_name, field_value in example.items():
        if isinstance(field_value, torch.Tensor):
            row[field_name] = field_value.numpy()
        else:
            row[field_name] = field_value
    return row


def _with_labels(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example with labels, and -100 on its own padding.

    Without labels of its own, its ids are the labels.

    Only the mask decides which ids are padding: a tokenizer may pad with EOS, which is
    learned at the end of a text.
    """
    # A copy, because the arrays of an example may belong to the dataset.
    labels = np.array(row.get("labels", row["input_ids"]))
    mask = row.get("attention_mask")
    if mask is not None:
        labels[np.asarray(mask) == 0] = IGNORED
    return {**row, "labels": labels}


def create_collate_fn(tokenizer: Any, **options: Any) -> Collate:
    """Return a function that pads the fields of examples to one length.

    The function takes n examples and returns tensors of shape (n, width). Ids are
    padded with the padding token, masks with 0 and labels with -100.

    Args:
        tokenizer: Id of the padding token, or a tokenizer (Hub id, path, object) that
            names one.
        options: Attributes of ``Collate``: `padding` ("longest" by default, or
            "max_length"), `padding_side` ("right"), `max_length` (None: no limit),
            `pad_to_multiple_of` (1), and `integers` (name -> "int32" or "int64"; None:
            all fields as int64).

    Raises:
        ConfigError: The tokenizer names neither a padding nor an EOS token, or an
            option is not allowed.

    Example:
        >>> from tokenlake.data_pipeline import create_collate_fn
        >>> collate = create_collate_fn(0, pad_to_multiple_of=4)
        >>> collate([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}])["input_ids"].tolist()
        [[5, 6, 0, 0], [7, 8, 9, 0]]
    """
    # A tokenizer names the padding token itself. EOS stands for one that is missing.
    if not isinstance(tokenizer, int):
        files = files_of(tokenizer)
        if files.fill_id is None:
            raise ConfigError(
                f"tokenizer {files.name!r}: has neither a padding nor an EOS token; give the id of the padding"
            )
        tokenizer = files.fill_id
    return Collate(pad_token_id=tokenizer, **options)


def create_causal_lm_collate(tokenizer: Any, **options: Any) -> Collate:
    """Return a collate function for next-token loss.

    In examples without labels, all ids count toward the loss. Padding never counts,
    both padding that is added and padding of an example itself, where its
    ``attention_mask`` is 0.

    Args:
        tokenizer: Id of the padding token, or a tokenizer that names one, as for
            :func:`create_collate_fn`.
        options: Options of :func:`create_collate_fn`.

    Raises:
        ConfigError: The tokenizer names neither a padding nor an EOS token, or an
            option is not allowed.

    Example:
        >>> from tokenlake.data_pipeline import create_causal_lm_collate
        >>> collate = create_causal_lm_collate(0)
        >>> collate([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}])["labels"].tolist()
        [[5, 6, -100], [7, 8, 9]]
    """
    return create_collate_fn(tokenizer, labels_from_ids=True, **options)


def create_seq2seq_collate(tokenizer: Any, **options: Any) -> Collate:
    """Return a collate function for an encoder and a decoder.

    Args:
        tokenizer: Id of the padding token, or a tokenizer that names one, as for
            :func:`create_collate_fn`.
        options: Options of :func:`create_collate_fn`, and `max_target_length`, the
            maximum number of labels, which are separate sequences (None: no limit).

    Raises:
        ConfigError: The tokenizer names neither a padding nor an EOS token, or an
            option is not allowed.

    Example:
        >>> from tokenlake.data_pipeline import create_seq2seq_collate
        >>> collate = create_seq2seq_collate(0)
        >>> batch = collate([{"input_ids": [5, 6, 7], "labels": [8]}, {"input_ids": [5], "labels": [8, 9]}])
        >>> batch["labels"].tolist()
        [[8, -100], [8, 9]]
    """
    return create_collate_fn(tokenizer, labels_apart=True, **options)
