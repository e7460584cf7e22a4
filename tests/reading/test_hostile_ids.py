"""Shards of a stranger: ids that no tokenizer has and lengths that no segment has,
under checksums that hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tokenlake as tl
from tests.reading.shards import another, earlier, indexed, ours, packed_rows, stored
from tests.reading.support import lake_of
from tokenlake import Dataset, Manifest, export_version, verify
from tokenlake.cli.app import main
from tokenlake.errors import IntegrityError
from tokenlake.runtime import packed_schema
from tokenlake.runtime.store import open_store

ROWS, LENGTH, VOCABULARY = 12, 8, 50_000
WRITERS: dict[str, Callable[[pa.Table, int], bytes]] = {
    "ours": ours,
    "indexed": indexed,
    "earlier": earlier,
    "another": lambda table, rows: another(table, rows, use_dictionary=True),
}


def changed(
    ids: dict[int, int] | None = None, lengths: dict[int, list[int]] | None = None
) -> pa.Table:
    """Good rows of which some ids, by their place in all rows, or the segments of
    some rows are others.
    """
    columns = packed_rows(ROWS, LENGTH).to_pydict()
    for place, number in (ids or {}).items():
        columns["input_ids"][place // LENGTH][place % LENGTH] = number
    for row, segments in (lengths or {}).items():
        columns["segment_lengths"][row] = segments
        columns["documents"][row] = [
            {"file": 1, "position": 0, "start": 0} for _ in segments
        ]
    return pa.Table.from_pydict(columns, schema=packed_schema(LENGTH))


def opened(
    folder: Path, table: pa.Table, write: Callable[[pa.Table, int], bytes]
) -> Dataset:
    rows = stored(folder, [write(table, 5)], LENGTH)
    tokenizer = {
        "s": {"name": "t", "probe": "p", "pad_id": 0, "vocab_size": VOCABULARY}
    }
    return Dataset(
        open_store(folder), replace(rows.manifest, tokenizer=tokenizer), "train"
    )


DOORS: dict[str, Callable[[Dataset, int], Any]] = {
    "loader": lambda ds, _: list(tl.DataLoader(ds, 4)),
    "loader of ids": lambda ds, _: list(tl.DataLoader(ds, 4, columns=["input_ids"])),
    "loader ahead": lambda ds, _: list(tl.DataLoader(ds, 4, workers=2, prefetch=2)),
    "mixture": lambda ds, _: list(
        tl.DataLoader(tl.Mixture({"a": ds}, {"a": 1.0}, rows=12), 4)
    ),
    "take": lambda ds, _: ds.take(range(ROWS)),
    "row": lambda ds, _: [ds[row] for row in range(ROWS)],
    "read": lambda ds, _: ds.read(0, ROWS),
    "documents": lambda ds, row: ds.documents(row),
    "decode": lambda ds, row: ds.decode(row),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
@pytest.mark.parametrize("place", [0, ROWS * LENGTH - 1])
@pytest.mark.parametrize("number", [-1, -(2**31), VOCABULARY, 2**31 - 1])
def test_an_id_of_no_tokenizer_is_refused_at_every_door(
    tmp_path: Path, write: Callable[[pa.Table, int], bytes], place: int, number: int
) -> None:
    ds = opened(tmp_path, changed({place: number}), write)
    for door in DOORS.values():
        with pytest.raises(
            IntegrityError,
            match=f"row group .* cannot be read: the id {number} does not belong .*expected 0 to 49999",
        ):
            door(ds, place // LENGTH)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_the_largest_id_of_the_tokenizer_is_read(
    tmp_path: Path, write: Callable[[pa.Table, int], bytes]
) -> None:
    ds = opened(tmp_path, changed({0: VOCABULARY - 1, 5: 0}), write)
    assert ds[0]["input_ids"][0] == VOCABULARY - 1
    assert len(list(tl.DataLoader(ds, 4))) == 3
    assert ds.read(0, ROWS).num_rows == ROWS


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
@pytest.mark.parametrize(
    "segments",
    [[-3], [4, -4, 4], [0], [LENGTH + 1], [2**31 - 1, 1], [-(2**31)], [5, 5]],
    ids=str,
)
def test_lengths_of_no_segment_are_refused_at_every_door(
    tmp_path: Path, write: Callable[[pa.Table, int], bytes], segments: list[int]
) -> None:
    ds = opened(tmp_path, changed(lengths={3: segments}), write)
    for name, door in DOORS.items():
        if name == "loader of ids":  # reads no lengths
            continue
        with pytest.raises(
            IntegrityError, match=r"cannot be read: (a segment of|segments of)"
        ):
            door(ds, 3)


def test_segments_and_their_documents_must_be_as_many(tmp_path: Path) -> None:
    columns = packed_rows(ROWS, LENGTH).to_pydict()
    columns["documents"][2].append({"file": 1, "position": 0, "start": 0})
    ds = opened(
        tmp_path, pa.Table.from_pydict(columns, schema=packed_schema(LENGTH)), ours
    )
    with pytest.raises(
        IntegrityError,
        match="segment_lengths and documents of a row are not of the same segments",
    ):
        ds.documents(2)


@pytest.fixture
def lake(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake as a stranger hands it out: its manifests are sealed, and say a
    vocabulary that its ids go beyond.
    """
    root = tmp_path / "store"
    shutil.copytree(Path(lake_of(tmp_path_factory).url), root)
    for path in root.glob("*/v1/manifest.json"):
        manifest = Manifest.from_bytes(path.read_bytes())
        tokenizer = {
            name: {**facts, "vocab_size": 300}
            for name, facts in manifest.tokenizer.items()
        }
        path.chmod(0o644)
        path.write_bytes(replace(manifest, tokenizer=tokenizer).to_bytes())
    return root


@pytest.mark.parametrize(
    "name", ["plain", "learned", "texts", "answers", "left", "judged"]
)
def test_every_kind_of_dataset_keeps_to_its_vocabulary(
    lake: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ds = tl.open(lake, name, split="train")
    says = r"the id \d+ does not belong to its tokenizer; expected 0 to 299"
    with pytest.raises(IntegrityError, match=says):
        list(tl.DataLoader(ds, 4))
    with pytest.raises(IntegrityError, match=says):
        ds.read(0, len(ds))
    for form in ("parquet", "jsonl"):
        with pytest.raises(IntegrityError, match=says):
            export_version(lake, tmp_path / form, form, name=f"{name}@v1")
    report = verify(open_store(lake), name, 1, deep=True)
    assert not report.ok
    assert any(
        "0 to 299" in f"{problem.expected} {problem.got}" for problem in report.problems
    )
    for arguments in (["peek", name, "-n", "64"], ["peek", name, "-n", "64", "--json"]):
        assert main([*arguments, "--store", str(lake)]) == IntegrityError.exit_code
        assert "does not belong to its tokenizer" in capsys.readouterr().err


def test_a_version_that_says_no_vocabulary_refuses_negative_ids_alone(
    tmp_path: Path,
) -> None:
    rows = stored(tmp_path, [ours(changed({7: 2**31 - 1}), 5)], LENGTH)
    assert int(rows.packed(0, loss_mask=False).ids.max()) == 2**31 - 1
    other = tmp_path / "other"
    rows = stored(other, [ours(changed({7: -5}), 5)], LENGTH)
    with pytest.raises(
        IntegrityError,
        match="the id -5 does not belong to its tokenizer; expected 0 to 2147483647",
    ):
        rows.packed(0, loss_mask=False)
