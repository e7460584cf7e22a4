"""Preferences from a configuration alone: each loss learns, and an interrupted run
ends as a whole one does.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tokenlake import Callback, Trainer, load_training_config
from tokenlake.errors import ConfigError, DivergedError

STEPS = 6
VOCABULARY = 1280


class Interruption(Exception):
    pass


class Interrupt(Callback):
    """Ends the process' run after a step, as an error would."""

    def on_step_end(self, run: Any) -> None:
        if run.step == 3:
            raise Interruption


def main(facts: dict[str, Any]) -> None:
    for loss, dataset in (
        ("dpo", "dpo-trl"),
        ("orpo", "orpo-easydel"),
        ("kto", "kto-trl"),
    ):
        data, folder = f"{facts['store']}/{dataset}", Path(facts["folder"]) / loss
        whole = trainer(loss, data, folder / "whole")
        whole.train()
        with contextlib.suppress(Interruption):
            trainer(loss, data, folder / "cut", callbacks=[Interrupt()]).train()
        again = trainer(loss, data, folder / "cut")
        assert again.step == 2, again.step
        again.train()
        log, other = (
            (folder / name / "log.jsonl").read_text().splitlines()
            for name in ("whole", "cut")
        )
        losses = [json.loads(line)["loss"] for line in log]
        assert losses == [json.loads(line)["loss"] for line in other]
        assert losses[-1] < losses[0], losses
        for one, two in zip(whole.params.values(), again.params.values(), strict=True):
            assert np.array_equal(one, two)
    check_refusals(f"{facts['store']}/dpo-trl")
    check_an_id_beyond_the_vocabulary(
        f"{facts['store']}/orpo-trl", Path(facts["folder"]) / "small"
    )


def model(params: Any, batch: Any) -> Any:
    """Hidden states of an id, and a head."""
    return jnp.tanh(params["embedding"][batch["input_ids"]]), params["head"]


def trainer(
    loss: str,
    dataset: str,
    folder: Path,
    *,
    vocabulary: int = VOCABULARY,
    callbacks: Any = (),
) -> Trainer:
    config = load_training_config(
        {
            "data": {
                "dataset": dataset,
                "batch_size": 4,
                "seed": 1,
                "padding": {"buckets": 2, "multiple": 8},
            },
            "steps": STEPS,
            "loss": {"name": loss, "chunk": 8},
            "schedule": {"name": "constant", "peak": 0.02},
            "checkpoint": {"folder": str(folder / "checkpoints"), "every": 2},
            "log": {
                "every": 1,
                "progress": False,
                "jsonl": str(folder / "log.jsonl"),
                "peak_flops": 1e9,
            },
        }
    )
    dice = np.random.default_rng(0)
    params = {
        "embedding": jnp.asarray(dice.normal(size=(vocabulary, 8)), jnp.float32),
        "head": jnp.asarray(dice.normal(size=(8, vocabulary)) / 8, jnp.float32),
    }
    return Trainer.from_config(config, model, params, callbacks=callbacks)


def check_refusals(dataset: str) -> None:
    for padding, message in (
        (
            {"bucket": 2},
            "padding: got .*'bucket': 2.*, must be a BatchPadding, or a mapping of length, buckets",
        ),
        ({"side": "top"}, "padding.side: got 'top', must be left or right"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_training_config({"data": {"dataset": dataset, "padding": padding}})


def check_an_id_beyond_the_vocabulary(dataset: str, folder: Path) -> None:
    """The loss is not finite then; no checkpoint is written of that."""
    run = trainer("orpo", dataset, folder, vocabulary=300)
    with pytest.raises(
        DivergedError,
        match=r"step 1: the loss was not finite[.] Possible causes are ids beyond the model's vocabulary",
    ):
        run.train()
    run.step = 2
    with pytest.raises(DivergedError, match="step 1: the loss"):
        run.save()
    assert not list((folder / "checkpoints").glob("[0-9]*"))
