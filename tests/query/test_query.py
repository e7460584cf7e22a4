"""SQL over a store: what can be asked, on verified bytes, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.seeds import promise
from tests.store.support import (
    SEQ_LENGTH,
    copy_store,
    settings,
    shared_store,
    write_inputs,
)
from tokenlake import Catalog
from tokenlake import sql as query
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl import build_dataset
from tokenlake.etl.tokenizers import Decoder
from tokenlake.query import read_sequences, relations
from tokenlake.runtime.store import open_store


@pytest.fixture(scope="module")
def store(tokenizer_dir: Path) -> Path:
    return shared_store(tokenizer_dir)


@pytest.fixture(scope="module")
def bare(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without the shards of ``small`` v2."""
    copy = copy_store(store, tmp_path_factory.mktemp("bare") / "store")
    for shard in (copy / "small" / "v2" / "data").iterdir():
        shard.unlink()
    return copy


def _rows(store: Path, sql: str) -> list[dict]:
    return query(store, sql).to_pylist()


def test_a_dataset_is_a_view_of_its_newest_version(store: Path) -> None:
    newest = _rows(store, "select count(*) as n, min(len(input_ids)) as l from small")
    assert newest == _rows(
        store, 'select count(*) as n, min(len(input_ids)) as l from "small@v2"'
    )
    assert newest != _rows(
        store, 'select count(*) as n, min(len(input_ids)) as l from "small@v1"'
    )
    assert newest[0]["l"] == SEQ_LENGTH


@promise(339)
def test_rows_are_those_of_the_shards(store: Path) -> None:
    found = _rows(
        store, "select split, shard, row, input_ids from small order by shard, row"
    )
    assert found == [
        {
            "split": path.name.partition("-")[0],
            "shard": f"data/{path.name}",
            "row": row,
            "input_ids": ids,
        }
        for path in sorted((store / "small" / "v2" / "data").iterdir())
        for row, ids in enumerate(pq.read_table(path)["input_ids"].to_pylist())
    ]


def test_documents_say_where_every_piece_comes_from(store: Path) -> None:
    by_source = _rows(
        store,
        'select source, path, count(distinct position) as documents from "small@v1/documents" group by all order by 1',
    )
    assert by_source == [
        {"source": "notes", "path": "river.txt", "documents": 40},
        {"source": "pages", "path": "lake.jsonl", "documents": 39},
    ]
    totals = _rows(store, 'select sum(length) as tokens from "small/documents"')
    assert totals == _rows(store, "select tokens from datasets where version = 2")
    newest = _rows(
        store, "select dataset, version, count(*) as n from documents group by all"
    )
    assert [(row["dataset"], row["version"]) for row in newest] == [("small", 2)]


def test_accounts_sum_to_the_manifest(store: Path) -> None:
    manifest = Catalog(open_store(store)).manifest("small", 2)
    found = _rows(
        store,
        "select source, sum(rows_read) as rows_read, sum(tokens) as tokens, sum(eos) as eos "
        "from accounts where dataset = 'small' and version = 2 group by source order by source",
    )
    assert found == [
        {
            "source": name,
            "rows_read": account.rows_read,
            "tokens": account.tokens,
            "eos": account.eos,
        }
        for name, account in manifest.accounts.items()
    ]
    bad = _rows(
        store,
        "select map_values(quarantined) as n from accounts where source = 'pages' and version = 2",
    )
    assert bad == [{"n": [1]}]
    position = (
        (store.parent / "pages" / "lake.jsonl").read_bytes().index(b'{"text": null}')
    )
    found = _rows(store, 'select position, reason from "small/quarantine"')
    assert found == [{"position": position, "reason": "null_text"}]


def test_tables_about_the_store(store: Path) -> None:
    assert _rows(
        store, "select distinct path from inputs where version = 2 order by path"
    ) == [
        {"path": "lake.jsonl"},
        {"path": "river.txt"},
        {"path": "sea.txt"},
    ]
    sums = _rows(
        store, "select sum(rows) as r, sum(bytes) as b from shards where version = 1"
    )
    assert sums == _rows(
        store, "select rows as r, bytes as b from datasets where version = 1"
    )
    assert sums == _rows(
        store, "select sum(rows) as r, sum(bytes) as b from splits where version = 1"
    )


