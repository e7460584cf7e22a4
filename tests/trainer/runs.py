"""Whole runs: what is learned, measured and told; killed and resumed, they are what
they would have been.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import tokenlake as tl
from tokenlake import Callback, Trainer, load_training_config
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.trainer import batch_sharding, language_model, make_mesh

STEPS = 10
VOCABULARY = 64


def main(facts: dict[str, Any]) -> None:
    folder = Path(facts["folder"])
    if "kill_at" in facts:
        trainer(
            facts["store"], folder / "killed", callbacks=[Kill(facts["kill_at"])]
        ).train()
        raise AssertionError("it should have been killed")
    expected = check_a_run(facts["store"], folder)
    check_a_killed_process(facts, expected)
    for step in (1, 6):
        check_an_interruption(facts["store"], folder, step, expected)
    check_refusals(facts["store"], folder)
    check_early_stopping(facts["store"], folder)
    check_held_out(facts["store"], folder)
    check_a_mixture(facts["store"], folder)
    check_layouts(facts["store"], folder)
    check_page(facts["store"], folder, facts["code"])
    check_tensorboard()
    check_rows(folder)


def model(params: Any, batch: Any) -> Any:
    """Hidden states of an id and of its place, and a head."""
    hidden = params["embedding"][batch["input_ids"]] + params["place"] * (
        batch["positions"][..., None] / 32
    )
    return jnp.tanh(hidden), params["head"]


def of_few_ids(params: Any, batch: Any, reference: Any) -> Any:
    """The loss of a language of 64 ids, which is made of the batch's: small enough
    for many runs.
    """
    few = {name: batch[name] % VOCABULARY for name in ("input_ids", "targets")}
    few["targets"] = jnp.where(batch["targets"] < 0, batch["targets"], few["targets"])
    return language_model(model, z_loss=1e-3)(params, batch | few, reference)


def first_params(ids: int = VOCABULARY) -> Any:
    random = np.random.default_rng(0)
    shapes = {"embedding": (ids, 8), "place": (8,), "head": (8, ids)}
    return {
        name: random.normal(size=shape).astype(np.float32) * 0.3
        for name, shape in shapes.items()
    }


def trainer(
    store: str, folder: Path, *, callbacks: Any = (), **changes: Any
) -> Trainer:
    sets = {
        "other": {"dataset": f"{store}/learned"},
        "same": {"dataset": f"{store}/small"},
    }
    asked = {
        "data": {"dataset": f"{store}/small", "batch_size": 24, "epochs": 1, "seed": 3},
        "steps": STEPS,
        "mesh": {"data": 1, "fsdp": 2},
        "optimizer": {"clip": 1.0},
        "schedule": {"peak": 0.2, "warmup": 2},
        "evaluation": {
            "every": 4,
            "batches": 2,
            "sets": {k: v | {"split": "train"} for k, v in sets.items()},
        },
        "checkpoint": {"folder": str(folder / "checkpoints"), "every": 3, "keep": 2},
        "log": {
            "every": 1,
            "progress": False,
            "jsonl": str(folder / "log.jsonl"),
            "peak_flops": 1e9,
        },
    }
    config = load_training_config(asked | changes)
    return Trainer.from_config(
        config, model, first_params(), objective=of_few_ids, callbacks=callbacks
    )


class Hooks(Callback):
    """Writes down which hooks were called, and at which step."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_train_begin(self, run: Any) -> None:
        self.told.append(("train_begin", run.step))

    def on_train_end(self, run: Any) -> None:
        self.told.append(("train_end", run.step))

    def on_epoch_begin(self, run: Any, epoch: int) -> None:
        self.told.append(("epoch_begin", run.step, epoch))

    def on_epoch_end(self, run: Any, epoch: int) -> None:
        self.told.append(("epoch_end", run.step, epoch))

    def on_step_begin(self, run: Any) -> None:
        self.told.append(("step_begin", run.step))

    def on_step_end(self, run: Any) -> None:
        self.told.append(("step_end", run.step))

    def on_log(self, run: Any, metrics: Any) -> None:
        self.told.append(("log", metrics.step))

    def on_evaluate(self, run: Any, results: Mapping[str, Any]) -> None:
        self.told.append(("evaluate", run.step, *results))


