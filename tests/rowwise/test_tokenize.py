"""tokenize_and_save and pretokenize: files of tokens that any tool reads, made by an
ordinary build.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.rowwise.sharded_support import check_flat
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake import pretokenize, tokenize_and_save
from tokenlake.config import TokenizerConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl import Event, UnitFinished, WorkerPool
from tokenlake.etl.export import FlatManifest
from tokenlake.etl.tokenizers import TokenizerManager
from tokenlake.rowwise import (
    ArrowShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
)

READERS = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "jsonl": JsonShardedSource,
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
TEXTS = [
    f"document {i}: " + "the quick brown fox, été, 日本 " * (i % 5) + "x" * (i % 7)
    for i in range(90)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama-2-style tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("llama")
    files = sentencepiece().files
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"])
    settings = json.loads(files["tokenizer_config.json"]) | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Three JSONL files."""
    for number in range(3):
        part = TEXTS[30 * number : 30 * number + 30]
        write(
            tmp_path / "data" / f"{number}.jsonl",
            [{"text": text, "lang": "en"} for text in part],
        )
    return str(tmp_path / "data" / "*.jsonl")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(format: str, folder: Path) -> list[dict[str, Any]]:
    return list(READERS[format](f"{folder}/*.{format}*"))


def expected(
    tokenizer: str, texts: list[str] = TEXTS, **options: Any
) -> list[dict[str, Any]]:
    made = TokenizerManager().tokenize_batch(
        tokenizer, texts, TokenizerConfig(name_or_path=tokenizer, **options)
    )
    return [
        {"input_ids": ids, "attention_mask": mask}
        for ids, mask in zip(made["input_ids"], made["attention_mask"], strict=True)
    ]


@promise(102, 177, 191)
def test_rows_are_the_tokenizers_in_order_and_other_tools_read_them(
    tmp_path: Path, data: str, tokenizer: str, pool: WorkerPool
):
    out = tmp_path / "out"
    stats = tokenize_and_save(
        data, tokenizer, out, max_length=48, num_shards=3, pool=pool, unit_size=2000
    )
    rows = expected(tokenizer, max_length=48)
    assert read("parquet", out) == rows
    names = [f"train-0000{index}-of-00003.parquet" for index in range(3)]
    assert stats.output_paths == [str(out / name) for name in names]
    assert stats.num_examples == len(TEXTS)
    assert stats.num_tokens == sum(len(row["input_ids"]) for row in rows)
    schema = pq.read_schema(out / names[0])
    assert [str(kind) for kind in schema.types] == ["list<element: int32 not null>"] * 2
    check_others(out, rows, tmp_path / "cache")
    kept = {
        str(path.relative_to(out / "_tokenlake"))
        for path in (out / "_tokenlake").rglob("*.*")
    }
    assert kept == {
        "manifest.json",
        "config.yaml",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }
    manifest = FlatManifest.of(out)
    check_flat(out)
    assert [file.rows for file in manifest.files] == [30, 30, 30]
    assert manifest.kind == "tokens"
    assert manifest.made_of["account"]["kept"] == len(TEXTS)
    assert manifest.made_of["account"]["dropped"]["truncated"] > 0


