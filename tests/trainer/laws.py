"""Losses, schedules, optimizers, meshes and metrics against plain references, in a
process of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import tokenlake as tl
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.runtime.trainer import (
    Meter,
    TrainingMetrics,
    TrainState,
    cross_entropy,
    dpo,
    focal,
    kto,
    language_model,
    load_training_config,
    make_mesh,
    make_optimizer,
    make_schedule,
    make_step,
    orpo,
    over_logits,
    param_shardings,
    targets_of,
)
from tokenlake.runtime.trainer.measurements import named, peak_flops
from tokenlake.runtime.trainer.preference_losses import (
    dpo_losses,
    kto_losses,
    mismatched,
    orpo_losses,
)
from tokenlake.runtime.trainer.step import lowered

Floats = npt.NDArray[np.float64]
B, T, D, V = 4, 6, 5, 7
IGNORED = -100
"""Target of a place that does not count toward the loss."""
# One shape, so that each function is compiled once; what varies are values.
SEEDS = st.integers(0, 2**32 - 1)
law = settings(max_examples=8, deadline=None, database=None)


def optimizer_of(**options: Any) -> Any:
    """Return section `optimizer` of a configuration."""
    return load_training_config({"optimizer": options}).optimizer


def schedule_of(**options: Any) -> Any:
    """Return section `schedule` of a configuration."""
    return load_training_config({"schedule": options}).schedule


def mesh_of(**axes: int) -> Any:
    """Return section `mesh` of a configuration."""
    return load_training_config({"mesh": axes}).mesh


def main(facts: dict[str, Any]) -> None:
    check_cross_entropy()
    check_chunks()
    check_gradients_at_once()
    check_logits_are_never_whole()
    check_targets(facts["store"])
    check_preference_formulas()
    check_mismatched()
    check_preference_objectives()
    check_accumulation()
    check_accumulated_preferences()
    check_precision()
    check_schedules()
    check_optimizers()
    check_meshes()
    check_metrics()


# -- losses


def drawn(seed: int, *, scale: float = 3.0) -> tuple[Floats, npt.NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    targets = random.integers(0, V, (B, T)).astype(np.int32)
    targets[random.random((B, T)) < 0.3] = IGNORED
    return random.normal(size=(B, T, V)) * scale, targets


def places(
    logits: Floats, targets: npt.NDArray[np.int32]
) -> Iterator[tuple[float, float, bool]]:
    """log p, log Z and whether it is the likeliest, of each target; one by one, in
    double precision.
    """
    for row, ids in zip(logits, targets, strict=True):
        for at, target in zip(row, ids, strict=True):
            if target != IGNORED:
                log_z = math.log(sum(math.exp(value) for value in at))
                yield at[target] - log_z, log_z, int(np.argmax(at)) == target


@law
@given(SEEDS, st.sampled_from([(0.0, 0.0), (0.0, 0.1), (2.0, 0.0), (0.5, 0.01)]))
def check_cross_entropy(seed: int, options: tuple[float, float]) -> None:
    gamma, z_loss = options
    logits, targets = drawn(seed)
    found = list(places(logits, targets))
    sums = COMPILED[gamma, z_loss](jnp.asarray(logits, jnp.float32), targets)
    expected = sum(
        -((1 - math.exp(log_p)) ** gamma) * log_p + z_loss * log_z**2
        for log_p, log_z, _ in found
    )
    np.testing.assert_allclose(sums.loss, expected, rtol=1e-4)
    assert float(sums.weight) == len(found)
    np.testing.assert_allclose(
        sums.parts["nll"], -sum(log_p for log_p, _, _ in found), rtol=1e-4
    )
    assert float(sums.parts["accuracy"]) == sum(right for _, _, right in found)


COMPILED = {
    (0.0, 0.0): jax.jit(cross_entropy),
    (0.0, 0.1): jax.jit(partial(cross_entropy, z_loss=0.1)),
    (2.0, 0.0): jax.jit(partial(focal, gamma=2.0)),
    (0.5, 0.01): jax.jit(partial(focal, gamma=0.5, z_loss=0.01)),
}


def chunked(chunk: int | None) -> Any:
    def loss(hidden: Any, head: Any, targets: Any) -> Any:
        sums = over_logits(
            (hidden, head), targets, partial(cross_entropy, z_loss=0.1), chunk
        )
        return sums.loss, sums

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))


def check_chunks() -> None:
    """However many places at once: the same sums and the same gradients."""
    random = np.random.default_rng(0)
    hidden, head = (
        random.normal(size=(B, T, D)).astype(np.float32),
        random.normal(size=(D, V)).astype(np.float32),
    )
    _, targets = drawn(1)
    whole = chunked(T + 3)(hidden, head, targets)
    for chunk in (4,):
        for ours, theirs in zip(
            *map(jax.tree.leaves, (chunked(chunk)(hidden, head, targets), whole)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    with pytest.raises(
        ConfigError, match=r"loss.chunk: got 2, and the model returns logits"
    ):
        over_logits(jnp.zeros((B, T, V)), targets, cross_entropy, 2)


def given_hidden(params: Any, batch: Any) -> Any:
    """A model whose parameters are its last hidden states and its head."""
    return params["hidden"], params["head"]


def check_gradients_at_once() -> None:
    """The loss of hidden states and a head is that of their logits: sums, gradients,
    and their derivatives.
    """
    random = np.random.default_rng(2)
    params = {
        "hidden": jnp.asarray(random.normal(size=(B, T, D)), jnp.float32),
        "head": jnp.asarray(random.normal(size=(D, V)), jnp.float32),
    }
    direction = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), params
    )
    _, targets = drawn(3)
    targets[1] = IGNORED
    batch = {"input_ids": targets, "targets": targets}
    for gamma, z_loss in COMPILED:
        expected = facts_of(
            through_logits, params, batch, direction, gamma=gamma, z_loss=z_loss
        )
        for chunk in (None, 4, T):
            found = facts_of(
                given_hidden,
                params,
                batch,
                direction,
                gamma=gamma,
                z_loss=z_loss,
                chunk=chunk,
            )
            for ours, theirs in zip(
                jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
            ):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    # Of equally likely ids the first counts as the likeliest, and a batch of padding
    # has no targets.
    zeros = jax.tree.map(jnp.zeros_like, params)
    sums = language_model(given_hidden)(zeros, batch, None)
    assert float(sums.parts["accuracy"]) == np.sum(targets == 0)
    padding = {"input_ids": targets, "targets": np.full_like(targets, IGNORED)}
    assert all(
        float(leaf) == 0
        for leaf in jax.tree.leaves(language_model(given_hidden)(params, padding, None))
    )


def through_logits(params: Any, batch: Any) -> Any:
    return params["hidden"] @ params["head"]


def facts_of(
    apply: Any, params: Any, batch: Any, direction: Any, **options: Any
) -> Any:
    """The sums of an objective, the gradient of its loss, and the derivative of the
    gradient along a direction.
    """
    objective = language_model(apply, **options)

    def gradient(params: Any) -> Any:
        # Not the sum itself, so that its cotangent is not 1.
        return jax.grad(lambda params: 3 * objective(params, batch, None).loss)(params)

    return objective(params, batch, None), *jax.jvp(gradient, (params,), (direction,))


def check_logits_are_never_whole() -> None:
    """No value of the compiled forward and backward pass is as large as all logits;
    without chunks one is.
    """
    hidden, head, targets = (
        jnp.zeros((B, 64, 2)),
        jnp.zeros((2, 32)),
        jnp.zeros((B, 64), jnp.int32),
    )
    largest = {
        chunk: max(sizes(jax.make_jaxpr(chunked(chunk))(hidden, head, targets).jaxpr))
        for chunk in (None, 8)
    }
    assert largest[None] >= B * 64 * 32
    assert largest[8] <= B * 8 * 32
    params = {"hidden": hidden, "head": head}
    batch = {"input_ids": targets, "targets": targets}
    for chunk, most in ((None, B * 64 * 32), (8, B * 8 * 32)):
        objective = language_model(given_hidden, chunk=chunk)
        gradient = jax.grad(
            lambda params, objective=objective: objective(params, batch, None).loss
        )
        assert max(sizes(jax.make_jaxpr(gradient)(params).jaxpr)) == most


def sizes(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        yield from (
            variable.aval.size
            for variable in equation.outvars
            if hasattr(variable.aval, "size")
        )
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


def check_targets(store: str) -> None:
    """The loader's other columns say the same as its targets do."""
    for name in ("small", "learned"):
        batch = tl.open(store, name).take(
            range(20), ("input_ids", "segment_ids", "loss_mask", "labels", "targets")
        )
        expected = batch.pop("targets")
        assert (expected != IGNORED).any() and (expected == IGNORED).any()
        labels = {"labels": batch.pop("labels")}
        for columns in (labels, batch, {"targets": expected}):
            np.testing.assert_array_equal(
                targets_of({k: jnp.asarray(v) for k, v in columns.items()}), expected
            )
        if name == "small":
            del batch["loss_mask"]
            np.testing.assert_array_equal(
                targets_of({k: jnp.asarray(v) for k, v in batch.items()}), expected
            )
    ragged = {
        "input_ids": jnp.asarray([[5, 6, 7, 0]]),
        "attention_mask": jnp.asarray([[1, 1, 1, 0]]),
    }
    assert targets_of(ragged).tolist() == [[6, 7, IGNORED, IGNORED]]


