"""The catalogue of damage of Parquet and Arrow: what each case gets, how often, and
exactly where.

F: the file is refused with its name and the place, whatever the policy. Q: the record
is set aside with its row and reason. OK: nothing is wrong.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from tests.sources.parquet_by_hand import (
    DATA_PAGE,
    PLAIN,
    dictionary_bomb,
    null_bomb,
    page,
    plain_texts,
    write_by_hand,
)
from tests.sources.support import faults, positions, read, rows, texts
from tokenlake.errors import BadRecordError, DamagedFileError
from tokenlake.etl.sources import unfolding
from tokenlake.runtime.reading import unfolding as reading_unfolding

WORDS = [f"document {n} " * (n % 7 + 1) for n in range(90)]
GOOD = pa.table({"id": range(90), "text": WORDS})
BYTES = pa.array([b"ok", b"\xff\xfe", "é".encode()], pa.binary())
NOT_UTF8 = pa.table({"text": BYTES.view(pa.string())})
UNKNOWN = r"holds the extension type tests\.uuid, expected strings"


class Uuid(pa.ExtensionType):
    """A type of ours, unknown to whoever reads the file."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "tests.uuid")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Uuid:
        return cls()


EXTENSION = pa.ExtensionArray.from_storage(Uuid(), pa.array(WORDS))


