"""Loaders and trainers of other projects over one version of a dataset.

Each function is a recipe to copy: MaxText, Levanter, torchtitan (through PyTorch and
through Grain), the Hugging Face Trainer, and TRL's SFT and DPO trainers.

::

    data = tl.open(".demo/artifacts/demo")  # the dataset of `python -m tokenlake.demo`
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    for batch in recipes.maxtext(data, batch_size=256, sharding=sharding):
        ...

Batches have the names and meanings of each trainer's own loader, as its source code of
August 2026 has them (Levanter: September 2025). The loaders (MaxText, Levanter and
torchtitan) deliver the same rows in the same order, which depends only on the seed, the
batch size and the step. The Hugging Face and TRL trainers shuffle rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tokenlake as tl

if TYPE_CHECKING:
    from jax.sharding import Sharding

Batch = dict[str, Any]
"""Name of a column -> its values, (batch, length)."""


def maxtext(
    data: tl.Dataset, batch_size: int, sharding: Sharding | None = None
) -> Iterator[Batch]:
    """Yield batches for MaxText's train step.

    MaxText counts a target toward the loss if its segment is not 0.

    Args:
        data: Packed dataset.
        batch_size: Number of rows of a batch.
        sharding: Sharding of global JAX arrays; None: NumPy arrays.
    """
    loader = tl.DataLoader(
        data,
        batch_size,
        epochs=None,
        columns=("input_ids", "targets", "positions", "segment_ids"),
        sharding=sharding,
    )
    for batch in loader:
        targets = batch["targets"]  # -100 where there is no target
        segments = batch["segment_ids"]
        yield {
            "inputs": batch["input_ids"],
            "inputs_position": batch["positions"],
            "inputs_segmentation": segments,
            "targets": targets.clip(0),
            "targets_position": batch["positions"],
            "targets_segmentation": segments * (targets >= 0),
        }


def levanter(data: tl.Dataset, batch_size: int, step: int = 0) -> Iterator[Batch]:
    """Yield the fields of Levanter's `LmExample`.

    Its `attn_mask` is `AttentionMask.causal().with_segment_ids(segment_ids)`.

    Args:
        data: Packed dataset.
        batch_size: Number of rows of a batch.
        step: Step of the first batch.
    """
    loader = tl.DataLoader(
        data,
        batch_size,
        epochs=None,
        columns=("input_ids", "targets", "segment_ids"),
    )
    for batch in loader.iter_from_step(step):
        has_target = batch["targets"] >= 0
        yield {
            "tokens": batch["input_ids"],
            "loss_mask": has_target.astype("int32"),
            "segment_ids": batch["segment_ids"],
        }


def torchtitan(data: tl.Dataset, batch_size: int, rank: int = 0, ranks: int = 1) -> Any:
    """Return a loader of inputs and labels for torchtitan, with `state_dict`.

    Batches are flat: all rows of a rank follow each other in one dimension.

    Args:
        data: Packed dataset.
        batch_size: Number of rows of the batch of all ranks.
        rank: Data-parallel rank of this process.
        ranks: Number of data-parallel ranks.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader

    batches = tl.torch_dataset(
        data,
        batch_size,
        epochs=None,
        columns=("input_ids", "positions", "targets"),
        layout="flat",
        host=(rank, ranks),
        integers="int64",
    )
    return StatefulDataLoader(batches, batch_size=None, collate_fn=_inputs_and_labels)


def torchtitan_grain(
    data: tl.Dataset, batch_size: int, rank: int = 0, ranks: int = 1
) -> Any:
    """Return a Grain dataset for torchtitan's `GrainDataLoader`.

    Its iterator has `get_state` and `set_state`. Batches are flat, as those of
    :func:`torchtitan`.

    Args:
        data: Packed dataset.
        batch_size: Number of rows of the batch of all ranks.
        rank: Data-parallel rank of this process.
        ranks: Number of data-parallel ranks.
    """
    import torch

    def tensors_of(batch: Batch) -> Batch:
        return {name: torch.as_tensor(values) for name, values in batch.items()}

    batches = tl.grain_dataset(
        data,
        batch_size,
        epochs=None,
        columns=("input_ids", "positions", "targets"),
        layout="flat",
        host=(rank, ranks),
    )
    return batches.map(tensors_of).map(_inputs_and_labels)


def transformers(data: tl.Dataset, model: Any, arguments: Any) -> Any:
    """Return a Hugging Face Trainer over memory-mapped rows.

    Models separate the documents of a row by `position_ids`, which rows have.

    Args:
        data: Packed dataset.
        model: Causal language model of transformers.
        arguments: `TrainingArguments`.
    """
    from transformers import Trainer, default_data_collator

    return Trainer(
        model,
        arguments,
        train_dataset=data.to_hf(),
        data_collator=default_data_collator,
    )


def trl_sft(data: tl.Dataset, model: Any, config: Any, tokenizer: Any) -> Any:
    """Return TRL's SFTTrainer over packed rows with their stored labels.

    Args:
        data: Packed dataset.
        model: Causal language model of transformers.
        config: `SFTConfig`; it is changed.
        tokenizer: Tokenizer of transformers.
    """
    from transformers import default_data_collator
    from trl import SFTTrainer

    # Rows are tokenized and packed already, and all their columns are needed.
    config.dataset_kwargs = {"skip_prepare_dataset": True}
    config.remove_unused_columns = False
    return SFTTrainer(
        model,
        config,
        train_dataset=data.to_hf(),
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )


def trl_dpo(
    data: tl.Dataset, model: Any, reference: Any, config: Any, tokenizer: Any
) -> Any:
    """Return TRL's DPOTrainer over preference pairs.

    Args:
        data: Dataset that was built with `preference: {method: dpo, trainer: trl}`.
        model: Causal language model of transformers.
        reference: Reference model of the loss.
        config: `DPOConfig`.
        tokenizer: Tokenizer of transformers.
    """
    from trl import DPOTrainer

    class TokenizedDPOTrainer(DPOTrainer):
        """DPOTrainer that takes rows as they are, because they are tokenized."""

        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    return TokenizedDPOTrainer(
        model,
        reference,
        config,
        train_dataset=data.to_hf(),
        processing_class=tokenizer,
    )


def _inputs_and_labels(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a model and its labels, as torchtitan names them."""
    inputs = {"input": batch["input_ids"], "positions": batch["positions"]}
    return inputs, batch["targets"]