def test_every_relation_can_be_asked_and_ids_decoded(store: Path) -> None:
    ids = "input_ids[1:segment_lengths[1]]"
    texts = query(
        store, f"select decode({ids}, 'small') as text from small where split = 'train'"
    )["text"]
    assert any(
        text.endswith("centimetres overnight.<|endoftext|>")
        for text in texts.to_pylist()
    )
    for name in relations(Catalog(open_store(store))):
        # Nothing in this store is a mixture.
        assert query(store, f'from "{name}" limit 1').num_rows == (name != "mixture"), (
            name
        )


@pytest.mark.parametrize(
    "sql",
    [
        "describe small",
        'summarize "small@v1"',
        "explain select * from small",
        "with x as (from small) select count(*) from x",
        "select 1",
        "show tables",
    ],
)
def test_statements_that_read_are_welcome(store: Path, sql: str) -> None:
    assert query(store, sql).num_columns > 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("copy (select 1) to 'x.csv'", "may only read, got COPY"),
        ("explain analyze copy (select 1) to 'x.csv'", "may only read, got COPY"),
        ("create table x as select 1", "may only read, got CREATE"),
        ("attach 'x.db'", "may only read, got ATTACH"),
        ("set threads = 1", "may only read, got SET"),
        ("install httpfs", "may only read"),
        ("select 1; select 2", "expected one SQL statement, got 2"),
        ("", "expected one SQL statement, got none"),
        ("select * from read_text('/etc/hostname')", "disabled by configuration"),
        ("select * from '/etc/hostname'", "no table or view '/etc/hostname'"),
        ("select * from glob('/etc/*')", "disabled by configuration"),
        ("select * from smal", "no table or view 'smal'; did you mean small"),
        ("select * from small-v1", "syntax error"),
        ("select * from small@v1", 'need double quotes: "small@v1"'),
        ("select nope from small", "nope"),
        ("select decode([1], 'absent')", "no dataset 'absent'"),
    ],
)
def test_everything_else_is_refused(
    store: Path, tmp_path: Path, monkeypatch, sql: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        query(store, sql)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_store_that_the_query_did_not_name_is_out_of_reach(
    store: Path,
) -> None:
    [shard, *_] = sorted((store / "small" / "v1" / "data").iterdir())
    with pytest.raises(ConfigError, match="disabled by configuration"):
        query(store, f"select * from '{shard}', \"small@v2\"")


def test_python_variables_are_no_tables(store: Path) -> None:
    known = {"a": [1]}
    with pytest.raises(ConfigError, match="no table or view 'known'"):
        query(store, "select * from known")
    assert known


def test_a_flipped_bit_is_found_before_duckdb_sees_it(
    store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "copy")
    [shard, *_] = sorted((copy / "small" / "v2" / "data").iterdir())
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        IntegrityError,
        match=f"{shard.name} was changed after it was committed",
    ):
        query(copy, "select max(len(input_ids)) from small")
    assert query(copy, 'select max(len(input_ids)) from "small@v1"').num_rows == 1
    shard.unlink()
    with pytest.raises(IntegrityError, match=f"{shard.name} is missing"):
        query(copy, "select max(len(input_ids)) from small")


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) as n from small",
        "select split, count(*) as n, max(row) as last from small group by split order by split",
        "select a.shard, count(*) as n from small a join shards s on a.shard = s.path group by all order by all",
        "with x as (select * from small) select count(*) as n from x where row % 2 = 0",
        "select distinct shard from small order by shard",
        "select * from small limit 0",
        "select * from small where split = 'none'",
    ],
)
def test_a_query_that_needs_no_stored_column_opens_no_shard(
    store: Path, bare: Path, sql: str
) -> None:
    sizes: list[int] = []
    expected = query(
        store, f"select * from ({sql}) where (select count(input_ids) from small) > 0"
    )
    assert query(bare, sql, on_verified=sizes.append) == expected
    assert sizes == []


@pytest.mark.parametrize(
    "sql",
    [
        "select count(input_ids) from small",
        "select count(*) from small where input_ids is not null",
        "select coalesce(input_ids, [1]) from small",
        "select try(input_ids[1]) from small",
        "select count(*) from small where try(len(input_ids)) is null",
        "select count(distinct documents) from small",
        "select count(columns(*)) from small",
        "select s is null from small s",
        "explain select count(*) from small",
        "summarize small",
        'select count(*) from "small/documents"',
        'select (select count(*) from small), (select count(*) from "small/quarantine")',
    ],
)
def test_any_other_query_sees_verified_files_alone(
    store: Path, bare: Path, sql: str
) -> None:
    assert query(store, sql).num_rows > 0
    with pytest.raises(IntegrityError, match=r"\.parquet is missing"):
        query(bare, sql)


