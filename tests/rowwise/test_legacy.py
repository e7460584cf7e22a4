"""The older interface: a mixture described by one object, and read by one call."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.seeds import promise
from tokenlake import DatasetMixture, TextDatasetInform, build_dataset
from tokenlake.errors import (
    BadRecordError,
    ConfigError,
    NotAvailableError,
    SourceNotFoundError,
)
from tokenlake.etl import runner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the same kind of rows in several formats."""
    pq.write_table(
        pa.table({"text": [f"p{n}" for n in range(30)], "lang": ["en"] * 30}),
        tmp_path / "p.parquet",
    )
    rows = [{"content": f"j{n}", "id": n, "extra": 0} for n in range(20)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "lines.json").write_text(" \n" + lines)
    (tmp_path / "table.tsv").write_text("content\tid\na,b\t1\n")
    (tmp_path / "tabs.txt").write_text("content\tid\na,b\t1\n")
    (tmp_path / "prose.txt").write_text("first line\n\nsecond line\n")
    return tmp_path


def parquet(folder: Path, **options: Any) -> TextDatasetInform:
    return TextDatasetInform(
        data_files=folder / "p.parquet", **{"content_field": "text"} | options
    )


def lines(folder: Path, **options: Any) -> TextDatasetInform:
    return TextDatasetInform(
        type="json", data_files=str(folder / "lines.json"), **options
    )


def alone(inform: TextDatasetInform, **options: Any) -> list[dict[str, Any]]:
    return list(build_dataset(DatasetMixture([inform], streaming=False, **options)))


# --- one dataset


@pytest.mark.parametrize(
    ("name", "kind"), [("table.tsv", "tsv"), ("tabs.txt", "tsv"), ("table.tsv", None)]
)
def test_tables_with_tabs(folder, name, kind):
    assert alone(TextDatasetInform(type=kind, data_files=folder / name)) == [
        {"text": "a,b"}
    ]


def test_the_text_gets_the_mixtures_field_and_only_the_fields_asked_for_stay(folder):
    assert alone(lines(folder))[3] == {"text": "j3"}
    assert alone(lines(folder, additional_fields=["id"]))[3] == {"text": "j3", "id": 3}
    assert alone(lines(folder, additional_fields=["id"]), text_target_field="body")[
        3
    ] == {
        "body": "j3",
        "id": 3,
    }
    assert alone(lines(folder, content_field=None))[3] == {
        "content": "j3",
        "id": 3,
        "extra": 0,
    }


def test_a_row_that_lacks_a_field_is_an_error(folder):
    with pytest.raises(
        BadRecordError, match="row 0: the row lacks 'content'; it has 'text', 'lang'"
    ):
        alone(parquet(folder, content_field="content"))
    with pytest.raises(BadRecordError, match="lacks 'url'"):
        alone(parquet(folder, additional_fields=["url"]))


def test_preferences_without_a_text_stay_as_they_are(tmp_path):
    row = {"chosen": "a", "rejected": "b", "id": 1}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    assert alone(TextDatasetInform(data_files=tmp_path / "x.jsonl")) == [row]


def test_fields_are_renamed_and_then_the_callback_is_called(folder):
    def callback(row: dict[str, Any]) -> dict[str, Any] | None:
        return {"content": row["body"].upper()} if row["id"] % 2 else None

    rows = alone(
        lines(folder, format_fields={"content": "body"}, format_callback=callback)
    )
    assert rows == [{"text": f"J{n}"} for n in range(1, 20, 2)]


# --- several


def counts(mixture: DatasetMixture, most: int) -> Counter[Any]:
    return Counter(
        (row["__source__"], row["text"][0])
        for row in islice(build_dataset(mixture), most)
    )


def test_weights_go_by_name_where_the_names_are_the_datasets(folder):
    informs = [parquet(folder, name="p"), lines(folder, name="j")]
    mixture = DatasetMixture(
        informs, mixture_weights={"j": 0.1, "p": 0.9}, mixture_block_size=10
    )
    assert counts(mixture, 100) == {("p", "p"): 90, ("j", "j"): 10}
    informs = [parquet(folder), lines(folder)]
    mixture = DatasetMixture(
        informs,
        mixture_weights={"dataset_1": 0.1, "dataset_0": 0.9},
        mixture_block_size=10,
    )
    assert counts(mixture, 100) == {("dataset_0", "p"): 90, ("dataset_1", "j"): 10}