class Kill(Callback):
    """Ends the process, as the kernel does when memory is short."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, run: Any) -> None:
        if run.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


class Interruption(Exception):
    pass


class Interrupt(Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_log(self, run: Any, metrics: Any) -> None:
        if metrics.step == self._step:
            raise Interruption


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log without what the clock says."""
    clock = ("tokens_per_second", "mfu")
    found = [
        json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()
    ]
    return [
        {name: value for name, value in each.items() if name not in clock}
        for each in found
    ]


def arrays(made: Trainer) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(made.state)]


Ended = tuple[list[bytes], dict[str, Any], list[dict[str, Any]]]


def ended(made: Trainer, folder: Path) -> Ended:
    """All that a run leaves: parameters and optimizer bit for bit, the loader, the
    log.
    """
    return arrays(made), made.loader.get_state(), lines(folder)


def check_a_run(store: str, folder: Path) -> Ended:
    hooks = Hooks()
    made = trainer(store, folder / "whole", callbacks=[hooks])
    assert made.state.params["embedding"].sharding.spec[0] == "fsdp"
    before = made.evaluate()
    metrics = made.train()
    assert (
        metrics is not None and metrics.step == STEPS == made.step == made.loader.step
    )
    after = made.evaluate()
    assert after["same"]["loss"] < 0.85 * before["same"]["loss"]
    assert metrics.perplexity is not None and metrics.mfu is not None
    found = lines(folder / "whole")
    steps = [each for each in found if "evaluation" not in each]
    assert [each["step"] for each in steps] == list(range(1, STEPS + 1))
    assert steps[-1]["loss"] < 0.85 * steps[0]["loss"]
    # z-loss is in the loss and not in the perplexity.
    assert 0 < steps[0]["loss"] - math.log(steps[0]["perplexity"]) < 0.1
    ema = steps[0]["loss"]
    for each in steps[1:]:
        ema = 0.98 * ema + 0.02 * each["loss"]
        assert each["loss_ema"] == pytest.approx(ema, rel=1e-5)
    evaluated = [
        (each["step"], each["evaluation"]) for each in found if "evaluation" in each
    ]
    assert evaluated == [
        (step, tag) for step in (4, 8, 10) for tag in ("other", "same")
    ]
    assert found[-1] == pytest.approx(
        after["same"] | {"step": STEPS, "evaluation": "same"}
    )

    assert hooks.told[:4] == [
        ("train_begin", 0),
        ("epoch_begin", 0, 0),
        ("step_begin", 0),
        ("log", 1),
    ]
    assert hooks.told[-5:] == [
        ("log", STEPS),
        ("evaluate", STEPS, "other", "same"),
        ("step_end", STEPS),
        ("epoch_end", STEPS, made.loader.epoch),
        ("train_end", STEPS),
    ]
    passes = [told for told in hooks.told if told[0].startswith("epoch")]
    batches = len(made.loader)
    assert batches < STEPS and passes[1:3] == [
        ("epoch_end", batches, 0),
        ("epoch_begin", batches, 1),
    ]
    assert made.train() is metrics  # no step is left
    return ended(made, folder / "whole")


def check_a_killed_process(facts: dict[str, Any], expected: Ended) -> None:
    folder = Path(facts["folder"])
    place = {"seconds": 100, "address": None, "facts": facts | {"kill_at": 8}}
    command = [
        sys.executable,
        "-m",
        "tests.loader.jax_worker",
        "tests.trainer.runs",
        "none",
        json.dumps(place),
    ]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert max(each["step"] for each in lines(folder / "killed")) == 8
    again = trainer(
        facts["store"],
        folder / "killed",
        log={"every": 1, "jsonl": str(folder / "killed/log.jsonl"), "peak_flops": 1e9},
    )
    # The checkpoint of step 6 was written in the background; if the kill came first,
    # that of step 3 stands.
    assert (first := again.step) in (3, 6)
    with contextlib.redirect_stderr(io.StringIO()) as told:
        again.train()
    assert told.getvalue().startswith(f"step {first}/{again.steps}  resumes here\n")
    assert ended(again, folder / "killed") == expected


def check_an_interruption(store: str, folder: Path, step: int, expected: Ended) -> None:
    place = folder / str(step)
    with contextlib.suppress(Interruption):
        trainer(store, place, callbacks=[Interrupt(step)]).train()
    with (place / "log.jsonl").open("a") as log:
        log.write('{"step": 99, "lo')  # what a killed process leaves of a line
    again = trainer(store, place)
    assert again.step == (step - 1) // 3 * 3
    again.train()
    assert ended(again, place) == expected


