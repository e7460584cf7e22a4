"""Runs in which something goes wrong: numbers that are not finite, damaged
checkpoints, loaders that do not fit.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenlake as tl
from tokenlake import Trainer, load_training_config
from tokenlake.errors import ConfigError, DivergedError, IntegrityError
from tokenlake.runtime.trainer import array_facts, language_model

STEPS = 6
ROWS = [{"input_ids": [(row + place) % 16 for place in range(8)]} for row in range(40)]


def main(facts: dict[str, Any]) -> None:
    folder = Path(facts["folder"])
    check_gradients_that_are_not_finite(folder / "gradients")
    check_other_numbers_that_are_not_finite(folder / "numbers")
    check_infinite_parameters_are_left_alone()
    check_fingerprints()
    check_damaged_checkpoints(folder / "damaged")
    check_checkpoints_without_fingerprints(folder / "older")
    check_stopping()
    check_loaders_over_devices(facts["store"])
    check_held_out_loaders(facts["store"])
    check_a_finished_run(folder / "finished")
    check_batch_sizes_of_a_configuration(facts["store"], folder / "sizes")


def model(params: Any, batch: Any) -> Any:
    """Logits of a bigram model; its gradient is NaN where `scale` is 0, and its
    value is not.
    """
    hidden = params["embedding"][batch["input_ids"]] * (
        1 + 0 * jnp.sqrt(params["scale"])
    )
    return hidden @ params["head"]


def first_params() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "embedding": random.normal(size=(16, 4)).astype(np.float32),
        "head": random.normal(size=(4, 16)).astype(np.float32),
        "scale": np.ones((), np.float32),
    }


def rows_loader(batch_size: int = 4, **options: Any) -> tl.AsyncDataLoader:
    return tl.AsyncDataLoader(ROWS, batch_size, **options)


def settings(folder: Path | None = None, **changes: Any) -> dict[str, Any]:
    checkpoint = (
        {} if folder is None else {"folder": str(folder), "every": 1, "keep": 1}
    )
    return {
        "steps": STEPS,
        "schedule": {"name": "constant", "peak": 0.01},
        "checkpoint": checkpoint,
        "log": {"every": 100, "progress": False},
        "mesh": {"fsdp": 2, "data": 1},
        **changes,
    }


def trainer(
    folder: Path | None = None,
    *,
    callbacks: Any = (),
    params: Any = None,
    **changes: Any,
) -> Trainer:
    first = first_params() if params is None else params
    return Trainer(
        model, first, rows_loader(), settings(folder, **changes), callbacks=callbacks
    )


class Change(tl.Callback):
    """Changes the parameters before the step that follows `step`."""

    def __init__(self, step: int, change: Callable[[Any], Any]) -> None:
        self._step, self._change = step, change

    def on_step_begin(self, run: Any) -> None:
        if run.step == self._step:
            run.state = run.state._replace(params=self._change(run.state.params))


def without_scale(params: Any) -> Any:
    return params | {"scale": jnp.zeros_like(params["scale"])}


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def finite(params: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


# -- what is not finite


def check_gradients_that_are_not_finite(folder: Path) -> None:
    """Whatever is logged, saved or accumulated, the run ends with the step, and the
    checkpoint before it stays.
    """
    sparse = {"folder": str(folder / "2"), "every": 2, "keep": 1}
    for number, (step, last_good, changes) in enumerate(
        [
            (1, 0, {}),
            (STEPS, STEPS - 1, {"log": {"every": 1, "progress": False}}),
            (3, 2, {"accumulate": 2, "optimizer": {"clip": 1.0}, "checkpoint": sparse}),
        ]
    ):
        place = folder / str(number)
        with pytest.raises(
            DivergedError, match=f"step {step}: the norm of the gradient was not finite"
        ) as caught:
            trainer(
                place, callbacks=[Change(step - 1, without_scale)], **changes
            ).train()
        assert caught.value.details["step"] == step
        assert checkpoints(place) == ([last_good] if last_good else [])
        again = trainer(place, **changes)
        assert again.step == last_good and finite(again.params)
    # Without a folder nothing is saved, and a run fails whose last step was bad.
    with pytest.raises(DivergedError, match=f"step {STEPS}: the norm of the gradient"):
        trainer(callbacks=[Change(STEPS - 1, without_scale)]).train()

    class Stop(tl.Callback):
        def on_step_end(self, run: Any) -> None:
            run.stop("enough")

    with pytest.raises(DivergedError, match="step 1: the norm of the gradient"):
        trainer(callbacks=[Change(0, without_scale), Stop()]).train()


def check_other_numbers_that_are_not_finite(folder: Path) -> None:
    def without_numbers(params: Any) -> Any:
        return params | {"head": params["head"] * jnp.nan}

    with pytest.raises(
        DivergedError,
        match="step 3: the loss was not finite; the checkpoint of step 2 is the newest",
    ):
        trainer(folder / "loss", callbacks=[Change(2, without_numbers)]).train()
    assert checkpoints(folder / "loss") == [2]
    # An update that is too large, by a loss and a gradient that are finite.
    huge = {
        "schedule": {"name": "constant", "peak": 3.0e38},
        "optimizer": {"name": "lion", "weight_decay": 1.0},
    }
    params = first_params() | {"scale": np.full((), 9.0, np.float32)}
    for place in (folder / "update", None):
        with pytest.raises(
            DivergedError,
            match=r"step 1: params/.* is not finite after it, while loss and gradient",
        ):
            trainer(place, params=params, steps=1, **huge).train()
    assert checkpoints(folder / "update") == []


def check_infinite_parameters_are_left_alone() -> None:
    """An attention mask among the parameters is not finite on purpose."""
    params = first_params() | {"mask": np.full(4, -np.inf, np.float32)}
    metrics = trainer(params=params, optimizer={"weight_decay": 0.0}, steps=2).train()
    assert metrics is not None and np.isfinite(metrics.grad_norm)


# -- checkpoints


def check_fingerprints() -> None:
    """Each change of a value changes a fingerprint; how an array is cut does not."""
    rows = jax.sharding.NamedSharding(
        jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x")
    )
    columns = jax.sharding.NamedSharding(
        rows.mesh, jax.sharding.PartitionSpec(None, "x")
    )
    random = np.random.default_rng(1)
    values = random.normal(size=(4, 6)).astype(np.float32)

    def mark(array: Any) -> str:
        return array_facts({"a": array})["a"].fingerprint

    whole = mark(jnp.asarray(values))
    assert (
        whole
        == mark(jax.device_put(values, rows))
        == mark(jax.device_put(values, columns))
    )
    negated = values.copy()
    negated[0, :2] *= -1
    swapped = values[::-1].copy()
    zero = np.zeros((4, 6), np.float32)
    minus_zero = zero.copy()
    minus_zero[3, 5] = -0.0
    marks = [
        whole,
        *(
            mark(jnp.asarray(array))
            for array in (negated, swapped, values.T, zero, minus_zero)
        ),
    ]
    assert len(set(marks)) == len(marks)
    for dtype in (
        "bfloat16",
        "float16",
        "int8",
        "uint32",
        "bool",
        "int32",
        "float8_e4m3fn",
        "complex64",
    ):
        array, other = (
            jnp.asarray(values).astype(dtype) for values in ([0, 1, 1, 0], [1, 1, 1, 0])
        )
        assert mark(array) == mark(jnp.array(array, copy=True)) != mark(other)
    assert mark(jax.random.key(0)) != mark(jax.random.key(1))
    assert not array_facts({"a": jnp.asarray([1.0, jnp.inf])})["a"].is_finite


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage(folder: Path, kind: str) -> None:
    """Damage the checkpoint of step 3, one of three kinds of faults of disks and of
    people.
    """
    newest, older = folder / "3", folder / "2"
    stored = max(
        (newest / "state" / "d").iterdir(), key=lambda path: path.stat().st_size
    )
    match kind:
        case "arrays flipped":
            flip(stored)
        case "arrays cut":
            cut(stored)
        case "arrays missing":
            stored.unlink()
        case "loader missing":
            (newest / "data" / "metadata").unlink()
        case "facts flipped":
            flip(newest / "facts" / "metadata")
        case "facts cut":
            cut(newest / "facts" / "metadata")
        case "everything missing":
            shutil.rmtree(newest)
            newest.mkdir()
        case "everything of another step":
            shutil.rmtree(newest)
            shutil.copytree(older, newest)
        case _:  # one part of another step, all of whose own checksums are right
            part = kind.removesuffix(" of another step")
            shutil.rmtree(newest / part)
            shutil.copytree(older / part, newest / part)


DAMAGES = {
    "arrays flipped": "state",
    "arrays cut": "state",
    "arrays missing": "state",
    "loader missing": "data",
    "facts flipped": "facts",
    "facts cut": "facts",
    "everything missing": "facts",
    "state of another step": "state: the fingerprint of ",
    "data of another step": "data: its SHA-256",
    "facts of another step": "state: the fingerprint of ",
    "everything of another step": "state: it is the state of step 2",
}
"""Kind of damage -> what the warning says is damaged."""


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Drop what threads of Orbax write to stderr when an array that they still read
    turns out to be damaged.
    """
    hooks = sys.excepthook, sys.unraisablehook
    logging.disable(logging.ERROR)
    sys.excepthook = sys.unraisablehook = lambda *_: None
    try:
        yield
        gc.collect()
    finally:
        sys.excepthook, sys.unraisablehook = hooks
        logging.disable(logging.NOTSET)