def test_weights_that_fit_no_names_and_no_places_are_refused(folder):
    named = [parquet(folder, name="code"), lines(folder, name="text")]
    with pytest.raises(
        ConfigError,
        match=r"no weight for 'text', 'txt' is not a source; did you mean 'text'\?",
    ):
        DatasetMixture(named, mixture_weights={"code": 0.5, "txt": 0.5})
    plain = [parquet(folder), lines(folder)]
    with pytest.raises(
        ConfigError, match="expected a weight for each of dataset_0, dataset_1"
    ):
        DatasetMixture(plain, mixture_weights={"a": 0.5, "b": 0.25, "c": 0.25})
    # Neither by name nor, since that would swap them, by place.
    with pytest.raises(
        ConfigError, match="no weight for 'dataset_0', 'dataset_2' is not a source"
    ):
        DatasetMixture(plain, mixture_weights={"dataset_1": 0.5, "dataset_2": 0.5})
    with pytest.raises(ConfigError, match=r"Weights must sum to 1\.0, got 0\.9"):
        build_dataset(DatasetMixture(plain, mixture_weights={"a": 0.5, "b": 0.4}))


@pytest.mark.parametrize(
    ("stop", "rows"), [("all_exhausted", 50), ("first_exhausted", 40)]
)
def test_it_stops_as_it_is_told(folder, stop, rows):
    mixture = DatasetMixture(
        [parquet(folder), lines(folder)], stop_strategy=stop, mixture_block_size=2
    )
    assert abs(sum(1 for _ in build_dataset(mixture)) - rows) <= 1


def test_without_blocks_the_datasets_take_turns_until_one_ends(folder):
    rows = list(
        build_dataset(
            DatasetMixture([parquet(folder), lines(folder)], block_mixture=False)
        )
    )
    assert 40 <= len(rows) <= 41
    assert all(
        {rows[n]["text"][0], rows[n + 1]["text"][0]} == {"p", "j"}
        for n in range(0, 40, 2)
    )


def test_without_streaming_the_datasets_come_one_after_the_other(folder):
    source = build_dataset(
        DatasetMixture([parquet(folder), lines(folder)], streaming=False)
    )
    assert [row["text"] for row in source] == [f"p{n}" for n in range(30)] + [
        f"j{n}" for n in range(20)
    ]
    assert isinstance(source, tl.CompositeShardedSource)


