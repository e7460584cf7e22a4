"""Every way in which CSV is broken, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.damage_support import Damage, check, named
from tests.sources.support import dicts, read, rows, texts, written
from tokenlake.errors import ConfigError, DamagedFileError

HEAD = b"id,text\n"


def refused(name: str, data: bytes, reason: str, limit: int = 256 << 20) -> Damage:
    return Damage(
        name=name,
        data=data,
        policy="F",
        reason=reason,
        options={"max_record_bytes": limit},
    )


def unusable(name: str, header: bytes, reason: str, limit: int = 256 << 20) -> Damage:
    told = f"its header (line 1) cannot be used: {reason}"
    return refused(f"header: {name}", header + b"1,a\n", told, limit)


def aside(
    name: str, data: bytes, reason: str, row: int, raw: bytes, kept: int = 2
) -> Damage:
    """One bad row, `data` being the rows."""
    return Damage(
        name=name,
        data=HEAD + data,
        policy="Q",
        reason=[reason],
        place=[row],
        kept=kept,
        raw=raw,
    )


def mended(name: str, data: bytes, kept: int, **counts: int) -> Damage:
    return Damage(name=name, data=data, policy="N", reason=counts, kept=kept)


FILE = [
    refused("no bytes", b"", "it is empty, expected at least a header"),
    refused("blank lines only", b"\n\r\n\n", "it is empty, expected at least a header"),
    refused(
        "byte order mark only",
        b"\xef\xbb\xbf",
        "it is empty, expected at least a header",
    ),
    refused(
        "duplicate column",
        b"text,id,text\n1,a,b\n",
        "its header names columns twice: 'text'",
    ),
    refused(
        "two nameless columns", b",text,\n1,a,b\n", "its header names columns twice: ''"
    ),
    refused(
        "quoted duplicate",
        b'a,text,"text"\n1,2,3\n',
        "its header names columns twice: 'text'",
    ),
    refused(
        "UTF-16 with mark",
        "id,text\n1,a\n".encode("utf-16"),
        "is encoded in UTF-16, expected UTF-8",
    ),
    refused(
        "UTF-16 big",
        b"\xfe\xff" + "id,text\n".encode("utf-16-be"),
        "`iconv -f UTF-16 -t UTF-8 OLD > NEW`",
    ),
    refused(
        "UTF-16 bare",
        "id,text\n1,a\n".encode("utf-16-le"),
        "is encoded in UTF-16LE, expected UTF-8",
    ),
    unusable("not UTF-8", b"id,text,\xff\n", "the row is not valid"),
    unusable("stray quote", b'id,te"xt\n', "a quote inside"),
    unusable("old Mac line ends", b"id,text\r1,a\r", "a carriage return without"),
    unusable("long", b"id,text," + b"x" * 90 + b"\n", "the row has 98 bytes", limit=50),
    refused(
        "quote never closed",
        HEAD + b'1,a\n2,"b\n3,c\n',
        "a cell on line 3 is never closed",
    ),
    refused(
        "quote never closed, last byte",
        HEAD + b'1,a\n2,"',
        "a cell on line 3 is never closed",
    ),
    refused(
        "quote never closed in header",
        b'id,"text\n1,a\n',
        "a cell on line 1 is never closed",
    ),
    refused(
        "quote closed by the next one",
        HEAD + b'1,"a\n2,"b"\n3,"c"\n',
        "a cell on line 2 is closed on a later line, in the middle of a cell",
    ),
    refused(
        "quoted cell over the limit",
        HEAD + b'1,"' + b"ab\n" * 40 + b'"\n2,b\n',
        "a cell on line 2 is not closed within max_record_bytes = 99",
        limit=99,
    ),
]

ROWS = [
    aside("too few cells", b"1,a\n2\n3,c\n", "ragged_row", 1, b"2"),
    aside("too many cells", b'1,a\n2,b,"x"\n3,c\n', "ragged_row", 1, b'2,b,"x"'),
    aside("white space is no blank line", b"1,a\n  \n3,c\n", "ragged_row", 1, b"  "),
    aside("cut last row", b"1,a\n2,b\n3", "ragged_row", 2, b"3"),
    aside(
        "text not UTF-8", b"1,a\n2,\xe9t\xe9\n3,c\n", "invalid_utf8", 1, b"2,\xe9t\xe9"
    ),
    aside("other cell not UTF-8", b"1,a\n\xff,b\n3,c\n", "invalid_utf8", 1, b"\xff,b"),
    aside(
        "character cut by a delimiter",
        b"\xc3,\xa9\n2,b\n3,c\n",
        "invalid_utf8",
        0,
        b"\xc3,\xa9",
    ),
    aside(
        "surrogate", b"1,a\n2,\xed\xa0\x80\n3,c\n", "invalid_utf8", 1, b"2,\xed\xa0\x80"
    ),
    aside("NUL", b"1,a\n2,b\0\n3,c\n", "nul_byte", 1, b"2,b\0"),
    aside("NUL in quotes", b'1,a\n2,"b\0,"\n3,c\n', "nul_byte", 1, b'2,"b\0,"'),
    aside(
        "quote in a bare cell", b'1,a\n2,5" disk\n3,c\n', "stray_quote", 1, b'2,5" disk'
    ),
    aside(
        "words after a quoted cell",
        b'1,a\n2,"b" x\n3,c\n',
        "stray_quote",
        1,
        b'2,"b" x',
    ),
    aside(
        "backslash escapes",
        b'1,a\n2,"b \\" x"\n3,c\n',
        "stray_quote",
        1,
        b'2,"b \\" x"',
    ),
    aside("space before a quote", b'1,a\n2, "b"\n3,c\n', "stray_quote", 1, b'2, "b"'),
    aside("bare carriage return", b"1,a\n2,b\rc\n3,c\n", "bare_return", 1, b"2,b\rc"),
]

MENDED = [
    mended("byte order mark", b"\xef\xbb\xbfid,text\n1,a\n", 1, bom=1),
    mended("CRLF", b'id,text\r\n1,"a\r\nb"\r\n2,c', 2, crlf=2),
    mended("blank lines", b"\nid,text\n\n1,a\n\r\n", 1, blank_line=3, crlf=1),
    mended("blank lines of one column", b'text\na\n\n""\n', 2, blank_line=1),
    mended("header only", b"id,text\n", 0),
    mended("header without an end", b"id,text", 0),
    mended("nameless index column", b",text\n0,a\n", 1),
]


@pytest.mark.parametrize("case", named([*FILE, *ROWS, *MENDED]))
def test_damage(tmp_path: Path, case: Damage) -> None:
    check(tmp_path, case)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"id,txt\n1,a\n",
            r"it has no column 'text' \(content_field\); its columns are 'id', 'txt'\.",
        ),
        (
            b"id\n1\n",
            r"it has no column 'text' \(content_field\); its columns are 'id'\.",
        ),
    ],
)
def test_a_missing_text_column_is_named(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = written(tmp_path, data, "in.csv")
    with pytest.raises(DamagedFileError, match=message):
        read(path)
    assert len(dicts(rows(path))) == 1  # rows are whole without it
    with pytest.raises(DamagedFileError, match="it has no column 'lang'; "):
        rows(path, ("lang",))


def test_many_bad_rows_of_a_block_have_their_lines(tmp_path: Path) -> None:
    body = b"".join(b'%d,"a\nb"\n' % n if n % 3 else b"%d\n" % n for n in range(30))
    batches = read(written(tmp_path, HEAD + body, "in.csv"))
    lines = [record.line for batch in batches for record in batch.bad]
    assert lines == [2 + n // 3 * 5 for n in range(0, 30, 3)]
    assert texts(batches) == ["a\nb"] * 20


def test_a_row_over_the_limit_is_set_aside(tmp_path: Path) -> None:
    path = written(
        tmp_path, HEAD + b"1,a\n2," + b"x" * 500 + b'\r\n3,"c\n"\n4\n', "in.csv"
    )
    batches = read(path, max_record_bytes=99)
    bad = [record for batch in batches for record in batch.bad]
    assert [(r.position, r.reason, r.raw[:4], len(r.raw)) for r in bad] == [
        (1, "record_too_long", b"2,xx", 502),
        (3, "ragged_row", b"4", 1),
    ]
    assert bad[0].detail == "the row has 502 bytes, max_record_bytes is 99"
    assert [record.line for record in bad] == [3, 6]
    assert texts(batches) == ["a", "c\n"]


@pytest.mark.parametrize("delimiter", ["ab", "é", '"', "\n"])
def test_a_delimiter_is_one_character_of_ascii(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(ConfigError, match="must be one ASCII character"):
        read(written(tmp_path, HEAD, "in.csv"), delimiter=delimiter)


def test_a_row_of_half_a_million_cells_is_set_aside_without_noting_each(
    tmp_path: Path,
) -> None:
    data = HEAD + b"1,a\n" + b"x" * (2 << 20) + b"," * 500_000 + b"\n3,c\n"
    batches = read(written(tmp_path, data, "in.csv"))
    (bad,) = [record for batch in batches for record in batch.bad]
    assert (bad.position, bad.reason, len(bad.raw)) == (1, "ragged_row", 64 << 10)
    assert bad.detail == "the row has 500001 cells, the header has 2"
    assert bad.line == 3
    assert texts(batches) == ["a", "c"]
