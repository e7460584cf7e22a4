"""What people see of a mixture: tables, words, card and recipe, of a record made by
hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tokenlake import Manifest, load_config
from tokenlake.config.resolve import resolve
from tokenlake.etl.reports import (
    account_table,
    mixture_table,
    order_table,
    recipe,
    render_card,
    to_markdown,
)
from tokenlake.runtime.store import (
    Account,
    MixedSource,
    MixtureOrder,
    MixtureRecord,
    Parent,
    ShardEntry,
    WeightPoint,
)

SOURCES = {
    "code": MixedSource(
        dataset="pile.code.tokens",
        version=2,
        split="train",
        window=8,
        rows=400,
        tokens=80_000,
        drawn_rows=900,
        drawn_tokens=180_100,
        full_epochs=2,
        unread_rows=0,
        asked=0.3,
        asked_tokens=None,
        achieved_rows=0.3,
        achieved_tokens=0.4525,
    ),
    "web": MixedSource(
        dataset="web",
        version=7,
        split="clean",
        window=64,
        rows=10_000,
        tokens=1_000_000,
        drawn_rows=2_100,
        drawn_tokens=219_900,
        full_epochs=0,
        unread_rows=7_900,
        asked=0.7,
        asked_tokens=None,
        achieved_rows=0.7,
        achieved_tokens=0.5475,
    ),
}
ORDER = MixtureOrder(
    lanes=4,
    batch_size=256,
    block_size=1000,
    step_rows=256,
    seed=0,
    stop="restart",
    rows=3_000,
    points=(WeightPoint(0, {"code": 0.3, "web": 0.7}),),
    interpolation="step",
)
RECORD = MixtureRecord(
    level="documents",
    weights_by="rows",
    order=ORDER,
    rows=Account(sequences=200, slots=409_600, pad=9_600),
    sources=SOURCES,
)


def _account(rows: int, tokens: int) -> Account:
    return Account(
        rows_read=rows,
        kept=rows,
        documents=rows,
        tokens=tokens,
        content_packed=tokens,
        eos=rows,
    )


def _manifest(
    record: MixtureRecord = RECORD, pack: dict[str, Any] | None = None
) -> Manifest:
    shard = ShardEntry(
        path="data/train-00000-00.parquet",
        split="train",
        unit=0,
        part=0,
        bytes=700_000,
        sha256="ab" * 32,
        rows=200,
        tokens=400_000,
        documents=3_000,
        row_groups=(0,),
        logical={},
    )
    chosen = {
        "seq_length": 2048,
        "strategy": "best_fit",
        "shuffle_seed": 5,
        "pad_token_id": None,
    }
    described = {
        "name": "gpt2",
        "vocab_size": 50257,
        "eos_id": 0,
        "files": {"tokenizer.json": "ef" * 32},
    }
    return Manifest(
        kind="packed",
        dataset="pile",
        version=1,
        fingerprint="cd" * 32,
        seq_length=2048,
        config={"build": {"kind": "packed", "pack": chosen if pack is None else pack}},
        tokenizer=dict.fromkeys(SOURCES, described),
        files=(shard,),
        other_files={},
        inputs=(),
        accounts={"code": _account(900, 179_200), "web": _account(2_100, 217_800)},
        produced_by={"tokenlake": "0.1.0"},
        parents=(
            Parent(dataset="pile.code.tokens", version=2, sha256="12" * 32),
            Parent(dataset="web", version=7, sha256="34" * 32),
        ),
        mixture=record,
    )


def test_each_source_shows_what_was_asked_beside_what_it_came_to() -> None:
    table = mixture_table(RECORD)
    heads = [column.heading for column in table.columns]
    assert heads[:5] == ["source", "from", "asked of rows", "of rows", "of tokens"]
    assert table.cells() == [
        [
            "code",
            "pile.code.tokens@v2",
            "30.00%",
            "30.00%",
            "45.25%",
            "2.25",
            "900",
            "180,100",
            "0",
        ],
        [
            "web",
            "web@v7 (clean)",
            "70.00%",
            "70.00%",
            "54.75%",
            "0.21",
            "2,100",
            "219,900",
            "7,900",
        ],
    ]
    assert table.records()[0]["asked"] == 0.3


def test_weights_by_tokens_are_compared_with_tokens() -> None:
    sources = {
        name: replace(source, asked_tokens=0.5) for name, source in SOURCES.items()
    }
    table = mixture_table(replace(RECORD, weights_by="tokens", sources=sources))
    assert [column.heading for column in table.columns][2:5] == [
        "asked of tokens",
        "of tokens",
        "of rows",
    ]
    assert [row["asked"] for row in table.records()] == [0.5, 0.5]
    assert table.cells()[0][2:5] == ["50.00%", "45.25%", "30.00%"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00%"),
        (1.0, "100.00%"),
        (0.99999, "99.99%"),
        (0.0001, "0.01%"),
        (0.0000123, "0.0012%"),
    ],
)
def test_tiny_shares_still_say_something(value: float, shown: str) -> None:
    sources = {**SOURCES, "code": replace(SOURCES["code"], achieved_rows=value)}
    assert mixture_table(replace(RECORD, sources=sources)).cells()[0][3] == shown


def test_the_order_is_told_in_words() -> None:
    assert dict(order_table(RECORD).rows) == {
        "mixed": "documents and then packed",
        "weights": "code 30.00%, web 70.00% of documents",
        "end": "after 3,000 documents; a source that ends starts again, in another order",
        "order": "4 lanes, batches of 256, blocks of 1,000 at whose ends the weights hold, seed 0",
    }


def test_a_schedule_is_told_point_by_point() -> None:
    points = (
        WeightPoint(0, {"code": 0.2, "web": 0.8}),
        WeightPoint(50_000, {"code": 0.8, "web": 0.2}),
    )
    order = replace(ORDER, points=points, interpolation="linear")
    assert dict(order_table(replace(RECORD, order=order)).rows)["weights"] == (
        "of documents: code 20.00%, web 80.00% at step 0; code 80.00%, web 20.00% at step 50,000; "
        "moving in straight lines in between, a step being 256 rows"
    )


def test_the_account_of_a_mixture_has_the_law_of_every_source() -> None:
    equations = dict(account_table(_manifest()).rows)
    assert equations["drawn of code"] == "180,100 = 2 x 80,000 of whole epochs + 20,100"
    assert equations["drawn of web"] == "219,900 of 1,000,000, not a whole epoch"
    assert (
        equations["places in rows"]
        == "409,600 = 200 x 2,048 = 397,000 content + 3,000 EOS + 9,600 padding"
    )


def test_the_card_tells_the_mixture_and_its_parents() -> None:
    card = render_card(_manifest())
    assert "## Mixture" in card
    assert "## Sources" not in card
    assert (
        "Packed token sequences, mixed by tokenlake of code (45.25% of the tokens, 2.25 epochs) and "
        "web (54.75% of the tokens, 0.21 epochs); 200 sequences of 2,048 tokens, 97.66% full"
    ) in card
    for line in to_markdown(mixture_table(RECORD, None)).splitlines():
        assert line in card


def test_the_card_is_the_same_of_a_manifest_that_was_read_back() -> None:
    # JSON keeps no order of weights, and these come in another one than that of their
    # names.
    sources = dict(reversed(SOURCES.items()))
    order = replace(ORDER, points=(WeightPoint(0, {"web": 0.7, "code": 0.3}),))
    manifest = _manifest(replace(RECORD, order=order, sources=sources))
    assert render_card(manifest) == render_card(
        Manifest.from_bytes(manifest.to_bytes())
    )


@pytest.mark.parametrize("shuffle_seed", [None, 0, 5])
def test_the_recipe_on_the_card_is_the_configuration_of_the_same_order(
    shuffle_seed: int | None,
) -> None:
    pack = {
        "seq_length": 2048,
        "strategy": "best_fit",
        "window_tokens": 2**20,
        "store_segment_ids": False,
    }
    points = (
        WeightPoint(0, {"code": 0.25, "web": 0.75}),
        WeightPoint(9, {"code": 0.1 + 0.2, "web": 0.7}),
    )
    record = replace(
        RECORD, order=replace(ORDER, points=points, interpolation="cosine")
    )
    manifest = _manifest(
        record, pack | ({} if shuffle_seed is None else {"shuffle_seed": shuffle_seed})
    )
    written = recipe(manifest, record)
    assert f"```yaml\n{written}```" in render_card(manifest)
    build = resolve(load_config(yaml.safe_load(written)))
    mixture = build.mixture
    assert mixture is not None
    assert mixture.points == tuple((point.step, point.weights) for point in points)
    assert mixture.weight_schedule_type == "cosine"
    assert (
        mixture.lanes,
        mixture.batch_size,
        mixture.block_size,
        mixture.step_rows,
    ) == (4, 256, 1000, 256)
    assert (mixture.seed, mixture.stop_strategy, mixture.total_rows) == (
        0,
        "restart",
        3_000,
    )
    assert [(p.name, p.dataset, p.split) for p in build.parents] == [
        ("code", "pile.code.tokens@v2", "train"),
        ("web", "web@v7", "clean"),
    ]
    assert build.pack is not None
    assert (build.pack.width, build.pack.strategy, build.pack.window_tokens) == (
        2048,
        "best_fit",
        2**20,
    )
    assert build.pack.shuffle_seed == shuffle_seed