def check_damaged_checkpoints(folder: Path) -> None:
    """The damaged one is named, the run goes back to the one before it, and ends as
    a whole run does.
    """
    keep: dict[str, Any] = {"every": 1, "keep": 3}
    whole = trainer(
        folder / "whole", checkpoint={"folder": str(folder / "whole"), **keep}
    )
    whole.train()
    cut_short = {"steps": 3, "checkpoint": {"folder": str(folder / "short"), **keep}}
    trainer(**cut_short).train()
    for kind, words in DAMAGES.items():
        place = folder / kind
        shutil.copytree(folder / "short", place)
        damage(place, kind)
        asked = {"folder": str(place), **keep}
        with pytest.warns(RuntimeWarning) as caught, unheard():
            again = trainer(checkpoint=asked)
        said = "".join(
            str(each.message) for each in caught if "damaged" in str(each.message)
        )
        assert (
            f"{place}: step 3 is damaged: {words}" in said
            and "resumes from step 2" in said
        ), (kind, said)
        assert again.step == 2
        if kind == "facts flipped":
            # The step is taken again, and its new checkpoint takes the place of the
            # damaged one.
            shutil.copytree(place, folder / "again")
            repeated = {
                "steps": 3,
                "checkpoint": {"folder": str(folder / "again"), **keep},
            }
            with pytest.warns(RuntimeWarning, match="damaged"):
                trainer(**repeated).train()
            assert checkpoints(folder / "again") == [1, 2, 3]
            assert trainer(**repeated).step == 3
        if kind in ("arrays flipped", "everything missing", "data of another step"):
            again.train()
            assert checkpoints(place) == [4, 5, 6], kind
            ours, theirs = (jax.tree.leaves(run.state) for run in (again, whole))
            assert all(
                np.array_equal(one, two) for one, two in zip(ours, theirs, strict=True)
            ), kind
            assert again.loader.get_state() == whole.loader.get_state()
    # With none left the run does not begin anew by itself.
    for step in ("1", "2", "3"):
        (folder / "short" / step / "facts" / "metadata").write_text("")
    with pytest.raises(
        IntegrityError,
        match=r"every checkpoint is damaged: step 3 is damaged: facts: .* step 1 is",
    ):
        trainer(**cut_short)
    # Another model is no damage.
    small = first_params() | {
        "embedding": np.zeros((16, 2), np.float32),
        "head": np.zeros((2, 16), np.float32),
    }
    differs = r"params/embedding is float32\[16, 4\] there and float32\[16, 2\] here; .* 3 more differ"
    with pytest.raises(
        ConfigError, match=f"step 6 belongs to another model or optimizer: {differs}"
    ):
        trainer(checkpoint={"folder": str(folder / "whole"), **keep}, params=small)


