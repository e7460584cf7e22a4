"""Every block of code in the pages runs, or a comment before it says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builds import Lender
from tests.docs.snippets import PAGES, blocks, run
from tests.lazily import lazily
from tests.store.support import linked_copy

jax: Any = lazily("jax")
sharding: Any = lazily("jax.sharding")

RUN = [
    (page, block)
    for page in PAGES
    for block in blocks(page)
    if block.kind in ("python", "bash", "yaml")
]


def _names() -> dict[str, Any]:
    """What a page takes for given: a model and a step of somebody else."""

    def apply(params: Any, batch: Any) -> Any:
        return params["embed"][batch["input_ids"]] @ params["embed"].T

    embed = jax.numpy.asarray(
        np.random.default_rng(0).normal(size=(1024, 8)), "float32"
    )
    return {
        "apply": apply,
        "params": {"embed": embed},
        "train_step": lambda batch: 0.0,
        "save": lambda *kept: None,
        "NamedSharding": sharding.NamedSharding,
        "PartitionSpec": sharding.PartitionSpec,
        "mesh": sharding.Mesh(jax.devices()[:1], ("data",)),
        "__name__": "__main__",
    }


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(found == page for found, _ in RUN)]
)
def test_a_page_runs(
    page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked_copy(world, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))
    for name in ("AWS_KEY", "AWS_SECRET", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    namespace = _names()
    with Lender.here():
        for found, block in RUN:
            if found == page and not block.why:
                run(block, namespace)


def test_few_blocks_are_not_run() -> None:
    """Reasons are for what one machine without a network cannot do, and not a way
    around this test.
    """
    reasons = [block for _, block in RUN if block.why]
    assert len(reasons) * 3 <= len(RUN)