# -- preferences


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@law
@example(346, 1.0, 0.0)
@given(SEEDS, st.floats(0.01, 1.0), st.floats(0.0, 0.4))
def check_preference_formulas(seed: int, beta: float, smoothing: float) -> None:
    random = np.random.default_rng(seed)
    chosen, rejected = random.normal(size=(2, B)) * 4
    for got, better, worse in zip(
        dpo_losses(
            jnp.asarray(chosen), jnp.asarray(rejected), beta=beta, smoothing=smoothing
        ),
        chosen,
        rejected,
        strict=True,
    ):
        margin = beta * (better - worse)
        expected = -(1 - smoothing) * math.log(sigmoid(margin)) - smoothing * math.log(
            sigmoid(-margin)
        )
        assert float(got) == pytest.approx(expected, rel=1e-4)

    ours, theirs = -np.exp(random.normal(size=(2, B)))
    for got, better, worse in zip(
        orpo_losses(jnp.asarray(ours), jnp.asarray(theirs), beta=beta),
        ours,
        theirs,
        strict=True,
    ):
        p, q = math.exp(better), math.exp(worse)
        ratio = math.log((p / (1 - p)) / (q / (1 - q)))
        assert float(got) == pytest.approx(
            -better - beta * math.log(sigmoid(ratio)), rel=1e-3
        )

    good, kl = random.random(B) < 0.5, abs(float(random.normal()))
    weights = {"desirable": 1.5, "undesirable": 0.7}
    losses = kto_losses(
        jnp.asarray(chosen), jnp.asarray(good), jnp.asarray(kl), beta=beta, **weights
    )
    for got, reward, is_good in zip(losses, chosen, good, strict=True):
        value = (
            1.5 * sigmoid(beta * (reward - kl))
            if is_good
            else 0.7 * sigmoid(beta * (kl - reward))
        )
        # What is left of a weight, where the reward is far from `kl`, is a difference
        # of nearly equal float32s.
        assert float(got) == pytest.approx(
            (1.5 if is_good else 0.7) - value, rel=1e-4, abs=1e-6
        )


