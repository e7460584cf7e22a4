"""Units depend on their own inputs only, and splits on a document's identity only."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.builds import config_of
from tokenlake import plan
from tokenlake.etl.plan import group_ranges
from tokenlake.etl.sources import InputFile, split_file
from tokenlake.etl.unit import split_indices


def _file(path: str, size: int) -> InputFile:
    return InputFile(
        source="s",
        path=path,
        url=f"/{path}",
        size=size,
        token="sha256:00",
        stat=(0, 0, 0),
        format="jsonl",
        compression=None,
        file_id=0,
        text_mode="document",
    )


_FILES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=6), st.integers(0, 3000), max_size=40
)


def _groups(
    files: dict[str, int], unit_size: int = 1000
) -> list[list[tuple[str, int, int]]]:
    inputs = [_file(path, files[path]) for path in sorted(files)]
    return [
        [(part.file.path, part.start, part.stop) for part in group]
        for group in group_ranges(
            [split_file(file, unit_size) for file in inputs], unit_size
        )
    ]


@given(_FILES)
def test_units_cover_every_byte_once_in_path_order(files):
    covered = [part for group in _groups(files) for part in group]
    assert [path for path, start, _ in covered if start == 0] == sorted(files)
    for path, size in files.items():
        parts = [(start, stop) for name, start, stop in covered if name == path]
        assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
        assert parts[-1][1] == size


@given(_FILES)
@example({"a": 1500})
def test_a_group_is_at_most_a_unit_and_its_last_file(files):
    for group in _groups(files):
        assert sum(stop - start for _, start, stop in group[:-1]) < 1000
        assert all(stop - start < 1500 for _, start, stop in group)


def test_a_group_ends_as_soon_as_it_is_a_unit():
    """None of these names ends a group by its hash, but four of the files are
    exactly a unit.
    """
    groups = _groups(dict.fromkeys("acegh", 250))
    assert [[path for path, _, _ in group] for group in groups] == [
        ["a", "c", "e", "g"],
        ["h"],
    ]


def test_an_added_file_changes_only_the_groups_around_it():
    files = {f"{i:04d}": 40 + i % 90 for i in range(2000)}
    before = {tuple(group) for group in _groups(files)}
    after = {tuple(group) for group in _groups(files | {"0999x": 77})}
    assert len(before) > 100
    assert len(before - after) <= 4
    assert len(after - before) <= 4


def test_many_tiny_files_are_several_units():
    """However small files are, a unit has at most about 4,096 of them."""
    groups = _groups({f"{i:05d}": 10 for i in range(20_000)}, unit_size=1 << 27)
    assert 5 <= len(groups) <= 30
    assert max(map(len, groups)) <= 4096


def test_a_file_without_ranges_is_in_no_unit():
    assert list(group_ranges([[], split_file(_file("a", 5), 1000), []], 1000)) == [
        tuple(split_file(_file("a", 5), 1000))
    ]


def _notes(folder: Path, tokenizer: Path) -> tuple[str, ...]:
    config = config_of(folder, folder / "in", tokenizer, name="web", pack=16)
    return plan({**config, "source": {"unit_size": 2000}}).notes


def _compressed(path: Path, size: int) -> None:
    """Write a file of JSON Lines that gzip leaves at about `size` bytes."""
    words = random.Random(path.name).randbytes(size * 9 // 10).hex()
    path.write_bytes(gzip.compress(json.dumps({"text": words}).encode(), mtime=0))


def test_notes_name_what_one_worker_must_read_alone(
    tmp_path: Path, tokenizer_dir: Path
):
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number in range(3):
        _compressed(inputs / f"small{number}.jsonl.gz", 300)
    assert _notes(tmp_path, tokenizer_dir) == ()
    (inputs / "a.txt").write_text("words of a document. " * 200)
    (note,) = _notes(tmp_path, tokenizer_dir)
    assert "the file is one document" in note
    assert "text_mode: lines" in note
    for path in inputs.iterdir():
        path.unlink()
    (inputs / "a.jsonl").write_text('{"text": "some words of a document"}\n' * 200)
    assert _notes(tmp_path, tokenizer_dir) == ()
    (inputs / "a.jsonl").unlink()
    for number in range(7):
        _compressed(inputs / f"{number}.jsonl.gz", 4000 + 500 * number)
    notes = _notes(tmp_path, tokenizer_dir)
    assert len(notes) == 7
    assert re.match(
        r"web: 6\.jsonl\.gz \(\S+ KiB\) cannot be split: gzip is read from its beginning",
        notes[0],
    )
    assert re.fullmatch(r"web: 2 more such files, \S+ KiB", notes[5])
    assert (
        notes[6]
        == "web: none of its files can be split, so at most 7 workers can work on it at a time"
    )


def test_split_assignment_is_pinned():
    """A change here moves documents between the splits of every dataset ever built:
    never change it.
    """
    drawn = split_indices(
        np.full(24, -5), np.arange(24, dtype=np.int64), [0.5, 0.3, 0.2]
    )
    assert "".join(map(str, drawn)) == GOLDEN_SPLITS
    assert (
        split_indices(
            np.full(2, 2**63 - 1), np.array([2**62, -1], np.int64), [0.5, 0.5]
        ).tolist()
        == GOLDEN_EDGES
    )


GOLDEN_SPLITS = "122202001110201111210011"
GOLDEN_EDGES = [1, 1]


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(0, 2**62), unique=True, min_size=1, max_size=50),
)
def test_a_document_keeps_its_split_whatever_else_is_there(file, positions):
    together = split_indices(
        np.full(len(positions), file), np.array(positions, np.int64), [0.9, 0.1]
    )
    alone = [
        int(split_indices(np.array([file]), np.array([p], np.int64), [0.9, 0.1])[0])
        for p in positions
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("shares", [[1.0], [0.999, 0.001], [0.25, 0.25, 0.5]])
def test_split_shares_are_met(shares):
    drawn = split_indices(
        np.full(1_000_000, 12345), np.arange(1_000_000, dtype=np.int64), shares
    )
    found = np.bincount(drawn, minlength=len(shares)) / 1e6
    # Fixed input, so this is exact, not probable; the bound is 5 standard deviations of
    # a fair draw.
    assert np.abs(found - shares).max() < 5 * 0.5 / 1000
