"""Import of token ids: every id and every border arrives, and what cannot be an id
of the tokenizer is refused.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests import token_files
from tests.tokenizers.tokenizer_samples import byte_level, save
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl import build_dataset, import_configuration
from tokenlake.etl.sources import list_inputs, split_file
from tokenlake.etl.tokenizers import load_tokenizer
from tokenlake.etl.unit import Recipe
from tokenlake.runtime.loader import open as open_dataset

EOS = 0
VOCABULARY = 1200
DOCUMENTS = [
    [*range(1 + number, 1 + number + number % 23), EOS] for number in range(100)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 1,200 ids, of which 0 is EOS."""
    return save(byte_level(), tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def imports(tmp_path: Path, tokenizer: Path) -> Any:
    """A function that imports files into a store of the test."""

    def run(data: Path, format_name: str, name: str = "ids", **options: Any) -> Any:
        store = tmp_path / "store"
        options = {
            "tokenizer": tokenizer,
            "name": name,
            "store": store,
            "workers": 1,
            **options,
        }
        return tl.import_tokens(data, format=format_name, **options)  # type: ignore[arg-type]

    return run


def stored(result: Any, column: str = "input_ids") -> list[Any]:
    """Return a column of all rows of a version."""
    with open_dataset(result.path) as rows:
        return rows.read(0, len(rows)).column(column).to_pylist()


# Formats


@pytest.mark.parametrize("format_name", [*token_files.WRITERS, "parquet", "jsonl"])
def test_every_id_and_border_of_a_format_arrives(
    tmp_path: Path, imports: Any, format_name: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    writers = {
        **token_files.WRITERS,
        "parquet": token_files.parquet,
        "jsonl": token_files.jsonl,
    }
    writers[format_name](folder, DOCUMENTS)
    result = imports(folder, format_name)
    assert stored(result) == DOCUMENTS
    account = result.manifest.account
    assert (account.documents, account.tokens) == (
        len(DOCUMENTS),
        sum(map(len, DOCUMENTS)),
    )
    assert tl.verify(tmp_path / "store", "ids", deep=True).ok
    assert {entry.path for entry in result.manifest.inputs} == {
        path.name for path in folder.iterdir()
    }
    assert all(entry.token.startswith("sha256:") for entry in result.manifest.inputs)


def test_a_folder_of_save_to_disk_is_read(tmp_path: Path, imports: Any) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"input_ids": DOCUMENTS}).save_to_disk(
        str(tmp_path / "data")
    )
    assert stored(imports(tmp_path / "data", "datasets")) == DOCUMENTS


def test_units_give_the_same_bytes_at_any_number_of_workers(
    tmp_path: Path, imports: Any, tokenizer: Path
) -> None:
    path = token_files.megatron(tmp_path, DOCUMENTS)
    config = {
        "name": "units",
        "datasets": [{"name": "s", "data_files": str(path), "type": "megatron"}],
        "default_tokenizer": str(tokenizer),
        "source": {"unit_size": 200},
        "pack": {"enabled": False},
    }
    hashes: list[list[str]] = []
    for workers in (1, 3):
        save_to = {"save": {"output_dir": str(tmp_path / f"store{workers}")}}
        result = build_dataset({**config, **save_to}, workers=workers)
        assert result.units_built > 5
        assert stored(result) == DOCUMENTS
        hashes.append([shard.sha256 for shard in result.manifest.files])
    assert hashes[0] == hashes[1]


