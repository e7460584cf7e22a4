"""The lengths of a version's documents as a table, for pages without drawings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenlake.base import numbers
from tokenlake.etl.reports import Table, label, number
from tokenlake.query.row_sample import RowSample, sample_rows
from tokenlake.query.sequences import mixed_as
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest


def length_table(catalog: Catalog, manifest: Manifest) -> Table:
    """Return the quantiles of the tokens per document, with one row for each source.

    The title says how many rows the figures are from, unless they are from all.

    Args:
        catalog: Catalog of the store that holds the version.
        manifest: Manifest of the version.

    Raises:
        IntegrityError: A file of the version is damaged.
    """
    sample = sample_rows(catalog.store, manifest, mixed_as(catalog, manifest))
    columns = (
        label("source"),
        number("documents"),
        number("shortest"),
        number("low", "5%"),
        number("median"),
        number("high", "95%"),
        number("longest"),
    )
    rows: list[tuple[Any, ...]] = []
    for source, lengths in sample.lengths.items():
        # Quantiles may lie between two lengths; a number of tokens is whole.
        quantiles = np.quantile(lengths, [0.0, 0.05, 0.5, 0.95, 1.0]).astype(np.int64)
        rows.append((source, len(lengths), *quantiles.tolist()))
    return Table(columns, tuple(rows), _title(sample))


def _title(sample: RowSample) -> str:
    """Return the title, with the rows of an estimate."""
    title = "Tokens per document"
    if sample.is_exact:
        return title
    rows = f"{numbers.count(sample.rows)} of {numbers.plural(sample.all_rows, 'row')}"
    return f"{title}, estimated from {rows}"
