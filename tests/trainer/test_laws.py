"""What losses, schedules, optimizers, meshes and metrics promise; see
:mod:`tests.trainer.laws`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loader.jax_support import packed_store, run
from tests.seeds import promise


@promise(129, 130, 131, 132, 133, 314, 316, 317)
def test_the_parts_of_a_step_agree_with_plain_references(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run("tests.trainer.laws", devices=4, store=str(packed_store(tmp_path_factory)))


def test_the_decoder_of_the_examples_is_the_plain_one_however_it_is_computed(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    run(
        "tests.trainer.decoder_laws",
        devices=4,
        store=str(packed_store(tmp_path_factory)),
        folder=str(tmp_path),
    )
