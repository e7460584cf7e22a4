"""Units depend on their own inputs only, and splits on a document's identity only."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.etl.plan.unit_ranges import group_ranges
from tokenlake.etl.planner import look_at
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


_FILES = st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.integers(0, 3000), max_size=40)


def _groups(files: dict[str, int], unit_size: int = 1000) -> list[list[tuple[str, int, int]]]:
    inputs = [_file(path, files[path]) for path in sorted(files)]
    return [
        [(part.file.path, part.start, part.stop) for part in group]
        for group in group_ranges([split_file(file, unit_size) for file in inputs], unit_size)
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
def test_a_group_is_at_most_a_unit_and_its_last_file(files):
    for group in _groups(files):
        assert sum(stop - start for _, start, stop in group[:-1]) < 1000
        assert all(stop - start < 1500 for _, start, stop in group)


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


def test_notes_name_what_one_worker_must_read_alone():
    source: Any = SimpleNamespace(name="web")
    small = [_file(f"{i}.jsonl.gz", 5) for i in range(3)]
    assert look_at(source, [replace(file, compression="gzip") for file in small], 100)[1] == []
    files = [replace(_file(f"{i}.jsonl.gz", 1000 + i), compression="gzip") for i in range(7)]
    notes = look_at(source, files, 100)[1]
    assert notes[0].startswith("web: 6.jsonl.gz (1006 B) cannot be split: gzip is read from its beginning")
    assert notes[5] == "web: 2 more such files, 1.95 KiB"
    assert notes[6] == "web: no file of it can be split, so that at most 7 workers can work on it at a time"
    (note,) = look_at(source, [replace(_file("a.txt", 1000), format="text"), *small], 100)[1]
    assert "the file is one document" in note
    assert "text_mode: lines" in note
    assert look_at(source, [_file("a.jsonl", 1000)], 100)[1] == []


def test_split_assignment_is_pinned():
    """A change here moves documents between the splits of every dataset ever built: never change it."""
    drawn = split_indices(np.full(24, -5), np.arange(24, dtype=np.int64), [0.5, 0.3, 0.2])
    assert "".join(map(str, drawn)) == GOLDEN_SPLITS
    assert (
        split_indices(np.full(2, 2**63 - 1), np.array([2**62, -1], np.int64), [0.5, 0.5]).tolist()
        == GOLDEN_EDGES
    )


GOLDEN_SPLITS = "122202001110201111210011"
GOLDEN_EDGES = [1, 1]


@given(
    st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 2**62), unique=True, min_size=1, max_size=50)
)
def test_a_document_keeps_its_split_whatever_else_is_there(file, positions):
    together = split_indices(np.full(len(positions), file), np.array(positions, np.int64), [0.9, 0.1])
    alone = [int(split_indices(np.array([file]), np.array([p], np.int64), [0.9, 0.1])[0]) for p in positions]
    assert together.tolist() == alone


@pytest.mark.parametrize("shares", [[1.0], [0.999, 0.001], [0.25, 0.25, 0.5]])
def test_split_shares_are_met(shares):
    drawn = split_indices(np.full(1_000_000, 12345), np.arange(1_000_000, dtype=np.int64), shares)
    found = np.bincount(drawn, minlength=len(shares)) / 1e6
    # Fixed input, so this is exact, not probable; the bound is 5 standard deviations of a fair draw.
    assert np.abs(found - shares).max() < 5 * 0.5 / 1000
