"""Names of other libraries that a reader may look for in Tokenlake.

Each has a sentence about how to do the same here.

They are not attributes: ``hasattr(tokenlake, "SFTTrainer")`` is false. Only the message
of the AttributeError differs from that of any other missing name.
"""

from __future__ import annotations

from typing import Final

_PAGE: Final = "docs/trainer.md#in-pytorch"
_SUPERVISED: Final = (
    "in JAX use tokenlake.Trainer with loss: {name: cross_entropy}, on a dataset that is built from conversations; in "
    f"PyTorch give TRL's SFTTrainer the rows of Dataset.to_hf(), see {_PAGE}"
)
_BY_TRL: Final = (
    "tokenlake.Trainer has the losses cross_entropy, focal, dpo, orpo and kto; for other methods build the rows "
    f"(docs/texts.md) and train with TRL, see {_PAGE}"
)
_RAY: Final = (
    "build_dataset(config, executor='ray') tokenizes on Ray, into a version of a store"
)


def _preferences(loss: str, trainer: str) -> str:
    """Return the way to train with a loss of preferences.

    Args:
        loss: Name of the loss in a configuration.
        trainer: Class of TRL.
    """
    return (
        f"in JAX use tokenlake.Trainer with loss: {{name: {loss}}}; in PyTorch give TRL's {trainer} the rows of "
        f"Dataset.to_hf(), see {_PAGE}"
    )


WAYS: Final[dict[str, str]] = {
    "SFTTrainer": _SUPERVISED,
    "SFTConfig": _SUPERVISED,
    "DPOTrainer": _preferences("dpo", "DPOTrainer"),
    "DPOConfig": _preferences("dpo", "DPOTrainer"),
    "ORPOTrainer": _preferences("orpo", "ORPOTrainer"),
    "ORPOConfig": _preferences("orpo", "ORPOTrainer"),
    "KTOTrainer": _preferences("kto", "KTOTrainer"),
    "KTOConfig": _preferences("kto", "KTOTrainer"),
    "BCOTrainer": _BY_TRL,
    "BCOConfig": _BY_TRL,
    "CPOTrainer": _BY_TRL,
    "CPOConfig": _BY_TRL,
    "GRPOTrainer": _BY_TRL,
    "GRPOConfig": _BY_TRL,
    "PPOTrainer": _BY_TRL,
    "PPOConfig": _BY_TRL,
    "RewardTrainer": _BY_TRL,
    "RewardConfig": _BY_TRL,
    "TrainingArguments": (
        "the configuration of tokenlake.Trainer is tokenlake.TrainingConfig, or a YAML file for "
        f"tokenlake.load_training_config; for the Trainer of Hugging Face see {_PAGE}"
    ),
    "RayPreprocessor": _RAY,
    "RayTokenizeWorker": _RAY,
    "tokenize_with_ray": _RAY,
    "VisualDatasetInform": "images are not text; datasets of text are TextDatasetInform",
    "MixedShardState": "the position in a mixture is the state of its loader: DataLoader.get_state()",
}
"""Name -> how to do the same with Tokenlake."""


def missing_name(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module does not have.

    It has the way to do the same, if that is known.

    Args:
        module: Name of the module.
        name: Missing name.
    """
    message = f"module {module!r} has no attribute {name!r}"
    replacement = WAYS.get(name)
    if replacement is not None:
        message = f"{message}: {replacement}"
    return AttributeError(message)
