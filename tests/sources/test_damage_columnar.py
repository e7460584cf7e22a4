"""The catalogue of damage of Parquet and Arrow: what each case gets, how often, and exactly where.

F: the file is refused with its name and the place, whatever the policy. Q: the record is set aside
with its row and reason. OK: nothing is wrong.
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
from tests.sources.support import Source, faults, one, texts
from tokenlake.errors import BadRecordError, DamagedFileError
from tokenlake.reading import pages
from tokenlake.sources import columnar
from tokenlake.sources.records import read_range, read_rows
from tokenlake.sources.splits import split_file

WORDS = [f"document {n} " * (n % 7 + 1) for n in range(90)]
GOOD = pa.table({"id": range(90), "text": WORDS})
NOT_UTF8 = pa.array([b"ok", b"\xff\xfe", "é".encode()], pa.binary()).view(pa.string())


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


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case.

    Attributes:
        write: makes the file.
        refused: what the message of the DamagedFileError says, None where the file is read.
        set_aside: (row, reason) of the bad records.
        kept: how many texts are read.
        rows: whether `read_rows` refuses the file as well.
        options: of the source.
    """

    name: str
    write: Callable[[Path], object]
    refused: str | None = None
    set_aside: tuple[tuple[int, str], ...] = ()
    kept: int = 0
    rows: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def parquet(table: pa.Table, **options: Any) -> Callable[[Path], object]:
    settings = {"row_group_size": 30, "write_page_checksum": True, "compression": "none", **options}
    return lambda path: pq.write_table(table, path, **settings)


def cut(write: Callable[[Path], object], keep: int) -> Callable[[Path], object]:
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
    write_by_hand(path, [page(DATA_PAGE, plain_texts([b"a"]), 1, PLAIN, size=2_000_000_000)], 1, codec="zstd")


PARQUET = [
    Case(name="empty", write=lambda path: path.write_bytes(b""), refused="its footer cannot be read"),
    *(
        Case(name=f"cut to {size}", write=cut(parquet(GOOD), size), refused="its footer cannot be read")
        for size in (3, 4, 900, -1, -9)
    ),
    Case(name="page flipped", write=flipped, refused="row group 1, column.* cannot be read"),
    Case(
        name="text missing",
        write=parquet(pa.table({"txt": WORDS})),
        refused="has no column 'text'.*columns are txt",
        rows=False,
    ),
    Case(
        name="text retyped",
        write=parquet(pa.table({"text": range(90)})),
        refused="holds int64, expected strings",
        rows=False,
    ),
    Case(
        name="text binary",
        write=parquet(pa.table({"text": [b"a"]})),
        refused="holds binary, expected strings",
        rows=False,
    ),
    Case(
        name="text nested",
        write=parquet(pa.table({"text": [["a"]]})),
        refused="holds list<.*>, expected strings",
        rows=False,
    ),
    Case(
        name="text a struct",
        write=parquet(pa.table({"text": [{"body": "a"}]})),
        refused="holds struct<.*>, expected strings",
        rows=False,
    ),
    Case(
        name="text an extension",
        write=parquet(pa.table({"text": EXTENSION})),
        refused=r"holds the extension type tests\.uuid, expected strings",
        rows=False,
    ),
    Case(
        name="text JSON",
        write=parquet(pa.table({"text": pa.array(["{}"], pa.json_())})),
        refused=r"holds extension<arrow\.json>, expected strings",
        rows=False,
    ),
    Case(
        name="column twice",
        write=parquet(pa.table([WORDS, WORDS], names=["text", "text"])),
        refused="several columns of the same name: text",
    ),
    Case(
        name="null text",
        write=parquet(pa.table({"text": ["a", None, "b"]}), row_group_size=1),
        set_aside=((1, "null_text"),),
        kept=2,
    ),
    Case(
        name="null struct around the text",
        write=parquet(pa.table({"a": [{"b": "x"}, None, {"b": None}]})),
        set_aside=((1, "null_text"), (2, "null_text")),
        kept=1,
        options={"content_field": "a.b"},
    ),
    Case(
        name="invalid UTF-8",
        write=parquet(pa.table({"text": NOT_UTF8})),
        set_aside=((1, "invalid_utf8"),),
        kept=2,
    ),
    Case(
        name="more rows counted", write=recounted, refused="row group 0, column.* 1 values fewer than the 3"
    ),
    Case(name="no row groups", write=lambda path: pq.ParquetWriter(path, GOOD.schema).close()),
    Case(name="empty row group", write=parquet(GOOD.slice(0, 0))),
    Case(
        name="null bomb",
        write=lambda path: null_bomb(path, 10**9),
        refused="row group 0, column.* unfold to 8000000000 bytes",
    ),
    Case(
        name="dictionary bomb",
        write=lambda path: dictionary_bomb(path, 10**6, 100_000),
        refused="row group 0, column.* unfold to [0-9]{9} bytes",
        rows=False,
    ),
    Case(
        name="page of 2 GB",
        write=huge_page,
        refused="row group 0, column.*a page unfolds to 2000000000 bytes, more than",
    ),
]