@law
@given(
    st.lists(
        st.tuples(*[st.integers(low, 3) for low in (0, 1, 1)]), min_size=B, max_size=B
    )
)
def check_mismatched(rows: list[tuple[int, int, int]]) -> None:
    """Rows of (padding before, prompt, answer): the next row's answer stands behind
    each row's own prompt.
    """
    length, pad = 10, 0
    ids, labels, mask = (
        np.full((B, length), fill, np.int32) for fill in (pad, IGNORED, 0)
    )
    parts: list[tuple[list[int], list[int]]] = []
    for row, (before, prompt, answer) in enumerate(rows):
        first, second = (
            [10 * (row + 1) + place + 5 * part for place in range(count)]
            for part, count in ((0, prompt), (1, answer))
        )
        parts.append((first, second))
        end = before + prompt + answer
        ids[row, before:end] = first + second
        labels[row, before + prompt : end] = second
        mask[row, before:end] = 1
    columns = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    made = jax.jit(mismatched)(
        {name: jnp.asarray(value) for name, value in columns.items()}
    )
    for row, (before, prompt, _) in enumerate(rows):
        answer = parts[(row + 1) % B][1]
        end = before + prompt + len(answer)
        assert (
            np.asarray(made["input_ids"])[row, before:end].tolist()
            == parts[row][0] + answer
        )
        assert np.asarray(made["attention_mask"])[row, before:end].all()
        expected = [IGNORED] * length
        expected[before + prompt - 1 : end - 1] = answer
        assert np.asarray(made["targets"])[row].tolist() == expected


def bigram(params: Any, batch: Any) -> Any:
    """Logits of the next id from the present one: a matrix (V, V)."""
    return params["w"][batch["input_ids"]]