def test_another_index_makes_another_version(tmp_path: Path, tokenizer: Path) -> None:
    """The ids and the ranges of records are equal, but a border has moved: no unit
    may be taken over.
    """
    config = {
        "name": "ids",
        "datasets": [
            {"name": "s", "data_files": str(tmp_path / "ids.bin"), "type": "megatron"}
        ],
        "default_tokenizer": str(tokenizer),
        "source": {"unit_size": 8},
        "pack": {"enabled": False},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    for version, documents in (
        (1, [[5, 6, 7], [8], [1] * 4]),
        (2, [[5, 6], [7, 8], [1] * 4]),
    ):
        token_files.megatron(tmp_path, documents)
        result = build_dataset(config, workers=1)
        assert (result.version, result.units_reused) == (version, 0)
        assert stored(result) == documents
        assert build_dataset(config, workers=1).status == "exists"


# Documents


def test_eos_rules(tmp_path: Path, imports: Any) -> None:
    token_files.parquet(tmp_path, [[5, 6, EOS, 7], [EOS], [8, EOS, EOS]])
    kept = imports(tmp_path / "ids.parquet", "parquet", "kept")
    assert stored(kept) == [[5, 6, EOS, 7], [EOS], [8, EOS, EOS]]
    split = imports(tmp_path / "ids.parquet", "parquet", "split", eos="split")
    assert stored(split) == [[5, 6, EOS], [7], [EOS], [8, EOS], [EOS]]
    none = imports(tmp_path / "ids.parquet", "parquet", "none", eos="none")
    assert stored(none) == [[5, 6], [7], [8]]
    account = none.manifest.account
    assert account.dropped == {"separators": 4}
    assert (account.tokens, account.content_packed) == (8, 4)
    other = imports(
        tmp_path / "ids.parquet", "parquet", "other", eos="split", eos_token_id=6
    )
    assert stored(other) == [[5, 6], [EOS, 7], [EOS], [8, EOS, EOS]]


def test_ids_with_more_zeros_than_ids_are_read_in_a_wider_type(
    tmp_path: Path, imports: Any
) -> None:
    """Read as uint16, every second id of uint32 would be EOS, and all of them would
    be in the vocabulary.
    """
    for dtype in ("uint16", "uint32", "int64"):
        token_files.numpy_ids(tmp_path, DOCUMENTS, dtype)
        assert (
            stored(imports(tmp_path / "ids.bin", "numpy", f"from-{dtype}")) == DOCUMENTS
        )
    token_files.numpy_ids(tmp_path, DOCUMENTS, "uint16")
    with pytest.raises(TokenlakeError, match=r"vocabulary|multiple"):
        imports(tmp_path / "ids.bin", "numpy", "wrong", dtype="uint32")


def test_padding_and_segments_of_records(tmp_path: Path, imports: Any) -> None:
    masks: dict[str, Any] = {
        "attention_mask": [[1, 1, 1, 0], [0, 1, 1, 1]],
        "segment_ids": [[1, 1, 2, 0], [0, 1, 1, 1]],
    }
    ids = [[5, 6, 7, 9], [9, 5, 5, 6]]
    token_files.parquet(tmp_path, ids, **masks)
    result = imports(tmp_path / "ids.parquet", "parquet")
    assert stored(result) == [[5, 6], [7], [5, 5, 6]]
    assert result.manifest.account.dropped == {"padding": 2}
    token_files.jsonl(tmp_path, ids, attention_mask=masks["attention_mask"])
    assert stored(imports(tmp_path / "ids.jsonl", "jsonl", "second")) == [
        [5, 6, 7],
        [5, 5, 6],
    ]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("loss_mask", [[True, False, True], [False]]),
        ("labels", [[5, -100, 7], [-100]]),
        ("answer", [[1, 0, 1], [0]]),
    ],
)
def test_a_loss_mask_is_kept(
    tmp_path: Path, imports: Any, field: str, values: Any
) -> None:
    token_files.parquet(tmp_path, [[5, 6, 7], [8]], **{field: values})
    result = imports(
        tmp_path / "ids.parquet",
        "parquet",
        loss_field="answer" if field == "answer" else None,
    )
    assert stored(result) == [[5, 6, 7], [8]]
    assert stored(result, "loss_mask") == [[True, False, True], [False]]


# Refusals


