"""Every way in which a compressed file is broken or named wrongly, and what becomes
of it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sources.damage_support import Damage, check, named
from tests.sources.support import (
    COMPRESS,
    PACK,
    Source,
    one,
    positions,
    read,
    texts,
    written,
    zstd,
)
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import Want, byte_stream, opened, reader_of, split_file

BODIES = {
    "jsonl": b'{"text":"a"}\n' * 500,
    "csv": b"text\n" + b"some words\n" * 500,
    "txt": b"some words\n" * 500,
}


def zipped(data: bytes) -> bytes:
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in", data)
    return box.getvalue()


PACKERS = {
    "gzip": gzip.compress,
    "zstd": zstd,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": zipped,
}
NAMES = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
SKIPPABLE = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello"


def cases() -> Iterator[Damage]:
    for kind, body in BODIES.items():
        for end, compress in COMPRESS.items():
            whole, name = compress(body), NAMES[end]
            other = next(each for each in COMPRESS if each != end)
            corrupt = f"its {name} stream is cut or corrupt between bytes "
            foreign = f"are those of {NAMES[other]}, its name says {name}. "
            broken = {
                "cut by a byte": (whole[:-1], corrupt),
                "cut in the middle": (whole[: len(whole) // 2], corrupt),
                "cut in the second member": (whole + whole[:-3], corrupt),
                "words after the end": (whole + b"the end", corrupt),
                # xz allows zeros in multiples of four
                "zeros after the end": (whole + bytes(63), corrupt),
                "plain text": (
                    body,
                    f"it is no {name} stream, although its name indicates it. Remove that",
                ),
                "other compression": (COMPRESS[other](body), foreign),
                "no bytes": (b"", f"it is empty, not even an empty {name} stream"),
                "compressed twice": (
                    compress(whole),
                    f"its {name} stream contains {name}, but its name indicates ",
                ),
            }
            for what, (data, told) in broken.items():
                file = f"in.{kind}{end}"
                yield Damage(
                    name=f"{file}, {what}",
                    data=data,
                    policy="F",
                    reason=told,
                    file=file,
                )
        for what, pack in PACKERS.items():
            told = f"its first bytes are those of {what}, its name says uncompressed "
            yield Damage(
                name=f"in.{kind}, {what}",
                data=pack(body),
                policy="F",
                reason=told,
                file=f"in.{kind}",
            )


@pytest.mark.parametrize("case", named(list(cases())))
def test_damage(tmp_path: Path, case: Damage) -> None:
    check(tmp_path, case)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (gzip.compress(b"a", mtime=0), r"\. Name it with \.gz at the end"),
        (bz2.compress(b"a"), r"\. Name it with \.bz2 at the end"),
        (
            zipped(b"a"),
            r"\. Decompress it, or compress it with gzip, zstd, lz4, bzip2 or xz: zip is not read",
        ),
    ],
)
def test_the_message_says_how_to_mend_a_name(
    tmp_path: Path, data: bytes, told: str
) -> None:
    with pytest.raises(DamagedFileError, match=told):
        read(written(tmp_path, data, "in.txt"))


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("end", COMPRESS)
def test_members_and_frames_are_read_whole(tmp_path: Path, kind: str, end: str) -> None:
    compress, body = COMPRESS[end], BODIES[kind]
    members = compress(body[:40]) + compress(b"") + compress(body[40:])
    path, plain = (
        written(tmp_path, members, f"in.{kind}{end}"),
        written(tmp_path, body, f"plain.{kind}"),
    )
    assert len(split_file(one(path), 10)) == 1
    batches, expected = read(path), read(plain)
    assert texts(batches) == texts(expected)
    assert positions(batches) == positions(expected)
    assert sum(batch.bytes_read for batch in batches) == len(members)


@pytest.mark.parametrize("place", ["first", "between", "last"])
def test_skippable_frames_are_skipped(tmp_path: Path, place: str) -> None:
    frames = [zstd(b"some "), zstd(b"words")]
    frames.insert({"first": 0, "between": 1, "last": 2}[place], SKIPPABLE)
    assert texts(read(written(tmp_path, b"".join(frames), "in.txt.zst"))) == [
        "some words"
    ]


def test_frames_that_do_not_tell_their_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in.txt.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as writer:
        for _ in range(3):
            writer.write(BODIES["txt"])
    assert texts(read(path)) == [BODIES["txt"].decode() * 3]


@pytest.mark.parametrize("end", COMPRESS)
def test_an_empty_stream_is_an_empty_file(tmp_path: Path, end: str) -> None:
    path = written(tmp_path, COMPRESS[end](b""), f"in.txt{end}")
    assert texts(read(path)) == [""]
    assert texts(read(path, text_mode="lines")) == []


# ---- bombs
# -------------------------------------------------------------------------------------------


def bomb(end: str, size: int) -> bytes:
    if end == ".zst":
        return zstd(b"x" * (1 << 20)) * (size >> 20)
    packers = {
        ".gz": zlib.compressobj(9, wbits=31),
        ".bz2": bz2.BZ2Compressor(),
        ".xz": lzma.LZMACompressor(),
    }
    packer = packers[end]
    return (
        b"".join([packer.compress(b"x" * (1 << 20)) for _ in range(size >> 20)])
        + packer.flush()
    )


@pytest.mark.parametrize("end", COMPRESS)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt"])
def test_a_bomb_is_refused_by_what_it_unfolds_to(
    tmp_path: Path, kind: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_stream, "FREE_BYTES", 4 << 20)
    path = written(tmp_path, bomb(end, 24 << 20), f"in.{kind}{end}")
    with pytest.raises(DamagedFileError) as refused:
        read(path, max_expansion=100.0, max_record_bytes=1 << 20)
    assert "more than source.max_expansion = 100.0 times as many" in str(refused.value)
    assert refused.value.details["stored"] <= path.stat().st_size
    assert refused.value.details["unfolded"] < 24 << 20


def test_what_is_small_or_allowed_may_unfold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, bomb(".gz", 8 << 20), "in.txt.gz")
    assert len(texts(read(path, max_expansion=1.0))[0]) == 8 << 20
    monkeypatch.setattr(byte_stream, "FREE_BYTES", 4 << 20)
    assert len(texts(read(path, max_expansion=1032.0))[0]) == 8 << 20
    with pytest.raises(DamagedFileError, match="decompress"):
        read(path, max_expansion=900.0)


def test_the_defaults_allow_gzip_of_anything_up_to_256_megabytes(
    tmp_path: Path,
) -> None:
    assert byte_stream.FREE_BYTES == 256 << 20
    with opened(one(written(tmp_path, b"", "in.txt"))) as data:
        assert data.max_expansion == Source().max_expansion == 1000.0


# ---- how it reads
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "txt"])
@pytest.mark.parametrize("end", PACK)
def test_a_stream_is_read_to_its_end_and_all_of_it_is_counted(
    tmp_path: Path, end: str, suffix: str
) -> None:
    lines = ["text", *(f"line {number}" for number in range(60_000))]
    path = written(tmp_path, PACK[end]("\n".join(lines).encode()), f"in.{suffix}{end}")
    batches = read(path, text_mode="lines")
    assert texts(batches) == (lines if suffix == "txt" else lines[1:])
    assert sum(batch.bytes_read for batch in batches) == path.stat().st_size


def test_remote_bytes_are_asked_for_in_large_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = b"".join(b"%d " % (n * n) for n in range(500_000))
    path = written(tmp_path, gzip.compress(squares, 1), "in.txt.gz")
    asked: list[int] = []
    (part,) = split_file(one(path), 1 << 30)
    with opened(part.file) as data:
        pread = data.pread

        def counted(size: int, offset: int) -> bytes:
            asked.append(size)
            return pread(size, offset)

        monkeypatch.setattr(data, "pread", counted)
        blocks = list(reader_of("text")(part, data, Want(text="text"), None))
    assert [block.text.to_pylist() for block in blocks] == [[squares.decode()]]
    assert path.stat().st_size > 2 << 20
    assert len(asked) < 16  # a head, its pieces, and a few looks for the end