def test_a_damaged_tokenizer_is_not_used(store: Path, tmp_path: Path) -> None:
    copy = copy_store(store, tmp_path / "copy")
    tokenizer = copy / "small" / "v2" / "tokenizer" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    opened = open_store(copy)
    with pytest.raises(IntegrityError, match=r"tokenizer\.json was changed"):
        Decoder.of(opened, Catalog(opened).manifest("small", 2))


def test_nothing_is_drawn_into_the_output_of_a_slow_query(store: Path) -> None:
    # DuckDB takes a program without a file for a person who types.
    code = "import sys; from tokenlake.query.session import sql as query; print(query(*sys.argv[1:]).to_pylist())"
    sql = "select current_setting('enable_progress_bar') as bar"
    command = [sys.executable, "-c", code, str(store), sql]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[{'bar': False}]\n"


def test_an_empty_store_and_one_whose_path_looks_like_a_glob(
    store: Path, tmp_path: Path
) -> None:
    assert query(tmp_path, "select count(*) as n from datasets").to_pylist() == [
        {"n": 0}
    ]
    assert query(tmp_path, "from documents").num_rows == 0
    copy = copy_store(store, tmp_path / "it's [a] store*")
    assert query(copy, "select count(*) from small") == query(
        store, "select count(*) from small"
    )


def test_sums_are_plain_integers(store: Path) -> None:
    assert (
        str(
            query(store, "select sum(x) as s from range(10) t(x)")
            .schema.field("s")
            .type
        )
        == "int64"
    )
    [row] = _rows(
        store, "select sum(x::hugeint * 1000000000000000000) as s from range(100) t(x)"
    )
    assert row["s"] == 4950 * 10**18


def test_sequences_carry_their_segments(store: Path) -> None:
    opened = open_store(store)
    manifest = Catalog(opened).manifest("small", 2)
    decoder = Decoder.of(opened, manifest)
    total = manifest.splits["train"].rows
    everything = list(read_sequences(opened, manifest, None, 0, total + 5))
    assert [sequence.row for sequence in everything] == list(range(total))
    for sequence in everything:
        assert (
            sum(len(segment.ids) for segment in sequence.segments) + sequence.padding
            == SEQ_LENGTH
        )
    assert list(read_sequences(opened, manifest, "train", 3, 2)) == everything[3:5]
    assert list(read_sequences(opened, manifest, "train", -2, 5)) == everything[-2:]
    first = everything[0].segments[0]
    line = (
        (store.parent / "notes" / "river.txt")
        .read_bytes()[first.position :]
        .split(b"\n")[0]
        .decode()
    )
    assert decoder.text(first.ids) == line + "<|endoftext|>"
    for split, row, told in (
        ("test", 0, "no split 'test'; .* train, validation"),
        ("train", 10_000, "past the"),
    ):
        with pytest.raises(ConfigError, match=told):
            list(read_sequences(opened, manifest, split, row, 1))


def test_a_dataset_that_is_not_packed(tmp_path: Path, tokenizer_dir: Path) -> None:
    write_inputs(tmp_path)
    build_dataset(
        {**settings(tmp_path, tokenizer_dir), "pack": {"enabled": False}}, workers=1
    )
    store = tmp_path / "store"
    [first] = _rows(
        store,
        'select * exclude file from "small/documents" order by shard, row limit 1',
    )
    [ids] = _rows(
        store,
        "select input_ids, decode(input_ids, 'small') as text from small order by shard, row limit 1",
    )
    assert first["length"] == len(ids["input_ids"])
    assert (first["source"], first["path"], first["segment"], first["start"]) == (
        "notes",
        "river.txt",
        1,
        0,
    )
    assert ids["text"].startswith("Note ")
    opened = open_store(store)
    manifest = Catalog(opened).manifest("small", 1)
    [sequence] = read_sequences(opened, manifest, first["split"], first["row"], 1)
    assert [segment.ids for segment in sequence.segments] == [tuple(ids["input_ids"])]


def test_documents_have_the_path_and_the_kind_of_their_position_before_the_hash(
    store: Path,
) -> None:
    table = query(store, 'select * from "small/documents" limit 1')
    assert table.column_names[4:] == [
        "source",
        "path",
        "position",
        "position_is",
        "start",
        "length",
        "file",
    ]
    kinds = _rows(store, 'select distinct position_is from "small/documents"')
    assert kinds == [{"position_is": "byte offset"}]
    everything = query(store, "select * from documents limit 1")
    assert everything.column_names[2:] == table.column_names
