"""Every way in which a text file is no text, and what becomes of it."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sources.damage_support import Damage, check, named
from tests.sources.support import Source, one, read, texts
from tokenlake.errors import DamagedFileError
from tokenlake.sources.records import read_rows
from tokenlake.sources.splits import split_file

LINES: dict[str, Any] = {"text_mode": "lines"}
PROSE = "Text of a few words, and then some more of it.\n" * 40


def document(name: str, data: bytes, reason: str, **options: Any) -> Damage:
    return Damage(
        name=name,
        data=data,
        policy="Q",
        reason=[reason],
        place=[0],
        raw=data[: 64 << 10],
        file="in.txt",
        options=options,
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
        "it begins with ff fe 54 00, the byte order mark of UTF-16",
    ),
    *refused("UTF-16 big", b"\xfe\xff" + PROSE.encode("utf-16-be"), "`iconv -f UTF-16 -t UTF-8`"),
    *refused("UTF-16 bare", PROSE.encode("utf-16-le"), "control characters (1880 of them NUL, as in UTF-16"),
    *refused("UTF-32", PROSE.encode("utf-32-be"), "it is not text: 5640 of its first 7520 bytes are control"),
    *refused("a program", bytes(range(256)) * 40, "it is not text: "),
]
DOCUMENTS = [
    document("NUL", b"a\0b", "nul_byte"),
    document("NUL far behind", b"text " * 30_000 + b"\0" * 20, "nul_byte", max_record_bytes=1 << 20),
    document("Latin-1", "été".encode("latin-1"), "invalid_utf8"),
    document("cut character", "é".encode()[:1], "invalid_utf8"),
    document("over the limit", b"x" * 100, "document_too_long", max_record_bytes=99),
]
BROKEN = b"one\ntwo\0\n\xff\n" + b"x" * 50 + b"\nlast"
OTHER = [
    Damage(
        name="bad lines",
        data=BROKEN,
        policy="Q",
        reason=["nul_byte", "invalid_utf8", "line_too_long"],
        place=[4, 9, 11],
        kept=2,
        raw=b"two\0",
        file="in.txt",
        options={**LINES, "max_record_bytes": 49},
    ),
    Damage(name="lines mended", data=b"\xef\xbb\xbfa\r\n\r\n\nb", policy="N", file="in.txt", kept=2,
           reason={"bom": 1, "crlf": 2, "blank_line": 2}, options=LINES),
    Damage(name="document with mark", data=b"\xef\xbb\xbfa", policy="N", file="in.txt", kept=1, reason={"bom": 1}),
    Damage(name="no lines", data=b"", policy="N", file="in.txt", kept=0, reason={}, options=LINES),
    Damage(name="empty document", data=b"", policy="N", file="in.txt", kept=1, reason={}),
]  # fmt: skip


@pytest.mark.parametrize("case", named([*FILES, *DOCUMENTS, *OTHER]))
def test_damage(tmp_path: Path, case: Damage) -> None:
    check(tmp_path, case)


def test_a_few_control_characters_are_no_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\x01\x02\x03 form feed \x0c and escape \x1b[0m" * 2 + PROSE.encode())
    assert len(texts(read(path))) == 1


def rows(path: Path, columns: tuple[str, ...] | None, **options: Any) -> list[dict[str, str]]:
    source: Any = Source(**options)
    parts = split_file(one(path, **options), 5)
    return [row for part in parts for batch in read_rows(part, source, columns) for row in batch.to_dicts()]


def test_text_has_one_column(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"first\nsecond\nthird\n")
    assert rows(path, None) == [{"text": "first\nsecond\nthird\n"}]
    assert rows(path, None, **LINES) == [{"text": "first"}, {"text": "second"}, {"text": "third"}]
    assert rows(path, ("text",), **LINES) == rows(path, None, **LINES)
    with pytest.raises(DamagedFileError, match=r"it has no column 'id'; text files have one column, 'text'"):
        rows(path, ("id",))


SCRIPT = """
import sys
from pathlib import Path
from tests.sources.support import read
bad = [(r.position, r.reason, len(r.raw)) for b in read(Path(sys.argv[1]), text_mode="lines") for r in b.bad]
status = Path("/proc/self/status").read_text()
assert bad == [(2, "line_too_long", 65536)], bad
print(int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.integration
def test_a_line_of_300_megabytes_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    # After some text the line goes on as a hole in the file, which takes no room on disk.
    path = tmp_path / "in.txt"
    size = 300 << 20
    with path.open("wb") as file:
        file.write(b"a\n" + b"x" * (128 << 10))
        file.truncate(size)
        file.seek(size)
        file.write(b"\nb\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["lib", "."])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    path.unlink()
    assert int(done.stdout) < 300
