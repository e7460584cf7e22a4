"""Small files that are read together give what each of them gives by itself, or are
left to be read by themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.support import Source, faults, inputs, normalized, positions, texts
from tokenlake.errors import InputChangedError
from tokenlake.etl.sources import (
    FileRange,
    groups_of,
    read_range,
    read_together,
    split_file,
)

GOOD = [
    b'{"text": "a"}',
    b'{"text": "\\u00e9\\n", "x": 1}',
    '{"a": [1], "text": "é∎"}'.encode(),
    b"",
]
ODD = [
    b" ",
    b'{"text": "b"}\r',
    b'{"text": 3}',
    b'{"text": "a", "text": "b"}',
    b"\xff",
    b'{"text": "c',
    b"\r",
]
LINES = st.one_of(st.sampled_from(GOOD), st.sampled_from(GOOD), st.sampled_from(ODD))
ENDS = st.sampled_from([b"", b"\n", b"\n", b"\r", b" \n\n"])
CONTENT = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(LINES, max_size=5), ENDS
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def whole(folder: Path, contents: Sequence[bytes]) -> list[FileRange]:
    """The files with these contents, each as one range."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, content in enumerate(contents):
        (folder / f"{number:05d}.jsonl").write_bytes(content)
    return [part for file in inputs(folder) for part in split_file(file, 128 << 20)]


def source(**options: Any) -> Any:
    return Source(**options)


def require_same(parts: Sequence[FileRange]) -> bool:
    """Compare both ways of reading; whether the files could be read together."""
    alone = [batch for part in parts for batch in read_range(part, source())]
    found = read_together(parts, source())
    if found is None:
        return False
    assert faults(alone) == []
    assert found.text.to_pylist() == texts(alone)
    assert found.position.tolist() == positions(alone)
    assert found.file.tolist() == [
        batch.file.file_id for batch in alone for _ in batch.positions
    ]
    assert found.normalized == normalized(alone)
    assert found.bytes_read == sum(batch.bytes_read for batch in alone)
    assert found.files == tuple(part.file for part in parts)
    return True


@settings(max_examples=80, deadline=None)
@given(st.lists(CONTENT, min_size=1, max_size=4))
def test_files_read_together_give_what_each_gives_alone(
    scratch: Path, contents: list[bytes]
) -> None:
    require_same(whole(scratch / "any", contents))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from(GOOD), max_size=3), min_size=1, max_size=60))
def test_files_of_good_records_are_read_together(
    scratch: Path, files: list[list[bytes]]
) -> None:
    begin = b'{"text": "first"}'
    assert require_same(
        whole(
            scratch / "good", [b"\n".join([begin, *lines]) + b"\n" for lines in files]
        )
    )


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize(
    "content",
    [
        b'{"text": 1}',
        b"\xef\xbb\xbf" + GOOD[0],
        b" " + GOOD[0],
        b"",
        b"PAR1\x15",
        b'{"text": "a"}\n{"text',
    ],
)
def test_what_must_be_seen_in_its_own_file_is_left_to_it(
    tmp_path: Path, content: bytes, end: bytes
) -> None:
    assert (
        read_together(
            whole(tmp_path / "in", [GOOD[0], content + end, GOOD[1]]), source()
        )
        is None
    )


def test_only_small_whole_plain_files_are_grouped_and_all_in_order(
    tmp_path: Path,
) -> None:
    line = b'{"text": "%s"}\n'
    parts = whole(
        tmp_path / "in",
        [line % (b"x" * (1 << 16 if at in (3, 50) else 40 + at)) for at in range(60)],
    )
    groups = list(groups_of(parts, source()))
    assert [part for group in groups for part in group] == parts
    assert [len(group) for group in groups] == [3, 1, 46, 1, 9]
    alone = [[part] for part in parts]
    assert list(groups_of(parts, source(where="length(text) > 1"))) == alone
    halves = [
        FileRange(file=part.file, start=1, stop=part.stop, weight=part.weight)
        for part in parts
    ]
    assert [len(group) for group in groups_of(halves, source())] == [1] * 60


def test_groups_are_bounded(tmp_path: Path) -> None:
    parts = whole(tmp_path / "in", [b'{"text": "%s"}\n' % (b"x" * 60_000)] * 40)
    sizes = [sum(part.weight for part in group) for group in groups_of(parts, source())]
    assert max(sizes) <= 1 << 20 and len(sizes) == 3


def test_a_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    parts = whole(tmp_path / "in", [GOOD[0], GOOD[1]])
    Path(parts[1].file.url).write_bytes(GOOD[0] + GOOD[0])
    with pytest.raises(InputChangedError):
        read_together(parts, source())
