"""The size of a unit where the configuration leaves it open: chosen by the first
version, kept by later ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake import Manifest, plan, repair
from tokenlake.etl import build_dataset
from tokenlake.etl.plan import choose_unit_size

promise = pytest.mark.promise

MIB = 1 << 20
SMALLEST, LARGEST = 8 * MIB, 128 * MIB
WORKERS = 64


@promise(331)
@given(st.integers(0, 1 << 50))
def test_every_worker_has_a_unit_where_there_is_enough(total: int) -> None:
    size = choose_unit_size(total)
    assert SMALLEST <= size <= LARGEST
    assert size & (size - 1) == 0
    if total >= SMALLEST * WORKERS:
        assert total // size >= WORKERS
    # Units are no smaller than they need to be.
    if size < LARGEST:
        assert total // (2 * size) < WORKERS


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, 8),
        (735 << 20, 8),
        (1 << 30, 16),
        (4 << 30, 64),
        ((8 << 30) - 1, 64),
        (8 << 30, 128),
        (1 << 40, 128),
    ],
)
def test_sizes_are_powers_of_two(total: int, expected: int) -> None:
    assert choose_unit_size(total) == expected * MIB


def _write(folder: Path, name: str, rows: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    lines = [
        json.dumps({"text": f"{name}: the words of document {number}"})
        for number in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> dict[str, Any]:
    _write(tmp_path / "in", "a.jsonl", 300)
    return {
        "name": "words",
        "datasets": [
            {
                "name": "s",
                "data_files": str(tmp_path / "in"),
                "tokenizer": str(tokenizer_dir),
            }
        ],
        "pack": {"enabled": True, "seq_length": 32},
        "save": {"output_dir": str(tmp_path / "store")},
    }


def _recorded(manifest: Manifest) -> int:
    return manifest.config["build"]["unit_size"]


def test_the_first_version_records_what_it_chose_and_a_rerun_finds_it(
    config: dict[str, Any],
) -> None:
    first = build_dataset(config, workers=1)
    assert _recorded(first.manifest) == 8 * MIB
    again = build_dataset(config, workers=1)
    assert again.manifest.version == 1
    assert again.units_built == 0


def test_later_versions_keep_the_size_of_the_earliest(
    config: dict[str, Any], tmp_path: Path
) -> None:
    first = build_dataset({**config, "source": {"unit_size": 3000}}, workers=1)
    _write(tmp_path / "in", "b.jsonl", 200)
    second = build_dataset(config, workers=1)
    assert second.manifest.version == 2
    assert _recorded(second.manifest) == 3000
    assert second.units_reused == first.units_built > 1
    # A size that is written counts, and later versions still keep that of the first.
    third = build_dataset({**config, "source": {"unit_size": 5000}}, workers=1)
    assert (third.manifest.version, _recorded(third.manifest)) == (3, 5000)
    fourth = build_dataset(config, workers=1)
    assert fourth.manifest.version == 2


def test_a_limit_on_rows_counts_all_files(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (dataset,) = config["datasets"]
    limited = {**config, "datasets": [{**dataset, "num_rows": 10}]}
    found = plan(limited)
    assert found.build.unit_size == 8 * MIB
    assert len(found.units) == 1


def test_a_version_is_repaired_with_its_own_size(
    config: dict[str, Any], tmp_path: Path
) -> None:
    built = build_dataset(config, workers=1)
    shard = tmp_path / "store" / "words" / "v1" / built.manifest.files[0].path
    intact = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(intact[:-7] + b"damaged")
    repair(tmp_path / "store", "words@v1")
    assert shard.read_bytes() == intact
