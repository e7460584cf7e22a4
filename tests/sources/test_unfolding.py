"""Columns in which little stands for very much: dictionaries, runs and views, as
texts and as rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from tests.sources.support import read, rows
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import unfolding
from tokenlake.runtime.reading import unfolding as reading_unfolding

ROWS = 20_000
ENTRY = "x" * (64 << 10)
LIMIT = 1 << 26
"""Bytes that little may unfold to, a sixteenth of the real bound; all rows together
are 20 times as many.
"""


@pytest.fixture(autouse=True)
def _small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading_unfolding, unfolding):
        monkeypatch.setattr(module, "UNFOLDED_BYTES", LIMIT)


def dictionary(entry: Any) -> Any:
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(ROWS, np.int32)), pa.array([entry])
    )


def runs(entry: Any) -> Any:
    return pa.RunEndEncodedArray.from_arrays(
        pa.array([ROWS], pa.int32()), pa.array([entry])
    )


def views(entry: Any) -> Any:
    one = pa.array(
        [entry], pa.string_view() if isinstance(entry, str) else pa.binary_view()
    )
    validity, view, *data = one.buffers()
    many = pa.py_buffer(view.to_pybytes() * ROWS)
    return pa.Array.from_buffers(one.type, ROWS, [validity, many, *data])


def list_views(entry: Any) -> Any:
    places, sizes = (
        pa.array(np.zeros(ROWS, np.int32)),
        pa.array(np.ones(ROWS, np.int32)),
    )
    return pa.ListViewArray.from_arrays(places, sizes, pa.array([entry]))


def lists_of_entries(entry: Any) -> Any:
    return pa.ListArray.from_arrays(
        pa.array(np.arange(ROWS + 1, dtype=np.int32)), dictionary(entry)
    )


def inside_structs(entry: Any) -> Any:
    return pa.StructArray.from_arrays([dictionary(entry)], ["inner"])


IN_PARQUET = {
    "dictionary": dictionary,
    "lists": lists_of_entries,
    "structs": inside_structs,
}
IN_ARROW = {**IN_PARQUET, "runs": runs, "views": views, "list views": list_views}
CASES = [
    *(("parquet", name) for name in IN_PARQUET),
    *(("arrow", name) for name in IN_ARROW),
]


def write(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=ROWS)
        return path
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize(("suffix", "name"), CASES)
@pytest.mark.parametrize("entry", [ENTRY, ENTRY.encode()], ids=["text", "bytes"])
def test_rows_that_little_unfolds_to_are_refused(
    tmp_path: Path, suffix: str, name: str, entry: Any
):
    column = IN_ARROW[name](entry)
    path = write(
        tmp_path / f"in.{suffix}", pa.table({"text": ["a"] * ROWS, "x": column})
    )
    assert len(read(path)[0].text)  # a column that nobody reads does no harm
    with pytest.raises(DamagedFileError, match=f"in.{suffix}: .*decompress"):
        rows(path)


@pytest.mark.parametrize(
    ("suffix", "name"),
    [
        (suffix, name)
        for suffix, name in CASES
        if "list" not in name and name != "structs"
    ],
)
@pytest.mark.parametrize("entry", [ENTRY, ENTRY.encode()], ids=["text", "bytes"])
def test_texts_that_little_unfolds_to_are_refused(
    tmp_path: Path, suffix: str, name: str, entry: Any
):
    path = write(tmp_path / f"in.{suffix}", pa.table({"text": IN_ARROW[name](entry)}))
    with pytest.raises(DamagedFileError, match=f"in.{suffix}: .*decompress"):
        read(path)


@pytest.mark.parametrize(("suffix", "name"), CASES)
def test_short_entries_are_read_however_often_they_come(
    tmp_path: Path, suffix: str, name: str
):
    path = write(tmp_path / f"in.{suffix}", pa.table({"x": IN_ARROW[name]("en")}))
    found = [row for batch in rows(path) for row in batch.rows.column("x").to_pylist()]
    assert len(found) == ROWS
    assert found[-1] in ("en", ["en"], {"inner": "en"})
