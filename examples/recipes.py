"""What other trainers need to train on one version: a function of at most ten lines for
each.

::

    data = tl.open(".demo/artifacts/demo")  # what `python -m tokenlake.demo` builds
    for batch in recipes.maxtext(data, batch_size=256, sharding=NamedSharding(mesh, PartitionSpec("data"))):
        ...

All of them read the same rows in the same order, which is a function of the seed, the
batch size and the step. The batches are those that each trainer's own loader makes, as
read in its sources of August 2026 (Levanter: of September 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tokenlake as tl

if TYPE_CHECKING:
    from jax.sharding import Sharding

Batch = dict[str, Any]


def maxtext(
    data: tl.Dataset, batch_size: int, sharding: Sharding | None = None
) -> Iterator[Batch]:
    """Yield batches for MaxText's train step, global arrays.

    Targets of segment 0 do not count toward the loss.
    """
    columns = ("input_ids", "targets", "positions", "segment_ids")
    options = {"epochs": None, "columns": columns, "sharding": sharding}
    for batch in tl.DataLoader(data, batch_size, **options):
        ids, targets, positions, segments = (batch[name] for name in columns)
        learned = {
            "targets": targets.clip(0),
            "targets_segmentation": segments * (targets >= 0),
        }
        places = {"inputs_position": positions, "targets_position": positions}
        yield {"inputs": ids, "inputs_segmentation": segments, **places, **learned}


def levanter(data: tl.Dataset, batch_size: int, step: int = 0) -> Iterator[Batch]:
    """Yield the fields of Levanter's `LmExample`, from any step on.

    Its `attn_mask` is `causal().with_segment_ids(...)`.
    """
    loader = tl.DataLoader(
        data, batch_size, epochs=None, columns=("input_ids", "targets", "segment_ids")
    )
    for batch in loader.iter_from_step(step):
        mask = (batch["targets"] >= 0).astype("int32")
        yield {
            "tokens": batch["input_ids"],
            "loss_mask": mask,
            "segment_ids": batch["segment_ids"],
        }


def torchtitan(data: tl.Dataset, batch_size: int, rank: int = 0, ranks: int = 1) -> Any:
    """Return a loader of flat inputs and labels for one data-parallel rank of torchtitan.

    It has `state_dict`.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader

    columns = ("input_ids", "positions", "targets")
    options = {
        "columns": columns,
        "layout": "flat",
        "host": (rank, ranks),
        "integers": "int64",
    }
    batches = tl.torch_dataset(data, batch_size, epochs=None, **options)
    return StatefulDataLoader(batches, batch_size=None, collate_fn=_inputs_and_labels)


def torchtitan_grain(
    data: tl.Dataset, batch_size: int, rank: int = 0, ranks: int = 1
) -> Any:
    """Return a Grain dataset for torchtitan's `GrainDataLoader`.

    Its iterator has `get_state`.
    """
    import torch

    columns = ("input_ids", "positions", "targets")
    options = {"columns": columns, "layout": "flat", "host": (rank, ranks)}
    batches = tl.grain_dataset(data, batch_size, epochs=None, **options)
    tensors = batches.map(
        lambda batch: {name: torch.as_tensor(array) for name, array in batch.items()}
    )
    return tensors.map(_inputs_and_labels)


def transformers(data: tl.Dataset, model: Any, arguments: Any) -> Any:
    """Return a Hugging Face Trainer over memory-mapped rows.

    Their `position_ids` keep documents apart.
    """
    from transformers import Trainer, default_data_collator

    return Trainer(
        model,
        arguments,
        train_dataset=data.to_hf(),
        data_collator=default_data_collator,
    )


def trl_sft(data: tl.Dataset, model: Any, config: Any, tokenizer: Any) -> Any:
    """Return TRL's SFTTrainer over packed rows with their stored labels."""
    from transformers import default_data_collator
    from trl import SFTTrainer

    config.dataset_kwargs = {"skip_prepare_dataset": True}
    config.remove_unused_columns = False
    options = {"processing_class": tokenizer, "data_collator": default_data_collator}
    return SFTTrainer(model, config, train_dataset=data.to_hf(), **options)


def trl_dpo(
    data: tl.Dataset, model: Any, reference: Any, config: Any, tokenizer: Any
) -> Any:
    """Return TRL's DPOTrainer over a version of preference pairs.

    It is built with `preference: {method: dpo, trainer: trl}`.
    """
    from trl import DPOTrainer

    class Prepared(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    options = {"processing_class": tokenizer, "train_dataset": data.to_hf()}
    return Prepared(model, reference, config, **options)


def _inputs_and_labels(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a model and its labels."""
    inputs = {"input": batch["input_ids"], "positions": batch["positions"]}
    return inputs, batch["targets"]