def arrow(table: pa.Table, kind: str = "file", **options: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        opened = ipc.new_file if kind == "file" else ipc.new_stream
        with opened(str(path), table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=30)

    return make


def stream(table: pa.Table, **options: Any) -> Callable[[Path], object]:
    return arrow(table, "stream", **options)


def message_ends(path: Path) -> list[int]:
    """Return where the messages of a stream of three batches end: schema, batches, marker of the end."""
    with path.open("rb") as file:
        ends = []
        while (message := ipc.read_message(file)) is not None if len(ends) < 4 else False:
            assert message is not None
            ends.append(file.tell())
    return [*ends, path.stat().st_size]


def cut_stream(message: int, inside: int = 0) -> Callable[[Path], object]:
    """Cut a stream behind its message of this number, or so many bytes before that."""

    def make(path: Path) -> None:
        stream(GOOD)(path)
        cut(stream(GOOD), message_ends(path)[message] - inside)(path)

    return make


def bad_offsets(kind: str) -> Callable[[Path], object]:
    """Write the offset of the second batch's third text anew: a read there would leave the buffer."""

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


ARROW = [
    Case(name="empty", write=lambda path: path.write_bytes(b""), refused="it is empty"),
    Case(
        name="something else", write=lambda path: path.write_bytes(b"{}" * 99), refused="its schema cannot be"
    ),
    Case(
        name="old Feather",
        write=lambda path: path.write_bytes(b"FEA1" * 9),
        refused="Feather file of version 1",
    ),
    Case(name="file cut in a batch", write=cut(arrow(GOOD), 1500), refused="its footer.*does not end with"),
    Case(name="file cut in its footer", write=cut(arrow(GOOD), -20), refused="its footer.*does not end with"),
    Case(name="file cut to its magic", write=cut(arrow(GOOD), 8), refused="its footer cannot be read"),
    Case(
        name="stream cut in its schema",
        write=cut_stream(0, 9),
        refused="its schema.*middle|its schema.*is cut",
    ),
    Case(name="stream cut behind its schema", write=cut_stream(0), refused="record batch 0.*cut between two"),
    Case(name="stream cut in a batch", write=cut_stream(2, 100), refused="record batch 1 .*is cut"),
    Case(name="stream cut in metadata", write=cut_stream(1, -16), refused="record batch 1 .*is cut"),
    Case(name="stream cut between batches", write=cut_stream(2), refused="record batch 2.*cut between two"),
    Case(name="stream cut before its end", write=cut_stream(3), refused="record batch 3.*cut between two"),
    Case(name="stream goes on", write=followed, refused="its end.*other bytes follow"),
    Case(name="schema changes", write=two_schemas, refused="record batch 3 .*another schema"),
    Case(name="bad offsets in a file", write=bad_offsets("file"), refused="record batch 1 .*ffset"),
    Case(name="bad offsets in a stream", write=bad_offsets("stream"), refused="record batch 1 .*ffset"),
    Case(name="absurd size", write=absurd_size, refused="record batch 0 .*takes 1152921504606.* more than"),
    Case(
        name="column twice",
        write=arrow(pa.table([WORDS, WORDS], names=["text", "text"])),
        refused="several columns of the same name: text",
    ),
    Case(
        name="text missing",
        write=stream(pa.table({"txt": WORDS})),
        refused="has no column 'text'.*columns are txt",
        rows=False,
    ),
    Case(
        name="text binary",
        write=arrow(pa.table({"text": [b"a"]})),
        refused="holds binary, expected strings",
        rows=False,
    ),
    Case(
        name="text an extension",
        write=arrow(pa.table({"text": EXTENSION})),
        refused=r"holds the extension type tests\.uuid, expected strings",
        rows=False,
    ),
    Case(
        name="text JSON",
        write=stream(pa.table({"text": pa.array(["{}"], pa.json_())})),
        refused=r"holds extension<arrow\.json>, expected strings",
        rows=False,
    ),
    Case(
        name="null text",
        write=stream(pa.table({"text": [*WORDS[:30], None, "b"]})),
        set_aside=((30, "null_text"),),
        kept=31,
    ),
    Case(
        name="invalid UTF-8",
        write=arrow(pa.table({"text": NOT_UTF8})),
        set_aside=((1, "invalid_utf8"),),
        kept=2,
    ),
    Case(name="file of no batches", write=arrow(GOOD.slice(0, 0))),
    Case(name="stream of no batches", write=stream(GOOD.slice(0, 0))),
]
ALL = [(case, suffix) for cases, suffix in ((PARQUET, "parquet"), (ARROW, "arrow")) for case in cases]


@pytest.mark.parametrize(("case", "suffix"), ALL, ids=[f"{suffix}: {case.name}" for case, suffix in ALL])
def test_every_kind_of_damage_gets_its_policy_and_place(
    case: Case, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pages, columnar):  # a sixteenth, to save the time of unfolding them
        monkeypatch.setattr(module, "UNFOLDED_BYTES", 1 << 26)
    path = tmp_path / f"in.{suffix}"
    case.write(path)
    if case.refused is None:
        batches = read_texts(path, case)
        assert len(texts(batches)) == case.kept
        assert faults(batches) == [(row, None, reason) for row, reason in case.set_aside]
        assert sum(batch.rows_read for batch in batches) == case.kept + len(case.set_aside)
        _fails_at_the_first(path, case)
        return
    place = f"in\\.{suffix}: the file is damaged: .*{case.refused}"
    for policy in ("quarantine", "fail"):
        with pytest.raises(DamagedFileError, match=place):
            read_texts(path, case, on_bad_record=policy)
    if case.rows:
        with pytest.raises(DamagedFileError, match=place):
            read_all(path)
    elif "bomb" not in case.name:
        assert len(read_all(path)) > 0


def _fails_at_the_first(path: Path, case: Case) -> None:
    if not case.set_aside:
        assert sum(map(len, (batch.positions for batch in read_all(path)))) == case.kept
        return
    row, reason = case.set_aside[0]
    with pytest.raises(BadRecordError, match=f"{path.name}: {reason} at row {row}: "):
        read_texts(path, case, on_bad_record="fail")


def read_texts(path: Path, case: Case, **options: Any) -> list[Any]:
    source: Any = Source(**{**case.options, **options})
    return [batch for part in split_file(one(path), 1) for batch in read_range(part, source)]


def read_all(path: Path) -> list[Any]:
    source: Any = Source()
    return [batch for part in split_file(one(path), 1) for batch in read_rows(part, source)]
