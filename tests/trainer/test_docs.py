"""The page about the trainer: its configuration is one, and its code runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from examples import recipes
from tokenlake import BatchPadding
from tokenlake.runtime.trainer import TrainingConfig, load_training_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/trainer.md").read_text()


def blocks(language: str) -> list[str]:
    """The code of the page; that in Python runs with the other whole runs."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_configurations_are_valid(tmp_path: Path) -> None:
    found = list[TrainingConfig]()
    for shown in blocks("yaml"):
        path = tmp_path / "train.yaml"
        path.write_text(shown)
        found.append(load_training_config(path))
    assert found[0].evaluation.sets["held-out"].split == "validation"
    data = [config.data for config in found if config.data is not None]
    assert [section.padding for section in data if section.padding] == [
        BatchPadding(buckets=8, multiple=64)
    ]
    mixtures = [section.mixture for section in data if section.mixture is not None]
    assert [list(mixture.datasets) for mixture in mixtures] == [
        ["code", "web"],
        ["code", "web", "math"],
    ]


@pytest.mark.parametrize(
    "name", ["transformers", "trl_sft", "torchtitan", "_inputs_and_labels"]
)
def test_its_functions_are_those_of_the_recipes(name: str) -> None:
    assert inspect.getsource(getattr(recipes, name)) in "".join(blocks("python"))


def test_the_configuration_of_the_example_is_valid() -> None:
    config = load_training_config(ROOT / "examples/train_lm.yaml")
    assert config.data is not None and config.steps is not None
    assert config.checkpoint.every < config.steps


def test_every_section_is_told_with_its_meaning() -> None:
    schema = TrainingConfig.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    assert all(section.get("description") for section in sections)
