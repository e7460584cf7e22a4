"""Names of other libraries: an AttributeError that says how to do the same."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tokenlake.runtime.trainer import load_training_config

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("tokenlake", "tokenlake.easydel", "tokenlake.trainer")
WAYS = {
    "SFTTrainer": r"use tokenlake\.Trainer with loss: \{name: cross_entropy\}.*docs/trainer\.md#in-pytorch",
    "SFTConfig": r"TRL's SFTTrainer",
    "DPOTrainer": r"loss: \{name: dpo\}.*TRL's DPOTrainer",
    "DPOConfig": r"loss: \{name: dpo\}",
    "ORPOTrainer": r"loss: \{name: orpo\}",
    "KTOTrainer": r"loss: \{name: kto\}",
    "GRPOTrainer": r"train with TRL",
    "RewardTrainer": r"docs/texts\.md",
    "TrainingArguments": r"tokenlake\.TrainingConfig.*tokenlake\.load_training_config",
    "RayPreprocessor": r"build_dataset\(config, executor='ray'\)",
    "VisualDatasetInform": r"TextDatasetInform",
    "MixedShardState": r"DataLoader\.get_state\(\)",
}
"""Name -> part of the message."""


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", WAYS)
def test_a_name_of_another_library_says_how_to_do_the_same(
    module: str, name: str
) -> None:
    package = import_module(module)
    with pytest.raises(
        AttributeError,
        match=f"module '{module}' has no attribute '{name}': .*{WAYS[name]}",
    ):
        getattr(package, name)
    assert not hasattr(package, name) and name not in dir(package)


@pytest.mark.parametrize("module", MODULES)
def test_other_missing_names_say_no_more_than_that(module: str) -> None:
    with pytest.raises(
        AttributeError, match=f"^module '{module}' has no attribute 'Nonsense'$"
    ):
        import_module(module).Nonsense  # noqa: B018


def test_the_ways_exist() -> None:
    """Losses, pages and public names of the messages are there."""
    text = ""
    for name in WAYS:
        with pytest.raises(AttributeError) as raised:
            getattr(import_module("tokenlake"), name)
        text += str(raised.value)
    for loss in re.findall(r"loss: \{name: (\w+)\}", text):
        assert load_training_config({"loss": {"name": loss}}).loss.name == loss
    assert "\n## In PyTorch\n" in (ROOT / "docs/trainer.md").read_text()
    for page in re.findall(r"docs/\w+\.md", text):
        assert (ROOT / page).exists()
    for public in re.findall(r"use tokenlake\.(\w+)", text):
        assert hasattr(import_module("tokenlake"), public)
