"""From a dataset's configuration, or a pattern, to sources and files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.seeds import promise
from tests.sources.support import inputs, read, texts
from tokenlake import DatasetConfig, create_source
from tokenlake.easydel import TextShardedSource
from tokenlake.errors import (
    ConfigError,
    DamagedFileError,
    NotAvailableError,
    SourceNotFoundError,
)
from tokenlake.rowwise import JsonShardedSource, ParquetShardedSource, expand_data_files


@pytest.fixture
def folder(tmp_path) -> Path:
    rows = [{"id": place, "lang": "en" if place % 2 else "de"} for place in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet", row_group_size=2)
    (tmp_path / "c.txt").write_text("one\ntwo\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", JsonShardedSource),
        ("b.parquet", ParquetShardedSource),
        ("c.txt", TextShardedSource),
    ],
)
def test_the_class_is_that_of_the_format(folder, name, kind):
    for config in (
        {"data_files": str(folder / name)},
        DatasetConfig(data_files=str(folder / name)),
    ):
        source = create_source(config)
        assert type(source) is kind
        assert source.shard_names == (name,)


@promise(25, 244)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.data"])
@pytest.mark.parametrize(
    "start", [b"", b"\xef\xbb\xbf", b"\n" * 5000], ids=["", "mark", "blank lines"]
)
def test_type_json_reads_lines_and_arrays(tmp_path, name, start):
    """Whatever the name says: the beginning of a file tells, on every road."""
    objects = [{"text": f"t{place}", "meta": {"x": "{\n"}} for place in range(300)]
    lines = start + b"".join(json.dumps(each).encode() + b"\n" for each in objects)
    array = start + json.dumps(objects, indent=1).encode()
    path = tmp_path / name
    for data, format_ in ((lines, "jsonl"), (array, "json")):
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        (file,) = inputs(path, type="json")
        assert file.format == format_
        assert texts(read(path, type="json")) == [each["text"] for each in objects]
        assert list(create_source({"data_files": str(path), "type": "json"})) == objects
        assert list(JsonShardedSource(path, jsonl=False)) == objects
        if name in ("a.json", "a.json.gz"):
            assert list(create_source({"data_files": str(path)})) == objects


def test_a_file_of_type_json_that_is_neither_is_damaged(tmp_path):
    path = tmp_path / "a.json"
    for data in (b'{\n"text": "a"\n}\n', b'{"text": \n', b"", b"12"):
        path.write_bytes(data)
        with pytest.raises(DamagedFileError, match="array"):
            list(create_source({"data_files": str(path), "type": "json"}))
    empty = tmp_path / "a.jsonl"
    empty.write_bytes(b"")
    assert list(create_source({"data_files": str(empty), "type": "json"})) == []


@promise(26)
def test_text_goes_into_the_content_field(folder):
    config = {
        "data_files": f"{folder}/c.txt",
        "text_mode": "document",
        "content_field": "body",
    }
    assert list(create_source(config)) == [{"body": "one\ntwo\n"}]
    assert list(create_source({"data_files": f"{folder}/c.txt"})) == [
        {"text": "one"},
        {"text": "two"},
    ]


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"chat": {}}, NotAvailableError),
        ({"long_documents": "drop"}, NotAvailableError),
        ({"additional_fields": ["id"]}, NotAvailableError),
        ({"shard_column": "id"}, NotAvailableError),
        ({"cache_path": "/tmp/x"}, NotAvailableError),
        ({"num_shards": 3}, NotAvailableError),
        ({"splits": {"train": 0.5, "test": 0.5}}, NotAvailableError),
        ({"exclude": "x.parquet"}, NotAvailableError),
        ({"max_bad_fraction": 0.5}, NotAvailableError),
        ({"num_row": 3}, ConfigError),
        ({"type": "parqet"}, ConfigError),
    ],
)
def test_options_that_rows_do_not_follow_are_errors_that_name_them(
    folder, option, error
):
    with pytest.raises(error, match=next(iter(option))):
        create_source({"data_files": f"{folder}/b.parquet", **option})


@pytest.mark.parametrize("config", ["data.jsonl", None, 3])
def test_a_configuration_is_a_mapping_or_a_model(config):
    with pytest.raises(ConfigError, match="must be a DatasetConfig or a mapping"):
        create_source(config)


# --- expand_data_files


@promise(23, 254, 255)
def test_patterns_become_files_in_the_order_of_the_entries(folder):
    (folder / "sub").mkdir()
    for name in ("1.jsonl", "2.jsonl", "x.bin", ".hidden.jsonl"):
        (folder / "sub" / name).write_text("{}\n")
    assert expand_data_files(f"{folder}/sub/[0-9].jsonl") == [
        f"{folder}/sub/{n}.jsonl" for n in (1, 2)
    ]
    assert expand_data_files(folder / "sub") == [
        f"{folder}/sub/{n}.jsonl" for n in (1, 2)
    ]
    both = expand_data_files([f"{folder}/sub/2.jsonl", f"{folder}/**/*.jsonl"])
    assert both == [
        f"{folder}/sub/2.jsonl",
        f"{folder}/a.jsonl",
        f"{folder}/sub/1.jsonl",
    ]
    assert expand_data_files(f"{folder}/sub/x.bin") == [f"{folder}/sub/x.bin"]


# --- the snippets of the seeds


# --- names spelled out


@promise(243, 254)
def test_ranges_and_lists_name_files(folder):
    for number in range(12):
        (folder / f"part-{number:02}.jsonl").write_text(f'{{"id":{number}}}\n')
    assert expand_data_files(f"{folder}/part-{{08..11}}.jsonl") == [
        f"{folder}/part-{number:02}.jsonl" for number in range(8, 12)
    ]
    assert [
        row["id"]
        for row in create_source({"data_files": f"{folder}/part-0{{1..3}}.jsonl"})
    ] == [1, 2, 3]
    both = create_source({"data_files": f"{folder}/{{a.jsonl,b.parquet}}"})
    assert both.shard_names == ("a.jsonl", "b.parquet")
    with pytest.raises(SourceNotFoundError, match=r"part-12\.jsonl"):
        create_source({"data_files": f"{folder}/part-{{10..12}}.jsonl"})
    for wrong, why in (
        ("{3..1}", "decreases"),
        ("{0..9999999}", "more than 1000000 names"),
    ):
        with pytest.raises(ConfigError, match=why):
            expand_data_files(f"{folder}/{wrong}.jsonl")
    (folder / "{0..1}.jsonl").write_text('{"id":7}\n')
    assert expand_data_files(f"{folder}/{{0..1}}.jsonl") == [f"{folder}/{{0..1}}.jsonl"]
