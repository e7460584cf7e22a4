"""Paths of the pages of a store, relative to the folder of its index.

Dataset names are checked by the store (``[a-z0-9][a-z0-9._-]{0,63}``). They need no
escape in a path or URL, and cannot leave the folder. Pages of versions lie below
``datasets/``, because a dataset may have the name ``index.html``.
"""

from __future__ import annotations

from typing import Final

from tokenlake.etl.reports.store_pages.contents import VersionName

# Pages in the folder of the index, and the folder of all other pages.
INDEX: Final = "index.html"
LINEAGE: Final = "lineage.html"
DATASETS: Final = "datasets"

ABOVE_VERSION: Final = "../../"
"""Path from the page of a version to the folder of the index."""


def version_page(name: VersionName) -> str:
    """Return the path of a version's report: ``datasets/code/v3.html``."""
    return f"{DATASETS}/{name.dataset}/v{name.version}.html"


def rows_page(name: VersionName) -> str:
    """Return the path of a version's rows: ``datasets/code/v3-rows.html``."""
    return f"{DATASETS}/{name.dataset}/v{name.version}-rows.html"


def lineage_place(name: VersionName) -> str:
    """Return the place of a version in the graph: ``lineage.html#code@v3``."""
    return f"{LINEAGE}#{name}"


def dataset_place(dataset: str) -> str:
    """Return the place of a dataset in the index: ``index.html#dataset-code``."""
    return f"{INDEX}#{dataset_id(dataset)}"


def dataset_id(dataset: str) -> str:
    """Return the id of a dataset's element in the index.

    The prefix keeps it apart from the ids of the page's sections.
    """
    return f"dataset-{dataset}"
