"""What a training configuration may say, and how it says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.seeds import promise
from tokenlake.errors import ConfigError
from tokenlake.runtime.trainer import TrainingConfig, load_training_config


@promise(134, 314)
def test_a_file_is_read_over_its_preset_and_overrides_over_both(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        "preset: pretrain\nsteps: 9\noptimizer: {clip: 0.5}\nschedule: {name: wsd, peak: 3e-4}\n"
    )
    config = load_training_config(path, ["optimizer.b2=0.99", "data={dataset: a/b@v3}"])
    assert (config.steps, config.precision, config.loss.z_loss) == (9, "bfloat16", 1e-4)
    assert (
        config.optimizer.clip,
        config.optimizer.b2,
        config.optimizer.weight_decay,
    ) == (0.5, 0.99, 0.1)
    assert config.data is not None and config.data.dataset == "a/b@v3"
    # Another schedule takes nothing from the preset's: its warm-up and floor belonged
    # to the cosine.
    assert (config.schedule.warmup, config.schedule.floor) == (0, 0.0)
    assert config.schedule.peak == 3e-4  # to YAML itself a text


@promise(314)
@pytest.mark.parametrize("name", ["smoke", "pretrain", "finetune", "preference"])
def test_every_preset_is_a_configuration(name: str) -> None:
    config = load_training_config({"preset": name})
    assert config.preset == name and config != TrainingConfig()
    assert load_training_config(config.model_dump(exclude_unset=True)) == config


def test_a_section_given_as_a_model_lies_over_the_preset_too() -> None:
    given = load_training_config({"optimizer": {"clip": 2.0}}).optimizer
    config = TrainingConfig.model_validate({"preset": "pretrain", "optimizer": given})
    assert (config.optimizer.clip, config.optimizer.b2) == (2.0, 0.95)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "preset: pretain",
            "preset is 'pretain', expected one of .*; did you mean 'pretrain'?",
        ),
        ("steps: 0", r"steps \(line 1\): got 0, must be greater than 0"),
        (
            "\nloss: {gama: 1.0}",
            r"loss.gama \(line 2\): unknown key; did you mean 'gamma'\?",
        ),
        (
            "loss: {name: dpo, gamma: 1.0}",
            "gamma does not act with loss 'dpo'; it belongs to: focal",
        ),
        (
            "schedule: {name: constant, cycles: 2}",
            "cycles does not act with schedule 'constant'",
        ),
        (
            "optimizer: {name: prodigy, no_decay: [norm]}",
            "no_decay does not act with optimizer 'prodigy'",
        ),
        (
            "optimizer: {name: adamw8}",
            "optimizer.name .*got 'adamw8', must be 'adamw', .*did you mean 'adamw'",
        ),
        (
            "schedule: {peak: 3-4}",
            r"schedule.peak \(line 1\): got '3-4', must be a valid number",
        ),
        (
            "mesh: {rules: {up: [null, tensr]}}",
            "got 'tensr', must be 'data', 'fsdp' or 'tensor'",
        ),
        (
            "evaluation: {sets: {web: {}}}",
            "evaluation.sets.web.dataset .*required, but missing",
        ),
        ("- a", "must be a mapping of keys"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_training_config(path)


def test_what_decides_a_run_is_what_acts() -> None:
    """More steps under a constant rate are the same run; under a cosine they are
    another.
    """
    acting = {
        name: load_training_config({"schedule": {"name": name}}).schedule.acting
        for name in ("constant", "cosine")
    }
    assert "steps" not in acting["constant"] and "steps" in acting["cosine"]
    assert load_training_config({"loss": {"name": "orpo"}}).loss.acting == {
        "name": "orpo",
        "beta": 0.1,
        "chunk": None,
    }
