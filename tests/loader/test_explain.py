"""What was in a batch and when a document is seen: as the batches themselves say,
and each the other's inverse.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.store.support import copy_store
from tests.tokenizers.tokenizer_samples import byte_level
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.loader import (
    BatchPlan,
    Document,
    ExplainedRow,
    LoaderOptions,
    explain_step,
    files_of,
    restored,
    steps_of_document,
)

WARM_UP = {0: 4, 3: 8, 5: 12}


def plan_of(data: tl.Dataset | tl.Mixture, sizes: Any = 8, **options: Any) -> BatchPlan:
    return BatchPlan(data, LoaderOptions(batch_size=sizes, **options))


def mixed(ds: tl.Dataset, learned: tl.Dataset, **options: Any) -> tl.Mixture:
    return tl.Mixture(
        {"a": ds, "b": learned}, {"a": 0.6, "b": 0.4}, block_size=10, **options
    )


def batches(plan: BatchPlan, passes: int, most: int) -> Iterator[Any]:
    """The batches of some passes, one after the other."""
    place = plan.steps.position(0)
    for _ in range(passes):
        while (batch := plan.steps.next(place)) is not None and batch.step < most:
            yield batch
            place = batch.after
        place = plan.steps.position(place.step)


# -- rows back to steps


DATASETS: list[dict[str, Any]] = [
    {},
    {"epochs": 3},
    {"epochs": None},
    {"epochs": 2, "shuffle": False},
    {"epochs": 2, "drop_last": True, "lanes": 2},
    {"window": 5},
]
MIXTURES: list[dict[str, Any]] = [
    {},
    {"rows": 70},
    {"stop": "first_exhausted"},
    {"stop": "all_exhausted"},
    {"stop": "all_exhausted", "rows": 50},
]


def assert_inverse(plan: BatchPlan, passes: int, most: int) -> None:
    delivered: set[tuple[Any, ...]] = set()
    for batch in batches(plan, passes, most):
        (rows,) = plan.rows([batch], np.arange)
        for source, epoch in sorted(
            set(zip(rows.source.tolist(), rows.epoch.tolist(), strict=True))
        ):
            there = np.flatnonzero((rows.source == source) & (rows.epoch == epoch))
            found = plan.steps.places(
                batch.passes, source, epoch, rows.group[there], rows.row[there]
            )
            assert found == [(batch, row) for row in there.tolist()]
            reach = plan.stream(batch.passes).epochs(
                source, batch.start - batch.start % 4 + batch.size
            )
            assert epoch in reach
        delivered |= {
            (batch.passes, *row)
            for row in zip(*(each.tolist() for each in rows), strict=True)
        }
    assert delivered
    if not plan.options.drop_last or plan.steps.rows is None:
        return
    # Nothing that drop_last leaves out is said to be delivered.
    whole = plan.steps.rows // plan.sizes.first
    assert (
        len(delivered) == passes * whole * plan.sizes.first < passes * plan.steps.rows
    )
    for source, rows in enumerate(plan.sources):
        for group, each in enumerate(rows.group_rows.tolist()):
            at = np.full(each, group), np.arange(each)
            for number in range(passes):
                for epoch in plan.stream(number).epochs(source, plan.steps.rows):
                    found = plan.steps.places(number, source, epoch, *at)
                    told = {
                        (number, source, epoch, group, row)
                        for row, there in enumerate(found)
                        if there is not None
                    }
                    there = {
                        key
                        for key in delivered
                        if key[:4] == (number, source, epoch, group)
                    }
                    assert told == there


@pytest.mark.parametrize("options", DATASETS, ids=str)
def test_each_row_of_a_dataset_is_found_where_it_was_delivered(
    ds: tl.Dataset, options: dict[str, Any]
):
    for sizes in (10,) if options.get("drop_last") else (WARM_UP, {0: 8, 2: 32}):
        assert_inverse(plan_of(ds, sizes, seed=3, **options), 2, 80)


@pytest.mark.parametrize("options", MIXTURES, ids=str)
def test_each_row_of_a_mixture_is_found_where_it_was_delivered(
    ds: tl.Dataset, learned: tl.Dataset, options: dict[str, Any]
):
    assert_inverse(
        plan_of(mixed(ds, learned, **options), {0: 8, 2: 32}, seed=3, lanes=4), 2, 14
    )


# -- what is in a batch


def documents_of(root: str) -> dict[tuple[str, int], list[int]]:
    """The ids of each document of ``plain``, as the dataset of the same texts that
    is not packed has them.
    """
    found: dict[tuple[str, int], list[int]] = {}
    for split in ("train", "validation"):
        texts = tl.open(root, "texts", split=split)
        paths = {entry.file_id: entry.path for entry in texts.manifest.inputs}
        for row in texts.read(0, len(texts)).to_pylist():
            found[paths[row["file"]], row["position"]] = row["input_ids"]
    return found


@pytest.mark.parametrize("sizes", [8, WARM_UP])
def test_the_ids_of_a_batch_are_those_of_the_documents_listed(
    ds: tl.Dataset, root: str, sizes: Any
):
    ids_of = documents_of(root)
    (eos,) = {tokenizer["eos_id"] for tokenizer in ds.manifest.tokenizer.values()}
    loader = tl.DataLoader(ds, sizes, seed=5, epochs=2)
    seen = 0
    for step, batch in enumerate(loader):
        rows = explain_step(loader.plan, step)
        assert [row.row for row in rows] == list(range(len(batch["input_ids"])))
        for row in rows:
            ids, ends = (
                batch["input_ids"][row.row].tolist(),
                batch["segment_ids"][row.row].tolist(),
            )
            for number, segment in enumerate(row.segments, 1):
                whole = [*ids_of[segment.path, segment.position], eos]
                assert (
                    ids[segment.begin : segment.end]
                    == whole[segment.start : segment.stop]
                )
                assert ends.index(number) == segment.begin
                assert segment.end - segment.begin == ends.count(number)
                seen += segment.end - segment.begin
    assert seen == 2 * ds.manifest.splits["train"].tokens


def test_a_row_says_where_it_is_stored(ds: tl.Dataset, root: str):
    loader = tl.DataLoader(ds, 8, seed=1)
    batch = next(iter(loader))
    loader.close()
    for row in explain_step(loader.plan, 0):
        stored = pq.read_table(f"{root}/plain/v1/{row.shard}")["input_ids"][
            row.shard_row
        ].as_py()
        assert (
            stored
            == batch["input_ids"][row.row].tolist()
            == ds[row.stored_row]["input_ids"].tolist()
        )
        assert (row.step, row.epoch, row.passes, row.length) == (0, 0, 0, 32)
        assert (row.name, row.dataset) == ("train", "plain@v1/train")


def test_one_row_is_that_of_the_whole_batch(ds: tl.Dataset):
    plan = plan_of(ds, 8, seed=2)
    whole = explain_step(plan, 7)
    assert [explain_step(plan, 7, row) for row in range(8)] == [[row] for row in whole]


def test_the_rows_of_a_mixture_are_of_its_sources(ds: tl.Dataset, learned: tl.Dataset):
    loader = tl.DataLoader(mixed(ds, learned), 8, seed=4)
    sources = {"a": ds, "b": learned}
    names: set[str] = set()
    for step, batch in zip(range(6), loader, strict=False):
        for row in explain_step(loader.plan, step):
            stored = sources[row.name][row.stored_row]["input_ids"]
            assert (stored == batch["input_ids"][row.row]).all()
            assert row.dataset == sources[row.name].name
            names.add(row.name)
    loader.close()
    assert names == {"a", "b"}


# -- when a document is seen


def _fields(row: ExplainedRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ExplainedRow.__slots__}


def some_documents(
    plan: BatchPlan, dataset: tl.Dataset, steps: int, many: int
) -> list[Document]:
    """A few documents of a dataset, the one with the most pieces among them."""
    pieces: dict[tuple[int, int], int] = {}
    for row in dataset.read(0, len(dataset)).column("documents").to_pylist():
        for piece in row:
            key = piece["file"], piece["position"]
            pieces[key] = pieces.get(key, 0) + 1
    longest = max(pieces, key=pieces.__getitem__)
    assert pieces[longest] > 1
    every = sorted(pieces)
    return [Document(*each) for each in [longest, *every[:: len(every) // many]]]


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (8, {"epochs": 2}),
        (WARM_UP, {"epochs": None}),
        (24, {"shuffle": False}),
        (10, {"drop_last": True}),
    ],
    ids=str,
)
def test_a_document_is_seen_where_the_batches_list_it(
    ds: tl.Dataset, sizes: Any, options: dict[str, Any]
):
    plan = plan_of(ds, sizes, seed=6, **options)
    steps = plan.steps.batches(0) or 30
    listed = [row for step in range(steps) for row in explain_step(plan, step)]
    for document in some_documents(plan, ds, steps, 4):
        found = steps_of_document(plan, document, until=steps)
        assert found == _of(plan, listed, document)
        assert found or options.get("drop_last")
    if plan.steps.rows is not None:
        assert steps_of_document(plan, document) == found
        assert steps_of_document(plan, document, passes=2)[: len(found)] == found


def _of(
    plan: BatchPlan, listed: list[ExplainedRow], document: Document
) -> list[ExplainedRow]:
    """What :func:`steps_of_document` should say, from the listings of all steps."""
    entries = {e.file_id: e for d in plan.datasets.values() for e in d.manifest.inputs}
    wanted = (
        entries[document.file].source,
        entries[document.file].path,
        document.position,
    )
    found: list[ExplainedRow] = []
    for row in listed:
        kept = tuple(
            each
            for each in row.segments
            if (each.source, each.path, each.position) == wanted
        )
        if kept:
            found.append(ExplainedRow(**{**_fields(row), "segments": kept}))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"stop": "all_exhausted"}, {"rows": 90}], ids=str
)
def test_a_document_of_a_mixture_is_seen_in_every_epoch_of_its_source(
    ds: tl.Dataset, learned: tl.Dataset, options: dict[str, Any]
):
    plan = plan_of(mixed(ds, learned, **options), {0: 8, 2: 16}, seed=7)
    steps = min(plan.steps.batches(0) or 25, 25)
    listed = [row for step in range(steps) for row in explain_step(plan, step)]
    times: set[int] = set()
    for dataset in (ds, learned):
        for document in some_documents(plan, dataset, steps, 3):
            found = steps_of_document(plan, document, until=steps)
            assert found == _of(plan, listed, document)
            times |= {row.epoch for row in found}
    assert len(times) > 1 or options


def test_a_stored_mixture_may_hold_a_document_several_times(store: str):
    """Documents that were mixed and packed: no unit read a file, so that all are
    asked.
    """
    plan = plan_of(tl.open(store, "pile"), 4)
    listed = [
        row
        for step in range(plan.steps.batches(0) or 0)
        for row in explain_step(plan, step)
    ]
    times: set[int] = set()
    for row in listed[:4]:
        segment = row.segments[0]
        (file,) = files_of(plan, segment.path)
        document = Document(file.file_id, segment.position)
        found = steps_of_document(plan, document)
        assert found == _of(plan, listed, document)
        times.add(sum(each.start == 0 for row in found for each in row.segments))
    assert max(times) > 1


# -- states


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 9, "epochs": 2},
        {"shuffle": False, "drop_last": True},
        {"lanes": 2, "window": 4, "epochs": None},
        {"batch_size": WARM_UP},
    ],
    ids=str,
)
def test_a_state_says_what_the_next_batch_is(ds: tl.Dataset, options: dict[str, Any]):
    loader = tl.DataLoader(ds, options.pop("batch_size", 8), **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(loader.get_state()))
    batch = next(iterator)
    loader.close()
    plan, place = restored(state, lambda name, split: ds)
    assert (plan.identity, place.step) == (loader.plan.identity, 3)
    for row in explain_step(plan, place.step):
        assert (ds[row.stored_row]["input_ids"] == batch["input_ids"][row.row]).all()


@pytest.mark.parametrize(
    "options",
    [{"rows": 70}, {"stop": "first_exhausted"}, {"weights_by": "tokens"}],
    ids=str,
)
def test_a_state_of_a_mixture_holds_the_mixture(
    ds: tl.Dataset, learned: tl.Dataset, options: dict[str, Any]
):
    loader = tl.DataLoader(mixed(ds, learned, **options), 8, seed=2)
    next(iter(loader))
    state = json.loads(json.dumps(loader.get_state()))
    loader.close()
    opened = {"plain@v1": ds, "learned@v1": learned}
    plan, place = restored(state, lambda name, split: opened[name])
    assert plan.steps.rows == loader.plan.steps.rows
    steps = min(plan.steps.batches(0) or 20, 20)
    for step in (place.step, steps - 1):
        assert explain_step(plan, step) == explain_step(loader.plan, step)


def test_a_mixture_may_be_cut_elsewhere_after_a_state(
    ds: tl.Dataset, learned: tl.Dataset
):
    """Where it is cut is in the state, to explain it, and not of the order."""
    state = tl.DataLoader(mixed(ds, learned, rows=70), 8, seed=2).get_state()
    tl.DataLoader(mixed(ds, learned, rows=90), 8, seed=2).set_state(state)
    with pytest.raises(ConfigError, match=r"mixture.stop is 'restart' there"):
        tl.DataLoader(
            mixed(ds, learned, rows=70, stop="all_exhausted"),
            8,
            seed=2,
            lanes=state["lanes"],
        ).set_state(state)


def test_a_state_of_other_data_is_refused(ds: tl.Dataset, learned: tl.Dataset):
    state = tl.DataLoader(ds, 8).get_state()
    with pytest.raises(
        ConfigError, match=r"the state belongs to another run: .*plain@v1.*learned@v1"
    ):
        restored(state, lambda name, split: learned)


def test_each_source_of_another_version_is_named(ds: tl.Dataset, learned: tl.Dataset):
    state = tl.DataLoader(mixed(ds, learned, rows=70), 8, seed=2).get_state()
    (name, other), *_ = state["sources"].items()
    elsewhere = {**other, "dataset": "plain@v9/train", "manifest": "0" * 64}
    sources = {**state["sources"], name: elsewhere}
    loader = tl.DataLoader(mixed(ds, learned, rows=70), 8, seed=2)
    with pytest.raises(ConfigError) as caught:
        loader.set_state({**state, "sources": sources})
    (problem,) = caught.value.details["differs"]
    assert problem == (
        f"source {name} is plain@v9/train there and {other['dataset']} here "
        f"(tl.open('{ds.store.url}/plain@v9', split='train') opens that of the state)"
    )
    # A source that only the state has.
    with pytest.raises(
        ConfigError, match="source more is plain@v9/train there and miss"
    ):
        loader.set_state({**state, "sources": {**state["sources"], "more": elsewhere}})
    for wrong in (
        {},
        [],
        {**state, "sources": {"train": {"dataset": "plain"}}},
        {**state, "batch_size": 8},
    ):
        with pytest.raises(ConfigError, match="this is not the state of a loader"):
            restored(wrong, lambda name, split: ds)


# -- what is read


@pytest.fixture
def copied(tmp_path: Path, root: str) -> Path:
    """A store that a test may damage."""
    return copy_store(Path(root), tmp_path / "store")


def damage(path: Path, column: str) -> None:
    """Flip a bit in the middle of the first page of a column."""
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    chunk = next(each for each in chunks if each.path_in_schema.split(".")[0] == column)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    path.write_bytes(data)


def test_ids_are_not_read(copied: Path):
    for path in (copied / "plain/v1/data").glob("train-*.parquet"):
        damage(path, "input_ids")
    with tl.open(copied, "plain") as ds:
        assert len(explain_step(plan_of(ds, 8, shuffle=False), 0)) == 8
        with pytest.raises(IntegrityError):
            ds[0]


def test_damage_names_file_and_row_group(copied: Path):
    damage(copied / "plain/v1/data/train-00000-00.parquet", "documents")
    plan = plan_of(tl.open(copied, "plain"), 4, shuffle=False)
    with pytest.raises(
        IntegrityError,
        match=r"plain@v1: data/train-00000-00.parquet: row group 0 cannot be read",
    ):
        explain_step(plan, 0)
    assert explain_step(plan, 3)
    (copied / "plain/v1/data/train-00000-00.parquet").unlink()
    plan.sources[0].close()  # what is open can still be read
    with pytest.raises(IntegrityError, match=r"train-00000-00.parquet is missing"):
        explain_step(plan, 3)


def test_only_the_shards_of_the_unit_that_read_a_document_are_opened(copied: Path):
    ds = tl.open(copied, "plain")
    plan = plan_of(ds, 8)
    first, last = ds.documents(0)[0], ds.documents(len(ds) - 1)[-1]
    (file,) = files_of(plan, first["path"])
    for gone, there in ((first, last), (last, first)):
        row = 0 if gone is first else len(ds) - 1
        shard = ds.rows.shard_of(int(ds.rows.group_of(np.array([row]))[0][0]))[0].path
        path = copied / "plain/v1" / shard
        path.rename(path.with_suffix(".away"))
        ds.rows.close()
        assert steps_of_document(plan, Document(file.file_id, there["position"]))
        with pytest.raises(IntegrityError, match="is missing"):
            steps_of_document(plan, Document(file.file_id, gone["position"]))
        path.with_suffix(".away").rename(path)


def test_a_version_without_its_ledger_is_searched_through(copied: Path):
    ds = tl.open(copied, "plain")
    plan, piece = plan_of(ds, 8), ds.documents(90)[0]
    (file,) = files_of(plan, piece["path"])
    document = Document(file.file_id, piece["position"])
    expected = steps_of_document(plan, document)
    shutil.rmtree(copied / "plain/v1/ledger")
    assert steps_of_document(plan, document) == expected


# -- documents and preferences, which are padded


PADDED: list[tuple[dict[str, Any], Any]] = [
    ({}, 8),
    ({"multiple": 8, "side": "left"}, WARM_UP),
    ({"buckets": (8, 16, 80)}, 8),
    ({"buckets": 3, "equal_rows": True, "side": "left"}, WARM_UP),
    ({"buckets": (8, 20), "truncate": "left"}, {0: 8, 7: 4}),
    ({"length": 20, "truncate": "right"}, 8),
]


CASES = [
    (kind, padding, sizes)
    for index, (padding, sizes) in enumerate(PADDED)
    for kind in ("texts", "judged", ("mixed", "endless")[index % 2])
]


@pytest.mark.parametrize(("kind", "padding", "sizes"), CASES, ids=str)
def test_rows_that_are_padded_are_explained_both_ways(
    root: str, kind: str, padding: dict[str, Any], sizes: Any
):
    """A step says what its batch holds, and a document all its steps; each as the
    batches themselves say.
    """
    data: Any = tl.open(root, "judged" if kind == "judged" else "texts")
    if kind in ("mixed", "endless"):
        left, rows = tl.open(root, "left"), {"rows": 120} if kind == "mixed" else {}
        data = tl.Mixture(
            {"a": data, "b": left}, {"a": 0.4, "b": 0.6}, block_size=8, **rows
        )
    loader = tl.DataLoader(data, sizes, padding=padding, seed=3)
    most = min(loader.plan.steps.batches(0) or 25, 25)
    seen: dict[Document, list[tuple[int, int]]] = {}
    for step, batch in zip(range(most), loader, strict=False):
        mask = next(
            values for name, values in batch.items() if name.endswith("attention_mask")
        )
        for row in explain_step(loader.plan, step):
            (segment,) = row.segments
            (file,) = {each.file_id for each in files_of(loader.plan, segment.path)}
            seen.setdefault(Document(file, segment.position), []).append(
                (step, row.row)
            )
            assert row.length == mask.shape[1]
            assert segment.end - segment.begin == segment.stop - segment.start
            there = np.flatnonzero(mask[row.row])
            if kind == "judged":
                masks = [
                    each
                    for name, each in batch.items()
                    if name.endswith("attention_mask")
                ]
                assert segment.end - segment.begin == max(
                    int(each[row.row].sum()) for each in masks
                )
            else:
                assert (segment.begin, segment.end) == (there[0], there[-1] + 1)
                source = loader.plan.datasets[row.name]
                stored = source[row.stored_row]
                ids = np.array(stored["input_ids"])[
                    np.array(stored.get("attention_mask") or 1) > 0
                ].ravel()
                if "attention_mask" not in stored:
                    ids = np.array(stored["input_ids"])
                assert (
                    batch["input_ids"][row.row][there].tolist()
                    == ids[segment.start : segment.stop].tolist()
                )
    for document in sorted(seen, key=str)[::9]:
        found = steps_of_document(loader.plan, document, until=most)
        assert [(row.step, row.row) for row in found] == seen[document]


# -- what cannot be


def test_what_is_not_there_is_said_in_a_sentence(ds: tl.Dataset):
    plan = plan_of(ds, 8)
    (file,) = files_of(plan, "notes.jsonl")
    for wrong, message in (
        (lambda: explain_step(plan, -1), "step: got -1"),
        (lambda: explain_step(plan, 0, 8), "row: got 8, but step 0 has rows 0 to 7"),
        (lambda: explain_step(plan, 19, 5), "row: got 5, but step 19 has rows 0 to 3"),
        (
            lambda: files_of(plan, "note.jsonl"),
            "is 'note.jsonl'; did you mean 'notes.jsonl'",
        ),
        (lambda: steps_of_document(plan, Document(1, 0)), "has the id 1"),
        (
            lambda: steps_of_document(plan, Document(file.file_id, 53)),
            "at 53: documents near it begin at 30, 95",
        ),
        (
            lambda: steps_of_document(
                plan_of(ds, 8, epochs=None), Document(file.file_id, 0)
            ),
            "the order is endless",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            wrong()


# -- by the user's own id


@pytest.fixture(scope="module")
def own_ids(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a dataset that keeps two fields, and one that packs it."""
    root = tmp_path_factory.mktemp("own_ids")
    (root / "tokenizer").mkdir()
    for name, data in byte_level().files.items():
        (root / "tokenizer" / name).write_bytes(data)
    texts = [
        {"id": f"doc-{at % 50}", "n": at, "text": "hello world " * (at % 7 + 1)}
        for at in range(60)
    ]
    (root / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    source = {
        "name": "a",
        "data_files": str(root / "a.jsonl"),
        "tokenizer": str(root / "tokenizer"),
    }
    save = {"output_dir": str(root / "store")}
    kept = {
        "name": "tokens",
        "datasets": [source | {"additional_fields": ["id", "n"]}],
        "save": save,
    }
    packed = {
        "name": "packed",
        "datasets": [{"name": "a", "dataset": "tokens"}],
        "save": save,
    }
    tl.build_dataset(kept, workers=1)
    tl.build_dataset(packed | {"pack": {"enabled": True, "seq_length": 64}}, workers=1)
    return str(root / "store")


@pytest.mark.parametrize("name", ["tokens", "packed"])
def test_a_document_is_found_by_a_field_that_was_kept(own_ids: str, name: str):
    """Also in rows that were packed of those that keep it; all documents where
    several have the value.
    """
    loader = tl.DataLoader(tl.open(own_ids, name), batch_size=4)
    for asked, numbers in (
        ({"id": "doc-17"}, [17]),
        ({"id": "doc-3"}, [3, 53]),
        ({"n": "17"}, [17]),
    ):
        line = tl.sql(
            own_ids, f"select position from tokens where n in ({str(numbers)[1:-1]})"
        )
        rows = tl.explain(loader, document=asked)
        assert {each.position for row in rows for each in row.segments} == set(
            line["position"].to_pylist()
        )
        assert rows == tl.explain(own_ids, name=name, batch_size=4, document=asked)
        places = [("a.jsonl", position) for position in line["position"].to_pylist()]
        assert rows == sorted(
            (row for place in places for row in tl.explain(loader, document=place)),
            key=lambda row: (row.step, row.row),
        )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"id": "doc-99"}, "no document of tokens@v1/train has the id 'doc-99'"),
        (
            {"url": "x"},
            "neither packed@v1/train nor its parents have a column 'url': `additional_fields",
        ),
        (
            {"n": "many"},
            "got 'many' for n, whose values in tokens@v1/train are of the type int64",
        ),
        ({"n": 1, "id": "doc-1"}, "must be one kept field and its value"),
        ("a.jsonl:0", "must be (path, position) such as"),
        (
            ("b.jsonl", 0),
            "no input file of packed@v1/train is 'b.jsonl'; did you mean 'a.jsonl'",
        ),
    ],
)
def test_a_field_or_value_that_is_not_there_is_an_error(
    own_ids: str, asked: Any, said: str
):
    with pytest.raises(ConfigError, match=re.escape(said)):
        tl.explain(
            tl.DataLoader(tl.open(own_ids, "packed"), batch_size=4), document=asked
        )


def test_a_batch_is_that_of_the_loader(own_ids: str):
    loader = tl.DataLoader(tl.open(own_ids, "packed"), batch_size=4, seed=5)
    assert tl.explain(loader, 3, 2) == explain_step(loader.plan, 3, 2)
    assert tl.explain(f"{own_ids}/packed@v1", 3, batch_size=4, seed=5) == explain_step(
        loader.plan, 3
    )
    with pytest.raises(ConfigError, match="give a batch"):
        tl.explain(loader)
    with pytest.raises(ConfigError, match="batch_size: got None"):
        tl.explain(own_ids, 3, name="packed")
