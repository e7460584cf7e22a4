"""Mixing while reading: the very stream that the flow ``mix`` writes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.loader.support import ids, same
from tokenlake.errors import ConfigError


def as_written(
    store: str, sources: dict[str, tl.Dataset], **options: Any
) -> tuple[tl.Mixture, Any]:
    """The mixture that ``rows`` was written by, as a trainer asks for it."""
    record = tl.open(store, "rows").manifest.mixture
    assert record is not None
    order = record.order
    points = [
        {"step": point.step, "weights": dict(point.weights)} for point in order.points
    ]
    scheduler = tl.WeightScheduler(points, order.interpolation)
    settings = {
        "rows": order.rows,
        "block_size": order.block_size,
        "step_rows": order.step_rows,
    }
    return tl.Mixture(sources, scheduler, **{**settings, **options}), order


def test_mixing_while_reading_gives_what_the_flow_wrote(
    store: str, sources: dict[str, tl.Dataset]
):
    mixture, order = as_written(store, sources)
    loader = tl.DataLoader(
        mixture, order.batch_size, seed=order.seed, epochs=None, window=1
    )
    assert loader.plan.lanes == order.lanes
    written = tl.open(store, "rows")
    for name, values in written.take(np.arange(len(written))).items():
        assert (
            np.concatenate([batch[name] for batch in loader.iter_from_step(0)])
            == values
        ).all()
    assert same(
        ids(loader.iter_from_step(0)),
        ids(tl.DataLoader(written, order.batch_size, shuffle=False)),
    )


@pytest.mark.parametrize("stop", ["restart", "first_exhausted", "all_exhausted"])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_resuming_and_hosts_and_sizes_of_a_mixture(
    sources: dict[str, tl.Dataset], stop: Any, lanes: int
):
    weights = {"code": 0.25, "web": 0.75}
    rows = 150 if stop == "restart" else None
    mixture = tl.Mixture(sources, weights, stop=stop, rows=rows, block_size=6)

    def loader(**options: Any) -> tl.DataLoader:
        chosen = {
            "batch_size": 8,
            "lanes": lanes,
            "columns": ["input_ids"],
            "workers": 0,
            **options,
        }
        return tl.DataLoader(mixture, **chosen)

    whole = ids(loader())
    for step in range(0, len(whole), 3):
        assert same(ids(loader().iter_from_step(step)), whole[step:])
    parts = [ids(loader(host=(host, 4), pad_last=True)) for host in range(4)]
    joined = np.concatenate(
        [np.concatenate(batch) for batch in zip(*parts, strict=True)]
    )
    assert (joined[: sum(map(len, whole))] == np.concatenate(whole)).all()
    grown = ids(loader(batch_size={0: 8, 3: 16}))
    assert same(grown[:3], whole[:3])
    everything = sorted(row.tobytes() for batch in whole for row in batch)
    if stop == "all_exhausted":
        assert sum(map(len, whole)) == sum(len(dataset) for dataset in sources.values())
    if stop != "first_exhausted":
        assert sorted(row.tobytes() for batch in grown for row in batch) == everything


def test_a_mixture_that_ends_is_dealt_anew_in_the_next_pass(
    sources: dict[str, tl.Dataset],
):
    loader = tl.DataLoader(
        tl.Mixture(sources, {"code": 0.5, "web": 0.5}, stop="all_exhausted"),
        8,
        columns=["input_ids"],
    )
    first, second = ids(loader), ids(loader)
    assert not same(first, second)
    assert sorted(r.tobytes() for b in first for r in b) == sorted(
        r.tobytes() for b in second for r in b
    )
    assert same(ids(loader.iter_from_step(len(first) + 2)), second[2:])


def test_weights_of_tokens_and_masks(sources: dict[str, tl.Dataset]):
    by_tokens = tl.Mixture(
        sources, {"code": 0.5, "web": 0.5}, weights_by="tokens", rows=4000
    )
    totals = dict.fromkeys(("code", "web"), 0)
    loader = tl.DataLoader(by_tokens, 8, columns=["segment_ids"])
    place = loader.plan.steps.position(0)
    batches = [loader.plan.batch(step) for step in range(500)]
    assert place.step == 0
    for batch, rows in zip(
        loader, loader.plan.rows(batches, lambda size: np.arange(size)), strict=True
    ):
        for source, row in zip(rows.source.tolist(), batch["segment_ids"], strict=True):
            totals[("code", "web")[source]] += int((row > 0).sum())
    assert abs(totals["code"] / sum(totals.values()) - 0.5) < 0.01


def test_a_stored_mask_of_one_source_leaves_the_others_whole(
    ds: tl.Dataset, learned: tl.Dataset
):
    mixture = tl.Mixture(
        {"learned": learned, "plain": ds}, {"learned": 0.5, "plain": 0.5}, rows=40
    )
    loader = tl.DataLoader(mixture, 8, columns=["input_ids", "loss_mask"])
    masks = {
        row.tobytes(): mask
        for dataset in (learned, ds)
        for row, mask in zip(
            *dataset.take(np.arange(len(dataset)), ["input_ids", "loss_mask"]).values(),
            strict=True,
        )
    }
    for batch in loader:
        for row, mask in zip(batch["input_ids"], batch["loss_mask"], strict=True):
            assert (masks[row.tobytes()] == mask).all()


def test_what_does_not_fit_is_refused(
    store: str, ds: tl.Dataset, sources: dict[str, tl.Dataset]
):
    found = sources
    half = {"code": 0.5, "web": 0.5}
    cases: list[tuple[Any, str]] = [
        (
            lambda: tl.Mixture(found, {"code": 0.5, "wbe": 0.5}),
            "weights are of code, wbe, datasets are code, web",
        ),
        (lambda: tl.Mixture(found, {"code": 0.5, "web": 0.4}), "must sum to 1"),
        (
            lambda: tl.Mixture([found["code"]], half),
            "datasets: got a list, must be a mapping of name",
        ),  # type: ignore[arg-type]
        (lambda: tl.Mixture({}, {}), "datasets: got a dict, must be a mapping of name"),
        (
            lambda: tl.Mixture({"code": "code", "web": ds}, half),
            "datasets: 'code': got 'code', must be a dataset",
        ),  # type: ignore[dict-item]
        (
            lambda: tl.Mixture(found, [0.5, 0.5]),
            "weights: got a list, must be a mapping",
        ),  # type: ignore[arg-type]
        (
            lambda: tl.Mixture(found, half, rows=True),
            "rows: got True, must be a whole number",
        ),
        (lambda: tl.Mixture(found, half, rows=10**40), "rows: got 1000000"),
        (
            lambda: tl.Mixture(found, half, block_size=1.5),
            "block_size: got 1.5, must be a whole",
        ),  # type: ignore[arg-type]
        (
            lambda: tl.Mixture(found, half, step_rows="8"),
            "step_rows: got '8', must be a whole",
        ),  # type: ignore[arg-type]
        (
            lambda: tl.Mixture(found, half, stop="never"),
            "stop is 'never', expected one of",
        ),  # type: ignore[arg-type]
        (
            lambda: tl.Mixture(found, half, order=2.0),
            "order 2.0 of a mixture; expected one of",
        ),  # type: ignore[arg-type]
        (
            lambda: tl.Mixture(found, half, weights_by="bytes"),
            "weights_by: got 'bytes'",
        ),  # type: ignore[arg-type]
        (
            lambda: tl.Mixture({"code": found["code"], "web": ds}, half),
            "different tokenizers cannot be mixed",
        ),
        (
            lambda: tl.DataLoader(tl.Mixture(found, half), 8, shuffle=False),
            "a mixture has no stored order",
        ),
        (
            lambda: tl.DataLoader(tl.Mixture(found, half), 8, epochs=2),
            "epochs: got 2, but a mixture has its own end",
        ),
        (
            lambda: tl.DataLoader(
                tl.Mixture(found, half, weights_by="tokens"), 8, epochs=None
            ).set_weights({"code": 0.5, "cod": 0.5}),
            "'cod' is not a source; did you mean 'code'",
        ),
        (
            lambda: tl.DataLoader(
                tl.Mixture(
                    found,
                    tl.WeightScheduler(
                        [
                            {"step": 0, "weights": half},
                            {"step": 9, "weights": {"code": 1, "web": 0}},
                        ]
                    ),
                ),
                {0: 4, 2: 8},
            ),
            "batch sizes and weights both change",
        ),
        (
            lambda: tl.DataLoader(
                tl.Mixture({**found, "web": tl.open(store, "pile.web.tokens")}, half), 8
            ),
            "expected datasets that are packed to one length",
        ),
    ]
    for make, message in cases:
        with pytest.raises(ConfigError, match=message):
            make()


def test_numbers_of_numpy_and_ratios_make_the_same_stream(
    sources: dict[str, tl.Dataset],
):
    plain = tl.Mixture(
        sources,
        {"code": 0.25, "web": 0.75},
        rows=64,
        block_size=8,
        step_rows=8,
        max_fraction=0.5,
    )
    same_one = tl.Mixture(
        sources,
        {"code": np.int64(1), "web": 3},
        rows=np.int64(64),
        block_size=np.int32(8),
        step_rows=np.uint16(8),
        max_fraction=np.float32(0.5),
    )
    state = json.dumps(tl.DataLoader(same_one, 8).get_state())
    assert json.loads(state) == tl.DataLoader(plain, 8).get_state()


def test_another_order_of_the_names_is_named_as_the_reason(
    sources: dict[str, tl.Dataset],
):
    half = {"code": 0.5, "web": 0.5}
    state = tl.DataLoader(tl.Mixture(sources, half), 8).get_state()
    turned = tl.Mixture(dict(reversed(sources.items())), half)
    with pytest.raises(
        ConfigError,
        match=r"the order of the sources is code, web there and web, code here, .*datasets in the order",
    ):
        tl.DataLoader(turned, 8).set_state(state)
    # The order of the weights decides nothing.
    again = tl.Mixture(sources, dict(reversed(half.items())))
    tl.DataLoader(again, 8).set_state(state)