def check_checkpoints_without_fingerprints(folder: Path) -> None:
    """What an earlier release wrote is read unchecked."""
    trainer(folder, steps=2).train()
    path = folder / "2" / "facts" / "metadata"
    facts = json.loads(path.read_text())
    for name in ("arrays", "loader_sha256", "sha256", "metrics"):
        del facts[name]
    path.write_text(json.dumps(facts))
    assert trainer(folder).step == 2


# -- the end of a run


def check_stopping() -> None:
    """It ends the run after the step, whatever the reason."""
    reasons: list[Any] = ["", " ", None, 0, "enough"]
    kept = ["no reason was given"] * 3 + ["0", "enough"]

    class Stop(tl.Callback):
        def __init__(self, reason: Any) -> None:
            self._reason = reason

        def on_step_end(self, run: Any) -> None:
            run.stop(self._reason)

    found: list[str] = []
    for reason in reasons:
        run = trainer(callbacks=[Stop(reason)])
        run.train()
        assert run.step == 1
        found.append(run.stopped)
    assert found == kept


def check_a_finished_run(folder: Path) -> None:
    first = trainer(folder).train()
    assert first is not None and first.step == STEPS
    again = trainer(folder)
    assert again.train() == first
    assert again.metrics == first


# -- loaders


def check_loaders_over_devices(store: str) -> None:
    """A loader whose batches cannot be cut is refused when the trainer is made; any
    other comes to its end.
    """
    small = tl.open(f"{store}/small")
    columns = ("input_ids", "targets")
    odd = next(size for size in range(8, 40, 2) if len(small) % size % 2)

    def run(loader: Any, **changes: Any) -> Trainer:
        def few_ids(params: Any, batch: Any) -> Any:
            return model(params, {"input_ids": batch["input_ids"] % 16})

        def objective(params: Any, batch: Any, reference: Any) -> Any:
            targets = jnp.where(
                batch["targets"] < 0, batch["targets"], batch["targets"] % 16
            )
            return language_model(few_ids)(
                params, {**batch, "targets": targets}, reference
            )

        config = settings() | {"steps": None} | changes
        return Trainer(model, first_params(), loader, config, objective=objective)

    def stored(size: Any, **options: Any) -> tl.DataLoader:
        return tl.DataLoader(small, size, columns=columns, **options)

    for loader, message in (
        (
            stored(odd),
            r"loader: its last batch has \d+ rows, and rows are cut over 2 devices; .* drop_last=True",
        ),
        (stored({0: 4, 2: 6}), "loader: its last batch may be smaller"),
        (
            stored(9),
            "loader: got batches of 9 rows, which cannot be cut over 2 devices; expected a multiple of 2",
        ),
        (stored(6, host=(0, 2)), "loader: got batches of 3 rows"),
        (rows_loader(5), "loader: got batches of 5 rows"),
        (
            tl.AsyncDataLoader(ROWS[:39], 4, drop_last=False),
            "loader: its last batch has 3 rows",
        ),
        (
            tl.AsyncDataLoader(iter_of(ROWS), 4, drop_last=False),
            "loader: its last batch may be smaller",
        ),
        (
            tl.AsyncDataLoader(small, odd, drop_last=False),
            r"loader: its last batch has \d+ rows",
        ),
        (
            [{"input_ids": np.zeros((2, 4))}],
            "loader: got a list, expected a tl.DataLoader",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            run(loader)
    with pytest.raises(
        ConfigError,
        match="accumulate: got 4, and a batch of loader has 6 rows; expected a divisor",
    ):
        run(stored(6, drop_last=True), accumulate=4)
    with pytest.raises(
        ConfigError, match=r"into 8 parts \(accumulate\); expected a multiple of 8"
    ):
        run(
            stored(16),
            accumulate=8,
            mesh={"data": 1, "tensor": 2, "rules": {"head": [None, "tensor"]}},
        )
    assert len(small) % 16 % 8
    loader = stored(odd, pad_last=True)
    made = run(loader)
    made.train()
    assert made.step == made.steps == len(loader)
    run(stored(odd, drop_last=True))
    # A smaller batch that comes after the last step does no harm.
    run(stored(odd), steps=len(small) // odd)
    even = tl.AsyncDataLoader(ROWS[:38], 4, drop_last=False)
    Trainer(model, first_params(), even, settings() | {"steps": None}).train()
    # Batches of one device are spread over all.
    placed = tl.AsyncDataLoader(ROWS, 4, prefetch_to_device=True)
    spread = Trainer(model, first_params(), placed, settings())
    spread.train()
    assert spread.step == STEPS
    # A loader that cannot say how large its batches are is checked batch by batch.
    with pytest.raises(
        ConfigError,
        match=r"step 2: input_ids has shape \(3, 8\), whose rows cannot be cut over 2",
    ):
        Trainer(model, first_params(), Other([4, 3]), settings()).train()


def iter_of(rows: list[Any]) -> Any:
    class Rows:
        def __iter__(self) -> Any:
            return iter(rows)

    return Rows()


class Other:
    """A loader of another library, of batches of some sizes."""

    epoch = 0

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def __iter__(self) -> Any:
        return ({"input_ids": np.ones((size, 8), np.int32)} for size in self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Any) -> None:
        pass

    def close(self) -> None:
        pass


def check_held_out_loaders(store: str) -> None:
    """Whatever kind of loader it is, an evaluation gives the same numbers each time
    it is made of one model.
    """
    frozen = {
        "schedule": {"name": "constant", "peak": 1e-30},
        "evaluation": {"every": 2, "batches": 3},
    }
    results: list[Any] = []

    class See(tl.Callback):
        def on_evaluate(self, run: Any, found: Any) -> None:
            results.append(found)

    held_out = {
        "plain": rows_loader(),
        "shuffled": rows_loader(shuffle_buffer_size=16, seed=3),
        "other": Other([4, 4]),
    }
    run = Trainer(
        model,
        first_params(),
        rows_loader(),
        settings(**frozen),
        evaluation=held_out,
        callbacks=[See()],
    )
    run.train()
    results.append(run.evaluate())
    assert len(results) == 4 and all(each == results[0] for each in results)
    assert (
        results[0].keys() == held_out.keys()
        and results[0]["plain"] != results[0]["shuffled"]
    )
    loader, endless = (
        rows_loader(),
        tl.DataLoader(tl.open(f"{store}/small"), 4, epochs=None),
    )
    mixed = tl.block_mixture_interleave(
        {"a": ROWS, "b": ROWS}, [0.5, 0.5], 10, stop="restart"
    )
    for evaluation, batches, message in (
        ({"held": [1]}, 1, "evaluation.held: got a list, expected a tl.DataLoader"),
        (
            {"held": rows_loader(5)},
            1,
            "evaluation.held: got batches of 5 rows, which cannot be cut over 2 devices",
        ),
        ({"held": loader}, 1, "evaluation.held: got the loader of the training data"),
        (
            {"held": endless},
            None,
            "evaluation.held: the loader never ends, and evaluation.batches is not set",
        ),
        (
            {"held": tl.AsyncDataLoader(mixed, 4)},
            None,
            "evaluation.held: the loader never ends",
        ),
        (
            rows_loader(),
            1,
            "evaluation: got a AsyncDataLoader, expected a mapping of tags to loaders",
        ),
    ):
        config = settings(evaluation={"batches": batches})
        with pytest.raises(ConfigError, match=message):
            Trainer(model, first_params(), loader, config, evaluation=evaluation)
    with pytest.raises(
        ConfigError, match=r"stepz: unknown key; did you mean 'steps'\?"
    ):
        Trainer(model, first_params(), loader, {"stepz": 3})


def check_batch_sizes_of_a_configuration(store: str, folder: Path) -> None:
    """A batch that grows while the run goes on, also over an interruption."""
    data = {"dataset": f"{store}/small", "batch_size": {0: 4, 2: 6}}

    def run(place: Path, steps: int) -> Trainer:
        config = {
            "data": data,
            "steps": steps,
            "schedule": {"name": "constant", "peak": 0.01},
            "evaluation": {
                "batches": 1,
                "sets": {"same": {"dataset": f"{store}/small", "split": "train"}},
            },
            "checkpoint": {"folder": str(place)},
            "log": {"progress": False},
        }
        ids = tl.open(f"{store}/small").vocab_size
        params = {
            "embedding": np.zeros((ids, 4), np.float32),
            "head": np.ones((4, ids), np.float32),
        }
        return Trainer.from_config(
            config, lambda p, b: p["embedding"][b["input_ids"]] @ p["head"], params
        )

    whole = run(folder / "whole", 5)
    whole.train()
    assert whole.loader.get_state()["rows"] == 2 * 4 + 3 * 6
    assert whole.evaluation["same"].plan.batch_sizes == (4,)
    run(folder / "cut", 1).train()
    again = run(folder / "cut", 5)
    assert again.step == 1
    again.train()
    assert again.loader.get_state() == whole.loader.get_state()
    for wrong, message in (
        ({2: 6}, "data.batch_size.*step 0"),
        ({0: 0}, "data.batch_size"),
        ({0: "many"}, "data.batch_size"),
        ({}, "data.batch_size"),
        ("many", "data.batch_size"),
        ([8], "data.batch_size"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_training_config({"data": {"dataset": "a/b", "batch_size": wrong}})