def check_others(out: Path, rows: list[dict[str, Any]], cache: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    datasets = pytest.importorskip("datasets")
    assert ds.dataset(str(out)).to_table().to_pylist() == rows
    assert polars.read_parquet(f"{out}/*.parquet").to_dicts() == rows
    counted = duckdb.sql(
        f"select sum(len(input_ids)) from '{out}/*.parquet'"
    ).fetchall()
    assert counted == [(sum(len(row["input_ids"]) for row in rows),)]
    loaded = datasets.load_dataset(str(out), cache_dir=str(cache))
    assert list(loaded) == ["train"]
    assert loaded["train"].to_list() == rows


@promise(102)
def test_fields_are_kept_and_rows_padded(
    tmp_path: Path, data: str, tokenizer: str, pool: WorkerPool
):
    named = TokenizerConfig(name_or_path=tokenizer, max_length=40, padding="max_length")
    tokenize_and_save(
        data, named, tmp_path / "out", "arrow", additional_fields=["lang"], pool=pool
    )
    rows = expected(tokenizer, max_length=40, padding="max_length")
    assert read("arrow", tmp_path / "out") == [{**row, "lang": "en"} for row in rows]


@promise(102, 175, 178, 179)
@pytest.mark.parametrize(
    ("format", "compression", "num_shards", "ending"),
    [
        ("parquet", "zstd", 100, ".parquet"),
        ("arrow", None, 50, ".arrow"),
        ("jsonl", "gzip", 3, ".jsonl.gz"),
    ],
)
def test_every_format_has_as_many_files_as_asked_for(
    tmp_path: Path,
    data: str,
    tokenizer: str,
    pool: WorkerPool,
    format: Any,
    compression: str | None,
    num_shards: int,
    ending: str,
):
    out, options = (
        tmp_path / "out",
        {"num_shards": num_shards, "compression": compression},
    )
    stats = tokenize_and_save(
        data, tokenizer, out, format, max_length=48, pool=pool, **options
    )
    assert len(stats.output_paths) == num_shards and all(
        path.endswith(ending) for path in stats.output_paths
    )
    rows = expected(tokenizer, max_length=48)
    assert read(format, out) == rows
    if format == "arrow":
        gc.collect()
        before = pa.total_allocated_bytes()
        with pa.memory_map(stats.output_paths[0]) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
            # Nothing is copied out of the file.
            assert pa.total_allocated_bytes() <= before
            assert batch.column("input_ids")[0].as_py() == rows[0]["input_ids"]


def test_packed_rows_splits_and_provenance(
    tmp_path: Path, data: str, tokenizer: str, pool: WorkerPool
):
    out = tmp_path / "out"
    splits = {"train": 0.7, "validation": 0.3}
    tokenize_and_save(
        data,
        tokenizer,
        out,
        max_length=32,
        pack=True,
        splits=splits,
        provenance=True,
        pool=pool,
    )
    tables = {
        split: pq.read_table(out / f"{split}-00000-of-00001.parquet")
        for split in splits
    }
    for table in tables.values():
        assert table.column_names == [
            "input_ids",
            "attention_mask",
            "segment_ids",
            "documents",
        ]
        for row in table.to_pylist():
            assert len(row["input_ids"]) == 32
            assert row["attention_mask"] == [
                int(segment > 0) for segment in row["segment_ids"]
            ]
    ids = [
        token
        for table in tables.values()
        for row in table["input_ids"].to_pylist()
        for token in row
    ]
    assert sum(token == 1 for token in ids) == len(TEXTS)  # BOS


def test_a_target_that_is_not_empty_is_refused_or_replaced(
    tmp_path: Path, data: str, tokenizer: str, pool: WorkerPool
):
    out = tmp_path / "out"
    pretokenize([{"text": "old"}], tokenizer, out, num_shards=3)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="nothing was changed"):
        tokenize_and_save(data, tokenizer, out, "jsonl", pool=pool)
    assert {
        path: path.read_bytes() for path in out.rglob("*") if path.is_file()
    } == before
    pretokenize(
        data, tokenizer, out, "jsonl", compression="zstd", pool=pool, overwrite=True
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "_tokenlake",
        "train-00000-of-00001.jsonl.zst",
    ]
    assert read("jsonl", out) == expected(tokenizer)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out"}