def check_refusals(store: str, folder: Path) -> None:
    whole, data = (
        folder / "whole",
        {"dataset": f"{store}/small", "batch_size": 24, "epochs": 1},
    )
    for changes, message in (
        (
            {"optimizer": {"clip": 2.0}},
            'belongs to another run: optimizer is .*"clip": 1.0.* there .*"clip": 2.0',
        ),
        (
            {"schedule": {"peak": 0.2, "warmup": 2}, "steps": 20},
            'schedule is .*"steps": 10.*"steps": 20',
        ),
        ({"data": data | {"seed": 4}}, "seed is 3 there and 4 here"),
        (
            {"early_stopping": {"tag": "web"}},
            "expected the tag of a held-out set: other, same",
        ),
        ({"data": None}, "data: required, but missing"),
        (
            {"data": data | {"epochs": None}, "steps": None},
            "steps: got none, and the loader never ends",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            trainer(store, whole, **changes)
    columns = ("input_ids", "positions", "targets")
    grown = tl.DataLoader(
        tl.open(f"{store}/small"),
        {0: 8, 1: 4096},
        epochs=1,
        drop_last=True,
        columns=columns,
    )
    with pytest.raises(ConfigError, match="the loader has no batch from step 1 on"):
        config = load_training_config(
            {"steps": 3, "mesh": {"fsdp": 2}, "log": {"progress": False}}
        )
        Trainer(model, first_params(), grown, config, objective=of_few_ids).train()
    # More steps under the same schedule are the same run.
    longer = trainer(
        store, whole, steps=14, schedule={"peak": 0.2, "warmup": 2, "steps": STEPS}
    )
    assert (longer.step, longer.steps) == (STEPS, 14)


def check_early_stopping(store: str, folder: Path) -> None:
    """It ends the run, and one that goes on from its last checkpoint at once; with
    numpy batches, on other devices.
    """
    small, columns = tl.open(f"{store}/small"), ("input_ids", "positions", "targets")
    config = load_training_config(
        {
            "steps": 9,
            "early_stopping": {"tag": "same", "patience": 2, "min_delta": 100.0},
            "evaluation": {"every": 1, "batches": 1},
            "checkpoint": {"folder": str(folder / "stopped")},
            "log": {"progress": False},
            "mesh": {
                "tensor": 2,
                "rules": {"head": [None, "tensor"], "embedding": ["tensor"]},
            },
        }
    )
    rows = batch_sharding(make_mesh(config.mesh))
    for _ in range(2):
        made = Trainer(
            model,
            first_params(),
            tl.DataLoader(small, 8, epochs=None, columns=columns),
            config,
            objective=of_few_ids,
            evaluation={
                "same": tl.DataLoader(small, 8, columns=columns, sharding=rows)
            },
        )
        made.train()
        assert made.params["head"].sharding.spec == PartitionSpec(None, "tensor")
        # The first evaluation gains, infinitely much; two do not.
        assert made.step == 3 and "has not fallen below" in made.stopped


def check_held_out(store: str, folder: Path) -> None:
    """What a version holds out is evaluated under its source's name: the log has the
    perplexity of each.
    """
    data = {"dataset": f"{store}/held", "batch_size": 8}
    named = {"dataset": f"{store}/held", "split": "eval_s", "batch_size": 4}
    evaluation = {"every": 2, "held_out": True, "sets": {"named": named}}
    made = trainer(store, folder / "held", data=data, evaluation=evaluation, steps=4)
    assert len(made.evaluation["s"]) > 1
    made.train()
    found = [each for each in lines(folder / "held") if "evaluation" in each]
    assert [(each["step"], each["evaluation"]) for each in found] == [
        (step, tag) for step in (2, 4) for tag in ("s", "named")
    ]
    for each in found:
        assert each["perplexity"] == pytest.approx(math.exp(each["loss"]), rel=0.1)
    # In other batches the same documents give the same means.
    assert found[2]["perplexity"] == pytest.approx(found[3]["perplexity"], rel=1e-5)
    with pytest.raises(
        ConfigError,
        match=r"evaluation\.held_out: true, but small@v1 holds no documents out",
    ):
        trainer(store, folder / "none", evaluation={"held_out": True})


def check_a_mixture(store: str, folder: Path) -> None:
    """A run on a mixture resumes from its checkpoint with a source more; options of
    the loader reach the trainer's.
    """
    datasets = {"one": f"{store}/small", "two": f"{store}/learned"}
    mixture: dict[str, Any] = {
        "datasets": datasets,
        "weights": {"one": 0.5, "two": 0.5},
        "step_rows": 8,
    }
    data: dict[str, Any] = {
        "mixture": mixture,
        "batch_size": {0: 8, 2: 16},
        "lengths": {0: 16, 3: 32},
        "balance": "attention",
    }
    options: dict[str, Any] = {
        "evaluation": {},
        "schedule": {"name": "constant", "peak": 0.1},
    }
    trainer(store, folder / "mixture", data=data, steps=4, **options).train()
    whole = trainer(store, folder / "whole mixture", data=data, steps=6, **options)
    whole.train()

    datasets["three"] = f"{store}/large"
    mixture["weight_changes"] = [
        {"step": 5, "weights": {"one": 0.25, "two": 0.25, "three": 0.5}}
    ]
    longer = trainer(store, folder / "mixture", data=data, steps=6, **options)
    assert isinstance(longer.loader, tl.DataLoader)
    assert (
        longer.step == 4
        and longer.loader.plan.ranks == 2
        and longer.loader.plan.sizes.at(5) == 16
    )
    longer.train()
    losses = [
        [line["loss"] for line in lines(folder / name)]
        for name in ("mixture", "whole mixture")
    ]
    assert losses[0][:5] == losses[1][:5] and losses[0][5] != losses[1][5]
    assert list(longer.loader.get_state()["sources"]) == ["one", "two", "three"]

    # Documents that the sources of a mixture hold out have the names of both.
    evaluation = {"every": 1, "held_out": True, "batches": 1}
    mixed = {
        "datasets": {"web": f"{store}/held", "code": f"{store}/held"},
        "weights": {"web": 1, "code": 1},
    }
    both = trainer(
        store,
        folder / "held mixture",
        data={"mixture": mixed, "batch_size": 8},
        evaluation=evaluation,
        steps=4,
    )
    assert list(both.evaluation) == ["web.s", "code.s"]


def check_layouts(store: str, folder: Path) -> None:
    """The layout of the arrays changes the losses of a run by rounding only, on
    devices that share rows, too.
    """
    plain: dict[str, Any] = {
        "dataset": f"{store}/small",
        "batch_size": 8,
        "padding": None,
    }
    options: dict[str, Any] = {"evaluation": {}, "steps": 4}

    def losses(name: str, **changes: Any) -> list[float]:
        run = trainer(store, folder / name, **{**options, **changes})
        run.train()
        return [line["loss"] for line in lines(folder / name)]

    expected = losses("unchanged layout", data=plain)
    flat = plain | {"layout": {"flat": True, "max_segments": 64}}
    assert losses("flat", data=flat) == pytest.approx(expected, rel=1e-5)
    for split in ("head_tail", "striped", "per_document", "contiguous"):
        cut = plain | {"layout": {"context_parallel": 2, "split": split}}
        mesh = {"context": 2}
        assert losses(split, data=cut, mesh=mesh) == pytest.approx(expected, rel=1e-5)
    assert losses(
        "chunks", data=cut, mesh=mesh, loss={"chunk": 8}, accumulate=2
    ) == pytest.approx(expected, rel=1e-5)
    for changes, message in (
        (
            {"data": flat, "accumulate": 2},
            "accumulate: got 2, and batches of loader are flat",
        ),
        ({"data": cut}, "layout.context_parallel: got 2, .*cuts rows into 1 parts"),
        (
            {"data": plain, "mesh": {"context": 3}},
            "mesh: got data 1, fsdp 1, context 3, tensor 1, which are 3",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            trainer(store, folder / "none", **{**options, **changes})


PAGE = """
steps: 3
data: {{dataset: {store}/small, batch_size: 4}}
evaluation: {{sets: {{held-out: {{dataset: {store}/small, split: train, batch_size: 8}}}}, batches: 1}}
log: {{every: 1}}
"""


def check_page(store: str, folder: Path, code: list[str]) -> None:
    """The code of docs/trainer.md, over data that is here."""
    os.chdir(folder)
    Path("train.yaml").write_text(PAGE.format(store=store))
    ids = tl.open(f"{store}/small").vocab_size
    known: dict[str, Any] = {"apply": model, "params": first_params(ids + ids % 2)}
    for block in code:
        exec(block, known)
    assert known["metrics"].step == 3 and known["config"].schedule.peak == 1e-3
    assert known["trainer"].train().step == 3


def check_rows(folder: Path) -> None:
    """Rows of a mixture train as they come, texts beside them left out; a run that
    was cut goes on among them.
    """
    random = np.random.default_rng(4)
    sets = {
        name: [{"input_ids": random.integers(0, top, 8).tolist()} for _ in range(rows)]
        for name, top, rows in (("narrow", 4, 30), ("wide", 16, 20))
    }
    files = tl.save_dataset(sets["wide"], folder / "wide").output_paths
    sets["wide"] = tl.ParquetShardedSource(files)

    def made(place: Path, *callbacks: Callback) -> Trainer:
        mixed = tl.block_mixture_interleave(
            sets, [0.5, 0.5], 10, seed=1, stop="all_exhausted"
        )
        loader = tl.AsyncDataLoader(
            mixed, 8, shuffle_buffer_size=8, seed=2, pad_token_id=0
        )
        config = load_training_config(
            {
                "steps": STEPS,
                "schedule": {"peak": 0.3},
                "checkpoint": {"folder": str(place / "checkpoints"), "every": 4},
                "log": {
                    "every": 1,
                    "progress": False,
                    "jsonl": str(place / "log.jsonl"),
                },
            }
        )
        return Trainer(
            bigram,
            {"w": np.zeros((16, 16), np.float32)},
            loader,
            config,
            callbacks=callbacks,
        )

    hooks = Hooks()
    whole = made(folder / "rows", hooks)
    whole.train()
    with contextlib.suppress(Interruption):
        made(folder / "cut rows", Interrupt(6)).train()
    again = made(folder / "cut rows")
    assert again.step == 4
    again.train()
    losses = [each["loss"] for each in lines(folder / "rows")]
    assert losses[-1] < losses[0] and losses == [
        each["loss"] for each in lines(folder / "cut rows")
    ]
    assert (
        arrays(whole) == arrays(again)
        and whole.loader.get_state() == again.loader.get_state()
    )
    batches = 50 // 8
    assert ("epoch_begin", batches, 1) in hooks.told and (
        "epoch_end",
        batches,
        0,
    ) in hooks.told
    with pytest.raises(
        ConfigError,
        match=r"loader: got a MixedShardedSource, .* tl.AsyncDataLoader\(source",
    ):
        Trainer(bigram, {}, tl.block_mixture_interleave(sets), whole.config)
    with pytest.raises(ConfigError, match="the loader has no batch from step 0 on"):
        few = tl.AsyncDataLoader(sets["wide"], 98)
        config = load_training_config({"steps": 1, "log": {"progress": False}})
        Trainer(bigram, {"w": np.zeros((16, 16), np.float32)}, few, config).train()


def bigram(params: Any, batch: Any) -> Any:
    """Logits of the next id from the present one."""
    return params["w"][batch["input_ids"]]


def check_tensorboard() -> None:
    """Measurements and evaluations are written as scalars; a step number is not one."""
    config = load_training_config(
        {
            "steps": 2,
            "log": {"every": 1, "progress": False, "tensorboard": "events"},
            "evaluation": {"every": 9, "batches": 1},
        }
    )
    rows = [{"input_ids": [1, 2, 3, 4]}] * 8

    def run() -> Trainer:
        params = {"w": np.zeros((16, 16), np.float32)}
        held_out = {"web": tl.AsyncDataLoader(rows, 4)}
        return Trainer(
            bigram, params, tl.AsyncDataLoader(rows, 4), config, evaluation=held_out
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorboardX", None)
        with pytest.raises(
            MissingExtraError, match=r"needs tensorboardX, .*: pip install tensorboardX"
        ):
            run()
        scalars: dict[tuple[str, int], float] = {}
        closed: list[bool] = []
        writer = SimpleNamespace(
            add_scalar=lambda name, value, step: scalars.setdefault(
                (name, step), value
            ),
            flush=lambda: None,
            close=lambda: closed.append(True),
        )
        patch.setitem(
            sys.modules,
            "tensorboardX",
            SimpleNamespace(SummaryWriter=lambda folder: writer),
        )
        trained = run()
        trained.train()
    metrics = trained.metrics
    assert metrics is not None
    assert (
        scalars["train/loss", 2]
        == metrics.loss
        < scalars["train/loss", 1]
        == pytest.approx(math.log(16))
    )
    assert scalars["train/learning_rate", 2] == metrics.learning_rate
    assert scalars["web/perplexity", 2] < 16
    assert all(np.isfinite(value) for value in scalars.values())
    assert not any(name.endswith("/step") for name, _ in scalars)
    assert closed == [True]