@pytest.mark.parametrize("wrong", [VOCABULARY, -1, 1 << 40])
def test_an_id_outside_of_the_vocabulary_is_named_with_file_record_and_offset(
    tmp_path: Path, imports: Any, wrong: int
) -> None:
    table = pa.table(
        {"input_ids": pa.array([[1, 2], [3, wrong, 4]], pa.list_(pa.int64()))}
    )
    pa.parquet.write_table(table, tmp_path / "ids.parquet")  # type: ignore[attr-defined]
    with pytest.raises(
        BadRecordError,
        match=rf"ids\.parquet: unknown_id at row 1: id {wrong} at offset 1 .* 0 to 1199",
    ):
        imports(tmp_path / "ids.parquet", "parquet")


def test_bad_records_are_set_aside_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    lines: Sequence[Any] = [
        {"input_ids": [5, 6]},
        {"input_ids": [5, 99999]},
        {"input_ids": None},
        {"input_ids": [5, None]},
        {"input_ids": [5, 1.5]},
        {"input_ids": "text"},
        {"other": 1},
        {"input_ids": [True]},
        {"input_ids": [1 << 70]},
        {"input_ids": []},
        {"input_ids": [7]},
    ]
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = import_configuration(
        path, tokenizer=tokenizer, format="jsonl", store=tmp_path / "store"
    )
    config["source"] = {"on_bad_record": "quarantine", "max_bad_fraction": 1.0}
    result = build_dataset(config, workers=1)
    assert stored(result) == [[5, 6], [7]]
    account = result.manifest.account
    assert account.quarantined == {"unknown_id": 1, "no_ids": 6, "null_id": 1}
    assert account.filtered == {"empty": 1}


def test_records_without_ids_are_refused_before_any_work(
    tmp_path: Path, imports: Any
) -> None:
    token_files.parquet(tmp_path, DOCUMENTS)
    with pytest.raises(
        ConfigError, match=r"tokens\.field: got 'input_idz'.*did you mean 'input_ids'"
    ):
        imports(tmp_path / "ids.parquet", "parquet", field="input_idz")
    with pytest.raises(ConfigError, match=r"tokens\.loss_field: got 'mask'"):
        imports(tmp_path / "ids.parquet", "parquet", loss_field="mask")


def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, imports: Any
) -> None:
    token_files.numpy_ids(tmp_path, DOCUMENTS)
    for options, message in (
        ({"eos": "keep"}, "one stream of ids"),
        ({"eos": "split", "length": 5}, "must have one of them"),
        ({"eos": "none", "packed": 5}, "must have one of them"),
        ({"format_name": "parquet", "length": 5}, "only files of type numpy"),
        ({"format_name": "nothing"}, "format"),
    ):
        arguments = {"format_name": "numpy", **options}
        with pytest.raises(ConfigError, match=message):
            imports(tmp_path / "ids.bin", **arguments)


def test_options_of_texts_are_refused() -> None:
    for option in (
        {"content_field": "body"},
        {"chat": {}},
        {"transforms": [{"deduplicate": {}}]},
    ):
        with pytest.raises((ConfigError, ValueError), match=r"token ids|transforms"):
            tl.load_config(
                {"name": "a", "datasets": [{"data_files": "a", "tokens": {}, **option}]}
            )


# Packing


def test_packing_imported_ids_at_once_and_later_gives_the_same_rows(
    tmp_path: Path, imports: Any, tokenizer: Path
) -> None:
    """A document that ends with EOS gets no second one; every other document gets
    one.
    """
    documents = [
        document[: -1 if number % 2 else None]
        for number, document in enumerate(DOCUMENTS)
    ]
    path = token_files.parquet(
        tmp_path, [document for document in documents if document]
    )
    imports(path, "parquet")
    store = {
        "save": {"output_dir": str(tmp_path / "store")},
        "pack": {"enabled": True, "seq_length": 32},
    }
    later = build_dataset(
        {"name": "later", "datasets": [{"dataset": "ids"}], **store}, workers=1
    )
    source = {"data_files": str(path), "tokens": {}, "tokenizer": str(tokenizer)}
    at_once = build_dataset({"name": "once", "datasets": [source], **store}, workers=1)
    assert stored(at_once) == stored(later)
    flat = np.concatenate(
        [
            [*document, *([] if document[-1:] == [EOS] else [EOS])]
            for document in documents
            if document
        ]
    )
    ids = np.concatenate(stored(later))
    assert ids[: len(flat)].tolist() == flat.tolist()
    account = at_once.manifest.account
    assert account.eos + account.eos_existing == account.documents


