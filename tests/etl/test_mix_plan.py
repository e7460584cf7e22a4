"""Plans of mixtures: what may be mixed, where it ends, how it is cut, and when work
is the same work.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.etl.mix_plan_support import Lake, described, figures, taken
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl import open_stream
from tokenlake.etl.job import RowsOut
from tokenlake.etl.plan import (
    MixUnit,
    Plan,
    RepackUnit,
    choose_unit_rows,
    unit_identity,
)
from tokenlake.etl.tokenizers import TokenizerFiles
from tokenlake.runtime.mixing import MIXTURE_ORDER, SourceMixture, choose_lanes
from tokenlake.runtime.store import (
    MIXED,
    MixtureOrder,
    MixtureSpec,
    WeightPoint,
    open_mixture,
    open_store,
)

EVEN = {"a": 0.5, "b": 0.5}
Tokenizer = tuple[TokenizerFiles, dict[str, Any]]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return described(tokenizer_dir)


@pytest.fixture
def lake(tmp_path: Path, tokenizer: Tokenizer) -> Lake:
    return Lake(open_store(str(tmp_path / "store")), tokenizer)


def ranges(plan: Plan) -> list[MixUnit]:
    return [unit for unit in plan.units if isinstance(unit, MixUnit)]


# Parents


def test_the_newest_committed_version_is_taken_where_none_is_named(lake: Lake) -> None:
    for version in (1, 2):
        lake.put("a", version=version)
        lake.put("b", version=version)
    with pytest.raises(
        ConfigError, match=r"datasets.aa.dataset: no dataset 'aa' .*did you mean a"
    ):
        lake.plan(["b", "aa"], mix={"epochs": 1})
    with pytest.raises(ConfigError, match=r"the rows of a@v2 would only be copied"):
        lake.plan(["a"])
    plan = lake.plan(["a", "b@v1"], mix={"epochs": 1})
    assert [parent.reference for parent in plan.parents] == ["a@v2", "b@v1"]
    assert [entry.source for entry in plan.inputs] == ["a", "b"]


@pytest.mark.parametrize(
    ("versions", "sections", "message"),
    [
        (
            [{"kind": "packed", "seq_length": 20}, {}],
            {},
            r"b@v1 contains documents, a@v1 contains packed rows",
        ),
        (
            [{"kind": "preference"}, {}],
            {},
            r"datasets.a.dataset: a@v1 contains preferences",
        ),
        (
            [
                {"kind": "packed", "seq_length": 20},
                {"kind": "packed", "seq_length": 24},
            ],
            {},
            r"different lengths .*a@v1 20, b@v1 24",
        ),
        (
            [{"kind": "packed", "seq_length": 20}] * 2,
            {"pack": {"enabled": True}},
            r"rows of a@v1 are packed already, 20 ids each; write pack.enabled: false",
        ),
        (
            [
                {"kind": "packed", "seq_length": 20},
                {"kind": "packed", "seq_length": 20, "facts": {"pad_id": 7}},
            ],
            {},
            r"another tokenizer .*pad 7",
        ),
        (
            [{}, {"facts": {"probe": "0" * 64}}],
            {},
            r"datasets.b: the source 'b' of b@v1 has another tokenizer",
        ),
        (
            [{}, {"facts": {"files": {"tokenizer.json": "1" * 64}}}],
            {},
            r"tokenizer.json 111111111111",
        ),
        (
            [{}, {"split": "test"}],
            {},
            r"datasets.b.split: b@v1 has no rows in a split 'train'; it has test \(35",
        ),
        (
            [{"source": "s"}, {"source": "s", "input_size": 8}],
            {},
            r"b@v1 and a@v1 both hold documents of 'p'",
        ),
        (
            [
                {},
                {
                    "settings": {"tokenizer": {"padding": "max_length"}},
                    "columns": ("input_ids", "attention_mask"),
                },
            ],
            {},
            r"the rows of b@v1 are padded",
        ),
        (
            [
                {},
                {
                    "settings": {"tokenizer": {"add_special_tokens": False}},
                    "facts": {"prefix": [1]},
                },
            ],
            {},
            None,
        ),
        (
            [
                {"facts": {"prefix": [1]}},
                {"settings": {"tokenizer": {"add_special_tokens": False}}},
            ],
            {},
            r"datasets.b: its documents begin and end with special tokens that differ",
        ),
        (
            [{}, {}],
            {"pack": {"enabled": True, "seq_length": 8, "pad_token_id": 600}},
            r"pack.pad_token_id is 600",
        ),
    ],
)
def test_parents_that_do_not_fit_each_other_are_refused(
    lake: Lake,
    versions: list[dict[str, Any]],
    sections: dict[str, Any],
    message: str | None,
) -> None:
    for name, version in zip("ab", versions, strict=True):
        lake.put(name, **version)
    if message is None:
        lake.plan(["a", "b"], mix={"epochs": 1}, **sections)
        return
    with pytest.raises(ConfigError, match=message):
        lake.plan(["a", "b"], mix={"epochs": 1}, **sections)


def test_a_build_of_its_own_newest_version_would_never_end(lake: Lake) -> None:
    lake.put("mixed")
    lake.put("b")
    with pytest.raises(
        ConfigError, match=r"'mixed' is also the name of this build.*mixed@v1"
    ):
        lake.plan(["mixed", "b"], mix={"epochs": 1})
    assert len(lake.plan(["mixed@v1", "b"], mix={"epochs": 1}).parents) == 2


def test_a_tokenizer_that_changed_in_the_store_is_damage(lake: Lake) -> None:
    for name in "ab":
        lake.put(name)
    path = Path(lake.store.url) / "a/v1/tokenizer/tokenizer.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(
        IntegrityError, match=r"a@v1: a/v1/tokenizer/tokenizer.json: its sha256 is"
    ):
        lake.plan(["a", "b"], mix={"epochs": 1})


# Weights and ends


def test_a_weight_that_is_always_0_leaves_its_dataset_out(lake: Lake) -> None:
    lake.put("a")
    lake.put("b", [[1]], kind="preference")
    plan = lake.plan(
        ["a", "b"], mix={"weights": {"a": 1.0, "b": 0.0}, "total_rows": 50, "lanes": 8}
    )
    assert [parent.name for parent in plan.parents] == ["a"]
    assert any(
        "b: its weight is always 0; nothing of b@v1" in note for note in plan.notes
    )


@settings(max_examples=10)
@given(
    total=st.integers(1, 5000),
    share=st.integers(0, 10),
    lengths=st.tuples(*[st.integers(1, 50)] * 2),
)
def test_total_tokens_ends_with_the_row_that_is_expected_to_reach_them(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Tokenizer,
    total: int,
    share: int,
    lengths: tuple[int, int],
) -> None:
    lake = Lake(open_store(str(tmp_path_factory.mktemp("store"))), tokenizer)
    for name, tokens in zip("ab", lengths, strict=True):
        lake.put(name, tokens=tokens)
    weights = {"a": share / 10, "b": 1 - share / 10}
    plan = lake.plan(
        ["a", "b"], mix={"weights": weights, "total_tokens": total, "lanes": 1}
    )
    assert plan.spec is not None
    mixture, rows = open_mixture(plan.spec, to_end=True), plan.spec.order.rows
    means = [parent.tokens // parent.rows for parent in plan.parents]
    last, before = (
        int(mixture.drawn_before(position) @ means) for position in (rows, rows - 1)
    )
    assert before < total <= last


@pytest.mark.parametrize(
    ("mix", "rows"),
    [
        ({"total_rows": 40}, 40),
        ({"epochs": 1}, 70),
        ({"epochs": 2.5}, 175),
        ({"stop_strategy": "all_exhausted"}, 70),
        (
            {
                "stop_strategy": "first_exhausted",
                "weights": {"a": 0.25, "b": 0.75},
                "lanes": 1,
                "block_size": 1,
            },
            47,
        ),
        ({"stop_strategy": "all_exhausted", "total_rows": 69}, 69),
    ],
)
def test_a_mixture_ends_where_it_is_asked_to(
    lake: Lake, mix: dict[str, Any], rows: int
) -> None:
    for name in "ab":
        lake.put(name)
    plan = lake.plan(["a", "b"], mix=mix)
    assert plan.forecast is not None
    assert plan.forecast.rows == rows == ranges(plan)[-1].stop


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"total_rows": 71}, "its sources end after 70 rows"),
        (
            {"total_tokens": 2000},
            r"2,000, but the sources end after 70 rows with about 1,400 tokens",
        ),
        ({"epochs": 0.001}, "the mixture has 0 rows"),
        ({"block_size": 1 << 40}, "mix.block_size: 1099511627776; expected at most"),
    ],
)
def test_more_than_there_is_or_nothing_at_all_is_refused(
    lake: Lake, mix: dict[str, Any], message: str
) -> None:
    for name in "ab":
        lake.put(name)
    with pytest.raises(ConfigError, match=message):
        lake.plan(["a", "b"], mix={"stop_strategy": "all_exhausted", **mix})


def test_packed_rows_count_for_all_their_ids_and_packing_counts_its_eos(
    lake: Lake,
) -> None:
    for name in "ab":
        lake.put(name)
        lake.put(f"{name}.rows", kind="packed", seq_length=32)
    packed = lake.plan(["a.rows", "b.rows"], mix={"total_tokens": 320 + 1})
    assert packed.forecast is not None
    assert packed.forecast.rows == 11
    plan = lake.plan(
        ["a", "b"], mix={"total_tokens": 210}, pack={"enabled": True, "seq_length": 32}
    )
    assert plan.forecast is not None
    assert (plan.forecast.rows, plan.forecast.tokens, plan.forecast.sequences) == (
        10,
        210,
        7,
    )


def test_weights_by_tokens_are_shares_of_tokens(lake: Lake) -> None:
    lake.put("a", tokens=90)
    lake.put("b", tokens=10)
    plan = lake.plan(
        ["a", "b"], mix={"weights": EVEN, "weights_by": "tokens", "total_rows": 1000}
    )
    assert plan.forecast is not None
    asked = {
        name: (one.asked, one.asked_tokens)
        for name, one in plan.forecast.sources.items()
    }
    assert asked == {
        "a": (pytest.approx(0.1), pytest.approx(0.5)),
        "b": (pytest.approx(0.9), pytest.approx(0.5)),
    }


# What a user is told


def test_notes_say_what_was_chosen_what_is_left_and_what_is_seen_too_often(
    lake: Lake,
) -> None:
    lake.put(
        "a", [[4]], others={"validation": 12}, build={"kept": [["url", "large_string"]]}
    )
    lake.put("b", [[1000]] * 2)
    notes = "\n".join(
        lake.plan(
            ["a", "b"], mix={"total_rows": 100, "lanes": 1, "block_size": 4}
        ).notes
    )
    assert "of a@v1 only train is mixed, not validation (12 rows)" in notes
    assert "a: each of its 4 rows comes about 12.5 times" in notes
    assert "b: 1,950 of its 2,000 rows (97.50%) are not read" in notes
    assert "url of a@v1 are left out" in notes
    assert "mix.unit_rows: 12288, chosen by" in notes
    assert "mix.lanes: 1, mix.unit_rows: " in "\n".join(
        lake.plan(["a", "b"], mix={"total_rows": 100}).notes
    )


# Lanes and units


@settings(max_examples=30)
@given(data=st.data())
def test_lanes_are_the_largest_divisor_that_leaves_every_lane_its_work(
    data: st.DataObject,
) -> None:
    groups = st.lists(st.integers(1, 300), min_size=1, max_size=30)
    parents = [
        figures(
            f"p{number}", [data.draw(groups)], tokens=data.draw(st.integers(1, 20_000))
        )
        for number in range(data.draw(st.integers(1, 3)))
    ]
    batch, rows = data.draw(st.integers(1, 512)), data.draw(st.integers(1, 10**6))
    step = data.draw(st.none() | st.integers(1, 512))
    held = sum(parent.size.decoded_bytes for parent in parents)
    shares = [1 / len(parents)] * len(parents)
    weights = [
        {parent.name: share for parent, share in zip(parents, shares, strict=True)}
    ]
    each = [
        parent.size.decoded_bytes * len(parent.group_rows) / parent.rows
        for parent in parents
    ]
    mean = held / sum(share * size for share, size in zip(shares, each, strict=True))

    def fits(lanes: int) -> bool:
        return (
            batch % lanes == 0
            and (step is None or step % lanes == 0)
            and lanes <= min(64, *(parent.rows for parent in parents))
            and 2 * lanes * held <= 256 << 20
            and lanes * 6 * mean <= rows
        )

    sizes = {parent.name: parent.size for parent in parents}
    lanes = choose_lanes(sizes, weights, batch_size=batch, step_rows=step, rows=rows)
    assert lanes == max((number for number in range(1, 65) if fits(number)), default=1)
    unit = choose_unit_rows(sizes, weights, lanes=lanes, batch_size=batch)
    assert unit % batch == 0
    assert -1e-6 < unit - 12 * lanes * mean < batch + 1e-6


@settings(max_examples=6)
@given(rows=st.integers(1, 4000), unit=st.integers(1, 999))
def test_units_are_all_rows_once(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, rows: int, unit: int
) -> None:
    lake = Lake(open_store(str(tmp_path_factory.mktemp("store"))), tokenizer)
    for name in "ab":
        lake.put(name)
    plan = lake.plan(["a", "b"], mix={"total_rows": rows, "unit_rows": unit})
    units = ranges(plan)
    assert [units[0].start, units[-1].stop] == [0, rows]
    assert all(one.stop == other.start for one, other in pairwise(units))
    assert {one.stop - one.start for one in units[:-1]} <= {unit}
    assert {one.source for one in units} == {MIXED}
    assert len({one.fingerprint for one in units}) == len(units)
    assert (
        plan.input_bytes
        == sum(one.bytes for one in units)
        == pytest.approx(rows * 20, abs=len(units))
    )


def test_a_unit_decodes_at_most_a_fifth_more_bytes_than_it_takes(lake: Lake) -> None:
    lake.put("a", [[50] * 100] * 12, tokens=120)
    lake.put("b", [[90] * 60] * 20, tokens=66)
    lake.put("c", [[40] * 30] * 20, tokens=150)
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    plan = lake.plan(
        ["a", "b", "c"], mix={"weights": weights, "epochs": 1, "batch_size": 16}
    )
    assert plan.spec is not None
    assert plan.spec.order.lanes == 16
    groups = {parent.name: parent.group_rows for parent in plan.parents}
    sizes = [parent.size.decoded_bytes for parent in plan.parents]
    stream = open_stream(plan.spec, groups)
    units = ranges(plan)
    assert len(units) > 3
    for unit in units:
        counts = taken(stream, unit.start, unit.stop)
        decoded = sum(
            size * held for size, (held, _) in zip(sizes, counts, strict=True)
        )
        means = [
            size / groups[name].mean() for size, name in zip(sizes, "abc", strict=True)
        ]
        assert decoded <= 1.2 * sum(
            mean * rows for mean, (_, rows) in zip(means, counts, strict=True)
        )


# When work is the same


def test_versions_of_equal_content_mix_to_the_same_version(lake: Lake) -> None:
    for version in (1, 2):
        for name in "ab":
            lake.put(name, version=version)
    lake.put("a", version=3, content="1")
    first, again, other = (
        lake.plan([f"a@v{v}", f"b@v{min(v, 2)}"], mix={"epochs": 1}) for v in (1, 2, 3)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert not {unit.fingerprint for unit in first.units} & {
        unit.fingerprint for unit in other.units
    }


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"block_size": 999},
        {"batch_size": 12},
        {"lanes": 1},
        {"weights": {"a": 0.6, "b": 0.4}},
        {"unit_rows": 101},
        {"stop_strategy": "all_exhausted", "total_rows": 70},
    ],
)
def test_whatever_moves_rows_makes_other_units(
    lake: Lake, change: dict[str, Any]
) -> None:
    for name in "ab":
        lake.put(name)
    mix = {
        "lanes": 2,
        "unit_rows": 100,
        "total_rows": 400,
        "batch_size": 4,
        "weights": EVEN,
    }
    one, other = lake.plan(["a", "b"], mix=mix), lake.plan(["a", "b"], mix=mix | change)
    assert not {unit.fingerprint for unit in one.units} & {
        unit.fingerprint for unit in other.units
    }


OUT = RowsOut(
    pack=None,
    width=None,
    prefix=(),
    suffix=(),
    eos_id=0,
    pad_id=0,
    append_eos=False,
    whole=(),
    loss_mask=False,
    max_shard_size=1,
)
POINTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 4)),
    min_size=1,
    max_size=5,
    unique_by=lambda point: point[0],
).map(sorted)


@settings(max_examples=25)
@given(
    points=POINTS,
    more=POINTS,
    interpolation=st.sampled_from(["step", "linear", "cosine"]),
    lanes=st.sampled_from([1, 2, 3]),
    block=st.integers(1, 40),
    step_lanes=st.integers(1, 8),
)
def test_units_of_equal_fingerprints_hold_the_same_rows_whatever_the_schedule_does_later(
    points: list[tuple[int, int]],
    more: list[tuple[int, int]],
    interpolation: Any,
    lanes: int,
    block: int,
    step_lanes: int,
) -> None:
    """Both schedules begin alike, and go on differently from some point on, one of
    them with a source more.
    """
    keep = max(1, len(points) // 2)
    other = [
        *points[:keep],
        *(point for point in more if point[0] > points[keep - 1][0]),
    ]
    lengths = {"a": 31, "b": 17, "c": 5}
    weights = [{"a": w / 8, "b": (4 - w) / 8, "c": 0.5} for _, w in points]
    further = [
        {"d": 0.0 if n < keep else 0.25, "a": w / 8, "b": (4 - w) / 8}
        for n, (_, w) in enumerate(other)
    ]
    further = [{**each, "c": 0.5 - each["d"]} for each in further]
    schedules = [
        (
            lengths,
            tuple(
                (step, each) for (step, _), each in zip(points, weights, strict=True)
            ),
        ),
        (
            {"d": 9, **lengths},
            tuple((step, each) for (step, _), each in zip(other, further, strict=True)),
        ),
    ]
    specs = [
        MixtureSpec(
            lengths=there,
            order=MixtureOrder(
                points=tuple(WeightPoint(step, weights) for step, weights in schedule),
                interpolation=interpolation,
                lanes=lanes,
                batch_size=lanes * 2,
                block_size=block,
                step_rows=lanes * step_lanes,
                seed=3,
                stop="restart",
                rows=600,
                version=MIXTURE_ORDER,
            ),
        )
        for there, schedule in schedules
    ]
    mixtures = [open_mixture(spec) for spec in specs]
    identities = [
        unit_identity(
            "documents", {name: name for name in spec.lengths}, spec, mixture, OUT
        )
        for spec, mixture in zip(specs, mixtures, strict=True)
    ]
    for start in range(0, 600, 60):
        one, two = (identity(start, start + 60) for identity in identities)
        if one == two:
            rows, same = (_rows(mixture, start, start + 60) for mixture in mixtures)
            assert rows == same
        # Nothing is built again before the schedules part, but for a group and some
        # rows.
        else:
            parted = points[keep - 1][0] + (interpolation == "step")
            group = max(block, 128) + 4 + 17
            assert (
                start + 60 + lanes * group + lanes * step_lanes
                >= parted * lanes * step_lanes
            )


def _rows(mixture: SourceMixture, start: int, stop: int) -> list[tuple[str, int, int]]:
    """(source, epoch, index) of the rows between two positions, lane by lane."""
    bounds = np.stack(
        [mixture.layout.places_before(position) for position in (start, stop)], axis=1
    )
    found = [
        mixture.lane(lane, int(first), int(last))
        for lane, (first, last) in enumerate(bounds)
    ]
    rows = [
        row
        for draws in found
        for row in zip(draws.source, draws.epoch, draws.index, strict=True)
    ]
    return [
        (mixture.names[source], int(epoch), int(index)) for source, epoch, index in rows
    ]


# Packing again


def test_packing_again_has_a_unit_for_each_unit_of_each_parent(lake: Lake) -> None:
    lake.put("a", others={"validation": 12})
    lake.put("b")
    plan = lake.plan(["a", "b"], pack={"enabled": True, "seq_length": 8})
    units = [unit for unit in plan.units if isinstance(unit, RepackUnit)]
    found = [
        (unit.index, unit.source, unit.parent.dataset, unit.parent_unit)
        for unit in units
    ]
    assert found == [
        (0, "a", "a", 0),
        (1, "a", "a", 1),
        (2, "a", "a", 2),
        (3, "b", "b", 0),
        (4, "b", "b", 1),
    ]
    assert plan.source_bytes == {"a": 47 * 20, "b": 35 * 20}
    assert (plan.spec, plan.forecast) == (None, None)
    longer = lake.plan(["a", "b"], pack={"enabled": True, "seq_length": 16})
    assert not {unit.fingerprint for unit in units} & {
        unit.fingerprint for unit in longer.units
    }


def test_packing_again_says_that_a_named_split_is_not_alone(lake: Lake) -> None:
    lake.put("a", others={"validation": 12})
    pack = {"enabled": True, "seq_length": 8}
    plan = lake.plan([{"name": "a", "dataset": "a", "split": "validation"}], pack=pack)
    assert [
        note
        for note in plan.notes
        if "all splits of a@v1 are packed (train, validation)" in note
    ]
    assert not [
        note for note in lake.plan(["a"], pack=pack).notes if "all splits" in note
    ]


# Scale


def test_thousands_of_shards_are_planned_in_seconds(lake: Lake) -> None:
    for name in "ab":
        lake.put(name, [[256] * 8] * 1000)
    begin = time.process_time()
    plan = lake.plan(["a", "b"], mix={"weights": EVEN, "epochs": 2, "unit_rows": 4096})
    assert time.process_time() - begin < 4
    assert len(plan.units) == 2000


def test_a_dataset_that_is_not_there_is_named_with_those_that_are(lake: Lake) -> None:
    lake.put("alpha")
    with pytest.raises(
        ConfigError,
        match=r"datasets.alfa.dataset: no dataset 'alfa' .*did you mean alpha",
    ):
        lake.plan(["alpha", "alfa"], mix={"epochs": 1})


def test_packing_again_without_packing_is_refused(lake: Lake) -> None:
    lake.put("a")
    with pytest.raises(ConfigError, match=r"the rows of a@v1 would only be copied"):
        lake.plan(["a"])