Write = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        write: makes the file.
        refused: what the message of the DamagedFileError says, None where the file is
            read.
        set_aside: (row, reason) of the bad records.
        kept: how many texts are read.
        rows: whether `read_rows` refuses the file as well.
        options: of the source.
    """

    name: str
    write: Write
    refused: str | None = None
    set_aside: tuple[tuple[int, str], ...] = ()
    kept: int = 0
    rows: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def no_text(name: str, write: Write, told: str) -> Case:
    """A file whose rows can be read, but not their texts."""
    return Case(name, write, told, rows=False)


def written(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


def parquet(table: pa.Table, **options: Any) -> Write:
    settings = {
        "row_group_size": 30,
        "write_page_checksum": True,
        "compression": "none",
        **options,
    }
    return lambda path: pq.write_table(table, path, **settings)


def cut(write: Write, keep: int) -> Write:
    def make(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[:keep])

    return make


def flipped(path: Path) -> None:
    parquet(GOOD, use_dictionary=False)(path)
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    flip(path, column.data_page_offset + column.total_compressed_size - 9)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)


def recounted(path: Path) -> None:
    """Let the footer and its row group count one row more than the page holds."""
    write_by_hand(path, [page(DATA_PAGE, plain_texts([b"a", b"b"]), 2, PLAIN)], 3)


def huge_page(path: Path) -> None:
    write_by_hand(
        path,
        [page(DATA_PAGE, plain_texts([b"a"]), 1, PLAIN, size=2_000_000_000)],
        1,
        codec="zstd",
    )


TWICE = pa.table([WORDS, WORDS], names=["text", "text"])
AS_JSON = pa.table({"text": pa.array(["{}"], pa.json_())})
FOOTER = "its footer cannot be read"
NULL_STRUCT = pa.table({"a": [{"b": "x"}, None, {"b": None}]})
PARQUET = [
    Case("empty", written(b""), FOOTER),
    *(
        Case(f"cut to {size}", cut(parquet(GOOD), size), FOOTER)
        for size in (3, 4, 900, -1, -9)
    ),
    Case("page flipped", flipped, "row group 1, column.* cannot be read"),
    no_text(
        "text missing",
        parquet(pa.table({"txt": WORDS})),
        "has no column 'text'.*columns are txt",
    ),
    no_text(
        "text retyped",
        parquet(pa.table({"text": range(90)})),
        "holds int64, expected strings",
    ),
    no_text(
        "text nested",
        parquet(pa.table({"text": [["a"]]})),
        "holds list<.*>, expected strings",
    ),
    no_text(
        "text a struct",
        parquet(pa.table({"text": [{"b": "a"}]})),
        "holds struct<.*>, expected strings",
    ),
    no_text("text an extension", parquet(pa.table({"text": EXTENSION})), UNKNOWN),
    no_text(
        "text JSON", parquet(AS_JSON), r"holds extension<arrow\.json>, expected strings"
    ),
    Case("column twice", parquet(TWICE), "several columns of the same name: text"),
    Case(
        "null text",
        parquet(pa.table({"text": ["a", None, "b"]}), row_group_size=1),
        set_aside=((1, "null_text"),),
        kept=2,
    ),
    Case(
        "null struct around the text",
        parquet(NULL_STRUCT),
        set_aside=((1, "null_text"), (2, "null_text")),
        kept=1,
        options={"content_field": "a.b"},
    ),
    Case("invalid UTF-8", parquet(NOT_UTF8), set_aside=((1, "invalid_utf8"),), kept=2),
    Case(
        "more rows counted",
        recounted,
        "row group 0, column.* 1 values fewer than the 3",
    ),
    Case("no row groups", lambda path: pq.ParquetWriter(path, GOOD.schema).close()),
    Case("empty row group", parquet(GOOD.slice(0, 0))),
    Case(
        "null bomb",
        lambda path: null_bomb(path, 10**9),
        "row group 0, column.* decompress to 8000000000 bytes",
    ),
    no_text(
        "dictionary bomb",
        lambda path: dictionary_bomb(path, 10**6, 100_000),
        "row group 0, column.* decompress to [0-9]{9} bytes",
    ),
    Case(
        "page of 2 GB",
        huge_page,
        "row group 0, column.*a page decompresses to 2000000000 bytes, more than",
    ),
]


def arrow(table: pa.Table, kind: str = "file", **options: Any) -> Write:
    def make(path: Path) -> None:
        opened = ipc.new_file if kind == "file" else ipc.new_stream
        with opened(
            str(path), table.schema, options=ipc.IpcWriteOptions(**options)
        ) as writer:
            writer.write_table(table, max_chunksize=30)

    return make


def stream(table: pa.Table, **options: Any) -> Write:
    return arrow(table, "stream", **options)


def message_ends(path: Path) -> list[int]:
    """Return where the messages of a stream of three batches end: schema, batches,
    marker of the end.
    """
    with path.open("rb") as file:
        ends = []
        while (
            (message := ipc.read_message(file)) is not None if len(ends) < 4 else False
        ):
            assert message is not None
            ends.append(file.tell())
    return [*ends, path.stat().st_size]


def cut_stream(message: int, inside: int = 0) -> Write:
    """Cut a stream behind its message of this number, or so many bytes before that."""

    def make(path: Path) -> None:
        stream(GOOD)(path)
        cut(stream(GOOD), message_ends(path)[message] - inside)(path)

    return make


def bad_offsets(kind: str) -> Write:
    """Write the offset of the second batch's third text anew: a read there would
    leave the buffer.
    """

    def make(path: Path) -> None:
        arrow(GOOD, kind)(path)
        data = path.read_bytes()
        lengths = [len(word) for word in WORDS[30:60]]
        offsets = struct.pack("<31i", *itertools.accumulate(lengths, initial=0))
        at = data.index(offsets)
        path.write_bytes(data[: at + 8] + struct.pack("<i", 1 << 30) + data[at + 12 :])

    return make


def absurd_size(path: Path) -> None:
    """Let a compressed buffer claim to have 2^60 bytes."""
    table = pa.table({"text": ["x" * 1000] * 30})
    arrow(table, compression="zstd")(path)
    data = path.read_bytes()
    at = data.index(struct.pack("<q", 30_000))
    path.write_bytes(data[:at] + struct.pack("<q", 1 << 60) + data[at + 8 :])


def two_schemas(path: Path) -> None:
    stream(GOOD)(path)
    first = path.read_bytes()[:-8]
    stream(GOOD.select(["text"]))(path)
    path.write_bytes(first + path.read_bytes())


def followed(path: Path) -> None:
    stream(GOOD)(path)
    path.write_bytes(path.read_bytes() * 2)


BETWEEN = "truncated between two"
NULL_BATCH = pa.table({"text": [*WORDS[:30], None, "b"]})
ARROW = [
    Case("empty", written(b""), "it is empty"),
    Case("something else", written(b"\1\2" * 99), "its schema cannot be"),
    Case(
        "JSON",
        written(b"{}" * 99),
        "it is text and no Arrow file or stream: it begins with '{}{}",
    ),
    Case("old Feather", written(b"FEA1" * 9), "Feather file of version 1"),
    Case(
        "file cut in a batch", cut(arrow(GOOD), 1500), "its footer.*does not end with"
    ),
    Case(
        "file cut in its footer", cut(arrow(GOOD), -20), "its footer.*does not end with"
    ),
    Case("file cut to its magic", cut(arrow(GOOD), 8), FOOTER),
    Case(
        "stream cut in its schema",
        cut_stream(0, 9),
        "its schema.*middle|its schema.*is truncated",
    ),
    Case("stream cut behind its schema", cut_stream(0), f"record batch 0.*{BETWEEN}"),
    Case("stream cut in a batch", cut_stream(2, 100), "record batch 1 .*is truncated"),
    Case("stream cut in metadata", cut_stream(1, -16), "record batch 1 .*is truncated"),
    Case("stream cut between batches", cut_stream(2), f"record batch 2.*{BETWEEN}"),
    Case("stream cut before its end", cut_stream(3), f"record batch 3.*{BETWEEN}"),
    Case("stream goes on", followed, "its end.*other bytes follow"),
    Case("schema changes", two_schemas, "record batch 3 .*another schema"),
    Case("bad offsets in a file", bad_offsets("file"), "record batch 1 .*ffset"),
    Case("bad offsets in a stream", bad_offsets("stream"), "record batch 1 .*ffset"),
    Case(
        "absurd size", absurd_size, "record batch 0 .*takes 1152921504606.* more than"
    ),
    Case("column twice", arrow(TWICE), "several columns of the same name: text"),
    no_text(
        "text missing",
        stream(pa.table({"txt": WORDS})),
        "has no column 'text'.*columns are txt",
    ),
    no_text("text an extension", arrow(pa.table({"text": EXTENSION})), UNKNOWN),
    no_text(
        "text JSON", stream(AS_JSON), r"holds extension<arrow\.json>, expected strings"
    ),
    Case("null text", stream(NULL_BATCH), set_aside=((30, "null_text"),), kept=31),
    Case("invalid UTF-8", arrow(NOT_UTF8), set_aside=((1, "invalid_utf8"),), kept=2),
    Case("file of no batches", arrow(GOOD.slice(0, 0))),
    Case("stream of no batches", stream(GOOD.slice(0, 0))),
]
ALL = [
    (case, suffix)
    for cases, suffix in ((PARQUET, "parquet"), (ARROW, "arrow"))
    for case in cases
]


@pytest.mark.parametrize(
    ("case", "suffix"), ALL, ids=[f"{suffix}: {case.name}" for case, suffix in ALL]
)
def test_every_kind_of_damage_gets_its_policy_and_place(
    case: Case, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sixteenth, to save the time of unfolding them.
    for module in (reading_unfolding, unfolding):
        monkeypatch.setattr(module, "UNFOLDED_BYTES", 1 << 26)
    path = tmp_path / f"in.{suffix}"
    case.write(path)
    if case.refused is None:
        batches = read(path, 1, **case.options)
        assert len(texts(batches)) == case.kept
        assert faults(batches) == [
            (row, None, reason) for row, reason in case.set_aside
        ]
        assert sum(batch.rows_read for batch in batches) == case.kept + len(
            case.set_aside
        )
        _fails_at_the_first(path, case)
        return
    place = f"in\\.{suffix}: .*{case.refused}"
    for policy in ("quarantine", "fail"):
        with pytest.raises(DamagedFileError, match=place):
            read(path, 1, on_bad_record=policy, **case.options)
    if case.rows:
        with pytest.raises(DamagedFileError, match=place):
            rows(path, unit_size=1)
    elif "bomb" not in case.name:
        assert len(rows(path, unit_size=1)) > 0


def _fails_at_the_first(path: Path, case: Case) -> None:
    if not case.set_aside:
        assert len(positions(rows(path, unit_size=1))) == case.kept
        return
    row, reason = case.set_aside[0]
    with pytest.raises(BadRecordError, match=f"{path.name}: {reason} at row {row}: "):
        read(path, 1, on_bad_record="fail", **case.options)