def answers(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    ids = random.integers(0, V, (B, T)).astype(np.int32)
    return {
        "input_ids": ids,
        "labels": np.where(np.arange(T) >= 2, ids, IGNORED).astype(np.int32),
    }


def check_preference_objectives() -> None:
    """At the start the model is the reference: DPO costs log 2; each lowers what it
    says; padding counts nothing.
    """
    reference = {
        "w": jnp.asarray(np.random.default_rng(3).normal(size=(V, V)), jnp.float32)
    }
    pairs = {
        f"{side}_{name}": value
        for side in ("chosen", "rejected")
        for name, value in answers(len(side)).items()
    }
    judged = {f"completion_{name}": value for name, value in answers(5).items()} | {
        "label": np.arange(B) % 2 == 0
    }
    objectives = {
        "dpo": (dpo(bigram), pairs),
        "orpo": (orpo(bigram), pairs),
        "kto": (kto(bigram, beta=0.5), judged),
    }

    def mean(params: Any, name: str, batch: Any) -> Any:
        sums = objectives[name][0](params, batch, reference)
        return sums.loss / sums.weight

    def total(params: Any) -> Any:
        losses = {
            name: mean(params[name], name, batch)
            for name, (_, batch) in objectives.items()
        }
        return sum(losses.values()), losses

    gradient = jax.jit(jax.grad(total, has_aux=True))
    each = dict.fromkeys(objectives, reference)
    slope, losses = gradient(each)
    assert float(losses["dpo"]) == pytest.approx(math.log(2), rel=1e-5)
    _, moved = gradient(jax.tree.map(lambda w, g: w - 0.1 * g, each, slope))
    assert all(moved[name] < losses[name] for name in objectives)

    empty = {
        name: np.concatenate(
            [value, np.full_like(value, IGNORED if "labels" in name else 0)]
        )
        for name, value in pairs.items()
    }
    np.testing.assert_allclose(
        jax.jit(partial(mean, name="orpo"))(reference, batch=empty),
        losses["orpo"],
        rtol=1e-6,
    )
    with pytest.raises(ConfigError, match="got none; expected reference=params"):
        dpo(bigram)(reference, pairs, None)
    with pytest.raises(ConfigError, match="no column chosen_input_ids"):
        orpo(bigram)(reference, judged, None)
    with pytest.raises(ConfigError, match="kto: got one row"):
        kto(bigram)(
            reference, {name: value[:1] for name, value in judged.items()}, reference
        )


# -- steps


def check_accumulation() -> None:
    """Parts of a batch together are the batch, although they have different numbers
    of targets.
    """
    _, targets = drawn(7)
    targets[0] = IGNORED
    batch = {
        "input_ids": jnp.asarray(np.abs(targets) % V),
        "targets": jnp.asarray(targets),
    }
    params, optimizer = (
        {"w": jnp.zeros((V, V))},
        optax.with_extra_args_support(optax.sgd(1.0)),
    )
    state = TrainState(
        jnp.zeros((), jnp.int32),
        params,
        optimizer.init(params),
        jnp.zeros(()),
        jnp.zeros(2, jnp.int32),
    )
    found = {}
    for accumulate in (1, 2):
        step = make_step(
            language_model(bigram),
            optimizer,
            lambda _: 1.0,
            accumulate=accumulate,
            ema=0.9,
        )
        found[accumulate] = jax.jit(step)(state, None, batch)
    for ours, theirs in zip(*map(jax.tree.leaves, (found[2], found[1])), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    after, told = found[1]
    assert float(told["grad_norm"]) == pytest.approx(
        float(jnp.linalg.norm(after.params["w"])), rel=1e-5
    )
    assert (
        float(after.loss_ema)
        == float(told["loss"])
        == pytest.approx(math.log(V), rel=1e-5)
    )
    step = make_step(
        language_model(bigram), optimizer, lambda _: 1.0, accumulate=3, ema=0.9
    )
    with pytest.raises(
        ConfigError, match="accumulate: got 3, and a batch has 4 rows in input_ids"
    ):
        step(state, None, batch)


def check_accumulated_preferences() -> None:
    """Preference losses, too, are those of the whole batch, however many parts it is
    cut into.
    """
    answer = answers(5)
    answer["labels"][1] = IGNORED  # a row of padding
    pairs = {
        f"{side}_{name}": value
        for side in ("chosen", "rejected")
        for name, value in answer.items()
    }
    judged = {f"completion_{name}": value for name, value in answer.items()}
    judged["label"] = np.arange(B) % 2 == 0
    random = np.random.default_rng(3)
    # A reference that finds most answers unlikely, so that answers of other rows gain
    # and z0 is above 0.
    reference = {"w": jnp.asarray(random.normal(size=(V, V)) * 4, jnp.float32)}
    params = {"w": jnp.asarray(random.normal(size=(V, V)) / 4, jnp.float32)}
    for name, objective, batch, optimizer_name in (
        ("kto", kto(bigram, beta=0.5), judged, "sophia"),
        ("kto in bfloat16", lowered(kto(bigram, beta=0.5), "bfloat16"), judged, "lion"),
        ("dpo", dpo(bigram), pairs, "lion"),
        ("orpo", orpo(bigram), pairs, "lion"),
    ):
        optimizer = make_optimizer(
            optimizer_of(name=optimizer_name), optax.constant_schedule(0.1)
        )
        state = TrainState(
            jnp.zeros((), jnp.int32),
            params,
            optimizer.init(params),
            jnp.zeros(()),
            jnp.zeros(2, jnp.int32),
        )
        found: dict[int, Any] = {}
        for accumulate in (1, 4):
            step = make_step(
                objective, optimizer, lambda _: 1.0, accumulate=accumulate, ema=0.9
            )
            _, found[accumulate] = jax.jit(step)(state, reference, batch)
        tolerance = 1e-2 if "bfloat16" in name else 1e-5
        for fact, value in found[1].items():
            assert float(found[4][fact]) == pytest.approx(
                float(value), rel=tolerance
            ), (name, fact)
        if name == "kto":
            assert float(found[1]["kl"]) > 0
            whole = jax.jit(objective)(params, batch, reference)
            assert float(found[1]["loss"]) == pytest.approx(
                float(whole.loss / whole.weight), rel=1e-5
            )


def check_precision() -> None:
    seen = []

    def apply(params: Any, batch: Any) -> Any:
        seen.append(params["w"].dtype)
        return bigram(params, batch)

    objective = lowered(language_model(apply), "bfloat16")
    batch = {
        "input_ids": jnp.zeros((1, 2), jnp.int32),
        "targets": jnp.ones((1, 2), jnp.int32),
    }
    gradient = jax.jit(jax.grad(lambda params: objective(params, batch, None).loss))(
        {"w": jnp.ones((V, V))}
    )
    assert seen[0] == jnp.bfloat16 and gradient["w"].dtype == jnp.float32


# -- schedules and optimizers


def check_schedules() -> None:
    common = {"peak": 2.0, "warmup": 10}
    steps = jnp.arange(111)
    told = {
        name: make_schedule(schedule_of(name=name, **common, **more), 110)(
            steps
        ).tolist()
        for name, more in (
            ("constant", {}),
            ("linear", {"floor": 0.1}),
            ("cosine", {"floor": 0.1}),
            ("cosine_restarts", {"floor": 0.1, "cycles": 2}),
            ("wsd", {"floor": 0.1, "decay": 0.25}),
        )
    }
    for values in told.values():
        assert values[:11] == pytest.approx(
            [0.2 * step for step in range(11)], abs=1e-6
        )
    assert told["constant"][110] == 2.0
    for name in ("linear", "cosine", "wsd"):
        assert told[name][110] == pytest.approx(0.2, abs=1e-6)
    assert [told["linear"][60], told["cosine"][60]] == pytest.approx([1.1, 1.1])
    assert told["cosine"][35] == pytest.approx(0.2 + 0.9 * (1 + math.cos(math.pi / 4)))
    assert told["cosine_restarts"][59] < 0.25 and told["cosine_restarts"][
        60
    ] == pytest.approx(2.0)
    assert told["wsd"][85] == pytest.approx(2.0) and told["wsd"][98] == pytest.approx(
        2 - 13 / 25 * 1.8
    )
    assert make_schedule(schedule_of(name="linear", peak=1.0, steps=10), 99)(
        5
    ) == pytest.approx(0.5)
    with pytest.raises(ConfigError, match=r"schedule.warmup: got 10 steps of 10"):
        make_schedule(schedule_of(**common), 10)
    with pytest.raises(ConfigError, match=r"schedule.cycles: got 9 in 5 steps"):
        make_schedule(schedule_of(name="cosine_restarts", cycles=9), 5)


def check_optimizers() -> None:
    """Each finds the bottom of a bowl; weight decay leaves alone what is named;
    gradients are clipped before.
    """
    goal = {"up": jnp.asarray([1.0, -2.0]), "norm": jnp.asarray([3.0])}

    def bowl(params: Any) -> Any:
        return sum(jnp.sum((params[name] - goal[name]) ** 2) for name in goal)

    for name, rate in (
        ("adamw", 0.1),
        ("lion", 0.05),
        ("sophia", 0.1),
        ("prodigy", 1.0),
    ):
        optimizer = make_optimizer(
            optimizer_of(name=name), optax.constant_schedule(rate)
        )

        def step(carry: Any, _: Any, optimizer: Any = optimizer) -> Any:
            params, state = carry
            updates, state = optimizer.update(
                jax.grad(bowl)(params), state, params, obj_fn=bowl
            )
            return (optax.apply_updates(params, updates), state), None

        params = jax.tree.map(jnp.zeros_like, goal)
        (params, _), _ = jax.jit(partial(jax.lax.scan, step, length=120))(
            (params, optimizer.init(params)), None
        )
        assert float(bowl(params)) < 0.05 * float(
            bowl(jax.tree.map(jnp.zeros_like, goal))
        ), name

    asked = optimizer_of(name="adamw", weight_decay=0.5, no_decay=["norm"])
    optimizer = make_optimizer(asked, optax.constant_schedule(0.1))
    updates, _ = optimizer.update(
        jax.tree.map(jnp.zeros_like, goal), optimizer.init(goal), goal
    )
    np.testing.assert_allclose(updates["up"], -0.05 * goal["up"], rtol=1e-5)
    assert not updates["norm"].any()
    with pytest.raises(
        NotAvailableError, match=r"neither optax nor optax.contrib has .* 8-bit"
    ):
        make_optimizer(optimizer_of(name="adam8bit"), optax.constant_schedule(0.1))


# -- meshes and metrics


def check_meshes() -> None:
    mesh = make_mesh(mesh_of(fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 1, "fsdp": 2, "tensor": 2}
    params = {"up": jnp.zeros((3, 4, 6)), "norm": jnp.zeros(3), "count": jnp.zeros(())}
    specs = {
        k: v.spec
        for k, v in param_shardings(
            params, mesh, {"up": (None, None, "tensor")}
        ).items()
    }
    assert specs == {"up": P(None, "fsdp", "tensor"), "norm": P(None), "count": P()}
    for rules, message in (
        ({}, "mesh.tensor: got 2, and no rule"),
        ({"down": ("tensor",)}, "'down' fits no parameter; there are count, norm, up"),
        ({"up": ("tensor",)}, r"cuts up of shape \(3, 4, 6\)"),
        ({"norm": (None, "tensor")}, "at most 1 axes"),
    ):
        with pytest.raises(ConfigError, match=message):
            param_shardings(params, mesh, rules)
    with pytest.raises(
        ConfigError, match="which are 3 devices; expected a product of 4"
    ):
        make_mesh(mesh_of(data=3))


def check_metrics() -> None:
    assert named({"nll": 2.0, "loss": 3.0}) == {
        "loss": 3.0,
        "perplexity": math.exp(2.0),
    }
    assert named({"nll": 1e4})["perplexity"] == math.inf and math.isnan(
        named({"nll": math.nan})["perplexity"]
    )
    metrics = TrainingMetrics(
        3, math.nan, 2.0, 0.1, 1.0, perplexity=8.0, mfu=0.5, others={"kl": 0.25}
    )
    assert metrics.to_json() == {
        "step": 3, "loss": None, "loss_ema": 2.0, "learning_rate": 0.1, "grad_norm": 1.0, "perplexity": 8.0, "mfu": 0.5,
        "kl": 0.25,
    }  # fmt: skip
    assert "MFU 50.0%" in str(metrics)
    meter = Meter(flops_per_token=6.0, peak_flops=1e3)
    meter.add(5)
    assert meter.rates() == {}  # nothing was begun
    meter.add(100)
    with meter.left_out():
        measured = peak_flops("measure", "float32")
        assert measured is not None and 1e8 < measured / jax.device_count() < 1e16
    rates = meter.rates()
    assert rates["mfu"] == pytest.approx(rates["tokens_per_second"] * 6e-3)
    assert (peak_flops(None, "float32"), peak_flops(2.0, "float32")) == (None, 8.0)
