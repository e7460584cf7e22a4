"""Arrow IPC: files by batches, streams to their end; rows of the file as positions;
bounded memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.http import HttpServer
from tests.sources.remote_support import bytes_asked_for
from tests.sources.support import (
    COMPRESS,
    dicts,
    faults,
    one,
    parsed,
    positions,
    read,
    rows,
    texts,
    written,
)
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import Want, arrow_columns, split_file
from tokenlake.rowwise import ArrowShardedSource
from tokenlake.runtime.store import close_filesystems

ROWS = 100
LANGS = pa.array(["py", "en"] * (ROWS // 2)).dictionary_encode()
TABLE = pa.table({
    "id": range(ROWS),
    "text": [f"text {n} " * (n % 9) for n in range(ROWS)],
    "large": pa.array([f"large {n}" for n in range(ROWS)], pa.large_string()),
    "lang": LANGS,
    "meta": [{"title": f"title {n}", "deep": {"body": f"body {n}" if n % 50 else None}} for n in range(ROWS)],
    "tags": [[f"tag {n % 3}"] * (n % 4) for n in range(ROWS)],
    "langs": pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), LANGS.indices.cast(pa.int64())),
    "pairs": pa.array([[("k", "v")]] * ROWS, pa.map_(pa.string(), pa.string())),
    "pair": pa.array([[1, 2]] * ROWS, pa.list_(pa.int8(), 2)),
    "view": pa.array([f"a view that is not short {n}" for n in range(ROWS)], pa.string_view()),
    "json": pa.array(["{}"] * ROWS, pa.json_()),
    "nothing": pa.nulls(ROWS),
    "flag": [True, None] * (ROWS // 2),
    "raw": pa.array([b"0123"] * ROWS, pa.binary(4)),
})  # fmt: skip
KINDS: dict[str, Callable[..., Any]] = {"file": ipc.new_file, "stream": ipc.new_stream}


def write(
    path: Path,
    table: pa.Table = TABLE,
    kind: str = "file",
    chunk: int | None = 30,
    **options: Any,
) -> Path:
    with KINDS[kind](
        str(path), table.schema, options=ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_all_columns_come_as_they_were_written(
    tmp_path: Path, kind: str, compression: str | None
) -> None:
    path = write(tmp_path / "in.arrow", kind=kind, compression=compression)
    batches = rows(path, unit_size=1)
    assert dicts(batches) == TABLE.to_pylist()
    assert positions(batches) == list(range(ROWS))
    kinds = {name: batches[0].rows.schema.field(name).type for name in ("lang", "json")}
    # Unfolded; the extension's storage.
    assert kinds == {"lang": pa.string(), "json": pa.string()}


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_of_no_type_inside_of_lists_and_structs_are_no_damage(
    tmp_path: Path, kind: str
) -> None:
    table = pa.table(
        {
            "a": [[None, None], [None]],
            "b": [[{"x": None}], [{"x": None}] * 2],
            "c": [{"y": [None]}] * 2,
        }
    )
    assert dicts(rows(write(tmp_path / "a.arrow", table, kind))) == table.to_pylist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "field", ["text", "large", "lang", "view", "meta.title", "meta.deep.body"]
)
@pytest.mark.parametrize("unit_size", [1, 3000, 1 << 30])
def test_texts_of_every_kind_with_their_rows(
    tmp_path: Path, kind: str, field: str, unit_size: int
) -> None:
    path = write(tmp_path / "in.arrow", kind=kind)
    column: Any = TABLE[field.split(".")[0]].to_pylist()
    for name in field.split(".")[1:]:
        column = [row[name] for row in column]
    batches = read(path, unit_size, content_field=field)
    assert texts(batches) == [text for text in column if text is not None]
    assert faults(batches) == [
        (n, None, "null_text") for n, text in enumerate(column) if text is None
    ]
    assert positions(batches) == [
        n for n, text in enumerate(column) if text is not None
    ]
    assert {batch.text.type for batch in batches} == {pa.large_string()}
    assert {batch.text.offset for batch in batches} == {0}
    parts = split_file(one(path), unit_size)
    assert sum(batch.bytes_read for batch in batches) == sum(
        part.weight for part in parts
    )
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert len(parts) == (
        1
        if kind == "stream" or unit_size == 1 << 30
        else 4
        if unit_size == 1
        else len(parts)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_is_read_as_a_stream(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    data = write(tmp_path / "plain", kind=kind).read_bytes()
    pack = COMPRESS[suffix]
    path = written(tmp_path, pack(data), f"in.arrow{suffix}")
    batches = read(path)
    assert texts(batches) == TABLE["text"].to_pylist()
    assert sum(batch.bytes_read for batch in batches) == path.stat().st_size
    for keep in (len(data) - 8, len(data) - 40, 2000, 0):
        path.write_bytes(pack(data[:keep]))
        with pytest.raises(DamagedFileError):
            read(path)


def test_a_stream_may_bring_new_dictionaries_between_batches(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])
    path = tmp_path / "in.arrow"
    for deltas in (True, False):
        with ipc.new_stream(
            str(path),
            schema,
            options=ipc.IpcWriteOptions(emit_dictionary_deltas=deltas),
        ) as writer:
            for values in (["a"], ["a", "b"], ["a", "b", "c"]):
                indices = pa.array(range(len(values)), pa.int32())
                writer.write_batch(
                    pa.record_batch(
                        [pa.DictionaryArray.from_arrays(indices, values)], schema=schema
                    )
                )
        assert texts(read(path)) == ["a", "a", "b", "a", "b", "c"]


def test_what_is_wrong_in_a_column_that_is_not_read_is_not_looked_for(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "in.arrow", pa.table({"other": ["x" * 100] * 50, "text": ["a"] * 50})
    )
    data = path.read_bytes()
    offsets = np.arange(0, 3100, 100, dtype="<i4").tobytes()
    path.write_bytes(
        data.replace(offsets, offsets[:40] + b"\xff\xff\xff\x7f" + offsets[44:])
    )
    assert texts(read(path)) == ["a"] * 50
    with pytest.raises(DamagedFileError, match="record batch 0 "):
        rows(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_batch_comes_in_pieces(tmp_path: Path, kind: str) -> None:
    words = ["x" * 400_000] * 50 + ["y" * 18_000_000, None, "z"]
    table = pa.table(
        {"text": words, "lang": pa.array(["w" * 100] * 53).dictionary_encode()}
    )
    path = write(tmp_path / "in.arrow", table, kind, chunk=None)
    batches = read(path)
    assert texts(batches) == [word for word in words if word]
    assert faults(batches) == [(51, None, "null_text")]
    assert max(batch.text.nbytes for batch in batches) < 21 << 20
    assert [row["text"] for row in dicts(rows(path))] == words


@given(
    words=st.lists(st.none() | st.text(max_size=12), min_size=1, max_size=60),
    kind=st.sampled_from([pa.string(), pa.large_string()]),
    piece=st.sampled_from([(1, 7), (20, 3), (1 << 20, 9), (1 << 20, 1 << 16)]),
)
def test_a_batch_in_slices_has_the_same_texts(
    tmp_path_factory: pytest.TempPathFactory,
    words: list[str | None],
    kind: pa.DataType,
    piece: tuple[int, int],
) -> None:
    table = pa.table({"id": range(len(words)), "text": pa.array(words, kind)})
    path = write(tmp_path_factory.mktemp("slices") / "in.arrow", table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_columns, "SLICED_BYTES", -1)
        patch.setattr(arrow_columns, "_SLICE_BYTES", piece[0])
        patch.setattr(arrow_columns, "_SLICE_ROWS", piece[1])
        batches = read(path)
    assert texts(batches) == [word for word in words if word is not None]
    assert faults(batches) == [
        (n, None, "null_text") for n, word in enumerate(words) if word is None
    ]
    assert positions(batches) == [n for n, word in enumerate(words) if word is not None]


def test_bad_offsets_of_a_large_batch_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_columns, "SLICED_BYTES", -1)
    path = write(tmp_path / "in.arrow", pa.table({"text": ["abc"] * 60}))
    data = path.read_bytes()
    offsets = np.arange(0, 93, 3, dtype="<i4").tobytes()
    for wrong in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff"):
        path.write_bytes(data.replace(offsets, offsets[:40] + wrong + offsets[44:]))
        with pytest.raises(
            DamagedFileError,
            match=r"record batch 0 .*an offset decreases, or is outside",
        ):
            read(path)


def test_a_dictionary_is_unfolded_in_pieces(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 100), ["x" * 1_000_000])
    path = write(tmp_path / "in.arrow", pa.table({"text": values}))
    batches = read(path)
    assert sum(len(batch.text) for batch in batches) == 100
    assert max(batch.text.nbytes for batch in batches) < 17 << 20
    assert max(batch.rows.nbytes for batch in rows(path)) < 65 << 20


def test_a_row_is_found_without_decoding_the_batches_before_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.arrow", pa.table({"text": [f"t{n}" for n in range(ROWS)]})
    )
    data = path.read_bytes()
    # The first batch cannot be decoded.
    path.write_bytes(data.replace(b"t0t1t2", b"\xff" * 6))
    source = ArrowShardedSource(str(path))
    (name,) = source.shard_names
    for row in (30, 31, 59, 60, 99):
        assert next(source.open_shard_at_row(name, row)) == {"text": f"t{row}"}
    assert list(source.open_shard_at_row(name, 100)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_remote_file_only_what_is_wanted_is_read(
    tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("aiohttp")
    noise = "".join(map(chr, np.random.default_rng(0).integers(33, 126, 1_000_000)))
    wide = [noise[n : n + 10_000] for n in range(0, 1_000_000, 10_000)]
    path = write(
        tmp_path / "in.arrow",
        pa.table({"wide": wide, "text": [f"t{n}" for n in range(100)]}),
        kind,
    )
    with HttpServer({"in.arrow": path.read_bytes()}) as server:
        blocks = parsed(f"{server.url}/in.arrow", Want(text="text"))
        sizes = bytes_asked_for(server)
    close_filesystems()
    assert [text for block in blocks for text in block.text.to_pylist()] == [
        f"t{n}" for n in range(100)
    ]
    if kind == "file":
        assert len(sizes) < 30
        assert sum(sizes) < 700_000  # the wide column is passed over


SCHEMA = pa.schema([("text", pa.string())]).serialize().to_pybytes()


@given(metadata=st.binary(max_size=80), schema=st.sampled_from([b"", SCHEMA]))
def test_no_bytes_make_the_reader_of_messages_do_anything_but_refuse(
    tmp_path_factory: pytest.TempPathFactory, metadata: bytes, schema: bytes
) -> None:
    message = b"\xff\xff\xff\xff" + struct.pack("<i", len(metadata)) + metadata
    path = written(
        tmp_path_factory.getbasetemp(), schema + message + bytes(64), "message.arrow"
    )
    with pytest.raises(DamagedFileError):
        read(path)


@given(
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    kind=st.sampled_from([*KINDS]),
    compression=st.sampled_from([None, "zstd", "lz4"]),
    field=st.sampled_from(["text", "lang"]),
)
def test_a_flipped_bit_is_refused_or_changes_no_more_than_texts(
    tmp_path_factory: pytest.TempPathFactory,
    at: float,
    bit: int,
    kind: str,
    compression: str | None,
    field: str,
) -> None:
    # Arrow has no checksums: what is inside a text cannot be told; but nothing crashes,
    # and no row is lost.
    path = tmp_path_factory.mktemp("flip") / "in.arrow"
    table = pa.table({"text": [f"t{n}" for n in range(40)], "lang": LANGS[:40]})
    write(path, table, kind, chunk=20, compression=compression)
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        batches = read(path, content_field=field)
    except DamagedFileError:
        return
    assert sum(batch.rows_read for batch in batches) == 40


@pytest.mark.parametrize("kept", [0, 1])
def test_a_footer_that_leaves_batches_out_is_damage(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "in.arrow"
    write(path, pa.table({"text": [f"t{n}" for n in range(40)]}), "file", chunk=20)
    data = path.read_bytes()
    # The first batch begins behind the schema. The footer lists it as (offset, bytes of
    # metadata, ...), behind the number of batches.
    offset = 16 + struct.unpack_from("<i", data, 12)[0]
    metadata = 8 + struct.unpack_from("<i", data, offset + 4)[0]
    at = data.index(struct.pack("<qi", offset, metadata)) - 4
    assert data[at : at + 4] == b"\x02\0\0\0"
    path.write_bytes(data[:at] + kept.to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(DamagedFileError, match="its footer"):
        read(path)
