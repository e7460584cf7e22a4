"""Every way in which a text file is no text, and what becomes of it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.sources.damage_support import Damage, check, named
from tests.sources.support import dicts, read, rows, texts, written
from tokenlake.errors import DamagedFileError

LINES: dict[str, Any] = {"text_mode": "lines"}
PROSE = "Text of a few words, and then some more of it.\n" * 40


def aside(
    name: str,
    data: bytes,
    reasons: dict[int, str],
    raw: bytes,
    kept: int = 0,
    **options: Any,
) -> Damage:
    where = {"reason": list(reasons.values()), "place": list(reasons)}
    return Damage(
        name=name,
        data=data,
        policy="Q",
        raw=raw,
        kept=kept,
        file="in.txt",
        options=options,
        **where,
    )


def document(name: str, data: bytes, reason: str, **options: Any) -> Damage:
    return aside(name, data, {0: reason}, data[: 64 << 10], **options)


def mended(
    name: str,
    data: bytes,
    kept: int,
    options: dict[str, Any] | None = None,
    **counts: int,
) -> Damage:
    return Damage(
        name=name,
        data=data,
        policy="N",
        file="in.txt",
        kept=kept,
        reason=counts,
        options=options or {},
    )


def refused(name: str, data: bytes, told: str) -> list[Damage]:
    """The same as a document, as lines and compressed."""
    return [
        Damage(
            name=f"{name}, {mode}{end}",
            data=gzip.compress(data, mtime=0) if end else data,
            policy="F",
            reason=told,
            file=f"in.txt{end}",
            options={"text_mode": mode},
        )
        for mode in ("document", "lines")
        for end in ("", ".gz")
    ]


FILES = [
    *refused(
        "UTF-16 with mark",
        PROSE.encode("utf-16"),
        "begins with ff fe 54 00 and is encoded in UTF-16, expected UTF-8",
    ),
    *refused(
        "UTF-16 big",
        b"\xfe\xff" + PROSE.encode("utf-16-be"),
        "`iconv -f UTF-16 -t UTF-8 OLD > NEW`",
    ),
    *refused(
        "UTF-16 bare",
        PROSE.encode("utf-16-le"),
        "is encoded in UTF-16LE, expected UTF-8. Convert it",
    ),
    *refused(
        "UTF-32",
        PROSE.encode("utf-32-be"),
        "is encoded in UTF-32BE, expected UTF-8. Convert it",
    ),
    *refused("a program", bytes(range(256)) * 40, "it is not text: "),
]
DOCUMENTS = [
    document("NUL", b"a\0b", "nul_byte"),
    document(
        "NUL far behind",
        b"text " * 30_000 + b"\0" * 20,
        "nul_byte",
        max_record_bytes=1 << 20,
    ),
    document("Latin-1", "été".encode("latin-1"), "invalid_utf8"),
    document("cut character", "é".encode()[:1], "invalid_utf8"),
    document("over the limit", b"x" * 100, "document_too_long", max_record_bytes=99),
]
BROKEN = b"one\ntwo\0\n\xff\n" + b"x" * 50 + b"\nlast"
BAD = {4: "nul_byte", 9: "invalid_utf8", 11: "line_too_long"}
OTHER = [
    aside("bad lines", BROKEN, BAD, raw=b"two\0", kept=2, **LINES, max_record_bytes=49),
    aside(
        "character cut by a line end",
        b"a\xc3\n\xa9b\n",
        {0: "invalid_utf8", 3: "invalid_utf8"},
        b"a\xc3",
        **LINES,
    ),
    mended(
        "lines mended",
        b"\xef\xbb\xbfa\r\n\r\n\nb",
        2,
        LINES,
        bom=1,
        crlf=2,
        blank_line=2,
    ),
    mended("document with mark", b"\xef\xbb\xbfa", 1, bom=1),
    mended("no lines", b"", 0, LINES),
    mended("empty document", b"", 1),
]


@pytest.mark.parametrize("case", named([*FILES, *DOCUMENTS, *OTHER]))
def test_damage(tmp_path: Path, case: Damage) -> None:
    check(tmp_path, case)


def test_a_few_control_characters_are_no_binary_file(tmp_path: Path) -> None:
    data = b"\x01\x02\x03 form feed \x0c and escape \x1b[0m" * 2 + PROSE.encode()
    assert len(texts(read(written(tmp_path, data, "in.txt")))) == 1


def test_text_has_one_column(tmp_path: Path) -> None:
    path = written(tmp_path, b"first\nsecond\nthird\n", "in.txt")
    assert dicts(rows(path, unit_size=5)) == [{"text": "first\nsecond\nthird\n"}]
    lines = [{"text": "first"}, {"text": "second"}, {"text": "third"}]
    for columns in (None, ("text",)):
        assert dicts(rows(path, columns, unit_size=5, **LINES)) == lines
    with pytest.raises(
        DamagedFileError,
        match=r"it has no column 'id'; text files have one column, 'text'",
    ):
        rows(path, ("id",))
