"""Exports in the formats of trainers hold the ids, borders, masks and segments of
the version, whole and equal.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builds import Config, small_row_groups
from tests.export.trainer_readers import READERS, Row
from tests.rowwise.sharded_support import check_flat
from tokenlake import Catalog, export_version
from tokenlake import open as open_version
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl import build_dataset
from tokenlake.etl.export import FlatManifest
from tokenlake.rowwise import save_dataset
from tokenlake.runtime.store import collect, open_store

FORMATS = sorted(READERS)
HOLD_MASKS = ("npy", "mds", "litdata", "array_record")
KEEP_PADDING = ("mds", "litdata", "array_record")
WIDTH = 64


def write_inputs(folder: Path) -> None:
    """Documents of many lengths, and prompts with their completions."""
    generator = random.Random(3)
    documents: list[str] = []
    prompts: list[str] = []
    for number in range(60):
        text = f"document {number}: " + "a lake holds water. " * generator.randint(
            0, 90
        )
        documents.append(
            json.dumps({"text": text, "lang": "en" if number % 3 else "de"})
        )
        prompts.append(
            json.dumps(
                {
                    "question": f"{number}?",
                    "answer": "water. " * generator.randint(1, 9),
                }
            )
        )
    (folder / "documents.jsonl").write_text("\n".join(documents) + "\n")
    (folder / "prompts.jsonl").write_text("\n".join(prompts) + "\n")


def configs(folder: Path, tokenizer: Path) -> Iterator[Config]:
    """Versions of each kind: documents, padded documents, packed rows, and both with
    a loss mask.
    """
    documents: Config = {"name": "d", "data_files": str(folder / "documents.jsonl")}
    template = "{question} {answer}"
    prompt = {
        "template": template,
        "input_columns": ["question"],
        "label_column": "answer",
    }
    prompts: Config = {
        "name": "p",
        "data_files": str(folder / "prompts.jsonl"),
        "prompt": prompt,
    }
    rest: Config = {
        "save": {"output_dir": str(folder / "store")},
        "default_tokenizer": str(tokenizer),
    }
    pack = {"enabled": True, "seq_length": WIDTH}
    fields = {"splits": {"train": 0.8, "val": 0.2}, "additional_fields": ["lang"]}
    padded = {
        "tokenizer": {
            "name_or_path": str(tokenizer),
            "padding": "max_length",
            "max_length": 128,
        }
    }
    yield {"name": "documents", "datasets": [{**documents, **fields}], **rest}
    yield {"name": "padded", "datasets": [{**documents, **padded}], **rest}
    yield {"name": "packed", "datasets": [documents], "pack": pack, **rest}
    yield {"name": "answers", "datasets": [prompts], **rest}
    yield {"name": "packed_answers", "datasets": [prompts], "pack": pack, **rest}


VERSIONS = ("documents", "padded", "packed", "answers", "packed_answers")
MASKED = ("answers", "packed_answers")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    write_inputs(folder)
    with small_row_groups(1000):
        for config in configs(folder, tokenizer_dir):
            build_dataset(config, workers=0)
    return folder / "store"


def stored_columns(store: Path, name: str, split: str) -> dict[str, list[Any]]:
    with open_version(store / name, split=split) as rows:
        return rows.read(0, len(rows)).to_pydict()


def expected_rows(store: Path, name: str, split: str, format: str) -> list[Row]:
    """Return the rows that a format is to hold, from the stored columns."""
    columns = stored_columns(store, name, split)
    rows: list[Row] = []
    for index, ids in enumerate(columns["input_ids"]):
        padding = (
            columns["attention_mask"][index].count(0)
            if "attention_mask" in columns
            else 0
        )
        segments = [len(ids) - padding]
        others: dict[str, list[int]] = {}
        if "segment_lengths" in columns:
            segments = columns["segment_lengths"][index]
            padding = len(ids) - sum(segments)
            numbers = np.repeat(np.arange(1, len(segments) + 1), segments).tolist()
            others["segment_ids"] = numbers + [0] * padding
        if "attention_mask" in columns:
            others["attention_mask"] = columns["attention_mask"][index]
        if "loss_mask" in columns:
            others["loss_mask"] = [
                int(is_learned) for is_learned in columns["loss_mask"][index]
            ]
        if format in KEEP_PADDING:
            rows.append(Row(ids, columns=others))
            continue
        # Padding is at the end of each of these rows.
        ids = ids[: len(ids) - padding]
        others = {
            name: values[: len(ids)]
            for name, values in others.items()
            if name == "loss_mask"
        }
        if format == "megatron":
            rows.append(Row(ids, segments))
            continue
        # Flat files know segments, not rows.
        begin = 0
        for length in segments:
            part = slice(begin, begin + length)
            rows.append(
                Row(
                    ids[part],
                    [length],
                    {name: values[part] for name, values in others.items()},
                )
            )
            begin += length
    return rows


def cases() -> Iterator[tuple[str, str]]:
    for format in FORMATS:
        for name in VERSIONS:
            if format in HOLD_MASKS or name not in MASKED:
                yield format, name


def split_names(name: str) -> tuple[str, ...]:
    return ("train", "val") if name == "documents" else ("train",)


@pytest.mark.parametrize(("format", "name"), list(cases()))
def test_an_export_holds_what_the_version_holds(
    tmp_path: Path, store: Path, format: str, name: str
):
    export_version(store / name, tmp_path / "out", format)
    check_flat(tmp_path / "out")
    for split in split_names(name):
        rows = READERS[format](tmp_path / "out", split)
        assert rows == expected_rows(store, name, split, format)
        assert len(rows) > 9


@pytest.mark.parametrize("format", FORMATS)
def test_a_number_of_files_divides_rows_evenly(
    tmp_path: Path, store: Path, format: str
):
    export_version(store / "packed", tmp_path / "out", format, num_shards=3)
    assert READERS[format](tmp_path / "out", "train") == expected_rows(
        store, "packed", "train", format
    )
    files = FlatManifest.of(tmp_path / "out").files
    counts = [file.rows for file in files if file.rows]
    assert len(counts) == 3 and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("format", FORMATS)
def test_a_size_ends_files(tmp_path: Path, store: Path, format: str):
    export_version(
        store / "documents",
        tmp_path / "out",
        format,
        max_shard_size=9000,
        split="train",
    )
    rows = READERS[format](tmp_path / "out", "train")
    assert rows == expected_rows(store, "documents", "train", format)
    files = [file for file in FlatManifest.of(tmp_path / "out").files if file.rows]
    assert len(files) > 1
    if format != "array_record":  # its files end at a multiple of 64 KiB
        assert all(file.bytes <= 9000 or file.rows == 1 for file in files)
        assert sum(file.bytes for file in files) > 4500 * len(files)


@pytest.mark.parametrize("format", ["mds", "litdata"])
def test_records_that_wait_on_the_disk_are_the_same(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, format: str
):
    in_memory = export_version(
        store / "packed", tmp_path / "memory", format, num_shards=1
    )
    monkeypatch.setattr(
        "tokenlake.etl.export.trainers.indexed_file._IN_MEMORY_BYTES", 5000
    )
    on_disk = export_version(store / "packed", tmp_path / "disk", format, num_shards=1)
    for path, other_path in zip(
        in_memory.output_paths, on_disk.output_paths, strict=True
    ):
        assert Path(path).read_bytes() == Path(other_path).read_bytes()


@pytest.mark.parametrize("format", FORMATS)
def test_values_of_a_field_have_files_of_their_own(
    tmp_path: Path, store: Path, format: str
):
    export_version(
        store / "documents",
        tmp_path / "out",
        format,
        shard_column="lang",
        split="train",
    )
    languages = stored_columns(store, "documents", "train")["lang"]
    rows = expected_rows(store, "documents", "train", format)
    for value in ("de", "en"):
        of_value = [
            row
            for row, language in zip(rows, languages, strict=True)
            if language == value
        ]
        assert READERS[format](tmp_path / "out", f"train-lang={value}") == of_value


@pytest.mark.parametrize("format", FORMATS)
def test_a_loss_mask_is_dropped_on_request(tmp_path: Path, store: Path, format: str):
    export_version(
        store / "packed_answers", tmp_path / "out", format, drop_loss_mask=True
    )
    rows = expected_rows(store, "packed_answers", "train", format)
    for row in rows:
        row.columns.pop("loss_mask", None)
    assert READERS[format](tmp_path / "out", "train") == rows


@pytest.mark.parametrize("format", FORMATS)
def test_documents_end_with_eos_on_request(tmp_path: Path, store: Path, format: str):
    export_version(store / "documents", tmp_path / "out", format, append_eos=True)
    rows = expected_rows(store, "documents", "train", format)
    for row in rows:
        assert row.ids[-1] != 0
        row.ids.append(0)
        row.segments = [length + 1 for length in row.segments]
    assert READERS[format](tmp_path / "out", "train") == rows


def test_eos_that_is_there_is_not_repeated_and_has_the_loss_of_the_id_before_it(
    tmp_path: Path, store: Path
):
    export_version(store / "answers", tmp_path / "out", "npy", append_eos=True)
    for row, stored in zip(
        READERS["npy"](tmp_path / "out", "train"),
        expected_rows(store, "answers", "train", "npy"),
        strict=True,
    ):
        end = [] if stored.ids[-1] == 0 else [0]
        assert row.ids == stored.ids + end
        assert row.columns["loss_mask"] == stored.columns["loss_mask"] + [
            stored.columns["loss_mask"][-1]
        ] * len(end)


def test_one_file_is_named_after_its_split(tmp_path: Path, store: Path):
    for format, names in {
        "megatron": ["train.bin", "train.idx", "val.bin", "val.idx"],
        "numpy": [
            "metadata.json",
            "train.bin",
            "train.csv.gz",
            "val.bin",
            "val.csv.gz",
        ],
        "npy": ["metadata.json", "train.csv.gz", "train.npy", "val.csv.gz", "val.npy"],
    }.items():
        stats = export_version(store / "documents", tmp_path / format, format)
        assert (
            sorted(
                path.name for path in (tmp_path / format).iterdir() if path.is_file()
            )
            == names
        )
        assert stats.num_examples == 60 and stats.num_shards == len(names)


def test_metadata_states_type_vocabulary_and_special_ids(tmp_path: Path, store: Path):
    export_version(
        store / "documents", tmp_path / "out", "npy", dtype="uint32", split="val"
    )
    tokens = sum(
        len(row) for row in stored_columns(store, "documents", "val")["input_ids"]
    )
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_bytes())
    assert metadata == {
        "dtype": "uint32",
        "vocab_size": 600,
        "bos_id": 0,
        "eos_id": 0,
        "pad_id": 0,
        "files": {"val.npy": tokens},
    }
    assert (tmp_path / "out" / "val.npy").stat().st_size == 4 * tokens


@pytest.mark.parametrize(
    ("format", "dtype"), [("megatron", "int32"), ("numpy", "uint32"), ("npy", "uint32")]
)
def test_a_wider_type_holds_the_same_ids(
    tmp_path: Path, store: Path, format: str, dtype: str
):
    export_version(store / "documents", tmp_path / "out", format, dtype=dtype)
    rows = READERS[format](tmp_path / "out", "train")
    assert rows == expected_rows(store, "documents", "train", format)


def test_equal_versions_make_equal_bytes_whatever_the_number_of_workers(
    tmp_path: Path, tokenizer_dir: Path
):
    hashes: list[dict[str, str]] = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        write_inputs(folder)
        config = list(configs(folder, tokenizer_dir))[-1]
        # Paths of inputs and stores are no part of an identity, but of the copied
        # configuration.
        config["source"] = {"unit_size": 1024}
        build_dataset(config, workers=workers)
        contents: dict[str, str] = {}
        for format in HOLD_MASKS:
            out = folder / "out" / format
            export_version(folder / "store" / "packed_answers", out, format)
            for path in out.rglob("*"):
                if path.is_file() and "_tokenlake" not in path.parts:
                    contents[str(path.relative_to(out.parent))] = hashlib.sha256(
                        path.read_bytes()
                    ).hexdigest()
        hashes.append(contents)
    assert hashes[0] == hashes[1] and len(hashes[0]) > 8


@pytest.mark.parametrize("format", FORMATS)
def test_a_directory_that_holds_the_export_is_left_as_it_is(
    tmp_path: Path, store: Path, format: str
):
    out = tmp_path / "out"
    stats = export_version(store / "documents", out, format)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert export_version(store / "documents", out, format) == stats
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times
    next(
        path
        for path in out.rglob("*")
        if path.suffix in (".bin", ".npy", ".mds", ".array_record")
    ).unlink()
    assert export_version(store / "documents", out, format) == stats
    check_flat(out)


def test_overwrite_replaces_one_format_by_another(tmp_path: Path, store: Path):
    out = tmp_path / "out"
    for format in (*FORMATS, "parquet", *FORMATS[::-1]):
        export_version(store / "packed", out, format, overwrite=True)
        (out / "notes.txt").write_text("mine")
        check_flat(out)
        names = {
            path.relative_to(out).as_posix()
            for path in out.rglob("*")
            if path.is_file()
        }
        listed = {file.path for file in FlatManifest.of(out).files}
        assert {
            name for name in names if not name.startswith("_tokenlake/")
        } == listed | {"notes.txt"}


def test_folders_of_others_are_never_replaced(tmp_path: Path, store: Path):
    out = tmp_path / "out"
    export_version(store / "packed", out, "mds")
    (out / "train" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds 'train', which is not a file"):
        export_version(store / "packed", out, "numpy", overwrite=True)
    assert (out / "train" / "mine.txt").read_text() == "mine"


def test_overwrite_replaces_a_file_of_others_that_has_the_name_of_ours(
    tmp_path: Path, store: Path
):
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.bin").write_bytes(b"theirs")
    with pytest.raises(ConfigError, match=r"is not empty \(it holds 'train\.bin'\)"):
        export_version(store / "packed", out, "numpy")
    export_version(store / "packed", out, "numpy", overwrite=True)
    check_flat(out)


def test_a_model_beside_the_data_stays(tmp_path: Path, store: Path):
    out = tmp_path / "out"
    export_version(store / "packed", out, "numpy")
    (out / "model.bin").write_bytes(b"mine")
    export_version(store / "packed", out, "parquet", overwrite=True)
    assert (out / "model.bin").read_bytes() == b"mine" and not (
        out / "train.bin"
    ).exists()


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_version_leaves_the_target_as_it_was(
    tmp_path: Path, tokenizer_dir: Path, format: str
):
    write_inputs(tmp_path)
    config = list(configs(tmp_path, tokenizer_dir))[2]
    build_dataset(config, workers=0)
    [shard] = (tmp_path / "store" / "packed" / "v1" / "data").glob("*.parquet")
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    with pytest.raises(IntegrityError):
        export_version(tmp_path / "store" / "packed", tmp_path / "out", format)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "megatron cannot hold a mask": (
        "answers",
        {"format": "megatron"},
        r"loss mask.*--drop-loss-mask",
    ),
    "numpy cannot hold a mask": (
        "packed_answers",
        {"format": "numpy"},
        r"loss mask.*--drop-loss-mask",
    ),
    "no type of Megatron": (
        "packed",
        {"format": "megatron", "dtype": "uint32"},
        "one of 'uint16', 'int32'",
    ),
    "no type at all": (
        "packed",
        {"format": "mds", "dtype": "uint16"},
        "are always int32",
    ),
    "no type of rows": (
        "packed",
        {"format": "parquet", "dtype": "uint16"},
        "megatron, numpy and npy",
    ),
    "rows keep the mask": (
        "answers",
        {"format": "arrow", "drop_loss_mask": True},
        "has a column",
    ),
    "EOS of packed rows": (
        "packed",
        {"format": "numpy", "append_eos": True},
        "packed rows have EOS already",
    ),
    "EOS in rows": (
        "documents",
        {"format": "jsonl", "append_eos": True},
        "as they are stored",
    ),
    "no compression": (
        "packed",
        {"format": "mds", "compression": "zstd"},
        "compression of format 'mds'",
    ),
    "no provenance": (
        "packed",
        {"format": "npy", "provenance": True},
        "provenance: set",
    ),
    "names that readers expect": (
        "packed",
        {"format": "litdata", "naming": "{split}-{index}"},
        "naming:",
    ),
    "empty files": (
        "packed",
        {"format": "numpy", "num_shards": 9999},
        r"num_shards: 9999 files of 'train'",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_format_cannot_hold_is_refused_by_name(
    tmp_path: Path, store: Path, reason: str
):
    name, options, message = REFUSED[reason]
    with pytest.raises(ConfigError, match=message):
        export_version(store / name, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_rows_that_hold_no_tokens_cannot_be_saved_as_tokens(tmp_path: Path):
    with pytest.raises(
        ConfigError,
        match="format is 'megatron', expected one of 'parquet', 'arrow', 'jsonl'",
    ):
        save_dataset([{"text": "a"}], tmp_path / "out", "megatron")


@pytest.mark.parametrize("format", FORMATS)
def test_a_build_exports_after_its_commit(
    tmp_path: Path, tokenizer_dir: Path, format: str
):
    write_inputs(tmp_path)
    config = next(configs(tmp_path, tokenizer_dir))
    config["save"] |= {"format": format, "append_eos": True}
    built = build_dataset(config, workers=0)
    assert built.exports == (str(tmp_path / "store" / "_exports" / "documents" / "v1"),)
    rows = READERS[format](Path(built.exports[0]), "train")
    stored = expected_rows(tmp_path / "store", "documents", "train", format)
    assert [row.ids for row in rows] == [[*row.ids, 0] for row in stored]
    store = open_store(tmp_path / "store")  # a store with exports is a store
    assert (
        Catalog(store).datasets() == ["documents"]
        and not collect(store, grace=0).removed
    )
    assert (
        len(
            [
                file
                for file in FlatManifest.of(built.exports[0]).files
                if file.split == "train" and file.rows
            ]
        )
        == 1
    )


def test_packed_rows_of_a_build_keep_the_eos_that_they_have(
    tmp_path: Path, tokenizer_dir: Path
):
    write_inputs(tmp_path)
    config = list(configs(tmp_path, tokenizer_dir))[2]
    config["save"] |= {"format": "megatron", "append_eos": True}
    built = build_dataset(config, workers=0)
    rows = READERS["megatron"](Path(built.exports[0]), "train")
    assert rows == expected_rows(tmp_path / "store", "packed", "train", "megatron")


def test_eos_without_a_format_of_a_trainer_is_refused(
    tmp_path: Path, tokenizer_dir: Path
):
    write_inputs(tmp_path)
    config = next(configs(tmp_path, tokenizer_dir))
    config["save"]["append_eos"] = True
    with pytest.raises(
        ConfigError,
        match=r"save\.append_eos: set, but no export has a format of a trainer",
    ):
        build_dataset(config, workers=0)


def test_a_build_whose_masks_a_format_cannot_hold_is_refused_before_it_begins(
    tmp_path: Path, tokenizer_dir: Path
):
    write_inputs(tmp_path)
    config = list(configs(tmp_path, tokenizer_dir))[-1]
    config["save"]["format"] = "megatron"
    with pytest.raises(
        ConfigError,
        match=r"save.format: 'megatron', which cannot hold the loss mask of p",
    ):
        build_dataset(config, workers=0)
    assert not (tmp_path / "store" / "packed_answers").exists()
