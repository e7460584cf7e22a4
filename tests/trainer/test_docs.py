"""The page about the trainer: its configuration is one, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

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
    assert found[1].data is not None and found[1].data.padding == BatchPadding(buckets=8, multiple=64)


def test_the_configuration_of_the_example_is_valid() -> None:
    config = load_training_config(ROOT / "examples/train_lm.yaml")
    assert config.data is not None and config.steps is not None
    assert config.checkpoint.every < config.steps


def test_every_section_is_told_with_its_meaning() -> None:
    schema = TrainingConfig.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    assert all(section.get("description") for section in sections)
