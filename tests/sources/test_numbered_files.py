"""Notes on numbered files of which some are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds import config_of
from tokenlake import DatasetIntrospector, load_config
from tokenlake.config.resolve import resolve
from tokenlake.etl import make_plan
from tokenlake.etl.sources import missing_numbers

TEN = [f"part-{number:05d}-of-00010.jsonl" for number in range(10)]

INCOMPLETE: dict[str, tuple[list[str], str]] = {
    "zeros": (
        TEN[:3] + TEN[4:],
        "9 of 10 numbered files: part-00003-of-00010 is missing",
    ),
    "the last one": (TEN[:9], "9 of 10 numbered files: part-00009-of-00010 is missing"),
    "many": (
        TEN[:1],
        "1 of 10 numbered files: part-00001-of-00010, part-00002-of-00010, part-00003-of-00010 and 6 more are missing",
    ),
    "from 1": (
        [f"data.shard-{number}-of-9" for number in range(1, 10) if number != 7],
        "8 of 9 numbered files: data.shard-7-of-9 is missing",
    ),
    "from 0 or 1": (
        [f"a/x_{number}_of_4.csv" for number in (1, 2, 3)],
        "3 of 4 numbered files: x_0_of_4 or x_4_of_4 is missing",
    ),
    "more digits": (
        [f"{number}of12.txt" for number in range(1, 13) if number != 10],
        "11 of 12 numbered files: 10of12 is missing",
    ),
    "folders that share one numbering": (
        [
            f"segment-{number % 3}/{name}"
            for number, name in enumerate(TEN)
            if number != 4
        ],
        "9 of 10 numbered files: part-00004-of-00010 is missing",
    ),
    "folders with a numbering each": (
        [
            "de/x-0-of-3.csv",
            "de/x-1-of-3.csv",
            *(f"en/x-{n}-of-3.csv" for n in range(3)),
        ],
        "2 of 3 numbered files in de: x-2-of-3 is missing",
    ),
    "hashes": (
        [
            "train-00000-of-00003-1f0a8b1ce5dbf9a1.parquet",
            "train-00001-of-00003-b3c5e2ff01aa9d77.parquet",
        ],
        "2 of 3 numbered files: train-00002-of-00003 is missing",
    ),
}


@pytest.mark.parametrize("names", INCOMPLETE)
def test_a_missing_number_is_named(names: str) -> None:
    paths, note = INCOMPLETE[names]
    assert missing_numbers(paths, ["data/"]) == [note]


@pytest.mark.parametrize(
    "paths",
    [
        TEN,
        [f"shard-{number}-of-3" for number in (1, 2, 3)],
        ["train-1.jsonl", "train-3.jsonl", "train-00007.jsonl"],
        [
            "2019.jsonl",
            "2021.jsonl",
            "crawl-2024-11-28.jsonl",
            "crawl-2024-11-30.jsonl",
        ],
        ["1-of-2024.jsonl", "12-of-2024.jsonl", "chapter-3-of-1984.txt"],
        ["proof-of-4.txt", "best-of-2020.jsonl", "5-of-hearts.txt", "9-of-5.txt"],
        ["train-00000-of-00001.parquet", "test-00000-of-00001.parquet"],
        ["a/x-0-of-2.csv", "a/x-1-of-2.csv", "b/x-0-of-1.csv"],
        [f"segment-{number % 3}/{name}" for number, name in enumerate(TEN)],
    ],
    ids=lambda paths: paths[0],
)
def test_other_names_are_no_reason_for_a_note(paths: list[str]) -> None:
    assert missing_numbers(paths, ["data/"]) == []


@pytest.mark.parametrize(
    "entry", ["part-00000-of-00010.jsonl", "/d/part-0000[0-4]-of-00010.jsonl"]
)
def test_files_that_were_chosen_by_number_are_not_missing(entry: str) -> None:
    assert missing_numbers(TEN[:1], [entry]) == []
    assert missing_numbers(TEN[:1], ["part-*-of-00010.jsonl"]) != []


@given(
    count=st.integers(2, 40),
    begin=st.integers(0, 1),
    width=st.integers(1, 5),
    data=st.data(),
)
def test_a_note_names_exactly_the_missing_number(
    count: int, begin: int, width: int, data: st.DataObject
) -> None:
    numbers = list(range(begin, begin + count))
    # Without the first and the last number it is open where the numbers begin.
    missing = data.draw(st.sampled_from(numbers[1:-1] or [None]))
    paths = [
        f"x-{number:0{width}d}-of-{count:0{width}d}.txt"
        for number in numbers
        if number != missing
    ]
    notes = missing_numbers(paths, ["."])
    if missing is None:
        assert notes == []
    else:
        name = f"x-{missing:0{width}d}-of-{count:0{width}d}"
        assert notes == [f"{count - 1} of {count} numbered files: {name} is missing"]


def test_many_incomplete_sets_have_a_few_notes() -> None:
    paths = [f"{folder}/x-{number}-of-3" for folder in range(20) for number in (0, 2)]
    notes = missing_numbers(paths, ["."])
    assert len(notes) == 6
    assert notes[0] == "2 of 3 numbered files in 0: x-1-of-3 is missing"
    assert notes[-1] == "15 more sets of numbered files are incomplete"


def test_a_number_of_a_billion_files_is_counted_without_listing_them() -> None:
    [note] = missing_numbers(["x-000000000-of-999999999.csv"], ["."])
    assert note.endswith("and 999,999,995 more are missing")


def test_plan_and_inspect_show_the_note(tmp_path: Path, tokenizer_dir: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in (TEN[0], TEN[2]):
        (folder / name).write_text(json.dumps({"text": "some words"}) + "\n")
    names = "part-00001-of-00010, part-00003-of-00010, part-00004-of-00010"
    note = f"2 of 10 numbered files: {names} and 5 more are missing"

    config = config_of(tmp_path, folder, tokenizer_dir)
    assert f"s: {note}" in make_plan(resolve(load_config(config))).notes
    findings = DatasetIntrospector(folder).inspect().findings
    assert note in [finding.what for finding in findings]

    # The first records of a folder need not all of its files.
    config["datasets"][0]["num_rows"] = 1
    assert make_plan(resolve(load_config(config))).notes == ()


def test_files_of_a_bucket_are_numbered_too() -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    bucket = fsspec.filesystem("memory")
    for name in TEN[1:]:
        bucket.pipe(f"/numbered/{name}", b'{"text": "some words"}\n')
    findings = DatasetIntrospector("memory://numbered/").inspect().findings
    bucket.rm("/numbered", recursive=True)
    expected = (
        "9 of 10 numbered files: part-00000-of-00010 or part-00010-of-00010 is missing"
    )
    assert expected in [finding.what for finding in findings]
