"""The contract of an input format of token ids: that of formats of text, for records
that are lists of ids.

Each entry of :data:`tokenlake.config.formats.FORMATS` whose records are ids runs it. A
new format needs a writer in :data:`tests.token_files.WRITERS`, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.formats import token_formats
from tests.token_files import WRITERS
from tokenlake import load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, SourceError
from tokenlake.etl.sources import (
    InputFile,
    RowBatch,
    list_inputs,
    read_rows,
    split_file,
)

RECORDS = 300
EOS = 0
DOCUMENTS = [
    [*range(1 + number, 1 + number + number % 17), EOS] for number in range(RECORDS)
]
UNIT_SIZES = (16, 700, 5_000, 1 << 30)
TOKENS = {"dtype": "uint16", "eos_token_id": EOS}


def source_of(path: Path, format_name: str) -> Any:
    """Return the source of a configuration that reads one file of ids."""
    dataset = {
        "name": "web",
        "data_files": str(path),
        "type": format_name,
        "tokens": TOKENS,
        "tokenizer": "gpt2",
    }
    config = {
        "name": "web",
        "datasets": [dataset],
        "source": {"on_bad_record": "fail"},
        "save": {"output_dir": str(path.parent)},
    }
    [source] = resolve(load_config(config)).sources
    return source


def file_of(source: Any) -> InputFile:
    [file] = [file for file in list_inputs(source) if not file.companion]
    return file


@pytest.fixture(params=sorted(token_formats()))
def format_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(format_name: str, tmp_path: Path) -> Path:
    """A file with one record for each of :data:`DOCUMENTS`."""
    return WRITERS[format_name](tmp_path, DOCUMENTS)


def read_in_units(source: Any, unit_size: int, **options: Any) -> list[RowBatch]:
    """Return the batches of a file that is divided into units of a size."""
    batches: list[RowBatch] = []
    for part in split_file(file_of(source), unit_size):
        batches += read_rows(part, source, **options)
    return batches


def ids_of(batches: list[RowBatch]) -> list[Any]:
    ids: list[Any] = []
    for batch in batches:
        if len(batch.positions):
            ids += batch.rows.column(0).to_pylist()
    return ids


def positions_of(batches: list[RowBatch]) -> list[int]:
    return [position for batch in batches for position in batch.positions.tolist()]


def test_every_format_has_a_writer() -> None:
    assert WRITERS.keys() == token_formats().keys()


def test_every_division_gives_the_same_records_at_the_same_positions(
    path: Path, format_name: str
) -> None:
    source = source_of(path, format_name)
    whole = read_in_units(source, 1 << 30)
    assert ids_of(whole) == DOCUMENTS
    positions = positions_of(whole)
    assert positions == sorted(set(positions))
    for unit_size in UNIT_SIZES:
        divided = read_in_units(source, unit_size)
        assert ids_of(divided) == DOCUMENTS
        assert positions_of(divided) == positions


def test_the_bytes_read_of_all_units_are_those_of_the_file(
    path: Path, format_name: str
) -> None:
    source = source_of(path, format_name)
    for unit_size in UNIT_SIZES:
        parts = split_file(file_of(source), unit_size)
        batches = [batch for part in parts for batch in read_rows(part, source)]
        assert sum(batch.bytes_read for batch in batches) == sum(
            part.weight for part in parts
        )
        assert sum(batch.rows_read for batch in batches) == RECORDS


def test_small_blocks_change_nothing(path: Path, format_name: str) -> None:
    source = source_of(path, format_name)
    whole = read_in_units(source, 1 << 30)
    blocks = read_in_units(source, 5_000, block_bytes=100)
    assert ids_of(blocks) == DOCUMENTS
    assert positions_of(blocks) == positions_of(whole)


def test_the_first_records_of_a_range_are_those_of_the_file(
    path: Path, format_name: str
) -> None:
    source = source_of(path, format_name)
    [part] = split_file(file_of(source), 1 << 30)
    limited = list(read_rows(replace(part, rows=7), source))
    assert ids_of(limited) == DOCUMENTS[:7]


@pytest.mark.parametrize("share", [0.9, 0.5, 0.01])
def test_a_file_that_was_cut_is_refused(
    path: Path, format_name: str, share: float
) -> None:
    """A stream of ids alone has no end that could be missing, but ends inside of an
    id.
    """
    data = path.read_bytes()
    size = int(len(data) * share)
    if format_name == "numpy":
        size |= 1
    path.write_bytes(data[:size])
    source = source_of(path, format_name)
    with pytest.raises((SourceError, BadRecordError)) as error:
        read_in_units(source, 1 << 30)
    assert path.name in str(error.value)


def test_an_empty_file_has_no_records(format_name: str, tmp_path: Path) -> None:
    path = WRITERS[format_name](tmp_path, [])
    assert ids_of(read_in_units(source_of(path, format_name), 700)) == []