REFUSED = [
    ({"informs": []}, ConfigError, "informs: got .*at least one TextDatasetInform"),
    (
        {"informs": [{"data_files": "x"}]},
        ConfigError,
        "informs: got a list, must be a list of at least one",
    ),
    (
        {"prefetch_workers": 2},
        NotAvailableError,
        "prefetch_workers is not available: an AsyncDataLoader prepares batches ahead",
    ),
    (
        {"cache_dir": "x"},
        NotAvailableError,
        "cache_dir is not available: TOKENLAKE_CACHE",
    ),
    (
        {"cloud_max_retries": 0},
        NotAvailableError,
        "cloud_max_retries is not available: remote files",
    ),
    ({"pack_tokens": True}, ConfigError, "pack_seq_length is needed to pack"),
    (
        {"pack_tokens": True, "pack_seq_length": 8},
        ConfigError,
        "pack_eos_token_id is needed to pack",
    ),
    (
        {"pack_eos_token_id": 0},
        ConfigError,
        "pack_eos_token_id has no effect without pack_tokens",
    ),
    (
        {"pack_on_the_fly": True},
        ConfigError,
        "pack_on_the_fly needs a tokenize_callback",
    ),
    (
        {"streaming": False, "mixture_weights": {"x": 1.0}},
        ConfigError,
        "no effect with streaming=False",
    ),
    (
        {"block_mixture": False, "mixture_weights": {"x": 1.0}},
        ConfigError,
        "with block_mixture=False",
    ),
    (
        {"streaming": False, "batch_size": 8},
        ConfigError,
        "batch_size has no effect with streaming=False",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_makes_no_mixture_is_refused_before_anything_is_read(
    options, error, message
):
    with pytest.raises(error, match=message):
        DatasetMixture(
            **{"informs": [TextDatasetInform(data_files="nowhere.json")]} | options
        )


OPENED = [
    ({}, ConfigError, "data_files: got None"),
    ({"data_files": "nowhere.jsonl"}, SourceNotFoundError, "nowhere"),
    (
        {"data_files": "x.jsonl", "type": "jsno"},
        ConfigError,
        "type.*did you mean 'json'",
    ),
    ({"data_files": "x.jsonl", "num_rows": 0}, ConfigError, "num_rows: got 0"),
    (
        {"data_files": "x.jsonl", "additional_fields": "id"},
        ConfigError,
        "additional_fields: got 'id'",
    ),
    (
        {"data_files": "x.jsonl", "additional_fields": ["text"]},
        ConfigError,
        "the field for the text of 'content'",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), OPENED)
def test_a_dataset_that_cannot_be_read_is_an_error_when_it_is_opened(
    tmp_path, monkeypatch, options, error, message
):
    monkeypatch.chdir(tmp_path)
    Path("x.jsonl").write_text('{"content": "a"}')
    with pytest.raises(error, match=message):
        build_dataset(DatasetMixture([TextDatasetInform(**options)]))


# --- one name for two things


def test_whatever_is_no_mixture_builds_a_version_as_before():
    for config in ({}, {"datasets": []}, "nowhere.yaml"):
        with pytest.raises(tl.TokenlakeError) as ours:
            build_dataset(config, workers=1)
        with pytest.raises(tl.TokenlakeError) as theirs:
            runner.build_dataset(config, workers=1)
        assert (type(ours.value), str(ours.value)) == (
            type(theirs.value),
            str(theirs.value),
        )


# --- tokens, a shuffle, and files


@promise(223)
@pytest.mark.parametrize("option", ["pack_tokens", "pack_on_the_fly"])
def test_what_a_callback_makes_of_rows_is_packed_and_nothing_is_lost(folder, option):
    mixture = DatasetMixture(
        [lines(folder)],
        streaming=False,
        tokenize_callback=lambda row: [ord(letter) for letter in row["text"]],
        **{option: True},
        pack_seq_length=16,
        pack_eos_token_id=0,
    )
    rows = list(build_dataset(mixture))
    assert {len(row["input_ids"]) for row in rows} == {16}
    ids = [
        id for row in rows for id in row["input_ids"][row["segment_ids"] > 0].tolist()
    ]
    wanted = [id for n in range(20) for id in (*map(ord, f"j{n}"), 0)]
    assert sorted(ids) == sorted(wanted) and ids != wanted  # rows are shuffled
    plain = [
        row["input_ids"].tolist()
        for row in build_dataset(replace(mixture, pack_shuffle=False))
    ]
    assert [id for row in plain for id in row][: len(wanted)] == wanted


@promise(223)
def test_ids_that_rows_hold_are_packed(folder):
    (folder / "ids.jsonl").write_text('{"ids": [1, 2]}\n{"ids": [3]}\n')
    inform = TextDatasetInform(data_files=folder / "ids.jsonl", content_field=None)
    packing = {
        "pack_tokens": True,
        "tokens_field_name": "ids",
        "pack_seq_length": 5,
        "pack_eos_token_id": 0,
    }
    (row,) = alone(inform, **packing)
    assert row["input_ids"].tolist() == [1, 2, 0, 3, 0]
    with pytest.raises(BadRecordError, match="row 0 has no tokens; it has 'ids'"):
        alone(inform, **{**packing, "tokens_field_name": "tokens"})


@promise(223)
def test_a_callback_alone_makes_tokens_under_the_name_asked_for(folder):
    rows = alone(
        lines(folder),
        tokenize_callback=lambda row: [len(row["text"])],
        tokens_field_name="ids",
    )
    assert rows[:2] == [{"ids": [2]}, {"ids": [2]}]


@promise(223)
def test_a_buffer_shuffles_the_rows(folder):
    rows, mixed = alone(lines(folder)), alone(lines(folder), shuffle_buffer_size=8)
    assert rows != mixed and sorted(map(str, rows)) == sorted(map(str, mixed))
    assert mixed == alone(lines(folder), shuffle_buffer_size=8)
    assert mixed != alone(lines(folder), shuffle_buffer_size=8, seed=1)
    source = build_dataset(
        DatasetMixture([lines(folder)], streaming=False, shuffle_buffer_size=8)
    )
    assert list(source.open_shard_at_row(source.shard_names[0], 5)) == mixed[5:]
    assert not source.endless


@promise(287)
def test_a_mixture_is_written_and_read_again(folder, tmp_path):
    informs = [
        parquet(folder, content_field=None, num_rows=3, name="a"),
        lines(folder, name="b", format_fields={"id": "n"}),
    ]
    mixture = DatasetMixture(
        informs,
        seed=None,
        mixture_weights={"a": 0.5, "b": 0.5},
        stop_strategy="all_exhausted",
    )
    mixture.save_mixture(tmp_path / "mixture.json")
    again = DatasetMixture.load_mixture(tmp_path / "mixture.json")
    assert again.to_json_string() == mixture.to_json_string()
    assert list(again.build()) == list(mixture.build())
    assert (again.seed, again.informs[0].content_field) == (None, None)
    assert json.loads(mixture.to_json_string())["informs"][1] == {
        "type": "json",
        "data_files": str(folder / "lines.json"),
        "format_fields": {"id": "n"},
        "name": "b",
        "storage_options": None,
    }


@promise(287)
def test_json_holds_no_function_and_no_secret(folder, tmp_path):
    secret = {"key": "hunter2"}
    for mixture, message in (
        (
            DatasetMixture([lines(folder, format_callback=dict)]),
            "format_callback: JSON cannot contain functions",
        ),
        (
            DatasetMixture([lines(folder)], tokenize_callback=len),
            "tokenize_callback: JSON cannot contain functions",
        ),
        (
            DatasetMixture([lines(folder, storage_options=secret)]),
            "storage_options.*literal secret",
        ),
        (
            DatasetMixture([lines(folder)], dask_storage_options=secret),
            "storage_options.*literal secret",
        ),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            mixture.to_json_string()
        assert "hunter2" not in str(error.value)
    named = DatasetMixture(
        [lines(folder)], dask_storage_options={"key": {"env": "KEY"}}
    )
    assert json.loads(named.to_json_string())["informs"][0]["storage_options"] == {
        "key": {"env": "KEY"}
    }
    for text in (
        "{",
        "[]",
        '{"informs": 1}',
        '{"informs": [{"data": "x"}]}',
        '{"informs": [{}], "sede": 1}',
    ):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(
            ConfigError,
            match=r"wrong\.json: not a mixture|informs: .*unexpected keyword",
        ):
            DatasetMixture.load_mixture(tmp_path / "wrong.json")


@promise(284)
def test_types_of_datasets_have_names(folder):
    kinds = {
        "a.jsonl.gz": "json",
        "b.JSON": "json",
        "c.parquet": "parquet",
        "d.tsv": "tsv",
        "e.txt": "txt",
        "f.bin": None,
    }
    assert {name: tl.DatasetType.infer_from_path(name) for name in kinds} == kinds
    assert tl.DatasetType.from_string("Parquet") is tl.DatasetType.PARQUET
    assert tl.DatasetType.from_string("other") == "other"
    inform = TextDatasetInform(type=tl.DatasetType.TSV, data_files=folder / "tabs.txt")
    assert alone(inform) == [{"text": "a,b"}]
    assert inform.get_str_type() == "tsv" and TextDatasetInform().get_str_type() is None
    assert isinstance(inform, tl.BaseDatasetInform)
    with pytest.raises(tl.DatasetLoadError):
        build_dataset(DatasetMixture([TextDatasetInform(data_files="nowhere.jsonl")]))


def test_two_datasets_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="expected a different name for each"):
        DatasetMixture([TextDatasetInform(name="a"), TextDatasetInform(name="a")])


def test_options_of_a_build_are_refused_with_a_mixture(folder):
    with pytest.raises(
        ConfigError, match="workers: without effect on a DatasetMixture"
    ):
        build_dataset(DatasetMixture([parquet(folder)]), workers=2)  # type: ignore[call-overload]
