"""Loading onto the devices of one process: eight, that a CPU pretends to have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.loader.jax_support import packed_store, run
from tests.seeds import promise


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_store(tmp_path_factory)


@promise(327, 333)
@pytest.mark.parametrize(
    "computed", [False, True], ids=["on the host", "on the devices"]
)
def test_every_sharding_gives_the_batches_of_a_loader_without_one(
    store: Path, computed: bool
) -> None:
    run("tests.loader.jax_meshes", store=str(store), computed=computed)


def test_a_batch_that_is_kept_never_changes(store: Path) -> None:
    run("tests.loader.jax_memory", store=str(store))


def test_however_an_iteration_ends_its_threads_end_and_errors_come_in_their_place(
    store: Path, tmp_path: Path
) -> None:
    run(
        "tests.loader.jax_endings",
        store=str(store),
        damaged=str(_damaged(store, tmp_path / "store")),
    )


def _damaged(store: Path, folder: Path) -> Path:
    """A copy of the store, with one bit of a row group of ``small`` the other way
    round.
    """
    shutil.copytree(store, folder)
    (path,) = (folder / "small" / "v1" / "data").iterdir()
    metadata = pq.read_metadata(path)
    column = metadata.row_group(metadata.num_row_groups // 2).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    return folder