def test_packed_rows_are_stored_as_they_are(tmp_path: Path, imports: Any) -> None:
    rows = [[5, 6, EOS, 7], [7, 7, 7, EOS], [8, 8, EOS]]
    token_files.parquet(tmp_path, rows)
    result = imports(tmp_path / "ids.parquet", "parquet", packed=4)
    pad = stored(result)[2][3]
    assert stored(result) == [*rows[:2], [8, 8, EOS, pad]]
    assert stored(result, "segment_lengths") == [[3, 1], [4], [3]]
    account = result.manifest.account
    assert (account.sequences, account.slots, account.pad, account.tokens) == (
        3,
        12,
        1,
        11,
    )
    assert tl.verify(tmp_path / "store", "ids", deep=True).ok
    with pytest.raises(BadRecordError, match="longer_than_row at row 0"):
        imports(tmp_path / "ids.parquet", "parquet", "short", packed=3)


def test_packed_rows_of_a_stream_are_cut_by_their_length(
    tmp_path: Path, imports: Any
) -> None:
    token_files.numpy_ids(tmp_path, [[5, 6, EOS, 7, 7, EOS]])
    result = imports(tmp_path / "ids.bin", "numpy", packed=3)
    assert stored(result) == [[5, 6, EOS], [7, 7, EOS]]


# The law of borders


def simple_documents(
    ids: list[int], mask: list[int], segments: list[int], eos: str
) -> list[list[int]]:
    """Return the documents of one record, id by id."""
    documents: list[list[int]] = []
    is_first = True
    last_segment = 0
    for token, is_content, segment in zip(ids, mask, segments, strict=True):
        if not is_content or not segment:
            continue
        if is_first or segment != last_segment:
            documents.append([])
        if token != EOS or eos != "none":
            documents[-1].append(token)
        is_first = token == EOS and eos != "keep"
        last_segment = segment
    return [document for document in documents if document]


records = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2)), max_size=12
    ),
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(records=records, eos=st.sampled_from(["keep", "split", "none"]))
def test_documents_are_those_of_a_loop_over_the_ids(
    tokenizer: Path, records: list[list[tuple[int, int, int]]], eos: Any
) -> None:
    names = ("input_ids", "attention_mask", "segment_ids")
    rows = [
        {name: [item[part] for item in record] for part, name in enumerate(names)}
        for record in records
    ]
    section = {"eos": eos, "eos_token_id": EOS}
    dataset = {
        "name": "s",
        "data_files": "ids.jsonl",
        "type": "jsonl",
        "tokens": section,
    }
    config = {"name": "a", "datasets": [dataset], "default_tokenizer": str(tokenizer)}
    [source] = resolve(tl.load_config(config)).sources
    assert source.tokens is not None
    tokens = replace(source.tokens, mask_fields=names[1:], vocab_size=10)
    recipe = Recipe(replace(source, tokens=tokens), load_tokenizer(str(tokenizer)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        [file] = list_inputs(replace(source, data_files=(str(path),)))
        [part] = split_file(file, 1 << 30)
        batches = list(recipe.read(part))
    written: list[list[int]] = []
    dropped = 0
    positions: list[int] = []
    for batch in batches:
        ids: Any = batch.documents.ids
        written += ids.to_pylist()
        dropped += sum(batch.dropped.values())
        positions += batch.documents.position.tolist()
    expected: list[list[int]] = []
    for row in rows:
        ids, mask, segments = (row[name] for name in names)
        expected += simple_documents(ids, mask, segments, eos)
    assert [document for document in written if document] == expected
    assert len(set(positions)) == len(records)
    assert sum(len(record) for record in records) == sum(map(len, written)) + dropped


# Beside other options


@pytest.mark.parametrize("format_name", token_files.WRITERS)
def test_records_can_be_limited_held_out_and_divided_into_files(
    tmp_path: Path, tokenizer: Path, format_name: str
) -> None:
    token_files.WRITERS[format_name](tmp_path, DOCUMENTS)
    config = {
        "default_tokenizer": str(tokenizer),
        "pack": {"enabled": False},
        "save": {"output_dir": str(tmp_path / "store")},
        "source": {"unit_size": 300},
    }
    path = str(tmp_path / "*.*")
    source = {"name": "s", "data_files": path, "type": format_name}
    limited = build_dataset(
        {**config, "name": "limited", "datasets": [{**source, "num_rows": 37}]},
        workers=1,
    )
    assert stored(limited) == DOCUMENTS[:37]
    several = {**source, "eval": 10, "num_shards": 2}
    divided = build_dataset(
        {**config, "name": "divided", "datasets": [several]}, workers=1
    )
    assert {
        name: split.documents for name, split in divided.manifest.splits.items()
    } == {
        "train": len(DOCUMENTS) - 10,
        "eval_s": 10,
    }


def test_fields_are_kept_and_rows_left_out_by_where(
    tmp_path: Path, tokenizer: Path
) -> None:
    numbers = list(range(len(DOCUMENTS)))
    path = token_files.parquet(tmp_path, DOCUMENTS, number=numbers)
    source = {
        "name": "s",
        "data_files": str(path),
        "tokens": {"eos": "split"},
        "where": "number % 2 = 0",
        "additional_fields": ["number"],
    }
    config = {"name": "some", "datasets": [source], "default_tokenizer": str(tokenizer)}
    others = {
        "pack": {"enabled": False},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    result = build_dataset({**config, **others}, workers=1)
    assert stored(result) == DOCUMENTS[::2]
    assert stored(result, "number") == numbers[::2]
    assert result.manifest.account.filtered == {"where": 50}


def test_ids_and_texts_are_packed_and_mixed_together(
    tmp_path: Path, tokenizer: Path
) -> None:
    path = token_files.megatron(tmp_path, DOCUMENTS)
    (tmp_path / "web.jsonl").write_text('{"text": "A lake holds water"}\n' * 50)
    config = {
        "datasets": [
            {"name": "ids", "data_files": str(path), "type": "megatron"},
            {"name": "web", "data_files": str(tmp_path / "web.jsonl")},
        ],
        "default_tokenizer": str(tokenizer),
        "pack": {"enabled": True, "seq_length": 32},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    account = build_dataset({**config, "name": "both"}, workers=1).manifest.account
    assert (account.documents, account.eos, account.eos_existing) == (150, 50, 100)
    mix = {"weights": {"ids": 0.5, "web": 0.5}, "total_rows": 40}
    account = build_dataset(
        {**config, "name": "mixed", "mix": mix}, workers=1
    ).manifest.account
    assert account.documents == account.eos + account.eos_existing == 40


def test_a_lost_file_of_a_version_is_imported_again(
    tmp_path: Path, imports: Any
) -> None:
    result = imports(token_files.litdata(tmp_path, DOCUMENTS), "litdata")
    [path] = (Path(result.path) / "data").glob("*.parquet")
    content = path.read_bytes()
    path.unlink()
    assert not tl.repair(tmp_path / "store", name="ids").problems
    assert path.read_bytes() == content


def test_cleaning_and_looking_into_text_refuse_ids(
    tmp_path: Path, tokenizer: Path
) -> None:
    path = token_files.megatron(tmp_path, DOCUMENTS)
    config = {
        "name": "a",
        "datasets": [{"name": "s", "data_files": str(path), "type": "megatron"}],
        "default_tokenizer": str(tokenizer),
        "save": {"output_dir": str(tmp_path / "store")},
    }
    with pytest.raises(ConfigError, match=r"datasets\.s: its records hold token ids"):
        tl.clean_dataset(config)
    with pytest.raises(ConfigError, match="tokenlake import"):
        tl.inspect(str(path), type="megatron")
    with pytest.raises(
        ConfigError, match=r"datasets\.dataset_0\.type: 'megatron' is not available"
    ):
        tl.create_source({"data_files": str(path), "type": "megatron"})
