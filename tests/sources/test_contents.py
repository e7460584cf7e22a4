"""Files that hold something else than their names say: they are named for what they
are, and not called damaged.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.support import (
    Source,
    TextBatch,
    dicts,
    faults,
    one,
    read,
    rows,
    texts,
    written,
)
from tokenlake import inspect
from tokenlake.errors import DamagedFileError, UnsuitableFileError
from tokenlake.etl.sources import read_range, split_file

HTML = b"\n<!DOCTYPE html>\n<html><body>404: not found</body></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345\n"
WRONG: dict[str, tuple[bytes, str]] = {
    "HTML": (HTML, "is an HTML page.* download the file again"),
    "HTML after a mark": (b"\xef\xbb\xbf<HTML lang='en'>", "is an HTML page"),
    "XML": (
        b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>',
        "is an XML document",
    ),
    "Git LFS": (LFS, "is a pointer file of Git LFS.*`git lfs pull`"),
    "git-annex": (
        b"../.git/annex/objects/Zq/mv/SHA256E-s5/SHA256E-s5",
        "is a pointer file of git-annex.*annex get",
    ),
    "UTF-16": (
        '{"text": "a"}\n'.encode("utf-16"),
        "is encoded in UTF-16.*iconv -f UTF-16 -t UTF-8",
    ),
    "UTF-16LE": (
        '{"text": "a"}\n'.encode("utf-16-le"),
        "is encoded in UTF-16LE.*iconv -f UTF-16LE",
    ),
    "UTF-16BE": (
        '{"text": "a"}\n'.encode("utf-16-be"),
        "is encoded in UTF-16BE.*iconv -f UTF-16BE",
    ),
    "UTF-32": ('{"text": "a"}\n'.encode("utf-32"), "is encoded in UTF-32"),
    "UTF-32LE": ('{"text": "a"}\n'.encode("utf-32-le"), "is encoded in UTF-32LE"),
}


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv", "parquet", "arrow"])
@pytest.mark.parametrize("name", WRONG)
def test_a_file_is_named_for_what_it_holds(tmp_path: Path, suffix: str, name: str):
    data, message = WRONG[name]
    path = written(tmp_path, data, f"in.{suffix}")
    for reader in (read, rows):
        with pytest.raises(
            UnsuitableFileError, match=rf"in\.{suffix}: it {message}"
        ) as caught:
            reader(path)
        assert "damaged" not in str(caught.value)
    (finding,) = inspect(str(path)).findings
    assert "damaged" not in finding.what


@pytest.mark.parametrize("name", ["HTML", "UTF-16LE", "Git LFS"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_what_is_in_a_compressed_file_is_named_too(
    tmp_path: Path, suffix: str, name: str
):
    data, message = WRONG[name]
    with pytest.raises(UnsuitableFileError, match=f"it {message}"):
        read(written(tmp_path, gzip.compress(data, mtime=0), f"in.{suffix}.gz"))


@pytest.mark.parametrize("name", ["HTML", "Git LFS", "XML"])
def test_text_may_be_a_page(tmp_path: Path, name: str):
    data, _ = WRONG[name]
    assert texts(read(written(tmp_path, data, "in.txt"))) == [data.decode()]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_only_damage_is_called_damage(tmp_path: Path, suffix: str):
    with pytest.raises(
        UnsuitableFileError, match=r"it is text and no .*: it begins with '\{\"text"
    ):
        read(written(tmp_path, b'{"text": "a"}\n', f"in.{suffix}"))
    with pytest.raises(
        DamagedFileError, match=f"in.{suffix}: the file is damaged"
    ) as caught:
        read(written(tmp_path, b"\x00\x01\x02" * 99, f"in.{suffix}"))
    assert type(caught.value) is DamagedFileError
    table = pa.table({"txt": ["a"]})
    path = tmp_path / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(
        UnsuitableFileError, match=r"it has no column 'text' \(content_field\)"
    ) as caught:
        read(path)
    assert "damaged" not in str(caught.value)


ENCODED = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@settings(deadline=None)
@given(
    st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=2),
    st.text(),
    st.sampled_from(ENCODED),
)
def test_an_encoding_is_told_by_the_first_characters(
    tmp_path_factory: pytest.TempPathFactory, begin: str, rest: str, encoding: str
):
    folder = tmp_path_factory.getbasetemp()
    valid = rest.encode("utf-8", "ignore").decode()
    name = encoding.replace("-", "").replace("utf", "UTF-").upper()
    with pytest.raises(
        UnsuitableFileError, match=f"it is encoded in {name}, expected UTF-8"
    ):
        read(
            written(
                folder,
                (begin[:4].ljust(4, "x") + valid).encode(encoding),
                "encoded.jsonl",
            )
        )
    batches = read(written(folder, ("x" + begin + valid).encode(), "plain.jsonl"))
    assert faults(batches), "a bad record, and no other encoding"


@pytest.mark.parametrize(
    ("file", "delimiter", "option"),
    [
        ("in.csv", ";", '";"'),
        ("in.csv", "\t", r'"\t"'),
        ("in.csv", "|", '"|"'),
        ("in.tsv", ",", '","'),
    ],
)
def test_a_wrong_delimiter_is_named_with_the_right_one(
    tmp_path: Path, file: str, delimiter: str, option: str
):
    data = f"id{delimiter}text\n1{delimiter}a, b\n".encode()
    path = written(tmp_path, data, file)
    for reader in (read, rows):
        with pytest.raises(
            UnsuitableFileError, match=r"its header is one column.*"
        ) as caught:
            reader(path)
        assert f"Set delimiter: {option} (" in str(caught.value)
    right = rows(path, delimiter=delimiter)
    assert len(dicts(right)) == (0 if delimiter == "," else 1)


def test_a_wrong_delimiter_is_named_where_the_header_has_others_too(tmp_path: Path):
    path = written(tmp_path, b"id;text;price, net\n1;a;1,5\n", "in.csv")
    with pytest.raises(
        UnsuitableFileError,
        match=r"no column 'text'; ';' seems .* Set delimiter: \";\",",
    ):
        read(path)
    assert texts(read(path, delimiter=";")) == ["a"]


def test_a_column_may_be_called_like_several_where_the_delimiter_is_declared(
    tmp_path: Path,
):
    path = written(tmp_path, b"a;b\n1;2\n", "in.csv")
    assert dicts(rows(path, delimiter=",")) == [{"a;b": "1;2"}]


def test_a_header_of_very_many_columns_is_read_and_has_a_bound(tmp_path: Path):
    """Comparing each of 100,001 names with each other one would take an hour."""
    names = [f"c{number}" for number in range(100_000)]
    line = ",".join([*names, "text"]) + "\n" + "," * len(names) + "x\n"
    assert texts(read(written(tmp_path, line.encode(), "in.csv"))) == ["x"]
    most = 1 << 17
    line = ",".join(f"c{number}" for number in range(most + 1)) + "\n"
    with pytest.raises(
        UnsuitableFileError, match=rf"line 1\) has {most + 1} columns, more than {most}"
    ):
        read(written(tmp_path, line.encode(), "in.csv"))


def with_columns(path: Path, columns: tuple[str, ...]) -> list[TextBatch]:
    source = Source(on_bad_record="quarantine")
    return [
        batch
        for part in split_file(one(path), 1 << 20)
        for batch in read_range(part, source, columns)
    ]


BYTES: list[Any] = [
    pa.binary(),
    pa.large_binary(),
    pa.binary(2),
    pa.dictionary(pa.int8(), pa.binary()),
]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", BYTES, ids=str)
def test_bytes_of_utf8_are_text_and_others_are_bad_records(
    tmp_path: Path, suffix: str, kind: Any
):
    values = [b"ab", "é".encode(), b"\xff\xfe", None]
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    column = pa.array(values, inner)
    table = pa.table(
        {
            "text": column.dictionary_encode() if inner != kind else column,
            "n": [1, 2, 3, 4],
        }
    )
    path = tmp_path / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, store_schema=False)
    else:
        with ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    for columns in ((), ("n",)):
        batches = with_columns(path, columns)
        assert texts(batches) == ["ab", "é"]
        assert faults(batches) == [(2, None, "invalid_utf8"), (3, None, "null_text")]


@pytest.mark.parametrize("column", ["runs", "view"])
def test_texts_as_runs_and_views_are_read(tmp_path: Path, column: str):
    values = ["a", "a", "long enough to lie outside of its view", None]
    array: Any = pa.array(values, pa.string_view())
    if column == "runs":
        array = pa.RunEndEncodedArray.from_arrays(
            [2, 3, 4], pa.array([values[0], *values[2:]])
        )
    table = pa.table({"text": array, "again": array})
    with ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as writer:
        writer.write_table(table)
    batches = with_columns(tmp_path / "in.arrow", ("again",))
    assert texts(batches) == values[:3]
    assert [row["again"] for row in dicts(rows(tmp_path / "in.arrow"))] == values
