"""What most tests of the loader read: small datasets that are built once for a
process.
"""

from __future__ import annotations

import pytest

import tokenlake as tl
from tests.loader import support
from tests.reading.support import lake_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of all datasets but those of mixtures."""
    return lake_of(tmp_path_factory).url


@pytest.fixture(scope="module")
def ds(root: str) -> tl.Dataset:
    return tl.open(root, "plain")


@pytest.fixture(scope="module")
def learned(root: str) -> tl.Dataset:
    """Packed, with a loss mask."""
    return tl.open(root, "learned")


@pytest.fixture(scope="module")
def texts(root: str) -> tl.Dataset:
    """Rows of many lengths."""
    return tl.open(root, "texts")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of mixtures and what they are made of."""
    return support.mixtures(tmp_path_factory)


@pytest.fixture(scope="module")
def sources(store: str) -> dict[str, tl.Dataset]:
    return {"code": tl.open(store, "code-rows"), "web": tl.open(store, "web-rows")}


@pytest.fixture(scope="module", params=["dataset", "mixture"])
def data(
    request: pytest.FixtureRequest, learned: tl.Dataset, sources: dict[str, tl.Dataset]
) -> tl.Dataset | tl.Mixture:
    """A dataset, and a mixture of two sources, of which one comes three times as
    often.
    """
    if request.param == "dataset":
        return learned
    return tl.Mixture(sources, {"code": 0.25, "web": 0.75}, rows=150, block_size=6)
