"""The expected number of packed rows of a mixture of documents, and of its tokens.

A mixture draws documents of stored datasets and packs them, unit by unit. The lengths
of stored documents can be read without their ids, so that they are packed as the units
would pack them (see :mod:`tokenlake.etl.plan.packed_rows`):

1. Read the lengths of the documents of each source: of all row groups, or of some of a
   large source.
2. If the mixture is short and all lengths are known, take them in the order of the
   mixture, which also gives the exact number of tokens. Otherwise draw as many lengths
   of each source as its share of the rows says, shuffled, and interleave them evenly.
3. Pack these documents, in streams of the size of a unit.

Example of the second form: sources of 300 and 100 rows give three documents of the
first for each document of the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.job import open_stream
from tokenlake.etl.plan.mix_forecast import MixForecast
from tokenlake.etl.plan.packed_rows import LengthSample, expected_rows
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.sampling import Floats
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.mixture import MixedSource
from tokenlake.runtime.store.schemes import is_local

_ORDERED_DOCUMENTS: Final = 1 << 20
"""Largest number of documents that are taken in the order of the mixture."""

_SAMPLED_DOCUMENTS: Final = 1 << 17
"""Number of documents of the sample of a longer mixture."""

_LOCAL_GROUPS: Final = 1024
"""Largest number of row groups of a source whose lengths are read, of a store on this
machine.
"""

_REMOTE_GROUPS: Final = 64
"""The same of a store in a bucket, where each row group takes a request."""


def packed_forecast(plan: Plan) -> MixForecast | None:
    """Return the forecast of a mixture, with the expected number of packed rows.

    The forecast of a plan alone reads no documents, and its number of packed rows is
    the least one. It is returned unchanged for a mixture that does not pack, and None
    for a plan without a mixture.

    Raises:
        IntegrityError: A shard of a source is missing or damaged.
    """
    forecast = plan.forecast
    if forecast is None or plan.out is None or plan.out.pack is None:
        return forecast
    # 1. The lengths of stored documents.
    store = open_store(plan.store)
    documents: dict[str, _StoredLengths] = {}
    for parent in plan.parents:
        documents[parent.name] = _read_lengths(store, parent)

    # 2. The documents of the mixture, with the EOS that packing adds.
    is_whole = all(source.is_whole for source in documents.values())
    if is_whole and forecast.rows <= _ORDERED_DOCUMENTS:
        lengths, drawn_tokens = _ordered_lengths(plan, documents)
        forecast = _with_tokens(forecast, drawn_tokens)
    else:
        lengths = _interleaved_lengths(forecast, documents)
    if plan.out.append_eos:
        lengths = lengths + 1
        tokens = sum(source.drawn_tokens for source in forecast.sources.values())
        forecast = replace(forecast, tokens=tokens + forecast.rows)

    # 3. Their rows.
    sample = LengthSample(np.maximum(lengths, 1), float(forecast.tokens))
    sequences = expected_rows([sample], plan.out.pack, [1.0], len(plan.units))
    return replace(forecast, sequences=sequences)


@final
@dataclass(frozen=True, slots=True)
class _StoredLengths:
    """Lengths of the documents of a source.

    Attributes:
        lengths: Tokens of each document that was looked at, in stored order, int64[n].
        group_rows: Number of rows of each row group of the source, int64[groups].
        is_whole: Whether all documents were looked at.
    """

    lengths: Int64
    group_rows: Int64
    is_whole: bool


def _read_lengths(store: ReadStore, parent: FoundParent) -> _StoredLengths:
    """Return the lengths of the documents of a parent, of some row groups at least."""
    most_groups = _REMOTE_GROUPS
    if is_local(store.url):
        most_groups = _LOCAL_GROUPS
    with StoredRows(store, parent.manifest, parent.split) as rows:
        group_count = len(rows.group_rows)
        # Evenly spaced row groups, the first and the last one included.
        spaced = np.linspace(0, group_count - 1, min(group_count, most_groups))
        groups = np.unique(spaced.round().astype(np.int64)).tolist()
        lengths: list[Int64] = []
        for group in groups:
            lengths.append(rows.list_lengths_of_group(group, "input_ids"))
        return _StoredLengths(
            np.concatenate(lengths), rows.group_rows, len(groups) == group_count
        )


def _ordered_lengths(
    plan: Plan, documents: Mapping[str, _StoredLengths]
) -> tuple[Int64, dict[str, int]]:
    """Return the documents of a mixture in its order.

    Args:
        plan: Plan of the mixture.
        documents: Source -> its documents, all of them.

    Returns:
        Tokens of each document, int64[rows], and the drawn tokens of each source.
    """
    assert plan.spec is not None
    group_rows = {name: source.group_rows for name, source in documents.items()}
    stream = open_stream(plan.spec, group_rows)
    row_places = stream.rows(0, plan.spec.order.rows)
    lengths = np.zeros(len(row_places.source), np.int64)
    drawn_tokens: dict[str, int] = {}
    for index, name in enumerate(stream.mixture.names):
        source = documents[name]
        # The index of a row in the source: the rows of the row groups before it, and
        # its index in its row group.
        is_of_source = row_places.source == index
        first_rows = np.cumsum(source.group_rows) - source.group_rows
        rows_before = first_rows[row_places.group[is_of_source]]
        rows = rows_before + row_places.row[is_of_source]
        lengths[is_of_source] = source.lengths[rows]
        drawn_tokens[name] = int(source.lengths[rows].sum())
    return lengths, drawn_tokens


def _with_tokens(forecast: MixForecast, drawn_tokens: Mapping[str, int]) -> MixForecast:
    """Return a forecast with the exact number of drawn tokens of each source."""
    sources: dict[str, MixedSource] = {}
    for name, source in forecast.sources.items():
        sources[name] = replace(source, drawn_tokens=drawn_tokens.get(name, 0))
    return replace(forecast, sources=sources, tokens=sum(drawn_tokens.values()))


def _interleaved_lengths(
    forecast: MixForecast, documents: Mapping[str, _StoredLengths]
) -> Int64:
    """Return the tokens of sampled documents, in an order like that of the mixture.

    Args:
        forecast: Number of rows that the mixture draws of each source.
        documents: Source -> its documents, or some of them.
    """
    sampled_share = min(1.0, _SAMPLED_DOCUMENTS / max(1, forecast.rows))
    generator = np.random.default_rng(0)
    lengths_of_sources: list[Int64] = []
    places_of_sources: list[Floats] = []
    for name, source in documents.items():
        # Documents of whole epochs, then some of the next one. Their places are evenly
        # spaced in the mixture.
        count = round(forecast.sources[name].drawn_rows * sampled_share)
        if not count:
            continue
        rows = np.resize(generator.permutation(len(source.lengths)), count)
        lengths_of_sources.append(source.lengths[rows])
        places_of_sources.append((np.arange(count) + 0.5) / count)
    places = np.concatenate(places_of_sources)
    lengths = np.concatenate(lengths_of_sources)
    return lengths[np.argsort(places, kind="stable")]