def test_a_build_that_fails_leaves_nothing_to_see_and_goes_on_later(
    tmp_path: Path, data: str, tokenizer: str
):
    out, last = tmp_path / "out", Path(data).parent / "2.jsonl"
    good = last.read_text()
    last.write_text(good + '{"text": 3}\n')
    with pytest.raises(BadRecordError, match=r"2\.jsonl:31"):
        tokenize_and_save(data, tokenizer, out, workers=1, unit_size=2000)
    assert not out.exists()
    assert sorted(path.name for path in (tmp_path / ".out.tokenlake").iterdir()) == [
        "store"
    ]
    last.write_text(good)
    events: list[Event] = []
    tokenize_and_save(
        data, tokenizer, out, workers=1, unit_size=2000, on_event=events.append
    )
    how = [event.how for event in events if isinstance(event, UnitFinished)]
    assert "reused" in how
    assert read("parquet", out) == expected(tokenizer)
    assert not (tmp_path / ".out.tokenlake").exists()


def test_bad_records_that_are_set_aside_are_kept(
    tmp_path: Path, tokenizer: str, pool: WorkerPool
):
    rows = [{"text": "good"}, {"text": 3}, {"text": "good"}]
    write(tmp_path / "data" / "a.jsonl", rows)
    tokenize_and_save(
        str(tmp_path / "data"),
        tokenizer,
        tmp_path / "out",
        on_bad_record="quarantine",
        max_bad_fraction=0.5,
        pool=pool,
    )
    assert len(read("parquet", tmp_path / "out")) == 2
    (path,) = (tmp_path / "out" / "_tokenlake" / "quarantine").iterdir()
    (record,) = pq.read_table(path).to_pylist()
    assert b'"text":3' in record["raw"].replace(b" ", b"")
    assert FlatManifest.of(tmp_path / "out").made_of["account"]["quarantined"] == {
        "not_a_string": 1
    }


def test_an_impossible_request_leaves_no_trace(
    tmp_path: Path, data: str, tokenizer: str, pool: WorkerPool
):
    before = sorted(tmp_path.iterdir())
    for options in (
        {"nonsense": 1},
        {"pack": 3},
        {"output_format": "csv"},
        {"num_shards": 0},
        {"content_field": 3},
    ):
        with pytest.raises((ConfigError, ValueError)):
            tokenize_and_save(data, tokenizer, tmp_path / "out", pool=pool, **options)
    with pytest.raises(ConfigError, match="save_pretrained"):
        tokenize_and_save(
            data, TokenizerManager().get_tokenizer(tokenizer), tmp_path / "out"
        )  # pyright: ignore[reportArgumentType]
    assert sorted(tmp_path.iterdir()) == before


@promise(279)
def test_pretokenize_takes_rows_and_sources(tmp_path: Path, data: str, tokenizer: str):
    rows = [{"text": text} for text in TEXTS]
    pretokenize(iter(rows), tokenizer, tmp_path / "rows", "jsonl", num_shards=3)
    pretokenize(
        JsonShardedSource(data),
        tokenizer,
        tmp_path / "source",
        "arrow",
        additional_fields=["lang"],
    )
    wanted = expected(tokenizer)
    assert read("jsonl", tmp_path / "rows") == wanted
    assert read("arrow", tmp_path / "source") == [
        {"lang": "en", **row} for row in wanted
    ]


_PEAK = """
import sys
from pathlib import Path
from tokenlake.rowwise.save import tokenize_and_save

if __name__ == "__main__":
    folder, tokenizer = Path(sys.argv[1]), sys.argv[2]
    for size in ("small", "large"):
        tokenize_and_save(folder / f"{size}.jsonl", tokenizer, folder / size, num_shards=3, workers=1, unit_size="1MB")
        print(*(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


@pytest.mark.integration
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peaks of memory are read from /proc"
)
def test_memory_does_not_grow_with_the_input(tmp_path: Path, tokenizer: str):
    line = json.dumps({"text": " ".join(TEXTS)[:3000]}) + "\n"
    (tmp_path / "small.jsonl").write_text(line * 500)
    # 20 MB of text, 70 MB of columns; two row groups are decoded ahead.
    (tmp_path / "large.jsonl").write_text(line * 7000)
    (tmp_path / "peak.py").write_text(_PEAK)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "peak.py"), str(tmp_path), tokenizer]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    small, large = (int(peak) >> 10 for peak in done.stdout.split())  # MiB
    assert large < small + 45
